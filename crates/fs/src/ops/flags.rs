//! The flags of `chattr` and `lsattr`, and the project id.

use quayfs_layout::Ino;
use quayfs_layout::inode::{FLAG_APPEND, FLAG_IMMUTABLE, FLAG_SYNC, Inode, S_IFDIR, flags_of};
use quayfs_store::error::{FsError, Result};
use quayfs_store::txn::{Edit, Reservation, Txn};
use rustix::thread::CapabilitySet;

use crate::attr::now;
use crate::{Asker, Fs, protect};

/// What `set_flags` changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetFlags {
    /// Flags that are to be set.
    pub flags: u32,
    /// Flags that are changed at all.
    pub mask: u32,
    /// Project id.
    pub project: Option<u32>,
}

impl SetFlags {
    /// All flags become these.
    pub fn all(flags: u32) -> Self {
        Self {
            flags,
            mask: u32::MAX,
            project: None,
        }
    }
}

/// How a file that is being opened is to be written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writes {
    /// Not at all.
    No,
    /// At its end only (`O_APPEND`).
    Append,
    /// Anywhere.
    Anywhere,
}

impl Fs {
    /// Sets flags and project id of a file or directory in one record. Only its owner and a caller with `CAP_FOWNER`
    /// may do so. To make it immutable or append-only, or to end that, the caller also needs `CAP_LINUX_IMMUTABLE`.
    pub fn set_flags(&self, by: impl Asker, ino: Ino, set: SetFlags) -> Result<()> {
        self.change_flags(ino, set, |i, changed| {
            let bound = changed & (FLAG_IMMUTABLE | FLAG_APPEND) != 0;
            (by.ids().uid == i.uid || by.has(CapabilitySet::FOWNER))
                && (!bound || by.has(CapabilitySet::LINUX_IMMUTABLE))
        })
    }

    /// The same for a caller that is known to be allowed to do it.
    pub fn set_flags_checked(&self, ino: Ino, set: SetFlags) -> Result<()> {
        self.change_flags(ino, set, |_, _| true)
    }

    /// `may`: whether the caller may change these flags of this inode.
    fn change_flags(
        &self,
        ino: Ino,
        set: SetFlags,
        may: impl Fn(&Inode, u32) -> bool,
    ) -> Result<()> {
        if set.flags & !flags_of(S_IFDIR) != 0 {
            return Err(FsError::NotSupported);
        }
        let handle = self.handle(ino)?;
        self.e.retrying(|| {
            let reservation = Reservation {
                prefer: ino as usize,
                ..Reservation::default()
            };
            let txn = Txn::begin(&self.e, reservation)?;
            let _op = handle.lock.write();
            let mut edit = Edit::shared(&handle)?;
            let i = &mut edit.image;
            let flags = i.flags & !set.mask | set.flags & set.mask;
            let project = set.project.unwrap_or(i.project);
            self.may_set_flags(&may, i, flags, project)?;
            i.flags = flags;
            i.project = project;
            i.ctime = now();
            txn.commit(&mut edit)?;
            Ok(())
        })?;
        self.sync_if_flagged(&handle, FLAG_SYNC)
    }

    fn may_set_flags(
        &self,
        may: impl Fn(&Inode, u32) -> bool,
        i: &Inode,
        flags: u32,
        project: u32,
    ) -> Result<()> {
        if !i.is_file() && !i.is_dir() || flags & !flags_of(i.mode) != 0 {
            return Err(FsError::NotSupported);
        }
        let changed = i.flags ^ flags;
        if !may(i, changed) {
            return Err(FsError::Perm);
        }
        // What stays immutable keeps everything else as well.
        if i.flags & flags & FLAG_IMMUTABLE != 0 && (changed != 0 || project != i.project) {
            return Err(FsError::Perm);
        }
        // Pages that the kernel has collected do not tell appends from overwrites.
        if flags & changed & FLAG_APPEND != 0 && i.is_file() && self.e.options.writeback_cache {
            return Err(FsError::NotSupported);
        }
        Ok(())
    }

    /// Whether a file may be opened in this way.
    pub fn may_open(&self, ino: Ino, writes: Writes) -> Result<()> {
        self.handle(ino)?.with(|i| match writes {
            Writes::No => Ok(()),
            Writes::Append if !self.e.options.writeback_cache => protect::grow(i),
            Writes::Append | Writes::Anywhere => protect::change(i),
        })
    }
}
