//! A region is one user's: the lock on its backing file.

use super::{Region, Source, open};
use crate::{Backend, LockKind, PmemError};
use parking_lot::Mutex;
use quayfs_transfer::{Reservation, lock_unless_reserved};
use rustix::fs::Advice;
use std::fs::File;
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::sync::Arc;
use std::time::Duration;

/// That of this process: it is one in a row that use the same region.
static RESERVATION: Mutex<Option<Arc<Reservation>>> = Mutex::new(None);

/// A region is reserved for this process, as the one before it has left it ([`Region::reserve`]): it can lock its file.
pub fn inherit_reservation(file: File) {
    *RESERVATION.lock() = Some(Arc::new(Reservation::inherited(file)));
}

impl Region {
    /// Reserves the backing file, which is locked, for this process and those that have the descriptor: no other one gets its
    /// lock from now on, before the last of them has ended. It takes the place of what this process had reserved before: a
    /// process serves one volume. `None`: that is not possible here.
    ///
    /// # Errors
    /// [`PmemError::Io`].
    pub fn reserve(&self) -> Result<Option<OwnedFd>, PmemError> {
        let Source::File { file, path } = &self.source else {
            return Ok(None);
        };
        let failed = open::io_error("reserve", path);
        let mut ours = RESERVATION.lock();
        let of_this_file = ours.take().filter(|ours| ours.is_of(file));
        let reserved = match of_this_file {
            Some(ours) => Some(ours),
            None => Reservation::new(file).map(Arc::new),
        };
        *ours = reserved;
        let passed_on = ours.as_ref().map(|ours| ours.as_fd().try_clone_to_owned());
        passed_on.transpose().map_err(failed)
    }

    /// Takes an advisory lock on the backing file, held until the region is dropped. `Ok(false)`:
    /// another region, of this or another process, holds it, or it is reserved for others ([`Region::reserve`]). A simulated region is always free.
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
                let ours = RESERVATION.lock().clone();
                let locked = lock_unless_reserved(file, kind, wait, ours.as_deref());
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
