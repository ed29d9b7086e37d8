//! The files below loop devices. Two mounts of one volume, by its device and by its file or by two devices, would destroy
//! it, and a lock on one of these is none on the others.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use quayfs_pmem::{LockKind, lock_within};

use super::VolumeError;

/// Loop devices on loop devices: more are not made.
const DEEP: usize = 8;

/// The files and devices that a loop device is made of, the nearest first; none of another device. One that begins elsewhere
/// in its file is left out: that is another volume.
pub fn below(device: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = Vec::new();
    let mut at = device.to_path_buf();
    while let Some(file) = backing_file(&at).filter(|_| found.len() < DEEP) {
        found.push(file.clone());
        at = file;
    }
    found
}

fn backing_file(device: &Path) -> Option<PathBuf> {
    let meta = fs::metadata(device).ok()?;
    if !meta.file_type().is_block_device() {
        return None;
    }
    let (major, minor) = (libc::major(meta.rdev()), libc::minor(meta.rdev()));
    let settings = PathBuf::from(format!("/sys/dev/block/{major}:{minor}/loop"));
    let read = |name: &str| fs::read_to_string(settings.join(name)).ok();
    let path = read("backing_file")?;
    let path = path.trim_end_matches('\n');
    // Of a file without a name the system shows this; another one may be called so.
    let is_there = !path.ends_with(" (deleted)");
    let begins_here = read("offset").is_some_and(|n| n.trim() == "0");
    (is_there && begins_here).then(|| path.into())
}

/// Locks what is below the media for as long as the files are kept. What cannot be opened, as in another mount namespace, is
/// left out.
///
/// # Errors
/// [`VolumeError::Busy`] if another process has one of them locked for longer than `wait`.
pub(super) fn lock(
    (media, volume): ([&Path; 2], &Path),
    kind: LockKind,
    wait: Duration,
) -> Result<Vec<File>, VolumeError> {
    let mut paths: Vec<PathBuf> = media.into_iter().flat_map(below).collect();
    paths.sort();
    paths.dedup();
    let mut held = Vec::new();
    for path in paths {
        let opened = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(&path);
        let Ok(file) = opened else { continue };
        match lock_within(&file, kind, wait) {
            Ok(true) => held.push(file),
            Ok(false) => return Err(VolumeError::Busy(volume.into())),
            // It lies on a file system without locks.
            Err(_) => {}
        }
    }
    Ok(held)
}
