//! Log records: a 64-byte header, then a body padded to 64 bytes.
//!
//! The body is a table of slot runs followed by item bytes that the journal does not understand.
//! Header and body have separate checksums, so that a torn body can be told from the end of the
//! log. Records never wrap: what a record does not fit into at the end of the ring is one *filler*.

use crate::Guard;
use crate::LINE;
use crate::bytes::{get_u16, get_u32, get_u64, put_u16, put_u32, put_u64};
use crate::checksum::{crc32c, crc32c_append};
use crate::slot::POS_END;

/// Bytes of a record header.
pub const RECORD_HEADER_BYTES: usize = LINE;
/// Largest record on media, header and padding included.
pub const MAX_RECORD_BYTES: usize = 256 * 1024;
/// Bytes of a slot run without its per-slot part.
pub const RUN_FIXED_BYTES: usize = 24;
/// Bytes of a slot run per slot: LBN and payload checksum.
pub const RUN_SLOT_BYTES: usize = 12;

const MAGIC: u32 = u32::from_le_bytes(*b"QREC");
const CRC_AT: usize = 60;
const _: () = assert!(CRC_AT + 4 == RECORD_HEADER_BYTES);
const _: () = assert!(MAX_RECORD_BYTES.is_multiple_of(LINE));

/// What a header introduces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum RecordKind {
    /// An operation.
    Operation = 1,
    /// Unused space up to the end of the ring.
    Filler = 2,
}

/// A record header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    /// Operation or filler.
    pub kind: RecordKind,
    /// Log epoch.
    pub epoch: u32,
    /// Sequence number. A filler has that of the record before it in the lane (0: none), so that it
    /// bears witness to that record.
    pub seq: u64,
    /// Monotonic byte position in the lane; the place is this modulo the lane's size.
    pub pos: u64,
    /// Lane that holds the record.
    pub lane: u16,
    /// Bytes of the body without padding.
    pub body_len: u32,
    /// Bytes of the slot-run table at the start of the body.
    pub runs_len: u32,
    /// Checksum of the body ([`body_crc`]).
    pub body_crc: u32,
}

impl RecordHeader {
    /// Bytes from this header to the next one.
    pub fn total_bytes(&self) -> u64 {
        padded_bytes(self.body_len as usize) as u64
    }

    /// The stored form.
    pub fn encode(&self, volume_salt: u64) -> [u8; RECORD_HEADER_BYTES] {
        self.encode_seeded(RecordSeed::new(volume_salt))
    }

    /// [`RecordHeader::encode`] for many headers of one volume.
    pub fn encode_seeded(&self, seed: RecordSeed) -> [u8; RECORD_HEADER_BYTES] {
        let mut b = [0u8; RECORD_HEADER_BYTES];
        put_u32(&mut b, 0, MAGIC);
        put_u32(&mut b, 4, self.epoch);
        put_u64(&mut b, 8, self.seq);
        put_u64(&mut b, 16, self.pos);
        put_u32(&mut b, 24, self.body_len);
        put_u32(&mut b, 28, self.body_crc);
        put_u16(&mut b, 32, self.kind as u16);
        put_u16(&mut b, 34, self.lane);
        put_u32(&mut b, 36, self.runs_len);
        let crc = seed.header_crc(&b);
        put_u32(&mut b, CRC_AT, crc);
        b
    }

    /// The header, or `None` if it is not one of this volume, lane, epoch and position. What an
    /// earlier lap or an earlier life left behind never passes.
    pub fn decode(
        b: &[u8; RECORD_HEADER_BYTES],
        volume_salt: u64,
        lane: u16,
        epoch: u32,
        pos: u64,
    ) -> Option<Self> {
        Self::decode_seeded(b, RecordSeed::new(volume_salt), lane, epoch, pos)
    }

    /// [`RecordHeader::decode`] for many headers of one volume.
    pub fn decode_seeded(
        b: &[u8; RECORD_HEADER_BYTES],
        seed: RecordSeed,
        lane: u16,
        epoch: u32,
        pos: u64,
    ) -> Option<Self> {
        let h = Self::decode_any(b, || seed)?;
        let now = h.epoch == epoch || !Guard::RecordEpoch.stands();
        let here = h.pos == pos && h.lane == lane || !Guard::RecordPlace.stands();
        (now && here).then_some(h)
    }

    /// The header, if it proves that `epoch` is not the epoch of this log: one of this volume and lane
    /// in a later epoch, or in an earlier one with a number above digested_seq. The epoch word is durable before
    /// the first record of its epoch, and before recovery begins a new one it lifts digested_seq to every number seen
    /// and clears what is left of headers ([`RecordHeader::torn`]), so neither is left by a crash.
    pub fn stray(
        b: &[u8; RECORD_HEADER_BYTES],
        volume_salt: u64,
        lane: u16,
        epoch: u32,
        digested: u64,
    ) -> Option<Self> {
        // Cheap and seldom true, unlike the checksum: a scan asks this of every line.
        let (its, seq) = (get_u32(b, 4), get_u64(b, 8));
        if its == epoch || its < epoch && seq <= digested {
            return None;
        }
        Self::decode_any(b, || RecordSeed::new(volume_salt)).filter(|h| h.lane == lane)
    }

    /// Whether this began as a header of `epoch` and is none: what is left of one that was not durable when
    /// power failed. If a later life writes there again, the same operation at the same position, and that
    /// header is torn as well, both together can make up what is missing.
    pub fn torn(b: &[u8; RECORD_HEADER_BYTES], volume_salt: u64, epoch: u32) -> bool {
        get_u32(b, 0) == MAGIC
            && get_u32(b, 4) == epoch
            && get_u32(b, CRC_AT) != RecordSeed::new(volume_salt).header_crc(b)
    }

    fn decode_any(
        b: &[u8; RECORD_HEADER_BYTES],
        seed: impl FnOnce() -> RecordSeed,
    ) -> Option<Self> {
        // The cheap test first: a resynchronising scan asks this of every line.
        let sound = || get_u32(b, CRC_AT) == seed().header_crc(b);
        if get_u32(b, 0) != MAGIC || Guard::RecordHeader.stands() && !sound() {
            return None;
        }
        let kind = match get_u16(b, 32) {
            1 => RecordKind::Operation,
            2 => RecordKind::Filler,
            _ => return None,
        };
        let h = Self {
            kind,
            epoch: get_u32(b, 4),
            seq: get_u64(b, 8),
            pos: get_u64(b, 16),
            body_len: get_u32(b, 24),
            body_crc: get_u32(b, 28),
            lane: get_u16(b, 34),
            runs_len: get_u32(b, 36),
        };
        let fits = h.total_bytes() <= MAX_RECORD_BYTES as u64 || kind == RecordKind::Filler;
        (fits && h.runs_len <= h.body_len).then_some(h)
    }
}

/// Bytes that a record with `body_len` bytes of body takes in its lane.
pub const fn padded_bytes(body_len: usize) -> usize {
    (RECORD_HEADER_BYTES + body_len).next_multiple_of(LINE)
}

/// Checksum of a body.
pub fn body_crc(body: &[u8], volume_salt: u64) -> u32 {
    RecordSeed::new(volume_salt).body_crc(body)
}

/// What all records of a volume have in common in their checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordSeed(u32);

impl RecordSeed {
    /// The seed of the volume with `volume_salt`.
    pub fn new(volume_salt: u64) -> Self {
        Self(crc32c(&volume_salt.to_le_bytes()))
    }

    /// [`body_crc`] for many bodies of one volume.
    pub fn body_crc(self, body: &[u8]) -> u32 {
        crc32c_append(self.0, body)
    }

    fn header_crc(self, b: &[u8; RECORD_HEADER_BYTES]) -> u32 {
        crc32c_append(self.0, &b[..CRC_AT])
    }
}

/// Slots that one staging filled: consecutive ring positions of one buffer. With it a record vouches
/// for its slots, and a reader need not know what the items mean.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotRun {
    /// Staging buffer.
    pub buffer: u16,
    /// Ring position of the first slot; the others follow it.
    pub pos: u64,
    /// Identity of the staging, as in the slot headers.
    pub stage_id: u64,
    /// Logical block and payload checksum of each slot. The blocks need not be consecutive.
    pub blocks: Vec<(u64, u32)>,
}

impl SlotRun {
    /// Bytes of this run in a body.
    pub fn encoded_bytes(&self) -> usize {
        RUN_FIXED_BYTES + (self.blocks.len() * RUN_SLOT_BYTES).next_multiple_of(8)
    }

    /// Appends the stored form to `out`. A run has at most 65535 slots.
    pub fn encode_into(&self, out: &mut Vec<u8>) {
        let n = u16::try_from(self.blocks.len()).expect("a run has at most 65535 slots");
        let end = out.len() + self.encoded_bytes();
        out.extend_from_slice(&self.buffer.to_le_bytes());
        out.extend_from_slice(&n.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&self.pos.to_le_bytes());
        out.extend_from_slice(&self.stage_id.to_le_bytes());
        for (lbn, _) in &self.blocks {
            out.extend_from_slice(&lbn.to_le_bytes());
        }
        for (_, crc) in &self.blocks {
            out.extend_from_slice(&crc.to_le_bytes());
        }
        if out.len() < end {
            out.extend_from_slice(&[0; 4]);
        }
    }

    /// Decodes a whole run table; `None` if it is malformed.
    pub fn decode_table(b: &[u8]) -> Option<Vec<SlotRun>> {
        RunViews(b).map(|run| run.map(RunView::to_run)).collect()
    }
}

/// A slot run where it is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunView<'a> {
    /// As [`SlotRun::buffer`].
    pub buffer: u16,
    /// As [`SlotRun::pos`].
    pub pos: u64,
    /// As [`SlotRun::stage_id`].
    pub stage_id: u64,
    /// How many slots.
    pub slots: usize,
    blocks: &'a [u8],
}

impl RunView<'_> {
    fn to_run(self) -> SlotRun {
        let (lbns, crcs) = self.blocks.split_at(self.slots * 8);
        let block = |i| (get_u64(lbns, i * 8), get_u32(crcs, i * 4));
        SlotRun {
            buffer: self.buffer,
            pos: self.pos,
            stage_id: self.stage_id,
            blocks: (0..self.slots).map(block).collect(),
        }
    }
}

/// Iterates over the runs of an encoded table; yields `None` for the first that is malformed, and ends there.
#[derive(Clone, Debug)]
pub struct RunViews<'a>(pub &'a [u8]);

impl<'a> RunViews<'a> {
    fn split(b: &'a [u8]) -> Option<(RunView<'a>, &'a [u8])> {
        let slots = usize::from(get_u16(b.get(..RUN_FIXED_BYTES)?, 2));
        let len = RUN_FIXED_BYTES + (slots * RUN_SLOT_BYTES).next_multiple_of(8);
        let (run, rest) = b.split_at_checked(len)?;
        let view = RunView {
            buffer: get_u16(run, 0),
            pos: get_u64(run, 8),
            stage_id: get_u64(run, 16),
            slots,
            blocks: &run[RUN_FIXED_BYTES..],
        };
        (view.pos < POS_END).then_some((view, rest))
    }
}

impl<'a> Iterator for RunViews<'a> {
    type Item = Option<RunView<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let (run, rest) = Self::split(self.0).unzip();
        self.0 = rest.unwrap_or_default();
        Some(run)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const H: RecordHeader = RecordHeader {
        kind: RecordKind::Operation,
        epoch: 4,
        seq: 1 << 40,
        pos: 640,
        lane: 3,
        body_len: 100,
        runs_len: 40,
        body_crc: 7,
    };

    #[test]
    fn header_round_trip_and_place() {
        let b = H.encode(5);
        assert_eq!(RecordHeader::decode(&b, 5, 3, 4, 640), Some(H));
        assert_eq!(H.total_bytes(), 192);
        assert_eq!(RecordHeader::decode(&b, 6, 3, 4, 640), None, "volume");
        assert_eq!(RecordHeader::decode(&b, 5, 2, 4, 640), None, "lane");
        assert_eq!(RecordHeader::decode(&b, 5, 3, 5, 640), None, "epoch");
        assert_eq!(RecordHeader::decode(&b, 5, 3, 4, 704), None, "position");
    }

    #[test]
    fn what_no_crash_leaves_of_another_epoch_is_a_stray() {
        let b = H.encode(5);
        let stray = |salt, lane, epoch, digested| {
            RecordHeader::stray(&b, salt, lane, epoch, digested).is_some()
        };
        assert!(!stray(5, 3, 4, 0), "this epoch");
        for epoch in [0, 1, 3] {
            assert!(
                stray(5, 3, epoch, 0) && stray(5, 3, epoch, H.seq),
                "{epoch}"
            );
        }
        for epoch in [5, u32::MAX] {
            assert!(stray(5, 3, epoch, H.seq - 1), "{epoch}: never digested");
            assert!(!stray(5, 3, epoch, H.seq), "{epoch}: history");
        }
        assert!(!stray(6, 3, 3, 0), "volume");
        assert!(!stray(5, 2, 3, 0), "lane");
    }

    #[test]
    fn every_single_bit_flip_invalidates_a_header() {
        let b = H.encode(5);
        for bit in 0..512 {
            let mut c = b;
            c[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(RecordHeader::decode(&c, 5, 3, 4, 640), None, "bit {bit}");
        }
    }

    #[test]
    fn impossible_lengths_are_rejected() {
        let long = RecordHeader {
            body_len: MAX_RECORD_BYTES as u32,
            ..H
        };
        assert_eq!(RecordHeader::decode(&long.encode(5), 5, 3, 4, 640), None);
        let runs = RecordHeader { runs_len: 101, ..H };
        assert_eq!(RecordHeader::decode(&runs.encode(5), 5, 3, 4, 640), None);
    }

    #[test]
    fn runs_at_positions_that_no_ring_reaches_are_refused() {
        for (pos, good) in [(POS_END - 1, true), (POS_END, false), (u64::MAX, false)] {
            let mut b = Vec::new();
            SlotRun {
                buffer: 0,
                pos,
                stage_id: 1,
                blocks: vec![(1, 2)],
            }
            .encode_into(&mut b);
            assert_eq!(SlotRun::decode_table(&b).is_some(), good, "{pos}");
        }
    }

    #[test]
    fn runs_round_trip() {
        let runs: Vec<SlotRun> = (0..5u64)
            .map(|n| SlotRun {
                buffer: n as u16,
                pos: n << 33,
                stage_id: !n,
                blocks: (0..n).map(|i| (i * 1000, i as u32)).collect(),
            })
            .collect();
        let mut b = Vec::new();
        for r in &runs {
            let before = b.len();
            r.encode_into(&mut b);
            assert_eq!(b.len() - before, r.encoded_bytes());
        }
        assert_eq!(SlotRun::decode_table(&b), Some(runs));
        for cut in 1..RUN_FIXED_BYTES {
            assert_eq!(
                SlotRun::decode_table(&b[..b.len() - cut]),
                None,
                "cut {cut}"
            );
        }
    }
}
