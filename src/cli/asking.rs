//! Asking the daemon of a mount how it is, for commands that show that.

use super::exit::Failure;
use super::unopened::unreached;
use crate::mount::server;
use crate::mount::table::{self, Entry};
use rustix::io::Errno;
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

/// The mount that a path means: a mount point, or a volume that is mounted. Failures have the exit code `code`.
pub fn mount_at(target: &Path, code: u8) -> Result<Entry, Failure> {
    let path = table::resolve(target).map_err(|e| unreached(code, target, &e))?;
    let shown = quayfs_shown::path(&path);
    table::mount_for(&path)
        .map_err(|e| Failure::new(code, format_args!("mount table: {e}")))?
        .ok_or_else(|| Failure::new(code, format_args!("{shown} is not mounted")))
}

/// What its daemon says.
pub fn status(entry: &Entry, patience: Duration, code: u8) -> Result<Value, Failure> {
    let shown = quayfs_shown::path(&entry.target);
    let text = server::ask(entry, patience).map_err(|e| {
        Failure::new(
            code,
            match e {
                Errno::NOTCONN => {
                    format!("the daemon of {shown} is gone: `quayfs umount {shown}`, then mount again")
                }
                Errno::TIMEDOUT => format!("the daemon of {shown} does not answer: `quayfs status {shown}`"),
                Errno::ACCESS | Errno::PERM => format!(
                    "permission denied: {shown} was mounted by another user, for that user alone (no allow_other)"
                ),
                Errno::NODATA | Errno::OPNOTSUPP => {
                    format!("{shown} is {}, not QuayFS", entry.fstype)
                }
                e => format!("{shown} does not answer: {e}"),
            },
        )
    })?;
    serde_json::from_str(&text).map_err(|e| {
        Failure::new(
            code,
            format_args!("{shown} answers nonsense about itself: {e}"),
        )
    })
}
