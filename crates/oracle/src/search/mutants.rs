//! Mutants: the same runs by a program that has forgotten one flush or fence.
//!
//! Nothing is compiled again: a recorded run is gone through as if every call from that place had not
//! been made. If no crash of any run shows the difference, either the call is needless or the search
//! does not see far enough.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use quayfs_crashsim::Trace;

use crate::crash::{Depth, Run};
use crate::search::place::Place;
use crate::search::program::Program;
use crate::search::run::text_of;

/// A place and what noticed that it was forgotten.
#[derive(Clone, Debug, Default)]
pub struct Mutant {
    /// Runs with this place that were gone through.
    pub runs: u64,
    /// Images of them.
    pub images: u64,
    /// The run that noticed, and what it saw.
    pub killer: Option<(String, String)>,
}

/// A test that notices places of which the search has no images that show them.
#[derive(Debug)]
pub struct Witness {
    /// What they are called.
    pub place: &'static str,
    /// How many there are. One more is one that the test may not notice.
    pub count: usize,
    /// Where the test is.
    pub file: &'static str,
    /// What it is called.
    pub test: &'static str,
}

/// They look in the simulator for what is left in flight, instead of at images.
pub const TESTS: [Witness; 4] = [
    Witness {
        place: "flush crates/journal/src/scan.rs: flush_read",
        count: 5,
        file: "crates/journal/tests/journal/crash.rs",
        test: "what_a_scan_has_read_is_durable_with_the_next_drain",
    },
    Witness {
        place: "fence crates/journal/src/stage.rs: drop",
        count: 1,
        file: "crates/journal/tests/journal/crash.rs",
        test: "nothing_promised_is_left_in_flight",
    },
    Witness {
        place: "flush crates/ppt/src/table.rs: zero",
        count: 3,
        file: "crates/ppt/tests/ppt/crash.rs",
        test: "a_zeroed_checksum_is_durable_with_its_entry",
    },
    Witness {
        place: "device flush crates/fs/src/volume/backup.rs: store",
        count: 1,
        file: "crates/oracle/tests/oracle/copies.rs",
        test: "a_copy_never_says_another_superblock",
    },
];

/// The test that notices this place, if one does.
pub fn test_of(place: &Place, table: &Table) -> Option<&'static Witness> {
    let name = place.to_string();
    let named = table.keys().filter(|p| p.to_string() == name).count();
    TESTS.iter().find(|w| w.place == name && named <= w.count)
}

/// Images of each run whose recoveries are runs as well, about.
const RECOVERIES: usize = 24;

/// Mutants by place.
pub type Table = BTreeMap<Place, Mutant>;

/// How the table begins in a page.
pub const HEADER: &str = "| place | noticed by | as |\n|---|---|---|";

/// The rows of the table in a page.
pub fn rows(page: &str) -> Vec<&str> {
    let table = page.split_once(HEADER).map_or("", |(_, rest)| rest);
    let rows = table.trim_start().lines();
    rows.take_while(|l| l.starts_with('|')).collect()
}

/// Forgets each place of each program in turn, or of the recovery from that image of it, if the place's
/// name contains `only`, until it is noticed or the time is over. `note` hears of every death.
pub fn forget_each(
    programs: &[(Program, Option<u64>)],
    only: &str,
    depth: &Depth,
    jobs: usize,
    limit: Duration,
    note: &(dyn Fn(&Place, &Mutant) + Sync),
) -> Table {
    let start = Instant::now();
    let table = Mutex::new(Table::new());
    let lock = || table.lock().unwrap_or_else(|e| e.into_inner());
    let next = AtomicUsize::new(0);
    std::thread::scope(|s| {
        for _ in 0..jobs {
            s.spawn(|| {
                while let Some((program, image)) = programs.get(next.fetch_add(1, Relaxed)) {
                    if start.elapsed() >= limit {
                        break;
                    }
                    let run = program.run();
                    let line = program.to_string();
                    let try_each = |run: &dyn Run, line: &str| {
                        let trace = run.trace();
                        for place in trace.orderings() {
                            let named = Place::of(place);
                            if !named.to_string().contains(only) {
                                continue;
                            }
                            let dead = lock().entry(named.clone()).or_default().killer.is_some();
                            if dead || start.elapsed() >= limit {
                                continue;
                            }
                            let (images, what) = explore(run, &trace.without(place), depth);
                            let mut table = lock();
                            let mutant = table.entry(named.clone()).or_default();
                            mutant.runs += 1;
                            mutant.images += images;
                            if mutant.killer.is_none()
                                && let Some(what) = what
                            {
                                mutant.killer = Some((line.to_string(), what));
                                note(&named, mutant);
                            }
                        }
                    };
                    // Recovery has orderings of its own, and most of what it finds is left by power
                    // failures.
                    let trace = run.trace();
                    let (first, every) = match image {
                        Some(n) => (*n as usize - 1, usize::MAX),
                        None => {
                            try_each(&*run, &line);
                            let total = trace.explore(&depth.budget).count();
                            let every = (total / RECOVERIES).max(1);
                            (every / 2, every)
                        }
                    };
                    let images = trace.explore(&depth.budget);
                    for (n, image) in images.enumerate().skip(first).step_by(every) {
                        for recovery in run.recoveries(&image).unwrap_or_default() {
                            try_each(&*recovery, &format!("{line} #{}", n + 1));
                        }
                    }
                }
            });
        }
    });
    table.into_inner().unwrap_or_else(|e| e.into_inner())
}

fn explore(run: &dyn Run, trace: &Trace, depth: &Depth) -> (u64, Option<String>) {
    let mut n = 0;
    for image in trace.explore(&depth.budget) {
        n += 1;
        let looked = catch_unwind(AssertUnwindSafe(|| run.judge(&image, n, depth)))
            .unwrap_or_else(|panic| Err(text_of(&*panic)));
        if let Err(what) = looked {
            let first = what.lines().next().unwrap_or_default();
            return (n, Some(first.chars().take(120).collect()));
        }
    }
    (n, None)
}
