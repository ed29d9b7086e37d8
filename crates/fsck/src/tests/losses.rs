//! What a repair drops it counts and names, and what it cannot tell from older content reads as an error.

use quayfs_background::digest::digest_all;
use quayfs_layout::BLOCK;
use quayfs_layout::inode::{ROOT, S_IFREG};
use quayfs_layout::slot::{COMMITTED_OFFSET, SLOT_HEADER_BYTES};

use super::support::{BY, Disk};
use crate::FsckOptions;
use crate::repair::{Outcome, RepairReport, repair_volume};

fn repair(disk: &Disk) -> RepairReport {
    let options = FsckOptions::default();
    let report = repair_volume(&mut disk.volume(), &options, &Default::default()).unwrap();
    assert_eq!(report.outcome, Outcome::Repaired, "{report}");
    let again = repair_volume(&mut disk.volume(), &options, &Default::default()).unwrap();
    assert_eq!(again.outcome, Outcome::Clean, "{again}");
    report
}

/// A file with two versions, of which the second is staged, and a daemon that died. The header of its slot.
fn overwritten(disk: &Disk) -> u64 {
    let fs = disk.mount();
    let file = fs.mknod(BY, ROOT, b"file", S_IFREG | 0o644, 0).unwrap();
    fs.write(file.ino, 0, &[1; BLOCK], false).unwrap();
    fs.shutdown().unwrap();
    let fs = disk.mount();
    fs.write(file.ino, 0, &[2; BLOCK], false).unwrap();
    digest_all(&fs.e).unwrap();
    fs.abandon();
    let live = disk.live();
    assert_eq!(live.len(), 1);
    disk.slot(&live[0]).2
}

#[test]
fn a_slot_without_a_committed_word_may_have_been_the_newest() {
    let disk = Disk::new();
    let header = overwritten(&disk);
    disk.region.store_u64(header + COMMITTED_OFFSET, 99);
    let report = repair(&disk);
    assert_eq!(
        (report.lost_blocks, report.older_blocks),
        (0, 1),
        "{report}"
    );
    let named = |d: &&crate::repair::Done| d.path.as_deref() == Some("/file");
    let done = report.done.iter().find(named).expect("the file is named");
    assert!(done.what.contains("committed word is lost"), "{report}");
    let losses = report.losses();
    assert_eq!(
        losses.as_deref(),
        Some("up to 1 block may show older content")
    );
    shows(&disk, 1);
}

/// The block at home is not given up for what cannot be newer.
#[test]
fn a_slot_that_was_free_costs_nothing() {
    let disk = Disk::new();
    let header = overwritten(&disk);
    disk.mount().shutdown().unwrap();
    let fs = disk.mount();
    let file = fs.lookup(ROOT, b"file").unwrap();
    fs.write(file.ino, 0, &[3; BLOCK], false).unwrap();
    fs.shutdown().unwrap();
    let fs = disk.mount();
    fs.mknod(BY, ROOT, b"other", S_IFREG | 0o644, 0).unwrap();
    fs.abandon();
    disk.region.store_u64(header + COMMITTED_OFFSET, 99);
    let report = repair(&disk);
    assert_eq!(report.losses(), None, "{report}");
    shows(&disk, 3);
}

fn shows(disk: &Disk, byte: u8) {
    let fs = disk.mount();
    let file = fs.lookup(ROOT, b"file").unwrap();
    assert_eq!(fs.read(file.ino, 0, BLOCK).unwrap(), [byte; BLOCK]);
    fs.shutdown().unwrap();
}

/// What the device has as well is not lost with a slot.
#[test]
fn a_slot_whose_content_is_elsewhere_costs_nothing() {
    let disk = Disk::new();
    let header = overwritten(&disk);
    let before = disk.region.read_vec(header, SLOT_HEADER_BYTES as u64);
    disk.mount().shutdown().unwrap();
    let fs = disk.mount();
    fs.mknod(BY, ROOT, b"other", S_IFREG | 0o644, 0).unwrap();
    fs.abandon();
    disk.region.write(header, &before);
    disk.region.store_u64(header + COMMITTED_OFFSET, 99);
    let report = repair(&disk);
    assert_eq!(report.losses(), None, "{report}");
    let fs = disk.mount();
    let file = fs.lookup(ROOT, b"file").unwrap();
    assert_eq!(fs.read(file.ino, 0, BLOCK).unwrap(), [2; BLOCK]);
    fs.shutdown().unwrap();
}

#[test]
fn a_slot_of_which_nothing_is_left_may_have_had_a_block() {
    let disk = Disk::new();
    let header = overwritten(&disk);
    disk.region.write(header, &[0xa5; SLOT_HEADER_BYTES]);
    let report = repair(&disk);
    let losses = report.losses();
    assert_eq!(
        losses.as_deref(),
        Some("up to 1 block may show older content")
    );
    let text = report.to_string();
    assert!(
        text.contains("1 finding, repaired with losses: up to 1 block"),
        "{text}"
    );
}

#[test]
fn operations_behind_damage_are_losses_and_their_names_are_said() {
    let disk = Disk::new();
    let fs = disk.mount();
    fs.mkdir(BY, ROOT, b"dir", 0o755).unwrap();
    fs.shutdown().unwrap();
    let fs = disk.mount();
    let dir = fs.lookup(ROOT, b"dir").unwrap().ino;
    for name in [&b"victim"[..], b"one", b"other"] {
        fs.mknod(BY, dir, name, S_IFREG | 0o644, 0).unwrap();
    }
    fs.abandon();
    disk.overwrite_record(b"victim", &[0xa5; 200]);
    let report = repair(&disk);
    assert_eq!(report.lost_operations, 3, "{report}");
    assert_eq!(report.losses().as_deref(), Some("3 operations are dropped"));
    for path in ["/dir/one", "/dir/other"] {
        let named = report.done.iter().any(|d| d.path.as_deref() == Some(path));
        assert!(named, "{path}: {report}");
    }
}
