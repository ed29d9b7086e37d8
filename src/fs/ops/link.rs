//! link.

use quayfs_layout::Ino;

use crate::error::{FsError, Result};
use crate::fs::attr::{dirent_kind, now};
use crate::fs::locks::lock_all;
use crate::fs::ops::create::{LINK_MAX, entry_needs};
use crate::fs::{Attr, Fs, check_name, live_dir};
use crate::ns::dir;
use crate::txn::{Needs, Txn};

impl Fs {
    /// Gives an inode one more name.
    pub fn link(&self, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attr> {
        check_name(name)?;
        let pcell = self.cell(parent)?;
        let cell = self.cell(ino)?;
        self.e.retrying(|| {
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
            if inode.nlink == 0 {
                return Err(FsError::NoEntry);
            }
            if inode.nlink >= LINK_MAX {
                return Err(FsError::TooManyLinks);
            }
            if dir::lookup(&txn, self.e.hash, &dir, name)?.is_some() {
                return Err(FsError::Exists);
            }
            let child = (ino, dirent_kind(inode.mode));
            dir::insert(&mut txn, self.e.hash, (parent, &mut dir), name, child)?;
            inode.nlink += 1;
            inode.ctime = now();
            dir.mtime = inode.ctime;
            dir.ctime = inode.ctime;
            txn.put_inode(ino, &inode);
            txn.put_inode(parent, &dir);
            let seq = txn.commit()?;
            pcell.install(dir, seq);
            cell.install(inode.clone(), seq);
            self.e.inodes.looked_up(ino);
            Ok(Attr { ino, inode })
        })
    }
}
