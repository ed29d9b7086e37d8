//! Persistent memory: mapping it, storing to it, and knowing when a store is durable.
//!
//! Everything goes through [`Region`], by offset. No reference into the mapping ever leaves this
//! crate, so nothing outside it can dereference the medium or be broken by what is on it. [`Bytes`] have an
//! address, for system calls that read there.
//!
//! ```
//! use quayfs_pmem::Region;
//!
//! let region = Region::anonymous(8192);
//! region.write(4096, b"payload");
//! region.flush(4096, 7);
//! region.drain()?; // the payload is durable before the word that says that it is there
//! region.store_u64(0, 7);
//! region.persist(0, 8)?;
//! assert_eq!(region.read_vec(4096, region.load_u64(0)), b"payload");
//! # Ok::<(), quayfs_pmem::PmemError>(())
//! ```
//!
//! # The persistence model
//!
//! This is the one statement of what a crash may do to the medium. The file system, the crash
//! simulator and the documentation refer to it.
//!
//! ## Persistent memory
//!
//! 1. A store is *in flight* until it is settled. After a crash any subset of the in-flight stores
//!    may be on the medium, limited only by rules 2 and 3.
//! 2. An aligned 8-byte store ([`Region::store_u64`], likewise the aligned 4-byte
//!    [`Region::store_u32`]) is there or not, never in part. Nothing larger is atomic:
//!    [`Region::write`] is a series of aligned stores of at most 8 bytes, its [`atoms`], in ascending
//!    order; [`Region::write_nt`] is the same stores in no order at all, also within a line.
//! 3. Within one aligned 64-byte line ([`LINE`]) ordinary stores reach memory in program order: what
//!    is there is a prefix. Lines know nothing of each other, so a later store to another line
//!    may survive where an earlier one did not. The medium may take a line at any time, flushed or
//!    not: cache lines are evicted whenever the processor likes.
//! 4. On the backends [`Backend::Dax`] and [`Backend::Volatile`] a store is settled by
//!    [`Region::flush`] of its line *followed by* [`Region::fence`] *of the thread that flushed*. A
//!    flush without a fence promises nothing, and neither does a fence before the flush. A store to
//!    the line after the flush is in flight again. [`Region::write_nt`] needs the fence only. A
//!    fence settles what its own thread flushed or wrote non-temporally, not what others did. A thread
//!    that has ended, or was killed, leaves nothing in write-combining buffers: the kernel takes locks to
//!    end it, and each empties them (AMD 25112, "Write-Combining Completion Events"). What a dead process
//!    wrote non-temporally is therefore as an ordinary store, and the next one settles it by a flush and
//!    a fence.
//! 5. On the backend [`Backend::File`] neither flush nor fence settles anything: only [`Region::drain`]
//!    does, and it settles everything that any thread stored before the call. Nothing reaches the disk
//!    outside of drains, of evictions and of a batch log that is brought home, but one of them may be under way at any time, and write what others are storing:
//!    so any subset of the [`atoms`] stored since the last drain may be on the disk, in no order, not
//!    even within a line. A batch log ([`Region::log_batches`]) leaves less than that once it has been replayed.
//! 6. [`Region::drain`] is the durability edge on every backend. On `Dax` and `Volatile` it is
//!    exactly a fence. Code that orders one store before another for the sake of a crash uses
//!    `flush` and `drain`; where a fence suffices on memory and nothing depends on it on a file,
//!    `fence` is cheaper.
//! 7. A failed drain is final. The kernel may have dropped the dirty state of the pages that it could
//!    not write, so a later success would prove nothing: every later drain fails too.
//!
//! What [`Backend::Volatile`] survives is the death of the process, not of the machine.
//!
//! ## Data device
//!
//! 8. A write not followed by a completed flush may be absent, present, or torn: any subset of its
//!    512-byte sectors ([`SECTOR`]), independent of other writes. A completed flush settles every write that had
//!    returned before the flush began. A failed flush is final, as in rule 7.
//!
//! ## Both
//!
//! 9. Bits rot, devices return errors, are absent, exchanged or belong to another volume. Nothing
//!    read is trusted without its checksum.
//!
//! # Concurrency
//!
//! Reads and stores of different threads may meet on the same bytes; the result is then a mixture of
//! old and new (whole, for the 4- and 8-byte accesses). [`Region::store_u64`] is a release store and
//! [`Region::load_u64`] an acquire load. Non-temporal stores are *not* ordered by a release store:
//! fence before publishing what [`Region::write_nt`] wrote, to threads as well as to the medium.

#![cfg_attr(doctest, doc = include_str!("../README.md"))]

pub mod libpmem;

mod backend;
mod batches;
mod bytes;
mod copy;
mod disk;
mod drain;
mod error;
mod fault;
mod held;
mod memory;
mod observer;
mod region;
mod throttle;
mod units;

pub use backend::Backend;
pub use batches::{BatchLog, Replayed, random};
pub use bytes::Bytes;
pub use disk::LEAST_MEMORY;
pub use error::PmemError;
pub use fault::{Ending, exit_on_fault};
pub use observer::Observer;
pub use quayfs_transfer::{LockKind, lock_within};
pub use region::{MapOptions, Region, fill_new, inherit_reservation, take_space};
pub use throttle::WriteThrottle;
pub use units::{LINE, PAGE, SECTOR, atoms, lines};
