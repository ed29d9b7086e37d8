//! Bytes on media, and nothing else.
//!
//! Every structure that QuayFS stores on the pmem region or on the data device is defined here:
//! its size, its fields, its checksum. The crate does no I/O, knows no policy and contains no
//! unsafe code; all integers are little-endian and of fixed width. `docs/internals/format.md` tells the
//! same story in prose.
//!
//! | module | structure |
//! |---|---|
//! | [`config`] | configuration table, data-device header |
//! | [`geometry`] | where every area lies |
//! | [`backup`] | copies of the first and of the journal superblock |
//! | [`batch`] | the batch log of a region on a disk |
//! | [`jsb`] | journal superblock words |
//! | [`slot`] | staging slot headers |
//! | [`record`] | record framing in a lane |
//! | [`item`] | what a record says: deltas, bits, nodes, charges |
//! | [`l2p`] | persistent page table entries and undo records |
//! | [`node`] | node pages and the node address table |
//! | [`inode`] | inode images |
//! | [`dirent`] | directory leaves and index pages |
//! | [`extent`] | extent pages |
//! | [`intent`] | orphans and unfinished truncates |
//! | [`quota`] | what projects, users and groups use and may use |
//! | [`xattr`] | extended attributes |
//! | [`acl`] | access control lists among them |

pub mod acl;
pub mod backup;
pub mod batch;
pub mod bytes;
pub mod checksum;
pub mod config;
pub mod dirent;
pub mod extent;
pub mod flaw;
pub mod geometry;
mod guard;
pub mod inode;
pub mod intent;
pub mod item;
pub mod jsb;
pub mod l2p;
pub mod node;
pub mod quota;
pub mod record;
pub mod size;
pub mod slot;
pub mod xattr;

pub use guard::Guard;

/// Size of a data block, a node page and a staging slot in bytes.
pub const BLOCK: usize = 4096;

/// Size of a cache line in bytes, the unit in which stores reach persistent memory.
pub const LINE: usize = 64;

/// A logical block number: an index into the page table.
pub type Lbn = u64;

/// An inode number. 0 is never used; 1 is the root directory.
pub type Ino = u64;
