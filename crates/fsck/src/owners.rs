//! Which inode owns which node and which LBN.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use rangemap::RangeSet;

use quayfs_layout::geometry::Geometry;
use quayfs_layout::node::{self, NodeKind};
use quayfs_layout::{Ino, Lbn};
use quayfs_store::ns::node::PageBytes;

use super::bitset::BitSet;
use super::extents;
use super::pages::{Got, Pages};
use super::table::Table;
use super::{Area, Check, KEPT};

/// What could not be read, so that something else has no owner for no fault of its own.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Gaps {
    /// Directories.
    pub(super) links: bool,
    /// Extents.
    pub(super) blocks: bool,
    /// Anything that refers to nodes.
    pub(super) nodes: bool,
}

/// Nodes and LBNs that inodes have been found to own.
pub(super) struct Owners {
    /// By node id; static nodes are there from the start.
    reached: BitSet,
    /// By LBN.
    pub(super) lbns: BitSet,
    /// The same as ranges: extents may claim the same blocks again and again.
    claimed: RangeSet<Lbn>,
    /// Those that were claimed more than once.
    doubled: RangeSet<Lbn>,
    pub(super) gaps: Gaps,
}

/// On whose behalf a node is looked at.
#[derive(Clone, Copy)]
pub(super) struct Claim<'a> {
    pub(super) area: Area,
    pub(super) ino: Ino,
    /// What the page is to the inode.
    pub(super) what: &'a str,
    pub(super) kind: NodeKind,
}

impl Owners {
    /// Nothing has an owner. What inodes with unreadable images own will never be known.
    pub(super) fn new(geo: &Geometry, all_inodes: bool) -> Self {
        let mut reached = BitSet::new(geo.nat_entries);
        reached.fill(0..geo.dyn_base);
        Self {
            reached,
            lbns: BitSet::new(geo.blocks),
            claimed: RangeSet::new(),
            doubled: RangeSet::new(),
            gaps: Gaps {
                links: !all_inodes,
                blocks: !all_inodes,
                nodes: !all_inodes,
            },
        }
    }

    /// An inode refers to node `id`. Returns its page if it is one of this inode and of this kind
    /// and nothing else has referred to it.
    pub(super) fn claim(
        &mut self,
        pages: &Pages<'_>,
        who: Claim<'_>,
        id: u32,
        c: &mut Check,
    ) -> Option<PageBytes> {
        let Claim {
            area,
            ino,
            what,
            kind,
        } = who;
        let geo = &pages.media.geo;
        let page = match pages.read(id) {
            _ if u64::from(id) < geo.dyn_base || u64::from(id) >= geo.nat_entries => {
                Err(format!("node {id}, which cannot be one"))
            }
            _ if !self.reached.add(id.into()) => {
                Err(format!("node {id}, which has an owner already"))
            }
            Got::Missing => Err(format!("node {id}, which does not exist")),
            Got::Damaged => {
                self.gaps.nodes = true;
                return None;
            }
            Got::Page(page) => match node::kind(&page[..]) {
                Some(k) if k != kind => Err(format!("node {id}, which is a {k:?} page")),
                _ if node::owner(&page[..]) != ino => {
                    let other = node::owner(&page[..]);
                    Err(format!("node {id}, which says it belongs to inode {other}"))
                }
                _ => Ok(page),
            },
        };
        page.map_err(|why| {
            self.gaps.nodes = true;
            c.findings
                .error(area, format_args!("inode {ino}: {what} is {why}"));
        })
        .ok()
    }

    /// An inode has these LBNs, which exist.
    pub(super) fn claim_blocks(&mut self, range: Range<Lbn>) {
        let fresh: Vec<Range<Lbn>> = self.claimed.gaps(&range).collect();
        let mut at = range.start;
        for part in fresh
            .iter()
            .cloned()
            .chain(std::iter::once(range.end..range.end))
        {
            if at < part.start {
                self.doubled.insert(at..part.start);
            }
            at = part.end;
        }
        for part in fresh {
            self.lbns.fill(part);
        }
        self.claimed.insert(range);
    }

    /// Nodes that nothing refers to.
    pub(super) fn unreached(&self, pages: &Pages<'_>, c: &mut Check) {
        if self.gaps.nodes {
            c.skip("nodes that nothing refers to: not all references could be read");
            return;
        }
        for id in pages.exists.minus(&self.reached).flatten() {
            let Got::Page(page) = pages.read(id as u32) else {
                continue;
            };
            let (owner, kind) = (node::owner(&page[..]), node::kind(&page[..]));
            let kind = kind.map_or_else(String::new, |k| format!("{k:?} "));
            let what =
                format_args!("node {id}: {kind}page of inode {owner}, which has no use for it");
            c.findings.error(Area::Node, what);
        }
    }

    /// LBNs that are mapped more than once, with all their owners.
    pub(super) fn doubled(&self, pages: &Pages<'_>, table: &Table, c: &mut Check) {
        if self.doubled.is_empty() {
            return;
        }
        // Only those that are listed need names.
        let listed: Vec<Range<Lbn>> = self.doubled.iter().take(KEPT).cloned().collect();
        let rest = self.doubled.iter().skip(KEPT).count() as u64;
        let mut owners: BTreeMap<usize, BTreeSet<Ino>> = BTreeMap::new();
        table.each(pages, |ino, inode| {
            for e in extents::list(pages, ino, inode) {
                let first = listed.partition_point(|r| r.end <= e.lbn);
                for (i, r) in listed.iter().enumerate().skip(first) {
                    if r.start >= e.lbn + e.len {
                        break;
                    }
                    owners.entry(i).or_default().insert(ino);
                }
            }
        });
        for (i, r) in listed.iter().enumerate() {
            let inos: Vec<String> = owners
                .get(&i)
                .into_iter()
                .flatten()
                .map(|ino| format!("inode {ino}"))
                .collect();
            let what = format_args!(
                "{}: mapped more than once, by {}",
                lbns(r),
                inos.join(" and ")
            );
            c.findings.error(Area::Extents, what);
        }
        c.findings.more(rest);
    }
}

/// A range of LBNs in words.
pub(super) fn lbns(r: &Range<Lbn>) -> String {
    match r.end - r.start {
        1 => format!("LBN {}", r.start),
        _ => format!("LBNs {} to {}", r.start, r.end - 1),
    }
}
