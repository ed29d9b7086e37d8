//! The lock order, and the only place where two inodes are locked.
//!
//! 1. the rename lock ([`RenameLock`]): one rename that moves a directory at a time;
//! 2. inodes by number (`InodeHandle::lock`);
//! 3. the range lock of an inode (`InodeHandle::range`);
//! 4. its append window, then its commit mutex (`InodeHandle::window`; `Edit::shared`);
//! 5. its extent map and image (`InodeHandle::extents`, `InodeHandle::image`);
//! 6. allocator groups (never across a wait);
//! 7. the journal's own locks: lane, staged map;
//! 8. a set of `store::partial`, under which no other lock is taken;
//! 9. the streams of `store::ahead`, then its free buffers.
//!
//! Beside them: the turn to flush the data device for records (`Engine::flush_data`), held during the flush by the
//! thread that commits, which holds none of 2 to 9; the list of orphans to be freed (`store::engine::orphans`), under
//! which no other lock is taken; what is posted to the threads that write for rounds
//! (`background::checkpoint::worker_pool`) and the turn to write a short part of it, and what large writes have posted (`store::behind`), under which no other
//! lock is taken either. A large write waits for room there with 2 and 3 held: what makes room is the device. And the right
//! to log grace times of a subject (`store::ns::quota::Logging`): an operation has it from the end of its record until that
//! is appended, and does without where another one has it; a change of limits, which holds none of 1 to 9, waits for it.
//!
//! Digest and rounds take none of 1 to 5. No thread waits for space while it holds any of them: what an operation
//! needs is reserved before (`Txn::begin`).

use std::sync::Arc;

use quayfs_sync::{Mutex, MutexGuard, RwLockWriteGuard};
use smallvec::{SmallVec, smallvec};

use quayfs_store::ns::inode::InodeHandle;

/// Serialises renames that move directories, so that no two of them can form a loop.
#[derive(Default)]
pub struct RenameLock(Mutex<()>);

impl RenameLock {
    /// Takes the lock.
    pub fn lock(&self) -> MutexGuard<'_, ()> {
        self.0.lock()
    }
}

/// Locks inodes exclusively, each once, in the order of their numbers.
pub fn lock_all<'c>(handles: &[&'c Arc<InodeHandle>]) -> SmallVec<[RwLockWriteGuard<'c, ()>; 2]> {
    if let [one, other] = handles
        && one.ino != other.ino
    {
        let (first, second) = match one.ino < other.ino {
            true => (one, other),
            false => (other, one),
        };
        return smallvec![first.lock.write(), second.lock.write()];
    }
    let mut order: SmallVec<[&'c Arc<InodeHandle>; 4]> = handles.into();
    order.sort_by_key(|c| c.ino);
    order.dedup_by_key(|c| c.ino);
    order.into_iter().map(|c| c.lock.write()).collect()
}
