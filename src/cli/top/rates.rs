//! What has happened between two looks at a mount.

use super::device::Disk;
use crate::cli::units::{percent, span};
use quayfs_fuse::{CLASSES, bound};
use quayfs_layout::BLOCK;
use quayfs_options::format_size;
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::Duration;

/// A mount at one moment.
#[derive(Clone, Debug)]
pub struct Look {
    /// The moment, by any clock.
    pub at: Duration,
    /// What the daemon said.
    pub status: Value,
    /// What the disk below the data has done, if it is one.
    pub disk: Option<Disk>,
}

/// Requests of one kind.
#[derive(Clone, Debug, PartialEq)]
pub struct Kind {
    /// What they ask for.
    pub name: String,
    /// How many in a second.
    pub rate: f64,
    /// How long they took on average.
    pub mean: Duration,
    /// 99 of 100 took no longer than this; none if that is beyond what is counted.
    pub most: Option<Duration>,
}

/// Requests of one task.
#[derive(Clone, Debug, PartialEq)]
pub struct Task {
    /// Its number.
    pub number: u32,
    /// How many in a second.
    pub rate: f64,
}

/// What is shown.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rates {
    /// Requests by kind, the most frequent first.
    pub kinds: Vec<Kind>,
    /// Who makes them, the busiest first.
    pub tasks: Vec<Task>,
    /// Other things: a name, and what there is to say.
    pub facts: Vec<(&'static str, String)>,
}

/// Two looks, of which `new` is the later one.
struct Between<'a> {
    old: &'a Look,
    new: &'a Look,
    seconds: f64,
}

/// What has happened between them.
pub fn rates(old: &Look, new: &Look) -> Rates {
    let between = between(old, new);
    Rates {
        kinds: between.kinds(),
        tasks: between.tasks(),
        facts: between.facts(),
    }
}

/// What the disk has done between them, whatever the daemon says.
pub fn disk(old: &Look, new: &Look) -> Vec<(&'static str, String)> {
    between(old, new).disk()
}

fn between<'a>(old: &'a Look, new: &'a Look) -> Between<'a> {
    let seconds = new.at.saturating_sub(old.at).as_secs_f64().max(1e-3);
    Between { old, new, seconds }
}

/// What a number has grown by. One that is smaller than before belongs to another daemon, and has grown from 0.
fn grown(old: &Value, new: &Value) -> u64 {
    let (old, new) = (old.as_u64().unwrap_or(0), new.as_u64().unwrap_or(0));
    if new < old { new } else { new - old }
}

impl Between<'_> {
    fn counted(&self, name: &str) -> u64 {
        let of = |look: &Look| look.status["counters"][name].clone();
        grown(&of(self.old), &of(self.new))
    }

    fn rate(&self, n: u64) -> f64 {
        n as f64 / self.seconds
    }

    fn per_second(&self, name: &str) -> String {
        format!("{}/s", number(self.rate(self.counted(name))))
    }

    fn bytes(&self, n: u64) -> String {
        format!("{}/s", format_size(self.rate(n) as u64))
    }

    fn blocks(&self, name: &str) -> String {
        self.bytes(self.counted(name) * BLOCK as u64)
    }

    fn kinds(&self) -> Vec<Kind> {
        let mut kinds = Vec::new();
        let all = self.new.status["messages"].as_object();
        for (name, n) in all.into_iter().flatten() {
            let n = grown(&self.old.status["messages"][name], n);
            if n == 0 {
                continue;
            }
            let (mean, most) = self.latency(name);
            kinds.push(Kind {
                name: name.clone(),
                rate: self.rate(n),
                mean,
                most,
            });
        }
        kinds.sort_by(|a, b| b.rate.total_cmp(&a.rate));
        kinds
    }

    fn latency(&self, kind: &str) -> (Duration, Option<Duration>) {
        let of = |look: &Look| look.status["latencies"][kind].clone();
        let (old, new) = (of(self.old), of(self.new));
        let classes: [u64; CLASSES] =
            std::array::from_fn(|class| grown(&old["classes"][class], &new["classes"][class]));
        let total: u64 = classes.iter().sum();
        let nanos = grown(&old["nanos"], &new["nanos"]);
        let mean = Duration::from_nanos(nanos / total.max(1));
        let mut sum = 0;
        let most = classes.iter().position(|n| {
            sum += n;
            sum * 100 >= total * 99
        });
        (mean, most.and_then(bound))
    }

    fn tasks(&self) -> Vec<Task> {
        let all = self.new.status["tasks"].as_object();
        let task = |(number, n): (&String, &Value)| {
            let n = grown(&self.old.status["tasks"][number], n);
            Some(Task {
                number: number.parse().ok()?,
                rate: self.rate(n),
            })
        };
        let mut tasks: Vec<Task> = all.into_iter().flatten().filter_map(task).collect();
        tasks.retain(|t| t.rate > 0.0);
        tasks.sort_by(|a, b| b.rate.total_cmp(&a.rate));
        tasks
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        let s = &self.new.status;
        let n = |key: &str| s[key].as_u64().unwrap_or_default();
        let share = |used: &str, all: &str| percent(n(used), n(all));
        let (staged, absorbed) = (
            self.counted("blocks_staged"),
            self.counted("blocks_absorbed"),
        );
        let drained = self.counted("blocks_written");
        let (flushes, flush_us) = (
            self.counted("device_flushes"),
            self.counted("device_flush_us"),
        );
        let ahead = self.counted("blocks_served_ahead");
        let mut facts = vec![
            ("write", self.bytes(self.counted("bytes_written"))),
            ("read", self.bytes(self.counted("bytes_read"))),
            ("staging", share("slots_used", "slots")),
            ("staged", format_size(n("staged_blocks") * BLOCK as u64)),
            ("  in", self.bytes(staged * BLOCK as u64)),
            ("  drained", self.bytes(drained * BLOCK as u64)),
            ("  absorbed", percent(absorbed, absorbed + drained)),
            ("direct", self.blocks("blocks_direct")),
            ("commits", self.per_second("commits")),
            (
                "flushes",
                flushed(self.rate(flushes), flush_us / flushes.max(1)),
            ),
            ("log", format_size(n("live_log_bytes"))),
            (
                "waits",
                format!(
                    "{}, room {}",
                    self.per_second("range_waits"),
                    self.per_second("slot_waits")
                ),
            ),
            (
                "cached",
                format!("{} inodes, {} pages", n("cached_inodes"), n("cached_pages")),
            ),
            (
                "ahead",
                format!(
                    "{}, used {}",
                    self.blocks("blocks_read_ahead"),
                    self.bytes(ahead * BLOCK as u64)
                ),
            ),
        ];
        facts.extend(self.disk());
        facts
    }

    fn disk(&self) -> Vec<(&'static str, String)> {
        let (Some(old), Some(new)) = (&self.old.disk, &self.new.disk) else {
            return Vec::new();
        };
        let (read, written) = (
            new.read.saturating_sub(old.read),
            new.written.saturating_sub(old.written),
        );
        let busy = new.busy.saturating_sub(old.busy).as_secs_f64() / self.seconds;
        let busy = (busy * 100.0).min(100.0);
        let written = format!("{}, busy {busy:.0}%", self.bytes(written));
        vec![("disk read", self.bytes(read)), ("disk write", written)]
    }
}

fn flushed(rate: f64, us: u64) -> String {
    match us {
        0 => format!("{}/s", number(rate)),
        us => format!("{}/s of {}", number(rate), time(Duration::from_micros(us))),
    }
}

/// A rate in at most six characters.
pub fn number(n: f64) -> String {
    match n {
        n if n >= 999_500.0 => format!("{:.1}M", n / 1e6),
        n if n >= 9_999.5 => format!("{:.0}k", n / 1e3),
        n if n >= 99.95 || n == 0.0 => format!("{n:.0}"),
        n => format!("{n:.1}"),
    }
}

/// A duration in at most seven characters.
pub fn time(t: Duration) -> String {
    let us = t.as_secs_f64() * 1e6;
    match us {
        us if us < 99.95 => format!("{us:.1} us"),
        us if us < 9_999.5 => format!("{us:.0} us"),
        us if us < 9_999_500.0 => format!("{:.0} ms", us / 1e3),
        _ => span(t.as_secs()),
    }
}

/// The names of tasks, as far as they can be seen from here; threads of one process are told together.
pub fn by_process(
    tasks: &[Task],
    mut name: impl FnMut(u32) -> Option<(u32, String)>,
) -> Vec<(String, f64)> {
    let mut sum: BTreeMap<u32, (String, f64)> = BTreeMap::new();
    for t in tasks {
        let (process, name) = name(t.number).unwrap_or((t.number, "(ended)".into()));
        sum.entry(process).or_insert((name, 0.0)).1 += t.rate;
    }
    let mut all: Vec<_> = sum
        .into_iter()
        .map(|(process, (name, rate))| (format!("{name} {process}"), rate))
        .collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1));
    all
}

#[cfg(test)]
#[path = "rates_tests.rs"]
pub mod tests;
