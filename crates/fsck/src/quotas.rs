//! The quota table: what it says that projects have, against what their inodes have.

use quayfs_shown::count;
use std::collections::{BTreeMap, BTreeSet};

use quayfs_layout::geometry::Geometry;
use quayfs_layout::inode::Inode;
use quayfs_layout::quota::{Entry, PER_PAGE, SIZE, Usage, offset};

use super::pages::{Got, Pages};
use super::table::Table;
use super::{Area, Check};

/// What projects have, by what is added.
#[derive(Debug, Default)]
pub(super) struct Usages(pub(super) BTreeMap<u32, Usage>);

impl Usages {
    /// Adds an inode. Those in no project are not counted.
    pub(super) fn add(&mut self, i: &Inode) {
        if i.project != 0 {
            let usage = self.0.entry(i.project).or_default();
            usage.blocks = usage.blocks.saturating_add(i.blocks);
            usage.inodes += 1;
        }
    }
}

/// Node ids of the table.
pub(super) fn ids(g: &Geometry) -> impl Iterator<Item = u32> + use<> {
    (g.quota_base..g.quota_base + g.quota_pages).map(|id| id as u32)
}

/// Compares the table with the inodes.
pub(super) fn check(pages: &Pages<'_>, table: &Table, c: &mut Check) {
    let g = &pages.media.geo;
    if g.quota_pages == 0 {
        return;
    }
    let mut actual = Usages::default();
    table.each(pages, |_, i| actual.add(i));
    let mut entries: BTreeMap<u32, Usage> = BTreeMap::new();
    let mut damaged = false;
    for id in ids(g) {
        let bytes = match pages.read(id) {
            Got::Page(bytes) => bytes,
            Got::Missing => continue,
            Got::Damaged => {
                damaged = true;
                continue;
            }
        };
        for slot in 0..PER_PAGE {
            let at = offset(slot);
            let e = Entry::decode(&bytes[at..at + SIZE]);
            let wrong = match e.project {
                _ if e.is_free() => continue,
                0 => "belongs to no project",
                p if entries.contains_key(&p) => "is the second one of its project",
                p => {
                    entries.insert(p, e.usage);
                    continue;
                }
            };
            let what = format_args!("node {id}, place {slot}, project {}: {wrong}", e.project);
            c.findings.error(Area::Quota, what);
        }
    }
    let all: BTreeSet<u32> = actual.0.keys().chain(entries.keys()).copied().collect();
    if damaged || !table.is_complete() {
        if damaged || !all.is_empty() {
            c.skip("what projects have: not everything that says so could be read");
        }
        return;
    }
    for project in all {
        let has = actual.0.get(&project).copied().unwrap_or_default();
        let says = entries.get(&project).copied().unwrap_or_default();
        if has != says {
            let what = format_args!(
                "project {project} has {} and {}, the table says {} and {}",
                count(has.blocks, "block"),
                count(has.inodes, "inode"),
                says.blocks,
                says.inodes
            );
            c.findings.error(Area::Quota, what);
        }
    }
}
