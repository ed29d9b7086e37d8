//! Many threads on one volume, with background threads, until the daemon dies or the space ends.

use std::sync::Arc;

use quayfs_fs::{FallocMode, Fs, RenameFlags, SetAttr, SetXattr};
use quayfs_layout::inode::{ROOT, S_IFREG};
use quayfs_options::{CheckpointPolicy, DataMode, Durability, MountOptions};
use quayfs_store::error::FsError;

use super::support::{BY, Disk};

const THREADS: u64 = 4;

/// A small generator: what a run does depends on its seed and on the scheduler only.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, n: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) % n
    }
}

/// One operation of any kind on names and files that all threads share.
fn one(fs: &Fs, d: &mut Dice, longest: u64) -> Result<(), FsError> {
    let dirs = [ROOT, ROOT + 1, ROOT + 2];
    let (dir, other) = (dirs[d.roll(3) as usize], dirs[d.roll(3) as usize]);
    let name = |d: &mut Dice| format!("f{}", d.roll(12)).into_bytes();
    let (a, b) = (name(d), name(d));
    let action = d.roll(18);
    if !(2..=16).contains(&action) {
        let attr = fs.mknod(BY, dir, &a, S_IFREG | 0o644, 0)?;
        fs.forget(attr.ino, 1);
        return Ok(());
    }
    match action {
        2 => return fs.unlink(dir, &a),
        3 => {
            let exchange = d.roll(4) == 0;
            let flags = RenameFlags {
                exchange,
                ..RenameFlags::default()
            };
            return fs.rename((dir, &a), (other, &b), flags);
        }
        4 => {
            let attr = fs.mkdir(BY, dir, &a, 0o755)?;
            fs.forget(attr.ino, 1);
            return Ok(());
        }
        5 => return fs.rmdir(dir, &a),
        6 => {
            let target = vec![b't'; 1 + d.roll(300) as usize];
            let attr = fs.symlink(BY, dir, &a, &target)?;
            fs.forget(attr.ino, 1);
            return Ok(());
        }
        _ => {}
    }
    let ino = fs.lookup(dir, &a)?.ino;
    let (at, len) = (d.roll(longest), 1 + d.roll(longest / 4));
    let result = match action {
        7 => fs.link(ino, other, &b).map(|attr| fs.forget(attr.ino, 1)),
        8 => {
            let set = SetAttr {
                size: Some(at),
                ..SetAttr::default()
            };
            fs.setattr(ino, &set, false).map(drop)
        }
        9 => fs.fallocate(ino, FallocMode::Punch, at, len),
        10 => fs.fallocate(
            ino,
            FallocMode::Allocate {
                keep_size: len % 2 == 0,
            },
            at,
            len,
        ),
        11 => fs.setxattr(
            ino,
            b"user.x",
            &vec![1; d.roll(9000) as usize],
            SetXattr::Any,
        ),
        12 => fs.read(ino, at, len as usize).map(drop),
        _ => fs.write(ino, at, &vec![action as u8; len as usize], false),
    };
    fs.forget(ino, 1);
    result
}

/// Lets threads loose on a volume; returns how many operations succeeded and how many ran out of
/// space.
fn crowd(fs: &Arc<Fs>, seed: u64, rounds: u64, longest: u64) -> (u64, u64) {
    std::thread::scope(|s| {
        let work = |t: u64| {
            let mut d = Dice(seed * 1000 + t);
            let (mut done, mut full) = (0, 0);
            for _ in 0..rounds {
                match one(fs, &mut d, longest) {
                    Ok(()) => done += 1,
                    Err(FsError::NoSpace) => full += 1,
                    Err(e) if e.is_io() || matches!(e, FsError::ReadOnly | FsError::OutOf(_)) => {
                        panic!("thread {t}: {e}")
                    }
                    Err(_) => {}
                }
            }
            (done, full)
        };
        let all: Vec<_> = (0..THREADS).map(|t| s.spawn(move || work(t))).collect();
        all.into_iter()
            .map(|t| t.join().unwrap())
            .fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1))
    })
}

fn lives(options: &MountOptions, seed: u64, longest: u64) -> u64 {
    let disk = Disk::new();
    let mut full = 0;
    for life in 0..3 {
        let fs = Fs::mount(disk.volume(), options).unwrap();
        if life == 0 {
            for (i, name) in [&b"d1"[..], b"d2"].into_iter().enumerate() {
                assert_eq!(
                    fs.mkdir(BY, ROOT, name, 0o755).unwrap().ino,
                    ROOT + 1 + i as u64
                );
            }
            for i in 0..36 {
                let name = format!("f{}", i / 3).into_bytes();
                fs.mknod(BY, ROOT + i % 3, &name, S_IFREG, 0).unwrap();
            }
        }
        let (done, short) = crowd(&fs, seed + life, 1000, longest);
        assert!(done > 500, "{done} operations succeeded");
        full += short;
        if life == 1 {
            fs.shutdown().unwrap();
        } else {
            fs.abandon();
        }
        let report = disk.check();
        assert!(
            report.is_clean(),
            "life {life} of {seed}, {options}:\n{report}"
        );
    }
    full
}

#[test]
fn nothing_is_found_after_a_crowd() {
    let op = MountOptions::default();
    let commit = MountOptions {
        durability: Some(Durability::Commit),
        ..op.clone()
    };
    let swap = MountOptions {
        checkpoint: CheckpointPolicy::Swap,
        ..op.clone()
    };
    let ordered = MountOptions {
        data: DataMode::Ordered,
        ..op.clone()
    };
    for (seed, options) in [op, commit, swap, ordered].iter().enumerate() {
        lives(options, seed as u64 * 10, 200_000);
    }
}

#[test]
fn nothing_is_found_when_space_has_run_out() {
    let op = MountOptions::default();
    let ordered = MountOptions {
        data: DataMode::Ordered,
        ..op.clone()
    };
    let mut full = 0;
    for (seed, options) in [op, ordered].iter().enumerate() {
        full += lives(options, 100 + seed as u64 * 10, 3_000_000);
    }
    assert!(full > 0, "space was never short");
}

#[test]
fn nothing_is_found_when_node_pages_have_run_out() {
    for options in [
        MountOptions::default(),
        MountOptions {
            durability: Some(Durability::Commit),
            ..MountOptions::default()
        },
    ] {
        let disk = Disk::new();
        for life in 0..3u64 {
            let fs = Fs::mount(disk.volume(), &options).unwrap();
            std::thread::scope(|s| {
                for t in 0..THREADS {
                    let fs = &fs;
                    s.spawn(move || pages_run_out(fs, t));
                }
            });
            fs.abandon();
            let report = disk.check();
            assert!(report.is_clean(), "life {life}, {options}:\n{report}");
        }
    }
}

/// Creates files with attributes and long names until there is no room, then removes most of them.
fn pages_run_out(fs: &Fs, t: u64) {
    let name = |i: u64| format!("{t}-{i}-{}", "n".repeat(200)).into_bytes();
    let mut made = 0;
    loop {
        let result = fs
            .mknod(BY, ROOT, &name(made), S_IFREG, 0)
            .and_then(|attr| {
                fs.forget(attr.ino, 1);
                fs.setxattr(attr.ino, b"user.x", &[1; 9000], SetXattr::Any)
            });
        match result {
            Ok(()) | Err(FsError::Exists) => made += 1,
            Err(FsError::NoSpace) => break,
            Err(e) => panic!("thread {t}, file {made}: {e}"),
        }
    }
    // A thread that frees space must not run short of it.
    for i in (0..=made).filter(|i| i % 8 != 0) {
        match fs.unlink(ROOT, &name(i)) {
            Ok(()) | Err(FsError::NoEntry) => {}
            Err(e) => panic!("thread {t}, removing file {i} of {made}: {e}"),
        }
    }
}
