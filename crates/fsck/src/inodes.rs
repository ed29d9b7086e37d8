//! One inode after the other, with everything it owns.

use quayfs_layout::Ino;
use quayfs_layout::flaw::{self, Part};
use quayfs_layout::inode::{Inode, S_IFBLK, S_IFCHR, S_IFDIR, S_IFIFO, S_IFLNK, S_IFREG, S_IFSOCK};
use quayfs_shown::count;
use quayfs_shown::progress::Unit;

use super::blocks::Blocks;
use super::links::Links;
use super::owners::Owners;
use super::pages::Pages;
use super::table::Table;
use super::{Area, Check, blobs, dirs, extents};

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
        let unit = Unit::Things("page");
        self.check
            .meter
            .begin("checking inodes", all.len() as u64, unit);
        for page in all {
            self.check.meter.add(1);
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
        flaw::inode(i, &mut |part, why| {
            let area = match part {
                Part::Inode => Area::Inode,
                Part::Directory => Area::Directory,
                Part::Symlink => Area::Symlink,
            };
            self.error(area, format_args!("inode {ino}: {why}"));
        });
        // What the inode owns: data blocks and node pages; `None` if not all of it can be read.
        let owned = match i.kind() {
            S_IFREG => extents::check(self, ino, i),
            S_IFDIR => self.directory(ino, i),
            S_IFLNK => blobs::symlink(self, ino, i),
            S_IFCHR | S_IFBLK | S_IFIFO | S_IFSOCK => self.special(i),
            _ => {
                self.unseen();
                None
            }
        };
        let xattrs = blobs::xattrs(self, ino, i);
        if let (Some(n), Some(m)) = (owned, xattrs)
            && i.blocks != n + m
        {
            let what = format_args!(
                "inode {ino}: owns {}, its image says {}",
                count(n + m, "block"),
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

    fn directory(&mut self, ino: Ino, i: &Inode) -> Option<u64> {
        self.links.directory(ino, i.parent);
        dirs::check(self, ino, i)
    }

    fn special(&mut self, i: &Inode) -> Option<u64> {
        if i.root != 0 || i.size != 0 {
            self.unseen();
            return None;
        }
        Some(0)
    }
}
