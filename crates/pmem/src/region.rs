//! The region: everything that is done to persistent memory.

mod allocate;
mod load;
mod open;

use crate::disk::Disk;
use crate::drain::DrainGate;
use crate::fault::Guard;
use crate::held::Touched;
use crate::libpmem;
use crate::lock::{self, LockKind};
use crate::memory::{self, Memory};
use crate::{Backend, BatchLog, Bytes, Observer, PmemError, SECTOR};
use quayfs_sync::wait_for_device;
use rustix::fs::Advice;
use std::fmt;
use std::fs::File;
use std::io;
use std::iter::once;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::unix::fs::FileTypeExt;
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{self, AtomicBool, Ordering};
use std::time::{Duration, Instant};

pub use allocate::fill_new;
pub use open::MapOptions;

/// A mapped or simulated region of persistent memory. Share it as `Arc<Region>`.
///
/// Offsets and lengths are in bytes from the start of the region. An access outside of the region, a
/// misaligned 4- or 8-byte access and a store to a read-only region are bugs and panic. When stores
/// become durable is said in the [persistence model](crate).
pub struct Region {
    /// Goes before the memory, whose addresses may then be another one's.
    _guard: Option<Guard>,
    pub(crate) memory: Memory,
    pub(crate) backend: Backend,
    gate: DrainGate,
    pub(crate) source: Source,
    /// What is stored here is written by us.
    disk: Option<Disk>,
    /// Nearly all of it lies in huge pages.
    huge: AtomicBool,
}

pub(crate) enum Source {
    File {
        file: Arc<File>,
        path: PathBuf,
    },
    Simulated(Option<Arc<dyn Observer>>),
    /// A private copy.
    Copy(Touched),
}

impl Region {
    pub(crate) fn assemble(memory: Memory, backend: Backend, source: Source) -> Self {
        let guard = match &source {
            Source::File { file, path } => {
                let start = memory.address(0, 0).addr();
                Some(Guard::new(start, memory.len(), Arc::clone(file), path))
            }
            Source::Simulated(_) | Source::Copy(_) => None,
        };
        let disk = match &source {
            Source::File { file, .. } if memory.is_private() && memory.is_writable() => {
                Some(Disk::new(Arc::clone(file), memory.len() as u64))
            }
            _ => None,
        };
        Self {
            _guard: guard,
            memory,
            backend,
            gate: DrainGate::default(),
            source,
            disk,
            huge: AtomicBool::new(false),
        }
    }

    /// Heap memory of `len` bytes, all zero, that behaves as [`Backend::Dax`]. Everything done to it
    /// is reported to `observer`.
    pub fn simulated(len: u64, observer: Arc<dyn Observer>) -> Self {
        Self::simulated_as(Backend::Dax, len, observer)
    }

    /// [`Region::simulated`] with a choice of backend.
    pub fn simulated_as(backend: Backend, len: u64, observer: Arc<dyn Observer>) -> Self {
        let memory = Memory::heap(usize::try_from(len).unwrap_or(usize::MAX));
        Self::assemble(memory, backend, Source::Simulated(Some(observer)))
    }

    /// Heap memory with a copy of `image`, for restarting from what a crash left behind. The copy
    /// itself is not reported.
    pub fn from_image(
        image: impl AsRef<[u8]>,
        observer: Option<Arc<dyn Observer>>,
        backend: Backend,
    ) -> Self {
        let image = image.as_ref();
        Self::from_extents(image.len() as u64, [(0, image)], observer, backend)
    }

    /// [`Region::from_image`] for an image of `len` bytes that is zero but for some extents, given as
    /// offset and content.
    pub fn from_extents<'a>(
        len: u64,
        extents: impl IntoIterator<Item = (u64, &'a [u8])>,
        observer: Option<Arc<dyn Observer>>,
        backend: Backend,
    ) -> Self {
        let mut memory = Memory::heap(usize::try_from(len).unwrap_or(usize::MAX));
        for (off, bytes) in extents {
            memory.init(off, bytes);
        }
        Self::assemble(memory, backend, Source::Simulated(observer))
    }

    /// Length in bytes, never 0.
    #[expect(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub fn len(&self) -> u64 {
        self.memory.len() as u64
    }

    /// What kind of medium this is.
    pub fn backend(&self) -> Backend {
        self.backend
    }

    /// Whether stores are impossible.
    pub fn is_read_only(&self) -> bool {
        !self.memory.is_writable()
    }

    /// The backing file, unless this is simulated.
    pub fn path(&self) -> Option<&Path> {
        match &self.source {
            Source::File { path, .. } => Some(path),
            Source::Simulated(_) | Source::Copy(_) => None,
        }
    }

    /// What the system says of the backing file, which may have another name by now; `None` if this is simulated.
    ///
    /// # Errors
    /// [`PmemError::Io`].
    pub fn metadata(&self) -> Result<Option<std::fs::Metadata>, PmemError> {
        match &self.source {
            Source::File { file, path } => {
                let meta = file.metadata().map_err(open::io_error("stat", path))?;
                Ok(Some(meta))
            }
            Source::Simulated(_) | Source::Copy(_) => Ok(None),
        }
    }

    /// The observer, if there is one; `None` as well for real memory.
    fn observer(&self) -> Option<&Arc<dyn Observer>> {
        match &self.source {
            Source::Simulated(observer) => observer.as_ref(),
            Source::File { .. } | Source::Copy(_) => None,
        }
    }

    /// What is stored on a disk has to be written.
    #[track_caller]
    fn stores(&self, off: u64, len: usize, align: u64, store: impl FnOnce()) {
        match &self.disk {
            Some(disk) => {
                self.memory.check_store(off, len, align);
                disk.store(&self.memory, off, len as u64, store);
            }
            None => store(),
        }
    }

    /// Writes what has been stored, so that the file can be read. Not durable.
    pub(crate) fn write_out(&self) -> io::Result<()> {
        match &self.disk {
            Some(disk) => {
                disk.settle(&self.memory, once(0..self.len()))?;
                disk.empty_batches(&self.memory)
            }
            None => Ok(()),
        }
    }

    /// A copy keeps account of where something was stored.
    #[track_caller]
    fn note_store(&self, off: u64, len: usize, align: u64) {
        if let Source::Copy(touched) = &self.source {
            self.memory.check_store(off, len, align);
            touched.note(off, len as u64);
        }
    }

    /// Whether flush and fence instructions mean anything here.
    fn is_real_memory(&self) -> bool {
        matches!(self.source, Source::File { .. }) && !self.backend.needs_drain()
    }

    /// Copies `buf.len()` bytes at `off` into `buf`. Bytes that other threads are storing to come out
    /// old or new, each for itself.
    #[track_caller]
    pub fn read(&self, off: u64, buf: &mut [u8]) {
        quayfs_sync::point();
        self.memory.read(off, buf);
    }

    /// `len` bytes at `off`, where they lie.
    #[track_caller]
    pub fn bytes(&self, off: u64, len: usize) -> Bytes<'_> {
        Bytes::new(self, off, len)
    }

    /// The address of `len` bytes at `off`.
    #[track_caller]
    pub(crate) fn address(&self, off: u64, len: usize) -> *const u8 {
        self.memory.address(off, len)
    }

    /// Whether neighbours in the region are neighbours in memory nearly everywhere: on persistent memory, and where
    /// [`Region::prefault`] has found huge pages for most of it. Elsewhere a device that is given bytes where they lie
    /// takes a page at a time, and up to twice as long.
    pub fn is_contiguous(&self) -> bool {
        self.backend == Backend::Dax || self.huge.load(Ordering::Acquire)
    }

    /// [`Region::read`] into a new vector.
    #[track_caller]
    pub fn read_vec(&self, off: u64, len: u64) -> Vec<u8> {
        self.memory.check(off, len);
        let mut buf = vec![0; len as usize];
        quayfs_sync::point();
        self.memory.read(off, &mut buf);
        buf
    }

    /// Loads the little-endian word at `off`, a multiple of 8, with acquire ordering.
    #[track_caller]
    pub fn load_u64(&self, off: u64) -> u64 {
        quayfs_sync::point();
        self.memory.load_u64(off)
    }

    /// Loads the little-endian word at `off`, a multiple of 4, with acquire ordering.
    #[track_caller]
    pub fn load_u32(&self, off: u64) -> u32 {
        quayfs_sync::point();
        self.memory.load_u32(off)
    }

    /// Stores a word in little-endian order at `off`, a multiple of 8: atomically for other threads
    /// (release ordering) and for the medium. Not durable before flush and drain.
    #[track_caller]
    pub fn store_u64(&self, off: u64, value: u64) {
        if let Some(observer) = self.observer() {
            self.memory.check_store(off, 8, 8);
            observer.store(off, &value.to_le_bytes(), false, Location::caller());
        }
        self.note_store(off, 8, 8);
        self.stores(off, 8, 8, || self.memory.store_u64(off, value));
    }

    /// Stores a word in little-endian order at `off`, a multiple of 4, otherwise as
    /// [`Region::store_u64`].
    #[track_caller]
    pub fn store_u32(&self, off: u64, value: u32) {
        if let Some(observer) = self.observer() {
            self.memory.check_store(off, 4, 4);
            observer.store(off, &value.to_le_bytes(), false, Location::caller());
        }
        self.note_store(off, 4, 4);
        self.stores(off, 4, 4, || self.memory.store_u32(off, value));
    }

    /// Stores `bytes` at `off` through the cache. Not durable before flush and drain.
    #[track_caller]
    pub fn write(&self, off: u64, bytes: &[u8]) {
        self.report_write(off, bytes, false, Location::caller());
        self.stores(off, bytes.len(), 1, || self.memory.write(off, bytes));
    }

    /// Stores `bytes` at `off` past the cache: right for payloads that are not read soon. Not durable,
    /// and not ordered for other threads, before a fence; no flush is needed. A ragged head or tail is
    /// stored through the cache and flushed.
    #[track_caller]
    pub fn write_nt(&self, off: u64, bytes: &[u8]) {
        self.report_write(off, bytes, true, Location::caller());
        if self.is_real_memory() {
            self.memory.write_nt(off, bytes);
        } else {
            self.stores(off, bytes.len(), 1, || self.memory.write(off, bytes));
        }
    }

    #[track_caller]
    fn report_write(&self, off: u64, bytes: &[u8], nt: bool, site: &'static Location<'static>) {
        if let Some(observer) = self.observer() {
            self.memory.check_store(off, bytes.len(), 1);
            if !bytes.is_empty() {
                observer.store(off, bytes, nt, site);
            }
        }
        self.note_store(off, bytes.len(), 1);
    }

    /// Begins to write back every line that `off..off + len` touches, a partial first and last one
    /// included. Durable after the next fence of this thread, on [`Backend::File`] after a drain.
    #[track_caller]
    pub fn flush(&self, off: u64, len: u64) {
        if self.is_real_memory() {
            self.memory.flush(off, len);
            return;
        }
        self.memory.check(off, len);
        if let (Some(observer), true) = (self.observer(), len > 0) {
            observer.flush(off, len, Location::caller());
        }
    }

    /// Waits until everything that this thread flushed or wrote non-temporally is durable. On
    /// [`Backend::File`] it orders stores for other threads and makes nothing durable.
    #[track_caller]
    pub fn fence(&self) {
        if let Some(observer) = self.observer() {
            observer.fence(Location::caller());
        }
        self.cpu_fence();
    }

    fn cpu_fence(&self) {
        if self.is_real_memory() {
            atomic::fence(Ordering::Release);
            libpmem::pmem_drain();
        } else {
            atomic::fence(Ordering::SeqCst);
        }
    }

    /// The durability edge on every backend. When it returns `Ok`, durable is what a fence makes
    /// durable and, on [`Backend::File`], everything that any thread stored before the call. There,
    /// concurrent callers share system calls.
    ///
    /// # Errors
    /// [`PmemError::Drain`] if the device failed, now or in any earlier drain of this region.
    #[track_caller]
    pub fn drain(&self) -> Result<(), PmemError> {
        let site = Location::caller();
        let result = match &self.source {
            Source::Simulated(observer) => {
                self.cpu_fence();
                self.drain_simulated(observer.as_deref(), false, site)
            }
            Source::Copy(_) => {
                self.cpu_fence();
                Ok(())
            }
            Source::File { file, .. } => {
                self.cpu_fence();
                match &self.disk {
                    Some(disk) => wait_for_device(|| disk.drain(&self.memory)),
                    None if self.backend.needs_drain() => wait_for_device(|| self.sync(file)),
                    None => Ok(()),
                }
            }
        };
        result.map_err(|source| PmemError::Drain { source })
    }

    /// Writes what was stored in some ranges, which are made of whole [`SECTOR`]s: the first half of a drain, which
    /// takes less time where others have much to write. The second is [`Region::drain_settled`]. On memory it does
    /// nothing.
    ///
    /// # Errors
    /// As [`Region::drain`].
    #[track_caller]
    pub fn settle_ranges(&self, ranges: &[Range<u64>]) -> Result<(), PmemError> {
        for range in ranges {
            (self.memory).check(range.start, range.end.saturating_sub(range.start));
            debug_assert!(range.start % SECTOR == 0 && range.end % SECTOR == 0);
        }
        self.cpu_fence();
        let result = match (&self.source, &self.disk) {
            (_, Some(disk)) => {
                wait_for_device(|| disk.settle(&self.memory, ranges.iter().cloned()))
            }
            (Source::Simulated(Some(observer)), None) if self.backend.needs_drain() => {
                match self.gate.failure() {
                    Some(error) => Err(error),
                    None => {
                        observer.settle_ranges(ranges, Location::caller());
                        Ok(())
                    }
                }
            }
            _ => Ok(()),
        };
        result.map_err(|source| PmemError::Drain { source })
    }

    /// When it returns `Ok`, durable is what this thread has last settled with [`Region::settle_ranges`]. Of anything
    /// else it promises nothing.
    ///
    /// # Errors
    /// As [`Region::drain`].
    #[track_caller]
    pub fn drain_settled(&self) -> Result<(), PmemError> {
        let site = Location::caller();
        let result = match (&self.source, &self.disk) {
            (_, Some(disk)) => wait_for_device(|| disk.flush()),
            (Source::Simulated(observer), None) => {
                self.drain_simulated(observer.as_deref(), self.backend.needs_drain(), site)
            }
            (Source::File { file, .. }, None) if self.backend.needs_drain() => {
                wait_for_device(|| self.sync(file))
            }
            (Source::File { .. } | Source::Copy(_), None) => Ok(()),
        };
        result.map_err(|source| PmemError::Drain { source })
    }

    /// A drain of a shared mapping of a file on a disk: the kernel writes all of it.
    fn sync(&self, file: &File) -> io::Result<()> {
        self.gate.drain(|| Ok(rustix::fs::fdatasync(file)?))
    }

    /// Of all there is, or of what this thread has settled. No coalescing: the observer shall see each drain, and it takes
    /// no time.
    fn drain_simulated(
        &self,
        observer: Option<&dyn Observer>,
        settled: bool,
        site: &'static Location<'static>,
    ) -> io::Result<()> {
        let Some(observer) = observer else {
            return Ok(());
        };
        if let Some(error) = self.gate.failure() {
            return Err(error);
        }
        if let Some(error) = observer.drain_fault() {
            self.gate.fail(&error);
            return Err(error);
        }
        match settled {
            true => observer.drain_settled(site),
            false => observer.drain(site),
        }
        Ok(())
    }

    /// [`Region::flush`] and [`Region::drain`].
    ///
    /// # Errors
    /// As [`Region::drain`].
    #[track_caller]
    pub fn persist(&self, off: u64, len: u64) -> Result<(), PmemError> {
        self.flush(off, len);
        self.drain()
    }

    /// Faults the whole region in, piece by piece, until done or `stop` is set; content does not
    /// change. For a background thread: later accesses then cost no page fault. Returns the number of
    /// bytes done, fewer than the length if stopped, if the system refuses, and by a batch log.
    pub fn prefault(&self, stop: &AtomicBool) -> u64 {
        // Populating holds the lock of the address space, and any thread that maps memory or starts a
        // thread waits for it. Hence short pieces, with pauses as long as they took.
        const PIECE: u64 = 256 << 10;
        const HUGE: u64 = memory::HUGE as u64;
        // What is long would drive itself out of the page cache, and all else.
        if let Some(disk) = &self.disk
            && !disk.fits(&self.memory)
        {
            return 0;
        }
        // A page of a private mapping that is stored to is a copy, which takes memory.
        let write = self.memory.is_writable() && !self.backend.needs_drain();
        // A region in a file system in memory gets what a directly mapped one has: an access to one that is
        // larger than what the processor remembers of the page table costs a walk through it otherwise.
        let mut huge = write;
        let mut in_huge = 0;
        let mut done = 0;
        // What is written past the page cache is not to be in it.
        let end = self
            .disk
            .as_ref()
            .map_or(self.len(), |d| d.end_of_areas(self.len()));
        while done < end && !stop.load(Ordering::Relaxed) {
            let began = Instant::now();
            let mut len = PIECE.min(end - done);
            if huge && done % HUGE == 0 && end - done >= HUGE {
                match self.memory.collapse(done, HUGE) {
                    Ok(()) => {
                        len = HUGE;
                        in_huge += HUGE;
                    }
                    Err(err) => huge = err.kind() != std::io::ErrorKind::InvalidInput,
                }
            }
            self.will_need(done, len);
            if self.memory.populate(done, len, write).is_err() {
                break;
            }
            done += len;
            std::thread::sleep(began.elapsed());
        }
        if done == end && in_huge >= done / 8 * 7 {
            self.huge.store(true, Ordering::Release);
        }
        done
    }

    /// Bytes of memory that belong to this process since they were stored to: at most what [`MapOptions::memory`] says,
    /// and what is being stored at the moment. Always 0 where the region is memory itself.
    pub fn memory_in_use(&self) -> u64 {
        self.disk.as_ref().map_or(0, Disk::copied)
    }

    /// Begins to read from a disk what is needed soon: loads read a page at a time otherwise. Many such calls, and then the
    /// loads, take as long as the disk needs for all of it at once. Nothing to do on memory.
    #[track_caller]
    pub fn will_need(&self, off: u64, len: u64) {
        if self.disk.is_some() {
            self.memory.will_need(off, len);
        }
    }

    /// What [`Region::settle_ranges`] and drains write of `log.logged` goes to the batch log from now on, which has been
    /// replayed ([`Region::replay_batches`]). Only where the region is on a disk; elsewhere, and where it
    /// goes there already, this does nothing.
    ///
    /// # Errors
    /// [`PmemError::Drain`].
    pub fn log_batches(&self, log: &BatchLog) -> Result<(), PmemError> {
        let Some(disk) = self.disk.as_ref().filter(|disk| !disk.logs_batches()) else {
            return Ok(());
        };
        let last = self.head(log);
        let begun = wait_for_device(|| disk.log_batches(&self.memory, log, last));
        begun.map_err(|source| PmemError::Drain { source })
    }

    /// Whether [`Region::log_batches`] has done something, so that [`Region::serve_batches`] is of use.
    pub fn logs_batches(&self) -> bool {
        self.disk.as_ref().is_some_and(Disk::logs_batches)
    }

    /// For a thread of its own: brings home what a full half of the batch log has, so that settling need not, until
    /// [`Region::stop_batches`].
    pub fn serve_batches(&self) {
        if let Some(disk) = &self.disk {
            disk.serve_batches(&self.memory);
        }
    }

    /// Ends [`Region::serve_batches`], now or when it begins.
    pub fn stop_batches(&self) {
        if let Some(disk) = &self.disk {
            disk.stop_bringing_home();
        }
    }

    /// Brings everything home that the batch log has. Then nothing of it counts, durably.
    ///
    /// # Errors
    /// [`PmemError::Drain`].
    pub fn empty_batches(&self) -> Result<(), PmemError> {
        let Some(disk) = &self.disk else {
            return Ok(());
        };
        let emptied = wait_for_device(|| disk.empty_batches(&self.memory));
        emptied.map_err(|source| PmemError::Drain { source })
    }

    /// Gives memory back, of pages that have been written and have not been stored to for a while, if the bound is near:
    /// a store that meets it has to do that first. To be called now and then.
    pub fn trim(&self) {
        if let Some(disk) = &self.disk {
            disk.trim(&self.memory);
        }
    }

    /// Takes an advisory lock on the backing file, held until the region is dropped. `Ok(false)`:
    /// another region, of this or another process, holds it. A simulated region is always free.
    ///
    /// # Errors
    /// [`PmemError::Io`] if the system cannot lock this file.
    pub fn try_lock(&self, kind: LockKind) -> Result<bool, PmemError> {
        self.lock_within(kind, Duration::ZERO)
    }

    /// [`Region::try_lock`], trying again for up to `wait`: the previous daemon may be finishing.
    ///
    /// # Errors
    /// As [`Region::try_lock`].
    pub fn lock_within(&self, kind: LockKind, wait: Duration) -> Result<bool, PmemError> {
        match &self.source {
            Source::Simulated(_) | Source::Copy(_) => Ok(true),
            Source::File { file, path } => {
                let locked = lock::lock_within(file, kind, wait);
                let locked = locked.map_err(open::io_error("lock", path))?;
                if locked && self.backend == Backend::File {
                    forget_cached(file, self.len());
                }
                Ok(locked)
            }
        }
    }

    /// [`Region::try_lock`] with [`LockKind::Exclusive`].
    ///
    /// # Errors
    /// As [`Region::try_lock`].
    pub fn try_lock_exclusive(&self) -> Result<bool, PmemError> {
        self.try_lock(LockKind::Exclusive)
    }

    /// [`Region::lock_within`] with [`LockKind::Exclusive`].
    ///
    /// # Errors
    /// As [`Region::try_lock`].
    pub fn lock_exclusive(&self, wait: Duration) -> Result<bool, PmemError> {
        self.lock_within(LockKind::Exclusive, wait)
    }
}

/// Of a block device the page cache may have older pages than the disk: asynchronous writes past it do not drop what was
/// read while they were under way. The previous user may have left some, if something else has the device open. To be
/// called before anything of the mapping is accessed, and when nothing is written.
fn forget_cached(file: &File, len: u64) {
    if file
        .metadata()
        .is_ok_and(|m| m.file_type().is_block_device())
    {
        let _ = rustix::fs::fadvise(file, 0, NonZeroU64::new(len), Advice::DontNeed);
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region")
            .field("path", &self.path())
            .field("backend", &self.backend)
            .field("len", &self.len())
            .field("read_only", &self.is_read_only())
            .finish_non_exhaustive()
    }
}
