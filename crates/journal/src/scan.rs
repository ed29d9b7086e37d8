//! What is on the medium after a crash: a journal that is not recovered yet.

use crate::believe;
use crate::error::{Damage, JournalError, SlotDamage};
use crate::geometry::JournalGeometry;
use crate::journal::Journal;
use crate::slot_scan::{Named, PIECE, SlotContext};
use crate::superblock::Superblock;
use crate::walk::{Rules, Walk, walk_lane};
use crate::{Durability, LiveSlot, Record};
use quayfs_layout::jsb::{Closed, JSB_BYTES, WordKind};
use quayfs_layout::slot::SLOT_HEADER_BYTES;
use quayfs_layout::{BLOCK, Guard};
use quayfs_pmem::Region;
use quayfs_sync::thread;
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// The state of a journal whose records above digested_seq wait to be digested. The only way to a [`Journal`]
/// is [`Scan::into_journal`].
pub struct Scan {
    /// Log epoch of the crashed (or unmounted) life.
    pub epoch: u32,
    /// Durability mode of that life, or the one that its end amounts to.
    pub mode: Durability,
    /// digested_seq as stored when the scan was made.
    pub digested: u64,
    /// `retired_seq`.
    pub retired: u64,
    /// Last durable commit; means something in `commit` mode only.
    pub commit_ts: u64,
    /// All live slots: digested and not retired, or named by one of `records`.
    pub live: Vec<LiveSlot>,
    /// Records to digest, in order of number.
    pub records: Vec<Record>,
    /// What no crash leaves behind. Records above a damaged one are listed in `records` all the same;
    /// see [`Scan::intact_upto`].
    pub damage: Vec<Damage>,
    /// Highest sequence number seen anywhere.
    pub max_seq_seen: u64,
    /// The highest epoch of the records that contradict the epoch word, if any do
    /// ([`Damage::Epoch`]).
    pub stray_epoch: Option<u32>,
    /// How that life has ended.
    pub closed: Closed,
    /// Whether a repair has begun and not ended.
    pub repairing: bool,
    pub(crate) region: Arc<Region>,
    pub(crate) geo: JournalGeometry,
    /// Mode that the epoch word has.
    pub(crate) stored_mode: Durability,
    /// Where each lane goes on.
    pub(crate) lane_ends: Vec<u64>,
    /// Where each lane has what is left of headers.
    pub(crate) torn: Vec<Vec<u64>>,
    /// Vouched slots (buffer, position) whose header is to be written again.
    pub(crate) rewrite: FxHashSet<(u16, u64)>,
    /// Slots that the last records of lanes name: a crash may have left them without a header.
    pub(crate) unsettled: FxHashSet<(u16, u64)>,
    /// Slots (buffer, index) whose committed word is above digested_seq.
    pub(crate) above: Vec<(u16, u64)>,
    /// digested_seq as stored now.
    pub(crate) stored: AtomicU64,
}

/// How a life ended that was not ended in an orderly way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    /// Of what was stored and not drained since, any part may be missing. The safe assumption.
    OfMachine,
    /// The process alone is gone; nothing that it has stored is missing from the region. In `commit` mode records
    /// above `commit_ts` count as well then: their operations have been answered.
    OfDaemon,
}

impl Death {
    /// The mode that a life in this mode is read as.
    fn amounts_to(self, mode: Durability) -> Durability {
        match self {
            Self::OfMachine => mode,
            // All that was stored is there, in the order in which it was stored: as if every record had been drained.
            Self::OfDaemon => Durability::Op,
        }
    }
}

impl Journal {
    /// Reads superblock, lanes and slot headers. Changes nothing, but (unless the region is mapped
    /// read-only) flushes what it has read and a recovery would act on: if the daemon alone died, that
    /// may still be in flight, and power may fail before recovery is done. Drain before you store
    /// anything on the strength of it.
    ///
    /// # Errors
    /// [`JournalError::Geometry`]; [`JournalError::Superblock`] if a word without which nothing can be
    /// said is damaged; [`JournalError::Pmem`]. Other damage is part of the result.
    pub fn scan(region: Arc<Region>, geo: &JournalGeometry) -> Result<Scan, JournalError> {
        Self::scan_after(Death::OfMachine, region, geo)
    }

    /// As [`Journal::scan`], of a journal whose last life ended like this.
    ///
    /// # Errors
    /// The same.
    pub fn scan_after(
        death: Death,
        region: Arc<Region>,
        geo: &JournalGeometry,
    ) -> Result<Scan, JournalError> {
        geo.check(region.len())?;
        let jsb = Superblock::of(&region, geo);
        let epoch_word = jsb.load_epoch()?;
        let mode = death.amounts_to(Durability::of(epoch_word.mode));
        let digested = match Guard::Digested.stands() {
            true => jsb.load(WordKind::Digested)?,
            false => 0,
        };
        let retired = jsb.load(WordKind::Retired)?;
        let mut damage = Vec::new();
        let commits = match mode {
            Durability::Commit => believe::commits(&jsb, &mut damage)?,
            Durability::Op => believe::Commits::settled(jsb.load(WordKind::CommitTs)?),
        };
        let clean = jsb.load(WordKind::Clean).unwrap_or_else(|_| {
            damage.push(Damage::Word(WordKind::Clean));
            0
        });
        begin_to_read(&region, geo);
        let heads = (0..geo.buffers as u16).map(|lane| jsb.load_head(lane));
        let heads = heads.collect::<Result<Vec<_>, _>>()?;
        let rules = |commit_ts| Rules {
            epoch: epoch_word.epoch,
            mode,
            digested,
            committed: match mode {
                Durability::Commit if Guard::CommitTs.stands() => commit_ts,
                _ => u64::MAX,
            },
        };
        let walk = |commit_ts| walk_all(&region, geo, &heads, rules(commit_ts));
        let (commit_ts, walks) = believe::walk_to_believed(&region, geo, &commits, digested, walk);
        let rules = rules(commit_ts);
        let without_headers = believe::without_headers(&commits, &walks);
        let mut scan = Scan {
            epoch: epoch_word.epoch,
            mode,
            digested,
            retired,
            commit_ts,
            live: Vec::new(),
            records: Vec::new(),
            damage,
            max_seq_seen: digested.max(retired).max(commit_ts),
            stray_epoch: None,
            closed: Closed::of(clean, epoch_word.epoch),
            repairing: epoch_word.repairing,
            region: Arc::clone(&region),
            geo: *geo,
            stored_mode: Durability::of(epoch_word.mode),
            lane_ends: walks.iter().map(|w| w.end).collect(),
            torn: walks.iter().map(|w| w.torn.clone()).collect(),
            rewrite: FxHashSet::default(),
            unsettled: FxHashSet::default(),
            above: Vec::new(),
            stored: AtomicU64::new(digested),
        };
        scan.merge(walks, rules);
        scan.unsettled.extend(without_headers);
        scan.scan_slots();
        if !region.is_read_only() {
            scan.flush_read(&heads);
        }
        Ok(scan)
    }
}

impl Journal {
    /// Whether the volume was closed by its last life ([`Journal::set_clean`]), with or without something left staged.
    /// Looks at two words.
    ///
    /// # Errors
    /// [`JournalError::Geometry`]; [`JournalError::Superblock`] if one of the words is damaged.
    pub fn is_closed(region: &Region, geo: &JournalGeometry) -> Result<bool, JournalError> {
        Ok(Self::closed(region, geo)?.is_clean())
    }

    /// How the volume was closed by its last life. Looks at two words.
    ///
    /// # Errors
    /// As of [`Journal::is_closed`].
    pub fn closed(region: &Region, geo: &JournalGeometry) -> Result<Closed, JournalError> {
        geo.check(region.len())?;
        let jsb = Superblock { region, geo };
        let epoch = jsb.load_epoch()?.epoch;
        Ok(Closed::of(jsb.load(WordKind::Clean)?, epoch))
    }
}

/// All lanes and slot headers, where they have to come from a disk.
fn begin_to_read(region: &Region, geo: &JournalGeometry) {
    let slots = u64::from(geo.buffers) * geo.slots_per_buffer;
    region.will_need(geo.lane(0), u64::from(geo.buffers) * geo.lane_bytes);
    region.will_need(geo.header(0, 0), slots * SLOT_HEADER_BYTES as u64);
}

fn walk_all(region: &Region, geo: &JournalGeometry, heads: &[u64], rules: Rules) -> Vec<Walk> {
    let walk = |lane: usize| walk_lane(region, geo, lane as u16, heads[lane], rules);
    let bytes = heads.len() as u64 * geo.lane_bytes;
    in_parallel(heads.len(), bytes, walk)
}

/// Bytes that are read sooner than a thread is started.
const ALONE: u64 = 1 << 20;

/// Runs `job` for every number below `n` on the available processors, if there are enough `bytes`
/// to be read; results in order.
fn in_parallel<T: Send>(n: usize, bytes: u64, job: impl Fn(usize) -> T + Sync) -> Vec<T> {
    if bytes <= ALONE {
        return (0..n).map(job).collect();
    }
    let threads = thread::available_parallelism()
        .map_or(1, |p| p.get())
        .min(n)
        .min(8);
    let job = &job;
    let mut parts: Vec<(usize, T)> = thread::scope(|s| {
        let worker = |first: usize| (first..n).step_by(threads).map(|i| (i, job(i))).collect();
        let others: Vec<_> = (1..threads).map(|t| s.spawn(move || worker(t))).collect();
        let mut all: Vec<(usize, T)> = worker(0);
        for handle in others {
            // A panic in a worker is a bug and goes on as one.
            all.extend(
                handle
                    .join()
                    .unwrap_or_else(|p| std::panic::resume_unwind(p)),
            );
        }
        all
    });
    parts.sort_by_key(|(i, _)| *i);
    parts.into_iter().map(|(_, t)| t).collect()
}

impl Scan {
    /// Whether the volume was unmounted with nothing left in the log, nor staged.
    pub fn clean(&self) -> bool {
        self.closed == Closed::Empty
    }

    /// Every replayable record at or below this is unaffected by the damage found in the log.
    pub fn intact_upto(&self) -> u64 {
        let first_bad = self.damage.iter().filter_map(Damage::seq).min();
        let unnumbered = self
            .damage
            .iter()
            .any(|d| matches!(d, Damage::Record { seq: None, .. }));
        match first_bad {
            // A record whose number is illegible may be any that is not there.
            _ if unnumbered => self.first_gap() - 1,
            Some(n) => n.saturating_sub(1),
            None => u64::MAX,
        }
    }

    /// Slot headers that failed their check (or said something else) but for which a record vouches;
    /// digesting that record writes them again. No ordinary crash leaves any: those that the last record of a lane
    /// names are not counted.
    pub fn repairs(&self) -> usize {
        self.rewrite.difference(&self.unsettled).count()
    }

    fn first_gap(&self) -> u64 {
        let mut next = self.digested + 1;
        for r in &self.records {
            if r.seq != next {
                break;
            }
            next += 1;
        }
        next
    }

    /// Merges the lanes by number and counts what is missing.
    fn merge(&mut self, walks: Vec<Walk>, rules: Rules) {
        let lanes = walks.len() as u64;
        for w in walks {
            self.max_seq_seen = self.max_seq_seen.max(w.max_seq);
            let stray = w.stray.map(|h| h.epoch);
            self.stray_epoch = self.stray_epoch.max(stray);
            self.records.extend(w.records);
            self.damage.extend(w.damage);
            for run in &w.unsettled {
                let slots = (run.pos..).take(run.blocks.len());
                (self.unsettled).extend(slots.map(|pos| (run.buffer, pos)));
            }
        }
        self.records.sort_by_key(|r| r.seq);
        let before = self.records.len();
        self.records.dedup_by_key(|r| r.seq);
        let doubled = before != self.records.len();
        let mut missing = Vec::new();
        let mut count = 0;
        let mut expected = rules.digested + 1;
        let end = match rules.mode {
            Durability::Op => self.records.last().map_or(rules.digested, |r| r.seq),
            Durability::Commit => rules.committed,
        };
        for seq in self.records.iter().map(|r| r.seq).chain([end + 1]) {
            if seq > expected {
                missing.push(Damage::Missing {
                    first: expected,
                    last: seq - 1,
                });
                count += seq - expected;
            }
            expected = expected.max(seq + 1);
        }
        // In `op` each lane can have had one append in progress, whose number is a hole.
        if rules.mode == Durability::Commit || count > lanes || doubled {
            self.damage.extend(missing);
        }
    }

    fn scan_slots(&mut self) {
        let named = self.named_slots();
        let (geo, region) = (self.geo, Arc::clone(&self.region));
        let slots = u64::from(geo.buffers) * geo.slots_per_buffer;
        let headers = geo.header(0, 0);
        let held = region.held(headers..headers + slots * SLOT_HEADER_BYTES as u64);
        let context = SlotContext {
            geo: &geo,
            region: &region,
            named: &named,
            epoch: self.epoch,
            digested: self.digested,
            retired: self.retired,
            held: &held,
        };
        // Pieces of equal size, so that one buffer on two processors takes half the time.
        let per_buffer = geo.slots_per_buffer.div_ceil(PIECE);
        let pieces = u64::from(geo.buffers) * per_buffer;
        let bytes = slots * SLOT_HEADER_BYTES as u64;
        let parts = in_parallel(pieces as usize, bytes, |i| {
            let i = i as u64;
            context.piece((i / per_buffer) as u16, i % per_buffer * PIECE)
        });

        for part in parts {
            self.max_seq_seen = self.max_seq_seen.max(part.max_seq);
            self.live.extend(part.live);
            for d in part.damage {
                join(&mut self.damage, d);
            }
            self.rewrite.extend(part.rewrite);
            self.above.extend(part.above);
        }
    }

    /// What the replayable records say of slots, by buffer and index.
    fn named_slots(&mut self) -> FxHashMap<(u16, u64), Named> {
        let mut named = FxHashMap::default();
        for r in &self.records {
            for run in &r.runs {
                let buffer = run.buffer;
                for (pos, &(lbn, crc)) in (run.pos..).zip(&run.blocks) {
                    let index = pos % self.geo.slots_per_buffer;
                    if u32::from(buffer) >= self.geo.buffers {
                        let kind = SlotDamage::NoSuchBuffer;
                        self.damage.push(Damage::Slot {
                            buffer,
                            index,
                            kind,
                        });
                        continue;
                    }
                    let n = Named {
                        pos,
                        stage_id: run.stage_id,
                        lbn,
                        crc,
                        seq: r.seq,
                    };
                    if named.insert((buffer, index), n).is_some() {
                        let kind = SlotDamage::NamedTwice;
                        self.damage.push(Damage::Slot {
                            buffer,
                            index,
                            kind,
                        });
                    }
                }
            }
        }
        named
    }

    /// Flushes what has been read and will be acted on. Of slots that is what the last record of a lane names: any
    /// other record was followed by one that was written after its slots were settled, and a committed word at or
    /// below digested_seq was settled before digested_seq.
    fn flush_read(&self, heads: &[u64]) {
        self.region.flush(self.geo.jsb_off, JSB_BYTES as u64);
        for &(buffer, pos) in &self.unsettled {
            let index = pos % self.geo.slots_per_buffer;
            let header = self.geo.header(buffer, index);
            self.region.flush(header, SLOT_HEADER_BYTES as u64);
            let payload = self.geo.payload(buffer, index);
            self.region.flush(payload, BLOCK as u64);
        }
        for (lane, (&head, &end)) in heads.iter().zip(&self.lane_ends).enumerate() {
            let (base, ring) = (self.geo.lane(lane), self.geo.lane_bytes);
            let first = (end - head).min(ring - head % ring);
            self.region.flush(base + head % ring, first);
            self.region.flush(base, end - head - first);
        }
    }
}

/// Adds damage to a list; slots without anything that follow each other become one.
fn join(list: &mut Vec<Damage>, d: Damage) {
    if let Damage::Unwritten {
        buffer,
        first,
        count,
    } = d
        && let Some(Damage::Unwritten {
            buffer: before,
            first: from,
            count: so_far,
        }) = list.last_mut()
        && (*before, *from + *so_far) == (buffer, first)
    {
        *so_far += count;
    } else {
        list.push(d);
    }
}
