//! What a daemon starts with, whatever the shell, the service or the login that started it had set: a mount
//! outlives them, and others depend on it. `docs/daemon.md` has the list.

mod sys;

use std::os::fd::OwnedFd;

use rustix::fs::Mode;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit, umask};
use signal_hook::consts::{SIGTTOU, SIGXFSZ};

/// When memory runs out, the kernel chooses the process to kill by what is resident. The region counts as resident,
/// though its memory stays taken when the daemon is killed. So the daemon is to be one of the last, where that may be
/// asked for.
const OOM_SCORE: &str = "-900";
/// Open files: media, connections and rings by the dozen. More than that is for the future.
const FILES: u64 = 64 << 10;

/// Limits that would end the daemon, or fail its writes and allocations, at some time of its life.
const LIFTED: [(Resource, &str); 4] = [
    (Resource::Fsize, "the size of files (ulimit -f)"),
    (Resource::Cpu, "processor time (ulimit -t)"),
    (Resource::As, "the address space (ulimit -v)"),
    (Resource::Data, "data in memory (ulimit -d)"),
];

/// Leaves the session of the caller, and with it a terminal. Not the process group of systemd, where systemd mounts: autofs lets
/// only that group reach a mount point that is being mounted (`x-systemd.automount`).
pub fn leave_session() {
    let is_unit = std::env::var_os("INVOCATION_ID").is_some();
    if is_unit && sys::process_group() == 1 {
        return;
    }
    // Fails only for a process group leader, which then is detached already.
    let _ = rustix::process::setsid();
}

/// Brings the process into the state that a daemon starts with, and returns what could not be changed, a line each.
/// To be called once, before anything is opened and before there are threads; paths are absolute from there on.
///
/// The first `passed` descriptors that are no standard streams stay open, for [`passed_on`].
pub fn prepare(passed: usize) -> Vec<String> {
    let mut left = Vec::new();
    let mut note = |what: &str, result: rustix::io::Result<()>| {
        if let Err(e) = result {
            left.push(format!("{what}: {e}"));
        }
    };
    note("inherited files stay open", sys::close_inherited(passed));
    note("inherited signals stay blocked", sys::unblock_signals());
    sys::reset_dispositions();
    survive_limits();
    // Logging to a terminal works from the background as well.
    sys::ignore(SIGTTOU);
    umask(Mode::RWXG | Mode::RWXO);
    note(
        "the working directory stays in use",
        rustix::process::chdir("/"),
    );
    for (resource, what) in LIFTED {
        if let Some(limit) = lift(resource) {
            left.push(format!("{what} stays limited to {limit}"));
        }
    }
    let _ = lift(Resource::Nproc);
    allow_files(FILES);
    guard_from_oom();
    left
}

/// Closes all descriptors but the standard streams. To be called before anything is opened.
///
/// # Errors
/// Those of close_range(2).
pub fn close_all() -> rustix::io::Result<()> {
    sys::close_inherited(0)
}

/// The descriptors that were passed on to this process; the programs that it starts do not inherit them. To be called
/// once, after [`prepare`] with the same number.
///
/// # Errors
/// There are not that many.
pub fn passed_on(passed: usize) -> rustix::io::Result<Vec<OwnedFd>> {
    sys::passed_on(passed)
}

/// When memory runs out, this process goes after the daemons that it starts, where that may be asked for.
pub fn outlive_daemons() {
    let _ = std::fs::write("/proc/self/oom_score_adj", "-950");
}

/// What every command begins with: writing beyond a limit fails then, with an error, and does not end the process.
pub fn survive_limits() {
    sys::ignore(SIGXFSZ);
}

/// Lifts a limit as far as that is possible, and returns what is left of it.
fn lift(resource: Resource) -> Option<u64> {
    let Rlimit { maximum, .. } = getrlimit(resource);
    let none = Rlimit {
        current: None,
        maximum: None,
    };
    if setrlimit(resource, none).is_err() {
        let current = maximum;
        // What every process is allowed.
        let _ = setrlimit(resource, Rlimit { current, maximum });
    }
    getrlimit(resource).current
}

/// Allows so many open files, or as many as there may be.
fn allow_files(n: u64) {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let is_enough = |limit: Option<u64>| limit.is_none_or(|l| l >= n);
    if is_enough(current) {
        return;
    }
    let limit = |n| Rlimit {
        current: Some(n),
        maximum: maximum.map(|m| m.max(n)),
    };
    if setrlimit(Resource::Nofile, limit(n)).is_err()
        && let Some(most) = maximum
    {
        let _ = setrlimit(Resource::Nofile, limit(most));
    }
}

fn guard_from_oom() {
    let path = "/proc/self/oom_score_adj";
    let inherited = std::fs::read_to_string(path).unwrap_or_default();
    if std::fs::write(path, OOM_SCORE).is_err()
        && inherited.trim().parse::<i32>().is_ok_and(|adj| adj > 0)
    {
        // The process that started it may have been picked to be killed first; undoing that sometimes takes
        // privileges.
        let _ = std::fs::write(path, "0");
    }
}
