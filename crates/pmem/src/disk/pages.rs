//! What is known of each page: which of its sectors have been stored to since they were written last, and whether it is a
//! copy, which takes memory of this process.

mod dirty;

use crate::units::{PAGE, SECTOR};
use dirty::DirtyPages;
use parking_lot::{Mutex, MutexGuard};
use std::cell::RefCell;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};

/// The lowest bits of a page's word: a bit for each sector that is dirty.
pub(super) const SECTORS: u32 = 0xff;
/// The page is a copy, since something was stored there.
const COPIED: u32 = 1 << 8;
/// It has been stored to since eviction last came by.
const RECENT: u32 = 1 << 9;
/// It is being evicted: stores have to wait.
const LEAVING: u32 = 1 << 10;
/// One store that is under way. From here on the word counts them.
const STORE: u32 = 1 << 16;

const _: () = assert!(PAGE / SECTOR == SECTORS.count_ones() as u64);

/// Words that are made together, when the first of them is needed.
const CHUNK: u64 = 4096;

/// A word for each page, and a bit for each that may have dirty sectors.
pub(super) struct Pages {
    words: Vec<OnceLock<Box<[AtomicU32]>>>,
    dirty: DirtyPages,
    /// Below zero for a moment: a page that was just counted may leave before one that comes is.
    copied: AtomicI64,
    /// Held while pages are [`LEAVING`]: what has to wait for them takes it. A leaf.
    leaving: Mutex<()>,
}

/// The right to evict pages: stores to those that leave wait until this is dropped.
pub(super) struct Leave<'a> {
    pages: &'a Pages,
    leaving: RefCell<Vec<u64>>,
    _alone: MutexGuard<'a, ()>,
}

/// The bits of the sectors of a page that a range touches.
pub(super) fn sectors(page: u64, range: &Range<u64>) -> u32 {
    let first = (range.start.max(page * PAGE) - page * PAGE) / SECTOR;
    let end = (range.end.min((page + 1) * PAGE) - page * PAGE).div_ceil(SECTOR);
    (1 << end) - (1 << first)
}

/// The pages that a range touches.
pub(super) fn pages_of(range: &Range<u64>) -> Range<u64> {
    match range.is_empty() {
        true => 0..0,
        false => range.start / PAGE..range.end.div_ceil(PAGE),
    }
}

impl Pages {
    /// Nothing of a region of `len` bytes is dirty or copied.
    pub(super) fn untouched(len: u64) -> Self {
        let pages = len.div_ceil(PAGE);
        Self {
            words: (0..pages.div_ceil(CHUNK))
                .map(|_| OnceLock::new())
                .collect(),
            dirty: DirtyPages::none(pages),
            copied: AtomicI64::new(0),
            leaving: Mutex::new(()),
        }
    }

    fn word(&self, page: u64) -> &AtomicU32 {
        let new = || (0..CHUNK).map(|_| AtomicU32::new(0)).collect();
        &self.words[(page / CHUNK) as usize].get_or_init(new)[(page % CHUNK) as usize]
    }

    /// The word of a page that may have been stored to.
    fn known(&self, page: u64) -> Option<&AtomicU32> {
        let chunk = self.words[(page / CHUNK) as usize].get()?;
        Some(&chunk[(page % CHUNK) as usize])
    }

    /// Pages that are copies.
    pub(super) fn copied(&self) -> u64 {
        self.copied.load(Ordering::Relaxed).max(0).cast_unsigned()
    }

    /// Whether a store to the range would make a copy.
    pub(super) fn would_copy(&self, off: u64, len: u64) -> bool {
        pages_of(&(off..off + len)).any(|page| {
            let word = self.known(page);
            word.is_none_or(|word| word.load(Ordering::Relaxed) & COPIED == 0)
        })
    }

    /// A store to the range is about to begin. No page of it leaves before [`Pages::stored`].
    pub(super) fn storing(&self, off: u64, len: u64) {
        for page in pages_of(&(off..off + len)) {
            let word = self.word(page);
            while word.fetch_add(STORE, Ordering::AcqRel) & LEAVING != 0 {
                word.fetch_sub(STORE, Ordering::AcqRel);
                drop(self.leaving.lock());
            }
        }
    }

    /// Something has been stored there: it is dirty. Returns from which page to which some have become copies by that.
    pub(super) fn stored(&self, off: u64, len: u64) -> Range<u64> {
        let range = off..off + len;
        let mut copied = 0..0;
        for page in pages_of(&range) {
            let bits = sectors(page, &range) | COPIED | RECENT;
            let word = self.word(page);
            // Also where the bits are set already: if one is cleared meanwhile, this store must not be missed.
            let update = word.fetch_update(Ordering::AcqRel, Ordering::Acquire, |word| {
                Some((word - STORE) | bits)
            });
            if update.is_ok_and(|before| before & COPIED == 0) {
                self.copied.fetch_add(1, Ordering::Relaxed);
                copied = match copied.is_empty() {
                    true => page..page + 1,
                    false => copied.start..page + 1,
                };
            }
            self.dirty.set(page);
        }
        copied
    }

    /// The first page within the range that may have dirty sectors, or the start of the range if that is in it. Beside a
    /// [`Pages::take`] it can miss some.
    pub(super) fn next(&self, range: Range<u64>) -> Option<u64> {
        let page = self.dirty.next(pages_of(&range))?;
        Some((page * PAGE).max(range.start))
    }

    /// Takes the marks of a range that begins and ends at multiples of `unit`: what they cover, rounded to that, in
    /// order and in as few pieces as it takes. Of a page only the sectors that are `allowed`. What is stored from now on
    /// is marked again. Not by two threads at once.
    pub(super) fn take(
        &self,
        range: Range<u64>,
        unit: u64,
        allowed: impl Fn(u64) -> u32,
    ) -> Vec<Range<u64>> {
        let mut runs: Vec<Range<u64>> = Vec::new();
        let mut at = range.start;
        while let Some(start) = self.next(at..range.end) {
            let page = start / PAGE;
            at = (page + 1) * PAGE;
            let wanted = sectors(page, &range) & allowed(page);
            // Before the sectors: a mark that comes in between sets it again.
            self.dirty.clear(page);
            let bits = self.word(page).fetch_and(!wanted, Ordering::AcqRel) & SECTORS;
            if bits & !wanted != 0 {
                self.dirty.set(page);
            }
            for sector in (0..8).filter(|s| bits & wanted & 1 << s != 0) {
                let off = page * PAGE + sector * SECTOR;
                let part = off / unit * unit..(off + SECTOR).next_multiple_of(unit);
                match runs.last_mut() {
                    Some(last) if last.end >= part.start => last.end = last.end.max(part.end),
                    _ => runs.push(part),
                }
            }
        }
        runs
    }

    /// The sectors of a page that are dirty.
    pub(super) fn dirty_sectors(&self, page: u64) -> u32 {
        let word = self.known(page);
        word.map_or(0, |word| word.load(Ordering::Acquire) & SECTORS)
    }

    /// Whether a page could leave: a copy of what has been written, which no store has been made to since this was asked
    /// last.
    pub(super) fn may_leave(&self, page: u64) -> bool {
        let copy = |word: &&AtomicU32| word.load(Ordering::Relaxed) & COPIED != 0;
        let word = self.known(page).filter(copy);
        word.is_some_and(|word| word.fetch_and(!RECENT, Ordering::AcqRel) == COPIED)
    }

    /// Whether a page is a copy of what has been written, or is being: nothing there is dirty, and no store under way.
    pub(super) fn is_written(&self, page: u64) -> bool {
        let word = self.known(page);
        word.is_some_and(|word| word.load(Ordering::Relaxed) & !RECENT == COPIED)
    }

    /// Whether nothing has been stored to a page since the region was opened, or it has left since: it is that of the file.
    pub(super) fn is_untouched(&self, page: u64) -> bool {
        let word = self.known(page);
        word.is_none_or(|word| word.load(Ordering::Acquire) & !RECENT == 0)
    }

    pub(super) fn leave(&self) -> Leave<'_> {
        Leave {
            pages: self,
            leaving: RefCell::default(),
            _alone: self.leaving.lock(),
        }
    }
}

impl Leave<'_> {
    /// No store to this page is begun any more; or it cannot leave: something is dirty, or a store is under way.
    pub(super) fn begin(&self, page: u64) -> bool {
        self.claim(page, 0)
    }

    /// [`Leave::begin`] also where something was stored a moment ago. The page stays a copy.
    pub(super) fn hold(&self, page: u64) -> bool {
        self.claim(page, RECENT)
    }

    fn claim(&self, page: u64, ignored: u32) -> bool {
        let claimed = |word| (word & !ignored == COPIED).then_some(word | LEAVING);
        let word = self.pages.word(page);
        let begun = (word.fetch_update(Ordering::AcqRel, Ordering::Acquire, claimed)).is_ok();
        if begun {
            self.leaving.borrow_mut().push(page);
        }
        begun
    }

    /// The page is no copy any more.
    pub(super) fn gone(&self, page: u64) {
        self.pages.word(page).fetch_and(!COPIED, Ordering::AcqRel);
        self.pages.copied.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        for page in self.leaving.get_mut() {
            self.pages.word(*page).fetch_and(!LEAVING, Ordering::AcqRel);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const LEN: u64 = 5000 * PAGE;

    fn marked(pages: &Pages, range: Range<u64>, unit: u64) -> BTreeSet<u64> {
        let runs = pages.take(range, unit, |_| SECTORS);
        assert!(runs.windows(2).all(|pair| pair[0].end < pair[1].start));
        let sectors = |run: Range<u64>| run.start / SECTOR..run.end / SECTOR;
        runs.into_iter().flat_map(sectors).collect()
    }

    proptest! {
        /// Against a set of sectors.
        #[test]
        fn what_is_taken_is_what_was_marked(
            steps in prop::collection::vec((any::<bool>(), 0..LEN, 0..3 * PAGE), 1..40),
            unit in prop::sample::select(vec![SECTOR, PAGE]),
        ) {
            let pages = Pages::untouched(LEN);
            let mut model = BTreeSet::new();
            for (take, off, len) in steps {
                let len = len.min(LEN - off);
                if !take {
                    pages.storing(off, len);
                    pages.stored(off, len);
                    let end = (off + len).div_ceil(SECTOR);
                    model.extend((off / SECTOR..end).filter(|_| len > 0));
                    continue;
                }
                let range = off / unit * unit..(off + len).next_multiple_of(unit);
                let inside = |s: &u64| range.contains(&(s * SECTOR));
                let first = model.iter().copied().find(inside);
                let next = pages.next(range.clone());
                prop_assert!(next.is_some() || first.is_none());
                prop_assert!(first.is_none_or(|s| next.is_some_and(|n| n <= s * SECTOR)));
                let per = unit / SECTOR;
                let rounded = |s: u64| s / per * per..(s / per + 1) * per;
                let wanted: BTreeSet<u64> =
                    model.iter().copied().filter(inside).flat_map(rounded).collect();
                prop_assert_eq!(marked(&pages, range.clone(), unit), wanted);
                model.retain(|s| !range.contains(&(s * SECTOR)));
            }
            prop_assert_eq!(marked(&pages, 0..LEN, SECTOR), model);
            prop_assert_eq!(pages.next(0..LEN), None);
        }
    }
}
