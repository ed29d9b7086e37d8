//! Whether what is one bit away from its checksum was flipped, or is so by chance.
//!
//! Garbage is one bit away from a checksum of 32 bits by chance as well: one block of 131072. Of one damaged block this
//! says that it was flipped; of a million that are all garbage a few would be "healed" to more garbage, which nothing
//! would show from then on. So what is damaged is counted before anything is healed: what nothing explains is garbage,
//! and says how much of what a bit explains is so by chance.
//!
//! | structure | a false one would |
//! |---|---|
//! | block, staged block | be wrong content: counted (`map`) |
//! | free block with the checksum of an LBN that has none | be wrong content: counted (`recognize`) |
//! | node page | need the id of its node, in the same page: those that have it are counted (`nodes`) |
//! | record | be one of 2^15 at worst, and each lane is replayed up to the first one that is not healed only |
//! | header of a record | need the checksum of its body as well |
//! | slot header | need its place and the checksum of what is staged |
//! | committed word | name a number above `retired_seq` and not above digested_seq, of 2^48 |
//! | NAT entry | name a page that exists, of 2^48; the page says which node it is |
//! | page-table entry | name a block without an owner, of 2^46; the content's checksum shows it |
//! | words of the superblock and of the page-table log | be one of a few dozen, at 2^-10 each |
//!
//! That holds for garbage that is random. Words that read as all zeros or all ones are never healed.

use quayfs_layout::BLOCK;
use quayfs_shown::count;
use rustc_hash::FxHashSet;

/// Most differences that are kept apart.
const APART: usize = 1 << 20;

/// Of so many things that are healed one may be wrong.
const ONE_IN: u128 = 1024;

/// Bits of a block.
pub(super) const BLOCK_BITS: u64 = BLOCK as u64 * 8;

/// Bits of a checksum.
pub(super) const CRC_BITS: u64 = 32;

/// What is damaged of one kind, before anything is healed.
#[derive(Default)]
pub(super) struct Odds {
    /// Checksums, as they are and as they should be, of what one bit explains. The same again is no more evidence.
    near: FxHashSet<(u32, u32)>,
    /// How much that is.
    pub(super) explained: u64,
    /// How much nothing explains.
    pub(super) others: u64,
}

impl Odds {
    /// One bit explains this.
    pub(super) fn explained(&mut self, have: u32, want: u32) {
        self.explained += 1;
        if self.near.len() < APART {
            self.near.insert((have, want));
        }
    }

    /// Whether it may be healed: by chance not more than one in a thousand is one of `ways` bits away.
    pub(super) fn may_heal(&self, ways: u64) -> bool {
        likely(
            self.near.len() as u64,
            u128::from(self.others) * u128::from(ways),
        )
    }

    /// Says that these are not healed, and why: each is a `what` that is one bit away from its `other`.
    pub(super) fn note(&self, what: &str, other: &str) -> String {
        let (are, their, they_are) = match self.explained {
            1 => ("is", "its", "it is"),
            _ => ("are", "their", "they are"),
        };
        let (these, others) = (count(self.explained, what), count(self.others, "other"));
        let are_not = if self.others == 1 { "is" } else { "are" };
        format!(
            "{these} {are} one bit away from {their} {other} by chance, since {others} {are_not} not: \
             {they_are} not healed"
        )
    }
}

/// Whether `found` matches of a checksum of 32 bits are not owed to chance, after so many tries that failed.
pub(super) fn likely(found: u64, tries: u128) -> bool {
    tries.saturating_mul(ONE_IN) <= u128::from(found) << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_in_a_thousand_may_be_wrong() {
        let mut odds = Odds {
            others: 128,
            ..Odds::default()
        };
        assert!(!odds.may_heal(BLOCK_BITS));
        odds.explained(1, 2);
        assert!(odds.may_heal(BLOCK_BITS));
        odds.others = 129;
        assert!(!odds.may_heal(BLOCK_BITS) && odds.may_heal(CRC_BITS));
        // The same once more says nothing, another one does.
        odds.explained(1, 2);
        assert!(!odds.may_heal(BLOCK_BITS));
        odds.explained(1, 3);
        assert!(odds.may_heal(BLOCK_BITS));
        assert_eq!(odds.explained, 3);
        let note = odds.note("block", "checksum");
        let end = "since 129 others are not: they are not healed";
        let want = format!("3 blocks are one bit away from their checksum by chance, {end}");
        assert_eq!(note, want);
        odds.others = u64::MAX;
        assert!(!odds.may_heal(CRC_BITS) && !likely(u64::MAX, u128::MAX));
    }
}
