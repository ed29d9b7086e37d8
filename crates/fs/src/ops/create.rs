//! create, mknod, mkdir, symlink, files without a name.

use quayfs_layout::Ino;
use quayfs_layout::inode::{
    FLAG_PROJECT, FLAGS_INHERITED, INLINE_MAX, Inode, S_IFBLK, S_IFCHR, S_IFDIR, S_IFIFO, S_IFLNK,
    S_IFMT, S_IFREG, S_IFSOCK, S_ISGID, flags_of,
};
use quayfs_layout::intent::IntentKind;
use quayfs_store::error::{FsError, Result};
use quayfs_store::ns::{blob, dir};
use quayfs_store::txn::{Outcome, Reservation, Told, Txn};

use crate::attr::{dirent_kind, now};
use crate::ops::lookup::TARGET_MAX;
use crate::{Attr, Caller, Fs, check_name, edit_dir, live_dir, protect};

/// Most links of an inode.
pub const LINK_MAX: u32 = i32::MAX as u32;

/// What a change of one entry of a directory of this depth needs at most.
pub fn entry_reservation(depth: u16) -> Reservation {
    let d = u32::from(depth);
    Reservation {
        record: 16_000 + 9_000 * d,
        nodes: 8 + 2 * u64::from(d),
        ..Reservation::default()
    }
}

/// What is to be created.
pub(super) struct New<'a> {
    mode: u32,
    rdev: u32,
    target: Option<&'a [u8]>,
}

impl New<'_> {
    /// An inode of this type with these permission bits, without a device number and without a target.
    pub(super) fn of(mode: u32) -> Self {
        Self {
            mode,
            rdev: 0,
            target: None,
        }
    }
}

impl Fs {
    /// Creates a file of any type but directory and symbolic link. `mode` has the type and the
    /// permission bits; there are no others.
    pub fn mknod(
        &self,
        by: Caller,
        parent: Ino,
        name: &[u8],
        mode: u32,
        rdev: u32,
    ) -> Result<Attr> {
        let is_kind = matches!(
            mode & S_IFMT,
            S_IFREG | S_IFIFO | S_IFSOCK | S_IFCHR | S_IFBLK
        );
        if !is_kind || mode & !(S_IFMT | 0o7777) != 0 {
            return Err(FsError::Invalid);
        }
        let new = New {
            rdev,
            ..New::of(mode)
        };
        self.make(by, parent, name, &new)
    }

    /// Creates a directory.
    pub fn mkdir(&self, by: Caller, parent: Ino, name: &[u8], mode: u32) -> Result<Attr> {
        let mode = S_IFDIR | mode & 0o7777;
        self.make(by, parent, name, &New::of(mode))
    }

    /// Creates a symbolic link.
    pub fn symlink(&self, by: Caller, parent: Ino, name: &[u8], target: &[u8]) -> Result<Attr> {
        if target.is_empty() {
            return Err(FsError::NoEntry);
        }
        if target.len() > TARGET_MAX {
            return Err(FsError::NameTooLong);
        }
        let new = New {
            target: Some(target),
            ..New::of(S_IFLNK | 0o777)
        };
        self.make(by, parent, name, &new)
    }

    fn make(&self, by: Caller, parent: Ino, name: &[u8], new: &New<'_>) -> Result<Attr> {
        check_name(name)?;
        let parent_handle = self.handle(parent)?;
        let made = self.e.retrying(|| {
            let depth = parent_handle.with(|i| i.depth);
            let blob = new.target.map_or(0, |t| blob::pages_for(t.len()));
            let reservation = entry_reservation(depth);
            let lists = parent_handle.with(|i| self.needs_to_inherit(i));
            let mut txn = Txn::begin(
                &self.e,
                Reservation {
                    record: reservation.record + 4200 * blob as u32 + lists.record,
                    nodes: reservation.nodes + blob + lists.nodes,
                    inodes: 1,
                    prefer: parent as usize,
                    ..reservation
                },
            )?;
            let _op = parent_handle.lock.write();
            let mut edit = edit_dir(&parent_handle)?;
            let dir = &mut edit.image;
            let vacancy = dir::vacancy(&txn, self.e.hash, dir, name)?;
            protect::grow(dir)?;
            let is_dir = new.mode & S_IFMT == S_IFDIR;
            if is_dir && dir.nlink >= LINK_MAX {
                return Err(FsError::TooManyLinks);
            }
            let ino = txn.take_ino()?;
            let mut inode = self.fresh(&mut txn, by, (parent, dir), ino, new)?;
            let from = (parent, &*dir);
            self.inherit(&mut txn, from, (ino, &mut inode), (by.umask, lists))?;
            let child = (ino, dirent_kind(inode.mode));
            dir::insert(&mut txn, (parent, dir), vacancy, name, child)?;
            dir.nlink += u32::from(is_dir);
            dir.mtime = inode.btime;
            dir.ctime = inode.btime;
            txn.commit(Outcome::from(&mut edit).creates(ino, &inode, Told::Yes))?;
            Ok(Attr { ino, inode })
        })?;
        self.settle_names(&parent_handle)?;
        Ok(made)
    }

    /// Makes a regular file without a name (`O_TMPFILE`). The record that makes it says as well that it
    /// is to be freed: when the kernel forgets it, or by the next mount, unless [`Fs::link`] gives it a
    /// name before.
    pub fn tmpfile(&self, by: Caller, parent: Ino, mode: u32) -> Result<Attr> {
        let parent_handle = self.handle(parent)?;
        self.e.retrying(|| {
            let lists = parent_handle.with(|i| self.needs_to_inherit(i));
            let reservation = Reservation {
                // Pages of the bitmap, of the inode, of the intent, if they are the first.
                nodes: 3 + lists.nodes,
                record: Reservation::default().record + lists.record,
                inodes: 1,
                prefer: parent as usize,
                ..Reservation::default()
            };
            let mut txn = Txn::begin(&self.e, reservation)?;
            // The directory stays as it is; the file takes group, flags and project from it.
            let _op = parent_handle.lock.read();
            let dir = match live_dir(&parent_handle) {
                // As ext4 has it: nothing is made in a directory that is gone.
                Err(FsError::NoEntry) => return Err(FsError::Perm),
                other => other?,
            };
            protect::grow(&dir)?;
            let ino = txn.take_ino()?;
            let new = New::of(S_IFREG | mode & 0o7777);
            let from = (parent, &dir);
            let mut inode = self.fresh(&mut txn, by, from, ino, &new)?;
            self.inherit(&mut txn, from, (ino, &mut inode), (by.umask, lists))?;
            inode.nlink = 0;
            let orphan = self.e.intents.begin(&mut txn, ino, IntentKind::Orphan)?;
            let outcome = Outcome::default().creates(ino, &inode, Told::Yes);
            txn.commit(outcome.begins(Some(orphan)))?;
            Ok(Attr { ino, inode })
        })
    }

    /// The image of a new inode; a directory with the set-group-id bit passes its group on, and its
    /// flags tell what else.
    pub(super) fn fresh(
        &self,
        txn: &mut Txn<'_>,
        by: Caller,
        (parent, dir): (Ino, &Inode),
        ino: Ino,
        new: &New<'_>,
    ) -> Result<Inode> {
        let time = now();
        let is_dir = new.mode & S_IFMT == S_IFDIR;
        let inherits = dir.mode & S_ISGID != 0;
        let mut inode = Inode {
            mode: new.mode | if is_dir && inherits { S_ISGID } else { 0 },
            nlink: if is_dir { 2 } else { 1 },
            uid: by.uid,
            gid: if inherits { dir.gid } else { by.gid },
            // Numbers are reused only after the record that freed them, so this one is new.
            generation: (self.e.journal.last_seq() + 1) as u32,
            flags: dir.flags & FLAGS_INHERITED & flags_of(new.mode),
            project: if dir.flags & FLAG_PROJECT != 0 {
                dir.project
            } else {
                0
            },
            rdev: new.rdev,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
            parent: if is_dir { parent } else { 0 },
            ..Inode::default()
        };
        if let Some(target) = new.target {
            inode.size = target.len() as u64;
            if target.len() <= INLINE_MAX {
                inode.inline.0[..target.len()].copy_from_slice(target);
            } else {
                inode.root = blob::create(txn, ino, target)?;
                inode.blocks = blob::pages_for(target.len());
            }
        }
        Ok(inode)
    }
}
