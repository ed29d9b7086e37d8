//! What is in use of a volume that was closed.

use quayfs_fs::volume::Volume;
use quayfs_layout::BLOCK;
use quayfs_layout::geometry::{Geometry, InUse};
use quayfs_layout::inode;
use quayfs_layout::node::{self, BITS_PER_PAGE, INODES_PER_PAGE, NodeKind};
use quayfs_pmem::Region;

use crate::ResizeError;

/// The page of a node, by its number; `None` if it has none.
///
/// # Errors
/// [`ResizeError::Damaged`].
pub(super) fn home(
    region: &Region,
    g: &Geometry,
    salt: u64,
    id: u32,
) -> Result<Option<u64>, ResizeError> {
    let word = region.load_u64(g.nat_entry(id));
    match node::nat_decode(id, word, salt) {
        Some(page) if page.is_none_or(|page| page < g.node_pages) => Ok(page),
        _ => Err(ResizeError::Damaged(format!("the entry of node {id}"))),
    }
}

/// The content of a page, whose checksum holds.
///
/// # Errors
/// [`ResizeError::Damaged`].
pub(super) fn page(
    region: &Region,
    g: &Geometry,
    salt: u64,
    (id, at): (u32, u64),
) -> Result<Vec<u8>, ResizeError> {
    let page = region.read_vec(g.node_page(at), BLOCK as u64);
    match node::check(&page, id, salt) {
        Ok(_) => Ok(page),
        Err(_) => Err(ResizeError::Damaged(format!("node {id}"))),
    }
}

/// Whether a page of the inode table has an inode.
pub(super) fn has_inode(page: &[u8]) -> bool {
    (0..INODES_PER_PAGE as usize).any(|slot| {
        let at = inode::offset(slot);
        page[at..at + 4] != [0; 4]
    })
}

/// What is in use of a volume that was closed: nothing of it is in the journal.
///
/// # Errors
/// [`ResizeError::Damaged`].
pub fn in_use(volume: &Volume) -> Result<InUse, ResizeError> {
    let (region, g) = (volume.region(), &volume.config().geometry);
    let salt = volume.config().salt();
    let (lbn_bitmaps, inodes) = (g.lbn_bitmaps(), g.inode_base..g.inode_end());
    let mut used = InUse {
        inode_ids: g.inode_base,
        ..InUse::default()
    };
    for id in 1..g.nat_entries as u32 {
        let Some(at) = home(region, g, salt, id)? else {
            continue;
        };
        used.node_pages += 1;
        let n = u64::from(id);
        if lbn_bitmaps.contains(&n) {
            used.lbn_bitmaps += 1;
            let page = page(region, g, salt, (id, at))?;
            if node::kind(&page) != Some(NodeKind::Bitmap) {
                return Err(ResizeError::Damaged(format!("node {id}")));
            }
            let last = (0..BITS_PER_PAGE).rev().find(|i| node::bit(&page, *i));
            let first = (n - lbn_bitmaps.start) * BITS_PER_PAGE;
            used.lbns = last.map_or(used.lbns, |last| first + last + 1);
        } else if inodes.contains(&n) && has_inode(&page(region, g, salt, (id, at))?) {
            used.inode_ids = n + 1;
        }
    }
    Ok(used)
}
