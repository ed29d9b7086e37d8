//! Creating and opening backing files, and finding out what they are.

use super::{Region, Source};
use crate::backend::is_memory_fs;
use crate::memory::Memory;
use crate::{Backend, PAGE, PmemError};
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, memfd_create};
use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// How to open a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MapOptions {
    /// Map for reading only; stores then panic.
    pub read_only: bool,
    /// Refuse a medium that promises less than this one ([`Backend::satisfies`]).
    pub require: Option<Backend>,
}

/// Turns an I/O error into one that names the file.
fn io_error<'a>(what: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> PmemError + 'a {
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
    /// Opens and maps an existing file or device in full and detects its backend: [`Backend::Dax`] if
    /// the kernel grants `MAP_SYNC`, [`Backend::Volatile`] if the file is in tmpfs, ramfs, hugetlbfs
    /// or a memfd, else [`Backend::File`]. An overlay on top of a memory file system cannot be told
    /// from a disk and is taken for one.
    ///
    /// # Errors
    /// [`PmemError::Io`], [`PmemError::Kind`], [`PmemError::Length`] for a length that is not a
    /// positive multiple of [`PAGE`], [`PmemError::Weaker`] if `options.require` is not met.
    pub fn open(path: &Path, options: MapOptions) -> Result<Self, PmemError> {
        let mut file = OpenOptions::new()
            .read(true)
            .write(!options.read_only)
            // Opening a fifo must not hang; regular files and devices do not care.
            .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
            .open(path)
            .map_err(io_error("open", path))?;
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
        let len = check_len(path, len)?;
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
            file,
            path: path.to_path_buf(),
        };
        Ok(Self::assemble(memory, backend, source))
    }

    /// Creates a backing file of `len` bytes, all zero, mode 0600, and makes it durable. All blocks
    /// are allocated unless `sparse`; when the space of a sparse file runs out later, a store to it
    /// kills the process (SIGBUS). Nothing is left behind on failure.
    ///
    /// # Errors
    /// [`PmemError::Io`], also if the file exists; [`PmemError::Length`] if `len` is not a positive
    /// multiple of [`PAGE`].
    pub fn create(path: &Path, len: u64, sparse: bool) -> Result<(), PmemError> {
        check_len(path, len)?;
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
            .map_err(io_error("create", path))?;
        let filled = fill(&mut file, len, sparse).and_then(|()| {
            file.sync_all()?;
            let parent = path.parent().filter(|p| !p.as_os_str().is_empty());
            File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
        });
        filled.map_err(|source| {
            // The file was made by this call, so nothing of anybody's is lost.
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
                let memory = Memory::map(&file, size, true, false)?;
                Ok((file, memory))
            };
            make().map_err(io_error("create", &path))
        });
        let (file, memory) = made.unwrap_or_else(|e| panic!("{e}"));
        Self::assemble(memory, Backend::Volatile, Source::File { file, path })
    }
}

/// Maps the file with the strongest promise that the kernel makes for it.
fn map(file: &File, len: usize, writable: bool, regular: bool) -> io::Result<(Memory, Backend)> {
    match Memory::map(file, len, writable, true) {
        Ok(memory) => return Ok((memory, Backend::Dax)),
        // No MAP_SYNC for this file, or a kernel that does not know MAP_SHARED_VALIDATE.
        Err(e) if matches!(e.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EINVAL)) => {}
        Err(e) => return Err(e),
    }
    let memory = Memory::map(file, len, writable, false)?;
    let volatile = regular && is_memory_fs(file)?;
    Ok((
        memory,
        if volatile {
            Backend::Volatile
        } else {
            Backend::File
        },
    ))
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

/// Gives a new file its length.
fn fill(file: &mut File, len: u64, sparse: bool) -> io::Result<()> {
    if sparse {
        return file.set_len(len);
    }
    loop {
        match fallocate(&*file, FallocateFlags::empty(), 0, len) {
            Ok(()) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::OPNOTSUPP) => break,
            Err(e) => return Err(e.into()),
        }
    }
    // The file system cannot allocate ahead: writing zeros does it.
    let zeros = vec![0; 1 << 20];
    let mut left = len;
    while left > 0 {
        let piece = left.min(zeros.len() as u64) as usize;
        file.write_all(&zeros[..piece])?;
        left -= piece as u64;
    }
    Ok(())
}
