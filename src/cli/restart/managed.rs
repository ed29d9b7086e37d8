//! The same where a service manager starts the daemons: it has no door, but the daemon does as a signal says.

use std::os::fd::OwnedFd;
use std::thread;
use std::time::{Duration, Instant};

use procfs::process::Process;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, geteuid, pidfd_open, pidfd_send_signal};
use serde_json::Value;

use super::{args, cannot, expect_successor};
use crate::cli::exit::say;
use crate::mount::probe::ask;
use crate::mount::server::PATIENCE;
use crate::mount::table::Entry;

/// How often to look for the next daemon.
const LOOK: Duration = Duration::from_millis(50);

/// Has the daemon of a mount without a supervisor replaced.
pub(super) fn restart(entry: &Entry, args: &args::Restart) -> Result<(), String> {
    let shown = quayfs_shown::argument(&entry.target);
    let before = status(entry).map_err(|e| match e {
        Errno::NOTCONN => {
            format!("the daemon of {shown} is dead: `quayfs umount {shown}`, then mount again")
        }
        Errno::TIMEDOUT => format!("{shown}: its daemon does not answer"),
        _ => format!("{shown} is {}, not QuayFS", entry.fstype),
    })?;
    // The same process would not leave.
    let stays = |now: &Value| {
        let why = now["ends_with_daemon"].as_str();
        let why = why.filter(|_| now["pid"] == before["pid"])?;
        Some(cannot(&shown, why))
    };
    if let Some(why) = stays(&before) {
        return Err(why);
    }
    let (pid, handle) = daemon(entry, &before)?;
    let shown_pid = pid.as_raw_nonzero();
    expect_successor(entry, &before)?;
    if args.binary.is_some() {
        return Err(format!(
            "{shown}: what starts its daemons is no supervisor, and starts the program that it was told to"
        ));
    }
    let asked = Instant::now();
    pidfd_send_signal(&handle, Signal::USR2).map_err(|e| match e {
        Errno::PERM => {
            format!("permission denied: only root, and the user who mounted {shown}, may do that")
        }
        e => format!("process {shown_pid}: {e}"),
    })?;
    let patience = Duration::from_secs(args.within);
    while asked.elapsed() < patience {
        match status(entry) {
            // It serves a moment before it has looked at the clock.
            Ok(now) if now["pid"] != before["pid"] && now["last_pause_ms"].is_u64() => {
                let version = now["version"].as_str().unwrap_or("?");
                let pause = &now["last_pause_ms"];
                say(format_args!(
                    "{shown} is served by quayfs {version}; nothing was answered for {pause} ms"
                ));
                return Ok(());
            }
            Err(Errno::NOTCONN) => return Err(format!("{shown} has no daemon any more")),
            Ok(now) if stays(&now).is_some() => return Err(stays(&now).unwrap_or_default()),
            _ => thread::sleep(LOOK),
        }
    }
    Err(format!(
        "no other daemon serves {shown} after {patience:?}: its service manager says why"
    ))
}

pub(super) fn status(entry: &Entry) -> Result<Value, Errno> {
    serde_json::from_str(&ask(entry, PATIENCE)?).map_err(|_| Errno::BADMSG)
}

/// The daemon, if it can be replaced: its number, and what stays this process.
fn daemon(entry: &Entry, status: &Value) -> Result<(Pid, OwnedFd), String> {
    let shown = quayfs_shown::argument(&entry.target);
    let pid = status["pid"]
        .as_i64()
        .and_then(|pid| i32::try_from(pid).ok());
    let pid = pid.and_then(Pid::from_raw);
    // Before it is looked at: its number may be another one's later.
    let handle = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    let process = pid.and_then(|pid| Process::new(pid.as_raw_nonzero().get()).ok());
    let (Some(pid), Some(handle), Some(process)) = (pid, handle, process) else {
        return Err(format!("{shown}: its daemon cannot be seen from here"));
    };
    let facts = process.status().ok();
    let uid = geteuid();
    let owner = facts.as_ref().map(|s| s.ruid);
    if !uid.is_root() && owner != Some(uid.as_raw()) {
        return Err(format!(
            "permission denied: only root, and the user who mounted {shown}, may do that"
        ));
    }
    if owner != entry.user_id() {
        // Its daemon says so, and may say anything.
        return Err(format!(
            "{shown}: process {} is not one of the user who mounted it",
            pid.as_raw_nonzero()
        ));
    }
    // One that does not expect the signal would be ended by it.
    let caught = facts.map_or(0, |s| s.sigcgt);
    match caught & 1 << (Signal::USR2.as_raw() - 1) {
        0 => Err(format!(
            "{shown} is mounted with `norestart`, or nothing would start another daemon: it cannot be replaced while it \
             is mounted"
        )),
        _ => Ok((pid, handle)),
    }
}
