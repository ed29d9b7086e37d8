//! The daemon that had this mount before, and ended while the mount went on: it died, or was replaced.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use quayfs_journal::Scan;
use quayfs_layout::Ino;
use quayfs_restart::Requests;

/// What is left of it. Its mount, and the requests that it had not answered, are those of the next daemon now.
pub struct Predecessor {
    /// What it was doing.
    pub requests: Arc<Requests>,
    /// Asks the kernel whether it knows an inode. May wait for an answer to a request, so no thread calls it that
    /// answers any.
    pub knows: Box<dyn Fn(Ino) -> bool + Send + Sync>,
    /// How many daemons of this mount have died.
    pub deaths: u64,
    /// How many were replaced by another one.
    pub replaced: u64,
    /// How the last of all of them ended.
    pub cause: String,
    /// Whether that was a replacement.
    pub is_replaced: bool,
    /// When, on the monotonic clock, if that is known.
    pub ended: Option<Duration>,
    /// How long no request was answered, once that is known.
    pub pause: OnceLock<Duration>,
}

impl Predecessor {
    /// Notes which of its requests were carried out. The log is as it has left it.
    pub(crate) fn judge(&self, scan: &Scan) {
        let is_there = |seq| scan.records.binary_search_by_key(&seq, |r| r.seq).is_ok();
        self.requests
            .judge(|seq| seq <= scan.digested || is_there(seq));
    }
}

impl fmt::Debug for Predecessor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Predecessor")
    }
}
