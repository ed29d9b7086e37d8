//! Freed numbers: when they may be handed out again.

use std::collections::VecDeque;
use std::ops::Range;

use quayfs_journal::SlotRef;
use quayfs_layout::l2p::{CRC_BYTES, ENTRY_BYTES};
use quayfs_layout::node::INODES_PER_PAGE;
use quayfs_pmem::Backend;
use quayfs_sync::Mutex;
use quayfs_sync::atomic::{AtomicU64, Ordering};

use crate::engine::Engine;
use crate::error::Result;
use crate::ns::alloc::{Kind, Screen};
use crate::txn::Freed;

/// What records that are not digested yet have freed.
#[derive(Debug, Default)]
pub(super) struct Deferred {
    /// In order of the records' numbers.
    by_seq: Mutex<VecDeque<(u64, Freed)>>,
    lbns: AtomicU64,
    inos: AtomicU64,
    nodes: AtomicU64,
    /// Held while numbers go from here to their allocator, so that they can be counted once. Before the allocators'
    /// locks.
    moving: Mutex<()>,
}

impl Deferred {
    fn count(&self, kind: Kind) -> &AtomicU64 {
        match kind {
            Kind::Lbn => &self.lbns,
            Kind::Inode => &self.inos,
            Kind::Node => &self.nodes,
        }
    }

    /// Numbers of a kind that are free for all but reuse.
    pub fn len(&self, kind: Kind) -> u64 {
        self.count(kind).load(Ordering::Acquire)
    }
}

impl Engine {
    /// Numbers freed by record `seq` come back once digest has passed it.
    pub fn defer_frees(&self, seq: u64, freed: Vec<Freed>) {
        if !freed.is_empty() {
            for f in &freed {
                let n = f.range.end - f.range.start;
                self.deferred.count(f.kind).fetch_add(n, Ordering::AcqRel);
            }
            {
                let mut all = self.deferred.by_seq.lock();
                // Records end nearly in the order of their numbers.
                let later = all.iter().rev().take_while(|(s, _)| *s > seq).count();
                let at = all.len() - later;
                for f in freed.into_iter().rev() {
                    all.insert(at, (seq, f));
                }
            }
            // Digest may have passed the record before its frees were known.
            let digested = self.journal.digested();
            if seq <= digested {
                self.release_digested(digested);
            }
        }
    }

    /// Brings back what records at or below the durable digested_seq have freed (ordering 4: nothing that a
    /// record above digested_seq released is consumed).
    pub fn release_digested(&self, digested: u64) {
        let due: Vec<(u64, Freed)> = {
            let mut all = self.deferred.by_seq.lock();
            let due = all.partition_point(|(seq, _)| *seq <= digested);
            all.drain(..due).collect()
        };
        for (_, f) in due {
            let n = f.range.end - f.range.start;
            let _moving = self.deferred.moving.lock();
            match f.kind {
                Kind::Lbn => self.lbns.add_pending(f.range),
                Kind::Inode => self.inos.release(f.range),
                Kind::Node => {
                    self.node_ids.release(f.range);
                    self.nodes.unreserve(n);
                }
            }
            self.deferred.count(f.kind).fetch_sub(n, Ordering::AcqRel);
        }
    }

    /// Blocks that no file owns: free at once, after digest, or after a zeroing pass.
    pub fn blocks_free(&self) -> u64 {
        let _moving = self.deferred.moving.lock();
        self.lbns.free_now() + self.deferred.len(Kind::Lbn)
    }

    /// Inodes in use, and inodes that can still be created: in the inode pages there are, and in
    /// those that free node pages can become.
    pub fn files(&self) -> (u64, u64) {
        let total = self.inos.total();
        let _moving = self.deferred.moving.lock();
        let used = total.saturating_sub(self.inos.free_now() + self.deferred.len(Kind::Inode));
        let pages = self.nodes.available() + self.deferred.len(Kind::Node);
        let free = if pages == 0 {
            0
        } else {
            let slots = (self.nodes.inode_pages() + pages) * INODES_PER_PAGE;
            slots.min(total).saturating_sub(used)
        };
        (used, free)
    }
}

impl Screen for Engine {
    /// LBNs whose bit is clear but that hold something: an entry in state written (a crash came
    /// between freeing or direct writing and the zeroing pass), the checksum of what an earlier owner had
    /// (a repair would take it for that of the next one), or a live slot.
    fn unclean(&self, range: Range<u64>) -> Result<Vec<Range<u64>>> {
        let mut out: Vec<Range<u64>> = Vec::new();
        if self.region.backend() == Backend::Dax {
            // A previous daemon may have died between storing a zero entry and flushing it: what is
            // handed out on the strength of it must find it after a power failure.
            let (g, len) = (&self.config.geometry, range.end - range.start);
            for (off, bytes) in [(g.l2p_map_off, ENTRY_BYTES), (g.l2p_crc_off, CRC_BYTES)] {
                self.region.flush(off + range.start * bytes, len * bytes);
            }
            self.region.drain().inspect_err(|err| self.fail(err))?;
        }
        // In this order: a round makes the entry of a staged block written before it takes away the slot. A
        // damaged entry is not handed out either; fsck reports it.
        let mut look = |lbn: u64, slot: Option<SlotRef>| {
            let clean = slot.is_none() && self.ppt.is_zeroed(lbn);
            match out.last_mut() {
                _ if clean => {}
                Some(r) if r.end == lbn => r.end += 1,
                _ => out.push(lbn..lbn + 1),
            }
        };
        if self.staged.is_empty() {
            range.for_each(|lbn| look(lbn, None));
        } else {
            self.staged.get_each(range, |lbn| *lbn, look);
        }
        Ok(out)
    }
}
