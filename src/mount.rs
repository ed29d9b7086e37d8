//! Attaching a connection to `/dev/fuse` to the tree, and detaching it.
//!
//! A process that may mount does so itself (`attach`); any other goes through `fusermount3`, which
//! is set-user-id and passes the open device back over a socket. Nothing here knows what the file
//! system does.

use quayfs_fs::scrub;
use quayfs_fs::{SetQuota, Subject};
use quayfs_restart::Wish;
use quayfs_server::{QUOTA_XATTR, RESIZE_XATTR, SCRUB_XATTR, STATUS_XATTR};
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use rustix::mount::FsPickFlags;
use std::path::{Path, PathBuf};

mod attach;
pub mod control;
mod fusermount;
pub mod loops;
mod place;
pub mod probe;
mod remount;
pub mod server;
pub mod superblock;
pub mod table;
pub mod utab;

pub use attach::{Mount, Pending};
pub use place::Place;
pub use remount::remount;

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
    /// The tree is in use.
    #[error(
        "{} is in use: leave it and close its files (`fuser -vm {}` lists who), then try again",
        quayfs_shown::argument(.0), quayfs_shown::argument(.0)
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

/// How a tree is unmounted while it is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnmountMode {
    /// Refuse with [`AttachError::Busy`].
    Normal,
    /// Let them finish: the tree disappears from sight at once, the mount ends with its last user.
    Lazy,
    /// Take the tree away from them: their next call fails.
    Force,
}

/// Makes the mount table say `ro` of the file system on `target` with this number in the table, here and wherever else
/// it is mounted, and changes nothing else. The kernel writes dirty pages back first: not for the process that has to
/// answer that, which could not be killed while it waits. An unmount need not wait
/// for this.
///
/// # Errors
/// [`Errno::BUSY`] while files are open for writing; [`Errno::PERM`] without the right to mount, which a process that
/// mounted through `fusermount3` does not have; [`Errno::NOENT`] if something else is mounted there by now.
pub fn turn_read_only(target: &Path, device: &str) -> Result<(), Errno> {
    // What is looked at is what is changed: a path could lead elsewhere the next moment.
    let on_top = Place::find(target)?.open()?;
    if place::device_of(&on_top)? != device {
        return Err(Errno::NOENT);
    }
    let flags = FsPickFlags::FSPICK_CLOEXEC | FsPickFlags::FSPICK_EMPTY_PATH;
    let context = rustix::mount::fspick(&on_top, c"", flags)?;
    // The context holds the file system. A descriptor of the mount would make it busy for an unmount as well.
    drop(on_top);
    rustix::mount::fsconfig_set_flag(&context, "ro")?;
    rustix::mount::fsconfig_reconfigure(&context)
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

/// Has the next daemon of the mount give the volume another size, and that one called.
pub fn resize(target: &Path, wish: Wish) -> Result<(), Errno> {
    let value = wish.to_string();
    rustix::fs::setxattr(target, RESIZE_XATTR, value.as_bytes(), XattrFlags::empty()).map_err(gone)
}

/// Asks for the quotas of projects, users or groups from this one on, a JSON text.
pub fn quotas(target: &Path, from: Subject) -> Result<String, Errno> {
    let kind = match from {
        Subject::Project(_) => "",
        Subject::User(_) => ".user",
        Subject::Group(_) => ".group",
    };
    ask(target, &format!("{QUOTA_XATTR}{kind}.{}", from.id()))
}

/// Sets limits.
pub fn set_quota(target: &Path, set: &SetQuota) -> Result<(), Errno> {
    let value = serde_json::to_vec(set).map_err(|_| Errno::INVAL)?;
    rustix::fs::setxattr(target, QUOTA_XATTR, &value, XattrFlags::empty()).map_err(gone)
}

/// A caller that asks while the daemon dies gets other errors than one that asks afterwards: `ECONNABORTED` over
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
