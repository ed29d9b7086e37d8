//! Reports that ended early, are old or hostile, or are none.

use super::*;

#[test]
fn what_ended_early_says_so() {
    let mut early = report(1, &[("one", &[5.0, 6.0]), ("two", &[7.0])]);
    early.failure = Some("write /m/<f>: No space left".into());
    let shown = page([early.clone()]);
    check(&shown);
    assert!(shown.contains("report 1 ended early: <b>write /m/&lt;f&gt;: No space left</b>"));
    assert!(shown.contains("2 repetitions, but 1 of two with 1 thread."));
    early.workloads[0].targets[1].samples.clear();
    early.workloads[0].summarize();
    let shown = page([early.clone()]);
    check(&shown);
    assert_eq!(tables(&shown)[0].1[2], ["two", "–", "–", "–"]);
    // Nothing at all.
    early.workloads[0].targets[0].samples.clear();
    early.workloads[0].summarize();
    check(&page([early.clone()]));
    early.workloads.clear();
    let shown = page([early]);
    check(&shown);
    assert!(shown.contains("Nothing was measured in report 1"));
}

#[test]
fn operations_that_never_ended_have_no_latency() {
    let mut none = report(1, &TWO);
    for t in &mut none.workloads[0].targets {
        for s in &mut t.samples {
            (s.ops, s.ops_per_s, s.latency) = (0, 0.0, Percentiles::default());
            s.steps.clear();
        }
    }
    none.workloads[0].summarize();
    let page = page([none]);
    check(&page);
    assert_eq!(tables(&page).len(), 1);
}

#[test]
fn text_of_users_stays_text() {
    let nasty = "</svg><script>\"'&lt;\u{0}\u{1b}\u{ffff}";
    let mut hurt = report(1, &[(nasty, &[1.0, 2.0]), ("b\"&", &[3.0, 4.0])]);
    hurt.commit = Some(nasty.into());
    hurt.command.push(nasty.into());
    hurt.failure = Some(nasty.into());
    hurt.targets[0].options = nasty.into();
    (hurt.machine.cpu, hurt.machine.kernel) = (nasty.into(), nasty.into());
    (hurt.workloads[0].name, hurt.workloads[0].about) = (nasty.into(), nasty.into());
    hurt.workloads[0].targets[0].samples[0].steps[0].name = nasty.into();
    let mut named = source(hurt);
    (named.file, named.name) = (nasty.into(), Some(nasty.into()));
    let page = render(&[named.clone(), named], &[]);
    check(&page);
    assert!(!page.contains("<script"));
    let readable = nasty.replace(['\u{0}', '\u{1b}', '\u{ffff}'], "\u{fffd}");
    let document = Document::parse(body(&page)).unwrap();
    let cells: Vec<String> = named_text(&document, "th");
    assert!(
        cells.contains(&readable) && cells.contains(&"b\"&".to_owned()),
        "{cells:?}"
    );
}

fn named_text(document: &Document<'_>, name: &str) -> Vec<String> {
    named(document.root(), name).map(text).collect()
}

/// A report as an earlier build stored it, without what it did not know.
#[test]
fn older_reports_without_optional_fields_are_read() {
    let mut value = serde_json::to_value(report(1, &TWO)).unwrap();
    value.as_object_mut().unwrap().remove("commit");
    value.as_object_mut().unwrap().remove("failure");
    for t in value["targets"].as_array_mut().unwrap() {
        t.as_object_mut().unwrap().remove("status");
    }
    for t in value["workloads"][0]["targets"].as_array_mut().unwrap() {
        for s in t["samples"].as_array_mut().unwrap() {
            s.as_object_mut().unwrap().remove("steps");
            for gone in [
                "messages",
                "messages_by_opcode",
                "counters",
                "staging_wraps",
                "daemon_cpu_s",
                "device_written",
            ] {
                s["observed"].as_object_mut().unwrap().remove(gone);
            }
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("old.json");
    std::fs::write(&path, value.to_string()).unwrap();
    let (old, _) = Source::parse(path.to_str().unwrap()).unwrap();
    assert_eq!((&*old.file, &old.name), ("old.json", &None));
    let page = render(&[old], &[]);
    check(&page);
    assert!(tables(&page).iter().all(|t| !t.0.contains("steps")));
}

/// Page and tables of a report that is kept without its samples.
#[test]
fn a_report_without_its_samples_shows_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let (stored, kept) = (dir.path().join("a.json"), dir.path().join("kept.json"));
    let mut whole = report(4, &TWO);
    whole.workloads[0].targets[1].samples[0].observed = crate::observe::Observed {
        messages: Some(250),
        staging_wraps: Some(1.5),
        settled: [true, false],
        ..Default::default()
    };
    whole.store(&stored).unwrap();
    let text = crate::figures::kept(&stored).unwrap();
    assert!(!text.contains("repetition\""), "{text}");
    std::fs::write(&kept, &text).unwrap();
    let shown = |path| {
        let report = Report::load(path).unwrap();
        let table = crate::table::render(&report);
        (table, page([report]))
    };
    assert_eq!(shown(&kept), shown(&stored));
    assert!(shown(&kept).0.contains("staging filled 1.50 times"));
    // What has none stays as it is.
    assert_eq!(crate::figures::kept(&kept).unwrap(), text);
}

#[test]
fn what_is_no_report_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("other.json");
    let path = path.to_str().unwrap();
    for (content, why) in [
        ("", "EOF"),
        ("[1]", "names no format"),
        (r#"{"format": 2}"#, "format 2"),
        (r#"{"format": 1}"#, "missing field"),
    ] {
        std::fs::write(path, content).unwrap();
        let e = Source::parse(path).unwrap_err().to_string();
        assert!(e.starts_with(path) && e.contains(why), "{e}");
    }
    let e = Source::parse("x=/no/such/file").unwrap_err().to_string();
    assert!(e.starts_with("/no/such/file: "), "{e}");
    let e = Source::parse("=f").unwrap_err().to_string();
    assert!(e.contains("the name is empty"), "{e}");
}
