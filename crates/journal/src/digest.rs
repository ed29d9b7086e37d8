//! What digest needs: records in order, committed words, D.

use crate::Record;
use crate::credits::Amount;
use crate::error::JournalError;
use crate::geometry::JournalGeometry;
use crate::journal::Journal;
use crate::lane::Entry;
use quayfs_layout::jsb::{SeqWord, WordKind, committed_salt};
use quayfs_layout::record::{RECORD_HEADER_BYTES, RecordHeader, SlotRun, body_crc};
use quayfs_layout::{Guard, LINE};
use quayfs_pmem::Region;
use std::sync::atomic::Ordering;

impl Journal {
    /// Records with numbers in (`after`, `upto`], in order of number, at least one if there is any,
    /// then as long as they are at most `max_records` and take at most `max_bytes` of their lanes.
    /// `upto` must not exceed [`Journal::digestable`].
    ///
    /// # Errors
    /// [`JournalError::Record`] if one is damaged.
    pub fn read_records(
        &self,
        after: u64,
        upto: u64,
        max_bytes: usize,
        max_records: usize,
    ) -> Result<Vec<Record>, JournalError> {
        let limit = max_records.max(1);
        // Each lane's first `limit` hold the first `limit` of all.
        let mut found: Vec<(Entry, usize)> = Vec::new();
        for (i, buffer) in self.buffers.iter().enumerate() {
            let entries = buffer.lane.lock().range(after, upto, limit);
            found.extend(entries.into_iter().map(|e| (e, i)));
        }
        found.sort_unstable_by_key(|(e, _)| e.seq);
        let mut bytes = 0;
        let mut records = Vec::new();
        for (entry, lane) in found.into_iter().take(limit) {
            bytes += entry.bytes as usize;
            if !records.is_empty() && bytes > max_bytes {
                break;
            }
            // The bytes stay: their space is reused only after D has passed them.
            records.push(self.read_record(lane, entry)?);
        }
        Ok(records)
    }

    fn read_record(&self, lane: usize, entry: Entry) -> Result<Record, JournalError> {
        let off = self.geo.lane(lane) + entry.pos % self.geo.lane_bytes;
        let bytes = self.region.read_vec(off, entry.bytes);
        decode_record(&bytes, &self.geo, lane as u16, self.epoch, entry.pos)
            .filter(|r| r.seq == entry.seq)
            .ok_or(JournalError::Record {
                lane: lane as u16,
                pos: entry.pos,
                seq: entry.seq,
            })
    }

    /// Stores the record's number into the committed words of its slots; flushed, not drained:
    /// [`Journal::set_digested`] does that.
    pub fn mark_committed(&self, record: &Record) {
        for run in &record.runs {
            for pos in run.pos..run.pos + run.blocks.len() as u64 {
                let index = pos % self.geo.slots_per_buffer;
                store_committed(&self.region, &self.geo, run.buffer, index, record.seq);
            }
        }
    }

    /// Every record at or below `seq` has been digested. First drains, so that whatever the calling
    /// thread has stored and flushed is durable before D says so (other threads must have drained
    /// their own), then makes D durable, then returns log space.
    ///
    /// # Errors
    /// [`JournalError::NotDigestable`], [`JournalError::Stopped`], [`JournalError::Pmem`].
    pub fn set_digested(&self, seq: u64) -> Result<(), JournalError> {
        let _one_at_a_time = self.digest_lock.lock();
        if self.stopped.load(Ordering::Acquire) {
            return Err(JournalError::Stopped);
        }
        let (low, high) = (self.digested(), self.digestable());
        // Ordering 8: D never passes the durable commit_ts; ordering 3: nor an unfinished append.
        if !(low..=high).contains(&seq) {
            return Err(JournalError::NotDigestable { seq, low, high });
        }
        if seq == low {
            return Ok(());
        }
        // New pages, their switch and the committed words are durable before D.
        self.drain()?;
        self.jsb().store(WordKind::Digested, seq);
        self.drain()?;
        self.digested.store(seq, Ordering::Release);
        self.release_log(seq)
    }

    /// Ordering 1: D is durable, so the heads may move; each head is durable before the space
    /// behind it can be taken.
    fn release_log(&self, seq: u64) -> Result<(), JournalError> {
        let mut freed = Vec::with_capacity(self.buffers.len());
        for (i, buffer) in self.buffers.iter().enumerate() {
            let mut lane = buffer.lane.lock();
            let (records, bytes) = lane.drop_upto(seq);
            if records > 0 {
                self.jsb().store_head(i, lane.head());
                freed.push((
                    buffer,
                    Amount {
                        slots: 0,
                        lines: bytes / LINE as u64,
                        records,
                    },
                ));
            }
        }
        if !freed.is_empty() {
            self.drain()?;
            for (buffer, amount) in freed {
                buffer.credits.give(amount);
            }
            self.wake();
        }
        Ok(())
    }
}

/// Stores and flushes one committed word.
pub(crate) fn store_committed(
    region: &Region,
    geo: &JournalGeometry,
    buffer: u16,
    index: u64,
    seq: u64,
) {
    let off = geo.committed_word(buffer, index);
    region.store_u64(
        off,
        SeqWord::encode(seq, committed_salt(geo.volume_salt, buffer, index)),
    );
    region.flush(off, 8);
}

/// Decodes a whole record, header and body; `None` if anything about it is wrong.
pub(crate) fn decode_record(
    bytes: &[u8],
    geo: &JournalGeometry,
    lane: u16,
    epoch: u32,
    pos: u64,
) -> Option<Record> {
    let (header, rest) = bytes.split_first_chunk::<RECORD_HEADER_BYTES>()?;
    let h = RecordHeader::decode(header, geo.volume_salt, lane, epoch, pos)?;
    let body = rest.get(..h.body_len as usize)?;
    if Guard::RecordBody.stands() && body_crc(body, geo.volume_salt) != h.body_crc {
        return None;
    }
    let (runs, items) = body.split_at(h.runs_len as usize);
    Some(Record {
        seq: h.seq,
        items: items.to_vec(),
        runs: SlotRun::decode_table(runs)?,
    })
}
