//! Volumes that earlier builds have made are mounted, read, written and checked. They are kept in `tests/formats`.
//!
//! `volumes-0.tar.gz`: format 1 with the quota table as its only feature, two volumes with the same tree on files of
//! a disk: `clean` was unmounted, the daemon of `dead` was killed after a `sync`.
//!
//! A test binary of its own: it starts a program, which for a moment has copies of what other tests have open, with the
//! locks of their volumes.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use quayfs_fs::volume::{Access, Volume};
use quayfs_fs::{Caller, Fs, SetQuota, Subject};
use quayfs_fsck::repair::{Upgraded, upgrade};
use quayfs_fsck::{FsckOptions, check_volume};
use quayfs_layout::Ino;
use quayfs_layout::config::{FEATURE_BACKUP, FEATURE_OWNERS, FEATURE_QUOTA, FEATURE_ZERO_CRC};
use quayfs_layout::inode::{ROOT, S_IFREG};
use quayfs_options::MountOptions;
use quayfs_store::error::FsError;

const ME: Caller = Caller {
    uid: 0,
    gid: 0,
    umask: 0,
};

fn content(len: usize, key: usize) -> Vec<u8> {
    (0..len).map(|i| ((i * 31 + key) % 251) as u8).collect()
}

fn open(dir: &Path, access: Access) -> Volume {
    Volume::open(dir, access, Duration::ZERO).expect("the volume opens")
}

fn mount(dir: &Path) -> Arc<Fs> {
    let options = MountOptions::parse(&["noatime"]).expect("options");
    Fs::mount_quiet(open(dir, Access::ReadWrite), &options).expect("it is mounted")
}

fn is_clean(dir: &Path) {
    let how = FsckOptions { check_data: true };
    let report = check_volume(open(dir, Access::ReadOnly), &how).expect("it is checked");
    assert!(report.is_clean(), "{}: {report}", dir.display());
}

fn find(fs: &Fs, path: &str) -> Result<Ino, FsError> {
    path.split('/')
        .try_fold(ROOT, |dir, name| Ok(fs.lookup(dir, name.as_bytes())?.ino))
}

fn holds(fs: &Fs, path: &str, expected: &[u8]) {
    let ino = find(fs, path).expect(path);
    let size = fs.getattr(ino).expect(path).inode.size;
    let found = fs.read(ino, 0, size as usize).expect(path);
    assert!(found == expected, "{path}");
}

/// The tree that both volumes have.
fn has_its_tree(fs: &Fs) {
    holds(fs, "empty", &[]);
    for (key, len) in [(1, 1), (2, 100), (3, 4096), (4, 5000)] {
        holds(fs, &format!("dir/f{key}"), &content(len, key));
    }
    holds(fs, "hard", &content(100, 2));
    let mut overwritten = content(100_000, 5);
    overwritten[8192..16384].copy_from_slice(&content(8192, 9));
    holds(fs, "dir/f5", &overwritten);
    let mut sparse = vec![0; 1 << 20];
    sparse.extend(b"end");
    holds(fs, "sparse", &sparse);

    let inode = |path| fs.getattr(find(fs, path).expect(path)).expect(path).inode;
    assert_eq!(inode("dir/f4").mode, S_IFREG | 0o640);
    assert_eq!(inode("hard").nlink, 2);
    assert!(inode("sparse").blocks < 8);
    let f3 = find(fs, "dir/f3").expect("f3");
    assert_eq!(
        fs.getxattr(f3, b"user.colour").expect("attribute"),
        b"green"
    );
    let link = find(fs, "link").expect("link");
    assert_eq!(fs.readlink(link).expect("target"), b"dir/f1");
    for n in 0..300 {
        let there = find(fs, &format!("dir/sub/n{n:03}")).is_ok();
        assert_eq!(there, n != 7, "n{n:03}");
    }
    assert!(find(fs, "dir/f0").is_err());
}

#[test]
fn volumes_of_earlier_builds_are_read_written_and_checked() {
    let dir = tempfile::tempdir().expect("a directory");
    let archive = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/formats/volumes-0.tar.gz");
    let mut tar = Command::new("tar");
    tar.arg("-xzf").arg(archive).arg("-C").arg(dir.path());
    assert!(tar.status().expect("tar").success());
    for name in ["clean", "dead"] {
        let dir = dir.path().join(name);
        let features = open(&dir, Access::ReadOnly).config().compat;
        assert_eq!(features, [0, 0, FEATURE_QUOTA], "{name}");
        is_clean(&dir);
        // Users and groups are not counted there, so a mount cannot have what these options ask for.
        let options = MountOptions::parse(&["usrquota"]).expect("options");
        let refused = Fs::mount_quiet(open(&dir, Access::ReadWrite), &options).err();
        let why = refused.expect("no such mount").to_string();
        assert!(
            why.contains("before users and groups were counted"),
            "{why}"
        );
        let fs = mount(&dir);
        has_its_tree(&fs);
        let limit = |subject| {
            let set = SetQuota {
                subject,
                bytes_hard: Some(1 << 20),
                ..SetQuota::default()
            };
            fs.set_quota(ME, set)
        };
        assert_eq!(limit(Subject::User(0)), Err(FsError::NotSupported));
        assert_eq!(limit(Subject::Group(0)), Err(FsError::NotSupported));
        assert_eq!(limit(Subject::Project(7)), Ok(()));
        assert_eq!(fs.quotas(ME, Subject::User(0)), Ok(Vec::new()));
        // A large one too, which goes another way.
        let new = fs
            .mknod(ME, ROOT, b"new", S_IFREG | 0o644, 0)
            .expect("mknod")
            .ino;
        fs.write(new, 0, &content(200_000, 6), false)
            .expect("write");
        fs.write(new, 200_000, &content(3000, 7), false)
            .expect("write");
        fs.sync_all().expect("sync");
        fs.shutdown().expect("unmount");
        drop(fs);
        is_clean(&dir);
        let fs = mount(&dir);
        has_its_tree(&fs);
        holds(
            &fs,
            "new",
            &[content(200_000, 6), content(3000, 7)].concat(),
        );
        fs.shutdown().expect("unmount");
        drop(fs);
        takes_on_owners(&dir);
    }
}

/// Users and groups are counted, exactly, and can have quotas.
fn takes_on_owners(dir: &Path) {
    let upgraded = upgrade(dir, &Arc::default()).expect("it is upgraded");
    let Upgraded::Done(report) = upgraded else {
        panic!("{upgraded:?}");
    };
    assert!(report.check.is_clean(), "{report}");
    let features = open(dir, Access::ReadOnly).config().compat;
    assert_eq!(
        features,
        [
            FEATURE_ZERO_CRC,
            FEATURE_BACKUP,
            FEATURE_QUOTA | FEATURE_OWNERS
        ]
    );
    is_clean(dir);
    let fs = mount(dir);
    has_its_tree(&fs);
    let root = fs.quotas(ME, Subject::User(0)).expect("quotas")[0];
    assert!(root.inodes > 300 && root.bytes > 300_000, "{root:?}");
    let limit = SetQuota {
        subject: Subject::Group(0),
        inodes_hard: Some(root.inodes),
        ..SetQuota::default()
    };
    fs.set_quota(ME, limit).expect("a limit");
    let more = fs.mknod(ME, ROOT, b"more", S_IFREG | 0o644, 0);
    assert_eq!(more.err(), Some(FsError::Quota));
    fs.shutdown().expect("unmount");
    drop(fs);
    let again = upgrade(dir, &Arc::default()).expect("nothing to do");
    assert!(matches!(again, Upgraded::Nothing), "{again:?}");
}
