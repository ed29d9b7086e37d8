//! Eviction: copies that the file has as well give their memory back.
//!
//! A page that was stored to is a copy in memory of this process. Once it has been written, the copy is not needed any
//! more: the kernel reads the page from the file when it is accessed, and drops it when memory is short. So the memory that
//! a region takes is bounded, however long it is and however much of it changes.
//!
//! A page leaves only if a read of the file gives what the copy has, byte for byte: a write past the page cache can leave
//! an older page in there.

use super::pages::pages_of;
use super::{Disk, Landing, PIECE, meet};
use crate::memory::Memory;
use crate::units::PAGE;
use rustix::fs::{Advice, fadvise};
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// The least that the memory of a region on a disk can be bounded to, in bytes: what is stored to at one moment is less.
pub const LEAST_MEMORY: u64 = 16 << 20;
/// How often all pages are looked at before a store goes on without room.
const PASSES: u32 = 3;
/// What is written at once before it leaves.
const STRETCH: u64 = 16 * PIECE;

/// Where eviction goes on.
#[derive(Default)]
pub(super) struct Hand {
    at: u64,
    /// It was in vain: not again before so many pages are copies.
    rests_until: u64,
}

/// A quarter of the memory that the process may use; without bound where the system evicts in larger pages than ours.
pub(super) fn usual_limit() -> u64 {
    if rustix::param::page_size() as u64 != PAGE {
        return u64::MAX;
    }
    (quayfs_limits::usable() / 4).max(LEAST_MEMORY) / PAGE
}

impl Disk {
    /// Bounds copies to so many bytes, at least [`LEAST_MEMORY`].
    pub(crate) fn limit_memory(&mut self, bytes: u64) {
        if self.limit != u64::MAX {
            self.limit = bytes.max(LEAST_MEMORY) / PAGE;
        }
    }

    /// Whether all of the region may be read into the page cache: the bound is an eighth of the usable memory, unless it
    /// was chosen.
    pub(crate) fn fits(&self, memory: &Memory) -> bool {
        self.limit().saturating_mul(4) >= (memory.len() as u64).div_ceil(PAGE)
    }

    /// Bytes in copies.
    pub(crate) fn copied(&self) -> u64 {
        let each = match self.shadow.get() {
            Some(_) => 2 * PAGE,
            None => PAGE,
        };
        self.pages.copied() * each
    }

    /// Evicts before stores have to, if the bound is near.
    pub(crate) fn trim(&self, memory: &Memory) {
        if self.pages.copied() > self.limit() / 16 * 15
            && let Some(mut hand) = self.hand.try_lock()
        {
            self.evict(memory, &mut hand, self.limit() / 8 * 7);
        }
        self.forget_written(memory);
    }

    /// Evicts if no further page may be copied. Where all of them are being stored to, or cannot be written, the store goes
    /// on without room.
    pub(super) fn make_room(&self, memory: &Memory) {
        let mut hand = self.hand.lock();
        if self.pages.copied() >= self.limit() {
            self.evict(memory, &mut hand, self.limit() / 16 * 15);
        }
    }

    /// From where the hand points on, until no more than so many pages are copies. What has been stored to since it came
    /// by last stays for another pass, and is written before that.
    pub(super) fn evict(&self, memory: &Memory, hand: &mut Hand, target: u64) {
        let (len, before) = (memory.len() as u64, self.pages.copied());
        if before < hand.rests_until || self.gate.failure().is_some() {
            return;
        }
        for pass in 0..PASSES {
            for _ in 0..len.div_ceil(STRETCH) {
                if self.pages.copied() <= target {
                    hand.rests_until = 0;
                    return;
                }
                let stretch = hand.at..(hand.at + STRETCH).min(len);
                hand.at = if stretch.end == len { 0 } else { stretch.end };
                if pass > 0 && self.settle_to(memory, vec![stretch.clone()], true).is_err() {
                    return;
                }
                for start in stretch.clone().step_by(PIECE as usize) {
                    self.evict_piece(memory, &(start..(start + PIECE).min(len)));
                }
            }
        }
        hand.rests_until = self.pages.copied() + self.limit() / 16;
    }

    fn evict_piece(&self, memory: &Memory, piece: &Range<u64>) {
        let runs = self.runs(piece, |page| self.pages.may_leave(page));
        if runs.is_empty() {
            return;
        }
        // No write of it is on its way from here on: what is read is what will stay.
        let Some(_landing) = self.claim(piece) else {
            return;
        };
        let mut buf = [0; PIECE as usize];
        let at_home = |run: &Range<u64>| self.runs(run, |page| self.away(page) == 0);
        for run in runs.iter().flat_map(at_home) {
            let bytes = &mut buf[..(run.end - run.start) as usize];
            // Once from the disk while stores go on, and once more, from the page cache, while they wait.
            if self.file.read_exact_at(bytes, run.start).is_ok() {
                self.evict_run(memory, run, bytes);
            }
        }
    }

    fn evict_run(&self, memory: &Memory, run: Range<u64>, bytes: &mut [u8]) {
        let leave = self.pages.leave();
        for run in self.runs(&run, |page| leave.begin(page)) {
            let bytes = &mut bytes[..(run.end - run.start) as usize];
            let is_read = self.file.read_exact_at(bytes, run.start).is_ok();
            let is_same = |page| {
                let (off, pages) = (page * PAGE, bytes.chunks(PAGE as usize));
                let mut written = pages.skip(((off - run.start) / PAGE) as usize);
                is_read && written.next().is_some_and(|bytes| memory.has(off, bytes))
            };
            let mut left = run.end - run.start;
            let parts = self.runs(&run, is_same);
            #[cfg(test)]
            tests::COMPARED.take().into_iter().for_each(|then| then());
            for part in parts {
                self.need_not_outlive(&part);
                if memory.forget(part.start, part.end - part.start).is_ok() {
                    left -= part.end - part.start;
                    pages_of(&part).for_each(|page| leave.gone(page));
                }
            }
            if left > 0 {
                // The cache has an older page. It is dropped, and the copy leaves another time.
                let len = NonZeroU64::new(run.end - run.start);
                let _ = fadvise(&*self.file, run.start, len, Advice::DontNeed);
            }
        }
    }

    /// The pages within the range for which that holds, neighbours as one.
    pub(super) fn runs(&self, range: &Range<u64>, holds: impl Fn(u64) -> bool) -> Vec<Range<u64>> {
        let mut runs: Vec<Range<u64>> = Vec::new();
        for page in pages_of(range).filter(|page| holds(*page)) {
            let part = page * PAGE..((page + 1) * PAGE).min(range.end);
            match runs.last_mut() {
                Some(last) if last.end == part.start => last.end = part.end,
                _ => runs.push(part),
            }
        }
        runs
    }

    /// Keeps others from writing a piece, unless one of them is writing some of it.
    pub(super) fn claim<'a>(&'a self, piece: &'a Range<u64>) -> Option<Landing<'a>> {
        let mut flight = self.lock_after_batch();
        if flight.iter().any(|other| meet(other, piece)) {
            return None;
        }
        flight.push(piece.clone());
        Some(Landing {
            disk: self,
            pieces: std::slice::from_ref(piece),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Mapped;
    use std::cell::Cell;
    use std::fs::File;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    thread_local! {
        /// What happens next between the comparison of a page and its end.
        pub(super) static COMPARED: Cell<Option<Box<dyn FnOnce()>>> = const { Cell::new(None) };
    }

    /// More than may be copied.
    const LEN: u64 = 32 << 20;

    fn mapped() -> (Arc<File>, Memory, Disk) {
        let file = Arc::new(tempfile::tempfile().unwrap());
        file.set_len(LEN).unwrap();
        let memory = Memory::map(&file, LEN as usize, true, Mapped::Private).unwrap();
        let mut disk = Disk::new(Arc::clone(&file), LEN);
        disk.limit_memory(LEAST_MEMORY);
        (file, memory, disk)
    }

    fn store(disk: &Disk, memory: &Memory, off: u64, value: u64) {
        disk.store(memory, off, 8, || memory.store_u64(off, value));
    }

    /// Also without a single drain: then it is written first.
    #[test]
    fn what_is_stored_is_there_and_memory_is_bounded() {
        for drains in [false, true] {
            let (file, memory, disk) = mapped();
            for lap in 1..3 {
                for off in (0..LEN).step_by(PAGE as usize) {
                    store(&disk, &memory, off + 8 * lap, off + lap);
                    if drains && off % PIECE == 0 {
                        disk.drain(&memory).unwrap();
                    }
                    assert!(disk.copied() <= LEAST_MEMORY);
                }
            }
            let mut content = vec![0; LEN as usize];
            disk.drain(&memory).unwrap();
            file.read_exact_at(&mut content, 0).unwrap();
            for off in (0..LEN).step_by(PAGE as usize) {
                for lap in 1..3 {
                    let at = (off + 8 * lap) as usize;
                    let written = u64::from_le_bytes(content[at..at + 8].try_into().unwrap());
                    assert_eq!(
                        (memory.load_u64(at as u64), written),
                        (off + lap, off + lap)
                    );
                }
            }
        }
    }

    /// Threads that store to words of their own in the same pages, and load them again, while pages leave all the time.
    #[test]
    fn no_store_is_lost_to_a_page_that_leaves() {
        const THREADS: u64 = 3;
        const ROUNDS: u64 = 30_000;
        const PAGES: u64 = 32;
        let (_file, memory, disk) = mapped();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Acquire) {
                    disk.evict(&memory, &mut disk.hand.lock(), 0);
                }
            });
            let threads: Vec<_> = (0..THREADS)
                .map(|thread| {
                    let (memory, disk) = (&memory, &disk);
                    scope.spawn(move || {
                        let mut last = [0; PAGES as usize];
                        for round in 1..ROUNDS {
                            // Each thread in an order of its own, all of them.
                            let page = round * (2 * thread + 1) % PAGES;
                            let off = page * PAGE + 8 * thread;
                            assert_eq!(memory.load_u64(off), last[page as usize]);
                            store(disk, memory, off, round);
                            last[page as usize] = round;
                        }
                    })
                })
                .collect();
            let ended: Vec<_> = threads.into_iter().map(|t| t.join()).collect();
            done.store(true, Ordering::Release);
            assert!(ended.into_iter().all(|end| end.is_ok()));
        });
    }

    /// One that is copied, written, and was not stored to for a pass.
    fn old(disk: &Disk, memory: &Memory) {
        store(disk, memory, 0, 1);
        disk.drain(memory).unwrap();
        disk.pages.may_leave(0);
    }

    /// Its store comes at the worst moment that it can.
    #[test]
    fn a_page_that_is_stored_to_now_stays() {
        let (_file, memory, disk) = mapped();
        let memory = Arc::new(memory);
        old(&disk, &memory);
        disk.store(&memory, 8, 8, || {
            let there = Arc::clone(&memory);
            COMPARED.set(Some(Box::new(move || there.store_u64(8, 2))));
            disk.evict_run(&memory, 0..PAGE, &mut [0; PAGE as usize]);
            COMPARED.take().into_iter().for_each(|then| then());
        });
        assert_eq!((disk.copied(), memory.load_u64(8)), (PAGE, 2));
    }

    #[test]
    fn a_store_to_a_page_that_leaves_waits_for_it() {
        let (_file, memory, disk) = mapped();
        old(&disk, &memory);
        std::thread::scope(|scope| {
            let leave = disk.pages.leave();
            assert!(leave.begin(0));
            let (begun, has_begun) = std::sync::mpsc::channel();
            let (memory, disk) = (&memory, &disk);
            let storing = scope.spawn(move || {
                begun.send(rustix::thread::gettid()).unwrap();
                store(disk, memory, 8, 2);
            });
            let stat = format!("/proc/self/task/{}/stat", has_begun.recv().unwrap());
            let sleeps = || std::fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") S "));
            while !storing.is_finished() && !sleeps() {
                std::thread::yield_now();
            }
            memory.forget(0, PAGE).unwrap();
            leave.gone(0);
            drop(leave);
        });
        assert_eq!([0, 8].map(|off| memory.load_u64(off)), [1, 2]);
    }

    /// The page cache may have an older page than the disk: here it is the file itself.
    #[test]
    fn what_the_file_does_not_have_stays() {
        let (file, memory, disk) = mapped();
        store(&disk, &memory, 0, 1);
        store(&disk, &memory, PAGE, 1);
        disk.drain(&memory).unwrap();
        file.write_all_at(&[0; 8], 0).unwrap();
        disk.evict(&memory, &mut disk.hand.lock(), 0);
        assert_eq!(disk.copied(), PAGE);
        assert_eq!([0, PAGE].map(|off| memory.load_u64(off)), [1, 1]);
    }

    /// What is being written now is not in the file yet.
    #[test]
    fn what_is_on_its_way_stays() {
        let (_file, memory, disk) = mapped();
        old(&disk, &memory);
        let writing = disk.claim(&(0..PAGE)).unwrap();
        disk.evict_piece(&memory, &(0..PIECE));
        assert_eq!(disk.copied(), PAGE);
        drop(writing);
        disk.evict_piece(&memory, &(0..PIECE));
        assert_eq!((disk.copied(), memory.load_u64(0)), (0, 1));
    }

    #[test]
    fn a_page_that_was_stored_to_stays_for_another_pass() {
        let (_file, memory, disk) = mapped();
        store(&disk, &memory, 0, 1);
        disk.drain(&memory).unwrap();
        disk.evict_piece(&memory, &(0..PIECE));
        assert_eq!(disk.copied(), PAGE);
        disk.evict_piece(&memory, &(0..PIECE));
        assert_eq!(disk.copied(), 0);
    }
}
