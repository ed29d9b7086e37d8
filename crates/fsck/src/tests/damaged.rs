//! Which files have lost something.

use quayfs_layout::extent::INLINE;
use quayfs_layout::inode::S_IFREG;
use quayfs_layout::{BLOCK, Lbn};

use super::support::{BY, Disk};
use crate::{FsckOptions, KEPT, check_volume};

/// However many blocks, each file is named, and its blocks are counted.
#[test]
fn files_that_have_lost_blocks_are_named() {
    let (disk, s) = Disk::sample();
    let fs = disk.mount();
    let make = |dir, name: &[u8]| fs.mknod(BY, dir, name, S_IFREG | 0o644, 0).unwrap().ino;
    let deep = make(s.sub, b"de\np");
    let many = KEPT as u64 + 100;
    fs.write(deep, 0, &vec![7; many as usize * BLOCK], false)
        .unwrap();
    fs.shutdown().unwrap();
    let mut lost = Vec::new();
    for (ino, n) in [(s.small, 1), (deep, many)] {
        let inode = disk.inode(ino);
        let extents = (0..INLINE).filter_map(|i| inode.inline_extent(i));
        let lbns: Vec<Lbn> = extents.flat_map(|e| e.lbn..e.lbn + e.len).collect();
        lbns.iter().take(n as usize).for_each(|lbn| {
            disk.device.write(disk.block(*lbn), &[0xee; BLOCK]).unwrap();
        });
        lost.push((ino, n));
    }
    let report = check_volume(disk.volume(), &FsckOptions { check_data: true }).unwrap();
    let found: Vec<_> = report.files.iter().map(|f| (f.inode, f.blocks)).collect();
    assert_eq!(found, lost, "{report}");
    assert_eq!((report.count(), report.findings.len()), (many + 1, KEPT));
    let text = report.to_string();
    for line in [
        "/small: 1 block damaged",
        r"/dir/sub/de\np: 356 blocks damaged",
    ] {
        assert!(text.lines().any(|l| l == line), "{line}: {text}");
    }
}
