//! The content of a volume's region in another one, which has another geometry and holds zeros.

use std::sync::Arc;

use quayfs_fs::recovery::{batch_log, journal_geometry, ppt_geometry};
use quayfs_fs::volume::Volume;
use quayfs_journal::{Durability, Journal};
use quayfs_layout::config::{COPIES, FEATURE_RESIZED};
use quayfs_layout::geometry::Geometry;
use quayfs_layout::jsb::JSB_BYTES;
use quayfs_layout::l2p::{CRC_BYTES, ENTRY_BYTES};
use quayfs_layout::node;
use quayfs_pmem::Region;
use quayfs_ppt::{Ppt, PptGeometry};
use quayfs_shown::progress::{Meter, Unit};

use crate::ResizeError;
use crate::used::{home, page};

/// Bytes copied at a time.
const PIECE: u64 = 1 << 20;
/// Entries of the node address table at a time.
const ENTRIES: u64 = 8192;

/// Writes all of the volume, which was closed, to a region of this geometry, which holds zeros. Durable when it returns;
/// nothing of the volume changes.
///
/// # Errors
/// [`ResizeError::Damaged`], and those of media.
pub fn rewrite(
    volume: &Volume,
    new: &Arc<Region>,
    to: &Geometry,
    meter: &Meter,
) -> Result<(), ResizeError> {
    let mut config = volume.config().clone();
    config.geometry = *to;
    config.compat[2] |= FEATURE_RESIZED;
    config.changes += 1;
    let salt = config.salt();
    // The log of the page table. The table itself is copied.
    let first = PptGeometry {
        blocks: 1,
        ..ppt_geometry(to, salt)
    };
    Ppt::format(new, &first).map_err(|e| ResizeError::Table(e.to_string()))?;
    table(volume, new, to, meter);
    Journal::format(new, &journal_geometry(to, salt), Durability::Op)?;
    // Epoch, numbers and heads go on. A head is a number that only grows, and where it lies in its lane follows from the
    // length of the lane.
    let superblock = (volume.region()).read_vec(volume.config().geometry.jsb_off, JSB_BYTES as u64);
    new.write_nt(to.jsb_off, &superblock);
    if let Some(log) = batch_log(to, salt) {
        new.format_batches(&log)?;
    }
    nodes(volume, new, to, meter)?;
    let table = config.encode();
    COPIES.iter().for_each(|off| new.write_nt(*off, &table));
    Ok(new.drain()?)
}

fn table(volume: &Volume, new: &Region, to: &Geometry, meter: &Meter) {
    let from = volume.config().geometry;
    meter.begin(
        "page table",
        to.blocks * (ENTRY_BYTES + CRC_BYTES),
        Unit::Bytes,
    );
    for (old, new_off, len) in [
        (from.l2p_map_off, to.l2p_map_off, to.blocks * ENTRY_BYTES),
        (from.l2p_crc_off, to.l2p_crc_off, to.blocks * CRC_BYTES),
    ] {
        for at in (0..len).step_by(PIECE as usize) {
            let piece = volume.region().read_vec(old + at, PIECE.min(len - at));
            new.write_nt(new_off + at, &piece);
            meter.add(piece.len() as u64);
        }
    }
}

/// Node pages, one behind the other, and the table that says where they are.
fn nodes(volume: &Volume, new: &Region, to: &Geometry, meter: &Meter) -> Result<(), ResizeError> {
    let from = volume.config().geometry;
    let (region, salt) = (volume.region(), volume.config().salt());
    meter.begin("metadata", to.nat_entries, Unit::Things("node"));
    let mut next = 0;
    for first in (0..to.nat_entries).step_by(ENTRIES as usize) {
        let end = (first + ENTRIES).min(to.nat_entries);
        let mut out = Vec::with_capacity(((end - first) * 8) as usize);
        for id in first..end {
            let has = (1..from.nat_entries).contains(&id);
            let id = id as u32;
            let at = match has {
                true => home(region, &from, salt, id)?,
                false => None,
            };
            let word = match at {
                None => node::nat_absent(id, salt),
                Some(at) if next < to.node_pages => {
                    new.write_nt(to.node_page(next), &page(region, &from, salt, (id, at))?);
                    next += 1;
                    node::nat_encode(id, next - 1, salt)
                }
                Some(_) => return Err(ResizeError::Damaged("the node address table".into())),
            };
            out.extend_from_slice(&word.to_le_bytes());
        }
        new.write_nt(to.nat_off + first * 8, &out);
        meter.add(end - first);
    }
    Ok(())
}
