//! What was found, as it is stored and shown.

use super::recovery::{By, Recovery};
use super::table::{Comparison, Experiment, Place, Row, Variant};
use crate::args::Level;
use quayfs_bench::machine::Machine;
use quayfs_bench::report::{TargetReport, WorkloadReport};
use quayfs_bench::stats::Summary;
use quayfs_bench::table;
use quayfs_bench::workload::{Params, Workload};
use serde::{Deserialize, Serialize};
use std::fmt::Write;
use std::path::PathBuf;

/// Version of the format; one that means something else gets another.
pub const FORMAT: u32 = 1;

/// All of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Papers {
    /// Version of this format.
    pub papers_format: u32,
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
    /// Where the data of volumes was.
    pub data: Where,
    /// Where regions were, unless a variant has them on the disk.
    pub pmem: Where,
    /// What was measured.
    pub experiments: Vec<ExperimentReport>,
    /// Why it ended early, if it did.
    pub failure: Option<String>,
}

/// A place for files.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Where {
    /// The directory.
    pub path: PathBuf,
    /// Type of the file system there.
    pub fstype: String,
    /// What is mounted there.
    pub source: String,
    /// Bytes of each file.
    pub bytes: u64,
}

/// One paper.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExperimentReport {
    /// Name of the experiment.
    pub name: String,
    /// What is switched on and off.
    pub mechanism: String,
    /// What the paper found.
    pub paper: String,
    /// The machine that it found that on.
    #[serde(default)]
    pub machine: String,
    /// What was run.
    pub cells: Vec<Cell>,
    /// Recovery, if it was measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub recovery: Vec<Recovery>,
}

/// A workload with a number of threads, at one level.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// `ops` or `mount`.
    pub level: String,
    /// Whether reads of what the kernel's page cache would have stayed away from the operation layer.
    #[serde(default)]
    pub page_cache: bool,
    /// Mount options of all variants.
    pub options: String,
    /// The variants.
    pub variants: Vec<VariantReport>,
    /// What the workload found; its targets are the variants, in their order.
    pub workload: WorkloadReport,
    /// Ratios.
    pub comparisons: Vec<ComparisonReport>,
}

/// A way to mount.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VariantReport {
    /// Its name.
    pub name: String,
    /// Mount options beside those of the cell.
    pub options: String,
    /// Whether the region was on the disk, beside the data.
    pub region_on_disk: bool,
    /// Bytes of the region.
    pub pmem_bytes: u64,
    /// Staging buffers, if not as many as `mkfs` makes.
    pub buffers: Option<u32>,
    /// What it is, if it is no QuayFS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
}

/// Two variants.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ComparisonReport {
    /// With the mechanism.
    pub of: String,
    /// Without.
    pub to: String,
    /// What the ratio is of; above 1 the first is better.
    pub unit: String,
    /// Ratios of the same repetition.
    pub ratio: Option<Summary>,
    /// The paper's.
    pub paper: Option<String>,
    /// In what the two differ, if that is more than one mechanism.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub differ: Vec<String>,
    /// Where the two differ in the policy of checkpoints: how many blocks the first one swapped in, of so many that it
    /// wrote, in all repetitions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub swapped: Option<(u64, u64)>,
}

impl ComparisonReport {
    /// What is to be known beside the ratio; nothing for most.
    pub fn remarks(&self) -> Vec<String> {
        let mut all = Vec::new();
        if !self.differ.is_empty() {
            all.push(format!("differ in {}", self.differ.join(", ")));
        }
        match self.swapped {
            Some((_, 0)) => all.push("no block was written while it was measured".into()),
            Some((0, _)) => all.push(format!("no block of {} was swapped", self.of)),
            Some((n, of)) => all.push(format!("{n} of {of} blocks of {} were swapped", self.of)),
            None => {}
        }
        all
    }
}

impl ExperimentReport {
    /// One without cells.
    pub fn new(e: &Experiment) -> Self {
        Self {
            name: e.name.into(),
            mechanism: e.mechanism.into(),
            paper: e.paper.into(),
            machine: e.machine.into(),
            cells: Vec::new(),
            recovery: Vec::new(),
        }
    }
}

impl Cell {
    /// One without samples.
    pub fn new(
        (level, page_cache): (Level, bool),
        variants: &[&Variant],
        options: String,
        (workload, params): (&dyn Workload, &Params),
        pmem_size: u64,
    ) -> Self {
        let variant = |v: &&Variant| VariantReport {
            name: v.name.into(),
            options: v.options.into(),
            region_on_disk: v.place == Place::Disk,
            pmem_bytes: match v.place {
                Place::Nowhere | Place::DataAlone | Place::Ext4(_) => 0,
                Place::Pmem | Place::Disk => pmem_size * v.times,
            },
            buffers: v.buffers,
            kernel: match v.place {
                Place::Ext4(journal) => Some(journal.describe().into()),
                _ => None,
            },
        };
        let labels: Vec<String> = variants.iter().map(|v| v.name.into()).collect();
        let info = workload.info();
        let mounted = level == Level::Mount;
        Self {
            level: if mounted { "mount" } else { "ops" }.into(),
            page_cache: page_cache && !mounted,
            options,
            variants: variants.iter().map(variant).collect(),
            workload: WorkloadReport::new(info.name, info.about, params.clone(), &labels),
            comparisons: Vec::new(),
        }
    }

    /// The level, with what is above it.
    pub fn level_and_cache(&self) -> &str {
        match self.page_cache {
            true => "ops below a page cache",
            false => &self.level,
        }
    }

    /// Computes what follows from the samples.
    pub fn summarize(&mut self, row: &Row) {
        self.workload.summarize();
        let targets = &self.workload.targets;
        let both = |c: &&Comparison| {
            [c.of, c.to].map(|n| targets.iter().any(|t| t.label == n)) == [true; 2]
        };
        let compared = row.comparisons.iter().filter(both).map(|c| {
            let figures = |name: &str| -> Vec<f64> {
                let target = targets.iter().find(|t| t.label == name);
                let samples = target.map_or(&[][..], |t| &t.samples);
                let figure = |s| c.figure.of(s).unwrap_or(f64::NAN);
                samples.iter().map(figure).collect()
            };
            let side = |name| row.variants.iter().find(|v| v.name == name);
            let differ = match (side(c.of), side(c.to)) {
                (Some(of), Some(to)) => of.differences(to, row),
                _ => Vec::new(),
            };
            let counted = |counter: &str| -> u64 {
                let target = targets.iter().find(|t| t.label == c.of);
                let samples = target.map_or(&[][..], |t| &t.samples);
                let counters = samples.iter().map(|s| &s.observed.counters);
                counters.filter_map(|all| all.get(counter)).sum()
            };
            let rounds = differ.contains(&"checkpoint policy") && differ.len() == 1;
            ComparisonReport {
                of: c.of.into(),
                to: c.to.into(),
                unit: c.figure.unit(),
                ratio: Summary::of_ratios(&figures(c.of), &figures(c.to)),
                paper: c.paper.map(str::to_owned),
                swapped: rounds.then(|| (counted("blocks_swapped"), counted("blocks_written"))),
                differ: match differ.len() {
                    1 => Vec::new(),
                    _ => differ.into_iter().map(str::to_owned).collect(),
                },
            }
        });
        self.comparisons = compared.collect();
    }
}

impl ExperimentReport {
    /// What the paper found, and on what.
    pub fn found(&self) -> String {
        match self.machine.as_str() {
            "" => self.paper.clone(),
            machine => format!("{} ({machine})", self.paper),
        }
    }
}

impl Papers {
    /// What measured, where and on what, a line each.
    pub fn head(&self) -> String {
        let mut out = String::new();
        let m = &self.machine;
        let commit = self.commit.as_deref().unwrap_or("commit unknown");
        // Writing to a string does not fail.
        let _ = writeln!(
            out,
            "quayfs {} ({commit}), Linux {}, {} CPUs ({})",
            self.version, m.kernel, m.cpus, m.cpu
        );
        for (what, at) in [("data", &self.data), ("region", &self.pmem)] {
            let size = quayfs_options::format_size(at.bytes);
            let path = at.path.display();
            let _ = writeln!(
                out,
                "{what}: {size} on {path} ({}, {})",
                at.fstype, at.source
            );
        }
        for limit in &m.io_limits {
            let _ = writeln!(out, "disk limited: {limit}");
        }
        out
    }

    /// For readers.
    pub fn render(&self) -> String {
        let mut out = self.head();
        for e in &self.experiments {
            let _ = writeln!(out, "\n{}: {}\n  paper: {}", e.name, e.mechanism, e.found());
            for cell in &e.cells {
                cell.render(&mut out);
            }
            if !e.recovery.is_empty() {
                recovery(&mut out, &e.recovery);
            }
        }
        if let Some(why) = &self.failure {
            let _ = writeln!(out, "\nended early: {why}");
        }
        out
    }
}

impl Cell {
    fn render(&self, out: &mut String) {
        let level = self.level_and_cache().replacen("ops", "operation layer", 1);
        let _ = write!(out, "\n  {level}");
        if !self.options.is_empty() {
            let _ = write!(out, ", {}", self.options);
        }
        out.push_str(": ");
        out.push_str(table::section(&self.workload).trim_start());
        for (t, v) in self.workload.targets.iter().zip(&self.variants) {
            let place = match (&v.kernel, v.region_on_disk, v.pmem_bytes) {
                (Some(what), _, _) => what,
                (None, true, _) => "region on the disk",
                (None, false, 0) => "no volume",
                (None, false, _) => "",
            };
            let words = [v.options.clone(), place.into(), counted(t)];
            let words: Vec<String> = words.into_iter().filter(|w| !w.is_empty()).collect();
            if !words.is_empty() {
                let _ = writeln!(out, "    {}: {}", v.name, words.join("; "));
            }
        }
        for c in &self.comparisons {
            let ratio = c.ratio.map_or("no figure".to_owned(), |r| {
                format!("{:.2} ({:.2}..{:.2})", r.median, r.min, r.max)
            });
            let paper = c.paper.as_ref();
            let paper = paper.map(|p| format!("paper: {p}"));
            let more: String = paper
                .into_iter()
                .chain(c.remarks())
                .map(|r| format!("; {r}"))
                .collect();
            let _ = writeln!(out, "    {} : {} = {ratio} in {}{more}", c.of, c.to, c.unit);
        }
    }
}

/// Counters of waiting and of what was saved, for 1,000 operations, where there are any.
fn counted(t: &TargetReport) -> String {
    const COUNTERS: [&str; 13] = [
        "slot_waits",
        "log_waits",
        "range_waits",
        "commit_waits",
        "lane_waits",
        "central_waits",
        "credit_retries",
        "credit_wait_us",
        "blocks_absorbed",
        "blocks_read_ahead",
        "blocks_served_ahead",
        "device_flushes",
        "device_flush_us",
    ];
    let figures = t.figures();
    let ops = figures.ops;
    let mut words = Vec::new();
    for name in COUNTERS {
        let n = figures.counters.get(name).copied().unwrap_or(0);
        if n > 0 && ops > 0 {
            let rate = n as f64 * 1000.0 / ops as f64;
            words.push(format!("{name} {rate:.2}"));
        }
    }
    if words.is_empty() {
        String::new()
    } else {
        format!("in 1,000 operations {}", words.join(", "))
    }
}

fn recovery(out: &mut String, found: &[Recovery]) {
    let _ = writeln!(out, "\n  recovery, operation layer");
    let ms = |s: &Option<Summary>| s.map_or(f64::NAN, |s| s.median * 1e3);
    for r in found {
        let what = match r.by {
            By::Staged => String::new(),
            By::Files => format!("{} files, ", r.files),
            By::Data => format!(
                "{} of data device, ",
                quayfs_options::format_size(r.data_bytes)
            ),
        };
        let _ = writeln!(
            out,
            "    {what}{} staged, {} records: {:.1} ms to the first answer; {:.1} ms to write it back",
            quayfs_options::format_size(r.staged_bytes),
            r.records,
            ms(&r.recovery_s),
            ms(&r.write_back_s),
        );
    }
}
