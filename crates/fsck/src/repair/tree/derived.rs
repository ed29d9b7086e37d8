//! Static pages: inodes as they are to be, bitmaps of what exists, intents of what is unfinished.

use std::collections::{BTreeMap, BTreeSet};

use quayfs_layout::Ino;
use quayfs_layout::inode::{self, Inode};
use quayfs_layout::intent::{Intent, IntentKind, PER_PAGE, SIZE};
use quayfs_layout::node::{self, BITS_PER_PAGE, HEADER, INODES_PER_PAGE, NodeKind};
use quayfs_layout::quota::{self, Entry};
use quayfs_store::ns::node::{PageBytes, zero_page};

use super::Tree;
use crate::bitset::BitSet;
use crate::pages::Got;
use crate::quotas;

/// Static pages that differ from what is there.
pub(super) type Pages = BTreeMap<u32, PageBytes>;

impl Tree<'_> {
    pub(super) fn there(&self, id: u32) -> Option<PageBytes> {
        match self.pages.read(id) {
            Got::Page(page) => Some(page),
            Got::Damaged | Got::Missing => None,
        }
    }

    fn empty(id: u32, kind: NodeKind) -> PageBytes {
        let mut page = zero_page();
        node::init(&mut page[..], id, kind, 0);
        page
    }

    /// Pages of the inode table.
    pub(super) fn inode_pages(&self) -> Pages {
        let g = &self.media.geo;
        let mut out = Pages::new();
        for n in 0..g.inode_end() - g.inode_base {
            let id = (g.inode_base + n) as u32;
            let numbers = n * INODES_PER_PAGE..(n + 1) * INODES_PER_PAGE;
            let before = self.there(id);
            if before.is_none() && self.inodes.range(numbers.clone()).next().is_none() {
                continue;
            }
            let mut page = before
                .clone()
                .unwrap_or_else(|| Self::empty(id, NodeKind::Inodes));
            for (slot, ino) in numbers.enumerate() {
                let at = inode::offset(slot);
                let image = &mut page[at..at + inode::SIZE];
                match self.inodes.get(&ino) {
                    // Bytes without a meaning stay as they are.
                    Some(i) if Inode::decode(image) == *i => {}
                    Some(i) => image.copy_from_slice(&i.encode()),
                    None => image.fill(0),
                }
            }
            if before.as_ref() != Some(&page) {
                out.insert(id, page);
            }
        }
        out
    }

    /// Bitmaps of LBNs, inode numbers and dynamic nodes.
    pub(super) fn bitmaps(&self) -> Pages {
        let g = &self.media.geo;
        let mut inos = BitSet::new(g.inodes());
        inos.add(0);
        self.inodes.keys().for_each(|ino| {
            inos.add(*ino);
        });
        let mut nodes = BitSet::new(g.dyn_nodes());
        self.reached.iter().for_each(|id| {
            nodes.add(u64::from(*id) - g.dyn_base);
        });
        let mut out = Pages::new();
        for (base, total, set) in [
            (g.lbn_bitmap_base, g.visible_blocks(), &self.lbns),
            (g.ino_bitmap_base, g.inodes(), &inos),
            (g.dyn_bitmap_base, g.dyn_nodes(), &nodes),
        ] {
            for n in 0..total.div_ceil(BITS_PER_PAGE) {
                let id = (base + n) as u32;
                let before = self.there(id);
                let first = n * BITS_PER_PAGE;
                let end = total.min(first + BITS_PER_PAGE);
                let mut page = Self::empty(id, NodeKind::Bitmap);
                let mut any = false;
                for bit in (first..end).filter(|bit| set.has(*bit)) {
                    node::change_bits(&mut page[..], bit - first, 1, true);
                    any = true;
                }
                let same = match &before {
                    Some(b) => {
                        b[HEADER..] == page[HEADER..]
                            && node::bits_set(&b[..]) == node::bits_set(&page[..])
                    }
                    None => !any,
                };
                if !same {
                    out.insert(id, page);
                }
            }
        }
        out
    }

    /// The intent table: what is there and makes sense keeps its place; what is missing is added.
    pub(super) fn intents(&self) -> Pages {
        let g = &self.media.geo;
        let mut wanted: BTreeSet<(Ino, u64)> = BTreeSet::new();
        for (ino, i) in &self.inodes {
            if i.nlink == 0 {
                wanted.insert((*ino, IntentKind::Orphan as u64));
            }
        }
        wanted.extend(
            self.truncate
                .iter()
                .map(|ino| (*ino, IntentKind::Truncate as u64)),
        );
        let (mut table, kept) = self.kept_intents();
        let missing: Vec<_> = wanted.difference(&kept).copied().collect();
        self.add_intents(&mut table, missing);
        let ids = (g.intent_base as u32..).zip(table);
        ids.filter(|(id, page)| self.there(*id).as_ref() != Some(page))
            .collect()
    }

    /// The pages up to the last one that can be read, without what makes no sense, and what is left in them.
    fn kept_intents(&self) -> (Vec<PageBytes>, BTreeSet<(Ino, u64)>) {
        let g = &self.media.geo;
        let before: Vec<Option<PageBytes>> = (0..g.intent_pages)
            .map(|n| self.there((g.intent_base + n) as u32))
            .collect();
        let mut table: Vec<PageBytes> = Vec::new();
        let last = before
            .iter()
            .rposition(Option::is_some)
            .map_or(0, |n| n + 1);
        let mut kept = BTreeSet::new();
        for (n, page) in before.iter().take(last).enumerate() {
            let id = (g.intent_base + n as u64) as u32;
            let mut page = page
                .clone()
                .unwrap_or_else(|| Self::empty(id, NodeKind::Intents));
            for slot in 0..PER_PAGE {
                let at = HEADER + slot * SIZE;
                let place = &mut page[at..at + SIZE];
                let good = match Intent::decode(place) {
                    Ok(Some(i)) => self.makes_sense(&i) && kept.insert((i.ino, i.kind as u64)),
                    Ok(None) => true,
                    Err(_) => false,
                };
                if !good {
                    place.fill(0);
                }
            }
            table.push(page);
        }
        (table, kept)
    }

    /// Puts intents in the first places that are free, as long as there can be pages for them.
    fn add_intents(&self, table: &mut Vec<PageBytes>, missing: Vec<(Ino, u64)>) {
        let g = &self.media.geo;
        let mut missing = missing.into_iter().peekable();
        for n in 0..g.intent_pages as usize {
            if missing.peek().is_none() {
                return;
            }
            if n == table.len() {
                let id = (g.intent_base + n as u64) as u32;
                table.push(Self::empty(id, NodeKind::Intents));
            }
            for slot in 0..PER_PAGE {
                let at = HEADER + slot * SIZE;
                let place = &mut table[n][at..at + SIZE];
                if place.iter().any(|b| *b != 0) {
                    continue;
                }
                let Some((ino, kind)) = missing.next() else {
                    return;
                };
                let kind = match kind {
                    k if k == IntentKind::Orphan as u64 => IntentKind::Orphan,
                    _ => IntentKind::Truncate,
                };
                place.copy_from_slice(&Intent { ino, kind }.encode());
            }
        }
    }

    /// The quota table: entries keep their places and their limits, and say what their subjects have.
    pub(super) fn quotas(&self) -> Pages {
        let mut usages = quotas::Usages::new(self.media.owners);
        self.inodes.values().for_each(|i| usages.add(i));
        let mut left = usages.all;
        let mut pages: Pages = quotas::ids(&self.media.geo)
            .map(|id| {
                let page = self.there(id);
                (id, page.unwrap_or_else(|| Self::empty(id, NodeKind::Quota)))
            })
            .collect();
        let mut seen = BTreeSet::new();
        let mut free = Vec::new();
        for (&id, page) in &mut pages {
            for slot in 0..quota::PER_PAGE {
                let place = &mut page[quota::offset(slot)..][..quota::SIZE];
                let mut e = Entry::decode(place);
                if !e.is_possible() || !e.is_free() && !seen.insert(e.subject) {
                    e = Entry::default();
                }
                // One without a meaning keeps what it says.
                if !e.is_free() {
                    e.usage = left.remove(&e.subject).unwrap_or_default();
                }
                if e.is_free() {
                    free.push((id, slot));
                }
                let before = Entry::decode(place);
                if e != before && !(e.is_free() && before.is_free()) {
                    place.copy_from_slice(&e.encode());
                }
            }
        }
        // A subject that finds no place stays a finding.
        for ((id, slot), (subject, usage)) in free.into_iter().zip(left) {
            let e = Entry {
                subject,
                usage,
                ..Entry::default()
            };
            if let Some(page) = pages.get_mut(&id) {
                page[quota::offset(slot)..][..quota::SIZE].copy_from_slice(&e.encode());
            }
        }
        let empty = |page: &PageBytes| page[HEADER..].iter().all(|b| *b == 0);
        pages
            .into_iter()
            .filter(|(id, page)| match self.there(*id) {
                Some(before) => before != *page,
                None => !empty(page),
            })
            .collect()
    }

    fn makes_sense(&self, intent: &Intent) -> bool {
        self.inodes
            .get(&intent.ino)
            .is_some_and(|i| match intent.kind {
                IntentKind::Orphan => i.nlink == 0,
                IntentKind::Truncate => i.is_file(),
            })
    }
}
