//! Many threads at once: on trees of their own, on one file, and all over each other.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use quayfs_fs::{Caller, FallocMode, Fs, SetAttr};
use quayfs_layout::BLOCK;
use quayfs_layout::inode::{ROOT, S_IFREG};
use quayfs_oracle::evict::while_evicting;
use quayfs_oracle::model::Model;
use quayfs_oracle::ops::{Op, Taste};
use quayfs_oracle::rng::{Rng, bytes};
use quayfs_oracle::{MODES, Media, Shape, account, apply, dump, ops, options, seeds};
use quayfs_pmem::Backend;
use quayfs_store::error::FsError;

const ME: Caller = Caller {
    uid: 0,
    gid: 0,
    umask: 0,
};

/// Each thread has a directory and a model of it.
fn own_trees(mode: (&str, Backend), threads: u64, seed: u64) {
    let media = Media::new(&Shape::SMALL, mode.1);
    let mut fs = media.mount(&options(mode.0));
    let mut models: Vec<Model> = (0..threads)
        .map(|t| {
            let a = fs
                .mkdir(ME, ROOT, format!("t{t}").as_bytes(), 0o755)
                .expect("mkdir");
            Model::below(a.ino, 0o755)
        })
        .collect();
    let taste = Taste {
        names: 10,
        blocks: 1500 / threads,
        write: 16,
        xattr: 3000,
        inodes: 30,
        wild: true,
        quiet: false,
        limits: false,
    };
    for phase in 0..3 {
        let mut work = || {
            std::thread::scope(|s| {
                for (t, m) in models.iter_mut().enumerate() {
                    let fs = &fs;
                    s.spawn(move || {
                        let mut rng = Rng::new(seed ^ phase << 32 ^ (t as u64) << 40);
                        for i in 0..1500 {
                            let op = ops::random(&mut rng, m, &taste);
                            // What lies above is another's, also above what was removed.
                            if matches!(&op, Op::Lookup { name, .. } if name.0 == b"..") {
                                continue;
                            }
                            if let Err(e) = apply::both(fs, m, &op, false) {
                                panic!("{mode:?}, seed {seed}, thread {t}, operation {i}: {e}");
                            }
                        }
                    });
                }
            });
        };
        if phase == 1 {
            while_evicting(&fs, work)
        } else {
            work()
        }
        let check = |fs: &Fs, models: &[Model], when: &str| {
            for m in models {
                let mut got = dump::dump(fs, m.root).expect("dump");
                let mut want = dump::expected(m);
                // The directory itself belongs to no model's tree.
                got.remove(&[][..]);
                want.remove(&[][..]);
                if let Some(d) = dump::difference(&got, &want) {
                    panic!("{mode:?}, seed {seed}, phase {phase}, {when}: {d}");
                }
            }
        };
        check(&fs, &models, "before");
        fs.sync_all().expect("sync");
        fs.abandon();
        media
            .fsck()
            .unwrap_or_else(|e| panic!("{mode:?}, seed {seed}, phase {phase}: {e}"));
        models.iter_mut().for_each(Model::forget_all);
        fs = media.mount(&options(mode.0));
        check(&fs, &models, "after a remount");
    }
    fs.finish_chores();
    fs.abandon();
    account::finish_background(&fs);
    let all = Model {
        root: ROOT,
        limits: BTreeMap::new(),
        nodes: models
            .into_iter()
            .flat_map(|m| m.nodes)
            .collect::<BTreeMap<_, _>>(),
    };
    account::check(&fs, &all).unwrap_or_else(|e| panic!("{mode:?}, seed {seed}: {e}"));
}

#[test]
fn trees_of_their_own() {
    for (i, mode) in MODES.into_iter().enumerate() {
        for seed in seeds(100 * i as u64, 1) {
            own_trees(mode, 2 + i as u64 % 3, seed);
        }
    }
}

/// Threads write and read parts of one file that share blocks but no bytes.
fn one_file(mode: (&str, Backend), seed: u64) {
    const THREADS: u64 = 3;
    const PART: u64 = 100;
    const PARTS: u64 = 700;
    let media = Media::new(&Shape::SMALL, mode.1);
    let fs = media.mount(&options(mode.0));
    let ino = fs
        .mknod(ME, ROOT, b"file", S_IFREG | 0o644, 0)
        .expect("mknod")
        .ino;
    let ends: Vec<Vec<u8>> = std::thread::scope(|s| {
        let spawn = |t: u64| {
            let fs = &fs;
            move || {
                let mut rng = Rng::new(seed ^ t << 40);
                // Part p belongs to thread p modulo THREADS.
                let mut mine = vec![0; (PARTS * PART) as usize];
                for i in 0..600 {
                    let p = rng.below(PARTS / THREADS) * THREADS + t;
                    let (from, to) = ((p * PART) as usize, ((p + 1) * PART) as usize);
                    let data = bytes(rng.number(), PART as usize);
                    if rng.one_in(6) {
                        fs.fallocate(ino, FallocMode::Punch, p * PART, PART)
                            .expect("punch");
                        mine[from..to].fill(0);
                    } else {
                        fs.write(ino, p * PART, &data, true).expect("write");
                        mine[from..to].copy_from_slice(&data);
                    }
                    let p = rng.below(PARTS / THREADS) * THREADS + t;
                    let got = fs.read(ino, p * PART, PART as usize).expect("read");
                    let want = &mine[(p * PART) as usize..][..got.len()];
                    assert!(
                        got == want,
                        "{mode:?}, seed {seed}, thread {t}, write {i}, part {p}"
                    );
                }
                mine
            }
        };
        let handles: Vec<_> = (0..THREADS).map(|t| s.spawn(spawn(t))).collect();
        handles
            .into_iter()
            .map(|h| h.join().expect("a thread failed"))
            .collect()
    });
    let size = fs.getattr(ino).expect("getattr").inode.size;
    let mut want: Vec<u8> = (0..size)
        .map(|i| ends[(i / PART % THREADS) as usize][i as usize])
        .collect();
    want.truncate(size as usize);
    let verify = |fs: &Fs| {
        let got = fs.read(ino, 0, size as usize).expect("read");
        assert!(got == want, "{mode:?}, seed {seed}");
    };
    verify(&fs);
    fs.sync_all().expect("sync");
    fs.finish_chores();
    fs.abandon();
    let fs = media.mount(&options(mode.0));
    verify(&fs);
    fs.shutdown().expect("shutdown");
}

#[test]
fn parts_of_one_file() {
    for mode in MODES {
        seeds(5, 1)
            .into_iter()
            .for_each(|seed| one_file(mode, seed));
    }
}

/// Ends the other threads when it is dropped.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A thread that reads while others write, cut and grow the file sees each request entirely or not at all.
fn no_torn_reads(mode: (&str, Backend)) {
    const LEN: usize = 5 * BLOCK;
    let media = Media::new(&Shape::SMALL, mode.1);
    let fs = media.mount(&options(mode.0));
    let ino = fs
        .mknod(ME, ROOT, b"file", S_IFREG | 0o644, 0)
        .expect("mknod")
        .ino;
    let stop = AtomicBool::new(false);
    let reads = AtomicU64::new(0);
    std::thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| {
                // Also where a reader fails: the writer waits for reads.
                let _over = Over(&stop);
                while !stop.load(Ordering::Relaxed) {
                    let got = fs.read(ino, 100, LEN).expect("read");
                    let first = got.first().copied();
                    assert!(
                        got.iter().all(|b| Some(*b) == first),
                        "{mode:?}: a torn read"
                    );
                    assert!(
                        got.is_empty() || got.len() == LEN,
                        "{mode:?}: {} bytes",
                        got.len()
                    );
                    reads.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let writer = s.spawn(|| {
            // Until there has been much to see, and it was looked at often.
            let enough = |i| i >= 900 && reads.load(Ordering::Relaxed) >= 900;
            for i in (0u64..).take_while(|i| !enough(*i) && !stop.load(Ordering::Relaxed)) {
                let data = vec![(i % 250) as u8 + 1; LEN];
                fs.write(ino, 100, &data, false).expect("write");
                if i % 7 == 0 {
                    let set = SetAttr {
                        size: Some(0),
                        ..SetAttr::default()
                    };
                    fs.setattr(ino, &set, false).expect("truncate");
                }
            }
        });
        let result = writer.join();
        stop.store(true, Ordering::Relaxed);
        assert!(result.is_ok());
    });
    fs.shutdown().expect("shutdown");
}

#[test]
fn reads_are_not_torn() {
    MODES.into_iter().for_each(no_torn_reads);
}

/// Several threads fill the volume at once, and empty it again.
#[test]
fn filling_together() {
    const SHAPE: Shape = Shape {
        blocks: 900,
        spare: 16,
        nodes: 256,
        ..Shape::SMALL
    };
    for mode in MODES {
        let media = Media::new(&SHAPE, mode.1);
        let fs = media.mount(&options(mode.0));
        for time in 0..3 {
            std::thread::scope(|s| {
                for t in 0..3u64 {
                    let fs = &fs;
                    s.spawn(move || fill_and_empty(fs, t, time, mode));
                }
            });
        }
        fs.finish_chores();
        fs.abandon();
        account::finish_background(&fs);
        account::check(&fs, &Model::new()).unwrap_or_else(|e| panic!("{mode:?}: {e}"));
    }
}

fn fill_and_empty(fs: &Fs, t: u64, time: u64, mode: (&str, Backend)) {
    let mut files = Vec::new();
    'full: for i in 0..200u64 {
        let name = format!("{t}-{i}").into_bytes();
        let ino = match fs.mknod(ME, ROOT, &name, S_IFREG, 0) {
            Ok(a) => a.ino,
            Err(FsError::NoSpace) => break,
            Err(e) => panic!("{mode:?}: {e}"),
        };
        files.push((name, ino, Vec::new()));
        let content = files.last_mut().map(|f| &mut f.2);
        let Some(content) = content else { continue };
        for k in 0..8 {
            let piece = bytes(t << 40 | time << 30 | i << 10 | k, 9000);
            match fs.write(ino, content.len() as u64, &piece, false) {
                Ok(()) => content.extend_from_slice(&piece),
                Err(FsError::NoSpace) => break 'full,
                Err(e) => panic!("{mode:?}: {e}"),
            }
        }
    }
    for (name, ino, content) in files {
        let got = fs.read(ino, 0, content.len() + 1).expect("read");
        assert!(got == content, "{mode:?}: inode {ino}");
        fs.unlink(ROOT, &name).expect("unlink");
        fs.forget(ino, 1);
    }
}

/// An inode that is changed while handles are dropped never falls back to what it was.
#[test]
fn evicting_loses_no_change() {
    let media = Media::new(&Shape::SMALL, Backend::Volatile);
    let fs = media.mount(&options("noatime"));
    while_evicting(&fs, || {
        std::thread::scope(|s| {
            for t in 0..3u64 {
                let fs = &fs;
                s.spawn(move || {
                    let name = format!("f{t}");
                    let new = fs.mknod(ME, ROOT, name.as_bytes(), S_IFREG | 0o644, 0);
                    let ino = new.expect("mknod").ino;
                    for i in 0..100_000 {
                        let set = SetAttr {
                            uid: Some(i),
                            ..SetAttr::default()
                        };
                        fs.setattr(ino, &set, false).expect("setattr");
                        assert_eq!(fs.getattr(ino).expect("getattr").inode.uid, i);
                    }
                });
            }
        });
    });
    fs.shutdown().expect("shutdown");
}
