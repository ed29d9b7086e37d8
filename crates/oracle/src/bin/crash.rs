//! `crash`: searches for crashes after which something is wrong.

use std::backtrace::Backtrace;
use std::cell::RefCell;
use std::io::{IsTerminal, Write};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::Duration;

use clap::Parser;
use quayfs_layout::Guard;
use quayfs_oracle::search::alphabet::ALPHABET;
use quayfs_oracle::search::mutants::{self, Mutant, Witness, test_of};
use quayfs_oracle::search::place::Place;
use quayfs_oracle::search::program::{Program, Text, modes};
use quayfs_oracle::search::run::{Coverage, DEPTH, Share, crashes, search, search_threads};
use quayfs_oracle::search::scenarios::SCENARIOS;

/// Searches for crashes after which something is wrong.
#[derive(Parser)]
#[command(after_help = "\
Examples:
  crash --seconds 600                                all short programs, then long ones
  crash --seconds 600 --share 2/3                    the second third of them
  crash --program 'op: unlink; write-block'          every crash of one program
  crash --program 'op: unlink; write-block #17'      one of them, looked at in every way
  crash --mutants --seconds 600                      each flush and fence forgotten in turn

Exit codes: 0 nothing wrong (no mutant alive), 1 a violation (a mutant alive), 2 wrong usage.")]
struct Args {
    /// How long to search. All short programs, or a share of them, are run even if that takes longer.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Of the short programs only this part, as `2/3` is the second of three; of the long ones those
    /// that no other part has.
    #[arg(long, value_name = "NTH/OF", conflicts_with_all = ["mutants", "program", "list", "threads"])]
    share: Option<Share>,
    /// Which modes the programs of two steps run in, and where random ones start.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Threads; as many as there are processors without.
    #[arg(long)]
    jobs: Option<NonZero<usize>>,
    /// Run one program, as a violation tells it; or try mutants on it alone.
    #[arg(long, value_name = "MODE: STEP; STEP #IMAGE", conflicts_with = "list")]
    program: Option<String>,
    /// Forget each place that flushes, fences or drains, until it is noticed.
    #[arg(long, conflicts_with = "list")]
    mutants: bool,
    /// Print all that a program does to the media, in order, instead of crashing it.
    #[arg(long, requires = "program")]
    trace: bool,
    /// Only places whose name contains this, as `journal/src/scan.rs: into_journal` does.
    #[arg(long, requires = "mutants", default_value = "")]
    place: String,
    /// Writes the table of mutants into this page, in place of the one that is there.
    #[arg(long, value_name = "FILE", requires = "mutants", conflicts_with_all = ["program", "place"])]
    page: Option<PathBuf>,
    /// Only programs with several threads. Their interleaving belongs to their seed if this was
    /// built with the feature `sched`; else it is never the same again.
    #[arg(long, conflicts_with_all = ["mutants", "program", "list"])]
    threads: bool,
    /// List modes, steps and scenarios.
    #[arg(long)]
    list: bool,
    /// List the checks that a build with `--cfg mutants` can leave out.
    #[arg(long)]
    guards: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if args.list {
        return list();
    }
    if args.guards {
        Guard::ALL
            .iter()
            .for_each(|guard| println!("{}", guard.name()));
        return ExitCode::SUCCESS;
    }
    let program = match args.program.as_deref().map(parse).transpose() {
        Ok(program) => program,
        Err(e) => {
            eprintln!("{e}");
            return ExitCode::from(2);
        }
    };
    if let (Some((program, _)), true) = (&program, args.trace) {
        print!("{}", program.run().trace());
        return ExitCode::SUCCESS;
    }
    if let (Some((program, image)), false) = (&program, args.mutants) {
        return one(program, *image);
    }
    let jobs = args
        .jobs
        .or_else(|| std::thread::available_parallelism().ok());
    let jobs = jobs.map_or(2, NonZero::get);
    let limit = Duration::from_secs(args.seconds);
    quiet();
    if args.mutants {
        let programs = program.map_or_else(programs, |program| vec![program]);
        return forget_each(&programs, limit, jobs, &args);
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
    let report = if args.threads {
        search_threads(limit, args.seed, jobs, &note)
    } else {
        let share = args.share.unwrap_or(Share::ALL);
        search(limit, (args.seed, share), jobs, &note)
    };
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

/// A violation is told once, by us. A panic during another one ends the process before we can tell
/// anything, so the hook tells all that the thread has panicked with by then.
fn quiet() {
    thread_local!(static PANICS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) });
    std::panic::set_hook(Box::new(|info| {
        PANICS.with_borrow_mut(|panics| {
            if panics.len() == 3 {
                panics.remove(0);
            }
            panics.push(info.to_string());
            // What the standard library says when it is about to abort.
            let text = info.payload().downcast_ref::<&str>();
            if text.is_some_and(|text| text.starts_with("panic in a ")) {
                let trace = Backtrace::force_capture();
                eprintln!("{}\n{trace}", panics.join("\n"));
            }
        });
    }));
}

/// A program, and the number of one of its images if that is given.
fn parse(line: &str) -> Result<(Program, Option<u64>), String> {
    let (line, image) = match line.split_once('#') {
        Some((line, image)) => (line.trim_end(), Some(image.trim())),
        None => (line, None),
    };
    let image = image.map(|n| {
        n.parse()
            .map_err(|e| format!("the number of an image: {e}"))
    });
    let program = line
        .parse()
        .map_err(|e| format!("{e}; `crash --list` has them"))?;
    Ok((program, image.transpose()?))
}

fn one(program: &Program, image: Option<u64>) -> ExitCode {
    quiet();
    let coverage = Coverage::default();
    match crashes(program, image, false, &coverage, &|| false) {
        Ok(()) => {
            println!(
                "{} images, nothing wrong; trace {:016x}",
                coverage.images.load(Ordering::Relaxed),
                coverage.trace.load(Ordering::Relaxed)
            );
            ExitCode::SUCCESS
        }
        Err((line, what)) => {
            println!("{what}\nagain: crash --program '{line}'");
            ExitCode::FAILURE
        }
    }
}

/// Events between the deaths of a scenario that mutants are tried on: no multiple of what a step of it
/// usually makes.
const STEP: usize = 3;

/// Deaths at moments that few others have in them. As the code changes the moments move; then one of
/// all the deaths further down the list is the witness, after a longer search.
const WITNESSES: &[&str] = &[
    "op: scenario reuse, dies after 8",
    "op: scenario laps, dies after 567",
    "swap: scenario reuse-written, dies after 150",
    "commit-swap: scenario ring, dies after 116",
    "op: killed 7340038",
    "op: mkdir; rename, dies after 8",
    "ordered-inplace: threads 3 seed 7340055",
    "commit-swap: killed 7340048",
    "swap: killed 4",
    "swap: killed 29",
    "writeback: scenario unsynced, dies after 30",
    "ordered-inplace: scenario rewrites, dies after 104, goes on",
    "writeback: scenario rewrites, dies after 190, goes on",
    "op: repair clean, noise node 4, dies after 4",
    "op: repair clean, bit data-header 3, dies after 4",
];

/// What mutants are tried on, behind the witnesses the long ones first: they meet most places, and a
/// mutant that has died costs nothing more.
fn programs() -> Vec<(Program, Option<u64>)> {
    let is_scenario = |p: &&Program| matches!(p.text, Text::Scenario(_));
    let is_mkfs = |p: &&Program| matches!(p.text, Text::Mkfs(_));
    let is_repair = |p: &&Program| matches!(p.text, Text::Repair(..));
    let is_single = |p: &&Program| matches!(&p.text, Text::Steps(steps) if steps.len() == 1);
    let short = Program::short(0);
    let long = (0..36).map(|n| Program::long(7, n));
    let witnesses = WITNESSES.iter().filter_map(|line| parse(line).ok());
    let others = (short.iter().filter(is_mkfs).cloned())
        .chain(short.iter().filter(is_scenario).cloned())
        .chain(short.iter().filter(is_repair).cloned())
        .chain(long)
        .chain(
            short
                .iter()
                .filter(is_scenario)
                .flat_map(|p| p.deaths(STEP)),
        )
        .chain(short.iter().filter(is_single).cloned());
    witnesses.chain(others.map(|p| (p, None))).collect()
}

fn forget_each(
    programs: &[(Program, Option<u64>)],
    limit: Duration,
    jobs: usize,
    args: &Args,
) -> ExitCode {
    let row = |place: &Place, mutant: &Mutant, by: Option<&Witness>| match (&mutant.killer, by) {
        (Some((run, what)), _) => format!("| `{place}` | `{run}` | {} |", what.replace('|', "/")),
        (None, Some(w)) => format!("| `{place}` | test `{}` | `{}` |", w.test, w.file),
        (None, None) => format!(
            "| `{place}` | **alive** after {} images of {} runs | |",
            mutant.images, mutant.runs
        ),
    };
    let show = |place: &Place, mutant: &Mutant| println!("{}", row(place, mutant, None));
    println!("{}", mutants::HEADER);
    let table = mutants::forget_each(programs, &args.place, &DEPTH, jobs, limit, &show);
    let unseen = table.iter().filter(|(_, m)| m.killer.is_none());
    let mut alive = Vec::new();
    for (place, mutant) in unseen {
        let by = test_of(place, &table);
        println!("{}", row(place, mutant, by));
        if by.is_none() {
            println!("  {}", place.at());
            alive.push(place);
        }
    }
    println!("{} places, {} alive", table.len(), alive.len());
    if let Some(page) = &args.page {
        let rows: Vec<String> = (table.iter())
            .map(|(p, m)| row(p, m, test_of(p, &table)))
            .collect();
        if let Err(e) = write(page, &rows) {
            eprintln!("{}: {e}", page.display());
            return ExitCode::from(2);
        }
    }
    if alive.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Puts these rows in place of those of a page.
fn write(page: &Path, rows: &[String]) -> std::io::Result<()> {
    let text = std::fs::read_to_string(page)?;
    let old = mutants::rows(&text);
    let (Some(first), Some(last)) = (old.first(), old.last()) else {
        return Err(std::io::Error::other("there is no such table"));
    };
    // Both are parts of the text.
    let at = |row: &str| row.as_ptr().addr() - text.as_ptr().addr();
    let (begin, end) = (at(first), at(last) + last.len());
    let new = format!("{}{}{}", &text[..begin], rows.join("\n"), &text[end..]);
    std::fs::write(page, new)
}

fn list() -> ExitCode {
    for mode in modes() {
        println!("mode {:16} {} on {}", mode.name, mode.options, mode.backend);
    }
    for step in ALPHABET {
        println!("step {}", step.name);
    }
    for (name, _) in SCENARIOS {
        println!("scenario {name}");
    }
    println!(
        "else `random SEED`, `killed SEED`, `threads N seed SEED`, `race N seed SEED`; `, dies after EVENTS` behind any but the last three"
    );
    ExitCode::SUCCESS
}
