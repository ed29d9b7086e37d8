//! What digest needs: records in order, committed words, digested_seq.

use crate::Record;
use crate::credits::Amount;
use crate::error::JournalError;
use crate::geometry::JournalGeometry;
use crate::journal::Journal;
use crate::lane::Entry;
use quayfs_layout::jsb::{SeqWord, WordKind, committed_salt};
use quayfs_layout::record::{RECORD_HEADER_BYTES, RecordHeader, RunView, RunViews, SlotRun};
use quayfs_layout::{Guard, LINE};
use quayfs_pmem::Region;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// Entries of a lane that a [`Reader`] takes at once: its lock is held for as long as that takes.
const AHEAD: usize = 128;

/// Records as read back from their lanes, in order of number, their bytes side by side. Cleared, it keeps its
/// memory.
#[derive(Debug, Default)]
pub struct Records {
    bytes: Vec<u8>,
    used: usize,
    places: Vec<Place>,
}

/// Where a record lies among the bytes of its fellows.
#[derive(Clone, Debug)]
struct Place {
    seq: u64,
    runs: Range<usize>,
    items_end: usize,
}

/// One of [`Records`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordRef<'a> {
    /// Its sequence number.
    pub seq: u64,
    /// What [`Journal::append`] was given.
    pub items: &'a [u8],
    /// The slots it names, a table that has been found sound.
    runs: &'a [u8],
}

impl<'a> RecordRef<'a> {
    /// The slots it names.
    pub fn runs(self) -> impl Iterator<Item = RunView<'a>> {
        RunViews(self.runs).flatten()
    }

    /// A copy.
    pub fn to_record(self) -> Record {
        Record {
            seq: self.seq,
            items: self.items.to_vec(),
            runs: SlotRun::decode_table(self.runs).unwrap_or_default(),
        }
    }
}

impl Records {
    /// How many.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Bytes that they take in their lanes, without padding.
    pub fn bytes(&self) -> usize {
        self.used
    }

    /// The `i`-th. Panics if there are fewer.
    pub fn get(&self, i: usize) -> RecordRef<'_> {
        let Place {
            seq,
            runs,
            items_end,
        } = &self.places[i];
        RecordRef {
            seq: *seq,
            items: &self.bytes[runs.end..*items_end],
            runs: &self.bytes[runs.clone()],
        }
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = RecordRef<'_>> {
        (0..self.len()).map(|i| self.get(i))
    }

    /// Number of the last one.
    pub fn last_seq(&self) -> Option<u64> {
        self.places.last().map(|p| p.seq)
    }

    /// Forgets them.
    pub fn clear(&mut self) {
        self.used = 0;
        self.places.clear();
    }

    /// Reads a whole record, header and body; whether nothing is wrong with it.
    fn read(&mut self, journal: &Journal, lane: usize, entry: Entry) -> bool {
        let off = journal.geo.lane(lane) + entry.pos % journal.geo.lane_bytes;
        let (from, end) = (self.used, self.used + entry.bytes as usize);
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        let bytes = &mut self.bytes[from..end];
        journal.region.read(off, bytes);
        let Some((h, runs)) = check_record(bytes, journal, lane as u16, entry) else {
            return false;
        };
        let body = from + RECORD_HEADER_BYTES;
        self.used = body + h.body_len as usize;
        self.places.push(Place {
            seq: h.seq,
            runs: body..body + runs,
            items_end: self.used,
        });
        true
    }
}

/// Reads the records of all lanes in order of number. See [`Journal::reader`].
pub struct Reader<'j> {
    journal: &'j Journal,
    upto: u64,
    lanes: Vec<Ahead>,
}

/// The next records of a lane.
struct Ahead {
    entries: Vec<Entry>,
    /// How many of them have been read.
    at: usize,
    /// Number behind which the next ones are.
    after: u64,
}

impl Reader<'_> {
    /// The lane with the next record.
    fn next(&mut self) -> Option<(usize, Entry)> {
        let mut least: Option<(usize, Entry)> = None;
        for (i, (a, buffer)) in self.lanes.iter_mut().zip(&self.journal.buffers).enumerate() {
            if a.at == a.entries.len() && a.after < self.upto {
                a.at = 0;
                (buffer.lane.lock()).range_into(a.after, self.upto, AHEAD, &mut a.entries);
                // What is missing there comes with numbers behind the last one.
                let more = a.entries.len() == AHEAD;
                let last = a.entries.last().filter(|_| more);
                a.after = last.map_or(self.upto, |e| e.seq);
            }
            if let Some(e) = a.entries.get(a.at)
                && least.is_none_or(|(_, l)| e.seq < l.seq)
            {
                least = Some((i, *e));
            }
        }
        least
    }

    /// Adds the next records to `out`, at least one if there is any, then as long as they are at most
    /// `max_records` and take at most `max_bytes` of their lanes. Returns how many there were.
    ///
    /// # Errors
    /// [`JournalError::Record`] if one is damaged.
    pub fn read(
        &mut self,
        max_bytes: usize,
        max_records: usize,
        out: &mut Records,
    ) -> Result<usize, JournalError> {
        let (mut bytes, mut records) = (0, 0);
        while records < max_records.max(1) {
            let Some((lane, entry)) = self.next() else {
                break;
            };
            bytes += entry.bytes as usize;
            if records > 0 && bytes > max_bytes {
                break;
            }
            // The bytes stay: their space is reused only after digested_seq has passed them.
            if !out.read(self.journal, lane, entry) {
                return Err(JournalError::Record {
                    lane: lane as u16,
                    pos: entry.pos,
                    seq: entry.seq,
                });
            }
            self.lanes[lane].at += 1;
            records += 1;
        }
        Ok(records)
    }
}

impl Journal {
    /// Reads records with numbers in (`after`, `upto`], in order of number. `upto` must not exceed
    /// [`Journal::digestable`], and digested_seq must not pass a record that is still to be read.
    pub fn reader(&self, after: u64, upto: u64) -> Reader<'_> {
        let ahead = |_| Ahead {
            entries: Vec::new(),
            at: 0,
            after,
        };
        Reader {
            journal: self,
            upto,
            lanes: self.buffers.iter().map(ahead).collect(),
        }
    }

    /// The first records of a [`Journal::reader`].
    ///
    /// # Errors
    /// As [`Reader::read`].
    pub fn read_records(
        &self,
        after: u64,
        upto: u64,
        max_bytes: usize,
        max_records: usize,
    ) -> Result<Records, JournalError> {
        let mut records = Records::default();
        self.reader(after, upto)
            .read(max_bytes, max_records, &mut records)?;
        Ok(records)
    }

    /// Stores the record's number into the committed words of its slots; flushed, not drained:
    /// [`Journal::set_digested`] does that.
    pub fn mark_committed(&self, record: RecordRef<'_>) {
        for run in record.runs() {
            for pos in run.pos..run.pos + run.slots as u64 {
                let index = pos % self.geo.slots_per_buffer;
                store_committed(&self.region, &self.geo, run.buffer, index, record.seq);
            }
        }
    }

    /// Every record at or below `seq` has been digested. First drains, so that whatever the calling
    /// thread has stored and flushed is durable before digested_seq says so (other threads must have drained
    /// their own), then makes digested_seq durable, then returns log space.
    ///
    /// # Errors
    /// [`JournalError::NotDigestable`], [`JournalError::Stopped`], [`JournalError::Pmem`].
    pub fn set_digested(&self, seq: u64) -> Result<(), JournalError> {
        let _one_at_a_time = self.digest_lock.lock();
        if self.stopped.load(Ordering::Acquire) {
            return Err(JournalError::Stopped);
        }
        let (low, high) = (self.digested(), self.digestable());
        // Ordering 8: digested_seq never passes the durable commit_ts; ordering 3: nor an unfinished append.
        if !(low..=high).contains(&seq) {
            return Err(JournalError::NotDigestable { seq, low, high });
        }
        if seq == low {
            return Ok(());
        }
        // New pages, their switch and the committed words are durable before digested_seq.
        self.drain()?;
        self.jsb().store(WordKind::Digested, seq);
        self.drain()?;
        self.digested.store(seq, Ordering::Release);
        self.release_log(seq)
    }

    /// Ordering 1: digested_seq is durable, so the heads may move; each head is durable before the space
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

/// Header of a whole record, and bytes of its run table; `None` if anything about it is wrong.
fn check_record(
    bytes: &[u8],
    journal: &Journal,
    lane: u16,
    entry: Entry,
) -> Option<(RecordHeader, usize)> {
    let (header, rest) = bytes.split_first_chunk::<RECORD_HEADER_BYTES>()?;
    let seed = journal.record_seed;
    let h = RecordHeader::decode_seeded(header, seed, lane, journal.epoch, entry.pos)?;
    let body = rest.get(..h.body_len as usize)?;
    if Guard::RecordBody.stands() && seed.body_crc(body) != h.body_crc {
        return None;
    }
    let runs = h.runs_len as usize;
    let sound = RunViews(&body[..runs]).all(|run| run.is_some());
    (sound && h.seq == entry.seq).then_some((h, runs))
}
