//! Attributes: time, privileges, what a caller is.

use std::time::{SystemTime, UNIX_EPOCH};

use rustix::thread::CapabilitySet;

use quayfs_layout::Ino;
use quayfs_layout::inode::{Inode, S_IFDIR, S_IFLNK, S_IFMT, S_IFREG, S_ISGID, S_ISUID, Time};

/// The caller of an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caller {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Permission bits that new inodes are not to have, unless their directory has a default access
    /// control list.
    pub umask: u32,
}

/// A caller that asks for something that not every caller may do.
pub trait Asker {
    /// Its ids.
    fn ids(&self) -> Caller;

    /// Whether it has this capability in the user namespace of this process. A capability that cannot be seen counts
    /// as missing. This may cost a few system calls, so it is asked only where the answer decides.
    fn has(&self, capability: CapabilitySet) -> bool;
}

impl<A: Asker + ?Sized> Asker for &A {
    fn ids(&self) -> Caller {
        (**self).ids()
    }

    fn has(&self, capability: CapabilitySet) -> bool {
        (**self).has(capability)
    }
}

/// A program that uses the library states its own ids, and has a volume of its own to be root of. Never made from
/// what a request says: there user 0 may be root of a container, which may do nothing.
impl Asker for Caller {
    fn ids(&self) -> Caller {
        *self
    }

    fn has(&self, _: CapabilitySet) -> bool {
        self.uid == 0
    }
}

/// An inode with its number, as `stat` sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attr {
    /// Inode number.
    pub ino: Ino,
    /// Everything else.
    pub inode: Inode,
}

/// Whether a read changes the access time, where the mount notes any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// As any read.
    #[default]
    Noted,
    /// The file was opened with `O_NOATIME`, or not for reading.
    Silent,
}

/// A time to be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The time of the operation.
    Now,
    /// This time.
    At(Time),
}

/// What `setattr` changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Permission bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size in bytes.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<SetTime>,
    /// Last change of the content.
    pub mtime: Option<SetTime>,
    /// Last change of the inode (the kernel sends it with its writeback cache).
    pub ctime: Option<Time>,
}

/// The current time.
pub fn now() -> Time {
    from_system(quayfs_sync::time::now())
}

/// Converts from the standard library's time.
pub fn from_system(t: SystemTime) -> Time {
    match t.duration_since(UNIX_EPOCH) {
        Ok(d) => Time {
            sec: d.as_secs().cast_signed(),
            nsec: d.subsec_nanos(),
        },
        Err(e) => {
            let d = e.duration();
            let (s, n) = (d.as_secs().cast_signed(), d.subsec_nanos());
            if n == 0 {
                Time { sec: -s, nsec: 0 }
            } else {
                Time {
                    sec: -s - 1,
                    nsec: 1_000_000_000 - n,
                }
            }
        }
    }
}

/// The content of a file changes now.
pub fn written(i: &mut Inode) {
    i.mtime = now();
    i.ctime = i.mtime;
}

/// Clears set-user-id, and set-group-id where it means execution and not mandatory locking. Not of
/// directories, for which these bits mean something else.
pub fn drop_privileges(i: &mut Inode) {
    if i.kind() != S_IFDIR {
        i.mode &= !S_ISUID;
        if i.mode & 0o010 != 0 {
            i.mode &= !S_ISGID;
        }
    }
}

/// The same for a known caller. With `CAP_FSETID` the bits stay. Without it, set-group-id goes in any case if the
/// caller is not in the group of the file.
pub fn drop_privileges_by(by: &dyn Asker, i: &mut Inode) {
    let bits = i.mode & (S_ISUID | S_ISGID);
    if bits == 0 || i.kind() == S_IFDIR || by.has(CapabilitySet::FSETID) {
        return;
    }
    drop_privileges(i);
    if by.ids().gid != i.gid {
        i.mode &= !S_ISGID;
    }
}

/// The `DT_*` value of a mode.
pub fn dirent_kind(mode: u32) -> u8 {
    ((mode & S_IFMT) >> 12) as u8
}

/// Mode bits of a `DT_*` value.
pub fn mode_of_kind(kind: u8) -> u32 {
    u32::from(kind) << 12
}

const _: () = assert!(S_IFDIR >> 12 == 4 && S_IFREG >> 12 == 8 && S_IFLNK >> 12 == 10);

#[cfg(test)]
mod tests {
    use super::*;
    use quayfs_layout::inode::{S_IFBLK, S_IFCHR, S_IFIFO, S_IFSOCK};
    use std::time::Duration;

    #[test]
    fn times_around_the_epoch() {
        let t = |s: SystemTime| from_system(s);
        assert_eq!(t(UNIX_EPOCH), Time { sec: 0, nsec: 0 });
        assert_eq!(
            t(UNIX_EPOCH - Duration::from_nanos(1)),
            Time {
                sec: -1,
                nsec: 999_999_999
            }
        );
        assert_eq!(
            t(UNIX_EPOCH - Duration::from_secs(2)),
            Time { sec: -2, nsec: 0 }
        );
    }

    #[test]
    fn privileges_of_executables_only() {
        let mut i = Inode {
            mode: S_IFREG | 0o6755,
            ..Inode::default()
        };
        drop_privileges(&mut i);
        assert_eq!(i.mode, S_IFREG | 0o755);
        let mut i = Inode {
            mode: S_IFREG | 0o2644,
            ..Inode::default()
        };
        drop_privileges(&mut i);
        assert_eq!(i.mode, S_IFREG | 0o2644);
    }

    #[test]
    fn privileges_of_everything_but_directories() {
        for kind in [S_IFREG, S_IFIFO, S_IFSOCK, S_IFCHR, S_IFBLK] {
            let mut i = Inode {
                mode: kind | 0o6555,
                ..Inode::default()
            };
            drop_privileges(&mut i);
            assert_eq!(i.mode, kind | 0o555);
        }
        let mut i = Inode {
            mode: S_IFDIR | 0o6555,
            ..Inode::default()
        };
        drop_privileges(&mut i);
        assert_eq!(i.mode, S_IFDIR | 0o6555);
    }

    #[test]
    fn who_loses_privileges() {
        let after = |uid, gid, mode| {
            let mut i = Inode {
                mode: S_IFREG | mode,
                gid: 8,
                ..Inode::default()
            };
            let by = Caller { uid, gid, umask: 0 };
            drop_privileges_by(&by, &mut i);
            i.mode & 0o7777
        };
        assert_eq!(after(0, 0, 0o6777), 0o6777);
        assert_eq!(after(7, 8, 0o6777), 0o777);
        assert_eq!(after(7, 8, 0o6766), 0o2766);
        assert_eq!(after(7, 7, 0o6766), 0o766);
    }
}
