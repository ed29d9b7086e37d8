//! What the daemon answers.

structures! {
    /// In front of every answer. `error` is 0 or a negative errno.
    OutHeader { len: u32, error: i32, unique: u64, }
    /// Answer to `FUSE_INIT`.
    InitOut {
        major: u32,
        minor: u32,
        max_readahead: u32,
        flags: u32,
        max_background: u16,
        congestion_threshold: u16,
        max_write: u32,
        time_gran: u32,
        max_pages: u16,
        map_alignment: u16,
        flags2: u32,
        max_stack_depth: u32,
        request_timeout: u16,
        unused: [u16; 11],
    }
    /// Attributes of an inode. Times are signed seconds in unsigned clothes.
    AttrOf {
        ino: u64,
        size: u64,
        blocks: u64,
        atime: u64,
        mtime: u64,
        ctime: u64,
        atimensec: u32,
        mtimensec: u32,
        ctimensec: u32,
        mode: u32,
        nlink: u32,
        uid: u32,
        gid: u32,
        rdev: u32,
        blksize: u32,
        flags: u32,
    }
    /// A name that was found or made, with its inode. Inode 0: there is no such name.
    EntryOut {
        nodeid: u64,
        generation: u64,
        entry_valid: u64,
        attr_valid: u64,
        entry_valid_nsec: u32,
        attr_valid_nsec: u32,
        attr: AttrOf,
    }
    /// Answer to `FUSE_GETATTR` and `FUSE_SETATTR`.
    AttrOut { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: AttrOf, }
    /// Answer to `FUSE_OPEN`, second half of that to `FUSE_CREATE`.
    OpenOut { fh: u64, open_flags: u32, backing_id: i32, }
    /// Answer to `FUSE_WRITE` and `FUSE_COPY_FILE_RANGE`.
    WriteOut { size: u32, padding: u32, }
    /// Answer to `FUSE_STATFS`.
    StatfsOut {
        blocks: u64,
        bfree: u64,
        bavail: u64,
        files: u64,
        ffree: u64,
        bsize: u32,
        namelen: u32,
        frsize: u32,
        padding: u32,
        spare: [u32; 6],
    }
    /// Answer to `FUSE_GETXATTR` and `FUSE_LISTXATTR` that asked for the size only.
    GetxattrOut { size: u32, padding: u32, }
    /// Answer to `FUSE_LSEEK`.
    LseekOut { offset: u64, }
    /// In front of the answer to `FUSE_IOCTL`.
    IoctlOut { result: i32, flags: u32, in_iovs: u32, out_iovs: u32, }
    /// Content of a notification that the kernel's memory of an inode is out of date.
    InvalInode { ino: u64, off: i64, len: i64, }
    /// In front of content that the kernel is to take into its memory of an inode.
    StoreOut { nodeid: u64, offset: u64, size: u32, padding: u32, }
    /// In front of a name in a listing.
    Dirent { ino: u64, off: u64, namelen: u32, kind: u32, }
    /// A time of [`Statx`].
    StatxTime { sec: i64, nsec: u32, reserved: i32, }
    /// Attributes with the time of birth.
    Statx {
        mask: u32,
        blksize: u32,
        attributes: u64,
        nlink: u32,
        uid: u32,
        gid: u32,
        mode: u16,
        spare0: u16,
        ino: u64,
        size: u64,
        blocks: u64,
        attributes_mask: u64,
        atime: StatxTime,
        btime: StatxTime,
        ctime: StatxTime,
        mtime: StatxTime,
        rdev_major: u32,
        rdev_minor: u32,
        dev_major: u32,
        dev_minor: u32,
        spare2: [u64; 14],
    }
    /// Answer to `FUSE_STATX`.
    StatxOut { attr_valid: u64, attr_valid_nsec: u32, flags: u32, spare: [u64; 2], stat: Statx, }
}

const _: () = {
    assert!(size_of::<OutHeader>() == 16);
    assert!(size_of::<InitOut>() == 64);
    assert!(size_of::<AttrOf>() == 88);
    assert!(size_of::<EntryOut>() == 128);
    assert!(size_of::<AttrOut>() == 104);
    assert!(size_of::<StatfsOut>() == 80);
    assert!(size_of::<Dirent>() == 24);
    assert!(size_of::<Statx>() == 256);
    assert!(size_of::<StatxOut>() == 288);
};
