//! Threads under the scheduler: the same again for the same seed, another interleaving for another,
//! and bugs that need two threads are found. `make threads`.

#![cfg(feature = "sched")]
#![allow(missing_docs, reason = "tests")]

use std::collections::BTreeSet;

use quayfs_oracle::search::program::{MODES, Program, Text};
use quayfs_oracle::search::run::{Coverage, crashes};
use quayfs_sync::sched::{Plan, with_plan};

fn fingerprint(program: &Program) -> (u64, usize) {
    let trace = program.run().trace();
    (trace.fingerprint(), trace.points().count())
}

fn threads(mode: usize, threads: u64, seed: u64) -> Program {
    Program {
        mode: &MODES[mode % MODES.len()],
        text: Text::Threads(threads, seed),
        dies: None,
        goes_on: false,
    }
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    for mode in 0..MODES.len() {
        for seed in 0..12 {
            let program = threads(mode, 2 + seed % 3, seed);
            assert_eq!(fingerprint(&program), fingerprint(&program), "{program}");
        }
    }
}

#[test]
fn the_same_operations_interleave_in_many_ways() {
    for mode in 0..MODES.len() {
        let program = threads(mode, 2, 1);
        let traces: BTreeSet<_> = (0..30)
            .map(|order| with_plan(Plan { order, bug: None }, || fingerprint(&program)))
            .collect();
        assert!(traces.len() > 25, "{program}: {} ways", traces.len());
    }
}

/// Searches for a bug that the product's code makes on demand, and returns the line of a violation.
fn search(
    bug: &'static str,
    mut programs: impl Iterator<Item = Program>,
) -> Option<(String, String)> {
    let plan = Plan {
        order: 0,
        bug: Some(bug),
    };
    let coverage = Coverage::default();
    with_plan(plan, || {
        programs.find_map(|p| crashes(&p, None, false, &coverage, &|| false).err())
    })
}

/// A line, run again with the bug and without it.
fn again(line: &str, bug: Option<&'static str>) -> Result<(), (String, String)> {
    let (program, image) = match line.split_once(" #") {
        Some((program, n)) => (program, Some(n.parse().expect("a number"))),
        None => (line, None),
    };
    let program: Program = program.parse().expect("a program");
    with_plan(Plan { order: 0, bug }, || {
        crashes(&program, image, false, &Coverage::default(), &|| false)
    })
}

fn is_found_and_repeated(bug: &'static str, programs: impl Iterator<Item = Program>) {
    let (line, what) = search(bug, programs).unwrap_or_else(|| panic!("{bug}: not found"));
    let image = |what: &str| {
        what.split_once("\ncrash after")
            .map(|(_, image)| image.to_owned())
    };
    for _ in 0..2 {
        // One image alone is looked at in every way, and something else may notice first.
        let (same, more) = again(&line, Some(bug)).expect_err("the same violation");
        assert_eq!((same, image(&more)), (line.clone(), image(&what)));
    }
    assert_eq!(again(&line, None), Ok(()), "{line} without {bug}");
}

/// Seeds in the modes of these names.
fn seeds(modes: &[&str], seeds: u64, text: fn(u64, u64) -> Text) -> impl Iterator<Item = Program> {
    let modes: Vec<_> = MODES.iter().filter(|m| modes.contains(&m.name)).collect();
    (0..seeds).flat_map(move |seed| {
        let text = text(2 + seed % 3, seed);
        modes.clone().into_iter().map(move |mode| Program {
            mode,
            text: text.clone(),
            dies: None,
            goes_on: false,
        })
    })
}

#[test]
fn a_commit_that_does_not_wait_for_appends_is_found() {
    // One program in thirteen finds it, whatever threads there are besides; few of the first.
    let programs = seeds(&["commit", "commit-swap"], 100, Text::Threads);
    is_found_and_repeated("commit waits for nobody", programs);
}

#[test]
fn grace_periods_that_end_at_once_are_found() {
    let programs = seeds(&["op"], 2000, Text::Race);
    is_found_and_repeated("no grace", programs);
}

#[test]
fn a_commit_that_takes_the_place_of_one_under_way_is_found() {
    let programs = seeds(&["commit", "commit-swap"], 400, Text::Threads);
    is_found_and_repeated("a commit goes where the one before it is", programs);
}
