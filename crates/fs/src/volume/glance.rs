//! A volume looked at from outside: what a few blocks of it say, without recovering, changing or waiting for anything.

use std::path::{Path, PathBuf};
use std::time::Duration;

use quayfs_blockdev::{AlignedBuf, BlockDevice, FileDevice, Options};
use quayfs_layout::BLOCK;
use quayfs_layout::batch::{Batch, HEADS, LogHead, SECTOR, halves};
use quayfs_layout::config::ConfigTable;
use quayfs_layout::jsb::{Closed, EpochWord, JSB_BYTES, Mode, SeqWord, WordKind};
use quayfs_pmem::{Backend, LockKind, MapOptions, PmemError, Region};

use crate::recovery::batch_log;

use super::pair::{check_features, check_length, read_config};
use super::parts::{is_there, locate_unfollowed};
use super::{Access, Place, VolumeError, below, locate};

/// What a volume says of itself. It is what lies on the media at the moment: a daemon that uses the volume may have more
/// in memory.
#[derive(Clone, Debug)]
pub struct Glance {
    /// The volume itself: a directory, or what holds both media. Canonical.
    pub path: PathBuf,
    /// Which volume it is.
    pub config: ConfigTable,
    /// What its region is on.
    pub backend: Backend,
    /// A process has it open, to write.
    pub in_use: bool,
    /// What the last mount has left; none if the words that say so are damaged.
    pub left: Option<Left>,
}

/// What the last mount of a volume has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    /// It has ended as it should: there is nothing to recover.
    pub clean: bool,
    /// How many blocks it has left staged in the region; none if that is not known.
    pub staged: Option<u64>,
    /// A repair has begun and not ended.
    pub repairing: bool,
    /// How soon operations were durable.
    pub mode: Mode,
    /// How many lives the volume has had, with that of mkfs.
    pub epoch: u32,
}

/// Looks at the volume at a path. Nothing is locked for longer than a moment, and nothing is changed.
///
/// # Errors
/// There is no volume, it cannot be read, or a newer version has made it.
pub fn glance(path: &Path) -> Result<Glance, VolumeError> {
    let place = locate_unfollowed(path)?;
    is_there(&place.pmem)?;
    let in_use = is_locked(&place)? || is_in_use_below(&place);
    let region = open(&place)?;
    if !in_use {
        // What uses it may be waiting for the data device, and then this would, too.
        is_there(&place.data)?;
    }
    let config = config(&place, &region)?;
    check_features(&config, Access::ReadOnly)?;
    check_length(&config, &region, &place.pmem)?;
    let left = left(&region, &config)?;
    Ok(Glance {
        path: place.path,
        backend: region.backend(),
        in_use,
        left,
        config,
    })
}

/// Finds out whether the media of the volume at a path answer: looks at it as [`glance`] does, and reads a block of the data
/// device, unless something uses that. It may never return.
///
/// # Errors
/// Those of [`glance`]; the block cannot be read.
pub fn touch(path: &Path) -> Result<(), VolumeError> {
    if glance(path)?.in_use {
        return Ok(());
    }
    let options = Options {
        uring: false,
        read_only: true,
        ..Options::default()
    };
    let device = FileDevice::open(&locate(path)?.data, options)
        .map_err(|e| VolumeError::Device(e.to_string()))?;
    device
        .read(0, &mut AlignedBuf::new(BLOCK))
        .map_err(|e| VolumeError::Device(e.to_string()))
}

/// Whether a process has the region locked. The lock of this look is given back before it returns: a process that is left
/// waiting for the data device must keep nothing busy.
fn is_locked(place: &Place) -> Result<bool, PmemError> {
    Ok(!open(place)?.lock_within(LockKind::Shared, Duration::ZERO)?)
}

/// Whether the volume is in use by another name of what its media lie on.
fn is_in_use_below(place: &Place) -> bool {
    let media = ([&*place.pmem, &*place.data], &*place.path);
    let locked = below::lock(media, LockKind::Shared, Duration::ZERO);
    matches!(locked, Err(VolumeError::Busy(_)))
}

/// The configuration table of the volume at a path, which may be in use. Nothing else is looked at.
///
/// # Errors
/// There is no volume, or it cannot be read.
pub fn config_of(path: &Path) -> Result<ConfigTable, VolumeError> {
    let place = locate(path)?;
    config(&place, &open(&place)?)
}

/// Whether the volume at a path, which may be in use, has a batch log without a head: it cannot be mounted then.
///
/// # Errors
/// Those of [`config_of`].
pub fn has_lost_its_log(path: &Path) -> Result<bool, VolumeError> {
    let place = locate(path)?;
    let region = open(&place)?;
    let config = config(&place, &region)?;
    let Some(log) = batch_log(&config.geometry, config.salt()) else {
        return Ok(false);
    };
    // One is always whole. But where they are being written, and this process is slow, it may see each just then.
    Ok((0..3).all(|_| region.intact_batch_heads(&log) == 0))
}

fn open(place: &Place) -> Result<Region, PmemError> {
    let options = MapOptions {
        read_only: true,
        len: place.region_len,
        ..MapOptions::default()
    };
    Region::open(&place.pmem, options)
}

fn config(place: &Place, region: &Region) -> Result<ConfigTable, VolumeError> {
    read_config(region)?.map_err(|why| VolumeError::Config {
        path: place.pmem.clone(),
        why,
    })
}

fn left(region: &Region, config: &ConfigTable) -> Result<Option<Left>, PmemError> {
    let (off, salt) = (config.geometry.jsb_off, config.salt());
    let mut page = region.peek(off, JSB_BYTES as u64)?;
    for (at, content) in batched(region, config, off..off + JSB_BYTES as u64)? {
        page[at..at + content.len()].copy_from_slice(&content);
    }
    let word = |kind: WordKind| quayfs_layout::bytes::get_u64(&page, kind.offset() as usize);
    let Some(epoch) = EpochWord::decode(word(WordKind::Epoch), salt) else {
        return Ok(None);
    };
    let number = |kind: WordKind| SeqWord::decode(word(kind), kind.salt(salt));
    let closed = number(WordKind::Clean).map_or(Closed::No, |n| Closed::of(n, epoch.epoch));
    Ok(Some(Left {
        clean: closed.is_clean(),
        staged: match closed {
            Closed::No => None,
            Closed::Staged => number(WordKind::Staged),
            Closed::Empty => Some(0),
        },
        repairing: epoch.repairing,
        mode: epoch.mode,
        epoch: epoch.epoch,
    }))
}

/// What the batch log has for a range of the region, in the order in which it was written: offsets in the range, and
/// what belongs there.
fn batched(
    region: &Region,
    config: &ConfigTable,
    range: std::ops::Range<u64>,
) -> Result<Vec<(usize, Vec<u8>)>, PmemError> {
    let (g, salt) = (&config.geometry, config.salt());
    if g.batch_log_bytes == 0 {
        return Ok(Vec::new());
    }
    let heads = HEADS.map(|at| region.peek(g.batch_log_off + at, SECTOR as u64));
    let heads = heads.into_iter().collect::<Result<Vec<_>, _>>()?;
    let heads = heads.iter().filter_map(|b| LogHead::decode(b, salt));
    let Some(head) = heads.max_by_key(|head| head.generation) else {
        return Ok(Vec::new());
    };
    let mut found = Vec::new();
    for half in halves(g.batch_log_bytes) {
        let bytes = region.peek(g.batch_log_off + half.start, half.end - half.start)?;
        let mut at = 0;
        while at < bytes.len() {
            let Some(batch) = Batch::decode(&bytes[at..], head.life, salt) else {
                at += SECTOR;
                continue;
            };
            at += batch.len;
            if batch.id.lap <= head.retired {
                continue;
            }
            let parts = batch.pieces.iter().filter_map(|(off, content)| {
                let from = range.start.max(*off);
                let to = range.end.min(off + content.len() as u64);
                let part = content.get((from - off) as usize..to.checked_sub(*off)? as usize)?;
                Some(((from - range.start) as usize, part.to_vec()))
            });
            found.extend(parts.map(|part| (batch.id.seq, part)));
        }
    }
    found.sort_by_key(|(seq, _)| *seq);
    Ok(found.into_iter().map(|(_, part)| part).collect())
}

const _: () = assert!(JSB_BYTES == BLOCK);
