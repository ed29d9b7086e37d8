//! A volume is closed, with nothing in its journal, so that something can be done with its media: after its mount, which may
//! not have ended well, or between two daemons of a mount that goes on.

use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use quayfs_journal::{Journal, JournalError};
use quayfs_layout::BLOCK;
use quayfs_layout::jsb::{Closed, EpochWord, WordKind};
use quayfs_options::MountOptions;
use quayfs_shown::progress::{Meter, Unit};
use quayfs_store::error::FsError;

use crate::Fs;
use crate::recovery::{MountError, journal_geometry};
use crate::volume::{Access, Volume, VolumeError};

/// Why a volume is not closed. Prints as one line.
#[derive(Debug, thiserror::Error)]
pub enum CloseError {
    /// It cannot be opened.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// What its last mount has left cannot be brought to an end.
    #[error("{0}")]
    Mount(#[from] MountError),
    /// The same, later.
    #[error("{0}")]
    Operation(#[from] FsError),
    /// The journal cannot be read.
    #[error("journal: {0}")]
    Journal(#[from] JournalError),
    /// Something is in its journal again.
    #[error("another process has used the volume meanwhile: try again")]
    Changed,
}

/// How long a device may be in use by what this process has just closed: the kernel ends some of that later.
const OURSELVES: Duration = Duration::from_secs(10);
/// How often to look how much is left to drain.
const LOOK: Duration = Duration::from_millis(200);

/// Brings to an end what the last mount of a volume has left, which has ended.
///
/// # Errors
/// It cannot be mounted, or its media fail.
pub fn close(path: &Path, meter: &Meter) -> Result<(), CloseError> {
    let volume = open(path, Duration::ZERO)?;
    if is_closed(&volume)? {
        return Ok(());
    }
    let fs = Fs::mount_quiet(volume, &MountOptions::default())?;
    telling(&fs, meter, Fs::shutdown)
}

/// The same of a mount that goes on with the next daemon: what the last one was doing is judged, and files without names
/// stay. To be called before any request is answered. What is in the media afterwards is all there is: nothing else that the
/// last daemon has stored is needed any more.
///
/// # Errors
/// It cannot be mounted, or its media fail: what was done until then is as after the death of a daemon.
pub fn close_between(
    volume: Volume,
    options: &MountOptions,
    meter: &Meter,
) -> Result<(), CloseError> {
    let fs = Fs::mount_to_close(volume, options)?;
    telling(&fs, meter, Fs::close_keeping_orphans)
}

/// Closes a volume, and tells how much of what is staged is left to do.
fn telling(
    fs: &Fs,
    meter: &Meter,
    close: impl FnOnce(&Fs) -> Result<(), FsError>,
) -> Result<(), CloseError> {
    let left = || fs.e.left_to_drain() * BLOCK as u64;
    let all = left();
    meter.begin("draining", all, Unit::Bytes);
    let (ended, watched) = channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            while watched.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
                meter.set(all.saturating_sub(left()), all);
            }
        });
        let closed = close(fs);
        drop(ended);
        Ok(closed?)
    })
}

/// The volume at a path, which was closed.
///
/// # Errors
/// [`CloseError::Volume`]; [`CloseError::Changed`] if something is in its journal.
pub fn opened_closed(path: &Path) -> Result<Volume, CloseError> {
    let volume = open(path, OURSELVES)?;
    match is_closed(&volume)? {
        true => Ok(volume),
        false => Err(CloseError::Changed),
    }
}

fn open(path: &Path, wait: Duration) -> Result<Volume, CloseError> {
    Ok(Volume::open(path, Access::ReadWrite, wait)?)
}

/// Whether nothing is in the journal of a volume: no record, and no slot has a block that was left staged.
///
/// # Errors
/// Its superblock cannot be read.
pub fn is_closed(volume: &Volume) -> Result<bool, CloseError> {
    let (g, salt) = (&volume.config().geometry, volume.config().salt());
    let epoch = volume
        .region()
        .load_u64(g.jsb_off + WordKind::Epoch.offset());
    let repairing = EpochWord::decode(epoch, salt).is_some_and(|e| e.repairing);
    let closed = Journal::closed(volume.region(), &journal_geometry(g, salt))?;
    Ok(closed == Closed::Empty && !repairing)
}
