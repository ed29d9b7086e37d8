//! `quayfs-bench`: workloads on directories in turn, and the mechanisms of the papers that QuayFS comes from, on and
//! off.

mod args;
mod commands;
mod library;
mod papers;

use args::Cli;
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use mimalloc::MiMalloc;
use quayfs_pmem::{Ending, exit_on_fault};
use quayfs_shown::command::{Failure, usage_line};
use signal_hook::consts::SIGXFSZ;
use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// As in the daemon: the operation layer is measured with the allocator that serves it there.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// What messages begin with.
const PROGRAM: &str = "quayfs-bench";
/// Exit code: failed.
const FAILED: u8 = 1;
/// Exit code: wrong usage.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    // A signal that is caught: writing beyond the limit of a file's size fails then, and does not end the process.
    let _ = signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)));
    // Without it a medium that fails under a mapped page ends the process without a word.
    let _ = exit_on_fault(Ending {
        code: FAILED,
        ..Ending::default()
    });
    match Cli::try_parse() {
        Ok(cli) => finish(commands::run(cli.command)),
        Err(error) if !error.use_stderr() => {
            // Help and version; a closed pipe is the reader's choice.
            let _ = error.print();
            ExitCode::SUCCESS
        }
        Err(error) => finish(Err(usage(&error, std::env::args_os().nth(1)))),
    }
}

fn finish(result: Result<(), Failure>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            failure.report(PROGRAM);
            failure.code.into()
        }
    }
}

/// `command`: what was asked for, if that is one.
fn usage(error: &clap::Error, command: Option<OsString>) -> Failure {
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        let line = format!("a command is missing: see `{PROGRAM} --help`");
        return Failure::new(USAGE, line);
    }
    let command = command.filter(|c| Cli::command().find_subcommand(c).is_some());
    let asked = command.map_or_else(String::new, |c| format!(" {}", c.display()));
    let about = format!("{PROGRAM}{asked}");
    Failure::new(USAGE, usage_line(&error.to_string(), &about))
}

/// Prints a warning of one line on the standard error.
fn warn(message: &str) {
    quayfs_shown::command::warn(PROGRAM, message);
}
