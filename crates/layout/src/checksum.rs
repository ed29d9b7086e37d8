//! The two checksums of the format.

use crc_fast::{CrcAlgorithm, Digest};

use crate::Guard;

/// From this length on carry-less multiplication takes half the time of the processor's CRC instruction or
/// less; for what is shorter it makes little difference, and words and headers are a few bytes.
const LONG: usize = 512;

/// CRC-32C (Castagnoli) of `bytes`.
pub fn crc32c(bytes: &[u8]) -> u32 {
    if bytes.len() < LONG {
        crc32c::crc32c(bytes)
    } else {
        crc_fast::crc32_iscsi(bytes)
    }
}

/// Continues a CRC-32C over more bytes.
pub fn crc32c_append(crc: u32, bytes: &[u8]) -> u32 {
    if bytes.len() < LONG {
        crc32c::crc32c_append(crc, bytes)
    } else {
        // What is kept between two pieces is the register, which the checksum is the complement of.
        let mut rest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!crc));
        rest.update(bytes);
        rest.finalize() as u32
    }
}

/// Number of payload bits in a checked word.
pub const WORD_BITS: u32 = 48;

/// The largest number a checked word can carry.
pub const WORD_MAX: u64 = (1 << WORD_BITS) - 1;

/// The 16-bit check of a 48-bit number. `salt` separates the words of one volume from each other
/// and from those of every other volume.
pub fn check16(number: u64, salt: u64) -> u16 {
    let mut b = [0; 16];
    b[..8].copy_from_slice(&number.to_le_bytes());
    b[8..].copy_from_slice(&salt.to_le_bytes());
    let c = crc32c(&b);
    (c ^ (c >> 16)) as u16
}

/// Packs `number` (at most 48 bits) and its check into one 8-byte word.
pub fn seal_word(number: u64, salt: u64) -> u64 {
    assert!(number <= WORD_MAX, "a checked word holds 48 bits");
    number | (u64::from(check16(number, salt)) << WORD_BITS)
}

/// The number in a sealed word, or `None` if its check fails.
pub fn open_word(word: u64, salt: u64) -> Option<u64> {
    let number = word & WORD_MAX;
    (check16(number, salt) == (word >> WORD_BITS) as u16).then_some(number)
}

/// [`open_word`], for a word that `guard` protects.
pub(crate) fn open_guarded(word: u64, salt: u64, guard: Guard) -> Option<u64> {
    match guard.stands() {
        true => open_word(word, salt),
        false => Some(word & WORD_MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn known_vector() {
        // RFC 3720, appendix B.4: 32 bytes of zeros.
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
    }

    #[test]
    fn one_polynomial_whatever_the_length() {
        let bytes: Vec<u8> = (0..9000u32).map(|i| (i * i / 8) as u8).collect();
        for start in 0..3 {
            for end in (LONG - 70..LONG + 70).chain([4095, 4096, 4097, 8192, bytes.len()]) {
                let here = &bytes[start..end];
                // Seven bytes at a time never take the long way.
                let slow = here.chunks(7).fold(0, crc32c_append);
                assert_eq!(crc32c(here), slow, "{start}..{end}");
                let (first, rest) = here.split_at(end / 9);
                let whole = crc32c_append(crc32c(first), rest);
                assert_eq!(whole, slow, "{start}..{end}, continued");
            }
        }
    }

    proptest! {
        #[test]
        fn words_round_trip(n in 0..=WORD_MAX, salt: u64) {
            prop_assert_eq!(open_word(seal_word(n, salt), salt), Some(n));
        }

        #[test]
        fn every_single_bit_flip_is_seen(n in 0..=WORD_MAX, salt: u64) {
            for bit in 0..64 {
                prop_assert_eq!(open_word(seal_word(n, salt) ^ (1 << bit), salt), None);
            }
        }
    }
}
