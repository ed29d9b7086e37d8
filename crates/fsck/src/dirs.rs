//! The tree of one directory.

use std::fmt;
use std::ops::Range;

use quayfs_layout::Ino;
use quayfs_layout::dirent::{self, DEPTH_MAX, Entry, INDEX_MAX, entries};
use quayfs_layout::flaw::is_name;
use quayfs_layout::inode::Inode;
use quayfs_layout::node::{NodeKind, used};

use super::Area;
use super::inodes::Inodes;
use super::owners::Claim;
use super::table::Status;

/// What the walk has seen.
struct Walk {
    ino: Ino,
    pages: u64,
    entries: u64,
    complete: bool,
}

/// A name in a message: on one line, whatever bytes it has.
struct Name<'a>(&'a [u8]);

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(self.0))
    }
}

/// Checks a directory's tree and entries; returns how many pages it has, `None` if not all of
/// them can be read.
pub(super) fn check(x: &mut Inodes<'_, '_>, ino: Ino, i: &Inode) -> Option<u64> {
    let mut walk = Walk {
        ino,
        pages: 0,
        entries: 0,
        complete: true,
    };
    if i.depth > DEPTH_MAX || (i.root == 0 && i.depth > 0) {
        walk.complete = false;
        x.owners.gaps.nodes = true;
    } else if i.root != 0 {
        visit(x, &mut walk, i.root, i.depth, 0..u64::MAX);
    }
    x.check.report.statistics.entries += walk.entries;
    if !walk.complete {
        x.owners.gaps.links = true;
        return None;
    }
    if walk.entries != i.entries {
        let what = format_args!(
            "inode {ino}: has {} entries, its image says {}",
            walk.entries, i.entries
        );
        x.error(Area::Directory, what);
    }
    Some(walk.pages)
}

/// Checks a page and what is below it; all cookies there must lie in `bounds`.
fn visit(x: &mut Inodes<'_, '_>, walk: &mut Walk, id: u32, depth: u16, bounds: Range<u64>) {
    let ino = walk.ino;
    let (what, kind) = match depth {
        0 => ("directory leaf", NodeKind::DirLeaf),
        _ => ("directory index page", NodeKind::DirIndex),
    };
    let who = Claim {
        area: Area::Directory,
        ino,
        what,
        kind,
    };
    let Some(page) = x.owners.claim(x.pages, who, id, x.check) else {
        walk.complete = false;
        return;
    };
    walk.pages += 1;
    if depth == 0 {
        leaf(x, walk, id, &page[..], bounds);
        return;
    }
    let n = used(&page[..]) as usize;
    if n == 0 || n > INDEX_MAX {
        let what = format_args!("inode {ino}: index page {id} holds {n} children");
        x.error(Area::Directory, what);
        walk.complete = false;
        x.owners.gaps.nodes = true;
        return;
    }
    // The first child covers everything below the second key, whatever its own key says: the
    // search never looks at it.
    let mut low = bounds.start;
    for i in 0..n {
        let (_, child) = dirent::index_entry(&page[..], i);
        let high = match i + 1 < n {
            true => dirent::index_entry(&page[..], i + 1).0,
            false => bounds.end,
        };
        if high <= low || high > bounds.end {
            let what = format_args!(
                "inode {ino}: key {} of index page {id}, {high:#x}, is out of order",
                i + 1
            );
            x.error(Area::Directory, what);
            walk.complete = false;
            x.owners.gaps.nodes = true;
            return;
        }
        visit(x, walk, child, depth - 1, low..high);
        low = high;
    }
}

fn leaf(x: &mut Inodes<'_, '_>, walk: &mut Walk, id: u32, page: &[u8], bounds: Range<u64>) {
    let ino = walk.ino;
    if !dirent::leaf_is_sound(page) {
        let what = format_args!("inode {ino}: the entries of leaf {id} do not fill it");
        x.error(Area::Directory, what);
        walk.complete = false;
        return;
    }
    let mut list: Vec<Entry<'_>> = entries(page).filter(|e| e.ino != 0).collect();
    list.sort_by_key(|e| e.cookie);
    for (i, e) in list.iter().enumerate() {
        let name = Name(e.name);
        let same = |o: &&Entry<'_>| o.cookie >> 8 == e.cookie >> 8 && o.name == e.name;
        let wrong = if !is_name(e.name) {
            Some("not a name".to_string())
        } else if e.cookie & !0xff != x.pages.media.hash.cookie(e.name) {
            Some(format!("cookie {:#x} is not the name's", e.cookie))
        } else if !bounds.contains(&e.cookie) {
            Some(format!(
                "cookie {:#x} does not belong into leaf {id}",
                e.cookie
            ))
        } else if i > 0 && list[i - 1].cookie == e.cookie {
            Some(format!("cookie {:#x} is there twice", e.cookie))
        } else if list[..i].iter().rev().take(256).any(|o| same(&o)) {
            Some("the name is there twice".to_string())
        } else {
            None
        };
        if let Some(wrong) = wrong {
            x.error(
                Area::Directory,
                format_args!("inode {ino}, entry {name}: {wrong}"),
            );
        }
        walk.entries += 1;
        target(x, ino, e);
    }
}

/// What an entry names must exist and be of the type that the entry says.
fn target(x: &mut Inodes<'_, '_>, ino: Ino, e: &Entry<'_>) {
    let (name, child) = (Name(e.name), e.ino);
    let kind = match x.table.status(child) {
        // Its page cannot be read, which has been said.
        Status::Unknown => return,
        Status::Free => {
            let what = format_args!("inode {ino}, entry {name}: inode {child} does not exist");
            x.error(Area::Directory, what);
            return;
        }
        Status::Live(known) => known.kind,
    };
    if kind != e.kind {
        let what = format_args!(
            "inode {ino}, entry {name}: says type {} of inode {child}, which has type {kind}",
            e.kind
        );
        x.error(Area::Directory, what);
    }
    x.table.note(child, |k| k.names += 1);
    if kind == 4 {
        x.links.subdirectory(ino, child);
    }
}
