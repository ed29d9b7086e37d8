//! fsync, fsyncdir, syncfs, and the end of all that.

use std::sync::atomic::Ordering;

use quayfs_journal::Waiter;
use quayfs_layout::Ino;
use quayfs_layout::inode::{FLAG_DIRSYNC, FLAG_SYNC};
use quayfs_options::Durability;
use quayfs_store::error::{FsError, Result};
use quayfs_store::ns::inode::InodeHandle;

use crate::status::may_manage;
use crate::{Asker, Fs};

impl Fs {
    /// Whether `fsync` has nothing to do, so that the kernel need not send it.
    pub fn sync_is_free(&self) -> bool {
        self.e.durability == Durability::Op
    }

    /// Makes everything done before durable, by whomever and to whatever, with its data. In mode `op` it already is;
    /// in mode `commit` the running transaction commits.
    pub fn fsync(&self, ino: Ino) -> Result<()> {
        if self.sync_is_free() {
            return Ok(());
        }
        self.handle(ino)?;
        self.sync_all()
    }

    /// As [`Fs::fsync`], if that can begin at once. While another commit runs it returns `None` instead, and what
    /// `told` makes is called with the result, by another thread.
    pub fn fsync_or_queue<T>(&self, ino: Ino, told: impl FnOnce() -> T) -> Option<Result<()>>
    where
        T: FnOnce(Result<()>) + Send + 'static,
    {
        if self.sync_is_free() {
            return Some(Ok(()));
        }
        if let Err(e) = self.handle(ino) {
            return Some(Err(e));
        }
        let waiter = || -> Waiter {
            let told = told();
            Box::new(move |done| told(done.map(drop).map_err(FsError::device)))
        };
        self.e.sync_or_queue(waiter).map(|done| done.map(drop))
    }

    /// In mode `commit`: what was done to an inode with one of these flags is durable before the caller
    /// hears of it.
    pub(super) fn sync_if_flagged(&self, handle: &InodeHandle, flags: u32) -> Result<()> {
        if self.sync_is_free() || handle.with(|i| i.flags & flags == 0) {
            return Ok(());
        }
        self.sync_all()
    }

    /// [`Fs::sync_if_flagged`] after a change of names in a directory.
    pub(super) fn settle_names(&self, dir: &InodeHandle) -> Result<()> {
        self.sync_if_flagged(dir, FLAG_SYNC | FLAG_DIRSYNC)
    }

    /// Makes everything durable.
    pub fn sync_all(&self) -> Result<()> {
        self.e.sync().map(drop)
    }

    /// Ends all operations but those under way. From here on there are only errors, and the end of the mount leaves
    /// the volume as the death of the daemon would, for the next mount to recover. Before that, everything that was
    /// done is made durable, since the caller may count on that.
    ///
    /// # Errors
    /// [`FsError::Perm`] unless the caller has `CAP_SYS_ADMIN` or runs the daemon; [`FsError::Device`] if something
    /// could not be made durable: then, too, it is the end.
    pub fn kill(&self, caller: impl Asker) -> Result<()> {
        may_manage(&caller)?;
        tracing::warn!("shut down by user {}", caller.ids().uid);
        self.dead.store(true, Ordering::Release);
        if self.e.options.read_only {
            return Ok(());
        }
        self.sync_all()
    }

    /// Fails after [`Fs::kill`].
    pub fn alive(&self) -> Result<()> {
        if self.dead.load(Ordering::Acquire) {
            return Err(FsError::internal("the mount was shut down"));
        }
        Ok(())
    }
}
