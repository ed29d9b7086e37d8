//! What passes its checksum and still cannot be true. Code that loads a structure asks here, in the mount and in the
//! checker alike: what is built on it afterwards need not ask again.

mod inodes;
mod pages;

use std::ops::Range;

use crate::extent;
use crate::geometry::Geometry;
use crate::node::{self, HEADER, NodeKind, PAYLOAD};

pub use inodes::{Part, attributes, image, inode};
pub use pages::{extents, is_name};

/// Why something cannot be what it says it is. Prints as part of a line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Flaw {
    /// A page of another kind than its node has.
    #[error("{found:?} page, expected {expected:?}")]
    Kind {
        /// The kind in its header.
        found: NodeKind,
        /// That of the node.
        expected: NodeKind,
    },
    /// A dynamic node with a page of a kind that has fixed ids.
    #[error("{0:?} page, which has a fixed node id")]
    Fixed(NodeKind),
    /// The owner of a page that belongs to no inode.
    #[error("shared page, but inode {0} owns it")]
    Shared(u64),
    /// An owner that cannot be one.
    #[error("inode {0}, which does not exist, owns it")]
    Owner(u64),
    /// Entries of a leaf.
    #[error("its entries do not fill it")]
    Entries,
    /// An entry of a leaf.
    #[error("the entry at byte {at}: {why}")]
    Entry {
        /// Offset in the page.
        at: usize,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Number of children of an index page.
    #[error("it holds {0} children")]
    Children(usize),
    /// A key of an index page.
    #[error("key {0} is out of order")]
    Key(usize),
    /// A node id that cannot be what it is used as.
    #[error("it refers to node {0}, which cannot be one")]
    Reference(u32),
    /// Bytes of a blob.
    #[error("it holds {0} bytes")]
    Blob(usize),
    /// A place that is neither free nor used.
    #[error("place {0} is neither free nor used")]
    Place(usize),
    /// An extent beyond what a file or the volume can have.
    #[error("place {place}: file blocks {blocks:?} at LBN {lbn} are beyond what there is")]
    Extent {
        /// Place in the page or the inode.
        place: usize,
        /// File blocks.
        blocks: Range<u64>,
        /// First LBN.
        lbn: u64,
    },
    /// The counter of a bitmap.
    #[error("{set} bits are set, its counter says {counter}")]
    Counter {
        /// Bits that are set.
        set: u64,
        /// What the page says.
        counter: u64,
    },
    /// Bits of numbers that do not exist.
    #[error("{0} bits are set of numbers that do not exist")]
    Beyond(u64),
    /// An intent.
    #[error("intent {0} is none")]
    Intent(usize),
    /// An entry of the quota table.
    #[error("place {0} belongs to nothing that is counted")]
    Quota(usize),
    /// An inode, and what is wrong with it.
    #[error("{0}")]
    Inode(String),
    /// Extended attributes that cannot be.
    #[error("{0}")]
    Attributes(String),
}

/// Checks that a page whose header and checksum hold is one that its node can have.
///
/// # Errors
/// [`Flaw`].
pub fn place(g: &Geometry, id: u32, page: &[u8], kind: NodeKind) -> Result<(), Flaw> {
    use NodeKind::*;
    let owner = node::owner(page);
    match g.static_kind(id) {
        Some(expected) if kind != expected => Err(Flaw::Kind {
            found: kind,
            expected,
        }),
        Some(_) if owner != 0 => Err(Flaw::Shared(owner)),
        Some(_) => Ok(()),
        None if !matches!(kind, DirLeaf | DirIndex | Extents | Blob) => Err(Flaw::Fixed(kind)),
        None if owner == 0 || owner >= g.inodes() => Err(Flaw::Owner(owner)),
        None => Ok(()),
    }
}

/// Checks the content of a page that [`place`] has nothing against. Inodes are checked one by one ([`inode()`]):
/// one that is wrong is none of the others' business.
///
/// # Errors
/// [`Flaw`].
pub fn content(g: &Geometry, id: u32, page: &[u8], kind: NodeKind) -> Result<(), Flaw> {
    match kind {
        NodeKind::DirLeaf => pages::leaf(g, page),
        NodeKind::DirIndex => pages::index(g, page),
        NodeKind::Extents => {
            let places = &page[HEADER..HEADER + extent::PER_PAGE * extent::SIZE];
            pages::next(g, page).and_then(|()| extents(g, places))
        }
        NodeKind::Blob => match node::used(page) as usize {
            n if n == 0 || n > PAYLOAD => Err(Flaw::Blob(n)),
            _ => pages::next(g, page),
        },
        NodeKind::Bitmap => pages::bitmap(g, id, page),
        NodeKind::Intents => pages::intents(g, page),
        NodeKind::Quota => pages::quotas(page),
        NodeKind::Inodes => Ok(()),
    }
}

#[cfg(test)]
mod tests;
