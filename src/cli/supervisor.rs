//! The process that outlives the daemon of a mount: it holds what the daemon cannot lose, and starts another one.
//!
//! A daemon sends it the descriptors of its connection to the kernel and of its memory ([`super::handover`]). As long
//! as some process has them the mount is not dead: when the daemon dies, programs that use it wait, and the next daemon
//! takes over from here. No data passes through this process, and it opens nothing of the volume.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use clap::Parser;
use quayfs_options::MountOptions;
use rustix::cmsg_space;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
    recvmsg, socketpair,
};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};
use rustix::thread::disable_transparent_huge_pages;
use signal_hook::consts::{SIGABRT, SIGBUS, SIGFPE, SIGHUP, SIGILL, SIGINT, SIGSEGV, SIGTERM};

use super::args::{Cli, Command};
use super::exit::{Failure, MOUNT_FAILED};
use super::handover::{
    self, ANSWERED, CAUSE, DEATHS, DIED, FAILED, FOR, NAMES, PASSED, READY, STORE, SUPERVISOR,
};
use super::inherited;
use super::log;
use super::mount::{known_job, program};

/// Descriptors of this process itself are above those that it holds for daemons, which begin with the first one that is
/// no standard stream and have no gaps.
const OWN: i32 = 512;
/// Where the descriptors for daemons begin.
const FIRST: i32 = 3;
/// So many daemons that die one after the other without an answer are enough,
const ENOUGH: usize = 5;
/// if they die within this time, or before they serve.
const WITHIN: Duration = Duration::from_secs(10);
/// Signals that a daemon is ended by because of a fault of its own.
const FAULTS: [i32; 5] = [SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV];
/// How often, and after which time, a daemon is started again if it cannot be started.
const START_TRIES: u32 = 50;
const START_PAUSE: Duration = Duration::from_millis(200);
/// Longest message.
const MESSAGE_MAX: usize = 4096;

/// Runs daemons with these arguments until the mount has ended. They are not looked at: what reads them takes more
/// memory than all that this process does.
///
/// # Errors
/// What the last daemon ended with. That it could not mount it has said itself on the standard output.
pub fn run(args: &[OsString]) -> Result<(), Failure> {
    let failed = |e: &dyn std::fmt::Display| Failure::new(MOUNT_FAILED, format!("supervisor: {e}"));
    let _ = rustix::thread::set_name(c"quayfs-super");
    let _ = rustix::process::setsid();
    inherited::prepare(0);
    inherited::outlive_daemons();
    let mut supervisor = Supervisor::new().map_err(|e| failed(&e))?;
    loop {
        let life = supervisor.start_patiently(args).map_err(|e| failed(&e))?;
        let end = supervisor.watch(life).map_err(|e| failed(&e))?;
        match supervisor.judge(&end, handover::now()) {
            Verdict::Again => {}
            Verdict::Over => return Ok(()),
            Verdict::Failed(code) => std::process::exit(code.into()),
            Verdict::GiveUp(signal) => return Err(give_up(args, signal)),
        }
    }
}

/// The programs that this process starts use no huge pages: a small process with a few of them is not small. Where that
/// cannot be had nothing changes.
pub fn keep_small() {
    let _ = disable_transparent_huge_pages(true);
}

/// Says so in the log, since there is no other place.
fn give_up(args: &[OsString], signal: i32) -> Failure {
    let mut line = format!(
        "{ENOUGH} daemons in a row have answered nothing, the last one was ended by signal {signal}: the mount is \
         given up"
    );
    let words = std::iter::once("quayfs".into()).chain(args.iter().cloned());
    if let Ok(Cli {
        command: Command::Mount(args),
    }) = Cli::try_parse_from(words)
        && let Ok(job) = known_job(args, MountOptions::default())
    {
        let target = quayfs_shown::path(&job.target);
        line.push_str(&format!("; `quayfs umount {target}`, then mount again"));
        let _ = log::start(&job.log, true);
        tracing::error!("{line}");
        log::flush();
    }
    Failure::new(MOUNT_FAILED, line)
}

struct Supervisor {
    /// What daemons say. Their end of it is the first descriptor that is held: no other process can send anything.
    socket: OwnedFd,
    /// Signals to pass on, and what becomes readable when they come.
    signals: Vec<(i32, OwnedFd)>,
    /// Descriptors that are held, and their names, without gaps from [`FIRST`] on.
    held: Vec<(String, OwnedFd)>,
    /// Daemons that have died.
    deaths: u64,
    /// How the last of them died.
    cause: String,
    /// When.
    died: Duration,
    /// When the last daemons died, as far as they had answered nothing.
    in_vain: VecDeque<Duration>,
    /// The mount has been ready.
    mounted: bool,
    /// A signal has asked for the end.
    ending: bool,
    /// The mount has failed, and is read-only for the rest of its life.
    failed: bool,
}

/// A daemon at work.
struct Life {
    child: Child,
    handle: OwnedFd,
}

/// How a daemon ended.
struct End {
    status: ExitStatus,
    was_ready: bool,
    answered: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// Another daemon goes on.
    Again,
    /// The mount has ended.
    Over,
    /// There is no mount, or it is of no use any more.
    Failed(u8),
    /// Another daemon would die like the last one, by this signal.
    GiveUp(i32),
}

impl Supervisor {
    fn new() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        let (socket, theirs) = socketpair(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
        let socket = moved(socket, OWN)?;
        // The lowest number is free again: theirs gets it.
        let theirs = moved(theirs, FIRST)?;
        let mut signals = Vec::new();
        for signal in [SIGTERM, SIGINT, SIGHUP] {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let (came, wake) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
            let wake = fcntl_dupfd_cloexec(&wake, OWN)?;
            signal_hook::low_level::pipe::register(signal, UnixStream::from(wake))?;
            signals.push((signal, fcntl_dupfd_cloexec(&came, OWN)?));
        }
        let mut supervisor = Self {
            socket,
            signals,
            held: Vec::new(),
            deaths: 0,
            cause: String::new(),
            died: Duration::ZERO,
            in_vain: VecDeque::new(),
            mounted: false,
            ending: false,
            failed: false,
        };
        supervisor.hold(SUPERVISOR, theirs)?;
        Ok(supervisor)
    }

    /// [`Supervisor::start`], again and again while the system has no process to spare.
    fn start_patiently(&self, args: &[OsString]) -> io::Result<Life> {
        for _ in 0..START_TRIES {
            match self.start(args) {
                Err(_) if self.mounted => thread::sleep(START_PAUSE),
                other => return other,
            }
        }
        self.start(args)
    }

    /// Starts a daemon, which inherits what is held. The first one answers on the standard output.
    fn start(&self, args: &[OsString]) -> io::Result<Life> {
        let names: Vec<&str> = self.held.iter().map(|(name, _)| &**name).collect();
        let mut command = program()?;
        command
            .args(args)
            .env_remove(FOR)
            .env(PASSED, names.len().to_string())
            .env(NAMES, names.join(":"))
            .env(DEATHS, self.deaths.to_string())
            .env(CAUSE, &self.cause)
            .env(DIED, self.died.as_nanos().to_string())
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .stdout(match self.mounted {
                true => Stdio::null(),
                false => Stdio::inherit(),
            });
        // Daemons have use for huge pages.
        let _ = disable_transparent_huge_pages(false);
        let child = command.spawn();
        keep_small();
        let child = child?;
        let handle = pidfd_open(pid_of(&child)?, PidfdFlags::empty())?;
        let handle = fcntl_dupfd_cloexec(&handle, OWN)?;
        Ok(Life { child, handle })
    }

    /// Listens to a daemon until it ends.
    fn watch(&mut self, mut life: Life) -> io::Result<End> {
        let (mut was_ready, mut answered) = (false, false);
        loop {
            let signals = self.signals.iter().map(|(_, came)| came);
            let watched = [&life.handle, &self.socket].into_iter().chain(signals);
            let heard = if was_ready || !self.mounted {
                self.signals.len() + 2
            } else {
                2
            };
            let watched = watched.take(heard);
            let mut fds: Vec<_> = watched.map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
            match poll(&mut fds, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
            let ended = !fds[0].revents().is_empty();
            // Before its end is looked at: what it has sent last counts.
            while let Some(word) = self.hear()? {
                was_ready |= word == READY;
                answered |= word == ANSWERED;
                self.failed |= word == FAILED;
            }
            if was_ready && !self.mounted {
                self.mounted = true;
                // The command that waits for the mount waits for nothing else.
                let null = std::fs::File::options().write(true).open("/dev/null")?;
                rustix::stdio::dup2_stdout(&null)?;
            }
            // A daemon that goes on with a mount obeys when it serves; before that it would just die. The first one
            // may.
            if was_ready || !self.mounted {
                self.pass_on_signals(&life)?;
            }
            if ended {
                let status = life.child.wait()?;
                return Ok(End {
                    status,
                    was_ready,
                    answered,
                });
            }
        }
    }

    /// The next message of the daemon: a word of it. Descriptors that come along are held from now on.
    fn hear(&mut self) -> io::Result<Option<String>> {
        let mut text = [0; MESSAGE_MAX];
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(4))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let got = recvmsg(
            &self.socket,
            &mut [IoSliceMut::new(&mut text)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT,
        );
        let n = match got {
            Ok(got) => got.bytes,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            Err(e) => return Err(e.into()),
        };
        let mut descriptors = Vec::new();
        for part in control.drain() {
            if let RecvAncillaryMessage::ScmRights(some) = part {
                descriptors.extend(some);
            }
        }
        let text = String::from_utf8_lossy(&text[..n]).into_owned();
        let name = text.lines().find_map(|line| line.strip_prefix("FDNAME="));
        if text.lines().any(|line| line == STORE) {
            for descriptor in descriptors {
                self.hold(name.unwrap_or("stored"), descriptor)?;
            }
        }
        Ok(Some(text.lines().next().unwrap_or_default().into()))
    }

    /// Daemons that start from now on inherit the descriptor. It has the lowest number that was free, so there is no
    /// gap before it.
    fn hold(&mut self, name: &str, descriptor: OwnedFd) -> io::Result<()> {
        let next = FIRST + self.held.len() as i32;
        if descriptor.as_raw_fd() != next || next >= OWN {
            let number = descriptor.as_raw_fd();
            return Err(io::Error::other(format!(
                "descriptor {number} came, not {next}"
            )));
        }
        fcntl_setfd(&descriptor, FdFlags::empty())?;
        self.held.push((name.replace(':', "_"), descriptor));
        Ok(())
    }

    fn pass_on_signals(&mut self, life: &Life) -> io::Result<()> {
        for (signal, came) in &self.signals {
            let mut some = [0; 64];
            let mut any = false;
            while rustix::io::read(came, &mut some).is_ok_and(|n| n > 0) {
                any = true;
            }
            if any {
                self.ending |= *signal != SIGHUP;
                let signal = Signal::from_named_raw(*signal).ok_or(Errno::INVAL)?;
                match rustix::process::pidfd_send_signal(&life.handle, signal) {
                    // It has ended by itself.
                    Ok(()) | Err(Errno::SRCH) => {}
                    Err(e) => return Err(e.into()),
                }
            }
        }
        Ok(())
    }

    /// What comes after a daemon. One that ended by itself has had its reasons, and has said them.
    fn judge(&mut self, end: &End, now: Duration) -> Verdict {
        if let Some(code) = end.status.code() {
            return match code {
                0 => Verdict::Over,
                code => Verdict::Failed(u8::try_from(code).unwrap_or(MOUNT_FAILED)),
            };
        }
        let signal = end.status.signal().unwrap_or_default();
        if !self.mounted {
            return Verdict::Failed(MOUNT_FAILED);
        }
        // The next one would not know what has failed, and serve what is not there.
        if self.ending || self.failed {
            return Verdict::Failed(MOUNT_FAILED);
        }
        self.deaths += 1;
        self.cause = format!("ended by signal {signal}");
        self.died = now;
        // A fault of the program may be in a request that each daemon gets again, beside others that it answers.
        let is_fault = FAULTS.contains(&signal);
        if end.answered && !is_fault {
            self.in_vain.clear();
            return Verdict::Again;
        }
        self.in_vain.push_back(now);
        if end.was_ready {
            self.in_vain.retain(|then| now - *then < WITHIN);
        }
        if self.in_vain.len() < ENOUGH {
            Verdict::Again
        } else {
            Verdict::GiveUp(signal)
        }
    }
}

/// The same under the lowest number that is free from `least` on.
fn moved(descriptor: OwnedFd, least: i32) -> io::Result<OwnedFd> {
    Ok(fcntl_dupfd_cloexec(&descriptor, least)?)
}

fn pid_of(child: &Child) -> io::Result<Pid> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    pid.ok_or_else(|| io::Error::other("a process without a number"))
}
