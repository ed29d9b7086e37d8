//! The inode table.

use std::ops::Range;

use quayfs_fs::attr::dirent_kind;
use quayfs_layout::Ino;
use quayfs_layout::inode::{self, Inode};
use quayfs_layout::node::INODES_PER_PAGE;

use rustc_hash::FxHashMap;

use super::bitset::BitSet;
use super::pages::{Got, Pages};
use super::{Area, Check};

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
    /// Pages that could be read, in order.
    there: Vec<u32>,
    /// Where in `known` the inodes of each begin, in pages.
    place: FxHashMap<u32, u32>,
    known: Vec<Known>,
    /// Pages that could not.
    damaged: BitSet,
    base: u64,
}

impl Table {
    /// Reads all images; a free one must be empty.
    pub(super) fn load(pages: &Pages<'_>, c: &mut Check) -> Self {
        let g = &pages.media.geo;
        let total = g.inode_end() - g.inode_base;
        let mut table = Self {
            there: Vec::new(),
            place: FxHashMap::default(),
            known: Vec::new(),
            damaged: BitSet::new(total),
            base: g.inode_base,
        };
        for r in pages.unknown_in(g.inode_base..g.inode_end()) {
            table
                .damaged
                .fill(r.start - g.inode_base..r.end - g.inode_base);
        }
        let exist = pages.exists.iter_from(g.inode_base);
        for page in exist
            .map(|id| id - g.inode_base)
            .take_while(|page| *page < total)
        {
            let Got::Page(bytes) = pages.read((g.inode_base + page) as u32) else {
                table.damaged.add(page);
                continue;
            };
            table.place.insert(page as u32, table.there.len() as u32);
            table.there.push(page as u32);
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

    /// The pages that could be read, in order.
    pub(super) fn pages(&self) -> impl Iterator<Item = u64> + '_ {
        self.there.iter().map(|page| u64::from(*page))
    }

    /// The pages that could not.
    pub(super) fn damaged(&self) -> &BitSet {
        &self.damaged
    }

    /// The inode numbers of a page.
    pub(super) fn numbers(page: u64) -> Range<Ino> {
        page * INODES_PER_PAGE..(page + 1) * INODES_PER_PAGE
    }

    /// Whether all images could be read.
    pub(super) fn is_complete(&self) -> bool {
        self.damaged.is_empty()
    }

    fn index(&self, ino: Ino) -> Option<usize> {
        let page = u32::try_from(ino / INODES_PER_PAGE).ok()?;
        let place = *self.place.get(&page)?;
        Some((u64::from(place) * INODES_PER_PAGE + ino % INODES_PER_PAGE) as usize)
    }

    /// What is known of `ino`, which may be any number.
    pub(super) fn status(&self, ino: Ino) -> Status<'_> {
        match self.index(ino).map(|i| &self.known[i]) {
            Some(k) if k.live => Status::Live(k),
            Some(_) => Status::Free,
            None if self.damaged.has(ino / INODES_PER_PAGE) => Status::Unknown,
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
        for page in self.pages() {
            for (ino, inode) in self.images(pages, page) {
                f(ino, &inode);
            }
        }
    }

    /// Calls `f` with what is known of every live inode.
    pub(super) fn each_known(&self, mut f: impl FnMut(Ino, &Known)) {
        for page in self.pages() {
            for ino in Self::numbers(page) {
                if let Status::Live(known) = self.status(ino) {
                    f(ino, known);
                }
            }
        }
    }
}
