//! A set of extended attributes, as the bytes that its blob chain holds.

use crate::bytes::get_u32;

/// Longest attribute name.
pub const NAME_MAX: usize = 255;
/// Longest attribute value.
pub const VALUE_MAX: usize = 65_536;
/// Most bytes of one set.
pub const SET_MAX: usize = 2 * VALUE_MAX;

/// Names and values, in order of creation.
pub type Set = Vec<(Vec<u8>, Vec<u8>)>;

/// Encodes a set.
pub fn encode(set: &Set) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, value) in set {
        out.push(name.len() as u8);
        out.extend_from_slice(&(value.len() as u32).to_le_bytes());
        out.extend_from_slice(name);
        out.extend_from_slice(value);
    }
    out
}

/// Where in the bytes of a set the value of its attribute `i` begins.
pub fn value_at(set: &Set, i: usize) -> usize {
    let before: usize = set[..i].iter().map(|(n, v)| 5 + n.len() + v.len()).sum();
    before + 5 + set[i].0.len()
}

/// Decodes a set; `None` if the bytes are not one.
pub fn decode(mut b: &[u8]) -> Option<Set> {
    let mut set = Vec::new();
    while !b.is_empty() {
        if b.len() < 5 {
            return None;
        }
        let (n, v) = (usize::from(b[0]), get_u32(b, 1) as usize);
        if n == 0 || v > VALUE_MAX {
            return None;
        }
        let name = b.get(5..5 + n)?.to_vec();
        let value = b.get(5 + n..5 + n + v)?.to_vec();
        b = &b[5 + n + v..];
        set.push((name, value));
    }
    Some(set)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn round_trip(set in prop::collection::vec(
            (prop::collection::vec(any::<u8>(), 1..40), prop::collection::vec(any::<u8>(), 0..200)), 0..10)) {
            let bytes = encode(&set);
            for (i, (_, value)) in set.iter().enumerate() {
                prop_assert!(bytes[value_at(&set, i)..].starts_with(value));
            }
            prop_assert_eq!(decode(&bytes), Some(set));
        }

        #[test]
        fn any_bytes_decode_without_panic(b in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = decode(&b);
        }
    }
}
