//! Changing the length of a volume's data device, or of its region, while no mount uses it.
//!
//! A crash at any moment leaves the volume as it was, or as it is to be: everything that a new geometry needs is written
//! where the old one has nothing that counts ([`quayfs_layout::geometry::Geometry::resized`]), and is durable before the
//! configuration table names it. docs/internals/crash-consistency.md has the order.
//!
//! | module | does |
//! |---|---|
//! | `used` | what is in use of a volume that was closed |
//! | `table` | page table and checksums at their new place, and blocks that would lie behind the end |
//! | `region` | a region of another length: a new file takes the place of the old one |
//! | `rewrite`, `copy` | what is in it: of the region, and of the data behind it where both are one file |
//! | `nodes` | the node address table at its new place, and pages that move |
//! | `medium` | the file that holds the data |

mod copy;
mod error;
mod medium;
mod nodes;
mod region;
mod rewrite;
mod table;
mod used;

use std::io;
use std::path::Path;

use quayfs_fs::closing::{close, is_closed, opened_closed};
use quayfs_fs::recovery::batch_log;
use quayfs_fs::volume::{Place, Volume, locate};
use quayfs_layout::BLOCK;
use quayfs_layout::config::FEATURE_RESIZED;
use quayfs_layout::geometry::{Geometry, InUse, NoRoom};
use quayfs_layout::slot::{SLOT_HEADER_BYTES, blank_header};
use quayfs_shown::progress::{Meter, Unit};

pub use error::ResizeError;
pub use medium::{Room, room};
pub use region::{replaceable, resize_closed_region, resize_region, with_region};
pub use rewrite::rewrite;
pub use used::in_use;

const B: u64 = BLOCK as u64;

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

/// What has become of a volume.
#[derive(Clone, Copy, Debug)]
pub struct Resized {
    /// As it was.
    pub before: Geometry,
    /// As it is.
    pub after: Geometry,
}

/// How a volume is resized.
#[derive(Clone, Copy)]
pub struct How<'a> {
    /// Is told how far it is.
    pub meter: &'a Meter,
    /// Of a mount that goes on, how many bytes its kernel may send with a request; 0 without one.
    pub request: u64,
    /// Does what reads the media, with fewer rights than the caller has.
    pub confined: &'a (dyn Fn(&mut (dyn FnMut() + Send)) -> io::Result<()> + Sync),
}

impl std::fmt::Debug for How<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("How")
    }
}

impl How<'_> {
    /// With all rights.
    pub fn freely(meter: &Meter) -> How<'_> {
        How {
            meter,
            request: 0,
            confined: &|work| {
                work();
                Ok(())
            },
        }
    }

    /// Fails if a mount that goes on could not carry out the requests that it may get.
    fn permits(&self, after: Option<&Geometry>) -> Result<(), ResizeError> {
        let then = after.map_or(self.request, |after| after.request_blocks() * B);
        match then < self.request {
            true => Err(ResizeError::Requests {
                now: self.request,
                then,
            }),
            false => Ok(()),
        }
    }

    fn confined<T: Send>(
        &self,
        work: impl FnOnce() -> Result<T, ResizeError> + Send,
    ) -> Result<T, ResizeError> {
        let (mut work, mut done) = (Some(work), None);
        (self.confined)(&mut || done = work.take().map(|work| work()))
            .map_err(ResizeError::Thread)?;
        done.unwrap_or(Err(ResizeError::Changed))
    }
}

/// Gives the data device of the volume at a path another length. What its last mount has left is brought to an end first. A
/// file is made longer before and shorter after; a device is as long as it is. The meter is told how far it is.
/// Durable when it returns.
///
/// # Errors
/// [`ResizeError`]; the volume is as it was then, or, after the failure of a medium, perhaps as it was to be.
pub fn resize(path: &Path, wanted: Wanted, meter: &Meter) -> Result<Resized, ResizeError> {
    close(path, meter)?;
    resize_closed(path, wanted, How::freely(meter))
}

/// [`resize`] of a volume that was closed.
///
/// # Errors
/// The same; [`ResizeError::Changed`] if it was not closed.
pub fn resize_closed(path: &Path, wanted: Wanted, how: How<'_>) -> Result<Resized, ResizeError> {
    let place = locate(path)?;
    let volume = opened_closed(path)?;
    let before = volume.config().geometry;
    let changes = volume.config().changes;
    let there = volume.device().blocks();
    let blocks = match wanted {
        Wanted::Bytes(bytes) => bytes / B,
        Wanted::All => there,
    };
    // Before a file is made longer for nothing.
    let (ways, _) = how.confined(|| steps(&volume, blocks, how.request))?;
    how.permits(ways.last())?;
    if blocks > there {
        if !medium::is_file(&place)? {
            return Err(ResizeError::Short {
                have: there * B,
                want: blocks * B,
            });
        }
        how.meter.begin("making the file longer", 0, Unit::Bytes);
        medium::set_len(&place, blocks * B)?;
    }
    // The device knows its length from when it was opened.
    drop(volume);
    let mut volume = opened_closed(path)?;
    if volume.config().changes != changes {
        return Err(ResizeError::Changed);
    }
    how.confined(|| resize_volume_for(&mut volume, (blocks, how.request), how.meter))?;
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

/// The geometries on the way to so many blocks, with which a request can have so many bytes if possible, and what is in use.
fn steps(
    volume: &Volume,
    blocks: u64,
    request: u64,
) -> Result<(Vec<Geometry>, InUse), ResizeError> {
    let used = InUse {
        request_blocks: request / B,
        ..in_use(volume)?
    };
    Ok((ways(&volume.config().geometry, blocks, &used)?, used))
}

/// The geometries that lead to a data device of so many blocks, if so much is in use.
///
/// # Errors
/// [`ResizeError::TooSmall`], [`ResizeError::TooLarge`].
pub fn ways(geometry: &Geometry, blocks: u64, used: &InUse) -> Result<Vec<Geometry>, ResizeError> {
    let want = blocks * B;
    geometry.resized(blocks, used).map_err(|why| {
        let bounds = geometry.bounds(used);
        match why {
            NoRoom::Data => ResizeError::TooSmall {
                want,
                least: bounds.least * B,
            },
            NoRoom::Region => ResizeError::TooLarge {
                want,
                most: bounds.most * B,
            },
        }
    })
}

/// [`resize`] of a volume that is open for writing and was closed by its last mount, and whose device is long enough.
///
/// # Errors
/// As of [`resize`].
///
/// # Panics
/// If it was not closed, or the device is not long enough.
pub fn resize_volume(volume: &mut Volume, blocks: u64, meter: &Meter) -> Result<(), ResizeError> {
    resize_volume_for(volume, (blocks, 0), meter)
}

fn resize_volume_for(
    volume: &mut Volume,
    (blocks, request): (u64, u64),
    meter: &Meter,
) -> Result<(), ResizeError> {
    assert!(is_closed(volume)?, "nothing is in the journal");
    let (steps, used) = steps(volume, blocks, request)?;
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
