//! Which sectors have been stored to since they were written last.

use crate::units::{PAGE, SECTOR};
use std::ops::Range;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

const _: () = assert!(PAGE / SECTOR == 8, "a page has a byte of sectors");

/// A bit for each sector, in a byte for each page, and a bit for each page that may have some.
pub(super) struct Dirty {
    pages: Vec<AtomicU8>,
    some: Vec<AtomicU64>,
}

/// The bits of the sectors of a page that a range touches.
fn sectors(page: u64, range: &Range<u64>) -> u8 {
    let first = (range.start.max(page * PAGE) - page * PAGE) / SECTOR;
    let end = (range.end.min((page + 1) * PAGE) - page * PAGE).div_ceil(SECTOR);
    ((1u16 << end) - (1u16 << first)) as u8
}

fn pages_of(range: &Range<u64>) -> Range<u64> {
    range.start / PAGE..range.end.div_ceil(PAGE)
}

impl Dirty {
    pub(super) fn nothing(len: u64) -> Self {
        let pages = len.div_ceil(PAGE);
        Self {
            pages: (0..pages).map(|_| AtomicU8::new(0)).collect(),
            some: (0..pages.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Something has been stored there.
    pub(super) fn mark(&self, off: u64, len: u64) {
        if len == 0 {
            return;
        }
        let range = off..off + len;
        for page in pages_of(&range) {
            // Also where the bit is set already: if it is cleared meanwhile, this store must not be missed.
            self.pages[page as usize].fetch_or(sectors(page, &range), Ordering::AcqRel);
            self.some[page as usize / 64].fetch_or(1 << (page % 64), Ordering::AcqRel);
        }
    }

    /// The first page within the range that may have dirty sectors, or the start of the range if that is in it.
    pub(super) fn next(&self, range: Range<u64>) -> Option<u64> {
        let pages = pages_of(&range);
        let mut page = pages.start;
        while page < pages.end {
            let word = self.some[page as usize / 64].load(Ordering::Acquire) >> (page % 64);
            if word == 0 {
                page = (page / 64 + 1) * 64;
                continue;
            }
            page += u64::from(word.trailing_zeros());
            return (page < pages.end).then(|| (page * PAGE).max(range.start));
        }
        None
    }

    /// Takes the marks of a range that begins and ends at multiples of `unit`: what they cover, rounded to that, in
    /// order and in as few pieces as it takes. What is stored from now on is marked again.
    pub(super) fn take(&self, range: Range<u64>, unit: u64) -> Vec<Range<u64>> {
        let mut runs: Vec<Range<u64>> = Vec::new();
        let mut at = range.start;
        while let Some(start) = self.next(at..range.end) {
            let page = start / PAGE;
            at = (page + 1) * PAGE;
            let wanted = sectors(page, &range);
            let some = &self.some[page as usize / 64];
            // Before the sectors: a mark that comes in between sets it again.
            some.fetch_and(!(1 << (page % 64)), Ordering::AcqRel);
            let bits = self.pages[page as usize].fetch_and(!wanted, Ordering::AcqRel);
            if bits & !wanted != 0 {
                some.fetch_or(1 << (page % 64), Ordering::AcqRel);
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const LEN: u64 = 70 * PAGE;

    fn marked(dirty: &Dirty, range: Range<u64>, unit: u64) -> BTreeSet<u64> {
        let runs = dirty.take(range, unit);
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
            let dirty = Dirty::nothing(LEN);
            let mut model = BTreeSet::new();
            for (take, off, len) in steps {
                let len = len.min(LEN - off);
                if !take {
                    dirty.mark(off, len);
                    let end = (off + len).div_ceil(SECTOR);
                    model.extend((off / SECTOR..end).filter(|_| len > 0));
                    continue;
                }
                let range = off / unit * unit..(off + len).next_multiple_of(unit);
                let inside = |s: &u64| range.contains(&(s * SECTOR));
                let first = model.iter().copied().find(inside);
                let next = dirty.next(range.clone());
                prop_assert!(next.is_some() || first.is_none());
                prop_assert!(first.is_none_or(|s| next.is_some_and(|n| n <= s * SECTOR)));
                let per = unit / SECTOR;
                let rounded = |s: u64| s / per * per..(s / per + 1) * per;
                let wanted: BTreeSet<u64> =
                    model.iter().copied().filter(inside).flat_map(rounded).collect();
                prop_assert_eq!(marked(&dirty, range.clone(), unit), wanted);
                model.retain(|s| !range.contains(&(s * SECTOR)));
            }
            prop_assert_eq!(marked(&dirty, 0..LEN, SECTOR), model);
            prop_assert_eq!(dirty.next(0..LEN), None);
        }
    }
}
