//! Records into lanes: the commit point of an operation.

use crate::acquire::Credit;
use crate::credits::Amount;
use crate::error::JournalError;
use crate::journal::Journal;
use crate::lane::{Entry, Lane};
use crate::stage::Staged;
use crate::{Durability, SlotRef};
use quayfs_layout::jsb::{MAX_BUFFERS, MAX_NUMBER};
use quayfs_layout::record::{
    RECORD_HEADER_BYTES, RecordHeader, RecordKind, RecordSeed, SlotRun, padded_bytes,
};
use quayfs_sync::lock_noting;
use smallvec::SmallVec;
use std::cell::Cell;
use std::sync::atomic::Ordering;

/// A record that has been appended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Appended {
    /// Its sequence number.
    pub seq: u64,
    /// The slots it names, in the order in which they were staged and handed in.
    pub slots: Vec<SlotRef>,
}

/// The blocks of a run that a record names, and the slots they are published under, in order.
pub struct Published<'r> {
    run: &'r SlotRun,
    seq: u64,
    next: usize,
}

impl<'r> Published<'r> {
    fn of(run: &'r SlotRun, seq: u64) -> Self {
        Self { run, seq, next: 0 }
    }

    /// The LBNs alone.
    pub fn lbns(&self) -> impl Iterator<Item = u64> + use<'r> {
        self.run.blocks[self.next..].iter().map(|(lbn, _)| *lbn)
    }
}

impl Iterator for Published<'_> {
    type Item = (u64, SlotRef);

    fn next(&mut self) -> Option<Self::Item> {
        let &(lbn, crc) = self.run.blocks.get(self.next)?;
        let slot = SlotRef {
            buffer: self.run.buffer,
            pos: self.run.pos + self.next as u64,
            seq: self.seq,
            crc,
        };
        self.next += 1;
        Some((lbn, slot))
    }
}

impl Journal {
    /// Appends the record of one operation: its items, and the slots that `staged` proves to be
    /// written. In `op` it is durable on return, in `commit` ordered before everything appended
    /// later. An operation is committed by this and nothing else.
    ///
    /// # Errors
    /// [`JournalError::RecordTooLarge`] (a wrong [`Need`](crate::Need)), [`JournalError::Stopped`],
    /// [`JournalError::Closed`]: no record, the slots are abandoned. [`JournalError::Pmem`]: it is
    /// unknown whether the record is durable, and the journal stops.
    pub fn append<'j>(
        &'j self,
        credit: Credit<'j>,
        staged: Vec<Staged<'j>>,
        items: &[u8],
    ) -> Result<Appended, JournalError> {
        let mut slots = Vec::with_capacity(staged.len());
        let publish = |run: Published<'_>| slots.extend(run.map(|(_, slot)| slot));
        let seq = self.append_with(credit, staged.into(), items, |_| (), publish)?;
        Ok(Appended { seq, slots })
    }

    /// [`Journal::append`] that hands the blocks of each run and their slots to `publish` before the number, which is
    /// the result, counts as complete. A round whose cut covers the record therefore finds its slots
    /// published; done after the append, publishing could come after the slot was retired and reused.
    /// `publish` runs under the lane's lock and must be short. So must `numbered`, which gets the number before any of the
    /// record is written: what it notes is there whenever the record is.
    ///
    /// # Errors
    /// As [`Journal::append`]; `publish` has not been called then.
    pub fn append_with<'j>(
        &'j self,
        mut credit: Credit<'j>,
        staged: SmallVec<[Staged<'j>; 1]>,
        items: &[u8],
        numbered: impl FnOnce(u64),
        publish: impl FnMut(Published<'_>),
    ) -> Result<u64, JournalError> {
        let mut record = encode(&staged, items, self.record_seed);
        let bytes = record.bytes.len() as u64;
        let lines = credit.lines_of(bytes)?;
        let lane_no = usize::from(credit.buffer);
        let _central = self.enter_central();
        let lane = &self.buffers[lane_no].lane;
        let mut lane = lock_noting(lane, || self.counters.count_lane_wait());
        // Stopped or closed since the operation began? From here to the number nothing waits for
        // another thread, and `set_clean` passes through this lock.
        self.check()?;
        if self.bounds.last_taken() >= MAX_NUMBER - MAX_BUFFERS as u64 {
            return Err(JournalError::Exhausted);
        }
        // Growth is paid for now: ordering 2, nothing blocks or fails after the number is taken.
        lane.entries.reserve(1);
        self.fill_end(lane_no, &mut lane, bytes)?;

        // Ordering 3: the bound is published, then the number taken.
        let seq = self.bounds.begin(lane_no);
        numbered(seq);
        record.finish(seq, lane.tail, self.epoch, lane_no as u16, self.record_seed);
        if credit.dependent {
            // Before the append ends, which every commit that covers it waits for.
            self.dependent.fetch_max(seq, Ordering::AcqRel);
        }
        let off = self.geo.lane(lane_no) + lane.tail % self.geo.lane_bytes;
        // Whole lines, past the cache: nothing is fetched that is about to be overwritten. Digest reads
        // them thousands of records later.
        self.region.write_nt(off, &record.bytes);
        match self.durability {
            // Ordering 4: durable, with what was staged for it, before any caller is told and before the lane's
            // next record. That is how a scan tells damage from the end of the log (ordering 1), and what is
            // staged and settled from what may be missing.
            Durability::Op => {
                if let Err(e) = self.drain() {
                    // The record may or may not survive. Its bound stays published, so nothing ever
                    // counts on it, and its slots stay in flight, so nothing overwrites them.
                    staged.into_iter().for_each(|mut s| s.appended = true);
                    credit.left = Amount::default();
                    return Err(e);
                }
            }
            // Settled by the drain of the commit that covers it.
            Durability::Commit => self.region.fence(),
        }
        let pos = lane.tail;
        lane.tail += bytes;
        lane.entries.push_back(Entry { seq, pos, bytes });
        lane.last_seq = seq;
        lane.appends += 1;
        lane.append_bytes += bytes;
        self.commit_slots(staged, seq, publish);
        // Ordering 3: cleared when everything is in place, in `op` after the fence.
        self.bounds.finish(lane_no);
        drop(lane);

        credit.left.lines -= lines;
        credit.left.records = 0;
        Ok(seq)
    }

    /// Makes room for `bytes` in one piece. Happens before the number is taken, because it drains.
    fn fill_end(&self, lane_no: usize, lane: &mut Lane, bytes: u64) -> Result<(), JournalError> {
        let filler = lane.filler_before(bytes, self.geo.lane_bytes);
        if filler == 0 {
            return Ok(());
        }
        let header = RecordHeader {
            kind: RecordKind::Filler,
            epoch: self.epoch,
            seq: lane.last_seq,
            pos: lane.tail,
            lane: lane_no as u16,
            body_len: (filler - RECORD_HEADER_BYTES as u64) as u32,
            runs_len: 0,
            body_crc: 0,
        };
        let off = self.geo.lane(lane_no) + lane.tail % self.geo.lane_bytes;
        self.region.write(off, &header.encode(self.geo.volume_salt));
        self.region.flush(off, RECORD_HEADER_BYTES as u64);
        // In `op` a valid record behind an invalid header is damage (ordering 1), so the filler must
        // be durable before the record is written. In `commit` the record's fence covers both.
        if self.durability == Durability::Op {
            self.drain()?;
        }
        lane.tail += filler;
        Ok(())
    }

    fn commit_slots(
        &self,
        staged: SmallVec<[Staged<'_>; 1]>,
        seq: u64,
        mut publish: impl FnMut(Published<'_>),
    ) {
        for mut s in staged {
            publish(Published::of(&s.run, seq));
            let ring = &self.buffer(s.run.buffer).ring;
            for (lbn, slot) in Published::of(&s.run, seq) {
                ring.commit(slot.pos, lbn, slot.crc, seq);
            }
            s.appended = true;
        }
    }

    /// Every number at or below the result has finished its append; in `op` those records are
    /// durable.
    pub fn complete_upto(&self) -> u64 {
        self.bounds.complete_upto()
    }

    /// Up to which number records may be digested: what is complete, in `commit` mode what is
    /// durably committed (ordering 8).
    pub fn digestable(&self) -> u64 {
        match self.durability {
            Durability::Op => self.complete_upto(),
            Durability::Commit => self.commit_ts.load(Ordering::Acquire),
        }
    }
}

/// More memory than this is not kept for the next record.
const RECORD_KEPT: usize = 64 << 10;

thread_local! {
    /// Memory for the next record of this thread.
    static RECORD: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// A record whose header lacks what only the lane lock can tell.
struct Encoded {
    bytes: Vec<u8>,
    body_len: u32,
    runs_len: u32,
    body_crc: u32,
}

fn encode(staged: &[Staged<'_>], items: &[u8], seed: RecordSeed) -> Encoded {
    let runs_len: usize = staged.iter().map(|s| s.run.encoded_bytes()).sum();
    let body_len = runs_len + items.len();
    let mut bytes = RECORD.take();
    bytes.clear();
    bytes.reserve(padded_bytes(body_len));
    bytes.resize(RECORD_HEADER_BYTES, 0);
    for s in staged {
        s.run.encode_into(&mut bytes);
    }
    bytes.extend_from_slice(items);
    let body_crc = seed.body_crc(&bytes[RECORD_HEADER_BYTES..]);
    bytes.resize(padded_bytes(body_len), 0);
    Encoded {
        bytes,
        body_len: body_len as u32,
        runs_len: runs_len as u32,
        body_crc,
    }
}

impl Drop for Encoded {
    fn drop(&mut self) {
        if self.bytes.capacity() <= RECORD_KEPT {
            RECORD.set(std::mem::take(&mut self.bytes));
        }
    }
}

impl Encoded {
    fn finish(&mut self, seq: u64, pos: u64, epoch: u32, lane: u16, seed: RecordSeed) {
        let header = RecordHeader {
            kind: RecordKind::Operation,
            epoch,
            seq,
            pos,
            lane,
            body_len: self.body_len,
            runs_len: self.runs_len,
            body_crc: self.body_crc,
        };
        self.bytes[..RECORD_HEADER_BYTES].copy_from_slice(&header.encode_seeded(seed));
    }
}
