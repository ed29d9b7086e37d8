//! Journal superblock: one 4 KiB page of 8-byte words, each alone in its 64-byte line (but for one that is only ever
//! written with another), so that every change of it is one atomic store and no two words share a flush.
//!
//! A word is 48 bits of number below 16 bits of check. The check covers the volume and the place of
//! the word, so that neither another volume's word nor a neighbour's can pass for this one. It is
//! never zero: memory that was never written decodes as damage, not as number zero.

use crate::Guard;
use crate::checksum::check16;
use crate::{BLOCK, LINE};

/// Bytes of the journal superblock page.
pub const JSB_BYTES: usize = BLOCK;
/// Index of the first line that holds a lane head.
pub const FIRST_HEAD_LINE: usize = 8;
/// Most staging buffers (and lanes) a volume can be formatted with.
pub const MAX_BUFFERS: usize = JSB_BYTES / LINE - FIRST_HEAD_LINE;
/// Largest number a word can hold.
pub const MAX_NUMBER: u64 = (1 << 48) - 1;

const _: () = assert!(MAX_BUFFERS == 56);
const _: () = assert!((FIRST_HEAD_LINE + MAX_BUFFERS) * LINE == JSB_BYTES);

/// Which word: decides its place in the page and takes part in its check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WordKind {
    /// Log epoch with the durability mode of the mount that runs (or ran) in it.
    Epoch,
    /// Every record at or below this number has been digested.
    Digested,
    /// Slots committed at or below this number are dead; changed only inside a page-table transaction.
    Retired,
    /// `commit` mode: records at or below this number are committed.
    CommitTs,
    /// The epoch that ended as it should, if any did: [`Closed`].
    Clean,
    /// How many blocks an epoch has left staged that ended with [`Closed::Staged`]. For people, and for nothing that
    /// depends on it: blank in volumes where none has, and of an earlier epoch in others. It shares the line of
    /// [`WordKind::Clean`], as it is stored with it.
    Staged,
    /// Some in turn, `commit` mode on a medium where a drain is dear: records at or below this number are committed if
    /// all of them are there. The whole word is zero where there is none.
    Proposal(u8),
    /// Where the walk of the lane starts, a record boundary; in lines of 64 bytes.
    Head(u16),
}

impl WordKind {
    /// All words of a journal with so many buffers.
    pub fn all(buffers: u16) -> impl Iterator<Item = Self> {
        let single = [
            Self::Epoch,
            Self::Digested,
            Self::Retired,
            Self::CommitTs,
            Self::Clean,
        ];
        single.into_iter().chain((0..buffers).map(Self::Head))
    }

    /// Byte offset of the word inside the superblock page.
    pub const fn offset(self) -> u64 {
        let line = match self {
            Self::Staged => return (4 * LINE + 8) as u64,
            Self::Epoch => 0,
            Self::Digested => 1,
            Self::Retired => 2,
            Self::CommitTs => 3,
            Self::Clean => 4,
            Self::Proposal(place) => 5 + place as usize % PROPOSALS,
            Self::Head(lane) => FIRST_HEAD_LINE + lane as usize,
        };
        (line * LINE) as u64
    }

    /// The salt of this word on the volume with `volume_salt`.
    pub const fn salt(self, volume_salt: u64) -> u64 {
        // The offset identifies the word; the constant keeps these salts apart from slot salts.
        volume_salt ^ (0x4a53_4200_0000_0000 | self.offset())
    }
}

/// How the life of an epoch has ended, as the clean word says it: bits 0..32 the epoch, bit 32 [`Closed::Staged`].
///
/// A program that does not know the bit takes the word for that of another epoch, and recovers what is staged as after a
/// crash, which is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    /// Not at all, or not as it should.
    No,
    /// All is digested, and staged blocks are left in their slots.
    Staged,
    /// With a full checkpoint: the log is empty, and nothing is staged.
    Empty,
}

/// [`Closed::Staged`] in the word.
const LEFT_STAGED: u64 = 1 << 32;

impl Closed {
    /// What the number in the clean word says of `epoch`.
    pub fn of(number: u64, epoch: u32) -> Self {
        match number ^ u64::from(epoch) {
            0 => Self::Empty,
            LEFT_STAGED => Self::Staged,
            _ => Self::No,
        }
    }

    /// The number that says so; 0, which is no epoch, for [`Closed::No`].
    pub fn number(self, epoch: u32) -> u64 {
        match self {
            Self::No => 0,
            Self::Staged => u64::from(epoch) | LEFT_STAGED,
            Self::Empty => epoch.into(),
        }
    }

    /// Whether there is nothing to recover.
    pub fn is_clean(self) -> bool {
        self != Self::No
    }
}

/// Words of proposed commits. Without [`FEATURE_PIPELINE`](crate::config::FEATURE_PIPELINE) the last one stays zero.
pub const PROPOSALS: usize = 3;

const _: () = assert!(5 + PROPOSALS <= FIRST_HEAD_LINE);

/// Salt of the committed word in slot `index` of buffer `buffer`.
pub const fn committed_salt(volume_salt: u64, buffer: u16, index: u64) -> u64 {
    volume_salt ^ (0x5300_0000_0000_0000 | (buffer as u64) << 40 | index)
}

/// A sequence number (or lane position, or epoch) with its check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeqWord;

impl SeqWord {
    /// The word for `number`, which must not exceed [`MAX_NUMBER`].
    pub fn encode(number: u64, salt: u64) -> u64 {
        assert!(
            number <= MAX_NUMBER,
            "number {number} does not fit in 48 bits"
        );
        u64::from(check(number, salt)) << 48 | number
    }

    /// The number, or `None` if the check fails.
    pub fn decode(word: u64, salt: u64) -> Option<u64> {
        let number = word & MAX_NUMBER;
        let sound = (word >> 48) as u16 == check(number, salt);
        (sound || !Guard::SuperblockWord.stands()).then_some(number)
    }
}

fn check(number: u64, salt: u64) -> u16 {
    match check16(number, salt) {
        0 => 1,
        c => c,
    }
}

/// How soon an operation is durable; stored with the epoch, because recovery obeys the mode under
/// which the log was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Mode {
    /// Every operation is durable when it returns.
    Op = 1,
    /// Operations are durable when a commit covers them.
    Commit = 2,
}

/// The epoch word: 32 bits of epoch, 8 of mode, 8 of flags, 16 of check. A program that does not know
/// a flag refuses the word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochWord {
    /// Log epoch; the first one is 1.
    pub epoch: u32,
    /// Durability mode in force during the epoch.
    pub mode: Mode,
    /// A repair has begun and not ended: what it has given up so far looks like something that never
    /// was, so the volume must not be written to until another repair has ended.
    pub repairing: bool,
}

/// [`EpochWord::repairing`] in the word.
const REPAIRING: u64 = 1 << 40;

impl EpochWord {
    /// The stored form.
    pub fn encode(self, volume_salt: u64) -> u64 {
        let number = u64::from(self.epoch) | (self.mode as u64) << 32;
        let flags = if self.repairing { REPAIRING } else { 0 };
        SeqWord::encode(number | flags, WordKind::Epoch.salt(volume_salt))
    }

    /// The epoch and mode, or `None` if the check fails, the mode or a flag is unknown, or the epoch is
    /// 0, which no log has and which the clean word uses for "not clean".
    pub fn decode(word: u64, volume_salt: u64) -> Option<Self> {
        let number = SeqWord::decode(word, WordKind::Epoch.salt(volume_salt))?;
        if number as u32 == 0 {
            return None;
        }
        let mode = match (number & !REPAIRING) >> 32 {
            1 => Mode::Op,
            2 => Mode::Commit,
            _ => return None,
        };
        Some(Self {
            epoch: number as u32,
            mode,
            repairing: number & REPAIRING != 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_have_their_own_lines() {
        let proposals = (0..PROPOSALS as u8).map(WordKind::Proposal);
        let kinds: Vec<WordKind> = WordKind::all(MAX_BUFFERS as u16).chain(proposals).collect();
        let mut lines: Vec<u64> = kinds.iter().map(|k| k.offset()).collect();
        assert!(
            lines
                .iter()
                .all(|o| o.is_multiple_of(LINE as u64) && *o < JSB_BYTES as u64)
        );
        lines.sort_unstable();
        lines.dedup();
        assert_eq!(lines.len(), kinds.len());
    }

    #[test]
    fn a_word_is_bound_to_its_place_and_volume() {
        let salt = WordKind::Digested.salt(77);
        for n in [0, 1, 2, 12_345_678, MAX_NUMBER] {
            let w = SeqWord::encode(n, salt);
            assert_eq!(SeqWord::decode(w, salt), Some(n));
            assert_ne!(w, 0);
        }
        let passes = |other: u64| {
            (0..64u64)
                .filter(|n| SeqWord::decode(SeqWord::encode(*n, salt), other).is_some())
                .count()
        };
        assert!(passes(WordKind::Retired.salt(77)) <= 1);
        assert!(passes(WordKind::Digested.salt(78)) <= 1);
        assert!(passes(committed_salt(77, 0, 0)) <= 1);
    }

    #[test]
    fn blank_memory_never_decodes() {
        for s in 0..200_000u64 {
            assert_eq!(
                SeqWord::decode(0, s.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
                None
            );
        }
    }

    #[test]
    fn every_single_bit_flip_is_seen() {
        let salt = WordKind::CommitTs.salt(5);
        let w = SeqWord::encode(0x1234_5678_9abc, salt);
        for bit in 0..64 {
            assert_eq!(SeqWord::decode(w ^ 1 << bit, salt), None, "bit {bit}");
        }
    }

    #[test]
    fn replacing_a_zero_check_hides_no_bit_flip() {
        // The check is linear: a flipped bit changes it by a constant. Were that constant 1 for some
        // bit, a number whose check is 0, stored as 1, could turn into one whose check is 1.
        for bit in 0..48 {
            assert!(check16(0, 0) ^ check16(1 << bit, 0) > 1, "bit {bit}");
        }
    }

    #[test]
    fn epoch_word_round_trips_and_rejects_unknown_modes() {
        for (mode, repairing) in [(Mode::Op, false), (Mode::Op, true), (Mode::Commit, true)] {
            let w = EpochWord {
                epoch: u32::MAX,
                mode,
                repairing,
            };
            assert_eq!(EpochWord::decode(w.encode(9), 9), Some(w));
        }
        for mode in [0u64, 3, 0x81, 0x103, 0x201] {
            let raw = SeqWord::encode(7 | mode << 32, WordKind::Epoch.salt(9));
            assert_eq!(EpochWord::decode(raw, 9), None);
        }
    }

    #[test]
    fn the_clean_word_is_about_one_epoch() {
        for epoch in [1, 2, u32::MAX] {
            for closed in [Closed::Empty, Closed::Staged] {
                let number = closed.number(epoch);
                assert!(number <= MAX_NUMBER);
                assert_eq!(Closed::of(number, epoch), closed);
                assert_eq!(Closed::of(number, epoch ^ 4), Closed::No);
                for bit in 0..48 {
                    assert_ne!(Closed::of(number ^ 1 << bit, epoch), closed, "bit {bit}");
                }
            }
            assert_eq!(Closed::of(Closed::No.number(epoch), epoch), Closed::No);
        }
        assert_eq!(
            WordKind::Staged.offset() / LINE as u64,
            WordKind::Clean.offset() / LINE as u64
        );
        assert_ne!(WordKind::Staged.salt(3), WordKind::Clean.salt(3));
    }

    #[test]
    fn there_is_no_epoch_0() {
        for mode in [Mode::Op, Mode::Commit] {
            let none = EpochWord {
                epoch: 0,
                mode,
                repairing: false,
            };
            assert_eq!(EpochWord::decode(none.encode(9), 9), None);
            let first = EpochWord {
                epoch: 1,
                mode,
                repairing: false,
            };
            assert_eq!(EpochWord::decode(first.encode(9), 9), Some(first));
        }
    }
}
