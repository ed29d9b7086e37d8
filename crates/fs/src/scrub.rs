//! Scrubbing: every staged or written block and every node page is read and its checksum verified,
//! while the volume is in use.
//!
//! A pass runs in three steps. It looks for what is damaged without any lock (`scan`); what it then
//! suspects is looked up again, read again and named under the locks of the file that owns it
//! (`owners`), exactly as a read does it. So a block that was overwritten, swapped or freed
//! meanwhile is not a finding, and neither is one that has no owner: a free block may hold what a
//! power failure left of a direct write. Blocks are read through the same function as for a read,
//! so a home block hidden by a staged version is left alone: a round may be writing it.
//!
//! Of a region on a disk, pages that are whole in memory are compared with what the disk has, which nothing else asks before
//! the next mount. Those that have rotted there are written again. Nothing else is changed, and what is found has no
//! consequence for the mount: `errors=` is about operations that meet damage.

mod limiter;
mod owners;
mod scan;

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use quayfs_layout::{BLOCK, Ino};
use quayfs_store::engine::Engine;
use quayfs_store::error::{FsError, Result};
use quayfs_sync::thread::{self, JoinHandle};
use quayfs_sync::time::Instant;
use quayfs_sync::{Condvar, Mutex};
use serde::{Deserialize, Serialize};

use quayfs_background::Background;

pub use limiter::{Clock, Limiter};

/// Findings that a pass keeps, and logs.
pub const KEPT: usize = 10_000;
/// Blocks read with one request at most (512 KiB).
const CHUNK_MAX: u64 = 128;

/// How to scrub.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Bytes a second; as fast as possible without.
    pub rate: Option<u64>,
}

/// What a client asks of the daemon, as the value of an extended attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// `start`, `start rate=BYTES`: a new pass begins, unless one is running.
    Start(Options),
    /// `stop`: the running pass ends.
    Stop,
}

impl FromStr for Command {
    type Err = FsError;

    fn from_str(text: &str) -> Result<Self> {
        let mut words = text.split_ascii_whitespace();
        let verb = words.next();
        let mut options = Options::default();
        for word in words {
            let rate = word.strip_prefix("rate=").and_then(|n| n.parse().ok());
            match rate {
                Some(rate) if rate > 0 && verb == Some("start") => options.rate = Some(rate),
                _ => return Err(FsError::Invalid),
            }
        }
        match verb {
            Some("start") => Ok(Self::Start(options)),
            Some("stop") => Ok(Self::Stop),
            _ => Err(FsError::Invalid),
        }
    }
}

impl std::fmt::Display for Command {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Start(Options { rate: Some(rate) }) => write!(f, "start rate={rate}"),
            Self::Start(Options { rate: None }) => f.write_str("start"),
            Self::Stop => f.write_str("stop"),
        }
    }
}

/// Where a pass is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// There has been none since the mount.
    #[default]
    Never,
    /// Under way.
    Running,
    /// It has seen everything.
    Finished,
    /// It was told to stop.
    Stopped,
    /// A fault of the program has ended it: the log says which.
    Failed,
}

/// A pass at a glance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Number of the pass, counted from the mount.
    pub pass: u64,
    /// Where it is.
    pub state: State,
    /// Bytes verified.
    pub bytes: u64,
    /// About how many there are; files change meanwhile.
    pub total_bytes: u64,
    /// Its limit.
    pub rate_bytes: Option<u64>,
    /// Blocks and pages that are damaged; while it is running, those suspected.
    pub findings: u64,
    /// Those of them that are no blocks of files, but metadata: the next mount may refuse them.
    #[serde(default)]
    pub metadata: u64,
    /// Pages of a region on a disk that were damaged there and whole in memory: they have been written again.
    #[serde(default)]
    pub mended: u64,
    /// When it ended, in seconds since 1970.
    #[serde(default)]
    pub ended: Option<u64>,
}

impl Status {
    /// How it ended, as the log has it.
    pub fn outcome(&self) -> String {
        outcome(self.state, self.bytes, self.findings)
    }
}

fn outcome(state: State, bytes: u64, findings: u64) -> String {
    format!("scrub: {state:?} after {bytes} bytes, damaged blocks and pages: {findings}")
}

/// What kind of thing is damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Area {
    /// A block on the data device.
    Data,
    /// A block in a staging slot.
    Staged,
    /// A node page.
    Metadata,
    /// An entry of the page table.
    PageTable,
}

/// Something damaged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// What it is.
    pub area: Area,
    /// Inode of the file it belongs to, if it is one file's.
    pub inode: Option<Ino>,
    /// Names of the files it belongs to, from the root of the volume; none if they have no name or
    /// it cannot be told.
    pub paths: Vec<String>,
    /// Damaged bytes of the file; without, all of it may be affected.
    pub bytes: Option<Range<u64>>,
    /// Blocks or pages damaged.
    pub count: u64,
    /// What is wrong.
    pub what: String,
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let paths: Vec<_> = self.paths.iter().map(|p| quayfs_shown::text(p)).collect();
        match (paths.split_first(), self.inode) {
            (Some((first, [])), _) => f.write_str(first)?,
            (Some((first, more)), _) => write!(f, "{first} (also {})", more.join(", "))?,
            (None, Some(ino)) => write!(f, "inode {ino} (no name)")?,
            (None, None) => f.write_str("no file")?,
        }
        if let Some(r) = &self.bytes {
            write!(f, ": bytes {} to {}", r.start, r.end)?;
        }
        write!(f, ": {}", self.what)
    }
}

/// A pass and what it has found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// At a glance.
    #[serde(flatten)]
    pub status: Status,
    /// Findings, complete once the pass has ended.
    pub list: Vec<Finding>,
    /// Findings behind those in `list` that are kept.
    pub more: u64,
}

/// One pass.
#[derive(Default)]
pub struct Pass {
    number: u64,
    options: Options,
    stop: AtomicBool,
    bytes: AtomicU64,
    total: AtomicU64,
    suspects: AtomicU64,
    mended: AtomicU64,
    progress: Mutex<Progress>,
    stopped: Condvar,
}

#[derive(Default)]
struct Progress {
    state: State,
    found: Vec<Finding>,
    /// Damaged blocks and pages.
    count: u64,
    ended: Option<u64>,
}

impl Pass {
    /// A pass that has not begun.
    pub fn new(options: Options) -> Self {
        Self {
            options,
            progress: Mutex::new(Progress {
                state: State::Running,
                ..Progress::default()
            }),
            ..Self::default()
        }
    }

    /// Runs to the end, or until [`Pass::stop`] is called or the mount ends.
    pub fn run(&self, e: &Engine) {
        self.total.store(scan::total(e), Ordering::Relaxed);
        let waiting = Waiting {
            pass: self,
            e,
            begun: Instant::now(),
        };
        let mut limiter = Limiter::new(&waiting, self.options.rate);
        let mut suspects = scan::Suspects::default();
        scan::pages(e, self, &mut limiter, &mut suspects);
        scan::blocks(e, self, &mut limiter, &mut suspects);
        scan::stored(e, self);
        self.settle_mended(e);
        // Also what was seen before a stop is worth naming.
        let found = owners::findings(e, suspects);
        let mut p = self.progress.lock();
        p.count = found.iter().map(|f| f.count).sum();
        p.found = found;
        p.found.truncate(KEPT);
        for f in &p.found {
            tracing::error!(each = true, "scrub: {f}");
        }
        let since = quayfs_sync::time::now().duration_since(UNIX_EPOCH);
        p.ended = since.ok().map(|since| since.as_secs());
        p.state = if self.must_stop(e) {
            State::Stopped
        } else {
            State::Finished
        };
        let outcome = outcome(p.state, self.bytes.load(Ordering::Relaxed), p.count);
        tracing::info!("{outcome}");
    }

    /// What the disk had otherwise is there again, durably, before this pass says so.
    fn settle_mended(&self, e: &Engine) {
        let mended = self.mended.load(Ordering::Relaxed);
        if mended == 0 {
            return;
        }
        let pages = quayfs_shown::count(mended, "page");
        match e.region.drain() {
            Ok(()) => tracing::warn!(
                each = true,
                "scrub: {pages} of the region were damaged on its disk, but whole in memory: they are written again"
            ),
            Err(why) => e.fail(&why),
        }
    }

    fn mended(&self, pages: u64) {
        self.mended.fetch_add(pages, Ordering::Relaxed);
    }

    /// Ends the pass soon.
    pub fn stop(&self) {
        // Under the lock, or the limiter might look just before and sleep just after.
        let _progress = self.progress.lock();
        self.stop.store(true, Ordering::Release);
        self.stopped.notify_all();
    }

    fn must_stop(&self, e: &Engine) -> bool {
        self.stop.load(Ordering::Acquire) || e.stopping().load(Ordering::Acquire)
    }

    /// Blocks that are read with one request: fewer if they have to be waited for long.
    fn chunk(&self) -> u64 {
        let eighth = self.options.rate.map(|r| r / 8 / BLOCK as u64);
        eighth.unwrap_or(CHUNK_MAX).clamp(1, CHUNK_MAX)
    }

    fn verified(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn suspect(&self) {
        self.suspects.fetch_add(1, Ordering::Relaxed);
    }

    /// The pass at a glance.
    pub fn status(&self) -> Status {
        let p = self.progress.lock();
        self.status_of(&p)
    }

    fn status_of(&self, p: &Progress) -> Status {
        Status {
            pass: self.number,
            state: p.state,
            bytes: self.bytes.load(Ordering::Relaxed),
            total_bytes: self.total.load(Ordering::Relaxed),
            rate_bytes: self.options.rate,
            findings: match p.state {
                State::Running => self.suspects.load(Ordering::Relaxed),
                _ => p.count,
            },
            metadata: (p.found.iter())
                .filter(|f| matches!(f.area, Area::Metadata | Area::PageTable))
                .map(|f| f.count)
                .sum(),
            mended: self.mended.load(Ordering::Relaxed),
            ended: p.ended,
        }
    }

    /// The pass with its findings from number `from` on, as many as fit `room` bytes as JSON, but
    /// at least one.
    pub fn report(&self, from: usize, room: usize) -> Report {
        let p = self.progress.lock();
        let rest = p.found.iter().skip(from);
        let mut taken = 0;
        let mut list = Vec::new();
        for f in rest.clone() {
            taken += serde_json::to_string(f).map_or(0, |s| s.len() + 1);
            // At least one, or the reader would never get any further.
            if taken > room && !list.is_empty() {
                break;
            }
            list.push(f.clone());
        }
        Report {
            status: self.status_of(&p),
            more: (rest.count() - list.len()) as u64,
            list,
        }
    }
}

/// The limiter's clock: sleeping ends when the pass is told to stop.
struct Waiting<'p> {
    pass: &'p Pass,
    e: &'p Engine,
    begun: Instant,
}

impl Clock for Waiting<'_> {
    fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    fn sleep(&self, time: Duration) {
        let until = self.now().saturating_add(time);
        let mut p = self.pass.progress.lock();
        while !self.pass.must_stop(self.e) {
            let Some(left) = until.checked_sub(self.now()).filter(|d| !d.is_zero()) else {
                return;
            };
            self.pass.stopped.wait_for(&mut p, left);
        }
    }
}

/// The passes of a mount, one at a time, in a thread of their own.
#[derive(Default)]
pub struct Scrubber {
    last: Mutex<Option<(Arc<Pass>, Thread)>>,
}

/// There until a caller has waited for its end.
type Thread = Option<JoinHandle<()>>;

impl Scrubber {
    /// Begins a pass.
    ///
    /// # Errors
    /// [`FsError::Busy`] if one is running.
    pub fn start(&self, engine: &Arc<Background>, options: Options) -> Result<Arc<Pass>> {
        let mut last = self.last.lock();
        let number = match &*last {
            Some((pass, _)) if pass.status().state == State::Running => return Err(FsError::Busy),
            Some((pass, _)) => pass.number + 1,
            None => 1,
        };
        let pass = Arc::new(Pass {
            number,
            ..Pass::new(options)
        });
        let (e, mine) = (Arc::clone(engine), Arc::clone(&pass));
        let thread = thread::Builder::new()
            .name("quayfs-scrub".into())
            .spawn(move || {
                // It has changed nothing, so nothing else is concerned. A watching process must see the end of it.
                if catch_unwind(AssertUnwindSafe(|| mine.run(&e))).is_err() {
                    mine.progress.lock().state = State::Failed;
                }
            })?;
        *last = Some((Arc::clone(&pass), Some(thread)));
        Ok(pass)
    }

    /// Tells the running pass to stop, if there is one.
    pub fn stop(&self) {
        if let Some((pass, _)) = &*self.last.lock() {
            pass.stop();
        }
    }

    /// Stops the running pass and waits for its end.
    pub fn end(&self) {
        let thread = match &mut *self.last.lock() {
            Some((pass, thread)) => {
                pass.stop();
                thread.take()
            }
            None => None,
        };
        if thread.is_some_and(|t| t.join().is_err()) {
            tracing::error!("the scrub panicked");
        }
    }

    /// The last pass at a glance.
    pub fn status(&self) -> Status {
        let last = self.last.lock();
        last.as_ref().map(|(p, _)| p.status()).unwrap_or_default()
    }

    /// As [`Pass::report`], of the last pass.
    pub fn report(&self, from: usize, room: usize) -> Report {
        let last = self.last.lock();
        match &*last {
            Some((pass, _)) => pass.report(from, room),
            None => Report::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_come_back() {
        for command in [
            Command::Start(Options::default()),
            Command::Start(Options { rate: Some(77) }),
            Command::Stop,
        ] {
            assert_eq!(command.to_string().parse(), Ok(command));
        }
        for text in [
            "",
            "go",
            "start rate=0",
            "start rate=x",
            "stop rate=5",
            "start fast",
            "start rate",
        ] {
            assert_eq!(text.parse::<Command>(), Err(FsError::Invalid), "{text}");
        }
    }

    #[test]
    fn long_lists_come_in_parts() {
        let pass = Pass::new(Options::default());
        let finding = |i: u64| Finding {
            area: Area::Data,
            inode: Some(i),
            paths: vec![format!("/{}", "x".repeat(40))],
            bytes: Some(0..4096),
            count: 1,
            what: "bad".into(),
        };
        pass.progress.lock().found = (0..50).map(finding).collect();
        let mut seen = Vec::new();
        loop {
            let part = pass.report(seen.len(), 1000);
            assert!(serde_json::to_string(&part.list).unwrap().len() <= 1001);
            seen.extend(part.list);
            assert_eq!(part.more, 50 - seen.len() as u64);
            if part.more == 0 {
                break;
            }
        }
        assert!(
            seen.iter()
                .enumerate()
                .all(|(i, f)| *f == finding(i as u64))
        );
    }
}
