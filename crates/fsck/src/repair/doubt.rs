//! Checked words that pass by chance.
//!
//! The check of an entry of the page table or the NAT has 16 bits. Where a whole area was overwritten one word of 65536
//! passes all the same, one of 1024 with one bit changed, and words that are zeros say something that is possible: physical
//! block 0, or that a node does not exist. Such an entry would hide what its node had, or take the block of another LBN.
//! So what passes among words most of which do not is believed only if something else vouches for it: the content of the
//! block, the id in the page.
//!
//! Nothing else depends on what is given up here, but it is known by its neighbours only. So it goes, durably, before any of
//! these is put right: a repair that goes on after a crash must not find it among sound words.

use super::{Failed, Repair, heal};
use crate::bitset::BitSet;

/// So many words on each side are a word's neighbours.
const AROUND: u64 = 8;

/// Parts of the neighbours: where more are damaged, what would pass with one bit changed may do so by chance (one word of
/// 1024), and what passes as it is (one of 65536).
const MOST: (u64, u64) = (1, 2);
const NEARLY_ALL: (u64, u64) = (7, 8);

/// What is never taken for an entry, nor for one bit away from one.
const NOTHING: u64 = u64::MAX;

/// An array of checked words.
pub(super) struct Words<V, S> {
    /// Its offset in the region.
    pub(super) off: u64,
    /// How many there are.
    pub(super) len: u64,
    /// Whether a word is an entry in this place.
    pub(super) valid: V,
    /// Whether something else says what a valid entry in this place says.
    pub(super) vouched: S,
}

impl Repair<'_> {
    /// Gives up what passes, or would with one bit changed, among words that do not, and has nothing that vouches for it. A
    /// line of sound words between two that are damaged stays.
    pub(super) fn give_up_lucky<V, S>(&mut self, words: &Words<V, S>) -> Result<(), Failed>
    where
        V: Fn(u64, u64) -> bool,
        S: Fn(&Self, u64, u64) -> bool,
    {
        let at = |n: u64| words.off + n * 8;
        let word = |repair: &Self, n| repair.media.region.load_u64(at(n));
        let is_bad = |n| !(words.valid)(n, word(self, n));
        let is_zero = |n| word(self, n) == 0;
        let lucky = amid_damage(words.len, is_bad, is_zero, MOST);
        let garbage = amid_damage(words.len, is_bad, is_zero, NEARLY_ALL);
        let mut changed = false;
        for n in lucky.iter() {
            let raw = word(self, n);
            let entry = match (words.valid)(n, raw) {
                // Where some of its neighbours are sound too, it was not garbage that has passed.
                true => Some(raw).filter(|_| garbage.has(n)),
                false => heal::word(raw, |w| (words.valid)(n, w)),
            };
            if entry.is_some_and(|word| !(words.vouched)(self, n, word)) {
                self.put(at(n), NOTHING)?;
                changed = true;
            }
        }
        if changed {
            self.drain()?;
        }
        Ok(())
    }
}

/// The places of whose neighbours more than a part is damaged, and those of zeros next to one that is.
fn amid_damage(
    len: u64,
    is_bad: impl Fn(u64) -> bool,
    is_zero: impl Fn(u64) -> bool,
    (part, of): (u64, u64),
) -> BitSet {
    let mut amid = BitSet::new(len);
    // Of one place in the middle and its neighbours which are damaged, the last one lowest.
    let mut seen = 0u32;
    for last in 0..len + AROUND {
        seen = seen << 1 | u32::from(last < len && is_bad(last));
        let Some(n) = last.checked_sub(AROUND) else {
            continue;
        };
        let side = (1 << AROUND) - 1;
        let (before, after) = (seen >> (AROUND + 1) & side, seen & side);
        let damaged = u64::from(before.count_ones() + after.count_ones());
        let neighbours = n.min(AROUND) + (len - 1 - n).min(AROUND);
        let next_to_one = before & 1 != 0 || after >> (AROUND - 1) != 0;
        if damaged * of > neighbours * part || next_to_one && is_zero(n) {
            amid.add(n);
        }
    }
    amid
}

#[cfg(test)]
mod tests {
    use super::*;

    fn amid(bad: &[u64], zero: &[u64]) -> Vec<u64> {
        let found = amid_damage(40, |n| bad.contains(&n), |n| zero.contains(&n), MOST);
        found.iter().collect()
    }

    #[test]
    fn most_neighbours_are_damaged() {
        assert!(amid(&[], &[3, 4]).is_empty());
        let first: Vec<u64> = (0..20).filter(|n| *n != 7).collect();
        assert_eq!(amid(&first, &[]), (0..19).collect::<Vec<_>>());
        let last: Vec<u64> = (30..39).collect();
        assert!(amid(&last, &[]).contains(&39));
        assert!(!amid(&last, &[]).contains(&29));
        // All but one of a line.
        let line = [16, 17, 18, 20, 21, 22, 23];
        assert!(amid(&line, &[]).is_empty());
        assert_eq!(amid(&line, &[3, 19, 24]), [19, 24]);
        assert_eq!(amid(&line, &[15]), [15]);
    }
}
