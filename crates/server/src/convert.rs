//! Between what the kernel says and what the operation layer understands.

use std::str::FromStr;

use quayfs_fs::{
    Access, FallocMode, RenameFlags, SetAttr, SetFlags, SetTime, SetXattr, Whence, Writes,
};
use quayfs_fuse::Errno;
use quayfs_fuse::wire::{
    AttrOf, FsXattr, InHeader, Open, SetattrIn, SetattrValid, Statx, StatxTime,
};
use quayfs_layout::inode::{
    FLAG_APPEND, FLAG_IMMUTABLE, FLAG_NOATIME, FLAG_NODUMP, FLAG_PROJECT, FLAG_SYNC, Inode, Time,
};

use crate::caller::maker;

/// Nothing else changes the volume, so the kernel may keep names and attributes for good. Seconds.
pub const FOREVER: u64 = 1 << 30;

/// Attributes as the kernel wants them.
pub fn attr_of(ino: u64, i: &Inode) -> AttrOf {
    AttrOf {
        ino,
        size: i.size,
        blocks: i.blocks.saturating_mul(8),
        atime: i.atime.sec.cast_unsigned(),
        mtime: i.mtime.sec.cast_unsigned(),
        ctime: i.ctime.sec.cast_unsigned(),
        atimensec: i.atime.nsec,
        mtimensec: i.mtime.nsec,
        ctimensec: i.ctime.nsec,
        mode: i.mode,
        nlink: i.nlink,
        uid: i.uid,
        gid: i.gid,
        rdev: i.rdev,
        blksize: 4096,
        flags: 0,
    }
}

/// The same with the time of birth.
pub fn statx_of(ino: u64, i: &Inode) -> Statx {
    /// Everything but mount and device (`STATX_BASIC_STATS | STATX_BTIME`).
    const ALL: u32 = 0xfff;
    let time = |t: Time| StatxTime {
        sec: t.sec,
        nsec: t.nsec,
        reserved: 0,
    };
    let (major, minor) = device_numbers(i.rdev);
    Statx {
        mask: ALL,
        blksize: 4096,
        nlink: i.nlink,
        uid: i.uid,
        gid: i.gid,
        mode: i.mode as u16,
        ino,
        size: i.size,
        blocks: i.blocks.saturating_mul(8),
        atime: time(i.atime),
        btime: time(i.btime),
        ctime: time(i.ctime),
        mtime: time(i.mtime),
        rdev_major: major,
        rdev_minor: minor,
        ..Statx::default()
    }
}

/// The kernel's encoding of a device in 32 bits (`new_encode_dev`).
fn device_numbers(rdev: u32) -> (u32, u32) {
    ((rdev >> 8) & 0xfff, rdev & 0xff | (rdev >> 12) & 0xf_ff00)
}

/// What is to be changed, and whether set-user-id and set-group-id bits go with it.
pub fn set_attr(args: &SetattrIn) -> (SetAttr, bool) {
    let valid = SetattrValid::from_bits_truncate(args.valid);
    let given = |flag, value| valid.contains(flag).then_some(value);
    let time = |sec: u64, nsec| Time {
        sec: sec.cast_signed(),
        nsec,
    };
    let when = |set, now, sec, nsec| {
        if valid.contains(now) {
            Some(SetTime::Now)
        } else {
            given(set, SetTime::At(time(sec, nsec)))
        }
    };
    use SetattrValid as V;
    let set = SetAttr {
        mode: valid.contains(V::MODE).then_some(args.mode),
        uid: valid.contains(V::UID).then_some(args.uid),
        gid: valid.contains(V::GID).then_some(args.gid),
        size: valid.contains(V::SIZE).then_some(args.size),
        atime: when(V::ATIME, V::ATIME_NOW, args.atime, args.atimensec),
        mtime: when(V::MTIME, V::MTIME_NOW, args.mtime, args.mtimensec),
        ctime: valid
            .contains(V::CTIME)
            .then(|| time(args.ctime, args.ctimensec)),
    };
    (set, valid.contains(V::KILL_SUIDGID))
}

/// What `renameat2` was asked for.
pub fn rename_flags(flags: u32, header: &InHeader) -> Result<RenameFlags, Errno> {
    let known = libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE | libc::RENAME_WHITEOUT;
    if flags & !known != 0 {
        return Err(Errno::new(libc::EINVAL));
    }
    let leaves = flags & libc::RENAME_WHITEOUT != 0;
    Ok(RenameFlags {
        no_replace: flags & libc::RENAME_NOREPLACE != 0,
        exchange: flags & libc::RENAME_EXCHANGE != 0,
        whiteout: leaves.then(|| maker(header, 0)).transpose()?,
    })
}

/// What `fallocate` was asked for.
pub fn falloc_mode(mode: u32) -> Result<FallocMode, Errno> {
    let mode = mode.cast_signed();
    let keep_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
    match mode & !libc::FALLOC_FL_KEEP_SIZE {
        0 => Ok(FallocMode::Allocate { keep_size }),
        libc::FALLOC_FL_PUNCH_HOLE if keep_size => Ok(FallocMode::Punch),
        libc::FALLOC_FL_ZERO_RANGE => Ok(FallocMode::Zero { keep_size }),
        _ => Err(Errno::new(libc::EOPNOTSUPP)),
    }
}

/// What `lseek` was asked for: the kernel sends only what it cannot answer itself.
pub fn whence(whence: u32) -> Result<Whence, Errno> {
    match whence.cast_signed() {
        libc::SEEK_DATA => Ok(Whence::Data),
        libc::SEEK_HOLE => Ok(Whence::Hole),
        _ => Err(Errno::new(libc::EINVAL)),
    }
}

/// What `setxattr` was asked for.
pub fn set_xattr(flags: u32) -> Result<SetXattr, Errno> {
    match flags.cast_signed() {
        0 => Ok(SetXattr::Any),
        libc::XATTR_CREATE => Ok(SetXattr::Create),
        libc::XATTR_REPLACE => Ok(SetXattr::Replace),
        _ => Err(Errno::new(libc::EINVAL)),
    }
}

/// Flags that are among the `FS_XFLAG_*` as well, with their value there.
const XFLAGS: [(u32, u32); 6] = [
    (FLAG_IMMUTABLE, 0x8),
    (FLAG_APPEND, 0x10),
    (FLAG_SYNC, 0x20),
    (FLAG_NOATIME, 0x40),
    (FLAG_NODUMP, 0x80),
    (FLAG_PROJECT, 0x200),
];
/// `FS_XFLAG_HASATTR`: there are extended attributes. No caller can set it.
const XFLAG_HASATTR: u32 = 1 << 31;

/// What `FS_IOC_FSGETXATTR` shows of the flags.
pub fn xflags_of(i: &Inode) -> u32 {
    let set = XFLAGS.iter().filter(|(flag, _)| i.flags & flag != 0);
    let set = set.fold(0, |all, (_, x)| all | x);
    set | if i.xattr == 0 { 0 } else { XFLAG_HASATTR }
}

/// What `FS_IOC_FSSETXATTR` asks for: flags that it does not know stay as they are.
pub fn set_xflags(args: &FsXattr) -> Result<SetFlags, Errno> {
    let known = XFLAGS.iter().fold(XFLAG_HASATTR, |all, (_, x)| all | x);
    if args.xflags & !known != 0 || args.extsize != 0 || args.cowextsize != 0 {
        return Err(Errno::new(libc::EOPNOTSUPP));
    }
    let set = XFLAGS.iter().filter(|(_, x)| args.xflags & x != 0);
    Ok(SetFlags {
        flags: set.fold(0, |all, (flag, _)| all | flag),
        mask: XFLAGS.iter().fold(0, |all, (flag, _)| all | flag),
        project: Some(args.projid),
    })
}

/// How a caller that opens a file with these flags wants to write.
pub fn writes(flags: u32) -> Writes {
    let flags = flags.cast_signed();
    match flags & libc::O_ACCMODE {
        libc::O_RDONLY if flags & libc::O_TRUNC == 0 => Writes::No,
        libc::O_WRONLY | libc::O_RDWR
            if flags & (libc::O_APPEND | libc::O_TRUNC) == libc::O_APPEND =>
        {
            Writes::Append
        }
        _ => Writes::Anywhere,
    }
}

/// Whether what is read through a file that was opened with these flags counts as an access. The kernel reads what
/// is around a write as well, of which a file that can only be written to is a sign.
pub fn access(flags: u32) -> Access {
    let flags = flags.cast_signed();
    if flags & libc::O_NOATIME != 0 || flags & libc::O_ACCMODE == libc::O_WRONLY {
        Access::Silent
    } else {
        Access::Noted
    }
}

/// How the kernel is to treat a file that is opened with these flags.
pub fn open_flags(flags: u32) -> Open {
    if flags & libc::O_DIRECT.cast_unsigned() != 0 {
        Open::DIRECT_IO | Open::PARALLEL_DIRECT_WRITES
    } else {
        Open::KEEP_CACHE
    }
}

/// The number from which a list is asked for, if that is what this attribute holds: `base` has it from the
/// first one on, `base.N` from number N on.
pub fn list_from<N: FromStr + Default>(name: &[u8], base: &str) -> Option<N> {
    let rest = std::str::from_utf8(name).ok()?.strip_prefix(base)?;
    if rest.is_empty() {
        return Some(N::default());
    }
    rest.strip_prefix('.')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use quayfs_layout::inode::FLAG_DIRSYNC;

    #[test]
    fn only_what_is_marked_valid_is_set() {
        let mut args = SetattrIn {
            mode: 0o644,
            uid: 1,
            gid: 2,
            size: 3,
            atime: u64::MAX,
            mtime: 5,
            ..SetattrIn::default()
        };
        assert_eq!(set_attr(&args), (SetAttr::default(), false));
        args.valid = (SetattrValid::ATIME
            | SetattrValid::MTIME
            | SetattrValid::MTIME_NOW
            | SetattrValid::SIZE
            | SetattrValid::KILL_SUIDGID)
            .bits();
        let expected = SetAttr {
            size: Some(3),
            atime: Some(SetTime::At(Time { sec: -1, nsec: 0 })),
            mtime: Some(SetTime::Now),
            ..SetAttr::default()
        };
        assert_eq!(set_attr(&args), (expected, true));
    }

    #[test]
    fn flags_go_there_and_back() {
        let i = Inode {
            flags: FLAG_IMMUTABLE | FLAG_NOATIME | FLAG_PROJECT,
            xattr: 1,
            ..Inode::default()
        };
        let args = FsXattr {
            xflags: xflags_of(&i),
            projid: 7,
            ..FsXattr::default()
        };
        assert_eq!(args.xflags, 0x8000_0248);
        let set = set_xflags(&args).unwrap();
        assert_eq!((set.flags, set.project), (i.flags, Some(7)));
        assert_eq!(set.mask & FLAG_DIRSYNC, 0);
        for refused in [
            FsXattr {
                xflags: 0x1,
                ..args
            },
            FsXattr {
                extsize: 4096,
                ..args
            },
            FsXattr {
                cowextsize: 4096,
                ..args
            },
        ] {
            assert_eq!(set_xflags(&refused), Err(Errno::new(libc::EOPNOTSUPP)));
        }
    }

    #[test]
    fn who_writes_how() {
        let of = |flags: i32| writes(flags.cast_unsigned());
        assert_eq!(of(libc::O_RDONLY), Writes::No);
        assert_eq!(of(libc::O_RDONLY | libc::O_TRUNC), Writes::Anywhere);
        assert_eq!(of(libc::O_WRONLY | libc::O_APPEND), Writes::Append);
        assert_eq!(
            of(libc::O_RDWR | libc::O_APPEND | libc::O_TRUNC),
            Writes::Anywhere
        );
        assert_eq!(of(libc::O_RDWR), Writes::Anywhere);
    }

    #[test]
    fn what_is_read_is_noted() {
        let of = |flags: i32| access(flags.cast_unsigned());
        assert_eq!(of(libc::O_RDONLY), Access::Noted);
        assert_eq!(of(libc::O_RDWR | libc::O_DIRECT), Access::Noted);
        assert_eq!(of(libc::O_RDONLY | libc::O_NOATIME), Access::Silent);
        assert_eq!(of(libc::O_RDWR | libc::O_NOATIME), Access::Silent);
        assert_eq!(of(libc::O_WRONLY), Access::Silent);
    }

    #[test]
    fn device_numbers_come_apart_as_the_c_library_does_it() {
        for (major, minor) in [(0, 0), (8, 1), (4095, 255), (1, 0xf_ffff), (259, 1000)] {
            let rdev = (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12);
            assert_eq!(device_numbers(rdev), (major, minor));
        }
    }

    #[test]
    fn lists_are_asked_for_by_number() {
        let from = |name: &[u8]| list_from::<u32>(name, "quayfs.scrub");
        assert_eq!(from(b"quayfs.scrub"), Some(0));
        assert_eq!(from(b"quayfs.scrub.17"), Some(17));
        assert_eq!(from(b"quayfs.scrub17"), None);
        assert_eq!(from(b"quayfs.scrub."), None);
        assert_eq!(from(b"user.x"), None);
    }
}
