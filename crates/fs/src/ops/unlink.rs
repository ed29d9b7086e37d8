//! unlink, rmdir.

use quayfs_layout::Ino;
use quayfs_layout::inode::Inode;
use quayfs_layout::intent::IntentKind;
use quayfs_store::error::{FsError, Result};
use quayfs_store::ns::dir;
use quayfs_store::ns::intent::BegunIntent;
use quayfs_store::txn::{Edit, Outcome, Reservation, Txn};

use crate::attr::now;
use crate::locks::lock_all;
use crate::ops::create::entry_reservation;
use crate::{Fs, check_dir, check_name, edit_dir, protect};

/// Takes one link from an inode that lost a name; an inode without names becomes an orphan,
/// freed when the kernel has forgotten it.
pub fn drop_link<'f>(
    fs: &'f Fs,
    txn: &mut Txn<'_>,
    ino: Ino,
    inode: &mut Inode,
) -> Result<Option<BegunIntent<'f>>> {
    inode.nlink = if inode.is_dir() {
        0
    } else {
        inode.nlink.saturating_sub(1)
    };
    inode.ctime = now();
    if inode.nlink > 0 {
        return Ok(None);
    }
    let orphan = fs.e.intents.begin(txn, ino, IntentKind::Orphan)?;
    Ok(Some(orphan))
}

impl Fs {
    /// Removes a name that is not a directory's.
    pub fn unlink(&self, parent: Ino, name: &[u8]) -> Result<()> {
        self.remove(parent, name, false)
    }

    /// Removes an empty directory.
    pub fn rmdir(&self, parent: Ino, name: &[u8]) -> Result<()> {
        match name {
            b"." => Err(FsError::Invalid),
            b".." => Err(FsError::NotEmpty),
            _ => self.remove(parent, name, true),
        }
    }

    fn remove(&self, parent: Ino, name: &[u8], want_dir: bool) -> Result<()> {
        check_name(name)?;
        let parent_handle = self.handle(parent)?;
        let gone = self.e.retrying(|| {
            let depth = parent_handle.with(|i| i.depth);
            let reservation = Reservation {
                privileged: true,
                prefer: parent as usize,
                ..entry_reservation(depth)
            };
            let mut txn = Txn::begin(
                &self.e,
                Reservation {
                    nodes: 3,
                    ..reservation
                },
            )?;
            // Look up, lock in order, look again.
            let find = |dir: &Inode| {
                dir::find(&*self.e.nodes, self.e.hash, dir, name)?.ok_or(FsError::NoEntry)
            };
            let (ino, seen, mut spot) = {
                let _op = parent_handle.lock.read();
                let look = |dir: &Inode| check_dir(dir).and_then(|()| find(dir));
                let (found, spot) = parent_handle.with(look)?;
                (found.ino, parent_handle.seq(), spot)
            };
            let handle = self.handle(ino)?;
            let _op = lock_all(&[&parent_handle, &handle]);
            let mut dir_edit = edit_dir(&parent_handle)?;
            let dir = &mut dir_edit.image;
            // Every change of entries installs the directory's image under a number of its own.
            if parent_handle.seq() != seen {
                let (found, again) = find(dir)?;
                if found.ino != ino {
                    return Ok(None);
                }
                spot = again;
            }
            let mut edit = Edit::exclusive(&handle, handle.image());
            let inode = &mut edit.image;
            protect::unname(dir, inode)?;
            match (want_dir, inode.is_dir()) {
                (true, false) => return Err(FsError::NotDir),
                (false, true) => return Err(FsError::IsDir),
                (true, true) if inode.entries > 0 => return Err(FsError::NotEmpty),
                _ => {}
            }
            dir::remove_at(&mut txn, dir, spot)?;
            dir.nlink -= u32::from(want_dir);
            let orphan = drop_link(self, &mut txn, ino, inode)?;
            dir.mtime = inode.ctime;
            dir.ctime = inode.ctime;
            txn.commit(Outcome::from([&mut dir_edit, &mut edit]).begins(orphan))?;
            drop((dir_edit, edit, _op));
            Ok(Some(handle))
        })?;
        match gone {
            Some(handle) => {
                self.settle_names(&parent_handle)?;
                if !handle.is_known() {
                    self.reap_if_orphan(handle.ino);
                }
                Ok(())
            }
            // Another thread put a different file there between the look and the lock.
            None => self.remove(parent, name, want_dir),
        }
    }
}
