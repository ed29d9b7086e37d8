//! What a daemon has from the one before it, and leaves to the one after it: descriptors, which a third process holds.
//!
//! That is the supervisor of the mount ([`super::supervisor`]), or any service manager that speaks the same protocol:
//! messages to `NOTIFY_SOCKET` (sd_notify(3)), of which `FDSTORE=1` brings a descriptor to be held under a name, and
//! `LISTEN_FDS` and `LISTEN_FDNAMES` (sd_listen_fds(3)), by which the next daemon finds them.

mod begun;
mod held;
mod taken;

use std::ffi::OsStr;
use std::fs::File;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use quayfs_fs::predecessor::Predecessor;
use quayfs_fs::volume::Volume;
use quayfs_fuse::Gate;
use quayfs_pmem::PmemError;
use quayfs_restart::Requests;
use rustix::cmsg_space;
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, connect, sendmsg, socket_with,
};
use rustix::process::{Pid, getppid};
use rustix::time::{ClockId, clock_gettime};
use tracing::warn;

use crate::mount::control::is_heard;

pub use begun::begin;
use held::Held;
pub use taken::{Handover, Memory};

/// How many descriptors are passed on, starting with the first that is no standard stream.
pub const PASSED: &str = "LISTEN_FDS";
/// Their names, with colons between them.
pub const NAMES: &str = "LISTEN_FDNAMES";
/// The process they are meant for, if that was known.
pub const FOR: &str = "LISTEN_PID";
/// Where to send messages.
const SOCKET: &str = "NOTIFY_SOCKET";
/// How many descriptors the service manager holds for this process at most, if it does.
const HOLDS: &str = "FDSTORE";

/// How many daemons of this mount have died.
pub const DEATHS: &str = "QUAYFS_DEATHS";
/// How many have ended because another one was to take their place.
pub const REPLACED: &str = "QUAYFS_REPLACED";
/// How the last of all of them ended.
pub const CAUSE: &str = "QUAYFS_CAUSE";
/// What [`CAUSE`] says of one that was replaced.
pub const ON_REQUEST: &str = "replaced on request";
/// When that was, or was asked for, in nanoseconds of [`now`].
pub const DIED: &str = "QUAYFS_DIED";

/// Where to send messages, if that is a descriptor which is passed on.
pub const SUPERVISOR: &str = "supervisor";
/// A descriptor of the connection to the kernel.
const CONNECTION: &str = "connection";
/// The memory of requests under way.
const REQUESTS: &str = "requests";
/// What was stored to the region, where that is on a disk.
const STORES: &str = "stores";
/// What large writes had on its way to the data device.
const POSTINGS: &str = "postings";

/// What keeps others from the volume between two daemons.
pub const RESERVATION: &str = "reservation";
/// Says that what started this process holds that one: it replaces the one that it has.
pub const RESERVES: &str = "QUAYFS_RESERVES";

/// What begins the name of a descriptor of something that the daemon is to do, which a process has asked for.
pub const JOB: &str = "job-";

/// The mount answers requests.
pub const READY: &str = "READY=1";
/// This daemon has answered one.
pub const ANSWERED: &str = "X_QUAYFS_ANSWERED=1";
/// The mount has failed: another daemon must not go on with it as if it had not.
pub const FAILED: &str = "X_QUAYFS_FAILED=1";
/// The mount is to end.
pub const ENDING: &str = "X_QUAYFS_ENDING=1";
/// The same for service managers.
pub const STOPPING: &str = "STOPPING=1";
/// For service managers: so many microseconds from now on at least are needed for what is under way.
pub const MORE_TIME: &str = "EXTEND_TIMEOUT_USEC=";
/// This daemon ends, and has left the mount to the next one.
pub const HANDED_OVER: &str = "X_QUAYFS_HANDED_OVER=1";
/// With [`READY`]: the device number of the mount, as `MAJOR:MINOR`.
pub const DEVICE: &str = "X_QUAYFS_DEVICE=";
/// The same: the daemon's version.
pub const VERSION: &str = "X_QUAYFS_VERSION=";
/// The same: what a program has to be able to that goes on ([`super::succession`]).
pub const NEEDS: &str = "X_QUAYFS_NEEDS=";
/// The mount answers, now as before.
const ALIVE: &str = "WATCHDOG=1";
/// How long a service manager waits for [`ALIVE`], in microseconds, and which process is to say it.
const WATCHDOG: &str = "WATCHDOG_USEC";
const WATCHED: &str = "WATCHDOG_PID";
/// Why no other daemon can come: it was to be started by a supervisor,
pub const SUPERVISOR_GONE: &str = "its supervisor is gone";
/// or by a service manager.
pub const MANAGER_GONE: &str = "its service manager does not listen any more";
/// How long a supervisor may take to say that it is there, and how often to look.
const HEARING: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(10);
/// A descriptor comes with the message.
pub const STORE: &str = "FDSTORE=1";
/// Descriptors of a name are not to be held any more.
const FORGET: &str = "FDSTOREREMOVE=1";
/// With [`STORE`]: the descriptor is not to be watched. A connection that is not mounted yet looks like one that has ended.
const UNWATCHED: &str = "FDPOLL=0";

/// How many descriptors this process was given, before it has read any of them.
pub fn passed() -> usize {
    let number = |name: &str| std::env::var(name).ok()?.parse().ok();
    match number(FOR) {
        Some(pid) if pid != std::process::id() as usize => 0,
        _ => number(PASSED).unwrap_or(0),
    }
}

fn word(name: &str) -> String {
    std::env::var(name).unwrap_or_default()
}

/// How long no daemon has served.
pub fn pause(last: &Predecessor) -> Option<Duration> {
    now().checked_sub(last.ended?)
}

/// A moment, for other processes to know.
pub fn now() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::new(now.tv_sec.cast_unsigned(), now.tv_nsec as u32)
}

/// How long the service manager waits to be reassured, if it does at all.
pub fn watchdog() -> Option<Duration> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    match number(WATCHED) {
        Some(pid) if pid != u64::from(std::process::id()) => None,
        _ => number(WATCHDOG).map(Duration::from_micros),
    }
}

/// Whether this process is to go on with the mount of a daemon that has ended.
pub fn goes_on() -> bool {
    passed() > 0 && word(NAMES).split(':').any(|name| name == REQUESTS)
}

/// The process that holds descriptors, and the gate that requests pass until this one leaves the mount to the next.
#[derive(Clone, Debug)]
pub struct Holder {
    socket: Arc<OwnedFd>,
    /// The supervisor, if it is one: the parent of this process, as long as it lives.
    supervisor: Option<Pid>,
    reserves: bool,
    gate: Gate,
    held: Held,
}

impl Holder {
    fn new(socket: OwnedFd) -> Self {
        Self {
            socket: Arc::new(socket),
            supervisor: None,
            reserves: false,
            gate: Gate::default(),
            held: Held::default(),
        }
    }

    /// The supervisor has made both ends of this socket.
    fn supervisor(socket: OwnedFd) -> Self {
        let peer = socket_peercred(&socket).ok();
        Self {
            supervisor: peer.map(|peer| peer.pid),
            reserves: std::env::var_os(RESERVES).is_some(),
            ..Self::new(socket)
        }
    }

    /// Why a supervisor cannot start another daemon any more: it has died.
    pub fn why_gone(&self) -> Option<&'static str> {
        let is_gone = self.supervisor.is_some() && self.supervisor != getppid();
        is_gone.then_some(SUPERVISOR_GONE)
    }

    /// Why nothing would start another daemon, after a look whether the process that would do so listens: a supervisor has to
    /// say something, a service manager to be there. `device`: the device number of the mount.
    pub fn why_deaf(&self, device: Option<&str>) -> Option<&'static str> {
        let Some(supervisor) = self.supervisor else {
            return self.is_refused().then_some(MANAGER_GONE);
        };
        let until = Instant::now() + HEARING;
        loop {
            if let Some(why) = self.why_gone() {
                return Some(why);
            }
            let left = until.saturating_duration_since(Instant::now());
            // It may be stopped, or hear too many others. A dying one is gone by then.
            if left.is_zero() || device.is_some_and(|device| is_heard(supervisor, device, left)) {
                return None;
            }
            thread::sleep(LOOK);
        }
    }

    /// Whether no process gets messages, by one that changes nothing.
    fn is_refused(&self) -> bool {
        matches!(
            self.try_send(ALIVE, &[], SendFlags::DONTWAIT),
            Err(Errno::CONNREFUSED | Errno::NOTCONN | Errno::CONNRESET | Errno::PIPE)
        )
    }

    /// The service manager that started this process, if it takes messages, for those that are about its mount and not
    /// about the next daemon.
    pub fn service_manager() -> Option<Self> {
        Self::find()
    }

    /// Says that this daemon leaves the mount to the next one, and has begun no request since.
    pub fn leave(&self, requests: &Requests, since: Duration) {
        requests.leave(since.as_nanos() as u64);
        self.store_again();
        self.tell(HANDED_OVER);
    }

    /// Says that the mount answers, and has held what the next daemon needs.
    pub fn reassure(&self) {
        self.tell(ALIVE);
        self.store_again();
    }

    /// A service manager that holds a descriptor already leaves it at that.
    fn store_again(&self) {
        self.held.each(|name, d| self.send_descriptor(name, d));
    }

    /// What requests pass.
    pub fn gate(&self) -> &Gate {
        &self.gate
    }

    /// The service manager that started this process, if it takes messages.
    fn find() -> Option<Self> {
        let name = std::env::var_os(SOCKET)?;
        Self::at(&name)
            .map_err(|e| warn!("{SOCKET} cannot be reached: {e}"))
            .ok()
    }

    fn at(name: &OsStr) -> Result<Self, Errno> {
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
        let address = match name.as_bytes() {
            [b'@', name @ ..] => SocketAddrUnix::new_abstract_name(name)?,
            path => SocketAddrUnix::new(path)?,
        };
        connect(&socket, &address)?;
        Ok(Self::new(socket))
    }

    /// Says something.
    pub fn tell(&self, message: &str) {
        self.send(message, &[]);
    }

    /// Reserves the volume for the daemons of this mount, where that is possible. A service manager would let go of it at any
    /// time after the mount has ended.
    ///
    /// # Errors
    /// Those of [`Volume::reserve`].
    pub fn reserve(&self, volume: &Volume) -> Result<(), PmemError> {
        if !self.reserves {
            return Ok(());
        }
        match volume.reserve()? {
            Some(descriptor) => self.store(RESERVATION, descriptor.as_fd()),
            // What was reserved before, if anything, is so no more.
            None => {
                if let Ok(nothing) = File::open("/dev/null") {
                    self.store(RESERVATION, nothing.as_fd());
                }
            }
        }
        Ok(())
    }

    fn store(&self, name: &'static str, descriptor: BorrowedFd<'_>) {
        self.keep(name, descriptor);
        self.send_descriptor(name, descriptor);
    }

    /// A supervisor holds what it was given.
    fn keep(&self, name: &'static str, descriptor: BorrowedFd<'_>) {
        if self.supervisor.is_none() {
            self.held.keep(name, descriptor);
        }
    }

    fn send_descriptor(&self, name: &str, descriptor: BorrowedFd<'_>) {
        let message = format!("{STORE}\nFDNAME={name}\n{UNWATCHED}");
        self.send(&message, &[descriptor]);
    }

    /// The mount has ended: a service manager that starts the service again must not hand on what is left of it. A supervisor
    /// ends as well.
    pub fn forget(&self) {
        if self.supervisor.is_some() {
            return;
        }
        self.held.forget();
        for name in [CONNECTION, REQUESTS, STORES, POSTINGS] {
            self.send(&format!("{FORGET}\nFDNAME={name}"), &[]);
        }
    }

    fn send(&self, message: &str, descriptors: &[BorrowedFd<'_>]) {
        if let Err(e) = self.try_send(message, descriptors, SendFlags::empty()) {
            warn!("a message does not reach what started this daemon: {e}");
        }
    }

    fn try_send(
        &self,
        message: &str,
        descriptors: &[BorrowedFd<'_>],
        flags: SendFlags,
    ) -> Result<(), Errno> {
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(descriptors));
        }
        let parts = [IoSlice::new(message.as_bytes())];
        let flags = SendFlags::NOSIGNAL | flags;
        rustix::io::retry_on_intr(|| sendmsg(&*self.socket, &parts, &mut control, flags))?;
        Ok(())
    }
}
