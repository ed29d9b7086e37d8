//! The slot ring of one staging buffer, as seen from memory: positions are handed out by a bare
//! `fetch_add` and come back in ring order.
//!
//! A position is *in flight* from its allocation until its record is appended or its operation has
//! failed. Every position at or above `next` is in flight as well: that is what the head leaves
//! behind when it passes a slot, so allocation need not store anything.

use crate::sync::{AtomicU32, AtomicU64, Ordering, Site, ord};
use crossbeam_utils::CachePadded;

const IN_FLIGHT: u64 = 0;
const ABANDONED: u64 = u64::MAX;

struct Cell {
    /// `IN_FLIGHT`, `ABANDONED`, or the number of the record that names the slot.
    state: AtomicU64,
    lbn: AtomicU64,
    crc: AtomicU32,
}

/// A slot that a record names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Committed {
    pub(crate) pos: u64,
    pub(crate) lbn: u64,
    pub(crate) crc: u32,
    pub(crate) seq: u64,
}

/// Index, head and slot states of one buffer.
pub(crate) struct SlotRing {
    next: CachePadded<AtomicU64>,
    head: CachePadded<AtomicU64>,
    cells: Box<[Cell]>,
}

impl SlotRing {
    /// A ring of `slots` whose positions `head..next` are all abandoned.
    pub(crate) fn new(slots: u64, head: u64, next: u64) -> Self {
        assert!(
            slots > 0 && next - head <= slots,
            "a ring holds at most its slots"
        );
        let cell = |_| Cell {
            state: AtomicU64::new(IN_FLIGHT),
            lbn: AtomicU64::new(0),
            crc: AtomicU32::new(0),
        };
        let ring = Self {
            next: CachePadded::new(AtomicU64::new(next)),
            head: CachePadded::new(AtomicU64::new(head)),
            cells: (0..slots).map(cell).collect(),
        };
        ring.abandon(head, next - head);
        ring
    }

    fn cell(&self, pos: u64) -> &Cell {
        &self.cells[(pos % self.slots()) as usize]
    }

    pub(crate) fn slots(&self) -> u64 {
        self.cells.len() as u64
    }

    /// Index of the slot at `pos`.
    pub(crate) fn index(&self, pos: u64) -> u64 {
        pos % self.slots()
    }

    /// Positions in use, from the head to the next allocation.
    pub(crate) fn used(&self) -> u64 {
        let head = self.head.load(Ordering::Relaxed);
        self.next.load(Ordering::Relaxed).saturating_sub(head)
    }

    /// Takes `n` consecutive positions; the first is returned. The caller holds credits for them,
    /// which is why this cannot run into the head and why nothing stronger is needed here: what
    /// the previous owner did came with the credits.
    pub(crate) fn take(&self, n: u64) -> u64 {
        self.next.fetch_add(n, Ordering::Relaxed)
    }

    /// Record `seq`, which names the slot, is appended (in `op`: durable).
    pub(crate) fn commit(&self, pos: u64, lbn: u64, crc: u32, seq: u64) {
        let cell = self.cell(pos);
        cell.lbn.store(lbn, Ordering::Relaxed);
        cell.crc.store(crc, Ordering::Relaxed);
        // Release: a thread that sees the number sees block and checksum.
        cell.state
            .store(seq, ord(Site::SlotCommit, Ordering::Release));
    }

    /// The operation failed after [`SlotRing::take`]: no record will name these slots.
    pub(crate) fn abandon(&self, pos: u64, n: u64) {
        for p in pos..pos + n {
            // Release: the payload stores of the failed operation come before the reuse.
            self.cell(p)
                .state
                .store(ABANDONED, ord(Site::SlotAbandon, Ordering::Release));
        }
    }

    /// Slots that records in (`above`, `upto`] name, oldest position first. `upto` must come from
    /// something that synchronises with those appends (`complete_upto`).
    pub(crate) fn committed(&self, above: u64, upto: u64) -> impl Iterator<Item = Committed> + '_ {
        let head = self.head.load(Ordering::Relaxed);
        let next = self.next.load(Ordering::Relaxed);
        (head..next).filter_map(move |pos| {
            let cell = self.cell(pos);
            let seq = cell.state.load(ord(Site::SlotRead, Ordering::Acquire));
            (seq != IN_FLIGHT && seq != ABANDONED && seq > above && seq <= upto).then(|| {
                Committed {
                    pos,
                    lbn: cell.lbn.load(Ordering::Relaxed),
                    crc: cell.crc.load(Ordering::Relaxed),
                    seq,
                }
            })
        })
    }

    /// Where the head may go: past slots committed at or below `retired` and abandoned ones, up to
    /// the first that is neither. Only one thread may be between this and [`SlotRing::pass`].
    pub(crate) fn passable(&self, retired: u64) -> u64 {
        let head = self.head.load(Ordering::Relaxed);
        let end = head + self.slots();
        (head..end)
            .find(|&pos| {
                let s = self
                    .cell(pos)
                    .state
                    .load(ord(Site::SlotRead, Ordering::Acquire));
                s == IN_FLIGHT || (s > retired && s != ABANDONED)
            })
            .unwrap_or(end)
    }

    /// Moves the head to `to`, a result of [`SlotRing::passable`], and returns how many slots that
    /// frees. Their credits may be given back afterwards, which publishes these stores.
    pub(crate) fn pass(&self, to: u64) -> u64 {
        let head = self.head.load(Ordering::Relaxed);
        for pos in head..to {
            self.cell(pos).state.store(IN_FLIGHT, Ordering::Relaxed);
        }
        self.head.store(to, Ordering::Relaxed);
        to - head
    }
}

#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(all(test, loom))]
#[path = "ring_loom.rs"]
mod loom_tests;
