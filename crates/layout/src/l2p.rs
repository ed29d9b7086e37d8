//! The persistent page table: map entries, commit word, and the undo log's records.
//!
//! **Map**: one 8-byte entry per LBN, which an aligned store replaces as a whole.
//!
//! | bits | field |
//! |---|---|
//! | 0..40 | PBN |
//! | 40..48 | state: 0 zero, 1 written |
//! | 48..64 | check of the rest, salted with volume and LBN |
//!
//! Beside it an array of CRC-32C values, 4 bytes per LBN: the checksum of the block's content.
//! In state *zero* it is that of a block of zeros ([`ZERO_CRC`]), so that it tells what an LBN whose
//! entry is lost reads as, and nothing of what the LBN held before. Volumes of earlier builds have any
//! value there.
//!
//! **Log**: a header page, then the lanes, dense arrays of undo records of 32 bytes.
//!
//! | offset in the header page | |
//! |---|---|
//! | 0 | commit word |
//! | 1024, 2048 | start record and its second copy, 64 bytes each |
//! | 3072 | commit word's spare copy |
//!
//! The commit word is a checked word that holds the number of the last finished transaction, its
//! *generation*. Every record carries its generation and a checksum that covers the volume's salt,
//! an undo record's also its place, so that nothing left behind by an earlier transaction, volume
//! or place validates. The four places lie in sectors of their own.

use crate::Guard;
use crate::bytes::{get_u32, get_u64, put_u32, put_u64};
use crate::checksum::{WORD_MAX, crc32c, crc32c_append, open_guarded, seal_word};
use crate::{BLOCK, LINE, Lbn};

/// Bytes of one map entry.
pub const ENTRY_BYTES: u64 = 8;
/// Bytes of one content checksum.
pub const CRC_BYTES: u64 = 4;
/// CRC-32C of a block of zeros.
pub const ZERO_CRC: u32 = 0x98f9_4189;
/// Number of bits of a PBN.
pub const PBN_BITS: u32 = 40;
/// The most blocks that a map can address.
pub const BLOCKS_MAX: u64 = 1 << PBN_BITS;
/// Bytes of the log's header page, which the lanes follow.
pub const LOG_HEADER_BYTES: u64 = BLOCK as u64;
/// Offset of the commit word in the header page.
pub const COMMIT_AT: u64 = 0;
/// Offsets of the two copies of the start record in the header page.
pub const START_AT: [u64; 2] = [1024, 2048];
/// Offset of the commit word's spare copy in the header page.
pub const SPARE_AT: u64 = 3072;
/// Bytes of a start record.
pub const START_BYTES: usize = LINE;
/// Bytes of an undo record.
pub const UNDO_BYTES: usize = 32;

// A start record is one line; an undo record never straddles two, so that a torn one is the work
// of at most one line's prefix.
const _: () = assert!(START_BYTES == LINE && LINE.is_multiple_of(UNDO_BYTES));
// State and PBN together are exactly what a checked word can hold.
const _: () = assert!(PBN_BITS + 8 == crate::checksum::WORD_BITS);

/// Salts of the words of this module, apart from each other and from an LBN (40 bits).
const SALT_ENTRY: u64 = 0x4c_3245 << PBN_BITS;
const SALT_COMMIT: u64 = 0x4c_3243 << PBN_BITS;

/// What a physical block holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BlockState {
    /// Reads as zeros, whatever the device says.
    Zero,
    /// The content is on the device and the content checksum is its checksum.
    Written,
}

/// A decoded map entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    /// Physical block, below [`BLOCKS_MAX`].
    pub pbn: u64,
    /// State of that block.
    pub state: BlockState,
}

impl Entry {
    /// The word that stands for this entry at `lbn`.
    ///
    /// # Panics
    /// If the PBN has more than 40 bits.
    pub fn encode(self, lbn: Lbn, volume_salt: u64) -> u64 {
        assert!(self.pbn < BLOCKS_MAX, "a PBN has {PBN_BITS} bits");
        let state = match self.state {
            BlockState::Zero => 0,
            BlockState::Written => 1,
        };
        seal_word(
            self.pbn | (state << PBN_BITS),
            volume_salt ^ SALT_ENTRY ^ lbn,
        )
    }

    /// The entry in `word`, read at `lbn`; `None` if its check fails or the state is unknown.
    pub fn decode(word: u64, lbn: Lbn, volume_salt: u64) -> Option<Self> {
        let salt = volume_salt ^ SALT_ENTRY ^ lbn;
        let number = open_guarded(word, salt, Guard::MapEntry)?;
        let state = match number >> PBN_BITS {
            0 => BlockState::Zero,
            1 => BlockState::Written,
            _ => return None,
        };
        Some(Self {
            pbn: number & (BLOCKS_MAX - 1),
            state,
        })
    }
}

/// The word that says that every transaction up to `generation` (48 bits) is finished: committed,
/// or undone.
pub fn encode_commit(generation: u64, volume_salt: u64) -> u64 {
    seal_word(generation, volume_salt ^ SALT_COMMIT)
}

/// The generation in a commit word, or `None` if its check fails.
pub fn decode_commit(word: u64, volume_salt: u64) -> Option<u64> {
    open_guarded(word, volume_salt ^ SALT_COMMIT, Guard::LogWord)
}

/// An 8-byte word outside the map that a transaction changes together with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OldWord {
    /// Its offset in the pmem region, not 0.
    pub off: u64,
    /// What it held before.
    pub value: u64,
}

/// First record of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// Number of the transaction.
    pub generation: u64,
    /// Number of undo records in all lanes together.
    pub records: u64,
    /// Undo records per lane: record `n` is record `n % per_lane` of lane `n / per_lane`.
    pub per_lane: u64,
    /// The word that changes with the map, if there is one.
    pub word: Option<OldWord>,
}

const START_MAGIC: u32 = u32::from_le_bytes(*b"L2PS");
mod start {
    //! Offsets in a start record.
    pub const MAGIC: usize = 0;
    pub const GENERATION: usize = 8;
    pub const RECORDS: usize = 16;
    pub const PER_LANE: usize = 24;
    pub const WORD_OFF: usize = 32;
    pub const WORD_OLD: usize = 40;
    pub const CRC: usize = 60;
}
const _: () = assert!(start::CRC + 4 == START_BYTES && start::WORD_OLD + 8 <= start::CRC);

impl Start {
    /// The record's bytes.
    pub fn encode(&self, volume_salt: u64) -> [u8; START_BYTES] {
        let mut b = [0; START_BYTES];
        put_u32(&mut b, start::MAGIC, START_MAGIC);
        put_u64(&mut b, start::GENERATION, self.generation);
        put_u64(&mut b, start::RECORDS, self.records);
        put_u64(&mut b, start::PER_LANE, self.per_lane);
        let word = self.word.unwrap_or(OldWord { off: 0, value: 0 });
        put_u64(&mut b, start::WORD_OFF, word.off);
        put_u64(&mut b, start::WORD_OLD, word.value);
        let crc = salted(&b[..start::CRC], volume_salt, 0, 0);
        put_u32(&mut b, start::CRC, crc);
        b
    }

    /// The record in `b`, or `None` if it is none of this volume or its checksum fails.
    pub fn decode(b: &[u8; START_BYTES], volume_salt: u64) -> Option<Self> {
        let sound = || get_u32(b, start::CRC) == salted(&b[..start::CRC], volume_salt, 0, 0);
        let intact =
            get_u32(b, start::MAGIC) == START_MAGIC && (sound() || !Guard::LogStart.stands());
        let record = Self {
            generation: get_u64(b, start::GENERATION),
            records: get_u64(b, start::RECORDS),
            per_lane: get_u64(b, start::PER_LANE),
            word: match get_u64(b, start::WORD_OFF) {
                0 => None,
                off => Some(OldWord {
                    off,
                    value: get_u64(b, start::WORD_OLD),
                }),
            },
        };
        (intact && record.generation <= WORD_MAX).then_some(record)
    }
}

/// What one LBN's entry and content checksum were before a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Undo {
    /// Number of the transaction.
    pub generation: u64,
    /// Whose entry it is.
    pub lbn: Lbn,
    /// The entry's word, as it was.
    pub entry: u64,
    /// The content checksum, as it was.
    pub crc: u32,
}

mod undo {
    //! Offsets in an undo record.
    pub const ENTRY: usize = 0;
    pub const LBN: usize = 8;
    pub const GENERATION: usize = 16;
    pub const OLD_CRC: usize = 24;
    pub const CRC: usize = 28;
}
const _: () = assert!(undo::CRC + 4 == UNDO_BYTES && undo::OLD_CRC + 4 == undo::CRC);

impl Undo {
    /// The record's bytes at place `index` of `lane`.
    pub fn encode(&self, lane: u32, index: u64, volume_salt: u64) -> [u8; UNDO_BYTES] {
        let mut b = [0; UNDO_BYTES];
        put_u64(&mut b, undo::ENTRY, self.entry);
        put_u64(&mut b, undo::LBN, self.lbn);
        put_u64(&mut b, undo::GENERATION, self.generation);
        put_u32(&mut b, undo::OLD_CRC, self.crc);
        let crc = salted(&b[..undo::CRC], volume_salt, lane, index);
        put_u32(&mut b, undo::CRC, crc);
        b
    }

    /// The record in `b`, read at place `index` of `lane`; `None` if its checksum fails.
    pub fn decode(b: &[u8; UNDO_BYTES], lane: u32, index: u64, volume_salt: u64) -> Option<Self> {
        let sound = get_u32(b, undo::CRC) == salted(&b[..undo::CRC], volume_salt, lane, index);
        (sound || !Guard::Undo.stands()).then(|| Self {
            generation: get_u64(b, undo::GENERATION),
            lbn: get_u64(b, undo::LBN),
            entry: get_u64(b, undo::ENTRY),
            crc: get_u32(b, undo::OLD_CRC),
        })
    }
}

/// Checksum of a record that is valid on one volume and in one place only.
fn salted(body: &[u8], volume_salt: u64, lane: u32, index: u64) -> u32 {
    let mut place = [0; 20];
    put_u64(&mut place, 0, volume_salt);
    put_u32(&mut place, 8, lane);
    put_u64(&mut place, 12, index);
    crc32c_append(crc32c(&place), body)
}

/// Undo records that fit into a lane of `lane_bytes`.
pub const fn lane_records(lane_bytes: u64) -> u64 {
    lane_bytes / UNDO_BYTES as u64
}

/// Offset of a lane from the start of the log.
pub const fn lane_off(lane: u32, lane_bytes: u64) -> u64 {
    LOG_HEADER_BYTES + lane as u64 * lane_bytes
}

/// Bytes of the whole log.
pub const fn log_bytes(lanes: u32, lane_bytes: u64) -> u64 {
    LOG_HEADER_BYTES + lanes as u64 * lane_bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn state() -> impl Strategy<Value = BlockState> {
        prop_oneof![Just(BlockState::Zero), Just(BlockState::Written)]
    }

    fn start_record() -> impl Strategy<Value = Start> {
        let word = prop::option::of((1..u64::MAX, any::<u64>()));
        (0..=WORD_MAX, any::<u64>(), any::<u64>(), word).prop_map(
            |(generation, records, per_lane, word)| Start {
                generation,
                records,
                per_lane,
                word: word.map(|(off, value)| OldWord { off, value }),
            },
        )
    }

    fn undo_record() -> impl Strategy<Value = Undo> {
        (any::<u64>(), any::<u64>(), any::<u64>(), any::<u32>()).prop_map(
            |(generation, lbn, entry, crc)| Undo {
                generation,
                lbn,
                entry,
                crc,
            },
        )
    }

    proptest! {
        #[test]
        fn entries_round_trip(pbn in 0..BLOCKS_MAX, state in state(), lbn in 0..BLOCKS_MAX, salt: u64) {
            let entry = Entry { pbn, state };
            let word = entry.encode(lbn, salt);
            prop_assert_eq!(Entry::decode(word, lbn, salt), Some(entry));
            for bit in 0..64 {
                prop_assert_eq!(Entry::decode(word ^ (1 << bit), lbn, salt), None);
            }
        }

        #[test]
        fn a_neighbours_entry_does_not_validate(pbn in 0..BLOCKS_MAX, lbn in 0..BLOCKS_MAX - 1, salt: u64) {
            let word = Entry { pbn, state: BlockState::Written }.encode(lbn, salt);
            prop_assert_eq!(Entry::decode(word, lbn ^ 1, salt), None);
        }

        #[test]
        fn unknown_states_are_refused(pbn in 0..BLOCKS_MAX, state in 2u64..256, lbn in 0..BLOCKS_MAX, salt: u64) {
            let word = seal_word(pbn | (state << PBN_BITS), salt ^ SALT_ENTRY ^ lbn);
            prop_assert_eq!(Entry::decode(word, lbn, salt), None);
        }

        #[test]
        fn commit_words_round_trip_and_are_no_entries(generation in 0..=WORD_MAX, salt: u64) {
            let word = encode_commit(generation, salt);
            prop_assert_eq!(decode_commit(word, salt), Some(generation));
            prop_assert_eq!(Entry::decode(word, 0, salt), None);
        }

        #[test]
        fn start_records_round_trip(record in start_record(), salt: u64, bit in 0..START_BYTES * 8) {
            let mut b = record.encode(salt);
            prop_assert_eq!(Start::decode(&b, salt), Some(record));
            prop_assert_eq!(Start::decode(&b, salt ^ 1), None);
            b[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(Start::decode(&b, salt), None);
        }

        #[test]
        fn undo_records_round_trip(
            record in undo_record(), lane: u32, index: u64, salt: u64, bit in 0..UNDO_BYTES * 8,
        ) {
            let mut b = record.encode(lane, index, salt);
            prop_assert_eq!(Undo::decode(&b, lane, index, salt), Some(record));
            prop_assert_eq!(Undo::decode(&b, lane, index ^ 1, salt), None);
            prop_assert_eq!(Undo::decode(&b, lane ^ 1, index, salt), None);
            prop_assert_eq!(Undo::decode(&b, lane, index, salt ^ 1), None);
            b[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(Undo::decode(&b, lane, index, salt), None);
        }
    }

    #[test]
    fn what_was_never_written_is_nothing() {
        assert_eq!(Start::decode(&[0; START_BYTES], 0), None);
        assert_eq!(Undo::decode(&[0; UNDO_BYTES], 0, 0, 0), None);
    }

    #[test]
    fn lanes_lie_one_after_the_other() {
        assert_eq!(lane_records(8192), 256);
        assert_eq!(lane_records(0), 0);
        assert_eq!(lane_off(0, 8192), LOG_HEADER_BYTES);
        assert_eq!(lane_off(2, 8192), log_bytes(2, 8192));
    }
}
