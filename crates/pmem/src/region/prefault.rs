//! Faulting a region in ahead of its use, in huge pages where the system gives some.

use super::Region;
use crate::Backend;
use crate::memory;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

impl Region {
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

    /// Whether neighbours in the region are neighbours in memory nearly everywhere: on persistent memory, and where
    /// [`Region::prefault`] has found huge pages for most of it. Elsewhere a device that is given bytes where they lie
    /// takes a page at a time, and up to twice as long.
    pub fn is_contiguous(&self) -> bool {
        self.backend == Backend::Dax || self.huge.load(Ordering::Acquire)
    }
}
