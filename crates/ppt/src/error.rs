//! What can go wrong with the page table.

use quayfs_pmem::PmemError;
use thiserror::Error;

/// Why an operation on the page table failed.
#[derive(Debug, Error)]
pub enum PptError {
    /// The geometry contradicts itself or does not fit the region.
    #[error("page table: {0}")]
    Geometry(&'static str),
    /// The LBN is not below the number of blocks.
    #[error("logical block {lbn} is outside of the map of {blocks} blocks")]
    OutOfRange {
        /// The LBN asked for.
        lbn: u64,
        /// Number of LBNs in the map.
        blocks: u64,
    },
    /// The map entry fails its check or names a block that does not exist.
    #[error("the map entry of logical block {lbn} is damaged")]
    Damaged {
        /// Whose entry it is.
        lbn: u64,
    },
    /// A direct write to a block that is not in state zero.
    #[error("logical block {lbn} was to be written directly, but it holds data")]
    NotZero {
        /// The LBN asked for.
        lbn: u64,
    },
    /// More entries than the log has room for. The transaction is as it was before the call.
    #[error("a transaction holds at most {capacity} entries")]
    Full {
        /// The most entries that one transaction can change.
        capacity: u64,
    },
    /// The log does not say what the map should be.
    #[error("the page table's log is damaged: {0}")]
    Log(Damage),
    /// The region is mapped for reading only.
    #[error("the page table is attached read-only")]
    ReadOnly,
    /// An earlier change could not be made durable; nothing more is changed.
    #[error("the page table stopped changing after a failure to make a change durable")]
    Stopped,
    /// Generations are used up. At a thousand a second that takes nine thousand years.
    #[error("the page table's transaction numbers are used up")]
    Exhausted,
    /// The region could not be drained.
    #[error(transparent)]
    Pmem(#[from] PmemError),
}

/// Damage found in the log when attaching.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Damage {
    /// The commit word fails its check.
    #[error("its commit word fails the check")]
    CommitWord,
    /// The start record is ahead of the commit word by more than one transaction.
    #[error("transaction {start} began while {closed} was the last one finished")]
    Ahead {
        /// Generation of the start record.
        start: u64,
        /// Generation in the commit word.
        closed: u64,
    },
    /// The map was changed, but not every record of what it was is readable.
    #[error("of {records} undo records {missing} are unreadable")]
    MissingUndo {
        /// Unreadable records.
        missing: u64,
        /// Records that the transaction wrote.
        records: u64,
    },
}
