//! Asking what may never answer, by a process of its own: a mount whose daemon may be stuck, and media that may lie on a
//! disk or a file system that is.
//!
//! A thread that waits for a request that such a one has in hand cannot be killed, and the process that it belongs to cannot
//! end. So another process waits, and nothing waits for that.

use super::control::{Line, open_program, supervisor};
use super::gone;
use super::server::{Server, wait_for};
use super::table::Entry;
use clap::ValueEnum;
use procfs::process::Process;
use quayfs_server::STATUS_XATTR;
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Gid, Uid, geteuid, setsid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

mod slots;

use slots::{Awaited, Place};

/// What `quayfs probe` is asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Question {
    /// How a mount is.
    #[default]
    Status,
    /// What is asked of a mount, until it ends.
    Trace,
    /// What is in the way of another daemon that is to open a volume, by the names, owners and beginning of its media.
    Names,
    /// Where the parts of a volume lie, by their names alone.
    Parts,
    /// How much room there is below the files of a volume.
    Room,
    /// Whether the media of a volume can be read.
    Media,
    /// Whether a volume has lost its tables, and a copy of them is left.
    Tables,
    /// Whether a log can be.
    Log,
    /// Whether a path leads anywhere, what to, and whose that is which has the name.
    Path,
    /// What a program says that it can take over.
    Program,
    /// A program, opened.
    Open,
}

impl Question {
    /// The process that finds that out, and says it on its standard output.
    fn of(self, target: &Path, asked: &Asked<'_>) -> Command {
        let mut command = Command::new("/proc/self/exe");
        command
            .arg0("quayfs")
            .arg("probe")
            .args(
                self.to_possible_value()
                    .map(|word| format!("--of={}", word.get_name())),
            )
            .args(asked.user.map(|(uid, gid)| format!("--user={uid}:{gid}")))
            .args((!asked.groups.is_empty()).then(|| {
                let groups: Vec<_> = asked.groups.iter().map(u32::to_string).collect();
                format!("--groups={}", groups.join(","))
            }))
            .args(asked.device.map(|device| format!("--device={device}")))
            .arg("--")
            .arg(target)
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        command
    }
}

/// How a process asks.
#[derive(Debug, Default)]
struct Asked<'a> {
    /// As another user and group than those of this process.
    user: Option<User>,
    /// And with these groups besides.
    groups: Vec<u32>,
    /// Only of this file system.
    device: Option<&'a str>,
}

impl Asked<'_> {
    /// As the user of a mount, where this process may.
    fn as_user_of(entry: &Entry) -> Self {
        let user = entry.group_id().map(|gid| (asks(entry), gid));
        Self {
            user: user.filter(|(uid, _)| *uid != geteuid().as_raw()),
            ..Self::default()
        }
    }
}

/// A process that asks a mount.
pub fn of_mount(entry: &Entry, question: Question) -> Command {
    let asked = Asked {
        device: Some(&entry.device),
        ..Asked::as_user_of(entry)
    };
    question.of(&entry.target, &asked)
}

/// What a program says of itself, asked as the user of a mount: it may be that user's. `None`: it has said nothing in time.
///
/// # Errors
/// No process can be started.
pub fn ask_program(
    entry: &Entry,
    program: &Path,
    options: &str,
    patience: Duration,
) -> std::io::Result<Option<String>> {
    let asked = Asked::as_user_of(entry);
    let mut command = Question::Program.of(program, &asked);
    let mut child = command.env(PROGRAM_OPTIONS, options).spawn()?;
    let said = child
        .stdout
        .take()
        .and_then(|out| read_within(out, patience));
    leave(child);
    Ok(said)
}

/// The options that a program is asked about.
pub const PROGRAM_OPTIONS: &str = "QUAYFS_PROGRAM_OPTIONS";

/// Numbers of a user and of a group.
pub type User = (u32, u32);

/// This process is to ask as this user. It has no terminal from here on, and what it has got from its own user no other one
/// can see: the kernel lets nothing be traced that has changed its user. To be called while there is one thread.
///
/// # Errors
/// This user cannot become another one.
pub fn become_user(user: Option<User>, groups: &[u32]) -> Result<(), Errno> {
    // Fails only where there is no terminal already.
    let _ = setsid();
    let Some((uid, gid)) = user else {
        return Ok(());
    };
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    let groups: Vec<_> = groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
    set_thread_groups(&groups)?;
    set_thread_res_gid(gid, gid, gid)?;
    set_thread_res_uid(uid, uid, uid)
}

/// A program that a user has chosen, opened as that user: what only this process may reach is not opened for it. By a process
/// of its own, since it may lie on what does not answer.
///
/// # Errors
/// That user may not reach it; it does not exist; it is no file; `ETIMEDOUT`.
pub fn open_as_user(entry: &Entry, program: &Path, patience: Duration) -> std::io::Result<OwnedFd> {
    let asked = Asked::as_user_of(entry);
    let (ours, theirs) = socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?;
    let mut command = Question::Open.of(program, &asked);
    let child = command.stdin(theirs).stdout(Stdio::null()).spawn()?;
    // It has the other end, which would otherwise never be closed.
    drop(command);
    let line = Line::from(ours);
    let message = match wait_for(line.as_fd(), PollFlags::IN, patience) {
        Ok(true) => line.receive(),
        Ok(false) => Err(Errno::TIMEDOUT),
        Err(e) => Err(e),
    };
    leave(child);
    let message = message?.ok_or(Errno::IO)?;
    let number = std::str::from_utf8(&message.text).map(str::parse);
    match (message.descriptor, number) {
        (Some(file), _) => Ok(file),
        (None, Ok(Ok(number))) => Err(std::io::Error::from_raw_os_error(number)),
        (None, _) => Err(Errno::IO.into()),
    }
}

/// The other end of [`open_as_user`], at the standard input.
pub fn open_for_others(program: &Path) -> Result<(), Errno> {
    let line = Line::from(rustix::io::dup(rustix::stdio::stdin())?);
    match open_program(program) {
        Ok(file) => line.send(b"opened", Some(file.as_fd())),
        Err(e) => line.send(e.raw_os_error().unwrap_or(5).to_string().as_bytes(), None),
    }
}

/// The user that asks a mount: without `allow_other` not even root may, but root may become a user that may.
fn asks(entry: &Entry) -> u32 {
    let me = geteuid();
    match (entry.user_id(), entry.group_id()) {
        (Some(user), Some(_)) if me.is_root() => user,
        _ => me.as_raw(),
    }
}

/// Asks a mount for its status.
///
/// # Errors
/// `ETIMEDOUT` if there was no answer within `patience` or the daemon is stopped, `ENOTCONN` if it is dead, `EXDEV` if another
/// mount is on top of it, others as of [`super::status`].
pub fn ask(entry: &Entry, patience: Duration) -> Result<String, Errno> {
    if Server::of(entry).is_some_and(|server| server.is_stopped()) {
        return Err(Errno::TIMEDOUT);
    }
    let command = of_mount(entry, Question::Status);
    // The next mount there is another one.
    let awaited = Awaited::of((&entry.target, &entry.device));
    let answer = answer(command, (asks(entry), awaited), patience)?.ok_or(Errno::TIMEDOUT)?;
    match answer.split_once(' ') {
        Some(("status", text)) => Ok(text.into()),
        Some(("errno", number)) => {
            Err(Errno::from_raw_os_error(number.trim().parse().unwrap_or(5)))
        }
        _ => Err(Errno::IO),
    }
}

/// Asks about a volume, a log or a path; `None` if there is no answer within `patience`.
///
/// # Errors
/// No process can be started.
pub fn look(
    volume: &Path,
    question: Question,
    patience: Duration,
) -> Result<Option<String>, Errno> {
    looked((volume, question), &Asked::default(), patience)
}

/// [`look`], as the daemons of a mount would, which are its user's: what that user does not reach is not found. Where this
/// process may not become that user it looks itself.
///
/// # Errors
/// Those of [`look`].
pub fn look_as_daemon(
    entry: &Entry,
    volume: &Path,
    question: Question,
    patience: Duration,
) -> Result<Option<String>, Errno> {
    let mut asked = Asked::as_user_of(entry);
    if asked.user.is_some() {
        asked.groups = groups_of_daemon(entry);
    }
    looked((volume, question), &asked, patience)
}

/// The groups that a daemon was started with, and those after it will be: its user may be in a group that may read a device.
fn groups_of_daemon(entry: &Entry) -> Vec<u32> {
    let daemon = Server::of(entry).and_then(|server| server.pid());
    let status = |pid| Process::new(pid).and_then(|process| process.status()).ok();
    let status = daemon.or_else(|| supervisor(entry)).and_then(status);
    let status = status.filter(|status| Some(status.ruid) == entry.user_id());
    status.map_or_else(Vec::new, |status| status.groups)
}

fn looked(
    (volume, question): (&Path, Question),
    asked: &Asked<'_>,
    patience: Duration,
) -> Result<Option<String>, Errno> {
    // Nor is it the same once something else is mounted there.
    let table = super::table::read().unwrap_or_default();
    let below = table
        .into_iter()
        .filter(|entry| volume.starts_with(&entry.target));
    let device = below
        .max_by_key(|entry| entry.target.as_os_str().len())
        .map(|entry| entry.device);
    let awaited = Awaited::of((volume, question as u8, device));
    let user = asked.user.map_or(geteuid().as_raw(), |(uid, _)| uid);
    answer(question.of(volume, asked), (user, awaited), patience)
}

/// What a process of this user says; `None` if that takes longer than `patience`, or many have waited longer for the same.
fn answer(
    mut command: Command,
    (user, awaited): (u32, Awaited),
    patience: Duration,
) -> Result<Option<String>, Errno> {
    let system = |e: std::io::Error| Errno::from_io_error(&e).unwrap_or(Errno::IO);
    let place = match slots::take(user, awaited, patience) {
        Place::Free(place) => Some(place),
        Place::Unlimited => None,
        Place::None => return Ok(None),
    };
    if let Some(place) = &place {
        // It has the place as long as it lives.
        command.stdin(place.to_hold().map_err(system)?);
    }
    let mut child = command.spawn().map_err(system)?;
    let out = child.stdout.take().ok_or(Errno::IO)?;
    let answer = read_within(out, patience);
    if answer.is_none() {
        leave(child);
        return Ok(None);
    }
    let _ = child.wait();
    if let Some(place) = place {
        place.give_back();
    }
    Ok(answer)
}

/// Processes that were left waiting, and are waited for once they have ended.
static LEFT: Mutex<Vec<Child>> = Mutex::new(Vec::new());

/// It goes when it can; nothing waits for that.
fn leave(mut child: Child) {
    let _ = child.kill();
    let mut left = LEFT.lock().unwrap_or_else(PoisonError::into_inner);
    left.push(child);
    left.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
}

/// The other end of [`ask`]: what it says on its standard output. Only the file system with this device number is asked.
pub fn probe(target: &Path, device: Option<&str>) -> String {
    let is_asked = |device| {
        super::Place::find(target)?
            .device()
            .map(|found| found == device)
    };
    match device.map_or(Ok(true), is_asked) {
        Ok(true) => {}
        // Or something is mounted on a directory above it.
        Ok(false) | Err(Errno::NOENT | Errno::NOTDIR) => return failed(Errno::XDEV),
        Err(e) => return failed(e),
    }
    let mut buffer = vec![0; 64 << 10];
    match rustix::fs::getxattr(target, STATUS_XATTR, &mut buffer[..]).map_err(gone) {
        Ok(n) => format!("status {}", String::from_utf8_lossy(&buffer[..n])),
        Err(e) => failed(e),
    }
}

/// What it says where it cannot ask.
pub fn failed(e: Errno) -> String {
    format!("errno {}", e.raw_os_error())
}

/// More than any process says that answers a question.
const ANSWER_MAX: usize = 128 << 10;

/// Everything that comes until the end; `None` if that takes longer, or is more than an answer.
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
            Ok(n) if text.len() + n <= ANSWER_MAX => text.extend_from_slice(&piece[..n]),
            Ok(_) => return None,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
}
