//! `quayfs trace`: what is asked of a mount, request by request.
//!
//! A process of its own asks the daemon again and again, as with everything that may not be answered, and hands on what
//! it hears: lines of JSON. This one reads them, keeps in mind which file has which name, and prints.

mod event;
mod names;

use super::args;
use super::asking;
use super::exit::{FAILED, Failure, OK, PROGRAM};
use super::interrupted;
use crate::mount::probe::{Question, of_mount};
use crate::mount::server::{PATIENCE, wait_for};
use event::Event;
use names::{Files, Processes};
use quayfs_server::TRACE_XATTR;
use rustix::event::PollFlags;
use rustix::io::Errno;
use serde_json::{Value, json};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, ChildStdout};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// How long a signal may go unnoticed.
const MOMENT: Duration = Duration::from_millis(100);
/// How often to ask a mount that is not busy.
const ASK: Duration = Duration::from_millis(100);
/// More than an answer can be.
const ANSWER: usize = 64 << 10;

/// Watches until the user has seen enough, or the mount ends.
pub fn run(args: &args::Trace) -> Result<(), Failure> {
    let entry = asking::mount_at(&args.target, FAILED)?;
    // What cannot be asked at all is told as everywhere.
    asking::status(&entry, PATIENCE, FAILED)?;
    let ended = Arc::new(AtomicBool::new(false));
    for signal in interrupted::heeded() {
        signal_hook::flag::register(signal, Arc::clone(&ended)).map_err(Failure::with(FAILED))?;
    }
    // A Ctrl-C is for this process alone: what has been heard is to be told. The other one has no terminal.
    let mut child = of_mount(&entry, Question::Trace)
        .spawn()
        .map_err(Failure::with(FAILED))?;
    let mut trace = Trace {
        args,
        files: Files::default(),
        processes: Processes::default(),
        missing: 0,
        out: io::stdout(),
    };
    let said = child.stdout.take();
    let end = said.map_or(Ok(End::Ended), |said| trace.follow(said, &ended));
    let shown = quayfs_shown::path(&entry.target);
    let end = end.map_err(Failure::with(FAILED));
    // It may wait for an answer that never comes; nothing waits for it.
    let _ = child.kill();
    if !ended.load(Ordering::Acquire) {
        reap(&mut child);
    }
    let failed = |why: String| Err(Failure::new(FAILED, why));
    match end? {
        End::Refused(Errno::PERM | Errno::ACCESS) => {
            return failed(format!(
                "permission denied: root (CAP_SYS_ADMIN) and the user who mounted {shown} may trace it"
            ));
        }
        End::Refused(Errno::NODATA | Errno::OPNOTSUPP) => {
            return failed(format!(
                "the daemon of {shown} is of a version that cannot be traced"
            ));
        }
        End::Refused(e) => return failed(format!("{shown}: {e}")),
        End::TooMany => return failed(format!("{shown} is being traced by as many as can be")),
        End::Ended if !ended.load(Ordering::Acquire) => trace.remark("the mount has ended"),
        End::Ended | End::Unread => {}
    }
    Ok(())
}

/// Takes away a process that is dead by now, or else leaves it.
fn reap(child: &mut Child) {
    for _ in 0..10 {
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        thread::sleep(MOMENT);
    }
}

/// Why it has ended.
#[derive(Debug, PartialEq, Eq)]
enum End {
    /// With the mount, or by a signal.
    Ended,
    /// Nobody reads what is printed.
    Unread,
    /// It has not begun: the daemon refuses, or others watch.
    Refused(Errno),
    TooMany,
}

struct Trace<'a, W> {
    args: &'a args::Trace,
    files: Files,
    processes: Processes,
    /// Requests that were not kept.
    missing: u64,
    out: W,
}

impl<W: Write> Trace<'_, W> {
    /// Prints what comes, until it ends.
    fn follow(&mut self, mut said: ChildStdout, ended: &AtomicBool) -> io::Result<End> {
        let mut text = Vec::new();
        let mut piece = vec![0; ANSWER];
        while !ended.load(Ordering::Acquire) {
            if !wait_for(said.as_fd(), PollFlags::IN, MOMENT)? {
                continue;
            }
            let n = match said.read(&mut piece) {
                Ok(0) => break,
                Ok(n) => n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(e),
            };
            text.extend_from_slice(&piece[..n]);
            while let Some(at) = text.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = text.drain(..=at).collect();
                if let Some(end) = self.line(&String::from_utf8_lossy(&line)) {
                    return Ok(end);
                }
            }
            if self.out.flush().is_err() {
                return Ok(End::Unread);
            }
        }
        Ok(End::Ended)
    }

    /// What the process that asks has heard.
    fn line(&mut self, line: &str) -> Option<End> {
        if let Some(number) = line.strip_prefix("errno ") {
            return Some(End::Refused(Errno::from_raw_os_error(
                number.trim().parse().unwrap_or(5),
            )));
        }
        if line.starts_with("too many") {
            return Some(End::TooMany);
        }
        if line.starts_with("another daemon") {
            self.remark(
                "another daemon goes on with the mount: what was asked meanwhile is missing",
            );
            return None;
        }
        let told: Value = serde_json::from_str(line).ok()?;
        let events = told["events"].as_array().map(Vec::as_slice);
        for event in events.unwrap_or_default().iter().filter_map(Event::of) {
            let path = self.files.learn(&event);
            let by = self.processes.of(event.task);
            if !self.wants(&event, by.pid) {
                continue;
            }
            let line = match self.args.json {
                true => event.json(path.as_deref(), &by).to_string(),
                false => event.text(path.as_deref(), &by),
            };
            if writeln!(self.out, "{line}").is_err() {
                return Some(End::Unread);
            }
        }
        // These come after what was kept.
        let missing = told["missing"].as_u64().unwrap_or_default();
        if missing > 0 {
            self.missing += missing;
            self.is_missing(missing);
        }
        None
    }

    fn wants(&self, event: &Event, pid: Option<u32>) -> bool {
        let args = self.args;
        let op = args.op.is_empty() || args.op.iter().any(|op| op.name() == event.op);
        let is_asked = |asked: &u32| *asked == event.task || Some(*asked) == pid;
        let by = args.pid.is_empty() || args.pid.iter().any(is_asked);
        op && by && args.slower.is_none_or(|least| event.took >= least)
    }

    fn is_missing(&mut self, n: u64) {
        let all = self.missing;
        match self.args.json {
            // A reader that has gone away has seen enough: the next line finds that out.
            true => drop(writeln!(self.out, "{}", json!({ "missing": n }))),
            false => self.remark(&format!(
                "{n} requests are missing here, which came too fast ({all} in all)"
            )),
        }
    }

    /// Beside what is printed.
    fn remark(&mut self, what: &str) {
        let _ = self.out.flush();
        let _ = writeln!(io::stderr(), "{PROGRAM}: {what}");
    }
}

/// The process that asks: says what it hears on its standard output, a line each time, until the mount ends.
pub fn probe(target: &Path) -> u8 {
    let device = || std::fs::metadata(target).map(|meta| meta.dev()).ok();
    let (mut out, mount) = (io::stdout(), device());
    let mut say = |line: &str| writeln!(out, "{line}").and_then(|()| out.flush()).is_ok();
    let mut buffer = vec![0; ANSWER];
    let mut name = TRACE_XATTR.to_string();
    let mut begun = false;
    loop {
        let n = match rustix::fs::getxattr(target, name.as_str(), &mut buffer[..]) {
            Ok(n) => n,
            // A mount that ends is gone, or shows what is below it.
            Err(_) if begun => return OK,
            Err(e) => {
                say(&format!("errno {}", e.raw_os_error()));
                return OK;
            }
        };
        let line = String::from_utf8_lossy(&buffer[..n]);
        let told: Value = serde_json::from_str(&line).unwrap_or_default();
        match told["trace"].as_u64() {
            Some(number) => name = format!("{TRACE_XATTR}.{number}"),
            None if name == TRACE_XATTR => {
                say("too many");
                return OK;
            }
            // The daemon of this mount has been replaced, or this process has slept for long; or it is another mount.
            None if mount == device() => {
                name = TRACE_XATTR.into();
                match say("another daemon") {
                    true => continue,
                    false => return OK,
                }
            }
            None => return OK,
        }
        begun = true;
        // Also where there is nothing to tell: who does not listen any more is found out so.
        if !say(&line) {
            return OK;
        }
        // What fills an answer goes on.
        if n < ANSWER / 2 {
            thread::sleep(ASK);
        }
    }
}

#[cfg(test)]
mod tests;
