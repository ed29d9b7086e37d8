//! link.

use quayfs_layout::Ino;
use quayfs_layout::inode::{FLAG_PROJECT, FLAG_SYNC, Inode};
use quayfs_layout::intent::IntentKind;
use quayfs_store::error::{FsError, Result};
use quayfs_store::ns::dir;
use quayfs_store::txn::{Edit, Needs, Outcome, Txn};

use crate::attr::{dirent_kind, now};
use crate::locks::lock_all;
use crate::ops::create::{LINK_MAX, entry_needs};
use crate::{Attr, Fs, check_name, edit_dir, protect};

impl Fs {
    /// Gives an inode one more name. An inode without a name gets its first if a process has it open; which of these
    /// may have one, the kernel decides (`O_TMPFILE` without `O_EXCL`). The same record takes back the intent to free
    /// it.
    pub fn link(&self, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attr> {
        check_name(name)?;
        let pcell = self.cell(parent)?;
        let cell = self.cell(ino)?;
        let made = self.e.retrying(|| {
            let needs = entry_needs(pcell.with(|i| i.depth));
            let mut txn = Txn::begin(
                &self.e,
                Needs {
                    prefer: parent as usize,
                    ..needs
                },
            )?;
            let _op = lock_all(&[&pcell, &cell]);
            let mut dir_edit = edit_dir(&pcell)?;
            let mut edit = Edit::exclusive(&cell, cell.image());
            let (dir, inode) = (&mut dir_edit.image, &mut edit.image);
            if inode.is_dir() {
                return Err(FsError::Perm);
            }
            protect::change(inode)?;
            // An orphan that the kernel does not know may already have been freed in part.
            let nameless = inode.nlink == 0;
            if nameless && !(cell.is_known() && self.e.intents.has(ino, IntentKind::Orphan)) {
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
                true => self.e.intents.fulfil(&mut txn, ino, IntentKind::Orphan),
                false => None,
            };
            quayfs_restart::inode(ino);
            txn.commit(Outcome::from([&mut dir_edit, edit.told()]).fulfils([orphan, None]))?;
            let inode = edit.image;
            Ok(Attr { ino, inode })
        })?;
        self.settle_names(&pcell)?;
        self.settle(&cell, FLAG_SYNC)?;
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
