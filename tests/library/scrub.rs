//! Scrubbing: whatever rots at rest is found and named, and nothing else is.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use quayfs_background::{checkpoint, digest};
use quayfs_blockdev::BlockDevice;
use quayfs_crashsim::{Fault, FaultDevice, FaultOp, Repeat, SimDevice};
use quayfs_fs::scrub::{Area, Finding, Options, Pass, Report, State};
use quayfs_fs::{Caller, FallocMode, Fs, RenameFlags, SetAttr, SetXattr, extents};
use quayfs_layout::inode::{ROOT, S_IFREG};
use quayfs_layout::{BLOCK, Ino};
use quayfs_oracle::rng::{Rng, bytes};
use quayfs_oracle::{MODES, Media, Shape, options};
use quayfs_pmem::{Backend, Region};
use quayfs_store::error::FsError;

const ME: Caller = Caller {
    uid: 0,
    gid: 0,
    umask: 0,
};
const B: u64 = BLOCK as u64;

fn scrub(fs: &Fs) -> Report {
    let pass = Pass::new(Options::default());
    pass.run(&fs.e);
    let report = pass.report(0, usize::MAX);
    assert_eq!(report.status.state, State::Finished);
    report
}

fn file(fs: &Fs, dir: Ino, name: &str, content: &[u8]) -> Ino {
    let new = fs.mknod(ME, dir, name.as_bytes(), S_IFREG | 0o644, 0);
    let ino = new.expect("mknod").ino;
    fs.write(ino, 0, content, false).expect("write");
    ino
}

fn digest(fs: &Fs) {
    fs.sync_all().expect("sync");
    digest::digest_all(&fs.e).expect("digest");
}

fn checkpoint_all(fs: &Fs) {
    digest(fs);
    while checkpoint::round(&fs.e).expect("round").slots > 0 {}
}

/// Files on the device and in staging: path, inode, size.
fn volume(fs: &Fs) -> Vec<(String, Ino, u64)> {
    let dir = fs.mkdir(ME, ROOT, b"dir", 0o755).expect("mkdir").ino;
    let mut files = Vec::new();
    for i in 0..8u64 {
        let size = 1 + 3000 * i;
        let (parent, path) = match i % 2 {
            0 => (ROOT, format!("/f{i}")),
            _ => (dir, format!("/dir/f{i}")),
        };
        let ino = file(fs, parent, &format!("f{i}"), &bytes(i, size as usize));
        files.push((path, ino, size));
        if i == 4 {
            checkpoint_all(fs);
        }
    }
    digest(fs);
    files
}

/// Flips a bit of the newest version of a block, wherever it lies; the same again puts it back.
fn flip(fs: &Fs, media: &Media, lbn: u64, bit: u64) -> Area {
    let (at, mask) = ((bit / 8) as usize, 1 << (bit % 8));
    let g = fs.e.config.geometry;
    if let Some(slot) = fs.e.staged.get(lbn) {
        let index = u64::from(slot.buffer) * g.slots_per_buffer + slot.pos % g.slots_per_buffer;
        let off = g.slot_data_off + index * B + at as u64;
        let byte = media.region.read_vec(off, 1)[0] ^ mask;
        media.region.write(off, &[byte]);
        return Area::Staged;
    }
    // Reads are to come from the device, also those of blocks that were written in part.
    fs.e.partials.forget(lbn);
    let pbn = g.data_start + fs.e.ppt.lookup(lbn).expect("lookup").pbn;
    let mut block = vec![0; BLOCK];
    media.device.read(pbn, &mut block).expect("read");
    block[at] ^= mask;
    media.device.write(pbn, &block).expect("write");
    Area::Data
}

/// File blocks and their LBNs.
fn blocks(fs: &Fs, ino: Ino) -> Vec<(u64, u64)> {
    let handle = fs.e.inodes.get(&fs.e.nodes, ino).expect("handle");
    extents::ensure(&fs.e, &handle).expect("extents");
    let all = |x: &quayfs_store::ns::extent::ExtentMap| {
        let each = |(r, lbn): (std::ops::Range<u64>, u64)| {
            let first = r.start;
            r.map(move |b| (b, lbn + (b - first)))
        };
        x.iter().flat_map(each).collect()
    };
    extents::with(&handle, all).expect("extents")
}

#[test]
fn every_flipped_bit_is_found_and_named() {
    let mut rng = Rng::new(7);
    for mode in MODES {
        let media = Media::new(&Shape::TINY, mode.1);
        let fs = media.mount_quiet(&options(mode.0));
        let files = volume(&fs);
        let mut seen = BTreeMap::new();
        for (path, ino, size) in &files {
            for (block, lbn) in blocks(&fs, *ino) {
                let bit = rng.below(B * 8);
                let area = flip(&fs, &media, lbn, bit);
                *seen.entry(format!("{area:?}")).or_insert(0) += 1;
                let read = fs.read(*ino, block * B, BLOCK);
                assert!(matches!(read, Err(ref e) if e.is_io()), "{mode:?}: {path}");
                let report = scrub(&fs);
                let expected = Finding {
                    area,
                    inode: Some(*ino),
                    paths: vec![path.clone()],
                    bytes: Some(block * B..(block * B + B).min(*size)),
                    count: 1,
                    what: report
                        .list
                        .first()
                        .map_or(String::new(), |f| f.what.clone()),
                };
                assert_eq!(report.list, [expected], "{mode:?}");
                assert_eq!(report.status.findings, 1);
                flip(&fs, &media, lbn, bit);
            }
        }
        assert_eq!(scrub(&fs).list, [], "{mode:?}");
        assert!(seen["Data"] > 8, "{mode:?}: {seen:?}");
        let staged = seen.get("Staged").copied().unwrap_or(0);
        assert!(staged > 8 || mode.0.contains("data="), "{mode:?}: {seen:?}");
    }
}

#[test]
fn neighbours_are_one_finding_and_all_names_are_told() {
    let media = Media::new(&Shape::SMALL, Backend::Volatile);
    let fs = media.mount_quiet(&options("noatime"));
    let ino = file(&fs, ROOT, "big", &bytes(1, 20 * BLOCK));
    fs.link(ino, ROOT, b"alias").expect("link");
    let gone = file(&fs, ROOT, "gone", &bytes(2, 100));
    fs.lookup(ROOT, b"gone").expect("it has just been made");
    fs.unlink(ROOT, b"gone").expect("unlink");
    checkpoint_all(&fs);
    for (block, lbn) in blocks(&fs, ino) {
        if (3..7).contains(&block) || block == 12 {
            flip(&fs, &media, lbn, 5);
        }
    }
    flip(&fs, &media, blocks(&fs, gone)[0].1, 5);
    let mut report = scrub(&fs);
    report
        .list
        .sort_by_key(|f| (f.inode, f.bytes.clone().map(|r| r.start)));
    let shown: Vec<_> = report
        .list
        .iter_mut()
        .map(|f| {
            f.paths.sort();
            (f.inode, f.paths.join(" "), f.bytes.clone(), f.count)
        })
        .collect();
    let names = "/alias /big".to_string();
    assert_eq!(
        shown,
        [
            (Some(ino), names.clone(), Some(3 * B..7 * B), 4),
            (Some(ino), names, Some(12 * B..13 * B), 1),
            (Some(gone), String::new(), Some(0..100), 1),
        ]
    );
    assert_eq!(report.status.findings, 6);
    assert!(report.list[2].to_string().contains("no name"));
}

#[test]
fn a_device_that_cannot_be_read_is_reported_block_by_block() {
    let geometry = Shape::TINY.geometry();
    let zeros = vec![0; geometry.pmem_len as usize];
    let region = Arc::new(Region::from_image(zeros, None, Backend::Volatile));
    let device = Arc::new(FaultDevice::new(Arc::new(SimDevice::unrecorded(
        geometry.data_blocks,
    ))));
    let media = Media::format(region, device.clone() as Arc<dyn BlockDevice>, geometry);
    let fs = media.mount_quiet(&options("noatime"));
    let ino = file(&fs, ROOT, "f", &bytes(1, 5 * BLOCK));
    checkpoint_all(&fs);
    device.fail(FaultOp::Read, 1, Fault::Errno(5), Repeat::Forever);
    let report = scrub(&fs);
    assert_eq!(report.status.findings, 5);
    assert_eq!(report.list.len(), 1);
    assert_eq!(report.list[0].bytes, Some(0..5 * B));
    // Once only, somewhere in the middle: read again, it is well.
    device.heal();
    device.fail(FaultOp::Read, 1, Fault::Errno(5), Repeat::Once);
    assert_eq!(scrub(&fs).list, []);
    assert!(!fs.e.is_read_only(), "a scrub has no consequences");
    assert!(fs.read(ino, 0, BLOCK).is_ok());
}

/// Flips a byte in the home of each node in turn.
#[test]
fn damaged_pages_are_found_and_named() {
    let media = Media::new(&Shape::TINY, Backend::Volatile);
    let fs = media.mount_quiet(&options("noatime"));
    let dir = fs.mkdir(ME, ROOT, b"dir", 0o755).expect("mkdir").ino;
    // More extents than fit the inode: an extent page.
    let holes = file(&fs, dir, "holes", b"x");
    for i in 1..12 {
        fs.write(holes, 2 * i * B, b"x", false).expect("write");
    }
    let attrs = file(&fs, dir, "attrs", b"x");
    fs.setxattr(attrs, b"user.x", &bytes(1, 6000), SetXattr::Any)
        .expect("setxattr");
    let long = vec![b'l'; 1000];
    let link = fs.symlink(ME, ROOT, b"link", &long).expect("symlink").ino;
    checkpoint_all(&fs);
    let all = [
        (dir, "/dir"),
        (holes, "/dir/holes"),
        (attrs, "/dir/attrs"),
        (link, "/link"),
        (ROOT, "/"),
    ];
    let mut named = BTreeMap::new();
    let g = fs.e.config.geometry;
    for id in 1..g.nat_entries as u32 {
        let Some(page) = fs.e.nodes.home_of(id).expect("home") else {
            continue;
        };
        let off = g.node_page(page) + 100;
        let byte = media.region.read_vec(off, 1)[0];
        media.region.write(off, &[byte ^ 1]);
        let report = scrub(&fs);
        let what = format!("node {id}: {report:?}");
        assert_eq!(report.list.len(), 1, "{what}");
        let f = &report.list[0];
        assert_eq!((f.area, f.count), (Area::Metadata, 1), "{what}");
        assert!(f.what.contains(&format!("node {id} ")), "{what}");
        if u64::from(id) >= g.dyn_base {
            let ino = f.inode.expect("an owner");
            let name = all.iter().find(|(i, _)| *i == ino).expect("ours").1;
            // Names are looked up in cached directories, so also a damaged one has them.
            assert_eq!(f.paths, [name], "{what}");
            *named.entry(name).or_insert(0) += 1;
        } else if u64::from(id) >= g.inode_base {
            assert!(
                all.iter()
                    .all(|(_, name)| f.paths.contains(&name.to_string())),
                "{what}"
            );
        }
        media.region.write(off, &[byte]);
    }
    let want = [
        ("/", 1),
        ("/dir", 1),
        ("/dir/attrs", 2),
        ("/dir/holes", 1),
        ("/link", 1),
    ];
    assert_eq!(named, BTreeMap::from(want));
    // An entry of the address table.
    let off = g.nat_entry(g.inode_base as u32);
    let word = media.region.load_u64(off);
    media.region.store_u64(off, word ^ 1 << 20);
    let report = scrub(&fs);
    assert_eq!(report.list.len(), 1, "{report:?}");
    media.region.store_u64(off, word);
    assert_eq!(scrub(&fs).list, []);
}

#[test]
fn damaged_entries_of_the_page_table_are_found() {
    let media = Media::new(&Shape::TINY, Backend::Volatile);
    let fs = media.mount_quiet(&options("noatime"));
    let ino = file(&fs, ROOT, "f", &bytes(1, 3 * BLOCK));
    checkpoint_all(&fs);
    let g = fs.e.config.geometry;
    let mine = blocks(&fs, ino)[1].1;
    for lbn in [mine, g.blocks - 1] {
        let off = g.l2p_map_off + 8 * lbn;
        let word = media.region.load_u64(off);
        media.region.store_u64(off, word ^ 1 << 17);
        let report = scrub(&fs);
        assert_eq!(report.list.len(), 1, "{report:?}");
        let f = &report.list[0];
        assert_eq!(f.area, Area::PageTable);
        assert_eq!(f.paths.len(), usize::from(lbn == mine));
        assert_eq!(f.bytes, (lbn == mine).then_some(B..2 * B));
        media.region.store_u64(off, word);
    }
}

/// What a power failure left of a direct write in a block that is free now is no damage to any file.
#[test]
fn free_blocks_may_hold_anything() {
    let media = Media::new(&Shape::TINY, Backend::Volatile);
    let fs = media.mount_quiet(&options("noatime"));
    let ino = file(&fs, ROOT, "f", &bytes(1, 3 * BLOCK));
    checkpoint_all(&fs);
    for (_, lbn) in blocks(&fs, ino) {
        flip(&fs, &media, lbn, 9);
    }
    assert_eq!(scrub(&fs).status.findings, 3);
    fs.unlink(ROOT, b"f").expect("unlink");
    fs.forget(ino, 1);
    digest(&fs);
    assert!(fs.e.lbns.pending() > 0, "not zeroed yet");
    assert_eq!(scrub(&fs).list, []);
}

/// What was damaged when it was read and is gone when it is looked at again is not a finding.
#[test]
fn what_changes_meanwhile_is_looked_at_again() {
    let geometry = Shape::TINY.geometry();
    let zeros = vec![0; geometry.pmem_len as usize];
    let region = Arc::new(Region::from_image(zeros, None, Backend::Volatile));
    let inner = Arc::new(SimDevice::unrecorded(geometry.data_blocks));
    let device = Arc::new(FaultDevice::new(inner));
    let media = Media::format(region, device.clone() as Arc<dyn BlockDevice>, geometry);
    let fs = media.mount_quiet(&options("noatime"));
    let names = ["kept", "written", "cut", "deleted", "last"];
    let inos = names.map(|n| file(&fs, ROOT, n, &bytes(1, 40 * BLOCK)));
    checkpoint_all(&fs);
    for ino in &inos[..4] {
        flip(&fs, &media, blocks(&fs, *ino)[0].1, 9);
    }
    assert_eq!(scrub(&fs).status.findings, 4);
    // The first 128 blocks with three of the damaged ones are read at once, then one by one; the
    // request held up is that for the rest.
    let stall = device.stall(FaultOp::Read, 2 + 128);
    let pass = Pass::new(Options::default());
    std::thread::scope(|s| {
        s.spawn(|| pass.run(&fs.e));
        stall.reached();
        fs.write(inos[1], 0, &bytes(2, BLOCK), false)
            .expect("write");
        let set = SetAttr {
            size: Some(0),
            ..SetAttr::default()
        };
        fs.setattr(inos[2], &set, false).expect("truncate");
        fs.unlink(ROOT, b"deleted").expect("unlink");
        fs.forget(inos[3], 1);
        stall.release();
    });
    let list = pass.report(0, usize::MAX).list;
    let found: Vec<_> = list.iter().map(|f| f.paths.clone()).collect();
    assert_eq!(found, [["/kept"]]);
}

/// A home block that a live slot hides is not looked at: a round may have been writing it.
#[test]
fn hidden_blocks_are_skipped() {
    let media = Media::new(&Shape::TINY, Backend::Volatile);
    let fs = media.mount_quiet(&options("noatime"));
    let ino = file(&fs, ROOT, "f", &bytes(1, BLOCK));
    checkpoint_all(&fs);
    flip(&fs, &media, blocks(&fs, ino)[0].1, 9);
    assert_eq!(scrub(&fs).status.findings, 1);
    fs.write(ino, 0, &bytes(2, BLOCK), false).expect("write");
    assert_eq!(scrub(&fs).list, []);
}

thread_local! {
    /// The pass that this thread is making; 0 if it does not scrub.
    static PASS: Cell<u64> = const { Cell::new(0) };
}

/// A device that refuses every third block to a scrub, until it has refused a request for that block
/// alone: so each of them is suspected, like a block that moves while it is read, which happens too
/// rarely to wait for. By the time the block is looked at again, other threads have gone on. Blocks that
/// were written since a scrub last read them are not refused, or what is new since a scan would be.
struct Moody {
    inner: SimDevice,
    /// Blocks that a scrub has read since they were written, and the last pass that was refused.
    known: Mutex<BTreeMap<u64, u64>>,
    refused: AtomicU64,
}

impl BlockDevice for Moody {
    fn blocks(&self) -> u64 {
        self.inner.blocks()
    }

    fn read(&self, block: u64, buf: &mut [u8]) -> io::Result<()> {
        let pass = PASS.get();
        if pass == 0 {
            return self.inner.read(block, buf);
        }
        let blocks = block..block + (buf.len() / BLOCK) as u64;
        let alone = buf.len() == BLOCK;
        let mut known = self.known.lock().unwrap();
        let mut these = known.range_mut(blocks.clone());
        if let Some((_, last)) = these.find(|(b, last)| **b % 3 == 0 && **last < pass) {
            if alone {
                *last = pass;
            }
            self.refused.fetch_add(1, Ordering::Relaxed);
            return Err(io::Error::from_raw_os_error(5));
        }
        self.inner.read(block, buf)?;
        for b in blocks {
            known.entry(b).or_insert(0);
        }
        Ok(())
    }

    fn write(&self, block: u64, buf: &[u8]) -> io::Result<()> {
        let mut known = self.known.lock().unwrap();
        for b in block..block + (buf.len() / BLOCK) as u64 {
            known.remove(&b);
        }
        self.inner.write(block, buf)
    }

    fn flush(&self) -> io::Result<()> {
        self.inner.flush()
    }

    fn discard(&self, block: u64, count: u64) -> io::Result<()> {
        self.inner.discard(block, count)
    }

    fn describe(&self) -> String {
        "moody".into()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn silent_for(&self) -> Duration {
        Duration::ZERO
    }

    fn missing(&self) -> u64 {
        0
    }
}

/// Writers, truncates, holes, deletes, rounds of all kinds and zeroing passes, all at once.
#[test]
fn a_busy_volume_has_no_findings() {
    for mode in MODES {
        let geometry = Shape::SMALL.geometry();
        let region = Region::from_extents(geometry.pmem_len, [], None, mode.1);
        let device = Arc::new(Moody {
            inner: SimDevice::unrecorded(geometry.data_blocks),
            known: Mutex::default(),
            refused: AtomicU64::new(0),
        });
        let media = Media::format(Arc::new(region), device.clone(), geometry);
        let fs = media.mount(&options(mode.0));
        // A file that nothing touches, so that there are always blocks to refuse.
        file(&fs, ROOT, "still", &bytes(1, 30 * BLOCK));
        checkpoint_all(&fs);
        let stop = AtomicBool::new(false);
        let mut passes = 0;
        let mut bytes_read = 0;
        std::thread::scope(|s| {
            for t in 0..2u64 {
                let (fs, stop) = (&fs, &stop);
                s.spawn(move || churn(fs, t, stop));
            }
            s.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    digest::digest_all(&fs.e).expect("digest");
                    checkpoint::round(&fs.e).expect("round");
                    checkpoint::zero_freed(&fs.e).expect("zeroing pass");
                }
            });
            let rounds = || fs.e.metrics.snapshot().rounds;
            let before = rounds();
            while passes < 15 || rounds() < before + 15 {
                PASS.set(passes + 1);
                let report = scrub(&fs);
                PASS.set(0);
                if !report.list.is_empty() {
                    stop.store(true, Ordering::Relaxed);
                    panic!("{mode:?}: {report:?}");
                }
                passes += 1;
                bytes_read += report.status.bytes;
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert!(bytes_read > 1 << 20, "{mode:?}");
        let refused = device.refused.load(Ordering::Relaxed);
        assert!(refused > passes, "{mode:?}: {refused} in {passes} passes");
        fs.shutdown().expect("shutdown");
        media.fsck().unwrap_or_else(|e| panic!("{mode:?}: {e}"));
    }
}

fn churn(fs: &Fs, t: u64, stop: &AtomicBool) {
    let mut rng = Rng::new(t);
    let mut files: Vec<(String, Ino)> = Vec::new();
    for i in 0u64.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        if files.len() < 6 {
            let name = format!("{t}-{i}");
            let ino = file(fs, ROOT, &name, &bytes(i, rng.below(9 * B) as usize));
            files.push((name, ino));
        }
        let k = rng.below(files.len() as u64) as usize;
        let (name, ino) = files[k].clone();
        match rng.below(8) {
            0..4 => {
                let len = 1 + rng.below(6 * B) as usize;
                let data = bytes(rng.number(), len);
                fs.write(ino, rng.below(60 * B), &data, false)
                    .expect("write");
            }
            4 => {
                let set = SetAttr {
                    size: Some(rng.below(30 * B)),
                    ..SetAttr::default()
                };
                fs.setattr(ino, &set, false).expect("truncate");
            }
            5 => fs
                .fallocate(
                    ino,
                    FallocMode::Punch,
                    rng.below(30 * B),
                    1 + rng.below(9 * B),
                )
                .expect("punch"),
            6 => {
                let new = format!("{name}'");
                let flags = RenameFlags::default();
                fs.rename((ROOT, name.as_bytes()), (ROOT, new.as_bytes()), flags)
                    .expect("rename");
                files[k].0 = new;
            }
            _ => {
                fs.unlink(ROOT, name.as_bytes()).expect("unlink");
                fs.forget(ino, 1);
                files.remove(k);
            }
        }
    }
}

#[test]
fn a_pass_can_be_stopped_and_only_one_runs() {
    let media = Media::new(&Shape::SMALL, Backend::Volatile);
    let fs = media.mount_quiet(&options("noatime"));
    file(&fs, ROOT, "f", &bytes(1, 50 * BLOCK));
    checkpoint_all(&fs);
    assert_eq!(fs.status().scrub.state, State::Never);
    // A block an hour: it waits until it is stopped.
    let slow = b"start rate=1";
    let other = Caller { uid: 12345, ..ME };
    assert_eq!(fs.scrub_command(other, slow), Err(FsError::Perm));
    assert_eq!(fs.scrub_report(other, 0), Err(FsError::Perm));
    assert_eq!(fs.scrub_command(ME, b"faster"), Err(FsError::Invalid));
    fs.scrub_command(ME, slow).expect("start");
    assert_eq!(fs.scrub_command(ME, b"start"), Err(FsError::Busy));
    assert_eq!(fs.status().scrub.rate_bytes, Some(1));
    fs.scrub_command(ME, b"stop").expect("stop");
    fs.scrub.end();
    assert_eq!(fs.status().scrub.state, State::Stopped);
    fs.scrub_command(ME, b"start").expect("start again");
    while fs.status().scrub.state == State::Running {
        std::thread::yield_now();
    }
    let s = fs.status().scrub;
    assert_eq!((s.state, s.pass, s.findings), (State::Finished, 2, 0));
    assert!(s.bytes >= 50 * B && s.total_bytes >= s.bytes, "{s:?}");
    let text = fs.scrub_report(ME, 0).expect("report");
    let report: Report = serde_json::from_slice(&text).expect("JSON");
    assert_eq!(report.status, s);
    // The end of the mount is the end of a pass.
    fs.scrub_command(ME, slow).expect("start");
    fs.shutdown().expect("shutdown");
    assert_eq!(fs.status().scrub.state, State::Stopped);
}
