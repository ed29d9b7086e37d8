//! Quotas of users and groups: everything is counted whatever changes hands, limits hold, and both are there after any
//! end of a mount.

use std::sync::Arc;

use quayfs_crashsim::Recorder;
use quayfs_fs::{
    Caller, FallocMode, Fs, Quota, RenameFlags, SetAttr, SetQuota, SetXattr, Subject, WriteAt,
    WriteOptions,
};
use quayfs_layout::inode::{ROOT, S_IFREG, S_ISGID};
use quayfs_layout::{BLOCK, Ino};
use quayfs_oracle::rng::bytes;
use quayfs_oracle::{Media, Shape, dump, options, quota};
use quayfs_pmem::Backend;
use quayfs_store::error::FsError;

const B: u64 = BLOCK as u64;
const ME: Caller = Caller {
    uid: 0,
    gid: 0,
    umask: 0,
};
const ALICE: Caller = Caller {
    uid: 5,
    gid: 6,
    ..ME
};
const USER: Subject = Subject::User(5);
const GROUP: Subject = Subject::Group(6);
const OTHER: Subject = Subject::User(9);
const MODES: [(&str, Backend); 4] = [
    ("noatime", Backend::Volatile),
    ("noatime,durability=commit", Backend::File),
    ("noatime,data=ordered", Backend::Volatile),
    ("noatime,checkpoint=swap", Backend::Dax),
];

/// A volume that is mounted without background threads.
struct Disk {
    media: Media,
    options: String,
    fs: Arc<Fs>,
}

impl Disk {
    fn new((text, backend): (&str, Backend)) -> Self {
        let media = Media::new(&Shape::SMALL, backend);
        let fs = media.mount_quiet(&options(text));
        let options = text.into();
        Self { media, options, fs }
    }

    /// The daemon dies, or unmounts; the checker counts; the volume is mounted again.
    fn ends(&mut self, dies: bool) {
        if dies {
            self.fs.sync_all().unwrap();
            self.fs.abandon();
        } else {
            self.fs.shutdown().unwrap();
        }
        self.media.fsck().unwrap();
        self.fs = self.media.mount_quiet(&options(&self.options));
    }

    /// Every project, user and group has what its inodes have, all of which have names.
    fn adds_up(&self) {
        let tree = dump::dump(&self.fs, ROOT).unwrap();
        quota::check(&self.fs, &tree).unwrap();
    }

    fn quota(&self, subject: Subject) -> Quota {
        let none = Quota {
            subject,
            ..Quota::default()
        };
        let all = self.fs.quotas(ME, subject).unwrap().into_iter();
        all.into_iter()
            .find(|q| q.subject == subject)
            .unwrap_or(none)
    }

    /// Blocks and inodes.
    fn has(&self, subject: Subject) -> (u64, u64) {
        let q = self.quota(subject);
        (q.bytes / B, q.inodes)
    }

    fn limit(&self, subject: Subject, blocks: u64, inodes: u64) {
        let set = SetQuota {
            subject,
            bytes_hard: Some(blocks * B),
            inodes_hard: Some(inodes),
            ..SetQuota::default()
        };
        self.fs.set_quota(ME, set).unwrap();
    }

    fn file(&self, by: Caller, dir: Ino, name: &str) -> Result<Ino, FsError> {
        let made = self.fs.mknod(by, dir, name.as_bytes(), S_IFREG | 0o644, 0);
        made.map(|a| a.ino)
    }

    fn write(&self, ino: Ino, block: u64, blocks: usize) -> Result<(), FsError> {
        let data = bytes(block + 1, blocks * BLOCK);
        self.fs.write(ino, block * B, &data, false)
    }

    fn chown(&self, ino: Ino, uid: Option<u32>, gid: Option<u32>) -> Result<(), FsError> {
        let set = SetAttr {
            uid,
            gid,
            ..SetAttr::default()
        };
        self.fs.setattr(ino, &set, false).map(drop)
    }
}

#[test]
fn a_new_volume_counts_its_root_directory() {
    let d = Disk::new(MODES[0]);
    for subject in [Subject::User(0), Subject::Group(0)] {
        assert_eq!(d.has(subject), (0, 1));
    }
    d.adds_up();
}

#[test]
fn whatever_is_done_adds_up() {
    for mode in MODES {
        let mut d = Disk::new(mode);
        let dir = d.fs.mkdir(ALICE, ROOT, b"dir", 0o755).unwrap().ino;
        assert_eq!((d.has(USER), d.has(GROUP)), ((0, 1), (0, 1)), "{mode:?}");
        let f = d.file(ALICE, dir, "f").unwrap();
        // The directory has got a page.
        d.write(f, 0, 9).unwrap();
        assert_eq!((d.has(USER), d.has(GROUP)), ((10, 2), (10, 2)), "{mode:?}");
        d.write(f, 3, 4).unwrap();
        let keep = FallocMode::Allocate { keep_size: true };
        d.fs.fallocate(f, keep, 30 * B, 5 * B).unwrap();
        d.fs.fallocate(f, FallocMode::Punch, 2 * B, 3 * B).unwrap();
        d.fs.setxattr(f, b"user.a", &bytes(4, 9000), SetXattr::Any)
            .unwrap();
        d.adds_up();
        d.ends(true);
        d.adds_up();
        // All of it goes to another user, and stays with the group; then to another group.
        let (blocks, inodes) = d.has(USER);
        let own = d.fs.getattr(f).unwrap().inode.blocks;
        d.chown(f, Some(9), None).unwrap();
        assert_eq!(d.has(OTHER), (own, 1), "{mode:?}");
        assert_eq!(d.has(USER), (blocks - own, inodes - 1), "{mode:?}");
        assert_eq!(d.has(GROUP), (blocks, inodes), "{mode:?}");
        d.chown(f, None, Some(10)).unwrap();
        assert_eq!(d.has(GROUP), (blocks - own, inodes - 1), "{mode:?}");
        // A directory that passes its group on.
        let set = SetAttr {
            mode: Some(0o755 | S_ISGID),
            ..SetAttr::default()
        };
        d.fs.setattr(dir, &set, false).unwrap();
        d.file(ME, dir, "by root").unwrap();
        assert_eq!(d.has(GROUP).1, inodes, "{mode:?}");
        d.adds_up();
        d.ends(false);
        d.adds_up();
        // A second name costs nothing, and what has a name is counted once.
        let (f, dir) = (at(&d.fs, "dir/f"), at(&d.fs, "dir"));
        d.fs.link(f, ROOT, b"again").unwrap();
        d.fs.unlink(dir, b"f").unwrap();
        d.adds_up();
        // Without a name it counts until it is gone.
        let before = d.has(OTHER);
        d.fs.unlink(ROOT, b"again").unwrap();
        assert_eq!(d.has(OTHER), before, "{mode:?}");
        let known = 3;
        d.fs.forget(f, known);
        assert_eq!(d.has(OTHER), (0, 0), "{mode:?}");
        let t = d.fs.tmpfile(ALICE, dir, 0o600).unwrap().ino;
        d.write(t, 0, 2).unwrap();
        let (blocks, inodes) = d.has(USER);
        d.ends(true);
        assert_eq!(d.has(USER), (blocks - 2, inodes - 1), "{mode:?}");
        d.adds_up();
        let plain = RenameFlags::default();
        let g = d.file(ALICE, ROOT, "g").unwrap();
        let h = d.file(ME, ROOT, "h").unwrap();
        d.write(g, 0, 3).unwrap();
        d.write(h, 0, 2).unwrap();
        d.fs.rename((ROOT, b"h"), (ROOT, b"g"), plain).unwrap();
        d.fs.forget(g, 2);
        d.adds_up();
        d.ends(true);
        d.adds_up();
    }
}

fn at(fs: &Fs, path: &str) -> Ino {
    let next = |dir, name: &str| fs.lookup(dir, name.as_bytes()).unwrap().ino;
    path.split('/').fold(ROOT, next)
}

/// Whatever a limit refuses leaves no trace, and what it does not bind is not refused.
#[test]
fn limits_hold() {
    for mode in MODES {
        let mut d = Disk::new(mode);
        let f = d.file(ALICE, ROOT, "f").unwrap();
        let of_root = d.file(ME, ROOT, "of root").unwrap();
        d.write(f, 0, 4).unwrap();
        d.write(of_root, 0, 2).unwrap();
        let over = Err(FsError::Quota);
        d.limit(USER, 6, 2);
        for _ in 0..2 {
            let all = dump::dump(&d.fs, ROOT).unwrap();
            assert_eq!(d.write(f, 4, 3), over, "{mode:?}");
            let allocate = FallocMode::Allocate { keep_size: true };
            assert_eq!(d.fs.fallocate(f, allocate, 8 * B, 3 * B), over);
            // One inode would do, three pages would not.
            let target = [b'x'; 3000];
            assert_eq!(
                d.fs.setxattr(f, b"user.a", &bytes(3, 9000), SetXattr::Any),
                over
            );
            let second = d.file(ALICE, ROOT, "second").unwrap();
            assert_eq!(d.file(ALICE, ROOT, "third"), Err(FsError::Quota));
            let third = d.fs.symlink(ALICE, ROOT, b"third", &target);
            assert_eq!(third.err(), Some(FsError::Quota));
            assert_eq!(d.fs.tmpfile(ALICE, ROOT, 0o600).err(), Some(FsError::Quota));
            // Nor can anything be given to that user.
            assert_eq!(d.chown(of_root, Some(5), None), over);
            d.fs.unlink(ROOT, b"second").unwrap();
            d.fs.forget(second, 1);
            assert_eq!(dump::dump(&d.fs, ROOT).unwrap().len(), all.len());
            assert_eq!(d.has(USER), (4, 1), "{mode:?}");
            // The block limit binds a file of the same user alone, also one with another group.
            d.write(of_root, 2, 9).unwrap();
            d.adds_up();
            d.ends(true);
            at(&d.fs, "f");
            at(&d.fs, "of root");
        }
        d.write(f, 4, 2).unwrap();
        d.write(f, 0, 6).unwrap();
        assert_eq!(d.write(f, 6, 1), over);
        // What leaves the user is not refused by that user's limit, but may be by that of a group.
        d.limit(Subject::Group(8), 5, 0);
        assert_eq!(d.chown(f, Some(9), Some(8)), over);
        assert_eq!((d.has(USER), d.has(OTHER)), ((6, 1), (0, 0)));
        d.limit(Subject::Group(8), 6, 0);
        d.chown(f, Some(9), Some(8)).unwrap();
        assert_eq!((d.has(USER), d.has(OTHER)), ((0, 0), (6, 1)));
        d.ends(false);
        assert_eq!(d.quota(USER).inodes_hard, 2);
        d.adds_up();
    }
}

#[test]
fn callers_with_the_capability_are_exempt_but_not_from_limits_of_projects() {
    let d = Disk::new(MODES[0]);
    let f = d.file(ALICE, ROOT, "f").unwrap();
    d.limit(USER, 2, 1);
    assert_eq!(d.write(f, 0, 3), Err(FsError::Quota));
    assert_eq!(d.fs.beyond_limits(ALICE, || d.write(f, 0, 3)), None);
    assert_eq!(d.has(USER), (0, 1));
    assert_eq!(d.fs.beyond_limits(ME, || d.write(f, 0, 3)), Some(Ok(())));
    assert_eq!(d.has(USER), (3, 1));
    // That it is above its limit binds it as before.
    assert_eq!(d.write(f, 3, 1), Err(FsError::Quota));
    d.write(f, 0, 3).unwrap();
    let project = quayfs_fs::SetFlags {
        flags: 0,
        mask: 0,
        project: Some(7),
    };
    d.fs.set_flags(ME, f, project).unwrap();
    d.limit(Subject::Project(7), 3, 0);
    let more = d.fs.beyond_limits(ME, || d.write(f, 3, 1));
    assert_eq!(more, Some(Err(FsError::Quota)));
    d.adds_up();
}

/// Of an append of two records the second one meets the limit. The first one is there, and is not appended again.
#[test]
fn what_an_exempt_caller_appends_is_appended_once() {
    let d = Disk::new(MODES[0]);
    let (f, g) = (
        d.file(ALICE, ROOT, "f").unwrap(),
        d.file(ALICE, ROOT, "g").unwrap(),
    );
    let max = d.fs.request_max();
    d.limit(USER, (max / BLOCK) as u64, 0);
    let data = bytes(1, 2 * max);
    let end = WriteOptions {
        append: true,
        at: WriteAt::End,
        ..WriteOptions::default()
    };
    let append = |ino| d.fs.write_for(ino, 0, &data, end);
    assert_eq!(append(f), Err(FsError::Quota));
    assert_eq!(d.fs.beyond_limits(ME, || append(f)), Some(Ok(false)));
    // What one has left to be done is nothing to the next.
    assert_eq!(append(f), Err(FsError::Quota));
    assert_eq!(append(g), Err(FsError::Quota));
    assert_eq!(d.fs.beyond_limits(ME, || append(g)), Some(Ok(false)));
    for ino in [f, g] {
        let content = d.fs.read(ino, 0, 3 * max).unwrap();
        assert!(content == data, "{} of {}", content.len(), data.len());
    }
    d.adds_up();
}

#[test]
fn users_see_what_is_theirs() {
    let d = Disk::new(MODES[0]);
    d.file(ALICE, ROOT, "f").unwrap();
    let bob = Caller {
        uid: 7,
        gid: 8,
        ..ME
    };
    d.file(bob, ROOT, "g").unwrap();
    let seen = |by, subject| {
        let all = d.fs.quotas(by, subject)?.into_iter();
        Ok(all.map(|q| q.subject).collect::<Vec<_>>())
    };
    assert_eq!(seen(ALICE, USER), Ok(vec![USER]));
    assert_eq!(seen(ALICE, GROUP), Ok(vec![GROUP]));
    for other in [
        Subject::User(0),
        Subject::User(7),
        Subject::Group(8),
        Subject::Project(5),
    ] {
        assert_eq!(seen(ALICE, other), Err(FsError::Perm), "{other}");
    }
    assert_eq!(seen(ME, USER), Ok(vec![USER, Subject::User(7)]));
}

#[test]
fn without_enforcement_everything_is_counted_and_nothing_refused() {
    let mut d = Disk::new(MODES[0]);
    d.limit(USER, 2, 1);
    d.options = "noatime,noquota".into();
    d.ends(false);
    let f = d.file(ALICE, ROOT, "f").unwrap();
    d.file(ALICE, ROOT, "g").unwrap();
    d.write(f, 0, 3).unwrap();
    assert_eq!(d.has(USER), (3, 2));
    d.adds_up();
    d.options = "noatime,usrquota,grpquota".into();
    d.ends(true);
    let f = at(&d.fs, "f");
    assert_eq!(d.write(f, 3, 1), Err(FsError::Quota));
    d.adds_up();
}

/// More users than the first page of the table has places for.
#[test]
fn the_table_grows() {
    const USERS: u32 = 3 * quayfs_layout::quota::PER_PAGE as u32;
    let geometry = Shape::SMALL.geometry_with(8);
    let recorder = Recorder::new(geometry.pmem_len, geometry.data_blocks, Backend::Volatile);
    let media = Media::format(recorder.region(), recorder.device(), geometry);
    let mut fs = media.mount_quiet(&options("noatime"));
    for time in 0..2 {
        for uid in 100..100 + USERS {
            let by = Caller {
                uid,
                gid: 0,
                umask: 0,
            };
            let name = format!("{time} {uid}");
            fs.mknod(by, ROOT, name.as_bytes(), S_IFREG | 0o644, 0)
                .unwrap();
        }
        fs.sync_all().unwrap();
        fs.abandon();
        media.fsck().unwrap();
        fs = media.mount_quiet(&options("noatime"));
        quota::check(&fs, &dump::dump(&fs, ROOT).unwrap()).unwrap();
    }
    let users = fs.quotas(ME, Subject::User(100)).unwrap();
    assert_eq!(users.len(), USERS as usize);
    assert!(users.iter().all(|q| q.inodes == 2));
}
