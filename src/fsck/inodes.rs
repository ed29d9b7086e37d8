//! One inode after the other, with everything it owns.

use quayfs_layout::Ino;
use quayfs_layout::inode::{
    Inline, Inode, S_IFBLK, S_IFCHR, S_IFDIR, S_IFIFO, S_IFLNK, S_IFMT, S_IFREG, S_IFSOCK, flags_of,
};

use super::blocks::Blocks;
use super::links::Links;
use super::owners::Owners;
use super::pages::Pages;
use super::table::Table;
use super::{Area, Check, blobs, dirs, extents};
use crate::data::write::SIZE_MAX;

/// The pass over all inodes.
pub(super) struct Inodes<'a, 'm> {
    pub(super) pages: &'a Pages<'m>,
    pub(super) table: &'a mut Table,
    pub(super) owners: &'a mut Owners,
    pub(super) links: &'a mut Links,
    pub(super) blocks: &'a mut Blocks<'m>,
    pub(super) check: &'a mut Check,
}

impl Inodes<'_, '_> {
    pub(super) fn all(&mut self) {
        let all: Vec<u64> = self.table.pages().collect();
        for page in all {
            for (ino, inode) in self.table.images(self.pages, page) {
                self.one(ino, &inode);
            }
        }
    }

    pub(super) fn error(&mut self, area: Area, what: impl std::fmt::Display) {
        self.check.findings.error(area, what);
    }

    fn one(&mut self, ino: Ino, i: &Inode) {
        let s = &mut self.check.report.statistics;
        s.inodes += 1;
        s.orphans += u64::from(i.nlink == 0);
        *match i.kind() {
            S_IFDIR => &mut s.directories,
            S_IFREG => &mut s.files,
            S_IFLNK => &mut s.symlinks,
            _ => &mut s.special,
        } += 1;
        for (name, t) in [
            ("a", i.atime),
            ("m", i.mtime),
            ("c", i.ctime),
            ("b", i.btime),
        ] {
            if t.nsec >= 1_000_000_000 {
                let what = format_args!("inode {ino}: {name}time has {} nanoseconds", t.nsec);
                self.error(Area::Inode, what);
            }
        }
        if !i.is_dir() && (i.depth != 0 || i.entries != 0 || i.parent != 0) {
            let what = format_args!("inode {ino}: not a directory, but has fields of one");
            self.error(Area::Inode, what);
        }
        // What the inode owns: data blocks and node pages; `None` if not all of it can be read.
        let owned = match i.kind() {
            S_IFREG => self.file(ino, i),
            S_IFDIR => self.directory(ino, i),
            S_IFLNK => blobs::symlink(self, ino, i),
            S_IFCHR | S_IFBLK | S_IFIFO | S_IFSOCK => self.special(ino, i),
            _ => {
                let what = format_args!("inode {ino}: there is no file type {:o}", i.mode & S_IFMT);
                self.error(Area::Inode, what);
                self.unseen();
                None
            }
        };
        if i.mode & !(S_IFMT | 0o7777) != 0 {
            self.error(
                Area::Inode,
                format_args!("inode {ino}: there is no mode {:o}", i.mode),
            );
        }
        let wrong = i.flags & !flags_of(i.mode);
        if wrong != 0 {
            let what = format_args!("inode {ino}: has flags that it cannot have, {wrong:#x}");
            self.error(Area::Inode, what);
        }
        let xattrs = blobs::xattrs(self, ino, i);
        if let (Some(n), Some(m)) = (owned, xattrs)
            && i.blocks != n + m
        {
            let what = format_args!(
                "inode {ino}: owns {} blocks, its image says {}",
                n + m,
                i.blocks
            );
            self.error(Area::Inode, what);
        }
    }

    /// Whatever the inode refers to will seem to have no owner.
    fn unseen(&mut self) {
        self.owners.gaps.nodes = true;
        self.owners.gaps.blocks = true;
        self.owners.gaps.links = true;
    }

    fn file(&mut self, ino: Ino, i: &Inode) -> Option<u64> {
        if i.size > SIZE_MAX {
            self.error(
                Area::Inode,
                format_args!("inode {ino}: size {} is impossible", i.size),
            );
        }
        extents::check(self, ino, i)
    }

    fn directory(&mut self, ino: Ino, i: &Inode) -> Option<u64> {
        self.empty_inline(ino, i);
        self.links.directory(ino, i.parent);
        dirs::check(self, ino, i)
    }

    fn special(&mut self, ino: Ino, i: &Inode) -> Option<u64> {
        self.empty_inline(ino, i);
        if i.root != 0 || i.size != 0 {
            self.error(
                Area::Inode,
                format_args!("inode {ino}: a special file with content"),
            );
            self.unseen();
            return None;
        }
        Some(0)
    }

    fn empty_inline(&mut self, ino: Ino, i: &Inode) {
        if i.inline != Inline::default() {
            let what = format_args!("inode {ino}: neither file nor link, but has inline content");
            self.error(Area::Inode, what);
        }
    }
}
