//! A region on an ordinary disk: memory that the kernel never writes back, and what of it we write ourselves.
//!
//! The mapping is private, so what is stored stays in this process until [`Disk::write_out`] writes it, by sectors, past
//! the page cache where the file system allows it. Nothing else of a region ever reaches its disk. What settles through
//! the batch log is written a second time later, where it belongs. What settled is durable after [`Disk::flush`].

mod batches;
mod evict;
mod mend;
mod pages;
mod shadow;
mod tap;
mod written;

use crate::drain::DrainGate;
use crate::memory::Memory;
use crate::units::{PAGE, SECTOR};
use batches::Batches;
use evict::Hand;
use pages::{Pages, SECTORS};
use parking_lot::{Condvar, Mutex, MutexGuard};
use quayfs_sync::wait_for_device;
use quayfs_transfer::{RingPool, Transfer, run_all};
use rustix::fs::{Advice, Mode, OFlags, StatxFlags, fadvise};
use shadow::Shadow;
use std::cell::Cell;
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::iter::once;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tap::{Fault, Tap};

pub use evict::LEAST_MEMORY;

/// Marks are taken in pieces of so many bytes, and what lies in a piece whose content is on its way has to wait.
const PIECE: u64 = 64 << 10;
/// The most bytes, and the most writes, that are on their way for one thread: short enough for a commit to pass in
/// between.
const WAVE: (u64, usize) = (1 << 20, 64);
/// Ranges of pages that the page cache may still have, until it is told to drop them.
const STALE_MAX: usize = 256;
/// What direct I/O wants of an address in memory, at most.
const ALIGN: usize = 4096;

thread_local! {
    /// Memory for the next write of this thread.
    static BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// What of a region is to be written, and where to.
pub(crate) struct Disk {
    file: Arc<File>,
    /// Its reads and writes pass the page cache; `None` if the file system has no such.
    direct: Option<File>,
    /// Writes begin and end at multiples of so many bytes.
    unit: u64,
    /// The writes of a wave are under way at once.
    rings: Option<RingPool>,
    pages: Pages,
    /// How many pages may be copies.
    limit: u64,
    /// Pages that may still be in the page cache, and are not needed there.
    stale: Mutex<Vec<Range<u64>>>,
    /// Where eviction goes on, which one thread does. Goes before `flight`.
    hand: Mutex<Hand>,
    /// What is being written. No two of these meet: the older content could be the one that stays.
    flight: Mutex<Vec<Range<u64>>>,
    landed: Condvar,
    /// A batch waits for what is on its way. Changed under the lock of `flight`.
    batch_waits: AtomicBool,
    gate: DrainGate,
    /// What is settled together goes there first, if there is one.
    batches: OnceLock<Batches>,
    /// What is stored outlives this process there, if it does.
    shadow: OnceLock<Shadow>,
    tap: Tap,
}

/// What one thread writes at once.
#[derive(Default)]
struct Wave {
    /// Pieces whose marks it has taken.
    pieces: Vec<Range<u64>>,
    /// What is written of them, in order.
    runs: Vec<Range<u64>>,
    bytes: u64,
}

impl Wave {
    fn add(&mut self, piece: Range<u64>, runs: Vec<Range<u64>>) {
        self.pieces.push(piece);
        for run in runs {
            self.bytes += run.end - run.start;
            match self.runs.last_mut() {
                Some(last) if last.end == run.start => last.end = run.end,
                _ => self.runs.push(run),
            }
        }
    }

    fn is_full(&self) -> bool {
        self.bytes >= WAVE.0 || self.runs.len() >= WAVE.1
    }
}

/// Pieces in flight, until this is dropped.
struct Landing<'a> {
    disk: &'a Disk,
    pieces: &'a [Range<u64>],
}

impl Drop for Landing<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let error = io::Error::other("a thread panicked while it wrote the region");
            self.disk.gate.fail(&error);
        }
        let mut flight = self.disk.flight.lock();
        flight.retain(|other| !self.pieces.contains(other));
        drop(flight);
        self.disk.landed.notify_all();
    }
}

impl Disk {
    /// Nothing of a region of `len` bytes is dirty.
    pub(crate) fn new(file: Arc<File>, len: u64) -> Self {
        let direct = open_direct(&file);
        let unit = match &direct {
            Some((_, unit)) => *unit,
            None => SECTOR,
        };
        Self {
            file,
            direct: direct.map(|(direct, _)| direct),
            unit,
            rings: RingPool::new().ok(),
            pages: Pages::untouched(len),
            limit: evict::usual_limit(),
            stale: Mutex::default(),
            hand: Mutex::default(),
            flight: Mutex::new(Vec::new()),
            landed: Condvar::new(),
            batch_waits: AtomicBool::new(false),
            gate: DrainGate::default(),
            batches: OnceLock::new(),
            shadow: OnceLock::new(),
            tap: Tap::default(),
        }
    }

    /// [`quayfs_transfer::claim`], for the first `len` bytes.
    pub(crate) fn claim_file(&self, len: u64, wait: Duration) -> io::Result<bool> {
        let file = self.direct.as_ref().unwrap_or(&self.file);
        quayfs_transfer::claim(file.as_fd(), 0..len, wait)
    }

    /// Stores to a range. It is marked afterwards: a write takes the mark first, and the content then.
    pub(crate) fn store(&self, memory: &Memory, off: u64, len: u64, store: impl FnOnce()) {
        if self.pages.copied() >= self.limit() && self.pages.would_copy(off, len) {
            wait_for_device(|| self.make_room(memory));
        }
        self.store_beyond(memory, off, len, store);
    }

    /// [`Disk::store`] without regard to the bound on copies: nothing leaves meanwhile.
    fn store_beyond(&self, memory: &Memory, off: u64, len: u64, store: impl FnOnce()) {
        self.pages.storing(off, len);
        store();
        self.repeat(memory, off, len);
        let copied = self.pages.stored(off, len);
        if !copied.is_empty() {
            self.note_stale(copied.start * PAGE..copied.end * PAGE);
        }
    }

    /// What the page cache has of pages that have become copies is of no use any more, and is to be dropped before they
    /// are written: see [`Disk::forget_stale`].
    fn note_stale(&self, pages: Range<u64>) {
        let mut stale = self.stale.lock();
        match stale.last_mut() {
            Some(last) if last.end == pages.start => last.end = pages.end,
            _ => stale.push(pages),
        }
        if stale.len() > STALE_MAX {
            drop(stale);
            self.forget_stale();
        }
    }

    /// A write past the page cache drops what is cached there, for which the system wakes another thread where several
    /// writes are submitted at once; so it is dropped before. Not at each store: a page that has only just been read is
    /// still on its way to the lists of the cache, and to drop it makes every CPU finish those.
    fn forget_stale(&self) {
        for pages in std::mem::take(&mut *self.stale.lock()) {
            self.forget_cached(pages);
        }
    }

    fn forget_cached(&self, pages: Range<u64>) {
        if self.direct.is_some() {
            let len = NonZeroU64::new(pages.end - pages.start);
            let _ = fadvise(&*self.file, pages.start, len, Advice::DontNeed);
        }
    }

    /// Writes what was stored in some ranges, in any order, before this call, and waits for others that are writing
    /// some of it. Not durable before a flush.
    ///
    /// # Errors
    /// Those of the system, which are final: [`Disk::drain`] fails from then on.
    pub(crate) fn write_out(
        &self,
        memory: &Memory,
        ranges: impl IntoIterator<Item = Range<u64>>,
    ) -> io::Result<()> {
        self.settle_to(memory, ranges.into_iter().collect(), false)
    }

    /// [`Disk::write_out`]; `at_home` if what does not have to go through the batch log is not to.
    fn settle_to(&self, memory: &Memory, ranges: Vec<Range<u64>>, at_home: bool) -> io::Result<()> {
        if let Some(error) = self.gate.failure() {
            return Err(error);
        }
        let Some(batches) = self.batches.get() else {
            return self.settle_at_home(memory, ranges);
        };
        if at_home && self.tap.planted(Fault::AwayIsWrittenHome) {
            return self.settle_at_home(memory, ranges);
        }
        let (logged, others) = batches.part(&ranges);
        let some_left =
            !logged.is_empty() && self.settle_logged(memory, batches, &logged, at_home)?;
        if !some_left {
            return self.settle_at_home(memory, others);
        }
        self.settle_at_home(memory, ranges)?;
        // Another thread may have taken some of it for a batch meanwhile.
        batches.wait();
        self.gate.failure().map_or(Ok(()), Err)
    }

    /// Writes where it belongs what is dirty and not away.
    fn settle_at_home(&self, memory: &Memory, ranges: Vec<Range<u64>>) -> io::Result<()> {
        let mut left = ranges.into();
        while let Some(wave) = self.take(&mut left) {
            let landing = Landing {
                disk: self,
                pieces: &wave.pieces,
            };
            let result = self.write(memory, &wave.runs);
            if let Err(error) = &result {
                // Before others that wait for these writes see that they have ended: their marks are gone, and those of
                // the others were among them.
                self.gate.fail(error);
            }
            drop(landing);
            result?;
        }
        // A write of another thread that was waited for may have failed.
        self.gate.failure().map_or(Ok(()), Err)
    }

    /// Takes the marks of the next pieces of these ranges, and what it has dealt with off the ranges; `None` when
    /// nothing is left. Waits for the writes of others, but never with pieces in hand: two threads could wait for each
    /// other.
    fn take(&self, left: &mut VecDeque<Range<u64>>) -> Option<Wave> {
        let mut wave = Wave::default();
        let mut flight = self.lock_after_batch();
        while let (Some(range), false) = (left.front_mut(), wave.is_full()) {
            let Some(start) = self.next(&flight, range.clone()) else {
                left.pop_front();
                continue;
            };
            let end = (start / PIECE * PIECE + PIECE).min(range.end);
            let piece = start / self.unit * self.unit..end.next_multiple_of(self.unit);
            if flight.iter().any(|other| meet(other, &piece)) {
                if !wave.pieces.is_empty() {
                    break;
                }
                self.landed.wait(&mut flight);
                continue;
            }
            range.start = end;
            let at_home = |page| match self.tap.planted(Fault::AwayIsWrittenHome) {
                true => SECTORS,
                false => !self.away(page) & SECTORS,
            };
            let runs = self.pages.take(piece.clone(), self.unit, at_home);
            if !runs.is_empty() {
                flight.push(piece.clone());
                wave.add(piece, runs);
            }
        }
        (!wave.pieces.is_empty()).then_some(wave)
    }

    /// The lock of `flight`, to put something on its way, and with nothing of this thread's on its way. A batch that waits
    /// goes first: one piece could follow the other, and a commit take as long as all of them.
    fn lock_after_batch(&self) -> MutexGuard<'_, Vec<Range<u64>>> {
        let mut flight = self.flight.lock();
        while self.batch_waits.load(Ordering::Relaxed) {
            self.landed.wait(&mut flight);
        }
        flight
    }

    /// The sectors of a page that only a batch may have. They get more and fewer under the lock of `flight`; nothing of
    /// a piece in flight becomes away.
    fn away(&self, page: u64) -> u32 {
        self.batches.get().map_or(0, |batches| batches.away(page))
    }

    /// Where the first thing is that is dirty, or being written. Needs the lock: under it marks are taken and become a
    /// flight, and in between they would be in neither.
    fn next(&self, flight: &[Range<u64>], range: Range<u64>) -> Option<u64> {
        if range.is_empty() {
            return None;
        }
        let dirty = self.pages.next(range.clone());
        let meeting = flight.iter().filter(|other| meet(other, &range));
        let starts = meeting.map(|other| other.start.max(range.start));
        starts.chain(dirty).min()
    }

    /// Writes zeros to all of the file, which has nothing in it yet, and tells of each piece how long it was. Not durable
    /// before a flush.
    ///
    /// # Errors
    /// Those of the system.
    pub(crate) fn write_zeros(&self, len: u64, told: &mut dyn FnMut(u64)) -> io::Result<()> {
        let zeros = vec![0; WAVE.0 as usize + ALIGN];
        let skip = zeros.as_ptr().align_offset(ALIGN);
        let file = self.direct.as_ref().unwrap_or(&self.file);
        for off in (0..len).step_by(WAVE.0 as usize) {
            let piece = (len - off).min(WAVE.0) as usize;
            Transfer::write(off, &[&zeros[skip..skip + piece]]).run(file.as_fd())?;
            told(piece as u64);
        }
        Ok(())
    }

    /// Others may be storing there meanwhile, so what is written is a copy, which does not change on its way.
    fn write(&self, memory: &Memory, runs: &[Range<u64>]) -> io::Result<()> {
        let len = |run: &Range<u64>| (run.end - run.start) as usize;
        let room = |run: &Range<u64>| len(run).next_multiple_of(ALIGN);
        let mut buffer = BUFFER.take();
        let total = ALIGN + runs.iter().map(room).sum::<usize>();
        if buffer.len() < total {
            buffer.resize(total, 0);
        }
        let skip = buffer.as_ptr().align_offset(ALIGN);
        let mut rest = &mut buffer[skip..];
        let mut transfers = Vec::with_capacity(runs.len());
        let mut noted = Vec::new();
        for run in runs {
            let (bytes, after) = std::mem::take(&mut rest).split_at_mut(room(run));
            let bytes = &mut bytes[..len(run)];
            memory.read(run.start, bytes);
            noted.push(self.tap.writing(run.start, bytes));
            transfers.push(Transfer::write(run.start, &[bytes]));
            rest = after;
        }
        if runs.len() > 1 {
            self.forget_stale();
        }
        #[cfg(test)]
        tests::COPIED.with_borrow(|wait| wait.iter().for_each(|wait| wait()));
        let file = self.direct.as_ref().unwrap_or(&self.file);
        let result = run_all(self.rings.as_ref(), file.as_fd(), &mut transfers);
        drop(transfers);
        noted.into_iter().for_each(|id| self.tap.written(id));
        BUFFER.set(buffer);
        result
    }

    /// Makes durable what any thread wrote before this call. Concurrent calls share one flush.
    ///
    /// # Errors
    /// Those of the system, now or in any write or flush before.
    pub(crate) fn flush(&self) -> io::Result<()> {
        self.gate.drain(|| {
            let at = self.tap.flushing();
            rustix::fs::fdatasync(&*self.file)?;
            self.tap.flushed(at);
            Ok(())
        })
    }

    /// Flushes that have begun.
    pub(crate) fn flushes(&self) -> u64 {
        self.gate.begun()
    }

    /// Everything that was stored before this call is durable when it returns.
    ///
    /// # Errors
    /// Those of [`Disk::write_out`] and [`Disk::flush`].
    pub(crate) fn drain(&self, memory: &Memory) -> io::Result<()> {
        self.write_out(memory, once(0..memory.len() as u64))?;
        self.flush()
    }
}

fn meet(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

/// The same file, past the page cache, and the unit of its writes.
fn open_direct(file: &File) -> Option<(File, u64)> {
    let flags = OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let direct = rustix::fs::open(path, flags, Mode::empty()).ok()?;
    let unit = direct_unit(&direct)?;
    Some((File::from(direct), unit))
}

/// What offsets and lengths of direct I/O are multiples of. Where the kernel does not say, a page does everywhere.
fn direct_unit(file: impl AsFd) -> Option<u64> {
    let stat = rustix::fs::statx(
        file,
        "",
        rustix::fs::AtFlags::EMPTY_PATH,
        StatxFlags::DIOALIGN,
    );
    match stat {
        Ok(stat) if stat.stx_mask & StatxFlags::DIOALIGN.bits() != 0 => {
            let unit = u64::from(stat.stx_dio_offset_align);
            let fits = unit > 0 && unit <= ALIGN as u64 && stat.stx_dio_mem_align as usize <= ALIGN;
            fits.then_some(unit.max(SECTOR))
        }
        _ => Some(ALIGN as u64),
    }
}

#[cfg(test)]
mod tests;
