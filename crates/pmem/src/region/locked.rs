//! A region is one user's: the lock on its backing file.

use super::{Region, Source, open};
use crate::{Backend, LockKind, PmemError};
use rustix::fs::Advice;
use std::fs::File;
use std::num::NonZeroU64;
use std::os::unix::fs::FileTypeExt;
use std::time::Duration;

impl Region {
    /// Takes an advisory lock on the backing file, held until the region is dropped. `Ok(false)`:
    /// another region, of this or another process, holds it. A simulated region is always free.
    ///
    /// # Errors
    /// [`PmemError::Io`] if the system cannot lock this file.
    pub fn try_lock(&self, kind: LockKind) -> Result<bool, PmemError> {
        self.lock_within(kind, Duration::ZERO)
    }

    /// [`Region::try_lock`], trying again for up to `wait`: the previous daemon may be finishing. What only looks at the file
    /// is waited for in any case ([`quayfs_transfer::lock_within`]).
    ///
    /// # Errors
    /// As [`Region::try_lock`].
    pub fn lock_within(&self, kind: LockKind, wait: Duration) -> Result<bool, PmemError> {
        match &self.source {
            Source::Simulated(_) | Source::Copy(_) => Ok(true),
            Source::File { file, path } => {
                let locked = quayfs_transfer::lock_within(file, kind, wait);
                let locked = locked.map_err(open::io_error("lock", path))?;
                if !locked || self.backend != Backend::File {
                    return Ok(locked);
                }
                // What a process that has died had under way arrives before anything is read.
                let arrived = match (&self.disk, kind) {
                    (Some(disk), LockKind::Exclusive) => disk.claim_file(self.len(), wait),
                    _ => Ok(true),
                };
                forget_cached(file, self.len());
                arrived.map_err(open::io_error("lock", path))
            }
        }
    }

    /// [`Region::try_lock`] with [`LockKind::Exclusive`].
    ///
    /// # Errors
    /// As [`Region::try_lock`].
    pub fn try_lock_exclusive(&self) -> Result<bool, PmemError> {
        self.try_lock(LockKind::Exclusive)
    }

    /// [`Region::lock_within`] with [`LockKind::Exclusive`].
    ///
    /// # Errors
    /// As [`Region::try_lock`].
    pub fn lock_exclusive(&self, wait: Duration) -> Result<bool, PmemError> {
        self.lock_within(LockKind::Exclusive, wait)
    }
}

/// Of a block device the page cache may have older pages than the disk: asynchronous writes past it do not drop what was
/// read while they were under way. The previous user may have left some, if something else has the device open. To be
/// called before anything of the mapping is accessed, and when nothing is written.
fn forget_cached(file: &File, len: u64) {
    if file
        .metadata()
        .is_ok_and(|m| m.file_type().is_block_device())
    {
        let _ = rustix::fs::fadvise(file, 0, NonZeroU64::new(len), Advice::DontNeed);
    }
}
