//! A mount point that stays the same directory, whatever others make of the path meanwhile.
//!
//! Recovery lies between the look at a mount point and the mount on it, and days between that and the unmount by a
//! signal. A user who may rename a directory above could lead a path elsewhere in that time, so here it is looked up
//! once, and the descriptors are kept.

use super::server::Served;
use super::{AttachError, UnmountMode, fusermount, gone, table};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, StatxFlags, openat, openat2, statx};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use std::ffi::OsString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Where something is mounted, or is to be.
#[derive(Debug)]
pub struct Place {
    path: PathBuf,
    /// The directory above and the name in it; `None` for the root, above which there is nothing.
    above: Option<(OwnedFd, OsString)>,
}

impl Place {
    /// Looks up `path`, an absolute path without symbolic links ([`table::resolve`] makes one).
    ///
    /// # Errors
    /// Those of opening the directory above it; `ELOOP` if there is a symbolic link on the way by now.
    pub fn find(path: &Path) -> Result<Self, Errno> {
        let above = match (path.parent(), path.file_name()) {
            (Some(parent), Some(name)) => {
                let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
                let dir = openat2(CWD, parent, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)?;
                Some((dir, name.to_owned()))
            }
            _ => None,
        };
        Ok(Self {
            path: path.into(),
            above,
        })
    }

    /// The path that it was found by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What lies here now: the mount on top, or the directory itself. It is not asked anything, so this works where a
    /// daemon is dead or does not answer. While the descriptor is open, a mount that it belongs to is in use.
    pub(super) fn open(&self) -> Result<OwnedFd, Errno> {
        self.open_as(OFlags::DIRECTORY)
    }

    /// The same, also of a file: one of a mount can be mounted elsewhere.
    fn open_as(&self, kind: OFlags) -> Result<OwnedFd, Errno> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC | kind;
        match &self.above {
            Some((dir, name)) => openat(dir, name, flags, Mode::empty()),
            None => openat(CWD, &self.path, flags, Mode::empty()),
        }
    }

    /// A directory to mount on.
    pub(super) fn to_mount_on(&self) -> Result<OwnedFd, AttachError> {
        let bad = |why: String| AttachError::Target {
            path: self.path.clone(),
            why,
        };
        let dir = self.open().map_err(|e| bad(unusable(e)))?;
        let entry = table::mounted_on(&self.path).ok().flatten();
        if let Some(entry) = entry
            && matches!(Served::find(&entry, UnmountMode::Normal), Served::Dead)
        {
            let unmount = format!("`quayfs umount {}`", quayfs_shown::argument(&self.path));
            return Err(bad(format!(
                "a dead mount is still there; take it away with {unmount}"
            )));
        }
        Ok(dir)
    }

    /// The device number of the file system here, as the mount table writes it. No daemon is asked for it: the kernel
    /// knows it also for a mount without an answering daemon.
    ///
    /// # Errors
    /// Those of opening it.
    pub fn device(&self) -> Result<String, Errno> {
        device_of(&self.open_as(OFlags::empty())?)
    }

    /// Takes the mount on top away, through `fusermount3` where the caller may not. `device`: only if it is this file
    /// system.
    ///
    /// # Errors
    /// [`AttachError::Busy`], [`AttachError::Detach`], [`AttachError::Helper`].
    pub fn detach(&self, mode: UnmountMode, device: Option<&str>) -> Result<(), AttachError> {
        let failed = |why: String| AttachError::Detach {
            path: self.path.clone(),
            why,
        };
        if let Some(device) = device
            && self.device().map_err(|e| failed(e.to_string()))? != device
        {
            return Err(failed(match table::mounted_on(&self.path) {
                Ok(None) => "it is not mounted there any more".into(),
                _ => "another file system is mounted over it: take that away first".into(),
            }));
        }
        let flags = match mode {
            UnmountMode::Normal => UnmountFlags::NOFOLLOW,
            UnmountMode::Lazy => UnmountFlags::NOFOLLOW | UnmountFlags::DETACH,
            UnmountMode::Force => {
                UnmountFlags::NOFOLLOW | UnmountFlags::FORCE | UnmountFlags::DETACH
            }
        };
        let path = match &self.above {
            Some((dir, name)) => by_descriptor(dir).join(name),
            None => self.path.clone(),
        };
        match rustix::mount::unmount(path, flags) {
            Ok(()) => Ok(()),
            Err(Errno::BUSY) => Err(AttachError::Busy(self.path.clone())),
            Err(Errno::PERM) => {
                let above = self.above.as_ref();
                let there = above.map(|(dir, name)| (by_descriptor(dir), &**name));
                fusermount::unmount(&self.path, there, mode)
            }
            Err(e) => Err(failed(e.to_string())),
        }
    }
}

/// A path to what a descriptor stands for, for calls that take none.
pub(super) fn by_descriptor(fd: &OwnedFd) -> PathBuf {
    format!("/proc/self/fd/{}", fd.as_raw_fd()).into()
}

/// The device number of the file system that a descriptor belongs to, as `MAJOR:MINOR`.
pub(super) fn device_of(fd: &OwnedFd) -> Result<String, Errno> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    // For the device alone, without any other attribute, FUSE asks no daemon and refuses no caller.
    let stat = statx(fd, c"", flags, StatxFlags::empty())?;
    Ok(format!("{}:{}", stat.stx_dev_major, stat.stx_dev_minor))
}

/// The same of what a path leads to, in `/proc` without a way there.
pub(super) fn device_at(path: &Path) -> Result<String, Errno> {
    let stat = statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::empty())?;
    Ok(format!("{}:{}", stat.stx_dev_major, stat.stx_dev_minor))
}

fn unusable(e: Errno) -> String {
    match gone(e) {
        Errno::NOENT => "no such directory; create it first".into(),
        Errno::NOTDIR => "not a directory".into(),
        e => e.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_outlives_its_path() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let (above, other) = (root.join("above"), root.join("other"));
        std::fs::create_dir_all(above.join("mnt")).unwrap();
        std::fs::create_dir_all(other.join("mnt/wrong")).unwrap();
        let place = Place::find(&above.join("mnt")).unwrap();
        std::fs::rename(&above, root.join("moved")).unwrap();
        std::os::unix::fs::symlink(&other, &above).unwrap();
        let found = std::fs::read_link(by_descriptor(&place.open().unwrap())).unwrap();
        assert_eq!(found, root.join("moved/mnt"));
        // A link that is there from the beginning is not followed either.
        assert_eq!(Place::find(&above.join("mnt")).unwrap_err(), Errno::LOOP);
    }

    #[test]
    fn only_directories_can_be_mounted_on() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        std::fs::write(root.join("file"), b"").unwrap();
        for (name, about) in [("file", "not a directory"), ("none", "create it first")] {
            let place = Place::find(&root.join(name)).unwrap();
            let why = place.to_mount_on().unwrap_err().to_string();
            assert!(why.contains(about), "{why}");
        }
        let place = Place::find(&root).unwrap();
        let meta = std::fs::metadata(&root).unwrap();
        use std::os::unix::fs::MetadataExt;
        let (major, minor) = (rustix::fs::major(meta.dev()), rustix::fs::minor(meta.dev()));
        assert_eq!(place.device().unwrap(), format!("{major}:{minor}"));
        assert_eq!(Place::find(Path::new("/")).unwrap().path(), Path::new("/"));
    }

    #[test]
    fn what_is_mounted_there_by_now_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let place = Place::find(&dir.path().canonicalize().unwrap()).unwrap();
        let failure = place.detach(UnmountMode::Normal, Some("0:0")).unwrap_err();
        assert!(failure.to_string().contains("not mounted there any more"));
        let place = Place::find(Path::new("/proc")).unwrap();
        let failure = place.detach(UnmountMode::Normal, Some("0:0")).unwrap_err();
        assert!(failure.to_string().contains("another file system"));
    }
}
