//! Opening, and finding out what works.

use super::FileDevice;
use super::flush::Flush;
use crate::sys;
use crate::{AlignedBuf, BLOCK, Silence};
use quayfs_transfer::{RingPool, is_local, open_medium};
use rustix::process::{Resource, getrlimit};
use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64};

/// How to open a [`FileDevice`]. What is asked for and not available is done without, except
/// `read_only`, and writing without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Bypass the page cache (`O_DIRECT`).
    pub direct: bool,
    /// Use io_uring.
    pub uring: bool,
    /// Refuse writes.
    pub read_only: bool,
    /// The block of the file with which the device begins.
    pub start: u64,
}

impl Default for Options {
    /// Direct, with io_uring, for reading and writing.
    fn default() -> Self {
        Self {
            direct: true,
            uring: true,
            read_only: false,
            start: 0,
        }
    }
}

/// Why a device could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A system call failed. `EBUSY`: a block device is mounted or otherwise in use.
    #[error("{}: cannot open the data device: {source}", path.display())]
    Io {
        /// The device.
        path: PathBuf,
        /// The error of the system call.
        source: io::Error,
    },
    /// It can be read, but not written: a read-only device or file system, an immutable file, or one that only
    /// its permissions protect.
    #[error("{} is write-protected ({why})", path.display())]
    WriteProtected {
        /// The device.
        path: PathBuf,
        /// What the system said.
        why: String,
    },
    /// Neither a regular file nor a block device.
    #[error("{}: not a regular file or block device", path.display())]
    Kind {
        /// The offending path.
        path: PathBuf,
    },
    /// There is not one block, from the start of the device on.
    #[error("{}: in {len} bytes there is not one block of data", path.display())]
    Length {
        /// The device.
        path: PathBuf,
        /// Its length in bytes.
        len: u64,
    },
}

impl FileDevice {
    /// Opens a regular file or block device. A block device that is to be written is claimed: nothing
    /// else can mount it meanwhile, and it is refused if something else has.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(path: &Path, options: Options) -> Result<Self, OpenError> {
        let io_error = |source| OpenError::Io {
            path: path.to_path_buf(),
            source,
        };
        let protected = |why: &str| OpenError::WriteProtected {
            path: path.to_path_buf(),
            why: why.into(),
        };
        let kind = std::fs::metadata(path).map_err(io_error)?.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            return Err(OpenError::Kind {
                path: path.to_path_buf(),
            });
        }
        let (mut file, direct) = match open_file(path, options) {
            Ok(opened) => opened,
            Err(e) if !options.read_only && is_refused(&e) && is_readable(path) => {
                return Err(protected(&e.to_string()));
            }
            Err(e) => return Err(io_error(e)),
        };
        // Such a device opens for writing all the same; each write then fails.
        if !options.read_only && kind.is_block_device() && sys::is_read_only(file.as_fd()) {
            return Err(protected("the device is read-only"));
        }
        // Works for both kinds.
        let len = file.seek(SeekFrom::End(0)).map_err(io_error)?;
        let blocks = (len / BLOCK as u64).saturating_sub(options.start);
        if blocks == 0 {
            return Err(OpenError::Length {
                path: path.to_path_buf(),
                len,
            });
        }
        let knows_end = is_local(&file);
        Ok(Self {
            file,
            path: path.to_path_buf(),
            start: options.start,
            blocks,
            block_device: kind.is_block_device(),
            read_only: options.read_only,
            direct,
            knows_end,
            missing: AtomicU64::new(0),
            rings: if options.uring {
                RingPool::new().ok()
            } else {
                None
            },
            flush: Flush::default(),
            silence: Silence::default(),
            refuses_regions: AtomicBool::new(false),
            write_limit: getrlimit(Resource::Fsize)
                .current
                .filter(|limit| kind.is_file() && !options.read_only && *limit < len),
        })
    }
}

/// Whether the system would not let it be written.
fn is_refused(e: &io::Error) -> bool {
    matches!(
        e.raw_os_error(),
        Some(libc::EROFS | libc::EACCES | libc::EPERM)
    )
}

fn is_readable(path: &Path) -> bool {
    matches!(
        open_medium(path, OpenOptions::new().read(true)),
        Ok(Some(_))
    )
}

/// Opens the file, directly if that is wanted and works.
fn open_file(path: &Path, options: Options) -> io::Result<(File, bool)> {
    let open = |flags| {
        // Without O_CREAT this concerns block devices only.
        let claim = if options.read_only { 0 } else { libc::O_EXCL };
        let mut how = OpenOptions::new();
        how.read(true)
            .write(!options.read_only)
            .custom_flags(flags | claim);
        let opened = open_medium(path, &how)?;
        opened.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))
    };
    if options.direct {
        match open(libc::O_DIRECT) {
            // Some file systems accept the flag and then refuse the transfer. A failure to read for
            // any other reason is not a matter of the flag.
            Ok(file) => match file.read_at(&mut AlignedBuf::new(BLOCK), 0) {
                Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {}
                _ => return Ok((file, true)),
            },
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {}
            Err(e) => return Err(e),
        }
    }
    Ok((open(0)?, false))
}
