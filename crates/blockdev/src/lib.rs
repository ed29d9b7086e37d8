//! The data device: an array of 4 KiB blocks that can be read, written, flushed and discarded.
//!
//! [`BlockDevice`] is what the file system is written against, [`FileDevice`] a regular file or block
//! device behind it. What a crash may do to a device is said in the persistence model of crate
//! `quayfs-pmem` (rules 8 and 9): a write is durable when a flush that began after it returned has
//! completed, and a failed flush is final.

mod buf;
mod create;
mod device;
mod file;
mod pieces;
mod probe;
mod scratch;
mod silence;
mod sys;

pub use buf::AlignedBuf;
pub use create::create_file;
pub use device::{BlockDevice, ReadRun, RegionRun, WriteRun, check_range, copy_and_write};
pub use file::{FileDevice, OpenError, Options};
pub use probe::{probe_other, probe_signature};
pub use quayfs_transfer::open_medium;
pub use scratch::Scratch;
pub use silence::Silence;

/// Bytes in a block, the unit of every transfer.
pub const BLOCK: usize = 4096;
