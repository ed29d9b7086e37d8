//! The batch log of a region on a disk: what a commit writes, in one piece.
//!
//! A region's sectors lie scattered, and each of them would be a request of its own. A *batch* has the new content of some
//! of them one behind the other, with a head that says which they are. The log has a head in two copies, and two halves
//! that are filled by turns. What a half has counts until the log's head says that its *lap* is retired: that all of it is
//! where it belongs.

use crate::bytes::{get_u16, get_u32, get_u64, put_u16, put_u32, put_u64};
use crate::checksum::{crc32c, crc32c_append};
use std::ops::Range;

/// Bytes that a disk writes in full or not at all.
pub const SECTOR: usize = 512;
/// Offsets of the two copies of the log's head, from the start of the log.
pub const HEADS: [u64; 2] = [0, 4096];
/// Where the first half begins, from the start of the log.
pub const HALVES: u64 = 8192;
/// Shortest batch log, in bytes.
pub const BATCH_LOG_MIN: u64 = HALVES + 2 * 128 * 1024;

const LOG_MAGIC: [u8; 8] = *b"QUAYFSBL";
const LOG_CRC: usize = 40;

const MAGIC: u32 = u32::from_le_bytes(*b"QFSB");
const OFF_CRC: usize = 4;
const OFF_EXTENTS: usize = 48;
const EXTENT: usize = 8;
/// Longest batch log, in bytes.
pub const BATCH_LOG_MAX: u64 = 64 << 20;
/// Longest batch, in bytes.
pub const BATCH_MAX: usize = 512 * 1024;
/// Most pieces of the region that a batch names.
pub const EXTENTS_MAX: usize = 4096;
/// Most sectors of one piece.
const PIECE_MAX: u64 = (1 << 16) - 1;

/// The two halves of a log of `len` bytes, from its start. Both begin and end at multiples of 4096.
pub fn halves(len: u64) -> [Range<u64>; 2] {
    let half = len.saturating_sub(HALVES) / 2 / 4096 * 4096;
    [HALVES..HALVES + half, HALVES + half..HALVES + 2 * half]
}

/// The head of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogHead {
    /// Grows with every head that is written: of two copies the one with more is the newer.
    pub generation: u64,
    /// A random number that the batches of this mount have. No user can know it, and so forge a batch in a file.
    pub life: u64,
    /// Laps up to this one are retired.
    pub retired: u64,
}

impl LogHead {
    /// Encodes one copy.
    pub fn encode(&self, salt: u64) -> [u8; SECTOR] {
        let mut b = [0; SECTOR];
        b[..8].copy_from_slice(&LOG_MAGIC);
        put_u64(&mut b, 8, self.generation);
        put_u64(&mut b, 16, self.life);
        put_u64(&mut b, 24, self.retired);
        let crc = crc32c_append(crc32c(&salt.to_le_bytes()), &b[..LOG_CRC]);
        put_u32(&mut b, LOG_CRC, crc);
        b
    }

    /// Decodes one copy; `None` if it is damaged, or of another volume.
    pub fn decode(b: &[u8], salt: u64) -> Option<Self> {
        let b = b.get(..SECTOR)?;
        let crc = crc32c_append(crc32c(&salt.to_le_bytes()), &b[..LOG_CRC]);
        let generation = get_u64(b, 8);
        let intact = b[..8] == LOG_MAGIC && get_u32(b, LOG_CRC) == crc;
        // There is always a next one.
        (intact && generation < u64::MAX).then(|| Self {
            generation,
            life: get_u64(b, 16),
            retired: get_u64(b, 24),
        })
    }
}

/// Which batch it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchId {
    /// [`LogHead::life`].
    pub life: u64,
    /// How often a half has been begun in this life, this time included; from 1 on.
    pub lap: u64,
    /// Grows from batch to batch, also over laps.
    pub seq: u64,
}

/// Bytes in front of the content of so many pieces.
pub fn head_bytes(pieces: usize) -> usize {
    (OFF_EXTENTS + EXTENT * pieces).next_multiple_of(SECTOR)
}

/// Writes the head of a batch whose content, that of the `pieces` in their order, is in `batch` already, behind
/// [`head_bytes`] of them. Pieces are ranges of bytes in the region and made of whole sectors.
///
/// # Panics
/// If there are more than [`EXTENTS_MAX`] pieces, one has 2^16 sectors or more, or `batch` is longer than [`BATCH_MAX`] or
/// has another length than the pieces and the head.
pub fn seal(batch: &mut [u8], id: BatchId, pieces: &[Range<u64>], salt: u64) {
    let head = head_bytes(pieces.len());
    let content: u64 = pieces.iter().map(|p| p.end - p.start).sum();
    assert!(pieces.len() <= EXTENTS_MAX && batch.len() <= BATCH_MAX);
    assert_eq!(batch.len() as u64, head as u64 + content);
    batch[..head].fill(0);
    put_u32(batch, 0, MAGIC);
    put_u64(batch, 8, id.life);
    put_u64(batch, 16, id.lap);
    put_u64(batch, 24, id.seq);
    put_u16(batch, 32, pieces.len() as u16);
    put_u32(batch, 36, (batch.len() / SECTOR) as u32);
    for (i, piece) in pieces.iter().enumerate() {
        let (first, sectors) = (
            piece.start / SECTOR as u64,
            (piece.end - piece.start) / SECTOR as u64,
        );
        assert!(sectors <= PIECE_MAX && first < 1 << 48);
        put_u64(batch, OFF_EXTENTS + EXTENT * i, first | sectors << 48);
    }
    let crc = checksum(batch, salt);
    put_u32(batch, OFF_CRC, crc);
}

fn checksum(batch: &[u8], salt: u64) -> u32 {
    let crc = crc32c_append(crc32c(&salt.to_le_bytes()), &batch[..OFF_CRC]);
    crc32c_append(crc, &batch[OFF_CRC + 4..])
}

/// A batch that is whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch<'a> {
    /// Which it is.
    pub id: BatchId,
    /// Pieces of the region, by their first byte, with what they are to have.
    pub pieces: Vec<(u64, &'a [u8])>,
    /// Its length in bytes.
    pub len: usize,
}

impl Batch<'_> {
    /// The batch that begins where `b` does, if a whole one of that life does. Its pieces can be anywhere.
    pub fn decode(b: &[u8], life: u64, salt: u64) -> Option<Batch<'_>> {
        if b.len() < SECTOR || get_u32(b, 0) != MAGIC || get_u64(b, 8) != life {
            return None;
        }
        let (count, len) = (
            usize::from(get_u16(b, 32)),
            (get_u32(b, 36) as usize).checked_mul(SECTOR)?,
        );
        let head = head_bytes(count);
        if count > EXTENTS_MAX || len < head || len > BATCH_MAX {
            return None;
        }
        let b = b.get(..len)?;
        if checksum(b, salt) != get_u32(b, OFF_CRC) {
            return None;
        }
        let mut pieces = Vec::with_capacity(count);
        let mut rest = &b[head..];
        for i in 0..count {
            let word = get_u64(b, OFF_EXTENTS + EXTENT * i);
            let bytes = (word >> 48) as usize * SECTOR;
            pieces.push(((word & ((1 << 48) - 1)) * SECTOR as u64, rest.get(..bytes)?));
            rest = &rest[bytes..];
        }
        let id = BatchId {
            life,
            lap: get_u64(b, 16),
            seq: get_u64(b, 24),
        };
        rest.is_empty().then_some(Batch { id, pieces, len })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn made(id: BatchId, pieces: &[Range<u64>], salt: u64) -> Vec<u8> {
        let content: u64 = pieces.iter().map(|p| p.end - p.start).sum();
        let head = head_bytes(pieces.len());
        let mut batch: Vec<u8> = (0..head + content as usize).map(|i| i as u8).collect();
        seal(&mut batch, id, pieces, salt);
        batch
    }

    proptest! {
        #[test]
        fn a_batch_comes_back_as_it_was(
            places in prop::collection::vec((0u64..1 << 30, 0u64..12), 0..80),
            (life, lap, seq, salt) in any::<(u64, u64, u64, u64)>(),
            behind in 0usize..2000,
        ) {
            let sector = SECTOR as u64;
            let pieces: Vec<Range<u64>> =
                places.iter().map(|(at, n)| at * sector..(at + n) * sector).collect();
            let id = BatchId { life, lap, seq };
            let mut bytes = made(id, &pieces, salt);
            let len = bytes.len();
            bytes.resize(len + behind, 7);
            let batch = Batch::decode(&bytes, life, salt).unwrap();
            prop_assert_eq!((batch.id, batch.len), (id, len));
            let mut at = head_bytes(pieces.len());
            for (piece, (off, content)) in pieces.iter().zip(&batch.pieces) {
                let end = at + (piece.end - piece.start) as usize;
                prop_assert_eq!((*off, *content), (piece.start, &bytes[at..end]));
                at = end;
            }
            prop_assert_eq!(batch.pieces.len(), pieces.len());
            prop_assert_eq!(Batch::decode(&bytes, life ^ 1, salt), None);
            prop_assert_eq!(Batch::decode(&bytes, life, salt ^ 1), None);
            prop_assert_eq!(Batch::decode(&bytes[..len - 1], life, salt), None);
        }

        #[test]
        fn a_flipped_bit_is_seen(bit in 0usize..(SECTOR + 2048) * 8, in_head in 0usize..LOG_CRC * 8) {
            let id = BatchId { life: 1, lap: 2, seq: 3 };
            let mut batch = made(id, &[0..1024, 4096..5120], 4);
            batch[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(Batch::decode(&batch, 1, 4), None);
            let mut head = LogHead { generation: 1, life: 2, retired: 3 }.encode(4);
            head[in_head / 8] ^= 1 << (in_head % 8);
            prop_assert_eq!(LogHead::decode(&head, 4), None);
        }

        /// Whatever lies there: no panic, and nothing but what a seal has made.
        #[test]
        fn other_bytes_are_no_batch(mut bytes in prop::collection::vec(any::<u8>(), 0..4096)) {
            for magic in [false, true] {
                if magic && bytes.len() >= 16 {
                    put_u32(&mut bytes, 0, MAGIC);
                    put_u64(&mut bytes, 8, 5);
                }
                prop_assert_eq!(Batch::decode(&bytes, 5, 6), None);
                prop_assert_eq!(LogHead::decode(&bytes, 6), None);
            }
        }
    }

    #[test]
    fn heads_come_back_as_they_were() {
        let head = LogHead {
            generation: 5,
            life: u64::MAX,
            retired: 7,
        };
        assert_eq!(LogHead::decode(&head.encode(9), 9), Some(head));
        assert_eq!(LogHead::decode(&head.encode(9), 8), None);
    }

    #[test]
    fn halves_lie_behind_the_heads_and_within_the_log() {
        for len in [0, HALVES, BATCH_LOG_MIN, BATCH_LOG_MIN + 4095, 1 << 24] {
            let [a, b] = halves(len);
            assert_eq!((a.start, a.end), (HALVES, b.start));
            assert!(a.end - a.start == b.end - b.start && b.end <= len.max(HALVES));
            assert!([a.end, b.end].iter().all(|at| at % 4096 == 0));
        }
    }
}
