//! What damage costs: never more than in proportion to how much there is of it. Counted, not timed.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use quayfs_blockdev::BlockDevice;
use quayfs_fs::volume::{Access, Volume};
use quayfs_layout::BLOCK;
use quayfs_layout::config::{COPIES, ConfigTable, DataHeader};
use quayfs_layout::extent::{Extent, LEN_MAX};
use quayfs_layout::geometry::Geometry;
use quayfs_layout::inode::{ROOT, S_IFREG};
use quayfs_pmem::{MapOptions, Region};

use super::support::{BY, Disk};
use crate::repair::{Outcome, repair_volume};
use crate::{Area, FsckOptions, check_volume};

/// A device that counts the blocks that are read from it.
struct Counting {
    inner: Arc<dyn BlockDevice>,
    read: AtomicU64,
}

impl BlockDevice for Counting {
    fn blocks(&self) -> u64 {
        self.inner.blocks()
    }

    fn read(&self, block: u64, buf: &mut [u8]) -> io::Result<()> {
        let blocks = (buf.len() / BLOCK) as u64;
        self.read.fetch_add(blocks, Ordering::Relaxed);
        self.inner.read(block, buf)
    }

    fn write(&self, block: u64, buf: &[u8]) -> io::Result<()> {
        self.inner.write(block, buf)
    }

    fn flush(&self) -> io::Result<()> {
        self.inner.flush()
    }

    fn discard(&self, block: u64, count: u64) -> io::Result<()> {
        self.inner.discard(block, count)
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn silent_for(&self) -> Duration {
        self.inner.silent_for()
    }

    fn missing(&self) -> u64 {
        self.inner.missing()
    }
}

/// A volume with one file of so many blocks, all different, on the device.
fn one_file(blocks: u64) -> (Disk, u64) {
    let disk = Disk::new();
    let fs = disk.mount();
    let ino = fs.mknod(BY, ROOT, b"file", S_IFREG | 0o644, 0).unwrap().ino;
    for n in 0..blocks {
        let mut block = [7; BLOCK];
        block[..8].copy_from_slice(&(n + 1).to_le_bytes());
        fs.write(ino, n * BLOCK as u64, &block, false).unwrap();
    }
    fs.shutdown().unwrap();
    (disk, ino)
}

/// Forgets where the blocks of a file are.
fn lose_entries(disk: &Disk, ino: u64) -> u64 {
    let mut n = 0;
    let image = disk.inode(ino);
    for e in (0..7).filter_map(|i| image.inline_extent(i)) {
        for lbn in e.lbn..e.lbn + e.len {
            let at = disk.geo().l2p_map_off + lbn * 8;
            disk.region.store_u64(at, 0x5a5a_0000_1234_5678 ^ lbn << 20);
            n += 1;
        }
    }
    n
}

#[test]
fn lost_map_entries_cost_a_read_each() {
    const BLOCKS: u64 = 600;
    let (disk, ino) = one_file(BLOCKS);
    assert_eq!(lose_entries(&disk, ino), BLOCKS);
    let device = Arc::new(Counting {
        inner: Arc::clone(&disk.device),
        read: AtomicU64::new(0),
    });
    let mut volume = Volume::from_parts(
        Arc::clone(&disk.region),
        Arc::<Counting>::clone(&device),
        Access::ReadWrite,
    )
    .unwrap();
    let report = repair_volume(&mut volume, &FsckOptions::default(), &Default::default()).unwrap();
    assert_eq!(report.outcome, Outcome::Repaired, "{report}");
    // Each is counted, whether or not it is listed.
    assert_eq!(report.found, BLOCKS);
    let end = format!("{BLOCKS} findings, all repaired");
    assert!(report.to_string().ends_with(&end), "{report}");
    // Every lost block is looked for once, and no block is read for each of the others.
    let read = device.read.load(Ordering::Relaxed);
    assert!(read < 2 * BLOCKS, "{read} reads for {BLOCKS} blocks");
    disk.finds(&[]);
    let fs = disk.mount();
    for n in 0..BLOCKS {
        let got = fs.read(ino, n * BLOCK as u64, 8).unwrap();
        assert_eq!(got[..], (n + 1).to_le_bytes());
    }
    fs.shutdown().unwrap();
}

#[test]
fn entries_that_share_a_block_are_counted_and_cost_a_read_each() {
    const BLOCKS: u64 = 300;
    let (disk, ino) = one_file(BLOCKS);
    let first = disk.inode(ino).inline_extent(0).unwrap().lbn;
    let entry = disk.entry(first);
    for lbn in first + 1..first + BLOCKS {
        disk.set_entry(lbn, entry);
    }
    let report = check_volume(disk.volume(), &FsckOptions::default()).unwrap();
    assert!(report.findings.iter().all(|f| f.area == Area::PageTable));
    assert_eq!(report.count(), BLOCKS - 1, "{report}");
    disk.repaired();
    let fs = disk.mount();
    for n in 0..BLOCKS {
        let got = fs.read(ino, n * BLOCK as u64, 8).unwrap();
        assert_eq!(got[..], (n + 1).to_le_bytes());
    }
    fs.shutdown().unwrap();
}

#[test]
fn what_lies_behind_the_end_of_a_file_is_put_right() {
    for size in [4500, 4096, 100, 0] {
        let (disk, s) = Disk::sample();
        disk.edit_inode(s.small, |i| i.size = size);
        let report = disk.check();
        assert!(!report.is_clean(), "{size}: {report}");
        let behind = |f: &crate::Finding| f.what.contains("behind the end");
        assert!(report.findings.iter().all(behind), "{size}: {report}");
        disk.repaired();
        // The mount ends what the repair has found to be left; nothing of it ever shows again.
        let fs = disk.mount();
        assert_eq!(fs.e.intents.truncates(), 0);
        fs.truncate(s.small, 5000, Default::default()).unwrap();
        let all = fs.read(s.small, 0, 5000).unwrap();
        assert!(all[..size as usize].iter().all(|b| *b == 7), "{size}");
        assert!(all[size as usize..].iter().all(|b| *b == 0), "{size}");
        fs.shutdown().unwrap();
        disk.finds(&[]);
    }
}

#[test]
fn what_is_allocated_ahead_survives_a_repair() {
    let (disk, s) = Disk::sample();
    let before = disk.inode(s.big).blocks;
    disk.edit_inode(s.fifo, |i| i.blocks = 3);
    disk.repaired();
    let fs = disk.mount();
    fs.shutdown().unwrap();
    assert_eq!(disk.inode(s.big).blocks, before);
}

#[test]
fn extents_that_claim_everything_are_looked_at_once() {
    let (disk, s) = Disk::sample();
    let visible = disk.geo().visible_blocks();
    let all = |n: u64| Extent {
        file_block: n * LEN_MAX,
        lbn: 0,
        len: visible,
    };
    // 252 places, each with all blocks there are.
    disk.edit(disk.inode(s.big).root, |page| {
        for (n, place) in page[64..].chunks_exact_mut(16).enumerate() {
            place.copy_from_slice(&all(n as u64 + 1).encode());
        }
    });
    let report = disk.check();
    let doubled = "mapped more than once";
    assert!(report.findings.iter().any(|f| f.what.contains(doubled)));
    disk.repaired();
}

/// A configuration table that promises 32 GiB, and nothing else.
#[test]
fn a_region_is_as_large_as_what_is_in_it() {
    const PMEM: u64 = 32 << 30;
    const DATA: u64 = 64 << 20;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pmem");
    Region::create(&path, PMEM, true).unwrap();
    let region = Arc::new(Region::open(&path, MapOptions::default()).unwrap());
    let geometry = Geometry::compute(PMEM, DATA, 4).unwrap();
    let (disk, _) = Disk::sample();
    let config = ConfigTable {
        geometry,
        ..disk.config.clone()
    };
    for off in COPIES {
        region.write(off, &config.encode());
    }
    region.drain().unwrap();
    let device = quayfs_crashsim::SimDevice::unrecorded(DATA / BLOCK as u64);
    let header = DataHeader {
        data_uuid: config.data_uuid,
        uuid: config.uuid,
        blocks: geometry.data_blocks,
    };
    device.write(0, &header.encode()).unwrap();
    let copy = region.load().unwrap();
    let held: u64 = copy.held(0..PMEM).iter().map(|r| r.end - r.start).sum();
    assert!(held < 1 << 20, "{held} bytes of a copy of nothing");
    let volume =
        Volume::from_parts(Arc::clone(&region), Arc::new(device), Access::ReadWrite).unwrap();
    let report = check_volume(volume, &FsckOptions::default()).unwrap();
    // Every entry that is not there is one that is damaged, though few are listed.
    assert!(report.count() > geometry.nat_entries, "{report}");
    assert!(report.findings.len() < 2000);
}
