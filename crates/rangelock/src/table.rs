//! The list of requests and the rule for which may go on: no threads, no atomics and no clock of its own, so
//! that it can be tested as a plain state machine.

use std::ops::Range;
use std::time::Duration;

use crate::Stats;
use crate::sync::Moment;
use smallvec::SmallVec;

/// How long a request lets itself be overtaken: a hundred or more short requests go by in this time, so they
/// share what it costs that it stands in their way afterwards.
pub(crate) const PATIENCE: Duration = Duration::from_micros(500);

/// A party that waits for a range.
pub(crate) trait Waiting {
    /// Whether it still looks for its turn by itself, so that telling it costs no call of the kernel.
    fn is_awake(&self) -> bool;
}

/// Shared requests tolerate each other, an exclusive one tolerates no other.
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

impl From<Range<u64>> for Span {
    fn from(range: Range<u64>) -> Self {
        Self {
            start: range.start,
            end: range.end,
        }
    }
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
    /// Absent once it holds its range.
    wait: Option<Wait<W>>,
}

struct Wait<W> {
    waiter: W,
    told: Told,
    patience: Patience,
}

/// Whether a waiting request was told to look again, and has not done so yet.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Told {
    No,
    /// It was awake.
    Awake,
    /// It was asleep.
    Asleep,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Patience {
    /// It has not been overtaken.
    Fresh,
    /// When it was overtaken for the first time.
    Since(Moment),
    /// It has been overtaken for long enough, and will insist once it looks.
    Over,
    /// It is not overtaken any more.
    Insists,
}

impl<W> Entry<W> {
    fn conflicts(&self, span: Span, mode: Mode) -> bool {
        (self.mode == Mode::Exclusive || mode == Mode::Exclusive) && self.span.overlaps(span)
    }

    fn insists(&self) -> bool {
        (self.wait.as_ref()).is_some_and(|w| w.patience == Patience::Insists)
    }

    fn told(&self) -> Told {
        self.wait.as_ref().map_or(Told::No, |w| w.told)
    }

    /// Whether a conflicting request that came as number `id` may not go on because of this one.
    fn bars(&self, id: Id) -> bool {
        self.wait.is_none() || self.insists() && self.id < id
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

    /// Enters a request that nothing bars, or says that something does: a conflicting range that is held,
    /// or a conflicting request that insists.
    ///
    /// `now` is called only if a request is overtaken.
    pub(crate) fn try_acquire(
        &mut self,
        span: Span,
        mode: Mode,
        now: impl FnOnce() -> Moment,
    ) -> Option<Id> {
        let next = Id(self.arrivals);
        let barred = |e: &Entry<W>| e.conflicts(span, mode) && e.bars(next);
        if self.entries.iter().any(barred) {
            return None;
        }
        self.overtake(next, span, mode, now);
        Some(self.push(span, mode, None))
    }

    /// Enters a request after [`try_acquire`](Self::try_acquire) refused it, under the same lock. A later
    /// [`release`](Self::release) or [`retry`](Self::retry) tells `waiter` when it is worth to look again.
    pub(crate) fn enqueue(&mut self, span: Span, mode: Mode, waiter: W) -> Id {
        let conflict = self.entries.iter().any(|e| e.conflicts(span, mode));
        debug_assert!(conflict, "only a refused request is entered as waiting");
        self.waited += 1;
        self.waiting += 1;
        let wait = Wait {
            waiter,
            told: Told::No,
            patience: Patience::Fresh,
        };
        self.push(span, mode, Some(wait))
    }

    /// Notes that a request goes on before others that came earlier. Only the first of these loses patience:
    /// if all of them did at once, all would have to be woken, one after the other, before any other request goes on.
    fn overtake(&mut self, id: Id, span: Span, mode: Mode, now: impl FnOnce() -> Moment) {
        if self.waiting == 0 {
            return;
        }
        let waits = |e: &&mut Entry<W>| e.wait.is_some() && e.id < id && e.conflicts(span, mode);
        let first = self.entries.iter_mut().filter(waits).min_by_key(|e| e.id);
        let Some(wait) = first.and_then(|e| e.wait.as_mut()) else {
            return;
        };
        wait.patience = match wait.patience {
            Patience::Fresh => Patience::Since(now()),
            Patience::Since(when) if now() - when >= PATIENCE => Patience::Over,
            as_before => as_before,
        };
    }

    pub(crate) fn stats(&self) -> Stats {
        Stats {
            granted: self.arrivals - self.waiting as u64,
            waited: self.waited,
            held: self.entries.len() - self.waiting,
            waiting: self.waiting,
        }
    }

    fn push(&mut self, span: Span, mode: Mode, wait: Option<Wait<W>>) -> Id {
        let id = Id(self.arrivals);
        self.arrivals += 1;
        self.entries.push(Entry {
            id,
            span,
            mode,
            wait,
        });
        id
    }

    fn position(&self, id: Id) -> usize {
        let at = self.entries.iter().position(|e| e.id == id);
        at.expect("a request is in its lock until it is released")
    }

    /// Whether the waiting request at `at` could hold its range.
    fn is_free(&self, at: usize) -> bool {
        let me = &self.entries[at];
        let bars = |e: &Entry<W>| e.id != me.id && e.conflicts(me.span, me.mode) && e.bars(me.id);
        !self.entries.iter().any(bars)
    }
}

impl<W: Waiting> Table<W> {
    /// A waiting request looks again, after it was told to: whether it holds its range now. If not, it
    /// waits on, and others may be told.
    pub(crate) fn retry(
        &mut self,
        id: Id,
        now: impl FnOnce() -> Moment,
        tell: impl FnMut(&W),
    ) -> bool {
        let at = self.position(id);
        let free = self.is_free(at);
        let Some(wait) = &mut self.entries[at].wait else {
            // The range was handed to it.
            return true;
        };
        wait.told = Told::No;
        if !free {
            if wait.patience == Patience::Over {
                wait.patience = Patience::Insists;
            }
            self.grant(tell);
            return false;
        }
        let (span, mode) = (self.entries[at].span, self.entries[at].mode);
        self.overtake(id, span, mode, now);
        self.hold(at);
        true
    }

    /// Removes a held entry and tells the requests that may go on now.
    ///
    /// # Panics
    /// If `id` is not held: a guard was released twice, or on another lock.
    pub(crate) fn release(&mut self, id: Id, tell: impl FnMut(&W)) {
        let at = self.entries.iter().position(|e| e.id == id);
        let at = at.expect("a held range is in its lock");
        assert!(
            self.entries[at].wait.is_none(),
            "only a held range can be released"
        );
        self.entries.swap_remove(at);
        self.grant(tell);
    }

    /// Sees to it that each waiting request conflicts with one that is held, or that was told to look, or with
    /// an earlier one that insists; and that one that has no patience left is told.
    ///
    /// A range that is free stays so for the first that comes, and a thread that runs is there before one that
    /// has to be woken. Of the requests that could have it, one that is awake is told, and a sleeping one only if none
    /// in its way is told. As long as an awake one that was told is on the way, no other is told. A range is kept
    /// only for requests that insist, and these were awake a moment ago.
    fn grant(&mut self, mut tell: impl FnMut(&W)) {
        if self.waiting == 0 {
            return;
        }
        let all = || self.entries.iter().enumerate();
        // Few, however many wait.
        let in_the_way = |e: &Entry<W>| e.wait.is_none() || e.insists() || e.told() != Told::No;
        let mut ways: SmallVec<[usize; 8]> = all()
            .filter(|(_, e)| in_the_way(e))
            .map(|(at, _)| at)
            .collect();
        let mut able: SmallVec<[(Rank, Id, usize); 4]> = all()
            .filter_map(|(at, e)| Some((self.rank(e, &ways)?, e.id, at)))
            .collect();
        able.sort_unstable();
        for (rank, _, at) in able {
            // Unless one before it has come into its way.
            if self.rank(&self.entries[at], &ways).is_none() {
                continue;
            }
            if let Some(wait) = &mut self.entries[at].wait
                && wait.told == Told::No
            {
                wait.told = match wait.waiter.is_awake() {
                    true => Told::Awake,
                    false => Told::Asleep,
                };
                tell(&wait.waiter);
            }
            if rank == Rank::Insists {
                self.hold(at);
            }
            ways.push(at);
        }
    }

    /// When a waiting request is to be told, if at all, as long as those at `ways` are there.
    fn rank(&self, me: &Entry<W>, ways: &[usize]) -> Option<Rank> {
        let wait = me.wait.as_ref()?;
        let rank = match wait.patience {
            Patience::Insists => Rank::Insists,
            _ if wait.told != Told::No => return None,
            Patience::Over => return Some(Rank::Impatient),
            _ if wait.waiter.is_awake() => Rank::Awake,
            _ => Rank::Asleep,
        };
        let stops = |e: &Entry<W>| {
            e.bars(me.id)
                || match rank {
                    Rank::Insists | Rank::Impatient => false,
                    Rank::Awake => e.told() == Told::Awake,
                    Rank::Asleep => e.told() != Told::No,
                }
        };
        let mut ways = ways.iter().map(|&at| &self.entries[at]);
        let stopped = ways.any(|e| e.id != me.id && e.conflicts(me.span, me.mode) && stops(e));
        (!stopped).then_some(rank)
    }

    fn hold(&mut self, at: usize) {
        self.entries[at].wait = None;
        self.waiting -= 1;
    }
}

/// In which order waiting requests are told; within a rank by arrival.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// It is given its range.
    Insists,
    /// It has been overtaken for long enough, and is told whether its range is free or not.
    Impatient,
    Awake,
    Asleep,
}
