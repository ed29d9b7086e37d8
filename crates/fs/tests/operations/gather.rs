//! Free blocks that rounds have scattered are put in order, and nothing else moves.

use std::sync::atomic::{AtomicBool, Ordering};

use quayfs_background::checkpoint::{GAIN, gather, round, zero_freed};
use quayfs_background::digest::digest_all;

use super::*;

const LARGE: usize = 128 << 10;
/// Of the file that scatters blocks.
const BLOCKS: u64 = 1024;

fn content(of: u64, len: usize) -> Vec<u8> {
    (0..len as u64)
        .map(|i| (i / 7 + i / 4096 + of) as u8)
        .collect()
}

/// Everything that was freed can be allocated.
fn settled(fs: &Fs) {
    fs.e.sync().unwrap();
    digest_all(&fs.e).unwrap();
    round(&fs.e).unwrap();
    while fs.e.lbns.pending() > 0 {
        zero_freed(&fs.e).unwrap();
    }
}

/// Free LBNs and those of the spare pool, and what they own.
fn free(fs: &Fs) -> Vec<(u64, u64)> {
    let owned = |lbn| (lbn, fs.e.ppt.lookup(lbn).unwrap().pbn);
    let geometry = &fs.e.config.geometry;
    let spare = geometry.visible_blocks()..geometry.blocks;
    let mut all: Vec<_> = free_lbns(fs).into_iter().chain(spare).map(owned).collect();
    all.sort_unstable();
    all
}

fn free_lbns(fs: &Fs) -> Vec<u64> {
    let runs = fs.e.lbns.free_runs(u64::MAX, &fs.e.nodes, &**fs.e).unwrap();
    runs.into_iter().flatten().collect()
}

fn pieces(owned: &[(u64, u64)]) -> usize {
    let breaks = |w: &[(u64, u64)]| w[1] != (w[0].0 + 1, w[0].1 + 1);
    1 + owned.windows(2).filter(|w| breaks(w)).count()
}

/// Swaps the blocks of a file about and removes it.
fn scatter(fs: &Fs, name: &str) {
    let ino = file(fs, ROOT, name);
    for at in (0..BLOCKS * BLOCK as u64).step_by(LARGE) {
        fs.write(ino, at, &content(0, LARGE), false).unwrap();
    }
    settled(fs);
    for times in 0..3 {
        // A third of them, none next to another.
        for block in (times..BLOCKS).step_by(3) {
            fs.write(ino, block * BLOCK as u64, &content(times, BLOCK), false)
                .unwrap();
        }
        settled(fs);
    }
    fs.unlink(ROOT, name.as_bytes()).unwrap();
    fs.forget(ino, 1);
    settled(fs);
}

#[test]
fn large_writes_are_in_one_piece_again_and_files_are_as_they_were() {
    let disk = Disk::new();
    let fs = disk.mount("noatime,checkpoint=swap");
    let kept = file(&fs, ROOT, "kept");
    for i in 0..8 {
        fs.write(kept, i * LARGE as u64, &content(i, LARGE), false)
            .unwrap();
    }
    scatter(&fs, "gone");
    let before = free(&fs);
    let moved = gather(&fs.e, GAIN).unwrap();
    assert!(moved > 0);
    assert_eq!(fs.e.metrics.snapshot().blocks_gathered, moved);

    let after = free(&fs);
    assert!(
        pieces(&after) * 4 < pieces(&before),
        "{} pieces, of {}",
        pieces(&after),
        pieces(&before)
    );
    let sorted = |of: &[(u64, u64)]| {
        let mut pbns: Vec<u64> = of.iter().map(|(_, pbn)| *pbn).collect();
        pbns.sort_unstable();
        pbns
    };
    assert_eq!(sorted(&before), sorted(&after), "no other block has moved");
    assert_eq!(gather(&fs.e, GAIN).unwrap(), 0, "they are in order");

    let fs = disk.dies(fs, "noatime");
    for i in 0..8 {
        let got = fs.read(kept, i * LARGE as u64, LARGE).unwrap();
        assert!(got == content(i, LARGE), "{i}");
    }
    disk.ends(fs);
}

#[test]
fn what_is_in_order_stays_as_it_is() {
    let disk = Disk::new();
    let fs = disk.mount("noatime");
    let ino = file(&fs, ROOT, "f");
    fs.write(ino, 0, &content(1, LARGE), false).unwrap();
    settled(&fs);
    let before = free(&fs);
    assert_eq!(gather(&fs.e, usize::MAX).unwrap(), 0);
    assert_eq!(free(&fs), before);
    disk.ends(fs);
}

#[test]
fn blocks_are_gathered_beside_writers_and_rounds() {
    let disk = Disk::on(Backend::File);
    let fs = disk.mount("noatime,checkpoint=swap");
    scatter(&fs, "gone");
    let done = AtomicBool::new(false);
    let mut files = Vec::new();
    thread::scope(|s| {
        let gathering = s.spawn(|| {
            let mut moved = 0;
            while !done.load(Ordering::Acquire) {
                moved += gather(&fs.e, GAIN).unwrap();
                thread::yield_now();
            }
            moved
        });
        until(|| fs.e.metrics.snapshot().blocks_gathered > 0);
        for n in 0..24 {
            let name = format!("f{n}");
            let ino = file(&fs, ROOT, &name);
            fs.write(ino, 0, &content(n, LARGE), false).unwrap();
            fs.write(ino, 3 * BLOCK as u64 + 5, &content(n + 1, 100), false)
                .unwrap();
            if n % 3 == 0 {
                fs.unlink(ROOT, name.as_bytes()).unwrap();
                fs.forget(ino, 1);
            } else {
                files.push((n, ino));
            }
            if n % 4 == 0 {
                settled(&fs);
            }
            if n % 8 == 7 {
                scatter(&fs, "more");
            }
        }
        done.store(true, Ordering::Release);
        assert!(gathering.join().unwrap() > 0);
    });
    for (n, ino) in files {
        let mut want = content(n, LARGE);
        want[3 * BLOCK + 5..][..100].copy_from_slice(&content(n + 1, 100));
        assert!(fs.read(ino, 0, LARGE).unwrap() == want, "file {n}");
    }
    disk.ends(fs);
}

#[test]
fn what_is_allocated_or_promised_is_not_taken() {
    let disk = Disk::new();
    let fs = disk.mount("noatime");
    let lbns = &fs.e.lbns;
    let free = free_lbns(&fs);
    let own = file(&fs, ROOT, "f");
    fs.write(own, 0, &content(1, LARGE), false).unwrap();
    let now = free_lbns(&fs);
    let mut allocated: Vec<u64> = free.iter().copied().filter(|n| !now.contains(n)).collect();
    allocated.sort_unstable();
    assert!(!allocated.is_empty());

    let mut asked = vec![now[0], now[1]];
    asked.extend(&allocated);
    asked.push(lbns.total() + 7);
    asked.sort_unstable();
    let before = lbns.free();
    let taken = lbns.take_these(&asked);
    assert_eq!(taken.len(), 2);
    assert!(taken.contains(&now[0]) && taken.contains(&now[1]));
    assert_eq!(lbns.take_these(&asked), [0; 0], "they are away");
    assert_eq!(lbns.free(), before - 2);
    for n in taken {
        lbns.release(n..n + 1);
    }
    // All are reserved but one.
    assert!(lbns.reserve(lbns.free() - 1, 0));
    assert_eq!(lbns.take_these(&now[..2]), [0; 0]);
    lbns.unreserve(before - 1);
    disk.ends(fs);
}

#[test]
fn large_writes_leave_out_what_is_in_short_pieces() {
    let disk = Disk::with(Backend::File, 64 << 20);
    let fs = disk.mount("noatime,checkpoint=swap");
    let other = file(&fs, ROOT, "other");
    for at in (0..BLOCKS * BLOCK as u64).step_by(LARGE) {
        fs.write(other, at, &content(0, LARGE), false).unwrap();
    }
    let ino = file(&fs, ROOT, "f");
    let append = |n: u64| {
        let at = n * LARGE as u64;
        fs.write(ino, at, &content(n, LARGE), false).unwrap();
        let blocks = at / BLOCK as u64..(at + LARGE as u64) / BLOCK as u64;
        let places = scattered::places(&fs, ino, blocks);
        places.windows(2).all(|w| w[1] == w[0] + 1)
    };
    assert!(append(0));
    settled(&fs);
    // A third of the other file's blocks get places elsewhere, and the LBNs behind this one the places that those had.
    for block in (0..BLOCKS).step_by(3) {
        let at = block * BLOCK as u64;
        fs.write(other, at, &content(1, BLOCK), false).unwrap();
    }
    settled(&fs);
    assert!(!append(1));
    // They are still in use all around, so no order makes them longer.
    assert_eq!(gather(&fs.e, GAIN).unwrap(), 0);
    assert!(append(2));
    for n in 0..3 {
        let got = fs.read(ino, n * LARGE as u64, LARGE).unwrap();
        assert!(got == content(n, LARGE), "{n}");
    }
    disk.ends(fs);
}

#[test]
fn large_writes_in_short_pieces_have_the_free_blocks_put_in_order() {
    let disk = Disk::on(Backend::File);
    let options = MountOptions::parse(&["noatime,checkpoint=swap"]).unwrap();
    let fs = Fs::mount(disk.volume(), &options).unwrap();
    scatter(&fs, "gone");
    let ino = file(&fs, ROOT, "f");
    let len = 4 * LARGE;
    let mut n = 0;
    until(|| {
        n += 1;
        fs.write(ino, 0, &content(n, len), false).unwrap();
        fs.e.metrics.snapshot().blocks_gathered > 0
    });
    assert!(fs.read(ino, 0, len).unwrap() == content(n, len));
    disk.ends(fs);
}
