//! From a scan to a journal.

use crate::bounds::Bounds;
use crate::commit::Committing;
use crate::credits::{Amount, Credits};
use crate::digest::store_committed;
use crate::error::JournalError;
use crate::journal::{Buffer, Journal, JournalOptions, Staging};
use crate::lane::Lane;
use crate::queue::WaitQueue;
use crate::ring::SlotRing;
use crate::scan::Scan;
use crate::superblock::Superblock;
use crate::{LiveSlot, Record};
use crossbeam_utils::CachePadded;
use quayfs_layout::LINE;
use quayfs_layout::jsb::{EpochWord, MAX_NUMBER, WordKind};
use quayfs_layout::record::RecordSeed;
use quayfs_layout::slot::{HeaderSeed, SlotHeader};
use quayfs_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use quayfs_sync::{Condvar, Mutex};
use rustc_hash::FxHashSet;
use std::sync::OnceLock;

/// How far the caller has digested what a scan found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecoveredTo {
    /// Every replayable record at or below this is digested. Those above (possible only if there is
    /// damage) are given up.
    pub digested: u64,
}

/// A mount is refused with fewer numbers (or lines of a lane) left than half a year takes at a million
/// a second.
const NUMBERS_RESERVE: u64 = 1 << 44;

impl Scan {
    fn jsb(&self) -> Superblock<'_> {
        Superblock {
            region: &self.region,
            geo: &self.geo,
        }
    }

    /// Has a scan after a power failure find what this one has found, which was made after the death of a daemon:
    /// records above `commit_ts` are there and durable, so the life that wrote them counts as one in `op` mode from
    /// here on. Recovery changes nothing before that is durable, which it is on return. To be called when everything is
    /// durable that the daemon had stored; where it changes nothing, nothing is done.
    ///
    /// # Errors
    /// [`JournalError::Pmem`] if the region cannot be drained.
    pub fn adopt(&self) -> Result<(), JournalError> {
        if self.mode == self.stored_mode {
            return Ok(());
        }
        self.jsb().store_epoch(EpochWord {
            repairing: self.repairing,
            epoch: self.epoch,
            mode: self.mode.mode(),
        });
        self.region.drain()?;
        Ok(())
    }

    /// Stores the record's number into the committed words of its slots, and writes headers again
    /// that are damaged but vouched for by it. Flushed, not drained. [`Scan::store_digested`] does
    /// this for every record it covers; calling it before as well is harmless.
    pub fn mark_committed(&self, record: &Record) {
        for run in &record.runs {
            if u32::from(run.buffer) >= self.geo.buffers {
                continue;
            }
            for (pos, &(lbn, payload_crc)) in (run.pos..).zip(&run.blocks) {
                let index = pos % self.geo.slots_per_buffer;
                if self.rewrite.contains(&(run.buffer, pos)) {
                    let h = SlotHeader {
                        pos,
                        lbn,
                        stage_id: run.stage_id,
                        epoch: self.epoch,
                        payload_crc,
                    };
                    let salt = self.geo.volume_salt;
                    let bytes = h.encode_committed(salt, run.buffer, index, record.seq);
                    let off = self.geo.header(run.buffer, index);
                    self.region.write(off, &bytes);
                    self.region.flush(off, bytes.len() as u64);
                } else {
                    store_committed(&self.region, &self.geo, run.buffer, index, record.seq);
                }
            }
        }
    }

    /// Every replayable record at or below `seq` is digested. Marks their slots, drains (and so makes
    /// durable what the calling thread has stored and flushed), then stores digested_seq. That is durable with the
    /// next drain, and need not be before: the records are still there and can be replayed again.
    /// May be called in steps; a lower number than before does nothing.
    ///
    /// # Errors
    /// [`JournalError::Pmem`] if the region cannot be drained.
    pub fn store_digested(&self, seq: u64) -> Result<(), JournalError> {
        let from = self.stored.load(Ordering::Relaxed);
        if seq <= from {
            return Ok(());
        }
        let first = self.records.partition_point(|r| r.seq <= from);
        for r in self.records[first..].iter().take_while(|r| r.seq <= seq) {
            self.mark_committed(r);
        }
        // Committed words and headers before D: a slot whose number digested_seq has reached is live by them
        // alone.
        self.region.drain()?;
        self.jsb().store(WordKind::Digested, seq);
        self.stored.store(seq, Ordering::Relaxed);
        Ok(())
    }

    /// Ends recovery: everything replayable is digested, numbers restart above every number seen,
    /// lanes are empty, and as the very last step a new epoch begins, above every epoch seen and in the
    /// mode of the new mount. A crash before that last step leaves a journal that scans to the same
    /// slots and no records.
    ///
    /// # Errors
    /// [`JournalError::NotRecovered`] if records are left over without damage to justify it,
    /// [`JournalError::Exhausted`], [`JournalError::Span`], [`JournalError::Pmem`].
    pub fn into_journal(
        mut self,
        to: RecoveredTo,
        options: JournalOptions,
    ) -> Result<Journal, JournalError> {
        let last = self.records.last().map_or(0, |r| r.seq);
        if last > to.digested && self.damage.is_empty() {
            return Err(JournalError::NotRecovered {
                last,
                digested: to.digested,
            });
        }
        // Numbers restart above every number seen, and the gap belongs to the old epoch.
        let restart = self.max_seq_seen.max(to.digested);
        let lines = self
            .lane_ends
            .iter()
            .map(|end| end / LINE as u64)
            .max()
            .unwrap_or(0);
        if restart.max(lines) > MAX_NUMBER - NUMBERS_RESERVE || self.last_epoch() == u32::MAX {
            return Err(JournalError::Exhausted);
        }
        self.live.retain(|l| l.seq <= to.digested);
        let rings = self.rings()?;
        self.store_digested(to.digested)?;
        self.disown_above()?;
        self.restart(restart, options)?;
        Ok(self.build(rings, restart, options))
    }

    /// The last epoch that there can be anything of: no record may come to life in the next one.
    fn last_epoch(&self) -> u32 {
        self.epoch.max(self.stray_epoch.unwrap_or(0))
    }

    /// Words above digested_seq without a digested record would become live when digested_seq moves to the highest
    /// number seen. Only damage leaves any.
    fn disown_above(&self) -> Result<(), JournalError> {
        let live: FxHashSet<(u16, u64)> = self
            .live
            .iter()
            .map(|l| (l.buffer, l.pos % self.geo.slots_per_buffer))
            .collect();
        let mut any = false;
        for &(buffer, index) in &self.above {
            if !live.contains(&(buffer, index)) {
                store_committed(&self.region, &self.geo, buffer, index, 0);
                any = true;
            }
        }
        if any {
            self.region.drain()?;
        }
        Ok(())
    }

    /// Superblock words of the new life, in two steps, the first durable before the second:
    /// 1. digested_seq. The lanes are history from here on, whatever their heads say. And what is left of headers
    ///    goes, so that nothing of the next epoch can complete it: records above digested_seq are of that epoch. So do
    ///    proposals that fail their check, which a life in `op` does not look at, and the next one may.
    /// 2. Proposals of the old life are cleared, `commit_ts`, the clean word, the heads, and the epoch with the mode
    ///    (ordering 7), which ends recovery when all of it is durable. A proposal that is still there after a crash in
    ///    between says nothing: up to digested_seq everything is there in any case, and above it there is no record.
    ///    The next recovery clears it. Were `commit_ts` first, numbers between digested_seq and it would be
    ///    missing records; were a head first, a record above digested_seq would be lost. Among each other they may
    ///    arrive in any order: with digested_seq at the highest number seen no record is left that any of them
    ///    could bring to life, and nothing is appended before this returns.
    fn restart(&self, seq: u64, options: JournalOptions) -> Result<(), JournalError> {
        let jsb = self.jsb();
        jsb.store(WordKind::Digested, seq);
        self.clear_torn();
        jsb.clear_bad_proposals();
        self.region.drain()?;
        jsb.clear_proposals();
        jsb.store(WordKind::CommitTs, seq);
        // Its check may have failed; that it is another epoch's says "not clean" from now on.
        jsb.store(WordKind::Clean, 0);
        for (lane, &end) in self.lane_ends.iter().enumerate() {
            jsb.store_head(lane, end);
        }
        jsb.store_epoch(EpochWord {
            // A recovery in the middle of a repair is the repair itself, which is not over.
            repairing: self.repairing,
            epoch: self.last_epoch() + 1,
            mode: options.durability.mode(),
        });
        self.region.drain()?;
        Ok(())
    }

    /// Without its first word nothing is a header. Durable before the next life, which stores to the same
    /// lines past the cache: a store that is still in the cache would be overtaken there.
    fn clear_torn(&self) {
        for (lane, torn) in self.torn.iter().enumerate() {
            for pos in torn {
                let off = self.geo.lane(lane) + pos % self.geo.lane_bytes;
                self.region.store_u64(off, 0);
                self.region.flush(off, 8);
            }
        }
    }

    /// Head = lowest live position, next = highest live + 1; in between, what is not live is
    /// abandoned. Positions above may have been used before: the epoch is in header and stage id.
    fn rings(&self) -> Result<Vec<SlotRing>, JournalError> {
        let mut by_buffer: Vec<Vec<&LiveSlot>> = vec![Vec::new(); self.geo.buffers as usize];
        for l in &self.live {
            by_buffer[usize::from(l.buffer)].push(l);
        }
        let mut rings = Vec::new();
        for (buffer, live) in by_buffer.into_iter().enumerate() {
            let head = live.iter().map(|l| l.pos).min().unwrap_or(0);
            let next = live.iter().map(|l| l.pos + 1).max().unwrap_or(0);
            if next - head > self.geo.slots_per_buffer {
                return Err(JournalError::Span(buffer as u16));
            }
            let ring = SlotRing::new(self.geo.slots_per_buffer, head, next);
            for l in live {
                ring.commit(l.pos, l.lbn, l.crc, l.seq);
            }
            rings.push(ring);
        }
        Ok(rings)
    }

    fn build(self, rings: Vec<SlotRing>, restart: u64, options: JournalOptions) -> Journal {
        let formatted = rings.len();
        let active = match options.staging {
            Staging::Sharded => options.buffers.clamp(1, formatted),
            Staging::Central => 1,
        };
        let log = Buffer::log_capacity(&self.geo, options.log_bytes, options.log_records, active);
        let buffers = rings
            .into_iter()
            .zip(&self.lane_ends)
            .zip(0..)
            .map(|((ring, &end), lane_no)| {
                let capacity = Amount {
                    slots: ring.slots(),
                    ..log
                };
                let free = Amount {
                    slots: ring.slots() - ring.used(),
                    ..log
                };
                Buffer {
                    seed: HeaderSeed::new(self.geo.volume_salt, lane_no),
                    ring,
                    lane: CachePadded::new(Mutex::new(Lane::new(end))),
                    credits: CachePadded::new(Credits::new(free)),
                    capacity,
                }
            })
            .collect();
        Journal {
            record_seed: RecordSeed::new(self.geo.volume_salt),
            epoch: self.last_epoch() + 1,
            durability: options.durability,
            buffers,
            active,
            bounds: Bounds::new(restart + 1, formatted),
            commit_ts: AtomicU64::new(restart),
            digested: AtomicU64::new(restart),
            retired: AtomicU64::new(self.retired),
            committing: Mutex::new(Committing::default()),
            committed: Condvar::new(),
            queued: Condvar::new(),
            proposals: options.proposals,
            dependent: AtomicU64::new(0),
            media: OnceLock::new(),
            digest_lock: Mutex::new(()),
            retire_lock: Mutex::new(()),
            central: (options.staging == Staging::Central).then(|| Mutex::new(())),
            slot_waiters: WaitQueue::new(),
            log_waiters: WaitQueue::new(),
            stopped: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            counters: crate::stats::Counters::default(),
            region: self.region,
            geo: self.geo,
        }
    }
}
