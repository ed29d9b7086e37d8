//! Damage to the quota table, found and repaired.

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

#[test]
fn what_projects_have() {
    let disk = with_projects();
    let id = disk.geo().quota_base as u32;
    let place = |slot| offset(slot)..offset(slot) + quota::SIZE;
    let entries: Vec<Entry> = (0..quota::PER_PAGE)
        .map(|slot| Entry::decode(&disk.page(id)[place(slot)]))
        .collect();
    let (seven, nine) = (entries[0], entries[1]);
    assert_eq!((seven.project, nine.project), (7, 9));
    assert_eq!((seven.usage.inodes, seven.limits.inodes), (2, 20));
    let store = |slot: usize, e: &Entry| {
        disk.edit(id, |p| p[place(slot)].copy_from_slice(&e.encode()));
    };
    let more = Entry {
        usage: Usage {
            blocks: seven.usage.blocks + 1,
            ..seven.usage
        },
        ..seven
    };
    let blocks = seven.usage.blocks;
    let wrong = format!(
        "error: quota: project 7 has {blocks} blocks and 2 inodes, the table says {} and 2",
        blocks + 1
    );
    store(0, &more);
    disk.finds(&[&wrong]);
    disk.repaired();
    assert_eq!(Entry::decode(&disk.page(id)[place(0)]), seven);
    // The place of one that is missing is found again; limits of one that has nothing are kept.
    store(1, &Entry::default());
    let alone = Entry {
        project: 11,
        usage: nine.usage,
        limits: seven.limits,
    };
    store(5, &alone);
    disk.finds(&[
        &format!(
            "error: quota: project 9 has {} blocks and 1 inodes, the table says 0 and 0",
            nine.usage.blocks
        ),
        &format!(
            "error: quota: project 11 has 0 blocks and 0 inodes, the table says {} and 1",
            nine.usage.blocks
        ),
    ]);
    disk.repaired();
    let at = |slot| Entry::decode(&disk.page(id)[place(slot)]);
    assert_eq!((at(0), at(1)), (seven, nine));
    let limited = Entry {
        usage: Usage::default(),
        ..alone
    };
    assert_eq!(at(5), limited);
    store(6, &seven);
    let second = format!("error: quota: node {id}, place 6, project 7: is the second one of its");
    disk.finds(&[&format!("{second}...")]);
    disk.repaired();
    assert!(at(6).is_free());
    store(
        6,
        &Entry {
            project: 0,
            ..seven
        },
    );
    disk.finds(&[&format!(
        "error: quota: node {id}, place 6, project 0: belongs to no project"
    )]);
    disk.repaired();
    assert!(at(6).is_free());
    // Without the page nothing is left of the limits, and everything of the rest.
    let page = disk.home(id).unwrap();
    disk.region
        .write(disk.geo().node_page(page) + 2000, &[0x55; 9]);
    let report = disk.check();
    assert_eq!(report.skipped.len(), 1, "{report}");
    disk.repaired();
    let unlimited = Entry {
        limits: Limits::default(),
        ..seven
    };
    assert_eq!((at(0), at(1)), (unlimited, nine));
}
