//! 128-bit fingerprints of states.

use std::hash::{Hash, Hasher};

/// The fingerprint of a value.
pub fn fingerprint<T: Hash>(value: &T) -> u128 {
    let mut hasher = Mix {
        a: 0x9e37_79b9_7f4a_7c15,
        b: 0xd1b5_4a32_d192_ed03,
    };
    value.hash(&mut hasher);
    (u128::from(fold(hasher.a, 0xff51_afd7_ed55_8ccd)) << 64)
        | u128::from(fold(hasher.b, 0xc4ce_b9fe_1a85_ec53))
}

/// Two independent multiply-and-fold lanes over the same words.
struct Mix {
    a: u64,
    b: u64,
}

fn fold(x: u64, by: u64) -> u64 {
    let wide = u128::from(x ^ 0xa076_1d64_78bd_642f) * u128::from(by);
    (wide as u64) ^ ((wide >> 64) as u64)
}

impl Hasher for Mix {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }
    fn write_u64(&mut self, word: u64) {
        self.a = fold(self.a ^ word, 0xe703_7ed1_a0b4_28db).wrapping_add(word);
        self.b = fold(self.b.rotate_left(23) ^ word, 0x8ebc_6af0_9c88_c6e3) ^ word.rotate_left(31);
    }
    fn write_u8(&mut self, i: u8) {
        self.write_u64(u64::from(i));
    }
    fn write_u16(&mut self, i: u16) {
        self.write_u64(u64::from(i));
    }
    fn write_u32(&mut self, i: u32) {
        self.write_u64(u64::from(i));
    }
    fn write_usize(&mut self, i: usize) {
        self.write_u64(i as u64);
    }
    fn finish(&self) -> u64 {
        self.a
    }
}

/// Fingerprints are already mixed; the set needs no second hash.
#[derive(Default)]
pub struct Pass(u64);

impl Hasher for Pass {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.0 ^= u64::from_le_bytes(word);
        }
    }
    fn write_u128(&mut self, i: u128) {
        self.0 = (i >> 64) as u64 ^ i as u64;
    }
    fn finish(&self) -> u64 {
        self.0
    }
}
