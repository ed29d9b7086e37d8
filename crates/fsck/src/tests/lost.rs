//! A repair says so where files are lost, whatever the evidence that is left of them.

use quayfs_layout::inode::{ROOT, S_IFREG};
use quayfs_layout::jsb::{MAX_NUMBER, SeqWord, committed_salt};
use quayfs_layout::node::{self, BITS_PER_PAGE};
use quayfs_layout::slot::COMMITTED_OFFSET;
use quayfs_layout::{BLOCK, Ino, LINE};

use super::support::{BY, Disk};
use crate::FsckOptions;
use crate::repair::{Outcome, RepairReport, repair_volume};

/// Files of one block each.
const FILES: u64 = 40;

fn with_files() -> (Disk, Vec<Ino>) {
    let disk = Disk::new();
    let fs = disk.mount();
    let file = |n: u64| {
        let name = format!("file {n}");
        let mode = S_IFREG | 0o644;
        let ino = fs.mknod(BY, ROOT, name.as_bytes(), mode, 0).unwrap().ino;
        let content = vec![n as u8 + 1; BLOCK];
        fs.write(ino, 0, &content, false).unwrap();
        ino
    };
    let all = (0..FILES).map(file).collect();
    fs.shutdown().unwrap();
    (disk, all)
}

fn repair(disk: &Disk) -> RepairReport {
    let options = FsckOptions { check_data: true };
    let report = repair_volume(&mut disk.volume(), &options, &Default::default()).unwrap();
    assert_eq!(report.outcome, Outcome::Repaired, "{report}");
    disk.finds(&[]);
    report
}

/// Damages the page of a node.
fn spoil(disk: &Disk, id: u32) {
    let at = disk.geo().node_page(disk.home(id).unwrap());
    disk.region.write(at, &[0xe5; BLOCK]);
}

fn is_told(report: &RepairReport) {
    assert!(report.has_lost_files(), "{report}");
    let text = report.to_string();
    assert!(text.contains("files are lost"), "{text}");
    assert!(!text.contains("all repaired"), "{text}");
}

#[test]
fn the_table_of_nodes_and_all_pages() {
    for byte in [0, 0xe5] {
        let (disk, _) = with_files();
        let g = *disk.geo();
        for off in [g.nat_off, g.node_page(0)] {
            let end = match off == g.nat_off {
                true => g.nat_off + g.nat_entries * 8,
                false => g.node_page(g.node_pages),
            };
            disk.region.write(off, &vec![byte; (end - off) as usize]);
        }
        let report = repair(&disk);
        assert_eq!(report.unnamed_blocks, FILES, "{report}");
        assert!(report.lost_inodes > FILES, "{report}");
        is_told(&report);
        // Once is enough.
        assert_eq!(
            repair_volume(
                &mut disk.volume(),
                &FsckOptions::default(),
                &Default::default()
            )
            .unwrap()
            .outcome,
            Outcome::Clean
        );
    }
}

/// With the bitmap that would say whether there were inodes in it.
#[test]
fn an_entry_of_the_inode_table_without_its_page() {
    let (disk, files) = with_files();
    let (id, _) = disk.geo().inode_place(files[20]);
    spoil(&disk, id);
    disk.nat(id, 12345);
    spoil(
        &disk,
        (disk.geo().ino_bitmap_base + files[20] / BITS_PER_PAGE) as u32,
    );
    let report = repair(&disk);
    assert_eq!(
        (report.lost_inodes, report.unnamed_blocks),
        (15, 15),
        "{report}"
    );
    is_told(&report);
}

/// What was in use is told where the bitmaps are there, and where they are not.
#[test]
fn a_page_of_the_inode_table() {
    for with_bitmap in [true, false] {
        let (disk, files) = with_files();
        spoil(&disk, disk.geo().inode_place(files[20]).0);
        if !with_bitmap {
            spoil(&disk, disk.geo().lbn_bitmap_base as u32);
        }
        let report = repair(&disk);
        assert_eq!(
            (report.lost_inodes, report.unnamed_blocks),
            (15, 15),
            "{report}"
        );
    }
}

#[test]
fn a_page_of_a_block_map() {
    let (disk, s) = Disk::sample();
    spoil(&disk, disk.inode(s.big).root);
    let report = repair(&disk);
    assert_eq!(report.lost_inodes, 0, "{report}");
    assert!(report.unnamed_blocks > 0, "{report}");
    is_told(&report);
}

#[test]
fn an_entry_whose_inode_is_not_there() {
    let (disk, s) = Disk::sample();
    disk.edit_inode(s.small, |i| *i = Default::default());
    let report = repair(&disk);
    assert_eq!(report.lost_inodes, 1, "{report}");
    is_told(&report);
}

/// Two names of it are lost, it is one.
#[test]
fn the_root_directory() {
    let (disk, _) = with_files();
    disk.edit_inode(ROOT, |i| *i = Default::default());
    let report = repair(&disk);
    assert_eq!(report.lost_inodes, 1, "{report}");
}

/// What was made anew from the rest, and what was healed, is no loss.
#[test]
fn bitmaps_cost_nothing() {
    let (disk, _) = with_files();
    let g = *disk.geo();
    for base in [g.lbn_bitmap_base, g.ino_bitmap_base, g.dyn_bitmap_base] {
        spoil(&disk, base as u32);
    }
    let report = repair(&disk);
    assert_eq!(report.losses(), None, "{report}");
    let (disk, files) = with_files();
    let id = disk.geo().inode_place(files[3]).0;
    disk.nat(
        id,
        node::nat_encode(id, disk.geo().node_pages + 9, disk.salt()),
    );
    let report = repair(&disk);
    assert_eq!(report.losses(), None, "{report}");
}

/// Among garbage some committed words pass their check, as they are or with one bit changed. Recovery would go on with
/// their numbers.
#[test]
fn slots_that_pass_by_chance_end_no_volume() {
    let (disk, _) = with_files();
    let (g, salt) = (*disk.geo(), disk.salt());
    let len = g.buffers * g.slots_per_buffer * LINE as u64;
    disk.region.write(g.slot_hdr_off, &vec![0xe5; len as usize]);
    let word = SeqWord::encode(MAX_NUMBER - 1, committed_salt(salt, 0, 7));
    for (index, flip) in [(7, 0), (7, 1 << 3)] {
        let off = g.slot_hdr_off + index * LINE as u64 + COMMITTED_OFFSET;
        disk.region.store_u64(off, word ^ flip);
        let report = repair(&disk);
        assert_eq!(report.losses(), None, "{report}");
    }
    let fs = disk.mount();
    assert!(fs.lookup(ROOT, b"file 3").is_ok());
    fs.shutdown().unwrap();
}
