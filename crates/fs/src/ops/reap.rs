//! Freeing inodes without names, in bounded steps (ordering 9).

use std::sync::atomic::Ordering;

use quayfs_layout::Ino;
use quayfs_layout::intent::IntentKind;
use quayfs_layout::xattr;
use quayfs_store::error::{FsError, Result};
use quayfs_store::ns::inode::InodeHandle;
use quayfs_store::ns::node::STEP;
use quayfs_store::ns::{blob, dir};
use quayfs_store::txn::{Edit, Outcome, Reservation, Txn};

use crate::Fs;
use crate::extents;
use crate::ops::lookup::TARGET_MAX;
use crate::predecessor::Predecessor;

/// Bytes of items of one step, which frees so many extents at most, and blocks of so many pages of the bitmap.
pub const STEP_BYTES: u32 = 2048 + STEP as u32 * (96 + 16);

/// What a step that frees space needs: it may use what is kept for such operations.
pub fn step_reservation() -> Reservation {
    Reservation {
        record: STEP_BYTES,
        nodes: 8,
        privileged: true,
        ..Reservation::default()
    }
}

impl Fs {
    /// Frees an inode that has no name if the kernel does not know it any more.
    pub fn reap_if_orphan(&self, ino: Ino) {
        if !self.e.intents.has(ino, IntentKind::Orphan) || self.e.inodes.is_known(ino) {
            return;
        }
        if let Err(err) = self.reap(ino, true) {
            // The intent stays: the next mount tries again.
            tracing::warn!("orphan inode {ino}: {err}");
        }
    }

    /// [`Fs::reap_if_orphan`] by a thread that answers no requests: it asks the kernel about an inode that the kernel
    /// may know from the last daemon.
    pub fn reap_unless_known(&self, ino: Ino) {
        // Held until the end: a handle that was loaded anew would not remember what the kernel has said.
        let mut denied = None;
        if let Some(predecessor) = self.volume.predecessor()
            && self.e.intents.has(ino, IntentKind::Orphan)
            && self.e.inodes.is_presumed(ino)
            && !(predecessor.knows)(ino)
        {
            denied = self.e.inodes.denied(&self.e.nodes, ino).ok();
        }
        self.reap_if_orphan(ino);
        drop(denied);
    }

    /// Finishes truncates that a crash has interrupted, before anything else is done to the files.
    pub fn resume_truncates(&self) {
        for (ino, kind) in self.e.intents.all() {
            if kind == IntentKind::Truncate
                && let Err(err) = self.finish_truncate(ino)
            {
                // The intent stays, and the file grows only after it is done.
                tracing::warn!("truncate of inode {ino}: {err}");
            }
        }
    }

    /// Frees the orphans of the previous life.
    pub fn reap_unknown_orphans(&self) {
        for (ino, kind) in self.e.intents.all() {
            if self.e.stopping().load(Ordering::Acquire) {
                return;
            }
            // The kernel does not know yet what an answer tells of that the last daemon could not give.
            let is_told = |p: &Predecessor| p.requests.tells_of(ino);
            if kind == IntentKind::Orphan && !self.predecessor().is_some_and(is_told) {
                self.reap_unless_known(ino);
            }
        }
    }

    /// Frees all orphans, at the end of a mount.
    pub fn reap_all_orphans(&self) {
        for (ino, kind) in self.e.intents.all() {
            if kind == IntentKind::Orphan
                && let Err(err) = self.reap(ino, false)
            {
                tracing::warn!("orphan inode {ino}: {err}");
            }
        }
    }

    /// Frees an orphan, step by step; if `unknown`, only as long as the kernel does not learn of it again.
    fn reap(&self, ino: Ino, unknown: bool) -> Result<()> {
        let handle = match self.handle(ino) {
            Err(FsError::Stale) => return Ok(()),
            other => other?,
        };
        if let Some(w) = handle.window.lock().take() {
            self.e.return_window(w);
        }
        while !self.e.retrying(|| self.reap_step(&handle, unknown))? {}
        Ok(())
    }

    /// One record; whether there is nothing left to do.
    fn reap_step(&self, handle: &InodeHandle, unknown: bool) -> Result<bool> {
        let ino = handle.ino;
        let mut txn = Txn::begin(&self.e, step_reservation())?;
        let _op = handle.lock.write();
        let (mode, nlink, is_file) = handle.with(|i| (i.mode, i.nlink, i.is_file()));
        if mode == 0 || unknown && handle.is_known() {
            return Ok(true);
        }
        if nlink != 0 && !self.e.intents.has(ino, IntentKind::Orphan) {
            // It got a name before the lock was taken.
            return Ok(true);
        }
        if nlink != 0 {
            let what = format_args!("inode {ino} has a name, and an intent that it be freed");
            return Err(self.e.watch().damaged(what));
        }
        let mut edit = Edit::shared(handle)?;
        if is_file {
            let emptied = self.empty_step(handle, &mut txn, &mut edit)?;
            let inode = &edit.image;
            // What has no extent page has few extents, all gone now: the inode goes with them.
            if emptied && (inode.root != 0 || inode.xattr != 0) {
                txn.commit(&mut edit)?;
                return Ok(false);
            }
        }
        let inode = &edit.image;
        if inode.is_dir() {
            let mut pages = Vec::new();
            dir::pages(&txn, inode, &mut |id| pages.push(id))?;
            for id in pages {
                txn.free_node(id)?;
            }
        }
        if inode.is_symlink() && inode.root != 0 {
            blob::free(&mut txn, ino, inode.root, TARGET_MAX)?;
        }
        if inode.xattr != 0 {
            blob::free(&mut txn, ino, inode.xattr, xattr::SET_MAX)?;
        }
        // A truncate that could not be finished ends here as well; the number may be reused.
        let kept = self.e.intents.finish_all(&mut txn, ino);
        txn.commit(Outcome::from(edit.freed()).finishes(kept))?;
        Ok(true)
    }

    /// Frees some extents or extent pages of a file; whether there were any to begin with.
    fn empty_step(
        &self,
        handle: &InodeHandle,
        txn: &mut Txn<'_>,
        edit: &mut Edit<'_>,
    ) -> Result<bool> {
        extents::ensure(&self.e, handle)?;
        let (end, count) = extents::with(handle, |x| (x.bounded_end(0..u64::MAX, STEP), x.len()))?;
        if count == 0 && edit.image.root == 0 {
            return Ok(false);
        }
        let mut freed = Vec::new();
        extents::prepare_free(&self.e, handle, 0..end)?;
        edit.extents(txn, 0, |x, txn, inode| {
            if count == 0 {
                x.drop_pages(txn, inode, STEP)?;
            } else {
                freed = x.remove(txn, inode, 0..end);
            }
            Ok(())
        })?;
        for r in freed {
            txn.free_blocks(r)?;
        }
        edit.image.size = 0;
        Ok(true)
    }
}
