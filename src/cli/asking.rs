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

/// The one mount of QuayFS that there is.
pub fn only_mount(code: u8) -> Result<Entry, Failure> {
    let table = table::read().map_err(|e| Failure::new(code, format_args!("mount table: {e}")))?;
    let mut ours: Vec<Entry> = table.into_iter().filter(Entry::is_quayfs).collect();
    ours.sort_by(|a, b| a.device.cmp(&b.device));
    ours.dedup_by(|a, b| a.device == b.device);
    match ours.len() {
        1 => Ok(ours.remove(0)),
        0 => Err(Failure::new(code, "no volume is mounted")),
        n => Err(Failure::new(
            code,
            format_args!("{n} volumes are mounted: name one, `quayfs status` lists them"),
        )),
    }
}

/// What its daemon says.
pub fn status(entry: &Entry, patience: Duration, code: u8) -> Result<Value, Failure> {
    understood(entry, server::ask(entry, patience), code)
}

/// The answer of a daemon, or why there is none.
pub fn understood(
    entry: &Entry,
    answer: Result<String, Errno>,
    code: u8,
) -> Result<Value, Failure> {
    let shown = quayfs_shown::path(&entry.target);
    let why = match answer {
        Ok(text) => match serde_json::from_str(&text) {
            Ok(status) => return Ok(status),
            Err(e) => format!("{shown} answers nonsense about itself: {e}"),
        },
        Err(Errno::NOTCONN) => {
            format!("the daemon of {shown} is gone: `quayfs umount {shown}`, then mount again")
        }
        Err(Errno::TIMEDOUT) => {
            format!("the daemon of {shown} does not answer: `quayfs status {shown}`")
        }
        Err(Errno::ACCESS | Errno::PERM) => format!(
            "permission denied: {shown} was mounted by another user, for that user alone (no allow_other)"
        ),
        Err(Errno::NODATA | Errno::OPNOTSUPP) => {
            format!("{shown} is {}, not QuayFS", entry.fstype)
        }
        Err(e) => format!("{shown} does not answer: {e}"),
    };
    Err(Failure::new(code, why))
}
