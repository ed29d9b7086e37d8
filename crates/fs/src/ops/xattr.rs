//! Extended attributes.

mod names;

use quayfs_layout::inode::Inode;
use quayfs_layout::xattr::{self, NAME_MAX, SET_MAX, Set, VALUE_MAX};
use quayfs_layout::{BLOCK, Ino, acl, flaw};
use quayfs_store::error::{FsError, Result};
use quayfs_store::ns::blob;
use quayfs_store::txn::{Edit, PageSource, Reservation, Txn};

use crate::attr::now;
use crate::ops::acl::{access_list, default_list};
use crate::{Fs, SetAttr, protect};

use names::{Kind, is_list, is_trusted, kind, leaves_room};

/// Whether an attribute may or must exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetXattr {
    /// Create or replace.
    Any,
    /// Create; fail if it exists.
    Create,
    /// Replace; fail if it does not exist.
    Replace,
}

/// Why file capabilities go.
#[derive(Clone, Copy, Debug)]
pub enum Cause<'a> {
    /// Bytes are written there, by a writer that can only append or by any other.
    Write {
        /// Where in the file.
        offset: u64,
        /// See [`Fs::append`].
        append: bool,
    },
    /// Size or owner are set.
    Set(&'a SetAttr),
}

/// File capabilities: a write takes them away.
const CAPABILITY: &[u8] = b"security.capability";

/// Bytes of the set, if the inode can be believed; [`load`] says so if not.
fn held(i: &Inode) -> usize {
    match i.xattr {
        0 => 0,
        _ => (i.xattr_len as usize).min(SET_MAX),
    }
}

/// All attributes of an inode.
pub(super) fn load(src: &dyn PageSource, ino: Ino, i: &Inode) -> Result<Set> {
    if i.xattr == 0 {
        return Ok(Set::new());
    }
    let bytes = blob::read(src, ino, i.xattr, SET_MAX)?;
    if bytes.len() != i.xattr_len as usize {
        return Err(src.damaged(&format_args!(
            "inode {ino}: extended attributes are cut short"
        )));
    }
    let set = xattr::decode(&bytes).ok_or("bytes that are not attributes".to_string());
    set.and_then(|set| match flaw::attributes(i.mode, &set) {
        Ok(()) => Ok(set),
        Err(flaw) => Err(flaw.to_string()),
    })
    .map_err(|why| src.damaged(&format_args!("inode {ino}: extended attributes have {why}")))
}

fn take(set: &mut Set, name: &[u8]) -> Result<()> {
    let at = set.iter().position(|(n, _)| n == name);
    set.remove(at.ok_or(FsError::NoAttr)?);
    Ok(())
}

/// What it takes at most to replace attributes by `len` bytes of them.
pub(super) fn reservation(len: usize) -> Reservation {
    let pages = blob::pages_for(len) + 1;
    Reservation {
        record: 2048 + pages as u32 * (BLOCK as u32 + 128),
        nodes: pages + 4,
        ..Reservation::default()
    }
}

/// Replaces the attributes of an inode.
pub(super) fn store(txn: &mut Txn<'_>, ino: Ino, i: &mut Inode, set: &Set) -> Result<()> {
    let bytes = xattr::encode(set);
    if bytes.len() > SET_MAX {
        return Err(FsError::NoSpace);
    }
    if i.xattr != 0 {
        let n = blob::free(txn, ino, i.xattr, SET_MAX)?;
        i.blocks = i.blocks.saturating_sub(n);
    }
    i.xattr = blob::create(txn, ino, &bytes)?;
    i.xattr_len = bytes.len() as u32;
    i.blocks = i.blocks.saturating_add(blob::pages_for(bytes.len()));
    Ok(())
}

impl Fs {
    /// What an attribute of this name is on this mount: access control lists are none where it has none (`noacl`).
    fn kind(&self, name: &[u8]) -> Result<Kind> {
        match kind(name)? {
            Kind::List if !self.e.options.has_acls() => Err(FsError::NotSupported),
            kind => Ok(kind),
        }
    }

    /// Value of an attribute.
    pub fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.kind(name)?;
        let handle = self.handle(ino)?;
        if handle.with(|i| i.xattr == 0) {
            return Err(FsError::NoAttr);
        }
        let _op = handle.lock.read();
        let set = load(&*self.e.nodes, ino, &handle.image())?;
        set.into_iter()
            .find(|(n, _)| n == name)
            .map(|(_, v)| v)
            .ok_or(FsError::NoAttr)
    }

    /// Names of all attributes, each followed by a zero byte.
    pub fn listxattr(&self, ino: Ino) -> Result<Vec<u8>> {
        self.listxattr_for(ino, || true)
    }

    /// As [`Fs::listxattr`], for a caller that sees names in `trusted.` only if `trusted` says so. `trusted` is
    /// called only where there are such names, and without a lock.
    pub fn listxattr_for(&self, ino: Ino, trusted: impl FnOnce() -> bool) -> Result<Vec<u8>> {
        let handle = self.handle(ino)?;
        let mut set = {
            let _op = handle.lock.read();
            load(&*self.e.nodes, ino, &handle.image())?
        };
        set.retain(|(n, _)| self.kind(n).is_ok());
        if set.iter().any(|(n, _)| is_trusted(n)) && !trusted() {
            set.retain(|(n, _)| !is_trusted(n));
        }
        let names = set.into_iter().map(|(n, _)| n);
        Ok(names.flat_map(|n| n.into_iter().chain([0])).collect())
    }

    /// Sets an attribute.
    ///
    /// # Errors
    /// Among others [`FsError::NotSupported`] and [`FsError::Invalid`] for names that Linux does not know, and
    /// [`FsError::NoSpace`] where it would take room that is kept for attributes that need more rights.
    pub fn setxattr(&self, ino: Ino, name: &[u8], value: &[u8], how: SetXattr) -> Result<()> {
        self.setxattr_by(ino, name, value, how, false)
    }

    /// As [`Fs::setxattr`]. `stranger`: the caller is not in the group of the inode, so an access control list takes
    /// its set-group-id bit away.
    pub fn setxattr_by(
        &self,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        how: SetXattr,
        stranger: bool,
    ) -> Result<()> {
        if name.is_empty() || name.len() > NAME_MAX {
            return Err(FsError::Range);
        }
        if value.len() > VALUE_MAX {
            return Err(FsError::TooLarge);
        }
        let kind = self.kind(name)?;
        self.change_xattrs(ino, value.len() + name.len() + 8, |set, i| {
            protect::change(i)?;
            let at = set.iter().position(|(n, _)| n == name);
            match (at, how) {
                (Some(_), SetXattr::Create) => return Err(FsError::Exists),
                (None, SetXattr::Replace) => return Err(FsError::NoAttr),
                _ => {}
            }
            let value = match name {
                acl::ACCESS => access_list(i, value, stranger)?,
                acl::DEFAULT => Some(default_list(i, value)?),
                _ => Some(value.to_vec()),
            };
            match (at, value) {
                (Some(at), Some(value)) => set[at].1 = value,
                (None, Some(value)) => set.push((name.to_vec(), value)),
                (Some(at), None) => drop(set.remove(at)),
                (None, None) => {}
            }
            leaves_room(set, kind)
        })
    }

    /// Removes an attribute. An access control list that is not there is no error, as elsewhere in Linux.
    pub fn removexattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        self.kind(name)?;
        let removed = self.change_xattrs(ino, 0, |set, i| {
            protect::change(i)?;
            take(set, name)
        });
        match removed {
            Err(FsError::NoAttr) if is_list(name) => Ok(()),
            other => other,
        }
    }

    /// Takes file capabilities away, in front of what makes that necessary, if that is allowed.
    pub fn drop_capabilities(&self, ino: Ino, cause: Cause<'_>) -> Result<()> {
        match self.getxattr(ino, CAPABILITY) {
            Err(FsError::NoAttr) => return Ok(()),
            other => other.map(drop)?,
        }
        let take_capability = |set: &mut Set, i: &mut Inode| {
            match cause {
                Cause::Write { offset, append } => protect::write(i, append, offset)?,
                Cause::Set(attributes) => protect::set(i, attributes)?,
            }
            take(set, CAPABILITY)
        };
        let taken = quayfs_restart::preparing(|| self.change_xattrs(ino, 0, take_capability));
        match taken {
            Err(FsError::NoAttr) => Ok(()),
            other => other,
        }
    }

    /// Rewrites the set of an inode in one record, and with it what `change` changes in its image.
    fn change_xattrs(
        &self,
        ino: Ino,
        more: usize,
        change: impl Fn(&mut Set, &mut Inode) -> Result<()>,
    ) -> Result<()> {
        let handle = self.handle(ino)?;
        self.e.retrying(|| {
            let len = handle.with(held) + more;
            let reservation = Reservation {
                prefer: ino as usize,
                ..reservation(len)
            };
            let mut txn = Txn::begin(&self.e, reservation)?;
            let _op = handle.lock.write();
            let mut edit = Edit::shared(&handle)?;
            let i = &mut edit.image;
            if held(i) + more > len {
                return Err(FsError::OutOf(quayfs_store::error::Resource::Log));
            }
            let mut set = load(&txn, ino, i)?;
            change(&mut set, i)?;
            store(&mut txn, ino, i, &set)?;
            i.ctime = now();
            txn.commit(&mut edit)?;
            Ok(())
        })
    }
}
