//! What can go wrong, by kind.

use quayfs_layout::jsb::WordKind;
use quayfs_pmem::PmemError;
use std::fmt;

/// Why a journal operation failed.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The region could not be drained. Nothing stored since the last successful drain is known to
    /// be durable.
    #[error(transparent)]
    Pmem(#[from] PmemError),
    /// What records refer to on another medium could not be made durable
    /// ([`Journal::set_media`](crate::Journal::set_media)). The journal stops.
    #[error("what records refer to could not be made durable: {0}")]
    Media(#[source] std::io::Error),
    /// An earlier drain failed, or what records refer to could not be made durable; the journal refuses everything
    /// until the volume is recovered.
    #[error("the journal stopped: an earlier commit or drain failed")]
    Stopped,
    /// [`Journal::set_clean`](crate::Journal::set_clean) was called.
    #[error("the journal is closed")]
    Closed,
    /// The geometry is impossible.
    #[error("impossible journal geometry: {0}")]
    Geometry(&'static str),
    /// A superblock word without which nothing can be recovered fails its check.
    #[error("journal superblock: the {0:?} word fails its check")]
    Superblock(WordKind),
    /// A record read back from its lane fails its check.
    #[error("lane {lane}: the record {seq} at position {pos} is damaged")]
    Record {
        /// Lane.
        lane: u16,
        /// Byte position in the lane.
        pos: u64,
        /// Sequence number.
        seq: u64,
    },
    /// The payload of a slot fails its checksum.
    #[error("staging buffer {buffer}: the block at position {pos} is damaged")]
    Payload {
        /// Staging buffer.
        buffer: u16,
        /// Ring position.
        pos: u64,
    },
    /// digested_seq may not pass what is committed (in `op`: complete), nor go back.
    #[error("cannot set digested to {seq}: it must be between {low} and {high}")]
    NotDigestable {
        /// What was asked for.
        seq: u64,
        /// Lowest possible value.
        low: u64,
        /// Highest possible value.
        high: u64,
    },
    /// Slots are reused only when `retired_seq` on the medium covers them.
    #[error("cannot reuse slots up to {seq}: the medium says {stored}")]
    NotRetired {
        /// What was asked for.
        seq: u64,
        /// The stored number.
        stored: u64,
    },
    /// The record does not fit into the credit it was to be paid with.
    #[error("a record of {bytes} bytes does not fit into a credit of {credit}")]
    RecordTooLarge {
        /// Bytes in the lane.
        bytes: u64,
        /// Bytes that the credit is good for.
        credit: u64,
    },
    /// The scan found records that have not been digested.
    #[error("not recovered: records up to {last} are replayable, digested is {digested}")]
    NotRecovered {
        /// Highest replayable number.
        last: u64,
        /// What the caller reports as digested.
        digested: u64,
    },
    /// Live slots of a buffer span more than its ring.
    #[error("staging buffer {0}: live slots span more than the ring")]
    Span(u16),
    /// Epochs or numbers have run out.
    #[error("the volume's sequence numbers are used up")]
    Exhausted,
}

/// Why credits were not granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum AcquireError {
    /// Too few free slots: a checkpoint round frees some.
    #[error("out of staging slots")]
    Slots,
    /// Too little log space: a digest (in `commit` mode after a commit) frees some.
    #[error("out of log space")]
    Log,
    /// More than a whole buffer can ever give.
    #[error("larger than a staging buffer or the largest record")]
    TooLarge,
    /// The journal has stopped or is closed; see [`Journal::check`](crate::Journal::check).
    #[error("the journal accepts nothing any more")]
    Refused,
}

/// Something that no crash leaves behind: bits have rotted, or the medium broke its promises.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Damage {
    /// A superblock word that can be done without fails its check.
    Word(WordKind),
    /// A slot.
    Slot {
        /// Staging buffer.
        buffer: u16,
        /// Index of the slot.
        index: u64,
        /// What is wrong with it.
        kind: SlotDamage,
    },
    /// Slots that have never been written, in a region whose slots all have been.
    Unwritten {
        /// Staging buffer.
        buffer: u16,
        /// Index of the first one.
        first: u64,
        /// How many follow each other.
        count: u64,
    },
    /// A record fails its check although a later one in its lane is valid, or contradicts another.
    Record {
        /// Lane.
        lane: u16,
        /// Byte position in the lane.
        pos: u64,
        /// Sequence number, where the header is legible.
        seq: Option<u64>,
    },
    /// A record that contradicts the epoch word: of a later epoch, or of an earlier one and never
    /// digested. Reported once for each lane.
    Epoch {
        /// Lane.
        lane: u16,
        /// Byte position in the lane.
        pos: u64,
        /// Sequence number of the record.
        seq: u64,
        /// Its epoch.
        epoch: u32,
        /// What the superblock says.
        current: u32,
    },
    /// Committed records that are nowhere to be found.
    Missing {
        /// First number.
        first: u64,
        /// Last number.
        last: u64,
    },
}

/// What is wrong with a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SlotDamage {
    /// The committed word fails its check.
    CommittedWord,
    /// Committed and not retired, but the header fails its check.
    Header,
    /// Its committed word names a record above digested_seq which is not there.
    LostRecord,
    /// Named by two replayable records.
    NamedTwice,
    /// Named by a replayable record, but there is no such buffer.
    NoSuchBuffer,
}

impl Damage {
    /// The lowest sequence number that is known to be affected, if any is.
    pub fn seq(&self) -> Option<u64> {
        match self {
            Self::Record { seq, .. } => *seq,
            Self::Missing { first, .. } => Some(*first),
            Self::Epoch { seq, .. } => Some(*seq),
            Self::Word(_) | Self::Slot { .. } | Self::Unwritten { .. } => None,
        }
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Word(kind) => write!(f, "journal superblock: the {kind:?} word fails its check"),
            Self::Slot {
                buffer,
                index,
                kind,
            } => {
                let what = match kind {
                    SlotDamage::CommittedWord => "its committed word fails the check",
                    SlotDamage::Header => "committed, but its header fails the check",
                    SlotDamage::LostRecord => "it was digested under a record that is gone",
                    SlotDamage::NamedTwice => "two records name it",
                    SlotDamage::NoSuchBuffer => "a record names it, but there is no such buffer",
                };
                write!(f, "staging buffer {buffer}, slot {index}: {what}")
            }
            Self::Unwritten {
                buffer,
                first,
                count,
            } => {
                let last = first + count - 1;
                write!(
                    f,
                    "staging buffer {buffer}, slots {first} to {last}: there is nothing, not even a header"
                )
            }
            Self::Record {
                lane,
                pos,
                seq: Some(seq),
            } => {
                write!(f, "lane {lane}, position {pos}: record {seq} is damaged")
            }
            Self::Record {
                lane,
                pos,
                seq: None,
            } => {
                write!(f, "lane {lane}, position {pos}: a record header is damaged")
            }
            Self::Epoch {
                lane,
                pos,
                seq,
                epoch,
                current,
            } => write!(
                f,
                "lane {lane}, position {pos}: record {seq} is of epoch {epoch}, the superblock says {current}"
            ),
            Self::Missing { first, last } => write!(f, "records {first} to {last} are missing"),
        }
    }
}
