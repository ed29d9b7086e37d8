//! Damage to the quota table, found and repaired.

use std::ops::Range;

use quayfs_fs::{SetFlags, SetQuota};
use quayfs_layout::quota::{self, Entry, Limits, Usage, offset};

use super::support::{BY, Disk};

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
        project: 7,
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
    seven: Entry,
    nine: Entry,
}

impl Table {
    fn new() -> Self {
        let disk = with_projects();
        let id = disk.geo().quota_base as u32;
        let at = |slot| entry(&disk, id, slot);
        let (seven, nine) = (at(0), at(1));
        assert_eq!((seven.project, nine.project), (7, 9));
        assert_eq!((seven.usage.inodes, seven.limits.inodes), (2, 20));
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
fn what_a_project_has_is_counted() {
    let t = Table::new();
    let blocks = t.seven.usage.blocks;
    let more = Entry {
        usage: Usage {
            blocks: blocks + 1,
            ..t.seven.usage
        },
        ..t.seven
    };
    t.store(0, &more);
    t.disk.finds(&[&format!(
        "error: quota: project 7 has {blocks} blocks and 2 inodes, the table says {} and 2",
        blocks + 1
    )]);
    t.disk.repaired();
    assert_eq!(t.at(0), t.seven);
}

#[test]
fn a_missing_project_finds_its_place_and_one_that_has_nothing_keeps_its_limits() {
    let t = Table::new();
    let blocks = t.nine.usage.blocks;
    t.store(1, &Entry::default());
    let alone = Entry {
        project: 11,
        usage: t.nine.usage,
        limits: t.seven.limits,
    };
    t.store(5, &alone);
    t.disk.finds(&[
        &format!("error: quota: project 9 has {blocks} blocks and 1 inode, the table says 0 and 0"),
        &format!(
            "error: quota: project 11 has 0 blocks and 0 inodes, the table says {blocks} and 1"
        ),
    ]);
    t.disk.repaired();
    assert_eq!((t.at(0), t.at(1)), (t.seven, t.nine));
    let limited = Entry {
        usage: Usage::default(),
        ..alone
    };
    assert_eq!(t.at(5), limited);
}

#[test]
fn a_place_belongs_to_one_project() {
    let t = Table::new();
    let id = t.id;
    let none = Entry {
        project: 0,
        ..t.seven
    };
    let second =
        format!("error: quota: node {id}, place 6, project 7: is the second one of its...");
    let nobody = format!("error: quota: node {id}, place 6, project 0: belongs to no project");
    for (entry, what) in [(t.seven, second), (none, nobody)] {
        t.store(6, &entry);
        t.disk.finds(&[&what]);
        t.disk.repaired();
        assert!(t.at(6).is_free());
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
        ..t.seven
    };
    assert_eq!((t.at(0), t.at(1)), (unlimited, t.nine));
}
