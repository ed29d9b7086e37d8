use quayfs_fs::volume::{Access, Volume};
use quayfs_options::MountOptions;

use super::page_cache::PageCache;
use super::*;
use quayfs_bench::run::{self, Between, Total};
use quayfs_bench::workload::{self, Params, Place, Wishes, Workload};
use quayfs_blockdev::BlockDevice;
use quayfs_crashsim::SimDevice;
use quayfs_layout::geometry::Geometry;
use quayfs_pmem::Region;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::AtomicBool;

const PMEM: u64 = 64 << 20;
const DATA: u64 = 256 << 20;

fn fresh(options: &str) -> Arc<Fs> {
    let region = Arc::new(Region::anonymous(PMEM));
    let device: Arc<dyn BlockDevice> = Arc::new(SimDevice::unrecorded(DATA / 4096));
    let geometry = Geometry::compute(PMEM, DATA, 4).unwrap();
    quayfs_mkfs::format(&region, &*device, geometry, "bench").unwrap();
    let volume = Volume::from_parts(region, device, Access::ReadWrite).unwrap();
    Fs::mount(volume, &MountOptions::parse(&[options]).unwrap()).unwrap()
}

struct Nothing;

impl Between for Nothing {
    fn prepared(&mut self) -> quayfs_bench::Result<()> {
        Ok(())
    }

    fn warm(&mut self) -> quayfs_bench::Result<()> {
        Ok(())
    }
}

/// A little of everything, by one thread unless told otherwise.
fn little(threads: u32) -> Wishes {
    Wishes {
        threads: Some(threads),
        seconds: Some(600.0),
        warmup: Some(0.0),
        ops: Some(60),
        file_bytes: Some(1 << 20),
        files: Some(100),
        seed: Some(7),
    }
}

fn go(
    workload: &dyn Workload,
    params: &Params,
    place: &Place<'_>,
    stop: &AtomicBool,
) -> quayfs_bench::Result<Total> {
    let job = workload.prepare(place)?;
    let steps = workload.info().steps.len();
    let tallies = run::run(&*job, place, steps, false, stop, &mut Nothing)?;
    Ok(run::merge(tallies, params).unwrap())
}

/// Everything below a directory: directories, and files with their content.
type Tree = BTreeMap<String, Option<Vec<u8>>>;

fn tree_of_dir(path: &Path, prefix: &str, found: &mut Tree) {
    for entry in std::fs::read_dir(path).unwrap() {
        let entry = entry.unwrap();
        let name = format!("{prefix}/{}", entry.file_name().to_str().unwrap());
        if entry.file_type().unwrap().is_dir() {
            tree_of_dir(&entry.path(), &name, found);
            found.insert(name, None);
        } else {
            found.insert(name, Some(std::fs::read(entry.path()).unwrap()));
        }
    }
}

fn tree_of_fs(fs: &Fs, dir: u64, prefix: &str, found: &mut Tree) {
    let mut entries = Vec::new();
    fs.readdir(dir, 0, |e| {
        entries.push(e);
        true
    })
    .unwrap();
    for e in entries {
        if e.name == b"." || e.name == b".." {
            continue;
        }
        let name = format!("{prefix}/{}", std::str::from_utf8(&e.name).unwrap());
        let inode = fs.getattr(e.ino).unwrap().inode;
        if inode.is_dir() {
            tree_of_fs(fs, e.ino, &name, found);
            found.insert(name, None);
        } else {
            let content = fs.read(e.ino, 0, inode.size as usize).unwrap();
            found.insert(name, Some(content));
        }
    }
}

#[test]
fn every_workload_leaves_the_tree_that_system_calls_leave() {
    let cases = [
        ("durability=op", false),
        ("durability=op", true),
        ("durability=commit,data=ordered", false),
    ];
    for (options, page_cache) in cases {
        for w in workload::all() {
            let info = w.info();
            if info.kernel_only.is_some() {
                continue;
            }
            let params = Params::new(info, &little(1)).unwrap();
            let stop = AtomicBool::new(false);
            let dir = tempfile::tempdir().unwrap();
            let place = Place::new(&params, dir.path(), &stop).unwrap();
            let there = go(&*w, &params, &place, &stop).unwrap();

            let fs = fresh(options);
            let library = OpLayer::new(Arc::clone(&fs));
            let library: Box<dyn Library> = match page_cache {
                true => Box::new(PageCache::over(library)),
                false => Box::new(library),
            };
            let here = {
                let place = Place::within(&params, &*library, &stop).unwrap();
                go(&*w, &params, &place, &stop).unwrap()
            };
            let name = info.name;
            let (here, there) = (here.sum, there.sum);
            assert_eq!(
                (here.ops, here.bytes_written),
                (there.ops, there.bytes_written),
                "{name}"
            );
            assert_eq!(here.bytes_read, there.bytes_read, "{name}");
            let mut calls = [here.calls, there.calls];
            // How many entries a call returns is the file system's choice, and so is rewinding.
            for c in &mut calls {
                (c.readdir, c.seek) = (0, 0);
            }
            assert_eq!(calls[0], calls[1], "{name}");
            let (mut ours, mut theirs) = (Tree::new(), Tree::new());
            tree_of_fs(&fs, fs.root(), "", &mut ours);
            tree_of_dir(dir.path(), "", &mut theirs);
            assert!(ours.keys().eq(theirs.keys()), "{name}: {:?}", ours.keys());
            // These write from the buffer that they read into, and what it holds behind the end of a file is the
            // choice of each library.
            let same = |a: &[u8], b: &[u8]| match info.family {
                "filebench" | "pool" => a.len() == b.len(),
                _ => a == b,
            };
            for (path, content) in &ours {
                let same = match (content, &theirs[path]) {
                    (Some(a), Some(b)) => same(a, b),
                    (a, b) => a == b,
                };
                assert!(same, "{name}: {path}");
            }
            drop(library);
            assert!(no_lookups_are_left(&fs, &ours), "{name}");
            fs.shutdown().unwrap();
        }
    }
}

/// Whether every lookup was taken back.
fn no_lookups_are_left(fs: &Fs, tree: &Tree) -> bool {
    tree.keys().all(|path| {
        let mut ino = fs.root();
        for name in path.split('/').skip(1) {
            ino = fs.lookup(ino, name.as_bytes()).unwrap().ino;
            fs.forget(ino, 1);
        }
        !fs.e.inodes.is_known(ino) && !fs.e.inodes.is_known(fs.root())
    })
}

#[test]
fn threads_do_it_too() {
    for w in workload::all() {
        let info = w.info();
        if info.kernel_only.is_some() {
            continue;
        }
        let params = Params::new(info, &little(3)).unwrap();
        let stop = AtomicBool::new(false);
        let fs = fresh("durability=op");
        let library = OpLayer::new(Arc::clone(&fs));
        let total = {
            let place = Place::within(&params, &library, &stop).unwrap();
            // There is nothing above a library's root.
            assert_eq!(&*place.dir().whole_path(c"a/b"), c"a/b");
            go(&*w, &params, &place, &stop).unwrap()
        };
        assert_eq!(total.thread_ops.len(), 3, "{}", info.name);
        assert!(total.thread_ops.iter().all(|n| *n > 0), "{}", info.name);
        fs.shutdown().unwrap();
    }
}

#[test]
fn what_needs_the_kernel_says_why() {
    let mut without = Vec::new();
    for w in workload::all() {
        if let Err(e) = w.info().check_library() {
            assert!(e.to_string().starts_with(w.info().name), "{e}");
            without.push((w.info().name, e.to_string()));
        }
    }
    let names: Vec<&str> = without.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["ls-cold", "sqlite-wal", "sqlite-delete"]);
    assert!(without[0].1.contains("kernel's caches"), "{without:?}");
}

#[test]
fn flags_mean_what_they_mean_to_open() {
    let fs = fresh("durability=op");
    let l = OpLayer::new(Arc::clone(&fs));
    let mode = Mode::from_raw_mode(0o644);
    let root = l.root().unwrap();
    let open = |path: &CStr, flags| l.open(root, path, flags, mode);
    assert_eq!(open(c"f", OFlags::RDONLY), Err(Errno::NOENT));
    assert_eq!(
        open(c"f", OFlags::CREATE | OFlags::DIRECTORY).err(),
        Some(Errno::NOTDIR)
    );
    let new = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR;
    assert_eq!(
        open(c"f", new),
        Err(Errno::EXIST),
        "made by the call before"
    );
    let f = open(c"f", OFlags::CREATE | OFlags::RDWR).unwrap();
    assert_eq!(l.write(f, b"abcdef", 0, OFlags::RDWR), Ok(6));
    assert_eq!(l.size(f), Ok(6));
    let again = open(c"f", OFlags::TRUNC | OFlags::WRONLY).unwrap();
    assert_eq!((again, l.size(f)), (f, Ok(0)));
    l.close(again);
    // While open, it outlives its name. Once closed, it is gone as soon as a thread has got to it.
    l.unlink(root, c"f").unwrap();
    assert_eq!(l.write(f, b"x", 0, OFlags::RDWR), Ok(1));
    l.close(f);
    fs.finish_chores();
    assert_eq!(l.size(f), Err(Errno::STALE));
    l.mkdir(root, c"d", Mode::from_raw_mode(0o755)).unwrap();
    assert_eq!(open(c"d", OFlags::RDWR), Err(Errno::ISDIR));
    let d = open(c"d", OFlags::DIRECTORY).unwrap();
    for name in [c"d/a", c"d/b"] {
        l.close(open(name, new).unwrap());
    }
    assert_eq!(open(c"d/a/x", OFlags::RDONLY), Err(Errno::NOTDIR));
    // A name at a time where there is no room for two.
    let (mut cookie, mut seen) = (0, Vec::new());
    loop {
        let mut room = Vec::with_capacity(3);
        l.list(d, &mut cookie, &mut room).unwrap();
        if room.is_empty() {
            break;
        }
        seen.push(room);
    }
    seen.sort();
    assert_eq!(seen, [b"a\0", b"b\0"]);
    assert_eq!(l.rmdir(root, c"d"), Err(Errno::NOTEMPTY));
    l.rename(root, c"d/a", c"d/b").unwrap();
    assert_eq!(l.stat(d, c"a"), Err(Errno::NOENT));
    assert_eq!(l.stat(root, c"d/b"), Ok(()));
    l.close(d);
    fs.shutdown().unwrap();
}

#[test]
fn handles_keep_what_the_kernel_would_keep() {
    use quayfs_bench::handle::Handle;
    use quayfs_bench::meter::Meter;
    let fs = fresh("durability=op");
    let l = OpLayer::new(Arc::clone(&fs));
    {
        let root = Handle::root(&l).unwrap();
        let mut m = Meter::new(0);
        let file = m.create(&root, c"f").unwrap();
        m.write(&file, b"abc").unwrap();
        m.write(&file, b"def").unwrap();
        let e = m.pread(&file, &mut [0; 8], 0).unwrap_err().to_string();
        assert!(e.starts_with("read (operation layer: inode "), "{e}");
        assert!(e.contains("Bad file descriptor"), "{e}");
        m.close(file);
        let more = m
            .open(&root, c"f", OFlags::WRONLY | OFlags::APPEND)
            .unwrap();
        m.write(&more, b"ghi").unwrap();
        let file = m.open(&root, c"f", OFlags::RDWR).unwrap();
        assert_eq!(m.read_to_end(&file, &mut [0; 4]).unwrap(), 9);
        assert_eq!(m.seek_end(&file).unwrap(), 9);
        m.write(&file, b"j").unwrap();
        let mut all = [0; 10];
        m.pread(&file, &mut all, 0).unwrap();
        assert_eq!(&all, b"abcdefghij");
        let reader = m.open(&root, c"f", OFlags::RDONLY).unwrap();
        let e = m.pwrite(&reader, b"x", 0).unwrap_err().to_string();
        assert!(e.contains("Bad file descriptor"), "{e}");
    }
    drop(l);
    assert!(!fs.e.inodes.is_known(fs.root()));
    fs.shutdown().unwrap();
}

#[test]
fn the_way_to_a_name_is_asked_for_once() {
    let fs = fresh("durability=op");
    let l = OpLayer::new(Arc::clone(&fs));
    let root = l.root().unwrap();
    let mode = Mode::from_raw_mode(0o755);
    let make = |path: &CStr| {
        let new = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR;
        l.close(l.open(root, path, new, mode).unwrap());
    };
    let ino_of = |dir, name: &[u8]| {
        let found = fs.lookup(dir, name).unwrap().ino;
        fs.forget(found, 1);
        found
    };
    l.mkdir(root, c"a", mode).unwrap();
    l.mkdir(root, c"a/b", mode).unwrap();
    let a = ino_of(root, b"a");
    let b = ino_of(a, b"b");
    assert!(fs.e.inodes.is_known(a) && !fs.e.inodes.is_known(b));
    make(c"a/b/f");
    assert!(fs.e.inodes.is_known(b));
    // It is not asked for again: a rename that the library is not told of is not noticed.
    (fs.rename((root, b"a"), (root, b"z"), RenameFlags::default())).unwrap();
    assert_eq!(l.stat(root, c"a/b/f"), Ok(()));
    (fs.rename((root, b"z"), (root, b"a"), RenameFlags::default())).unwrap();
    // Renamed or removed here, a directory is where it is said to be, and what is within it has gone along.
    l.rename(root, c"a", c"c").unwrap();
    assert_eq!(l.stat(root, c"a/b/f"), Err(Errno::NOENT));
    assert_eq!(l.stat(root, c"c/b/f"), Ok(()));
    l.mkdir(root, c"a", mode).unwrap();
    l.mkdir(root, c"a/b", mode).unwrap();
    make(c"a/b/g");
    assert_eq!(l.stat(root, c"c/b/g"), Err(Errno::NOENT));
    l.unlink(root, c"a/b/g").unwrap();
    l.rename(root, c"c/b", c"a/b").unwrap();
    assert_eq!(l.stat(root, c"c/b/f"), Err(Errno::NOENT));
    assert_eq!(l.stat(root, c"a/b/f"), Ok(()), "in the place of the other");
    l.unlink(root, c"a/b/f").unwrap();
    l.rmdir(root, c"a/b").unwrap();
    assert_eq!(l.stat(root, c"a/b/f"), Err(Errno::NOENT));
    fs.finish_chores();
    assert_eq!(l.size(b), Err(Errno::STALE), "nobody keeps it");
    make(c"a/b");
    assert_eq!(l.stat(root, c"a/b/f"), Err(Errno::NOTDIR));
    l.close(root);
    let known = |ino| fs.e.inodes.is_known(ino);
    let inodes = [
        root,
        a,
        ino_of(root, b"a"),
        ino_of(ino_of(root, b"a"), b"b"),
    ];
    assert_eq!(inodes.map(known), [false, true, true, false]);
    drop(l);
    assert!(!inodes.into_iter().any(known));
    fs.shutdown().unwrap();
}

#[test]
fn what_the_page_cache_has_is_not_read_below_it() {
    let fs = fresh("durability=op");
    // For writes past the cache, which the cache does not know of.
    let below = OpLayer::new(Arc::clone(&fs));
    let cache = PageCache::over(OpLayer::new(Arc::clone(&fs)));
    let mode = Mode::from_raw_mode(0o644);
    let new = OFlags::CREATE | OFlags::RDWR;
    let root = cache.root().unwrap();
    let f = cache.open(root, c"f", new, mode).unwrap();
    // How much is read, and how much of it arrives.
    let read = |len: usize, offset: u64| {
        let arrived = || fs.e.metrics.snapshot().bytes_read;
        let before = arrived();
        let n = cache.read(f, &mut vec![9; len], offset).unwrap();
        (n as u64, arrived() - before)
    };
    // One page whole, one in part: the latter is read when it is asked for, and kept from then on.
    assert_eq!(cache.write(f, &[1; 5000], 0, new), Ok(5000));
    assert_eq!(read(8192, 0), (5000, 904));
    assert_eq!(read(10_000, 4090), (910, 0));
    // What is appended joins the page that is there, behind the end that the kernel knows.
    below.write(f, &[3; 10], 5000, new).unwrap();
    assert_eq!(cache.write(f, b"end", 0, new | OFlags::APPEND), Ok(3));
    assert_eq!((cache.size(f), below.size(f)), (Ok(5003), Ok(5010)));
    let mut end = [0; 3];
    below.read(f, &mut end, 5000).unwrap();
    assert_eq!(&end, b"end");
    assert_eq!(read(100, 4996), (7, 0));
    assert_eq!((read(1, 5003), read(7, 1 << 40)), ((0, 0), (0, 0)));
    // A hole is read, whole pages of it.
    assert_eq!(cache.write(f, b"far", 20_000, new), Ok(3));
    assert_eq!((read(4, 12_288), read(4, 12_300)), ((4, 4096), (4, 0)));
    assert_eq!(read(9, 19_999), (4, 20_003 - 16_384));
    // Of pages here and there only those that are missing.
    assert_eq!(read(20_000, 0), (20_000, 4096));
    // An empty file has no pages, however it was emptied. The same holds for another file of the same number.
    below.close(below.open(root, c"f", new | OFlags::TRUNC, mode).unwrap());
    assert_eq!(read(4, 0), (4, 0));
    cache.close(cache.open(root, c"f", new, mode).unwrap());
    assert_eq!((cache.size(f), read(1, 0)), (Ok(0), (0, 0)));
    assert_eq!(cache.write(f, &[1; 4096], 0, new), Ok(4096));
    cache.close(cache.open(root, c"f", new | OFlags::TRUNC, mode).unwrap());
    assert_eq!((cache.size(f), read(1, 0)), (Ok(0), (0, 0)));
    cache.write(f, b"one", 0, new).unwrap();
    assert_eq!((read(3, 0), read(3, 0)), ((3, 3), (3, 0)));
    let g = cache.open(root, c"g", new, mode).unwrap();
    cache.write(g, b"other", 0, new).unwrap();
    cache.rename(root, c"g", c"f").unwrap();
    assert_eq!(read(9, 0), (3, 3), "it is still open");
    cache.close(g);
    cache.unlink(root, c"f").unwrap();
    assert_eq!(cache.stat(root, c"f"), Err(Errno::NOENT));
    assert_eq!(cache.unlink(root, c"f"), Err(Errno::NOENT));
    cache.close(f);
    fs.finish_chores();
    let again = cache.open(root, c"again", new, mode).unwrap();
    assert_eq!(cache.size(again), Ok(0));
    cache.close(again);
    fs.shutdown().unwrap();
}
