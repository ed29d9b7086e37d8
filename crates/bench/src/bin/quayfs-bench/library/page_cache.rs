//! The kernel's page cache, in front of a library: what mounts have above them.
//!
//! Reads of what the kernel has would never arrive. So without it, what is measured is a disk that is read again and
//! again. Pages are those of `fuse_perform_write`, the path of writes to a mount without `writeback`: a page that is
//! written whole is kept, one that is written in part is kept only if it was kept before, and a writer waits for
//! other writers of the same file. The cache is as large as memory, and there is no reading ahead.
//!
//! It knows which pages there are, and not what is in them: a read of these leaves the buffer as it is. Copying them in
//! and out is the kernel's work, a fifth of all CPU time where Fileserver runs on two CPUs, and none of what is measured
//! without a kernel.

use std::cell::Cell;
use std::ffi::CStr;
use std::path::PathBuf;
use std::sync::Arc;

use quayfs_bench::library::{Library, Node};
use quayfs_sync::map::Entry;
use quayfs_sync::{DashMap, RwLock};
use rustc_hash::FxBuildHasher;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

const PAGE: usize = 4096;

/// A library and its pages.
pub struct PageCache<L> {
    under: L,
    files: DashMap<Node, Arc<RwLock<Pages>>, FxBuildHasher>,
}

/// What is kept of a file.
#[derive(Default)]
struct Pages {
    /// Known once it has been asked for.
    size: Option<u64>,
    /// Whether a page is, by its place in the file.
    kept: Vec<bool>,
}

impl<L: Library> PageCache<L> {
    /// Keeps pages of what goes to and comes from `under`, which nothing else may change meanwhile.
    pub fn over(under: L) -> Self {
        Self {
            under,
            files: DashMap::with_capacity_and_hasher(0, FxBuildHasher),
        }
    }

    fn pages(&self, node: Node) -> Arc<RwLock<Pages>> {
        if let Some(there) = self.files.get(&node) {
            return Arc::clone(&there);
        }
        match self.files.entry(node) {
            Entry::Occupied(there) => Arc::clone(there.get()),
            Entry::Vacant(place) => {
                let pages = Arc::default();
                place.insert(Arc::clone(&pages));
                pages
            }
        }
    }

    fn size_in(&self, pages: &mut Pages, node: Node) -> Result<u64, Errno> {
        match pages.size {
            Some(size) => Ok(size),
            None => {
                let size = self.under.size(node)?;
                pages.size = Some(size);
                Ok(size)
            }
        }
    }

    /// Forgets the pages of a file that is about to lose a name. Other names of it are none the worse for that.
    fn forget(&self, dir: Node, path: &CStr) {
        if let Ok(node) = self.under.open(dir, path, OFlags::RDONLY, Mode::empty()) {
            self.files.remove(&node);
            self.under.close(node);
        }
    }
}

impl Pages {
    /// How many of `len` bytes from `offset` the file has, if all of their pages are kept.
    fn answer(&self, len: usize, offset: u64) -> Option<usize> {
        self.size?;
        let wanted = self.wanted(len, offset);
        parts(offset, wanted)
            .all(|p| self.has(p.page))
            .then_some(wanted)
    }

    /// How many of `len` bytes from `offset` the file has.
    fn wanted(&self, len: usize, offset: u64) -> usize {
        let left = self.size.unwrap_or(0).saturating_sub(offset);
        len.min(usize::try_from(left).unwrap_or(usize::MAX))
    }

    fn has(&self, page: usize) -> bool {
        self.kept.get(page).is_some_and(|kept| *kept)
    }

    /// Notes what was written.
    fn patch(&mut self, offset: u64, len: usize) {
        for whole in parts(offset, len).filter(|p| p.len == PAGE) {
            self.keep(whole.page);
        }
        let end = offset + len as u64;
        self.size = self.size.map(|size| size.max(end));
    }

    fn keep(&mut self, page: usize) {
        if self.kept.len() <= page {
            self.kept.resize(page + 1, false);
        }
        self.kept[page] = true;
    }
}

/// A part of a page.
struct Part {
    page: usize,
    len: usize,
}

fn parts(offset: u64, len: usize) -> impl Iterator<Item = Part> {
    let end = offset + len as u64;
    let mut from = offset;
    std::iter::from_fn(move || {
        let at = (from % PAGE as u64) as usize;
        let page = (from / PAGE as u64) as usize;
        let len = (end - from).min((PAGE - at) as u64) as usize;
        from += len as u64;
        (len > 0).then_some(Part { page, len })
    })
}

/// Lends out memory of this thread, as a thread that serves a mount has its own for answers. Its content is never
/// looked at.
fn with_buffer<T>(len: usize, read: impl FnOnce(&mut [u8]) -> T) -> T {
    thread_local!(static BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) });
    let mut buffer = BUFFER.take();
    if buffer.len() < len {
        buffer.resize(len, 0);
    }
    let result = read(&mut buffer[..len]);
    BUFFER.set(buffer);
    result
}

impl<L: Library> Library for PageCache<L> {
    fn root(&self) -> Result<Node, Errno> {
        self.under.root()
    }

    fn open(&self, dir: Node, path: &CStr, flags: OFlags, mode: Mode) -> Result<Node, Errno> {
        let node = self.under.open(dir, path, flags, mode)?;
        if flags.intersects(OFlags::TRUNC | OFlags::CREATE)
            && let Some(pages) = self.files.get(&node).map(|p| Arc::clone(&p))
        {
            // A file that is empty now, or another one of the same number: the old one was read after its pages had
            // been forgotten.
            let mut pages = pages.write();
            if self.under.size(node) == Ok(0) {
                *pages = Pages::default();
            }
        }
        Ok(node)
    }

    fn close(&self, node: Node) {
        self.under.close(node);
    }

    fn read(&self, node: Node, buffer: &mut [u8], offset: u64) -> Result<usize, Errno> {
        let pages = self.pages(node);
        if let Some(n) = pages.read().answer(buffer.len(), offset) {
            return Ok(n);
        }
        let mut pages = pages.write();
        self.size_in(&mut pages, node)?;
        if let Some(n) = pages.answer(buffer.len(), offset) {
            return Ok(n);
        }
        // Pages that are missing are read, and no others.
        let wanted = pages.wanted(buffer.len(), offset);
        let missing: Vec<usize> = (parts(offset, wanted).map(|p| p.page))
            .filter(|page| !pages.has(*page))
            .collect();
        for run in missing.chunk_by(|a, b| a + 1 == *b) {
            let n = with_buffer(run.len() * PAGE, |read| {
                self.under.read(node, read, (run[0] * PAGE) as u64)
            })?;
            let there = run.iter().take(n.div_ceil(PAGE));
            there.for_each(|page| pages.keep(*page));
        }
        match pages.answer(buffer.len(), offset) {
            Some(n) => Ok(n),
            // It is shorter than the kernel knows.
            None => self.under.read(node, buffer, offset),
        }
    }

    fn write(&self, node: Node, data: &[u8], offset: u64, flags: OFlags) -> Result<usize, Errno> {
        let pages = self.pages(node);
        let mut pages = pages.write();
        // The kernel knows where a file ends, and says where what is appended goes.
        let size = self.size_in(&mut pages, node)?;
        let append = flags.contains(OFlags::APPEND);
        let offset = if append { size } else { offset };
        let flags = flags - OFlags::APPEND;
        let n = self.under.write(node, data, offset, flags)?;
        pages.patch(offset, n);
        Ok(n)
    }

    fn size(&self, node: Node) -> Result<u64, Errno> {
        let pages = self.pages(node);
        let mut pages = pages.write();
        self.size_in(&mut pages, node)
    }

    fn fsync(&self, node: Node) -> Result<(), Errno> {
        self.under.fsync(node)
    }

    fn syncfs(&self) -> Result<(), Errno> {
        self.under.syncfs()
    }

    fn stat(&self, dir: Node, path: &CStr) -> Result<(), Errno> {
        self.under.stat(dir, path)
    }

    fn unlink(&self, dir: Node, path: &CStr) -> Result<(), Errno> {
        self.forget(dir, path);
        self.under.unlink(dir, path)
    }

    fn rename(&self, dir: Node, from: &CStr, to: &CStr) -> Result<(), Errno> {
        self.forget(dir, to);
        self.under.rename(dir, from, to)
    }

    fn mkdir(&self, dir: Node, path: &CStr, mode: Mode) -> Result<(), Errno> {
        self.under.mkdir(dir, path, mode)
    }

    fn rmdir(&self, dir: Node, path: &CStr) -> Result<(), Errno> {
        self.under.rmdir(dir, path)
    }

    fn list(&self, node: Node, cookie: &mut u64, room: &mut Vec<u8>) -> Result<(), Errno> {
        self.under.list(node, cookie, room)
    }

    fn chmod(&self, node: Node, mode: Mode) -> Result<(), Errno> {
        self.under.chmod(node, mode)
    }

    fn set_mtime(&self, node: Node, seconds: i64) -> Result<(), Errno> {
        self.under.set_mtime(node, seconds)
    }

    fn describe(&self, node: Node) -> PathBuf {
        self.under.describe(node)
    }
}
