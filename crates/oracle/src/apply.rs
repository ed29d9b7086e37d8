//! One operation on the file system and on the model, and whether they agree.

use std::mem::take;

use quayfs_background::checkpoint::{self, Reach};
use quayfs_background::digest;
use quayfs_background::trim::Trim;
use quayfs_fs::{Attr, Caller, Exchange, Fs, SetAttr, SetFlags, SetXattr, Whence};
use quayfs_layout::Ino;
use quayfs_layout::inode::{FLAG_PROJECT, S_IFDIR, S_IFLNK, S_IFMT, S_IFREG};
use quayfs_store::error::FsError;

use crate::model::{Model, Node, lists};
use crate::ops::{Op, target};
use crate::quota::{self, Books};

/// What an operation tells its caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    Nothing,
    Attr {
        ino: Ino,
        mode: u32,
        nlink: u32,
        ids: (u32, u32),
        size: u64,
        rdev: u32,
    },
    Bytes(Vec<u8>),
    Number(u64),
}

/// The whole data device.
pub const EVERYTHING: Trim = Trim {
    start: 0,
    len: u64::MAX,
    min: 0,
};

type Result<T> = std::result::Result<T, FsError>;

impl From<Attr> for Told {
    fn from(a: Attr) -> Self {
        let i = a.inode;
        // The size of a directory says nothing.
        let size = if i.is_dir() { 0 } else { i.size };
        Self::Attr {
            ino: a.ino,
            mode: i.mode,
            nlink: i.nlink,
            ids: (i.uid, i.gid),
            size,
            rdev: i.rdev,
        }
    }
}

/// Name and value of an access control list.
fn list(default: bool, entries: &[lists::Entry]) -> (&'static [u8], Vec<u8>) {
    let name = if default {
        lists::DEFAULT
    } else {
        lists::ACCESS
    };
    (name, lists::bytes(entries))
}

/// Carries out `op` on the file system.
pub fn on_fs(fs: &Fs, m: &Model, op: &Op) -> Result<Told> {
    let done = Told::Nothing;
    Ok(match op {
        Op::Create {
            dir,
            name,
            mode,
            rdev,
            by,
            umask,
            target: len,
        } => {
            let by = Caller {
                uid: by.0,
                gid: by.1,
                umask: *umask,
            };
            let attr = match mode & S_IFMT {
                S_IFDIR => fs.mkdir(by, *dir, &name.0, *mode)?,
                S_IFLNK => fs.symlink(by, *dir, &name.0, &target(*len))?,
                _ => fs.mknod(by, *dir, &name.0, *mode, *rdev)?,
            };
            attr.into()
        }
        Op::Tmpfile {
            dir,
            mode,
            umask,
            by,
        } => {
            let by = Caller {
                uid: by.0,
                gid: by.1,
                umask: *umask,
            };
            fs.tmpfile(by, *dir, *mode)?.into()
        }
        Op::Link { ino, dir, name } => fs.link(*ino, *dir, &name.0)?.into(),
        Op::Lookup { dir, name } => fs.lookup(*dir, &name.0)?.into(),
        Op::Remove {
            dir,
            name,
            want_dir: true,
        } => fs.rmdir(*dir, &name.0).map(|()| done)?,
        Op::Remove {
            dir,
            name,
            want_dir: false,
        } => fs.unlink(*dir, &name.0).map(|()| done)?,
        Op::Rename { old, new, flags } => fs
            .rename((old.0, &old.1.0), (new.0, &new.1.0), *flags)
            .map(|()| done)?,
        Op::Write {
            ino,
            offset,
            data,
            kill,
        } => fs
            .write(*ino, *offset, &data.bytes(), *kill)
            .map(|()| done)?,
        Op::Together { ino, pieces, kill } => {
            let bytes: Vec<_> = pieces.iter().map(|(at, d)| (*at, d.bytes())).collect();
            let pieces: Vec<_> = bytes.iter().map(|(at, b)| (*at, &b[..])).collect();
            fs.write_together(*ino, &pieces, *kill).map(|()| done)?
        }
        Op::Read { ino, offset, len } => Told::Bytes(fs.read(*ino, *offset, *len)?),
        Op::Truncate { ino, size, kill } => {
            let set = SetAttr {
                size: Some(*size),
                ..SetAttr::default()
            };
            fs.setattr(*ino, &set, *kill)?.into()
        }
        Op::Fallocate {
            ino,
            mode,
            offset,
            len,
        } => fs.fallocate(*ino, *mode, *offset, *len).map(|()| done)?,
        Op::Copy { from, to, len } => Told::Number(fs.copy_range(*from, *to, *len)?),
        Op::Exchange {
            one,
            other,
            len,
            to_eof,
            written,
        } => {
            let what = Exchange {
                one: *one,
                other: *other,
                len: *len,
                to_eof: *to_eof,
                written: *written,
                dry_run: false,
                unless_changed: None,
            };
            let by = Caller {
                uid: 1,
                ..Caller::default()
            };
            fs.exchange(by, what).map(|()| done)?
        }
        Op::SetAttr {
            ino,
            mode,
            uid,
            gid,
        } => {
            let set = SetAttr {
                mode: *mode,
                uid: *uid,
                gid: *gid,
                ..SetAttr::default()
            };
            fs.setattr(*ino, &set, false)?.into()
        }
        Op::SetFlags { ino, flags } => fs
            .set_flags(Caller::default(), *ino, SetFlags::all(*flags))
            .map(|()| done)?,
        Op::SetProject {
            ino,
            project,
            inherit,
        } => {
            let set = SetFlags {
                flags: if *inherit { FLAG_PROJECT } else { 0 },
                mask: FLAG_PROJECT,
                project: Some(*project),
            };
            fs.set_flags(Caller::default(), *ino, set).map(|()| done)?
        }
        Op::SetQuota(set) => fs.set_quota(Caller::default(), *set).map(|()| done)?,
        Op::SetXattr {
            ino,
            name,
            value,
            how,
        } => fs
            .setxattr(*ino, &name.0, &value.bytes(), *how)
            .map(|()| done)?,
        Op::SetAcl {
            ino,
            default,
            entries,
            stranger,
        } => {
            let (name, value) = list(*default, entries);
            let how = SetXattr::Any;
            fs.setxattr_by(*ino, name, &value, how, *stranger)
                .map(|()| done)?
        }
        Op::RemoveXattr { ino, name } => fs.removexattr(*ino, &name.0).map(|()| done)?,
        Op::Seek { ino, data, offset } => {
            let whence = if *data { Whence::Data } else { Whence::Hole };
            Told::Number(fs.seek(*ino, whence, *offset)?)
        }
        Op::Forget { ino } => {
            fs.forget(*ino, m.nodes.get(ino).map_or(0, |n| n.known));
            done
        }
        Op::Release { ino } => {
            fs.release(*ino);
            done
        }
        Op::Fsync { ino } => fs.fsync(*ino).map(|()| done)?,
        Op::Digest => digest::digest_all(&fs.e).map(|()| done)?,
        Op::Round => checkpoint::round(&fs.e).map(|_| done)?,
        Op::Room => {
            let mut again = true;
            checkpoint::rounds(&fs.e, Reach::Older, |_| take(&mut again)).map(|_| done)?
        }
        Op::Zero => checkpoint::zero_freed(&fs.e).map(|_| done)?,
        Op::Trim => fs.trim(Caller::default(), EVERYTHING).map(|_| done)?,
        Op::Gather => checkpoint::gather(&fs.e, usize::MAX).map(|_| done)?,
        Op::Evict => {
            crate::evict::evict(fs);
            done
        }
    })
}

/// What the model says about `op`; `ino` is the number that a creation got.
pub fn on_model(m: &mut Model, op: &Op, ino: Option<Ino>, request_max: u64) -> Result<Told> {
    let done = Told::Nothing;
    let attr = |m: &Model, ino: Ino| {
        let n = m.node(ino)?;
        let size = n.content.size + n.target.len() as u64;
        let ids = (n.uid, n.gid);
        Ok(Told::Attr {
            ino,
            mode: n.mode,
            nlink: n.nlink,
            ids,
            size,
            rdev: n.rdev,
        })
    };
    match op {
        Op::Create {
            dir,
            name,
            mode,
            rdev,
            by,
            umask,
            target: len,
        } => {
            let is_link = mode & S_IFMT == S_IFLNK;
            let is_special = !is_link && mode & S_IFMT != S_IFDIR;
            let node = Node {
                mode: if is_link { S_IFLNK | 0o777 } else { *mode },
                uid: by.0,
                gid: by.1,
                rdev: if is_special { *rdev } else { 0 },
                target: if is_link { target(*len) } else { Vec::new() },
                ..Node::default()
            };
            m.may_create(*dir, &name.0, node.mode, &node.target)?;
            let ino = ino.ok_or_else(|| FsError::internal("the model would create this"))?;
            m.create((*dir, &name.0), ino, node, *umask)?;
            attr(m, ino)
        }
        Op::Tmpfile {
            dir,
            mode,
            umask,
            by,
        } => {
            let node = Node {
                mode: S_IFREG | *mode,
                uid: by.0,
                gid: by.1,
                ..Node::default()
            };
            m.tmpfile(*dir, ino, node, *umask)?;
            attr(m, ino.unwrap_or_default())
        }
        Op::Link { ino, dir, name } => {
            m.link(*ino, *dir, &name.0)?;
            attr(m, *ino)
        }
        Op::Lookup { dir, name } => {
            let ino = m.lookup(*dir, &name.0)?;
            attr(m, ino)
        }
        Op::Remove {
            dir,
            name,
            want_dir,
        } => {
            if *want_dir && name.0 == b".." {
                return Err(FsError::NotEmpty);
            }
            m.remove(*dir, &name.0, *want_dir).map(|()| done)
        }
        Op::Rename { old, new, flags } => m
            .rename((old.0, &old.1.0), (new.0, &new.1.0), *flags, ino)
            .map(|()| done),
        Op::Write {
            ino,
            offset,
            data,
            kill,
        } => m.write(*ino, *offset, &data.bytes(), *kill).map(|()| done),
        Op::Together { ino, pieces, kill } => m
            .write_together(*ino, pieces, (*kill, request_max))
            .map(|()| done),
        Op::Read { ino, offset, len } => m.read(*ino, *offset, *len as u64).map(Told::Bytes),
        Op::Truncate { ino, size, kill } => {
            m.truncate(*ino, *size, *kill)?;
            attr(m, *ino)
        }
        Op::Fallocate {
            ino,
            mode,
            offset,
            len,
        } => {
            m.node(*ino)?;
            m.fallocate(*ino, *mode, *offset, *len).map(|()| done)
        }
        Op::Copy { from, to, len } => m.copy(*from, *to, *len, request_max).map(Told::Number),
        Op::Exchange {
            one,
            other,
            len,
            to_eof,
            written,
        } => m
            .exchange(*one, *other, *len, (*to_eof, *written))
            .map(|()| done),
        Op::SetAttr {
            ino,
            mode,
            uid,
            gid,
        } => {
            m.setattr(*ino, *mode, *uid, *gid)?;
            attr(m, *ino)
        }
        Op::SetFlags { ino, flags } => m.set_flags(*ino, *flags).map(|()| done),
        Op::SetProject {
            ino,
            project,
            inherit,
        } => m.set_project(*ino, *project, *inherit).map(|()| done),
        Op::SetQuota(set) => m.set_quota(set).map(|()| done),
        Op::SetXattr {
            ino,
            name,
            value,
            how,
        } => m
            .setxattr(*ino, &name.0, &value.bytes(), (*how, false))
            .map(|()| done),
        Op::SetAcl {
            ino,
            default,
            entries,
            stranger,
        } => {
            let (name, value) = list(*default, entries);
            m.setxattr(*ino, name, &value, (SetXattr::Any, *stranger))
                .map(|()| done)
        }
        Op::RemoveXattr { ino, name } => m.removexattr(*ino, &name.0).map(|()| done),
        Op::Seek { ino, data, offset } => {
            let n = m.node(*ino)?;
            if !n.is_file() {
                return Err(FsError::Invalid);
            }
            if *offset >= n.content.size {
                return Err(FsError::NoData);
            }
            n.content
                .seek(*data, *offset)
                .map(Told::Number)
                .ok_or(FsError::NoData)
        }
        Op::Forget { ino } => {
            m.forget(*ino);
            Ok(done)
        }
        Op::Fsync { .. }
        | Op::Release { .. }
        | Op::Digest
        | Op::Round
        | Op::Room
        | Op::Zero
        | Op::Trim
        | Op::Gather
        | Op::Evict => Ok(done),
    }
}

/// The number of the inode that `op` has made, if it has made one.
fn made(fs: &Fs, op: &Op, got: &Result<Told>) -> Option<Ino> {
    match (got, op) {
        (Ok(Told::Attr { ino, .. }), Op::Create { .. } | Op::Tmpfile { .. }) => Some(*ino),
        (Ok(_), Op::Rename { .. }) => whiteout(fs, op),
        _ => None,
    }
}

/// The number of what has the old name after a rename that leaves a whiteout there.
pub fn whiteout(fs: &Fs, op: &Op) -> Option<Ino> {
    let Op::Rename { old, flags, .. } = op else {
        return None;
    };
    flags.whiteout?;
    let ino = fs.lookup(old.0, &old.1.0).ok()?.ino;
    fs.forget(ino, 1);
    Some(ino)
}

/// What becomes of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// What the model says.
    Same,
    /// There was no space.
    Full,
    /// A limit was in the way.
    Refused,
}

/// Carries out `op` on both and compares. With `full`, `NoSpace` is an answer that changes nothing. An
/// operation is refused if and only if something would grow beyond a limit.
pub fn both(fs: &Fs, m: &mut Model, op: &Op, full: bool) -> std::result::Result<Outcome, String> {
    let before = Books::open(fs, m)?;
    let got = on_fs(fs, m, op);
    if full && got == Err(FsError::NoSpace) {
        return Ok(Outcome::Full);
    }
    if got == Err(FsError::Quota) {
        return quota::refused(fs, m, op, before).map(|()| Outcome::Refused);
    }
    let ino = made(fs, op, &got);
    let fresh = !matches!(op, Op::Rename { .. });
    if let Some(ino) = ino.filter(|i| fresh && m.nodes.contains_key(i)) {
        return Err(format!("{op:?}: inode number {ino} is in use"));
    }
    let want = on_model(m, op, ino, fs.request_max() as u64);
    if got == want {
        let kept = before.map(|books| books.kept(fs, m, op));
        return kept.unwrap_or(Ok(())).map(|()| Outcome::Same);
    }
    let short = |r: &Result<Told>| match r {
        Ok(Told::Bytes(b)) => format!("{} bytes", b.len()),
        other => format!("{other:?}"),
    };
    Err(format!(
        "{op:?}: {}, should be {}",
        short(&got),
        short(&want)
    ))
}
