//! Open files and directories, of the kernel or of a [`Library`], and the calls that can be made on them.
//!
//! The choice between the two is a comparison in front of each call: nothing is allocated, and no lock
//! is taken.

use crate::library::{Library, Node};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{AtFlags, Mode, OFlags, SeekFrom, Timespec, Timestamps, UTIME_OMIT};
use rustix::io::Errno;
use std::ffi::{CStr, CString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Results of calls.
type Called<T> = Result<T, Errno>;

/// An open file or directory; closed when dropped.
#[derive(Debug)]
pub struct Handle<'l>(Open<'l>);

#[derive(Debug)]
enum Open<'l> {
    Kernel(OwnedFd),
    Library(Opened<'l>),
}

/// An open node of a library.
struct Opened<'l> {
    library: &'l dyn Library,
    node: Node,
    flags: OFlags,
    /// Where `read` and `write` go on. No workload has two threads read from one handle at once.
    position: AtomicU64,
}

impl fmt::Debug for Opened<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Opened({})", self.library.describe(self.node).display())
    }
}

impl Drop for Opened<'_> {
    fn drop(&mut self) {
        self.library.close(self.node);
    }
}

impl<'l> Opened<'l> {
    fn new(library: &'l dyn Library, node: Node, flags: OFlags) -> Self {
        Self {
            library,
            node,
            flags,
            position: AtomicU64::new(0),
        }
    }

    fn at(&self) -> u64 {
        self.position.load(Ordering::Relaxed)
    }

    fn pwrite(&self, data: &[u8], offset: u64) -> Called<usize> {
        if self.flags & OFlags::RWMODE == OFlags::RDONLY {
            return Err(Errno::BADF);
        }
        self.library.write(self.node, data, offset, self.flags)
    }

    fn pread(&self, buffer: &mut [u8], offset: u64) -> Called<usize> {
        if self.flags & OFlags::RWMODE == OFlags::WRONLY {
            return Err(Errno::BADF);
        }
        self.library.read(self.node, buffer, offset)
    }
}

impl<'l> Handle<'l> {
    /// The directory at `path`, through the kernel.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn directory(path: &Path) -> Called<Self> {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty())?;
        Ok(Self(Open::Kernel(fd)))
    }

    /// The root directory of a library.
    ///
    /// # Errors
    /// What the library says.
    pub fn root(library: &'l dyn Library) -> Called<Self> {
        let node = library.root()?;
        let flags = OFlags::DIRECTORY | OFlags::RDONLY;
        Ok(Self(Open::Library(Opened::new(library, node, flags))))
    }

    /// Where it is. Asked when a call on it fails, so that paths need not be carried along.
    pub fn path(&self) -> PathBuf {
        match &self.0 {
            Open::Kernel(fd) => {
                let link = format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd());
                std::fs::read_link(&link).unwrap_or_else(|_| link.into())
            }
            Open::Library(o) => o.library.describe(o.node),
        }
    }

    /// Where a name below it is.
    pub fn path_below(&self, name: &CStr) -> PathBuf {
        let name = Path::new(std::ffi::OsStr::from_bytes(name.to_bytes()));
        self.path().join(name)
    }

    /// The whole path of a name below it, for calls on this handle that are not to begin here: the
    /// kernel looks such a path up from the root directory on, whatever directory comes with it. In a
    /// library it is the name as it is: nothing is above the directory that a run begins in.
    pub fn whole_path(&self, name: &CStr) -> CString {
        match &self.0 {
            Open::Kernel(_) => {
                let path = self.path_below(name).into_os_string().into_vec();
                CString::new(path).unwrap_or_default()
            }
            Open::Library(_) => name.into(),
        }
    }

    #[inline]
    pub(crate) fn open(&self, name: &CStr, flags: OFlags, mode: Mode) -> Called<Self> {
        match &self.0 {
            Open::Kernel(dir) => {
                let fd = rustix::fs::openat(dir, name, flags | OFlags::CLOEXEC, mode)?;
                Ok(Self(Open::Kernel(fd)))
            }
            Open::Library(dir) => {
                let node = dir.library.open(dir.node, name, flags, mode)?;
                let opened = Opened::new(dir.library, node, flags);
                Ok(Self(Open::Library(opened)))
            }
        }
    }

    #[inline]
    pub(crate) fn pwrite(&self, data: &[u8], offset: u64) -> Called<usize> {
        match &self.0 {
            Open::Kernel(file) => rustix::io::pwrite(file, data, offset),
            Open::Library(file) => file.pwrite(data, offset),
        }
    }

    #[inline]
    pub(crate) fn write(&self, data: &[u8]) -> Called<usize> {
        match &self.0 {
            Open::Kernel(file) => rustix::io::write(file, data),
            Open::Library(file) => {
                let at = if file.flags.contains(OFlags::APPEND) {
                    file.library.size(file.node)?
                } else {
                    file.at()
                };
                let n = file.pwrite(data, at)?;
                file.position.store(at + n as u64, Ordering::Relaxed);
                Ok(n)
            }
        }
    }

    #[inline]
    pub(crate) fn pread(&self, buffer: &mut [u8], offset: u64) -> Called<usize> {
        match &self.0 {
            Open::Kernel(file) => rustix::io::pread(file, buffer, offset),
            Open::Library(file) => file.pread(buffer, offset),
        }
    }

    #[inline]
    pub(crate) fn read(&self, buffer: &mut [u8]) -> Called<usize> {
        match &self.0 {
            Open::Kernel(file) => rustix::io::read(file, buffer),
            Open::Library(file) => {
                let at = file.at();
                let n = file.pread(buffer, at)?;
                file.position.store(at + n as u64, Ordering::Relaxed);
                Ok(n)
            }
        }
    }

    #[inline]
    pub(crate) fn seek_end(&self) -> Called<u64> {
        match &self.0 {
            Open::Kernel(file) => rustix::fs::seek(file, SeekFrom::End(0)),
            Open::Library(file) => {
                let end = file.library.size(file.node)?;
                file.position.store(end, Ordering::Relaxed);
                Ok(end)
            }
        }
    }

    #[inline]
    pub(crate) fn seek_start(&self) -> Called<()> {
        match &self.0 {
            Open::Kernel(file) => rustix::fs::seek(file, SeekFrom::Start(0)).map(drop),
            Open::Library(file) => {
                file.position.store(0, Ordering::Relaxed);
                Ok(())
            }
        }
    }

    #[inline]
    pub(crate) fn fstat(&self) -> Called<()> {
        match &self.0 {
            Open::Kernel(file) => rustix::fs::fstat(file).map(drop),
            Open::Library(file) => file.library.size(file.node).map(drop),
        }
    }

    #[inline]
    pub(crate) fn fsync(&self) -> Called<()> {
        match &self.0 {
            Open::Kernel(file) => rustix::fs::fsync(file),
            Open::Library(file) => file.library.fsync(file.node),
        }
    }

    #[inline]
    pub(crate) fn syncfs(&self) -> Called<()> {
        match &self.0 {
            Open::Kernel(file) => rustix::fs::syncfs(file),
            Open::Library(file) => file.library.syncfs(),
        }
    }

    #[inline]
    pub(crate) fn stat(&self, name: &CStr) -> Called<()> {
        match &self.0 {
            Open::Kernel(dir) => rustix::fs::statat(dir, name, AtFlags::empty()).map(drop),
            Open::Library(dir) => dir.library.stat(dir.node, name),
        }
    }

    #[inline]
    pub(crate) fn unlink(&self, name: &CStr) -> Called<()> {
        match &self.0 {
            Open::Kernel(dir) => rustix::fs::unlinkat(dir, name, AtFlags::empty()),
            Open::Library(dir) => dir.library.unlink(dir.node, name),
        }
    }

    #[inline]
    pub(crate) fn rename(&self, from: &CStr, to: &CStr) -> Called<()> {
        match &self.0 {
            Open::Kernel(dir) => rustix::fs::renameat(dir, from, dir, to),
            Open::Library(dir) => dir.library.rename(dir.node, from, to),
        }
    }

    #[inline]
    pub(crate) fn mkdir(&self, name: &CStr, mode: Mode) -> Called<()> {
        match &self.0 {
            Open::Kernel(dir) => rustix::fs::mkdirat(dir, name, mode),
            Open::Library(dir) => dir.library.mkdir(dir.node, name, mode),
        }
    }

    #[inline]
    pub(crate) fn rmdir(&self, name: &CStr) -> Called<()> {
        match &self.0 {
            Open::Kernel(dir) => rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR),
            Open::Library(dir) => dir.library.rmdir(dir.node, name),
        }
    }

    #[inline]
    pub(crate) fn chmod(&self, mode: Mode) -> Called<()> {
        match &self.0 {
            Open::Kernel(file) => rustix::fs::fchmod(file, mode),
            Open::Library(file) => file.library.chmod(file.node, mode),
        }
    }

    #[inline]
    pub(crate) fn set_mtime(&self, seconds: i64) -> Called<()> {
        match &self.0 {
            Open::Kernel(file) => {
                let times = Timestamps {
                    last_access: Timespec {
                        tv_sec: 0,
                        tv_nsec: UTIME_OMIT,
                    },
                    last_modification: Timespec {
                        tv_sec: seconds,
                        tv_nsec: 0,
                    },
                };
                rustix::fs::futimens(file, &times)
            }
            Open::Library(file) => file.library.set_mtime(file.node, seconds),
        }
    }

    /// Lists the directory and asks for the attributes of each name, of links for their own. `room` has to
    /// hold some KiB.
    pub(crate) fn list_long(&self, room: &mut Vec<u8>) -> Called<Listed> {
        let mut listed = Listed::default();
        room.clear();
        match &self.0 {
            Open::Kernel(dir) => {
                rustix::fs::seek(dir, SeekFrom::Start(0))?;
                listed.seeks += 1;
                let mut entries = rustix::fs::RawDir::new(dir, room.spare_capacity_mut());
                loop {
                    if entries.is_buffer_empty() {
                        listed.calls += 1;
                    }
                    let Some(entry) = entries.next() else { break };
                    let entry = entry?;
                    let name = entry.file_name();
                    if name != c"." && name != c".." {
                        rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
                        listed.names += 1;
                    }
                }
            }
            Open::Library(dir) => {
                let mut cookie = 0;
                loop {
                    room.clear();
                    dir.library.list(dir.node, &mut cookie, room)?;
                    listed.calls += 1;
                    let mut rest = &room[..];
                    if rest.is_empty() {
                        break;
                    }
                    while let Ok(name) = CStr::from_bytes_until_nul(rest) {
                        dir.library.stat(dir.node, name)?;
                        listed.names += 1;
                        rest = &rest[name.to_bytes_with_nul().len()..];
                    }
                }
            }
        }
        Ok(listed)
    }
}

/// What a listing took.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Listed {
    /// Names, each with a `stat`.
    pub(crate) names: u64,
    /// Calls that read entries.
    pub(crate) calls: u64,
    /// Seeks to the start.
    pub(crate) seeks: u64,
}
