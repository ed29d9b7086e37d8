//! What a benchmark found, as it is stored.

use crate::error::{Error, Result};
use crate::figures::Figures;
use crate::machine::Machine;
use crate::meter::Calls;
use crate::observe::Observed;
use crate::stats::{Percentiles, Summary};
use crate::target::Facts;
use crate::workload::Params;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::path::Path;

/// Version of the format; one that means something else gets another.
const FORMAT: u32 = 1;

/// All of a benchmark.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Version of this format.
    pub format: u32,
    /// Version of the program.
    pub version: String,
    /// Its commit, if known.
    pub commit: Option<String>,
    /// Its command line.
    pub command: Vec<String>,
    /// When it began, in seconds since 1970.
    pub began: u64,
    /// The machine.
    pub machine: Machine,
    /// What was compared; the first is the base of ratios.
    pub targets: Vec<Facts>,
    /// What each workload found.
    pub workloads: Vec<WorkloadReport>,
    /// Why it ended early, if it did.
    pub failure: Option<String>,
}

/// What a workload found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkloadReport {
    /// Its name.
    pub name: String,
    /// What one operation is.
    pub about: String,
    /// Parameters.
    pub params: Params,
    /// Figures by target, in their order.
    pub targets: Vec<TargetReport>,
}

/// What a workload found on one target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TargetReport {
    /// The target's label.
    pub label: String,
    /// Operations per second over all repetitions.
    pub ops_per_s: Option<Summary>,
    /// Ratios to the first target in the same repetition.
    pub ratio: Option<Summary>,
    /// Every repetition, unless only their figures are kept.
    pub samples: Vec<Sample>,
    /// The figures of repetitions that are not kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<Figures>,
}

/// What one run found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Number of the repetition, from 0.
    pub repetition: u32,
    /// When it began, in seconds since the beginning of the benchmark.
    pub began: f64,
    /// Measured seconds.
    pub seconds: f64,
    /// Operations.
    pub ops: u64,
    /// Operations per second.
    pub ops_per_s: f64,
    /// Operations of each thread.
    pub thread_ops: Vec<u64>,
    /// Bytes that writes acknowledged.
    pub bytes_written: u64,
    /// Bytes that reads returned.
    pub bytes_read: u64,
    /// System calls.
    pub calls: Calls,
    /// Latencies of operations, in nanoseconds.
    pub latency: Percentiles,
    /// Latencies of steps.
    #[serde(default)]
    pub steps: Vec<Step>,
    /// What others counted meanwhile.
    pub observed: Observed,
    /// Share of the file system in use before, from 0 to 1.
    pub full_before: f64,
    /// Whether the kernel's caches were dropped before.
    pub caches_dropped: bool,
}

/// Latencies of one kind of step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// Its name.
    pub name: String,
    /// Nanoseconds.
    pub latency: Percentiles,
}

impl Sample {
    /// `total` for each operation.
    fn each(&self, total: f64) -> Option<f64> {
        (self.ops > 0).then(|| total / self.ops as f64)
    }

    /// FUSE messages per operation.
    pub fn messages_per_op(&self) -> Option<f64> {
        self.each(self.observed.messages? as f64)
    }

    /// Microseconds of the daemon's CPU per operation.
    pub fn daemon_us_per_op(&self) -> Option<f64> {
        self.each(self.observed.daemon_cpu_s? * 1e6)
    }

    /// Microseconds of the whole machine's CPU per operation.
    pub fn machine_us_per_op(&self) -> Option<f64> {
        self.each(self.observed.machine_cpu_s * 1e6)
    }

    /// Bytes written to the device per byte that a write acknowledged.
    pub fn device_bytes_per_byte(&self) -> Option<f64> {
        let written = self.observed.device_written?;
        (self.bytes_written > 0).then(|| written as f64 / self.bytes_written as f64)
    }

    /// Write requests to the block device per operation, those for other reasons included.
    pub fn writes_per_op(&self) -> Option<f64> {
        self.each(self.observed.device_writes? as f64)
    }

    /// Flushes of the block device per operation, those for other reasons included.
    pub fn flushes_per_op(&self) -> Option<f64> {
        self.each(self.observed.device_flushes? as f64)
    }

    /// Bytes moved per second, read and written.
    pub fn bytes_per_s(&self) -> f64 {
        (self.bytes_read + self.bytes_written) as f64 / self.seconds
    }
}

impl TargetReport {
    /// What there is to print of the repetitions, whether they are kept or not.
    pub fn figures(&self) -> Cow<'_, Figures> {
        match &self.kept {
            Some(kept) => Cow::Borrowed(kept),
            None => Cow::Owned(Figures::of(&self.samples)),
        }
    }

    /// Number of repetitions.
    pub fn repetitions(&self) -> usize {
        self.kept
            .as_ref()
            .map_or(self.samples.len(), |k| k.repetitions)
    }
}

impl WorkloadReport {
    /// One without samples.
    pub fn new(name: &str, about: &str, params: Params, labels: &[String]) -> Self {
        Self {
            name: name.into(),
            about: about.into(),
            params,
            targets: labels
                .iter()
                .map(|label| TargetReport {
                    label: label.clone(),
                    ops_per_s: None,
                    ratio: None,
                    samples: Vec::new(),
                    kept: None,
                })
                .collect(),
        }
    }

    /// Computes the summaries of the samples that are there.
    pub fn summarize(&mut self) {
        let rates =
            |t: &TargetReport| -> Vec<f64> { t.samples.iter().map(|s| s.ops_per_s).collect() };
        let base = self.targets.first().map(rates).unwrap_or_default();
        for t in &mut self.targets {
            let own = rates(t);
            t.ops_per_s = Summary::of(own.iter().copied());
            t.ratio = Summary::of_ratios(&own, &base);
        }
    }
}

impl Report {
    /// An empty one that begins now.
    pub fn new(commit: Option<String>, command: Vec<String>, targets: Vec<Facts>) -> Self {
        let began = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |d| d.as_secs());
        Self {
            format: FORMAT,
            version: env!("CARGO_PKG_VERSION").into(),
            commit,
            command,
            began,
            machine: Machine::this(),
            targets,
            workloads: Vec::new(),
            failure: None,
        }
    }

    /// Stores it, as JSON of many lines.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn store(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self)
            .map_err(std::io::Error::other)
            .map_err(Error::file(path))?;
        std::fs::write(path, text + "\n").map_err(Error::file(path))
    }

    /// Reads a stored one.
    ///
    /// # Errors
    /// The file is not there, or is something else.
    pub fn load(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).map_err(Error::file(path))?;
        let bad = |why: String| Error::Report {
            path: path.into(),
            why,
        };
        let value: serde_json::Value =
            serde_json::from_str(&text).map_err(|e| bad(e.to_string()))?;
        let format = value["format"].as_u64();
        if format != Some(u64::from(FORMAT)) {
            return Err(bad(match format {
                Some(n) => format!("format {n}, this program reads {FORMAT}"),
                None => "it names no format".into(),
            }));
        }
        serde_json::from_value(value).map_err(|e| bad(e.to_string()))
    }
}
