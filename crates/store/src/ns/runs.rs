//! Ranges of file blocks and what belongs to them, the last one at hand.
//!
//! Most files are in one piece, and most of the others grow at their end: the last range lies in the value itself, and
//! a file of one piece has no tree.

use std::ops::Range;

use rangemap::RangeMap;

/// As a `RangeMap`: what is put over another range takes its place, and equal neighbours become one.
#[derive(Debug)]
pub(super) struct Runs<V> {
    last: Option<(Range<u64>, V)>,
    /// All before it.
    others: RangeMap<u64, V>,
}

impl<V> Default for Runs<V> {
    fn default() -> Self {
        Self {
            last: None,
            others: RangeMap::new(),
        }
    }
}

impl<V: Copy + Eq> Runs<V> {
    /// The last range.
    pub(super) fn last(&self) -> Option<(&Range<u64>, &V)> {
        self.last.as_ref().map(|(range, value)| (range, value))
    }

    /// The range that a block is in. Callers mostly mean the last one.
    pub(super) fn get(&self, block: u64) -> Option<(&Range<u64>, &V)> {
        match self.last() {
            Some((range, value)) if range.start <= block => {
                (block < range.end).then_some((range, value))
            }
            _ => self.others.get_key_value(&block),
        }
    }

    /// Ranges that have blocks in common with `range`, which is not empty, in order.
    pub(super) fn overlapping<'a>(
        &'a self,
        range: &'a Range<u64>,
    ) -> impl Iterator<Item = (&'a Range<u64>, &'a V)> {
        let last = self.last().filter(|(r, _)| meets(r, range));
        self.others.overlapping(range).chain(last)
    }

    /// All of them, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Range<u64>, &V)> {
        self.others.iter().chain(self.last())
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.others.len() + usize::from(self.last.is_some())
    }

    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.last.is_none()
    }

    /// Puts a range, which is not empty, over what is there.
    pub(super) fn insert(&mut self, range: Range<u64>, value: V) {
        match &self.last {
            // Behind everything, and it does not continue the last.
            Some((last, v))
                if last.end < range.start || (last.end == range.start && *v != value) =>
            {
                let (last, v) = (last.clone(), *v);
                self.others.insert(last, v);
                self.last = Some((range, value));
            }
            // Over all of the last, and over nothing else.
            Some((last, _)) if range.start <= last.start && last.end <= range.end => {
                if self.is_behind_others(range.start) {
                    self.last = Some((range, value));
                } else {
                    self.last = None;
                    self.others.insert(range, value);
                    self.last = self.take_last();
                }
            }
            None => self.last = Some((range, value)),
            Some(_) => self.as_one(|all| all.insert(range, value)),
        }
    }

    /// Takes away what lies in a range, which is not empty.
    pub(super) fn remove(&mut self, range: &Range<u64>) {
        let Some((last, _)) = &self.last else { return };
        if !meets(last, range) {
            self.others.remove(range.clone());
        } else if range.start <= last.start && last.end <= range.end {
            self.last = None;
            self.others.remove(range.clone());
            self.last = self.take_last();
        } else {
            self.as_one(|all| all.remove(range.clone()));
        }
    }

    /// Whether all others end before this block.
    fn is_behind_others(&self, block: u64) -> bool {
        (self.others.last_range_value()).is_none_or(|(range, _)| range.end < block)
    }

    fn take_last(&mut self) -> Option<(Range<u64>, V)> {
        let (range, value) = self.others.last_range_value()?;
        let last = (range.clone(), *value);
        self.others.remove(last.0.clone());
        Some(last)
    }

    fn as_one(&mut self, change: impl FnOnce(&mut RangeMap<u64, V>)) {
        if let Some((range, value)) = self.last.take() {
            self.others.insert(range, value);
        }
        change(&mut self.others);
        self.last = self.take_last();
    }
}

fn meets(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Few blocks and few values, so that ranges meet and join in every way.
        #[test]
        fn all_is_as_in_a_range_map(
            changes in prop::collection::vec((any::<bool>(), 0..24_u64, 1..8_u64, 0..3_u8), 1..40),
            from in 0..24_u64,
            len in 1..12_u64,
        ) {
            let (mut runs, mut map) = (Runs::default(), RangeMap::new());
            for (put, start, blocks, value) in changes {
                let range = start..start + blocks;
                if put {
                    runs.insert(range.clone(), value);
                    map.insert(range, value);
                } else {
                    runs.remove(&range);
                    map.remove(range);
                }
                prop_assert!(runs.iter().eq(map.iter()));
                prop_assert_eq!((runs.len(), runs.is_empty()), (map.len(), map.is_empty()));
                prop_assert_eq!(runs.last(), map.last_range_value());
                let range = from..from + len;
                prop_assert!(runs.overlapping(&range).eq(map.overlapping(&range)));
                prop_assert_eq!(runs.get(from), map.get_key_value(&from));
            }
        }
    }

    #[test]
    fn one_range_has_no_tree() {
        let mut runs = Runs::default();
        for end in 1..5 {
            runs.insert(0..end, 7);
        }
        runs.remove(&(0..9));
        runs.insert(3..4, 8);
        assert!(runs.others.is_empty());
        assert_eq!(runs.last(), Some((&(3..4), &8)));
    }
}
