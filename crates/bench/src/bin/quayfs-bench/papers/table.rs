//! What the table of experiments is made of.

use quayfs_options::MountOptions;

use super::kernel::JournalOn;
use quayfs_bench::report::Sample;

/// Where the region of a variant lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Where `--pmem` says.
    Pmem,
    /// Beside the data, on the disk: backend `file`.
    Disk,
    /// There is no volume: names and sizes in memory, which show what the workload itself takes.
    Nowhere,
    /// As [`Place::Nowhere`], but data is written to the device and flushed there: what is left where nodes
    /// cost nothing.
    DataAlone,
    /// There is no volume but ext4 of the kernel, which is mounted with the variant's options, with its journal
    /// there.
    Ext4(JournalOn),
}

/// What a variant writes to the data device. What is read from there costs what it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writes {
    /// What it has to.
    Real,
    /// Nothing.
    Free,
    /// As many blocks: long runs in one piece, one after the other, short ones in their places.
    Long,
}

/// A way to mount.
#[derive(Clone, Copy, Debug)]
pub struct Variant {
    /// What tables call it.
    pub name: &'static str,
    /// Mount options beside those of the cell.
    pub options: &'static str,
    /// Where the region lies.
    pub place: Place,
    /// The region is so many times as large as `--pmem-size` says.
    pub times: u64,
    /// Staging buffers of the volume; without it as many as `mkfs` makes.
    pub buffers: Option<u32>,
    /// What writing to the data device costs.
    pub writes: Writes,
}

impl Variant {
    /// Whether this can be mounted, and is not only there to show what cannot be exceeded.
    pub fn is_real(&self) -> bool {
        matches!(self.place, Place::Pmem | Place::Disk | Place::Ext4(_))
            && self.writes == Writes::Real
    }

    /// Whether there is a volume.
    pub fn is_volume(&self) -> bool {
        matches!(self.place, Place::Pmem | Place::Disk)
    }

    /// In what this differs from another variant of the same row, a word or two for each mechanism. A buffer that
    /// has all of the staging area goes with the one lock above it.
    pub fn differences(&self, other: &Self, row: &Row) -> Vec<&'static str> {
        if !self.is_volume() || !other.is_volume() {
            return if self.place == other.place {
                Vec::new()
            } else {
                vec!["the file system"]
            };
        }
        // Options are checked by a test.
        let options = |v: &Self| {
            let both = [row.options, v.options];
            let both: Vec<_> = both.into_iter().filter(|o| !o.is_empty()).collect();
            MountOptions::parse(&both).unwrap_or_default()
        };
        let (a, b) = (options(self), options(other));
        let (x, y) = (a.ablation, b.ablation);
        let staging = x.central_staging != y.central_staging;
        [
            ("staging", staging),
            ("buffers", self.buffers != other.buffers && !staging),
            (
                "checkpoint policy",
                a.checkpoint_policy() != b.checkpoint_policy(),
            ),
            ("checkpoint workers", x.one_worker != y.one_worker),
            ("data mode", a.data != b.data),
            ("durability", a.durability != b.durability),
            ("commit interval", a.commit_seconds != b.commit_seconds),
            ("locking", x.file_locking != y.file_locking),
            ("node log", x.node_log_on_device != y.node_log_on_device),
            ("messages", x.all_messages != y.all_messages),
            ("place of the region", self.place != other.place),
            ("size of the region", self.times != other.times),
            ("cost of writing", self.writes != other.writes),
        ]
        .into_iter()
        .filter_map(|(what, differs)| differs.then_some(what))
        .collect()
    }
}

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    /// Operations per second.
    Rate,
    /// Median latency of this step of an operation.
    Latency(&'static str),
    /// Bytes written to the data device for each byte acknowledged.
    DeviceBytes,
}

impl Figure {
    /// What the ratio is of.
    pub fn unit(self) -> String {
        match self {
            Self::Rate => "operations per second".into(),
            Self::Latency(step) => format!("median latency of {step}, inverse"),
            Self::DeviceBytes => "bytes to the device per byte acknowledged, inverse".into(),
        }
    }

    /// Greater is better.
    pub fn of(self, sample: &Sample) -> Option<f64> {
        let inverse = |n: f64| (n > 0.0).then(|| 1.0 / n);
        match self {
            Self::Rate => Some(sample.ops_per_s),
            Self::Latency(step) => {
                let step = sample.steps.iter().find(|s| s.name == step)?;
                inverse(step.latency.p50 as f64)
            }
            Self::DeviceBytes => inverse(sample.device_bytes_per_byte()?),
        }
    }
}

/// Two variants and what the paper says about such two.
#[derive(Clone, Copy, Debug)]
pub struct Comparison {
    /// With the mechanism.
    pub of: &'static str,
    /// Without.
    pub to: &'static str,
    /// What is compared.
    pub figure: Figure,
    /// The ratio that the paper has for such a workload, if it has one.
    pub paper: Option<&'static str>,
}

/// A workload on the same variants, with different numbers of threads.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The workload.
    pub workload: &'static str,
    /// Numbers of threads.
    pub threads: &'static [u32],
    /// Mount options of all variants.
    pub options: &'static str,
    /// Number of files, instead of the workload's.
    pub files: Option<u64>,
    /// Bytes of a file, instead of the workload's.
    pub file_bytes: Option<u64>,
    /// On the operation layer what the kernel's page cache would have is read from there.
    pub page_cache: bool,
    /// It is run on mounts only, with the data of each on a loop device over a file of the same disk.
    pub on_loops: bool,
    /// Seconds below which it shows nothing.
    pub least_seconds: f64,
    /// Ways to mount; they take turns in this order.
    pub variants: &'static [Variant],
    /// What is compared.
    pub comparisons: &'static [Comparison],
}

/// A paper's mechanism.
#[derive(Clone, Copy, Debug)]
pub struct Experiment {
    /// Its name on the command line.
    pub name: &'static str,
    /// What is switched on and off.
    pub mechanism: &'static str,
    /// What the paper found, in which unit of work.
    pub paper: &'static str,
    /// The machine that it found that on.
    pub machine: &'static str,
    /// What is run.
    pub rows: &'static [Row],
    /// Whether the time that recovery takes is measured too.
    pub recovery: bool,
}

pub const fn on_pmem(name: &'static str, options: &'static str) -> Variant {
    Variant {
        name,
        options,
        place: Place::Pmem,
        times: 1,
        buffers: None,
        writes: Writes::Real,
    }
}

pub const fn on_disk(name: &'static str, options: &'static str) -> Variant {
    Variant {
        name,
        options,
        place: Place::Disk,
        times: 1,
        buffers: None,
        writes: Writes::Real,
    }
}

pub const fn ext4(name: &'static str, options: &'static str, journal: JournalOn) -> Variant {
    Variant {
        place: Place::Ext4(journal),
        ..on_pmem(name, options)
    }
}

pub const fn larger(name: &'static str, times: u64) -> Variant {
    Variant {
        name,
        options: "",
        place: Place::Pmem,
        times,
        buffers: None,
        writes: Writes::Real,
    }
}

pub const fn rate(of: &'static str, to: &'static str, paper: Option<&'static str>) -> Comparison {
    Comparison {
        of,
        to,
        figure: Figure::Rate,
        paper,
    }
}

pub const fn device_bytes(of: &'static str, to: &'static str) -> Comparison {
    Comparison {
        of,
        to,
        figure: Figure::DeviceBytes,
        paper: None,
    }
}

pub const fn fsync_latency(
    of: &'static str,
    to: &'static str,
    paper: Option<&'static str>,
) -> Comparison {
    Comparison {
        of,
        to,
        figure: Figure::Latency("fsync"),
        paper,
    }
}

/// A row that takes what the workload says.
pub const PLAIN: Row = Row {
    workload: "",
    threads: &[1],
    options: "",
    files: None,
    file_bytes: None,
    page_cache: true,
    on_loops: false,
    least_seconds: 0.0,
    variants: &[],
    comparisons: &[],
};
