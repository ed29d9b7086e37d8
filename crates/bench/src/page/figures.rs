//! The plots of a workload.

use super::plot::{Bar, Bars, Curves, Group, Line, Plot, Point, Quantity, Range, Spread, Spreads};
use super::scale::Scale;
use super::sets::{Part, Set};
use crate::figures::{Figures, Latency};
use crate::report::TargetReport;
use crate::stats::Summary;
use crate::table::counted;
use std::borrow::Cow;

/// Above this, bars of ratios are logarithmic.
const FAR: f64 = 8.0;
/// Lines are, where the greatest figure is more than so many times the least.
const WIDE: f64 = 20.0;

/// A figure of a target, where it has one.
type Figure = fn(&Figures) -> Option<Summary>;

/// What an operation costs: what it is called, its unit, what a reader has to know.
const COSTS: [(&str, &str, &str, Figure); 6] = [
    (
        "CPU time of the daemon",
        "us an operation",
        "Of QuayFS, or of what --daemon named.",
        |f| f.daemon_us_per_op,
    ),
    (
        "CPU time of the whole machine",
        "us an operation",
        "That of strangers included.",
        |f| f.machine_us_per_op,
    ),
    (
        "Bytes to the device",
        "B for each byte written",
        "Until all was on the device; for QuayFS with a region apart, on the data device.",
        |f| f.device_bytes_per_byte,
    ),
    (
        "Writes",
        "requests an operation",
        "To the block device, after merging.",
        |f| f.writes_per_op,
    ),
    (
        "Flushes",
        "flushes an operation",
        "Of the block device, after merging.",
        |f| f.flushes_per_op,
    ),
    (
        "FUSE messages",
        "messages an operation",
        "Reading the counters adds one or two to a run.",
        |f| f.messages_per_op,
    ),
];

/// All plots of a set. What no target has a figure of has no plot. A target looks as the place of its
/// label among `labels` says, so that it looks the same on all of a page.
pub fn of(set: &Set<'_>, labels: &[&str]) -> Vec<Plot> {
    let mut all = vec![throughput(set)];
    all.extend(ratios(set));
    all.extend(set.parts.iter().filter_map(latencies));
    all.extend(set.parts.iter().filter_map(steps));
    for (title, unit, note, figure) in COSTS {
        let summary = |t: &TargetReport| figure(&t.figures());
        all.extend(over_threads(set, title, unit, note, summary));
    }
    for plot in &mut all {
        plot.look_by(|label| labels.iter().position(|l| *l == label));
    }
    all
}

fn throughput(set: &Set<'_>) -> Plot {
    let unit = "operations per second";
    let rate = |t: &TargetReport| t.ops_per_s;
    over_threads(set, "Throughput", unit, "", rate).unwrap_or_else(|| {
        Plot::Bars(bars(
            "Throughput",
            unit,
            "Nothing was measured.",
            Vec::new(),
        ))
    })
}

fn threads(part: &Part<'_>) -> String {
    counted(u64::from(part.found.params.threads), "thread")
}

/// The heading of what was found with one number of threads, where there are others.
fn heading(set: &Set<'_>, part: &Part<'_>) -> String {
    match set.parts.len() {
        1 => String::new(),
        _ => threads(part),
    }
}

/// One repetition has no range.
fn range(t: &TargetReport, s: Summary) -> Option<Range> {
    (t.repetitions() > 1).then_some((s.min, s.max))
}

fn bars(title: &str, unit: &str, note: &str, groups: Vec<Group>) -> Bars {
    Bars {
        title: title.into(),
        unit: unit.into(),
        note: note.into(),
        scale: Scale::Linear,
        mark: None,
        theirs: String::new(),
        groups,
    }
}

/// Bars of each target, from the one with number `from` on.
fn group(
    label: String,
    part: &Part<'_>,
    from: usize,
    figure: impl Fn(&TargetReport) -> Option<Summary>,
) -> Group {
    let targets = part.found.targets.iter().enumerate().skip(from);
    let bars = targets.map(|(series, t)| {
        let found = figure(t);
        Bar {
            label: t.label.clone(),
            series,
            ours: found.map(|s| s.median),
            range: found.and_then(|s| range(t, s)),
            theirs: None,
        }
    });
    Group {
        label,
        bars: bars.collect(),
    }
}

/// Sentences of which some may be missing.
fn sentences(all: &[&str]) -> String {
    let all: Vec<&str> = all.iter().copied().filter(|s| !s.is_empty()).collect();
    all.join(" ")
}

fn repeated(set: &Set<'_>) -> bool {
    let mut targets = set.parts.iter().flat_map(|p| &p.found.targets);
    targets.any(|t| t.repetitions() > 1)
}

/// Lines over the number of threads, or bars where there is only one.
fn over_threads(
    set: &Set<'_>,
    title: &str,
    unit: &str,
    note: &str,
    figure: impl Fn(&TargetReport) -> Option<Summary> + Copy,
) -> Option<Plot> {
    let mut all = set.parts.iter().flat_map(|p| &p.found.targets);
    if !all.any(|t| figure(t).is_some()) {
        return None;
    }
    let whiskers = match (repeated(set), set.parts.len()) {
        (true, 1) => "Medians; whiskers from the least to the greatest repetition.",
        (true, _) => {
            "Medians; whiskers from the least to the greatest repetition. Points of different lines \
             stand a little apart."
        }
        _ => "",
    };
    let note = sentences(&[note, whiskers]);
    if let [part] = &set.parts[..] {
        let groups = vec![group(String::new(), part, 0, figure)];
        return Some(Plot::Bars(bars(title, unit, &note, groups)));
    }
    let line = |(series, first): (usize, &TargetReport)| {
        let points = set.parts.iter().filter_map(|part| {
            let t = part.found.targets.get(series)?;
            let s = figure(t)?;
            Some(Point {
                x: f64::from(part.found.params.threads),
                y: s.median,
                range: range(t, s),
            })
        });
        Line {
            label: first.label.clone(),
            series,
            points: points.collect(),
        }
    };
    let mut lines: Vec<Line> = set.parts[0]
        .found
        .targets
        .iter()
        .enumerate()
        .map(line)
        .collect();
    lines.retain(|l| !l.points.is_empty());
    let points = || lines.iter().flat_map(|l| &l.points);
    let least = points().map(|p| p.y).fold(f64::INFINITY, f64::min);
    let greatest = points().map(|p| p.y).fold(0.0, f64::max);
    let positive = points().all(|p| p.y.min(p.range.map_or(p.y, |r| r.0)) > 0.0);
    let y = if positive && greatest > WIDE * least {
        Quantity::new(unit, Scale::Log)
    } else {
        Quantity::new(unit, Scale::Linear)
    };
    let x = Quantity {
        exact: true,
        ..Quantity::new("threads", Scale::Log)
    };
    Some(Plot::Curves(Curves {
        title: title.into(),
        note,
        x,
        y,
        lines,
    }))
}

fn ratios(set: &Set<'_>) -> Option<Plot> {
    let base = set.parts[0].found.targets.first()?;
    let groups: Vec<Group> = set
        .parts
        .iter()
        .map(|p| group(heading(set, p), p, 1, |t| t.ratio))
        .collect();
    let mut plot = bars("Ratio to the first directory", "ratio", "", groups);
    let far = plot.all().filter_map(|b| Some(b.range?.1.max(b.ours?)));
    let far = far
        .chain(plot.all().filter_map(|b| b.ours))
        .fold(f64::NAN, f64::max);
    if far.is_nan() {
        return None;
    }
    let scale = if far > FAR {
        plot.scale = Scale::Log;
        "Bars begin at 1."
    } else {
        ""
    };
    plot.mark = Some(1.0);
    plot.note = sentences(&[
        &format!(
            "Throughput; 1 (dashed) is {} in the same repetition.",
            base.label
        ),
        scale,
        if repeated(set) {
            "Medians, least and greatest."
        } else {
            ""
        },
    ]);
    Some(Plot::Bars(plot))
}

/// One of the stored percentiles.
type Stored = fn(&Latency) -> f64;

/// All of them with their quantiles.
const QUANTILES: [(f64, Stored); 5] = [
    (0.5, |p| p.p50),
    (0.9, |p| p.p90),
    (0.99, |p| p.p99),
    (0.999, |p| p.p999),
    (1.0, |p| p.max),
];

fn latencies(part: &Part<'_>) -> Option<Plot> {
    let line = |(series, t): (usize, &TargetReport)| {
        let latency = t.figures().latency;
        let points = QUANTILES.iter().filter_map(|(x, at)| {
            Some(Point {
                x: *x,
                y: at(latency.as_ref()?),
                range: None,
            })
        });
        Line {
            label: t.label.clone(),
            series,
            points: points.collect(),
        }
    };
    let mut lines: Vec<Line> = part.found.targets.iter().enumerate().map(line).collect();
    lines.retain(|l| !l.points.is_empty());
    (!lines.is_empty()).then(|| {
        Plot::Curves(Curves {
            title: format!("Latency of an operation, {}", threads(part)),
            note: "The percentiles that are stored, joined by straight lines; each step to the right is \
                   another nine. Medians of the repetitions; the longest latency stands apart."
                .into(),
            x: Quantity::new("share of operations that took at most as long", Scale::Nines),
            y: Quantity::new("us", Scale::Log),
            lines,
        })
    })
}

fn steps(part: &Part<'_>) -> Option<Plot> {
    let all: Vec<_> = part
        .found
        .targets
        .iter()
        .map(TargetReport::figures)
        .collect();
    let mut names: Vec<&str> = Vec::new();
    for s in all.iter().flat_map(|f| &f.steps) {
        if !names.contains(&&*s.name) {
            names.push(&s.name);
        }
    }
    let spreads = |name: &str| -> Vec<Spread> {
        let targets = part.found.targets.iter().zip(&all).enumerate();
        let spread = |(series, (t, figures)): (usize, (&TargetReport, &Cow<'_, Figures>))| {
            let step = figures.steps.iter().find(|s| s.name == name)?;
            Some(Spread {
                label: t.label.clone(),
                series,
                figures: [step.latency.p50, step.latency.p99],
            })
        };
        targets.filter_map(spread).collect()
    };
    (!names.is_empty()).then(|| {
        Plot::Spreads(Spreads {
            title: format!("Latency of steps, {}", threads(part)),
            unit: "us".into(),
            note: "From p50 (filled) to p99 (hollow, with its figure), medians of the repetitions."
                .into(),
            names: ["p50".into(), "p99".into()],
            groups: names
                .iter()
                .map(|n| ((*n).to_owned(), spreads(n)))
                .collect(),
        })
    })
}
