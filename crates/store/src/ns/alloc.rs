//! Allocators for LBNs, inode numbers and dynamic node ids.
//!
//! What is allocated is a bit in a bitmap page, changed by record items only. The allocator is
//! the DRAM side: per group (one bitmap page) the set of free numbers, loaded on first use. A
//! number that a record frees comes back when digest has passed that record; an LBN moreover only
//! after a zeroing pass (`docs/internals/crash-consistency.md`), so what is handed out reads as zeros.

use std::ops::Range;

use quayfs_layout::node::{self, BITS_PER_PAGE};
use quayfs_sync::Mutex;
use quayfs_sync::atomic::{AtomicI64, AtomicU64, Ordering};
use rangemap::RangeSet;

use crate::error::Result;
use crate::ns::node::NodeStore;

mod lend;

/// Which kind of number an allocator hands out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Logical block numbers.
    Lbn,
    /// Inode numbers.
    Inode,
    /// Dynamic node ids, counted from the first one.
    Node,
}

/// Tells whether a number whose bit is clear has to go through a zeroing pass first.
pub trait Screen {
    /// Those of `range` that must not be handed out yet.
    fn unclean(&self, range: Range<u64>) -> Result<Vec<Range<u64>>>;
}

/// Nothing has to be zeroed: inode numbers and node ids.
pub struct NoScreen;

impl Screen for NoScreen {
    fn unclean(&self, _: Range<u64>) -> Result<Vec<Range<u64>>> {
        Ok(Vec::new())
    }
}

#[derive(Default)]
struct Group {
    loaded: bool,
    free: RangeSet<u64>,
}

/// Free numbers of one kind. See the module documentation.
pub struct Allocator {
    kind: Kind,
    base: u32,
    total: u64,
    groups: Vec<Mutex<Group>>,
    /// Numbers that can be reserved. May lag behind the truth of groups not loaded yet, so a
    /// reservation can turn out empty; the operation then starts over.
    credits: AtomicI64,
    /// Numbers freed, waiting for a zeroing pass.
    pending: Mutex<RangeSet<u64>>,
    pending_len: AtomicU64,
    /// Held while numbers go from one of these counts to the other, so that they can be counted once. A leaf.
    moving: Mutex<()>,
    cursor: AtomicU64,
}

impl Allocator {
    /// Opens the allocator whose bitmap pages start at node `base`; numbers at or above `total`
    /// do not exist. Reads one counter per group.
    pub fn open(store: &NodeStore, kind: Kind, base: u64, total: u64) -> Result<Self> {
        let count = total.div_ceil(BITS_PER_PAGE);
        let mut credits = 0;
        for g in 0..count {
            store.will_need((base + g) as u32);
        }
        for g in 0..count {
            let bits = BITS_PER_PAGE.min(total - g * BITS_PER_PAGE);
            let set = match store.home((base + g) as u32)? {
                Some(p) => u64::from(node::bits_set(&p[..])),
                None => 0,
            };
            credits += bits.saturating_sub(set) as i64;
        }
        Ok(Self {
            kind,
            base: base as u32,
            total,
            groups: (0..count).map(|_| Mutex::default()).collect(),
            credits: AtomicI64::new(credits),
            pending: Mutex::default(),
            pending_len: AtomicU64::new(0),
            moving: Mutex::new(()),
            cursor: AtomicU64::new(0),
        })
    }

    /// An allocator with nothing to hand out, for a read-only mount with damaged bitmaps.
    pub fn empty(kind: Kind, base: u64, total: u64) -> Self {
        Self {
            kind,
            base: base as u32,
            total,
            groups: Vec::new(),
            credits: AtomicI64::new(0),
            pending: Mutex::default(),
            pending_len: AtomicU64::new(0),
            moving: Mutex::new(()),
            cursor: AtomicU64::new(0),
        }
    }

    /// What is handed out.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// How many numbers there are.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Bitmap page and bit range of `range`, group by group.
    pub fn bits(&self, range: Range<u64>) -> impl Iterator<Item = (u32, u32, u32)> + use<> {
        let (base, mut at, end) = (self.base, range.start, range.end);
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let g = at / BITS_PER_PAGE;
            let n = end.min((g + 1) * BITS_PER_PAGE) - at;
            let item = (base + g as u32, (at % BITS_PER_PAGE) as u32, n as u32);
            at += n;
            Some(item)
        })
    }

    /// Reserves `n` numbers, leaving `keep` alone.
    pub fn reserve(&self, n: u64, keep: u64) -> bool {
        if n == 0 {
            return true;
        }
        let (n, keep) = (n as i64, keep as i64);
        self.credits
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, |c| {
                (c - n >= keep).then_some(c - n)
            })
            .is_ok()
    }

    /// Gives back a reservation.
    pub fn unreserve(&self, n: u64) {
        if n > 0 {
            self.credits.fetch_add(n as i64, Ordering::AcqRel);
        }
    }

    /// Numbers that are free or will be after the next zeroing pass.
    pub fn free(&self) -> u64 {
        self.credits.load(Ordering::Acquire).max(0).cast_unsigned() + self.pending()
    }

    /// [`Allocator::free`], of one moment.
    pub fn free_now(&self) -> u64 {
        let _moving = self.moving.lock();
        self.free()
    }

    /// Numbers waiting for a zeroing pass.
    pub fn pending(&self) -> u64 {
        self.pending_len.load(Ordering::Acquire)
    }

    fn load(
        &self,
        g: u64,
        group: &mut Group,
        store: &NodeStore,
        screen: &dyn Screen,
    ) -> Result<()> {
        if group.loaded {
            return Ok(());
        }
        let start = g * BITS_PER_PAGE;
        let end = self.total.min(start + BITS_PER_PAGE);
        let page = store.home(self.base + g as u32)?;
        let mut free = RangeSet::new();
        match page {
            None => free.insert(start..end),
            Some(p) => {
                let mut i = start;
                while i < end {
                    let from = i;
                    while i < end && !node::bit(&p[..], i - start) {
                        i += 1;
                    }
                    if from < i {
                        free.insert(from..i);
                    }
                    while i < end && node::bit(&p[..], i - start) {
                        i += 1;
                    }
                }
            }
        }
        let mut unclean = Vec::new();
        for r in free.iter() {
            unclean.extend(screen.unclean(r.clone())?);
        }
        for r in unclean {
            free.remove(r.clone());
            let _moving = self.moving.lock();
            self.unreserve_signed(-((r.end - r.start) as i64));
            self.add_pending(r);
        }
        group.free = free;
        group.loaded = true;
        Ok(())
    }

    fn unreserve_signed(&self, n: i64) {
        self.credits.fetch_add(n, Ordering::AcqRel);
    }

    /// Allocates one run of at most `want` numbers out of a reservation. It starts at `goal` if that is free. Otherwise it
    /// lies behind what was allocated last, whatever for: what is staged at one time is written in long pieces then. A
    /// place as near to the goal as possible would save its readers nothing, and be a write of its own. `None` if
    /// the reservation was empty (see [`Allocator`]).
    pub fn take(
        &self,
        want: u64,
        goal: Option<u64>,
        store: &NodeStore,
        screen: &dyn Screen,
    ) -> Result<Option<Range<u64>>> {
        if self.groups.is_empty() {
            return Ok(None);
        }
        if let Some(goal) = goal.filter(|goal| *goal < self.total) {
            let g = goal / BITS_PER_PAGE;
            let mut group = self.groups[g as usize].lock();
            self.load(g, &mut group, store, screen)?;
            if let Some(free) = group.free.get(&goal) {
                let run = goal..free.end.min(goal + want);
                group.free.remove(run.clone());
                return Ok(Some(run));
            }
        }
        let near = self.cursor.load(Ordering::Relaxed).min(self.total - 1);
        let first = near / BITS_PER_PAGE;
        let count = self.groups.len() as u64;
        for k in 0..=count {
            let g = (first + k) % count;
            let mut group = self.groups[g as usize].lock();
            self.load(g, &mut group, store, screen)?;
            let start = g * BITS_PER_PAGE;
            let end = self.total.min(start + BITS_PER_PAGE);
            let from = if k == 0 { near } else { start };
            let to = if k == count { near.max(start) } else { end };
            if let Some(run) = pick(&group.free, from..to, want) {
                group.free.remove(run.clone());
                self.cursor.store(run.end % self.total, Ordering::Relaxed);
                return Ok(Some(run));
            }
        }
        Ok(None)
    }

    /// Where the next number is looked for, if there is no goal.
    pub fn cursor(&self) -> u64 {
        self.cursor.load(Ordering::Relaxed)
    }

    /// Whether a number could be allocated now.
    pub fn is_free(&self, n: u64) -> bool {
        n < self.total && {
            let group = self.groups[(n / BITS_PER_PAGE) as usize].lock();
            group.loaded && group.free.contains(&n)
        }
    }

    /// Puts back a run that no record has named. The reservation is the caller's again.
    pub fn put_back(&self, range: Range<u64>) {
        for r in split(range) {
            self.groups[(r.start / BITS_PER_PAGE) as usize]
                .lock()
                .free
                .insert(r);
        }
    }

    /// Must precede the record that frees `range`: loads its groups, so that none is loaded
    /// between that record's digest and [`Allocator::release`].
    pub fn prepare_free(
        &self,
        range: Range<u64>,
        store: &NodeStore,
        screen: &dyn Screen,
    ) -> Result<()> {
        for r in split(range) {
            let g = r.start / BITS_PER_PAGE;
            let mut group = self.groups[g as usize].lock();
            self.load(g, &mut group, store, screen)?;
        }
        Ok(())
    }

    /// Numbers whose freeing record is digested (and, for LBNs, that are zero) can be handed out.
    pub fn release(&self, range: Range<u64>) {
        let n = range.end - range.start;
        self.put_back(range);
        self.unreserve(n);
    }

    /// LBNs whose freeing record is digested wait for the next zeroing pass.
    pub fn add_pending(&self, range: Range<u64>) {
        self.pending_len
            .fetch_add(range.end - range.start, Ordering::AcqRel);
        self.pending.lock().insert(range);
    }

    /// Which LBNs of a range wait for a zeroing pass, in order.
    pub fn pending_in(&self, range: Range<u64>) -> Vec<Range<u64>> {
        if self.pending() == 0 {
            return Vec::new();
        }
        let within = |r: &Range<u64>| r.start.max(range.start)..r.end.min(range.end);
        let pending = self.pending.lock();
        pending.overlapping(range.clone()).map(within).collect()
    }

    /// The pending numbers from `from` on, at most `max` of them, as runs.
    pub fn pending_runs(&self, from: u64, max: u64) -> Vec<Range<u64>> {
        let mut left = max;
        let mut runs = Vec::new();
        for r in self.pending.lock().overlapping(from..u64::MAX) {
            if left == 0 {
                break;
            }
            let start = r.start.max(from);
            let n = left.min(r.end - start);
            runs.push(start..start + n);
            left -= n;
        }
        runs
    }

    /// A zeroing pass has made `range` clean: it can be handed out.
    pub fn cleaned(&self, range: Range<u64>) {
        self.pending.lock().remove(range.clone());
        let n = range.end - range.start;
        self.put_back(range);
        let _moving = self.moving.lock();
        self.pending_len.fetch_sub(n, Ordering::AcqRel);
        self.unreserve(n);
    }

    /// Loads every group, so that the number of free ones is exact.
    pub fn load_all(&self, store: &NodeStore, screen: &dyn Screen) -> Result<()> {
        for g in 0..self.groups.len() as u64 {
            let mut group = self.groups[g as usize].lock();
            self.load(g, &mut group, store, screen)?;
        }
        Ok(())
    }
}

/// Splits a range at group boundaries.
fn split(range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let Range { start: mut at, end } = range;
    std::iter::from_fn(move || {
        (at < end).then(|| {
            let to = end.min((at / BITS_PER_PAGE + 1) * BITS_PER_PAGE);
            let r = at..to;
            at = to;
            r
        })
    })
}

/// Chooses a run within `window`: the first one that is long enough among the next few, else the
/// longest seen.
fn pick(free: &RangeSet<u64>, window: Range<u64>, want: u64) -> Option<Range<u64>> {
    const LOOK: usize = 64;
    if window.start >= window.end {
        return None;
    }
    let mut best: Option<Range<u64>> = None;
    for r in free.overlapping(&window).take(LOOK) {
        let r = r.start.max(window.start)..r.end.min(window.end);
        let n = r.end - r.start;
        if n >= want {
            return Some(r.start..r.start + want);
        }
        if best.as_ref().is_none_or(|b| n > b.end - b.start) {
            best = Some(r);
        }
    }
    best
}
