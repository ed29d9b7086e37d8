//! The process that outlives the daemon of a mount: it holds what the daemon cannot lose, and starts another one.
//!
//! A daemon sends it the descriptors of its connection to the kernel and of its memory ([`super::handover`]). As long
//! as some process has them the mount is not dead: when the daemon dies, programs that use it wait, and the next daemon
//! takes over from here. No data passes through this process, and it opens nothing of the volume. What keeps others from
//! the volume between two daemons is a descriptor like the others.

use std::ffi::OsString;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use clap::Parser;
use quayfs_options::MountOptions;
use rustix::cmsg_space;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, FdFlags, dup2, fcntl_dupfd_cloexec, fcntl_setfd};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
    recvmsg, socketpair,
};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};
use rustix::thread::disable_transparent_huge_pages;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::args::{Cli, Command};
use super::confine;
use super::daemon::Answer;
use super::exit::{Failure, MOUNT_FAILED};
use super::handover::{
    self, ANSWERED, ENDING, FAILED, FOR, HANDED_OVER, NAMES, PASSED, READY, RESERVATION, RESERVES,
    STORE, SUPERVISOR,
};
use super::inherited;
use super::log;
use super::mount::known_job;
use crate::mount::control::{Line, NAME};
use past::{ENOUGH, Past, Verdict};
use program::Program;
use replacing::{About, Replacing, signal};

mod job;
mod past;
mod program;
mod replacing;

pub use replacing::{FAILED as NOT_SERVED, HELLO, REPLACE, REPLACE_WITH, SERVED, STILL_WITH};

/// Descriptors of this process itself are above those that it holds for daemons, which begin with the first one that is
/// no standard stream and have no gaps.
const OWN: i32 = 512;
/// Where the descriptors for daemons begin.
const FIRST: i32 = 3;
/// How long until the next one is started where one could not serve for a reason that may pass.
const LATER_PAUSE: Duration = Duration::from_secs(1);
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
    let _ = rustix::thread::set_name(NAME);
    inherited::leave_session();
    inherited::prepare(0);
    inherited::outlive_daemons();
    // What is held has what users have written.
    confine::keep_memory_private();
    let mut supervisor = Supervisor::new(args).map_err(|e| failed(&e))?;
    loop {
        let life = supervisor.start_patiently(args).map_err(|e| failed(&e))?;
        let end = supervisor.watch(life).map_err(|e| failed(&e))?;
        let verdict = supervisor.judge(&end, handover::now());
        if matches!(verdict, Verdict::Over | Verdict::Failed(_)) {
            supervisor.give_up_replacing("the mount has ended: the log says why");
        }
        match verdict {
            Verdict::Again => {}
            Verdict::Later => thread::sleep(LATER_PAUSE),
            Verdict::Over => return Ok(()),
            Verdict::Failed(code) => std::process::exit(code.into()),
            Verdict::NeverMounted(signal) => end_by(signal),
            Verdict::GiveUp(_) if supervisor.fall_back() => {}
            Verdict::GiveUp(signal) => return Err(give_up(args, signal)),
        }
    }
}

/// The programs that this process starts use no huge pages: a small process with a few of them is not small. Where that
/// cannot be had nothing changes.
pub fn keep_small() {
    let _ = disable_transparent_huge_pages(true);
}

/// Ends as the daemon has: the command that waits for the mount knows no other process, and says how this one ended.
fn end_by(signal: i32) -> ! {
    let _ = signal_hook::low_level::emulate_default_handler(signal);
    std::process::exit(MOUNT_FAILED.into())
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
        let target = quayfs_shown::argument(&job.target);
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
    /// What daemons are started from, and what they were started from before it was replaced.
    program: Program,
    previous: Option<Program>,
    /// The options of the mount.
    options: String,
    about: About,
    /// Where processes come that want a daemon replaced, and those that have come.
    control: Option<OwnedFd>,
    clients: Vec<Line>,
    replacing: Option<Replacing>,
    past: Past,
    /// The mount has been ready.
    mounted: bool,
    /// The end has been asked for.
    ending: bool,
    /// The mount has failed, and is read-only for the rest of its life.
    failed: bool,
}

/// A daemon at work.
struct Life {
    child: Child,
    handle: OwnedFd,
    /// Where it says why it cannot serve, if that is of interest.
    says: Option<OwnedFd>,
    /// What it has told.
    was_ready: bool,
    answered: bool,
    handed_over: bool,
    /// It was told to end the mount.
    is_to_end: bool,
}

/// How a daemon ended.
struct End {
    status: ExitStatus,
    was_ready: bool,
    answered: bool,
    handed_over: bool,
    /// Why it could not serve, in its own words.
    said: Option<String>,
}

impl Supervisor {
    fn new(args: &[OsString]) -> io::Result<Self> {
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
        let options = args.iter().skip_while(|arg| *arg != "-o").nth(1);
        let mut supervisor = Self {
            socket,
            signals,
            held: Vec::new(),
            program: Program::own()?,
            previous: None,
            options: options.map_or_else(String::new, |o| o.to_string_lossy().into()),
            about: About::default(),
            control: None,
            clients: Vec::new(),
            replacing: None,
            past: Past::default(),
            mounted: false,
            ending: false,
            failed: false,
        };
        supervisor.hold(SUPERVISOR, theirs)?;
        Ok(supervisor)
    }

    /// [`Supervisor::start`], again and again while the system has no process to spare.
    fn start_patiently(&mut self, args: &[OsString]) -> io::Result<Life> {
        self.begin_trial();
        for _ in 0..START_TRIES {
            match self.start(args) {
                Err(e) if self.tries() => self.go_back(format!("it cannot be started: {e}")),
                Err(_) if self.mounted => thread::sleep(START_PAUSE),
                other => return other,
            }
            self.begin_trial();
        }
        self.start(args)
    }

    /// Starts a daemon, which inherits what is held. The first one answers on the standard output.
    fn start(&self, args: &[OsString]) -> io::Result<Life> {
        let names: Vec<&str> = self.held.iter().map(|(name, _)| &**name).collect();
        let mut command = self.program.command();
        command
            .args(args)
            .env_remove(FOR)
            .env(PASSED, names.len().to_string())
            .env(NAMES, names.join(":"))
            .env(RESERVES, "1")
            .envs(self.past.told())
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .stdout(match (self.mounted, self.tries()) {
                (_, true) => Stdio::piped(),
                (true, false) => Stdio::null(),
                (false, false) => Stdio::inherit(),
            });
        // Daemons have use for huge pages.
        let _ = disable_transparent_huge_pages(false);
        let child = command.spawn();
        keep_small();
        let mut child = child?;
        let handle = pidfd_open(pid_of(&child)?, PidfdFlags::empty())?;
        let handle = moved(handle, OWN)?;
        let says = child.stdout.take().map(OwnedFd::from);
        let says = says.map(|pipe| moved(pipe, OWN)).transpose()?;
        Ok(Life {
            child,
            handle,
            says,
            was_ready: false,
            answered: false,
            handed_over: false,
            is_to_end: false,
        })
    }

    /// Listens to a daemon, and to all others, until it ends.
    fn watch(&mut self, mut life: Life) -> io::Result<End> {
        loop {
            let ended = self.await_anything(&life)?;
            // Before its end is looked at: what it has sent last counts.
            while let Some(text) = self.hear()? {
                text.lines().for_each(|line| self.note(&mut life, line));
            }
            if life.was_ready && !self.mounted {
                self.mounted = true;
                // The command that waits for the mount waits for nothing else.
                let null = std::fs::File::options().write(true).open("/dev/null")?;
                rustix::stdio::dup2_stdout(&null)?;
            }
            // A daemon that goes on with a mount obeys when it serves; before that it would just die. The first one
            // may.
            if life.was_ready || !self.mounted {
                self.pass_on_signals(&mut life)?;
            }
            if life.was_ready {
                self.end_if_asked(&mut life)?;
                self.open_control();
            }
            if ended {
                let status = life.child.wait()?;
                let said = life.says.as_ref().and_then(said);
                return Ok(End {
                    status,
                    was_ready: life.was_ready,
                    answered: life.answered,
                    handed_over: life.handed_over,
                    said,
                });
            }
            if life.was_ready {
                self.hear_clients(&life)?;
            }
            self.advance(&life)?;
        }
    }

    /// Waits until a daemon has ended, which it returns, or something else has come.
    fn await_anything(&self, life: &Life) -> io::Result<bool> {
        let signals = self.signals.iter().map(|(_, came)| came.as_fd());
        let mut watched = vec![life.handle.as_fd(), self.socket.as_fd()];
        if life.was_ready || !self.mounted {
            watched.extend(signals);
        }
        if life.was_ready {
            watched.extend(self.doors());
        }
        let fds = watched.into_iter();
        let mut fds: Vec<_> = fds
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        let patience = self.patience().map(|left| Timespec {
            tv_sec: left.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        });
        match poll(&mut fds, patience.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(!fds[0].revents().is_empty()),
            Err(e) => Err(e.into()),
        }
    }

    /// What a daemon has told.
    fn note(&mut self, life: &mut Life, line: &str) {
        match line {
            READY => life.was_ready = true,
            ANSWERED => life.answered = true,
            HANDED_OVER => life.handed_over = true,
            FAILED => self.failed = true,
            ENDING => (self.ending, life.is_to_end) = (true, true),
            line => self.about.note(line),
        }
    }

    /// The next message of the daemon. Descriptors that come along are held from now on.
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
            let name = name.unwrap_or("stored");
            for descriptor in descriptors {
                match self.held.iter().position(|held| held.0 == RESERVATION) {
                    Some(at) if name == RESERVATION => dup2(descriptor, &mut self.held[at].1)?,
                    _ => self.hold(name, descriptor)?,
                }
            }
        }
        Ok(Some(text))
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

    fn pass_on_signals(&mut self, life: &mut Life) -> io::Result<()> {
        for (number, came) in &self.signals {
            let mut some = [0; 64];
            let mut any = false;
            while rustix::io::read(came, &mut some).is_ok_and(|n| n > 0) {
                any = true;
            }
            if any {
                if *number != SIGHUP {
                    (self.ending, life.is_to_end) = (true, true);
                }
                let number = Signal::from_named_raw(*number).ok_or(Errno::INVAL)?;
                signal(life, number)?;
            }
        }
        Ok(())
    }

    /// A daemon that goes on where one has died that was to end the mount does so.
    fn end_if_asked(&self, life: &mut Life) -> io::Result<()> {
        if !self.ending || life.is_to_end {
            return Ok(());
        }
        life.is_to_end = true;
        signal(life, Signal::TERM)
    }
}

/// Why a daemon cannot serve, as it has said to the process that started it.
fn said(pipe: &OwnedFd) -> Option<String> {
    let mut text = [0; MESSAGE_MAX];
    // It has ended: what it has written is there, and what it has started may have the pipe open.
    rustix::io::ioctl_fionbio(pipe, true).ok()?;
    let n = rustix::io::read(pipe, &mut text).ok()?;
    let text = String::from_utf8_lossy(&text[..n]);
    match Answer::decode(text.lines().next()?)? {
        Answer::Failed(failure) => Some(failure.line),
        Answer::Ready(_) => None,
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
