//! How far something is that takes its time: told by what does it, and looked at by what shows it.
//!
//! A [`Meter`] costs what does the work an addition now and then. What shows it, if anything does, looks when it likes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unit {
    /// Bytes.
    #[default]
    Bytes,
    /// Things, by the word for one of them.
    Things(&'static str),
}

/// One part of the work after the other, and how far it is.
#[derive(Debug, Default)]
pub struct Meter {
    part: Mutex<Option<Part>>,
    done: AtomicU64,
}

#[derive(Clone, Debug)]
struct Part {
    number: u32,
    what: String,
    total: u64,
    unit: Unit,
    began: Instant,
}

/// A [`Meter`] at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Look {
    /// Which part it is, from 1 on.
    pub number: u32,
    /// What is done in it.
    pub what: String,
    /// Of so many; 0 if that is not known.
    pub total: u64,
    /// So many are done, never more than that.
    pub done: u64,
    /// What is counted.
    pub unit: Unit,
    /// For how long.
    pub took: Duration,
}

impl Meter {
    /// A new part of the work begins. `total`: 0 if it is not known how much there is.
    pub fn begin(&self, what: impl Into<String>, total: u64, unit: Unit) {
        let mut part = self.lock();
        let number = part.as_ref().map_or(0, |p| p.number) + 1;
        self.done.store(0, Ordering::Relaxed);
        *part = Some(Part {
            number,
            what: what.into(),
            total,
            unit,
            began: Instant::now(),
        });
    }

    /// The present part is called otherwise from now on.
    pub fn rename(&self, what: impl Into<String>) {
        if let Some(part) = &mut *self.lock() {
            part.what = what.into();
        }
    }

    /// So much more is done.
    pub fn add(&self, n: u64) {
        self.done.fetch_add(n, Ordering::Relaxed);
    }

    /// So much is done, of so much.
    pub fn set(&self, done: u64, total: u64) {
        if let Some(part) = &mut *self.lock() {
            part.total = total;
        }
        self.done.store(done, Ordering::Relaxed);
    }

    /// How far it is; `None` before the first part.
    pub fn look(&self) -> Option<Look> {
        let part = self.lock().clone()?;
        let done = self.done.load(Ordering::Relaxed);
        Some(Look {
            number: part.number,
            what: part.what,
            total: part.total,
            done: match part.total {
                0 => done,
                total => done.min(total),
            },
            unit: part.unit,
            took: part.began.elapsed(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Option<Part>> {
        // No code panics while it holds this lock.
        self.part.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Look {
    /// How much was done in a second.
    pub fn rate(&self) -> u64 {
        (self.done as f64 / self.took.as_secs_f64().max(1e-3)) as u64
    }

    /// How much is left to do, if that is known.
    pub fn left(&self) -> Option<u64> {
        (self.total > 0).then(|| self.total - self.done)
    }

    /// How many seconds that takes at this rate, if that can be told.
    pub fn seconds_left(&self) -> Option<u64> {
        match (self.left()?, self.rate()) {
            (0, _) => Some(0),
            (_, 0) => None,
            (left, rate) => Some(left.div_ceil(rate)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_follow_each_other() {
        let meter = Meter::default();
        assert_eq!(meter.look(), None);
        meter.begin("first", 10, Unit::Bytes);
        meter.add(3);
        meter.add(4);
        let look = meter.look().unwrap();
        assert_eq!((look.number, look.done, look.left()), (1, 7, Some(3)));
        meter.begin("second", 0, Unit::Things("file"));
        let look = meter.look().unwrap();
        assert_eq!((look.number, look.done, look.left()), (2, 0, None));
        meter.set(9, 8);
        assert_eq!(meter.look().unwrap().done, 8);
    }

    #[test]
    fn what_is_left_takes_as_long_as_what_was_done() {
        let look = |done, total| Look {
            number: 1,
            what: "reading".into(),
            total,
            done,
            unit: Unit::Bytes,
            took: Duration::from_secs(2),
        };
        assert_eq!(look(10, 31).rate(), 5);
        assert_eq!(look(10, 31).seconds_left(), Some(5));
        for (done, total, left) in [(0, 31, None), (10, 0, None), (31, 31, Some(0))] {
            assert_eq!(look(done, total).seconds_left(), left);
        }
    }
}
