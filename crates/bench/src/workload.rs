//! What a workload is, and the list of all.

use crate::error::{Error, Result};
use crate::handle::Handle;
use crate::library::Library;
use crate::meter::{DIR_MODE, Meter};
use crate::name::Name;
use crate::random::Random;
use memmap2::{Advice, MmapMut};
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};
use std::ffi::CStr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long a run of a workload takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Span {
    /// As long as it is told to; runs a while unmeasured before.
    Timed,
    /// Until its work is done: a fixed number of files or bytes. Begins cold.
    Fixed,
}

/// What a workload is called and what it does.
#[derive(Clone, Copy, Debug)]
pub struct Info {
    /// Its name on the command line.
    pub name: &'static str,
    /// The file of `workloads/` that defines it.
    pub family: &'static str,
    /// One line: what one operation is.
    pub about: &'static str,
    /// Threads unless told otherwise.
    pub threads: u32,
    /// How long it takes.
    pub span: Span,
    /// Bytes of the file that each thread works on, if it works on one.
    pub file_bytes: u64,
    /// Number of files that it works on, if that can be changed.
    pub files: u64,
    /// Why it cannot run in a [`Library`], if it cannot.
    pub kernel_only: Option<&'static str>,
    /// The steps of an operation, each with latencies of its own; empty for one step.
    pub steps: &'static [&'static str],
}

impl Info {
    /// A workload of one thread, for a while.
    pub const fn new(name: &'static str, family: &'static str, about: &'static str) -> Self {
        Self {
            name,
            family,
            about,
            threads: 1,
            span: Span::Timed,
            file_bytes: 0,
            files: 0,
            kernel_only: None,
            steps: &[],
        }
    }

    /// With this number of threads.
    pub const fn threads(mut self, threads: u32) -> Self {
        self.threads = threads;
        self
    }

    /// Until its work is done.
    pub const fn fixed(mut self) -> Self {
        self.span = Span::Fixed;
        self
    }

    /// On files of this size.
    pub const fn on_bytes(mut self, bytes: u64) -> Self {
        self.file_bytes = bytes;
        self
    }

    /// On this number of files.
    pub const fn on_files(mut self, files: u64) -> Self {
        self.files = files;
        self
    }

    /// Not in a [`Library`], for this reason.
    pub const fn kernel_only(mut self, why: &'static str) -> Self {
        self.kernel_only = Some(why);
        self
    }

    /// Whether it can run in a [`Library`].
    ///
    /// # Errors
    /// [`Error::Unsupported`] with the reason.
    pub fn check_library(&self) -> Result<()> {
        self.kernel_only.map_or(Ok(()), |why| {
            Err(Error::Unsupported {
                workload: self.name,
                why: why.into(),
            })
        })
    }

    /// With these steps.
    pub const fn steps(mut self, steps: &'static [&'static str]) -> Self {
        self.steps = steps;
        self
    }
}

/// What a run can be told. What is not said is the workload's choice.
#[derive(Clone, Debug, Default)]
pub struct Wishes {
    /// Threads.
    pub threads: Option<u32>,
    /// Measured time.
    pub seconds: Option<f64>,
    /// Time before that.
    pub warmup: Option<f64>,
    /// Operations of each thread after which it ends, whatever the time.
    pub ops: Option<u64>,
    /// Bytes of each thread's file.
    pub file_bytes: Option<u64>,
    /// Number of files.
    pub files: Option<u64>,
    /// Seed of all random numbers.
    pub seed: Option<u64>,
}

/// Parameters of a run, as they are reported.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Params {
    /// Threads.
    pub threads: u32,
    /// How long it takes.
    pub span: Span,
    /// Measured time in seconds; no limit if fixed work is done.
    pub seconds: f64,
    /// Unmeasured time before, in seconds.
    pub warmup: f64,
    /// Operations of each thread after which it ends.
    pub ops: Option<u64>,
    /// Bytes of each thread's file; 0 if it has none.
    pub file_bytes: u64,
    /// Number of files; 0 if it cannot be chosen.
    pub files: u64,
    /// Seed of all random numbers.
    pub seed: u64,
}

impl Params {
    /// Those of a workload, with what is wished.
    ///
    /// # Errors
    /// A wish that makes no sense.
    pub fn new(info: &Info, wishes: &Wishes) -> Result<Self> {
        let bad = |what: &str| Err(Error::Usage(what.into()));
        let seconds = wishes.seconds.unwrap_or(5.0);
        let fixed = info.span == Span::Fixed;
        let warmup = wishes.warmup.unwrap_or(1.0);
        let params = Self {
            threads: wishes.threads.unwrap_or(info.threads),
            span: info.span,
            seconds: if fixed { 0.0 } else { seconds },
            warmup: if fixed { 0.0 } else { warmup },
            ops: wishes.ops,
            file_bytes: match (info.file_bytes, wishes.file_bytes) {
                (0, _) => 0,
                (own, wish) => wish.unwrap_or(own),
            },
            files: match (info.files, wishes.files) {
                (0, _) => 0,
                (own, wish) => wish.unwrap_or(own),
            },
            seed: wishes.seed.unwrap_or(1),
        };
        if !(1..=1024).contains(&params.threads) {
            return bad("--threads takes 1 to 1024");
        }
        if !(seconds > 0.0 && seconds <= 1e6 && (0.0..=1e6).contains(&warmup)) {
            return bad("--seconds takes a positive number, --warmup one that is not negative");
        }
        if info.file_bytes > 0 && params.file_bytes < 1 << 20 {
            return bad("--file-size takes 1M or more");
        }
        if info.files > 0 && params.files == 0 || params.ops == Some(0) {
            return bad("--files and --ops take a positive number");
        }
        Ok(params)
    }

    /// Measured time.
    pub fn duration(&self) -> Option<Duration> {
        (self.span == Span::Timed).then(|| Duration::from_secs_f64(self.seconds))
    }

    /// Unmeasured time before.
    pub fn warmup(&self) -> Duration {
        Duration::from_secs_f64(self.warmup)
    }
}

/// Where a run takes place: a directory of its own, and whether it shall end.
#[derive(Debug)]
pub struct Place<'a> {
    /// Parameters.
    pub params: &'a Params,
    root: Handle<'a>,
    stop: &'a AtomicBool,
}

impl<'a> Place<'a> {
    /// The directory at `path`, which is there.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn new(params: &'a Params, path: &'a Path, stop: &'a AtomicBool) -> Result<Self> {
        let root = Handle::directory(path).map_err(|errno| Error::Call {
            call: "open",
            path: path.into(),
            errno,
        })?;
        Ok(Self { params, root, stop })
    }

    /// The root directory of a file system that is called directly.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn within(
        params: &'a Params,
        library: &'a dyn Library,
        stop: &'a AtomicBool,
    ) -> Result<Self> {
        let root = Handle::root(library).map_err(|errno| Error::Call {
            call: "open",
            path: "/".into(),
            errno,
        })?;
        Ok(Self { params, root, stop })
    }

    /// The directory, open.
    pub fn dir(&self) -> &Handle<'a> {
        &self.root
    }

    /// The directory of one thread, made if it is not there, and open.
    pub fn own_dir(&self, thread: usize) -> Result<Handle<'a>> {
        let mut name = Name::new("t");
        let name = name.at(thread as u64);
        make_dir(&self.root, name)?;
        Meter::new(0).open_dir(&self.root, name)
    }

    /// Random numbers of one thread. Thread `usize::MAX` is the preparation.
    pub fn random(&self, thread: usize) -> Random {
        Random::new(self.params.seed, thread as u64)
    }

    /// Whether the run shall end early. For loops of a preparation that take long.
    ///
    /// # Errors
    /// [`Error::Stopped`] if so.
    pub fn go_on(&self) -> Result<()> {
        if self.stop.load(Ordering::Relaxed) {
            Err(Error::Stopped)
        } else {
            Ok(())
        }
    }
}

/// Makes a directory unless it is there.
pub fn make_dir(dir: &Handle<'_>, name: &CStr) -> Result<()> {
    match dir.mkdir(name, DIR_MODE) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
        Err(errno) => Err(Error::Call {
            call: "mkdir",
            path: dir.path_below(name),
            errno,
        }),
    }
}

/// Whether a worker has more to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// It has.
    More,
    /// Its work is done.
    Done,
}

/// A thread of a workload.
pub trait Worker {
    /// Does one operation, or a few that belong together, and tells the meter of each.
    ///
    /// # Errors
    /// What the file system said: the run fails.
    fn go(&mut self, meter: &mut Meter) -> Result<Flow>;
}

impl<F: FnMut(&mut Meter) -> Result<Flow>> Worker for F {
    fn go(&mut self, meter: &mut Meter) -> Result<Flow> {
        self(meter)
    }
}

/// A run that has been prepared: what its threads share.
pub trait Job: Send + Sync {
    /// Prepares one thread, on that thread. What has to be in the kernel's caches is made here; what
    /// has to be out of them is made by [`Workload::prepare`].
    ///
    /// # Errors
    /// What the file system said: the run fails.
    fn worker<'a>(&'a self, place: &'a Place<'a>, thread: usize) -> Result<Box<dyn Worker + 'a>>;
}

/// A workload.
pub trait Workload: Send + Sync {
    /// What it is.
    fn info(&self) -> &Info;

    /// Whether it can run here, before anything else is done.
    ///
    /// # Errors
    /// It cannot, with the reason.
    fn check(&self, _params: &Params) -> Result<()> {
        Ok(())
    }

    /// Makes what all threads share. Caches are dropped afterwards, if that is possible.
    ///
    /// # Errors
    /// What the file system said: the run fails.
    fn prepare(&self, place: &Place<'_>) -> Result<Box<dyn Job>>;
}

/// Prepares the worker of one thread.
pub type MakeWorker = for<'a> fn(&'a Place<'a>, usize) -> Result<Box<dyn Worker + 'a>>;

/// A workload whose threads share nothing.
#[derive(Debug)]
pub struct Private {
    /// What it is.
    pub info: Info,
    /// Prepares one thread.
    pub worker: MakeWorker,
}

impl Workload for Private {
    fn info(&self) -> &Info {
        &self.info
    }

    fn prepare(&self, _: &Place<'_>) -> Result<Box<dyn Job>> {
        Ok(Box::new(PrivateJob(self.worker)))
    }
}

struct PrivateJob(MakeWorker);

impl Job for PrivateJob {
    fn worker<'a>(&'a self, place: &'a Place<'a>, thread: usize) -> Result<Box<dyn Worker + 'a>> {
        self.0(place, thread)
    }
}

/// A workload that prepares something first.
#[derive(Debug)]
pub struct Prepared {
    /// What it is.
    pub info: Info,
    /// Makes what is shared.
    pub prepare: fn(&Place<'_>) -> Result<()>,
    /// Prepares one thread.
    pub worker: MakeWorker,
}

impl Workload for Prepared {
    fn info(&self) -> &Info {
        &self.info
    }

    fn prepare(&self, place: &Place<'_>) -> Result<Box<dyn Job>> {
        (self.prepare)(place)?;
        Ok(Box::new(PrivateJob(self.worker)))
    }
}

/// A buffer at an address that O_DIRECT takes.
#[derive(Debug)]
pub struct Aligned {
    map: MmapMut,
    start: usize,
    len: usize,
}

/// Buffers from this length on ask for huge pages: what a disk takes to fill small ones depends on whether neighbours
/// happen to be neighbours in memory too, which differs from run to run.
const LONG: usize = 1 << 20;
/// What a huge page holds.
const HUGE: usize = 2 << 20;

impl Aligned {
    /// Random bytes, so that no file system can make less of them.
    ///
    /// # Panics
    /// There is no memory.
    pub fn random(len: usize, random: &mut Random) -> Self {
        let spare = if len < LONG { 0 } else { 2 * HUGE };
        let map = MmapMut::map_anon(len.max(1) + spare).expect("memory for a buffer");
        let mut start = 0;
        if spare > 0 {
            start = map.as_ptr().align_offset(HUGE);
            // A kernel without them has small ones.
            let _ = map.advise_range(Advice::HugePage, start, len.next_multiple_of(HUGE));
        }
        let mut buffer = Self { map, start, len };
        random.fill(buffer.get());
        buffer
    }

    /// The bytes.
    pub fn get(&mut self) -> &mut [u8] {
        &mut self.map[self.start..][..self.len]
    }

    /// The bytes of write number `n`: no two writes are the same.
    pub fn stamped(&mut self, n: u64) -> &[u8] {
        let bytes = self.get();
        bytes[..8].copy_from_slice(&n.to_le_bytes());
        bytes
    }
}

/// Makes a file of `bytes` random bytes, durable, and opens it with `flags`.
pub fn filled_file<'l>(
    dir: &Handle<'l>,
    name: &CStr,
    bytes: u64,
    flags: OFlags,
    random: &mut Random,
) -> Result<Handle<'l>> {
    let mut meter = Meter::new(0);
    let file = meter.open(dir, name, OFlags::CREATE | OFlags::WRONLY)?;
    let mut buffer = Aligned::random(1 << 20, random);
    let mut at = 0;
    while at < bytes {
        let len = (bytes - at).min(1 << 20);
        let data = &buffer.stamped(at)[..len as usize];
        meter.pwrite(&file, data, at)?;
        at += len;
    }
    meter.fsync(&file)?;
    meter.close(file);
    meter.open(dir, name, flags)
}

/// All workloads, in the order in which they are listed.
pub fn all() -> Vec<Box<dyn Workload>> {
    crate::workloads::all()
}

/// The workloads with these names, in this order. A family's name stands for all of it, `all` for
/// everything.
///
/// # Errors
/// A name that no workload has.
pub fn select(names: &[String]) -> Result<Vec<Box<dyn Workload>>> {
    let mut chosen: Vec<Box<dyn Workload>> = Vec::new();
    for name in names {
        let mut matching: Vec<_> = all()
            .into_iter()
            .filter(|w| {
                let info = w.info();
                name == "all" || info.name.eq_ignore_ascii_case(name) || info.family == name
            })
            .collect();
        if matching.is_empty() {
            return Err(Error::UnknownWorkload(name.clone()));
        }
        matching.retain(|w| chosen.iter().all(|c| c.info().name != w.info().name));
        chosen.extend(matching);
    }
    Ok(chosen)
}
