//! How full a volume is that is not mounted. That is on no page of its own: it takes what a mount does to recover it, here
//! read-only, in the memory of this process.

use crate::cli::at_rest;
use quayfs_fs::volume::{Access, Volume};
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

/// What a daemon would say of it that had just mounted it. `None` if it cannot be mounted, or is in use by now.
pub fn status(path: &Path) -> Option<Value> {
    let volume = Volume::open(path, Access::ReadOnly, Duration::ZERO).ok()?;
    let fs = at_rest::recover(volume).ok()?;
    let status = serde_json::to_value(fs.status()).ok();
    // Nothing of it was changed, so there is nothing that could fail to be written.
    let _ = fs.shutdown();
    status
}
