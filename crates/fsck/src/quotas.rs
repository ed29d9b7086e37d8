//! The quota table: what it says that projects, users and groups have, against what their inodes have.

use quayfs_shown::count;
use std::collections::{BTreeMap, BTreeSet};

use quayfs_layout::geometry::Geometry;
use quayfs_layout::inode::Inode;
use quayfs_layout::quota::{Entry, PER_PAGE, SIZE, Subject, Usage, offset};

use super::pages::{Got, Pages};
use super::table::Table;
use super::{Area, Check};

/// What each of them has, by what is added.
#[derive(Debug)]
pub(super) struct Usages {
    pub(super) all: BTreeMap<Subject, Usage>,
    /// Whether the volume counts users and groups.
    owners: bool,
}

impl Usages {
    /// Of a volume that counts users and groups, or does not.
    pub(super) fn new(owners: bool) -> Self {
        let all = BTreeMap::new();
        Self { all, owners }
    }

    /// Adds an inode. Project 0, that of those which have none, is not counted.
    pub(super) fn add(&mut self, i: &Inode) {
        let owners = [Subject::User(i.uid), Subject::Group(i.gid)];
        let owners = owners.into_iter().filter(|_| self.owners);
        let project = (i.project != 0).then_some(Subject::Project(i.project));
        for subject in owners.chain(project) {
            let usage = self.all.entry(subject).or_default();
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
    let mut actual = Usages::new(pages.media.owners);
    // What there would be if users and groups were counted.
    let mut owners = Usages::new(!pages.media.owners);
    table.each(pages, |_, i| {
        actual.add(i);
        owners.add(i);
    });
    let mut entries: BTreeMap<Subject, Usage> = BTreeMap::new();
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
            let wrong = match e.subject {
                _ if e.is_free() => continue,
                _ if !e.is_possible() => "is not counted",
                s if entries.contains_key(&s) => "has a place already",
                s => {
                    entries.insert(s, e.usage);
                    continue;
                }
            };
            let what = format_args!("node {id}, place {slot}: {} {wrong}", e.subject);
            c.findings.error(Area::Quota, what);
        }
    }
    owners
        .all
        .extend(entries.iter().map(|(s, usage)| (*s, *usage)));
    c.report.statistics.quota_subjects = owners.all.len() as u64;
    c.report.statistics.quota_places = g.quota_pages * PER_PAGE as u64;
    let all: BTreeSet<Subject> = (actual.all.keys().chain(entries.keys()).copied()).collect();
    if damaged || !table.is_complete() {
        if damaged || !all.is_empty() {
            c.skip(
                "what projects, users and groups have: not everything that says so could be read",
            );
        }
        return;
    }
    for subject in all {
        let has = actual.all.get(&subject).copied().unwrap_or_default();
        let says = entries.get(&subject).copied().unwrap_or_default();
        if has != says {
            let what = format_args!(
                "{subject} has {} and {}, the table says {} and {}",
                count(has.blocks, "block"),
                count(has.inodes, "inode"),
                says.blocks,
                says.inodes
            );
            c.findings.error(Area::Quota, what);
        }
    }
}
