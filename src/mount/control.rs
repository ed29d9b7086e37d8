//! How the process that starts the daemons of a mount is told to replace one.
//!
//! It listens on a socket whose name has the numbers of the file system, as its daemons do ([`super::server`]), and hears
//! root and its own user. It begins, with what the other side has to know; then that one sends a program, and is told what
//! has become of it.

use std::fs::File;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

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

fn prefix(device: &str) -> String {
    let node = superblock::node(device).unwrap_or_default();
    format!("quayfs-supervisor/{device}/{node}/")
}

fn address(device: &str, listener: Pid) -> Result<SocketAddrUnix, Errno> {
    let name = format!("{}{}", prefix(device), listener.as_raw_nonzero());
    SocketAddrUnix::new_abstract_name(name.as_bytes())
}

/// Whether this process listens, for the file system of this device number, and says something within `patience`. One that is
/// being killed does not.
pub fn is_heard(listener: Pid, device: &str, patience: Duration) -> bool {
    let heard = || {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
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
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
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

impl Line {
    /// To the process that starts the daemons of this mount, if it has one that can be found from here.
    ///
    /// # Errors
    /// [`Errno::ACCESS`] if this user may not.
    pub fn to(entry: &Entry) -> Result<Option<Self>, Errno> {
        let me = geteuid();
        let owner = entry.user_id().ok_or(Errno::INVAL)?;
        let sockets = std::fs::read("/proc/net/unix").map_err(|_| Errno::NOENT)?;
        for name in names(&sockets, &prefix(&entry.device)).into_iter().rev() {
            let flags = SocketFlags::CLOEXEC;
            let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
            if connect(&socket, &SocketAddrUnix::new_abstract_name(&name)?).is_err() {
                continue;
            }
            // Names are free for all.
            if socket_peercred(&socket).is_ok_and(|listener| listener.uid.as_raw() == owner) {
                let may = me.is_root() || me.as_raw() == owner;
                return may.then_some(Some(Self(socket))).ok_or(Errno::ACCESS);
            }
        }
        Ok(None)
    }

    /// The number of the process at the other end; `None` if it cannot be seen from here.
    pub fn pid(&self) -> Option<i32> {
        let listener = socket_peercred(&self.0).ok()?.pid.as_raw_nonzero().get();
        (listener > 0).then_some(listener)
    }

    /// The process at the other end, as a descriptor that becomes readable when it ends; `None` if it is gone, or cannot be
    /// seen from here.
    pub fn process(&self) -> Option<OwnedFd> {
        let listener = socket_peercred(&self.0).ok()?;
        pidfd_open(listener.pid, PidfdFlags::empty()).ok()
    }

    /// [`Line::receive`], waiting no longer than `patience`.
    ///
    /// # Errors
    /// What to say of a process that has sent nothing by then, or is of no use otherwise.
    pub fn first_word(&self, patience: Duration) -> Result<Message, String> {
        match wait_for(self.as_fd(), PollFlags::IN, patience) {
            Ok(true) => {}
            Ok(false) => return Err(self.silence()),
            Err(e) => return Err(e.to_string()),
        }
        let message = self.receive().map_err(|e| e.to_string())?;
        message.ok_or_else(|| "the supervisor does not listen".into())
    }

    /// What to say of a process that does not answer.
    fn silence(&self) -> String {
        let pid = socket_peercred(&self.0).map_or(0, |peer| peer.pid.as_raw_nonzero().get());
        match is_stopped(pid) {
            true => format!(
                "its supervisor (process {pid}) is stopped (SIGSTOP or a debugger): `kill -CONT {pid}` lets it go on"
            ),
            false => format!("its supervisor (process {pid}) does not answer"),
        }
    }

    /// Sends something. A process that does not listen any more hears nothing.
    ///
    /// # Errors
    /// Those of sendmsg(2).
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
