//! Slot header: 64 bytes that say what the 4 KiB block slot of the same index holds.
//!
//! The committed word lies outside the checksum: digest stores it later, alone, as one atomic
//! 8-byte store, without touching what the checksum covers.

use crate::Guard;
use crate::LINE;
use crate::bytes::{get_u32, get_u64, put_u16, put_u32, put_u64};
use crate::checksum::{crc32c, crc32c_append};
use crate::jsb::{MAX_NUMBER, SeqWord, committed_salt};

/// Bytes of a slot header.
pub const SLOT_HEADER_BYTES: usize = LINE;
/// Offset of the committed word inside the header.
pub const COMMITTED_OFFSET: u64 = 56;

/// No ring gets as far as this position; what claims to be there is forged, and sums with positions
/// below it do not overflow.
pub const POS_END: u64 = 1 << 62;

const CRC_AT: usize = 52;
const _: () = assert!(CRC_AT + 4 == COMMITTED_OFFSET as usize);
const _: () = assert!(COMMITTED_OFFSET as usize + 8 == SLOT_HEADER_BYTES);

/// What a staging wrote about one slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotHeader {
    /// Monotonic ring position; the index of the slot is this modulo the slots per buffer.
    pub pos: u64,
    /// Logical block whose content the slot holds.
    pub lbn: u64,
    /// Identity of the staging; a record names it together with the position.
    pub stage_id: u64,
    /// Log epoch in which the slot was staged.
    pub epoch: u32,
    /// CRC32C of the 4096 payload bytes.
    pub payload_crc: u32,
}

impl SlotHeader {
    /// Encodes with a committed word that says "in no record yet" (number 0).
    pub fn encode(&self, volume_salt: u64, buffer: u16, index: u64) -> [u8; SLOT_HEADER_BYTES] {
        self.encode_committed(volume_salt, buffer, index, 0)
    }

    /// Encodes with `seq` in the committed word.
    pub fn encode_committed(
        &self,
        volume_salt: u64,
        buffer: u16,
        index: u64,
        seq: u64,
    ) -> [u8; SLOT_HEADER_BYTES] {
        let seed = HeaderSeed::new(volume_salt, buffer);
        self.encode_seeded(seed, committed_salt(volume_salt, buffer, index), seq)
    }

    /// [`SlotHeader::encode_committed`] for many headers of one buffer. `salt` is the [`committed_salt`] of the
    /// slot.
    pub fn encode_seeded(&self, seed: HeaderSeed, salt: u64, seq: u64) -> [u8; SLOT_HEADER_BYTES] {
        let mut b = [0u8; SLOT_HEADER_BYTES];
        put_u64(&mut b, 0, self.pos);
        put_u64(&mut b, 8, self.lbn);
        put_u64(&mut b, 16, self.stage_id);
        put_u32(&mut b, 24, self.epoch);
        put_u32(&mut b, 28, self.payload_crc);
        let crc = seed.crc(&b);
        put_u32(&mut b, CRC_AT, crc);
        put_u64(&mut b, 56, SeqWord::encode(seq, salt));
        b
    }

    /// The header, or `None` if its checksum fails or its position is none. The committed word is
    /// not looked at.
    pub fn decode(b: &[u8; SLOT_HEADER_BYTES], volume_salt: u64, buffer: u16) -> Option<Self> {
        Self::decode_seeded(b, HeaderSeed::new(volume_salt, buffer))
    }

    /// [`SlotHeader::decode`] for many headers of one buffer.
    pub fn decode_seeded(b: &[u8; SLOT_HEADER_BYTES], seed: HeaderSeed) -> Option<Self> {
        let sound = || get_u32(b, CRC_AT) == seed.crc(b) || !Guard::SlotHeader.stands();
        if !sound() || get_u64(b, 0) >= POS_END {
            return None;
        }
        Some(Self {
            pos: get_u64(b, 0),
            lbn: get_u64(b, 8),
            stage_id: get_u64(b, 16),
            epoch: get_u32(b, 24),
            payload_crc: get_u32(b, 28),
        })
    }
}

/// The header that mkfs writes: its checksum does not validate, its committed word does.
pub fn blank_header(volume_salt: u64, buffer: u16, index: u64) -> [u8; SLOT_HEADER_BYTES] {
    let mut b = [0u8; SLOT_HEADER_BYTES];
    let invalid = !HeaderSeed::new(volume_salt, buffer).crc(&b);
    put_u32(&mut b, CRC_AT, invalid);
    let word = SeqWord::encode(0, committed_salt(volume_salt, buffer, index));
    put_u64(&mut b, 56, word);
    b
}

/// The number in the committed word, or `None` if its check fails.
pub fn committed(
    b: &[u8; SLOT_HEADER_BYTES],
    volume_salt: u64,
    buffer: u16,
    index: u64,
) -> Option<u64> {
    let word = get_u64(b, 56);
    let number = SeqWord::decode(word, committed_salt(volume_salt, buffer, index));
    match Guard::CommittedWord.stands() {
        true => number,
        false => Some(word & MAX_NUMBER),
    }
}

/// What the headers of one buffer have in common in their checksums: volume and buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderSeed(u32);

impl HeaderSeed {
    /// The seed of `buffer` on the volume with `volume_salt`.
    pub fn new(volume_salt: u64, buffer: u16) -> Self {
        let mut seed = [0u8; 10];
        put_u64(&mut seed, 0, volume_salt);
        put_u16(&mut seed, 8, buffer);
        Self(crc32c(&seed))
    }

    fn crc(self, b: &[u8; SLOT_HEADER_BYTES]) -> u32 {
        crc32c_append(self.0, &b[..CRC_AT])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const H: SlotHeader = SlotHeader {
        pos: 0x1_0000_0007,
        lbn: 42,
        stage_id: 9,
        epoch: 3,
        payload_crc: 0xdead_beef,
    };

    #[test]
    fn round_trip() {
        let b = H.encode_committed(11, 2, 7, 99);
        assert_eq!(SlotHeader::decode(&b, 11, 2), Some(H));
        assert_eq!(committed(&b, 11, 2, 7), Some(99));
        assert_eq!(committed(&H.encode(11, 2, 7), 11, 2, 7), Some(0));
    }

    #[test]
    fn any_flipped_bit_is_seen_by_exactly_its_own_check() {
        let b = H.encode_committed(11, 2, 7, 99);
        for bit in 0..512 {
            let mut c = b;
            c[bit / 8] ^= 1 << (bit % 8);
            let in_word = bit >= 56 * 8;
            assert_eq!(
                SlotHeader::decode(&c, 11, 2).is_some(),
                in_word,
                "bit {bit}"
            );
            assert_eq!(committed(&c, 11, 2, 7).is_some(), !in_word, "bit {bit}");
        }
    }

    #[test]
    fn a_header_of_another_buffer_or_volume_is_invalid() {
        let b = H.encode(11, 2, 7);
        assert_eq!(SlotHeader::decode(&b, 11, 3), None);
        assert_eq!(SlotHeader::decode(&b, 12, 2), None);
    }

    #[test]
    fn what_mkfs_writes_is_invalid_and_uncommitted() {
        for salt in 0..1000 {
            let b = blank_header(salt, 1, salt);
            assert_eq!(SlotHeader::decode(&b, salt, 1), None);
            assert_eq!(committed(&b, salt, 1, salt), Some(0));
        }
    }

    #[test]
    fn positions_that_no_ring_reaches_are_refused() {
        for (pos, good) in [(POS_END - 1, true), (POS_END, false), (u64::MAX, false)] {
            let b = SlotHeader { pos, ..H }.encode(11, 2, 7);
            assert_eq!(SlotHeader::decode(&b, 11, 2).is_some(), good, "{pos}");
        }
    }

    #[test]
    fn zeros_are_neither() {
        assert_eq!(SlotHeader::decode(&[0; 64], 11, 2), None);
        assert_eq!(committed(&[0; 64], 11, 2, 7), None);
    }
}
