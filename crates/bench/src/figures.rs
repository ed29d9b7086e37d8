//! What readers print of the repetitions of a target: a report can be kept without its samples, which are most of it.
//!
//! [`kept`] makes such a report of a stored one. Tables and pages ask for [`Figures`] alone, so they need no samples.

use crate::error::{Error, Result};
use crate::report::{Sample, TargetReport};
use crate::stats::{Percentiles, Summary};
use crate::table::MOUNT_FACTS;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// Medians and extremes over the repetitions that have the figure.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Figures {
    /// Number of repetitions.
    pub repetitions: usize,
    /// Operations of all of them.
    pub ops: u64,
    /// Whether caches were dropped before them: each answer once.
    pub caches_dropped: Vec<bool>,
    /// Whether one of them left something to write that was not on the device when that was asked.
    pub unsettled_after: bool,
    /// Whether one of them began with staged data of before.
    pub unsettled_before: bool,
    /// Bytes moved per second, read and written.
    pub bytes_per_s: Option<Summary>,
    /// [`Sample::messages_per_op`].
    pub messages_per_op: Option<Summary>,
    /// [`Sample::daemon_us_per_op`].
    pub daemon_us_per_op: Option<Summary>,
    /// [`Sample::machine_us_per_op`].
    pub machine_us_per_op: Option<Summary>,
    /// [`Sample::device_bytes_per_byte`].
    pub device_bytes_per_byte: Option<Summary>,
    /// [`Sample::writes_per_op`].
    pub writes_per_op: Option<Summary>,
    /// [`Sample::flushes_per_op`].
    pub flushes_per_op: Option<Summary>,
    /// How often the staging area would have been filled.
    pub staging_wraps: Option<Summary>,
    /// Latencies of operations, where there are any.
    pub latency: Option<Latency>,
    /// Latencies of the steps that were taken, in the order in which they are named.
    pub steps: Vec<StepLatency>,
    /// Sums of the counters of a QuayFS daemon.
    pub counters: BTreeMap<String, u64>,
}

/// Medians of percentiles, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Half are at most this.
    pub p50: f64,
    /// 90 % are.
    pub p90: f64,
    /// 99 % are.
    pub p99: f64,
    /// 99.9 % are.
    pub p999: f64,
    /// The longest.
    pub max: f64,
}

/// Those of one kind of step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepLatency {
    /// Its name.
    pub name: String,
    /// The latencies.
    pub latency: Latency,
}

impl Latency {
    /// Of the repetitions that have any latency.
    fn of<'s>(all: impl Iterator<Item = &'s Percentiles> + Clone) -> Option<Self> {
        let us = |at: fn(&Percentiles) -> u64| {
            let some = all.clone().filter(|p| p.count > 0);
            Summary::of(some.map(|p| at(p) as f64 / 1000.0)).map(|s| s.median)
        };
        Some(Self {
            p50: us(|p| p.p50)?,
            p90: us(|p| p.p90)?,
            p99: us(|p| p.p99)?,
            p999: us(|p| p.p999)?,
            max: us(|p| p.max)?,
        })
    }
}

impl Figures {
    /// Of these repetitions.
    pub fn of(samples: &[Sample]) -> Self {
        let of =
            |figure: fn(&Sample) -> Option<f64>| Summary::of(samples.iter().filter_map(figure));
        let mut all = Self {
            repetitions: samples.len(),
            ops: samples.iter().map(|s| s.ops).sum(),
            unsettled_after: samples.iter().any(|s| s.observed.settled == [true, false]),
            unsettled_before: samples.iter().any(|s| !s.observed.settled[0]),
            bytes_per_s: of(|s| Some(s.bytes_per_s())),
            messages_per_op: of(Sample::messages_per_op),
            daemon_us_per_op: of(Sample::daemon_us_per_op),
            machine_us_per_op: of(Sample::machine_us_per_op),
            device_bytes_per_byte: of(Sample::device_bytes_per_byte),
            writes_per_op: of(Sample::writes_per_op),
            flushes_per_op: of(Sample::flushes_per_op),
            staging_wraps: of(|s| s.observed.staging_wraps),
            latency: Latency::of(samples.iter().map(|s| &s.latency)),
            steps: steps(samples),
            ..Self::default()
        };
        for s in samples {
            if !all.caches_dropped.contains(&s.caches_dropped) {
                all.caches_dropped.push(s.caches_dropped);
            }
            for (name, n) in &s.observed.counters {
                *all.counters.entry(name.clone()).or_default() += n;
            }
        }
        all
    }

    /// With nine digits of what three are shown of. Latencies have few, and may lie just between two that are shown.
    fn rounded(mut self) -> Self {
        let nine = |f: &mut f64| *f = format!("{f:.8e}").parse().unwrap_or(*f);
        let summaries = [
            &mut self.bytes_per_s,
            &mut self.messages_per_op,
            &mut self.daemon_us_per_op,
            &mut self.machine_us_per_op,
            &mut self.device_bytes_per_byte,
            &mut self.writes_per_op,
            &mut self.flushes_per_op,
            &mut self.staging_wraps,
        ];
        for s in summaries.into_iter().flatten() {
            [&mut s.median, &mut s.min, &mut s.max]
                .into_iter()
                .for_each(nine);
        }
        self
    }
}

fn steps(samples: &[Sample]) -> Vec<StepLatency> {
    let taken = samples.iter().flat_map(|s| &s.steps);
    let mut names: Vec<&str> = Vec::new();
    for step in taken.filter(|s| s.latency.count > 0) {
        if !names.contains(&&*step.name) {
            names.push(&step.name);
        }
    }
    let figures = names.into_iter().filter_map(|name| {
        let found = samples
            .iter()
            .filter_map(|s| s.steps.iter().find(|s| s.name == name));
        Some(StepLatency {
            name: name.into(),
            latency: Latency::of(found.map(|s| &s.latency))?,
        })
    });
    figures.collect()
}

/// What `quayfs-bench run` or `quayfs-bench papers` stored, with the figures in place of the samples, and of what mounts said of
/// themselves only what is shown. What has no samples stays as it is.
///
/// # Errors
/// It is no JSON, or has samples that cannot be read.
pub fn kept(path: &Path) -> Result<String> {
    let text = std::fs::read_to_string(path).map_err(Error::file(path))?;
    let bad = |why: serde_json::Error| Error::Report {
        path: path.into(),
        why: why.to_string(),
    };
    let mut value: Value = serde_json::from_str(&text).map_err(bad)?;
    if !shorten(&mut value).map_err(bad)? {
        return Ok(text);
    }
    let mut out = String::new();
    write(&value, 0, &mut out);
    Ok(out + "\n")
}

/// Returns whether there was anything to shorten.
fn shorten(value: &mut Value) -> serde_json::Result<bool> {
    let mut any = false;
    if let Value::Object(fields) = &*value
        && fields.contains_key("samples")
    {
        let mut target: TargetReport = serde_json::from_value(value.clone())?;
        if !target.samples.is_empty() {
            target.kept = Some(Figures::of(&target.samples).rounded());
            target.samples.clear();
            *value = without_nothing(serde_json::to_value(target)?);
            return Ok(true);
        }
    }
    match value {
        Value::Object(fields) => {
            if let Some(Value::Object(status)) = fields.get_mut("status") {
                let all = status.len();
                status.retain(|name, _| MOUNT_FACTS.contains(&&**name));
                any |= status.len() < all;
            }
            for inner in fields.values_mut() {
                any |= shorten(inner)?;
            }
        }
        Value::Array(all) => {
            for inner in all {
                any |= shorten(inner)?;
            }
        }
        _ => {}
    }
    Ok(any)
}

/// Figures that a target does not have are left out.
fn without_nothing(mut target: Value) -> Value {
    if let Some(Value::Object(kept)) = target.get_mut("kept") {
        kept.retain(|_, value| !value.is_null());
    }
    target
}

/// Characters of a line.
const LINE: usize = 120;

/// What fits is one line, and what has nothing in it that could be broken.
fn write(value: &Value, indent: usize, out: &mut String) {
    let line = value.to_string();
    let whole = |v: &Value| !v.is_object() && !v.is_array();
    let flat = match value {
        Value::Object(all) => all.values().all(whole),
        Value::Array(all) => all.iter().all(whole),
        _ => true,
    };
    if flat || indent + line.len() <= LINE {
        return out.push_str(&line);
    }
    let mut items = |(begin, end), items: Vec<(String, &Value)>| {
        let mut next = begin;
        for (name, item) in items {
            out.push_str(next);
            out.push('\n');
            out.push_str(&" ".repeat(indent + 1));
            out.push_str(&name);
            write(item, indent + 1, out);
            next = ",";
        }
        out.push('\n');
        out.push_str(&" ".repeat(indent));
        out.push_str(end);
    };
    match value {
        Value::Object(all) => {
            let named = all
                .iter()
                .map(|(k, v)| (format!("{}:", Value::from(&**k)), v));
            items(("{", "}"), named.collect());
        }
        Value::Array(all) => {
            let plain = all.iter().map(|v| (String::new(), v));
            items(("[", "]"), plain.collect());
        }
        _ => {}
    }
}
