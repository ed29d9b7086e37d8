//! What kind of medium a region is on.

use rustix::fs::{FsWord, fstatfs};
use std::fmt;
use std::os::fd::AsFd;

/// What kind of medium a region is on, and so what makes a store durable and what it survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Backend {
    /// Directly mapped persistent memory (`MAP_SYNC`): flush and fence; survives power loss.
    Dax,
    /// A file or block device on a disk, of which the process has a private mapping: what is stored is
    /// written by [`Region::drain`](crate::Region::drain) and durable by its `fdatasync`, by nothing else;
    /// survives power loss, at the speed of the disk.
    File,
    /// Memory without a medium (tmpfs, hugetlbfs, memfd): flush and fence as on [`Backend::Dax`];
    /// survives the death of the process, not of the machine.
    Volatile,
}

impl Backend {
    /// Whether only [`Region::drain`](crate::Region::drain), and never a fence, makes stores durable.
    pub fn needs_drain(self) -> bool {
        self == Self::File
    }

    /// Whether this medium promises at least what `required` does.
    pub fn satisfies(self, required: Self) -> bool {
        self.strength() >= required.strength()
    }

    fn strength(self) -> u8 {
        match self {
            Self::Dax => 2,
            Self::File => 1,
            Self::Volatile => 0,
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Dax => "dax",
            Self::File => "file",
            Self::Volatile => "volatile",
        })
    }
}

const TMPFS: FsWord = 0x0102_1994;
const RAMFS: FsWord = 0x8584_58f6;
const HUGETLBFS: FsWord = 0x9584_58f6;

/// Whether the file lives in memory only. A memfd reports tmpfs or hugetlbfs.
pub(crate) fn is_memory_fs(fd: impl AsFd) -> rustix::io::Result<bool> {
    Ok(matches!(fstatfs(fd)?.f_type, TMPFS | RAMFS | HUGETLBFS))
}
