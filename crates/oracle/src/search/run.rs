//! Many programs, as long as there is time.

use std::collections::{BTreeSet, HashSet};
use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::str::FromStr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use quayfs_crashsim::Budget;

use crate::crash::Depth;
use crate::search::program::{Program, Text};

/// How closely the crashes of a program are looked at.
pub const DEPTH: Depth = Depth {
    budget: Budget {
        exhaustive: 24,
        picks: 4,
        random: 3,
        seed: 1,
    },
    fsck: 11,
    used: 37,
    again: 101,
    rot: 29,
    most: u64::MAX,
};

/// That of programs with threads: what one thread alone leaves, others have seen, so it is better to
/// go through more interleavings.
pub const DEPTH_OF_THREADS: Depth = Depth {
    budget: Budget {
        exhaustive: 4,
        picks: 1,
        random: 1,
        seed: 1,
    },
    ..DEPTH
};

/// That of repairs: most of their events are those of recovery, which others look at more closely.
pub const DEPTH_OF_REPAIRS: Depth = Depth {
    budget: Budget {
        exhaustive: 8,
        picks: 2,
        random: 2,
        seed: 1,
    },
    ..DEPTH
};

/// One of several parts of the short programs, so that some searches together go through all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Which one, from 0 on.
    nth: usize,
    /// How many there are.
    of: usize,
}

impl Share {
    /// All of them.
    pub const ALL: Self = Self { nth: 0, of: 1 };

    /// Which of `total` programs these are.
    fn of(self, total: usize) -> Range<usize> {
        let begin = |nth: usize| total * nth / self.of;
        begin(self.nth)..begin(self.nth + 1)
    }

    /// Which of the programs that never end the `n`th is, so that no two shares have the same ones.
    fn long(self, n: usize) -> u64 {
        (n * self.of + self.nth) as u64
    }
}

impl FromStr for Share {
    type Err = String;

    /// `2/3`: the second of three.
    fn from_str(text: &str) -> Result<Self, String> {
        let numbers = text
            .split_once('/')
            .and_then(|(nth, of)| Some((nth.parse::<usize>().ok()?, of.parse::<usize>().ok()?)));
        match numbers {
            Some((nth, of)) if (1..=of).contains(&nth) => Ok(Self { nth: nth - 1, of }),
            _ => Err(format!(
                "{text:?} is no share; `2/3` is the second of three"
            )),
        }
    }
}

/// What was covered so far.
#[derive(Debug, Default)]
pub struct Coverage {
    /// Programs whose every crash point was visited.
    pub programs: AtomicU64,
    /// Of those, programs of one or two steps.
    pub short: AtomicU64,
    /// Runs of several threads whose crashes were not looked at.
    pub races: AtomicU64,
    /// Fences and flushes in those that had something to settle.
    pub fences: AtomicU64,
    /// Of those, how many saw at least one image of a crash just before them.
    pub covered: AtomicU64,
    /// Images that were recovered.
    pub images: AtomicU64,
    /// What identifies the last run ([`quayfs_crashsim::Trace::fingerprint`]).
    pub trace: AtomicU64,
    distinct: Mutex<HashSet<u64>>,
    states: Mutex<HashSet<u64>>,
    places: Mutex<BTreeSet<String>>,
}

/// What a search found out.
#[derive(Debug)]
pub struct Report {
    /// How many programs of one or two steps there are.
    pub all: usize,
    /// Which of them were to be run.
    pub short: Range<usize>,
    /// Where the random programs started.
    pub seed: u64,
    /// What was covered.
    pub coverage: Coverage,
    /// The first violation: how to see it again, and what it was.
    pub violation: Option<(String, String)>,
    /// How long it took.
    pub took: Duration,
}

/// Runs a share of the short programs, however long that takes, then long ones until `limit` has passed, on `jobs`
/// threads. The first violation ends it.
pub fn search(
    limit: Duration,
    (seed, share): (u64, Share),
    jobs: usize,
    note: &(dyn Fn(&Coverage) + Sync),
) -> Report {
    let all = Program::short(seed);
    let short = share.of(all.len());
    let nth = |n: usize| match all[short.clone()].get(n) {
        Some(p) => p.clone(),
        None => Program::long(seed, share.long(n - short.len())),
    };
    search_in(limit, (seed, all.len(), short.clone()), jobs, &nth, note)
}

/// Runs programs with two to four threads, in every mode in turn, otherwise as [`search`].
pub fn search_threads(
    limit: Duration,
    seed: u64,
    jobs: usize,
    note: &(dyn Fn(&Coverage) + Sync),
) -> Report {
    let nth = |n| Program::threads(seed, n as u64);
    search_in(limit, (seed, 0, 0..0), jobs, &nth, note)
}

fn search_in(
    limit: Duration,
    (seed, all, short): (u64, usize, Range<usize>),
    jobs: usize,
    nth: &(dyn Fn(usize) -> Program + Sync),
    note: &(dyn Fn(&Coverage) + Sync),
) -> Report {
    let start = Instant::now();
    let coverage = Coverage::default();
    let next = AtomicUsize::new(0);
    let stop = AtomicBool::new(false);
    let violation = Mutex::new(None);
    std::thread::scope(|s| {
        for _ in 0..jobs {
            s.spawn(|| {
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    let is_short = n < short.len();
                    let out_of_time =
                        || stop.load(Ordering::Acquire) || !is_short && start.elapsed() >= limit;
                    if out_of_time() {
                        return;
                    }
                    let program = nth(n);
                    if let Err(found) = crashes(&program, None, is_short, &coverage, &out_of_time) {
                        stop.store(true, Ordering::Release);
                        violation
                            .lock()
                            .unwrap_or_else(|e| e.into_inner())
                            .get_or_insert(found);
                    }
                    note(&coverage);
                }
            });
        }
    });
    Report {
        all,
        short,
        seed,
        coverage,
        violation: violation.into_inner().unwrap_or_else(|e| e.into_inner()),
        took: start.elapsed(),
    }
}

/// Looks at the crashes of one program, or at one of them: its line and what is wrong if something is.
pub fn crashes(
    program: &Program,
    only: Option<u64>,
    short: bool,
    coverage: &Coverage,
    out_of_time: &dyn Fn() -> bool,
) -> Result<(), (String, String)> {
    let add = |counter: &AtomicU64, n| counter.fetch_add(n, Ordering::Relaxed);
    let run = catch_unwind(AssertUnwindSafe(|| program.run()))
        .map_err(|panic| (program.to_string(), text_of(&*panic)))?;
    let trace = run.trace();
    coverage.trace.store(trace.fingerprint(), Ordering::Relaxed);
    if let Text::Race(..) = program.text {
        add(&coverage.races, 1);
        return Ok(());
    }
    let depth = program.depth();
    let mut images = trace.explore(&depth.budget);
    let shift = program.to_string().len() as u64;
    let mut n = 0;
    for image in images.by_ref() {
        n += 1;
        if only.is_some_and(|only| only != n) {
            continue;
        }
        if out_of_time() {
            return Ok(());
        }
        // A single image is looked at in every way. Else every kind of look has its turn in every
        // program, but not at the same image of each.
        let turn = if only.is_some() { 0 } else { n + shift };
        let looked = catch_unwind(AssertUnwindSafe(|| run.judge(&image, turn, &depth)))
            .unwrap_or_else(|panic| Err(text_of(&*panic)));
        let state = looked.map_err(|e| (format!("{program} #{n}"), format!("{e}\n{image}")))?;
        add(&coverage.images, 1);
        insert(&coverage.distinct, image.fingerprint());
        insert(&coverage.states, state);
    }
    let fences = trace.fences();
    let covered = fences
        .iter()
        .filter(|(at, _)| images.has_image(*at))
        .count();
    add(&coverage.fences, fences.len() as u64);
    add(&coverage.covered, covered as u64);
    add(&coverage.programs, 1);
    add(&coverage.short, u64::from(short));
    let mut places = coverage.places.lock().unwrap_or_else(|e| e.into_inner());
    places.extend(fences.iter().map(|(_, ordering)| ordering.to_string()));
    Ok(())
}

fn insert(set: &Mutex<HashSet<u64>>, number: u64) {
    set.lock().unwrap_or_else(|e| e.into_inner()).insert(number);
}

pub(super) fn text_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
    format!("panicked: {}", text.unwrap_or_default())
}

impl Coverage {
    /// Contents that differ.
    pub fn distinct(&self) -> usize {
        self.distinct
            .lock()
            .unwrap_or_else(|e| e.into_inner())
            .len()
    }

    /// Recovered trees that differ.
    pub fn states(&self) -> usize {
        self.states.lock().unwrap_or_else(|e| e.into_inner()).len()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let c = &self.coverage;
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let short = get(&c.short);
        writeln!(f, "images looked at    {}", get(&c.images))?;
        writeln!(f, "distinct images     {}", c.distinct())?;
        writeln!(f, "distinct trees      {}", c.states())?;
        writeln!(
            f,
            "programs            {} of 1 or 2 steps (number {} to {} of {}), {} long ones from seed {} on",
            short,
            self.short.start + 1,
            self.short.end,
            self.all,
            get(&c.programs) - short,
            self.seed
        )?;
        writeln!(
            f,
            "flushes and fences  {} with something to settle, {} with an image just before them",
            get(&c.fences),
            get(&c.covered)
        )?;
        let races = get(&c.races);
        if races > 0 {
            writeln!(f, "races               {races}")?;
        }
        let places = c.places.lock().unwrap_or_else(|e| e.into_inner());
        writeln!(f, "places in the code  {}", places.len())?;
        writeln!(f, "time                {} s", self.took.as_secs())?;
        match &self.violation {
            None => write!(f, "violations          0"),
            Some((line, what)) => write!(f, "VIOLATION\n{what}\nagain: crash --program '{line}'"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_all_and_none_twice() {
        for (total, of) in [(5551, 3), (7, 3), (2, 3), (0, 3), (5, 1)] {
            let share = |nth: usize| -> Share { format!("{nth}/{of}").parse().unwrap() };
            let parts: Vec<usize> = (1..=of).flat_map(|nth| share(nth).of(total)).collect();
            assert_eq!(parts, (0..total).collect::<Vec<_>>());
            let mut long: Vec<u64> = (1..=of)
                .flat_map(|nth| (0..10).map(move |n| share(nth).long(n)))
                .collect();
            long.sort_unstable();
            assert_eq!(long, (0..10 * of as u64).collect::<Vec<_>>());
        }
        for wrong in ["", "0/3", "4/3", "1/0", "1", "1/3/5", "a/b"] {
            assert!(wrong.parse::<Share>().is_err(), "{wrong}");
        }
    }

    /// A search that has no time does its share all the same, and nothing else.
    #[test]
    fn the_clock_ends_no_share() {
        let share = "500/600".parse().unwrap();
        let report = search(Duration::ZERO, (1, share), 2, &|_| ());
        assert!(report.violation.is_none(), "{report}");
        let done = |counter: &AtomicU64| counter.load(Ordering::Relaxed) as usize;
        let all = Program::short(1).len();
        assert!(report.all == all && report.short.len() >= all / 600);
        assert_eq!(done(&report.coverage.short), report.short.len());
        assert_eq!(done(&report.coverage.programs), report.short.len());
        assert!(
            report.to_string().contains(&format!(" of {all})")),
            "{report}"
        );
    }
}
