//! Which reports become one line, and which do not.

use super::*;

#[test]
fn reports_that_differ_in_threads_only_become_lines() {
    let page = page([report(16, &TWO), report(1, &TWO), report(4, &TWO)]);
    check(&page);
    let tables = tables(&page);
    let rows = &tables[0].1;
    assert_eq!(rows.len(), 7);
    assert_eq!(
        rows[0],
        ["", "threads", "operations per second", "min", "max"]
    );
    assert_eq!(rows[2], ["one", "4", "100", "90.0", "110"]);
    assert_eq!(
        tables[1].1[3],
        ["16 threads", "two", "0.600", "0.500", "0.600"]
    );
    assert!(page.contains("commit abc1234; 1, 4 and 16 threads; reports 2, 3 and 1"));
    let document = Document::parse(body(&page)).unwrap();
    let plot = named(document.root(), "figure").next().unwrap();
    let drawing = plot.children().find(|c| c.has_tag_name("svg")).unwrap();
    let curves: Vec<_> = drawing
        .descendants()
        .filter(|n| class(*n, "curve"))
        .collect();
    assert_eq!(curves.len(), 2);
    for c in &curves {
        let count = |name| c.descendants().filter(|n| class(*n, name)).count();
        assert_eq!(
            (count("line"), count("point"), count("whiskers")),
            (1, 3, 3)
        );
    }
    // Not told apart by colour alone.
    let dashes = |n: usize| {
        let line = curves[n].descendants().find(|n| class(*n, "line")).unwrap();
        line.attribute("stroke-dasharray").map(str::to_owned)
    };
    assert_ne!(dashes(0), dashes(1));
    assert!(!page.contains("class=\"warn\""));
}

/// Whether two reports of different threads became one line.
fn joined(a: Report, b: Report) -> bool {
    let page = page([a, b]);
    check(&page);
    let joined = page.contains("1 and 4 threads");
    assert_eq!(
        joined,
        tables(&page).iter().filter(|t| t.0 == "Throughput").count() == 1
    );
    joined
}

type Change = fn(&mut Report);

#[test]
fn nothing_else_may_differ() {
    let pair = || (report(1, &TWO), report(4, &TWO));
    let (a, b) = pair();
    assert!(joined(a, b));
    let changes: [(&str, Change); 11] = [
        ("commit", |r| r.commit = Some("fff".into())),
        ("commit", |r| r.commit = None),
        ("version", |r| r.version = "0.2.0".into()),
        ("kernel", |r| r.machine.kernel = "6.19.0".into()),
        ("machine", |r| r.machine.cpus = 4),
        ("limits of disks", |r| {
            r.machine.io_limits.push("8:0 wbps=1".into())
        }),
        ("directories or their options", |r| {
            r.targets[1].options = "ro".into()
        }),
        ("directories or their options", |r| {
            r.targets[0].status = Some(serde_json::json!({ "durability": "op" }));
        }),
        ("binding of threads", |r| r.command.push("--pin".into())),
        ("", |r| r.workloads[0].params.seconds = 9.0),
        ("", |r| {
            r.workloads[0].targets[0].samples[0].caches_dropped = true
        }),
    ];
    for (difference, change) in changes {
        let (a, mut b) = pair();
        change(&mut b);
        let both = page([a.clone(), b.clone()]);
        let said = format!("These benchmarks differ in {difference}:");
        assert_eq!(both.contains(&said), !difference.is_empty(), "{difference}");
        assert!(!joined(a, b), "{difference}");
    }
    let (a, mut b) = pair();
    assert_eq!(
        page([a.clone(), b.clone()])
            .matches("One operation:")
            .count(),
        1
    );
    b.workloads[0].about = "something else".into();
    let both = page([a.clone(), b.clone()]);
    assert!(both.contains("One operation: something else.") && !joined(a, b));
    let (a, b) = pair();
    let mut sources = [source(a), source(b)];
    sources[0].name = Some("idle".into());
    assert!(!render(&sources, &[]).contains("1 and 4 threads"));
    sources[1].name = Some("idle".into());
    assert!(render(&sources, &[]).contains("idle: commit abc1234; 1 and 4 threads"));
}

#[test]
fn an_unknown_commit_is_told() {
    let mut unknown = report(1, &TWO);
    unknown.commit = None;
    assert!(page([unknown]).contains("No commit is stored in report 1"));
}

#[test]
fn reports_that_cannot_be_told_apart_are_not_joined() {
    let page = page([report(1, &TWO), report(4, &TWO), report(1, &TWO)]);
    check(&page);
    assert_eq!(
        page.matches("Nothing that is stored tells reports 1, 2 and 3 apart")
            .count(),
        1
    );
    assert_eq!(
        tables(&page).iter().filter(|t| t.0 == "Throughput").count(),
        3
    );
}
