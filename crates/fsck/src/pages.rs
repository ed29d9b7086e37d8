//! NAT and node pages.

use std::ops::Range;

use quayfs_layout::geometry::Geometry;
use quayfs_layout::node::{self, OFF_SEQ};
use quayfs_layout::{BLOCK, bytes, flaw};
use quayfs_shown::progress::Unit;
use quayfs_store::ns::node::{PageBytes, zero_page};
use rangemap::RangeSet;
use rustc_hash::FxHashSet;

use super::bitset::BitSet;
use super::media::Media;
use super::{Area, Check};

/// In `owner`: no inode.
const NOBODY: u32 = 0;

/// The node pages of a volume, checked.
pub(super) struct Pages<'m> {
    pub(super) media: &'m Media,
    /// Nodes that the NAT gives a page.
    pub(super) exists: BitSet,
    /// Those whose page is what it should be.
    readable: BitSet,
    /// Nodes of which the NAT says nothing that makes sense.
    unknown: RangeSet<u64>,
}

/// What there is to read of a node.
pub(super) enum Got {
    /// Its page.
    Page(PageBytes),
    /// Nothing; that has been reported.
    Damaged,
    /// The node does not exist.
    Missing,
}

impl<'m> Pages<'m> {
    /// Checks that each page is owned at most once and that every node is what its place says.
    /// No page can be newer than `last_seq`.
    pub(super) fn load(media: &'m Media, last_seq: u64, c: &mut Check) -> Self {
        let n = media.geo.nat_entries;
        let mut pages = Self {
            media,
            exists: BitSet::new(n),
            readable: BitSet::new(n),
            unknown: RangeSet::new(),
        };
        let shared = pages.read_nat(c);
        c.report.statistics.node_pages = pages.exists.count();
        c.report.statistics.node_pages_total = media.geo.node_pages;
        let mut page = zero_page();
        let ids: Vec<u32> = pages.exists.iter().map(|id| id as u32).collect();
        c.meter
            .begin("reading node pages", ids.len() as u64, Unit::Things("page"));
        for id in ids {
            c.meter.add(1);
            let Some(at) = pages.home(id) else { continue };
            media.region.read(media.geo.node_page(at), &mut page[..]);
            match judge(&media.geo, media.salt, id, &page, last_seq) {
                Ok(()) => {
                    pages.readable.add(id.into());
                }
                // Of two nodes in one page one must be wrong; that has been said.
                Err(_) if shared.contains(&at) => {}
                Err(why) => {
                    let what = format_args!("node {id} in page {at}: {why}");
                    c.findings.error(Area::Node, what);
                }
            }
        }
        pages
    }

    /// Reads the NAT; returns the pages that more than one node owns.
    fn read_nat(&mut self, c: &mut Check) -> FxHashSet<u64> {
        let geo = self.media.geo;
        let mut owner = vec![NOBODY; geo.node_pages as usize];
        let mut shared = FxHashSet::default();
        let media = self.media;
        let each = |ids: Range<u64>, words: Option<&[u8]>| {
            let Some(words) = words else {
                // An entry is never all zeros.
                self.unknown.insert(ids.clone());
                let what = |id| format!("the entry of node {id} is damaged");
                c.findings.errors(Area::Nat, ids, what);
                return;
            };
            for (id, word) in ids.zip(words.chunks_exact(8)) {
                self.entry(id, bytes::get_u64(word, 0), &mut owner, &mut shared, c);
            }
        };
        let (off, count) = (geo.nat_off, geo.nat_entries);
        media.region.table(off, count, 8, each);
        shared
    }

    /// One entry of the NAT.
    fn entry(
        &mut self,
        id: u64,
        word: u64,
        owner: &mut [u32],
        shared: &mut FxHashSet<u64>,
        c: &mut Check,
    ) {
        let pages = self.media.geo.node_pages;
        match node::nat_decode(id as u32, word, self.media.salt) {
            Some(None) => {}
            Some(Some(_)) if id == 0 => {
                c.findings
                    .error(Area::Nat, "node 0 exists, which is never used");
            }
            Some(Some(page)) if page < pages => {
                self.exists.add(id);
                let before = &mut owner[page as usize];
                if *before == NOBODY {
                    *before = id as u32;
                    return;
                }
                let what = format_args!("page {page} belongs to node {before} and to node {id}");
                c.findings.error(Area::Nat, what);
                shared.insert(page);
            }
            Some(Some(page)) => {
                self.unknown.insert(id..id + 1);
                let what =
                    format_args!("the entry of node {id} names page {page}, there are {pages}");
                c.findings.error(Area::Nat, what);
            }
            None => {
                self.unknown.insert(id..id + 1);
                c.findings
                    .error(Area::Nat, format_args!("the entry of node {id} is damaged"));
            }
        }
    }

    fn home(&self, id: u32) -> Option<u64> {
        let word = self.media.region.load_u64(self.media.geo.nat_entry(id));
        node::nat_decode(id, word, self.media.salt).flatten()
    }

    /// Reads a node.
    pub(super) fn read(&self, id: u32) -> Got {
        let n = u64::from(id);
        if self.readable.has(n)
            && let Some(at) = self.home(id)
        {
            let mut page = zero_page();
            self.media
                .region
                .read(self.media.geo.node_page(at), &mut page[..]);
            return Got::Page(page);
        }
        if self.exists.has(n) || self.unknown.contains(&n) {
            Got::Damaged
        } else {
            Got::Missing
        }
    }

    /// Whether nothing can be said about a node, because its NAT entry is damaged.
    pub(super) fn is_unknown(&self, id: u64) -> bool {
        self.unknown.contains(&id)
    }

    /// Nodes of a range about which nothing can be said.
    pub(super) fn unknown_in(&self, ids: Range<u64>) -> Vec<Range<u64>> {
        let within = |r: &Range<u64>| r.start.max(ids.start)..r.end.min(ids.end);
        self.unknown.overlapping(&ids).map(within).collect()
    }
}

/// Whether a page is one that node `id` can have, and no newer than `last_seq`; if not, why.
pub(super) fn judge(
    geo: &Geometry,
    salt: u64,
    id: u32,
    page: &[u8; BLOCK],
    last_seq: u64,
) -> Result<(), String> {
    let kind = node::check(page, id, salt).map_err(|e| e.to_string())?;
    flaw::place(geo, id, page, kind).map_err(|flaw| flaw.to_string())?;
    let seq = bytes::get_u64(page, OFF_SEQ);
    if seq > last_seq {
        return Err(format!(
            "holds record {seq}, but the last one is {last_seq}"
        ));
    }
    Ok(())
}
