//! How long requests take, by kind, and which tasks make them: counted without a lock, in cache lines of one thread.
//!
//! A request costs two reads of the clock, and two additions to lines that its thread has to itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crossbeam_utils::CachePadded;

use crate::stats::Tally;

/// Classes of durations: each is twice as wide as the one before it, the last has no end.
pub const CLASSES: usize = 26;
/// The first class ends here, in powers of two of nanoseconds: about a microsecond.
const FIRST: u32 = 10;

/// The longest duration of a class; none of the last one.
pub fn bound(class: usize) -> Option<Duration> {
    (class + 1 < CLASSES).then(|| Duration::from_nanos(1 << (FIRST as usize + class)))
}

/// The class of a duration.
fn class(nanos: u64) -> usize {
    let longer = nanos.saturating_sub(1) >> FIRST;
    ((u64::BITS - longer.leading_zeros()) as usize).min(CLASSES - 1)
}

/// How long requests of one kind took.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Latencies {
    /// How many, by [`bound`].
    pub classes: [u64; CLASSES],
    /// Nanoseconds that all of them took.
    pub nanos: u64,
}

impl Latencies {
    /// Adds those of another thread.
    pub(crate) fn add(&mut self, counted: &Counted) {
        for (sum, n) in self.classes.iter_mut().zip(&counted.classes) {
            *sum += n.load(Ordering::Relaxed);
        }
        self.nanos += counted.nanos.load(Ordering::Relaxed);
    }
}

/// The same, while it grows. Any thread may add to it: an answer that comes later is given by another one.
#[derive(Debug)]
pub(crate) struct Counted {
    classes: [AtomicU64; CLASSES],
    nanos: AtomicU64,
}

impl Counted {
    pub(crate) fn new() -> Self {
        Self {
            classes: std::array::from_fn(|_| AtomicU64::new(0)),
            nanos: AtomicU64::new(0),
        }
    }

    pub(crate) fn took(&self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.classes[class(nanos)].fetch_add(1, Ordering::Relaxed);
        self.nanos.fetch_add(nanos, Ordering::Relaxed);
    }
}

/// A request that has been read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Began {
    pub(crate) opcode: u32,
    pub(crate) at: Instant,
}

/// The same, to be ended by another thread.
#[derive(Debug)]
pub(crate) struct Timed {
    pub(crate) tally: Arc<Tally>,
    pub(crate) began: Began,
}

impl Timed {
    /// It has been answered.
    pub(crate) fn end(&self) {
        self.tally.took(self.began);
    }
}

/// Tasks that one thread keeps in mind.
const TASKS: usize = 16;

/// Which tasks make requests, roughly: of those that share a place the one with the most requests stays.
#[derive(Debug)]
pub(crate) struct Tasks(CachePadded<[Place; TASKS]>);

#[derive(Debug, Default)]
struct Place {
    task: AtomicU64,
    /// More requests of the task than of others, since it has the place.
    ahead: AtomicU64,
    count: AtomicU64,
}

impl Tasks {
    pub(crate) fn new() -> Self {
        Self(CachePadded::new(std::array::from_fn(|_| Place::default())))
    }

    /// Counts a request. Only the owner calls it, so that no read-modify-write is needed.
    pub(crate) fn count(&self, task: u32) {
        let place = &self.0[task as usize % TASKS];
        let (ahead, count) = (&place.ahead, &place.count);
        let n = ahead.load(Ordering::Relaxed);
        if place.task.load(Ordering::Relaxed) == u64::from(task) {
            ahead.store(n + 1, Ordering::Relaxed);
            count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        } else if n > 0 {
            ahead.store(n - 1, Ordering::Relaxed);
        } else {
            // A reader that meets this halfway takes a count of the wrong task, once.
            place.task.store(task.into(), Ordering::Relaxed);
            ahead.store(1, Ordering::Relaxed);
            count.store(1, Ordering::Relaxed);
        }
    }

    /// The tasks, and how many requests they have made. The kernel's own have the number 0 and are left out.
    pub(crate) fn all(&self) -> impl Iterator<Item = (u32, u64)> {
        self.0.iter().filter_map(|place| {
            let task = u32::try_from(place.task.load(Ordering::Relaxed)).ok()?;
            (task > 0).then(|| (task, place.count.load(Ordering::Relaxed)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_duration_has_the_class_that_it_fits() {
        for (nanos, expected) in [
            (0, 0),
            (1, 0),
            (1024, 0),
            (1025, 1),
            (2048, 1),
            (2049, 2),
            (1 << 34, 24),
            ((1 << 34) + 1, 25),
            (u64::MAX, 25),
        ] {
            assert_eq!(class(nanos), expected, "{nanos}");
            let time = Duration::from_nanos(nanos);
            assert!(bound(expected).is_none_or(|most| time <= most));
            let below = expected.checked_sub(1).and_then(bound);
            assert!(below.is_none_or(|least| time > least));
        }
    }

    #[test]
    fn latencies_add_up() {
        let counted = Counted::new();
        counted.took(Duration::from_nanos(5));
        counted.took(Duration::from_micros(3));
        let mut sum = Latencies::default();
        sum.add(&counted);
        sum.add(&counted);
        assert_eq!((sum.classes[0], sum.classes[2], sum.nanos), (2, 2, 6010));
    }

    #[test]
    fn the_task_with_the_most_requests_keeps_its_place() {
        let tasks = Tasks::new();
        let (often, seldom) = (3, 3 + TASKS as u32);
        for n in 0..30 {
            tasks.count(often);
            if n % 3 == 0 {
                tasks.count(seldom);
            }
        }
        tasks.count(0);
        assert_eq!(tasks.all().collect::<Vec<_>>(), [(often, 30)]);
        (0..50).for_each(|_| tasks.count(seldom));
        assert!(tasks.all().all(|(task, _)| task == seldom));
    }
}
