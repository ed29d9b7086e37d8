//! The list of requests and the rule who may go on: no threads, no atomics, so that it can be
//! tested as a plain state machine.

use crate::Stats;
use smallvec::SmallVec;

/// Shared requests tolerate each other, an exclusive one tolerates nobody.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Shared,
    Exclusive,
}

/// Half-open interval; empty if `start >= end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) start: u64,
    pub(crate) end: u64,
}

impl Span {
    fn overlaps(self, other: Span) -> bool {
        // The maximum of the starts lies in both intervals or in neither; written so, an empty
        // interval inside another one overlaps nothing.
        self.start.max(other.start) < self.end.min(other.end)
    }
}

/// Names an entry. Ids grow in order of arrival and are never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Id(u64);

struct Entry<W> {
    id: Id,
    span: Span,
    mode: Mode,
    /// Earlier entries that conflict with this one and are still in the table.
    obstacles: u32,
    /// Present as long as `obstacles` is not zero.
    waiter: Option<W>,
}

impl<W> Entry<W> {
    fn conflicts(&self, span: Span, mode: Mode) -> bool {
        (self.mode == Mode::Exclusive || mode == Mode::Exclusive) && self.span.overlaps(span)
    }
}

/// All requests for one file, held and waiting. `W` is what identifies a waiting party.
pub(crate) struct Table<W> {
    /// In no order; `id` carries the order. Most files have one at most.
    entries: SmallVec<[Entry<W>; 1]>,
    arrivals: u64,
    waited: u64,
    waiting: usize,
}

impl<W> Table<W> {
    pub(crate) const fn new() -> Self {
        Self {
            entries: SmallVec::new_const(),
            arrivals: 0,
            waited: 0,
            waiting: 0,
        }
    }

    /// Enters a request that conflicts with nobody, or says that there is a conflict.
    pub(crate) fn try_acquire(&mut self, span: Span, mode: Mode) -> Option<Id> {
        if self.entries.iter().any(|e| e.conflicts(span, mode)) {
            return None;
        }
        Some(self.push(span, mode, 0, None))
    }

    /// Enters a request after [`try_acquire`](Self::try_acquire) refused it, under the same lock.
    /// `waiter` is handed to a later [`release`](Self::release) when the request's turn has come.
    pub(crate) fn enqueue(&mut self, span: Span, mode: Mode, waiter: W) -> Id {
        let obstacles = self
            .entries
            .iter()
            .filter(|e| e.conflicts(span, mode))
            .count();
        debug_assert!(
            obstacles > 0,
            "only a refused request is entered as waiting"
        );
        self.waited += 1;
        self.waiting += 1;
        let obstacles = u32::try_from(obstacles).expect("fewer requests than 2^32 at a time");
        self.push(span, mode, obstacles, Some(waiter))
    }

    /// Removes a held entry and gives every waiter whose last obstacle it was to `grant`.
    ///
    /// # Panics
    /// If `id` is not held: a guard was released twice, or on another lock.
    pub(crate) fn release(&mut self, id: Id, mut grant: impl FnMut(W)) {
        let at = self
            .entries
            .iter()
            .position(|e| e.id == id)
            .expect("a held range is in its lock");
        let gone = self.entries.swap_remove(at);
        assert_eq!(gone.obstacles, 0, "only a held range can be released");
        if self.waiting == 0 {
            return;
        }
        for entry in &mut self.entries {
            if entry.id > id && entry.conflicts(gone.span, gone.mode) {
                entry.obstacles -= 1;
                if entry.obstacles == 0 {
                    self.waiting -= 1;
                    entry.waiter.take().into_iter().for_each(&mut grant);
                }
            }
        }
    }

    pub(crate) fn stats(&self) -> Stats {
        Stats {
            granted: self.arrivals - self.waiting as u64,
            waited: self.waited,
            held: self.entries.len() - self.waiting,
            waiting: self.waiting,
        }
    }

    fn push(&mut self, span: Span, mode: Mode, obstacles: u32, waiter: Option<W>) -> Id {
        let id = Id(self.arrivals);
        self.arrivals += 1;
        self.entries.push(Entry {
            id,
            span,
            mode,
            obstacles,
            waiter,
        });
        id
    }
}
