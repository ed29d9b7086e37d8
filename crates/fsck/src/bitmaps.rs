//! Allocation bitmaps: their counters, and their bits against what exists.

use std::ops::Range;

use quayfs_layout::node::{self, BITS_PER_PAGE, HEADER, INODES_PER_PAGE};
use rustc_hash::FxHashSet;

use super::bitset::BitSet;
use super::owners::{self, Owners};
use super::pages::{Got, Pages};
use super::table::Table;
use super::{Area, Check};

/// The bitmaps of one kind of number.
struct Bitmap {
    bits: BitSet,
    /// Pages that could not be read: their numbers are not compared.
    unreadable: FxHashSet<u64>,
}

impl Bitmap {
    fn load(pages: &Pages<'_>, base: u64, total: u64, of: &str, c: &mut Check) -> Self {
        let mut map = Self {
            bits: BitSet::new(total),
            unreadable: FxHashSet::default(),
        };
        for g in 0..total.div_ceil(BITS_PER_PAGE) {
            let id = (base + g) as u32;
            let page = match pages.read(id) {
                Got::Page(page) => page,
                Got::Missing => continue,
                Got::Damaged => {
                    map.unreadable.insert(g);
                    continue;
                }
            };
            let first = g * BITS_PER_PAGE;
            let (set, beyond) = map.bits.load(first, &page[HEADER..]);
            let counted = node::bits_set(&page[..]);
            if u64::from(counted) != set + beyond {
                let what = format_args!(
                    "node {id}, {of} {first} and up: {} bits are set, its counter says {counted}",
                    set + beyond
                );
                c.findings.error(Area::Bitmap, what);
            }
            if beyond > 0 {
                let what = format_args!(
                    "node {id}, {of} {first} and up: {beyond} bits are set of numbers from {total} on, which do not exist"
                );
                c.findings.error(Area::Bitmap, what);
            }
        }
        map
    }

    /// Numbers in `a` and not in `b` that can be compared.
    fn only<'a>(&'a self, a: &'a BitSet, b: &'a BitSet) -> impl Iterator<Item = Range<u64>> + 'a {
        a.minus(b)
            .flat_map(split)
            .filter(|r| !self.unreadable.contains(&(r.start / BITS_PER_PAGE)))
    }
}

/// Splits a range at page boundaries.
fn split(range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let mut at = range.start;
    std::iter::from_fn(move || {
        (at < range.end).then(|| {
            let end = range.end.min((at / BITS_PER_PAGE + 1) * BITS_PER_PAGE);
            let r = at..end;
            at = end;
            r
        })
    })
}

/// All bitmaps of a volume.
pub(super) struct Bitmaps {
    lbns: Bitmap,
    inos: Bitmap,
    nodes: Bitmap,
}

impl Bitmaps {
    /// Reads the bitmaps and checks their counters.
    pub(super) fn load(pages: &Pages<'_>, c: &mut Check) -> Self {
        let g = &pages.media.geo;
        Self {
            lbns: Bitmap::load(pages, g.lbn_bitmap_base, g.visible_blocks(), "LBNs", c),
            inos: Bitmap::load(pages, g.ino_bitmap_base, g.inodes(), "inodes", c),
            nodes: Bitmap::load(pages, g.dyn_bitmap_base, g.dyn_nodes(), "dynamic nodes", c),
        }
    }

    /// Compares the bits with what exists.
    pub(super) fn compare(&self, pages: &Pages<'_>, table: &Table, owners: &Owners, c: &mut Check) {
        self.compare_lbns(owners, c);
        self.compare_inodes(table, c);
        self.compare_nodes(pages, c);
    }

    fn compare_lbns(&self, o: &Owners, c: &mut Check) {
        let map = &self.lbns;
        for r in map.only(&o.lbns, &map.bits) {
            let what = format_args!("{}: in a file, but marked free", owners::lbns(&r));
            c.findings.error(Area::Bitmap, what);
        }
        if o.gaps.blocks {
            c.skip(
                "LBNs that are marked used, but that no file has: not all extents could be read",
            );
            return;
        }
        for r in map.only(&map.bits, &o.lbns) {
            let what = format_args!("{}: marked used, but in no file", owners::lbns(&r));
            c.findings.error(Area::Bitmap, what);
        }
    }

    fn compare_inodes(&self, table: &Table, c: &mut Check) {
        let map = &self.inos;
        let mut live = BitSet::new(map.bits.len());
        // Number 0 is never used, which is a bit that is always set.
        live.add(0);
        table.each_known(|ino, _| {
            live.add(ino);
        });
        // Nothing is known of those whose page cannot be read.
        let unknown = |ino: &u64| table.damaged().has(ino / INODES_PER_PAGE);
        for ino in map.bits.iter().filter(unknown) {
            live.add(ino);
        }
        for ino in map.only(&live, &map.bits).flatten() {
            let what = match ino {
                0 => "inode 0 is marked free, but must never be used".to_string(),
                _ => format!("inode {ino} is marked free, but it exists"),
            };
            c.findings.error(Area::Bitmap, what);
        }
        for ino in map.only(&map.bits, &live).flatten() {
            let what = format_args!("inode {ino} is marked used, but it does not exist");
            c.findings.error(Area::Bitmap, what);
        }
    }

    fn compare_nodes(&self, pages: &Pages<'_>, c: &mut Check) {
        let map = &self.nodes;
        let base = pages.media.geo.dyn_base;
        let mut exist = BitSet::new(map.bits.len());
        for id in pages.exists.iter_from(base) {
            exist.add(id - base);
        }
        for n in map.bits.iter().filter(|n| pages.is_unknown(base + n)) {
            exist.add(n);
        }
        for n in map.only(&exist, &map.bits).flatten() {
            let what = format_args!("node {} is marked free, but it exists", base + n);
            c.findings.error(Area::Bitmap, what);
        }
        for n in map.only(&map.bits, &exist).flatten() {
            let what = format_args!("node {} is marked used, but it does not exist", base + n);
            c.findings.error(Area::Bitmap, what);
        }
    }
}
