//! The configuration table is changed so that a crash leaves the old one or the new one.
//!
//! The first intact copy counts. Of two stores of a page one may be torn by a crash, so each copy is durable before the
//! other one is touched, and the second is written first: as long as it is being written the first still says the old, and
//! as long as the first is, the second says the new. What a crash leaves different is made equal before anything builds
//! on it: the copy that counts must never be the only one that says so.

use quayfs_layout::BLOCK;
use quayfs_layout::config::{COPIES, ConfigTable};
use quayfs_pmem::{PmemError, Region};

/// Replaces the table by one that counts one change more. Durable when it returns; a crash before leaves the old one or
/// the new one, and both copies of either are made equal by the next [`settle`].
///
/// # Errors
/// [`PmemError`] of drains: then either counts.
pub(super) fn replace(region: &Region, new: &ConfigTable) -> Result<(), PmemError> {
    settle(region)?;
    let bytes = new.encode();
    for off in COPIES.into_iter().rev() {
        region.write_nt(off, &bytes);
        region.drain()?;
    }
    Ok(())
}

/// Writes the copy that does not count again, if it differs from the one that does. Durable when it returns.
///
/// # Errors
/// [`PmemError`] of drains.
pub(super) fn settle(region: &Region) -> Result<(), PmemError> {
    let copies = COPIES.map(|off| region.read_vec(off, BLOCK as u64));
    let Some(good) = copies.iter().find(|copy| ConfigTable::decode(copy).is_ok()) else {
        return Ok(());
    };
    for (off, copy) in COPIES.into_iter().zip(&copies) {
        if copy != good {
            tracing::warn!("a copy of the configuration table is written again");
            region.write_nt(off, good);
            region.drain()?;
        }
    }
    Ok(())
}

/// Has both copies say in memory what they say on the disk, after an older table may have been stored there. Durable when
/// it returns. No drain is made before both do: it would make the older one count.
///
/// # Errors
/// [`PmemError`] of drains.
pub(super) fn keep(region: &Region, table: &ConfigTable) -> Result<(), PmemError> {
    let bytes = table.encode();
    let stale: Vec<u64> = COPIES
        .into_iter()
        .filter(|off| region.read_vec(*off, BLOCK as u64) != bytes)
        .collect();
    if stale.is_empty() {
        return Ok(());
    }
    for off in stale {
        region.write_nt(off, &bytes);
    }
    region.drain()
}
