//! A report for readers.

use crate::figures::{Latency, StepLatency};
use crate::report::{Report, TargetReport, WorkloadReport};
use crate::stats::Summary;
use crate::target::Facts;
use crate::workload::{Params, Span, Workload};
use std::fmt::Write;

/// The names of workloads with what they do, by family.
pub fn list(workloads: &[Box<dyn Workload>]) -> String {
    let mut out = String::new();
    let width = workloads.iter().map(|w| w.info().name.len()).max();
    let width = width.unwrap_or(0);
    let mut family = "";
    for w in workloads {
        let info = w.info();
        if info.family != family {
            family = info.family;
            line(&mut out, family);
        }
        let threads = match info.threads {
            1 => String::new(),
            n => format!(" ({n} threads)"),
        };
        line(
            &mut out,
            &format!("  {:width$}  {}{threads}", info.name, info.about),
        );
    }
    out
}

/// Columns of a table.
const COLUMNS: usize = 15;
/// The one with ratios.
const RATIO: usize = 4;

/// Columns that say nothing about any target are left out.
const HEADINGS: [&str; COLUMNS] = [
    "",
    "ops/s",
    "min",
    "max",
    "ratio",
    "MB/s",
    "p50 us",
    "p99 us",
    "p99.9 us",
    "msg/op",
    "dev B/B",
    "wr/op",
    "flush/op",
    "daemon us",
    "cpu us",
];

/// All of a report: what measured, what was measured, one table a workload.
pub fn render(report: &Report) -> String {
    let mut out = String::new();
    let m = &report.machine;
    let commit = report.commit.as_deref().unwrap_or("commit unknown");
    line(
        &mut out,
        &format!(
            "quayfs {} ({commit}), Linux {}, {} x {}",
            report.version, m.kernel, m.cpus, m.cpu
        ),
    );
    line(
        &mut out,
        &format!(
            "the clock and the histogram add {} ns to each operation",
            m.clock_ns
        ),
    );
    for limit in &m.io_limits {
        line(&mut out, &format!("disk limited: {limit}"));
    }
    report.targets.iter().for_each(|t| target(&mut out, t));
    for w in &report.workloads {
        out.push('\n');
        workload(&mut out, w);
    }
    if let Some(failure) = &report.failure {
        line(&mut out, &format!("\nended early: {failure}"));
    }
    out
}

fn target(out: &mut String, t: &Facts) {
    let full = 100.0 * (1.0 - t.free_bytes as f64 / t.total_bytes.max(1) as f64);
    let (label, fstype, source) = (&t.label, &t.fstype, &t.source);
    line(
        out,
        &format!(
            "{label}: {fstype} on {source}, {full:.0}% full, {}",
            t.options
        ),
    );
    // What a QuayFS mount is depends on more than the kernel knows.
    let facts = mount_facts(t);
    if !facts.is_empty() {
        line(out, &format!("{label}: {}", facts.join(", ")));
    }
}

/// What a QuayFS mount says of itself that figures depend on.
pub(crate) const MOUNT_FACTS: [&str; 5] =
    ["backend", "durability", "transport", "options", "device"];

/// What a QuayFS mount said of itself that figures depend on; nothing of others.
pub(crate) fn mount_facts(t: &Facts) -> Vec<String> {
    let own = |name| t.status.as_ref()?.get(name)?.as_str();
    MOUNT_FACTS
        .into_iter()
        .filter_map(|name| Some(format!("{name} {}", own(name)?)))
        .collect()
}

fn line(out: &mut String, text: &str) {
    out.push_str(text.trim_end());
    out.push('\n');
}

/// The table of one workload.
pub fn section(w: &WorkloadReport) -> String {
    let mut out = String::new();
    workload(&mut out, w);
    out
}

fn workload(out: &mut String, w: &WorkloadReport) {
    line(out, &format!("{}: {}", w.name, w.about));
    line(out, &format!("  {}", params(&w.params, w.targets.first())));
    let mut rows = vec![HEADINGS.map(str::to_owned)];
    rows.extend(w.targets.iter().map(row));
    // The base of ratios has none.
    if let Some(base) = rows.get_mut(1) {
        base[RATIO].clear();
    }
    table(out, &rows);
    for t in &w.targets {
        if let Some(note) = notes(t) {
            line(out, &format!("  {}: {note}", t.label));
        }
    }
}

fn params(p: &Params, first: Option<&TargetReport>) -> String {
    let runs = first.map_or(0, TargetReport::repetitions);
    let mut all = vec![counted(u64::from(p.threads), "thread")];
    all.extend(settings(p));
    all.push(counted(runs as u64, "repetition"));
    all.join(", ")
}

/// What a workload was told besides its threads.
pub(crate) fn settings(p: &Params) -> Vec<String> {
    let mut all = Vec::new();
    if p.span == Span::Timed {
        all.push(format!("{} s after {} s", p.seconds, p.warmup));
    }
    if let Some(ops) = p.ops {
        all.push(format!("at most {ops} operations a thread"));
    }
    if p.file_bytes > 0 {
        all.push(format!("files of {} MiB", p.file_bytes >> 20));
    }
    if p.files > 0 {
        all.push(format!("{} files", p.files));
    }
    all.push(format!("seed {}", p.seed));
    all
}

/// A number of things, with the plural where there is one.
pub(crate) fn counted(n: u64, thing: &str) -> String {
    format!("{n} {thing}{}", if n == 1 { "" } else { "s" })
}

fn row(t: &TargetReport) -> [String; COLUMNS] {
    let some = |x: Option<f64>, f: fn(f64) -> String| x.map_or_else(String::new, f);
    let rate = t.ops_per_s;
    let figures = t.figures();
    let median = |figure: Option<Summary>| figure.map(|s| s.median);
    // What did nothing took no time.
    let idle = (figures.repetitions > 0).then_some(0.0);
    let us = |at: fn(Latency) -> f64| figures.latency.map(at).or(idle);
    let ratio = t.ratio.map_or_else(String::new, |r| {
        format!("{} ({}..{})", short(r.median), short(r.min), short(r.max))
    });
    let bytes = median(figures.bytes_per_s)
        .map(|b| b / 1e6)
        .filter(|mb| *mb > 0.0);
    [
        t.label.clone(),
        some(rate.map(|r| r.median), count),
        some(rate.map(|r| r.min), count),
        some(rate.map(|r| r.max), count),
        ratio,
        some(bytes, short),
        some(us(|l| l.p50), short),
        some(us(|l| l.p99), short),
        some(us(|l| l.p999), short),
        some(median(figures.messages_per_op), short),
        some(median(figures.device_bytes_per_byte), short),
        some(median(figures.writes_per_op), short),
        some(median(figures.flushes_per_op), short),
        some(median(figures.daemon_us_per_op), short),
        some(median(figures.machine_us_per_op), short),
    ]
}

/// What does not fit into a column.
fn notes(t: &TargetReport) -> Option<String> {
    let figures = t.figures();
    let step = |s: &StepLatency| {
        let (p50, p99) = (short(s.latency.p50), short(s.latency.p99));
        format!("{} {p50}/{p99}", s.name)
    };
    let notes: Vec<String> = figures.steps.iter().map(step).collect();
    let mut text = notes.join(", ");
    if !text.is_empty() {
        text.push_str(" us (p50/p99)");
    }
    let mut more = |note: String| {
        if !text.is_empty() {
            text.push_str("; ");
        }
        text.push_str(&note);
    };
    if let Some(Summary { median: wraps, .. }) = figures.staging_wraps
        && wraps > 0.0
    {
        more(format!("staging filled {} times", short(wraps)));
    }
    if figures.unsettled_after {
        more("not all was on the device when it was asked".into());
    }
    if figures.unsettled_before {
        more("began with staged data of before".into());
    }
    (!text.is_empty()).then_some(text)
}

/// Pads columns; the first to the left, figures to the right.
fn table(out: &mut String, rows: &[[String; COLUMNS]]) {
    let width = |column: usize| {
        let cells = rows.iter().map(|r| r[column].chars().count());
        cells.max().unwrap_or(0)
    };
    let used: Vec<usize> = (0..HEADINGS.len())
        .filter(|c| rows.iter().skip(1).any(|r| !r[*c].is_empty()))
        .collect();
    for row in rows {
        let mut text = String::from(" ");
        for c in &used {
            let (cell, width) = (&row[*c], width(*c));
            let _ = if *c == 0 {
                write!(text, " {cell:<width$}")
            } else {
                write!(text, "  {cell:>width$}")
            };
        }
        line(out, &text);
    }
}

/// A rate: no digits behind the point unless it is small, thousands apart from the rest.
fn count(n: f64) -> String {
    match n {
        n if n < 100.0 => short(n),
        n if n < 10_000.0 => format!("{n:.0}"),
        n if n < 10_000_000.0 => format!("{:.1}k", n / 1e3),
        n => format!("{:.1}M", n / 1e6),
    }
}

/// Three digits that count.
fn short(n: f64) -> String {
    match n.abs() {
        0.0 => "0".into(),
        a if a < 0.0095 => format!("{n:.1e}"),
        a if a < 10.0 => format!("{n:.2}"),
        a if a < 100.0 => format!("{n:.1}"),
        _ => format!("{n:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_short() {
        for (n, text) in [
            (0.0, "0"),
            (0.001, "1.0e-3"),
            (0.5, "0.50"),
            (9.999, "10.00"),
            (31.41, "31.4"),
            (123.4, "123"),
        ] {
            assert_eq!(short(n), text);
        }
        for (n, text) in [
            (3.1, "3.10"),
            (9876.5, "9876"),
            (12_345.0, "12.3k"),
            (12_345_678.0, "12.3M"),
        ] {
            assert_eq!(count(n), text);
        }
    }

    #[test]
    fn columns_line_up_and_empty_ones_are_left_out() {
        let mut rows = vec![HEADINGS.map(str::to_owned)];
        for (label, rate) in [("a", "1.0k"), ("longer", "12.0k")] {
            let mut row: [String; COLUMNS] = Default::default();
            (row[0], row[1]) = (label.into(), rate.into());
            rows.push(row);
        }
        let mut out = String::new();
        table(&mut out, &rows);
        assert_eq!(out, "          ops/s\n  a        1.0k\n  longer  12.0k\n");
    }
}
