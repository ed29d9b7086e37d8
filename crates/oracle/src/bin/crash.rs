//! `crash`: searches for crashes after which something is wrong.

use std::io::{IsTerminal, Write};
use std::num::NonZero;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::Duration;

use clap::Parser;
use quayfs_oracle::search::alphabet::ALPHABET;
use quayfs_oracle::search::mutants::{self, Mutant};
use quayfs_oracle::search::program::{MODES, Program, Text};
use quayfs_oracle::search::run::{Coverage, DEPTH, crashes, search};
use quayfs_oracle::search::stories::STORIES;

/// Searches for crashes after which something is wrong.
#[derive(Parser)]
#[command(after_help = "\
Examples:
  crash --seconds 600                                all short programs, then long ones
  crash --program 'op: unlink; write-block'          every crash of one program
  crash --program 'op: unlink; write-block #17'      one of them, looked at in every way
  crash --mutants --seconds 600                      each flush and fence forgotten in turn

Exit codes: 0 nothing wrong (no mutant alive), 1 a violation (a mutant alive), 2 wrong usage.")]
struct Args {
    /// How long to search.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Which modes the programs of two steps run in, and where random ones start.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Threads; as many as there are processors without.
    #[arg(long)]
    jobs: Option<NonZero<usize>>,
    /// Run one program, as a violation tells it.
    #[arg(long, value_name = "MODE: STEP; STEP #IMAGE", conflicts_with_all = ["mutants", "list"])]
    program: Option<String>,
    /// Forget each place that flushes, fences or drains, until it is noticed.
    #[arg(long, conflicts_with = "list")]
    mutants: bool,
    /// List modes, steps and stories.
    #[arg(long)]
    list: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if args.list {
        return list();
    }
    if let Some(line) = &args.program {
        return one(line);
    }
    let jobs = args
        .jobs
        .or_else(|| std::thread::available_parallelism().ok());
    let jobs = jobs.map_or(2, NonZero::get);
    let limit = Duration::from_secs(args.seconds);
    quiet();
    if args.mutants {
        return forget_each(limit, jobs);
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
    let report = search(limit, args.seed, jobs, &note);
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

/// A violation is told once, by us.
fn quiet() {
    std::panic::set_hook(Box::new(|_| ()));
}

fn one(line: &str) -> ExitCode {
    let (line, image) = match line.split_once('#') {
        Some((line, image)) => (line, Some(image)),
        None => (line, None),
    };
    let wrong = |what: String| {
        eprintln!("{what}");
        ExitCode::from(2)
    };
    let image = match image.map(|n| n.trim().parse()).transpose() {
        Ok(image) => image,
        Err(e) => return wrong(format!("the number of an image: {e}")),
    };
    let program: Program = match line.parse() {
        Ok(program) => program,
        Err(e) => return wrong(format!("{e}; `crash --list` has them")),
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
