//! The inode table.

use std::ops::Range;

use quayfs_layout::Ino;
use quayfs_layout::inode::{self, Inode};
use quayfs_layout::node::INODES_PER_PAGE;

use super::pages::{Got, Pages};
use super::{Area, Check};
use crate::fs::attr::dirent_kind;

/// In `place`: the page does not exist.
const ABSENT: u32 = u32::MAX;
/// In `place`: the page cannot be read.
const DAMAGED: u32 = u32::MAX - 1;

/// What is known of a live inode.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Known {
    /// Whether the inode is in use.
    live: bool,
    /// `DT_*` type.
    pub(super) kind: u8,
    /// There is an orphan intent.
    pub(super) orphan: bool,
    /// There is a truncate intent.
    pub(super) truncate: bool,
    /// Links according to the image.
    pub(super) nlink: u32,
    /// Entries found.
    pub(super) names: u32,
}

/// What is known of an inode number.
pub(super) enum Status<'a> {
    /// Not in use.
    Free,
    /// Its page cannot be read.
    Unknown,
    /// In use.
    Live(&'a Known),
}

/// A few bytes for each place of the inode-table pages that exist.
pub(super) struct Table {
    place: Vec<u32>,
    known: Vec<Known>,
    base: u64,
}

impl Table {
    /// Reads all images; a free one must be empty.
    pub(super) fn load(pages: &Pages<'_>, c: &mut Check) -> Self {
        let g = &pages.media.geo;
        let mut table = Self {
            place: vec![ABSENT; (g.dyn_base - g.inode_base) as usize],
            known: Vec::new(),
            base: g.inode_base,
        };
        for page in 0..table.pages() {
            let bytes = match pages.read((g.inode_base + page) as u32) {
                Got::Missing => continue,
                Got::Damaged => {
                    table.place[page as usize] = DAMAGED;
                    continue;
                }
                Got::Page(bytes) => bytes,
            };
            table.place[page as usize] = (table.known.len() as u64 / INODES_PER_PAGE) as u32;
            for (slot, ino) in Self::numbers(page).enumerate() {
                let at = inode::offset(slot);
                let image = &bytes[at..at + inode::SIZE];
                let inode = Inode::decode(image);
                if inode.mode == 0 && image.iter().any(|b| *b != 0) {
                    let what = format_args!("inode {ino} is free, but its image is not empty");
                    c.findings.error(Area::Inode, what);
                }
                let used = inode.mode != 0;
                if used && ino == 0 {
                    c.findings
                        .error(Area::Inode, "inode 0 exists, which is never used");
                }
                table.known.push(Known {
                    live: used && ino != 0,
                    kind: dirent_kind(inode.mode),
                    nlink: inode.nlink,
                    ..Known::default()
                });
            }
        }
        table
    }

    /// Number of pages that the table can have.
    pub(super) fn pages(&self) -> u64 {
        self.place.len() as u64
    }

    /// The inode numbers of a page.
    pub(super) fn numbers(page: u64) -> Range<Ino> {
        page * INODES_PER_PAGE..(page + 1) * INODES_PER_PAGE
    }

    /// Whether all images could be read.
    pub(super) fn is_complete(&self) -> bool {
        !self.place.contains(&DAMAGED)
    }

    fn index(&self, ino: Ino) -> Option<usize> {
        let place = *self.place.get((ino / INODES_PER_PAGE) as usize)?;
        (place < DAMAGED)
            .then(|| (u64::from(place) * INODES_PER_PAGE + ino % INODES_PER_PAGE) as usize)
    }

    /// What is known of `ino`, which may be any number.
    pub(super) fn status(&self, ino: Ino) -> Status<'_> {
        match self.index(ino).map(|i| &self.known[i]) {
            Some(k) if k.live => Status::Live(k),
            Some(_) => Status::Free,
            None if self.place.get((ino / INODES_PER_PAGE) as usize) == Some(&DAMAGED) => {
                Status::Unknown
            }
            None => Status::Free,
        }
    }

    /// Notes something about a live inode.
    pub(super) fn note(&mut self, ino: Ino, f: impl FnOnce(&mut Known)) {
        if let Some(i) = self.index(ino) {
            f(&mut self.known[i]);
        }
    }

    /// The live inodes of a page.
    pub(super) fn images(&self, pages: &Pages<'_>, page: u64) -> Vec<(Ino, Inode)> {
        if self.place[page as usize] >= DAMAGED {
            return Vec::new();
        }
        let Got::Page(bytes) = pages.read((self.base + page) as u32) else {
            return Vec::new();
        };
        let images = Self::numbers(page).enumerate().map(|(slot, ino)| {
            let at = inode::offset(slot);
            (ino, Inode::decode(&bytes[at..at + inode::SIZE]))
        });
        images
            .filter(|(ino, inode)| *ino != 0 && inode.mode != 0)
            .collect()
    }

    /// Calls `f` for every live inode.
    pub(super) fn each(&self, pages: &Pages<'_>, mut f: impl FnMut(Ino, &Inode)) {
        for page in 0..self.pages() {
            for (ino, inode) in self.images(pages, page) {
                f(ino, &inode);
            }
        }
    }

    /// Calls `f` with what is known of every live inode.
    pub(super) fn each_known(&self, mut f: impl FnMut(Ino, &Known)) {
        for page in 0..self.pages() {
            for ino in Self::numbers(page) {
                if let Status::Live(known) = self.status(ino) {
                    f(ino, known);
                }
            }
        }
    }
}
