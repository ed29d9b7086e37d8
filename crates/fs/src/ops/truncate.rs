//! Changing the size of a file.
//!
//! A shrink into a block stages that block with zeros behind the new end, in the record that
//! changes the size. What lies behind is freed by that record if it is little, else in bounded
//! steps under an intent, with `[new size, inf)` locked until the last step (ordering 9).

use std::ops::Range;

use quayfs_layout::BLOCK;
use quayfs_layout::Ino;
use quayfs_layout::inode::{FLAG_SYNC, Inode, Time};
use quayfs_layout::intent::IntentKind;
use quayfs_store::error::{FsError, Result};
use quayfs_store::ns::inode::InodeHandle;
use quayfs_store::ns::node::STEP;
use quayfs_store::txn::{Edit, Outcome, Reservation, Txn};

use crate::attr::{drop_privileges, now};
use crate::data::read::{self, Want};
use crate::data::write::SIZE_MAX;
use crate::extents;
use crate::ops::reap::{STEP_BYTES, step_reservation};
use crate::{Attr, Fs, protect};

const B: u64 = BLOCK as u64;

/// What else the record of a truncate changes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Also {
    /// Modification time instead of the time of the operation.
    pub mtime: Option<Time>,
    /// Clear set-user-id and set-group-id bits.
    pub kill_privileges: bool,
}

impl Fs {
    /// Sets the size of a regular file.
    pub fn truncate(&self, ino: Ino, size: u64, also: Also) -> Result<Attr> {
        if size > SIZE_MAX {
            return Err(FsError::FileTooBig);
        }
        let handle = self.handle(ino)?;
        if !handle.with(Inode::is_file) {
            return Err(if handle.with(Inode::is_dir) {
                FsError::IsDir
            } else {
                FsError::Invalid
            });
        }
        if let Some(w) = handle.window.lock().take() {
            self.e.return_window(w);
        }
        if self.e.intents.has(ino, IntentKind::Truncate) {
            // One that ran out of space; or one that is running, and this waits for its end.
            self.finish_truncate(ino)?;
        }
        let attr = self.e.retrying(|| {
            loop {
                if let Some(attr) = self.try_truncate(&handle, size, also)? {
                    return Ok(attr);
                }
            }
        })?;
        self.sync_if_flagged(&handle, FLAG_SYNC)?;
        Ok(attr)
    }

    /// `None` if the size changed between look and lock.
    fn try_truncate(&self, handle: &InodeHandle, size: u64, also: Also) -> Result<Option<Attr>> {
        extents::ensure(&self.e, handle)?;
        let old = handle.with(|i| i.size);
        let reservation = Reservation {
            slots: 1,
            record: STEP_BYTES + 1024,
            ..step_reservation()
        };
        let mut txn = Txn::begin(&self.e, reservation)?;
        let _op = handle.lock.read();
        let from = old.min(size);
        let _range = handle.range.write(from / B * B..u64::MAX);
        let image = handle.image();
        if image.mode == 0 {
            return Err(FsError::Stale);
        }
        protect::change(&image)?;
        if image.size != old {
            return Ok(None);
        }
        let first = size.div_ceil(B);
        let (end, rest) = if size < old {
            self.bounded(handle, first)?
        } else {
            (first, false)
        };
        if size < old {
            self.stage_tail(handle, &mut txn, size)?;
            extents::prepare_free(&self.e, handle, first..end)?;
        }
        let intent = match rest {
            true => Some(
                self.e
                    .intents
                    .begin(&mut txn, handle.ino, IntentKind::Truncate)?,
            ),
            false => None,
        };
        let mut inode = {
            let mut edit = Edit::shared(handle)?;
            self.cut(&mut edit, &mut txn, first..end)?;
            let image = &mut edit.image;
            image.size = size;
            image.ctime = now();
            image.mtime = also.mtime.unwrap_or(image.ctime);
            if also.kill_privileges {
                drop_privileges(image);
            }
            txn.commit(Outcome::from(&mut edit).begins(intent))?;
            edit.image
        };
        if rest {
            self.free_behind(handle, first)?;
            inode = handle.image();
        }
        let ino = handle.ino;
        Ok(Some(Attr { ino, inode }))
    }

    /// End of what one record can free from block `first` on, and whether more is left.
    fn bounded(&self, handle: &InodeHandle, first: u64) -> Result<(u64, bool)> {
        extents::with(handle, |x| {
            let end = x.bounded_end(first..u64::MAX, STEP);
            (end, end != u64::MAX)
        })
    }

    /// Bytes behind the end of the file in its last block are zeros, always.
    /// Whether there was anything to do.
    fn stage_tail(&self, handle: &InodeHandle, txn: &mut Txn<'_>, size: u64) -> Result<bool> {
        let keep = (size % B) as usize;
        if keep == 0 {
            return Ok(false);
        }
        let Some(lbn) = extents::with(handle, |x| x.lbn(size / B))? else {
            return Ok(false);
        };
        let mut buf = vec![0; BLOCK];
        read::blocks(&self.e, &[Want { lbn, at: 0 }], &mut buf)?;
        if buf[keep..].iter().all(|b| *b == 0) {
            return Ok(false);
        }
        buf[keep..].fill(0);
        txn.stage(&[(lbn, &buf)])?;
        Ok(true)
    }

    /// Unmaps and frees blocks, which begin and end with extents or split two.
    fn cut(&self, edit: &mut Edit<'_>, txn: &mut Txn<'_>, blocks: Range<u64>) -> Result<()> {
        if blocks.is_empty() {
            return Ok(());
        }
        let mut freed = Vec::new();
        // An extent that is cut keeps its place for the part in front. One that is freed in steps may have another part
        // behind.
        edit.extents(txn, 1, |x, txn, image| {
            freed = x.remove(txn, image, blocks);
            Ok(())
        })?;
        freed.into_iter().try_for_each(|r| txn.free_blocks(r))
    }

    /// Frees everything from block `first` on in bounded steps, then the intent. The caller holds the range lock from
    /// there to infinity; nothing here waits for anything but the background threads.
    fn free_behind(&self, handle: &InodeHandle, first: u64) -> Result<()> {
        loop {
            let last = self.e.retrying(|| {
                let mut txn = Txn::begin(&self.e, step_reservation())?;
                let (end, rest) = self.bounded(handle, first)?;
                extents::prepare_free(&self.e, handle, first..end)?;
                let mut edit = Edit::shared(handle)?;
                self.cut(&mut edit, &mut txn, first..end)?;
                let kept = match rest {
                    true => None,
                    false => self
                        .e
                        .intents
                        .finish(&mut txn, handle.ino, IntentKind::Truncate),
                };
                txn.commit(Outcome::from(&mut edit).finishes([kept, None]))?;
                Ok(!rest)
            })?;
            if last {
                return Ok(());
            }
        }
    }

    /// A truncate that failed halfway is finished before the file grows or is allocated to: else
    /// what it has not freed yet would show again (ordering 9).
    pub fn finish_left_truncate(&self, ino: Ino) -> Result<()> {
        if self.e.intents.truncates() > 0 && self.e.intents.has(ino, IntentKind::Truncate) {
            quayfs_restart::preparing(|| self.finish_truncate(ino))?;
        }
        Ok(())
    }

    /// Resumes a truncate after a crash or a shortage, if it is still unfinished.
    pub fn finish_truncate(&self, ino: Ino) -> Result<()> {
        let handle = self.handle(ino)?;
        extents::ensure(&self.e, &handle)?;
        let _op = handle.lock.read();
        // All of the file: the size decides what is freed and must stand still.
        let _range = handle.range.write(0..u64::MAX);
        if !self.e.intents.has(ino, IntentKind::Truncate) {
            return Ok(());
        }
        let size = handle.with(|i| i.size);
        self.zero_tail(&handle, size)?;
        self.free_behind(&handle, size.div_ceil(B))
    }

    /// What a repair has found behind the end of a file in its last block goes too. The caller holds the range lock.
    fn zero_tail(&self, handle: &InodeHandle, size: u64) -> Result<()> {
        self.e.retrying(|| {
            let reservation = Reservation {
                slots: 1,
                nodes: 8,
                privileged: true,
                ..Reservation::default()
            };
            let mut txn = Txn::begin(&self.e, reservation)?;
            match self.stage_tail(handle, &mut txn, size) {
                // A block that cannot be read shows nothing.
                Ok(false) | Err(FsError::Content(_)) => return Ok(()),
                other => other?,
            };
            txn.commit(&mut Edit::shared(handle)?)?;
            Ok(())
        })
    }
}
