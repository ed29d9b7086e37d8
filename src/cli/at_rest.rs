//! A volume that no daemon serves, recovered by this process for as long as a command needs it.

use quayfs_fs::Fs;
use quayfs_fs::recovery::MountError;
use quayfs_fs::volume::{Access, Volume};
use quayfs_options::MountOptions;
use std::sync::Arc;

/// Recovers an open volume: only in memory, if it was opened for reading.
///
/// # Errors
/// Those of a mount.
pub fn recover(volume: Volume) -> Result<Arc<Fs>, MountError> {
    let options = MountOptions {
        read_only: volume.access() == Access::ReadOnly,
        ..MountOptions::default()
    };
    Fs::mount(volume, &options)
}
