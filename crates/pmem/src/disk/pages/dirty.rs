//! Which pages may have dirty sectors, found in a time that does not grow with the region: each commit asks.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering};
use std::ops::Range;
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU64, Ordering};

/// Bits of a word that are used.
#[cfg(not(loom))]
const WORD: u64 = 64;
/// In the models there are few words.
#[cfg(loom)]
const WORD: u64 = 2;

/// A bit for each page, and above these a bit for each word that has some.
pub(super) struct DirtyPages {
    pages: Vec<AtomicU64>,
    words: Vec<AtomicU64>,
}

impl DirtyPages {
    pub(super) fn none(pages: u64) -> Self {
        let zeros = |bits: u64| (0..bits.div_ceil(WORD)).map(|_| AtomicU64::new(0));
        Self {
            pages: zeros(pages).collect(),
            words: zeros(pages.div_ceil(WORD)).collect(),
        }
    }

    /// Once this returns, [`DirtyPages::next`] finds the page.
    pub(super) fn set(&self, page: u64) {
        set(&self.pages, page);
        // Also where it is set already: the thread that set it may not have come here yet, or another one be clearing it.
        set(&self.words, page / WORD);
    }

    /// Not by two threads at once: a word could be left out above that has a bit.
    pub(super) fn clear(&self, page: u64) {
        let word = page / WORD;
        if clear(&self.pages, page) == 0 {
            clear(&self.words, word);
            // A page that was set before the word was cleared above.
            if self.pages[word as usize].load(Ordering::Acquire) != 0 {
                set(&self.words, word);
            }
        }
    }

    /// The first page of these that is set. Beside a [`DirtyPages::clear`] it can miss some.
    pub(super) fn next(&self, range: Range<u64>) -> Option<u64> {
        let mut at = range.start;
        while at < range.end {
            if let Some(page) = in_word(&self.pages, at) {
                return (page < range.end).then_some(page);
            }
            at = self.next_word(at / WORD + 1)?.checked_mul(WORD)?;
        }
        None
    }

    /// The first word from this one on that may have a bit.
    fn next_word(&self, from: u64) -> Option<u64> {
        let mut at = from;
        while at < self.pages.len() as u64 {
            if let Some(word) = in_word(&self.words, at) {
                return Some(word);
            }
            at = (at / WORD + 1) * WORD;
        }
        None
    }
}

fn set(words: &[AtomicU64], bit: u64) {
    words[(bit / WORD) as usize].fetch_or(1 << (bit % WORD), Ordering::AcqRel);
}

/// What is left in the word.
fn clear(words: &[AtomicU64], bit: u64) -> u64 {
    let mask = !(1 << (bit % WORD));
    words[(bit / WORD) as usize].fetch_and(mask, Ordering::AcqRel) & mask
}

/// The first bit from this one on, of those in its word, that is set.
fn in_word(words: &[AtomicU64], from: u64) -> Option<u64> {
    let word = words[(from / WORD) as usize].load(Ordering::Acquire) >> (from % WORD);
    (word != 0).then(|| from + u64::from(word.trailing_zeros()))
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::{Arc, Mutex};
    use loom::thread::spawn;

    const PAGES: u64 = 4 * WORD;
    /// Two pages of the last word, which is found only by what lies above it.
    const STORED: u64 = PAGES - 1;
    const OTHER: u64 = PAGES - 2;

    /// Finds what this thread has set, as a commit does: while nothing is being cleared.
    fn finds(dirty: &DirtyPages, clearing: &Mutex<()>) {
        let _alone = clearing.lock().unwrap();
        let found = [dirty.next(0..PAGES), dirty.next(STORED..PAGES)];
        assert!(found == [Some(OTHER), Some(STORED)] || found == [Some(STORED); 2]);
    }

    /// A thread sets a page and looks for it, beside another one.
    fn beside(other: impl Fn(&DirtyPages, &Mutex<()>) + Copy + Send + Sync + 'static) {
        loom::model(move || {
            let shared = Arc::new((DirtyPages::none(PAGES), Mutex::new(())));
            let [theirs, ours] = [shared.clone(), shared.clone()];
            let threads = [
                spawn(move || other(&theirs.0, &theirs.1)),
                spawn(move || {
                    ours.0.set(STORED);
                    finds(&ours.0, &ours.1);
                }),
            ];
            threads.into_iter().for_each(|t| t.join().unwrap());
            finds(&shared.0, &shared.1);
        });
    }

    #[test]
    fn a_page_is_not_missed_whose_word_is_cleared() {
        beside(|dirty, clearing| {
            dirty.set(OTHER);
            let _alone = clearing.lock().unwrap();
            dirty.clear(OTHER);
        });
    }

    #[test]
    fn a_page_is_not_missed_whose_word_is_being_set() {
        beside(|dirty, _| dirty.set(OTHER));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const PAGES: u64 = 3 * WORD * WORD + 5;

    #[test]
    fn the_first_page_of_a_range_is_found_in_any_word() {
        let dirty = DirtyPages::none(PAGES);
        for page in [0, 63, 64, 4095, 4096, 2 * 4096 + 70, PAGES - 1] {
            dirty.set(page);
            for start in [0, page / 2, page.saturating_sub(1), page] {
                assert_eq!(dirty.next(start..PAGES), Some(page), "from {start}");
                assert_eq!(dirty.next(start..page), None);
            }
            assert_eq!(dirty.next(page + 1..PAGES), None);
            dirty.clear(page);
            assert_eq!(dirty.next(0..PAGES), None);
        }
    }
}
