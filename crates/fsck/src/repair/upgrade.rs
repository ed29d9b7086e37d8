//! A volume takes on what newer ones have from the beginning: copies of what it cannot be opened without, checksums of what files
//! have never written, and users and groups are counted.
//!
//! The last is a repair of a volume that is well. From before the first store on the epoch says that a repair has begun; then
//! the configuration says that they are counted, and the repair finds that none of them has been. After a crash at any
//! moment `fsck --repair` does the rest, or finds nothing to do.

use super::{Failed, Repair, RepairReport, belongs, repair_volume};
use crate::{FsckOptions, FsckReport, check_copy};
use quayfs_fs::recovery::ppt_geometry;
use quayfs_fs::volume::{Access, SETTLING, Volume};
use quayfs_layout::Lbn;
use quayfs_layout::config::{FEATURE_BACKUP, FEATURE_OWNERS, FEATURE_ZERO_CRC};
use quayfs_ppt::{BlockState, Ppt};
use quayfs_shown::progress::Meter;
use std::path::Path;
use std::sync::Arc;

/// Entries of the page table that are changed between two drains.
const MARKED_AT_ONCE: usize = 64 << 10;

/// What came of it.
#[derive(Debug)]
pub enum Upgraded {
    /// There is nothing to take on.
    Nothing,
    /// The data device has copies of configuration table and superblock from now on; the rest was there.
    BackedUp,
    /// What files have never written is told from what others had; the rest was there.
    Marked,
    /// Users and groups are counted from now on. A report that is not clean says what is left.
    Done(Box<RepairReport>),
    /// The volume has no quota table, and no room for one.
    NoTable,
    /// The table has places for so many users, groups and projects, of those that there are.
    TooMany {
        /// Places that there are.
        places: u64,
        /// Those that have something.
        subjects: u64,
    },
    /// It was not unmounted cleanly.
    Unclean,
    /// It is damaged.
    Damaged(Box<FsckReport>),
}

/// Has the volume in directory `dir`, which must not be mounted, count users and groups, and tell what files have never written in
/// preallocated room from what others had there. The meter says how far that is.
///
/// # Errors
/// [`Failed`]: nothing has changed, or `fsck --repair` does the rest.
pub fn upgrade(dir: &Path, meter: &Arc<Meter>) -> Result<Upgraded, Failed> {
    let options = FsckOptions::default();
    let mut volume = Volume::open(dir, Access::ReadWrite, SETTLING)?;
    let had_backup = volume.config().compat[1] & FEATURE_BACKUP != 0;
    if !had_backup {
        volume.change_config(|config| config.compat[1] |= FEATURE_BACKUP)?;
    }
    let marks_zeros = volume.config().compat[0] & FEATURE_ZERO_CRC != 0;
    if volume.config().counts_owners() && marks_zeros {
        return Ok(match had_backup {
            true => Upgraded::Nothing,
            false => Upgraded::BackedUp,
        });
    }
    let before = check_copy(&volume, &options, meter)?;
    if !before.is_clean() || !before.skipped.is_empty() {
        return Ok(Upgraded::Damaged(Box::new(before)));
    }
    if !before.statistics.clean {
        return Ok(Upgraded::Unclean);
    }
    volume.renew_fencing_token()?;
    if !marks_zeros {
        mark_zeros(&mut volume)?;
    }
    if volume.config().counts_owners() {
        return Ok(Upgraded::Marked);
    }
    if volume.config().geometry.quota_pages == 0 {
        return Ok(Upgraded::NoTable);
    }
    let (places, subjects) = (
        before.statistics.quota_places,
        before.statistics.quota_subjects,
    );
    if subjects > places {
        return Ok(Upgraded::TooMany { places, subjects });
    }
    Repair::of(&volume, &options, meter).begin()?;
    volume.change_config(|config| config.compat[2] |= FEATURE_OWNERS)?;
    drop(volume);
    let mut volume = Volume::open_vouched(dir, Access::ReadWrite, SETTLING, belongs)?;
    let report = repair_volume(&mut volume, &options, meter)?;
    Ok(Upgraded::Done(Box::new(report)))
}

/// Gives what is in state zero the checksum of zeros, and says so then. The volume is well: no entry is damaged.
pub(crate) fn mark_zeros(volume: &mut Volume) -> Result<(), Failed> {
    let (geo, salt) = (volume.config().geometry, volume.config().salt());
    let (table, _) = Ppt::attach(Arc::clone(volume.region()), ppt_geometry(&geo, salt))?;
    let is_zero = |lbn: &Lbn| matches!(table.lookup(*lbn), Ok(m) if m.state == BlockState::Zero);
    let all: Vec<Lbn> = (0..geo.blocks)
        .filter(|lbn| is_zero(lbn) && !table.is_zeroed(*lbn))
        .collect();
    for some in all.chunks(MARKED_AT_ONCE) {
        // Durable when it returns, before the configuration says that there is no other.
        table.zero(some)?;
    }
    volume.change_config(|config| config.compat[0] |= FEATURE_ZERO_CRC)?;
    Ok(())
}
