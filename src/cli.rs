//! The command line: reading it, and the parts of each command that are about people and
//! processes rather than about the volume.

mod advice;
mod args;
mod asking;
mod at_rest;
mod confine;
mod daemon;
mod doctor;
mod draining;
mod dump;
mod ending;
mod exit;
mod fsck;
mod handover;
mod helper;
mod identify;
mod info;
mod inherited;
mod interrupted;
mod log;
mod media;
mod migrate;
mod mkfs;
mod mount;
mod progress;
mod quota;
mod resize;
mod restart;
mod scrub;
mod stats;
mod status;
mod succession;
mod supervisor;
mod tools;
mod top;
mod trace;
mod tune;
mod turned;
mod umount;
mod units;
mod unopened;
mod unserved;
mod work;

use args::{Cli, Command};
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use exit::Failure;
use helper::{Call, Role};
pub use helper::{MOUNT_FORM, UMOUNT_FORM};
use quayfs_pmem::{Ending, exit_on_fault};
use std::ffi::OsString;
use std::io;

/// Said at `mkfs` and at every mount of a volume whose region is in DRAM.
const VOLATILE_WARNING: &str = "the pmem region lies in ordinary memory: this volume is LOST when \
     the machine goes down; for tests and benchmarks only";

/// Runs the program with its arguments, the name in front, and returns its exit code. Errors are
/// one line on the standard error.
pub fn run(args: impl IntoIterator<Item = OsString>) -> u8 {
    inherited::survive_limits();
    let mut args = args.into_iter();
    let name = args.next().unwrap_or_else(|| "quayfs".into());
    let role = Role::of(&name);
    let done = |()| exit::OK;
    let all = |args| std::iter::once(name.clone()).chain(args).collect();
    finish(match role {
        Role::Quayfs => return subcommand(name, args),
        Role::Mount => Call::parse(role, args).and_then(|call| mount::helper(&call).map(done)),
        Role::Umount => Call::parse(role, args)
            .and_then(|call| umount::run(&call.operands[0], call.mode().into()).map(done)),
        Role::Fsck => tools::run_fsck(all(args)),
        Role::Mkfs => tools::run_mkfs(all(args)),
        Role::Supervisor => supervisor::run(&args.collect::<Vec<_>>()).map(done),
    })
}

/// What can be said on the command lines of `quayfs`, `mkfs.quayfs` and `fsck.quayfs`: for manual pages and completions.
pub fn definitions() -> [clap::Command; 3] {
    let [mkfs, fsck] = tools::definitions();
    [Cli::command(), mkfs, fsck]
}

fn subcommand(name: OsString, rest: impl Iterator<Item = OsString>) -> u8 {
    let args: Vec<OsString> = std::iter::once(name).chain(rest).collect();
    match Cli::try_parse_from(&args) {
        Ok(cli) => {
            let code = unprinted_code(&cli.command);
            finish_with(execute(cli.command), code)
        }
        Err(error) if !error.use_stderr() => {
            // Help and version; a closed pipe is the reader's choice.
            match error.print() {
                Err(e) if e.kind() != io::ErrorKind::BrokenPipe => {
                    finish(Err(Failure::new(exit::FAILED, unwritten(&e))))
                }
                _ => exit::OK,
            }
        }
        Err(error) => finish(Err(usage(&error, args.get(1)))),
    }
}

fn execute(command: Command) -> Result<u8, Failure> {
    // Without it a medium that fails under a mapped page ends the process without a word.
    let _ = exit_on_fault(Ending {
        code: fault_code(&command),
        ..Ending::default()
    });
    match command {
        Command::Mkfs(args) => mkfs::run(args).map(|()| exit::OK),
        Command::Mount(args) => mount::run(args).map(|()| exit::OK),
        Command::Umount(args) => umount::run(&args.mountpoint, (&args).into()).map(|()| exit::OK),
        Command::Trace(args) => trace::run(&args).map(|()| exit::OK),
        Command::Probe(args) => Ok(asking::answer(&args)),
        Command::Identify(args) => identify::run(&args.device).map(|()| exit::OK),
        Command::Fsck(args) => fsck::run(&args),
        Command::Scrub(args) => scrub::run(&args),
        Command::Quota(args) => quota::run(&args).map(|()| exit::OK),
        Command::Status(args) => status::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Top(args) => top::run(&args).map(|()| exit::OK),
        Command::Stats(args) => stats::run(&args).map(|()| exit::OK),
        Command::Info(args) => info::run(&args).map(|()| exit::OK),
        Command::Dump(args) => dump::run(&args).map(|()| exit::OK),
        Command::Resize(args) => resize::run(&args).map(|()| exit::OK),
        Command::Migrate(args) => migrate::run(&args).map(|()| exit::OK),
        Command::Tune(args) => tune::run(&args).map(|()| exit::OK),
        Command::Restart(args) => restart::run(&args).map(|()| exit::OK),
        Command::Succession(args) => succession::run(&args).map(|()| exit::OK),
        Command::TurnReadOnly(args) => Ok(turned::run(&args)),
    }
}

/// The exit code of a command whose pmem region fails where it is mapped.
fn fault_code(command: &Command) -> u8 {
    match command {
        Command::Mount(_) | Command::Umount(_) | Command::TurnReadOnly(_) => exit::MOUNT_FAILED,
        Command::Fsck(_) => exit::FSCK_FAILED,
        Command::Status(_) => exit::STATUS_UNKNOWN,
        Command::Doctor(_) => exit::DOCTOR_USAGE,
        Command::Mkfs(_)
        | Command::Scrub(_)
        | Command::Quota(_)
        | Command::Info(_)
        | Command::Dump(_)
        | Command::Resize(_)
        | Command::Migrate(_)
        | Command::Tune(_)
        | Command::Identify(_)
        | Command::Restart(_)
        | Command::Succession(_)
        | Command::Stats(_)
        | Command::Top(_)
        | Command::Trace(_)
        | Command::Probe(_) => exit::FAILED,
    }
}

fn finish(result: Result<u8, Failure>) -> u8 {
    finish_with(result, exit::FAILED)
}

/// As [`finish`]; `unprinted` is the exit code if all went well but that it was not printed.
fn finish_with(result: Result<u8, Failure>, unprinted: u8) -> u8 {
    let result = match (result, exit::unprinted()) {
        (Ok(exit::OK), Some(why)) => Err(Failure::new(unprinted, unwritten(&why))),
        (result, _) => result,
    };
    result.unwrap_or_else(|failure| {
        failure.report(exit::PROGRAM);
        failure.code
    })
}

fn unwritten(why: &dyn std::fmt::Display) -> String {
    format!("the output cannot be written: {why}")
}

/// The exit code of a command that could not say what it has found.
fn unprinted_code(command: &Command) -> u8 {
    match command {
        // What they were to do is done.
        Command::Mount(_) | Command::Umount(_) | Command::TurnReadOnly(_) => exit::OK,
        other => fault_code(other),
    }
}

/// The exit code of a wrong command line depends on whose conventions the command follows.
fn usage(error: &clap::Error, command: Option<&OsString>) -> Failure {
    let command = command.and_then(|c| c.to_str());
    let code = match command {
        Some("fsck") => exit::FSCK_USAGE,
        Some("mount" | "umount") => exit::MOUNT_USAGE,
        Some("status") => exit::STATUS_UNKNOWN,
        Some("doctor") => exit::DOCTOR_USAGE,
        _ => exit::USAGE,
    };
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return Failure::new(code, "a command is missing: see `quayfs --help`");
    }
    let line = <Cli as clap::CommandFactory>::command();
    let known: Vec<&str> = line
        .get_subcommands()
        .filter(|c| !c.is_hide_set())
        .map(|c| c.get_name())
        .collect();
    Failure::new(
        code,
        exit::usage_line(error, command.filter(|c| known.contains(c))),
    )
}
