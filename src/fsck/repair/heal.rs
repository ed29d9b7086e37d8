//! One flipped bit: a structure that is one bit away from its checksum is read as what it was.
//!
//! Rot mostly takes single bits. A checksum of 32 bits tells which one it was: that another single
//! bit would satisfy it by chance has odds of 1 in 100000 for a page, which the checks that follow
//! would mostly see. The 16 bits of a checked word tell one bit of 64, if it was one.

/// The only word one bit away from `raw` that is valid; `None` if there is none, or more than one.
pub(super) fn word(raw: u64, valid: impl Fn(u64) -> bool) -> Option<u64> {
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
    use quayfs_layout::checksum::{WORD_MAX, crc32c, open_word, seal_word};
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
    fn more_than_one_bit_is_not_guessed() {
        let crc = crc32c(&[0; 64]);
        let mut b = [0; 64];
        b[3] = 0b11;
        assert_eq!(bytes(&mut b, |b| crc32c(b) == crc), None);
        assert_eq!(b[3], 0b11);
    }
}
