//! Extents of files.

use quayfs_shown::count;
use std::collections::BTreeMap;

use quayfs_layout::bytes::put_u32;
use quayfs_layout::extent::{Extent, FILE_BLOCKS, INLINE, PER_PAGE, SIZE};
use quayfs_layout::inode::Inode;
use quayfs_layout::node::{self, HEADER, NodeKind, OFF_NEXT};
use quayfs_layout::{BLOCK, Ino};
use quayfs_store::ns::node::PageBytes;
use rustc_hash::FxHashSet;

use super::Tree;
use crate::Area;
use crate::repair::map::Contents;
use crate::repair::report::Journal;

const B: u64 = BLOCK as u64;

/// The file blocks that a file has mapped so far, by first block.
type Mapped = BTreeMap<u64, u64>;

impl Tree<'_> {
    /// Claims what a file has, and returns how many blocks and pages that is. The chain of its extent
    /// pages is linked anew if it is broken: every page that says it is the file's belongs to it.
    pub(super) fn own_file(&mut self, ino: Ino, i: &mut Inode, log: &mut Journal) -> u64 {
        let mut chain = Vec::new();
        let mut id = i.root;
        let mut torn = false;
        let mut seen = FxHashSet::default();
        while id != 0 && !torn {
            match self.mine(id, ino, NodeKind::Extents) {
                Some(page) if seen.insert(id) => {
                    chain.push(id);
                    id = node::next(&page[..]);
                }
                _ => torn = true,
            }
        }
        let all = self.extent_pages.get(&ino).cloned().unwrap_or_default();
        let mut sorted = chain.clone();
        sorted.sort_unstable();
        let relink = torn || sorted != all;
        if torn {
            let what = "a page of its block map is lost; the blocks it named are holes now";
            log.of(Area::Extents, ino, what);
            log.holed.insert(ino);
        } else if relink {
            log.of(Area::Extents, ino, "its block map is linked anew");
        }
        let mut mapped = Mapped::new();
        let mut blocks = 0;
        let mut inline = i.inline.0;
        self.places(
            ino,
            &mut inline[..INLINE * SIZE],
            &mut mapped,
            &mut blocks,
            log,
        );
        i.inline.0 = inline;
        for (n, id) in all.iter().enumerate() {
            let Some(before) = self.mine(*id, ino, NodeKind::Extents) else {
                continue;
            };
            let mut page: PageBytes = before.clone();
            let bytes = &mut page[HEADER..HEADER + PER_PAGE * SIZE];
            self.places(ino, bytes, &mut mapped, &mut blocks, log);
            if relink {
                put_u32(
                    &mut page[..],
                    OFF_NEXT,
                    all.get(n + 1).copied().unwrap_or(0),
                );
            }
            if page != before {
                self.changed.insert(*id, page);
            }
        }
        if relink {
            i.root = all.first().copied().unwrap_or(0);
        }
        self.reached.extend(&all);
        blocks + all.len() as u64
    }

    /// Goes through places of extents, clears what cannot be, and claims the rest.
    fn places(
        &mut self,
        ino: Ino,
        bytes: &mut [u8],
        mapped: &mut Mapped,
        blocks: &mut u64,
        log: &mut Journal,
    ) {
        for place in bytes.chunks_exact_mut(SIZE) {
            let before = Extent::decode(place);
            let after = before.and_then(|e| self.possible(&e, mapped));
            if before != after || before.is_none() && place.iter().any(|b| *b != 0) {
                let what = match (before, after) {
                    (Some(b), Some(a)) => format!(
                        "of {} from block {} on {} are left: others were mapped twice",
                        count(b.len, "block"),
                        b.file_block,
                        a.len
                    ),
                    (Some(b), None) => format!(
                        "now a hole: {} from block {} on, mapped twice or to nowhere",
                        count(b.len, "block"),
                        b.file_block
                    ),
                    (None, _) => {
                        "a place of its block map that was neither free nor used is free".into()
                    }
                };
                log.of(Area::Extents, ino, what);
                if before.is_some() {
                    log.holed.insert(ino);
                }
                place.fill(0);
                if let Some(e) = after {
                    place.copy_from_slice(&e.encode());
                }
            }
            if let Some(e) = after {
                *blocks += e.len;
                mapped.insert(e.file_block, e.file_block + e.len);
                self.lbns.fill(e.lbn..e.lbn + e.len);
                self.claimed.insert(e.lbn..e.lbn + e.len);
                self.mapped.insert(e.lbn, (e, ino));
            }
        }
    }

    /// What of an extent can stay: its longest run of blocks that no file has yet.
    fn possible(&self, e: &Extent, mapped: &Mapped) -> Option<Extent> {
        let end = e.file_block + e.len;
        let visible = self.media.geo.visible_blocks();
        let overlaps = mapped
            .range(..end)
            .next_back()
            .is_some_and(|(_, last)| *last > e.file_block);
        if end > FILE_BLOCKS || e.lbn + e.len > visible || overlaps {
            return None;
        }
        let (lbns, mut best) = (e.lbn..e.lbn + e.len, None);
        for free in self.claimed.gaps(&lbns) {
            let len = free.end - free.start;
            if len > best.map_or(0, |b: Extent| b.len) {
                let skip = free.start - e.lbn;
                best = Some(Extent {
                    file_block: e.file_block + skip,
                    lbn: free.start,
                    len,
                });
            }
        }
        best
    }

    /// Files with something behind their end that does not read as zeros: a truncate was under way, and the
    /// intent that said so may be lost, or a record is gone that made the file longer. The next mount ends the truncate.
    pub(super) fn find_unfinished(&mut self) {
        let Some(contents) = Contents::load(self.media) else {
            return;
        };
        for (e, ino) in self.mapped.values() {
            let Some(i) = self.inodes.get(ino) else {
                continue;
            };
            if i.nlink == 0 || self.truncate.contains(ino) {
                continue;
            }
            let (beyond, last, end) = (i.size.div_ceil(B), i.size / B, e.file_block + e.len);
            let lbn = |block: u64| e.lbn + (block - e.file_block);
            let not_zero = |bytes: &[u8]| bytes.iter().any(|b| *b != 0);
            let dirty = |block| contents.read(lbn(block)).is_none_or(|b| not_zero(&b));
            // A last block that fails its checksum reads as an error, all of it.
            let keep = (i.size % B) as usize;
            let ragged = keep > 0
                && (e.file_block..end).contains(&last)
                && contents
                    .sound(lbn(last))
                    .is_some_and(|b| not_zero(&b[keep..]));
            if ragged || (beyond.max(e.file_block)..end).any(dirty) {
                self.truncate.insert(*ino);
            }
        }
    }
}
