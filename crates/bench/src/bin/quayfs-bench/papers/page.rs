//! What was found, as sections of the page of `quayfs-bench report`.

use super::recovery::{By, Recovery};
use super::report::{Cell, ExperimentReport, FORMAT, Papers};
use quayfs_bench::page::Section;
use quayfs_bench::page::plot::{Bar, Bars, Curves, Group, Line, Plot, Point, Quantity};
use quayfs_bench::page::scale::Scale;
use quayfs_bench::stats::Summary;
use serde_json::Value;

/// Reads what `quayfs-bench papers --json` wrote; none if it is something else.
///
/// # Errors
/// It is of another format, or not complete.
pub fn read(text: &str) -> Result<Option<Papers>, String> {
    let Ok(value) = serde_json::from_str::<Value>(text) else {
        return Ok(None);
    };
    match value.get("papers_format") {
        None => Ok(None),
        Some(format) if *format == FORMAT => {
            let papers = serde_json::from_value(value);
            papers.map(Some).map_err(|e| e.to_string())
        }
        Some(format) => Err(format!("papers_format {format}, this program has {FORMAT}")),
    }
}

/// A section that says where the figures come from, and one for each experiment.
pub fn sections(found: &Papers, name: &str) -> Vec<Section> {
    let mut all = vec![Section {
        title: format!("The papers' mechanisms: {name}"),
        about: head(found),
        plots: Vec::new(),
    }];
    all.extend(found.experiments.iter().map(|e| Section {
        title: format!("{name}: {}", e.name),
        about: format!("{}. The paper: {}.", e.mechanism, e.found()),
        plots: plots(e),
    }));
    all
}

fn head(found: &Papers) -> String {
    let head: Vec<String> = found.head().lines().map(str::to_owned).collect();
    let mut text = format!("{}. {}.", head.join("; "), found.command.join(" "));
    if let Some(why) = &found.failure {
        text += &format!(" It ended early: {why}.");
    }
    text
}

fn plots(e: &ExperimentReport) -> Vec<Plot> {
    let mut all = Vec::new();
    if !e.cells.is_empty() {
        all.push(Plot::Bars(ratios(&e.cells)));
    }
    // Cells that differ in the number of threads alone stand together.
    let what = |c: &Cell| {
        (
            c.level_and_cache().to_owned(),
            c.workload.name.clone(),
            shared(c),
        )
    };
    let mut seen = Vec::new();
    for cell in &e.cells {
        let key = what(cell);
        if !seen.contains(&key) {
            let same: Vec<&Cell> = e.cells.iter().filter(|c| what(c) == key).collect();
            all.push(throughput(&same));
            seen.push(key);
        }
    }
    for by in [By::Staged, By::Files, By::Data] {
        let series: Vec<&Recovery> = e.recovery.iter().filter(|r| r.by == by).collect();
        if !series.is_empty() {
            all.push(Plot::Curves(recovery(by, &series)));
        }
    }
    all
}

/// Options of the cell and of its variants.
fn shared(cell: &Cell) -> String {
    let variants = cell.variants.iter().map(|v| {
        let place = if v.region_on_disk {
            " (region on the disk)"
        } else {
            ""
        };
        let options = if v.options.is_empty() {
            "no more options"
        } else {
            &v.options
        };
        if let Some(what) = &v.kernel {
            return format!("{}: {what}, {options}", v.name);
        }
        if v.pmem_bytes == 0 {
            return format!("{}: no volume", v.name);
        }
        let size = quayfs_options::format_size(v.pmem_bytes);
        format!("{}: {options}, region {size}{place}", v.name)
    });
    let mut words = Vec::new();
    if !cell.options.is_empty() {
        words.push(format!("All: {}", cell.options));
    }
    words.extend(variants);
    words.join("; ")
}

fn range(s: Summary) -> (f64, f64) {
    (s.min, s.max)
}

fn threads(cell: &Cell) -> u32 {
    cell.workload.params.threads
}

fn ratios(cells: &[Cell]) -> Bars {
    let group = |cell: &Cell| {
        let bars = cell.comparisons.iter().enumerate().map(|(n, c)| {
            let theirs: Option<f64> = c.paper.as_ref().and_then(|p| p.parse().ok());
            // What is no single number is told in words.
            let words = c.paper.as_ref().filter(|_| theirs.is_none());
            let words = words.map(|p| format!("paper: {p}"));
            let words = words.into_iter().chain(c.remarks());
            let words: String = words.map(|w| format!("; {w}")).collect();
            Bar {
                label: format!("{} : {}, {}{words}", c.of, c.to, c.unit),
                series: n,
                ours: c.ratio.map(|r| r.median),
                range: c.ratio.map(range),
                theirs,
            }
        });
        let mut label = format!("{}, {}", cell.level_and_cache(), cell.workload.name);
        if !cell.options.is_empty() {
            label += &format!(", {}", cell.options);
        }
        Group {
            label: format!("{label}, threads: {}", threads(cell)),
            bars: bars.collect(),
        }
    };
    Bars {
        title: "with the mechanism to without".into(),
        unit: "ratio".into(),
        note: "Above 1 the first is better.".into(),
        scale: Scale::Linear,
        mark: Some(1.0),
        theirs: "the paper".into(),
        groups: cells.iter().map(group).collect(),
    }
}

fn throughput(cells: &[&Cell]) -> Plot {
    let first = cells[0];
    let level = first.level_and_cache();
    let title = format!("{} at level {level}", first.workload.name);
    let rate = |cell: &Cell, name: &str| {
        let target = cell.workload.targets.iter().find(|t| t.label == name);
        target.and_then(|t| t.ops_per_s)
    };
    let variants = first.variants.iter().enumerate();
    if let [only] = cells {
        let bar = |(series, v): (usize, &super::report::VariantReport)| {
            let s = rate(only, &v.name);
            Bar {
                label: v.name.clone(),
                series,
                ours: s.map(|s| s.median),
                range: s.map(range),
                theirs: None,
            }
        };
        return Plot::Bars(Bars {
            title: format!("{title}, threads: {}", threads(only)),
            unit: "ops/s".into(),
            note: shared(first),
            scale: Scale::Linear,
            mark: None,
            theirs: String::new(),
            groups: vec![Group {
                label: String::new(),
                bars: variants.map(bar).collect(),
            }],
        });
    }
    let line = |(series, v): (usize, &super::report::VariantReport)| {
        let points = cells.iter().filter_map(|c| {
            let s = rate(c, &v.name)?;
            Some(Point {
                x: threads(c).into(),
                y: s.median,
                range: Some(range(s)),
            })
        });
        Line {
            label: v.name.clone(),
            series,
            points: points.collect(),
        }
    };
    Plot::Curves(Curves {
        title,
        note: shared(first),
        x: Quantity {
            exact: true,
            ..Quantity::new("threads", Scale::Log)
        },
        y: Quantity::new("ops/s", Scale::Linear),
        lines: variants.map(line).collect(),
    })
}

fn recovery(by: By, found: &[&Recovery]) -> Curves {
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let (title, x, at): (_, _, &dyn Fn(&Recovery) -> f64) = match by {
        By::Staged => (
            "recovery by what is staged, at level ops",
            Quantity::new("MiB staged", Scale::Linear),
            &|r| mib(r.staged_bytes),
        ),
        By::Files => (
            "recovery by the number of files, at level ops",
            Quantity::new("files", Scale::Log),
            &|r| r.files as f64,
        ),
        By::Data => (
            "recovery by the size of the data device, at level ops",
            Quantity::new("MiB of data device", Scale::Log),
            &|r| mib(r.data_bytes),
        ),
    };
    let line = |series, label: &str, time: fn(&Recovery) -> Option<Summary>| {
        let points = found.iter().filter_map(|r| {
            let s = time(r)?;
            Some(Point {
                x: at(r),
                y: s.median * 1e3,
                range: Some((s.min * 1e3, s.max * 1e3)),
            })
        });
        Line {
            label: label.into(),
            series,
            points: points.collect(),
        }
    };
    Curves {
        title: title.into(),
        note: String::new(),
        x,
        y: Quantity::new("ms", Scale::Linear),
        lines: vec![
            line(0, "to the first answer", |r| r.recovery_s),
            line(1, "to write it back", |r| r.write_back_s),
        ],
    }
}
