//! statfs.

use quayfs_layout::BLOCK;
use quayfs_layout::dirent::NAME_MAX;

use quayfs_store::txn::BLOCKS_KEPT;

use crate::Fs;

/// What `statfs` reports, in blocks of 4 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatFs {
    /// Blocks that files can own.
    pub blocks: u64,
    /// Free blocks.
    pub free: u64,
    /// Those of them that files can have: the rest is kept for operations that give space back.
    pub available: u64,
    /// Inode numbers in use and still possible.
    pub files: u64,
    /// Inodes that can still be created.
    pub files_free: u64,
    /// Block size in bytes.
    pub block_size: u32,
    /// Longest name.
    pub name_max: u32,
}

impl Fs {
    /// Space and inodes. Inodes end where node pages end, so their number follows the free pages. What the
    /// kernel has forgotten is free.
    pub fn statfs(&self) -> StatFs {
        let e = &self.e;
        e.await_orphans();
        let (used, possible) = e.files();
        let free = e.blocks_free();
        StatFs {
            blocks: e.config.geometry.visible_blocks(),
            free,
            available: free.saturating_sub(BLOCKS_KEPT),
            files: used + possible,
            files_free: possible,
            block_size: BLOCK as u32,
            name_max: NAME_MAX as u32,
        }
    }
}
