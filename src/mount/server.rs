//! The daemon of a mount as other processes see it.
//!
//! A daemon may be stuck on its device, stopped, or dead, and a process that asks for an answer through the mount may
//! then wait for ever. So the daemon is found without being asked: it listens on a socket whose name has the numbers
//! of its file system, and the kernel says whose socket that is. It answers nothing there before the end. Then the
//! daemon tells all connected processes how it ended; one that hears nothing until the daemon is gone knows that it
//! did not come that far.

use quayfs_server::STATUS_XATTR;

use super::table::Entry;

use super::{UnmountMode, gone, superblock};
use procfs::process::Process;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen,
    recv, send, socket_with,
};
use rustix::net::{RecvFlags, SendFlags};
use rustix::process::{Pid, PidfdFlags, getpid, pidfd_open};
use std::fmt;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a daemon may take to say what it is.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// Most of what is said at the end.
const WORD_MAX: usize = 4096;
/// How many processes may wait for it at a time; any that come then look at the volume instead.
const CALLERS: i32 = 64;

/// How a daemon ended, in its own words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The volume is closed: nothing is left to do.
    Closed,
    /// The mount had been shut down on purpose: the next one recovers.
    ShutDown,
    /// The volume could not be closed: why, what that means and what to do, in one line.
    Left(String),
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("closed"),
            Self::ShutDown => f.write_str("shut down"),
            Self::Left(why) => write!(f, "left {why}"),
        }
    }
}

impl Ending {
    /// The reverse of `Display`; `None` if it is cut short.
    fn parse(text: &str) -> Option<Self> {
        match text.strip_suffix('\n')? {
            "closed" => Some(Self::Closed),
            "shut down" => Some(Self::ShutDown),
            text => Some(Self::Left(text.strip_prefix("left ")?.into())),
        }
    }
}

/// Where a daemon can be found while it serves.
#[derive(Debug)]
pub struct Desk(OwnedFd);

/// Processes that want to know how a daemon ends.
#[derive(Debug, Default)]
pub struct Callers(Vec<OwnedFd>);

impl Desk {
    /// Opens it. `device`: the device number of the file system that this process serves.
    ///
    /// # Errors
    /// Those of sockets.
    pub fn open(device: &str) -> Result<Self, Errno> {
        let name = format!("{}{}", prefix(device), getpid().as_raw_nonzero());
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        bind(
            &socket,
            &SocketAddrUnix::new_abstract_name(name.as_bytes())?,
        )?;
        listen(&socket, CALLERS)?;
        Ok(Self(socket))
    }

    /// Closes it and returns the callers that have come. To be called as soon as the file system is gone, since its
    /// device number then belongs to others.
    pub fn close(self) -> Callers {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let mut callers = Vec::new();
        loop {
            match accept_with(&self.0, flags) {
                Ok(caller) => callers.push(caller),
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                // No other caller has come.
                Err(_) => return Callers(callers),
            }
        }
    }
}

impl Callers {
    /// Says how it ended, to root and to the daemon's own user: reasons name files. Nothing can be done about callers
    /// that have gone.
    pub fn tell(self, ending: &Ending) {
        let mut text = ending.to_string().replace('\n', " ");
        while text.len() >= WORD_MAX {
            text.pop();
        }
        text.push('\n');
        let me = rustix::process::geteuid();
        for caller in self.0 {
            let trusted = socket_peercred(&caller).is_ok_and(|c| c.uid.is_root() || c.uid == me);
            if trusted {
                let _ = send(&caller, text.as_bytes(), SendFlags::NOSIGNAL);
            }
        }
    }
}

/// What a daemon's socket is called, but for its process id. The device number alone may belong to the next file system
/// before the daemon of the last one knows that its own is gone.
fn prefix(device: &str) -> String {
    let node = superblock::node(device).unwrap_or_default();
    format!("quayfs/{device}/{node}/")
}

/// A daemon at work, and a connection to it.
#[derive(Debug)]
pub struct Server {
    /// `None` if it is in a PID namespace that cannot be seen from here, or gone.
    pid: Option<Pid>,
    /// Taken while it serves: later its number might belong to another process.
    handle: Option<OwnedFd>,
    /// `None` if it was found by its own answer.
    socket: Option<OwnedFd>,
}

impl Server {
    /// The daemon that serves this file system, if it can be found from here.
    pub fn of(entry: &Entry) -> Option<Self> {
        let sockets = std::fs::read("/proc/net/unix").ok()?;
        names(&sockets, &prefix(&entry.device))
            .into_iter()
            .rev()
            .find_map(|name| Self::connect(&name, entry.user_id()?))
    }

    /// A listener under this name is believed only if it runs as the user who mounted: names are free for all.
    fn connect(name: &[u8], owner: u32) -> Option<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).ok()?;
        connect(&socket, &SocketAddrUnix::new_abstract_name(name).ok()?).ok()?;
        let listener = socket_peercred(&socket).ok()?;
        if listener.uid.as_raw() != owner {
            return None;
        }
        Some(Self::new(Some(listener.pid), Some(socket)))
    }

    /// The daemon that has answered with this status.
    fn of_status(status: &str) -> Option<Self> {
        let status: serde_json::Value = serde_json::from_str(status).ok()?;
        let pid = i32::try_from(status.get("pid")?.as_i64()?).ok()?;
        let server = Self::new(Some(Pid::from_raw(pid.max(0))?), None);
        server.handle.is_some().then_some(server)
    }

    fn new(pid: Option<Pid>, socket: Option<OwnedFd>) -> Self {
        Self {
            pid,
            handle: pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()),
            socket,
        }
    }

    /// Its process id, for messages and `/proc`.
    pub fn pid(&self) -> Option<i32> {
        self.handle.as_ref()?;
        self.pid.map(|pid| pid.as_raw_nonzero().get())
    }

    /// Whether a signal or a debugger has stopped it.
    pub fn is_stopped(&self) -> bool {
        let process = self.pid().and_then(|pid| Process::new(pid).ok());
        let stat = process.and_then(|p| p.stat().ok());
        stat.is_some_and(|s| matches!(s.state, 'T' | 't'))
    }

    /// Waits for its end, no longer than `patience`; whether it has ended.
    ///
    /// # Errors
    /// Those of poll(2).
    pub fn ends_within(&self, patience: Duration) -> Result<bool, Errno> {
        let (fd, events) = match (&self.handle, &self.socket) {
            (Some(handle), _) => (handle.as_fd(), PollFlags::IN),
            (None, Some(socket)) => (socket.as_fd(), PollFlags::HUP),
            (None, None) => return Ok(true),
        };
        wait_for(fd, events, patience)
    }

    /// How it ended, after its end; `None` if it said nothing.
    pub fn ending(&self) -> Option<Ending> {
        let mut word = [0; WORD_MAX];
        let mut len = 0;
        let socket = self.socket.as_ref()?;
        while let Ok((n, _)) = recv(socket, &mut word[len..], RecvFlags::DONTWAIT) {
            if n == 0 {
                break;
            }
            len += n;
        }
        Ending::parse(std::str::from_utf8(&word[..len]).ok()?)
    }
}

fn wait_for(fd: BorrowedFd<'_>, events: PollFlags, patience: Duration) -> Result<bool, Errno> {
    let until = Instant::now() + patience;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        };
        let mut fds = [PollFd::from_borrowed_fd(fd, events)];
        match poll(&mut fds, Some(&timeout)) {
            Ok(n) => return Ok(n > 0),
            Err(Errno::INTR) => {}
            Err(e) => return Err(e),
        }
    }
}

/// Names in the abstract namespace that begin with `prefix`, out of `/proc/net/unix`. Any process may put a line
/// there that looks like any other.
pub(super) fn names(sockets: &[u8], prefix: &str) -> Vec<Vec<u8>> {
    sockets
        .split(|b| *b == b'\n')
        .filter_map(|line| {
            let at = line.iter().position(|b| *b == b'@')?;
            let name = &line[at + 1..];
            name.starts_with(prefix.as_bytes()).then(|| name.to_vec())
        })
        .collect()
}

/// What can be found out about the daemon of a mount.
#[derive(Debug)]
pub enum Served {
    /// It is this daemon.
    By(Server),
    /// No process does: the daemon is dead.
    Dead,
    /// There is no answer, and no daemon to be found.
    Silent,
    /// It is ours, but its daemon cannot be seen from here.
    OutOfSight,
    /// It is not ours.
    Foreign,
}

impl Served {
    /// Finds out. A daemon that cannot be found otherwise is asked, and has ten seconds. It is not asked for
    /// [`UnmountMode::Lazy`] and [`UnmountMode::Force`], where the answer does not matter, if the mount is ours by its type.
    pub fn find(entry: &Entry, mode: UnmountMode) -> Self {
        if !entry.is_fuse() {
            return Self::Foreign;
        }
        if let Some(server) = Server::of(entry) {
            return Self::By(server);
        }
        if mode != UnmountMode::Normal && entry.is_quayfs() {
            return Self::OutOfSight;
        }
        match ask(entry, PATIENCE) {
            Ok(status) => Server::of_status(&status).map_or(Self::OutOfSight, Self::By),
            Err(Errno::NOTCONN) => Self::Dead,
            Err(Errno::TIMEDOUT) => Self::Silent,
            Err(_) if entry.is_quayfs() => Self::OutOfSight,
            Err(_) => Self::Foreign,
        }
    }
}

/// Asks a mount for its status, from a process of its own: a thread that waits for a request that a daemon has taken
/// and does not answer cannot be killed, and the process that it belongs to cannot end.
///
/// # Errors
/// `ETIMEDOUT` if there was no answer within `patience` or the daemon is stopped, `ENOTCONN` if it is dead, others as
/// of [`super::status`].
pub fn ask(entry: &Entry, patience: Duration) -> Result<String, Errno> {
    if Server::of(entry).is_some_and(|server| server.is_stopped()) {
        return Err(Errno::TIMEDOUT);
    }
    let mut command = Command::new("/proc/self/exe");
    command
        .arg0("quayfs")
        .arg("probe")
        .arg("--")
        .arg(&entry.target)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    // Without `allow_other` not even root may ask, but root may become the user who may.
    if let (true, Some(uid), Some(gid)) = (
        rustix::process::geteuid().is_root(),
        entry.user_id(),
        entry.group_id(),
    ) && uid != 0
    {
        command.uid(uid).gid(gid);
    }
    let system = |e: std::io::Error| Errno::from_io_error(&e).unwrap_or(Errno::IO);
    let mut child = command.spawn().map_err(system)?;
    let out = child.stdout.take().ok_or(Errno::IO)?;
    let Some(answer) = read_within(out, patience) else {
        // It goes when it can; nothing waits for that.
        let _ = child.kill();
        return Err(Errno::TIMEDOUT);
    };
    let _ = child.wait();
    match answer.split_once(' ') {
        Some(("status", text)) => Ok(text.into()),
        Some(("errno", number)) => {
            Err(Errno::from_raw_os_error(number.trim().parse().unwrap_or(5)))
        }
        _ => Err(Errno::IO),
    }
}

/// The other end of [`ask`]: what it says on its standard output.
pub fn probe(target: &std::path::Path) -> String {
    let mut buffer = vec![0; 64 << 10];
    match rustix::fs::getxattr(target, STATUS_XATTR, &mut buffer[..]).map_err(gone) {
        Ok(n) => format!("status {}", String::from_utf8_lossy(&buffer[..n])),
        Err(e) => format!("errno {}", e.raw_os_error()),
    }
}

/// Everything that comes until the end; `None` if that takes longer.
pub fn read_within(mut pipe: ChildStdout, patience: Duration) -> Option<String> {
    let until = Instant::now() + patience;
    let mut text = Vec::new();
    let mut piece = [0; 4096];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if !wait_for(pipe.as_fd(), PollFlags::IN, left).ok()? {
            return None;
        }
        match pipe.read(&mut piece) {
            Ok(0) => return String::from_utf8(text).ok(),
            Ok(n) => text.extend_from_slice(&piece[..n]),
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
}

#[cfg(test)]
mod tests;
