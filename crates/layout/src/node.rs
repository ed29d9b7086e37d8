//! Node pages: 4 KiB of metadata each, found through the node address table (NAT).
//!
//! A page begins with a 64-byte header; its checksum covers the page, its node id and the volume
//! salt, so a page that belongs elsewhere never validates. Home pages are written by digest only.

use crate::BLOCK;
use crate::Guard;
use crate::bytes::{get_u16, get_u32, get_u64, put_u16, put_u32, put_u64};
use crate::checksum::{crc32c_append, open_guarded, seal_word};

/// Bytes of the header.
pub const HEADER: usize = 64;
/// Bytes behind the header.
pub const PAYLOAD: usize = BLOCK - HEADER;
/// Bits of one bitmap page.
pub const BITS_PER_PAGE: u64 = PAYLOAD as u64 * 8;
/// Inodes of one inode-table page.
pub const INODES_PER_PAGE: u64 = 15;
/// Node pages that a NAT entry can address.
pub const PAGE_MAX: u64 = 1 << 40;

const MAGIC: u16 = 0x4e51;
const OFF_MAGIC: usize = 0;
const OFF_KIND: usize = 2;
const OFF_ID: usize = 4;
/// Offset of the `next` link of chained pages (node id, 0 ends the chain).
pub const OFF_NEXT: usize = 8;
/// Offset of the number of used bytes or entries, as the kind of page defines it.
pub const OFF_USED: usize = 12;
/// Offset of the inode that owns the page (0 for shared pages).
pub const OFF_OWNER: usize = 16;
/// Offset of the count of set bits, kept by digest (bitmap pages only).
pub const OFF_BITS_SET: usize = 24;
/// Offset of the highest sequence number that digest has applied to the page.
pub const OFF_SEQ: usize = 32;
/// Offset of the checksum.
pub const OFF_CRC: usize = 60;
/// Bytes of the checksum.
pub const CRC_BYTES: usize = HEADER - OFF_CRC;

/// What a node page holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum NodeKind {
    /// Allocation bitmap.
    Bitmap = 1,
    /// Fifteen inodes.
    Inodes = 2,
    /// Directory entries.
    DirLeaf = 3,
    /// Directory index: hash keys and children.
    DirIndex = 4,
    /// Extents of one file, unordered.
    Extents = 5,
    /// A piece of a symbolic link target or of an extended-attribute set.
    Blob = 6,
    /// Intents: orphans and unfinished truncates.
    Intents = 7,
    /// Quota table: what projects use and may use.
    Quota = 8,
}

impl NodeKind {
    /// Decodes the kind byte.
    pub fn from_u8(v: u8) -> Option<Self> {
        Some(match v {
            1 => Self::Bitmap,
            2 => Self::Inodes,
            3 => Self::DirLeaf,
            4 => Self::DirIndex,
            5 => Self::Extents,
            6 => Self::Blob,
            7 => Self::Intents,
            8 => Self::Quota,
            _ => return None,
        })
    }
}

/// Why a node page is not usable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NodeError {
    /// Magic, kind or node id is wrong.
    #[error("not the expected node page")]
    Header,
    /// The checksum does not match.
    #[error("checksum mismatch")]
    Checksum,
}

/// Fills in the header of a fresh page; the payload is left alone.
pub fn init(page: &mut [u8], id: u32, kind: NodeKind, owner: u64) {
    page[..HEADER].fill(0);
    put_u16(page, OFF_MAGIC, MAGIC);
    page[OFF_KIND] = kind as u8;
    put_u32(page, OFF_ID, id);
    put_u64(page, OFF_OWNER, owner);
}

fn crc(page: &[u8], salt: u64) -> u32 {
    let c = crc32c_append(0, &salt.to_le_bytes());
    let c = crc32c_append(c, &page[..OFF_CRC]);
    crc32c_append(c, &page[HEADER..BLOCK])
}

/// Seals a page: stores the checksum over everything else.
pub fn seal(page: &mut [u8], salt: u64) {
    let c = crc(page, salt);
    put_u32(page, OFF_CRC, c);
}

/// By which bits the checksum of a page differs from what it should be; 0 if it does not. What it covers are the salt,
/// which comes first, and all of the page but itself.
pub fn mismatch(page: &[u8], salt: u64) -> u32 {
    get_u32(page, OFF_CRC) ^ crc(page, salt)
}

/// Checks a page read for node `id` and returns its kind.
pub fn check(page: &[u8], id: u32, salt: u64) -> Result<NodeKind, NodeError> {
    if Guard::NodePage.stands() && get_u32(page, OFF_CRC) != crc(page, salt) {
        return Err(NodeError::Checksum);
    }
    if get_u16(page, OFF_MAGIC) != MAGIC || get_u32(page, OFF_ID) != id {
        return Err(NodeError::Header);
    }
    NodeKind::from_u8(page[OFF_KIND]).ok_or(NodeError::Header)
}

/// The kind in the header of a page that has been checked.
pub fn kind(page: &[u8]) -> Option<NodeKind> {
    NodeKind::from_u8(page[OFF_KIND])
}

/// The inode that owns the page.
pub fn owner(page: &[u8]) -> u64 {
    get_u64(page, OFF_OWNER)
}

/// The next page of a chain, 0 at its end.
pub fn next(page: &[u8]) -> u32 {
    get_u32(page, OFF_NEXT)
}

/// Used bytes or entries.
pub fn used(page: &[u8]) -> u32 {
    get_u32(page, OFF_USED)
}

/// Set bits of a bitmap page.
pub fn bits_set(page: &[u8]) -> u32 {
    get_u32(page, OFF_BITS_SET)
}

/// Encodes a NAT entry: the page that holds node `id`.
pub fn nat_encode(id: u32, page: u64, salt: u64) -> u64 {
    seal_word(page + 1, nat_salt(id, salt))
}

/// The NAT entry of a node that does not exist.
pub fn nat_absent(id: u32, salt: u64) -> u64 {
    seal_word(0, nat_salt(id, salt))
}

/// Decodes a NAT entry: `Some(None)` if the node does not exist, `None` if the entry is damaged.
pub fn nat_decode(id: u32, word: u64, salt: u64) -> Option<Option<u64>> {
    open_guarded(word, nat_salt(id, salt), Guard::NatEntry).map(|n| n.checked_sub(1))
}

fn nat_salt(id: u32, salt: u64) -> u64 {
    salt ^ 0x4e41_5400_0000_0000 ^ u64::from(id)
}

/// Whether bit `i` of a bitmap page is set.
pub fn bit(page: &[u8], i: u64) -> bool {
    page[HEADER + (i / 8) as usize] & (1 << (i % 8)) != 0
}

/// Sets or clears `count` bits from `start` and keeps the counter; returns how many flipped.
pub fn change_bits(page: &mut [u8], start: u64, count: u64, set: bool) -> u32 {
    let mut flipped = 0;
    let mut i = start;
    let end = start + count;
    while i < end {
        let at = HEADER + (i / 8) as usize;
        let (mask, n) = if i.is_multiple_of(8) && end - i >= 8 {
            (0xff, 8)
        } else {
            (1u8 << (i % 8), 1)
        };
        let old = page[at];
        let new = if set { old | mask } else { old & !mask };
        flipped += (old ^ new).count_ones();
        page[at] = new;
        i += n;
    }
    let n = bits_set(page);
    put_u32(
        page,
        OFF_BITS_SET,
        if set {
            n + flipped
        } else {
            n.saturating_sub(flipped)
        },
    );
    flipped
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_page_validates_only_as_itself() {
        let mut p = vec![0; BLOCK];
        init(&mut p, 5, NodeKind::DirLeaf, 77);
        seal(&mut p, 1);
        assert_eq!(check(&p, 5, 1), Ok(NodeKind::DirLeaf));
        assert_eq!(check(&p, 6, 1), Err(NodeError::Header));
        assert_eq!(check(&p, 5, 2), Err(NodeError::Checksum));
        for bit in 0..BLOCK * 8 {
            p[bit / 8] ^= 1 << (bit % 8);
            assert!(check(&p, 5, 1).is_err(), "bit {bit}");
            p[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn nat_entries_belong_to_their_node() {
        assert_eq!(nat_decode(3, nat_encode(3, 9, 1), 1), Some(Some(9)));
        assert_eq!(nat_decode(3, nat_absent(3, 1), 1), Some(None));
        assert_eq!(nat_decode(4, nat_encode(3, 9, 1), 1), None);
        assert_eq!(nat_decode(3, 0, 1), None);
    }

    proptest! {
        #[test]
        fn bit_changes_match_a_set(ops in prop::collection::vec((0u64..300, 0u64..64, any::<bool>()), 1..40)) {
            let mut p = vec![0; BLOCK];
            init(&mut p, 1, NodeKind::Bitmap, 0);
            let mut model = std::collections::BTreeSet::new();
            for (s, n, set) in ops {
                let before = model.len();
                for i in s..s + n {
                    if set { model.insert(i); } else { model.remove(&i); }
                }
                let f = change_bits(&mut p, s, n, set);
                prop_assert_eq!(f as usize, before.abs_diff(model.len()));
                prop_assert_eq!(bits_set(&p) as usize, model.len());
            }
            for i in 0..400 {
                prop_assert_eq!(bit(&p, i), model.contains(&i));
            }
        }
    }
}
