//! What the disk has of pages, compared with what is in memory: what was written may have rotted since, and of a page in
//! memory the disk is not asked again before the next mount, which has nothing else.

use super::batches::Batches;
use super::pages::pages_of;
use super::{ALIGN, Disk, PIECE};
use crate::memory::Memory;
use crate::units::PAGE;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// Memory that direct I/O can read to.
struct Aligned(Vec<u8>);

impl Aligned {
    fn new(len: usize) -> Self {
        Self(vec![0; len + ALIGN])
    }

    fn of(&mut self, len: usize) -> &mut [u8] {
        let skip = self.0.as_ptr().align_offset(ALIGN);
        &mut self.0[skip..skip + len]
    }
}

impl Disk {
    /// Compares the pages of a range, but for the batch log, with the disk; if only `copies` are meant, those that were
    /// stored to since the region was opened. Those that differ, though nothing of them is to be written, are marked to be
    /// written again with the next drain; returns how many. Pages that are being written are passed over.
    pub(crate) fn mend(&self, memory: &Memory, range: &Range<u64>, copies: bool) -> u64 {
        let mut buffer = Aligned::new(PIECE as usize);
        let mut mended = 0;
        for start in (range.start / PIECE * PIECE..range.end).step_by(PIECE as usize) {
            let piece = start.max(range.start)..(start + PIECE).min(range.end);
            // Its heads and batches are written past the memory: what is there of them is of an earlier life.
            let log = self.batches.get().map_or(0..0, Batches::log);
            let is_meant =
                |page| !log.contains(&(page * PAGE)) && (!copies || self.pages.is_written(page));
            let runs = self.runs(&piece, is_meant);
            if runs.is_empty() {
                continue;
            }
            let mut differing = Vec::new();
            // No write of it is on its way from here on: what is read is what was written.
            if let Some(_landing) = self.claim(&piece) {
                for run in runs {
                    differing.extend(self.differing(memory, &run, &mut buffer));
                }
            }
            for page in differing {
                let (off, end) = (page * PAGE, ((page + 1) * PAGE).min(memory.len() as u64));
                // What is there is there to stay, and is dirty from here on.
                self.store_beyond(memory, off, end - off, || memory.touch(off));
                mended += 1;
            }
        }
        mended
    }

    /// The pages of a run that the disk has otherwise, or cannot read, and that are not to be written.
    fn differing(&self, memory: &Memory, run: &Range<u64>, buffer: &mut Aligned) -> Vec<u64> {
        let whole = buffer.of((run.end - run.start) as usize);
        let pages = pages_of(run);
        if self.read_past_cache(whole, run.start).is_ok() {
            let found = pages.zip(whole.chunks(PAGE as usize));
            let found = found.filter(|(page, bytes)| self.is_at_rest_and_not(memory, *page, bytes));
            return found.map(|(page, _)| page).collect();
        }
        let differs = |page: &u64| {
            let (off, end) = (page * PAGE, ((page + 1) * PAGE).min(run.end));
            let bytes = buffer.of((end - off) as usize);
            match self.read_past_cache(bytes, off) {
                Ok(()) => self.is_at_rest_and_not(memory, *page, bytes),
                // Nothing is what cannot be read.
                Err(_) => self.is_at_rest(*page),
            }
        };
        pages.filter(differs).collect()
    }

    pub(super) fn read_past_cache(&self, bytes: &mut [u8], off: u64) -> io::Result<()> {
        let file = self.direct.as_ref().unwrap_or(&self.file);
        file.read_exact_at(bytes, off)
    }

    /// Whether nothing of a page is to be written.
    fn is_at_rest(&self, page: u64) -> bool {
        self.away(page) == 0 && (self.pages.is_untouched(page) || self.pages.is_written(page))
    }

    /// Whether nothing of a page is to be written, and it is not this nevertheless.
    fn is_at_rest_and_not(&self, memory: &Memory, page: u64, content: &[u8]) -> bool {
        // The look that costs least, first; it may be stored to meanwhile.
        if memory.has(page * PAGE, content) || self.away(page) != 0 {
            return false;
        }
        if self.pages.is_untouched(page) {
            let differs = !memory.has(page * PAGE, content);
            return differs && self.pages.is_untouched(page);
        }
        let leave = self.pages.leave();
        leave.hold(page) && !memory.has(page * PAGE, content)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Mapped;
    use std::fs::File;
    use std::sync::Arc;

    const LEN: u64 = 32 << 20;

    fn mapped() -> (Arc<File>, Memory, Disk) {
        let file = Arc::new(tempfile::tempfile().unwrap());
        file.set_len(LEN).unwrap();
        let memory = Memory::map(&file, LEN as usize, true, Mapped::Private).unwrap();
        let disk = Disk::new(Arc::clone(&file), LEN);
        (file, memory, disk)
    }

    fn store(disk: &Disk, memory: &Memory, off: u64, value: u64) {
        disk.store(memory, off, 8, || memory.store_u64(off, value));
    }

    fn on_disk(file: &File, off: u64) -> u64 {
        let mut word = [0; 8];
        file.read_exact_at(&mut word, off).unwrap();
        u64::from_le_bytes(word)
    }

    #[test]
    fn what_rots_under_a_page_in_memory_is_written_again() {
        let (file, memory, disk) = mapped();
        for page in 0..40 {
            store(&disk, &memory, page * PAGE, page + 1);
        }
        disk.drain(&memory).unwrap();
        assert_eq!(disk.mend(&memory, &(0..LEN), true), 0);
        for page in [0, 7, 39] {
            file.write_all_at(&[0xa5; 512], page * PAGE).unwrap();
        }
        file.sync_all().unwrap();
        assert_eq!(disk.mend(&memory, &(0..LEN), true), 3);
        disk.drain(&memory).unwrap();
        assert_eq!(disk.mend(&memory, &(0..LEN), true), 0);
        for page in 0..40 {
            assert_eq!(
                (memory.load_u64(page * PAGE), on_disk(&file, page * PAGE)),
                (page + 1, page + 1)
            );
        }
    }

    /// What was stored and is not written yet differs, and is no damage.
    #[test]
    fn what_is_to_be_written_is_not_compared() {
        let (file, memory, disk) = mapped();
        store(&disk, &memory, 0, 1);
        disk.drain(&memory).unwrap();
        store(&disk, &memory, 8, 2);
        assert_eq!(disk.mend(&memory, &(0..PAGE), false), 0);
        let on_its_way = disk.claim(&(0..PAGE)).unwrap();
        assert_eq!(disk.mend(&memory, &(0..PAGE), false), 0);
        drop(on_its_way);
        disk.drain(&memory).unwrap();
        assert_eq!([on_disk(&file, 0), on_disk(&file, 8)], [1, 2]);
    }

    /// Threads that store to pages while they are compared lose nothing, and nothing is taken for damage.
    #[test]
    fn no_store_is_lost_to_a_comparison() {
        const PAGES: u64 = 32;
        let (file, memory, disk) = mapped();
        std::thread::scope(|scope| {
            let storing: Vec<_> = (0..2)
                .map(|thread| {
                    let (disk, memory) = (&disk, &memory);
                    scope.spawn(move || {
                        for round in 1..4000 {
                            store(disk, memory, round % PAGES * PAGE + 8 * thread, round);
                            if round % 64 == 0 {
                                disk.drain(memory).unwrap();
                            }
                        }
                    })
                })
                .collect();
            while storing.iter().any(|t| !t.is_finished()) {
                assert_eq!(disk.mend(&memory, &(0..PAGES * PAGE), false), 0);
            }
        });
        disk.drain(&memory).unwrap();
        for round in 4000 - PAGES..4000 {
            for thread in 0..2 {
                let off = round % PAGES * PAGE + 8 * thread;
                assert_eq!((memory.load_u64(off), on_disk(&file, off)), (round, round));
            }
        }
    }
}
