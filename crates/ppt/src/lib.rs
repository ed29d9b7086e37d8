//! The persistent page table: where each logical block is on the data device.
//!
//! The map is a *permutation*. Every logical block number, free ones too, owns exactly one physical
//! block, and only a swap of two entries changes which. So no physical block can leak or be owned
//! twice, and [`Ppt::verify`] can prove it.
//!
//! # Changing the map
//!
//! A [`Txn`] changes any number of entries, their content checksums, and one 8-byte word elsewhere
//! in the region (the journal's `retired_seq`), all or nothing, by an undo log:
//!
//! 1. the start record and an undo record per entry are written to the log's lanes and drained:
//!    **edge A**;
//! 2. entries, checksums and the word are stored in place, flushed and drained: **edge B**;
//! 3. the commit word is stored and drained: **edge C**. One 8-byte word commits all lanes.
//!
//! | a crash | leaves | attach |
//! |---|---|---|
//! | before A | the log in part, the map as it was | finds records missing and the map untouched, changes nothing |
//! | between A and B | the log whole, the map mixed | undoes; without A a changed entry could lack its record |
//! | between B and C | the log whole, the map new | undoes |
//! | after C | the commit word with the log's generation | changes nothing; without B it could be there before an entry is |
//!
//! Undoing stores old values and may be repeated. [`Ppt::attach`] always closes, durably and before
//! any other store to the map, the generation that was open or could have been, so that records
//! left over from it can never be taken for those of a later transaction.
//!
//! Two smaller changes need no log, since each entry stands for itself: [`Ppt::zero`] and
//! [`Ppt::write_direct`].
//!
//! # Faults
//!
//! Entries, commit word and records are checked words and checksummed records. A damaged entry is
//! an error for its block alone. A damaged commit word is repaired from its spare copy. Where the
//! log is too damaged to say what the map should be, attaching for writing is refused, and
//! attaching a read-only region still gives the best that is known. [`Ppt::salvage`] makes that
//! durable; it is for repair and for private copies. The exact rule is one function
//! over all inputs, in module `recover`.
//!
//! The crate knows neither files nor journal records; which blocks to swap, and when, is policy
//! and lives elsewhere.

#![cfg_attr(doctest, doc = include_str!("../README.md"))]

mod area;
mod attach;
mod error;
mod geometry;
mod log;
mod recover;
mod salvage;
mod table;
mod txn;
mod verify;

pub use attach::AttachReport;
pub use error::{Damage, PptError};
pub use geometry::PptGeometry;
pub use quayfs_layout::l2p::{BlockState, OldWord};
pub use table::{Mapping, Ppt};
pub use txn::Txn;
pub use verify::{Findings, VerifyReport};
