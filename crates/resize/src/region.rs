//! A region of another length: written anew into a file beside the old one, which then takes its name.
//!
//! Until the rename is durable the old file is the volume, and nothing in it has changed; from then on the new one is, and
//! what is in the old one, which has no name any more, is made no volume: a process that has opened it and waits for its lock
//! must not use it.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use quayfs_fs::closing::{close, opened_closed};
use quayfs_fs::volume::{Place, Volume, locate};
use quayfs_layout::BLOCK;
use quayfs_layout::config::COPIES;
use quayfs_layout::geometry::{Geometry, InUse};
use quayfs_pmem::{LockKind, MapOptions, PmemError, Region};
use quayfs_shown::progress::Meter;

use crate::copy::copy_data;
use crate::rewrite::rewrite;
use crate::{B, How, ResizeError, Resized, in_use};

/// Behind the name of the file while its successor is written.
const NEXT: &str = ".resizing";

/// Gives the region of the volume at a path another length, in bytes, rounded down to whole blocks. What its last mount has
/// left is brought to an end first. Durable when it returns.
///
/// # Errors
/// [`ResizeError`]; the volume is as it was then.
pub fn resize_region(path: &Path, bytes: u64, meter: &Meter) -> Result<Resized, ResizeError> {
    close(path, meter)?;
    resize_closed_region(path, bytes, How::freely(meter))
}

/// [`resize_region`] of a volume that was closed.
///
/// # Errors
/// The same; [`ResizeError::Changed`] if it was not closed.
pub fn resize_closed_region(path: &Path, bytes: u64, how: How<'_>) -> Result<Resized, ResizeError> {
    let place = locate(path)?;
    let volume = opened_closed(path)?;
    let before = volume.config().geometry;
    let resized = |after| Resized { before, after };
    if before.pmem_len == bytes / B * B {
        Next::clear(&place)?;
        return Ok(resized(before));
    }
    replaceable(&place)?;
    let after = how.confined(|| wanted(&volume, bytes))?;
    how.permits(Some(&after))?;
    let next = Next::begin(&place)?;
    let new = Arc::new(next.region(&place, &volume, &after)?);
    how.confined(|| rewrite(&volume, &new, &after, how.meter))?;
    if let Some(len) = place.region_len {
        let (old, data) = (next.open_old(&place)?, before.data_blocks * B);
        let copied = how.confined(|| {
            copy_data((&old, len), (&next.file, after.pmem_len), data, how.meter)
                .map_err(next.failed())
        });
        copied?;
    }
    volume.take_backup_back().map_err(ResizeError::Device)?;
    next.take_over(&place)?;
    // A process that has it open may be waiting for its lock, and must not find a volume.
    let old = volume.region();
    COPIES
        .iter()
        .for_each(|off| old.write_nt(*off, &[0; BLOCK]));
    old.drain()?;
    Ok(resized(after))
}

fn wanted(volume: &Volume, bytes: u64) -> Result<Geometry, ResizeError> {
    with_region(&volume.config().geometry, bytes, &in_use(volume)?)
}

/// The geometry with a region of so many bytes, if so much is in use.
///
/// # Errors
/// [`ResizeError::RegionTooSmall`].
pub fn with_region(geometry: &Geometry, bytes: u64, used: &InUse) -> Result<Geometry, ResizeError> {
    geometry
        .with_region(bytes, used)
        .map_err(|_| ResizeError::RegionTooSmall {
            want: bytes,
            least: geometry.least_region(used),
        })
}

/// Refuses a region that cannot be replaced by another file.
///
/// # Errors
/// [`ResizeError::RegionDevice`], [`ResizeError::OneDevice`], [`ResizeError::Linked`]; or it cannot be looked at.
pub fn replaceable(place: &Place) -> Result<(), ResizeError> {
    let meta = fs::metadata(&place.pmem).map_err(failed(&place.pmem))?;
    let path = place.pmem.clone();
    match (meta.is_file(), place.region_len) {
        (true, _) if meta.nlink() > 1 => Err(ResizeError::Linked(path)),
        (true, _) => Ok(()),
        (false, None) => Err(ResizeError::RegionDevice(path)),
        (false, Some(_)) => Err(ResizeError::OneDevice(path)),
    }
}

fn failed(path: &Path) -> impl Fn(io::Error) -> ResizeError + Send + Sync + '_ {
    move |source| ResizeError::Medium {
        path: path.into(),
        source,
    }
}

/// The file that is to take the place of the old one; removed again unless it has.
struct Next {
    path: PathBuf,
    /// Where it is to go.
    target: PathBuf,
    file: File,
    is_left: bool,
}

impl Next {
    /// Removes what an attempt has left that did not come to its end. The file to be replaced, and the one beside it.
    fn clear(place: &Place) -> Result<(PathBuf, PathBuf), ResizeError> {
        let target = place.pmem.canonicalize().map_err(failed(&place.pmem))?;
        let mut name = target.clone().into_os_string();
        name.push(NEXT);
        let path = PathBuf::from(name);
        match fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(failed(&path)(e)),
            _ => Ok((target, path)),
        }
    }

    /// An empty file, of the same owner and mode.
    fn begin(place: &Place) -> Result<Self, ResizeError> {
        let (target, path) = Self::clear(place)?;
        let make = || {
            let meta = fs::metadata(&target)?;
            let file = File::options()
                .read(true)
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&path)?;
            Ok((file, meta))
        };
        let (file, meta) = make().map_err(failed(&path))?;
        let next = Self {
            path: path.clone(),
            target,
            file,
            is_left: true,
        };
        let like = || {
            let own = next.file.metadata()?;
            if (own.uid(), own.gid()) != (meta.uid(), meta.gid()) {
                fchown(&next.file, Some(meta.uid()), Some(meta.gid()))?;
            }
            let mode = fs::Permissions::from_mode(meta.mode() & 0o7777);
            next.file.set_permissions(mode)
        };
        like().map_err(failed(&path))?;
        Ok(next)
    }

    /// The region in it, locked as the old one is. All of it is allocated, and in a file that holds the data as well their
    /// place is behind it.
    fn region(&self, place: &Place, volume: &Volume, to: &Geometry) -> Result<Region, ResizeError> {
        let data = match place.region_len {
            Some(_) => volume.config().geometry.data_blocks * B,
            None => 0,
        };
        (self.file.set_len(to.pmem_len + data)).map_err(self.failed())?;
        let options = MapOptions {
            len: Some(to.pmem_len),
            ..MapOptions::default()
        };
        let region = Region::open(&self.path, options)?;
        region.allocate(0, to.pmem_len).map_err(|e| match e {
            PmemError::NoRoom { free, .. } => ResizeError::NoRoom {
                path: place.pmem.clone(),
                len: to.pmem_len,
                free,
            },
            e => e.into(),
        })?;
        match region.lock_within(LockKind::Exclusive, Duration::ZERO)? {
            true => Ok(region),
            false => Err(ResizeError::Changed),
        }
    }

    fn open_old(&self, place: &Place) -> Result<File, ResizeError> {
        File::open(&place.data).map_err(failed(&place.data))
    }

    fn failed(&self) -> impl Fn(io::Error) -> ResizeError + Send + Sync + '_ {
        failed(&self.path)
    }

    /// Gets the name of the old one. Durable when it returns.
    fn take_over(mut self, place: &Place) -> Result<(), ResizeError> {
        // Length, owner and mode too.
        self.file.sync_all().map_err(self.failed())?;
        fs::rename(&self.path, &self.target).map_err(failed(&place.pmem))?;
        self.is_left = false;
        let dir = self.target.parent().unwrap_or(Path::new("/"));
        let synced = File::open(dir).and_then(|dir| dir.sync_all());
        synced.map_err(failed(dir))
    }
}

impl Drop for Next {
    fn drop(&mut self) {
        if self.is_left {
            // Else the next attempt does.
            let _ = fs::remove_file(&self.path);
        }
    }
}
