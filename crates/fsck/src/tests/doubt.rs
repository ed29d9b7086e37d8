//! Entries that pass their check by chance, where all around them is garbage.

use quayfs_fs::FallocMode;
use quayfs_layout::inode::{ROOT, S_IFREG};
use quayfs_layout::l2p::{BlockState, Entry};
use quayfs_layout::node::{nat_absent, nat_encode};
use quayfs_layout::{BLOCK, Ino, Lbn};

use super::support::{BY, Disk};
use crate::FsckOptions;
use crate::repair::{RepairReport, repair_volume};

const BLOCKS: u64 = 40;

fn content(n: u64) -> Vec<u8> {
    let mut block = vec![7; BLOCK];
    block[..8].copy_from_slice(&n.to_le_bytes());
    block
}

/// A volume with a file whose blocks all differ, and its LBNs.
fn with_file() -> (Disk, Ino, Vec<Lbn>) {
    let disk = Disk::new();
    let fs = disk.mount();
    let ino = fs.mknod(BY, ROOT, b"file", S_IFREG | 0o644, 0).unwrap().ino;
    for n in 0..BLOCKS {
        fs.write(ino, n * BLOCK as u64, &content(n), false).unwrap();
    }
    fs.shutdown().unwrap();
    let lbns = lbns(&disk, ino);
    assert_eq!(lbns.len() as u64, BLOCKS);
    (disk, ino, lbns)
}

fn lbns(disk: &Disk, ino: Ino) -> Vec<Lbn> {
    let image = disk.inode(ino);
    let extents = (0..7).filter_map(|i| image.inline_extent(i));
    extents.flat_map(|e| e.lbn..e.lbn + e.len).collect()
}

fn word_at(disk: &Disk, lbn: Lbn) -> u64 {
    disk.geo().l2p_map_off + lbn * 8
}

fn repair(disk: &Disk) -> RepairReport {
    let options = FsckOptions { check_data: true };
    repair_volume(&mut disk.volume(), &options, &Default::default()).unwrap()
}

/// Zeros the entries of the first LBNs, and one of them is this word.
fn zero_entries(disk: &Disk, count: u64, (lbn, word): (Lbn, u64)) {
    let zeros = vec![0; count as usize * 8];
    disk.region.write(word_at(disk, 0), &zeros);
    disk.region.store_u64(word_at(disk, lbn), word);
}

#[track_caller]
fn loses_nothing(disk: &Disk, ino: Ino) {
    let report = repair(disk);
    assert_eq!(report.losses(), None, "{report}");
    let fs = disk.mount();
    for n in 0..BLOCKS {
        let read = fs.read(ino, n * BLOCK as u64, BLOCK).unwrap();
        assert!(read == content(n), "block {n}: {report}");
    }
    fs.shutdown().unwrap();
    assert!(disk.check().is_clean());
}

#[test]
fn zeros_do_not_take_the_first_physical_block() {
    // Of one LBN in 65536 zeros are an entry.
    let (disk, ino, lucky) = loop {
        let disk = Disk::new();
        let lucky = (100..disk.geo().visible_blocks())
            .find(|l| Entry::decode(0, *l, disk.salt()).is_some());
        let Some(lucky) = lucky else {
            continue;
        };
        let fs = disk.mount();
        let ino = fs.mknod(BY, ROOT, b"file", S_IFREG | 0o644, 0).unwrap().ino;
        for n in 0..BLOCKS {
            fs.write(ino, n * BLOCK as u64, &content(n), false).unwrap();
        }
        fs.shutdown().unwrap();
        break (disk, ino, lucky);
    };
    let all = lbns(&disk, ino);
    let first = all.iter().find(|l| disk.entry(**l).pbn == 0);
    assert!(first.is_some(), "{all:?}");
    zero_entries(&disk, lucky + 20, (lucky, 0));
    loses_nothing(&disk, ino);
}

#[test]
fn an_entry_among_garbage_does_not_take_the_block_of_a_file() {
    for state in [BlockState::Zero, BlockState::Written] {
        let (disk, ino, lbns) = with_file();
        let pbn = disk.entry(lbns[5]).pbn;
        let lucky = 600;
        let word = Entry { pbn, state }.encode(lucky, disk.salt());
        zero_entries(&disk, 1000, (lucky, word));
        loses_nothing(&disk, ino);
    }
}

/// Else the block would read as zeros, and nothing would say so.
#[test]
fn the_entry_of_a_file_among_garbage_is_not_believed() {
    for (state, flip) in [
        (BlockState::Zero, 0),
        (BlockState::Zero, 1 << 50),
        (BlockState::Written, 0),
        (BlockState::Written, 1 << 3),
    ] {
        let (disk, ino, lbns) = with_file();
        let entry = Entry { pbn: 5000, state };
        let word = entry.encode(lbns[9], disk.salt()) ^ flip;
        zero_entries(&disk, 1000, (lbns[9], word));
        loses_nothing(&disk, ino);
    }
}

/// Where nothing can be found, it reads as an error rather than as zeros.
#[test]
fn what_nothing_vouches_for_is_an_error() {
    let (disk, ino, lbns) = with_file();
    let lost = disk.entry(lbns[9]);
    disk.device
        .write(disk.block(lbns[9]), &vec![0x5a; BLOCK])
        .unwrap();
    let zero = Entry {
        pbn: 5000,
        state: BlockState::Zero,
    };
    assert_ne!(lost.pbn, zero.pbn);
    zero_entries(&disk, 1000, (lbns[9], zero.encode(lbns[9], disk.salt())));
    let report = repair(&disk);
    assert_eq!(report.lost_blocks, 1, "{report}");
    let fs = disk.mount();
    assert!(fs.read(ino, 9 * BLOCK as u64, BLOCK).is_err());
    assert!(fs.read(ino, 8 * BLOCK as u64, BLOCK).unwrap() == content(8));
    fs.shutdown().unwrap();
}

/// Of two that claim one block a file has the better claim.
#[test]
fn an_lbn_of_no_file_gives_way_to_one_of_a_file() {
    let disk = Disk::new();
    let fs = disk.mount();
    let mode = S_IFREG | 0o644;
    let gone = fs.mknod(BY, ROOT, b"gone", mode, 0).unwrap().ino;
    fs.write(gone, 0, &content(1), false).unwrap();
    let ino = fs.mknod(BY, ROOT, b"file", mode, 0).unwrap().ino;
    let ahead = FallocMode::Allocate { keep_size: false };
    fs.fallocate(ino, ahead, 0, BLOCK as u64).unwrap();
    fs.shutdown().unwrap();
    let (earlier, lbn) = (lbns(&disk, gone)[0], lbns(&disk, ino)[0]);
    assert!(earlier < lbn);
    let fs = disk.mount();
    fs.unlink(ROOT, b"gone").unwrap();
    fs.forget(gone, 2);
    fs.shutdown().unwrap();
    let Entry { pbn, state } = disk.entry(lbn);
    assert_eq!(state, BlockState::Zero);
    disk.set_entry(earlier, Entry { pbn, state });
    let report = repair(&disk);
    assert_eq!(report.losses(), None, "{report}");
    assert_eq!(disk.entry(lbn), Entry { pbn, state });
    let fs = disk.mount();
    assert_eq!(fs.read(ino, 0, BLOCK).unwrap(), [0; BLOCK]);
    fs.shutdown().unwrap();
}

/// That a node does not exist, or has another page, is not believed among garbage either.
#[test]
fn the_entry_of_a_node_among_garbage_is_not_believed() {
    for nth in 0..4 {
        let (disk, ino, _) = with_file();
        let (node, _) = disk.geo().inode_place(ino);
        let (salt, unused) = (disk.salt(), disk.geo().node_pages - 1);
        let word = match nth {
            0 => nat_absent(node, salt),
            1 => nat_absent(node, salt) ^ 2,
            2 => nat_encode(node, unused, salt),
            _ => nat_encode(node, unused, salt) ^ 1 << 40,
        };
        for id in node.saturating_sub(20)..node + 20 {
            disk.nat(id, 0);
        }
        disk.nat(node, word);
        loses_nothing(&disk, ino);
    }
}
