//! Inode images: 256 bytes each, logged whole.

use crate::bytes::{get_u16, get_u32, get_u64, put_u16, put_u32, put_u64};
use crate::extent::{self, Extent};
use crate::node::{HEADER, INODES_PER_PAGE};
use crate::{BLOCK, Ino};

/// Bytes of an image.
pub const SIZE: usize = 256;
/// The root directory.
pub const ROOT: Ino = 1;
/// Largest size of a file.
pub const SIZE_MAX: u64 = i64::MAX as u64;
/// Longest symbolic link target.
pub const TARGET_MAX: usize = 4095;
/// Longest symbolic link target kept in the inode.
pub const INLINE_MAX: usize = 120;

const OFF_INLINE: usize = 128;
const _: () = assert!(HEADER + SIZE * INODES_PER_PAGE as usize <= BLOCK);
const _: () = assert!(OFF_INLINE + INLINE_MAX <= SIZE);
const _: () = assert!(extent::INLINE * extent::SIZE <= INLINE_MAX);

/// File type bits of the mode.
pub const S_IFMT: u32 = 0o170_000;
/// Directory.
pub const S_IFDIR: u32 = 0o040_000;
/// Regular file.
pub const S_IFREG: u32 = 0o100_000;
/// Symbolic link.
pub const S_IFLNK: u32 = 0o120_000;
/// Named pipe.
pub const S_IFIFO: u32 = 0o010_000;
/// Character device.
pub const S_IFCHR: u32 = 0o020_000;
/// Block device.
pub const S_IFBLK: u32 = 0o060_000;
/// Socket.
pub const S_IFSOCK: u32 = 0o140_000;
/// Set-user-id bit.
pub const S_ISUID: u32 = 0o4000;
/// Set-group-id bit.
pub const S_ISGID: u32 = 0o2000;

/// Writes of the content and changes of names in a directory are durable when they return.
pub const FLAG_SYNC: u32 = 0x8;
/// Nothing may be changed.
pub const FLAG_IMMUTABLE: u32 = 0x10;
/// Content grows at its end and nowhere else; names come and do not go.
pub const FLAG_APPEND: u32 = 0x20;
/// Programs that make backups are to leave it out.
pub const FLAG_NODUMP: u32 = 0x40;
/// Access times are not noted.
pub const FLAG_NOATIME: u32 = 0x80;
/// Changes of names in a directory are durable when they return.
pub const FLAG_DIRSYNC: u32 = 0x1_0000;
/// What is made in a directory has its project id.
pub const FLAG_PROJECT: u32 = 0x2000_0000;
/// Flags that a new inode takes over from its directory, as far as its type can have them.
pub const FLAGS_INHERITED: u32 =
    FLAG_SYNC | FLAG_NODUMP | FLAG_NOATIME | FLAG_DIRSYNC | FLAG_PROJECT;

/// Flags that an inode of this type can have.
pub fn flags_of(mode: u32) -> u32 {
    let all = FLAG_NODUMP | FLAG_NOATIME;
    let file = all | FLAG_SYNC | FLAG_IMMUTABLE | FLAG_APPEND;
    match mode & S_IFMT {
        S_IFREG => file,
        S_IFDIR => file | FLAG_DIRSYNC | FLAG_PROJECT,
        _ => all,
    }
}

/// A point in time: seconds since 1970 (negative before) and nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Time {
    /// Seconds.
    pub sec: i64,
    /// Nanoseconds, below 10^9.
    pub nsec: u32,
}

/// A decoded inode. An image whose mode is 0 is free.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Inode {
    /// File type and permission bits.
    pub mode: u32,
    /// Hard links; 0 for an orphan that is still open.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Changes each time the inode number is reused.
    pub generation: u32,
    /// Inode flags (`FLAG_*`), those of `FS_IOC_GETFLAGS`.
    pub flags: u32,
    /// Project id.
    pub project: u32,
    /// Device number of a device file.
    pub rdev: u32,
    /// Size in bytes.
    pub size: u64,
    /// Data blocks and metadata pages owned, in blocks of 4 KiB.
    pub blocks: u64,
    /// Last access.
    pub atime: Time,
    /// Last change of the content.
    pub mtime: Time,
    /// Last change of the inode.
    pub ctime: Time,
    /// Creation.
    pub btime: Time,
    /// Parent of a directory.
    pub parent: Ino,
    /// First page of the extent chain, root page of a directory, or first page of a symbolic link
    /// target that is not inline; 0 for none.
    pub root: u32,
    /// Index levels above the leaves of a directory.
    pub depth: u16,
    /// First page of the extended-attribute chain, 0 for none.
    pub xattr: u32,
    /// Bytes of the extended-attribute set.
    pub xattr_len: u32,
    /// Entries of a directory, without `.` and `..`.
    pub entries: u64,
    /// Inline extents or inline link target.
    pub inline: Inline,
}

/// The inline area of an inode.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Inline(pub [u8; INLINE_MAX]);

impl Default for Inline {
    fn default() -> Self {
        Self([0; INLINE_MAX])
    }
}

impl std::fmt::Debug for Inline {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let used = self.0.iter().rposition(|b| *b != 0).map_or(0, |n| n + 1);
        write!(f, "Inline({used} bytes)")
    }
}

impl Inode {
    /// File type bits.
    pub fn kind(&self) -> u32 {
        self.mode & S_IFMT
    }

    /// Whether this is a directory.
    pub fn is_dir(&self) -> bool {
        self.kind() == S_IFDIR
    }

    /// Whether this is a regular file.
    pub fn is_file(&self) -> bool {
        self.kind() == S_IFREG
    }

    /// Whether this is a symbolic link.
    pub fn is_symlink(&self) -> bool {
        self.kind() == S_IFLNK
    }

    /// The inline extent at place `i`.
    pub fn inline_extent(&self, i: usize) -> Option<Extent> {
        Extent::decode(&self.inline.0[i * extent::SIZE..(i + 1) * extent::SIZE])
    }

    /// Sets or clears the inline extent at place `i`.
    pub fn set_inline_extent(&mut self, i: usize, e: Option<Extent>) {
        let bytes = e.map_or([0; extent::SIZE], |e| e.encode());
        self.inline.0[i * extent::SIZE..(i + 1) * extent::SIZE].copy_from_slice(&bytes);
    }

    /// Encodes the image.
    pub fn encode(&self) -> [u8; SIZE] {
        let mut b = [0; SIZE];
        put_u32(&mut b, 0, self.mode);
        put_u32(&mut b, 4, self.nlink);
        put_u32(&mut b, 8, self.uid);
        put_u32(&mut b, 12, self.gid);
        put_u32(&mut b, 16, self.generation);
        put_u32(&mut b, 20, self.flags);
        put_u32(&mut b, 24, self.project);
        put_u32(&mut b, 28, self.rdev);
        put_u64(&mut b, 32, self.size);
        put_u64(&mut b, 40, self.blocks);
        for (i, t) in [self.atime, self.mtime, self.ctime, self.btime]
            .iter()
            .enumerate()
        {
            b[48 + 8 * i..56 + 8 * i].copy_from_slice(&t.sec.to_le_bytes());
            put_u32(&mut b, 80 + 4 * i, t.nsec);
        }
        put_u64(&mut b, 96, self.parent);
        put_u32(&mut b, 104, self.root);
        put_u16(&mut b, 108, self.depth);
        put_u32(&mut b, 112, self.xattr);
        put_u32(&mut b, 116, self.xattr_len);
        put_u64(&mut b, 120, self.entries);
        b[OFF_INLINE..OFF_INLINE + INLINE_MAX].copy_from_slice(&self.inline.0);
        b
    }

    /// Decodes an image.
    pub fn decode(b: &[u8]) -> Self {
        let time = |i: usize| Time {
            sec: get_u64(b, 48 + 8 * i).cast_signed(),
            nsec: get_u32(b, 80 + 4 * i),
        };
        let mut inline = Inline::default();
        inline
            .0
            .copy_from_slice(&b[OFF_INLINE..OFF_INLINE + INLINE_MAX]);
        Self {
            mode: get_u32(b, 0),
            nlink: get_u32(b, 4),
            uid: get_u32(b, 8),
            gid: get_u32(b, 12),
            generation: get_u32(b, 16),
            flags: get_u32(b, 20),
            project: get_u32(b, 24),
            rdev: get_u32(b, 28),
            size: get_u64(b, 32),
            blocks: get_u64(b, 40),
            atime: time(0),
            mtime: time(1),
            ctime: time(2),
            btime: time(3),
            parent: get_u64(b, 96),
            root: get_u32(b, 104),
            depth: get_u16(b, 108),
            xattr: get_u32(b, 112),
            xattr_len: get_u32(b, 116),
            entries: get_u64(b, 120),
            inline,
        }
    }
}

/// Byte offset of inode place `slot` within an inode-table page.
pub fn offset(slot: usize) -> usize {
    HEADER + slot * SIZE
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_image_survives_a_round_trip(bytes in prop::collection::vec(any::<u8>(), SIZE)) {
            let a = Inode::decode(&bytes);
            prop_assert_eq!(Inode::decode(&a.encode()), a);
        }
    }

    #[test]
    fn times_before_1970_survive() {
        let i = Inode {
            mtime: Time {
                sec: -2_177_452_800,
                nsec: 7,
            },
            ..Default::default()
        };
        assert_eq!(Inode::decode(&i.encode()).mtime, i.mtime);
    }
}
