//! Walking one lane after a crash.

use crate::error::Damage;
use crate::geometry::JournalGeometry;
use crate::{Durability, Record};
use quayfs_layout::LINE;
use quayfs_layout::record::{
    RECORD_HEADER_BYTES, RecordHeader, RecordKind, SlotRun, body_crc as crc_of_body,
};
use quayfs_pmem::Region;

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
    /// Byte position after everything that was found valid.
    pub(crate) end: u64,
    /// Highest number in any valid header.
    pub(crate) max_seq: u64,
    pub(crate) damage: Vec<Damage>,
}

struct Walker<'a> {
    region: &'a Region,
    geo: &'a JournalGeometry,
    lane: u16,
    rules: Rules,
}

/// Walks `lane` from its stored head.
///
/// The end of the log is where no valid header follows. In `op` every record was durable before its
/// successor in the lane was written, so something invalid with something valid behind it is damage
/// (ordering 1). In `commit` mode anything above `commit_ts` may be there or not, and what is
/// missing below it is found by counting numbers over all lanes; then this only looks further.
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
    };
    let mut walk = Walk {
        end: head,
        ..Walk::default()
    };
    let limit = head + geo.lane_bytes;
    let mut pos = head;
    let mut last_seq = 0;
    while pos < limit {
        let next = match walker.step(pos, limit, &mut last_seq, &mut walk) {
            Ok(next) => next,
            Err(bad) => match walker.resync(bad.resume, limit) {
                Some(next) => {
                    if bad.matters(rules) {
                        walk.damage.push(Damage::Record {
                            lane,
                            pos,
                            seq: bad.seq,
                        });
                    }
                    next
                }
                None => break,
            },
        };
        pos = next;
        walk.end = walk.end.max(pos);
    }
    walk
}

/// Something at a record boundary that is not a valid record.
struct Bad {
    seq: Option<u64>,
    /// Where to look for a valid successor.
    resume: u64,
}

impl Bad {
    /// Whether it is damage, given that a valid record follows in the lane.
    fn matters(&self, rules: Rules) -> bool {
        match rules.mode {
            Durability::Op => true,
            // Without a number nobody can say; what is missing is counted over all lanes.
            Durability::Commit => self.seq.is_some_and(|s| s <= rules.committed),
        }
    }
}

impl Walker<'_> {
    /// Looks at the record at `pos` and returns where the next one is.
    fn step(&self, pos: u64, limit: u64, last: &mut u64, walk: &mut Walk) -> Result<u64, Bad> {
        let line = LINE as u64;
        let Some(h) = self.header(pos) else {
            return Err(Bad {
                seq: None,
                resume: pos + line,
            });
        };
        let next = pos + h.total_bytes();
        let room = self.geo.lane_bytes - pos % self.geo.lane_bytes;
        if h.total_bytes() > room || next > limit {
            return Err(Bad {
                seq: None,
                resume: pos + line,
            });
        }
        if h.kind == RecordKind::Filler {
            return Ok(next);
        }
        walk.max_seq = walk.max_seq.max(h.seq);
        if h.seq <= self.rules.digested {
            return Ok(next);
        }
        let record = self.record(&h).filter(|_| h.seq > *last);
        *last = h.seq;
        match record {
            // Above the committed number it only counts as seen.
            _ if h.seq > self.rules.committed => Ok(next),
            Some(record) => {
                walk.records.push(record);
                Ok(next)
            }
            // Trust the length if something valid is there, or look at every line from here.
            None => {
                let resume = if self.header(next).is_some() {
                    next
                } else {
                    pos + line
                };
                Err(Bad {
                    seq: Some(h.seq),
                    resume,
                })
            }
        }
    }

    fn header(&self, pos: u64) -> Option<RecordHeader> {
        let mut b = [0; RECORD_HEADER_BYTES];
        self.region.read(
            self.geo.lane(self.lane.into()) + pos % self.geo.lane_bytes,
            &mut b,
        );
        RecordHeader::decode(&b, self.geo.volume_salt, self.lane, self.rules.epoch, pos)
    }

    fn record(&self, h: &RecordHeader) -> Option<Record> {
        let at = (h.pos + RECORD_HEADER_BYTES as u64) % self.geo.lane_bytes;
        let mut body = match h.body_len {
            0 => Vec::new(),
            n => self
                .region
                .read_vec(self.geo.lane(self.lane.into()) + at, n.into()),
        };
        if crc_of_body(&body, self.geo.volume_salt) != h.body_crc {
            return None;
        }
        let runs = SlotRun::decode_table(&body[..h.runs_len as usize])?;
        Some(Record {
            seq: h.seq,
            items: body.split_off(h.runs_len as usize),
            runs,
        })
    }

    /// The first position at or after `from` with a valid header. Position and epoch are in its
    /// checksum, so what earlier laps left behind is not one.
    fn resync(&self, from: u64, limit: u64) -> Option<u64> {
        (from..limit)
            .step_by(LINE)
            .find(|&pos| self.header(pos).is_some())
    }
}
