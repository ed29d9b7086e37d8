//! Files without a name, whiteouts, what flags forbid, the end of a mount on request.

mod ahead;
mod behind;
mod exchange;
mod gather;
mod known;
mod left;
mod links;
mod panics;
mod partial;
mod places;
mod renames;
mod rest;
mod rounds;
mod scattered;
mod waits;

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use quayfs_blockdev::BlockDevice;
use quayfs_crashsim::SimDevice;
use quayfs_layout::geometry::Geometry;
use quayfs_layout::inode::{
    FLAG_APPEND, FLAG_DIRSYNC, FLAG_IMMUTABLE, FLAG_NOATIME, FLAG_NODUMP, FLAG_PROJECT, FLAG_SYNC,
    ROOT, S_IFCHR, S_IFREG,
};
use quayfs_layout::{BLOCK, Ino};
use quayfs_options::MountOptions;
use quayfs_pmem::{Backend, Region};
use quayfs_store::error::{FsError, Resource};

use quayfs_fs::volume::{Access, Volume};
use quayfs_fs::{
    Caller, FallocMode, Fs, RenameFlags, SetAttr, SetFlags, SetTime, SetXattr, Writes,
};
use quayfs_fsck::{FsckOptions, check_volume};

const PMEM: u64 = 20 << 20;
const DATA: u64 = 24 << 20;
const ROOT_USER: Caller = Caller {
    uid: 0,
    gid: 0,
    umask: 0,
};
const USER: Caller = Caller {
    uid: 7,
    gid: 8,
    umask: 0,
};
const PLAIN: RenameFlags = RenameFlags {
    no_replace: false,
    exchange: false,
    whiteout: None,
};
const WHITEOUT: RenameFlags = RenameFlags {
    whiteout: Some(USER),
    ..PLAIN
};

struct Disk {
    region: Arc<Region>,
    device: Arc<dyn BlockDevice>,
}

impl Disk {
    fn new() -> Self {
        Self::on(Backend::Volatile)
    }

    fn on(backend: Backend) -> Self {
        Self::with(backend, DATA)
    }

    /// With so many bytes of data.
    fn with(backend: Backend, data: u64) -> Self {
        let geometry = Geometry::compute(PMEM, data, 2).unwrap();
        let region = Arc::new(Region::from_extents(PMEM, [], None, backend));
        let device: Arc<dyn BlockDevice> = Arc::new(SimDevice::unrecorded(data / BLOCK as u64));
        quayfs_mkfs::format(&region, &*device, geometry, "test").unwrap();
        Self { region, device }
    }

    fn volume(&self) -> Volume {
        let (region, device) = (Arc::clone(&self.region), Arc::clone(&self.device));
        Volume::from_parts(region, device, Access::ReadWrite).unwrap()
    }

    fn mount(&self, options: &str) -> Arc<Fs> {
        let options = MountOptions::parse(&[options]).unwrap();
        Fs::mount_quiet(self.volume(), &options).unwrap()
    }

    /// The daemon dies, and the next one mounts.
    fn dies(&self, fs: Arc<Fs>, options: &str) -> Arc<Fs> {
        fs.abandon();
        drop(fs);
        self.mount(options)
    }

    /// The mount ends as it should, and the volume is as it should be.
    #[track_caller]
    fn ends(&self, fs: Arc<Fs>) {
        fs.shutdown().unwrap();
        drop(fs);
        self.is_clean();
    }

    #[track_caller]
    fn is_clean(&self) {
        let report = check_volume(self.volume(), &FsckOptions { check_data: true }).unwrap();
        assert!(report.is_clean(), "{report}");
    }
}

fn file(fs: &Fs, dir: Ino, name: &str) -> Ino {
    fs.mknod(USER, dir, name.as_bytes(), S_IFREG | 0o644, 0)
        .unwrap()
        .ino
}

/// Waits for something that other threads bring about, however long they take for it.
fn until(mut holds: impl FnMut() -> bool) {
    while !holds() {
        thread::sleep(Duration::from_millis(10));
    }
}

fn flag(fs: &Fs, ino: Ino, flags: u32) {
    fs.set_flags(ROOT_USER, ino, SetFlags::all(flags)).unwrap();
}

#[test]
fn a_file_without_a_name_is_gone_when_it_is_forgotten() {
    let disk = Disk::new();
    let fs = disk.mount("noatime");
    let used = |fs: &Fs| fs.statfs().files - fs.statfs().files_free;
    let before = used(&fs);
    let t = fs.tmpfile(USER, ROOT, 0o600).unwrap();
    assert_eq!((t.inode.nlink, t.inode.mode), (0, S_IFREG | 0o600));
    assert_eq!((t.inode.uid, t.inode.gid), (7, 8));
    fs.write(t.ino, 0, b"nobody sees this", false).unwrap();
    fs.forget(t.ino, 1);
    assert_eq!(fs.getattr(t.ino), Err(FsError::Stale));
    fs.shutdown().unwrap();
    drop(fs);
    let fs = disk.mount("noatime");
    assert_eq!(used(&fs), before);
    disk.dies(fs, "noatime").shutdown().unwrap();
    disk.is_clean();
}

#[test]
fn a_file_without_a_name_is_gone_after_a_crash() {
    let disk = Disk::new();
    let fs = disk.mount("noatime");
    let t = fs.tmpfile(USER, ROOT, 0o600).unwrap().ino;
    fs.write(t, 0, &[1; 3 * BLOCK], false).unwrap();
    let fs = disk.dies(fs, "noatime");
    assert_eq!(fs.getattr(t), Err(FsError::Stale));
    assert!(fs.e.intents.all().is_empty());
    fs.shutdown().unwrap();
    drop(fs);
    disk.is_clean();
}

#[test]
fn a_link_gives_a_file_its_first_name() {
    let disk = Disk::new();
    let fs = disk.mount("noatime");
    let t = fs.tmpfile(USER, ROOT, 0o600).unwrap().ino;
    fs.write(t, 0, b"content", false).unwrap();
    let linked = fs.link(t, ROOT, b"name").unwrap();
    assert_eq!((linked.ino, linked.inode.nlink), (t, 1));
    assert!(fs.e.intents.all().is_empty());
    fs.forget(t, 2);
    assert_eq!(fs.read(t, 0, 100).unwrap(), b"content");
    let fs = disk.dies(fs, "noatime");
    assert_eq!(fs.lookup(ROOT, b"name").unwrap().ino, t);
    assert_eq!(fs.read(t, 0, 100).unwrap(), b"content");
    fs.unlink(ROOT, b"name").unwrap();
    fs.forget(t, 1);
    // No process has it open, so it may be half gone.
    assert_eq!(fs.link(t, ROOT, b"name"), Err(FsError::Stale));
    fs.shutdown().unwrap();
    drop(fs);
    disk.is_clean();
}

#[test]
fn nothing_is_made_in_a_directory_that_is_gone() {
    let disk = Disk::new();
    let fs = disk.mount("noatime");
    let dir = fs.mkdir(ROOT_USER, ROOT, b"dir", 0o2777).unwrap().ino;
    assert_eq!(fs.tmpfile(USER, dir, 0o600).unwrap().inode.gid, 0);
    fs.rmdir(ROOT, b"dir").unwrap();
    assert_eq!(fs.tmpfile(USER, dir, 0o600), Err(FsError::Perm));
    fs.shutdown().unwrap();
    drop(fs);
    disk.is_clean();
}

#[test]
fn a_whiteout_takes_the_place_of_the_old_name() {
    let disk = Disk::new();
    let fs = disk.mount("noatime");
    let dir = fs.mkdir(ROOT_USER, ROOT, b"dir", 0o755).unwrap().ino;
    let (a, b) = (file(&fs, ROOT, "a"), file(&fs, dir, "b"));
    fs.rename((ROOT, b"a"), (dir, b"b"), WHITEOUT).unwrap();
    assert_eq!(fs.lookup(dir, b"b").unwrap().ino, a);
    fs.forget(b, 1);
    let left = fs.lookup(ROOT, b"a").unwrap().inode;
    assert_eq!((left.mode, left.rdev, left.nlink), (S_IFCHR, 0, 1));
    assert_eq!((left.uid, left.gid), (7, 8));
    // A directory as well, and what had names in it has not lost them.
    fs.rename((ROOT, b"dir"), (ROOT, b"dir2"), WHITEOUT)
        .unwrap();
    assert_eq!(fs.lookup(ROOT, b"dir").unwrap().inode.mode, S_IFCHR);
    assert_eq!(fs.getattr(ROOT).unwrap().inode.nlink, 3);
    let both = RenameFlags {
        no_replace: true,
        ..WHITEOUT
    };
    let refused = fs.rename((ROOT, b"dir2"), (ROOT, b"a"), both);
    assert_eq!(refused, Err(FsError::Exists));
    fs.rename((dir, b"b"), (ROOT, b"c"), both).unwrap();
    let exchange = RenameFlags {
        exchange: true,
        ..WHITEOUT
    };
    let refused = fs.rename((dir, b"b"), (ROOT, b"c"), exchange);
    assert_eq!(refused, Err(FsError::Invalid));
    let fs = disk.dies(fs, "noatime");
    assert_eq!(fs.lookup(dir, b"b").unwrap().inode.mode, S_IFCHR);
    fs.shutdown().unwrap();
    drop(fs);
    disk.is_clean();
}

/// Every call that changes something, on the file `dir/f` and on its name.
fn changes(fs: &Fs, dir: Ino, f: Ino) -> Vec<(&'static str, Result<(), FsError>)> {
    let set = |set: SetAttr| fs.setattr(f, &set, false).map(drop);
    let at = SetTime::At(quayfs_fs::attr::now());
    let other = file(fs, ROOT, "other");
    fs.write(other, 0, b"other", false).unwrap();
    let all = vec![
        ("write", fs.write(f, 0, b"x", false)),
        ("append not at the end", fs.append(f, 0, b"x", false)),
        (
            "truncate",
            set(SetAttr {
                size: Some(1),
                ..SetAttr::default()
            }),
        ),
        (
            "chmod",
            set(SetAttr {
                mode: Some(0),
                ..SetAttr::default()
            }),
        ),
        (
            "chown",
            set(SetAttr {
                uid: Some(0),
                ..SetAttr::default()
            }),
        ),
        (
            "utimens",
            set(SetAttr {
                atime: Some(at),
                mtime: Some(SetTime::Now),
                ..SetAttr::default()
            }),
        ),
        ("punch", fs.fallocate(f, FallocMode::Punch, 0, 1)),
        (
            "zero",
            fs.fallocate(f, FallocMode::Zero { keep_size: true }, 0, 1),
        ),
        ("copy", fs.copy_range((other, 0), (f, 0), 1).map(drop)),
        ("setxattr", fs.setxattr(f, b"user.a", b"", SetXattr::Any)),
        ("removexattr", fs.removexattr(f, b"user.b")),
        ("link", fs.link(f, ROOT, b"more").map(drop)),
        ("unlink", fs.unlink(dir, b"f")),
        ("rmdir", fs.rmdir(dir, b"f")),
        ("rename", fs.rename((dir, b"f"), (ROOT, b"f"), PLAIN)),
        (
            "rename over it",
            fs.rename((ROOT, b"other"), (dir, b"f"), PLAIN),
        ),
        (
            "exchange",
            fs.rename(
                (ROOT, b"other"),
                (dir, b"f"),
                RenameFlags {
                    exchange: true,
                    ..PLAIN
                },
            ),
        ),
        ("open", fs.may_open(f, Writes::Anywhere)),
    ];
    fs.unlink(ROOT, b"other").unwrap();
    fs.forget(other, 1);
    all
}

/// Calls that add something.
fn additions(fs: &Fs, f: Ino) -> Vec<(&'static str, Result<(), FsError>)> {
    let grow = FallocMode::Allocate { keep_size: false };
    let touch = SetAttr {
        atime: Some(SetTime::Now),
        mtime: Some(SetTime::Now),
        ..SetAttr::default()
    };
    let end = fs.getattr(f).unwrap().inode.size;
    vec![
        ("append", fs.append(f, end, b"more", false)),
        ("allocate", fs.fallocate(f, grow, 0, 100)),
        ("touch", fs.setattr(f, &touch, false).map(drop)),
        ("open", fs.may_open(f, Writes::Append)),
    ]
}

#[track_caller]
fn all_are(results: Vec<(&str, Result<(), FsError>)>, want: Result<(), FsError>) {
    for (what, got) in results {
        assert_eq!(got, want, "{what}");
    }
}

#[test]
fn what_flags_of_a_file_forbid() {
    let disk = Disk::new();
    let fs = disk.mount("noatime");
    let dir = fs.mkdir(ROOT_USER, ROOT, b"dir", 0o755).unwrap().ino;
    let f = file(&fs, dir, "f");
    fs.write(f, 0, b"content", false).unwrap();
    flag(&fs, f, FLAG_APPEND);
    all_are(changes(&fs, dir, f), Err(FsError::Perm));
    all_are(additions(&fs, f), Ok(()));
    // It is as it was after a crash.
    let fs = disk.dies(fs, "noatime");
    assert_eq!(fs.getattr(f).unwrap().inode.flags, FLAG_APPEND);
    all_are(changes(&fs, dir, f), Err(FsError::Perm));
    flag(&fs, f, FLAG_IMMUTABLE);
    all_are(changes(&fs, dir, f), Err(FsError::Perm));
    all_are(additions(&fs, f), Err(FsError::Perm));
    assert!(fs.read(f, 0, 100).unwrap().starts_with(b"contentmore"));
    assert_eq!(fs.may_open(f, Writes::No), Ok(()));
    // Nothing but the end of it.
    let more = SetFlags::all(FLAG_IMMUTABLE | FLAG_NODUMP);
    assert_eq!(fs.set_flags(ROOT_USER, f, more), Err(FsError::Perm));
    flag(&fs, f, FLAG_NODUMP);
    fs.write(f, 0, b"x", false).unwrap();
    fs.unlink(dir, b"f").unwrap();
    fs.forget(f, 1);
    fs.shutdown().unwrap();
    drop(fs);
    disk.is_clean();
}

#[test]
fn what_flags_of_a_directory_forbid() {
    let disk = Disk::new();
    let fs = disk.mount("noatime");
    let dir = fs.mkdir(ROOT_USER, ROOT, b"dir", 0o755).unwrap().ino;
    let f = file(&fs, dir, "f");
    let other = file(&fs, ROOT, "other");
    let taking = |fs: &Fs| {
        vec![
            ("unlink", fs.unlink(dir, b"f")),
            ("rename", fs.rename((dir, b"f"), (dir, b"g"), PLAIN)),
            (
                "rename over",
                fs.rename((ROOT, b"other"), (dir, b"f"), PLAIN),
            ),
            ("rename it", fs.rename((ROOT, b"dir"), (ROOT, b"d"), PLAIN)),
            ("rmdir", fs.rmdir(ROOT, b"dir")),
        ]
    };
    let adding = |fs: &Fs| {
        vec![
            ("mkdir", fs.mkdir(USER, dir, b"new", 0).map(drop)),
            ("link", fs.link(other, dir, b"link").map(drop)),
            ("tmpfile", fs.tmpfile(USER, dir, 0).map(drop)),
            (
                "rename in",
                fs.rename((ROOT, b"other"), (dir, b"in"), PLAIN),
            ),
        ]
    };
    flag(&fs, dir, FLAG_IMMUTABLE);
    all_are(taking(&fs), Err(FsError::Perm));
    all_are(adding(&fs), Err(FsError::Perm));
    let exists = fs.mkdir(USER, dir, b"f", 0).map(drop);
    assert_eq!(exists, Err(FsError::Exists));
    // The files in it are not.
    fs.write(f, 0, b"x", false).unwrap();
    flag(&fs, dir, FLAG_APPEND);
    all_are(taking(&fs), Err(FsError::Perm));
    all_are(adding(&fs), Ok(()));
    fs.shutdown().unwrap();
    drop(fs);
    disk.is_clean();
}

#[test]
fn who_may_set_which_flags() {
    let disk = Disk::new();
    let fs = disk.mount("noatime");
    let f = file(&fs, ROOT, "f");
    let set = |by, flags| fs.set_flags(by, f, SetFlags::all(flags));
    assert_eq!(set(USER, FLAG_NODUMP), Ok(()));
    assert_eq!(set(USER, FLAG_IMMUTABLE), Err(FsError::Perm));
    assert_eq!(set(USER, FLAG_APPEND), Err(FsError::Perm));
    let other = Caller {
        uid: 9,
        gid: 8,
        umask: 0,
    };
    assert_eq!(set(other, FLAG_NODUMP), Err(FsError::Perm));
    // A caller that was checked before may do what root may, and no more.
    let checked = |flags| fs.set_flags_checked(f, SetFlags::all(flags));
    assert_eq!(checked(FLAG_IMMUTABLE), Ok(()));
    assert_eq!(checked(FLAG_IMMUTABLE | FLAG_NODUMP), Err(FsError::Perm));
    assert_eq!(checked(FLAG_DIRSYNC), Err(FsError::NotSupported));
    assert_eq!(checked(0), Ok(()));
    flag(&fs, f, FLAG_APPEND);
    assert_eq!(set(USER, 0), Err(FsError::Perm));
    assert_eq!(set(USER, FLAG_APPEND | FLAG_NOATIME), Ok(()));
    for never in [1 << 8, FLAG_DIRSYNC, FLAG_PROJECT] {
        assert_eq!(set(ROOT_USER, never), Err(FsError::NotSupported));
    }
    let link = fs.symlink(USER, ROOT, b"link", b"x").unwrap().ino;
    let refused = fs.set_flags(ROOT_USER, link, SetFlags::all(FLAG_NODUMP));
    assert_eq!(refused, Err(FsError::NotSupported));
    flag(&fs, f, 0);
    let fs = disk.dies(fs, "noatime,writeback");
    let refused = fs.set_flags(ROOT_USER, f, SetFlags::all(FLAG_APPEND));
    assert_eq!(refused, Err(FsError::NotSupported));
    flag(&fs, f, FLAG_IMMUTABLE);
}

#[test]
fn what_a_directory_passes_on() {
    let disk = Disk::new();
    let fs = disk.mount("noatime");
    let dir = fs.mkdir(ROOT_USER, ROOT, b"dir", 0o755).unwrap().ino;
    let set = SetFlags {
        project: Some(5),
        ..SetFlags::all(FLAG_SYNC | FLAG_NODUMP | FLAG_NOATIME | FLAG_DIRSYNC | FLAG_PROJECT)
    };
    fs.set_flags(ROOT_USER, dir, set).unwrap();
    let sub = fs.mkdir(ROOT_USER, dir, b"sub", 0o755).unwrap().inode;
    assert_eq!((sub.flags, sub.project), (set.flags, 5));
    let f = fs.getattr(file(&fs, dir, "f")).unwrap().inode;
    let of_file = FLAG_SYNC | FLAG_NODUMP | FLAG_NOATIME;
    assert_eq!((f.flags, f.project), (of_file, 5));
    let link = fs.symlink(USER, dir, b"link", b"x").unwrap().inode;
    assert_eq!(link.flags, FLAG_NODUMP | FLAG_NOATIME);
    // Of another project: not without being copied.
    let other = file(&fs, ROOT, "other");
    let refused = fs.rename((ROOT, b"other"), (dir, b"in"), PLAIN);
    assert_eq!(refused, Err(FsError::OtherProject));
    let refused = fs.link(other, dir, b"in").map(drop);
    assert_eq!(refused, Err(FsError::OtherProject));
    fs.rename((dir, b"f"), (ROOT, b"out"), PLAIN).unwrap();
    fs.rename((ROOT, b"out"), (dir, b"back"), PLAIN).unwrap();
    fs.shutdown().unwrap();
    drop(fs);
    disk.is_clean();
}

#[test]
fn synchronous_files_and_directories_do_not_wait_for_a_commit() {
    const COMMIT: &str = "noatime,durability=commit";
    let disk = Disk::new();
    let fs = disk.mount(COMMIT);
    let dir = fs.mkdir(ROOT_USER, ROOT, b"dir", 0o755).unwrap().ino;
    let f = file(&fs, dir, "f");
    fs.sync_all().unwrap();
    fs.write(f, 0, b"lost", false).unwrap();
    let fs = disk.dies(fs, COMMIT);
    assert_eq!(fs.read(f, 0, 9).unwrap(), b"");
    flag(&fs, f, FLAG_SYNC);
    flag(&fs, dir, FLAG_DIRSYNC);
    fs.write(f, 0, b"kept", false).unwrap();
    let fs = disk.dies(fs, COMMIT);
    assert_eq!(fs.read(f, 0, 9).unwrap(), b"kept");
    fs.rename((dir, b"f"), (dir, b"g"), PLAIN).unwrap();
    let fs = disk.dies(fs, COMMIT);
    assert_eq!(fs.lookup(dir, b"g").unwrap().ino, f);
    fs.unlink(dir, b"g").unwrap();
    let fs = disk.dies(fs, COMMIT);
    assert_eq!(fs.lookup(dir, b"g"), Err(FsError::NoEntry));
    fs.shutdown().unwrap();
    drop(fs);
    disk.is_clean();
}

#[test]
fn a_log_that_fills_up_is_committed_before_anybody_waits_for_it() {
    const COMMIT: &str = "noatime,durability=commit,commit=300";
    let disk = Disk::new();
    let mut options = MountOptions::parse(&[COMMIT]).unwrap();
    // Not by the clock, however long this takes.
    options.commit_seconds = u32::MAX;
    let fs = Fs::mount(disk.volume(), &options).unwrap();
    let before = fs.e.journal.stats();
    let mut made = 0;
    while fs.e.journal.stats().commits == before.commits {
        let stats = fs.e.journal.stats();
        // Fills only a part of the log: when it is full there is a commit anyway.
        if stats.log_bytes_used * 5 < stats.log_bytes
            && stats.log_records_used * 2 < stats.log_records
        {
            file(&fs, ROOT, &format!("file {made}"));
            made += 1;
        } else {
            thread::sleep(Duration::from_millis(1));
        }
    }
    assert_eq!(fs.e.journal.stats().log_waits, 0);
    let fs = disk.dies(fs, COMMIT);
    let name = format!("file {}", made / 2);
    assert_ne!(fs.lookup(ROOT, name.as_bytes()).unwrap().ino, ROOT);
    fs.shutdown().unwrap();
    drop(fs);
    disk.is_clean();
}

#[test]
fn a_mount_that_was_shut_down_is_recovered() {
    for options in [
        "noatime",
        "noatime,durability=commit",
        "noatime,data=writeback",
    ] {
        let disk = Disk::new();
        let fs = disk.mount(options);
        let f = file(&fs, ROOT, "f");
        fs.write(f, 0, &[7; 3 * BLOCK], false).unwrap();
        let t = fs.tmpfile(USER, ROOT, 0o600).unwrap().ino;
        assert_eq!(fs.kill(USER), Err(FsError::Perm));
        fs.alive().unwrap();
        fs.kill(ROOT_USER).unwrap();
        assert!(fs.alive().is_err());
        // The kernel goes on forgetting; what it forgets is freed by the next mount.
        fs.forget(t, 1);
        fs.shutdown().unwrap();
        drop(fs);
        let report = check_volume(disk.volume(), &FsckOptions { check_data: true }).unwrap();
        assert!(report.is_clean() && !report.statistics.clean, "{report}");
        assert_eq!(report.statistics.orphans, 1, "{report}");
        let fs = disk.mount(options);
        assert_eq!(fs.read(f, 0, 4 * BLOCK).unwrap(), [7; 3 * BLOCK]);
        assert_eq!(fs.getattr(t), Err(FsError::Stale));
        fs.shutdown().unwrap();
        drop(fs);
        disk.is_clean();
    }
}
