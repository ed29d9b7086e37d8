//! A mount that a failure has made read-only: the mount table shall say so.
//!
//! The daemon has another process change the table. The kernel sends what it has still to write first, and a daemon
//! that waits for an answer of its own cannot be killed.

use super::{args, confine};
use crate::mount::turn_read_only;
use rustix::io::Errno;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;
use tracing::warn;

/// How often to try while files are open for writing.
const RETRY: Duration = Duration::from_secs(1);
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
enum Told {
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
    fn why_not(self) -> Option<&'static str> {
        match self {
            Self::Done => None,
            Self::Busy => Some("files are open for writing"),
            Self::NotRoot => Some("only root can change it; `quayfs status` shows it"),
            Self::Not => Some("it cannot be changed; `quayfs status` shows it"),
        }
    }
}

/// Starts the thread that has the table say so, with the rights that this takes. `entry`: the mount point, and the number
/// of its file system in the table, if it could be found out. To be told of a failure by what is returned.
///
/// # Errors
/// Those of starting a thread.
pub fn serve(entry: (PathBuf, Option<String>)) -> io::Result<Sender<()>> {
    let (failed, inbox) = channel();
    thread::Builder::new().name("table".into()).spawn(move || {
        confine::to_have_it_done();
        let (target, device) = entry;
        let mut told = None;
        loop {
            let event = match told {
                Some(Told::Busy) => inbox.recv_timeout(RETRY),
                _ => inbox.recv().map_err(Into::into),
            };
            if event == Err(RecvTimeoutError::Disconnected) {
                return;
            }
            let now = tell_table(&target, device.as_deref());
            if told.replace(now) != Some(now)
                && let Some(why) = now.why_not()
            {
                warn!("the mount table does not say `ro` yet: {why}");
            }
        }
    })?;
    Ok(failed)
}

/// Has the mount table say that the mount on `target` is read-only, whose number in the table is `device`. Waits until
/// that is done or refused.
fn tell_table(target: &Path, device: Option<&str>) -> Told {
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
