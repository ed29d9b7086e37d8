//! Sets of numbers, one bit each.

use std::ops::Range;

/// A set of numbers below a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BitSet {
    words: Vec<u64>,
    len: u64,
}

impl BitSet {
    /// An empty set of numbers below `len`.
    pub fn new(len: u64) -> Self {
        Self {
            words: vec![0; len.div_ceil(64) as usize],
            len,
        }
    }

    /// The limit.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether `n` is in the set; numbers at or above the limit never are.
    pub fn has(&self, n: u64) -> bool {
        n < self.len && self.words[(n / 64) as usize] & (1 << (n % 64)) != 0
    }

    /// Adds `n`; whether it was not there. Numbers at or above the limit are a bug.
    pub fn add(&mut self, n: u64) -> bool {
        let word = &mut self.words[(n / 64) as usize];
        let bit = 1 << (n % 64);
        let new = *word & bit == 0;
        *word |= bit;
        new
    }

    /// Whether no number is in the set.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|w| *w == 0)
    }

    /// Adds a range.
    pub fn fill(&mut self, range: Range<u64>) {
        let mut at = range.start;
        while at < range.end {
            let end = range.end.min((at / 64 + 1) * 64);
            self.words[(at / 64) as usize] |= (u64::MAX >> (64 - (end - at))) << (at % 64);
            at = end;
        }
    }

    /// Takes numbers from `first` (a multiple of 64) on from a bitmap, lowest bit first. Returns how
    /// many are below the limit and how many are not.
    pub fn load(&mut self, first: u64, bitmap: &[u8]) -> (u64, u64) {
        let (mut below, mut beyond) = (0, 0);
        for (at, bytes) in (first..).step_by(64).zip(bitmap.chunks_exact(8)) {
            let word = quayfs_layout::bytes::get_u64(bytes, 0);
            let keep = match self.len.saturating_sub(at) {
                0 => 0,
                n if n < 64 => (1 << n) - 1,
                _ => u64::MAX,
            };
            if keep != 0 {
                self.words[(at / 64) as usize] = word & keep;
            }
            below += u64::from((word & keep).count_ones());
            beyond += u64::from((word & !keep).count_ones());
        }
        (below, beyond)
    }

    /// How many numbers are in the set.
    pub fn count(&self) -> u64 {
        self.words.iter().map(|w| u64::from(w.count_ones())).sum()
    }

    /// The numbers that are in this set and not in `other`, as ranges in order.
    pub fn minus<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = Range<u64>> + 'a {
        let words = self.words.iter().enumerate().map(|(i, w)| {
            let o = other.words.get(i).copied().unwrap_or(0);
            (i as u64 * 64, w & !o)
        });
        Ranges {
            words: words.filter(|(_, w)| *w != 0),
            open: None,
            bits: (0, 0),
        }
    }

    /// The numbers that are not in the set, in order.
    pub fn missing(&self) -> impl Iterator<Item = u64> + '_ {
        let len = self.len;
        let words = self.words.iter().enumerate();
        words
            .flat_map(|(i, &w)| Ones(!w).map(move |b| i as u64 * 64 + b))
            .take_while(move |n| *n < len)
    }

    /// The numbers in the set, in order.
    pub fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        self.iter_from(0)
    }

    /// The numbers in the set from `first` on, in order.
    pub fn iter_from(&self, first: u64) -> impl Iterator<Item = u64> + '_ {
        let at = (first / 64) as usize;
        let words = self.words.iter().enumerate().skip(at);
        words
            .flat_map(|(i, &w)| Ones(w).map(move |b| i as u64 * 64 + b))
            .skip_while(move |n| *n < first)
    }
}

/// Positions of the set bits of a word.
struct Ones(u64);

impl Iterator for Ones {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        (self.0 != 0).then(|| {
            let b = u64::from(self.0.trailing_zeros());
            self.0 &= self.0 - 1;
            b
        })
    }
}

struct Ranges<I> {
    words: I,
    open: Option<Range<u64>>,
    bits: (u64, u64),
}

impl<I: Iterator<Item = (u64, u64)>> Iterator for Ranges<I> {
    type Item = Range<u64>;

    fn next(&mut self) -> Option<Range<u64>> {
        loop {
            if self.bits.1 == 0 {
                match self.words.next() {
                    Some(w) => self.bits = w,
                    None => return self.open.take(),
                }
            }
            let start = u64::from(self.bits.1.trailing_zeros());
            let len = u64::from((self.bits.1 >> start).trailing_ones());
            self.bits.1 &= !((u64::MAX >> (64 - len)) << start);
            let run = self.bits.0 + start..self.bits.0 + start + len;
            match &mut self.open {
                Some(open) if open.end == run.start => open.end = run.end,
                open => {
                    if let Some(done) = open.replace(run) {
                        return Some(done);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn flat(ranges: impl IntoIterator<Item = Range<u64>>) -> Vec<u64> {
        let ranges: Vec<_> = ranges.into_iter().collect();
        assert!(
            ranges.windows(2).all(|w| w[0].end < w[1].start),
            "{ranges:?}"
        );
        ranges.into_iter().flatten().collect()
    }

    proptest! {
        #[test]
        fn behaves_like_a_set(
            a in prop::collection::vec((0u64..300, 0u64..140), 0..12),
            b in prop::collection::vec((0u64..300, 0u64..140), 0..12),
            from in 0u64..440,
        ) {
            let mut sets = [BitSet::new(440), BitSet::new(440)];
            let mut models = [BTreeSet::new(), BTreeSet::new()];
            for (i, list) in [a, b].into_iter().enumerate() {
                for (start, len) in list {
                    sets[i].fill(start..start + len);
                    models[i].extend(start..start + len);
                }
                prop_assert_eq!(sets[i].count(), models[i].len() as u64);
                prop_assert_eq!(sets[i].iter().collect::<BTreeSet<_>>(), models[i].clone());
                let behind: Vec<u64> = models[i].range(from..).copied().collect();
                prop_assert_eq!(sets[i].iter_from(from).collect::<Vec<_>>(), behind);
                let missing: Vec<u64> = (0..440).filter(|n| !models[i].contains(n)).collect();
                prop_assert_eq!(sets[i].missing().collect::<Vec<_>>(), missing);
                prop_assert_eq!(sets[i].is_empty(), models[i].is_empty());
            }
            let minus: Vec<u64> = models[0].difference(&models[1]).copied().collect();
            prop_assert_eq!(flat(sets[0].minus(&sets[1])), minus);
        }
    }

    #[test]
    fn a_bitmap_is_taken_up_to_the_limit() {
        let mut s = BitSet::new(64 + 64 + 5);
        assert_eq!(s.load(64, &[0xff; 24]), (69, 123));
        assert_eq!(s.iter().collect::<Vec<_>>(), (64..133).collect::<Vec<_>>());
    }

    #[test]
    fn numbers_beyond_the_limit_are_not_in_it() {
        let mut s = BitSet::new(65);
        assert!(s.add(64) && !s.add(64));
        assert!(s.has(64) && !s.has(65) && !s.has(1 << 40));
    }
}
