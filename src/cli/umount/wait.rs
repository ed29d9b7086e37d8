//! Waiting for a daemon as long as it gets on.

use crate::cli::draining::Draining;
use crate::cli::work::done_by;
use crate::mount::UnmountMode;
use crate::mount::server::{Server, process_ends_within};
use rustix::io::Errno;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// How often to look at it.
const LOOK: Duration = Duration::from_millis(250);
/// A daemon that has done nothing for so long is stuck; a flush of a slow disk may take a minute.
const STUCK: Duration = Duration::from_secs(120);
/// One that does not even have to wait for a disk.
const IDLE: Duration = Duration::from_secs(20);
/// The same where the user wants to be rid of the mount.
const STUCK_FORCED: Duration = Duration::from_secs(1);

/// How the wait went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// The daemon has ended.
    Ended,
    /// It is stopped, by a signal or a debugger.
    Stopped,
    /// It has neither computed nor read nor written anything for long.
    Stuck,
}

/// Waits for its end, and shows how far it is unless that is to be `quiet`.
///
/// # Errors
/// Those of poll(2).
pub fn until_end(server: &Server, mode: UnmountMode, quiet: bool) -> Result<Waited, Errno> {
    let draining = Draining::shown(quiet);

    let patience = match mode {
        UnmountMode::Force => STUCK_FORCED,
        UnmountMode::Normal | UnmountMode::Lazy => STUCK,
    };
    let mut last = None;
    let mut since = Instant::now();
    while !server.ends_within(LOOK)? {
        draining.look(server);
        if server.is_stopped() {
            // What it was doing when it was looked at may have been its end.
            let ended = server.ends_within(Duration::ZERO)?;
            return Ok(if ended {
                Waited::Ended
            } else {
                Waited::Stopped
            });
        }
        let now = progress(server);
        if now != last {
            (last, since) = (now, Instant::now());
        } else if since.elapsed() >= patience {
            return Ok(Waited::Stuck);
        }
    }
    Ok(Waited::Ended)
}

/// Waits for the end of a process that has nothing to do but to wait for others; no longer than for one that is stopped.
/// Whether it has ended.
pub fn until_gone(process: &OwnedFd, mode: UnmountMode) -> bool {
    let patience = match mode {
        UnmountMode::Force => STUCK_FORCED,
        UnmountMode::Normal | UnmountMode::Lazy => IDLE,
    };
    process_ends_within(process.as_fd(), patience).unwrap_or(true)
}

/// What changes while it does anything but tell how far it is: processor time, and bytes where this process may see them.
fn progress(server: &Server) -> Option<[u64; 3]> {
    done_by(server.pid()?)
}
