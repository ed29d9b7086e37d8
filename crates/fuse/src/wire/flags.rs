//! Sets of flags, under the names that they have in the kernel's header.

// The macro puts the constants where the attribute of the structure does not reach.
#![allow(missing_docs)]

use bitflags::bitflags;

bitflags! {
    /// What kernel and daemon agree on at the start (`FUSE_INIT`), both words as one.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Init: u64 {
        const ASYNC_READ = 1 << 0;
        const POSIX_LOCKS = 1 << 1;
        const ATOMIC_O_TRUNC = 1 << 3;
        const EXPORT_SUPPORT = 1 << 4;
        const BIG_WRITES = 1 << 5;
        const DONT_MASK = 1 << 6;
        const FLOCK_LOCKS = 1 << 10;
        const HAS_IOCTL_DIR = 1 << 11;
        const AUTO_INVAL_DATA = 1 << 12;
        const DO_READDIRPLUS = 1 << 13;
        const READDIRPLUS_AUTO = 1 << 14;
        const ASYNC_DIO = 1 << 15;
        const WRITEBACK_CACHE = 1 << 16;
        const NO_OPEN_SUPPORT = 1 << 17;
        const PARALLEL_DIROPS = 1 << 18;
        const HANDLE_KILLPRIV = 1 << 19;
        const POSIX_ACL = 1 << 20;
        const ABORT_ERROR = 1 << 21;
        const MAX_PAGES = 1 << 22;
        const CACHE_SYMLINKS = 1 << 23;
        const NO_OPENDIR_SUPPORT = 1 << 24;
        const EXPLICIT_INVAL_DATA = 1 << 25;
        const HANDLE_KILLPRIV_V2 = 1 << 28;
        const SETXATTR_EXT = 1 << 29;
        const INIT_EXT = 1 << 30;
        const SECURITY_CTX = 1 << 32;
        const CREATE_SUPP_GROUP = 1 << 34;
        const HAS_EXPIRE_ONLY = 1 << 35;
        const DIRECT_IO_ALLOW_MMAP = 1 << 36;
        const NO_EXPORT_SUPPORT = 1 << 38;
        const HAS_RESEND = 1 << 39;
        const ALLOW_IDMAP = 1 << 40;
        const OVER_IO_URING = 1 << 41;
        const REQUEST_TIMEOUT = 1 << 42;
    }

    /// How the kernel is to treat an open file (`FOPEN_*`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Open: u32 {
        const DIRECT_IO = 1 << 0;
        const KEEP_CACHE = 1 << 1;
        const NONSEEKABLE = 1 << 2;
        const CACHE_DIR = 1 << 3;
        const STREAM = 1 << 4;
        const NOFLUSH = 1 << 5;
        const PARALLEL_DIRECT_WRITES = 1 << 6;
    }

    /// Which fields of a `setattr` count (`FATTR_*`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct SetattrValid: u32 {
        const MODE = 1 << 0;
        const UID = 1 << 1;
        const GID = 1 << 2;
        const SIZE = 1 << 3;
        const ATIME = 1 << 4;
        const MTIME = 1 << 5;
        const FH = 1 << 6;
        const ATIME_NOW = 1 << 7;
        const MTIME_NOW = 1 << 8;
        const LOCKOWNER = 1 << 9;
        const CTIME = 1 << 10;
        const KILL_SUIDGID = 1 << 11;
    }

    /// How ranges are exchanged (`XFS_EXCHANGE_RANGE_*`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ExchangeFlags: u64 {
        const TO_EOF = 1 << 0;
        const DSYNC = 1 << 1;
        const DRY_RUN = 1 << 2;
        const FILE1_WRITTEN = 1 << 3;
    }

    /// What is special about a write (`FUSE_WRITE_*`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct WriteFlags: u32 {
        /// From the page cache, not from a current call: the caller is not the process that wrote.
        const CACHE = 1 << 0;
        const LOCKOWNER = 1 << 1;
        /// Set-user-id and set-group-id bits are to be cleared.
        const KILL_SUIDGID = 1 << 2;
    }
}

/// `FUSE_OPEN_KILL_SUIDGID`, in what comes with an open or create.
pub const OPEN_KILL_SUIDGID: u32 = 1 << 0;
/// `FUSE_SETXATTR_ACL_KILL_SGID`: the access control list comes from a user who is not in the group.
pub const SETXATTR_ACL_KILL_SGID: u32 = 1 << 0;
/// `FUSE_FSYNC_FDATASYNC`.
pub const FSYNC_FDATASYNC: u32 = 1 << 0;
