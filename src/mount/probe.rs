//! Asking what may never answer, by a process of its own: a mount whose daemon may be stuck, and media that may lie on a
//! disk or a file system that is.
//!
//! A thread that waits for a request that such a one has in hand cannot be killed, and the process that it belongs to cannot
//! end. So another process waits, and nothing waits for that.

use super::gone;
use super::server::{Server, wait_for};
use super::table::Entry;
use clap::ValueEnum;
use procfs::process::Process;
use procfs::{Current, Uptime};
use quayfs_server::STATUS_XATTR;
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::process::geteuid;
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// Processes that have waited in vain for the same answer: what asks every minute does not fill the system with them while a
/// disk is away.
const MOST: usize = 8;

/// What `quayfs probe` is asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Question {
    /// How a mount is.
    #[default]
    Status,
    /// What is asked of a mount, until it ends.
    Trace,
    /// What is in the way of another daemon that is to open a volume, by the names and the owners of its media.
    Names,
    /// Where the parts of a volume lie, by their names alone.
    Parts,
    /// Whether the media of a volume can be read.
    Media,
    /// Whether a log can be.
    Log,
    /// Whether a path leads anywhere.
    Path,
}

impl Question {
    /// The process that finds that out, and says it on its standard output.
    fn of(self, target: &Path) -> Command {
        let mut command = Command::new("/proc/self/exe");
        command
            .arg0("quayfs")
            .arg("probe")
            .args(
                self.to_possible_value()
                    .map(|word| format!("--of={}", word.get_name())),
            )
            .arg("--")
            .arg(target)
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        command
    }
}

/// A process that asks a mount.
pub fn of_mount(entry: &Entry, question: Question) -> Command {
    let mut command = question.of(&entry.target);
    if let (uid, Some(gid)) = (asks(entry), entry.group_id())
        && uid != geteuid().as_raw()
    {
        command.uid(uid).gid(gid);
    }
    command
}

/// The user that asks a mount: without `allow_other` not even root may, but root may become the user who may.
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
/// `ETIMEDOUT` if there was no answer within `patience` or the daemon is stopped, `ENOTCONN` if it is dead, others as
/// of [`super::status`].
pub fn ask(entry: &Entry, patience: Duration) -> Result<String, Errno> {
    if Server::of(entry).is_some_and(|server| server.is_stopped()) {
        return Err(Errno::TIMEDOUT);
    }
    let command = of_mount(entry, Question::Status);
    let answer = answer(command, asks(entry), patience)?.ok_or(Errno::TIMEDOUT)?;
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
    answer(question.of(volume), geteuid().as_raw(), patience)
}

/// What a process of this user says; `None` if that takes longer than `patience`, or many have waited longer for the same.
fn answer(mut command: Command, user: u32, patience: Duration) -> Result<Option<String>, Errno> {
    if is_awaited_by_many(&command, user, patience) {
        return Ok(None);
    }
    let system = |e: std::io::Error| Errno::from_io_error(&e).unwrap_or(Errno::IO);
    let mut child = command.spawn().map_err(system)?;
    let out = child.stdout.take().ok_or(Errno::IO)?;
    let answer = read_within(out, patience);
    match answer {
        Some(_) => drop(child.wait()),
        // It goes when it can; nothing waits for that.
        None => drop(child.kill()),
    }
    Ok(answer)
}

/// Whether as many processes as there may be have waited longer than `patience` with the arguments of this one. What other
/// users run counts for nothing.
fn is_awaited_by_many(command: &Command, user: u32, patience: Duration) -> bool {
    let mut words = vec!["quayfs".to_string()];
    let of_command = command.get_args().map(|word| word.to_string_lossy());
    words.extend(of_command.map(String::from));
    let Ok(now) = Uptime::current() else {
        return false;
    };
    let begun = now.uptime - patience.as_secs_f64();
    let is_same = |process: &Process| {
        process.uid().is_ok_and(|of| of == user)
            && process.cmdline().is_ok_and(|line| line == words)
    };
    let is_stuck = |process: &Process| {
        let ticks = process.stat().map_or(u64::MAX, |stat| stat.starttime);
        (ticks / procfs::ticks_per_second()) as f64 <= begun
    };
    let all = procfs::process::all_processes().into_iter().flatten();
    let same = all.filter_map(Result::ok).filter(is_same);
    same.filter(is_stuck).count() >= MOST
}

/// The other end of [`ask`]: what it says on its standard output.
pub fn probe(target: &Path) -> String {
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
