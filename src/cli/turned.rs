//! A mount that a failure has made read-only: the mount table shall say so.
//!
//! The daemon has another process change the table. The kernel sends what it has still to write first, and a daemon
//! that waits for an answer of its own cannot be killed.

use super::args;
use crate::mount::turn_read_only;
use rustix::io::Errno;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// Exit code: the table says so.
const DONE: u8 = 0;
/// Exit code: files are open for writing.
const BUSY: u8 = 2;
/// Exit code: only root can change the table.
const NOT_ROOT: u8 = 3;
/// Exit code: anything else.
const OTHER: u8 = 1;

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// The table says `ro`.
    Done,
    /// Not while files are open for writing.
    Busy,
    /// Only root can change it.
    NotRoot,
    /// It cannot be changed.
    Not,
}

impl Told {
    /// Why the table does not say so, if it does not.
    pub fn why_not(self) -> Option<&'static str> {
        match self {
            Self::Done => None,
            Self::Busy => Some("files are open for writing"),
            Self::NotRoot => Some("only root can change it; `quayfs info` shows it"),
            Self::Not => Some("it cannot be changed; `quayfs info` shows it"),
        }
    }
}

/// Has the mount table say that the mount on `target` is read-only, whose number in the table is `device`. Waits until
/// that is done or refused.
pub fn tell_table(target: &Path, device: Option<&str>) -> Told {
    let Some(device) = device else {
        return Told::Not;
    };
    let status = Command::new("/proc/self/exe")
        .arg0("quayfs")
        .arg("turn-read-only")
        .arg(device)
        .arg(target)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    match status.ok().and_then(|s| s.code()).map(u8::try_from) {
        Some(Ok(DONE)) => Told::Done,
        Some(Ok(BUSY)) => Told::Busy,
        Some(Ok(NOT_ROOT)) => Told::NotRoot,
        _ => Told::Not,
    }
}

/// The other process.
pub fn run(args: &args::TurnReadOnly) -> u8 {
    match turn_read_only(&args.mountpoint, &args.device) {
        Ok(()) => DONE,
        Err(Errno::BUSY) => BUSY,
        Err(Errno::PERM | Errno::ACCESS) => NOT_ROOT,
        Err(_) => OTHER,
    }
}
