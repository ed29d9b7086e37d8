//! A file system apart from the places where it is mounted: there may be several, and the last one ends it.

use super::place::device_at;
use super::table::{self, Entry};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use rustix::process::getpid;
use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// How often to look whether one still lives: the kernel sends no message of its end.
const LOOK: Duration = Duration::from_millis(10);

/// A file system that was mounted when this was made.
#[derive(Debug)]
pub struct Superblock {
    device: String,
    /// Number of its directory below `/sys/class/bdi`, which no other file system ever has: the device number may
    /// belong to the next one already. `None` without a /sys.
    node: Option<u64>,
}

/// A place where a file system is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Elsewhere {
    /// The mount point, as processes there see it.
    pub target: PathBuf,
    /// A process of that mount namespace, if it is not this one's.
    pub namespace: Option<i32>,
}

impl Superblock {
    /// The file system that is mounted there.
    pub fn of(entry: &Entry) -> Self {
        Self::with_device(&entry.device)
    }

    /// The file system that has this device number now, `MAJOR:MINOR`.
    pub fn with_device(device: &str) -> Self {
        Self {
            device: device.into(),
            node: node(device),
        }
    }

    /// Whether it still exists: mounted elsewhere, or used by processes whose mount was taken away.
    pub fn lives(&self) -> bool {
        match self.node {
            Some(_) => node(&self.device) == self.node,
            None => !self.places().is_empty(),
        }
    }

    /// Waits until it no longer [`lives`](Self::lives), for at most `time`. Says whether it has ended.
    pub fn ends_within(&self, time: Duration) -> bool {
        let deadline = Instant::now() + time;
        while self.lives() {
            if Instant::now() >= deadline {
                return false;
            }
            thread::sleep(LOOK);
        }
        true
    }

    /// Ends the connection of a FUSE file system to its daemon, wherever it is mounted: every call fails from then on.
    ///
    /// # Errors
    /// Those of `/sys/fs/fuse/connections`, where only root and the owner of a mount may; where nothing is mounted
    /// there, root alone.
    pub fn abort(&self) -> Result<(), Errno> {
        let minor = self.device.split(':').nth(1).ok_or(Errno::INVAL)?;
        let abort = format!("{minor}/abort");
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        let known = Path::new("/sys/fs/fuse/connections").join(&abort);
        let file = match rustix::fs::openat(CWD, &known, flags, Mode::empty()) {
            Ok(file) => file,
            Err(_) => rustix::fs::openat(control()?, &abort, flags, Mode::empty())?,
        };
        rustix::io::write(&file, b"1").map(drop)
    }

    /// Where it is mounted, as far as can be seen: one process of each mount namespace tells.
    pub fn places(&self) -> Vec<Elsewhere> {
        let mut seen = BTreeSet::new();
        let mut places = Vec::new();
        let me = getpid().as_raw_nonzero().get();
        let others = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let others = others.filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok());
        for pid in std::iter::once(me).chain(others) {
            let process = Path::new("/proc").join(pid.to_string());
            // It may have ended meanwhile, or belong to another user.
            let Ok(namespace) = std::fs::read_link(process.join("ns/mnt")) else {
                continue;
            };
            if seen.insert(namespace)
                && let Ok(entries) = table::read_of(&process)
            {
                let here = entries.into_iter().filter(|e| e.device == self.device);
                places.extend(here.map(|e| Elsewhere {
                    target: e.target,
                    namespace: (pid != me).then_some(pid),
                }));
            }
        }
        places
    }
}

/// The processes that have a file of it open or work in it, as far as this user may see; no daemon is asked for that.
pub fn users_of(device: &str) -> Vec<i32> {
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let all = all.filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok());
    all.filter(|pid| uses(*pid, device)).collect()
}

fn uses(pid: i32, device: &str) -> bool {
    let process = Path::new("/proc").join(pid.to_string());
    let open = std::fs::read_dir(process.join("fd")).into_iter().flatten();
    let open = open.flatten().map(|entry| entry.path());
    let places = ["cwd", "root"].map(|name| process.join(name));
    places
        .into_iter()
        .chain(open)
        .any(|path| device_at(&path).as_deref() == Ok(device))
}

/// The file system by which the kernel shows its FUSE connections, without a place in the tree.
fn control() -> Result<OwnedFd, Errno> {
    let fs = fsopen(c"fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&fs)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

/// The number that tells a file system from those that have its device number before and after it.
pub(super) fn node(device: &str) -> Option<u64> {
    let meta = std::fs::metadata(Path::new("/sys/class/bdi").join(device)).ok()?;
    Some(meta.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_mounted_lives_and_is_found() {
        let entry = table::mounted_on(Path::new("/proc")).unwrap().unwrap();
        let proc = Superblock::of(&entry);
        let here = Elsewhere {
            target: "/proc".into(),
            namespace: None,
        };
        assert!(proc.lives());
        assert!(!proc.ends_within(Duration::from_millis(1)));
        assert!(proc.places().contains(&here));
    }

    #[test]
    fn what_is_gone_does_not() {
        for node in [None, Some(1)] {
            let never = Superblock {
                device: "0:1048575".into(),
                node,
            };
            assert!(!never.lives());
            assert!(never.ends_within(Duration::ZERO));
            assert_eq!(never.places(), []);
        }
    }
}
