//! link.

use quayfs_layout::Ino;
use quayfs_layout::inode::{FLAG_PROJECT, FLAG_SYNC, Inode};
use quayfs_layout::intent::IntentKind;
use quayfs_store::error::{FsError, Result};
use quayfs_store::ns::dir;
use quayfs_store::txn::{Edit, Outcome, Reservation, Txn};

use crate::attr::{dirent_kind, now};
use crate::locks::lock_all;
use crate::ops::create::{LINK_MAX, entry_reservation};
use crate::{Attr, Fs, check_name, edit_dir, protect};

impl Fs {
    /// Gives an inode one more name. An inode without a name gets its first if a process has it open; which of these
    /// may have one, the kernel decides (`O_TMPFILE` without `O_EXCL`). The same record takes back the intent to free
    /// it.
    pub fn link(&self, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attr> {
        check_name(name)?;
        let parent_handle = self.handle(parent)?;
        let handle = self.handle(ino)?;
        let made = self.e.retrying(|| {
            let reservation = entry_reservation(parent_handle.with(|i| i.depth));
            let mut txn = Txn::begin(
                &self.e,
                Reservation {
                    prefer: parent as usize,
                    ..reservation
                },
            )?;
            let _op = lock_all(&[&parent_handle, &handle]);
            let mut dir_edit = edit_dir(&parent_handle)?;
            let mut edit = Edit::exclusive(&handle, handle.image());
            let (dir, inode) = (&mut dir_edit.image, &mut edit.image);
            if inode.is_dir() {
                return Err(FsError::Perm);
            }
            protect::change(inode)?;
            // An orphan that the kernel does not know may already have been freed in part.
            let nameless = inode.nlink == 0;
            if nameless && !(handle.is_known() && self.e.intents.has(ino, IntentKind::Orphan)) {
                return Err(FsError::NoEntry);
            }
            if inode.nlink >= LINK_MAX {
                return Err(FsError::TooManyLinks);
            }
            let vacancy = dir::vacancy(&txn, self.e.hash, dir, name)?;
            protect::grow(dir)?;
            may_join(dir, inode)?;
            let child = (ino, dirent_kind(inode.mode));
            dir::insert(&mut txn, (parent, dir), vacancy, name, child)?;
            inode.nlink += 1;
            inode.ctime = now();
            dir.mtime = inode.ctime;
            dir.ctime = inode.ctime;
            let orphan = match nameless {
                true => self.e.intents.finish(&mut txn, ino, IntentKind::Orphan),
                false => None,
            };
            quayfs_restart::inode(ino);
            txn.commit(Outcome::from([&mut dir_edit, edit.told()]).finishes([orphan, None]))?;
            let inode = edit.image;
            Ok(Attr { ino, inode })
        })?;
        self.settle_names(&parent_handle)?;
        self.sync_if_flagged(&handle, FLAG_SYNC)?;
        Ok(made)
    }
}

/// Whether an inode may get a name in this directory: one that passes its project on takes none of
/// another.
pub(super) fn may_join(dir: &Inode, inode: &Inode) -> Result<()> {
    if dir.flags & FLAG_PROJECT != 0 && dir.project != inode.project {
        return Err(FsError::OtherProject);
    }
    Ok(())
}
