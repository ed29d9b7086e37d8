//! A daemon is replaced by one of another program, because a process has asked for that; and by one of the old program
//! again, if the new one does not serve.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Signal, pidfd_send_signal};

use super::past::HINDERED_MAX;
use super::program::Program;
use super::{End, Life, OWN, Supervisor, moved};
use crate::cli::handover;
use crate::cli::succession::VERSION;
use crate::mount::control::{self, Line, Message};

/// What is said first, with the version of what follows.
pub const HELLO: &str = "quayfs-supervisor 1";
/// Asks for a replacement within so many milliseconds; a path follows.
pub const REPLACE: &str = "replace ";
/// The same, of the program that runs: the name of a job follows, and what comes along is left to the daemons from the next
/// one on ([`handover::JOB`]), until there is another job or the program is replaced.
pub const REPLACE_WITH: &str = "replace with ";
/// The same, of a job that all daemons have had since it came first, by whatever name.
pub const STILL_WITH: &str = "replace still with ";
/// The new daemon serves: milliseconds without an answer, and its version.
pub const SERVED: &str = "served ";
/// It does not: why.
pub const FAILED: &str = "failed ";
/// Tells a daemon to leave the mount to another one.
const HAND_OVER: Signal = Signal::USR2;
/// Later than anything.
const NEVER: Duration = Duration::MAX;
/// Processes that are listened to at a time.
const CLIENTS: usize = 8;

/// A replacement under way.
pub(super) struct Replacing {
    /// The process that waits for it, as long as it does.
    client: Option<Line>,
    /// The program that does not serve now: the next one, then the last one.
    other: Program,
    asked: Duration,
    limit: Duration,
    state: State,
}

/// How far it is.
enum State {
    /// The old daemon is to end, at this time at the latest.
    Asked { until: Duration },
    /// One of the new program is to serve by then; no time before it is started.
    Tried { until: Option<Duration> },
    /// It has not, for this reason: one of the old program is to serve again, which is `started`.
    Back { why: String, started: bool },
}

/// What daemons say of the mount, and of themselves.
#[derive(Default)]
pub(super) struct About {
    pub(super) device: Option<String>,
    pub(super) version: String,
    pub(super) needs: String,
}

impl About {
    pub(super) fn note(&mut self, line: &str) {
        if let Some(device) = line.strip_prefix(handover::DEVICE) {
            self.device = Some(device.into());
        } else if let Some(version) = line.strip_prefix(handover::VERSION) {
            self.version = version.into();
        } else if let Some(needs) = line.strip_prefix(handover::NEEDS) {
            self.needs = needs.into();
        }
    }
}

impl Replacing {
    fn until(&self) -> Option<Duration> {
        match self.state {
            State::Asked { until } => Some(until).filter(|until| *until < NEVER),
            State::Tried { until } => until,
            State::Back { .. } => None,
        }
    }

    fn tell(&self, text: &str) {
        if let Some(client) = &self.client {
            let _ = client.send(text.as_bytes(), None);
        }
    }
}

impl Supervisor {
    /// Descriptors that become readable when a process wants something, while a daemon serves.
    pub(super) fn doors(&self) -> Vec<BorrowedFd<'_>> {
        let waits = self.replacing.as_ref().and_then(|r| r.client.as_ref());
        let clients = self.clients.iter().chain(waits).map(AsFd::as_fd);
        self.control
            .iter()
            .map(AsFd::as_fd)
            .chain(clients)
            .collect()
    }

    /// How long to wait for anything else.
    pub(super) fn patience(&self) -> Option<Duration> {
        let until = self.replacing.as_ref()?.until()?;
        Some(until.saturating_sub(handover::now()))
    }

    /// Opens the door, once it is known where.
    pub(super) fn open_control(&mut self) {
        if let (None, Some(device)) = (&self.control, &self.about.device) {
            let socket = control::open(device).map_err(io::Error::from);
            self.control = socket.and_then(|socket| moved(socket, OWN)).ok();
        }
    }

    /// Listens to processes that have something to ask.
    pub(super) fn hear_clients(&mut self, life: &Life) -> io::Result<()> {
        while let Some(line) = self.control.as_ref().and_then(control::accept) {
            let line = Line::from(moved(line, OWN)?);
            if self.clients.len() < CLIENTS && line.send(&self.greeting(), None).is_ok() {
                self.clients.push(line);
            }
        }
        for line in std::mem::take(&mut self.clients) {
            match line.receive() {
                Err(Errno::AGAIN) => self.clients.push(line),
                Ok(Some(message)) => self.obey(line, message, life)?,
                Ok(None) | Err(_) => {}
            }
        }
        if let Some(replacing) = &mut self.replacing
            && let Some(client) = &replacing.client
            && !matches!(client.receive(), Err(Errno::AGAIN))
        {
            replacing.client = None;
        }
        Ok(())
    }

    fn greeting(&self) -> Vec<u8> {
        let about = &self.about;
        let pid = std::process::id();
        let words = format!(
            "{HELLO}\nsupervisor {pid} {VERSION}\nversion {}\nneeds {}\noptions {}\nprogram ",
            about.version, about.needs, self.options
        );
        [words.as_bytes(), self.program.path.as_os_str().as_bytes()].concat()
    }

    fn obey(&mut self, line: Line, message: Message, life: &Life) -> io::Result<()> {
        let refuse = |why: &str| {
            let _ = line.send(format!("{FAILED}{why}").as_bytes(), None);
        };
        let file = message
            .descriptor
            .map(|file| moved(file, OWN))
            .transpose()?;
        let Some((limit, what)) = asked_for(&message.text) else {
            refuse("this is not understood");
            return Ok(());
        };
        let Some(file) = file else {
            refuse("nothing came along");
            return Ok(());
        };
        let in_the_way = [
            (self.replacing.is_some(), "another restart is under way"),
            (
                self.failed,
                "the mount has failed, which another daemon would not know: unmount it, and mount it again",
            ),
            (self.ending, "it is being unmounted"),
        ];
        if let Some((_, why)) = in_the_way.iter().find(|(is_so, _)| *is_so) {
            refuse(why);
            return Ok(());
        }
        let other = match what {
            Wish::Program(path) => {
                // Another program need not know what it is for.
                self.drop_job()?;
                Program::new(file, OsStr::from_bytes(path).into())?
            }
            Wish::Job { name, still } => {
                if let Err(e) = self.take_job(name, &file, still) {
                    refuse(&e.to_string());
                    return Ok(());
                }
                self.program.again()?
            }
        };
        let now = handover::now();
        self.replacing = Some(Replacing {
            client: Some(line),
            other,
            asked: now,
            limit,
            state: State::Asked { until: now + limit },
        });
        signal(life, HAND_OVER)
    }

    /// Looks how far a replacement has come, with a daemon that is at work.
    pub(super) fn advance(&mut self, life: &Life) -> io::Result<()> {
        let Some(replacing) = &mut self.replacing else {
            return Ok(());
        };
        let now = handover::now();
        let late = replacing.until().is_some_and(|until| now >= until);
        // Where nothing asks it anything it cannot answer.
        let serves = life.was_ready && (life.answered || replacing.client.is_none());
        let pause = now.saturating_sub(replacing.asked).as_millis();
        match &replacing.state {
            State::Asked { .. } if late => {
                // What it has not answered comes again.
                replacing.state = State::Asked { until: NEVER };
                signal(life, Signal::KILL)?;
            }
            State::Tried { .. } if serves => {
                replacing.tell(&format!("{SERVED}{pause} {}", self.about.version));
                self.previous = self.replacing.take().map(|replacing| replacing.other);
            }
            State::Tried { .. } if late => {
                let why = format!("it answered nothing within {:?}", replacing.limit);
                self.go_back(why);
                signal(life, Signal::KILL)?;
            }
            State::Back { why, started } if *started && serves => {
                let version = &self.about.version;
                replacing.tell(&format!(
                    "{FAILED}{why}; a daemon of the old program ({version}) goes on, after {pause} ms"
                ));
                self.replacing = None;
            }
            _ => {}
        }
        Ok(())
    }

    /// After the end of the daemon that was to be replaced, the next one is of the new program.
    pub(super) fn take_new_program(&mut self) -> bool {
        let Some(replacing) = &mut self.replacing else {
            return false;
        };
        if !matches!(replacing.state, State::Asked { .. }) {
            return false;
        }
        std::mem::swap(&mut self.program, &mut replacing.other);
        replacing.state = State::Tried { until: None };
        self.past.died = replacing.asked;
        true
    }

    /// A daemon starts: of a new program it has so much time.
    pub(super) fn begin_trial(&mut self) {
        let Some(replacing) = &mut self.replacing else {
            return;
        };
        match &mut replacing.state {
            State::Asked { .. } => {}
            State::Tried { until } => *until = Some(handover::now() + replacing.limit),
            State::Back { started, .. } => *started = true,
        }
    }

    /// Whether the next daemon, or the one that is at work, is the first one of a new program.
    pub(super) fn tries(&self) -> bool {
        let state = self.replacing.as_ref().map(|r| &r.state);
        matches!(state, Some(State::Tried { .. }))
    }

    /// Whether the daemon that has ended was one of a new program that was given up.
    pub(super) fn was_given_up(&self) -> bool {
        let state = self.replacing.as_ref().map(|r| &r.state);
        matches!(state, Some(State::Back { started: false, .. }))
    }

    /// The new program is of no use.
    pub(super) fn go_back(&mut self, why: String) {
        if let Some(replacing) = &mut self.replacing {
            std::mem::swap(&mut self.program, &mut replacing.other);
            replacing.state = State::Back {
                why,
                started: false,
            };
        }
    }

    /// Daemons die in vain: those of the program before the last replacement may not.
    pub(super) fn fall_back(&mut self) -> bool {
        let Some(previous) = self.previous.take() else {
            return false;
        };
        self.program = previous;
        self.past.begin_anew();
        // The program before the last one need not know what it is for. What cannot be taken away it does not take.
        let _ = self.drop_job();
        true
    }

    /// The first daemon of a new program has ended: its reason, if it had not served.
    pub(super) fn why_not(&self, end: &End) -> Option<String> {
        if !self.tries() || end.was_ready && end.answered {
            return None;
        }
        Some(match &end.said {
            Some(line) => line.clone(),
            None => format!("it ended before it served ({})", end.status),
        })
    }

    /// A daemon of the old program could not go on either. It is tried again, for which no process waits.
    pub(super) fn tell_of_no_return(&mut self) {
        let Some(replacing) = &self.replacing else {
            return;
        };
        if let State::Back { why, started: true } = &replacing.state {
            let why = format!(
                "{why}; nor can one of the old program go on, which is tried again for {} s, and programs wait: the log \
                 says more",
                HINDERED_MAX.as_secs()
            );
            self.give_up_replacing(&why);
        }
    }

    /// There is nothing to replace any more.
    pub(super) fn give_up_replacing(&mut self, why: &str) {
        if let Some(replacing) = self.replacing.take() {
            replacing.tell(&format!("{FAILED}{why}"));
        }
    }
}

/// What a daemon is to be replaced by.
#[derive(Debug, PartialEq, Eq)]
enum Wish<'a> {
    /// One of the program that was found at this path.
    Program(&'a [u8]),
    /// One of the same program that has this to do.
    Job { name: &'a str, still: bool },
}

/// The time in a message that asks for a replacement, and what by.
fn asked_for(text: &[u8]) -> Option<(Duration, Wish<'_>)> {
    let prefixes = [
        (STILL_WITH, Some(true)),
        (REPLACE_WITH, Some(false)),
        (REPLACE, None),
    ];
    let (rest, job) = prefixes
        .iter()
        .find_map(|(prefix, job)| Some((text.strip_prefix(prefix.as_bytes())?, *job)))?;
    let at = rest.iter().position(|b| *b == b'\n')?;
    let limit = std::str::from_utf8(&rest[..at]).ok()?.parse().ok()?;
    let rest = &rest[at + 1..];
    let wish = match job {
        Some(still) => {
            let name = std::str::from_utf8(rest)
                .ok()
                .filter(|name| is_word(name))?;
            Wish::Job { name, still }
        }
        None => Wish::Program(rest),
    };
    Some((Duration::from_millis(limit), wish))
}

/// Names of descriptors have colons between them.
fn is_word(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_lowercase())
}

pub(super) fn signal(life: &Life, signal: Signal) -> io::Result<()> {
    match pidfd_send_signal(&life.handle, signal) {
        // It has ended by itself.
        Ok(()) | Err(Errno::SRCH) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read() {
        let asked = asked_for(b"replace 1500\n/a\nb");
        let program = Wish::Program(b"/a\nb");
        assert_eq!(asked, Some((Duration::from_millis(1500), program)));
        for (text, still) in [("replace with", false), ("replace still with", true)] {
            let text = format!("{text} 20\nmove");
            let asked = asked_for(text.as_bytes());
            let job = Wish::Job {
                name: "move",
                still,
            };
            assert_eq!(asked, Some((Duration::from_millis(20), job)));
        }
        for other in [
            "",
            "replace",
            "replace 5",
            "replace x\n/a",
            "served 5\n/a",
            "replace with 5\n",
            "replace with 5\na:b",
            "replace with x\nmove",
        ] {
            assert_eq!(asked_for(other.as_bytes()), None, "{other}");
        }
    }
}
