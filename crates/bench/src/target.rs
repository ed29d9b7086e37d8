//! The directories that are compared, and what is mounted there.

use crate::error::{Error, Result};
use crate::machine::proc_error;
use crate::observe::{self, Status};
use procfs::process::MountInfo;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags, StatVfs};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A directory under a label.
#[derive(Debug)]
pub struct Target {
    /// What tables call it.
    pub label: String,
    /// The directory, an absolute path.
    pub path: PathBuf,
    /// Where the file system that it is on is mounted.
    pub mount_point: PathBuf,
    /// `MAJ:MIN` of the block device below, if there is one.
    pub device: Option<String>,
    /// Process that serves it, if it is QuayFS or was told.
    pub daemon: Option<i32>,
    facts: Facts,
    root: OwnedFd,
}

/// What is known about a directory before anything runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    /// What tables call it.
    pub label: String,
    /// The directory.
    pub path: PathBuf,
    /// Where its file system is mounted.
    pub mount_point: PathBuf,
    /// Type of the file system.
    pub fstype: String,
    /// What is mounted.
    pub source: String,
    /// Options of the mount and of the file system.
    pub options: String,
    /// Bytes of the file system.
    pub total_bytes: u64,
    /// Free bytes when the benchmark began.
    pub free_bytes: u64,
    /// `MAJ:MIN` of the block device below.
    pub device: Option<String>,
    /// What a QuayFS mount said about itself when the benchmark began.
    pub status: Option<serde_json::Value>,
}

impl Target {
    /// From `LABEL=PATH`, or a path that is its own label.
    ///
    /// # Errors
    /// The directory is not there, or cannot be written to; the mount table cannot be read.
    pub fn parse(text: &str) -> Result<Self> {
        match text.split_once('=') {
            Some(("", _)) => Err(Error::Usage(format!("--dir {text}: the label is empty"))),
            Some((label, path)) => Self::new(label, Path::new(path)),
            None => {
                let path = Path::new(text);
                let label = path.file_name().map(|n| n.to_string_lossy().into_owned());
                Self::new(label.as_deref().unwrap_or(text), path)
            }
        }
    }

    /// The directory at `path`.
    ///
    /// # Errors
    /// As of [`parse`](Self::parse).
    pub fn new(label: &str, path: &Path) -> Result<Self> {
        let absolute = path.canonicalize().map_err(Error::file(path))?;
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let root =
            rustix::fs::open(&absolute, flags, Mode::empty()).map_err(|errno| Error::Call {
                call: "open",
                path: absolute.clone(),
                errno,
            })?;
        let mounts = "/proc/self/mountinfo";
        let entry = quayfs_limits::mount_table()
            .map_err(proc_error(mounts))?
            .0
            .into_iter()
            .map(|m| MountInfo {
                mount_point: unescape(&m.mount_point),
                ..m
            })
            .filter(|m| absolute.starts_with(&m.mount_point))
            // Of two on the same directory the later one is on top.
            .max_by_key(|m| m.mount_point.components().count())
            .ok_or_else(|| Error::file(Path::new(mounts))(std::io::ErrorKind::NotFound.into()))?;
        let device = block_device(&absolute, &entry);
        let (status, value) = match observe::status(&entry.mount_point)? {
            Some((status, value)) => (Some(status), Some(value)),
            None => (None, None),
        };
        let space = statvfs(root.as_fd(), &absolute)?;
        let facts = Facts {
            label: label.into(),
            path: absolute.clone(),
            mount_point: entry.mount_point.clone(),
            fstype: entry.fs_type.clone(),
            source: entry.mount_source.clone().unwrap_or_default(),
            options: options(&entry),
            total_bytes: space.f_blocks * space.f_frsize,
            free_bytes: space.f_bavail * space.f_frsize,
            device: device.clone(),
            status: value,
        };
        Ok(Self {
            label: label.into(),
            path: absolute,
            mount_point: entry.mount_point,
            device,
            daemon: status.map(|s: Status| s.pid),
            facts,
            root,
        })
    }

    /// What was known when it was opened.
    pub fn facts(&self) -> Facts {
        self.facts.clone()
    }

    /// The directory, open.
    pub fn dir(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// Share of the file system that is in use, from 0 to 1.
    ///
    /// # Errors
    /// The file system does not say.
    pub fn full(&self) -> Result<f64> {
        let s = statvfs(self.dir(), &self.path)?;
        Ok(if s.f_blocks == 0 {
            0.0
        } else {
            1.0 - s.f_bfree as f64 / s.f_blocks as f64
        })
    }
}

fn statvfs(dir: BorrowedFd<'_>, path: &Path) -> Result<StatVfs> {
    rustix::fs::fstatvfs(dir).map_err(|errno| Error::Call {
        call: "statvfs",
        path: path.into(),
        errno,
    })
}

/// The kernel writes space, tab, newline and backslash of a mount point as three octal digits.
fn unescape(path: &Path) -> PathBuf {
    let bytes = path.as_os_str().as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let [first, tail @ ..] = rest {
        let digits = tail.get(..3).and_then(|d| std::str::from_utf8(d).ok());
        let byte = digits.and_then(|d| u8::from_str_radix(d, 8).ok());
        (rest, _) = match byte.filter(|_| *first == b'\\') {
            Some(byte) => (&tail[3..], out.push(byte)),
            None => (tail, out.push(*first)),
        };
    }
    OsString::from_vec(out).into()
}

/// The device by the number that files have; where that is none of a device (btrfs, FUSE), by what
/// is mounted.
fn block_device(path: &Path, entry: &MountInfo) -> Option<String> {
    let name = |dev| format!("{}:{}", rustix::fs::major(dev), rustix::fs::minor(dev));
    let known = |n: &String| Path::new("/sys/dev/block").join(n).exists();
    let of_files = path.metadata().ok().map(|m| name(m.dev())).filter(known);
    of_files.or_else(|| {
        let source = entry.mount_source.as_ref()?;
        let meta = Path::new(source).metadata().ok()?;
        Some(name(meta.rdev())).filter(known)
    })
}

/// Options of a mount in one line, those of the mount first, each group sorted.
fn options(entry: &MountInfo) -> String {
    let group = |map: &HashMap<String, Option<String>>| -> Vec<String> {
        let mut all: Vec<String> = map
            .iter()
            .map(|(k, v)| match v {
                Some(v) => format!("{k}={v}"),
                None => k.clone(),
            })
            .collect();
        all.sort_unstable();
        all
    };
    let mut all = group(&entry.mount_options);
    let more: Vec<_> = group(&entry.super_options)
        .into_iter()
        .filter(|o| !all.contains(o))
        .collect();
    all.extend(more);
    all.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_and_paths() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a b");
        std::fs::create_dir(&path).unwrap();
        let text = path.to_str().unwrap();
        let target = Target::parse(&format!("x={text}")).unwrap();
        assert_eq!((&*target.label, &target.path), ("x", &path));
        assert_eq!(Target::parse(text).unwrap().label, "a b");
        let facts = target.facts();
        assert!(path.starts_with(&facts.mount_point));
        assert!(facts.total_bytes >= facts.free_bytes && !facts.fstype.is_empty());
        assert!(facts.options.starts_with("rw") || facts.options.contains(",rw"));
        assert_eq!(facts.status, None);
        assert!((0.0..=1.0).contains(&target.full().unwrap()));
    }

    #[test]
    fn mount_points_are_unescaped() {
        for (written, meant) in [
            ("/mnt/a\\040b\\134", "/mnt/a b\\"),
            ("/mnt/\\0111", "/mnt/\t1"),
            ("/mnt/x\\9", "/mnt/x\\9"),
            ("/", "/"),
        ] {
            assert_eq!(unescape(Path::new(written)), Path::new(meant));
        }
    }

    #[test]
    fn what_is_not_there_is_named() {
        let e = Target::parse("x=/no/such/place").unwrap_err().to_string();
        assert!(e.starts_with("/no/such/place: No such file"), "{e}");
        let e = Target::parse("=/tmp").unwrap_err().to_string();
        assert!(e.contains("label is empty"), "{e}");
        let e = Target::parse("x=/proc/version").unwrap_err().to_string();
        assert!(e.contains("Not a directory"), "{e}");
    }
}
