//! `quayfs umount`: unmount, then wait for the daemon to finish its last checkpoint.

use super::exit::{Failure, MOUNT_FAILED};
use crate::mount::{self, Users, table};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::path::Path;

/// How long to wait for the daemon. A checkpoint moves at most the pmem region's worth of data.
const PATIENCE_SECONDS: i64 = 600;

/// Unmounts what is mounted on `target`. When it returns, the daemon has ended, so both devices
/// are closed and whatever was staged is on the data device; except with [`Users::Outlast`], which
/// cannot wait for users of unknown patience.
pub fn run(target: &Path, users: Users) -> Result<(), Failure> {
    let failed = |why: String| Failure::new(MOUNT_FAILED, why);
    let shown = target.display();
    let target = table::resolve(target).map_err(|e| failed(format!("{shown}: {e}")))?;
    let entry = table::mounted_on(&target)
        .map_err(|e| failed(format!("cannot read the mount table: {e}")))?
        .ok_or_else(|| {
            failed(format!(
                "{shown} is not a mount point: `findmnt` lists them"
            ))
        })?;
    let daemon = match mount::status(&target) {
        Ok(status) => daemon_of(&status),
        Err(Errno::NOTCONN) if entry.is_fuse() => None,
        Err(_) if entry.is_quayfs() => None,
        Err(_) => {
            let kind = entry.fstype;
            return Err(failed(format!(
                "{shown} is {kind}, not QuayFS: use `umount {shown}`"
            )));
        }
    };
    mount::detach(&target, users).map_err(Failure::with(MOUNT_FAILED))?;
    match daemon {
        Some(daemon) if users != Users::Outlast => wait(&daemon).map_err(failed),
        _ => Ok(()),
    }
}

/// A handle of the daemon that serves the mount. Taken before unmounting: afterwards the number
/// might already belong to somebody else.
fn daemon_of(status: &str) -> Option<OwnedFd> {
    let status: serde_json::Value = serde_json::from_str(status).ok()?;
    let pid = i32::try_from(status.get("pid")?.as_i64()?).ok()?;
    let pid = Pid::from_raw(pid.max(0))?;
    pidfd_open(pid, PidfdFlags::empty()).ok()
}

fn wait(daemon: &OwnedFd) -> Result<(), String> {
    let patience = Timespec {
        tv_sec: PATIENCE_SECONDS,
        tv_nsec: 0,
    };
    let n = rustix::io::retry_on_intr(|| {
        poll(&mut [PollFd::new(daemon, PollFlags::IN)], Some(&patience))
    });
    match n {
        Ok(0) => Err(format!(
            "unmounted, but the daemon has been writing for {PATIENCE_SECONDS} s: its log says why"
        )),
        Ok(_) => Ok(()),
        Err(e) => Err(format!("unmounted, but cannot wait for the daemon: {e}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_daemon_is_found_by_its_status() {
        let me = format!("{{\"pid\": {}, \"more\": []}}", std::process::id());
        assert!(daemon_of(&me).is_some());
        for status in [
            "",
            "{}",
            "{\"pid\": 0}",
            "{\"pid\": -1}",
            "{\"pid\": \"1\"}",
            "[1]",
        ] {
            assert!(daemon_of(status).is_none(), "{status}");
        }
    }

    #[test]
    fn waiting_ends_with_the_process() {
        let mut child = std::process::Command::new("sleep")
            .arg("0.05")
            .spawn()
            .unwrap();
        let pid = Pid::from_child(&child);
        let handle = pidfd_open(pid, PidfdFlags::empty()).unwrap();
        assert_eq!(wait(&handle), Ok(()));
        assert!(child.try_wait().unwrap().is_some());
    }

    #[test]
    fn what_is_not_ours_is_left_alone() {
        let failure = run(Path::new("/proc"), Users::Respect).unwrap_err();
        assert!(failure.line.contains("not QuayFS"), "{}", failure.line);
        let failure = run(Path::new("/no/such/place"), Users::Respect).unwrap_err();
        assert_eq!(failure.code, MOUNT_FAILED);
        let dir = tempfile::tempdir().unwrap();
        let failure = run(dir.path(), Users::Respect).unwrap_err();
        assert!(
            failure.line.contains("not a mount point"),
            "{}",
            failure.line
        );
    }
}
