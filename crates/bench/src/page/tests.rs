//! The page as a whole: what has to be in it, and what must not.

mod colours;
mod joining;
mod odd;

use super::plot::{Bar, Bars, Curves, Group, Line, Plot, Point, Quantity, Spread, Spreads};
use super::scale::Scale;
use super::*;
use crate::figures::Latency;
use crate::machine::Machine;
use crate::report::{Sample, Step, WorkloadReport};
use crate::stats::Percentiles;
use crate::target::Facts;
use crate::workload::{Info, Params, Wishes};
use roxmltree::{Document, Node};

fn facts(label: &str) -> Facts {
    Facts {
        label: label.into(),
        path: "/m".into(),
        mount_point: "/m".into(),
        fstype: "ext4".into(),
        source: "/dev/x".into(),
        options: "rw".into(),
        total_bytes: 1 << 30,
        free_bytes: 1 << 29,
        device: None,
        status: None,
    }
}

fn latency(scale: u64) -> Percentiles {
    Percentiles {
        count: 100,
        mean: 1.0,
        p50: scale * 1_000,
        p90: scale * 2_000,
        p99: scale * 3_000,
        p999: scale * 4_000,
        max: scale * 5_000,
    }
}

fn sample(rate: f64) -> Sample {
    let step = Step {
        name: "fsync".into(),
        latency: latency(7),
    };
    Sample {
        repetition: 0,
        began: 0.0,
        seconds: 1.0,
        ops: 100,
        ops_per_s: rate,
        thread_ops: vec![100],
        bytes_written: 100,
        bytes_read: 0,
        calls: Default::default(),
        latency: latency(11),
        steps: vec![step],
        observed: Default::default(),
        full_before: 0.0,
        caches_dropped: false,
    }
}

/// A report of one workload: rates of each target by repetition.
fn report(threads: u32, targets: &[(&str, &[f64])]) -> Report {
    let wishes = Wishes {
        threads: Some(threads),
        ..Wishes::default()
    };
    let params = Params::new(&Info::new("w", "f", "a write"), &wishes).unwrap();
    let labels: Vec<String> = targets.iter().map(|t| t.0.to_owned()).collect();
    let mut found = WorkloadReport::new("w", "a write", params, &labels);
    for (t, (_, rates)) in found.targets.iter_mut().zip(targets) {
        t.samples = rates.iter().map(|r| sample(*r)).collect();
    }
    found.summarize();
    Report {
        format: 1,
        version: "0.1.0".into(),
        commit: Some("abc1234".into()),
        command: vec!["quayfs-bench".into(), "run".into()],
        began: 1_795_341_835,
        machine: Machine {
            kernel: "6.18.1".into(),
            kernel_version: "#1".into(),
            cpu: "Some CPU".into(),
            cpus: 2,
            memory_bytes: 1 << 34,
            root: true,
            clock_ns: u64::from(threads) + 30,
            io_limits: Vec::new(),
        },
        targets: targets.iter().map(|t| facts(t.0)).collect(),
        workloads: vec![found],
        failure: None,
    }
}

fn source(report: Report) -> Source {
    Source {
        file: "found.json".into(),
        name: None,
        report,
    }
}

fn page(reports: impl IntoIterator<Item = Report>) -> String {
    let sources: Vec<Source> = reports.into_iter().map(source).collect();
    render(&sources, &[])
}

/// The body, which has no element that HTML leaves open, so it has to be XML too.
fn body(page: &str) -> &str {
    let from = page.find("<body>").unwrap();
    let to = page.find("</body>").unwrap();
    &page[from..to + "</body>".len()]
}

fn text(node: Node<'_, '_>) -> String {
    node.descendants()
        .filter_map(|n| n.text().filter(|_| n.is_text()))
        .collect()
}

fn named<'a, 'x: 'a>(node: Node<'a, 'x>, name: &'a str) -> impl Iterator<Item = Node<'a, 'x>> {
    node.descendants().filter(move |n| n.has_tag_name(name))
}

fn class(node: Node<'_, '_>, class: &str) -> bool {
    node.attribute("class")
        .is_some_and(|c| c.split(' ').any(|c| c == class))
}

/// Every figure of a page: its title, the cells of its table by rows.
fn tables(page: &str) -> Vec<(String, Vec<Vec<String>>)> {
    let document = Document::parse(body(page)).unwrap();
    let figure = |f: Node<'_, '_>| {
        let title = text(named(f, "b").next().unwrap());
        let rows = named(f, "tr").map(|r| {
            let cells = r.children().filter(Node::is_element);
            cells.map(text).collect()
        });
        (title, rows.collect())
    };
    named(document.root(), "figure").map(figure).collect()
}

/// What is wrong with no page at all.
fn check(page: &str) {
    assert!(page.starts_with("<!DOCTYPE html>") && page.ends_with("</html>\n"));
    let document = Document::parse(body(page)).unwrap();
    for name in [
        "script",
        "img",
        "link",
        "iframe",
        "object",
        "use",
        "image",
        "foreignObject",
    ] {
        assert_eq!(named(document.root(), name).count(), 0, "{name}");
    }
    let attributes = || document.descendants().flat_map(|n| n.attributes());
    for a in attributes().filter(|a| matches!(a.name(), "href" | "src" | "style")) {
        assert!(a.value().starts_with('#'), "{a:?}");
    }
    assert!(!page.contains("http:") && !page.contains("https:") && !page.contains("@import"));
    assert!(!page.contains("url("));
    let mut ids: Vec<_> = attributes()
        .filter(|a| a.name() == "id")
        .map(|a| a.value())
        .collect();
    let count = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), count, "ids are there once");
    for svg in named(document.root(), "svg") {
        let size: Vec<f64> = svg
            .attribute("viewBox")
            .unwrap()
            .split(' ')
            .map(|n| n.parse().unwrap())
            .collect();
        for a in svg.descendants().flat_map(|n| n.attributes()) {
            if let Ok(n) = a.value().parse::<f64>() {
                let room = match a.name() {
                    "x" | "x1" | "x2" | "cx" | "width" => size[2],
                    "y" | "y1" | "y2" | "cy" | "height" => size[3],
                    _ => continue,
                };
                assert!((0.0..=room).contains(&n), "{a:?} of {size:?}");
            }
        }
    }
    for figure in named(document.root(), "figure") {
        let svg = figure.children().find(|c| c.has_tag_name("svg")).unwrap();
        assert_eq!(
            svg.attribute("aria-label"),
            named(figure, "b").next().unwrap().text()
        );
        assert_eq!(named(figure, "table").count(), 1);
    }
}

const TWO: [(&str, &[f64]); 2] = [("one", &[100.0, 110.0, 90.0]), ("two", &[50.0, 66.0, 54.0])];

#[test]
fn one_number_of_threads_gives_bars() {
    let page = page([report(1, &TWO)]);
    check(&page);
    let tables = tables(&page);
    let titles: Vec<&str> = tables.iter().map(|t| &*t.0).collect();
    assert_eq!(
        titles,
        [
            "Throughput",
            "Ratio to the first directory",
            "Latency of an operation, 1 thread",
            "Latency of steps, 1 thread",
            "CPU time of the whole machine",
        ]
    );
    assert_eq!(tables[0].1[1], ["one", "100", "90.0", "110"]);
    assert_eq!(tables[0].1[2], ["two", "54.0", "50.0", "66.0"]);
    assert_eq!(tables[1].1[1..], [["two", "0.600", "0.500", "0.600"]]);
    assert_eq!(tables[2].1[0], ["", "p50", "p90", "p99", "p99.9", "max"]);
    assert_eq!(
        tables[2].1[1],
        ["one", "11.0", "22.0", "33.0", "44.0", "55.0"]
    );
    assert_eq!(tables[3].1[2], ["fsync", "two", "7.00", "21.0"]);
    for there in [
        "commit abc1234",
        "Linux 6.18.1",
        "2 x Some CPU",
        "2026-11-22 10:03:55 UTC",
        "<code>quayfs-bench run</code>",
    ] {
        assert!(page.contains(there), "{there}");
    }
    assert!(!page.contains("class=\"warn\""));
}

#[test]
fn a_target_has_one_colour_on_all_of_a_page() {
    let mut turned = report(1, &[("three", &[1.0]), ("two", &[1.0]), ("one", &[1.0])]);
    turned.commit = Some("fff".into());
    let page = page([report(1, &TWO), turned]);
    check(&page);
    let document = Document::parse(body(&page)).unwrap();
    let mut seen: Vec<(String, String)> = named(document.root(), "figure")
        .filter(|f| named(*f, "b").next().unwrap().text() == Some("Throughput"))
        .flat_map(|f| f.descendants().filter(|n| n.has_tag_name("g")))
        .map(|g| {
            let class = g.attribute("class").unwrap().to_owned();
            (text(named(g, "text").next().unwrap()), class)
        })
        .collect();
    assert_eq!(seen.len(), 5);
    seen.sort_unstable();
    seen.dedup();
    let seen: Vec<_> = seen.iter().map(|(l, c)| (&**l, &**c)).collect();
    assert_eq!(seen, [("one", "s0"), ("three", "s2"), ("two", "s1")]);
}

#[test]
fn bars_are_as_long_as_their_figures() {
    let page = page([report(
        1,
        &[("one", &[400.0]), ("two", &[100.0]), ("three", &[700.0])],
    )]);
    let document = Document::parse(body(&page)).unwrap();
    let figures: Vec<_> = named(document.root(), "figure").collect();
    let bars = |n: usize| -> Vec<f64> {
        let all = figures[n].descendants().filter(|n| class(*n, "bar"));
        all.map(|b| b.attribute("width").unwrap().parse().unwrap())
            .collect()
    };
    // A tenth of a pixel is lost.
    let near = |a: f64, b: f64| (a / b - 1.0).abs() < 0.01;
    let (rates, ratios) = (bars(0), bars(1));
    assert!(
        near(rates[0], 4.0 * rates[1]) && near(rates[2], 7.0 * rates[1]),
        "{rates:?}"
    );
    assert!(near(ratios[1], 7.0 * ratios[0]), "{ratios:?}");
    let place = |class_name: &str, of: &str| -> f64 {
        let found = figures[1]
            .descendants()
            .find(|n| class(*n, class_name))
            .unwrap();
        found.attribute(of).unwrap().parse().unwrap()
    };
    let one = place("mark", "x1") - place("bar", "x");
    assert!(near(one, 4.0 * ratios[0]), "{one} {ratios:?}");
}

#[test]
fn one_target_has_no_ratio_and_one_repetition_no_range() {
    let page = page([report(1, &[("one", &[123.0])])]);
    check(&page);
    let tables = tables(&page);
    assert_eq!(
        tables[0].1,
        [vec!["", "operations per second"], vec!["one", "123"]]
    );
    assert!(tables.iter().all(|t| !t.0.starts_with("Ratio")));
    assert!(!page.contains("whiskers\"") && page.contains("1 repetition."));
}

#[test]
fn large_ratios_are_logarithmic_and_say_so() {
    let page = page([report(
        1,
        &[("one", &[10.0]), ("two", &[900.0]), ("three", &[1.0])],
    )]);
    check(&page);
    assert!(page.contains("ratio (logarithmic)") && page.contains("Bars begin at 1."));
    assert_eq!(
        tables(&page)[1].1[1..],
        [["two", "90.0"], ["three", "0.100"]]
    );
}

#[test]
fn zeros_have_a_place_or_say_so() {
    let none = [report(
        1,
        &[
            ("one", &[10.0, 10.0]),
            ("two", &[0.0, 900.0]),
            ("three", &[0.0, 0.0]),
        ],
    )];
    let page_of_one = page(none);
    check(&page_of_one);
    let ratios = &tables(&page_of_one)[1].1;
    assert_eq!(ratios[1], ["two", "45.0", "0", "90.0"]);
    assert_eq!(ratios[2], ["three", "0", "0", "0"]);
    // Lines that differ much would be logarithmic, but not with a zero among them.
    let with = |rates: &'static [f64]| {
        let both = [1, 4].map(|n| report(n, &[("one", &[10_000.0, 10_000.0]), ("two", rates)]));
        let page = page(both);
        check(&page);
        page.contains("operations per second (logarithmic)")
    };
    assert!(with(&[10.0, 10.0]));
    assert!(!with(&[10.0, 0.0]) && !with(&[9_000.0, 8_000.0]));
}

#[test]
fn the_same_reports_give_the_same_bytes() {
    let make = || page([report(1, &TWO), report(4, &TWO)]);
    assert_eq!(make(), make());
}

#[test]
fn plots_of_others_are_drawn_too() {
    let bar = |label: &str, ours, theirs| Bar {
        label: label.into(),
        series: 0,
        ours,
        range: None,
        theirs,
    };
    let bars = Bars {
        title: "Without parts".into(),
        unit: "% of the whole".into(),
        note: "n".into(),
        scale: Scale::Linear,
        mark: Some(100.0),
        theirs: "the paper".into(),
        groups: vec![Group {
            label: String::new(),
            bars: vec![
                bar("all", Some(100.0), Some(100.0)),
                bar("no log", None, Some(43.2)),
            ],
        }],
    };
    let point = |x: u32| Point {
        x: f64::from(x),
        y: f64::from(x * x),
        range: None,
    };
    let curves = Curves {
        title: "Recovery".into(),
        note: String::new(),
        x: Quantity::new("GiB of staged data", Scale::Linear),
        y: Quantity::new("ms", Scale::Linear),
        lines: vec![Line {
            label: "ours".into(),
            series: 1,
            points: (0..200).map(point).collect(),
        }],
    };
    let spreads = Spreads {
        title: "Spread".into(),
        unit: "us".into(),
        note: String::new(),
        names: ["p50".into(), "p99".into()],
        groups: vec![(
            "g".into(),
            vec![Spread {
                label: "zero has no place".into(),
                series: 2,
                figures: [0.0, 5.0],
            }],
        )],
    };
    let section = Section {
        title: "Papers <1>".into(),
        about: "a & b".into(),
        plots: vec![
            Plot::Bars(bars),
            Plot::Curves(curves),
            Plot::Spreads(spreads),
        ],
    };
    let page = render(&[source(report(1, &TWO))], std::slice::from_ref(&section));
    check(&page);
    let tables = tables(&page);
    let all = &tables[tables.len() - 3..];
    assert_eq!(all[0].1[0], ["", "% of the whole", "the paper"]);
    assert_eq!(
        all[0].1[1..],
        [["all", "100", "100"], ["no log", "–", "43.2"]]
    );
    assert_eq!(
        (all[1].1.len(), &all[1].1[200]),
        (201, &vec!["199".into(), "39.6k".into()])
    );
    assert_eq!(all[2].1[1], ["g", "zero has no place", "0", "5.00"]);
    assert!(page.contains("href=\"#m0\">Papers &lt;1&gt;</a>"));
    assert!(page.contains("dashed: the paper"));
    // Alone, too.
    let page = render(&[], &[section]);
    check(&page);
    assert!(page.contains("<h1>Benchmarks</h1>"));
}

/// All that is kept in the repository: every rate, ratio and latency of it is in a table.
#[test]
fn the_kept_results_are_shown_in_full() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../benches/results");
    let mut files: Vec<_> = std::fs::read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap().path())
        .collect();
    // Others may be kept there that are no reports.
    let kept = ["durable-", "nothing-", "placement-"];
    files.retain(|f| {
        let name = f.file_name().unwrap().to_string_lossy();
        kept.iter().any(|k| name.starts_with(k))
    });
    files.sort_unstable();
    assert!(files.len() >= 12);
    let sources: Vec<Source> = files
        .iter()
        .map(|f| Source::parse(f.to_str().unwrap()).unwrap().0)
        .collect();
    let page = render(&sources, &[]);
    check(&page);
    let tables = tables(&page);
    let rows: std::collections::HashSet<&[String]> =
        tables.iter().flat_map(|t| &t.1).map(|r| &r[..]).collect();
    let has = |row: &[String]| rows.iter().any(|r| r.ends_with(row));
    for w in sources.iter().flat_map(|s| &s.report.workloads) {
        for (n, t) in w.targets.iter().enumerate() {
            let summary = |s: crate::stats::Summary| [s.median, s.min, s.max].map(plot::figure);
            let mut row = summary(t.ops_per_s.unwrap()).to_vec();
            assert!(has(&row), "{} {}: {row:?}", w.name, t.label);
            if n > 0 {
                row = [vec![t.label.clone()], summary(t.ratio.unwrap()).to_vec()].concat();
                assert!(has(&row), "{} {}: {row:?}", w.name, t.label);
            }
            let latency = t.figures().latency.unwrap();
            let us = |at: fn(Latency) -> f64| plot::figure(at(latency));
            row = vec![
                t.label.clone(),
                us(|p| p.p50),
                us(|p| p.p90),
                us(|p| p.p99),
                us(|p| p.p999),
                us(|p| p.max),
            ];
            assert!(has(&row), "{} {}: {row:?}", w.name, t.label);
        }
    }
}
