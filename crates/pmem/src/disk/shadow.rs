//! What was stored, once more, in memory that outlives the process.
//!
//! What is stored to a region on a disk is in memory of the process until it is written, and would be lost with it. If the
//! mount goes on without this process ([`Disk::outlive`]), each store is repeated in a file without a name, which a third
//! process holds, before the store counts as made. The next process stores it all again. So to it the region is what
//! the last one had made of it, as if it were persistent memory.
//!
//! The file has a page for each of the region, and behind these a byte for each page with a bit for each sector that is
//! valid: from the first store to a sector until the region's own file has it, which is looked at now and then
//! ([`Disk::forget_written`]), and at the latest when its page leaves the memory of this process.

use super::Disk;
use super::pages::{SECTORS, pages_of, sectors};
use crate::memory::{Mapped, Memory};
use crate::units::{PAGE, SECTOR};
use parking_lot::Mutex;
use rustix::fs::{FallocateFlags, fallocate};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// So many pages ahead of the one that is stored again the disk is asked for.
const AHEAD: usize = 8192;
/// Pages that share a lock.
const STRIPES: usize = 64;

pub(super) struct Shadow {
    file: File,
    memory: Memory,
    /// Bytes of the region, in whole pages.
    len: u64,
    /// A bit for each page that has valid sectors.
    pages: Vec<AtomicU64>,
    /// The region's own file, of which nothing is accessed here: to see which pages the system has in its cache.
    cache: Memory,
    /// Held while a sector becomes valid, or a page invalid. Leaves.
    stripes: [Mutex<()>; STRIPES],
}

impl Shadow {
    /// Of a region of `bytes` bytes, which has that file of its own; and whether there is anything of an earlier process.
    fn new(file: File, own: &File, bytes: u64) -> io::Result<(Self, bool)> {
        let len = bytes.next_multiple_of(PAGE);
        let whole = (len + len / PAGE).next_multiple_of(PAGE);
        let has = file.metadata()?.len();
        if has == 0 {
            file.set_len(whole)?;
        } else if has != whole {
            return Err(io::Error::other("it belongs to a region of another size"));
        }
        let memory = Memory::map(&file, whole as usize, true, Mapped::Shared)?;
        let shadow = Self {
            file,
            memory,
            len,
            pages: (0..len.div_ceil(64 * PAGE))
                .map(|_| AtomicU64::new(0))
                .collect(),
            cache: Memory::map(own, bytes as usize, false, Mapped::Shared)?,
            stripes: std::array::from_fn(|_| Mutex::new(())),
        };
        Ok((shadow, has > 0))
    }

    fn valid(&self, page: u64) -> u32 {
        let mut byte = [0];
        self.memory.read(self.len + page, &mut byte);
        byte[0].into()
    }

    /// Needs the lock of the page.
    fn set_valid(&self, page: u64, sectors: u32) {
        self.memory.write(self.len + page, &[sectors as u8]);
        let (word, bit) = (&self.pages[page as usize / 64], 1 << (page % 64));
        match sectors {
            0 => word.fetch_and(!bit, Ordering::Relaxed),
            _ => word.fetch_or(bit, Ordering::Relaxed),
        };
    }

    fn lock(&self, page: u64) -> &Mutex<()> {
        &self.stripes[page as usize % STRIPES]
    }

    /// Repeats what has just been stored to a range. No page of it leaves meanwhile.
    pub(super) fn stored(&self, memory: &Memory, range: &Range<u64>) {
        for page in pages_of(range) {
            let touched = sectors(page, range);
            if touched & !self.valid(page) != 0 {
                self.begin(memory, page, touched);
            }
            let start = range.start.max(page * PAGE);
            let end = range.end.min((page + 1) * PAGE);
            self.copy(memory, start..end);
        }
    }

    /// Sectors that are not valid yet become that, whole. A store of another thread to the same sector may come in between;
    /// it is copied then by that thread, which finds the sector valid or waits for it here.
    fn begin(&self, memory: &Memory, page: u64, touched: u32) {
        let _alone = self.lock(page).lock();
        let valid = self.valid(page);
        for sector in (0..PAGE / SECTOR).filter(|s| touched & !valid & 1 << s != 0) {
            let start = page * PAGE + sector * SECTOR;
            self.copy(memory, start..(start + SECTOR).min(memory.len() as u64));
        }
        self.set_valid(page, valid | touched);
    }

    fn copy(&self, memory: &Memory, range: Range<u64>) {
        memory.copy_to(
            range.start,
            (range.end - range.start) as usize,
            &self.memory,
        );
    }

    /// The first page from this one on that has valid sectors.
    pub(super) fn next(&self, page: u64) -> Option<u64> {
        let mut skip = page % 64;
        for at in page as usize / 64..self.pages.len() {
            let word = self.pages[at].load(Ordering::Relaxed) >> skip << skip;
            if word != 0 {
                return Some(at as u64 * 64 + u64::from(word.trailing_zeros()));
            }
            skip = 0;
        }
        None
    }

    /// Whether a page has valid sectors.
    pub(super) fn has(&self, page: u64) -> bool {
        self.pages[page as usize / 64].load(Ordering::Relaxed) & 1 << (page % 64) != 0
    }

    /// Whether the system may have a page of the region's own file in its cache.
    pub(super) fn is_cached(&self, page: u64) -> bool {
        self.cache.may_be_cached(page)
    }

    /// The region's file has this page. No store to it is made meanwhile.
    pub(super) fn set_invalid(&self, page: u64) {
        let _alone = self.lock(page).lock();
        self.set_valid(page, 0);
    }

    /// The region's file has these pages. No store to them is made meanwhile.
    pub(super) fn forget(&self, pages: Range<u64>) {
        for page in pages.clone() {
            let _alone = self.lock(page).lock();
            self.set_valid(page, 0);
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        // Else it takes memory until the page is stored to again.
        let _ = fallocate(
            &self.file,
            flags,
            pages.start * PAGE,
            (pages.end - pages.start) * PAGE,
        );
    }

    /// The ranges that are valid, each within a page, with their content. `soon` hears of pages that will come.
    fn each(&self, len: u64, mut soon: impl FnMut(Range<u64>), mut f: impl FnMut(u64, &[u8])) {
        let mut valid = vec![0; (self.len / PAGE) as usize];
        self.memory.read(self.len, &mut valid);
        let mut content = [0; PAGE as usize];
        let pages: Vec<(u64, u8)> = (0..).zip(valid).filter(|(_, valid)| *valid != 0).collect();
        for &(page, valid) in &pages {
            self.set_valid(page, valid.into());
        }
        let mut told = 0;
        for (n, &(page, valid)) in pages.iter().enumerate() {
            while told < pages.len().min(n + AHEAD / 2) {
                let first = pages[told].0;
                let some = pages[told..].iter().take(AHEAD / 2).zip(first..);
                let run = some.take_while(|((page, _), next)| page == next).count();
                soon(first * PAGE..((first + run as u64) * PAGE).min(len));
                told += run;
            }
            self.memory.read(page * PAGE, &mut content);
            let mut sector = 0;
            while sector < PAGE / SECTOR {
                let run = (u32::from(valid) & SECTORS) >> sector;
                let skip = u64::from(run.trailing_zeros().min(8));
                if skip > 0 {
                    sector += skip;
                    continue;
                }
                let n = u64::from(run.trailing_ones());
                let off = page * PAGE + sector * SECTOR;
                let end = (off + n * SECTOR).min(len);
                let at = (sector * SECTOR) as usize;
                f(off, &content[at..at + (end - off) as usize]);
                sector += n;
            }
        }
    }
}

impl Disk {
    /// From now on what is stored outlives this process in `file`, a memfd. What an earlier process has stored, according to it,
    /// is stored again first; then this returns how many bytes that were. Nothing else uses the region meanwhile.
    ///
    /// # Errors
    /// The file is that of another region; those of the system.
    pub(crate) fn outlive(&self, memory: &Memory, file: File) -> io::Result<u64> {
        let (shadow, has_content) = Shadow::new(file, &self.file, memory.len() as u64)?;
        let shadow = self.shadow.get_or_init(|| shadow);
        let mut bytes = 0;
        if has_content {
            // A page is read before it is stored to, and each of them alone would take as long as the disk needs for one.
            let soon = |range: Range<u64>| memory.will_need(range.start, range.end - range.start);
            shadow.each(memory.len() as u64, soon, |off, content| {
                let len = content.len() as u64;
                bytes += len;
                // A page that left now would be forgotten in the shadow before it has been stored again.
                self.store_beyond(memory, off, len, || memory.write(off, content));
            });
            // What the last process wrote, and had not flushed, is written to this one: nothing else would flush it.
            self.flush()?;
        }
        Ok(bytes)
    }

    /// Repeats a store for the next process.
    pub(super) fn repeat(&self, memory: &Memory, off: u64, len: u64) {
        if let Some(shadow) = self.shadow.get() {
            shadow.stored(memory, &(off..off + len));
        }
    }

    /// Pages leave the memory of this process.
    pub(super) fn need_not_outlive(&self, range: &Range<u64>) {
        if let Some(shadow) = self.shadow.get() {
            shadow.forget(pages_of(range));
        }
    }

    /// How many pages may be copies. Those that outlive the process are there twice.
    pub(super) fn limit(&self) -> u64 {
        match self.shadow.get() {
            Some(_) => self.limit / 2,
            None => self.limit,
        }
    }
}

#[cfg(test)]
pub(in crate::disk) mod tests;
