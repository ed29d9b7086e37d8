//! Changing the length of a volume's data device, while it is not mounted.
//!
//! A crash at any moment leaves the volume as it was, or as it is to be: everything that a new geometry needs is written
//! where the old one has nothing that counts ([`quayfs_layout::geometry::Geometry::resized`]), and is durable before the
//! configuration table names it. docs/internals/crash-consistency.md has the order.
//!
//! | module | does |
//! |---|---|
//! | `used` | what is in use of a volume that was closed |
//! | `table` | page table and checksums at their new place, and blocks that would lie behind the end |
//! | `nodes` | the node address table at its new place, and pages that move |
//! | `medium` | the file that holds the data |

mod medium;
mod nodes;
mod table;
mod used;

use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use quayfs_fs::recovery::{MountError, batch_log, journal_geometry};
use quayfs_fs::volume::{Access, Place, Volume, VolumeError, locate};
use quayfs_fs::{Fs, FsError, MountOptions};
use quayfs_journal::{Journal, JournalError};
use quayfs_layout::BLOCK;
use quayfs_layout::config::FEATURE_RESIZED;
use quayfs_layout::geometry::{Geometry, InUse, NoRoom};
use quayfs_layout::jsb::{EpochWord, WordKind};
use quayfs_layout::slot::{SLOT_HEADER_BYTES, blank_header};
use quayfs_pmem::PmemError;
use quayfs_shown::progress::{Meter, Unit};

pub use used::in_use;

const B: u64 = BLOCK as u64;

/// How often to look how much is left to drain.
const LOOK: Duration = Duration::from_millis(200);
/// Slot headers written at a time.
const HEADERS: u64 = 1024;

/// How long the data device is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// So many bytes, rounded down to whole blocks.
    Bytes(u64),
    /// As long as the device or file is.
    All,
}

/// Why a volume does not have another size. Prints as one line that says what to do.
#[derive(Debug, thiserror::Error)]
pub enum ResizeError {
    /// It cannot be opened.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// What its last mount has left cannot be brought to an end.
    #[error("{0}")]
    Mount(#[from] MountError),
    /// The same, later.
    #[error("{0}")]
    Close(#[from] FsError),
    /// The journal cannot be read.
    #[error("journal: {0}")]
    Journal(#[from] JournalError),
    /// The region fails.
    #[error(transparent)]
    Pmem(#[from] PmemError),
    /// The data device fails.
    #[error("data device: {0}")]
    Device(std::io::Error),
    /// The file that holds the data cannot be made longer or shorter.
    #[error("{}: {source}", path.display())]
    Medium {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Something of it is damaged.
    #[error("{0} is damaged: `quayfs fsck --repair` first")]
    Damaged(String),
    /// The volume has changed meanwhile.
    #[error("another process has used the volume meanwhile: try again")]
    Changed,
    /// The device is not long enough.
    #[error(
        "the device has room for {have} bytes of data, {want} were asked for: make the device larger first, as with lvextend"
    )]
    Short {
        /// What it has.
        have: u64,
        /// What was asked for.
        want: u64,
    },
    /// Less than is in use.
    #[error(
        "{want} bytes are too few: blocks are in use up to where {least} bytes end; for less, make a smaller volume and copy the files"
    )]
    TooSmall {
        /// What was asked for.
        want: u64,
        /// What can be had.
        least: u64,
    },
    /// More than the region has room for.
    #[error(
        "{want} bytes are too many: the region has room for the page table of {most} bytes; for more, make a volume with a larger region (`quayfs mkfs --pmem-size`) and copy the files"
    )]
    TooLarge {
        /// What was asked for.
        want: u64,
        /// What can be had.
        most: u64,
    },
}

/// What has become of a volume.
#[derive(Clone, Copy, Debug)]
pub struct Resized {
    /// As it was.
    pub before: Geometry,
    /// As it is.
    pub after: Geometry,
}

/// Gives the data device of the volume at a path another length. What its last mount has left is brought to an end first. A
/// file is made longer before and shorter after; a device is as long as it is. The meter is told how far it is.
/// Durable when it returns.
///
/// # Errors
/// [`ResizeError`]; the volume is as it was then, or, after the failure of a medium, perhaps as it was to be.
pub fn resize(path: &Path, wanted: Wanted, meter: &Meter) -> Result<Resized, ResizeError> {
    let place = locate(path)?;
    let volume = opened_closed(path, meter)?;
    let before = volume.config().geometry;
    let changes = volume.config().changes;
    let there = volume.device().blocks();
    let blocks = match wanted {
        Wanted::Bytes(bytes) => bytes / B,
        Wanted::All => there,
    };
    // Before a file is made longer for nothing.
    steps(&volume, blocks)?;
    let grown = blocks > there;
    if grown {
        if !medium::is_file(&place)? {
            return Err(ResizeError::Short {
                have: there * B,
                want: blocks * B,
            });
        }
        meter.begin("making the file longer", 0, Unit::Bytes);
        medium::set_len(&place, blocks * B)?;
    }
    // The device knows its length from when it was opened.
    drop(volume);
    let mut volume = Volume::open(path, Access::ReadWrite, Duration::ZERO)?;
    if volume.config().changes != changes || !is_closed(&volume)? {
        return Err(ResizeError::Changed);
    }
    resize_volume(&mut volume, blocks, meter)?;
    shorten(&place, &volume)?;
    Ok(Resized {
        before,
        after: volume.config().geometry,
    })
}

/// What is behind the end of the data goes back to the file system that holds the file.
fn shorten(place: &Place, volume: &Volume) -> Result<(), ResizeError> {
    let blocks = volume.config().geometry.data_blocks;
    match blocks < volume.device().blocks() && medium::is_file(place)? {
        true => medium::set_len(place, blocks * B),
        false => Ok(()),
    }
}

/// The volume, with nothing in its journal.
fn opened_closed(path: &Path, meter: &Meter) -> Result<Volume, ResizeError> {
    let open = || Volume::open(path, Access::ReadWrite, Duration::ZERO);
    let volume = open()?;
    if is_closed(&volume)? {
        return Ok(volume);
    }
    let fs = Fs::mount_quiet(volume, &MountOptions::default())?;
    closing(&fs, meter)?;
    drop(fs);
    let volume = open()?;
    match is_closed(&volume)? {
        true => Ok(volume),
        false => Err(ResizeError::Changed),
    }
}

/// Closes a volume, and tells how much of what is staged is left to do.
fn closing(fs: &Fs, meter: &Meter) -> Result<(), ResizeError> {
    let left = || fs.e.left_to_drain() * B;
    let all = left();
    meter.begin("draining", all, Unit::Bytes);
    let (ended, watched) = channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            while watched.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
                meter.set(all.saturating_sub(left()), all);
            }
        });
        let closed = fs.shutdown();
        drop(ended);
        Ok(closed?)
    })
}

fn is_closed(volume: &Volume) -> Result<bool, ResizeError> {
    let (g, salt) = (&volume.config().geometry, volume.config().salt());
    let epoch = volume
        .region()
        .load_u64(g.jsb_off + WordKind::Epoch.offset());
    let repairing = EpochWord::decode(epoch, salt).is_some_and(|e| e.repairing);
    let closed = Journal::is_closed(volume.region(), &journal_geometry(g, salt))?;
    Ok(closed && !repairing)
}

/// The geometries on the way to so many blocks, and what is in use.
fn steps(volume: &Volume, blocks: u64) -> Result<(Vec<Geometry>, InUse), ResizeError> {
    let geometry = &volume.config().geometry;
    let used = in_use(volume)?;
    match geometry.resized(blocks, &used) {
        Ok(steps) => Ok((steps, used)),
        Err(why) => {
            let bounds = geometry.bounds(&used);
            let want = blocks * B;
            Err(match why {
                NoRoom::Data => ResizeError::TooSmall {
                    want,
                    least: bounds.least * B,
                },
                NoRoom::Region => ResizeError::TooLarge {
                    want,
                    most: bounds.most * B,
                },
            })
        }
    }
}

/// [`resize`] of a volume that is open for writing and was closed by its last mount, and whose device is long enough.
///
/// # Errors
/// As of [`resize`].
///
/// # Panics
/// If it was not closed, or the device is not long enough.
pub fn resize_volume(volume: &mut Volume, blocks: u64, meter: &Meter) -> Result<(), ResizeError> {
    assert!(is_closed(volume)?, "nothing is in the journal");
    let (steps, used) = steps(volume, blocks)?;
    for to in steps {
        assert!(to.data_blocks <= volume.device().blocks(), "long enough");
        step(volume, &to, &used, meter)?;
    }
    Ok(())
}

/// From one geometry to the next. Everything is durable before the configuration table that says so counts.
fn step(
    volume: &mut Volume,
    to: &Geometry,
    used: &InUse,
    meter: &Meter,
) -> Result<(), ResizeError> {
    let from = volume.config().geometry;
    if to.blocks != from.blocks {
        table::write(volume, to, used, meter)?;
    }
    if to.nat_off != from.nat_off {
        nodes::write(volume, to, meter)?;
    }
    write_headers(volume, to, meter);
    // Batches of earlier mounts name places where something else is from now on. None of them counts any more.
    if let Some(log) = batch_log(&from, volume.config().salt()) {
        volume.region().format_batches(&log)?;
    }
    // All of that is durable before the copy of the table is touched that says the old.
    volume.change_config(|config| {
        config.geometry = *to;
        config.compat[2] |= FEATURE_RESIZED;
    })?;
    Ok(())
}

/// Headers of slots that hold nothing.
fn write_headers(volume: &Volume, to: &Geometry, meter: &Meter) {
    let salt = volume.config().salt();
    let all = to.buffers * to.slots_per_buffer * SLOT_HEADER_BYTES as u64;
    meter.begin("slot headers", all, Unit::Bytes);
    for buffer in 0..to.buffers {
        for first in (0..to.slots_per_buffer).step_by(HEADERS as usize) {
            let n = HEADERS.min(to.slots_per_buffer - first);
            let headers: Vec<u8> = (first..first + n)
                .flat_map(|index| blank_header(salt, buffer as u16, index))
                .collect();
            let at = (buffer * to.slots_per_buffer + first) * SLOT_HEADER_BYTES as u64;
            volume.region().write_nt(to.slot_hdr_off + at, &headers);
            meter.add(headers.len() as u64);
        }
    }
}
