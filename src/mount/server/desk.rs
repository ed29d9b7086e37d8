//! Where a daemon is found while it serves, and while it closes the volume, and the processes that come there.

use super::words::{Ending, Left, Lines, NO_DRAIN, PROGRESS, VOLUME, volume_line};
use super::{closing, prefix, resizing};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with,
    bind, listen, recv, send, socket_with,
};
use rustix::process::getpid;
use std::os::fd::OwnedFd;
use std::path::Path;

/// How many processes may wait for it at a time; any that come then look at the volume instead.
const CALLERS: i32 = 64;

/// Where a daemon can be found.
#[derive(Debug)]
pub struct Desk(OwnedFd);

impl Desk {
    /// Opens it for a daemon that serves. `device`: the device number of the file system.
    ///
    /// # Errors
    /// Those of sockets.
    pub fn open(device: &str) -> Result<Self, Errno> {
        Self::named(&prefix(device))
    }

    /// Opens it for a daemon whose file system is gone, and that closes the volume with this UUID.
    ///
    /// # Errors
    /// Those of sockets.
    pub fn closing(uuid: &str) -> Result<Self, Errno> {
        Self::named(&closing(uuid))
    }

    /// Opens it for a daemon that gives the volume with this UUID another size before it serves.
    ///
    /// # Errors
    /// Those of sockets.
    pub fn resizing(uuid: &str) -> Result<Self, Errno> {
        Self::named(&resizing(uuid))
    }

    fn named(prefix: &str) -> Result<Self, Errno> {
        let name = format!("{prefix}{}", getpid().as_raw_nonzero());
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        bind(
            &socket,
            &SocketAddrUnix::new_abstract_name(name.as_bytes())?,
        )?;
        listen(&socket, CALLERS)?;
        Ok(Self(socket))
    }

    /// Takes in those who have come.
    pub fn admit(&self, callers: &mut Callers) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        loop {
            match accept_with(&self.0, flags) {
                Ok(socket) => callers.0.push(Caller::new(socket)),
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                // No other caller has come.
                Err(_) => return,
            }
        }
    }

    /// Closes it and returns the callers that have come. To be called as soon as the file system is gone, since its
    /// device number then belongs to others.
    pub fn close(self) -> Callers {
        let mut callers = Callers::default();
        self.admit(&mut callers);
        callers
    }
}

/// Processes that want to know how a daemon ends.
#[derive(Debug, Default)]
pub struct Callers(Vec<Caller>);

#[derive(Debug)]
struct Caller {
    socket: OwnedFd,
    /// Root, or the daemon's own user: reasons name files.
    trusted: bool,
    lines: Lines,
    wants_progress: bool,
    wants_no_drain: bool,
    wants_volume: bool,
    gone: bool,
}

impl Caller {
    fn new(socket: OwnedFd) -> Self {
        let me = rustix::process::geteuid();
        let trusted = socket_peercred(&socket).is_ok_and(|c| c.uid.is_root() || c.uid == me);
        Self {
            socket,
            trusted,
            lines: Lines::default(),
            wants_progress: false,
            wants_no_drain: false,
            wants_volume: false,
            gone: false,
        }
    }

    fn hear(&mut self) {
        let mut piece = [0; 256];
        loop {
            match recv(&self.socket, &mut piece[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) => break self.gone = true,
                Ok((n, _)) => {
                    let (progress, no_drain) = (&mut self.wants_progress, &mut self.wants_no_drain);
                    let volume = &mut self.wants_volume;
                    self.lines.take(&piece[..n], |line| match line {
                        PROGRESS => *progress = true,
                        NO_DRAIN => *no_drain = true,
                        VOLUME => *volume = true,
                        _ => {}
                    });
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => break self.gone = true,
            }
        }
    }

    /// Nothing can be done about callers that have gone, nor about those that do not listen.
    fn say(&self, line: &str) {
        if self.trusted {
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            let _ = send(&self.socket, line.as_bytes(), flags);
        }
    }
}

impl Callers {
    /// Whether a process is there that wants what is staged to stay so.
    pub fn want_no_drain(&mut self) -> bool {
        self.0.iter_mut().for_each(Caller::hear);
        (self.0.iter()).any(|c| c.trusted && c.wants_no_drain && !c.gone)
    }

    /// Says which volume the daemon closes and how far it is, to those that have asked for that.
    pub fn tell_left(&mut self, volume: &Path, left: Left) {
        self.0.iter_mut().for_each(Caller::hear);
        self.0.retain(|c| !c.gone);
        for caller in self.0.iter_mut().filter(|c| c.wants_volume) {
            caller.wants_volume = false;
            caller.say(&volume_line(volume));
        }
        let asked = self.0.iter().filter(|c| c.wants_progress);
        asked.for_each(|c| c.say(&left.line()));
    }

    /// Says how it ended.
    pub fn tell(self, ending: &Ending) {
        let line = ending.line();
        self.0.iter().for_each(|caller| caller.say(&line));
    }
}
