//! What a volume cannot be opened without is on the data device as well.

use quayfs_fs::volume::superblock;
use quayfs_layout::BLOCK;
use quayfs_layout::backup::BACKUP_BLOCK;
use quayfs_layout::inode::{ROOT, S_IFREG};
use quayfs_layout::jsb::WordKind;

use super::support::{BY, Disk};
use crate::FsckOptions;
use crate::repair::{Outcome, RepairReport, repair_volume};

fn repair(disk: &Disk) -> RepairReport {
    let options = FsckOptions { check_data: true };
    repair_volume(&mut disk.volume(), &options, &Default::default()).unwrap()
}

/// One more life of the volume, in which something happens.
fn live(disk: &Disk, name: &str) {
    let fs = disk.mount();
    let mode = S_IFREG | 0o644;
    let ino = fs.mknod(BY, ROOT, name.as_bytes(), mode, 0).unwrap().ino;
    fs.write(ino, 0, &[name.len() as u8; BLOCK], false).unwrap();
    fs.shutdown().unwrap();
}

fn has(disk: &Disk, name: &str) -> bool {
    let fs = disk.mount();
    let found = fs.lookup(ROOT, name.as_bytes()).is_ok();
    fs.shutdown().unwrap();
    found
}

fn lose_superblock(disk: &Disk) {
    disk.region.write(disk.geo().jsb_off, &[0xa5; BLOCK]);
}

fn copies(disk: &Disk) -> Vec<u8> {
    let mut both = vec![0; 2 * BLOCK];
    disk.device.read(BACKUP_BLOCK, &mut both).unwrap();
    both
}

#[test]
fn a_lost_superblock_is_put_back() {
    for lost in [None, Some(WordKind::Epoch), Some(WordKind::Digested)] {
        let disk = Disk::new();
        live(&disk, "a");
        live(&disk, "bc");
        match lost {
            None => lose_superblock(&disk),
            Some(word) => disk
                .region
                .store_u64(disk.geo().jsb_off + word.offset(), 0x1234_5678_9abc),
        }
        assert!(!disk.check().is_clean());
        let report = repair(&disk);
        assert_eq!(report.outcome, Outcome::Repaired, "{report}");
        assert_eq!(report.losses(), None, "{report}");
        assert!(report.check.statistics.clean, "{report}");
        assert!(has(&disk, "a") && has(&disk, "bc"));
        live(&disk, "def");
        assert!(disk.check().is_clean());
    }
}

/// The superblock of a new volume is kept too.
#[test]
fn a_new_volume_has_it() {
    let disk = Disk::new();
    lose_superblock(&disk);
    assert_eq!(repair(&disk).outcome, Outcome::Repaired);
    assert!(!has(&disk, "a"));
}

/// What was true at an earlier clean unmount is not what the volume holds.
#[test]
fn a_copy_of_an_earlier_life_is_not_believed() {
    for dies in [false, true] {
        let disk = Disk::new();
        live(&disk, "a");
        let earlier = copies(&disk);
        match dies {
            true => {
                let fs = disk.mount();
                fs.mknod(BY, ROOT, b"bc", S_IFREG | 0o644, 0).unwrap();
                fs.abandon();
            }
            false => live(&disk, "bc"),
        }
        disk.device.write(BACKUP_BLOCK, &earlier).unwrap();
        assert!(superblock(&disk.volume()).is_none(), "dies: {dies}");
        let page = disk.region.read_vec(disk.geo().jsb_off, BLOCK as u64);
        lose_superblock(&disk);
        let report = repair(&disk);
        assert_eq!(report.outcome, Outcome::Left, "{report}");
        // A repair that cannot put it back takes nothing else away.
        disk.region.write(disk.geo().jsb_off, &page);
        assert!(has(&disk, "a") && has(&disk, "bc"));
    }
}

/// A mount in which nothing happened leaves the volume as it was.
#[test]
fn a_copy_outlives_a_mount_that_changed_nothing() {
    let disk = Disk::new();
    live(&disk, "a");
    disk.mount().abandon();
    lose_superblock(&disk);
    assert_eq!(repair(&disk).outcome, Outcome::Repaired);
    assert!(has(&disk, "a"));
}

/// Whatever is wrong with the volume when its table changes, the better copy of the superblock stays.
#[test]
fn a_change_of_the_table_does_not_keep_a_lost_superblock() {
    let disk = Disk::new();
    live(&disk, "a");
    lose_superblock(&disk);
    let before = copies(&disk);
    let mut volume = disk.volume();
    volume
        .change_config(|config| assert!(config.set_label("new")))
        .unwrap();
    drop(volume);
    let after = copies(&disk);
    assert_ne!(before[..BLOCK], after[..BLOCK]);
    assert_eq!(before[BLOCK..], after[BLOCK..]);
    assert_eq!(repair(&disk).outcome, Outcome::Repaired);
    assert!(has(&disk, "a"));
}

/// A damaged copy is no damage of the volume, and does nothing to it.
#[test]
fn a_damaged_copy_is_ignored() {
    let disk = Disk::new();
    live(&disk, "a");
    disk.device.write(BACKUP_BLOCK, &[0xa5; 2 * BLOCK]).unwrap();
    assert!(disk.check().is_clean());
    lose_superblock(&disk);
    assert_eq!(repair(&disk).outcome, Outcome::Left);
}
