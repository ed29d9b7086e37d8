//! The quota table: what each project uses of the volume, and what it may use.
//!
//! An entry takes 64 bytes; a free one says that nothing is used and nothing limited. What is used is
//! changed by digest only, by what records say that is added or taken away ([`charge`]). That is the one
//! thing in a record that is not absolute, so digest counts it once: a page says up to which record it has
//! been applied.

use crate::bytes::{get_u32, get_u64, put_u32, put_u64};
use crate::node::{HEADER, PAYLOAD};

/// Bytes of an entry.
pub const SIZE: usize = 64;
/// Entries of one page.
pub const PER_PAGE: usize = PAYLOAD / SIZE;
/// Offset of the limits within an entry.
pub const OFF_LIMITS: usize = 24;
/// Bytes of the limits.
pub const LIMITS_BYTES: usize = 32;

const OFF_BLOCKS: usize = 8;
const OFF_INODES: usize = 16;

/// What the inodes of a project have together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Blocks and pages, in 4 KiB.
    pub blocks: u64,
    /// Inodes.
    pub inodes: u64,
}

/// What a project may have; 0 is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Blocks that are worth a warning.
    pub blocks_soft: u64,
    /// Blocks that are never exceeded.
    pub blocks: u64,
    /// Inodes that are worth a warning.
    pub inodes_soft: u64,
    /// Inodes that are never exceeded.
    pub inodes: u64,
}

impl Limits {
    /// Encodes the limits.
    pub fn encode(&self) -> [u8; LIMITS_BYTES] {
        let mut b = [0; LIMITS_BYTES];
        put_u64(&mut b, 0, self.blocks_soft);
        put_u64(&mut b, 8, self.blocks);
        put_u64(&mut b, 16, self.inodes_soft);
        put_u64(&mut b, 24, self.inodes);
        b
    }
}

/// One entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// Project id; 0 is the project of those that have none, which is not counted.
    pub project: u32,
    /// What it has.
    pub usage: Usage,
    /// What it may have.
    pub limits: Limits,
}

impl Entry {
    /// Encodes the entry.
    pub fn encode(&self) -> [u8; SIZE] {
        let mut b = [0; SIZE];
        put_u32(&mut b, 0, self.project);
        put_u64(&mut b, OFF_BLOCKS, self.usage.blocks);
        put_u64(&mut b, OFF_INODES, self.usage.inodes);
        b[OFF_LIMITS..OFF_LIMITS + LIMITS_BYTES].copy_from_slice(&self.limits.encode());
        b
    }

    /// Decodes an entry.
    pub fn decode(b: &[u8]) -> Self {
        Self {
            project: get_u32(b, 0),
            usage: Usage {
                blocks: get_u64(b, OFF_BLOCKS),
                inodes: get_u64(b, OFF_INODES),
            },
            limits: Limits {
                blocks_soft: get_u64(b, OFF_LIMITS),
                blocks: get_u64(b, OFF_LIMITS + 8),
                inodes_soft: get_u64(b, OFF_LIMITS + 16),
                inodes: get_u64(b, OFF_LIMITS + 24),
            },
        }
    }

    /// Whether another project can have the place, whatever number is left there.
    pub fn is_free(&self) -> bool {
        self.usage == Usage::default() && self.limits == Limits::default()
    }
}

/// Where entry `slot` begins in its page.
pub fn offset(slot: usize) -> usize {
    HEADER + slot * SIZE
}

/// Adds to what the project in `slot` has, which becomes `project`'s place if it is another one's. The
/// same change must not be applied to the same page twice.
pub fn charge(page: &mut [u8], slot: usize, project: u32, blocks: i64, inodes: i64) {
    let place = &mut page[offset(slot)..offset(slot) + SIZE];
    let mut e = Entry::decode(place);
    if e.project != project {
        e = Entry {
            project,
            ..Entry::default()
        };
    }
    e.usage.blocks = e.usage.blocks.saturating_add_signed(blocks);
    e.usage.inodes = e.usage.inodes.saturating_add_signed(inodes);
    place.copy_from_slice(&e.encode());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BLOCK;

    #[test]
    fn round_trip() {
        let e = Entry {
            project: 7,
            usage: Usage {
                blocks: 1,
                inodes: 2,
            },
            limits: Limits {
                blocks_soft: 3,
                blocks: 4,
                inodes_soft: 5,
                inodes: 6,
            },
        };
        assert_eq!(Entry::decode(&e.encode()), e);
        assert!(!e.is_free());
        let left = Entry {
            project: 7,
            ..Entry::default()
        };
        assert!(left.is_free() && Entry::decode(&[0; SIZE]).is_free());
    }

    #[test]
    fn a_place_changes_hands() {
        let mut page = vec![0; BLOCK];
        let last = PER_PAGE - 1;
        let at = |page: &[u8]| Entry::decode(&page[offset(last)..]);
        charge(&mut page, last, 7, 10, 1);
        charge(&mut page, last, 7, -4, 1);
        let usage = Usage {
            blocks: 6,
            inodes: 2,
        };
        assert_eq!((at(&page).project, at(&page).usage), (7, usage));
        page[offset(last) + OFF_LIMITS] = 9;
        charge(&mut page, last, 8, 3, 1);
        let other = Entry {
            project: 8,
            usage: Usage {
                blocks: 3,
                inodes: 1,
            },
            ..Entry::default()
        };
        assert_eq!(at(&page), other);
        charge(&mut page, last, 8, -9, -9);
        assert!(at(&page).is_free());
    }
}
