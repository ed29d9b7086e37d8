//! What the system says of daemons and supervisors.

use crate::program::{Mounted, eventually};
use std::fs;

/// Whether a process has not ended.
pub fn runs(pid: i32) -> bool {
    // A zombie still has a directory but no more command line.
    fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty())
}

/// Waits until nothing answers for a mount any more. A process that ends has no memory left for a moment before its
/// connection goes, and a request of that moment is told that it was aborted.
pub fn expect_dead(m: &Mounted) {
    eventually("the connection ends", || {
        let error = fs::metadata(m.mnt().join("file")).unwrap_err();
        error.raw_os_error() == Some(libc::ENOTCONN)
    });
}

/// The daemon that serves a mount.
pub fn daemon(m: &Mounted) -> i32 {
    m.info()["pid"].as_i64().unwrap() as i32
}

/// The process that a process was started by.
pub fn parent(pid: i32) -> i32 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let after = stat.rsplit(") ").next().unwrap();
    after.split(' ').nth(1).unwrap().parse().unwrap()
}

/// The processes that a process has started, which have not been waited for.
pub fn children(pid: i32) -> Vec<i32> {
    let list = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    list.split_whitespace()
        .map(|n| n.parse().unwrap())
        .collect()
}
