//! Files that have lost blocks, and what they are called.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use quayfs_fs::attr::dirent_kind;
use quayfs_layout::dirent::{self, entries};
use quayfs_layout::inode::{ROOT, S_IFDIR};
use quayfs_layout::node::{self, NodeKind};
use quayfs_layout::{Ino, Lbn};
use quayfs_shown::count;
use rangemap::RangeSet;
use rustc_hash::FxHashMap;
use serde::Serialize;

use super::pages::{Got, Pages};
use super::table::{Status, Table};

/// Most bytes of a path: what is damaged may go round in circles.
const LONGEST: usize = 4096;

/// A file some of whose blocks are damaged, lost or unreadable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DamagedFile {
    /// Its inode.
    pub inode: Ino,
    /// One of its names, from the root of the volume; `None` if it has none or that cannot be told.
    pub path: Option<String>,
    /// How many of its blocks.
    pub blocks: u64,
}

impl fmt::Display for DamagedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.path {
            Some(path) => f.write_str(&quayfs_shown::text(path))?,
            None => write!(f, "inode {} (no name)", self.inode)?,
        }
        write!(f, ": {} damaged", count(self.blocks, "block"))
    }
}

/// Counts the blocks that each file has lost.
#[derive(Default)]
pub(super) struct Counting {
    lost: RangeSet<Lbn>,
    files: BTreeMap<Ino, u64>,
}

impl Counting {
    pub(super) fn lose(&mut self, lbn: Lbn) {
        self.lost.insert(lbn..lbn + 1);
    }

    /// A file has these blocks.
    pub(super) fn extent(&mut self, ino: Ino, lbns: &Range<Lbn>) {
        let within = |r: &Range<Lbn>| r.end.min(lbns.end) - r.start.max(lbns.start);
        let n: u64 = self.lost.overlapping(lbns).map(within).sum();
        if n > 0 {
            *self.files.entry(ino).or_default() += n;
        }
    }

    /// All files that have lost something, by inode.
    pub(super) fn files(self, pages: &Pages<'_>, table: &Table) -> Vec<DamagedFile> {
        if self.files.is_empty() {
            return Vec::new();
        }
        let names = Names::of(pages, table, |ino| self.files.contains_key(&ino));
        let file = |(inode, blocks)| DamagedFile {
            inode,
            path: names.path(inode),
            blocks,
        };
        self.files.into_iter().map(file).collect()
    }
}

/// The directory that an inode is in, and its name there: of directories and of what was asked for.
struct Names(FxHashMap<Ino, (Ino, Vec<u8>)>);

impl Names {
    fn of(pages: &Pages<'_>, table: &Table, asked: impl Fn(Ino) -> bool) -> Self {
        let directory = dirent_kind(S_IFDIR);
        let mut names = FxHashMap::default();
        for id in pages.exists.iter_from(pages.media.geo.dyn_base) {
            let Got::Page(page) = pages.read(id as u32) else {
                continue;
            };
            let dir = node::owner(&page[..]);
            if node::kind(&page[..]) != Some(NodeKind::DirLeaf)
                || !matches!(table.status(dir), Status::Live(k) if k.kind == directory)
                || !dirent::leaf_is_sound(&page[..])
            {
                continue;
            }
            for e in entries(&page[..]) {
                if e.ino != 0 && (e.kind == directory || asked(e.ino)) {
                    names.entry(e.ino).or_insert((dir, e.name.to_vec()));
                }
            }
        }
        Self(names)
    }

    fn path(&self, ino: Ino) -> Option<String> {
        path(ino, |at| {
            self.0.get(&at).map(|(dir, name)| (*dir, &name[..]))
        })
    }
}

/// The path of an inode, if each on the way has a name in another one, and it is no longer than paths can be.
pub(super) fn path<'n>(ino: Ino, named: impl Fn(Ino) -> Option<(Ino, &'n [u8])>) -> Option<String> {
    let (mut at, mut path, mut len) = (ino, Vec::new(), 0);
    while at != ROOT {
        let (dir, name) = named(at)?;
        len += 1 + name.len();
        if len > LONGEST {
            return None;
        }
        path.push(String::from_utf8_lossy(name));
        at = dir;
    }
    path.reverse();
    Some(format!("/{}", path.join("/")))
}
