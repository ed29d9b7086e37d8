//! link.

use quayfs_layout::Ino;
use quayfs_layout::inode::{FLAG_PROJECT, FLAG_SYNC, Inode};
use quayfs_layout::intent::IntentKind;
use quayfs_store::error::{FsError, Result};
use quayfs_store::ns::dir;
use quayfs_store::txn::{Needs, Txn};

use crate::attr::{dirent_kind, now};
use crate::locks::lock_all;
use crate::ops::create::{LINK_MAX, entry_needs};
use crate::{Attr, Fs, check_name, live_dir, protect};

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
            let mut dir = live_dir(&pcell)?;
            let mut inode = cell.image();
            if inode.is_dir() {
                return Err(FsError::Perm);
            }
            protect::change(&inode)?;
            // An orphan that the kernel does not know may already have been freed in part.
            let orphan = if inode.nlink == 0 {
                let known = cell.is_known();
                let slot = self.e.intents.find(ino, IntentKind::Orphan);
                Some(slot.filter(|_| known).ok_or(FsError::NoEntry)?)
            } else {
                None
            };
            if inode.nlink >= LINK_MAX {
                return Err(FsError::TooManyLinks);
            }
            let vacancy = dir::vacancy(&txn, self.e.hash, &dir, name)?;
            protect::grow(&dir)?;
            may_join(&dir, &inode)?;
            let child = (ino, dirent_kind(inode.mode));
            dir::insert(&mut txn, (parent, &mut dir), vacancy, name, child)?;
            inode.nlink += 1;
            inode.ctime = now();
            dir.mtime = inode.ctime;
            dir.ctime = inode.ctime;
            if let Some(slot) = orphan {
                self.e.intents.write(&mut txn, slot, None);
            }
            txn.put_inode(ino, &inode);
            txn.put_inode(parent, &dir);
            quayfs_restart::inode(ino);
            let seq = txn.commit()?;
            pcell.install(dir, seq);
            cell.install(inode.clone(), seq);
            cell.looked_up();
            if orphan.is_some() {
                self.e.intents.kept(ino, IntentKind::Orphan);
            }
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
