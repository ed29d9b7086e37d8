//! What projects, users and groups have and may have, in the model.
//!
//! Blocks of files, pages of attributes and of link targets follow from the state of the model. Pages of
//! extents and of names do not: where blocks lie and how names are hashed is the file system's own. For
//! those there is a bound, which is exact where an inode has little.

use std::collections::BTreeSet;

use quayfs_fs::{FallocMode, SetQuota, Subject};
use quayfs_layout::quota::{Limits, Usage};
use quayfs_layout::{BLOCK, Ino};
use quayfs_store::error::FsError;

use super::{Model, Node, Result};
use crate::ops::Op;

const B: u64 = BLOCK as u64;
/// Bytes that a page has for what it holds.
const ROOM: u64 = B - 64;
/// Extents in an inode, and in an extent page.
const INLINE: u64 = 7;
const PER_PAGE: u64 = ROOM / 16;
/// Bytes that an entry of a directory takes besides its name, at most.
const ENTRY: u64 = 32;
/// Pages that a directory grows by at most, for one name.
const SPLITS: u64 = 8;

impl Node {
    /// Its project, user and group.
    pub fn ids(&self) -> (u32, u32, u32) {
        (self.project, self.uid, self.gid)
    }

    fn is_of(&self, subject: Subject) -> bool {
        match subject {
            Subject::Project(id) => self.project == id,
            Subject::User(id) => self.uid == id,
            Subject::Group(id) => self.gid == id,
        }
    }

    /// Blocks, and those pages that follow from what the inode holds.
    pub fn charged(&self) -> u64 {
        let pages = |len: usize| (len as u64).div_ceil(ROOM);
        let target = match self.target.len() {
            0..120 => 0,
            len => pages(len),
        };
        self.content.allocated() + target + pages(self.xattr_bytes())
    }

    /// Pages of extents or names that may be added to the `pages` there are, when the inode becomes
    /// `after` by an operation that maps `mapped` blocks of it at most.
    fn may_add(&self, after: &Self, pages: u64, mapped: Option<u64>) -> u64 {
        if self.is_dir() {
            let names: BTreeSet<_> = self.entries.keys().chain(after.entries.keys()).collect();
            let bytes: u64 = names.iter().map(|n| n.len() as u64 + ENTRY).sum();
            return match pages {
                _ if self.entries.keys().eq(after.entries.keys()) => 0,
                0 if bytes <= ROOM => 1,
                1 if bytes <= ROOM => 0,
                _ => SPLITS,
            };
        }
        let Some(mapped) = mapped else { return 0 };
        // Blocks written directly move, and may leave two ends of an extent behind.
        let extents = self.content.allocated() + mapped + 2;
        match extents <= INLINE + PER_PAGE * pages {
            true => 0,
            false => 1 + mapped / PER_PAGE,
        }
    }
}

impl Model {
    /// Sets limits.
    pub fn set_quota(&mut self, set: &SetQuota) -> Result<()> {
        if set.subject == Subject::default() {
            return Err(FsError::Invalid);
        }
        let limits = self.limits.entry(set.subject).or_default();
        let blocks = |limit: &mut u64, bytes: Option<u64>| {
            *limit = bytes.map_or(*limit, |bytes| bytes.div_ceil(B));
        };
        blocks(&mut limits.blocks_soft, set.bytes_soft);
        blocks(&mut limits.blocks, set.bytes_hard);
        limits.inodes_soft = set.inodes_soft.unwrap_or(limits.inodes_soft);
        limits.inodes = set.inodes_hard.unwrap_or(limits.inodes);
        if *limits == Limits::default() {
            self.limits.remove(&set.subject);
        }
        Ok(())
    }

    /// Blocks and inodes that `subject` gets at most when this becomes `after` by `op`; `blocks` says
    /// what an inode has.
    pub fn growth(
        &self,
        after: &Self,
        (op, subject): (&Op, Subject),
        blocks: impl Fn(Ino) -> u64,
    ) -> (i64, i64) {
        let mut had = Usage::default();
        for (ino, _) in self.nodes.iter().filter(|(_, n)| n.is_of(subject)) {
            had.blocks += blocks(*ino);
            had.inodes += 1;
        }
        let mut has = Usage::default();
        for (ino, n) in after.nodes.iter().filter(|(_, n)| n.is_of(subject)) {
            has.blocks += n.charged();
            has.inodes += 1;
            if let Some(before) = self.nodes.get(ino) {
                let pages = blocks(*ino).saturating_sub(before.charged());
                has.blocks += pages + before.may_add(n, pages, self.maps(op, *ino));
            }
        }
        // What has no name any more is freed afterwards, in records of its own.
        let gone = self.nodes.iter().filter(|(_, n)| n.is_of(subject));
        for (ino, _) in gone.filter(|(ino, _)| !after.nodes.contains_key(ino)) {
            has.blocks += blocks(*ino);
            has.inodes += 1;
        }
        let more = |has: u64, had: u64| has.cast_signed() - had.cast_signed();
        (more(has.blocks, had.blocks), more(has.inodes, had.inodes))
    }

    /// Blocks of an inode that an operation maps, or maps elsewhere, at most; `None` if it is not about
    /// that inode's blocks.
    fn maps(&self, op: &Op, ino: Ino) -> Option<u64> {
        let spans = |at: u64, len: u64| (at % B + len).div_ceil(B);
        let allocated = |ino| self.nodes.get(&ino).map_or(0, |n| n.content.allocated());
        match op {
            Op::Write {
                ino: of,
                offset,
                data,
                ..
            } => (*of == ino).then(|| spans(*offset, data.len as u64)),
            Op::Together {
                ino: of, pieces, ..
            } => {
                let of_piece = |(at, data): &(u64, crate::ops::Data)| spans(*at, data.len as u64);
                (*of == ino).then(|| pieces.iter().map(of_piece).sum())
            }
            Op::Fallocate {
                ino: of,
                mode: FallocMode::Allocate { .. } | FallocMode::Zero { .. },
                offset,
                len,
            } => (*of == ino).then(|| spans(*offset, *len)),
            Op::Copy { to, len, .. } => (to.0 == ino).then(|| spans(to.1, *len)),
            Op::Exchange { one, other, .. } => {
                let ours = one.0 == ino || other.0 == ino;
                ours.then(|| allocated(one.0) + allocated(other.0))
            }
            _ => None,
        }
    }
}
