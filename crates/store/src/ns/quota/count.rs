//! One thing that a subject has a number of, and how many it may have.

use quayfs_sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::time::UNIX_EPOCH;

/// Blocks, or inodes.
pub(super) struct Count {
    used: AtomicI64,
    /// Never exceeded by what adds something; 0 is none.
    hard: AtomicU64,
    /// Exceeded for a while at most; 0 is none.
    soft: AtomicU64,
    /// Until when, in seconds since 1970; 0 while it is not exceeded.
    until: AtomicU32,
}

impl Count {
    pub(super) fn new(used: u64, hard: u64, soft: u64, until: u32) -> Self {
        Self {
            used: AtomicI64::new(used.cast_signed()),
            hard: AtomicU64::new(hard),
            soft: AtomicU64::new(soft),
            until: AtomicU32::new(until),
        }
    }

    pub(super) fn used(&self) -> u64 {
        self.used.load(Ordering::Acquire).max(0).cast_unsigned()
    }

    /// The hard limit and the soft one.
    pub(super) fn limits(&self) -> (u64, u64) {
        let get = |n: &AtomicU64| n.load(Ordering::Acquire);
        (get(&self.hard), get(&self.soft))
    }

    pub(super) fn until(&self) -> u32 {
        self.until.load(Ordering::Acquire)
    }

    pub(super) fn limit(&self, hard: u64, soft: u64, until: u32) {
        self.soft.store(soft, Ordering::Release);
        self.hard.store(hard, Ordering::Release);
        self.until.store(until, Ordering::Release);
    }

    /// Until when another soft limit may be exceeded. A time that runs goes on, unless another one is wished for.
    pub(super) fn until_under(&self, soft: u64, wish: Option<u32>, period: u32) -> u32 {
        match (self.until(), wish) {
            _ if !is_beyond(soft, self.used()) => 0,
            (0, wish) => after(wish.unwrap_or(period)),
            (_, Some(wish)) => after(wish),
            (until, None) => until,
        }
    }

    /// Adds what needs no permission, or takes it away.
    pub(super) fn add(&self, by: i64) {
        if by != 0 {
            self.used.fetch_add(by, Ordering::AcqRel);
        }
    }

    /// Ends the grace time if the soft limit is not exceeded any more.
    pub(super) fn relax(&self) {
        if self.until() != 0 && !is_beyond(self.soft.load(Ordering::Acquire), self.used()) {
            self.until.store(0, Ordering::Release);
        }
    }

    /// Adds to it, unless an `enforced` limit forbids that. What does not grow is never refused. `period`: for how many
    /// seconds the soft limit may be exceeded from now on, if it is one.
    pub(super) fn grow(
        &self,
        by: i64,
        enforced: bool,
        period: Option<impl FnOnce() -> u32>,
    ) -> bool {
        if by == 0 {
            return true;
        }
        let limit = match self.hard.load(Ordering::Acquire) {
            0 => i64::MAX,
            _ if by < 0 || !enforced => i64::MAX,
            n => i64::try_from(n).unwrap_or(i64::MAX),
        };
        let grown = self
            .used
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, |n| {
                n.checked_add(by).filter(|sum| *sum <= limit)
            });
        let Ok(before) = grown else {
            return false;
        };
        let Some(period) = period.filter(|_| by > 0) else {
            return true;
        };
        if self.bears(before, by, enforced, period) {
            return true;
        }
        self.add(-by);
        // What ended the time meanwhile may have seen this amount, and left it.
        self.relax();
        false
    }

    /// Whether it may have so many more than it had: beyond the soft limit only for a while.
    fn bears(&self, before: i64, by: i64, enforced: bool, period: impl FnOnce() -> u32) -> bool {
        let soft = self.soft.load(Ordering::Acquire);
        let exceeds = |n: i64| is_beyond(soft, n.max(0).cast_unsigned());
        if !exceeds(before + by) {
            return true;
        }
        // What exceeds it first begins the time, whatever is left of another one.
        match self.until() {
            until if exceeds(before) && until != 0 => !enforced || now() < until,
            _ => {
                self.until.store(after(period()), Ordering::Release);
                true
            }
        }
    }
}

fn is_beyond(soft: u64, used: u64) -> bool {
    soft != 0 && used > soft
}

/// Seconds since 1970.
fn now() -> u32 {
    let since = quayfs_sync::time::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        u32::try_from(since.as_secs()).unwrap_or(u32::MAX)
    })
}

/// So many seconds from now.
fn after(seconds: u32) -> u32 {
    now().saturating_add(seconds).max(1)
}
