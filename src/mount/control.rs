//! How the process that starts the daemons of a mount is told to replace one.
//!
//! It listens on a socket whose name has the numbers of the file system, as its daemons do ([`super::server`]), and hears
//! root and its own user. It begins, with what the other side has to know; then that one sends a program, and is told what
//! has become of it.

use std::ffi::CStr;
use std::fs::File;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use procfs::process::{FDTarget, Process};
use rustix::cmsg_space;
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind,
    connect, listen, recvmsg, sendmsg, socket_with,
};
use rustix::process::{Pid, PidfdFlags, geteuid, getpid, pidfd_open};

use super::server::{is_stopped, names, wait_for};
use super::superblock;
use super::table::Entry;

/// Longest message.
const MESSAGE_MAX: usize = 16 << 10;
/// Processes that may wait to be heard.
const WAITING: i32 = 8;
/// What a process is called that starts the daemons of a mount.
pub const NAME: &CStr = c"quayfs-super";

/// What the names of all sockets begin with.
const ALL: &str = "quayfs-supervisor/";

fn prefix(device: &str) -> String {
    let node = superblock::node(device).unwrap_or_default();
    format!("{ALL}{device}/{node}/")
}

fn address(device: &str, listener: Pid) -> Result<SocketAddrUnix, Errno> {
    let name = format!("{}{}", prefix(device), listener.as_raw_nonzero());
    SocketAddrUnix::new_abstract_name(name.as_bytes())
}

/// A socket that waits for nothing.
fn socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// Whether this process listens, for the file system of this device number, and says something within `patience`. One that is
/// being killed does not.
pub fn is_heard(listener: Pid, device: &str, patience: Duration) -> bool {
    let heard = || {
        let socket = socket()?;
        connect(&socket, &address(device, listener)?)?;
        // Names are free for all.
        let is_it = socket_peercred(&socket)?.pid == listener;
        let line = Line(socket);
        let has_come = is_it && wait_for(line.as_fd(), PollFlags::IN, patience)?;
        Ok::<_, Errno>(has_come && line.receive()?.is_some())
    };
    heard().unwrap_or(false)
}

/// Opens the socket. `device`: the device number of the file system.
///
/// # Errors
/// Those of sockets.
pub fn open(device: &str) -> Result<OwnedFd, Errno> {
    let socket = socket()?;
    bind(&socket, &address(device, getpid())?)?;
    listen(&socket, WAITING)?;
    Ok(socket)
}

/// The next process that has come to an open socket, for a [`Line`]; `None` if there is none that may be heard.
pub fn accept(socket: &OwnedFd) -> Option<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let line = accept_with(socket, flags).ok()?;
    let peer = socket_peercred(&line).ok()?;
    let is_trusted = peer.uid.is_root() || peer.uid == geteuid();
    is_trusted.then_some(line)
}

/// A connection between the two.
#[derive(Debug)]
pub struct Line(OwnedFd);

/// What is sent over it.
#[derive(Debug)]
pub struct Message {
    /// Words, and a path.
    pub text: Vec<u8>,
    /// A program.
    pub descriptor: Option<OwnedFd>,
}

/// Why there is no line to the process that starts the daemons of a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreached {
    /// This user may not.
    Denied,
    /// This process hears none: as many as may wait do so already.
    Deaf(i32),
    /// The system has no socket for it.
    System(Errno),
}

impl std::fmt::Display for Unreached {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Denied => f.write_str("permission denied"),
            Self::Deaf(pid) => f.write_str(&silence(*pid)),
            Self::System(e) => write!(f, "the supervisor cannot be reached: {e}"),
        }
    }
}

impl From<Errno> for Unreached {
    fn from(e: Errno) -> Self {
        Self::System(e)
    }
}

/// What to say of a process that does not answer.
fn silence(pid: i32) -> String {
    match is_stopped(pid) {
        true => format!(
            "its supervisor (process {pid}) is stopped (SIGSTOP or a debugger): `kill -CONT {pid}` lets it go on"
        ),
        false => format!("its supervisor (process {pid}) does not answer"),
    }
}

/// The process that starts the daemons of a mount, whether it listens or not; `None` if it cannot be found from here.
pub fn supervisor(entry: &Entry) -> Option<i32> {
    match Line::to(entry) {
        Ok(line) => line?.pid(),
        Err(Unreached::Deaf(pid)) => Some(pid),
        Err(_) => None,
    }
}

/// [`supervisor`], as a descriptor that becomes readable when it ends, and its number; `None` also if it is gone.
pub fn supervisor_process(entry: &Entry) -> Option<(i32, OwnedFd)> {
    let pid = supervisor(entry)?;
    let process = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty());
    Some((pid, process.ok()?))
}

/// The processes that start daemons of mounts which are gone, and the users that they belong to.
pub fn left_alone() -> Vec<(i32, u32)> {
    let sockets = std::fs::read("/proc/net/unix").unwrap_or_default();
    let is_gone = |name: &Vec<u8>| {
        let text = std::str::from_utf8(name).ok()?.strip_prefix(ALL)?;
        let (device, rest) = text.split_once('/')?;
        let (node, _) = rest.split_once('/')?;
        Some(superblock::node(device) != node.parse().ok())
    };
    let names = names(&sockets, ALL).into_iter();
    let gone = names.filter(|name| is_gone(name) == Some(true));
    gone.filter_map(|name| named(&name, &sockets)).collect()
}

/// The process that a socket under this name would be of, and its user, if that is what starts daemons and has the socket: any
/// process may take a name, and a socket that takes no calls does not tell its owner.
fn named(name: &[u8], sockets: &[u8]) -> Option<(i32, u32)> {
    let pid = std::str::from_utf8(name).ok()?.rsplit('/').next()?;
    let pid = pid.parse().ok()?;
    let process = Process::new(pid).ok()?;
    let status = process.status().ok()?;
    let is_one = status.name.as_bytes() == NAME.to_bytes() && has_open(&process, name, sockets);
    is_one.then_some((pid, status.ruid))
}

/// Whether a process has a socket of this name, out of those that the kernel lists.
fn has_open(process: &Process, name: &[u8], sockets: &[u8]) -> bool {
    let ending = [b" @", name].concat();
    let lines = sockets.split(|byte| *byte == b'\n');
    let inodes: Vec<u64> = lines
        .filter_map(|line| line.strip_suffix(&*ending))
        .filter_map(|line| {
            std::str::from_utf8(line)
                .ok()?
                .rsplit(' ')
                .next()?
                .parse()
                .ok()
        })
        .collect();
    let mut open = process.fd().into_iter().flatten().flatten();
    open.any(|fd| matches!(fd.target, FDTarget::Socket(inode) if inodes.contains(&inode)))
}

impl Line {
    /// To the process that starts the daemons of this mount, if it has one that can be found from here. Nothing is waited for.
    ///
    /// # Errors
    /// [`Unreached`].
    pub fn to(entry: &Entry) -> Result<Option<Self>, Unreached> {
        let me = geteuid();
        let owner = entry.user_id().ok_or(Errno::INVAL)?;
        let may = || match me.is_root() || me.as_raw() == owner {
            true => Ok(()),
            false => Err(Unreached::Denied),
        };
        let sockets = std::fs::read("/proc/net/unix").map_err(|_| Errno::NOENT)?;
        let mut deaf = None;
        for name in names(&sockets, &prefix(&entry.device)).into_iter().rev() {
            let socket = socket()?;
            match connect(&socket, &SocketAddrUnix::new_abstract_name(&name)?) {
                Ok(()) => {}
                // It takes no calls, and never may: names are free for all.
                Err(Errno::AGAIN) => {
                    let of_owner = |(pid, user)| (user == owner).then_some(pid);
                    deaf = deaf.or_else(|| named(&name, &sockets).and_then(of_owner));
                    continue;
                }
                Err(_) => continue,
            }
            if socket_peercred(&socket).is_ok_and(|listener| listener.uid.as_raw() == owner) {
                may()?;
                return Ok(Some(Self(socket)));
            }
        }
        match deaf {
            Some(pid) => may().and(Err(Unreached::Deaf(pid))),
            None => Ok(None),
        }
    }

    /// The number of the process at the other end; `None` if it cannot be seen from here.
    pub fn pid(&self) -> Option<i32> {
        let listener = socket_peercred(&self.0).ok()?.pid.as_raw_nonzero().get();
        (listener > 0).then_some(listener)
    }

    /// [`Line::receive`], waiting no longer than `patience`.
    ///
    /// # Errors
    /// What to say of a process that has sent nothing by then, or is of no use otherwise.
    pub fn first_word(&self, patience: Duration) -> Result<Message, String> {
        match self.speaks_within(patience) {
            Ok(true) => {}
            Ok(false) => return Err(self.silence()),
            Err(e) => return Err(e.to_string()),
        }
        let message = self.receive().map_err(|e| e.to_string())?;
        message.ok_or_else(|| "the supervisor does not listen".into())
    }

    /// What to say of a process that does not answer.
    pub fn silence(&self) -> String {
        silence(self.pid().unwrap_or_default())
    }

    /// Whether the process at the other end is stopped.
    pub fn is_stopped(&self) -> bool {
        self.pid().is_some_and(is_stopped)
    }

    /// Whether something has come within `patience`, for [`Line::receive`], or the other side is gone.
    ///
    /// # Errors
    /// Those of poll(2).
    pub fn speaks_within(&self, patience: Duration) -> Result<bool, Errno> {
        wait_for(self.as_fd(), PollFlags::IN, patience)
    }

    /// Sends something. A process that does not listen any more hears nothing.
    ///
    /// # Errors
    /// Those of sendmsg(2); [`Errno::AGAIN`] if much has been sent that the other side has not taken.
    pub fn send(&self, text: &[u8], descriptor: Option<BorrowedFd<'_>>) -> Result<(), Errno> {
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors: Vec<_> = descriptor.into_iter().collect();
        if !descriptors.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&descriptors));
        }
        let parts = [IoSlice::new(text)];
        rustix::io::retry_on_intr(|| sendmsg(&self.0, &parts, &mut control, SendFlags::NOSIGNAL))?;
        Ok(())
    }

    /// What the other side has sent; `None` if it is gone.
    ///
    /// # Errors
    /// [`Errno::AGAIN`] where it is not to wait, and there is nothing.
    pub fn receive(&self) -> Result<Option<Message>, Errno> {
        let mut text = vec![0; MESSAGE_MAX];
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let got = rustix::io::retry_on_intr(|| {
            let mut parts = [IoSliceMut::new(&mut text)];
            recvmsg(&self.0, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)
        })?;
        let mut descriptor = None;
        for part in control.drain() {
            if let RecvAncillaryMessage::ScmRights(some) = part {
                descriptor = some.last();
            }
        }
        text.truncate(got.bytes);
        Ok((got.bytes > 0).then_some(Message { text, descriptor }))
    }
}

impl From<OwnedFd> for Line {
    fn from(descriptor: OwnedFd) -> Self {
        Self(descriptor)
    }
}

impl AsFd for Line {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Opens a program so that it can be run, also when its file is replaced.
///
/// # Errors
/// It does not exist; it is no file.
pub fn open_program(path: &std::path::Path) -> std::io::Result<OwnedFd> {
    use rustix::fs::{CWD, Mode, OFlags, openat};
    let file = File::from(openat(
        CWD,
        path,
        OFlags::PATH | OFlags::CLOEXEC,
        Mode::empty(),
    )?);
    match file.metadata()?.is_file() {
        true => Ok(file.into()),
        false => Err(Errno::NOEXEC.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{bind, listen};

    /// The number in a name is that of a process which may know nothing of the socket.
    #[test]
    fn a_process_is_believed_to_have_a_socket_only_if_it_does() {
        let name = format!("{ALL}0:0/0/{}", std::process::id());
        let taken = socket().unwrap();
        bind(
            &taken,
            &SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap(),
        )
        .unwrap();
        listen(&taken, 0).unwrap();
        let sockets = std::fs::read("/proc/net/unix").unwrap();
        let has = |pid: u32, name: &str| {
            let process = Process::new(pid.cast_signed()).unwrap();
            has_open(&process, name.as_bytes(), &sockets)
        };
        let mut other = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        assert!(has(std::process::id(), &name));
        assert!(!has(std::process::id(), &format!("{name}0")));
        assert!(!has(other.id(), &name));
        other.kill().unwrap();
        other.wait().unwrap();
    }
}
