//! One flipped bit: a structure that is one bit away from its checksum is read as what it was.
//!
//! Rot mostly takes single bits. A checksum of 32 bits tells which one it was: that another single
//! bit would satisfy it by chance has odds of 1 in 131072 for a page or a block: where much is garbage, that is often
//! (`odds`). The 16 bits of a checked word tell one bit of 64, if it was one.

use std::sync::LazyLock;

use quayfs_layout::BLOCK;
use quayfs_layout::checksum::{crc32c, crc32c_append};
use quayfs_layout::node::{self, CRC_BYTES, OFF_CRC};
use rustc_hash::FxHashMap;

/// The only word one bit away from `raw` that is valid; `None` if there is none, or more than one. What reads as all
/// zeros or all ones was lost, not flipped: of a million such words a few hundred would be valid with one bit changed,
/// and say small numbers that look possible.
pub(super) fn word(raw: u64, valid: impl Fn(u64) -> bool) -> Option<u64> {
    if raw == 0 || raw == u64::MAX {
        return None;
    }
    let mut near = (0..64).map(|bit| raw ^ 1 << bit).filter(|w| valid(*w));
    near.next().filter(|_| near.next().is_none())
}

/// Flips the first bit of `bytes` that makes them valid, and returns its number.
pub(super) fn bytes(bytes: &mut [u8], valid: impl Fn(&[u8]) -> bool) -> Option<usize> {
    for bit in 0..bytes.len() * 8 {
        bytes[bit / 8] ^= 1 << (bit % 8);
        if valid(bytes) {
            return Some(bit);
        }
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
    None
}

/// Longest structure in which a flipped bit is looked for.
pub(super) const SPAN: usize = 16 << 10;

/// Syndromes of single bits: what flipping bit `b` of the byte with `d` bytes behind it does to a CRC32C.
static SYNDROMES: LazyLock<FxHashMap<u32, u32>> = LazyLock::new(|| {
    let mut all = FxHashMap::default();
    let mut last: Vec<u32> = (0..8).map(|b| crc32c(&[1 << b]) ^ crc32c(&[0])).collect();
    for d in 0..SPAN as u32 {
        for (b, syndrome) in (0..).zip(&mut last) {
            all.insert(*syndrome, d * 8 + b);
            // One more byte of zeros behind it. A checksum is linear but for its constants.
            *syndrome = crc32c_append(*syndrome, &[0]) ^ crc32c_append(0, &[0]);
        }
    }
    all
});

/// The one bit, of the last `len` bytes that a checksum covers, that makes this difference to the checksum. It is
/// computed, not tried out: a million damaged pages must not make a repair try a million times 32768 bits.
pub(super) fn bit(len: usize, difference: u32) -> Option<usize> {
    let place = *SYNDROMES.get(&difference)? as usize;
    let byte = len.checked_sub(1 + place / 8)?;
    Some(byte * 8 + place % 8)
}

/// The one bit that keeps bytes from having this checksum.
pub(super) fn bit_of(bytes: &[u8], crc: u32) -> Option<usize> {
    bit(bytes.len(), crc32c(bytes) ^ crc)
}

/// The one bit of a node page that keeps it from being sound: its checksum covers what is around it.
pub(super) fn bit_of_page(page: &[u8; BLOCK], salt: u64) -> Option<usize> {
    let difference = node::mismatch(page, salt);
    if difference.is_power_of_two() {
        return Some(OFF_CRC * 8 + difference.trailing_zeros() as usize);
    }
    let covered = bit(BLOCK - CRC_BYTES, difference)?;
    let behind = covered >= OFF_CRC * 8;
    Some(covered + if behind { CRC_BYTES * 8 } else { 0 })
}

/// The aligned word that holds a bit of what begins at `off`, and that bit in it.
pub(super) fn mask(off: u64, bit: usize) -> (u64, u64) {
    let at = off + bit as u64 / 8;
    let word = at / 8 * 8;
    (word, 1 << ((at - word) * 8 + bit as u64 % 8))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use quayfs_layout::checksum::{WORD_MAX, open_word, seal_word};
    use quayfs_layout::node::NodeKind;
    use quayfs_pmem::{Backend, Region};

    proptest! {
        #[test]
        fn a_word_comes_back(n in 0..=WORD_MAX, salt: u64, bit in 0..64) {
            let sealed = seal_word(n, salt);
            let healed = word(sealed ^ 1u64 << bit, |w| open_word(w, salt).is_some());
            prop_assert_eq!(healed, Some(sealed));
        }

        #[test]
        fn bytes_come_back(content in prop::collection::vec(any::<u8>(), 512), at in 0usize..512 * 8) {
            let crc = crc32c(&content);
            let mut rotten = content.clone();
            rotten[at / 8] ^= 1 << (at % 8);
            prop_assert_eq!(bytes(&mut rotten, |b| crc32c(b) == crc), Some(at));
            prop_assert_eq!(&rotten, &content);
            rotten[at / 8] ^= 1 << (at % 8);
            prop_assert_eq!(bit_of(&rotten, crc), Some(at));
            rotten[at / 8] ^= 1 << (at % 8);
            let region = Region::from_image(vec![0; 4096], None, Backend::Volatile);
            rotten[at / 8] ^= 1 << (at % 8);
            // An offset that is no multiple of a word.
            region.write(1000 + 4, &rotten);
            let (word, mask) = mask(1004, at);
            region.store_u64(word, region.load_u64(word) ^ mask);
            prop_assert_eq!(region.read_vec(1004, 512), content);
        }
    }

    #[test]
    fn every_bit_of_a_page_is_found_at_once() {
        let mut page = [0; BLOCK];
        page.iter_mut()
            .zip(0u32..)
            .for_each(|(b, i)| *b = (i * i / 7) as u8);
        node::init(&mut page, 9, NodeKind::Blob, 3);
        node::seal(&mut page, 77);
        for at in 0..BLOCK * 8 {
            page[at / 8] ^= 1 << (at % 8);
            assert_eq!(bit_of_page(&page, 77), Some(at));
            page[at / 8] ^= 1 << (at % 8);
        }
        // What is made unreadable is never taken for this.
        assert_eq!(bit(BLOCK, u32::MAX), None);
        let long: Vec<u8> = (0..SPAN).map(|i| (i / 3) as u8).collect();
        let crc = crc32c(&long);
        for at in [0, 7, 8, 4096 * 8, SPAN * 8 - 1] {
            let mut rotten = long.clone();
            rotten[at / 8] ^= 1 << (at % 8);
            assert_eq!(bit_of(&rotten, crc), Some(at));
        }
    }

    #[test]
    fn nothing_is_not_taken_for_a_word() {
        let near = (0..1 << 20).filter(|salt| (0..64).any(|b| open_word(1 << b, *salt) == Some(0)));
        let salts: Vec<u64> = near.collect();
        assert!(salts.len() > 100);
        for salt in salts {
            assert_eq!(word(0, |w| open_word(w, salt).is_some()), None);
        }
    }

    #[test]
    fn more_than_one_bit_is_not_guessed() {
        let crc = crc32c(&[0; 64]);
        let mut b = [0; 64];
        b[3] = 0b11;
        assert_eq!(bytes(&mut b, |b| crc32c(b) == crc), None);
        assert_eq!(bit_of(&b, crc), None);
        assert_eq!(b[3], 0b11);
    }
}
