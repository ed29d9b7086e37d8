//! Sequence numbers, and up to which of them every append has finished.
//!
//! Ordering 3: a lane publishes a lower bound *before* it takes a number and clears it after the
//! append; a reader loads the counter first, then all bounds. If the reader's counter covers a
//! number, it has read from the increment that took it (or a later one), so it also sees the bound
//! published before that increment, or whatever the lane stored there later.

use crate::sync::{AtomicU64, Ordering, Site, ord, weakened};
use crossbeam_utils::CachePadded;

const NONE: u64 = u64::MAX;

/// The counter of sequence numbers and the lower bound of each lane.
pub(crate) struct Bounds {
    next: CachePadded<AtomicU64>,
    lanes: Box<[CachePadded<AtomicU64>]>,
}

impl Bounds {
    /// The first number taken will be `next`.
    pub(crate) fn new(next: u64, lanes: usize) -> Self {
        Self {
            next: CachePadded::new(AtomicU64::new(next)),
            lanes: (0..lanes)
                .map(|_| CachePadded::new(AtomicU64::new(NONE)))
                .collect(),
        }
    }

    /// Takes a number for `lane`, whose lock the caller holds until after [`Bounds::finish`].
    pub(crate) fn begin(&self, lane: usize) -> u64 {
        // Stale is fine, the bound is then only lower.
        let bound = self.next.load(Ordering::Relaxed);
        // Ordering 3: bound before number. Release also hands on this lane's earlier append, which
        // this bound replaces: a reader that sees it concludes that the earlier one has finished.
        self.lanes[lane].store(bound, ord(Site::BoundPublish, Ordering::Release));
        // Release publishes the bound to any thread that reads this increment. Each such operation continues
        // the release sequence of the previous ones.
        self.next
            .fetch_add(1, ord(Site::NumberTake, Ordering::AcqRel))
    }

    /// The append that [`Bounds::begin`] announced in `lane` is complete (in `op`: durable).
    pub(crate) fn finish(&self, lane: usize) {
        self.lanes[lane].store(NONE, ord(Site::BoundClear, Ordering::Release));
    }

    /// The last number taken so far. A cut: everything that happened before this call has a number
    /// at or below it.
    pub(crate) fn last_taken(&self) -> u64 {
        self.next.load(ord(Site::CounterRead, Ordering::Acquire)) - 1
    }

    /// Every number at or below the result has finished its append, and what it stored is visible
    /// to the caller.
    pub(crate) fn complete_upto(&self) -> u64 {
        // Ordering 3: the counter first, then the bounds.
        if weakened(Site::CounterFirst) {
            let bounds = self.lowest_bound();
            return self.last_taken().min(bounds - 1);
        }
        let last = self.last_taken();
        last.min(self.lowest_bound() - 1)
    }

    /// The lanes that may still be appending a number at or below `cut`, which must not exceed what
    /// the same thread got from [`Bounds::last_taken`] before.
    pub(crate) fn appending_upto(&self, cut: u64) -> impl Iterator<Item = usize> + '_ {
        let bound = |lane: &usize| self.lanes[*lane].load(ord(Site::BoundRead, Ordering::Acquire));
        (0..self.lanes.len()).filter(move |lane| bound(lane) <= cut)
    }

    fn lowest_bound(&self) -> u64 {
        self.lanes
            .iter()
            .map(|b| b.load(ord(Site::BoundRead, Ordering::Acquire)))
            .min()
            .unwrap_or(NONE)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::Bounds;

    #[test]
    fn complete_stops_below_the_lowest_unfinished_append() {
        let b = Bounds::new(10, 3);
        assert_eq!(b.complete_upto(), 9);
        assert_eq!(b.begin(0), 10);
        assert_eq!(b.begin(2), 11);
        assert_eq!(b.complete_upto(), 9);
        assert_eq!(b.last_taken(), 11);
        b.finish(2);
        assert_eq!(b.complete_upto(), 9);
        assert_eq!(b.appending_upto(11).collect::<Vec<_>>(), [0]);
        assert_eq!(b.appending_upto(9).count(), 0);
        b.finish(0);
        assert_eq!(b.complete_upto(), 11);
    }
}

#[cfg(all(test, loom))]
#[path = "bounds_loom.rs"]
mod loom_tests;
