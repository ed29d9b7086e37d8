//! Rounds that follow each other without a pause.

use quayfs_background::checkpoint::{Reach, round_of, rounds};
use quayfs_background::digest::digest_all;
use quayfs_crashsim::{Fault, FaultDevice, FaultOp, Repeat};
use quayfs_fsck::repair::repair_volume;
use quayfs_store::engine::Rest;

use super::*;

const BLOCKS: u64 = 48;
const POLICIES: [&str; 4] = ["adaptive", "swap", "inplace", "double"];
/// Rounds copy slots from one, and write them from where they lie in the other.
const BACKENDS: [Backend; 2] = [Backend::Volatile, Backend::Dax];

/// Each policy on each backend.
fn everywhere() -> impl Iterator<Item = (Disk, &'static str)> {
    let on = |policy| move |backend| (Disk::on(backend), policy);
    (POLICIES.into_iter()).flat_map(move |policy| BACKENDS.into_iter().map(on(policy)))
}

/// A disk whose device fails when it is told to.
pub fn faulty(mut disk: Disk) -> (Disk, Arc<FaultDevice>) {
    let device = Arc::new(FaultDevice::new(Arc::clone(&disk.device)));
    disk.device = Arc::<FaultDevice>::clone(&device);
    (disk, device)
}

/// A file, and what should be in it.
struct Known {
    ino: Ino,
    bytes: Vec<u8>,
}

impl Known {
    fn new(fs: &Fs) -> Self {
        let ino = file(fs, ROOT, "f");
        let mut known = Self {
            ino,
            bytes: vec![0; BLOCKS as usize * BLOCK],
        };
        known.write_blocks(fs, 0..BLOCKS, 1);
        known
    }

    /// Each block is a record of its own.
    fn write_blocks(&mut self, fs: &Fs, blocks: impl Iterator<Item = u64>, version: u8) {
        for b in blocks {
            let at = b as usize * BLOCK;
            let new = &mut self.bytes[at..at + BLOCK];
            new.fill(version);
            new[..8].copy_from_slice(&b.to_le_bytes());
            fs.write(self.ino, at as u64, new, false).unwrap();
        }
        digest_all(&fs.e).unwrap();
    }

    fn check(&self, fs: &Fs, when: &str) {
        let got = fs.read(self.ino, 0, self.bytes.len()).unwrap();
        assert!(got == self.bytes, "{when}");
    }

    /// The daemon dies; the next one finds it, writes out what there is left, and ends.
    fn survives(&self, disk: &Disk, fs: Arc<Fs>, when: &str) {
        let fs = disk.dies(fs, "noatime");
        self.check(&fs, when);
        rounds(&fs.e, Reach::All, |_| false).unwrap();
        self.check(&fs, when);
        disk.ends(fs);
    }
}

fn staged(fs: &Fs) -> u64 {
    fs.e.journal.stats().slots_used
}

#[test]
fn each_takes_what_the_one_before_it_has_left() {
    for (disk, policy) in everywhere() {
        let fs = disk.mount(&format!("noatime,checkpoint={policy}"));
        let known = Known::new(&fs);
        assert_eq!(staged(&fs), BLOCKS);
        let mut freed = Vec::new();
        let report = rounds(&fs.e, Reach::Older, |slots| {
            freed.push(slots);
            freed.len() < 3
        })
        .unwrap();
        assert_eq!(freed, [24, 12, 6], "{policy}");
        assert_eq!((report.slots, report.written), (42, 42), "{policy}");
        assert_eq!(staged(&fs), 6, "{policy}");
        known.check(&fs, policy);

        // To the end, and not further.
        let mut asked = 0;
        let report = rounds(&fs.e, Reach::All, |_| {
            asked += 1;
            true
        })
        .unwrap();
        assert_eq!((report.slots, asked, staged(&fs)), (6, 1, 0), "{policy}");
        known.survives(&disk, fs, policy);
    }
}

#[test]
fn blocks_that_are_written_again_meanwhile_are_in_both() {
    for (disk, policy) in everywhere() {
        let fs = disk.mount(&format!("noatime,checkpoint={policy}"));
        let mut known = Known::new(&fs);
        let mut version = 1;
        let report = rounds(&fs.e, Reach::All, |_| {
            // The device has most of the round by now; each block of it that is written here goes where the round
            // has put it, or away from there.
            version += 1;
            if version < 6 {
                let blocks = (0..BLOCKS).filter(|b| b % u64::from(version) == 0);
                known.write_blocks(&fs, blocks, version);
                known.check(&fs, policy);
            }
            true
        })
        .unwrap();
        assert_eq!(report.written, BLOCKS + 24 + 16 + 12 + 10, "{policy}");
        assert_eq!(staged(&fs), 0, "{policy}");
        known.check(&fs, policy);
        known.survives(&disk, fs, policy);
    }
}

/// A bit of this block's slot rots.
fn rot(fs: &Fs, ino: Ino, block: u64) {
    let handle = fs.e.inodes.get(&fs.e.nodes, ino).unwrap();
    let pieces = quayfs_fs::extents::with(&handle, |x| x.pieces(block..block + 1)).unwrap();
    let slot = fs.e.staged.get(pieces[0].lbn.unwrap()).unwrap();
    let at = |bytes: quayfs_pmem::Bytes<'_>| bytes.as_ptr().addr();
    let off = at(fs.e.journal.slot_bytes(&slot)) - at(fs.e.region.bytes(0, 0)) + 77;
    let mut byte = [0];
    fs.e.region.read(off as u64, &mut byte);
    fs.e.region.write(off as u64, &[byte[0] ^ 4]);
}

#[test]
fn a_damaged_slot_is_an_error_for_its_block_and_keeps_no_others() {
    for (disk, policy) in everywhere() {
        let fs = disk.mount(&format!("noatime,checkpoint={policy}"));
        let known = Known::new(&fs);
        rot(&fs, known.ino, 20);
        let check = |fs: &Fs, when: &str| {
            for b in 0..BLOCKS {
                let at = b * BLOCK as u64;
                let got = fs.read(known.ino, at, BLOCK);
                match b {
                    20 => assert!(got.is_err(), "{policy}, {when}"),
                    _ => assert!(
                        got.unwrap() == known.bytes[at as usize..][..BLOCK],
                        "{when}"
                    ),
                }
            }
        };
        check(&fs, "staged");
        let report = round_of(&fs.e, Reach::All).unwrap();
        assert_eq!((report.written, staged(&fs)), (BLOCKS, 0), "{policy}");
        check(&fs, "on the device");
        let fs = disk.dies(fs, "noatime");
        check(&fs, "after a death");
        // And it is whole again when it has been overwritten.
        let mut known = known;
        known.write_blocks(&fs, 20..21, 2);
        round_of(&fs.e, Reach::All).unwrap();
        known.check(&fs, policy);
    }
}

#[test]
fn a_row_ends_where_there_is_little_left() {
    let fs = Disk::new().mount("noatime");
    let mut known = Known::new(&fs);
    let report = rounds(&fs.e, Reach::All, |_| {
        known.write_blocks(&fs, 0..BLOCKS / 2 - 1, 2);
        true
    })
    .unwrap();
    assert_eq!((report.slots, staged(&fs)), (BLOCKS, BLOCKS / 2 - 1));
    known.check(&fs, "the rest is staged");
    fs.shutdown().unwrap();
}

#[test]
fn digest_goes_first_where_it_is_behind() {
    let fs = Disk::new().mount("noatime");
    let known = Known::new(&fs);
    let more = file(&fs, ROOT, "more");
    digest_all(&fs.e).unwrap();
    // More than half of all slots, and nothing of it digested.
    let half = fs.e.journal.stats().slots / 2;
    for b in 0..half {
        fs.write(more, b * BLOCK as u64, &[3; BLOCK], false)
            .unwrap();
    }
    let older = || round_of(&fs.e, Reach::Older).unwrap();
    let digest_is_wanted = || {
        let now = std::time::Duration::ZERO;
        fs.e.await_work(Rest::For(now), |w| std::mem::take(&mut w.digest))
            .digest
    };
    digest_is_wanted();
    assert_eq!((older().slots, digest_is_wanted()), (0, true));
    assert_eq!(staged(&fs), half + BLOCKS);
    // Not for ever: what is digested is written then, half of it.
    let slots: Vec<u64> = (0..9).map(|_| older().slots).collect();
    assert_eq!(slots, [0, 0, 0, 0, 0, 0, 0, BLOCKS / 2, 0]);
    // Nor where everything is asked for.
    let all = round_of(&fs.e, Reach::All).unwrap();
    assert_eq!(all.slots, BLOCKS / 2);
    digest_all(&fs.e).unwrap();
    assert_eq!(older().slots, half / 2);
    known.check(&fs, "digest went first");
    fs.shutdown().unwrap();
}

#[test]
fn one_that_fails_leaves_what_was_done_before_it() {
    for (disk, policy) in everywhere() {
        let (disk, device) = faulty(disk);
        let fs = disk.mount(&format!("noatime,checkpoint={policy}"));
        let known = Known::new(&fs);
        let failed = rounds(&fs.e, Reach::Older, |_| {
            device.fail(FaultOp::Write, 1, Fault::Errno(libc::EIO), Repeat::Forever);
            true
        });
        assert!(matches!(failed, Err(ref e) if e.is_io()), "{policy}");
        // The slots of the first are free.
        assert_eq!(staged(&fs), 24, "{policy}");
        known.check(&fs, policy);
        device.heal();
        known.survives(&disk, fs, policy);
    }
}

/// Blocks that nothing joins to runs: three batches.
const APART: u64 = 150;

/// A file with every second block staged, in slots of its own, and the rest on the device.
fn apart(fs: &Fs) -> Known {
    let ino = file(fs, ROOT, "f");
    let bytes = vec![0; 2 * APART as usize * BLOCK];
    let mut known = Known { ino, bytes };
    known.write_blocks(fs, 0..2 * APART, 1);
    round_of(&fs.e, Reach::All).unwrap();
    known.write_blocks(fs, (0..APART).map(|n| 2 * n), 2);
    assert_eq!(staged(fs), APART);
    known
}

/// Does something while two threads write for rounds.
fn with_crew<T>(fs: &Fs, work: impl FnOnce() -> T) -> T {
    std::thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| fs.e.serve_writes());
        }
        let _stop = at_end(|| fs.e.end_writes());
        work()
    })
}

/// Does something when it is dropped, also if a test fails: a scope waits for its threads.
pub fn at_end(end: impl FnMut()) -> impl Drop {
    struct Guard<F: FnMut()>(F);
    impl<F: FnMut()> Drop for Guard<F> {
        fn drop(&mut self) {
            (self.0)();
        }
    }
    Guard(end)
}

/// Waits for so many writes to have been begun: for ever, if one thread writes alone.
fn await_writes(device: &FaultDevice, writes: u64) {
    while device.calls(FaultOp::Write) < writes {
        std::thread::yield_now();
    }
}

#[test]
fn a_crew_writes_while_the_round_does_and_the_round_waits_for_it() {
    for backend in BACKENDS {
        let (disk, device) = faulty(Disk::on(backend));
        let fs = disk.mount("noatime,checkpoint=inplace");
        let known = apart(&fs);
        let (writes, flushes) = (device.calls(FaultOp::Write), device.calls(FaultOp::Flush));
        let stall = device.stall(FaultOp::Write, 1);
        let report = with_crew(&fs, || {
            std::thread::scope(|s| {
                let round = s.spawn(|| round_of(&fs.e, Reach::All).unwrap());
                let _release = at_end(|| stall.release());
                stall.reached();
                // The other two batches do not wait for the one that is held up.
                await_writes(&device, writes + 3);
                assert_eq!(staged(&fs), APART, "{backend:?}");
                assert_eq!(device.calls(FaultOp::Flush), flushes, "{backend:?}");
                stall.release();
                round.join().unwrap()
            })
        });
        assert_eq!((report.written, staged(&fs)), (APART, 0), "{backend:?}");
        known.survives(&disk, fs, "a worker has written");
    }
}

#[test]
fn what_a_crew_could_not_write_keeps_its_slots() {
    for backend in BACKENDS {
        let (disk, device) = faulty(Disk::on(backend));
        let fs = disk.mount("noatime,checkpoint=inplace");
        let known = apart(&fs);
        // Two batches are under way, each with another thread, before one of them fails.
        let writes = device.calls(FaultOp::Write);
        device.fail(FaultOp::Write, 1, Fault::Errno(libc::EIO), Repeat::Forever);
        let stalls = [1, 2].map(|nth| device.stall(FaultOp::Write, nth));
        let failed = with_crew(&fs, || {
            std::thread::scope(|s| {
                let round = s.spawn(|| round_of(&fs.e, Reach::All));
                let _release = at_end(|| device.heal());
                await_writes(&device, writes + 2);
                stalls.iter().for_each(|stall| stall.reached());
                stalls.iter().for_each(|stall| stall.release());
                round.join().unwrap()
            })
        });
        assert!(matches!(failed, Err(ref e) if e.is_io()), "{backend:?}");
        assert_eq!(staged(&fs), APART, "{backend:?}");
        known.check(&fs, "the slots have it");
        known.survives(&disk, fs, "a worker has failed");
    }
}

#[test]
fn the_last_round_of_a_mount_has_its_crew() {
    let (disk, device) = faulty(Disk::new());
    let options = MountOptions::parse(&["noatime", "checkpoint=inplace"]).unwrap();
    let fs = Fs::mount(disk.volume(), &options).unwrap();
    let known = apart(&fs);
    let writes = device.calls(FaultOp::Write);
    let stall = device.stall(FaultOp::Write, 1);
    std::thread::scope(|s| {
        let end = s.spawn(|| fs.shutdown());
        let _release = at_end(|| stall.release());
        await_writes(&device, writes + 3);
        stall.release();
        end.join().unwrap().unwrap();
    });
    drop(fs);
    disk.is_clean();
    let fs = disk.mount("noatime");
    known.check(&fs, "unmounted");
    fs.shutdown().unwrap();
}

#[test]
fn what_is_freed_is_zeroed_while_a_round_writes() {
    for (disk, policy) in everywhere() {
        let fs = disk.mount(&format!("noatime,checkpoint={policy}"));
        let old = file(&fs, ROOT, "old");
        let content = vec![9; 1 << 20];
        for part in 0..4 {
            fs.write(old, part << 20, &content, false).unwrap();
        }
        digest_all(&fs.e).unwrap();
        round_of(&fs.e, Reach::All).unwrap();
        fs.unlink(ROOT, b"old").unwrap();
        fs.forget(old, 1);
        digest_all(&fs.e).unwrap();
        assert_eq!(fs.e.lbns.pending(), 1024, "{policy}");
        let known = Known::new(&fs);
        round_of(&fs.e, Reach::All).unwrap();
        assert_eq!(fs.e.lbns.pending(), 0, "{policy}");
        known.check(&fs, policy);
        // Where it lay, as everywhere, there are zeros now.
        let new = file(&fs, ROOT, "new");
        let free = fs.statfs().free * BLOCK as u64;
        fs.fallocate(
            new,
            FallocMode::Allocate { keep_size: false },
            0,
            free - (1 << 20),
        )
        .unwrap();
        let mut at = 0;
        while at < free - (1 << 20) {
            let bytes = fs.read(new, at, 1 << 20).unwrap();
            assert!(bytes.iter().all(|b| *b == 0), "{policy} {at}");
            at += bytes.len() as u64;
        }
        disk.ends(fs);
    }
}

#[test]
fn a_damaged_entry_of_a_freed_block_keeps_no_others_from_their_turn() {
    let disk = Disk::new();
    let fs = disk.mount("noatime");
    let old = file(&fs, ROOT, "old");
    fs.write(old, 0, &vec![9; 600 * BLOCK], false).unwrap();
    digest_all(&fs.e).unwrap();
    round_of(&fs.e, Reach::All).unwrap();
    let entry = entry(&fs, old, 0);
    let word = fs.e.region.load_u64(entry);
    fs.e.region.store_u64(entry, word ^ 1 << 40);
    fs.unlink(ROOT, b"old").unwrap();
    fs.forget(old, 1);
    digest_all(&fs.e).unwrap();
    assert_eq!(fs.e.lbns.pending(), 600);
    let known = Known::new(&fs);
    assert!(round_of(&fs.e, Reach::All).unwrap().written >= BLOCKS);
    assert_eq!(quayfs_background::checkpoint::zero_freed(&fs.e), Ok(0));
    assert_eq!(fs.e.lbns.pending(), 1);
    known.check(&fs, "after");
    fs.e.region.store_u64(entry, word);
    assert_eq!(quayfs_background::checkpoint::zero_freed(&fs.e), Ok(1));
    disk.ends(fs);
}

/// The word of the page table that says where a block of a file is.
fn entry(fs: &Fs, ino: Ino, block: u64) -> u64 {
    let handle = fs.e.inodes.get(&fs.e.nodes, ino).unwrap();
    let pieces = quayfs_fs::extents::with(&handle, |x| x.pieces(block..block + 1)).unwrap();
    fs.e.config.geometry.l2p_map_off + pieces[0].lbn.unwrap() * 8
}

#[test]
fn a_round_that_cannot_pass_over_a_damaged_entry_leaves_nobody_waiting() {
    for policy in POLICIES {
        let disk = Disk::new();
        let options = format!("noatime,checkpoint={policy}");
        let fs = disk.mount(&options);
        let known = Known::new(&fs);
        let at = entry(&fs, known.ino, 7);
        let word = fs.e.region.load_u64(at);
        fs.e.region.store_u64(at, word ^ 1 << 40);

        let err = round_of(&fs.e, Reach::All).unwrap_err();
        assert!(err.to_string().contains("is damaged"), "{err}");
        assert!(fs.e.is_read_only());
        // What will not be written out can still be read, and a write that would need room is refused.
        known.check(&fs, policy);
        let refused = fs.write(known.ino, 0, &[1; BLOCK], false);
        assert_eq!(refused, Err(FsError::ReadOnly), "{policy}");
        fs.abandon();
        drop(fs);

        repair_volume(
            &mut disk.volume(),
            &FsckOptions::default(),
            &Default::default(),
        )
        .unwrap();
        disk.is_clean();
        let fs = disk.mount(&options);
        known.check(&fs, policy);
        round_of(&fs.e, Reach::All).unwrap();
        known.check(&fs, policy);
        disk.ends(fs);
    }
}

#[test]
fn what_was_done_before_a_round_failed_is_committed_at_the_end() {
    for durability in ["op", "commit"] {
        let disk = Disk::new();
        let options = format!("noatime,durability={durability}");
        let fs = disk.mount(&options);
        let mut known = Known::new(&fs);
        fs.e.commit().unwrap();
        digest_all(&fs.e).unwrap();
        let at = entry(&fs, known.ino, 7);
        let word = fs.e.region.load_u64(at);
        fs.e.region.store_u64(at, word ^ 1 << 40);
        known.write_blocks(&fs, 20..30, 2);
        let new = file(&fs, ROOT, "new");
        round_of(&fs.e, Reach::All).unwrap_err();
        assert!(fs.has_failed());
        fs.shutdown().unwrap();
        drop(fs);

        repair_volume(
            &mut disk.volume(),
            &FsckOptions::default(),
            &Default::default(),
        )
        .unwrap();
        let fs = disk.mount(&options);
        known.check(&fs, durability);
        assert_eq!(fs.lookup(ROOT, b"new").unwrap().ino, new, "{durability}");
        assert!(!fs.has_failed());
        disk.ends(fs);
    }
}

/// A full volume is another matter than one whose page table does not say what is free.
#[test]
fn room_that_is_withheld_for_damage_is_not_called_none() {
    let disk = Disk::new();
    let fs = disk.mount("noatime,errors=continue");
    let geo = fs.e.config.geometry;
    let flip = || {
        for lbn in 0..geo.blocks {
            let at = geo.l2p_map_off + lbn * 8;
            fs.e.region
                .store_u64(at, fs.e.region.load_u64(at) ^ 1 << 40);
        }
    };
    flip();
    let ino = file(&fs, ROOT, "f");
    let refused = fs.write(ino, 0, &[1; BLOCK], false);
    assert!(matches!(refused, Err(FsError::Damaged(_))), "{refused:?}");
    assert!(fs.e.watch().found() > 0);
    flip();
    assert_eq!(fs.write(ino, 0, &[1; BLOCK], false), Ok(()));
    disk.ends(fs);
}

/// Nor is a full volume called damaged for a few entries that would not have helped.
#[test]
fn a_full_volume_with_a_few_damaged_entries_is_full() {
    let disk = Disk::new();
    let fs = disk.mount("noatime");
    let flip = || {
        for lbn in 0..4 {
            let at = fs.e.config.geometry.l2p_map_off + lbn * 8;
            fs.e.region
                .store_u64(at, fs.e.region.load_u64(at) ^ 1 << 40);
        }
    };
    flip();
    let ino = file(&fs, ROOT, "f");
    let mut blocks = (0..).map(|n| fs.write(ino, n * BLOCK as u64, &[1; BLOCK], false));
    let refused = blocks.find(Result::is_err);
    assert_eq!(refused, Some(Err(FsError::NoSpace)));
    assert!(!fs.e.is_read_only());
    flip();
    disk.ends(fs);
}

#[test]
fn a_round_borrows_no_block_whose_entry_is_damaged() {
    for policy in ["swap", "adaptive", "double"] {
        let disk = Disk::new();
        let fs = disk.mount(&format!("noatime,errors=continue,checkpoint={policy}"));
        let mut known = Known::new(&fs);
        round_of(&fs.e, Reach::All).unwrap();
        let geo = fs.e.config.geometry;
        // Every tenth of those that are free.
        let free: Vec<u64> = (0..geo.blocks)
            .filter(|l| fs.e.ppt.lookup(*l).unwrap().state == quayfs_ppt::BlockState::Zero)
            .map(|l| geo.l2p_map_off + l * 8)
            .step_by(10)
            .collect();
        let flip = |at: &u64| {
            let word = fs.e.region.load_u64(*at);
            fs.e.region.store_u64(*at, word ^ 1 << 40);
        };
        free.iter().for_each(flip);
        known.write_blocks(&fs, (0..BLOCKS).step_by(2), 2);
        round_of(&fs.e, Reach::All).unwrap();
        known.check(&fs, policy);
        // The damaged ones that it came across are withheld from every file, as no round could write them.
        let kept = fs.e.lbns.pending();
        assert!(kept > 0 && kept <= free.len() as u64, "{policy} {kept}");
        assert_eq!(quayfs_background::checkpoint::zero_freed(&fs.e), Ok(0));
        free.iter().for_each(flip);
        assert_eq!(quayfs_background::checkpoint::zero_freed(&fs.e), Ok(kept));
        disk.ends(fs);
    }
}
