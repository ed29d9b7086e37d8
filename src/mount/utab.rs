//! `/run/mount/utab`, which libmount keeps beside the kernel's mount table.
//!
//! For root, umount(8) asks the file system on a mount point what it is, is told `fuse`, and knows no helper for that. It
//! takes the mount away and ends while the daemon goes on closing the volume. Where this table has a line for the mount
//! point it looks into the kernel's mount table instead, finds `fuse.quayfs`, and calls `umount.fuse.quayfs`, which waits.

use super::table::{self, unescape};
use rustix::fs::{CWD, FlockOperation, Mode, OFlags};
use std::fs::{DirBuilder, File, Permissions};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// Where libmount has the table.
const DIRECTORY: &str = "/run/mount";
/// What our lines have for options. Without any a line is ignored.
const OPTIONS: &[u8] = b"OPTS=uhelper=quayfs";
/// How long to wait for the lock, which any user can take for as long as they like.
const PATIENCE: Duration = Duration::from_secs(1);
/// Lines of ours, most of which belong to no mount.
const MANY: usize = 100;
/// How often to try.
const LOOK: Duration = Duration::from_millis(10);

/// Has umount(8) call the helper for what is mounted on `target`; the kernel's mount table shows `source`.
///
/// # Errors
/// Those of the system: only root may change the table. Then umount(8) does not wait.
pub fn add(source: &Path, target: &Path) -> io::Result<()> {
    change(Path::new(DIRECTORY), (source, target), true, is_mounted)
}

/// What the mount table showed as `source` on `target` is gone, wherever it was mounted.
///
/// # Errors
/// Those of the system. What is left means nothing without the mount.
pub fn remove(source: &Path, target: &Path) -> io::Result<()> {
    change(Path::new(DIRECTORY), (source, target), false, is_mounted)
}

fn is_mounted(target: &Path) -> bool {
    // Where that cannot be said, the line stays.
    table::mounted_on(target).map_or(true, |entry| entry.is_some())
}

/// Adds a line, or takes it out. Beyond [`MANY`] lines of ours go whose mounts ended without [`remove`], or are in
/// another namespace.
fn change(
    directory: &Path,
    (source, target): (&Path, &Path),
    is_there: bool,
    is_mounted: impl Fn(&Path) -> bool,
) -> io::Result<()> {
    if is_there && !directory.exists() {
        DirBuilder::new().create(directory)?;
        std::fs::set_permissions(directory, Permissions::from_mode(0o755))?;
    }
    let path = directory.join("utab");
    let _locked = lock(directory)?;
    let old = match std::fs::read(&path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Vec::new(),
        read => read?,
    };
    let mine = line(source, target);
    let lines: Vec<&[u8]> = old.split_inclusive(|byte| *byte == b'\n').collect();
    let are_many = lines.iter().filter(|line| is_ours(line)).count() > MANY;
    let stays = |line: &&[u8]| {
        let is_left = |line| target_of(line).is_none_or(|target| is_mounted(&target));
        *line != mine && !(are_many && is_ours(line) && !is_left(line))
    };
    let mut new: Vec<u8> = lines.into_iter().filter(stays).flatten().copied().collect();
    if is_there {
        if new.last().is_some_and(|byte| *byte != b'\n') {
            new.push(b'\n');
        }
        new.extend(mine);
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
    let path = directory.join("utab.lock");
    let is_new = !path.exists();
    let file = rustix::fs::openat(CWD, path, flags, mode)?;
    if is_new {
        rustix::fs::fchmod(&file, mode)?;
    }
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
    let mut file = File::create(&new)?;
    // Whatever the umask is: users look there for what they have mounted.
    file.set_permissions(Permissions::from_mode(0o644))?;
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

    fn changed(table: &str, source: &str, target: &str, is_there: bool) -> String {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("utab"), table).unwrap();
        let both = (Path::new(source), Path::new(target));
        let is_mounted = |path: &Path| path == Path::new("/alive");
        change(dir.path(), both, is_there, is_mounted).unwrap();
        std::fs::read_to_string(dir.path().join("utab")).unwrap()
    }

    #[test]
    fn a_line_comes_and_goes_and_those_of_others_stay() {
        let mine = "SRC=/srv/vol TARGET=/mnt/a\\040b\\134 ROOT=/ OPTS=uhelper=quayfs\n";
        let both = format!("{OF_OTHERS}{mine}");
        let change = |table: &str, is_there| changed(table, "/srv/vol", "/mnt/a b\\", is_there);
        assert_eq!(change(OF_OTHERS, true), both);
        assert_eq!(change(&both, true), both);
        assert_eq!(change(&both, false), OF_OTHERS);
        // Two volumes, one over the other.
        let over = changed(&both, "/srv/other", "/mnt/a b\\", true);
        assert_eq!(changed(&over, "/srv/other", "/mnt/a b\\", false), both);
    }

    #[test]
    fn lines_of_mounts_that_ended_by_themselves_go_when_they_are_many() {
        let of = |n: usize| format!("SRC=/v TARGET=/dead{n} ROOT=/ OPTS=uhelper=quayfs\n");
        let alive = "SRC=/v TARGET=/alive ROOT=/ OPTS=uhelper=quayfs\n";
        let table = |dead| (0..dead).map(of).collect::<String>() + OF_OTHERS + alive;
        let few = table(MANY - 1);
        assert_eq!(changed(&few, "/v", "/new", false), few);
        assert_eq!(changed(&table(MANY), "/v", "/new", false), table(0));
    }

    #[test]
    fn a_table_without_an_end_of_line_gets_one() {
        let made = changed("SRC=x TARGET=/y ROOT=/", "/s", "/t", true);
        let mine = "SRC=/s TARGET=/t ROOT=/ OPTS=uhelper=quayfs\n";
        assert_eq!(made, format!("SRC=x TARGET=/y ROOT=/\n{mine}"));
    }

    #[test]
    fn without_a_table_one_is_made_and_a_lock_that_is_held_is_not_waited_for_long() {
        let dir = tempfile::tempdir().unwrap();
        let directory = dir.path().join("mount");
        let both = (Path::new("/s"), Path::new("/t"));
        assert!(change(&directory, both, false, |_| true).is_err());
        std::fs::create_dir(&directory).unwrap();
        // What another program has left, whatever its umask was.
        let left = File::create(directory.join("utab.quayfs")).unwrap();
        left.set_permissions(Permissions::from_mode(0o600)).unwrap();
        change(&directory, both, true, |_| true).unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        for name in ["utab", "utab.lock"] {
            assert_eq!(mode(&directory.join(name)), 0o644, "{name}");
        }
        let content = std::fs::read(directory.join("utab")).unwrap();
        assert_eq!(content, line(both.0, both.1));
        let held = lock(&directory).unwrap();
        let refused = change(&directory, both, false, |_| true).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
        drop(held);
        change(&directory, both, false, |_| true).unwrap();
        assert_eq!(std::fs::read(directory.join("utab")).unwrap(), b"");
    }
}
