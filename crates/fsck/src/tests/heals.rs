//! What one flipped bit explains is healed, but not where much else is garbage; and what a repair loses is named.

use quayfs_fs::Fs;
use quayfs_layout::inode::{ROOT, S_IFREG};
use quayfs_layout::node::HEADER;
use quayfs_layout::{BLOCK, Ino, Lbn};

use super::support::{BY, Disk};
use crate::repair::{Outcome, RepairReport, repair_volume};
use crate::{Area, FsckOptions};

fn repair(disk: &Disk) -> RepairReport {
    let options = FsckOptions { check_data: true };
    repair_volume(&mut disk.volume(), &options, &Default::default()).unwrap()
}

fn file(fs: &Fs, dir: Ino, name: &str) -> Ino {
    let mode = S_IFREG | 0o644;
    fs.mknod(BY, dir, name.as_bytes(), mode, 0).unwrap().ino
}

/// Zeros with one bit set: one flip away from zeros.
fn near() -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    block[1234] = 8;
    block
}

/// A file whose first block is [`near`], followed by so many others.
fn with_others(fs: &Fs, others: u64) -> Ino {
    let ino = file(fs, ROOT, "file");
    fs.write(ino, 0, &near(), false).unwrap();
    for n in 1..=others {
        let mut block = [7; BLOCK];
        block[..8].copy_from_slice(&n.to_le_bytes());
        fs.write(ino, n * BLOCK as u64, &block, false).unwrap();
    }
    ino
}

fn lbns(disk: &Disk, ino: Ino) -> Vec<Lbn> {
    let image = disk.inode(ino);
    let extents = (0..7).filter_map(|i| image.inline_extent(i));
    extents.flat_map(|e| e.lbn..e.lbn + e.len).collect()
}

fn is_noted(report: &RepairReport) -> bool {
    let notes = report.notes.iter().filter(|n| n.contains("by chance"));
    let told = report.to_string().matches("not repaired: ").count();
    notes.count() == 1 && told == 1
}

/// A device that lost its end and got it back as zeros.
#[test]
fn blocks_among_garbage_are_not_healed() {
    for (others, heals) in [(20, true), (128, true), (129, false)] {
        let disk = Disk::new();
        let fs = disk.mount();
        let ino = with_others(&fs, others);
        fs.shutdown().unwrap();
        for lbn in lbns(&disk, ino) {
            disk.device.write(disk.block(lbn), &[0; BLOCK]).unwrap();
        }
        let report = repair(&disk);
        assert_eq!(report.outcome, Outcome::Left, "{report}");
        assert_eq!(is_noted(&report), !heals, "{report}");
        let left = others + u64::from(!heals);
        assert_eq!(report.check.lost_findings, left, "{report}");
        let fs = disk.mount();
        let read = fs.read(ino, 0, BLOCK);
        assert_eq!(read.is_ok(), heals, "{others}");
        assert!(read.is_err() || read.unwrap() == near());
        fs.shutdown().unwrap();
        // The same again, and nothing is done.
        let again = repair(&disk);
        assert!(again.done.is_empty(), "{again}");
    }
}

#[test]
fn staged_blocks_among_garbage_are_not_healed() {
    for (others, heals) in [(20, true), (140, false)] {
        let disk = Disk::new();
        let fs = disk.mount();
        let ino = with_others(&fs, others);
        fs.abandon();
        let live = disk.live();
        assert_eq!(live.len() as u64, others + 1);
        for slot in &live {
            disk.region.write(disk.payload(slot), &[0; BLOCK]);
        }
        let report = repair(&disk);
        assert_eq!(is_noted(&report), !heals, "{report}");
        let fs = disk.mount();
        let read = fs.read(ino, 0, BLOCK);
        assert_eq!(read.is_ok(), heals, "{others}");
        assert!(read.is_err() || read.unwrap() == near());
        fs.shutdown().unwrap();
    }
}

/// Pages that are damaged behind a sound header.
#[test]
fn node_pages_among_garbage_are_not_healed() {
    for (others, heals) in [(20, true), (129, false)] {
        let disk = Disk::new();
        let fs = disk.mount();
        for n in 0..15 * (others + 2) {
            fs.forget(file(&fs, ROOT, &n.to_string()), 1);
        }
        fs.shutdown().unwrap();
        let first = disk.geo().inode_base as u32;
        for id in first + 1..first + 1 + others {
            let at = disk.geo().node_page(disk.home(id).unwrap()) + HEADER as u64;
            disk.region.write(at + 8, &[0xe5; 12]);
        }
        let last = first + 1 + others;
        let before = disk.page(last);
        let at = disk.geo().node_page(disk.home(last).unwrap()) + HEADER as u64;
        disk.region.write(at, &[before[HEADER] ^ 1]);
        let report = repair(&disk);
        assert_eq!(is_noted(&report), !heals, "{report}");
        let lost = 15 * u64::from(others + u32::from(!heals));
        assert_eq!(report.lost_inodes, lost, "{report}");
        assert_eq!(heals, disk.home(last).is_some(), "{report}");
    }
}

/// Two blocks that differ have the same checksum: which is which cannot be told.
#[test]
fn blocks_with_the_same_checksum_are_not_mistaken() {
    let disk = Disk::new();
    let fs = disk.mount();
    let ino = with_others(&fs, 3);
    let mut same = near();
    // A multiple of the polynomial of the checksum changes nothing.
    let polynomial = 1 | 0x82f6_3b78_u64 << 1;
    same[..8].copy_from_slice(&polynomial.to_le_bytes());
    fs.write(ino, 2 * BLOCK as u64, &same, false).unwrap();
    fs.shutdown().unwrap();
    let all = lbns(&disk, ino);
    assert_eq!(disk.crc(all[0]), disk.crc(all[2]));
    for lbn in &all {
        let at = disk.geo().l2p_map_off + lbn * 8;
        disk.region.store_u64(at, 0x5a5a_0000_1234_5678 ^ lbn << 20);
    }
    repair(&disk);
    let fs = disk.mount();
    for n in 0..4 {
        let read = fs.read(ino, n * BLOCK as u64, BLOCK);
        assert_eq!(read.is_ok(), n % 2 == 1, "{n}");
    }
    fs.shutdown().unwrap();
}

/// Of many lost blocks some fit some other one by chance.
#[test]
fn blocks_among_garbage_are_not_recognized() {
    for (others, fits) in [(1000, true), (2100, false)] {
        let disk = Disk::new();
        let fs = disk.mount();
        let ino = with_others(&fs, others);
        fs.shutdown().unwrap();
        for (lbn, n) in lbns(&disk, ino).into_iter().zip(0..) {
            if n > 0 {
                disk.device.write(disk.block(lbn), &[0xee; BLOCK]).unwrap();
            }
            let at = disk.geo().l2p_map_off + lbn * 8;
            disk.region.store_u64(at, 0x5a5a_0000_1234_5678 ^ lbn << 20);
        }
        let report = repair(&disk);
        assert_eq!(is_noted(&report), !fits, "{report}");
        let fs = disk.mount();
        assert_eq!(fs.read(ino, 0, BLOCK).is_ok(), fits);
        fs.shutdown().unwrap();
    }
}

/// Directories and what was in them share a page of the inode table.
#[test]
fn what_is_lost_with_its_directory_is_named() {
    let disk = Disk::new();
    let fs = disk.mount();
    let a = fs.mkdir(BY, ROOT, b"a", 0o755).unwrap().ino;
    let b = fs.mkdir(BY, a, b"b", 0o755).unwrap().ino;
    file(&fs, b, "victim");
    // Those in another page are kept.
    let more: Vec<Ino> = (0..20).map(|n| file(&fs, b, &format!("f{n}"))).collect();
    fs.shutdown().unwrap();
    let id = disk.geo().inode_base as u32;
    let at = disk.geo().node_page(disk.home(id).unwrap()) + HEADER as u64;
    disk.region.write(at + 300, &[0xe5; 12]);
    let report = repair(&disk);
    let paths: Vec<&str> = report
        .done
        .iter()
        .filter_map(|d| d.path.as_deref())
        .collect();
    for path in ["/a/b", "/a/b/victim", "/a/b/f0", "/a/b/f19"] {
        assert!(paths.contains(&path), "{path}: {report}");
    }
    let kept = more.iter().filter(|ino| **ino >= 15).count() as u64;
    assert_eq!((report.lost_inodes, report.rescued), (15, kept));
    let end =
        format!("repaired with losses: up to 15 inodes are lost, {kept} files are in /lost+found");
    assert!(report.to_string().contains(&end), "{report}");
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(
        (&json["lost_inodes"], &json["rescued"]),
        (&15.into(), &kept.into())
    );
}

/// An entry of the page table says where the older version was: the newest one is staged.
#[test]
fn what_is_staged_is_not_lost_with_its_entry() {
    let disk = Disk::new();
    let fs = disk.mount();
    let ino = with_others(&fs, 1);
    fs.abandon();
    let live = disk.live();
    for slot in &live {
        let at = disk.geo().l2p_map_off + slot.lbn * 8;
        disk.region.store_u64(at, 0x5a5a_0000_1234_5678);
    }
    let report = disk.check();
    assert_eq!((report.count(), report.lost_findings), (2, 0), "{report}");
    assert!(report.files.is_empty(), "{report}");
    // Unless that is damaged as well.
    disk.region.write(disk.payload(&live[0]), &[0xee; BLOCK]);
    let report = disk.check();
    assert_eq!((report.count(), report.lost_findings), (3, 1), "{report}");
    assert_eq!((report.files[0].inode, report.files[0].blocks), (ino, 1));
}

/// However many entries of the page table are damaged, the file and all its blocks are named; the text is short.
#[test]
fn blocks_without_a_place_are_counted() {
    let disk = Disk::new();
    let fs = disk.mount();
    let ino = with_others(&fs, 199);
    fs.shutdown().unwrap();
    let all = lbns(&disk, ino);
    // The first one is not damaged: another one says that it has its block.
    for lbn in &all[2..] {
        let at = disk.geo().l2p_map_off + lbn * 8;
        disk.region.store_u64(at, 0x5a5a_0000_1234_5678 ^ lbn << 20);
    }
    disk.set_entry(all[1], disk.entry(all[0]));
    let options = FsckOptions::default();
    let report = crate::check_volume(disk.volume(), &options).unwrap();
    assert_eq!((report.count(), report.lost_findings), (199, 0), "{report}");
    assert!(report.findings.iter().all(|f| f.area == Area::PageTable));
    assert_eq!((report.files[0].inode, report.files[0].blocks), (ino, 198));
    let text = report.to_string();
    assert_eq!(text.matches("error: page-table: ").count(), 10, "{text}");
    assert!(
        text.contains("and 189 more\n/file: 198 blocks damaged\n"),
        "{text}"
    );
    // The content says which of the two is wrong.
    let report = disk.check();
    assert_eq!(report.lost_findings, 1, "{report}");
    assert_eq!(report.files[0].blocks, 199, "{report}");
}
