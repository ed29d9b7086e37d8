//! The journal: staging buffers with block slots, record lanes, commit cuts, credits and the scan
//! after a crash. It knows logical block numbers and opaque item bytes, and nothing about files.
//!
//! The life of a write, and the module of each step:
//!
//! | step | module |
//! |---|---|
//! | room for it, before any lock | `credits`, `queue`, `acquire` |
//! | payload into slots, durable | `ring`, `stage` |
//! | record into a lane, durable | `bounds`, `lane`, `append` |
//! | `commit` mode: one number covers all before it | `commit` |
//! | digest: committed words, digested_seq, lane heads | `digest` |
//! | checkpoint: which slots live, when they are reused | `retire`, `staged_map` |
//! | after a crash | `scan`, `walk`, `classify`, `recover` |
//!
//! "Ordering n" in comments refers to the numbered list that `ARCHITECTURE.md` repeats; what a crash
//! may do is stated by crate `quayfs-pmem`.
//!
//! What is durable when:
//! * [`Journal::stage`]: nothing. Payloads and slot headers are durable with the record that names them.
//! * [`Journal::append`] in `op`: the record with what it stages, hence the operation. In `commit` nothing.
//! * [`Journal::commit`]: every record at or below its result.
//! * [`Journal::set_digested`]: digested_seq, and everything the caller stored and flushed before.

#![cfg_attr(doctest, doc = include_str!("../README.md"))]

mod acquire;
mod append;
mod believe;
mod bounds;
mod classify;
mod commit;
mod credits;
mod digest;
mod error;
mod format;
mod geometry;
mod journal;
mod lane;
mod queue;
mod recover;
mod retire;
mod ring;
mod scan;
mod slot_scan;
mod stage;
mod staged_map;
mod stats;
mod superblock;
mod sync;
mod walk;

pub use acquire::{Credit, Need};
pub use append::{Appended, Published};
pub use commit::Waiter;
pub use digest::{Reader, RecordRef, Records};
pub use error::{AcquireError, Damage, JournalError, SlotDamage};
pub use geometry::JournalGeometry;
pub use journal::{Journal, JournalOptions, LogPositions, Media, Staging};
pub use quayfs_layout::record::{RunView, SlotRun};
pub use recover::RecoveredTo;
pub use retire::RetiredWord;
pub use scan::{Death, Scan};
pub use stage::Staged;
pub use staged_map::StagedMap;
pub use stats::JournalStats;

use quayfs_layout::jsb::Mode;

/// How soon an operation is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Durability {
    /// When it returns.
    Op,
    /// When a commit covers it.
    Commit,
}

impl Durability {
    fn mode(self) -> Mode {
        match self {
            Self::Op => Mode::Op,
            Self::Commit => Mode::Commit,
        }
    }

    fn of(mode: Mode) -> Self {
        match mode {
            Mode::Op => Self::Op,
            Mode::Commit => Self::Commit,
        }
    }
}

/// A record as a scan found it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its sequence number.
    pub seq: u64,
    /// What [`Journal::append`] was given.
    pub items: Vec<u8>,
    /// The slots it names.
    pub runs: Vec<SlotRun>,
}

/// Where the payload of a committed block is: enough to read it, and to tell it from any other
/// content that block or slot ever had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SlotRef {
    /// Staging buffer.
    pub buffer: u16,
    /// Ring position in the buffer.
    pub pos: u64,
    /// Number of the record that names the slot.
    pub seq: u64,
    /// CRC32C of the payload.
    pub crc: u32,
}

/// A slot whose content is committed and not retired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LiveSlot {
    /// Staging buffer.
    pub buffer: u16,
    /// Ring position in the buffer.
    pub pos: u64,
    /// Logical block it holds.
    pub lbn: u64,
    /// CRC32C of the payload.
    pub crc: u32,
    /// Number of the record that names the slot.
    pub seq: u64,
}

impl LiveSlot {
    /// The reference under which the block is published.
    pub fn slot(&self) -> SlotRef {
        SlotRef {
            buffer: self.buffer,
            pos: self.pos,
            seq: self.seq,
            crc: self.crc,
        }
    }
}
