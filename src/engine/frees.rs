//! Freed numbers: when they may be handed out again.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use quayfs_pmem::Backend;
use quayfs_ppt::BlockState;

use crate::engine::Engine;
use crate::error::Result;
use crate::ns::alloc::{Kind, Screen};
use crate::txn::Freed;

/// What records that are not digested yet have freed.
#[derive(Debug, Default)]
pub(super) struct Deferred {
    by_seq: Mutex<BTreeMap<u64, Vec<Freed>>>,
    /// LBNs among them.
    blocks: AtomicU64,
}

impl Engine {
    /// Numbers freed by record `seq` come back once digest has passed it.
    pub fn defer_frees(&self, seq: u64, freed: Vec<Freed>) {
        if !freed.is_empty() {
            self.deferred
                .blocks
                .fetch_add(lbns_of(&freed), Ordering::AcqRel);
            self.deferred
                .by_seq
                .lock()
                .entry(seq)
                .or_default()
                .extend(freed);
            // Digest may have passed the record before its frees were known.
            let digested = self.journal.digested();
            if seq <= digested {
                self.release_digested(digested);
            }
        }
    }

    /// Brings back what records at or below the durable D have freed (ordering 4: nothing that a
    /// record above D released is consumed).
    pub fn release_digested(&self, digested: u64) {
        let due = {
            let mut all = self.deferred.by_seq.lock();
            let later = all.split_off(&(digested + 1));
            std::mem::replace(&mut *all, later)
        };
        for f in due.into_values().flatten() {
            match f.kind {
                Kind::Lbn => {
                    let n = f.range.end - f.range.start;
                    self.lbns.add_pending(f.range);
                    self.deferred.blocks.fetch_sub(n, Ordering::AcqRel);
                }
                Kind::Inode => self.inos.release(f.range),
                Kind::Node => {
                    let n = f.range.end - f.range.start;
                    self.node_ids.release(f.range);
                    self.nodes.unpromise(n);
                }
            }
        }
    }

    /// Blocks that no file owns: free at once, after digest, or after a zero batch.
    pub fn blocks_free(&self) -> u64 {
        self.lbns.free() + self.deferred.blocks.load(Ordering::Acquire)
    }
}

impl Screen for Engine {
    /// LBNs whose bit is clear but that hold something: an entry in state written (a crash came
    /// between freeing or direct writing and the zero batch), or a live slot.
    fn unclean(&self, range: Range<u64>) -> Result<Vec<Range<u64>>> {
        let mut out: Vec<Range<u64>> = Vec::new();
        if self.region.backend() == Backend::Dax {
            // A previous daemon may have died between storing a zero entry and flushing it: what is
            // handed out on the strength of it must find it after a power failure.
            let map = self.config.geometry.l2p_map_off;
            self.region
                .flush(map + range.start * 8, (range.end - range.start) * 8);
            self.region.drain()?;
        }
        let probe = !self.staged.is_empty();
        for lbn in range {
            // A damaged entry is not handed out either; fsck reports it.
            let clean = matches!(self.ppt.lookup(lbn), Ok(m) if m.state == BlockState::Zero)
                && !(probe && self.staged.get(lbn).is_some());
            match out.last_mut() {
                _ if clean => {}
                Some(r) if r.end == lbn => r.end += 1,
                _ => out.push(lbn..lbn + 1),
            }
        }
        Ok(out)
    }
}

fn lbns_of(freed: &[Freed]) -> u64 {
    freed
        .iter()
        .filter(|f| f.kind == Kind::Lbn)
        .map(|f| f.range.end - f.range.start)
        .sum()
}
