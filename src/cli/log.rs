//! Where the daemon's words go: to a file, or to the standard error.
//!
//! Nothing that happens to the log may happen to the file system. A thread that logs puts a line into a queue and
//! goes on; another thread writes it. So a full disk, a reader that has gone away or does not read, or a log on a
//! file system that does not answer costs lines, and nothing else. The next line that can be written says how many.
//!
//! Of an event these fields have a meaning of their own:
//!
//! - `fatal = true`: the process is about to end, so the caller waits for the line to be written, for a moment;
//! - `each = true`: the line is written however often there are such. Other complaints (warnings and errors) are
//!   made once in a while only, and counted: see [`limit`].

mod file;
mod limit;
mod line;

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fmt::{self, Write as _};
use std::io::{self, IsTerminal as _};
use std::os::fd::RawFd;
use std::os::unix::fs::MetadataExt as _;
use std::panic::PanicHookInfo;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber, callsite};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Registry};

use super::confine;
use super::status::ABOUT;
use file::LogFile;
use limit::{Limit, Verdict};
use line::written;

/// Name of the default log file inside the volume.
const NAME: &str = "quayfs.log";
/// Most bytes of lines that wait to be written; those beyond are lost.
const WAITING_MAX: usize = 4 << 20;
/// How long nothing may be written before a waiting thread gives up: at the end, and before the process dies.
const PATIENCE: Duration = Duration::from_secs(5);
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Where a daemon logs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// The standard error; and the file that is the usual one, which [`quayfs status`](super::status) reads.
    Stderr(Box<Self>),
    /// A file that the user has named, by an absolute path.
    Asked(PathBuf),
    /// The file in the directory of a volume: one that does not open is no reason not to mount.
    Volume(PathBuf),
    /// The same of a volume that has no directory. The one that it is in is also for others, so nothing there is put
    /// aside.
    Beside(PathBuf),
}

impl Destination {
    /// The file, if it is one.
    pub fn path(&self) -> Option<PathBuf> {
        match self {
            Self::Stderr(usual) => usual.path(),
            Self::Asked(path) | Self::Volume(path) | Self::Beside(path) => Some(path.clone()),
        }
    }
}

/// Sends what the process logs there, panics too. `QUAYFS_LOG` chooses the level (default `info`), in the syntax of
/// `RUST_LOG`. A process that is `detached` has nothing else to do with its standard error.
///
/// A log that does not open is no reason not to start: it is tried again with each line.
///
/// # Errors
/// It does not open, or its thread cannot be started.
pub fn start(to: &Destination, detached: bool) -> io::Result<()> {
    let asked = |to: &Destination| !matches!(to, Destination::Volume(_));
    let (output, copy, opened) = match (to, to.path()) {
        (Destination::Stderr(usual), Some(path)) => {
            let mut copy = LogFile::copy(path, asked(usual));
            // Where it cannot be had, the standard error has it all.
            let _ = copy.reopen();
            (Output::Stderr, Some(Output::File(copy)), Ok(()))
        }
        (_, None) => (Output::Stderr, None, Ok(())),
        (to, Some(path)) => {
            let mut file = LogFile::new(path, asked(to), detached);
            let opened = file.reopen();
            (Output::File(file), None, opened)
        }
    };
    let coloured = matches!(output, Output::Stderr) && io::stderr().is_terminal();
    let queue = QUEUE.get_or_init(Queue::default);
    let copies = copy.is_some().then(|| COPY.get_or_init(Queue::default));
    let filter = EnvFilter::try_from_env("QUAYFS_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let lines = copies.into_iter().map(|copy| (copy, false));
    let lines = Lines(lines.chain([(queue, coloured)]).collect());
    let subscriber = Registry::default().with(filter).with(lines);
    // A second start in one process keeps the first.
    if subscriber.try_init().is_ok() {
        std::panic::set_hook(Box::new(on_panic));
        if let (Some(queue), Some(output)) = (COPY.get(), copy) {
            queue.begin(output)?;
        }
        queue.begin(output)?;
    }
    opened
}

/// A descriptor that stands for the log that is open, whichever that is, as long as the process runs: for what cannot
/// go through the queue.
pub fn descriptor() -> RawFd {
    file::descriptor()
}

/// Has the log opened anew, by the name that it was given.
pub fn reopen() {
    for queue in queues() {
        queue.lock().reopen = true;
        queue.come.notify_one();
    }
}

/// Returns when all that was logged is written, or cannot be.
pub fn flush() {
    queues().for_each(|queue| queue.flush(PATIENCE));
}

/// There is one log, as there is one standard error.
static QUEUE: OnceLock<Queue> = OnceLock::new();
/// And of what goes to the standard error, a copy in a file: a reader that has stopped to read keeps nothing from it.
static COPY: OnceLock<Queue> = OnceLock::new();

/// Both, as far as there are such.
fn queues() -> impl Iterator<Item = &'static Queue> {
    [&COPY, &QUEUE].into_iter().filter_map(OnceLock::get)
}

/// A panic is a line of the log, wherever the standard error goes.
fn on_panic(info: &PanicHookInfo<'_>) {
    let payload = info.payload();
    let what = (payload.downcast_ref::<&str>().copied())
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no reason given");
    let thread = thread::current();
    let name = thread.name().unwrap_or("without a name");
    match info.location() {
        Some(at) => tracing::error!(fatal = true, "thread {name} panicked at {at}: {what}"),
        None => tracing::error!(fatal = true, "thread {name} panicked: {what}"),
    }
}

/// Turns events into lines of queues; in colours where that is true.
struct Lines(Vec<(&'static Queue, bool)>);

impl<S: Subscriber> Layer<S> for Lines {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut said = Said::default();
        event.record(&mut said);
        let metadata = event.metadata();
        let text = quayfs_shown::text(&said.text);
        let complains = *metadata.level() <= Level::WARN && !said.each;
        for (queue, coloured) in &self.0 {
            let line = written(*metadata.level(), &text, *coloured);
            queue.take(line, complains.then(|| (metadata.callsite(), &*text)));
        }
        if said.fatal {
            self.0.iter().for_each(|(queue, _)| queue.flush(LAST_WORDS));
        }
    }
}

/// What an event says.
#[derive(Default)]
struct Said {
    text: String,
    fatal: bool,
    each: bool,
}

impl Visit for Said {
    fn record_bool(&mut self, field: &Field, value: bool) {
        match field.name() {
            "fatal" => self.fatal = value,
            "each" => self.each = value,
            _ => self.record_debug(field, &value),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let space = if self.text.is_empty() { "" } else { " " };
        // What cannot be said is left out.
        let _ = match field.name() {
            "message" => write!(self.text, "{space}{value:?}"),
            name => write!(self.text, "{space}{name}={value:?}"),
        };
    }
}

/// Where the threads that log and the thread that writes meet.
#[derive(Debug, Default)]
struct Queue {
    state: Mutex<State>,
    /// There is something to do for the thread that writes.
    come: Condvar,
    /// Something was written.
    gone: Condvar,
}

#[derive(Debug, Default)]
struct State {
    lines: VecDeque<String>,
    bytes: usize,
    /// Lines that have come, and lines that were written or lost.
    came: u64,
    went: u64,
    /// Lines that found no room, since the last that was told of.
    lost: u64,
    limit: Limit,
    reopen: bool,
    /// A thread waits for what was left out to be counted.
    ending: bool,
    /// There is a thread that writes.
    is_served: bool,
}

impl State {
    fn put(&mut self, line: String) {
        if self.bytes + line.len() > WAITING_MAX {
            self.lost += 1;
            return;
        }
        self.bytes += line.len();
        self.came += 1;
        self.lines.push_back(line);
    }

    /// Puts the counts of what was left out that are due.
    fn count(&mut self, by: Option<Instant>) {
        for text in self.limit.take(by) {
            self.put(written(Level::WARN, &text, false));
        }
    }
}

/// What there is to do for the thread that writes.
struct Work {
    lines: VecDeque<String>,
    reopen: bool,
    lost: u64,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a line, or counts it if it is a complaint, from this place and with these words, of which there were many.
    fn take(&self, line: String, complaint: Option<(callsite::Identifier, &str)>) {
        let mut state = self.lock();
        if let Some((place, text)) = complaint {
            match state.limit.admits(place, text, Instant::now()) {
                Verdict::Write => {}
                // The thread that writes learns when the count is due.
                Verdict::Count { first: true } => return self.come.notify_one(),
                Verdict::Count { first: false } => return,
            }
        }
        state.put(line);
        self.come.notify_one();
    }

    /// Starts the thread that writes.
    fn begin(&'static self, output: Output) -> io::Result<()> {
        self.lock().is_served = true;
        let started = thread::Builder::new().name("log".into()).spawn(move || {
            confine::to(confine::TO_LOG);
            self.serve(output);
        });
        started
            .map(drop)
            .inspect_err(|_| self.lock().is_served = false)
    }

    /// Writes what comes. The body of a thread that ends with the process.
    fn serve(&self, output: Output) {
        let _served = Served(self);
        let mut pen = Pen::new(output);
        loop {
            let work = self.next();
            if work.reopen {
                pen.reopen();
            }
            pen.lost(work.lost);
            for line in work.lines {
                pen.write(&line);
                self.lock().went += 1;
                self.gone.notify_all();
            }
        }
    }

    /// Waits for something to do; without limit, unless lines were left out and are to be counted.
    fn next(&self) -> Work {
        let mut state = self.lock();
        loop {
            let now = Instant::now();
            let by = (!state.ending).then_some(now);
            state.ending = false;
            state.count(by);
            if state.reopen || !state.lines.is_empty() {
                state.bytes = 0;
                return Work {
                    lines: std::mem::take(&mut state.lines),
                    reopen: std::mem::take(&mut state.reopen),
                    lost: std::mem::take(&mut state.lost),
                };
            }
            self.gone.notify_all();
            state = match state.limit.due() {
                None => self
                    .come
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(due) => {
                    let left = due.saturating_duration_since(now);
                    let waited = self.come.wait_timeout(state, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    /// Waits until everything that was put before is written, also the counts of what was left out; no longer
    /// than `patience` for any one of them.
    fn flush(&self, patience: Duration) {
        let mut state = self.lock();
        state.ending = true;
        self.come.notify_one();
        let mut before = state.went;
        let mut since = Instant::now();
        while state.is_served && (state.ending || state.went < state.came) {
            if state.went != before {
                (before, since) = (state.went, Instant::now());
            }
            let Some(left) = patience.checked_sub(since.elapsed()) else {
                return;
            };
            let waited = self.gone.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// While this exists, a thread writes.
struct Served<'q>(&'q Queue);

impl Drop for Served<'_> {
    fn drop(&mut self) {
        self.0.lock().is_served = false;
        self.0.gone.notify_all();
    }
}

/// What is written to.
#[derive(Debug)]
enum Output {
    Stderr,
    File(LogFile),
    #[cfg(test)]
    Pipe(std::os::fd::OwnedFd),
}

impl Output {
    fn append(&mut self, line: &[u8]) -> io::Result<()> {
        match self {
            Self::Stderr => file::write(rustix::stdio::stderr(), line),
            Self::File(file) => file.append(line),
            #[cfg(test)]
            Self::Pipe(pipe) => file::write(pipe, line),
        }
    }
}

/// Writes lines and counts those that it cannot.
struct Pen {
    output: Output,
    /// The last line broke off, so that the next begins a new one.
    torn: bool,
    lost: u64,
    why: String,
}

impl Pen {
    fn new(output: Output) -> Self {
        Self {
            output,
            torn: false,
            lost: 0,
            why: String::new(),
        }
    }

    fn reopen(&mut self) {
        // If that fails, so does the next line, which counts.
        if let Output::File(file) = &mut self.output
            && file.reopen().is_ok()
            && file.is_empty()
        {
            self.torn = false;
        }
    }

    /// Lines have been lost before they came here.
    fn lost(&mut self, n: u64) {
        if n > 0 {
            self.lost += n;
            self.why = "they came faster than they could be written".into();
        }
    }

    fn write(&mut self, line: &str) {
        if self.lost > 0 {
            let (n, why) = (self.lost, &self.why);
            let told = format!("{n} lines of the log are missing here: {why}");
            if self.append(&written(Level::WARN, &told, false)) {
                self.lost = 0;
            }
        }
        if self.lost > 0 || !self.append(line) {
            self.lost += 1;
        }
    }

    fn append(&mut self, line: &str) -> bool {
        let written = if self.torn {
            self.output.append(format!("\n{line}").as_bytes())
        } else {
            self.output.append(line.as_bytes())
        };
        match written {
            Ok(()) => {
                self.torn = false;
                true
            }
            Err(e) => {
                self.torn |= e.kind() == io::ErrorKind::WriteZero;
                self.why = if e.kind() == io::ErrorKind::WriteZero {
                    "no room".into()
                } else {
                    e.to_string()
                };
                false
            }
        }
    }
}

/// The log file of a volume that is no directory: of a device among the logs of the system, of a file beside it.
fn beside(volume: &Path) -> PathBuf {
    let is_file = std::fs::metadata(volume).is_ok_and(|meta| meta.is_file());
    let dir = volume.parent().filter(|_| is_file);
    let mut name = OsString::from("quayfs-");
    name.push(volume.file_name().unwrap_or_default());
    name.push(".log");
    dir.unwrap_or(Path::new("/var/log")).join(name)
}

/// The log file of a volume, unless another was asked for, as messages name it.
pub fn destination(volume: &Path, asked: Option<&Path>) -> io::Result<Destination> {
    Ok(match asked {
        // The daemon has another working directory.
        Some(path) => Destination::Asked(std::path::absolute(path)?),
        None if volume.is_dir() => Destination::Volume(volume.join(NAME)),
        None => Destination::Beside(beside(volume)),
    })
}

/// Adds lines about a volume that is not mounted to its log, for `quayfs status`: if that belongs to the owner of the volume,
/// or there is none and the owner is this user. A log of another user would be in the way of those whose mounts write one.
///
/// # Errors
/// There is no such log, and none can be made.
pub fn add(volume: &Path, uuid: &str, texts: &[String]) -> io::Result<()> {
    let Some(path) = destination(volume, None)?.path() else {
        return Ok(());
    };
    let owner = std::fs::metadata(volume)?.uid();
    let about = written(Level::INFO, &format!("{ABOUT}{uuid}"), false);
    let texts = texts.iter().map(|text| written(Level::INFO, text, false));
    let lines = about + &texts.collect::<String>();
    file::add(&path, owner, lines.as_bytes())
}

#[cfg(test)]
mod tests;
