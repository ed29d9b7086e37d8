//! Threads all over each other on a few names.

use std::collections::BTreeMap;

use quayfs_fs::{Caller, Fs, RenameFlags, SetAttr};
use quayfs_layout::inode::{ROOT, S_IFREG};
use quayfs_layout::{BLOCK, Ino};
use quayfs_oracle::evict::while_evicting;
use quayfs_oracle::model::Model;
use quayfs_oracle::rng::{Rng, bytes};
use quayfs_oracle::{MODES, Media, Shape, account, dump, ops, options, seeds};
use quayfs_pmem::Backend;
use quayfs_store::error::FsError;

const B: u64 = BLOCK as u64;
const ME: Caller = Caller {
    uid: 0,
    gid: 0,
    umask: 0,
};

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
                            Err(e) if e.is_io() => panic!("{mode:?}, seed {seed}, {t}, {i}: {e}"),
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
    account::finish_background(&fs);
    let mut files = Model::new();
    for item in tree.values() {
        if let Some((ino, _, _)) = item.identity
            && item.mode & S_IFREG == S_IFREG
        {
            let mut node = quayfs_oracle::model::Node {
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
    let one = |a: quayfs_fs::Attr| fs.forget(a.ino, 1);
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
                whiteout: None,
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
