//! Damage to the quota table, found and repaired.

use std::ops::Range;

use quayfs_fs::{SetFlags, SetQuota, Subject};
use quayfs_layout::quota::{self, Entry, Limits, Usage, offset};

use super::support::{BY, Disk};

const SEVEN: Subject = Subject::Project(7);
const NINE: Subject = Subject::Project(9);
/// A place that nothing has.
const FREE: usize = 40;

/// A sample with two projects, one of which may have only so much.
fn with_projects() -> Disk {
    let (disk, s) = Disk::sample();
    let fs = disk.mount();
    let set = |ino, project| {
        let set = SetFlags {
            flags: 0,
            mask: 0,
            project: Some(project),
        };
        fs.set_flags(BY, ino, set).unwrap();
    };
    set(s.big, 7);
    set(s.small, 7);
    set(s.dir, 9);
    let limit = SetQuota {
        subject: SEVEN,
        inodes_hard: Some(20),
        ..SetQuota::default()
    };
    fs.set_quota(BY, limit).unwrap();
    fs.shutdown().unwrap();
    disk.finds(&[]);
    disk
}

/// The first page of the table of a volume with projects 7 and 9, and what it said at first of both.
struct Table {
    disk: Disk,
    id: u32,
    seven: (usize, Entry),
    nine: (usize, Entry),
}

impl Table {
    fn new() -> Self {
        let disk = with_projects();
        let id = disk.geo().quota_base as u32;
        let find = |subject| {
            let all = (0..quota::PER_PAGE).map(|slot| (slot, entry(&disk, id, slot)));
            let mut found = all.filter(|(_, e)| e.subject == subject && !e.is_free());
            found.next().unwrap()
        };
        let (seven, nine) = (find(SEVEN), find(NINE));
        assert_eq!((seven.1.usage.inodes, seven.1.limits.inodes), (2, 20));
        // The root directory has an owner from the beginning.
        assert!(find(Subject::User(0)).1.usage.inodes > 0);
        Self {
            disk,
            id,
            seven,
            nine,
        }
    }

    fn at(&self, slot: usize) -> Entry {
        entry(&self.disk, self.id, slot)
    }

    fn store(&self, slot: usize, e: &Entry) {
        self.disk
            .edit(self.id, |p| p[place(slot)].copy_from_slice(&e.encode()));
    }
}

fn place(slot: usize) -> Range<usize> {
    offset(slot)..offset(slot) + quota::SIZE
}

fn entry(disk: &Disk, id: u32, slot: usize) -> Entry {
    Entry::decode(&disk.page(id)[place(slot)])
}

#[test]
fn what_each_has_is_counted() {
    let t = Table::new();
    let users = (0..quota::PER_PAGE).map(|slot| (slot, t.at(slot)));
    let all = users.filter(|(_, e)| !e.is_free()).collect::<Vec<_>>();
    assert!(all.len() >= 4, "{all:?}");
    for (slot, e) in all {
        let (blocks, inodes) = (e.usage.blocks, e.usage.inodes);
        let more = Entry {
            usage: Usage {
                blocks: blocks + 1,
                ..e.usage
            },
            ..e
        };
        t.store(slot, &more);
        let count = quayfs_shown::count;
        t.disk.finds(&[&format!(
            "error: quota: {} has {} and {}, the table says {} and {inodes}",
            e.subject,
            count(blocks, "block"),
            count(inodes, "inode"),
            blocks + 1
        )]);
        t.disk.repaired();
        assert_eq!(t.at(slot), e);
    }
}

#[test]
fn a_missing_project_finds_its_place_and_one_that_has_nothing_keeps_its_limits() {
    let t = Table::new();
    let blocks = t.nine.1.usage.blocks;
    t.store(t.nine.0, &Entry::default());
    let alone = Entry {
        subject: Subject::Project(11),
        usage: t.nine.1.usage,
        limits: t.seven.1.limits,
        ..Entry::default()
    };
    t.store(FREE, &alone);
    t.disk.finds(&[
        &format!("error: quota: project 9 has {blocks} blocks and 1 inode, the table says 0 and 0"),
        &format!(
            "error: quota: project 11 has 0 blocks and 0 inodes, the table says {blocks} and 1"
        ),
    ]);
    t.disk.repaired();
    assert_eq!((t.at(t.seven.0), t.at(t.nine.0)), (t.seven.1, t.nine.1));
    let limited = Entry {
        usage: Usage::default(),
        ..alone
    };
    assert_eq!(t.at(FREE), limited);
}

#[test]
fn a_place_belongs_to_one_project() {
    let t = Table::new();
    let id = t.id;
    let none = Entry {
        subject: Subject::Project(0),
        ..t.seven.1
    };
    let second = format!("error: quota: node {id}, place {FREE}: project 7 has a place already");
    let nobody = format!("error: quota: node {id}, place {FREE}: project 0 is not counted");
    for (entry, what) in [(t.seven.1, second), (none, nobody)] {
        t.store(FREE, &entry);
        t.disk.finds(&[&what]);
        t.disk.repaired();
        assert!(t.at(FREE).is_free());
    }
}

#[test]
fn without_the_page_nothing_is_left_of_the_limits_and_everything_of_the_rest() {
    let t = Table::new();
    let page = t.disk.home(t.id).unwrap();
    let off = t.disk.geo().node_page(page) + 2000;
    t.disk.region.write(off, &[0x55; 9]);
    let report = t.disk.check();
    assert_eq!(report.skipped.len(), 1, "{report}");
    t.disk.repaired();
    let unlimited = Entry {
        limits: Limits::default(),
        ..t.seven.1
    };
    assert_eq!((t.at(0), t.at(1)), (unlimited, t.nine.1));
}
