//! Directories of thousands of names: growing, shrinking, and listed meanwhile.

use std::collections::{BTreeMap, BTreeSet};

use quayfs_background::digest::digest_all;
use quayfs_fs::{Caller, Fs, RenameFlags};
use quayfs_layout::Ino;
use quayfs_layout::inode::{ROOT, S_IFREG};
use quayfs_oracle::model::Model;
use quayfs_oracle::rng::Rng;
use quayfs_oracle::{Media, Shape, account, options};
use quayfs_pmem::Backend;
use quayfs_store::error::FsError;

const ME: Caller = Caller {
    uid: 0,
    gid: 0,
    umask: 0,
};
const SHAPE: Shape = Shape {
    nodes: 2048,
    ..Shape::SMALL
};

type Names = BTreeMap<Vec<u8>, Ino>;

/// Names of all lengths, mostly long: leaves are full with fifteen of the longest.
fn name(rng: &mut Rng) -> Vec<u8> {
    let k = rng.below(1 << 40);
    let len = match rng.below(4) {
        0 => 12,
        1 => 12 + rng.below(243) as usize,
        _ => 255,
    };
    format!("{k:0>len$}").into_bytes()
}

fn some_name(rng: &mut Rng, names: &Names) -> Option<Vec<u8>> {
    let probe = name(rng);
    let mut around = names.range(probe..).chain(names.iter());
    around.next().map(|(n, _)| n.clone())
}

fn add(fs: &Fs, dir: Ino, names: &mut Names, new: Vec<u8>) {
    match fs.mknod(ME, dir, &new, S_IFREG | 0o644, 0) {
        Ok(a) => {
            fs.forget(a.ino, 1);
            assert!(names.insert(new, a.ino).is_none(), "a name twice");
        }
        Err(e) => {
            assert_eq!(e, FsError::Exists);
            assert!(names.contains_key(&new));
        }
    }
}

fn list(fs: &Fs, dir: Ino) -> Names {
    let mut seen = Names::new();
    fs.readdir(dir, 0, |e| {
        let dots = e.name == b"." || e.name == b"..";
        assert!(
            dots || seen.insert(e.name, e.ino).is_none(),
            "a name listed twice"
        );
        true
    })
    .expect("readdir");
    seen
}

fn check(fs: &Fs, dir: Ino, names: &Names, when: &str) {
    assert!(list(fs, dir) == *names, "{when}: {} names", names.len());
    let attr = fs.getattr(dir).expect("getattr").inode;
    assert_eq!(attr.entries, names.len() as u64, "{when}");
    for (name, ino) in names {
        let found = fs.lookup(dir, name).expect("lookup").ino;
        fs.forget(found, 1);
        assert_eq!(found, *ino, "{when}");
    }
}

#[test]
fn thousands_of_names_come_and_go() {
    for seed in 0..2 {
        let media = Media::new(&SHAPE, Backend::Volatile);
        let mut fs = media.mount_quiet(&options("noatime"));
        let dir = fs.mkdir(ME, ROOT, b"dir", 0o755).expect("mkdir").ino;
        let mut rng = Rng::new(seed);
        let mut names = Names::new();
        let mut deepest = 0;
        // More leaves at the peak than one index page has room for, whatever the hash key.
        for (wave, goal) in [5000, 20, 1500, 0].into_iter().enumerate() {
            let growing = goal > names.len();
            while names.len() != goal {
                // Three steps forward, one back.
                if growing == (rng.below(4) > 0) {
                    let new = name(&mut rng);
                    add(&fs, dir, &mut names, new);
                } else if let Some(old) = some_name(&mut rng, &names) {
                    if rng.one_in(4) {
                        let new = name(&mut rng);
                        let flags = RenameFlags {
                            no_replace: true,
                            ..RenameFlags::default()
                        };
                        if fs.rename((dir, &old), (dir, &new), flags).is_ok() {
                            let ino = names.remove(&old).unwrap_or_default();
                            names.insert(new, ino);
                        }
                    } else {
                        fs.unlink(dir, &old).expect("unlink");
                        names.remove(&old);
                    }
                }
                if rng.one_in(300) {
                    fs.sync_all().expect("sync");
                    digest_all(&fs.e).expect("digest");
                }
            }
            deepest = deepest.max(fs.getattr(dir).expect("getattr").inode.depth);
            check(&fs, dir, &names, &format!("seed {seed}, wave {wave}"));
            fs.abandon();
            media
                .fsck()
                .unwrap_or_else(|e| panic!("seed {seed}, wave {wave}: {e}"));
            fs = media.mount_quiet(&options("noatime"));
            check(
                &fs,
                dir,
                &names,
                &format!("seed {seed}, wave {wave}, mounted again"),
            );
        }
        assert!(deepest >= 2, "only {deepest} index levels");
        let attr = fs.getattr(dir).expect("getattr").inode;
        assert_eq!(
            (attr.root, attr.blocks, attr.depth),
            (0, 0, 0),
            "pages are left"
        );
        account::finish_background(&fs);
        account::check(&fs, &Model::new()).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
}

/// A reader that lists a directory in portions while it changes sees each name that stays exactly once.
#[test]
fn listing_a_changing_directory() {
    let media = Media::new(&SHAPE, Backend::Volatile);
    let fs = media.mount_quiet(&options("noatime"));
    let dir = fs.mkdir(ME, ROOT, b"dir", 0o755).expect("mkdir").ino;
    let mut rng = Rng::new(7);
    let mut names = Names::new();
    while names.len() < 600 {
        let new = name(&mut rng);
        add(&fs, dir, &mut names, new);
    }
    for time in 0..6 {
        let (mut stay, mut seen) = (names.clone(), BTreeSet::new());
        let (mut at, mut more) = (0, true);
        while more {
            more = false;
            let mut left = 1 + rng.below(40);
            fs.readdir(dir, at, |e| {
                if left == 0 {
                    return false;
                }
                left -= 1;
                more = true;
                assert!(e.cookie > at, "time {time}: cookies do not grow");
                at = e.cookie;
                assert!(seen.insert(e.name), "time {time}: a name listed twice");
                true
            })
            .expect("readdir");
            for _ in 0..25 {
                if names.len() < 550 || (names.len() < 1200 && rng.one_in(2)) {
                    let new = name(&mut rng);
                    add(&fs, dir, &mut names, new);
                } else if let Some(old) = some_name(&mut rng, &names) {
                    fs.unlink(dir, &old).expect("unlink");
                    names.remove(&old);
                    stay.remove(&old);
                }
            }
        }
        let missed = stay.keys().filter(|n| !seen.contains(*n)).count();
        assert_eq!(missed, 0, "time {time}: of {}", stay.len());
    }
}
