//! lookup, forget, getattr, readlink.

use quayfs_layout::inode::{INLINE_MAX, Inode};
use quayfs_layout::intent::IntentKind;
use quayfs_layout::{Ino, dirent};
use quayfs_store::error::{FsError, Result};
use quayfs_store::ns::{blob, dir};

use crate::{Attr, Fs};

/// Longest symbolic link target.
pub const TARGET_MAX: usize = quayfs_layout::inode::TARGET_MAX;

impl Fs {
    /// Finds a name and counts the lookup. `.` finds an inode of any type by its number alone: so the
    /// kernel asks for what `open_by_handle_at` names and it has forgotten.
    pub fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Attr> {
        if name.len() > dirent::NAME_MAX {
            return Err(FsError::NameTooLong);
        }
        let parent_handle = self.handle(parent)?;
        let _op = parent_handle.lock.read();
        let found = parent_handle.with(|image| match name {
            b"." => Ok(Some(parent)),
            _ if !image.is_dir() => Err(FsError::NotDir),
            b".." => Ok(Some(image.parent)),
            _ => {
                let found = dir::lookup(&*self.e.nodes, self.e.hash, image, name)?;
                Ok(found.map(|f| f.ino))
            }
        });
        let ino = found?.ok_or(FsError::NoEntry)?;
        self.look_up(ino)
    }

    /// Attributes of an inode, counted as a lookup. Its operation lock is held, or that of a directory that has a
    /// name of it.
    fn look_up(&self, ino: Ino) -> Result<Attr> {
        let (handle, inode) = self.handle_and(ino, Inode::clone)?;
        handle.looked_up();
        Ok(Attr { ino, inode })
    }

    /// Attributes of an inode of which an answer tells the kernel that the last daemon could not give any more. Counted
    /// as a lookup.
    ///
    /// # Errors
    /// [`FsError::Stale`] if it has been freed meanwhile.
    pub fn look_up_again(&self, ino: Ino) -> Result<Attr> {
        let handle = self.handle(ino)?;
        let _op = handle.lock.read();
        self.look_up(ino)
    }

    /// The kernel forgets `n` lookups of an inode. An inode without a name goes with the last, soon if not
    /// at once; of a mount that was shut down with the next mount.
    pub fn forget(&self, ino: Ino, n: u64) {
        let orphan = || self.e.intents.has(ino, IntentKind::Orphan);
        let gone = self.e.inodes.forget(ino, n) && self.alive().is_ok() && orphan();
        if gone && !self.e.hand_over(ino) {
            self.reap_unless_known(ino);
        }
    }

    /// Attributes.
    pub fn getattr(&self, ino: Ino) -> Result<Attr> {
        let (_, inode) = self.handle_and(ino, Inode::clone)?;
        Ok(Attr { ino, inode })
    }

    /// Target of a symbolic link.
    pub fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        let handle = self.handle(ino)?;
        let _op = handle.lock.read();
        let image = handle.image();
        if !image.is_symlink() {
            return Err(FsError::Invalid);
        }
        let len = image.size as usize;
        if image.root == 0 {
            return Ok(image.inline.0[..len.min(INLINE_MAX)].to_vec());
        }
        blob::read(&*self.e.nodes, ino, image.root, TARGET_MAX)
    }
}
