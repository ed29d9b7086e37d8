//! What commits have only written to the batch log is there after a crash, however the volume is opened next, and the log has
//! nothing after an unmount.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use quayfs_fs::recovery::batch_log;
use quayfs_fs::volume::{Access, Volume, VolumeError};
use quayfs_fs::{Caller, Fs};
use quayfs_fsck::repair::{Outcome, repair};
use quayfs_fsck::{FsckOptions, check, check_volume};
use quayfs_layout::batch::HEADS;
use quayfs_layout::config::FEATURE_BATCHES;
use quayfs_layout::inode::{ROOT, S_IFREG};
use quayfs_mkfs::{MkfsOptions, mkfs};
use quayfs_options::MountOptions;
use quayfs_pmem::{BatchLog, PmemError};
use tempfile::TempDir;

const ME: Caller = Caller {
    uid: 0,
    gid: 0,
    umask: 0,
};

fn content(key: usize) -> Vec<u8> {
    (0..5000)
        .map(|i| ((i * 31 + key * 7) % 251) as u8)
        .collect()
}

fn name(key: usize) -> Vec<u8> {
    format!("file-{key:04}").into()
}

/// A volume in one file on a disk.
fn made() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let path = dir.path().join("volume");
    let options = MkfsOptions {
        size: Some(256 << 20),
        ..MkfsOptions::default()
    };
    mkfs(&path, &options).expect("mkfs");
    (dir, path)
}

fn open(path: &Path, access: Access) -> Volume {
    Volume::open(path, access, Duration::ZERO).expect("the volume opens")
}

fn mount(path: &Path, access: Access) -> Arc<Fs> {
    let words: &[&str] = match access {
        Access::ReadWrite => &["noatime"],
        Access::ReadOnly => &["noatime", "ro"],
    };
    let options = MountOptions::parse(words).expect("options");
    Fs::mount_quiet(open(path, access), &options).expect("it is mounted")
}

/// The log of a volume that is not mounted.
fn log_of(path: &Path) -> BatchLog {
    let volume = open(path, Access::ReadOnly);
    let config = volume.config();
    assert!(config.compat[2] & FEATURE_BATCHES != 0, "not on a disk");
    batch_log(&config.geometry, config.salt()).expect("a log")
}

/// Files that are made durable one by one.
fn make(fs: &Fs, keys: std::ops::Range<usize>) {
    for key in keys {
        let made = fs.mknod(ME, ROOT, &name(key), S_IFREG | 0o644, 0);
        let ino = made.expect("mknod").ino;
        fs.write(ino, 0, &content(key), false).expect("write");
        fs.fsync(ino).expect("fsync");
    }
}

fn has(fs: &Fs, keys: std::ops::Range<usize>) {
    for key in keys {
        let ino = fs.lookup(ROOT, &name(key)).expect("a file").ino;
        assert!(
            fs.read(ino, 0, 9000).expect("read") == content(key),
            "{key}"
        );
    }
}

fn is_clean(path: &Path) {
    let how = FsckOptions { check_data: true };
    let report = check_volume(open(path, Access::ReadOnly), &how).expect("it is checked");
    assert!(report.is_clean(), "{report}");
}

/// A volume as the power leaves it after the last of so many files.
fn cut(files: usize) -> (TempDir, PathBuf) {
    let (dir, path) = made();
    let fs = mount(&path, Access::ReadWrite);
    make(&fs, 0..files);
    let left = dir.path().join("left");
    std::fs::copy(&path, &left).expect("a copy");
    fs.shutdown().expect("unmount");
    (dir, left)
}

fn overwrite(path: &Path, off: u64, len: usize) {
    let file = File::options().write(true).open(path).expect("the volume");
    file.write_all_at(&vec![0xa5; len], off).expect("write");
}

/// Few files, which the log has all of, and more than it has room for.
#[test]
fn a_crash_loses_nothing_that_only_the_log_had() {
    for files in [20, 1500] {
        let (_dir, path) = cut(files);
        // For reading only, the file stays as it is.
        let before = std::fs::read(&path).expect("the volume");
        is_clean(&path);
        has(&mount(&path, Access::ReadOnly), 0..files);
        assert!(std::fs::read(&path).expect("the volume") == before);
        let fs = mount(&path, Access::ReadWrite);
        has(&fs, 0..files);
        make(&fs, files..files + 10);
        fs.shutdown().expect("unmount");
        drop(fs);
        is_clean(&path);
        has(&mount(&path, Access::ReadOnly), 0..files + 10);
    }
}

/// Without its log the volume of a crash lacks something, or this would test nothing; one that was unmounted lacks nothing.
#[test]
fn after_an_unmount_the_log_has_nothing() {
    let (_dir, path) = cut(20);
    let log = log_of(&path);
    let rest = |log: &BatchLog| (log.off + 8192, log.len as usize - 8192);
    let wiped = path.with_extension("wiped");
    std::fs::copy(&path, &wiped).expect("a copy");
    let (off, len) = rest(&log);
    overwrite(&wiped, off, len);
    let fs = mount(&wiped, Access::ReadOnly);
    assert!((0..20).any(|key| fs.lookup(ROOT, &name(key)).is_err()));

    for (n, leave) in [(20, false), (40, true), (60, false)] {
        let fs = mount(&path, Access::ReadWrite);
        make(&fs, n..n + 20);
        match leave {
            true => assert!(fs.shutdown_leaving_staged().expect("unmount")),
            false => fs.shutdown().expect("unmount"),
        }
        drop(fs);
        overwrite(&path, off, len);
        is_clean(&path);
        has(&mount(&path, Access::ReadOnly), 0..n + 20);
    }
}

#[test]
fn a_damaged_head_costs_nothing_and_two_are_said() {
    let (_dir, path) = cut(20);
    let log = log_of(&path);
    overwrite(&path, log.off + HEADS[0], 512);
    let report = check(&path, &FsckOptions::default()).expect("it is checked");
    assert!(
        report.to_string().contains("a head of the batch log"),
        "{report}"
    );
    has(&mount(&path, Access::ReadOnly), 0..20);
    let copy = path.with_extension("copy");
    std::fs::copy(&path, &copy).expect("a copy");
    for (found, outcome) in [(1, Outcome::Repaired), (0, Outcome::Clean)] {
        let report = repair(&copy, &FsckOptions::default(), &Default::default()).expect("a repair");
        assert_eq!((report.found, report.outcome), (found, outcome), "{report}");
        assert_eq!((report.done.len() as u64, report.losses()), (found, None));
    }
    has(&mount(&copy, Access::ReadOnly), 0..20);

    overwrite(&path, log.off + HEADS[1], 512);
    let refused = Volume::open(&path, Access::ReadWrite, Duration::ZERO).err();
    assert!(matches!(
        refused,
        Some(VolumeError::Pmem(PmemError::BatchLog))
    ));
    let report = check(&path, &FsckOptions::default()).expect("it is checked");
    assert!(
        report.to_string().contains("both heads of the batch log"),
        "{report}"
    );
    let report = repair(&path, &FsckOptions::default(), &Default::default()).expect("a repair");
    assert_eq!(report.outcome, Outcome::Repaired);
    assert!(report.lost_commits && report.losses().is_some(), "{report}");
    is_clean(&path);
    let fs = mount(&path, Access::ReadWrite);
    make(&fs, 100..110);
    fs.shutdown().expect("unmount");
    drop(fs);
    is_clean(&path);
    has(&mount(&path, Access::ReadOnly), 100..110);

    // An unmount has left nothing that could be lost.
    overwrite(&path, log.off + HEADS[0], 8192);
    let report = repair(&path, &FsckOptions::default(), &Default::default()).expect("a repair");
    assert_eq!(
        (report.outcome, report.losses()),
        (Outcome::Repaired, None),
        "{report}"
    );
    is_clean(&path);
    has(&mount(&path, Access::ReadOnly), 100..110);

    overwrite(&path, log.off + HEADS[1], 512);
    let report = check(&path, &FsckOptions::default()).expect("it is checked");
    assert!(
        report.to_string().contains("a head of the batch log"),
        "{report}"
    );
    has(&mount(&path, Access::ReadWrite), 100..110);
}

/// Files that are at home and blocks that are not: none reads as what it was not.
#[test]
fn without_its_log_a_volume_tells_no_lies() {
    let (_dir, path) = cut(400);
    let log = log_of(&path);
    overwrite(&path, log.off, log.len as usize);
    let report = repair(&path, &FsckOptions::default(), &Default::default()).expect("a repair");
    assert!(report.lost_commits, "{report}");
    let named = |key: usize| {
        let path = format!("/file-{key:04}");
        report.done.iter().any(|d| d.path.as_deref() == Some(&path))
    };
    let fs = mount(&path, Access::ReadOnly);
    for key in 0..400 {
        let Ok(found) = fs.lookup(ROOT, &name(key)) else {
            continue;
        };
        let is = fs.read(found.ino, 0, 9000);
        let lies = is.is_ok_and(|is| is != content(key));
        assert!(!lies || named(key), "{key}: {report}");
    }
}
