//! How full a volume is that is not mounted. That is on no page of its own: it takes what a mount does to recover it, here
//! read-only, in the memory of this process.

use crate::cli::at_rest;
use quayfs_fs::volume::{Access, Volume, VolumeError};
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

/// What a daemon would say of it that had just mounted it. `None` if it is in use by now, or cannot be recovered.
///
/// # Errors
/// The media do not belong together, or are not as long as they were.
pub fn status(path: &Path) -> Result<Option<Value>, VolumeError> {
    let volume = match Volume::open(path, Access::ReadOnly, Duration::ZERO) {
        Ok(volume) => volume,
        Err(why @ VolumeError::Pairing { .. }) => return Err(why),
        Err(_) => return Ok(None),
    };
    let Ok(fs) = at_rest::recover(volume) else {
        return Ok(None);
    };
    let status = serde_json::to_value(fs.status()).ok();
    // Nothing of it was changed, so there is nothing that could fail to be written.
    let _ = fs.shutdown();
    Ok(status)
}
