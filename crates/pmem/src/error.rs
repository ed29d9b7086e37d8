//! What can go wrong with a region.

use crate::Backend;
use quayfs_layout::size::format_size;
use std::io;
use std::path::PathBuf;

/// Why a region could not be created, opened, locked or drained.
#[derive(Debug, thiserror::Error)]
pub enum PmemError {
    /// A system call on the backing file failed.
    #[error("{}: cannot {what}: {source}", path.display())]
    Io {
        /// What was attempted, as a verb phrase.
        what: &'static str,
        /// The backing file.
        path: PathBuf,
        /// The error of the system call.
        source: io::Error,
    },
    /// It can be read, but not written: a read-only file system or device, an immutable file, or one that only its
    /// permissions protect.
    #[error("{} is write-protected ({why})", path.display())]
    WriteProtected {
        /// The backing file.
        path: PathBuf,
        /// What the system said.
        why: String,
    },
    /// Pages of the file are not allocated, and there is no room for them. A store to one would end the process.
    #[error(
        "{}: not allocated in full (made with --sparse?), and its file system has no room for what is missing: {} are \
         needed, and {} are free; make room there, nothing has been written",
        path.display(), format_size(*missing), format_size(*free)
    )]
    NoRoom {
        /// The backing file.
        path: PathBuf,
        /// About how many bytes are not allocated.
        missing: u64,
        /// How many bytes are free on its file system.
        free: u64,
    },
    /// The file has become shorter than it was when it was opened.
    #[error("{}: cut short to {have} bytes while it was read, of {len}", path.display())]
    Cut {
        /// The backing file.
        path: PathBuf,
        /// Its length now, in bytes, at most.
        have: u64,
        /// Its length when it was opened, in bytes.
        len: u64,
    },
    /// The length of the file or device is unusable, in bytes.
    #[error("{}: a length of {len} bytes is not a positive multiple of 4096", path.display())]
    Length {
        /// The backing file.
        path: PathBuf,
        /// Its length in bytes.
        len: u64,
    },
    /// Neither a regular file nor a block device nor a devdax character device.
    #[error("{}: not a regular file, block device or devdax device", path.display())]
    Kind {
        /// The offending path.
        path: PathBuf,
    },
    /// The medium promises less than the caller requires.
    #[error("{}: backend '{required}' is required but this is '{found}'", path.display())]
    Weaker {
        /// The backing file.
        path: PathBuf,
        /// What the caller asked for.
        required: Backend,
        /// What the medium is.
        found: Backend,
    },
    /// Both heads of the batch log are damaged: nothing says what of it counts.
    #[error(
        "both heads of the batch log are damaged, so commits that are only there may be missing; \
         `quayfs fsck` says what is left"
    )]
    BatchLog,
    /// The system has no random numbers.
    #[error("the system gives no random number: {source}")]
    Random {
        /// The error of the system call.
        source: io::Error,
    },
    /// A drain failed, now or earlier. Nothing stored since the last successful drain is known to be
    /// durable, and nothing ever will be through this region.
    #[error("making the region durable failed: {source}{}", meant(source))]
    Drain {
        /// The error of the first failed attempt.
        source: io::Error,
    },
}

/// What else an error of a drain may mean. The kernel writes nothing behind the end of a device, and one that was pulled has
/// its end at 0.
fn meant(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::StorageFull => "; a device says so too when it was pulled or cut short",
        _ => "",
    }
}

impl PmemError {
    /// The error number to answer a caller with, if the system gave one.
    pub fn raw_os_error(&self) -> Option<i32> {
        match self {
            Self::Io { source, .. } | Self::Drain { source } | Self::Random { source } => {
                source.raw_os_error()
            }
            Self::WriteProtected { .. } => Some(libc::EROFS),
            Self::NoRoom { .. } => Some(libc::ENOSPC),
            Self::Length { .. }
            | Self::Kind { .. }
            | Self::Weaker { .. }
            | Self::Cut { .. }
            | Self::BatchLog => None,
        }
    }
}
