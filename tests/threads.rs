//! Many threads at once: on trees of their own, on one file, and all over each other.

mod common;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use common::model::Model;
use common::ops::{Op, Taste};
use common::rng::{Rng, bytes};
use common::{Media, Shape, account, apply, dump, ops, options, seeds};
use quayfs::error::FsError;
use quayfs::fs::{Caller, FallocMode, Fs, RenameFlags, SetAttr};
use quayfs_layout::inode::{ROOT, S_IFREG};
use quayfs_layout::{BLOCK, Ino};
use quayfs_pmem::Backend;

const B: u64 = BLOCK as u64;
const ME: Caller = Caller { uid: 0, gid: 0 };

/// Mount options to be tried, with the backend that goes with them.
const MODES: [(&str, Backend); 5] = [
    ("noatime", Backend::Volatile),
    (
        "relatime,ablation=staging:central,checkpoint=swap",
        Backend::Dax,
    ),
    ("noatime,durability=commit", Backend::File),
    ("noatime,data=ordered", Backend::Volatile),
    ("noatime,data=writeback,checkpoint=inplace", Backend::File),
];

/// Runs `work` while another thread keeps dropping from DRAM what can be read again.
fn while_evicting<T>(fs: &Fs, work: impl FnOnce() -> T) -> T {
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        let evictor = s.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                fs.e.kick(true, false);
                (0..50).for_each(|_| apply::evict(fs));
            }
        });
        let stopper = Stopper(&stop);
        let out = work();
        drop(stopper);
        evictor.join().expect("evictor");
        out
    })
}

/// Says stop also when the work has failed.
struct Stopper<'a>(&'a AtomicBool);

impl Drop for Stopper<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

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
    account::settle(&fs);
    let all = Model {
        root: ROOT,
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
                    let data = bytes(rng.next(), PART as usize);
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

/// Whoever reads while others write, cut and grow sees each request entirely or not at all.
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
            for i in 0..900u64 {
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
    assert!(reads.into_inner() > 0);
    fs.shutdown().expect("shutdown");
}

#[test]
fn reads_are_not_torn() {
    MODES.into_iter().for_each(no_torn_reads);
}

/// Threads that know nothing of each other, on the same few names. What they meet is luck, but the
/// tree stays one: every link is counted, everything has one parent, all that is not reachable is
/// free.
fn all_over(mode: (&str, Backend), seed: u64) {
    const THREADS: u64 = 4;
    let media = Media::new(&Shape::SMALL, mode.1);
    let fs = media.mount(&options(mode.0));
    let work = || {
        std::thread::scope(|s| {
            for t in 0..THREADS {
                let fs = &fs;
                s.spawn(move || {
                    let mut rng = Rng::new(seed ^ t << 40);
                    for i in 0..1500 {
                        match meddle(fs, &mut rng) {
                            Ok(()) => {}
                            Err(FsError::Io(e)) => panic!("{mode:?}, seed {seed}, {t}, {i}: {e}"),
                            Err(_) => {}
                        }
                    }
                });
            }
        })
    };
    if seed.is_multiple_of(2) {
        while_evicting(&fs, work)
    } else {
        work()
    }
    consistent(&fs, &format!("{mode:?}, seed {seed}"));
    fs.sync_all().expect("sync");
    fs.finish_chores();
    fs.abandon();
    media
        .fsck()
        .unwrap_or_else(|e| panic!("{mode:?}, seed {seed}: {e}"));
    let fs = media.mount_quiet(&options(mode.0));
    let tree = consistent(&fs, &format!("{mode:?}, seed {seed}, after a remount"));
    account::settle(&fs);
    let mut files = Model::new();
    for item in tree.values() {
        if let Some((ino, _, _)) = item.identity
            && item.mode & S_IFREG == S_IFREG
        {
            let mut node = common::model::Node {
                mode: item.mode,
                ..Default::default()
            };
            node.content.mapped = item.mapped.clone();
            files.nodes.insert(ino, node);
        }
    }
    account::check(&fs, &files).unwrap_or_else(|e| panic!("{mode:?}, seed {seed}: {e}"));
}

/// One random operation by path; lookups are forgotten at once.
fn meddle(fs: &Fs, rng: &mut Rng) -> Result<(), FsError> {
    let walk = |rng: &mut Rng| -> Result<Ino, FsError> {
        let mut at = ROOT;
        for _ in 0..rng.below(4) {
            let a = fs.lookup(at, &[b'a' + rng.below(3) as u8])?;
            fs.forget(a.ino, 1);
            if !a.inode.is_dir() {
                break;
            }
            at = a.ino;
        }
        Ok(at)
    };
    let (dir, to) = (walk(rng)?, walk(rng)?);
    let (name, new) = ([b'a' + rng.below(5) as u8], [b'a' + rng.below(5) as u8]);
    let one = |a: quayfs::fs::Attr| fs.forget(a.ino, 1);
    match rng.below(13) {
        0 | 1 => fs.mkdir(ME, dir, &name, 0o755).map(one),
        2 => fs.mknod(ME, dir, &name, S_IFREG | 0o644, 0).map(one),
        3 => fs.symlink(ME, dir, &name, &ops::target(200)).map(one),
        4 => fs.unlink(dir, &name),
        5 => fs.rmdir(dir, &name),
        6..9 => {
            let exchange = rng.one_in(4);
            let flags = RenameFlags {
                exchange,
                no_replace: !exchange && rng.one_in(4),
            };
            fs.rename((dir, &name), (to, &new), flags)
        }
        9 => {
            let a = fs.lookup(dir, &name)?;
            let linked = fs.link(a.ino, to, &new).map(one);
            fs.forget(a.ino, 1);
            linked
        }
        10 => {
            let a = fs.lookup(dir, &name)?;
            let len = 1 + rng.below(6 * B) as usize;
            let done = fs.write(a.ino, rng.below(8 * B), &bytes(1, len), true);
            fs.forget(a.ino, 1);
            done
        }
        11 => {
            let a = fs.lookup(dir, &name)?;
            let set = SetAttr {
                size: Some(rng.below(8 * B)),
                ..SetAttr::default()
            };
            let done = fs.setattr(a.ino, &set, false).map(drop);
            fs.forget(a.ino, 1);
            done
        }
        _ => {
            let mut n = 0;
            fs.readdir(dir, 0, |_| {
                n += 1;
                true
            })
        }
    }
}

/// Reads the tree and counts links.
fn consistent(fs: &Fs, when: &str) -> dump::Tree {
    let tree = dump::dump(fs, ROOT).unwrap_or_else(|e| panic!("{when}: {e}"));
    let mut links: BTreeMap<&[u8], u32> = BTreeMap::new();
    let mut subdirs: BTreeMap<&[u8], u32> = BTreeMap::new();
    for (path, item) in &tree {
        *links.entry(&item.first).or_default() += 1;
        let is_dir = item.mode & 0o170_000 == 0o040_000;
        if is_dir && let Some(at) = path.iter().rposition(|b| *b == b'/') {
            *subdirs.entry(&path[..at]).or_default() += 1;
        }
        assert!(
            !is_dir || item.first == *path,
            "{when}: a directory with two names"
        );
    }
    for (path, item) in &tree {
        let is_dir = item.mode & 0o170_000 == 0o040_000;
        let want = if is_dir {
            2 + subdirs.get(&path[..]).copied().unwrap_or(0)
        } else {
            links[&item.first[..]]
        };
        assert_eq!(
            item.nlink,
            want,
            "{when}: {}",
            String::from_utf8_lossy(path)
        );
    }
    tree
}

#[test]
fn all_over_each_other() {
    for (i, mode) in MODES.into_iter().enumerate() {
        for seed in seeds(40 + 100 * i as u64, 2) {
            all_over(mode, seed);
        }
    }
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
        fs.abandon();
        account::settle(&fs);
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

/// An inode that is changed while cells are dropped never falls back to what it was.
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
