//! All that a mount counts, by names that other programs know it by.

use quayfs_fuse::{CLASSES, bound};
use quayfs_layout::BLOCK;
use quayfs_store::metrics::COUNTERS;
use serde_json::Value;

/// What a family of numbers is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It only grows, while the daemon lives.
    Counter,
    /// It is what it is now.
    Gauge,
    /// Words, as labels of the number 1.
    Info,
    /// How many were at most so large.
    Histogram,
}

impl Kind {
    /// Its name in the text format.
    pub fn word(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Info => "info",
            Self::Histogram => "histogram",
        }
    }
}

/// Numbers of one kind.
#[derive(Clone, Debug, PartialEq)]
pub struct Family {
    /// Its name; it ends in the unit, if there is one.
    pub name: String,
    /// What it is.
    pub kind: Kind,
    /// `bytes` or `seconds`; empty if things are counted.
    pub unit: &'static str,
    /// What it says, one sentence.
    pub help: String,
    /// The numbers.
    pub samples: Vec<Sample>,
}

/// A number.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// What follows the name of the family.
    pub suffix: &'static str,
    /// What tells it from the others.
    pub labels: Vec<(&'static str, String)>,
    /// The number.
    pub value: f64,
}

/// A number that a status has under a key.
struct Plain {
    name: &'static str,
    kind: Kind,
    unit: &'static str,
    /// Names of fields, with points between them.
    key: &'static str,
    /// What it is multiplied by.
    scale: f64,
    help: &'static str,
}

macro_rules! plain {
    ($($kind:ident $name:ident $unit:literal: $key:literal * $scale:expr, $help:literal;)+) => {
        const PLAIN: &[Plain] = &[$(Plain {
            name: stringify!($name),
            kind: Kind::$kind,
            unit: $unit,
            key: $key,
            scale: $scale,
            help: $help,
        },)+];
    };
}

const B: f64 = BLOCK as f64;
const MS: f64 = 0.001;

plain! {
    Gauge up "": "up" * 1.0, "1 if the daemon answers; of one that does not, only what is known without it is here";
    Gauge data_size "bytes": "blocks" * B, "Room that files can have";
    Gauge data_free "bytes": "blocks_free" * B, "Room that is free";
    Gauge data_pending "bytes": "blocks_pending" * B, "Room that was freed and cannot be used yet";
    Gauge inodes "": "files" * 1.0, "Inodes in use and still possible";
    Gauge inodes_free "": "files_free" * 1.0, "Inodes that can still be created";
    Gauge region_size "bytes": "pmem_bytes" * 1.0, "Length of the pmem region";
    Gauge region_memory "bytes": "pmem_memory_bytes" * 1.0, "Pages of the region in memory of the daemon, on a disk";
    Gauge staging_size "bytes": "slots" * B, "All staging slots";
    Gauge staging_used "bytes": "slots_used" * B, "Staging slots in use";
    Gauge staged "bytes": "staged_blocks" * B, "Blocks whose newest version is not on the data device yet";
    Gauge metadata_size "bytes": "node_pages" * B, "All node pages";
    Gauge metadata_used "bytes": "node_pages_used" * B, "Node pages in use or promised";
    Gauge log_live "bytes": "live_log_bytes" * 1.0, "Log that recovery would read";
    Gauge log_live_records "": "live_records" * 1.0, "Records that recovery would replay";
    Gauge cached_inodes "": "cached_inodes" * 1.0, "Inodes in DRAM";
    Gauge cached_pages "": "cached_pages" * 1.0, "Node pages in DRAM";
    Gauge commit_age "seconds": "commit_age_ms" * MS, "Time since the last commit";
    Gauge device_silent "seconds": "device_silent_ms" * MS, "Time in which the data device has answered nothing, though it was asked";
    Gauge uptime "seconds": "uptime_ms" * MS, "Time that this daemon has served";
    Gauge read_only "": "read_only" * 1.0, "1 if nothing may be changed";
    Gauge scrub_findings "": "scrub.findings" * 1.0, "Damaged blocks and pages that the last scrub has found";
    Counter restarts "": "restarts" * 1.0, "Daemons of this mount that have died or were replaced";
    Counter damage_met "": "damage_met" * 1.0, "Times that operations met damaged metadata";
}

/// All families that a status has numbers for.
pub fn families(status: &Value) -> Vec<Family> {
    let mut all = vec![build(status)];
    all.extend(PLAIN.iter().map(|p| plain(p, status)));
    all.extend(COUNTERS.iter().map(|c| counter(c, &status["counters"])));
    all.push(messages(&status["messages"]));
    all.push(latencies(&status["latencies"]));
    all
}

fn full_name(name: &str, unit: &str) -> String {
    match unit {
        "" => format!("quayfs_{name}"),
        unit => format!("quayfs_{name}_{unit}"),
    }
}

fn at<'v>(status: &'v Value, key: &str) -> &'v Value {
    key.split('.').fold(status, |value, name| &value[name])
}

fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Bool(yes) => Some(f64::from(u8::from(*yes))),
        value => value.as_f64(),
    }
}

fn suffix(kind: Kind) -> &'static str {
    match kind {
        Kind::Counter => "_total",
        Kind::Info => "_info",
        Kind::Gauge | Kind::Histogram => "",
    }
}

fn plain(p: &Plain, status: &Value) -> Family {
    let sample = |n: f64| Sample {
        suffix: suffix(p.kind),
        labels: Vec::new(),
        value: n * p.scale,
    };
    Family {
        name: full_name(p.name, p.unit),
        kind: p.kind,
        unit: p.unit,
        help: p.help.into(),
        samples: number(at(status, p.key)).map(sample).into_iter().collect(),
    }
}

fn counter((name, help): &(&'static str, &'static str), counters: &Value) -> Family {
    let (base, unit, scale) = match (name.strip_prefix("bytes_"), name.strip_suffix("_us")) {
        (Some(base), _) => (base, "bytes", 1.0),
        (_, Some(base)) => (base, "seconds", 1e-6),
        _ => (*name, "", 1.0),
    };
    // What the code calls microseconds is told in seconds.
    let help = help.trim().trim_end_matches('.');
    let help = help.replace("Microseconds", "Time");
    let sample = |n: f64| Sample {
        suffix: "_total",
        labels: Vec::new(),
        value: n * scale,
    };
    Family {
        name: full_name(base, unit),
        kind: Kind::Counter,
        unit,
        help,
        samples: number(&counters[*name]).map(sample).into_iter().collect(),
    }
}

fn build(status: &Value) -> Family {
    const WORDS: [&str; 7] = [
        "version",
        "backend",
        "durability",
        "transport",
        "uuid",
        "label",
        "options",
    ];
    let words = WORDS
        .iter()
        .filter_map(|w| Some((*w, status[*w].as_str()?.to_string())));
    Family {
        name: "quayfs_mount".into(),
        kind: Kind::Info,
        unit: "",
        help: "What is mounted, how, and by which version, as labels".into(),
        samples: vec![Sample {
            suffix: "_info",
            labels: words.collect(),
            value: 1.0,
        }],
    }
}

fn messages(messages: &Value) -> Family {
    let each = messages.as_object().into_iter().flatten();
    let sample = |(kind, n): (&String, &Value)| {
        Some(Sample {
            suffix: "_total",
            labels: vec![("kind", kind.clone())],
            value: n.as_f64()?,
        })
    };
    Family {
        name: "quayfs_messages".into(),
        kind: Kind::Counter,
        unit: "",
        help: "Messages of the kernel, by kind".into(),
        samples: each.filter_map(sample).collect(),
    }
}

fn latencies(all: &Value) -> Family {
    let mut samples = Vec::new();
    for (kind, one) in all.as_object().into_iter().flatten() {
        let classes = one["classes"]
            .as_array()
            .map(Vec::as_slice)
            .unwrap_or_default();
        let mut sum = 0;
        for class in 0..CLASSES {
            sum += classes
                .get(class)
                .and_then(Value::as_u64)
                .unwrap_or_default();
            let most = bound(class).map_or("+Inf".into(), |t| t.as_secs_f64().to_string());
            samples.push(Sample {
                suffix: "_bucket",
                labels: vec![("kind", kind.clone()), ("le", most)],
                value: sum as f64,
            });
        }
        let seconds = one["nanos"].as_f64().unwrap_or_default() * 1e-9;
        for (suffix, value) in [("_count", sum as f64), ("_sum", seconds)] {
            let labels = vec![("kind", kind.clone())];
            samples.push(Sample {
                suffix,
                labels,
                value,
            });
        }
    }
    Family {
        name: "quayfs_request_seconds".into(),
        kind: Kind::Histogram,
        unit: "seconds",
        help: "Time from a request being read to its answer, by kind".into(),
        samples,
    }
}
