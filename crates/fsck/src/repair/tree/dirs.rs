//! Directories: reading what is there, and making them anew.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;

use quayfs_layout::bytes::put_u32;
use quayfs_layout::dirent::{self, CLASH_BITS, DEPTH_MAX, INDEX_MAX, INDEX_SIZE};
use quayfs_layout::flaw::is_name;
use quayfs_layout::inode::Inode;
use quayfs_layout::node::{self, HEADER, NodeKind, OFF_USED, PAYLOAD, used};
use quayfs_layout::{BLOCK, Ino};
use quayfs_store::ns::node::{PageBytes, zero_page};
use rustc_hash::FxHashSet;

use super::Tree;
use crate::Area;
use crate::repair::report::Journal;

/// An entry that is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) leaf: u32,
    pub(super) cookie: u64,
    pub(super) ino: Ino,
    pub(super) kind: u8,
    pub(super) name: Vec<u8>,
}

/// A directory as it is to be.
#[derive(Default)]
pub(super) struct Directory {
    pub(super) entries: Vec<Entry>,
    /// Its pages.
    nodes: Vec<u32>,
    /// The tree is not one, or an entry comes in: all pages are made anew.
    pub(super) rebuild: bool,
    /// Leaves that lose or change an entry.
    pub(super) touched: BTreeSet<u32>,
}

/// A walk over a tree that may be none.
#[derive(Default)]
struct Walk {
    nodes: Vec<u32>,
    seen: FxHashSet<u32>,
    leaves: Vec<(u32, PageBytes, Range<u64>)>,
}

impl Tree<'_> {
    /// Reads a directory and returns how many pages it has.
    pub(super) fn own_directory(
        &mut self,
        ino: Ino,
        i: &Inode,
        fresh: bool,
        log: &mut Journal,
    ) -> u64 {
        let mut walk = Walk::default();
        let whole = !fresh
            && i.depth <= DEPTH_MAX
            && (i.root != 0 || i.depth == 0)
            && (i.root == 0 || self.walk(&mut walk, ino, i.root, i.depth, 0..u64::MAX));
        let mut dir = Directory::default();
        if !whole {
            // Every leaf that says it is this directory's belongs to it.
            dir.rebuild = true;
            let all = self.leaves.get(&ino).cloned().unwrap_or_default();
            let read = |id| Some((id, self.mine(id, ino, NodeKind::DirLeaf)?, 0..u64::MAX));
            walk.leaves = all.into_iter().filter_map(read).collect();
            walk.nodes.clear();
            if !fresh {
                let what = "a page is lost; the directory is made anew from what can be read";
                log.of(Area::Directory, ino, what);
            }
        }
        self.keep_entries(ino, &walk.leaves, &mut dir, log);
        if whole {
            self.reached.extend(&walk.nodes);
            dir.nodes = walk.nodes;
        }
        let pages = dir.nodes.len() as u64;
        self.dirs.insert(ino, dir);
        pages
    }

    /// Takes the entries of these leaves whose names are names and are there once. Where a place in the tree does not
    /// fit, all pages are made anew.
    fn keep_entries(
        &self,
        ino: Ino,
        leaves: &[(u32, PageBytes, Range<u64>)],
        dir: &mut Directory,
        log: &mut Journal,
    ) {
        let mut names: HashMap<Vec<u8>, Ino> = HashMap::new();
        let mut cookies = BTreeSet::new();
        for (leaf, page, bounds) in leaves {
            if !dirent::leaf_is_sound(&page[..]) {
                dir.rebuild = true;
                log.of(Area::Directory, ino, "entries behind a broken one are lost");
            }
            for e in dirent::entries(&page[..]).filter(|e| e.ino != 0) {
                let shown = String::from_utf8_lossy(e.name);
                if !is_name(e.name) {
                    dir.touched.insert(*leaf);
                    let what = format_args!("entry {shown:?} is removed: not a name");
                    log.of(Area::Directory, ino, what);
                    continue;
                }
                if let Some(other) = names.insert(e.name.to_vec(), e.ino) {
                    names.insert(e.name.to_vec(), other);
                    dir.touched.insert(*leaf);
                    if other != e.ino {
                        let what = format_args!(
                            "a second entry {shown:?}, for inode {}, is removed",
                            e.ino
                        );
                        log.of(Area::Directory, ino, what);
                    }
                    continue;
                }
                let base = self.media.hash.cookie(e.name);
                dir.rebuild |= e.cookie & !0xff != base
                    || !bounds.contains(&e.cookie)
                    || !cookies.insert(e.cookie);
                dir.entries.push(Entry {
                    leaf: *leaf,
                    cookie: base | e.cookie & 0xff,
                    ino: e.ino,
                    kind: e.kind,
                    name: e.name.to_vec(),
                });
            }
        }
    }

    fn walk(&self, walk: &mut Walk, ino: Ino, id: u32, depth: u16, bounds: Range<u64>) -> bool {
        let kind = match depth {
            0 => NodeKind::DirLeaf,
            _ => NodeKind::DirIndex,
        };
        let Some(page) = self.mine(id, ino, kind).filter(|_| walk.seen.insert(id)) else {
            return false;
        };
        walk.nodes.push(id);
        if depth == 0 {
            walk.leaves.push((id, page, bounds));
            return true;
        }
        let n = used(&page[..]) as usize;
        if n == 0 || n > INDEX_MAX {
            return false;
        }
        let mut low = bounds.start;
        for i in 0..n {
            let (_, child) = dirent::index_entry(&page[..], i);
            let high = match i + 1 < n {
                true => dirent::index_entry(&page[..], i + 1).0,
                false => bounds.end,
            };
            if high <= low
                || high > bounds.end
                || !self.walk(walk, ino, child, depth - 1, low..high)
            {
                return false;
            }
            low = high;
        }
        true
    }

    /// Gives directories that have changed their pages, and adjusts their images. `false` if node
    /// ids have run out.
    pub(super) fn write_directories(&mut self) -> bool {
        let all: Vec<Ino> = self.dirs.keys().copied().collect();
        all.into_iter()
            .all(|ino| self.write_directory(ino).is_some())
    }

    fn write_directory(&mut self, ino: Ino) -> Option<()> {
        let mut dir = self.dirs.remove(&ino)?;
        let i = self.inodes.get(&ino)?.clone();
        let xattrs = i.blocks - dir.nodes.len() as u64;
        // What stays in leaves that change. One that would be empty is no leaf.
        let mut stays: BTreeMap<u32, Vec<&Entry>> = BTreeMap::new();
        for e in dir.entries.iter().filter(|e| dir.touched.contains(&e.leaf)) {
            stays.entry(e.leaf).or_default().push(e);
        }
        dir.rebuild |= stays.len() < dir.touched.len();
        let leaves: Vec<(u32, Vec<u8>)> = stays
            .into_iter()
            .map(|(leaf, list)| (leaf, pack(list.into_iter())))
            .collect();
        let (mut root, mut depth) = (i.root, i.depth);
        if dir.rebuild {
            for id in std::mem::take(&mut dir.nodes) {
                self.reached.remove(&id);
            }
            (root, depth, dir.nodes) = self.build(ino, &mut dir.entries)?;
        } else {
            for (leaf, bytes) in leaves {
                self.put(leaf, ino, NodeKind::DirLeaf, &bytes, bytes.len());
            }
        }
        let i = self.inodes.get_mut(&ino)?;
        (i.root, i.depth) = (root, depth);
        i.entries = dir.entries.len() as u64;
        i.blocks = dir.nodes.len() as u64 + xattrs;
        self.dirs.insert(ino, dir);
        Some(())
    }

    /// Makes a tree of entries; returns root, depth and all pages.
    fn build(&mut self, ino: Ino, entries: &mut [Entry]) -> Option<(u32, u16, Vec<u32>)> {
        distinguish(entries);
        entries.sort_by_key(|e| e.cookie);
        let mut nodes = Vec::new();
        let mut level: Vec<(u64, u32)> = Vec::new();
        let mut at = 0;
        while at < entries.len() {
            // Names of equal hash stay in one leaf, and some room is left in each.
            let (mut end, mut len) = (at, 0);
            while end < entries.len() {
                let group = entries[end].cookie >> CLASH_BITS;
                let same = entries[end..]
                    .iter()
                    .take_while(|e| e.cookie >> CLASH_BITS == group);
                let (n, more) = same.fold((0, 0), |(n, l), e| {
                    (n + 1, l + dirent::entry_len(e.name.len()))
                });
                if end > at && len + more > PAYLOAD * 3 / 4 {
                    break;
                }
                end += n;
                len += more;
            }
            if len > PAYLOAD {
                return None;
            }
            let id = self.new_node()?;
            let bytes = pack(entries[at..end].iter());
            self.put(id, ino, NodeKind::DirLeaf, &bytes, bytes.len());
            level.push((entries[at].cookie >> CLASH_BITS << CLASH_BITS, id));
            nodes.push(id);
            entries[at..end].iter_mut().for_each(|e| e.leaf = id);
            at = end;
        }
        let mut depth = 0;
        while level.len() > 1 {
            let mut above = Vec::new();
            for children in level.chunks(INDEX_MAX) {
                let id = self.new_node()?;
                let bytes: Vec<u8> = children
                    .iter()
                    .flat_map(|(key, child)| dirent::encode_index(*key, *child))
                    .collect();
                debug_assert_eq!(bytes.len(), children.len() * INDEX_SIZE);
                self.put(id, ino, NodeKind::DirIndex, &bytes, children.len());
                above.push((children[0].0, id));
                nodes.push(id);
            }
            level = above;
            depth += 1;
        }
        let root = level.first().map_or(0, |(_, id)| *id);
        Some((root, depth, nodes))
    }

    fn put(&mut self, id: u32, ino: Ino, kind: NodeKind, bytes: &[u8], used: usize) {
        let mut page: Box<[u8; BLOCK]> = zero_page();
        node::init(&mut page[..], id, kind, ino);
        page[HEADER..HEADER + bytes.len()].copy_from_slice(bytes);
        put_u32(&mut page[..], OFF_USED, used as u32);
        self.changed.insert(id, page);
    }
}

fn pack<'a>(list: impl Iterator<Item = &'a Entry>) -> Vec<u8> {
    let mut out = Vec::new();
    for e in list {
        dirent::encode_entry(e.cookie, e.ino, e.kind, &e.name, &mut out);
    }
    out
}

/// Gives names of equal hash different cookies. The first name that has a cookie keeps it.
fn distinguish(entries: &mut [Entry]) {
    let mut taken = BTreeSet::new();
    let mut again = Vec::new();
    for (n, e) in entries.iter().enumerate() {
        if !taken.insert(e.cookie) {
            again.push(n);
        }
    }
    for n in again {
        let base = entries[n].cookie & !0xff;
        if let Some(free) = (base..base + 256).find(|c| !taken.contains(c)) {
            entries[n].cookie = free;
            taken.insert(free);
        }
    }
}
