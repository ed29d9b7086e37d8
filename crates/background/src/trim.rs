//! Trim (`FITRIM`): the data device is told which of its blocks hold nothing.
//!
//! A physical block may be discarded only if no mapping that any recovery could come to leads to its content. That is
//! so of those whose LBN the allocator has in hand: its freeing record is at or below the durable digested_seq, its
//! entry is durably *zero*, no live slot names it, and the page-table transaction that brought the block to it, if
//! there was one, has committed before a round gave the LBN back (`docs/internals/crash-consistency.md`). So a trim
//! borrows LBNs from the allocator as a round does, a batch at a time, and nothing can write to their blocks before
//! they are back.
//!
//! The spare pool is left alone: rounds use it without asking the allocator.

use std::ops::Range;
use std::sync::atomic::Ordering;

use quayfs_layout::BLOCK;
use quayfs_store::engine::Engine;
use quayfs_store::error::{FsError, Result};
use quayfs_store::metrics::Metrics;

use crate::Background;
use crate::checkpoint;
use crate::digest::digest_all;

const B: u64 = BLOCK as u64;
/// LBNs that a batch takes at most: 256 MiB.
const BATCH: u64 = 64 << 10;

/// What is to be trimmed, in bytes of the part of the data device that holds blocks of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trim {
    /// Where it begins.
    pub start: u64,
    /// How long it is; it may reach beyond the end.
    pub len: u64,
    /// Shorter pieces are not worth it.
    pub min: u64,
}

impl Trim {
    /// Whole blocks in it, of `blocks` that there are.
    fn blocks(&self, blocks: u64) -> Result<Range<u64>> {
        let all = blocks * B;
        if self.start >= all || self.len < B || self.min > all {
            return Err(FsError::Invalid);
        }
        let end = self.start.saturating_add(self.len).min(all);
        Ok(self.start.div_ceil(B)..end / B)
    }
}

/// LBNs that a batch has taken.
struct Taken<'e> {
    engine: &'e Engine,
    runs: Vec<Range<u64>>,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        for r in self.runs.drain(..) {
            self.engine.lbns.release(r);
        }
    }
}

/// Discards free blocks and says how many bytes of them. Ends early with the mount.
pub fn trim(e: &Background, what: Trim) -> Result<u64> {
    let range = what.blocks(e.config.geometry.blocks)?;
    e.writable()?;
    clean(e)?;
    e.lbns.load_all(&e.nodes, &**e)?;
    let (mut at, mut done) = (0, 0);
    while at < e.lbns.total() && !e.stopping().load(Ordering::Acquire) {
        // Given back in the opposite order.
        let _lent = e.lend();
        let (runs, next) = e.lbns.take_free(at, BATCH);
        let taken = Taken { engine: e, runs };
        // A round whose transaction failed has left two mappings, and LBNs that may have either block;
        // the mount is read-only since before it gave them back.
        e.writable()?;
        for r in physical(e, &taken.runs, &range)? {
            let n = r.end - r.start;
            if n * B >= what.min {
                e.device.discard(e.data_start() + r.start, n)?;
                done += n;
            }
        }
        at = next;
    }
    Metrics::add(&e.metrics.blocks_trimmed, done);
    Ok(done * B)
}

/// What has been freed before the call becomes free in every respect.
fn clean(e: &Background) -> Result<()> {
    e.commit()?;
    digest_all(e)?;
    if e.lbns.pending() > 0 {
        // Blocks whose last version is staged wait for a round.
        checkpoint::round(e)?;
        checkpoint::zero_all(e)?;
    }
    Ok(())
}

/// The runs of physical blocks within `range` that these LBNs own.
fn physical(e: &Engine, lbns: &[Range<u64>], range: &Range<u64>) -> Result<Vec<Range<u64>>> {
    let mut blocks = Vec::new();
    for lbn in lbns.iter().cloned().flatten() {
        let pbn = e.mapping(lbn)?.pbn;
        if range.contains(&pbn) {
            blocks.push(pbn);
        }
    }
    blocks.sort_unstable();
    Ok(checkpoint::consecutive(&blocks))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_blocks_of_what_there_is() {
        let t = |start, len| Trim { start, len, min: 0 }.blocks(10);
        assert_eq!(t(0, u64::MAX), Ok(0..10));
        assert_eq!(t(1, 2 * B), Ok(1..2));
        assert_eq!(t(9 * B, B), Ok(9..10));
        assert_eq!(t(10 * B - 1, B), Ok(10..10));
        assert_eq!(t(10 * B, B), Err(FsError::Invalid));
        assert_eq!(t(0, B - 1), Err(FsError::Invalid));
        assert_eq!(t(u64::MAX, u64::MAX), Err(FsError::Invalid));
    }
}
