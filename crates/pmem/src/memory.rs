//! The memory behind a region: a mapped file, or the heap.
#![allow(unsafe_code)]

use crate::libpmem::{self, PMEM_F_MEM_NODRAIN, PMEM_F_MEM_NONTEMPORAL};
use crate::{PAGE, copy};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fs::File;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Memory of fixed address and length, mapped or allocated until it is dropped.
///
/// All methods taking an offset check it and panic if the access would leave the memory. That check
/// is what makes them safe, together with the address being page-aligned and valid for `len` bytes
/// for the life of the value: the invariant that the SAFETY comments below call *valid*.
pub(crate) struct Memory {
    base: NonNull<u8>,
    len: usize,
    writable: bool,
    private: bool,
    owner: Owner,
}

/// How a file is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mapped {
    /// With `MAP_SYNC`, which fails with `EOPNOTSUPP` unless the file is directly mapped persistent memory.
    Synchronous,
    /// What is stored is in the file at once, as far as other processes can tell.
    Shared,
    /// What is stored stays in this process, and in memory.
    Private,
}

/// A huge page of x86-64, and of AArch64 with pages of 4 KiB.
pub(crate) const HUGE: usize = 2 << 20;

/// What the allocator aligns to without being asked.
const HEAP_ALIGN: usize = 16;

enum Owner {
    Mapping,
    Reserved,
    Heap { start: NonNull<u8>, layout: Layout },
}

// SAFETY: the memory is owned by the value, not by a thread, and every access to it is atomic or
// opaque to the compiler (module `copy`).
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Maps the first `len` bytes of `file`.
    pub(crate) fn map(file: &File, len: usize, writable: bool, how: Mapped) -> io::Result<Self> {
        let prot = if writable {
            ProtFlags::READ | ProtFlags::WRITE
        } else {
            ProtFlags::READ
        };
        let flags = match how {
            Mapped::Synchronous => MapFlags::SHARED_VALIDATE | MapFlags::SYNC,
            Mapped::Shared => MapFlags::SHARED,
            Mapped::Private => MapFlags::PRIVATE | MapFlags::NORESERVE,
        };
        let base = map_aligned(len, prot, flags, file)?;
        Ok(Self {
            base,
            len,
            writable,
            private: how == Mapped::Private,
            owner: Owner::Mapping,
        })
    }

    /// Zeroed heap memory.
    pub(crate) fn heap(len: usize) -> Self {
        assert!(len > 0, "a region cannot be empty");
        // Aligned by hand: the allocator reuses memory of ordinary alignment, but maps and unmaps
        // aligned memory each time, and crash tests make regions by the thousand.
        let slack = PAGE as usize - HEAP_ALIGN;
        let layout = len
            .checked_add(slack)
            .map(|size| Layout::from_size_align(size, HEAP_ALIGN));
        let Some(Ok(layout)) = layout else {
            panic!("a region of {len} bytes is too large")
        };
        // SAFETY: the size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else {
            handle_alloc_error(layout)
        };
        let skip = start.addr().get().wrapping_neg() % PAGE as usize;
        // SAFETY: `start` being a multiple of `HEAP_ALIGN`, `skip` is at most `slack`, so `len` bytes
        // from there on are inside the allocation.
        let base = unsafe { start.add(skip) };
        Self {
            base,
            len,
            writable: true,
            private: true,
            owner: Owner::Heap { start, layout },
        }
    }

    /// Zeroed memory that is taken from the system when it is first stored to, and not before: it may be
    /// longer than the machine has memory.
    ///
    /// # Errors
    /// If the system promises no more than it has.
    pub(crate) fn reserve(len: usize) -> io::Result<Self> {
        assert!(len > 0, "a region cannot be empty");
        let (prot, flags) = (
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE | MapFlags::NORESERVE,
        );
        // SAFETY: a new mapping at an address of the kernel's choice aliases nothing in this process.
        let start = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, prot, flags) }?;
        let base = NonNull::new(start.cast::<u8>())
            .ok_or_else(|| io::Error::from(io::ErrorKind::AddrNotAvailable))?;
        Ok(Self {
            base,
            len,
            writable: true,
            private: true,
            owner: Owner::Reserved,
        })
    }

    /// Sets bytes before any other thread has the memory.
    #[track_caller]
    pub(crate) fn init(&mut self, off: u64, bytes: &[u8]) {
        let dst = self.at_mut(off, bytes.len());
        // SAFETY: valid, writable and checked; the exclusive borrow excludes other threads, and
        // `bytes` cannot overlap since no reference into the memory exists.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), dst, bytes.len()) }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Whether what is stored stays in this process.
    pub(crate) fn is_private(&self) -> bool {
        self.private
    }

    pub(crate) fn is_writable(&self) -> bool {
        self.writable
    }

    /// The address of `off` after checking that `len` bytes from there are inside.
    #[track_caller]
    fn at(&self, off: u64, len: usize) -> *mut u8 {
        let inside = usize::try_from(off).is_ok_and(|o| o <= self.len && len <= self.len - o);
        assert!(
            inside,
            "access of {len} bytes at {off} outside a region of {} bytes",
            self.len
        );
        // SAFETY: just checked to be inside the memory or one past its end.
        unsafe { self.base.as_ptr().add(off as usize) }
    }

    /// [`Memory::at`] for stores, which a read-only mapping would answer with SIGSEGV.
    #[track_caller]
    fn at_mut(&self, off: u64, len: usize) -> *mut u8 {
        assert!(self.writable, "store to a read-only region");
        self.at(off, len)
    }

    #[track_caller]
    fn aligned(off: u64, align: u64) {
        assert!(
            off.is_multiple_of(align),
            "offset {off} is not a multiple of {align}"
        );
    }

    /// Panics unless `len` bytes at `off` are inside.
    #[track_caller]
    pub(crate) fn check(&self, off: u64, len: u64) {
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        self.at(off, len);
    }

    /// Panics unless `len` bytes at `off` can be stored to, with that alignment.
    #[track_caller]
    pub(crate) fn check_store(&self, off: u64, len: usize, align: u64) {
        Self::aligned(off, align);
        self.at_mut(off, len);
    }

    #[track_caller]
    pub(crate) fn read(&self, off: u64, buf: &mut [u8]) {
        let src = self.at(off, buf.len());
        // SAFETY: valid and checked; races are `copy`'s argument.
        unsafe { copy::load(src, buf) }
    }

    /// The address of `len` bytes at `off`, all of them inside.
    #[track_caller]
    pub(crate) fn address(&self, off: u64, len: usize) -> *const u8 {
        self.at(off, len)
    }

    #[track_caller]
    pub(crate) fn write(&self, off: u64, bytes: &[u8]) {
        let dst = self.at_mut(off, bytes.len());
        // SAFETY: valid, writable and checked; races are `copy`'s argument.
        unsafe { copy::store(dst, bytes) }
    }

    /// [`Memory::write`] in no order: of what is no persistent memory.
    #[track_caller]
    pub(crate) fn write_unordered(&self, off: u64, bytes: &[u8]) {
        let dst = self.at_mut(off, bytes.len());
        // SAFETY: valid, writable and checked; races are `copy`'s argument.
        unsafe { copy::store_unordered(dst, bytes) }
    }

    /// Copies a range to the same place of other memory, in no order.
    #[track_caller]
    pub(crate) fn copy_to(&self, off: u64, len: usize, other: &Self) {
        let (src, dst) = (self.at(off, len), other.at_mut(off, len));
        // SAFETY: valid and checked, and two mappings do not overlap; races are `copy`'s argument.
        unsafe { copy::across(src, dst, len) }
    }

    #[track_caller]
    pub(crate) fn write_nt(&self, off: u64, bytes: &[u8]) {
        let dst = self.at_mut(off, bytes.len());
        // SAFETY: valid, writable and checked; `bytes` cannot overlap since no reference into the
        // memory exists. The copy is made by code that the compiler cannot see.
        unsafe {
            libpmem::pmem_memcpy(
                dst.cast(),
                bytes.as_ptr().cast(),
                bytes.len(),
                PMEM_F_MEM_NODRAIN | PMEM_F_MEM_NONTEMPORAL,
            );
        }
    }

    #[track_caller]
    pub(crate) fn load_u64(&self, off: u64) -> u64 {
        Self::aligned(off, 8);
        let word = self.at(off, 8).cast::<u64>();
        // SAFETY: valid, checked and, the base being page-aligned, aligned.
        u64::from_le(unsafe { AtomicU64::from_ptr(word) }.load(Ordering::Acquire))
    }

    #[track_caller]
    pub(crate) fn load_u32(&self, off: u64) -> u32 {
        Self::aligned(off, 4);
        let word = self.at(off, 4).cast::<u32>();
        // SAFETY: valid, checked and, the base being page-aligned, aligned.
        u32::from_le(unsafe { AtomicU32::from_ptr(word) }.load(Ordering::Acquire))
    }

    #[track_caller]
    pub(crate) fn store_u64(&self, off: u64, value: u64) {
        Self::aligned(off, 8);
        let word = self.at_mut(off, 8).cast::<u64>();
        // SAFETY: valid, writable, checked and, the base being page-aligned, aligned.
        unsafe { AtomicU64::from_ptr(word) }.store(value.to_le(), Ordering::Release);
    }

    /// Makes the page at `off` one of this process, without changing what is there.
    #[track_caller]
    pub(crate) fn touch(&self, off: u64) {
        Self::aligned(off, 8);
        let word = self.at_mut(off, 8).cast::<u64>();
        // SAFETY: valid, writable, checked and, the base being page-aligned, aligned.
        unsafe { AtomicU64::from_ptr(word) }.fetch_or(0, Ordering::AcqRel);
    }

    #[track_caller]
    pub(crate) fn store_u32(&self, off: u64, value: u32) {
        Self::aligned(off, 4);
        let word = self.at_mut(off, 4).cast::<u32>();
        // SAFETY: valid, writable, checked and, the base being page-aligned, aligned.
        unsafe { AtomicU32::from_ptr(word) }.store(value.to_le(), Ordering::Release);
    }

    /// Begins to write back every line that the range touches.
    #[track_caller]
    pub(crate) fn flush(&self, off: u64, len: u64) {
        self.check(off, len);
        let start = self.at(off, 0);
        // SAFETY: the range is valid and checked; the lines it touches lie within its pages.
        unsafe { libpmem::pmem_flush(start.cast(), len as usize) }
    }

    /// Faults the pages of the range in, for writing if `write`. Whole pages of a mapping; heap memory
    /// stays as it is.
    pub(crate) fn populate(&self, off: u64, len: u64, write: bool) -> io::Result<()> {
        self.check(off, len);
        if !matches!(self.owner, Owner::Mapping) {
            return Ok(());
        }
        let advice = if write {
            Advice::LinuxPopulateWrite
        } else {
            Advice::LinuxPopulateRead
        };
        // SAFETY: the range is valid and checked; populating changes no content.
        unsafe { rustix::mm::madvise(self.at(off, 0).cast(), len as usize, advice) }?;
        Ok(())
    }

    /// Whether these bytes are what lies at `off`.
    pub(crate) fn has(&self, off: u64, bytes: &[u8]) -> bool {
        let mut piece = [0; PAGE as usize];
        let offs = (off..).step_by(piece.len());
        offs.zip(bytes.chunks(piece.len())).all(|(off, bytes)| {
            let piece = &mut piece[..bytes.len()];
            self.read(off, piece);
            piece == bytes
        })
    }

    /// Gives back the memory of whole pages of a private mapping: from here on they are those of the file.
    ///
    /// # Errors
    /// Those of madvise(2), and [`io::ErrorKind::InvalidInput`] for any other memory.
    pub(crate) fn forget(&self, off: u64, len: u64) -> io::Result<()> {
        self.check(off, len);
        if !matches!(self.owner, Owner::Mapping) || !self.private {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let start = self.at(off, 0);
        // SAFETY: the range is valid and checked, and stays mapped; what is loaded from it is any bytes, as when others
        // store to it.
        unsafe { rustix::mm::madvise(start.cast(), len as usize, Advice::LinuxDontNeed) }?;
        Ok(())
    }

    /// Whether the system may have a page of a mapped file in its cache. Only of a mapping through which nothing has been
    /// accessed: else it is a question about the mapping.
    pub(crate) fn may_be_cached(&self, page: u64) -> bool {
        let off = page * PAGE;
        let mut found = 0;
        // SAFETY: the page is valid and checked, and `found` is the byte for it.
        let asked = unsafe { libc::mincore(self.at(off, 1).cast(), 1, &raw mut found) };
        asked != 0 || found & 1 != 0
    }

    /// Begins to read pages of a mapped file that are not at hand.
    pub(crate) fn will_need(&self, off: u64, len: u64) {
        // The system reads no more than this for one call, whatever it asks for.
        const AT_ONCE: u64 = 128 << 10;
        self.check(off, len);
        let pages = off / PAGE * PAGE..off + len;
        for start in pages.clone().step_by(AT_ONCE as usize) {
            self.advise(start, AT_ONCE.min(pages.end - start), Advice::WillNeed);
        }
    }

    /// Nothing is read but the pages that are accessed, unless [`Memory::will_need`] says so: the system would read up to
    /// megabytes around each, according to the disk.
    pub(crate) fn read_pages_alone(&self) {
        self.advise(0, self.len as u64, Advice::Random);
    }

    /// Whole pages of a mapping; `off` begins one.
    fn advise(&self, off: u64, len: u64, advice: Advice) {
        debug_assert!(matches!(advice, Advice::WillNeed | Advice::Random));
        self.check(off, len);
        if matches!(self.owner, Owner::Mapping) {
            // SAFETY: the range is valid and checked; reading ahead or not changes no content. If it fails, a load reads.
            let _ = unsafe { rustix::mm::madvise(self.at(off, 0).cast(), len as usize, advice) };
        }
    }

    /// Makes huge pages of a range of whole ones, and faults them in for writing.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] where such memory has none: directly mapped files, which have them
    /// anyway, and Linux before 6.1. Any other: not now.
    pub(crate) fn collapse(&self, off: u64, len: u64) -> io::Result<()> {
        self.check(off, len);
        if !matches!(self.owner, Owner::Mapping) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let start = self.at(off, 0);
        // SAFETY: the range is valid and checked; a collapse moves content and changes none.
        match unsafe { libc::madvise(start.cast(), len as usize, libc::MADV_COLLAPSE) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Maps a file where a huge page begins, if that place stays free, so that huge pages can lie in the mapping as they lie in
/// the file: the kernel sees to that itself for directly mapped files only. The place is asked for and never taken
/// (`MAP_FIXED`): where the kernel refuses such a mapping, it may have removed what was there already, and another thread
/// may have mapped something else there by the time this one cleans up.
fn map_aligned(
    len: usize,
    prot: ProtFlags,
    flags: MapFlags,
    file: &File,
) -> io::Result<NonNull<u8>> {
    let room = len.next_multiple_of(PAGE as usize) + HUGE;
    // SAFETY: a new mapping at an address of the kernel's choice aliases nothing in this process. It is unmapped as a whole,
    // before anything else knows of it.
    let found = unsafe {
        let none = ProtFlags::empty();
        let start =
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), room, none, MapFlags::PRIVATE)?;
        rustix::mm::munmap(start, room)?;
        start
    };
    let aligned = found.wrapping_byte_add(found.addr().wrapping_neg() % HUGE);
    // SAFETY: without `MAP_FIXED` the address is a wish, and the mapping replaces none. Should the file be truncated,
    // touching the lost part raises SIGBUS, which ends the process without undefined behaviour.
    let base = unsafe { rustix::mm::mmap(aligned, len, prot, flags, file, 0) }?;
    NonNull::new(base.cast::<u8>()).ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
}

impl Drop for Memory {
    fn drop(&mut self) {
        match self.owner {
            // SAFETY: this is the mapping made by `map` or `reserve`, and nothing refers into it: no reference
            // ever left this value, and addresses only with `Bytes`, which borrow it. Failure would only leak.
            Owner::Mapping | Owner::Reserved => unsafe {
                let _ = rustix::mm::munmap(self.base.as_ptr().cast(), self.len);
            },
            // SAFETY: allocated by `heap` with this layout.
            Owner::Heap { start, layout } => unsafe { dealloc(start.as_ptr(), layout) },
        }
    }
}
