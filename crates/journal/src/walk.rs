//! Walking one lane after a crash.

use crate::believe::is_there;
use crate::error::Damage;
use crate::geometry::JournalGeometry;
use crate::{Durability, Record};
use quayfs_layout::record::{
    RECORD_HEADER_BYTES, RecordHeader, RecordKind, SlotRun, body_crc as crc_of_body,
};
use quayfs_layout::{BLOCK, Guard, LINE};
use quayfs_pmem::Region;
use std::ops::Range;

/// Which records a walk is after.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    pub(crate) epoch: u32,
    pub(crate) mode: Durability,
    /// D: records at or below it are history.
    pub(crate) digested: u64,
    /// Records above it are not committed: `commit_ts`, in `op` no limit.
    pub(crate) committed: u64,
}

/// What a lane holds.
#[derive(Debug, Default)]
pub(crate) struct Walk {
    /// Replayable records in order.
    pub(crate) records: Vec<Record>,
    /// What the last record names, if nothing vouches for it but its content.
    pub(crate) unsettled: Vec<SlotRun>,
    /// Byte position after everything that was found valid.
    pub(crate) end: u64,
    /// Highest number in any valid header, strays included.
    pub(crate) max_seq: u64,
    /// The stray of the highest epoch, if there are any ([`RecordHeader::stray`]).
    pub(crate) stray: Option<RecordHeader>,
    /// Byte positions of what is left of headers ([`RecordHeader::torn`]).
    pub(crate) torn: Vec<u64>,
    pub(crate) damage: Vec<Damage>,
}

/// Bytes of a lane that are read at once where each line is looked at.
const PIECE: u64 = 4 * BLOCK as u64;

struct Walker<'a> {
    region: &'a Region,
    geo: &'a JournalGeometry,
    lane: u16,
    rules: Rules,
    /// One lap after the head.
    limit: u64,
    /// Which parts of the lane, from its beginning on, hold anything.
    held: Vec<Range<u64>>,
}

/// Walks `lane` from its stored head.
///
/// The end of the log is where no valid header follows. In `op` every record was durable before
/// anything behind it in the lane was written, so something invalid with something valid behind it is
/// damage (ordering 1), unless that shows it to be at or below D: numbers grow along a lane. The fence
/// that makes a record durable does the same for what it stages, so the last one of a lane counts only if that
/// is there. In `commit` mode anything above `commit_ts` may be there or not, and what is missing below it is
/// found by counting numbers over all lanes; then this only looks further.
pub(crate) fn walk_lane(
    region: &Region,
    geo: &JournalGeometry,
    lane: u16,
    head: u64,
    rules: Rules,
) -> Walk {
    let walker = Walker {
        region,
        geo,
        lane,
        rules,
        limit: head + geo.lane_bytes,
        held: held(region, geo, lane),
    };
    let mut walk = Walk {
        end: head,
        ..Walk::default()
    };
    let mut invalid = Vec::new();
    let (mut last_seq, mut last_record) = (0, head);
    let mut at = head;
    while at < walker.limit {
        match walker.examine(at, last_seq) {
            Found::Valid { header: h, record } => {
                if h.seq > rules.digested {
                    walk.damage.append(&mut invalid);
                } else {
                    invalid.clear();
                }
                last_seq = h.seq;
                walk.max_seq = walk.max_seq.max(h.seq);
                at += h.total_bytes();
                walk.end = at;
                if let Some(record) = record {
                    walk.records.push(record);
                    last_record = at;
                }
            }
            Found::Invalid { seq, resume } => {
                walk.max_seq = walk.max_seq.max(seq.unwrap_or(0));
                walker.note(&mut walk, at);
                // In `commit` mode there is no telling what an illegible record was.
                if rules.mode == Durability::Op || seq.is_some_and(|s| s <= rules.committed) {
                    invalid.push(Damage::Record { lane, pos: at, seq });
                }
                match walker.resync(resume, &mut walk) {
                    Some(next) => at = next,
                    None => break,
                }
            }
        }
    }
    // Anything valid behind a record, a filler too, was written after its fence.
    if rules.mode == Durability::Op && last_record == walk.end {
        walker.judge_last(&mut walk);
    }
    walk.damage.extend(walk.stray.map(|h| Damage::Epoch {
        lane,
        pos: h.pos,
        seq: h.seq,
        epoch: h.epoch,
        current: rules.epoch,
    }));
    walk
}

fn held(region: &Region, geo: &JournalGeometry, lane: u16) -> Vec<Range<u64>> {
    let base = geo.lane(lane.into());
    let parts = region.held(base..base + geo.lane_bytes).into_iter();
    parts.map(|r| r.start - base..r.end - base).collect()
}

enum Found {
    /// A valid header; and the record if it is to be replayed.
    Valid {
        header: RecordHeader,
        record: Option<Record>,
    },
    /// Anything else at what should be a record boundary.
    Invalid {
        /// If the header is legible.
        seq: Option<u64>,
        /// Where to look for something valid.
        resume: u64,
    },
}

impl Walker<'_> {
    fn examine(&self, pos: u64, last_seq: u64) -> Found {
        let line = LINE as u64;
        let room = (self.geo.lane_bytes - pos % self.geo.lane_bytes).min(self.limit - pos);
        let Some(header) = self.header(pos).filter(|h| h.total_bytes() <= room) else {
            return Found::Invalid {
                seq: None,
                resume: pos + line,
            };
        };
        let replayable = self.rules.digested < header.seq && header.seq <= self.rules.committed;
        if header.kind == RecordKind::Filler || !replayable {
            return Found::Valid {
                header,
                record: None,
            };
        }
        match self.record(&header).filter(|_| header.seq > last_seq) {
            Some(record) => Found::Valid {
                header,
                record: Some(record),
            },
            None => {
                // Trust the length if something valid is there, or look at every line from here.
                let next = pos + header.total_bytes();
                let resume = if self.header(next).is_some() {
                    next
                } else {
                    pos + line
                };
                Found::Invalid {
                    seq: Some(header.seq),
                    resume,
                }
            }
        }
    }

    fn line(&self, pos: u64) -> [u8; RECORD_HEADER_BYTES] {
        let mut b = [0; RECORD_HEADER_BYTES];
        self.region.read(
            self.geo.lane(self.lane.into()) + pos % self.geo.lane_bytes,
            &mut b,
        );
        b
    }

    fn header(&self, pos: u64) -> Option<RecordHeader> {
        self.decode(&self.line(pos), pos)
    }

    fn decode(&self, b: &[u8; RECORD_HEADER_BYTES], pos: u64) -> Option<RecordHeader> {
        let Rules { epoch, .. } = self.rules;
        RecordHeader::decode(b, self.geo.volume_salt, self.lane, epoch, pos)
    }

    /// Of whatever lap: a later epoch may get to that position, and believe it.
    fn stray(&self, b: &[u8; RECORD_HEADER_BYTES], pos: u64) -> Option<RecordHeader> {
        let Rules {
            epoch, digested, ..
        } = self.rules;
        let ring = self.geo.lane_bytes;
        RecordHeader::stray(b, self.geo.volume_salt, self.lane, epoch, digested)
            .filter(|h| h.pos % ring == pos % ring)
    }

    fn record(&self, h: &RecordHeader) -> Option<Record> {
        let at = (h.pos + RECORD_HEADER_BYTES as u64) % self.geo.lane_bytes;
        let mut body = match h.body_len {
            0 => Vec::new(),
            n => self
                .region
                .read_vec(self.geo.lane(self.lane.into()) + at, n.into()),
        };
        if Guard::RecordBody.stands() && crc_of_body(&body, self.geo.volume_salt) != h.body_crc {
            return None;
        }
        let runs = SlotRun::decode_table(&body[..h.runs_len as usize])?;
        Some(Record {
            seq: h.seq,
            items: body.split_off(h.runs_len as usize),
            runs,
        })
    }

    /// The last record of the lane has not happened if its payloads are not there: power failed before the fence
    /// that settles both. Its slot headers may be missing as well, and are written again.
    fn judge_last(&self, walk: &mut Walk) {
        let Some(record) = walk.records.last() else {
            return;
        };
        let exists = |run: &&SlotRun| u32::from(run.buffer) < self.geo.buffers;
        let runs: Vec<_> = record.runs.iter().filter(exists).cloned().collect();
        let is_there = |run| is_there(self.region, self.geo, run);
        if Guard::LastPayloads.stands() && !runs.iter().all(is_there) {
            walk.records.pop();
        } else {
            walk.unsettled = runs;
        }
    }

    /// The first position at or after `from` with a valid header. Position and epoch are in its
    /// checksum, so what earlier laps left behind is not one. What is on the way is noted.
    fn resync(&self, from: u64, walk: &mut Walk) -> Option<u64> {
        let mut pos = from;
        while pos < self.limit {
            let (at, ring) = (pos % self.geo.lane_bytes, self.geo.lane_bytes);
            // Where nothing is there are no headers, whole or torn.
            let here = self.held.partition_point(|r| r.end <= at);
            let start = self.held.get(here).map_or(ring, |r| r.start.max(at));
            let start = start / LINE as u64 * LINE as u64;
            if start > at {
                pos += start - at;
                continue;
            }
            let len = PIECE.min(ring - at).min(self.limit - pos);
            let piece = self
                .region
                .read_vec(self.geo.lane(self.lane.into()) + at, len);
            for line in piece.as_chunks().0 {
                if self.decode(line, pos).is_some() {
                    return Some(pos);
                }
                self.note_line(walk, line, pos);
                pos += LINE as u64;
            }
        }
        None
    }

    /// Notes what is at a position without a valid header, if it is of any interest.
    fn note(&self, walk: &mut Walk, pos: u64) {
        self.note_line(walk, &self.line(pos), pos);
    }

    fn note_line(&self, walk: &mut Walk, b: &[u8; RECORD_HEADER_BYTES], pos: u64) {
        if RecordHeader::torn(b, self.geo.volume_salt, self.rules.epoch) {
            walk.torn.push(pos);
        }
        if let Some(h) = self.stray(b, pos) {
            walk.max_seq = walk.max_seq.max(h.seq);
            if walk.stray.is_none_or(|s| s.epoch < h.epoch) {
                walk.stray = Some(h);
            }
        }
    }
}
