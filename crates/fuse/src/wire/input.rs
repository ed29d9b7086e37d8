//! What the kernel sends: the header of every message, and the arguments of each.
//!
//! What a file system may leave unread, and why nothing is lost by it:
//!
//! - `fh` of everything, but for writes, `ioctl`, `fallocate`, `copy_file_range` and releases: inodes are asked for by
//!   number, and stay as long as the kernel knows them.
//! - `lock_owner`, `LOCKOWNER` of all flags, `release_flags`, [`FlushIn`]: locks are the kernel's own.
//! - [`GetattrIn`], `getattr_flags`, `sx_flags` and `sx_mask` of [`StatxIn`]: everything is known, and up to date.
//! - `flags` of [`ReadIn`] but `O_NOATIME` and the access mode; of [`WriteIn`] but `O_APPEND`, `O_SYNC` and
//!   `O_DSYNC`, in which the kernel puts `RWF_SYNC` and `RWF_DSYNC` as well; of [`OpenIn`] and [`CreateIn`] but the
//!   access mode, `O_APPEND`, `O_TRUNC`, `O_DIRECT`, `O_SYNC` and `O_DSYNC`: the rest is done by the kernel (`O_EXCL`,
//!   `O_CREAT`, `O_DIRECTORY`, `O_NOFOLLOW`, `O_NONBLOCK`, `O_PATH`, `O_CLOEXEC`).
//! - `open_flags` of both: comes with [`Init::ATOMIC_O_TRUNC`](super::Init::ATOMIC_O_TRUNC) only.
//! - `fsync_flags`: what does more than `fdatasync` does that as well.
//! - `flags` of [`IoctlIn`]: structures are the same for programs of 32 bits, numbers that differ are known by both.
//!   `arg`: an address. `out_size`: answers are of the size that the number of the call says.
//! - `flags` of [`CopyFileRangeIn`]: 0 until Linux has some.
//! - Extensions of the header: come only where they were asked for (security contexts, supplementary groups).
//! - `fh` and `LOCKOWNER` of [`SetattrIn`]; [`InterruptIn`]: what is under way is done before.

structures! {
    /// In front of every message. `uid` and `gid` may be missing ([`InHeader::has_ids`]).
    InHeader {
        len: u32,
        opcode: u32,
        unique: u64,
        nodeid: u64,
        uid: u32,
        gid: u32,
        pid: u32,
        extensions: u16,
        padding: u16,
    }
    /// `FUSE_INIT` since protocol 7.36; older kernels send the first 16 bytes.
    InitIn {
        major: u32,
        minor: u32,
        max_readahead: u32,
        flags: u32,
        flags2: u32,
        unused: [u32; 11],
    }
    /// `FUSE_GETATTR`.
    GetattrIn { flags: u32, dummy: u32, fh: u64, }
    /// `FUSE_SETATTR`.
    SetattrIn {
        valid: u32,
        padding: u32,
        fh: u64,
        size: u64,
        lock_owner: u64,
        atime: u64,
        mtime: u64,
        ctime: u64,
        atimensec: u32,
        mtimensec: u32,
        ctimensec: u32,
        mode: u32,
        unused4: u32,
        uid: u32,
        gid: u32,
        unused5: u32,
    }
    /// `FUSE_MKNOD`.
    MknodIn { mode: u32, rdev: u32, umask: u32, padding: u32, }
    /// `FUSE_MKDIR`.
    MkdirIn { mode: u32, umask: u32, }
    /// `FUSE_RENAME`.
    RenameIn { newdir: u64, }
    /// `FUSE_RENAME2`.
    Rename2In { newdir: u64, flags: u32, padding: u32, }
    /// `FUSE_LINK`.
    LinkIn { oldnodeid: u64, }
    /// `FUSE_OPEN` and `FUSE_OPENDIR`.
    OpenIn { flags: u32, open_flags: u32, }
    /// `FUSE_CREATE` and `FUSE_TMPFILE`.
    CreateIn { flags: u32, mode: u32, umask: u32, open_flags: u32, }
    /// `FUSE_READ`, `FUSE_READDIR` and `FUSE_READDIRPLUS`.
    ReadIn {
        fh: u64,
        offset: u64,
        size: u32,
        read_flags: u32,
        lock_owner: u64,
        flags: u32,
        padding: u32,
    }
    /// `FUSE_WRITE`; the data follow.
    WriteIn {
        fh: u64,
        offset: u64,
        size: u32,
        write_flags: u32,
        lock_owner: u64,
        flags: u32,
        padding: u32,
    }
    /// `FUSE_RELEASE` and `FUSE_RELEASEDIR`.
    ReleaseIn { fh: u64, flags: u32, release_flags: u32, lock_owner: u64, }
    /// `FUSE_FLUSH`.
    FlushIn { fh: u64, unused: u32, padding: u32, lock_owner: u64, }
    /// `FUSE_FSYNC` and `FUSE_FSYNCDIR`.
    FsyncIn { fh: u64, fsync_flags: u32, padding: u32, }
    /// `FUSE_SETXATTR` with `SETXATTR_EXT`; without it the first 8 bytes. Name and value follow.
    SetxattrIn { size: u32, flags: u32, setxattr_flags: u32, padding: u32, }
    /// `FUSE_GETXATTR` and `FUSE_LISTXATTR`.
    GetxattrIn { size: u32, padding: u32, }
    /// `FUSE_ACCESS`.
    AccessIn { mask: u32, padding: u32, }
    /// `FUSE_FORGET`.
    ForgetIn { nlookup: u64, }
    /// `FUSE_BATCH_FORGET`; so many [`ForgetOne`] follow.
    BatchForgetIn { count: u32, dummy: u32, }
    /// One inode of a `FUSE_BATCH_FORGET`.
    ForgetOne { nodeid: u64, nlookup: u64, }
    /// `FUSE_IOCTL`; input data follow.
    IoctlIn { fh: u64, flags: u32, cmd: u32, arg: u64, in_size: u32, out_size: u32, }
    /// What `FS_IOC_FSGETXATTR` and `FS_IOC_FSSETXATTR` hand over (`struct fsxattr`).
    FsXattr {
        xflags: u32,
        extsize: u32,
        nextents: u32,
        projid: u32,
        cowextsize: u32,
        pad: [u8; 8],
    }
    /// What `FITRIM` hands over and gets back (`struct fstrim_range`), in bytes.
    TrimRange { start: u64, len: u64, minlen: u64, }
    /// What `XFS_IOC_EXCHANGE_RANGE` hands over (`struct xfs_exchange_range`); offsets and length in bytes.
    ExchangeRange {
        file1_fd: i32,
        pad: u32,
        file1_offset: u64,
        file2_offset: u64,
        length: u64,
        flags: u64,
    }
    /// What `XFS_IOC_START_COMMIT` gives and `XFS_IOC_COMMIT_RANGE` hands over (`struct xfs_commit_range`).
    CommitRange { range: ExchangeRange, file2_freshness: [u64; 6], }
    /// `FUSE_FALLOCATE`.
    FallocateIn { fh: u64, offset: u64, length: u64, mode: u32, padding: u32, }
    /// `FUSE_LSEEK`.
    LseekIn { fh: u64, offset: u64, whence: u32, padding: u32, }
    /// `FUSE_COPY_FILE_RANGE`.
    CopyFileRangeIn {
        fh_in: u64,
        off_in: u64,
        nodeid_out: u64,
        fh_out: u64,
        off_out: u64,
        len: u64,
        flags: u64,
    }
    /// `FUSE_STATX`.
    StatxIn { getattr_flags: u32, reserved: u32, fh: u64, sx_flags: u32, sx_mask: u32, }
    /// `FUSE_SYNCFS`.
    SyncfsIn { padding: u64, }
    /// `FUSE_INTERRUPT`.
    InterruptIn { unique: u64, }
}

/// Reads what an `ioctl` hands over, a number or a structure; `None` if that is too short.
pub fn handed_over<T: zerocopy::FromBytes>(data: &[u8]) -> Option<T> {
    T::read_from_prefix(data).ok().map(|(value, _)| value)
}

/// Stands for user and group where a request does not say who asks (`FUSE_INVALID_UIDGID`).
const NO_ID: u32 = u32::MAX;

impl InHeader {
    /// Whether the message says who asks. With [`Init::ALLOW_IDMAP`](super::Init::ALLOW_IDMAP) Linux says
    /// so where an inode is made (`FUSE_MKNOD`, `FUSE_MKDIR`, `FUSE_SYMLINK`, `FUSE_CREATE`,
    /// `FUSE_TMPFILE`, `FUSE_RENAME2` with a whiteout) and nowhere else, be the mount that it
    /// comes from idmapped or not.
    pub fn has_ids(&self) -> bool {
        self.uid != NO_ID && self.gid != NO_ID
    }
}

const _: () = {
    assert!(size_of::<InHeader>() == 40);
    assert!(size_of::<InitIn>() == 64);
    assert!(size_of::<SetattrIn>() == 88);
    assert!(size_of::<ReadIn>() == 40);
    assert!(size_of::<WriteIn>() == 40);
    assert!(size_of::<IoctlIn>() == 32);
    assert!(size_of::<FsXattr>() == 28);
    assert!(size_of::<TrimRange>() == 24);
    assert!(size_of::<ExchangeRange>() == 40);
    assert!(size_of::<CommitRange>() == 88);
    assert!(size_of::<CopyFileRangeIn>() == 56);
    assert!(size_of::<StatxIn>() == 24);
};
