//! Quotas of projects: everything is charged, limits hold, and both are there after any end of a mount.
//!
//! The tests of mounts need `/dev/fuse`, `chattr`, and root.

mod grace;

use crate::program;

use std::fs;
use std::sync::Arc;

use program::{Mounted, Scene, Start as _, as_nobody, can_be_root, eventually, quayfs};
use quayfs_fs::{
    Caller, FallocMode, Fs, Quota, RenameFlags, SetAttr, SetFlags, SetQuota, SetXattr, Subject,
};
use quayfs_layout::config::FEATURE_QUOTA;
use quayfs_layout::inode::{FLAG_PROJECT, ROOT, S_IFIFO, S_IFREG};
use quayfs_layout::quota::PER_PAGE;
use quayfs_layout::{BLOCK, Ino};
use quayfs_oracle::rng::bytes;
use quayfs_oracle::{Media, Shape, account, dump, options};
use quayfs_pmem::Backend;
use quayfs_store::error::FsError;

const B: u64 = BLOCK as u64;
const ME: Caller = Caller {
    uid: 0,
    gid: 0,
    umask: 0,
};
const MODES: [(&str, Backend); 4] = [
    ("noatime", Backend::Volatile),
    ("noatime,durability=commit", Backend::File),
    ("noatime,data=ordered", Backend::Volatile),
    ("noatime,checkpoint=swap", Backend::Dax),
];

/// A volume that is mounted without background threads.
struct Disk {
    media: Media,
    options: &'static str,
    fs: Arc<Fs>,
}

impl Disk {
    fn new((text, backend): (&'static str, Backend)) -> Self {
        let media = Media::new(&Shape::SMALL, backend);
        let fs = media.mount_quiet(&options(text));
        Self {
            media,
            options: text,
            fs,
        }
    }

    /// The daemon dies; the checker counts; the volume is mounted again.
    fn dies(&mut self) {
        self.fs.sync_all().unwrap();
        self.fs.abandon();
        self.media.fsck().unwrap();
        self.fs = self.media.mount_quiet(&options(self.options));
    }

    /// Unmounted, checked, and mounted again.
    fn ends(&mut self) {
        self.fs.shutdown().unwrap();
        self.media.fsck().unwrap();
        self.fs = self.media.mount_quiet(&options(self.options));
    }

    fn quota(&self, project: u32) -> Quota {
        self.quota_of(Subject::Project(project))
    }

    fn quota_of(&self, subject: Subject) -> Quota {
        let all = self.fs.quotas(ME, subject).unwrap();
        let none = Quota {
            subject,
            ..Quota::default()
        };
        all.into_iter()
            .find(|q| q.subject == subject)
            .unwrap_or(none)
    }

    /// Bytes and inodes of a project.
    fn used(&self, project: u32) -> (u64, u64) {
        self.used_by(Subject::Project(project))
    }

    fn used_by(&self, subject: Subject) -> (u64, u64) {
        let q = self.quota_of(subject);
        (q.bytes, q.inodes)
    }

    /// What everything below `dir` has, from the inodes.
    fn below(&self, dir: Ino) -> (u64, u64) {
        let tree = dump::dump(&self.fs, dir).unwrap();
        let inos: std::collections::BTreeSet<Ino> = tree
            .values()
            .filter_map(|i| i.identity.map(|(ino, _, _)| ino))
            .collect();
        let blocks: u64 = inos
            .iter()
            .map(|ino| self.fs.getattr(*ino).unwrap().inode.blocks)
            .sum();
        (blocks * B, inos.len() as u64)
    }

    /// A directory in the root that passes on a project.
    fn tree(&self, name: &str, project: u32) -> Ino {
        let dir = self.fs.mkdir(ME, ROOT, name.as_bytes(), 0o755).unwrap().ino;
        join(&self.fs, dir, project).unwrap();
        dir
    }

    fn limit(&self, project: u32, bytes: u64, inodes: u64) {
        let set = SetQuota {
            subject: Subject::Project(project),
            bytes_hard: Some(bytes),
            inodes_hard: Some(inodes),
            ..SetQuota::default()
        };
        self.fs.set_quota(ME, set).unwrap();
    }
}

fn join(fs: &Fs, dir: Ino, project: u32) -> Result<(), FsError> {
    let inherit = match fs.getattr(dir)?.inode.is_dir() {
        true => FLAG_PROJECT,
        false => 0,
    };
    let set = SetFlags {
        flags: inherit,
        mask: inherit,
        project: Some(project),
    };
    fs.set_flags(ME, dir, set)
}

fn file(fs: &Fs, dir: Ino, name: &str) -> Result<Ino, FsError> {
    let made = fs.mknod(ME, dir, name.as_bytes(), S_IFREG | 0o644, 0);
    made.map(|a| a.ino)
}

fn truncate(fs: &Fs, ino: Ino, size: u64) -> Result<(), FsError> {
    let set = SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    fs.setattr(ino, &set, false).map(drop)
}

#[test]
fn everything_below_a_tree_is_charged() {
    for mode in MODES {
        let mut d = Disk::new(mode);
        let dir = d.tree("tree", 7);
        let same = |d: &Disk, what: &str| {
            assert_eq!(d.used(7), d.below(dir), "{mode:?}: {what}");
        };
        same(&d, "an empty directory");
        let f = file(&d.fs, dir, "f").unwrap();
        d.fs.write(f, 100, &bytes(1, 9 * BLOCK), false).unwrap();
        same(&d, "a file");
        d.fs.write(f, 20 * B, &bytes(2, 100), false).unwrap();
        d.fs.write(f, 0, &bytes(3, 3 * BLOCK), false).unwrap();
        let keep = FallocMode::Allocate { keep_size: true };
        d.fs.fallocate(f, keep, 30 * B, 5 * B).unwrap();
        same(&d, "holes");
        d.fs.fallocate(f, FallocMode::Punch, 2 * B, 3 * B).unwrap();
        // More extents than fit the inode.
        for i in 0..12 {
            d.fs.write(f, (40 + 2 * i) * B, b"x", false).unwrap();
        }
        same(&d, "extent pages");
        d.dies();
        same(&d, "a death");
        d.fs.symlink(ME, dir, b"long", &[b'x'; 3000]).unwrap();
        d.fs.mknod(ME, dir, b"fifo", S_IFIFO, 0).unwrap();
        let sub = d.fs.mkdir(ME, dir, b"sub", 0o755).unwrap().ino;
        for i in 0..60 {
            let name = format!("{i:0>200}");
            file(&d.fs, sub, &name).unwrap();
        }
        let attr = bytes(4, 9000);
        d.fs.setxattr(f, b"user.a", &attr, SetXattr::Any).unwrap();
        same(&d, "directories, links, attributes");
        d.ends();
        same(&d, "an unmount");
        let lookup = |fs: &Fs, dir, name: &[u8]| fs.lookup(dir, name).unwrap().ino;
        let (f, sub) = (lookup(&d.fs, dir, b"f"), lookup(&d.fs, dir, b"sub"));
        d.fs.removexattr(f, b"user.a").unwrap();
        truncate(&d.fs, f, B + 1).unwrap();
        d.fs.link(f, sub, b"again").unwrap();
        d.fs.unlink(dir, b"f").unwrap();
        same(&d, "less");
        // Nothing of another project joins, nor leaves for a tree of another.
        let stranger = file(&d.fs, ROOT, "stranger").unwrap();
        assert_eq!(
            d.fs.link(stranger, dir, b"s").err(),
            Some(FsError::OtherProject)
        );
        let plain = RenameFlags::default();
        let into = d.fs.rename((ROOT, b"stranger"), (dir, b"s"), plain);
        assert_eq!(into, Err(FsError::OtherProject));
        // Out of it goes what keeps its project.
        d.fs.rename((sub, b"again"), (ROOT, b"out"), plain).unwrap();
        let blocks = d.fs.getattr(f).unwrap().inode.blocks;
        let (bytes_below, inodes_below) = d.below(dir);
        assert_eq!(d.used(7), (bytes_below + blocks * B, inodes_below + 1));
        join(&d.fs, f, 8).unwrap();
        same(&d, "a file that has gone to another");
        assert_eq!(d.used(8), (blocks * B, 1));
        join(&d.fs, f, 0).unwrap();
        assert_eq!(d.used(8), (0, 0));
        // An open file without a name counts until it is gone.
        let t = d.fs.tmpfile(ME, dir, 0o600).unwrap().ino;
        d.fs.write(t, 0, &bytes(5, 2 * BLOCK), false).unwrap();
        assert_eq!(d.used(7), (bytes_below + 2 * B, inodes_below + 1));
        d.dies();
        same(&d, "a file without a name, after a death");
        for (name, _) in dump::dump(&d.fs, dir).unwrap() {
            let name = name.strip_prefix(b"/").unwrap_or_default();
            match name.strip_prefix(b"sub/") {
                Some(name) => d.fs.unlink(sub, name).unwrap(),
                None if name.is_empty() || name == b"sub" => {}
                None => d.fs.unlink(dir, name).unwrap(),
            }
        }
        d.fs.rmdir(dir, b"sub").unwrap();
        same(&d, "an empty directory again");
        d.fs.rmdir(ROOT, b"tree").unwrap();
        d.dies();
        assert_eq!(d.fs.quotas(ME, Subject::Project(0)), Ok(Vec::new()));
    }
}

/// Whatever a limit refuses leaves no trace.
#[test]
fn limits_hold() {
    for mode in MODES {
        let mut d = Disk::new(mode);
        let dir = d.tree("tree", 7);
        let f = file(&d.fs, dir, "f").unwrap();
        d.fs.write(f, 0, &bytes(1, 4 * BLOCK), false).unwrap();
        // The directory has a page.
        assert_eq!(d.used(7), (5 * B, 2));
        d.limit(7, 8 * B - 1, 3);
        for time in 0..2 {
            let quota = d.quota(7);
            assert_eq!((quota.bytes_hard, quota.inodes_hard), (8 * B, 3));
            let before = dump::dump(&d.fs, ROOT).unwrap();
            let over = Err(FsError::Quota);
            let fs = &d.fs;
            let write = |at: u64, len| fs.write(f, at, &bytes(2, len), false);
            assert_eq!(write(4 * B, 4 * BLOCK), over);
            assert_eq!(write(3 * B + 5, 4 * BLOCK), over);
            let allocate = FallocMode::Allocate { keep_size: false };
            assert_eq!(fs.fallocate(f, allocate, 4 * B, 4 * B), over);
            let attr = bytes(3, 3 * BLOCK);
            assert_eq!(fs.setxattr(f, b"user.a", &attr, SetXattr::Any), over);
            let target = [b'x'; 3000];
            // One inode is left, and three blocks.
            let third = file(fs, dir, "third").unwrap();
            assert_eq!(file(fs, dir, "g"), Err(FsError::Quota));
            assert_eq!(fs.mkdir(ME, dir, b"g", 0o755).err(), Some(FsError::Quota));
            assert_eq!(
                fs.symlink(ME, dir, b"g", &target).err(),
                Some(FsError::Quota)
            );
            assert_eq!(fs.tmpfile(ME, dir, 0o600).err(), Some(FsError::Quota));
            let alone = file(fs, ROOT, "alone").unwrap();
            assert_eq!(join(fs, alone, 7), over);
            fs.unlink(ROOT, b"alone").unwrap();
            fs.unlink(dir, b"third").unwrap();
            fs.forget(alone, 2);
            fs.forget(third, 1);
            let after = dump::dump(&d.fs, ROOT).unwrap();
            // But for times of directories.
            let mut same = before.clone();
            for (path, item) in &mut same {
                item.identity = after[path].identity;
            }
            assert_eq!(after, same, "{mode:?}");
            assert_eq!(d.used(7), (5 * B, 2));
            match time {
                0 => d.dies(),
                _ => d.ends(),
            }
            d.fs.lookup(dir, b"f").unwrap();
        }
        // What fits goes in; what is there can be written again, and taken away.
        d.fs.write(f, 4 * B, &bytes(4, 3 * BLOCK), false).unwrap();
        assert_eq!(d.used(7), (8 * B, 2));
        d.fs.write(f, 0, &bytes(5, 7 * BLOCK), false).unwrap();
        assert_eq!(d.fs.write(f, 7 * B, b"x", false), Err(FsError::Quota));
        // Splitting an extent may take a page: that is no reason to refuse to free.
        d.limit(7, B, 1);
        d.fs.fallocate(f, FallocMode::Punch, 2 * B, B).unwrap();
        assert_eq!(d.used(7), (7 * B, 2));
        assert_eq!(d.fs.write(f, 2 * B, b"x", false), Err(FsError::Quota));
        truncate(&d.fs, f, 10).unwrap();
        d.fs.unlink(dir, b"f").unwrap();
        d.fs.forget(f, 10);
        d.limit(7, 0, 0);
        file(&d.fs, dir, "f").unwrap();
        d.dies();
        // Limits of what has nothing stay as well.
        d.limit(9, 5 * B, 0);
        d.dies();
        assert_eq!(d.quota(9).bytes_hard, 5 * B);
        let q = SetQuota {
            subject: Subject::Project(9),
            bytes_soft: Some(1),
            ..SetQuota::default()
        };
        d.fs.set_quota(ME, q).unwrap();
        d.ends();
        assert_eq!((d.quota(9).bytes_soft, d.quota(9).bytes_hard), (B, 5 * B));
    }
}

#[test]
fn the_last_block_goes_to_one() {
    const LIMIT: u64 = 100;
    for (text, backend) in MODES {
        let media = Media::new(&Shape::SMALL, backend);
        let fs = media.mount(&options(text));
        let dir = fs.mkdir(ME, ROOT, b"tree", 0o755).unwrap().ino;
        join(&fs, dir, 7).unwrap();
        let files: Vec<Ino> = (0..4)
            .map(|i| file(&fs, dir, &format!("f{i}")).unwrap())
            .collect();
        let set = SetQuota {
            subject: Subject::Project(7),
            bytes_hard: Some(LIMIT * B),
            ..SetQuota::default()
        };
        fs.set_quota(ME, set).unwrap();
        std::thread::scope(|s| {
            for &f in &files {
                let fs = &fs;
                s.spawn(move || {
                    for i in 0.. {
                        match fs.write(f, i * B, &[7; BLOCK], false) {
                            Ok(()) => {}
                            Err(FsError::Quota) => return,
                            Err(e) => panic!("{e}"),
                        }
                    }
                });
            }
        });
        // An extent page that no thread could pay for may be all that was missing.
        let used = fs.quotas(ME, Subject::Project(7)).unwrap()[0].bytes / B;
        assert!(used <= LIMIT && used + 4 > LIMIT, "{text}: {used}");
        for f in files {
            truncate(&fs, f, 0).unwrap();
        }
        fs.shutdown().unwrap();
        media.fsck().unwrap();
    }
}

#[test]
fn places_of_the_table_are_used_again() {
    let mut d = Disk::new(MODES[0]);
    let f = file(&d.fs, ROOT, "f").unwrap();
    let g = file(&d.fs, ROOT, "g").unwrap();
    join(&d.fs, g, 1000).unwrap();
    // One file goes through more projects than there are places.
    for project in 1..3 * PER_PAGE as u32 {
        join(&d.fs, f, project).unwrap();
        if project % 50 == 0 {
            d.dies();
            d.fs.lookup(ROOT, b"f").unwrap();
        }
    }
    // The user and the group that own everything have places too.
    for i in 0..PER_PAGE - 4 {
        let f = file(&d.fs, ROOT, &format!("f{i}")).unwrap();
        join(&d.fs, f, 2000 + i as u32).unwrap();
    }
    let full = file(&d.fs, ROOT, "full").unwrap();
    assert_eq!(join(&d.fs, full, 3000), Err(FsError::NoSpace));
    join(&d.fs, full, 1000).unwrap();
    join(&d.fs, f, 0).unwrap();
    join(&d.fs, full, 3000).unwrap();
    d.dies();
    assert_eq!((d.used(1000), d.used(3000)), ((0, 1), (0, 1)));
    assert_eq!(
        d.fs.quotas(ME, Subject::Project(0)).unwrap().len(),
        PER_PAGE - 2
    );
}

#[test]
fn a_tree_is_as_large_as_its_limit() {
    let d = Disk::new(MODES[0]);
    let dir = d.tree("tree", 7);
    assert_eq!(d.fs.statfs_of(dir), d.fs.statfs());
    d.limit(7, 100 * B, 50);
    let s = d.fs.statfs_of(dir);
    assert_eq!(
        (s.blocks, s.free, s.files, s.files_free),
        (100, 100, 50, 49)
    );
    let f = file(&d.fs, dir, "f").unwrap();
    d.fs.write(f, 0, &bytes(1, 9 * BLOCK), false).unwrap();
    let s = d.fs.statfs_of(dir);
    assert_eq!((s.blocks, s.free, s.files_free), (100, 90, 48));
    // A soft limit is nearer. As on ext4 only a directory that passes its project on shows it.
    let q = SetQuota {
        subject: Subject::Project(7),
        bytes_soft: Some(5 * B),
        ..SetQuota::default()
    };
    d.fs.set_quota(ME, q).unwrap();
    let s = d.fs.statfs_of(dir);
    assert_eq!((s.blocks, s.free), (5, 0));
    assert_eq!(d.fs.statfs_of(f), d.fs.statfs());
    d.limit(7, u64::MAX, 0);
    let s = d.fs.statfs_of(ROOT);
    assert_eq!(s, d.fs.statfs());
}

#[test]
fn who_may_and_what_makes_no_sense() {
    let d = Disk::new(MODES[0]);
    let by = Caller { uid: 7, ..ME };
    let set = |project| SetQuota {
        subject: Subject::Project(project),
        inodes_hard: Some(1),
        ..SetQuota::default()
    };
    assert_eq!(d.fs.set_quota(by, set(1)), Err(FsError::Perm));
    assert_eq!(d.fs.quotas(by, Subject::Project(0)), Err(FsError::Perm));
    assert_eq!(d.fs.set_quota(ME, set(0)), Err(FsError::Invalid));
}

/// As volumes were before there was a table.
#[test]
fn without_a_table_nothing_is_counted() {
    let geometry = Shape::SMALL.geometry_with(0);
    assert!(geometry.is_sound() && geometry.quota_base == 0);
    let recorder =
        quayfs_crashsim::Recorder::new(geometry.pmem_len, geometry.data_blocks, Backend::Volatile);
    let media = Media::format(recorder.region(), recorder.device(), geometry);
    assert_eq!(media.volume().config().compat[2] & FEATURE_QUOTA, 0);
    let fs = media.mount_quiet(&options("noatime"));
    let dir = fs.mkdir(ME, ROOT, b"tree", 0o755).unwrap().ino;
    join(&fs, dir, 7).unwrap();
    let f = file(&fs, dir, "f").unwrap();
    fs.write(f, 0, &bytes(1, 3 * BLOCK), false).unwrap();
    assert_eq!(fs.quotas(ME, Subject::Project(0)), Ok(Vec::new()));
    for subject in [Subject::Project(7), Subject::User(0), Subject::Group(0)] {
        let set = SetQuota {
            subject,
            inodes_hard: Some(1),
            ..SetQuota::default()
        };
        assert_eq!(fs.set_quota(ME, set), Err(FsError::NotSupported));
        assert_eq!(fs.quotas(ME, subject), Ok(Vec::new()));
    }
    account::finish_background(&fs);
    fs.shutdown().unwrap();
    media.fsck().unwrap();
}

fn chattr(args: &[&str], path: &std::path::Path) {
    let output = std::process::Command::new("chattr")
        .args(args)
        .arg(path)
        .capture();
    let output = output.unwrap_or_else(|e| panic!("chattr (package e2fsprogs): {e}"));
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn on_a_mount() {
    if !can_be_root() {
        return;
    }
    for way in [
        "open=answer",
        "open=elide",
        "durability=commit,data=ordered",
    ] {
        let m = Mounted::on(Scene::open_to_all(), &format!("allow_other,{way}"));
        let (mnt, vol) = (m.mnt(), m.0.vol());
        let quota = |target: &std::path::Path, args: &[&str]| {
            let mut all = vec!["quota".as_ref(), target.as_os_str()];
            all.extend(args.iter().map(std::ffi::OsStr::new));
            quayfs(all)
        };
        let tree = mnt.join("tree");
        fs::create_dir(&tree).unwrap();
        chattr(&["-p", "7"], &tree);
        chattr(&["+P"], &tree);
        quota(&mnt, &["--project", "7", "--bytes", "1M", "--inodes", "4"]).ok();
        let edquot = |r: std::io::Result<()>| {
            let errno = r.err().and_then(|e| e.raw_os_error());
            assert_eq!(errno, Some(libc::EDQUOT), "{way}");
        };
        edquot(fs::write(tree.join("big"), vec![1; 2 << 20]));
        fs::remove_file(tree.join("big")).unwrap();
        // The kernel says when it forgets the file, and `rm` does not wait for that.
        eventually("the removed file is gone", || {
            let s = rustix::fs::statvfs(&tree).unwrap();
            s.f_files - s.f_ffree == 1
        });
        fs::write(tree.join("a"), vec![2; 100 << 10]).unwrap();
        fs::write(tree.join("b"), b"").unwrap();
        fs::write(tree.join("c"), b"").unwrap();
        edquot(fs::write(tree.join("d"), b""));
        // `rename` and `link` from outside say that this is another device.
        fs::write(mnt.join("out"), b"").unwrap();
        let errno = fs::rename(mnt.join("out"), tree.join("a")).err();
        assert_eq!(errno.and_then(|e| e.raw_os_error()), Some(libc::EXDEV));
        let s = rustix::fs::statvfs(&tree).unwrap();
        // A page of names, 25 blocks.
        assert_eq!((s.f_blocks, s.f_bfree), (256, 256 - 26));
        assert_eq!((s.f_files, s.f_ffree), (4, 0));
        assert!(rustix::fs::statvfs(&mnt).unwrap().f_blocks > 10_000);
        let listed = |target: &std::path::Path| -> Vec<Quota> {
            serde_json::from_str(&quota(target, &["--json"]).ok()).unwrap()
        };
        let expected = Quota {
            subject: Subject::Project(7),
            bytes: 26 * B,
            bytes_soft: 0,
            bytes_hard: 1 << 20,
            inodes: 4,
            inodes_soft: 0,
            inodes_hard: 4,
            ..Quota::default()
        };
        assert_eq!(listed(&mnt), [expected]);
        assert!(quota(&mnt, &["--project", "7"]).ok().contains("1 MiB"));
        as_nobody(|| quota(&mnt, &[])).fails(1, "only root");
        as_nobody(|| quota(&mnt, &["--project", "8", "--inodes", "1"])).fails(1, "only root");
        quota(&mnt, &["--inodes", "1"]).fails(2, "--project");
        quota(&mnt, &["--users", "--inodes", "1"]).fails(2, "--user");
        quota(&mnt, &["--project", "0"]).fails(2, "0");
        m.umount();
        // At rest it is the same.
        assert_eq!(listed(&vol), [expected]);
        quota(
            &vol,
            &["--project", "7", "--inodes", "none", "--bytes-soft", "4K"],
        )
        .ok();
        // It is exceeded from the beginning, and may be for a while.
        let after = Quota {
            bytes_soft: 4096,
            inodes_hard: 0,
            bytes_grace: listed(&vol)[0].bytes_grace,
            ..expected
        };
        assert!(after.bytes_grace > 0);
        assert_eq!(listed(&vol), [after]);
        m.fsck();
        m.mount(&format!("allow_other,{way}"));
        assert_eq!(listed(&mnt), [after]);
        fs::write(tree.join("d"), b"").unwrap();
        m.umount();
        m.fsck();
    }
}
