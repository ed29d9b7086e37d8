//! The obvious range lock, to measure ours against: a `rangemap` of the held ranges under one mutex
//! and one condition variable.
//!
//! Every release wakes all waiters, arrival order is not kept, and a writer can be starved by
//! readers. It is not used by the file system.

use std::ops::Range;

use parking_lot::{Condvar, Mutex};
use rangemap::RangeMap;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Held {
    Readers(u32),
    Writer,
}

/// Range lock over a [`RangeMap`]. See the module's documentation.
#[derive(Debug, Default)]
pub struct RangeMapLock {
    held: Mutex<RangeMap<u64, Held>>,
    changed: Condvar,
}

/// A range locked in a [`RangeMapLock`], released on drop.
#[must_use = "the range is unlocked again as soon as the guard is dropped"]
#[derive(Debug)]
pub struct RangeMapGuard<'a> {
    lock: &'a RangeMapLock,
    range: Range<u64>,
    exclusive: bool,
}

impl RangeMapLock {
    /// An unlocked lock.
    pub fn new() -> Self {
        Self::default()
    }

    /// Locks `range` shared, waiting until no writer holds a part of it.
    pub fn read(&self, range: Range<u64>) -> RangeMapGuard<'_> {
        let mut held = self.held.lock();
        while overlapping(&held, &range).any(|(_, by)| by == Held::Writer) {
            self.changed.wait(&mut held);
        }
        let mut pieces: Vec<_> = overlapping(&held, &range).collect();
        pieces.extend(gaps(&held, &range).map(|gap| (gap, Held::Readers(0))));
        for (piece, by) in pieces {
            if let Held::Readers(n) = by {
                held.insert(piece, Held::Readers(n + 1));
            }
        }
        RangeMapGuard {
            lock: self,
            range,
            exclusive: false,
        }
    }

    /// Locks `range` exclusively, waiting until no part of it is held.
    pub fn write(&self, range: Range<u64>) -> RangeMapGuard<'_> {
        let mut held = self.held.lock();
        while overlapping(&held, &range).next().is_some() {
            self.changed.wait(&mut held);
        }
        if !range.is_empty() {
            held.insert(range.clone(), Held::Writer);
        }
        RangeMapGuard {
            lock: self,
            range,
            exclusive: true,
        }
    }
}

impl Drop for RangeMapGuard<'_> {
    fn drop(&mut self) {
        if self.range.is_empty() {
            return;
        }
        let mut held = self.lock.held.lock();
        if self.exclusive {
            held.remove(self.range.clone());
        } else {
            let pieces: Vec<_> = overlapping(&held, &self.range).collect();
            for (piece, by) in pieces {
                match by {
                    Held::Readers(n) if n > 1 => held.insert(piece, Held::Readers(n - 1)),
                    _ => held.remove(piece),
                }
            }
        }
        drop(held);
        self.lock.changed.notify_all();
    }
}

/// The held pieces within `range`, clipped to it.
fn overlapping(
    held: &RangeMap<u64, Held>,
    range: &Range<u64>,
) -> impl Iterator<Item = (Range<u64>, Held)> {
    let clip = range.clone();
    // An empty range overlaps nothing; `rangemap` itself refuses one.
    let asked = if range.is_empty() {
        None
    } else {
        Some(range.clone())
    };
    asked
        .into_iter()
        .flat_map(|asked| held.overlapping(asked))
        .map(move |(r, by)| (r.start.max(clip.start)..r.end.min(clip.end), *by))
}

/// The parts of `range` that are not held.
fn gaps(held: &RangeMap<u64, Held>, range: &Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let mut at = range.start;
    let mut free = Vec::new();
    for (piece, _) in overlapping(held, range) {
        if at < piece.start {
            free.push(at..piece.start);
        }
        at = piece.end;
    }
    if at < range.end {
        free.push(at..range.end);
    }
    free.into_iter()
}
