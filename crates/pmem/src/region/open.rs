//! Creating and opening backing files, and finding out what they are.

use super::{Region, Source, allocate};
use crate::backend::is_memory_fs;
use crate::memory::{Mapped, Memory};
use crate::{Backend, PAGE, PmemError};
use quayfs_transfer::open_medium;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Resource, getrlimit};
use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How to open a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MapOptions {
    /// Map for reading only; stores then panic.
    pub read_only: bool,
    /// Refuse a medium that promises less than this one ([`Backend::satisfies`]).
    pub require: Option<Backend>,
    /// How many bytes at the start of the file are the region, if not all.
    pub len: Option<u64>,
    /// On a disk: how many bytes of the region may lie in memory of this process because they were stored to, at least 16
    /// MiB; `None`: a quarter of the memory that the process may use. What has been written leaves then, and is read again from the file
    /// when it is needed.
    pub memory: Option<u64>,
}

/// Turns an I/O error into one that names the file.
pub(super) fn io_error<'a>(
    what: &'static str,
    path: &'a Path,
) -> impl FnOnce(io::Error) -> PmemError + 'a {
    move |source| PmemError::Io {
        what,
        path: path.to_path_buf(),
        source,
    }
}

fn check_len(path: &Path, len: u64) -> Result<usize, PmemError> {
    let bad = || PmemError::Length {
        path: path.to_path_buf(),
        len,
    };
    if len == 0 || !len.is_multiple_of(PAGE) {
        return Err(bad());
    }
    usize::try_from(len).map_err(|_| bad())
}

impl Region {
    /// Opens and maps an existing file or device, in full or from its start on, and detects its backend: [`Backend::Dax`] if
    /// the kernel grants `MAP_SYNC`, [`Backend::Volatile`] if the file is in tmpfs, ramfs, hugetlbfs
    /// or a memfd, else [`Backend::File`]. An overlay on top of a memory file system cannot be told
    /// from a disk and is taken for one.
    ///
    /// # Errors
    /// [`PmemError::Io`], [`PmemError::WriteProtected`], [`PmemError::Kind`], [`PmemError::Length`] for a
    /// length that is not a positive multiple of [`PAGE`], [`PmemError::Cut`] if it is shorter than `options.len`,
    /// [`PmemError::Weaker`] if `options.require` is not met.
    pub fn open(path: &Path, options: MapOptions) -> Result<Self, PmemError> {
        let mut file = open_file(path, options.read_only)?;
        let meta = file.metadata().map_err(io_error("stat", path))?;
        let kind = meta.file_type();
        let len = if kind.is_file() {
            meta.len()
        } else if kind.is_block_device() {
            file.seek(SeekFrom::End(0))
                .map_err(io_error("find the size of", path))?
        } else if kind.is_char_device() {
            devdax_len(meta.rdev()).ok_or_else(|| PmemError::Kind {
                path: path.to_path_buf(),
            })?
        } else {
            return Err(PmemError::Kind {
                path: path.to_path_buf(),
            });
        };
        if let Some(wanted) = options.len.filter(|wanted| *wanted > len) {
            return Err(PmemError::Cut {
                path: path.to_path_buf(),
                have: len,
                len: wanted,
            });
        }
        let len = check_len(path, options.len.unwrap_or(len))?;
        if !options.read_only && kind.is_block_device() && is_protected(meta.rdev()) {
            return Err(PmemError::WriteProtected {
                path: path.to_path_buf(),
                why: "the device is read-only".into(),
            });
        }
        let (memory, backend) =
            map(&file, len, !options.read_only, kind.is_file()).map_err(io_error("map", path))?;
        if let Some(required) = options.require.filter(|r| !backend.satisfies(*r)) {
            return Err(PmemError::Weaker {
                path: path.to_path_buf(),
                required,
                found: backend,
            });
        }
        let source = Source::File {
            file: Arc::new(file),
            path: path.to_path_buf(),
        };
        let mut region = Self::assemble(memory, backend, source);
        if let (Some(disk), Some(bytes)) = (&mut region.disk, options.memory) {
            disk.limit_memory(bytes);
        }
        Ok(region)
    }

    /// Creates a backing file of `len` bytes, all zero, mode 0600, and makes it durable. All blocks
    /// are allocated unless `sparse`; a store to a page that is not ends the process when there is no space for it
    /// ([`crate::exit_on_fault`]), so [`Region::allocate`] comes before the first. Nothing is left behind on
    /// failure.
    ///
    /// # Errors
    /// [`PmemError::Io`], also if the file exists; [`PmemError::Length`] if `len` is not a positive
    /// multiple of [`PAGE`].
    pub fn create(path: &Path, len: u64, sparse: bool) -> Result<(), PmemError> {
        check_len(path, len)?;
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
            .map_err(io_error("create", path))?;
        allocate::fill_new(&file, path, len, sparse).map_err(|source| {
            // The file was made by this call, so no existing data is lost.
            let _ = std::fs::remove_file(path);
            PmemError::Io {
                what: "allocate",
                path: path.to_path_buf(),
                source,
            }
        })
    }

    /// Memory of `len` bytes, all zero, in a memfd: [`Backend::Volatile`], for tests and benchmarks.
    ///
    /// # Panics
    /// If the system has no memory for it, or `len` is not a positive multiple of [`PAGE`].
    pub fn anonymous(len: u64) -> Self {
        let path = PathBuf::from("memfd:quayfs");
        let made = check_len(&path, len).and_then(|size| {
            let make = || {
                let file = File::from(memfd_create("quayfs", MemfdFlags::CLOEXEC)?);
                file.set_len(len)?;
                let memory = Memory::map(&file, size, true, Mapped::Shared)?;
                Ok((file, memory))
            };
            make().map_err(io_error("create", &path))
        });
        let (file, memory) = made.unwrap_or_else(|e| panic!("{e}"));
        let source = Source::File {
            file: Arc::new(file),
            path,
        };
        Self::assemble(memory, Backend::Volatile, source)
    }
}

/// Opens the file; for writing only if that is wanted.
fn open_file(path: &Path, read_only: bool) -> Result<File, PmemError> {
    let open = |write| {
        let mut how = OpenOptions::new();
        open_medium(path, how.read(true).write(write))
    };
    let opened = open(!read_only).map_err(|source| {
        let refused = matches!(
            source.raw_os_error(),
            Some(libc::EROFS | libc::EACCES | libc::EPERM)
        );
        if !read_only && refused && open(false).is_ok() {
            return PmemError::WriteProtected {
                path: path.to_path_buf(),
                why: source.to_string(),
            };
        }
        io_error("open", path)(source)
    })?;
    opened.ok_or_else(|| PmemError::Kind {
        path: path.to_path_buf(),
    })
}

/// Whether the system refuses to write to a block device.
fn is_protected(rdev: u64) -> bool {
    let (major, minor) = (libc::major(rdev), libc::minor(rdev));
    let flag = std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/ro"));
    flag.is_ok_and(|flag| flag.trim() == "1")
}

/// Maps the file with the strongest promise that the kernel makes for it.
fn map(file: &File, len: usize, writable: bool, regular: bool) -> io::Result<(Memory, Backend)> {
    match Memory::map(file, len, writable, Mapped::Synchronous) {
        Ok(memory) => return Ok((memory, Backend::Dax)),
        // No MAP_SYNC for this file, or a kernel that does not know MAP_SHARED_VALIDATE.
        Err(e) if matches!(e.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EINVAL)) => {}
        Err(e) => return Err(e),
    }
    let backend = match regular && is_memory_fs(file)? {
        true => Backend::Volatile,
        false => Backend::File,
    };
    // The kernel writes back a shared mapping whenever it likes, and all of it at each `fdatasync`. But what lies beyond
    // the longest file that this process may write can only be stored to.
    let longest = match regular {
        true => getrlimit(Resource::Fsize).current,
        false => None,
    };
    let is_too_long = longest.is_some_and(|longest| longest < len as u64);
    let how = match backend == Backend::File && !is_too_long {
        true => Mapped::Private,
        false => Mapped::Shared,
    };
    let memory = Memory::map(file, len, writable, how)?;
    if how == Mapped::Private {
        memory.read_pages_alone();
    }
    Ok((memory, backend))
}

/// The size in bytes of a devdax device, `None` for any other character device.
fn devdax_len(rdev: u64) -> Option<u64> {
    let (major, minor) = (libc::major(rdev), libc::minor(rdev));
    let dir = PathBuf::from(format!("/sys/dev/char/{major}:{minor}"));
    let subsystem = std::fs::canonicalize(dir.join("subsystem")).ok()?;
    if subsystem.file_name()? != "dax" {
        return None;
    }
    std::fs::read_to_string(dir.join("size"))
        .ok()?
        .trim()
        .parse()
        .ok()
}
