//! Items: what a record says about node pages.
//!
//! Applying the items of a record to pages that already contain their effect changes nothing
//! (bytes are absolute, bits are set or cleared, a fresh page starts empty), so digest and
//! recovery may apply a record any number of times, in sequence order. A charge alone counts: it is
//! passed over where the page says that the record has been applied ([`crate::quota`]).

use crate::BLOCK;
use crate::bytes::{get_u16, get_u32, get_u64};
use crate::node::NodeKind;
use crate::quota::Subject;

const DELTA: u8 = 1;
const NODE_NEW: u8 = 2;
const NODE_FREE: u8 = 3;
const BITS: u8 = 4;
const CHARGE: u8 = 5;
const PAD: u8 = 0;

/// One change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Item<'a> {
    /// Bytes of a node page become these.
    Delta {
        /// Node id.
        id: u32,
        /// Offset within the page.
        at: usize,
        /// New bytes.
        bytes: &'a [u8],
    },
    /// The node exists from here on, empty.
    NodeNew {
        /// Node id.
        id: u32,
        /// Kind of page.
        kind: NodeKind,
        /// Owning inode.
        owner: u64,
    },
    /// The node does not exist any more.
    NodeFree {
        /// Node id.
        id: u32,
    },
    /// Bits of a bitmap page are set or cleared.
    Bits {
        /// Node id of the bitmap page.
        id: u32,
        /// First bit.
        start: u32,
        /// Number of bits.
        count: u32,
        /// Set or clear.
        set: bool,
    },
    /// A project, user or group has so much more.
    Charge {
        /// Node id of the page of the quota table.
        id: u32,
        /// Place in that page.
        slot: u16,
        /// Which of them.
        subject: Subject,
        /// Blocks and pages, in 4 KiB.
        blocks: i64,
        /// Inodes.
        inodes: i32,
    },
}

impl Item<'_> {
    /// The node the item is about.
    pub fn node(&self) -> u32 {
        match *self {
            Item::Delta { id, .. }
            | Item::NodeNew { id, .. }
            | Item::NodeFree { id }
            | Item::Bits { id, .. }
            | Item::Charge { id, .. } => id,
        }
    }

    /// Appends the encoded item.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match *self {
            Item::Delta { id, at, bytes } => {
                out.push(DELTA);
                out.push(0);
                out.extend_from_slice(&(at as u16).to_le_bytes());
                out.extend_from_slice(&id.to_le_bytes());
                out.extend_from_slice(&(bytes.len() as u16).to_le_bytes());
                out.extend_from_slice(bytes);
            }
            Item::NodeNew { id, kind, owner } => {
                out.push(NODE_NEW);
                out.push(kind as u8);
                out.extend_from_slice(&[0; 2]);
                out.extend_from_slice(&id.to_le_bytes());
                out.extend_from_slice(&owner.to_le_bytes());
            }
            Item::NodeFree { id } => {
                out.push(NODE_FREE);
                out.extend_from_slice(&[0; 3]);
                out.extend_from_slice(&id.to_le_bytes());
            }
            Item::Bits {
                id,
                start,
                count,
                set,
            } => {
                out.push(BITS);
                out.push(u8::from(set));
                out.extend_from_slice(&[0; 2]);
                out.extend_from_slice(&id.to_le_bytes());
                out.extend_from_slice(&start.to_le_bytes());
                out.extend_from_slice(&count.to_le_bytes());
            }
            Item::Charge {
                id,
                slot,
                subject,
                blocks,
                inodes,
            } => {
                out.push(CHARGE);
                out.push(subject.kind());
                out.extend_from_slice(&slot.to_le_bytes());
                out.extend_from_slice(&id.to_le_bytes());
                out.extend_from_slice(&subject.id().to_le_bytes());
                out.extend_from_slice(&inodes.to_le_bytes());
                out.extend_from_slice(&blocks.to_le_bytes());
            }
        }
    }
}

/// Bytes of an encoded charge.
pub const CHARGE_BYTES: usize = 24;
/// Bytes of an encoded delta besides its payload.
pub const DELTA_HEADER: usize = 10;

/// The bytes of a record are not a sequence of items.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("record item {index} cannot be decoded")]
pub struct ItemError {
    /// Which item.
    pub index: usize,
}

/// Decodes the items of a record body. Trailing zero bytes are padding.
pub fn decode(bytes: &[u8]) -> Items<'_> {
    Items {
        rest: bytes,
        index: 0,
    }
}

/// See [`decode`].
#[derive(Clone, Debug)]
pub struct Items<'a> {
    rest: &'a [u8],
    index: usize,
}

impl<'a> Items<'a> {
    fn one(&mut self) -> Option<Item<'a>> {
        let b = self.rest;
        let id = if b.len() >= 8 {
            get_u32(b, 4)
        } else {
            return None;
        };
        let (item, len) = match b[0] {
            DELTA => {
                let n = usize::from(get_u16(b.get(..DELTA_HEADER)?, 8));
                let at = usize::from(get_u16(b, 2));
                if at + n > BLOCK {
                    return None;
                }
                let bytes = b.get(DELTA_HEADER..DELTA_HEADER + n)?;
                (Item::Delta { id, at, bytes }, DELTA_HEADER + n)
            }
            NODE_NEW => {
                let owner = get_u64(b.get(..16)?, 8);
                (
                    Item::NodeNew {
                        id,
                        kind: NodeKind::from_u8(b[1])?,
                        owner,
                    },
                    16,
                )
            }
            NODE_FREE => (Item::NodeFree { id }, 8),
            BITS => {
                let b = b.get(..16)?;
                let (start, count) = (get_u32(b, 8), get_u32(b, 12));
                let end = u64::from(start) + u64::from(count);
                if end > crate::node::BITS_PER_PAGE {
                    return None;
                }
                (
                    Item::Bits {
                        id,
                        start,
                        count,
                        set: b[1] != 0,
                    },
                    16,
                )
            }
            CHARGE => {
                let b = b.get(..CHARGE_BYTES)?;
                let slot = get_u16(b, 2);
                if usize::from(slot) >= crate::quota::PER_PAGE {
                    return None;
                }
                let item = Item::Charge {
                    id,
                    slot,
                    subject: Subject::of(b[1], get_u32(b, 8))?,
                    blocks: get_u64(b, 16).cast_signed(),
                    inodes: get_u32(b, 12).cast_signed(),
                };
                (item, CHARGE_BYTES)
            }
            _ => return None,
        };
        self.rest = &self.rest[len..];
        Some(item)
    }
}

impl<'a> Iterator for Items<'a> {
    type Item = Result<Item<'a>, ItemError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.iter().all(|b| *b == PAD) {
            return None;
        }
        let index = self.index;
        self.index += 1;
        let item = self.one().ok_or(ItemError { index });
        if item.is_err() {
            self.rest = &[];
        }
        Some(item)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn items_come_back() {
        let items = [
            Item::NodeNew {
                id: 9,
                kind: NodeKind::DirLeaf,
                owner: 4,
            },
            Item::Delta {
                id: 9,
                at: 64,
                bytes: b"hello",
            },
            Item::Bits {
                id: 2,
                start: 5,
                count: 7,
                set: true,
            },
            Item::NodeFree { id: 3 },
            Item::Charge {
                id: 4,
                slot: 62,
                subject: Subject::Group(7),
                blocks: -9,
                inodes: -1,
            },
        ];
        let mut b = Vec::new();
        for i in &items {
            i.encode(&mut b);
        }
        b.extend_from_slice(&[0; 13]);
        let got: Result<Vec<_>, _> = decode(&b).collect();
        assert_eq!(got.as_deref(), Ok(&items[..]));
    }

    #[test]
    fn a_delta_past_the_page_is_refused() {
        let mut b = Vec::new();
        Item::Delta {
            id: 1,
            at: BLOCK - 2,
            bytes: b"abc",
        }
        .encode(&mut b);
        assert_eq!(decode(&b).next(), Some(Err(ItemError { index: 0 })));
    }

    proptest! {
        #[test]
        fn any_bytes_decode_without_panic(b in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = decode(&b).count();
        }
    }
}
