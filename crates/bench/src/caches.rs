//! The kernel's caches, which only root can drop.

use crate::error::{Error, Result};
use std::path::Path;

const CONTROL: &str = "/proc/sys/vm/drop_caches";

/// What is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Dentries and inodes.
    Objects = 2,
    /// Those and the page cache.
    All = 3,
}

/// Whether this process may drop them.
pub fn can_drop() -> bool {
    rustix::process::geteuid().is_root() && Path::new(CONTROL).exists()
}

/// Drops what is clean: dirty pages and inodes stay, so sync before.
///
/// # Errors
/// The kernel refuses.
pub fn drop(what: What) -> Result<()> {
    let text = (what as u8).to_string();
    std::fs::write(CONTROL, text).map_err(Error::file(Path::new(CONTROL)))
}
