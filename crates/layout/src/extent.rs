//! Extents: runs of logical file blocks that are mapped to consecutive LBNs.
//!
//! A file's extents are an unordered set: up to [`INLINE`] of them in the inode, the rest in a
//! chain of extent pages. Each has a place of its own (16 bytes), so adding, changing or removing
//! one logs 16 bytes and moves none of the others.

use crate::bytes::{get_u64, put_u64};
use crate::node::PAYLOAD;

/// Bytes of one extent.
pub const SIZE: usize = 16;
/// Extents of one extent page.
pub const PER_PAGE: usize = PAYLOAD / SIZE;
/// Extents in the inode itself.
pub const INLINE: usize = 7;
/// Longest extent in blocks.
pub const LEN_MAX: u64 = (1 << 24) - 1;
/// First file block that no extent can reach (offset 2^63).
pub const FILE_BLOCKS: u64 = 1 << 51;

const LBN_BITS: u32 = 40;

/// `len` file blocks from `file_block` lie at `lbn` and following.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First block within the file.
    pub file_block: u64,
    /// First LBN.
    pub lbn: u64,
    /// Number of blocks, 1 to [`LEN_MAX`].
    pub len: u64,
}

impl Extent {
    /// Encodes the extent.
    pub fn encode(&self) -> [u8; SIZE] {
        let mut b = [0; SIZE];
        put_u64(&mut b, 0, self.file_block | (self.len & 0xfff) << 52);
        put_u64(&mut b, 8, self.lbn | (self.len >> 12) << LBN_BITS);
        b
    }

    /// Decodes a place; `None` if it is free.
    pub fn decode(b: &[u8]) -> Option<Self> {
        let (w0, w1) = (get_u64(b, 0), get_u64(b, 8));
        let len = (w0 >> 52) | ((w1 >> LBN_BITS) & 0xfff) << 12;
        (len != 0).then_some(Self {
            file_block: w0 & ((1 << 52) - 1),
            lbn: w1 & ((1 << LBN_BITS) - 1),
            len,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn round_trip(file_block in 0..FILE_BLOCKS, lbn in 0u64..1 << 40, len in 1..=LEN_MAX) {
            let e = Extent { file_block, lbn, len };
            prop_assert_eq!(Extent::decode(&e.encode()), Some(e));
        }
    }

    #[test]
    fn zeros_are_a_free_place() {
        assert_eq!(Extent::decode(&[0; SIZE]), None);
    }
}
