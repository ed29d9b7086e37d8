//! `crash`: searches for crashes after which something is wrong.
//!
//! ```text
//! crash [--seconds N] [--seed N] [--jobs N]     search
//! crash --program 'MODE: STEP; STEP [#IMAGE]'   one program, or one crash of it
//! crash --mutants [--seconds N]                         forget each flush and fence in turn
//! crash --list                                  modes and steps
//! ```

use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::Duration;

use quayfs_oracle::search::alphabet::ALPHABET;
use quayfs_oracle::search::mutants::{self, Mutant};
use quayfs_oracle::search::program::{MODES, Program, Text};
use quayfs_oracle::search::run::{Coverage, DEPTH, crashes, search};
use quayfs_oracle::search::stories::STORIES;

const USAGE: &str = "\
usage: crash [--seconds N] [--seed N] [--jobs N]
       crash --program 'MODE: STEP; STEP [#IMAGE]'
       crash --mutants [--seconds N] [--jobs N]
       crash --list";

fn main() -> ExitCode {
    let (mut seconds, mut seed, mut jobs) = (
        60,
        1,
        std::thread::available_parallelism().map_or(2, |n| n.get()),
    );
    let mut forget = false;
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut number = |into: &mut u64| match args.next().and_then(|text| text.parse().ok()) {
            Some(n) => {
                *into = n;
                true
            }
            None => false,
        };
        let known = match arg.as_str() {
            "--seconds" => number(&mut seconds),
            "--seed" => number(&mut seed),
            "--jobs" => {
                let mut n = 0;
                let ok = number(&mut n) && n > 0;
                jobs = n as usize;
                ok
            }
            "--program" => return args.next().map_or_else(usage, |line| one(&line)),
            "--mutants" => {
                forget = true;
                true
            }
            "--list" => return list(),
            "--help" | "-h" => {
                println!("{USAGE}");
                return ExitCode::SUCCESS;
            }
            _ => false,
        };
        if !known {
            return usage();
        }
    }
    quiet();
    if forget {
        return forget_each(Duration::from_secs(seconds), jobs);
    }
    let tty = std::io::stderr().is_terminal();
    let note = |c: &Coverage| {
        if tty {
            let (programs, images) = (
                c.programs.load(Ordering::Relaxed),
                c.images.load(Ordering::Relaxed),
            );
            eprint!("\r{programs} programs, {images} images ");
            let _ = std::io::stderr().flush();
        }
    };
    let report = search(Duration::from_secs(seconds), seed, jobs, &note);
    if tty {
        eprintln!();
    }
    println!("{report}");
    if report.violation.is_some() {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

fn usage() -> ExitCode {
    eprintln!("{USAGE}");
    ExitCode::from(2)
}

/// A violation is told once, by us.
fn quiet() {
    std::panic::set_hook(Box::new(|_| ()));
}

fn one(line: &str) -> ExitCode {
    let (line, image) = match line.split_once('#') {
        Some((line, n)) => match n.trim().parse() {
            Ok(n) => (line, Some(n)),
            Err(_) => return usage(),
        },
        None => (line, None),
    };
    let program: Program = match line.parse() {
        Ok(program) => program,
        Err(e) => {
            eprintln!("{e}; `crash --list` has them");
            return ExitCode::from(2);
        }
    };
    quiet();
    let coverage = Coverage::default();
    match crashes(&program, image, false, &coverage, &|| false) {
        Ok(()) => {
            println!(
                "{} images, nothing wrong",
                coverage.images.load(Ordering::Relaxed)
            );
            ExitCode::SUCCESS
        }
        Err((line, what)) => {
            println!("{what}\nagain: crash --program '{line}'");
            ExitCode::FAILURE
        }
    }
}

fn forget_each(limit: Duration, jobs: usize) -> ExitCode {
    let show = |place: &str, mutant: &Mutant| match &mutant.killer {
        Some((run, what)) => println!("| `{place}` | `{run}` | {what} |"),
        None => println!(
            "| `{place}` | **alive** after {} images of {} runs | |",
            mutant.images, mutant.runs
        ),
    };
    // The long ones first: they meet most places, and a mutant that has died costs nothing more.
    let is_story = |p: &&Program| matches!(p.text, Text::Story(_));
    let is_single = |p: &&Program| matches!(&p.text, Text::Steps(steps) if steps.len() == 1);
    let short = Program::short(0);
    let long = (0..36).map(|n| Program::long(7, n));
    let programs: Vec<Program> = (short.iter().filter(is_story).cloned())
        .chain(long)
        .chain(short.iter().filter(is_single).cloned())
        .chain((0..300).map(deaths))
        .collect();
    println!("| place | noticed by | as |\n|---|---|---|");
    let table = mutants::forget_each(&programs, &DEPTH, jobs, limit, &show);
    let alive: Vec<_> = table.iter().filter(|(_, m)| m.killer.is_none()).collect();
    for (place, mutant) in &alive {
        show(place, mutant);
    }
    println!("{} places, {} alive", table.len(), alive.len());
    if alive.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Deaths at many moments, where lines that were stored and not flushed outlive the daemon.
fn deaths(n: u64) -> Program {
    let modes = ["op", "swap", "commit-swap", "ordered-inplace"];
    let name = modes[n as usize % modes.len()];
    Program {
        mode: MODES.iter().find(|m| m.name == name).unwrap_or(&MODES[0]),
        text: Text::Killed(1000 + n),
    }
}

fn list() -> ExitCode {
    for mode in MODES {
        println!("mode {:16} {} on {}", mode.name, mode.options, mode.backend);
    }
    for step in ALPHABET {
        println!("step {}", step.name);
    }
    for (name, _) in STORIES {
        println!("story {name}");
    }
    println!("else `random SEED`, `threads N seed SEED`");
    ExitCode::SUCCESS
}
