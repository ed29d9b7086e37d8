//! Where an append puts what is new.

use std::ops::Range;

use quayfs_layout::Lbn;
use quayfs_store::engine::Engine;
use quayfs_store::error::Result;
use quayfs_store::ns::extent::Piece;
use quayfs_store::txn::Txn;
use quayfs_sync::MutexGuard;
use smallvec::SmallVec;

use super::staged::Targets;
use super::{B, length};

/// Longest preallocation behind an append, in blocks.
const AHEAD_MAX: u64 = 512;

/// A file of so many extents has been appended to again and again, and was opened anew each time.
pub(super) const GROWS_FROM: usize = 3;
/// Blocks that have to be free for a request to ask for more than it writes: each counts where there are fewer.
pub(super) const SPARE_FROM: u64 = 1024;

/// The last block of a file, if an append has to fill it up, cannot go on behind it, and does not find it
/// staged: to write it where it is would be a write of its own, so it goes where the new blocks go. One that is
/// staged is likely to lie among what is written at that time.
pub(super) fn left_behind(e: &Engine, pieces: &[Piece]) -> Option<Lbn> {
    let [tail, hole] = pieces else { return None };
    let lbn = tail
        .lbn
        .filter(|_| hole.lbn.is_none() && length(tail) == 1)?;
    (e.staged.get(lbn).is_none() && !e.lbns.is_free(lbn + 1)).then_some(lbn)
}

/// How many blocks an append takes ahead, so that files that grow side by side do not interleave. The first write of
/// a file takes none: most files are written at once and never grow. Nor does the first append since a file was
/// opened, unless the file is in several pieces ([`GROWS_FROM`]): blocks taken ahead and never used would lie between
/// what is written at one time.
pub(super) fn ahead(e: &Engine, size: u64) -> u64 {
    let free = e.lbns.free();
    if free > SPARE_FROM {
        (size / B).min(AHEAD_MAX).min(free / 256)
    } else {
        0
    }
}

/// The append window of a file, locked.
pub(super) type Window<'c> = MutexGuard<'c, Option<Range<u64>>>;

/// LBNs for the holes of one request, from the file's append window and the allocator. Dropping
/// it without [`Allocation::appended`] puts the window back as it was.
pub(super) struct Allocation<'a, 'c> {
    window: &'a mut Window<'c>,
    before: Option<Range<u64>>,
    /// Whether more is likely to be appended.
    grows: bool,
    pub(super) placed: SmallVec<[(Range<u64>, Lbn); 1]>,
    kept: bool,
}

impl<'a, 'c> Allocation<'a, 'c> {
    pub(super) fn new(window: &'a mut Window<'c>, scattered: bool) -> Self {
        let before = window.clone();
        Self {
            window,
            grows: scattered || before.is_some(),
            before,
            placed: SmallVec::new(),
            kept: false,
        }
    }

    /// Whether nothing that was taken ahead is left.
    pub(super) fn is_new_place(&self) -> bool {
        self.window.as_ref().is_none_or(Range::is_empty)
    }

    /// Finds places for the blocks of a hole, and `ahead` more if more is likely to be appended.
    pub(super) fn fill(
        &mut self,
        txn: &mut Txn<'_>,
        hole: Range<u64>,
        goal: Option<Lbn>,
        ahead: u64,
        targets: &mut Targets,
    ) -> Result<()> {
        let mut at = hole.start;
        while at < hole.end {
            let want = hole.end - at;
            let run = match self.window.take() {
                Some(w) if !w.is_empty() => {
                    let cut = w.start + want.min(w.end - w.start);
                    **self.window = Some(cut..w.end);
                    w.start..cut
                }
                _ => {
                    let near = targets.last().map(|l| l + 1).or(goal);
                    let ahead = if self.grows { ahead } else { 0 };
                    let r = txn.take_window(want + ahead, near)?;
                    let cut = r.start + want.min(r.end - r.start);
                    **self.window = Some(cut..r.end);
                    r.start..cut
                }
            };
            txn.use_blocks(run.clone());
            let n = run.end - run.start;
            run.clone().for_each(|lbn| targets.push(lbn));
            match self.placed.last_mut() {
                Some((blocks, lbn))
                    if blocks.end == at && *lbn + (at - blocks.start) == run.start =>
                {
                    blocks.end += n;
                }
                _ => self.placed.push((at..at + n, run.start)),
            }
            at += n;
        }
        Ok(())
    }

    /// The record was appended.
    pub(super) fn appended(&mut self) {
        self.kept = true;
    }
}

impl Drop for Allocation<'_, '_> {
    fn drop(&mut self) {
        if !self.kept {
            **self.window = self.before.take();
        }
    }
}
