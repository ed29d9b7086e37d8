//! Attaching a connection to `/dev/fuse` to the tree, and detaching it.
//!
//! Who may call mount(2) does so; everybody else goes through `fusermount3`, which is set-user-id
//! and passes the open device back over a socket. Nothing here knows what the file system does.

use crate::config::{AtimePolicy, MountOptions, Permissions};
use crate::fs::SetQuota;
use crate::scrub;
use rustix::fs::{FileType, Mode, OFlags, XattrFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

mod fusermount;
pub mod table;

/// Name of the extended attribute that a running mount answers with its status as JSON.
pub const STATUS_XATTR: &str = "quayfs.status";
/// Name of the extended attribute by which a scrub is started, stopped and watched.
pub const SCRUB_XATTR: &str = "quayfs.scrub";
/// Extended attribute of the root directory that holds the quotas of projects, and sets them.
pub const QUOTA_XATTR: &str = "quayfs.quota";

/// Why a mount could not be made, changed or taken away. Prints as one line.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The mount point is missing, of the wrong kind, or unreachable.
    #[error("cannot mount on {}: {why}", path.display())]
    Target {
        /// The mount point.
        path: PathBuf,
        /// What is wrong with it and what to do.
        why: String,
    },
    /// `/dev/fuse` does not open.
    #[error(
        "cannot open /dev/fuse: {0}; load the module (`modprobe fuse`) or give the device to this container"
    )]
    Device(Errno),
    /// The kernel refused.
    #[error("cannot mount on {}: {why}", path.display())]
    Refused {
        /// The mount point.
        path: PathBuf,
        /// The reason and the way out.
        why: String,
    },
    /// `fusermount3` refused or is missing.
    #[error("fusermount3: {0}")]
    Helper(String),
    /// Somebody uses the tree.
    #[error(
        "{} is in use: leave it and close its files (`fuser -vm {}` lists who), then try again",
        .0.display(), .0.display()
    )]
    Busy(PathBuf),
    /// Unmounting failed otherwise.
    #[error("cannot unmount {}: {why}", path.display())]
    Detach {
        /// The mount point.
        path: PathBuf,
        /// The reason and the way out.
        why: String,
    },
}

/// What to do about users of a tree that is to be unmounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Users {
    /// Refuse with [`AttachError::Busy`].
    Respect,
    /// Let them finish: the tree disappears from sight at once, the mount ends with its last user.
    Outlast,
    /// Take the tree away from them: their next call fails.
    Evict,
}

/// A connection to the kernel that is attached to the tree. Dropping it leaves the mount alone.
#[derive(Debug)]
pub struct Mount {
    target: PathBuf,
    by_helper: bool,
}

impl Mount {
    /// Mounts on `target`, an absolute path, and returns the connection to serve. The mount table
    /// shows `source`. Calls below the mount point block until somebody serves.
    pub fn attach(
        source: &Path,
        target: &Path,
        options: &MountOptions,
    ) -> Result<(Self, OwnedFd), AttachError> {
        let root_mode = check_target(target)?;
        let name = options
            .fsname
            .as_ref()
            .map_or(source, |name| Path::new(name));
        let mount = |by_helper| Self {
            target: target.into(),
            by_helper,
        };
        match attach_directly(name, target, root_mode, options)? {
            Some(device) => Ok((mount(false), device)),
            None => Ok((mount(true), fusermount::mount(name, target, options)?)),
        }
    }

    /// The mount point.
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// Lets the kernel read up to `bytes` ahead of who reads in order: by itself it takes the 128 KiB that it has
    /// for devices of which it knows nothing (`VM_READAHEAD_PAGES`). To be called once requests are served, as the
    /// kernel lowers the figure to what it has offered.
    ///
    /// # Errors
    /// Those of writing to `/sys/class/bdi`, which only root may.
    pub fn read_ahead(&self, bytes: u64) -> std::io::Result<()> {
        let entry = table::mounted_on(&self.target)?.ok_or(Errno::NOENT)?;
        let path = format!("/sys/class/bdi/{}/read_ahead_kb", entry.device);
        std::fs::write(path, (bytes >> 10).to_string())
    }

    /// Takes the mount away. With [`Users::Respect`] the kernel writes dirty pages back first.
    pub fn detach(&self, users: Users) -> Result<(), AttachError> {
        if self.by_helper {
            return fusermount::unmount(&self.target, users);
        }
        detach(&self.target, users)
    }
}

/// Mounts by mount(2); `None` if this process may not.
fn attach_directly(
    name: &Path,
    target: &Path,
    root_mode: u32,
    options: &MountOptions,
) -> Result<Option<OwnedFd>, AttachError> {
    let flags_of_open = OFlags::RDWR | OFlags::CLOEXEC;
    let device = match rustix::fs::open("/dev/fuse", flags_of_open, Mode::empty()) {
        Ok(device) => device,
        Err(Errno::ACCESS | Errno::PERM) if !rustix::process::geteuid().is_root() => {
            return Ok(None);
        }
        Err(e) => return Err(AttachError::Device(e)),
    };
    let data = kernel_data(&device, root_mode, options);
    let fstype = match &options.subtype {
        Some(name) => format!("fuse.{name}"),
        None => "fuse".into(),
    };
    match rustix::mount::mount(name, target, &fstype, flags(options), data.as_c_str()) {
        Ok(()) => Ok(Some(device)),
        Err(Errno::PERM) => Ok(None),
        Err(e) => Err(AttachError::Refused {
            path: target.into(),
            why: e.to_string(),
        }),
    }
}

/// Unmounts `target`, through `fusermount3` where the caller may not.
pub fn detach(target: &Path, users: Users) -> Result<(), AttachError> {
    let flags = match users {
        Users::Respect => UnmountFlags::NOFOLLOW,
        Users::Outlast => UnmountFlags::NOFOLLOW | UnmountFlags::DETACH,
        Users::Evict => UnmountFlags::NOFOLLOW | UnmountFlags::FORCE | UnmountFlags::DETACH,
    };
    match rustix::mount::unmount(target, flags) {
        Ok(()) => Ok(()),
        Err(Errno::BUSY) => Err(AttachError::Busy(target.into())),
        Err(Errno::PERM) => fusermount::unmount(target, users),
        Err(e) => Err(AttachError::Detach {
            path: target.into(),
            why: e.to_string(),
        }),
    }
}

/// Changes the flags that the kernel keeps (`ro`, `nosuid`, `nodev`, `noexec`, access times) of an
/// existing mount. Our own options stay as they are for the life of the mount.
pub fn remount(target: &Path, options: &MountOptions) -> Result<(), AttachError> {
    rustix::mount::mount_remount(target, flags(options), "").map_err(|e| AttachError::Refused {
        path: target.into(),
        why: match e {
            Errno::BUSY => "a file is open for writing; close it, then try again".into(),
            Errno::PERM => "only root can remount".into(),
            Errno::INVAL => "nothing is mounted there; mount it without `remount`".into(),
            e => e.to_string(),
        },
    })
}

/// Asks the mount on `target` for its status, a JSON text.
pub fn status(target: &Path) -> Result<String, Errno> {
    ask(target, STATUS_XATTR)
}

/// Asks for the report of the last scrub from finding `from` on, a JSON text.
pub fn scrub_report(target: &Path, from: usize) -> Result<String, Errno> {
    ask(target, &format!("{SCRUB_XATTR}.{from}"))
}

/// Starts or stops a scrub.
pub fn scrub(target: &Path, command: scrub::Command) -> Result<(), Errno> {
    let value = command.to_string();
    rustix::fs::setxattr(target, SCRUB_XATTR, value.as_bytes(), XattrFlags::empty()).map_err(gone)
}

/// Asks for the quotas of projects from number `from` on, a JSON text.
pub fn quotas(target: &Path, from: u32) -> Result<String, Errno> {
    ask(target, &format!("{QUOTA_XATTR}.{from}"))
}

/// Sets limits of a project.
pub fn set_quota(target: &Path, set: &SetQuota) -> Result<(), Errno> {
    let value = serde_json::to_vec(set).map_err(|_| Errno::INVAL)?;
    rustix::fs::setxattr(target, QUOTA_XATTR, &value, XattrFlags::empty()).map_err(gone)
}

/// Who asks while the daemon dies hears otherwise than who asks afterwards: `ECONNABORTED` over
/// `/dev/fuse`, `ECANCELED` over rings.
fn gone(e: Errno) -> Errno {
    match e {
        Errno::CONNABORTED | Errno::CANCELED => Errno::NOTCONN,
        e => e,
    }
}

fn ask(target: &Path, name: &str) -> Result<String, Errno> {
    let mut buffer = vec![0; 64 << 10];
    let n = rustix::fs::getxattr(target, name, &mut buffer[..]).map_err(gone)?;
    buffer.truncate(n);
    String::from_utf8(buffer).map_err(|_| Errno::BADMSG)
}

fn check_target(target: &Path) -> Result<u32, AttachError> {
    let bad = |why: String| AttachError::Target {
        path: target.into(),
        why,
    };
    // The kernel may remember the attributes of a dead mount, but not how full it is.
    let stat = rustix::fs::statvfs(target).and_then(|_| rustix::fs::stat(target));
    let stat = match stat.map_err(gone) {
        Ok(stat) => stat,
        Err(Errno::NOENT) => return Err(bad("no such directory; create it first".into())),
        Err(Errno::NOTCONN) => {
            let unmount = format!("`quayfs umount {}`", target.display());
            return Err(bad(format!(
                "a dead mount is still there; take it away with {unmount}"
            )));
        }
        Err(e) => return Err(bad(e.to_string())),
    };
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        return Err(bad("not a directory".into()));
    }
    Ok(stat.st_mode & 0o170_000)
}

fn kernel_data(device: &OwnedFd, root_mode: u32, options: &MountOptions) -> CString {
    let mut data = format!(
        "fd={},rootmode={root_mode:o},user_id={},group_id={}",
        device.as_raw_fd(),
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
    );
    if options.permissions == Permissions::Kernel {
        data.push_str(",default_permissions");
    }
    if options.allow_other {
        data.push_str(",allow_other");
    }
    CString::new(data).unwrap_or_default()
}

fn flags(options: &MountOptions) -> MountFlags {
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::RDONLY, options.read_only);
    flags.set(MountFlags::NOSUID, options.nosuid);
    flags.set(MountFlags::NODEV, options.nodev);
    flags.set(MountFlags::NOEXEC, options.noexec);
    flags.set(MountFlags::NODIRATIME, options.nodiratime);
    flags.set(MountFlags::SYNCHRONOUS, options.sync);
    flags |= match options.atime {
        AtimePolicy::Relatime => MountFlags::RELATIME,
        AtimePolicy::StrictAtime => MountFlags::STRICTATIME,
        AtimePolicy::NoAtime => MountFlags::NOATIME,
    };
    flags
}
