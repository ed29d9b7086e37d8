//! The daemon of a mount as other processes see it.
//!
//! A daemon may be stuck on its device, stopped, or dead, and a process that asks for an answer through the mount may
//! then wait for ever. So the daemon is found without being asked: it listens on a socket whose name has the numbers
//! of its file system, and the kernel says whose socket that is. It answers nothing there before the end of the file
//! system. Then the daemon tells all connected processes how it ended, and those that have asked for it how far it is
//! until then; one that hears nothing until the daemon is gone knows that it did not come that far. While the daemon
//! closes the volume, it listens on a socket whose name has the volume's UUID, for processes that come later.

use super::probe::ask;
use super::table::Entry;

use super::{UnmountMode, superblock};
use procfs::process::Process;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv,
    send, socket_with,
};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::cell::RefCell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

mod desk;
mod words;

pub use desk::{Callers, Desk};
use words::Heard;
pub use words::{Ending, Left, NO_DRAIN, PROGRESS, VOLUME};

/// How long a daemon may take to say what it is.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// What a daemon's socket is called, but for its process id. The device number alone may belong to the next file system
/// before the daemon of the last one knows that its own is gone.
fn prefix(device: &str) -> String {
    let node = superblock::node(device).unwrap_or_default();
    format!("{SERVING}{device}/{node}/")
}

/// What the name of the socket of each daemon that serves a file system begins with.
const SERVING: &str = "quayfs/";

/// What the name of the socket of each daemon that closes a volume begins with.
const CLOSING: &str = "quayfs-closing/";

/// The same of a daemon that closes a volume.
fn closing(uuid: &str) -> String {
    format!("{CLOSING}{uuid}/")
}

/// The same of a daemon that gives a volume another size. Nothing waits there for the end of a mount.
fn resizing(uuid: &str) -> String {
    format!("quayfs-resizing/{uuid}/")
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
    heard: RefCell<Heard>,
}

/// A daemon that closes some volume.
#[derive(Debug)]
pub struct Closer {
    /// The UUID of the volume, by the daemon's word.
    pub uuid: String,
    /// The daemon.
    pub server: Server,
    /// The user it runs as.
    pub user: u32,
}

impl Closer {
    /// Whether it runs as the user of this process.
    pub fn is_mine(&self) -> bool {
        rustix::process::geteuid().as_raw() == self.user
    }

    /// Whether it says anything to this process.
    pub fn tells(&self) -> bool {
        rustix::process::geteuid().is_root() || self.is_mine()
    }
}

impl Server {
    /// The daemon that serves this file system, if it can be found from here.
    pub fn of(entry: &Entry) -> Option<Self> {
        let owner = entry.user_id()?;
        let (server, _) = Self::named(&prefix(&entry.device), &[owner])?;
        Some(server)
    }

    /// The daemon that closes the volume with this UUID, whose file system is gone already. It runs as root, as the user
    /// who asks, or as `owner`, the owner of the volume.
    pub fn closing(uuid: &str, owner: u32) -> Option<Closer> {
        let me = rustix::process::geteuid().as_raw();
        let (server, user) = Self::named(&closing(uuid), &[0, me, owner])?;
        Some(Closer {
            uuid: uuid.into(),
            server,
            user,
        })
    }

    /// All daemons that close volumes and would say so to this process: those of its user, for root those of others as
    /// well. What they say of a volume of another owner than theirs is not to be believed.
    pub fn all_closing() -> Vec<Closer> {
        let found = Self::all(CLOSING)
            .into_iter()
            .filter_map(|(uuid, server, user)| {
                let closer = Closer { uuid, server, user };
                closer.tells().then_some(closer)
            });
        found.collect()
    }

    /// All daemons that serve a file system: its device number, and the user as whom the daemon runs.
    pub fn all_serving() -> Vec<(String, Self, u32)> {
        Self::all(SERVING)
    }

    /// All listeners whose names begin with `prefix`: what follows it in the name, up to a slash, and the user.
    fn all(prefix: &str) -> Vec<(String, Self, u32)> {
        let sockets = std::fs::read("/proc/net/unix").unwrap_or_default();
        let found = names(&sockets, prefix).into_iter().filter_map(|name| {
            let text = std::str::from_utf8(&name).ok()?;
            let what = text.strip_prefix(prefix)?.split('/').next()?.to_string();
            let (server, user) = Self::connect(&name)?;
            Some((what, server, user))
        });
        found.collect()
    }

    /// The daemon that gives the volume with this UUID another size; of the same users.
    pub fn resizing(uuid: &str, owner: u32) -> Option<Self> {
        let me = rustix::process::geteuid().as_raw();
        let (server, _) = Self::named(&resizing(uuid), &[0, me, owner])?;
        Some(server)
    }

    fn named(prefix: &str, owners: &[u32]) -> Option<(Self, u32)> {
        let sockets = std::fs::read("/proc/net/unix").ok()?;
        names(&sockets, prefix)
            .into_iter()
            .rev()
            .filter_map(|name| Self::connect(&name))
            .find(|(_, user)| owners.contains(user))
    }

    /// The listener under this name, and the user it runs as: names are free for all, so it is believed or not by that.
    fn connect(name: &[u8]) -> Option<(Self, u32)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).ok()?;
        connect(&socket, &SocketAddrUnix::new_abstract_name(name).ok()?).ok()?;
        let listener = socket_peercred(&socket).ok()?;
        let server = Self::new(Some(listener.pid), Some(socket));
        Some((server, listener.uid.as_raw()))
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
            heard: RefCell::default(),
        }
    }

    /// Asks it for something, by [`PROGRESS`] or [`NO_DRAIN`]; whether it may hear that.
    pub fn ask_for(&self, wish: &str) -> bool {
        let said = |socket| send(socket, format!("{wish}\n").as_bytes(), SendFlags::NOSIGNAL);
        self.socket
            .as_ref()
            .is_some_and(|socket| said(socket).is_ok())
    }

    /// What it has still to do, as it said last; `None` before it has said anything.
    pub fn left(&self) -> Option<Left> {
        self.listen();
        self.heard.borrow().left
    }

    /// Which volume it closes, if it has said that.
    pub fn volume(&self) -> Option<PathBuf> {
        self.listen();
        self.heard.borrow().volume.clone()
    }

    /// Waits until it says something, or ends, no longer than `patience`; whether it has.
    ///
    /// # Errors
    /// Those of poll(2).
    pub fn speaks_within(&self, patience: Duration) -> Result<bool, Errno> {
        match &self.socket {
            Some(socket) => wait_for(socket.as_fd(), PollFlags::IN, patience),
            None => self.ends_within(patience),
        }
    }

    fn listen(&self) {
        let mut piece = [0; 4096];
        let Some(socket) = &self.socket else {
            return;
        };
        while let Ok((n, _)) = recv(socket, &mut piece[..], RecvFlags::DONTWAIT) {
            if n == 0 {
                break;
            }
            self.heard.borrow_mut().take(&piece[..n]);
        }
    }

    /// Its process id, for messages and `/proc`.
    pub fn pid(&self) -> Option<i32> {
        self.handle.as_ref()?;
        self.pid.map(|pid| pid.as_raw_nonzero().get())
    }

    /// Whether a signal or a debugger has stopped it.
    pub fn is_stopped(&self) -> bool {
        self.pid().is_some_and(is_stopped)
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
        self.listen();
        self.heard.borrow().ending.clone()
    }
}

/// Waits for the end of a process, by a descriptor of it, no longer than `patience`; whether it has ended.
///
/// # Errors
/// Those of poll(2).
pub fn process_ends_within(process: BorrowedFd<'_>, patience: Duration) -> Result<bool, Errno> {
    wait_for(process, PollFlags::IN, patience)
}

/// Whether a signal or a debugger has stopped a process.
pub fn is_stopped(pid: i32) -> bool {
    let stat = Process::new(pid).and_then(|process| process.stat());
    stat.is_ok_and(|s| matches!(s.state, 'T' | 't'))
}

/// Waits for an event of a descriptor, or its end, no longer than `patience`; whether there was one.
///
/// # Errors
/// Those of poll(2).
pub fn wait_for(fd: BorrowedFd<'_>, events: PollFlags, patience: Duration) -> Result<bool, Errno> {
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

#[cfg(test)]
mod tests;
