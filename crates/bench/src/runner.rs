//! Runs workloads on targets in turn.
//!
//! One run: a directory of its own is made; the workload prepares it; caches are dropped; threads
//! prepare themselves; the file system settles, so that it does not pay in the measured time for what
//! came before; warm-up; counters; the measured time; counters; the file system settles again, which
//! tells what the work has cost its device; the directory is removed.

use crate::caches::{self, What};
use crate::error::{Error, Result};
use crate::observe::{self, Counters, Observed};
use crate::progress::Progress;
use crate::report::{Report, Sample, Step, WorkloadReport};
use crate::run::{self, Between};
use crate::stats::Percentiles;
use crate::target::Target;
use crate::workload::{Info, Params, Place, Wishes, Workload};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A benchmark to be made.
pub struct Plan {
    /// Directories; the first is the base of ratios.
    pub targets: Vec<Target>,
    /// Workloads, in their order.
    pub workloads: Vec<Box<dyn Workload>>,
    /// Parameters that differ from those of the workloads.
    pub wishes: Wishes,
    /// Runs of each workload on each target.
    pub repetitions: u32,
    /// How long a mount may take to empty its staging area, before and after a run.
    pub patience: Duration,
    /// Bind threads to CPUs, in turn.
    pub pin: bool,
    /// Leave the kernel's caches as they are.
    pub keep_caches: bool,
    /// Commit of the program, if known.
    pub commit: Option<String>,
    /// Command line, for the report.
    pub command: Vec<String>,
}

impl Plan {
    fn check(&self) -> Result<Vec<Params>> {
        let usage = |text: String| Err(Error::Usage(text));
        if self.targets.is_empty() {
            return usage("name a directory: --dir LABEL=PATH".into());
        }
        if self.workloads.is_empty() {
            return usage("name a workload: `quayfs-bench list` shows all".into());
        }
        if self.repetitions == 0 {
            return usage("--repeat takes a positive number".into());
        }
        for (n, t) in self.targets.iter().enumerate() {
            if self.targets[..n].iter().any(|u| u.label == t.label) {
                return usage(format!("two directories are called `{}`", t.label));
            }
        }
        self.workloads
            .iter()
            .map(|w| {
                let params = Params::new(w.info(), &self.wishes)?;
                w.check(&params)?;
                Ok(params)
            })
            .collect()
    }

    /// Makes the benchmark, until it is done, fails, or `stop` is set. What was found until then is
    /// in the report, and why it ended.
    ///
    /// # Errors
    /// The plan itself is wrong: nothing was done.
    pub fn run(&self, stop: &AtomicBool, quiet: bool) -> Result<(Report, Option<Error>)> {
        let params = self.check()?;
        let facts = self.targets.iter().map(Target::facts).collect();
        let mut report = Report::new(self.commit.clone(), self.command.clone(), facts);
        let runs = self.workloads.len() * self.targets.len() * self.repetitions as usize;
        let progress = if quiet {
            Progress::hidden()
        } else {
            Progress::new(runs as u64)
        };
        let failure = self.all(&mut report, &params, stop, &progress).err();
        report.failure = failure.as_ref().map(ToString::to_string);
        Ok((report, failure))
    }

    fn all(
        &self,
        report: &mut Report,
        params: &[Params],
        stop: &AtomicBool,
        progress: &Progress,
    ) -> Result<()> {
        let begun = Instant::now();
        let labels: Vec<String> = self.targets.iter().map(|t| t.label.clone()).collect();
        for (workload, params) in self.workloads.iter().zip(params) {
            let info = workload.info();
            let mut found = WorkloadReport::new(info.name, info.about, params.clone(), &labels);
            let result = (|| {
                for repetition in 0..self.repetitions {
                    for (target, found) in self.targets.iter().zip(&mut found.targets) {
                        let (now, of) = (repetition + 1, self.repetitions);
                        progress.say(format!("{} on {} ({now}/{of})", info.name, target.label));
                        let run = Run {
                            workload: &**workload,
                            params,
                            target,
                            patience: self.patience,
                            pin: self.pin,
                            keep_caches: self.keep_caches,
                            stop,
                        };
                        let began = begun.elapsed().as_secs_f64();
                        let sample = run.make().map_err(|e| interrupted(e, stop))?;
                        found.samples.push(Sample {
                            repetition,
                            began,
                            ..sample
                        });
                        progress.advance();
                    }
                }
                Ok(())
            })();
            found.summarize();
            if found.targets.iter().any(|t| !t.samples.is_empty()) {
                report.workloads.push(found);
            }
            result?;
        }
        Ok(())
    }
}

/// What fails while everything is being stopped fails because of that.
fn interrupted(e: Error, stop: &AtomicBool) -> Error {
    if stop.load(Ordering::Relaxed) {
        Error::Stopped
    } else {
        e
    }
}

/// One run of a workload on a target.
pub struct Run<'a> {
    /// The workload.
    pub workload: &'a dyn Workload,
    /// Its parameters.
    pub params: &'a Params,
    /// The directory.
    pub target: &'a Target,
    /// As [`Plan::patience`].
    pub patience: Duration,
    /// As [`Plan::pin`].
    pub pin: bool,
    /// As [`Plan::keep_caches`].
    pub keep_caches: bool,
    /// Ends it when set.
    pub stop: &'a AtomicBool,
}

/// What happens around the warm-up.
struct Around<'a> {
    target: &'a Target,
    patience: Duration,
    settled: bool,
    before: Option<Counters>,
}

impl Between for Around<'_> {
    fn prepared(&mut self) -> Result<()> {
        self.settled = observe::await_idle(self.target, self.patience)?;
        Ok(())
    }

    fn warm(&mut self) -> Result<()> {
        self.before = Some(Counters::read(self.target)?);
        Ok(())
    }
}

impl Run<'_> {
    /// Makes it.
    ///
    /// # Errors
    /// What the file system said, or [`Error::Stopped`].
    pub fn make(&self) -> Result<Sample> {
        let target = self.target;
        let full_before = target.full()?;
        let work = WorkDir::new(&target.path)?;
        let place = Place::new(self.params, &work.0, self.stop)?;
        let info = self.workload.info();
        let job = self.workload.prepare(&place)?;
        let caches_dropped = !self.keep_caches && caches::can_drop();
        if caches_dropped {
            observe::await_idle(target, Duration::ZERO)?;
            caches::drop(What::All)?;
        }
        let mut around = Around {
            target,
            patience: self.patience,
            settled: false,
            before: None,
        };
        let (steps, pin) = (info.steps.len(), self.pin);
        let tallies = run::run(&*job, &place, steps, pin, self.stop, &mut around)?;
        let after = Counters::read(target)?;
        let drained = Instant::now();
        let settled = observe::await_idle(target, self.patience)?;
        let drain = drained.elapsed().as_secs_f64();
        let last = Counters::read(target)?;
        let before = around.before.as_ref().unwrap_or(&after);
        let mut observed = Observed::between(before, &after, &last);
        observed.settled = [around.settled, settled];
        observed.daemon_peak_bytes = target.daemon.and_then(observe::peak_memory);
        // A mount of ours is waited for until it is idle, which says nothing.
        observed.drain_s = observed.messages.is_none().then_some(drain);
        let total = run::merge(tallies, self.params).ok_or(Error::Stopped)?;
        drop((job, place));
        work.remove()?;
        Ok(sample(info, total, observed, full_before, caches_dropped))
    }
}

/// What a run has found: what its threads did, what was observed meanwhile, and how full the file system
/// was before.
pub fn sample(
    info: &Info,
    total: run::Total,
    observed: Observed,
    full_before: f64,
    caches_dropped: bool,
) -> Sample {
    let sum = &total.sum;
    let steps = info.steps.iter().zip(&sum.steps);
    Sample {
        repetition: 0,
        began: 0.0,
        seconds: total.seconds,
        ops: sum.ops,
        ops_per_s: total.ops_per_s,
        thread_ops: total.thread_ops,
        bytes_written: sum.bytes_written,
        bytes_read: sum.bytes_read,
        calls: sum.calls,
        latency: Percentiles::of(&sum.all),
        steps: steps
            .map(|(name, latencies)| Step {
                name: (*name).into(),
                latency: Percentiles::of(latencies),
            })
            .collect(),
        observed,
        full_before,
        caches_dropped,
    }
}

/// The directory of a run, removed with all that is in it.
struct WorkDir(PathBuf);

impl WorkDir {
    fn new(parent: &Path) -> Result<Self> {
        let path = parent.join(format!("quayfs-bench.{}", std::process::id()));
        std::fs::create_dir(&path).map_err(Error::file(&path))?;
        Ok(Self(path))
    }

    fn remove(mut self) -> Result<()> {
        let path = std::mem::take(&mut self.0);
        std::fs::remove_dir_all(&path).map_err(Error::file(&path))
    }
}

impl Drop for WorkDir {
    fn drop(&mut self) {
        if !self.0.as_os_str().is_empty() {
            // The run has failed already, and with a better reason.
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}
