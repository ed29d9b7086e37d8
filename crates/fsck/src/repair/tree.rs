//! The tree: everything that inodes own, and everything that is derived from that.
//!
//! All inodes are read and judged; what they own is claimed; then names are put right; then what
//! can be derived is derived. The result is compared with what is there, and what differs is
//! written. Nothing here depends on what was damaged, only on what exists.

mod blobs;
mod derived;
mod dirs;
mod files;
mod gone;
mod names;
mod unnamed;
mod write;

use std::collections::{BTreeMap, BTreeSet};

use quayfs_fs::attr::now;
use quayfs_fs::data::write::SIZE_MAX;
use quayfs_layout::extent::Extent;
use quayfs_layout::inode::{
    self, Inline, Inode, ROOT, S_IFDIR, S_IFLNK, S_IFMT, S_IFREG, flags_of,
};
use quayfs_layout::jsb::{SeqWord, WordKind};
use quayfs_layout::node::{self, INODES_PER_PAGE, NodeKind};
use quayfs_layout::{Ino, Lbn};
use quayfs_store::ns::node::PageBytes;
use rangemap::RangeSet;
use rustc_hash::FxHashMap;

use super::report::Journal;
use super::{Area, Failed, Repair};
use crate::bitset::BitSet;
use crate::media::Media;
use crate::pages::{Got, Pages};
use crate::{Check, FsckReport};
use dirs::Directory;

/// The tree as it is to be.
pub(super) struct Tree<'m> {
    media: &'m Media,
    pages: Pages<'m>,
    /// D: no page can be newer.
    digested: u64,
    /// Live inodes.
    inodes: BTreeMap<Ino, Inode>,
    dirs: BTreeMap<Ino, Directory>,
    /// Extent pages and directory leaves by owner, in order of id.
    extent_pages: FxHashMap<Ino, Vec<u32>>,
    leaves: FxHashMap<Ino, Vec<u32>>,
    /// Dynamic nodes that something needs.
    reached: BTreeSet<u32>,
    /// Dynamic nodes with new content.
    changed: BTreeMap<u32, PageBytes>,
    /// LBNs that files have.
    pub(super) lbns: BitSet,
    /// The same as ranges: extents may claim the same ones again and again.
    claimed: RangeSet<Lbn>,
    /// All extents with the files they belong to, by first LBN.
    mapped: BTreeMap<Lbn, (Extent, Ino)>,
    /// Entry for each inode that has one: directory and name.
    named: BTreeMap<Ino, (Ino, Vec<u8>)>,
    /// Names found.
    links: BTreeMap<Ino, u32>,
    /// Files with something behind their end that is not zero.
    truncate: BTreeSet<Ino>,
    /// Where the search for a free node id goes on.
    next_node: u64,
}

impl Repair<'_> {
    /// Puts the tree right, and returns it.
    pub(super) fn tree<'m>(&mut self, media: &'m Media) -> Result<Tree<'m>, Failed> {
        let mut tree = Tree::load(media);
        tree.normalize(&mut self.log);
        let fresh = tree.root(&mut self.log);
        tree.own(fresh, &mut self.log);
        tree.name_what_is_gone(&mut self.log);
        tree.names(&mut self.log);
        tree.find_unfinished();
        tree.count_what_is_unnamed(&mut self.log);
        self.write(&mut tree)?;
        Ok(tree)
    }
}

impl<'m> Tree<'m> {
    fn load(media: &'m Media) -> Self {
        // What is wrong with pages has been seen to before.
        let mut scratch = Check {
            report: FsckReport::default(),
            findings: Default::default(),
            options: Default::default(),
            meter: Default::default(),
        };
        let pages = Pages::load(media, u64::MAX, &mut scratch);
        let g = &media.geo;
        let kind = WordKind::Digested;
        let raw = media.region.load_u64(g.jsb_off + kind.offset());
        let mut tree = Self {
            media,
            digested: SeqWord::decode(raw, kind.salt(media.salt)).unwrap_or(0),
            inodes: BTreeMap::new(),
            dirs: BTreeMap::new(),
            extent_pages: FxHashMap::default(),
            leaves: FxHashMap::default(),
            reached: BTreeSet::new(),
            changed: BTreeMap::new(),
            lbns: BitSet::new(g.blocks),
            claimed: RangeSet::new(),
            mapped: BTreeMap::new(),
            named: BTreeMap::new(),
            links: BTreeMap::new(),
            truncate: BTreeSet::new(),
            next_node: g.dyn_base,
            pages,
        };
        for n in 0..g.inode_end() - g.inode_base {
            let Got::Page(page) = tree.pages.read((g.inode_base + n) as u32) else {
                continue;
            };
            for slot in 0..INODES_PER_PAGE {
                let at = inode::offset(slot as usize);
                let i = Inode::decode(&page[at..at + inode::SIZE]);
                let ino = n * INODES_PER_PAGE + slot;
                if i.mode != 0 && ino != 0 {
                    tree.inodes.insert(ino, i);
                }
            }
        }
        let dynamic: Vec<u64> = tree
            .pages
            .exists
            .iter()
            .filter(|n| *n >= g.dyn_base)
            .collect();
        for id in dynamic {
            let id = id as u32;
            let Got::Page(page) = tree.pages.read(id) else {
                continue;
            };
            let list = match node::kind(&page[..]) {
                Some(NodeKind::Extents) => &mut tree.extent_pages,
                Some(NodeKind::DirLeaf) => &mut tree.leaves,
                _ => continue,
            };
            list.entry(node::owner(&page[..])).or_default().push(id);
        }
        tree
    }

    /// The tree as it is: nothing is changed, and what is wrong is not reported.
    pub(super) fn survey(media: &'m Media) -> Self {
        let mut tree = Self::load(media);
        let mut nobody = Journal::default();
        tree.own(false, &mut nobody);
        tree.names(&mut nobody);
        tree
    }

    /// Makes images possible. What has no known type is nothing.
    fn normalize(&mut self, log: &mut Journal) {
        let all: Vec<Ino> = self.inodes.keys().copied().collect();
        for ino in all {
            let before = &self.inodes[&ino];
            let mut i = before.clone();
            if !matches!(i.kind() >> 12, 1 | 2 | 4 | 6 | 8 | 10 | 12) {
                let what = format_args!("inode {ino}: has no file type, removed");
                log.add(Area::Inode, what);
                log.lose(ino);
                self.inodes.remove(&ino);
                continue;
            }
            i.mode &= S_IFMT | 0o7777;
            i.flags &= flags_of(i.mode);
            for t in [&mut i.atime, &mut i.mtime, &mut i.ctime, &mut i.btime] {
                t.nsec = if t.nsec < 1_000_000_000 { t.nsec } else { 0 };
            }
            if !i.is_dir() {
                (i.depth, i.entries, i.parent) = (0, 0, 0);
            }
            if !matches!(i.kind(), S_IFREG | S_IFLNK) {
                i.inline = Inline::default();
            }
            if !matches!(i.kind(), S_IFREG | S_IFLNK | S_IFDIR) {
                (i.root, i.size) = (0, 0);
            }
            if i.is_file() {
                i.size = i.size.min(SIZE_MAX);
            }
            if i != *before {
                log.of(Area::Inode, ino, "impossible fields are put right");
                self.inodes.insert(ino, i);
            }
        }
    }

    /// There is a root directory; whether it is a new one.
    fn root(&mut self, log: &mut Journal) -> bool {
        if self.inodes.get(&ROOT).is_some_and(Inode::is_dir) {
            return false;
        }
        self.inodes.insert(ROOT, directory(0o755));
        log.add(Area::Links, "the root directory is made anew");
        log.lose(ROOT);
        true
    }

    /// Finds out what each inode owns. One that is nothing without what it has lost is removed.
    fn own(&mut self, fresh_root: bool, log: &mut Journal) {
        let all: Vec<Ino> = self.inodes.keys().copied().collect();
        for ino in all {
            let mut i = self.inodes[&ino].clone();
            let owned = match i.kind() {
                S_IFREG => Some(self.own_file(ino, &mut i, log)),
                S_IFDIR => Some(self.own_directory(ino, &i, fresh_root && ino == ROOT, log)),
                S_IFLNK => self.own_target(ino, &i),
                _ => Some(0),
            };
            let Some(owned) = owned else {
                log.of(
                    Area::Symlink,
                    ino,
                    "its target is lost; the link is removed",
                );
                log.lose(ino);
                self.inodes.remove(&ino);
                continue;
            };
            i.blocks = owned + self.own_xattrs(ino, &mut i, log);
            self.inodes.insert(ino, i);
        }
    }

    /// A page of an inode, if `id` is one of this kind and belongs to no other inode.
    fn mine(&self, id: u32, ino: Ino, kind: NodeKind) -> Option<PageBytes> {
        if u64::from(id) < self.media.geo.dyn_base || self.reached.contains(&id) {
            return None;
        }
        match self.pages.read(id) {
            Got::Page(p) if node::kind(&p[..]) == Some(kind) && node::owner(&p[..]) == ino => {
                Some(p)
            }
            _ => None,
        }
    }

    /// A node id that is not in use. `None` if there is none left.
    fn new_node(&mut self) -> Option<u32> {
        let g = &self.media.geo;
        let free = |n: &u64| !self.pages.exists.has(*n) && !self.reached.contains(&(*n as u32));
        let id = (self.next_node..g.dyn_base + g.dyn_nodes()).find(free)?;
        self.next_node = id + 1;
        self.reached.insert(id as u32);
        Some(id as u32)
    }

    /// The file that has an LBN, and which of its blocks it is.
    pub(super) fn owner(&self, lbn: Lbn) -> Option<(Ino, u64)> {
        let (e, ino) = self.mapped.range(..=lbn).next_back().map(|(_, v)| v)?;
        let at = lbn - e.lbn;
        (at < e.len).then(|| (*ino, e.file_block + at))
    }

    /// A path that leads to an inode.
    pub(super) fn path(&self, ino: Ino) -> Option<String> {
        let named = |at: Ino| self.named.get(&at).map(|(dir, name)| (*dir, &name[..]));
        crate::damaged::path(ino, named)
    }
}

/// A new directory of the super-user.
fn directory(mode: u32) -> Inode {
    let time = now();
    Inode {
        mode: S_IFDIR | mode,
        nlink: 2,
        // An earlier inode of this number had another one.
        generation: (time.sec as u32).max(1),
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
        parent: ROOT,
        ..Inode::default()
    }
}
