//! Grace periods that end as soon as they may, so that code that relies on a missing one is found out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use super::core::{Member, current};

type Work = Box<dyn FnOnce() + Send>;

/// What waits for readers of one run.
#[derive(Default)]
pub(crate) struct Graves(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    next: u64,
    pinned: BTreeSet<u64>,
    /// By the number of the last pin at the time: it and all older ones must have gone.
    waiting: BTreeMap<u64, Vec<Work>>,
}

impl Graves {
    fn with<T>(&self, f: impl FnOnce(&mut Inner) -> T) -> T {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Does what need not wait any longer.
    fn collect(&self) {
        let due = self.with(|g| {
            let Some(oldest) = g.pinned.first() else {
                return std::mem::take(&mut g.waiting);
            };
            let later = g.waiting.split_off(oldest);
            std::mem::replace(&mut g.waiting, later)
        });
        due.into_values().flatten().for_each(|work| work());
    }
}

/// A reader: what it can see stays until it goes.
pub enum Guard {
    /// Of a thread of a run.
    #[doc(hidden)]
    Scheduled(Pin),
    /// Of any other.
    #[doc(hidden)]
    Free(crossbeam_epoch::Guard),
}

#[doc(hidden)]
pub struct Pin {
    member: Member,
    number: u64,
}

/// Begins to read.
pub fn pin() -> Guard {
    let Some(member) = current() else {
        return Guard::Free(crossbeam_epoch::pin());
    };
    member.point();
    let number = member.all.graves.with(|g| {
        g.next += 1;
        g.pinned.insert(g.next);
        g.next
    });
    Guard::Scheduled(Pin { member, number })
}

impl Guard {
    /// Does `work` when all readers of now have gone.
    pub fn defer<R, F: FnOnce() -> R + Send + 'static>(&self, work: F) {
        match self {
            Self::Free(guard) => guard.defer(work),
            Self::Scheduled(pin) => pin.member.all.graves.with(|g| {
                let work: Work = Box::new(move || drop(work()));
                g.waiting.entry(g.next).or_default().push(work);
            }),
        }
    }

    /// Does what can be done.
    pub fn flush(&self) {
        match self {
            Self::Free(guard) => guard.flush(),
            Self::Scheduled(pin) => pin.member.all.graves.collect(),
        }
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let graves = &self.member.all.graves;
        graves.with(|g| g.pinned.remove(&self.number));
        graves.collect();
    }
}
