//! Between what the `fuser` crate says and what the operation layer understands.

use std::ffi::OsStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{Errno, FileAttr, FileType, FopenFlags, Generation, INodeNo, Request, TimeOrNow};
use quayfs_layout::inode::{Inode, S_IFMT, Time};

use crate::edge::fuser::SCRUB_XATTR;
use crate::fs::attr::from_system;
use crate::fs::{Attr, Caller, FallocMode, RenameFlags, SetTime, SetXattr, Whence};

/// The type bits of a mode.
pub fn kind(mode: u32) -> FileType {
    match mode & S_IFMT {
        0o010_000 => FileType::NamedPipe,
        0o020_000 => FileType::CharDevice,
        0o040_000 => FileType::Directory,
        0o060_000 => FileType::BlockDevice,
        0o120_000 => FileType::Symlink,
        0o140_000 => FileType::Socket,
        _ => FileType::RegularFile,
    }
}

/// A time stamp as the standard library holds it.
pub fn system(t: Time) -> SystemTime {
    let whole = if t.sec >= 0 {
        UNIX_EPOCH.checked_add(Duration::from_secs(t.sec.cast_unsigned()))
    } else {
        UNIX_EPOCH.checked_sub(Duration::from_secs(t.sec.unsigned_abs()))
    };
    whole.unwrap_or(UNIX_EPOCH) + Duration::from_nanos(u64::from(t.nsec))
}

/// Attributes as the kernel wants them.
pub fn file_attr(ino: u64, i: &Inode) -> FileAttr {
    FileAttr {
        ino: INodeNo(ino),
        size: i.size,
        blocks: i.blocks * 8,
        atime: system(i.atime),
        mtime: system(i.mtime),
        ctime: system(i.ctime),
        crtime: system(i.btime),
        kind: kind(i.mode),
        perm: (i.mode & 0o7777) as u16,
        nlink: i.nlink,
        uid: i.uid,
        gid: i.gid,
        rdev: i.rdev,
        blksize: 4096,
        flags: 0,
    }
}

/// Generation of an inode number.
pub fn generation(a: &Attr) -> Generation {
    Generation(u64::from(a.inode.generation))
}

/// Who asks.
pub fn caller(req: &Request) -> Caller {
    Caller {
        uid: req.uid(),
        gid: req.gid(),
    }
}

/// A time to set.
pub fn set_time(t: TimeOrNow) -> SetTime {
    match t {
        TimeOrNow::Now => SetTime::Now,
        TimeOrNow::SpecificTime(t) => SetTime::At(from_system(t)),
    }
}

/// What `renameat2` was asked for.
pub fn rename_flags(flags: fuser::RenameFlags) -> Result<RenameFlags, Errno> {
    let known = fuser::RenameFlags::RENAME_NOREPLACE | fuser::RenameFlags::RENAME_EXCHANGE;
    if !known.contains(flags) {
        return Err(Errno::EINVAL);
    }
    Ok(RenameFlags {
        no_replace: flags.contains(fuser::RenameFlags::RENAME_NOREPLACE),
        exchange: flags.contains(fuser::RenameFlags::RENAME_EXCHANGE),
    })
}

/// What `fallocate` was asked for.
pub fn falloc_mode(mode: i32) -> Result<FallocMode, Errno> {
    let keep_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
    match mode & !libc::FALLOC_FL_KEEP_SIZE {
        0 => Ok(FallocMode::Allocate { keep_size }),
        libc::FALLOC_FL_PUNCH_HOLE if keep_size => Ok(FallocMode::Punch),
        libc::FALLOC_FL_ZERO_RANGE => Ok(FallocMode::Zero { keep_size }),
        _ => Err(Errno::EOPNOTSUPP),
    }
}

/// What `lseek` was asked for: the kernel sends only what it cannot answer itself.
pub fn whence(whence: i32) -> Result<Whence, Errno> {
    match whence {
        libc::SEEK_DATA => Ok(Whence::Data),
        libc::SEEK_HOLE => Ok(Whence::Hole),
        _ => Err(Errno::EINVAL),
    }
}

/// What `setxattr` was asked for.
pub fn set_xattr(flags: i32) -> Result<SetXattr, Errno> {
    match flags {
        0 => Ok(SetXattr::Any),
        libc::XATTR_CREATE => Ok(SetXattr::Create),
        libc::XATTR_REPLACE => Ok(SetXattr::Replace),
        _ => Err(Errno::EINVAL),
    }
}

/// How the kernel is to treat a file that is opened with these flags.
pub fn open_flags(flags: i32) -> FopenFlags {
    if flags & libc::O_DIRECT != 0 {
        FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES
    } else {
        FopenFlags::FOPEN_KEEP_CACHE
    }
}

/// The finding from which a scrub's report is asked for, if that is what this attribute holds.
pub fn scrub_report(name: &OsStr) -> Option<usize> {
    let rest = name.to_str()?.strip_prefix(SCRUB_XATTR)?;
    if rest.is_empty() {
        return Some(0);
    }
    rest.strip_prefix('.')?.parse().ok()
}
