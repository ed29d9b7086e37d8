//! Access control lists: extended attributes that belong to the permission bits.
//!
//! The kernel checks them. What is kept here is that list and bits agree, after any crash: the bits of the group are
//! the list's mask, and a change of one changes the other in the same record. This is so on mounts without lists
//! (`noacl`) too, for the next mount that has them.

use quayfs_layout::Ino;
use quayfs_layout::acl::{ACCESS, Acl, DEFAULT, VALUE_MAX, Wrong};
use quayfs_layout::inode::{Inode, S_ISGID};
use quayfs_layout::xattr::{SET_MAX, Set, value_at};
use quayfs_store::error::{FsError, Resource, Result};
use quayfs_store::ns::blob;
use quayfs_store::txn::{PageSource, Reservation, Txn};

use crate::Fs;
use crate::ops::xattr::{load, store};

fn decode(value: &[u8]) -> Result<Acl> {
    Acl::decode(value).map_err(|wrong| match wrong {
        Wrong::Version => FsError::NotSupported,
        Wrong::Form => FsError::Invalid,
        Wrong::Length => FsError::TooLarge,
    })
}

/// Sets the permission bits that go with an access list. Returns what is to be stored: nothing if the
/// bits say it all.
pub(super) fn access_list(i: &mut Inode, value: &[u8], stranger: bool) -> Result<Option<Vec<u8>>> {
    if i.is_symlink() {
        return Err(FsError::NotSupported);
    }
    let acl = decode(value)?;
    i.mode = i.mode & !0o777 | acl.mode();
    if stranger {
        i.mode &= !S_ISGID;
    }
    Ok((!acl.is_minimal()).then(|| acl.encode()))
}

/// What is to be stored as the list for new inodes in a directory.
pub(super) fn default_list(i: &Inode, value: &[u8]) -> Result<Vec<u8>> {
    if i.is_symlink() {
        return Err(FsError::NotSupported);
    }
    if !i.is_dir() {
        return Err(FsError::Access);
    }
    Ok(decode(value)?.encode())
}

/// The list of this name.
fn stored(src: &dyn PageSource, ino: Ino, i: &Inode, name: &[u8]) -> Result<Option<Acl>> {
    let value = load(src, ino, i)?.into_iter().find(|(n, _)| n == name);
    value.map(|(_, v)| decode_stored(src, ino, &v)).transpose()
}

fn decode_stored(src: &dyn PageSource, ino: Ino, value: &[u8]) -> Result<Acl> {
    Acl::decode(value).map_err(|_| {
        src.damaged(&format_args!(
            "inode {ino}: an access control list is damaged"
        ))
    })
}

/// What a change of the permission bits needs: a list follows in place, since its length stays.
pub(super) fn needs_to_follow(i: &Inode) -> Reservation {
    let list = match i.xattr {
        0 => 0,
        _ => VALUE_MAX as u32 + 256,
    };
    Reservation {
        record: Reservation::default().record + list,
        ..Reservation::default()
    }
}

/// Most bytes of attributes that an inode made in this directory begins with: the default list, for a
/// directory twice. A bound that is known before the lists are read.
fn inherited_len(dir: &Inode) -> usize {
    if dir.xattr == 0 {
        return 0;
    }
    let one = VALUE_MAX + DEFAULT.len() + 5;
    2 * (dir.xattr_len as usize).min(one)
}

impl Fs {
    /// What it needs more to make an inode in this directory.
    pub(super) fn needs_to_inherit(&self, dir: &Inode) -> Reservation {
        let len = match self.e.options.has_acls() {
            true => inherited_len(dir),
            false => 0,
        };
        let pages = blob::pages_for(len);
        Reservation {
            record: 4200 * pages as u32,
            nodes: pages,
            ..Reservation::default()
        }
    }

    /// Lets the access list follow permission bits that have changed in `i`. `reserved` is what
    /// [`needs_to_follow`] said before the inode was locked.
    pub(super) fn follow_mode(
        &self,
        txn: &mut Txn<'_>,
        (ino, i): (Ino, &Inode),
        reserved: Reservation,
    ) -> Result<()> {
        if i.xattr == 0 {
            return Ok(());
        }
        if needs_to_follow(i).record > reserved.record {
            return Err(FsError::OutOf(Resource::Log));
        }
        let set = load(&*txn, ino, i)?;
        let Some(at) = set.iter().position(|(n, _)| n == ACCESS) else {
            return Ok(());
        };
        let mut acl = decode_stored(&*txn, ino, &set[at].1)?;
        if acl.mode() == i.mode & 0o777 {
            return Ok(());
        }
        acl.set_mode(i.mode);
        let chain = (i.xattr, SET_MAX);
        blob::overwrite(txn, ino, chain, value_at(&set, at), &acl.encode())
    }

    /// Gives a new inode the lists that its directory has for it, or, where there are none, its
    /// creator's umask. `reserved` is what [`Fs::needs_to_inherit`] said before the directory was locked.
    pub(super) fn inherit(
        &self,
        txn: &mut Txn<'_>,
        (parent, dir): (Ino, &Inode),
        (ino, i): (Ino, &mut Inode),
        (umask, reserved): (u32, Reservation),
    ) -> Result<()> {
        if i.is_symlink() {
            return Ok(());
        }
        if self.needs_to_inherit(dir).record > reserved.record {
            return Err(FsError::OutOf(Resource::Log));
        }
        let default = match self.e.options.has_acls() {
            true => stored(&*txn, parent, dir, DEFAULT)?,
            false => None,
        };
        let Some(default) = default else {
            i.mode &= !(umask & 0o777);
            return Ok(());
        };
        let mut access = default.clone();
        access.restrict(i.mode);
        i.mode = i.mode & !0o777 | access.mode();
        let mut set = Set::new();
        if !access.is_minimal() {
            set.push((ACCESS.to_vec(), access.encode()));
        }
        if i.is_dir() {
            set.push((DEFAULT.to_vec(), default.encode()));
        }
        store(txn, ino, i, &set)
    }
}
