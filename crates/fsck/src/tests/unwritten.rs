//! Files with room that was never written, whose blocks a deleted file had.

use quayfs_background::checkpoint::zero_freed;
use quayfs_background::digest::digest_all;
use quayfs_fs::FallocMode;
use quayfs_layout::checksum::crc32c;
use quayfs_layout::config::FEATURE_ZERO_CRC;
use quayfs_layout::inode::{ROOT, S_IFREG};
use quayfs_layout::l2p::{BlockState, ZERO_CRC};
use quayfs_layout::{BLOCK, Ino, Lbn};

use super::support::{BY, Disk};
use crate::FsckOptions;
use crate::repair::upgrade::mark_zeros;
use crate::repair::{Outcome, RepairReport, repair_volume};

const BLOCKS: u64 = 40;
const BYTES: usize = BLOCKS as usize * BLOCK;

fn content(n: u64) -> Vec<u8> {
    let mut block = vec![0x5a; BLOCK];
    block[..8].copy_from_slice(&n.to_le_bytes());
    block
}

fn lbns(disk: &Disk, ino: Ino) -> Vec<Lbn> {
    let image = disk.inode(ino);
    let extents = (0..7).filter_map(|i| image.inline_extent(i));
    extents.flat_map(|e| e.lbn..e.lbn + e.len).collect()
}

fn physical(disk: &Disk, lbn: Lbn) -> Vec<u8> {
    let mut block = vec![0; BLOCK];
    disk.device.read(disk.block(lbn), &mut block).unwrap();
    block
}

/// A volume with a file that has room only, in blocks that still hold what a deleted file had.
fn with_room() -> (Disk, Ino, Vec<Lbn>) {
    let disk = Disk::new();
    let mode = S_IFREG | 0o644;
    let fs = disk.mount();
    let gone = fs.mknod(BY, ROOT, b"gone", mode, 0).unwrap().ino;
    for n in 0..BLOCKS {
        fs.write(gone, n * BLOCK as u64, &content(n), false)
            .unwrap();
    }
    fs.shutdown().unwrap();
    let had = lbns(&disk, gone);
    let fs = disk.mount();
    fs.unlink(ROOT, b"gone").unwrap();
    fs.forget(gone, 2);
    fs.shutdown().unwrap();
    let fs = disk.mount();
    let ino = fs.mknod(BY, ROOT, b"room", mode, 0).unwrap().ino;
    let ahead = FallocMode::Allocate { keep_size: false };
    fs.fallocate(ino, ahead, 0, BYTES as u64).unwrap();
    fs.shutdown().unwrap();
    let has = lbns(&disk, ino);
    assert_eq!(has, had, "the same numbers are used again");
    for lbn in &has {
        assert_eq!(disk.entry(*lbn).state, BlockState::Zero);

        assert!(physical(&disk, *lbn)[8..].iter().all(|b| *b == 0x5a));
    }
    (disk, ino, has)
}

/// As an earlier build leaves it: it knows nothing of the feature, and the checksums are what they were.
fn by_earlier_build(disk: &Disk, lbns: &[Lbn]) {
    let mut volume = disk.volume();
    let forget =
        |config: &mut quayfs_layout::config::ConfigTable| config.compat[0] &= !FEATURE_ZERO_CRC;
    volume.change_config(forget).unwrap();
    for lbn in lbns {
        let crc = crc32c(&physical(disk, *lbn));
        let off = disk.geo().l2p_crc_off + lbn * 4;
        disk.region.write(off, &crc.to_le_bytes());
    }
}

fn crc(disk: &Disk, lbn: Lbn) -> u32 {
    disk.region.load_u32(disk.geo().l2p_crc_off + lbn * 4)
}

fn repair(disk: &Disk) -> RepairReport {
    let options = FsckOptions { check_data: true };
    repair_volume(&mut disk.volume(), &options, &Default::default()).unwrap()
}

/// Overwrites so many entries from an LBN on.
fn overwrite(disk: &Disk, lbn: Lbn, count: u64, with: impl Fn(u64) -> u64) {
    for n in lbn..lbn + count {
        disk.region
            .store_u64(disk.geo().l2p_map_off + n * 8, with(n));
    }
}

/// Words that are no entries, nor one bit away from one.
fn garbage(n: u64) -> u64 {
    n.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 0xff << 40
}

/// The damage: one entry, two lines around a sound one, the beginning of the table.
fn damages() -> [fn(&Disk, Lbn); 3] {
    [
        |disk, first| overwrite(disk, first + 3, 1, garbage),
        |disk, first| {
            let first = first.next_multiple_of(8);
            overwrite(disk, first, 8, garbage);
            overwrite(disk, first + 16, 8, garbage);
        },
        |disk, first| overwrite(disk, 0, first + 70, |_| 0),
    ]
}

fn shows(disk: &Disk, ino: Ino) -> Vec<u8> {
    let fs = disk.mount();
    let read = fs.read(ino, 0, BYTES).unwrap();
    fs.shutdown().unwrap();
    read
}

#[test]
fn the_checksum_of_what_is_gone_goes_with_it() {
    let (disk, _, lbns) = with_room();
    for lbn in lbns {
        assert_eq!(crc(&disk, lbn), ZERO_CRC);
    }
    assert_eq!(crc32c(&[0; BLOCK]), ZERO_CRC);
}

#[test]
fn room_does_not_get_what_a_deleted_file_had() {
    for damage in damages() {
        let (disk, ino, lbns) = with_room();
        damage(&disk, lbns[0]);
        assert!(!disk.check().is_clean());
        let report = repair(&disk);
        assert_eq!(report.outcome, Outcome::Repaired, "{report}");
        assert_eq!(report.losses(), None, "{report}");
        assert!(shows(&disk, ino) == [0; BYTES], "{report}");
        assert!(disk.check().is_clean());
    }
}

/// Nothing says which of the two it is: so this is said.
#[test]
fn what_an_earlier_build_has_left_is_uncertain() {
    for (damage, changed) in damages().into_iter().zip([1, 16, BLOCKS]) {
        let (disk, ino, lbns) = with_room();
        by_earlier_build(&disk, &lbns);
        damage(&disk, lbns[0]);
        let report = repair(&disk);
        assert_eq!(report.outcome, Outcome::Left, "{report}");
        assert_eq!(report.uncertain_blocks, changed, "{report}");
        let of_file = report
            .done
            .iter()
            .filter(|d| d.path.as_deref() == Some("/room"));
        assert_eq!(of_file.count(), 1, "{report}");
        let blocks = shows(&disk, ino);
        let blocks = blocks
            .chunks_exact(BLOCK)
            .filter(|b| b.iter().any(|b| *b != 0));
        assert_eq!(blocks.count() as u64, changed, "no other one is touched");
    }
}

/// With this version's checksums nothing is uncertain.
#[test]
fn what_an_earlier_build_has_left_can_be_marked() {
    for damage in damages() {
        let (disk, ino, lbns) = with_room();
        by_earlier_build(&disk, &lbns);
        mark_zeros(&mut disk.volume()).unwrap();
        assert_ne!(disk.volume().config().compat[0] & FEATURE_ZERO_CRC, 0);
        assert!(disk.check().is_clean());
        damage(&disk, lbns[0]);
        let report = repair(&disk);
        assert_eq!(report.outcome, Outcome::Repaired, "{report}");
        assert!(shows(&disk, ino) == [0; BYTES], "{report}");
    }
}

/// Numbers that an earlier build has freed are not handed out with the checksum of what they held.
#[test]
fn what_an_earlier_build_has_freed_is_cleaned_before_it_is_used() {
    let (disk, ino, had) = with_room();
    let fs = disk.mount();
    fs.unlink(ROOT, b"room").unwrap();
    fs.forget(ino, 2);
    fs.shutdown().unwrap();
    by_earlier_build(&disk, &had);
    let fs = disk.mount();
    // Numbers are looked at when some are taken.
    let ino = fs.mknod(BY, ROOT, b"next", S_IFREG | 0o644, 0).unwrap().ino;
    let ahead = FallocMode::Allocate { keep_size: false };
    fs.fallocate(ino, ahead, 0, BLOCK as u64).unwrap();
    zero_freed(&fs.e).unwrap();
    fs.shutdown().unwrap();
    for lbn in had {
        assert_eq!(crc(&disk, lbn), ZERO_CRC, "LBN {lbn}");
    }
}

/// What is lost must not come back as zeros when its entry is damaged later.
#[test]
fn what_is_lost_does_not_become_zeros() {
    let (disk, ino, lbns) = with_room();
    let fs = disk.mount();
    fs.write(ino, 0, &content(1), false).unwrap();
    digest_all(&fs.e).unwrap();
    fs.abandon();
    let staged = disk.live()[0];
    assert_eq!((staged.lbn, crc(&disk, lbns[0])), (lbns[0], ZERO_CRC));
    disk.region.write(disk.payload(&staged), &[0x77; 64]);
    for _ in 0..2 {
        let report = repair(&disk);
        assert_eq!(report.lost_blocks, 1, "{report}");
        assert_ne!(crc(&disk, lbns[0]), ZERO_CRC);
        overwrite(&disk, lbns[0], 1, garbage);
    }
    assert_eq!(repair(&disk).lost_blocks, 1);
    let fs = disk.mount();
    assert!(fs.read(ino, 0, BLOCK).is_err());
    fs.shutdown().unwrap();
}

/// Any damage to the page table beside a file with content: what a file shows is right or an error, and the report says
/// which. Pieces, lines and single words, with garbage and zeros.
#[test]
fn no_damage_of_the_table_shows_what_is_gone() {
    for seed in 0..24u64 {
        let (disk, ino, lbns) = with_room();
        let mode = S_IFREG | 0o644;
        let fs = disk.mount();
        let other = fs.mknod(BY, ROOT, b"other", mode, 0).unwrap().ino;
        let own = |n| content(1000 + n);
        for n in 0..BLOCKS {
            fs.write(other, n * BLOCK as u64, &own(n), false).unwrap();
        }
        fs.shutdown().unwrap();
        let mut random = seed;
        let mut below = |end: u64| {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % end
        };
        for _ in 0..=below(6) {
            let (first, len) = (
                lbns[0] + below(3 * BLOCKS),
                [1, 8, 8, 70][below(4) as usize],
            );
            let zeros = below(4) == 0;
            overwrite(&disk, first, len, |n| if zeros { 0 } else { garbage(n) });
        }
        let report = repair(&disk);
        assert_eq!(report.uncertain_blocks, 0, "seed {seed}: {report}");
        let fs = disk.mount();
        let mut lost = 0;
        for n in 0..BLOCKS {
            let at = n * BLOCK as u64;
            let room = fs.read(ino, at, BLOCK).unwrap();
            assert!(room == [0; BLOCK], "seed {seed}, block {n}: {report}");
            match fs.read(other, at, BLOCK) {
                Ok(read) => assert!(read == own(n), "seed {seed}, block {n}: {report}"),
                Err(_) => lost += 1,
            }
        }
        assert_eq!(lost, report.lost_blocks, "seed {seed}: {report}");
        fs.shutdown().unwrap();
    }
}
