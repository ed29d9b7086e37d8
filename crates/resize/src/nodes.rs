//! The node address table of a new geometry, where the old one has nothing that counts. Pages stay where they lie, but for
//! those that lie where the node area is to end, and bitmaps of LBNs that get other ids: they are copied to free pages.

use quayfs_fs::volume::Volume;
use quayfs_layout::geometry::Geometry;
use quayfs_layout::{BLOCK, bytes, node};
use quayfs_shown::progress::{Meter, Unit};

use crate::ResizeError;
use crate::used::{has_inode, home, page};

/// Entries at a time.
const PIECE: u64 = 8192;
/// Where a page says whose it is.
const OFF_ID: usize = 4;
/// No page.
const NONE: u64 = u64::MAX;

/// Durable with the next drain.
///
/// # Errors
/// [`ResizeError::Damaged`].
pub(super) fn write(volume: &Volume, to: &Geometry, meter: &Meter) -> Result<(), ResizeError> {
    let from = volume.config().geometry;
    let (region, salt) = (volume.region(), volume.config().salt());
    let taken = (to.node_off - from.node_off) / BLOCK as u64;
    let mut pages = vec![NONE; from.nat_entries as usize];
    let mut is_used = vec![false; from.node_pages as usize];
    for id in 1..from.nat_entries as u32 {
        if let Some(at) = home(region, &from, salt, id)? {
            pages[id as usize] = at;
            is_used[at as usize] = true;
        }
    }
    let mut free = (taken..from.node_pages).filter(|at| !is_used[*at as usize]);
    let mut place = || {
        free.next()
            .ok_or_else(|| ResizeError::Damaged("the node address table".into()))
    };
    let moved_from = from.lbn_bitmaps();
    let mut moved = Vec::new();
    if to.lbn_bitmap_base != from.lbn_bitmap_base {
        for id in from.lbn_bitmaps() {
            let at = std::mem::replace(&mut pages[id as usize], NONE);
            if at == NONE {
                continue;
            }
            let mut content = page(region, &from, salt, (id as u32, at))?;
            let new_id = to.lbn_bitmap_base + (id - moved_from.start);
            if !to.lbn_bitmaps().contains(&new_id) {
                continue;
            }
            bytes::put_u32(&mut content, OFF_ID, new_id as u32);
            node::seal(&mut content, salt);
            let new_at = place()?;
            region.write_nt(from.node_page(new_at), &content);
            moved.push((new_id, new_at));
        }
        // Ids of the inode table that have none become those of bitmaps.
        for id in to.lbn_bitmaps() {
            let at = std::mem::replace(&mut pages[id as usize], NONE);
            if at != NONE && has_inode(&page(region, &from, salt, (id as u32, at))?) {
                return Err(ResizeError::Damaged(format!("node {id}")));
            }
        }
        for (id, at) in moved {
            pages[id as usize] = at;
        }
    }
    for (id, at) in pages.iter_mut().enumerate().filter(|(_, at)| **at < taken) {
        let content = page(region, &from, salt, (id as u32, *at))?;
        *at = place()?;
        region.write_nt(from.node_page(*at), &content);
    }
    write_entries(volume, to, (&pages, taken), meter);
    Ok(())
}

/// The entries, whose pages are numbered from the new start of the area.
fn write_entries(volume: &Volume, to: &Geometry, (pages, taken): (&[u64], u64), meter: &Meter) {
    meter.begin("node address table", to.nat_entries * 8, Unit::Bytes);
    let salt = volume.config().salt();
    for first in (0..to.nat_entries).step_by(PIECE as usize) {
        let end = (first + PIECE).min(to.nat_entries);
        let mut out = Vec::with_capacity(((end - first) * 8) as usize);
        for id in first..end {
            let word = match pages[id as usize] {
                NONE => node::nat_absent(id as u32, salt),
                at => node::nat_encode(id as u32, at - taken, salt),
            };
            out.extend_from_slice(&word.to_le_bytes());
        }
        volume.region().write_nt(to.nat_off + first * 8, &out);
        meter.add(out.len() as u64);
    }
}
