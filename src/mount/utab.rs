//! `/run/mount/utab`, which libmount keeps beside the kernel's mount table.
//!
//! For root, umount(8) asks the file system on a mount point what it is, is told `fuse`, and knows no helper for that. It
//! takes the mount away and ends while the daemon goes on closing the volume. Where this table has a line for the mount
//! point it looks into the kernel's mount table instead, finds `fuse.quayfs`, and calls `umount.fuse.quayfs`, which waits.

use super::table::{self, unescape};
use rustix::fs::{CWD, FlockOperation, Mode, OFlags};
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// Where libmount has the table.
const DIRECTORY: &str = "/run/mount";
/// What our lines have for options. Without any a line is ignored.
const OPTIONS: &[u8] = b"OPTS=uhelper=quayfs";
/// How long to wait for the lock, which any user can take for as long as they like.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often to try.
const LOOK: Duration = Duration::from_millis(10);

/// Has umount(8) call the helper for what is mounted on `target`; the kernel's mount table shows `source`.
///
/// # Errors
/// Those of the system: only root may change the table. Then umount(8) does not wait.
pub fn add(source: &Path, target: &Path) -> io::Result<()> {
    change(Path::new(DIRECTORY), target, Some(source), is_mounted)
}

/// The mount on `target` is gone.
///
/// # Errors
/// Those of the system. What is left means nothing without the mount.
pub fn remove(target: &Path) -> io::Result<()> {
    change(Path::new(DIRECTORY), target, None, is_mounted)
}

fn is_mounted(target: &Path) -> bool {
    // Where that cannot be said, the line stays.
    table::mounted_on(target).map_or(true, |entry| entry.is_some())
}

/// Replaces the lines of `target`, and leaves out lines of ours whose mounts ended without [`remove`].
fn change(
    directory: &Path,
    target: &Path,
    source: Option<&Path>,
    is_mounted: impl Fn(&Path) -> bool,
) -> io::Result<()> {
    if source.is_some() && !directory.exists() {
        DirBuilder::new().mode(0o755).create(directory)?;
    }
    let path = directory.join("utab");
    let _locked = lock(directory)?;
    let old = match std::fs::read(&path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Vec::new(),
        read => read?,
    };
    let mut new: Vec<u8> = old
        .split_inclusive(|byte| *byte == b'\n')
        .filter(|line| match target_of(line) {
            Some(other) if other == target => false,
            Some(other) => !is_ours(line) || is_mounted(&other),
            None => true,
        })
        .flatten()
        .copied()
        .collect();
    if let Some(source) = source {
        if new.last().is_some_and(|byte| *byte != b'\n') {
            new.push(b'\n');
        }
        new.extend(line(source, target));
    }
    match new == old {
        true => Ok(()),
        false => replace(&path, &new),
    }
}

/// The lock that libmount takes.
fn lock(directory: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::CREATE | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::ROTH;
    let file = rustix::fs::openat(CWD, directory.join("utab.lock"), flags, mode)?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < deadline => thread::sleep(LOOK),
            Err(e) => return Err(e.into()),
        }
    }
}

/// Readers take no lock: they see the old table or the new one.
fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let new = path.with_extension("quayfs");
    let mut options = OpenOptions::new();
    let mut file: File = options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o644)
        .open(&new)?;
    file.write_all(content)?;
    std::fs::rename(&new, path)
}

fn line(source: &Path, target: &Path) -> Vec<u8> {
    let mut out = b"SRC=".to_vec();
    out.extend(escape(source));
    out.extend(b" TARGET=");
    out.extend(escape(target));
    out.extend(b" ROOT=/ ");
    out.extend(OPTIONS);
    out.push(b'\n');
    out
}

fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.trim_ascii_end().split(|byte| *byte == b' ')
}

fn target_of(line: &[u8]) -> Option<PathBuf> {
    let target = words(line).find_map(|word| word.strip_prefix(b"TARGET="))?;
    Some(unescape(target).into())
}

fn is_ours(line: &[u8]) -> bool {
    words(line).any(|word| word == OPTIONS)
}

/// As the kernel writes paths.
fn escape(path: &Path) -> Vec<u8> {
    let mut out = Vec::new();
    for &byte in path.as_os_str().as_bytes() {
        match byte {
            b' ' | b'\t' | b'\n' | b'\\' => out.extend(format!("\\{byte:03o}").bytes()),
            _ => out.push(byte),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const OF_OTHERS: &str = "ID=41 SRC=/dev/loop0 TARGET=/mnt/a ROOT=/ ATTRS=loop=/dev/loop0\n\
        SRC=host:/x TARGET=/mnt/n ROOT=/ OPTS=uhelper=nfs\nwhatever comes\n";

    fn changed(table: &str, target: &str, source: Option<&str>, mounted: &[&str]) -> String {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("utab"), table).unwrap();
        let is_mounted = |path: &Path| mounted.iter().any(|m| Path::new(m) == path);
        let source = source.map(Path::new);
        change(dir.path(), Path::new(target), source, is_mounted).unwrap();
        std::fs::read_to_string(dir.path().join("utab")).unwrap()
    }

    #[test]
    fn a_line_comes_and_goes_and_those_of_others_stay() {
        let mine = "SRC=/srv/vol TARGET=/mnt/a\\040b\\134 ROOT=/ OPTS=uhelper=quayfs\n";
        let both = format!("{OF_OTHERS}{mine}");
        assert_eq!(
            changed(OF_OTHERS, "/mnt/a b\\", Some("/srv/vol"), &[]),
            both
        );
        assert_eq!(changed(&both, "/mnt/a b\\", None, &[]), OF_OTHERS);
        // One that is mounted again has one line.
        let other = both.replace("/srv/vol", "/srv/old");
        assert_eq!(changed(&other, "/mnt/a b\\", Some("/srv/vol"), &[]), both);
    }

    #[test]
    fn lines_of_mounts_that_ended_by_themselves_go() {
        let of = |target: &str| format!("SRC=/v TARGET={target} ROOT=/ OPTS=uhelper=quayfs\n");
        let table = format!("{}{OF_OTHERS}{}", of("/dead"), of("/alive"));
        let left = format!("{OF_OTHERS}{}", of("/alive"));
        assert_eq!(changed(&table, "/new", None, &["/alive"]), left);
    }

    #[test]
    fn a_table_without_an_end_of_line_gets_one() {
        let made = changed("SRC=x TARGET=/y ROOT=/", "/t", Some("/s"), &[]);
        assert_eq!(
            made,
            "SRC=x TARGET=/y ROOT=/\nSRC=/s TARGET=/t ROOT=/ OPTS=uhelper=quayfs\n"
        );
    }

    #[test]
    fn without_a_table_one_is_made_and_a_lock_that_is_held_is_not_waited_for_long() {
        let dir = tempfile::tempdir().unwrap();
        let directory = dir.path().join("mount");
        let (target, source) = (Path::new("/t"), Path::new("/s"));
        assert!(change(&directory, target, None, |_| true).is_err());
        change(&directory, target, Some(source), |_| true).unwrap();
        assert_eq!(
            std::fs::read(directory.join("utab")).unwrap(),
            line(source, target)
        );
        let held = lock(&directory).unwrap();
        let refused = change(&directory, target, None, |_| true).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
        drop(held);
        change(&directory, target, None, |_| true).unwrap();
        assert_eq!(std::fs::read(directory.join("utab")).unwrap(), b"");
    }
}
