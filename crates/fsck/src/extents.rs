//! Extents of one file.

use quayfs_layout::extent::{Extent, FILE_BLOCKS, INLINE, PER_PAGE, SIZE};
use quayfs_layout::inode::Inode;
use quayfs_layout::node::{self, HEADER, NodeKind};
use quayfs_layout::{BLOCK, Ino};
use quayfs_shown::count;

use rustc_hash::FxHashSet;

use super::Area;
use super::inodes::Inodes;
use super::owners::Claim;
use super::pages::{Got, Pages};
use super::table::Status;

const B: u64 = BLOCK as u64;

/// Checks the extents of a file and returns how many data blocks and extent pages it owns; `None`
/// if not all of them can be read.
pub(super) fn check(x: &mut Inodes<'_, '_>, ino: Ino, i: &Inode) -> Option<u64> {
    let mut list = Vec::new();
    places(x, ino, "its inode", &i.inline.0[..INLINE * SIZE], &mut list);
    let (mut id, mut pages) = (i.root, 0);
    let mut complete = true;
    while id != 0 {
        let who = Claim {
            area: Area::Extents,
            ino,
            what: "extent page",
            kind: NodeKind::Extents,
        };
        let Some(page) = x.owners.claim(x.pages, who, id, x.check) else {
            x.owners.gaps.blocks = true;
            complete = false;
            break;
        };
        pages += 1;
        let bytes = &page[HEADER..HEADER + PER_PAGE * SIZE];
        places(x, ino, &format!("node {id}"), bytes, &mut list);
        id = node::next(&page[..]);
    }
    list.sort_unstable_by_key(|e| e.file_block);
    let blocks: u64 = list.iter().map(|e| e.len).sum();
    list.retain(|e| one(x, ino, e));
    for w in list.windows(2) {
        if w[0].file_block + w[0].len > w[1].file_block {
            let what = format_args!(
                "inode {ino}: two extents map file block {}",
                w[1].file_block
            );
            x.error(Area::Extents, what);
        }
    }
    behind_the_end(x, ino, i, &list);
    complete.then_some(blocks + pages)
}

/// Decodes places; a free one is all zeros.
fn places(x: &mut Inodes<'_, '_>, ino: Ino, at: &str, bytes: &[u8], out: &mut Vec<Extent>) {
    for (n, place) in bytes.chunks_exact(SIZE).enumerate() {
        match Extent::decode(place) {
            Some(e) => out.push(e),
            None if place.iter().all(|b| *b == 0) => {}
            None => {
                let what = format_args!("inode {ino}: place {n} in {at} is neither free nor used");
                x.error(Area::Extents, what);
            }
        }
    }
}

/// Checks one extent against the limits and claims its blocks; whether it can be one.
fn one(x: &mut Inodes<'_, '_>, ino: Ino, e: &Extent) -> bool {
    let visible = x.pages.media.geo.visible_blocks();
    if e.file_block + e.len > FILE_BLOCKS {
        let what = format_args!(
            "inode {ino}: the extent at file block {} of {} is beyond what a file can have",
            e.file_block,
            count(e.len, "block")
        );
        x.error(Area::Extents, what);
        x.owners.gaps.blocks = true;
        return false;
    }
    if e.lbn + e.len > visible {
        let what = format_args!(
            "inode {ino}: file block {} is mapped to LBNs {} to {}, but files can own only {visible}",
            e.file_block,
            e.lbn,
            e.lbn + e.len - 1
        );
        x.error(Area::Extents, what);
        x.owners.gaps.blocks = true;
        return false;
    }
    x.owners.claim_blocks(e.lbn..e.lbn + e.len);
    true
}

/// What lies behind the end of the file reads as zeros: the rest of its last block, and blocks
/// that were allocated ahead. While a truncate or a removal is unfinished both are waste.
fn behind_the_end(x: &mut Inodes<'_, '_>, ino: Ino, i: &Inode, list: &[Extent]) {
    let (last, keep) = (i.size / B, (i.size % B) as u16);
    let beyond = i.size.div_ceil(B);
    let unfinished = match x.table.status(ino) {
        Status::Live(known) => known.truncate || known.nlink == 0,
        Status::Free | Status::Unknown => true,
    };
    for e in list {
        let end = e.file_block + e.len;
        if keep > 0 && !unfinished && (e.file_block..end).contains(&last) {
            x.blocks.tail(e.lbn + (last - e.file_block), keep);
        }
        if end > beyond && !unfinished {
            let skip = beyond.saturating_sub(e.file_block);
            x.blocks.beyond(e.lbn + skip..e.lbn + e.len);
        }
    }
}

/// The extents of an inode as far as they can be read and exist; nothing is reported.
pub(super) fn list(pages: &Pages<'_>, ino: Ino, i: &Inode) -> Vec<Extent> {
    let mut out = Vec::new();
    if !i.is_file() {
        return out;
    }
    let visible = pages.media.geo.visible_blocks();
    let mut take = |bytes: &[u8]| {
        let found = bytes.chunks_exact(SIZE).filter_map(Extent::decode);
        out.extend(found.filter(|e| e.lbn + e.len <= visible));
    };
    take(&i.inline.0[..INLINE * SIZE]);
    let mut id = i.root;
    // A chain that does not end, or goes on in that of another file, has been reported.
    let mut seen = FxHashSet::default();
    while id != 0 && seen.insert(id) {
        let Got::Page(page) = pages.read(id) else {
            break;
        };
        if node::kind(&page[..]) != Some(NodeKind::Extents) || node::owner(&page[..]) != ino {
            break;
        }
        take(&page[HEADER..HEADER + PER_PAGE * SIZE]);
        id = node::next(&page[..]);
    }
    out
}
