//! A checker of the text format, by its specification (OpenMetrics 1.0), and what it says of ours.

use super::catalogue::{self, families};
use super::openmetrics::text;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// A sample as it was read: name, labels, number.
type Read = (String, BTreeMap<String, String>, f64);

/// Labels between braces, unescaped.
fn labels(mut rest: &str) -> Result<(BTreeMap<String, String>, &str), String> {
    let mut found = BTreeMap::new();
    loop {
        let (name, after) = rest.split_once("=\"").ok_or("a label without a value")?;
        if !is_name(name) || name.contains(':') {
            return Err(format!("`{name}` is no name of a label"));
        }
        let mut value = String::new();
        let mut chars = after.char_indices();
        let end = loop {
            match chars.next().ok_or("a value without an end")? {
                (at, '"') => break at,
                (_, '\\') => value.push(match chars.next().ok_or("half an escape")?.1 {
                    'n' => '\n',
                    c @ ('\\' | '"') => c,
                    c => return Err(format!("the escape \\{c}")),
                }),
                (_, c) => value.push(c),
            }
        };
        if found.insert(name.to_string(), value).is_some() {
            return Err(format!("{name} twice"));
        }
        rest = &after[end + 1..];
        match rest.strip_prefix(',') {
            Some(more) => rest = more,
            None => {
                let rest = rest
                    .strip_prefix("} ")
                    .ok_or("no space behind the labels")?;
                return Ok((found, rest));
            }
        }
    }
}

fn is_name(name: &str) -> bool {
    let begins = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_' || c == ':');
    begins
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || c == '_' || c == ':')
}

fn sample(line: &str) -> Result<Read, String> {
    let (name, rest) = line.split_once('{').ok_or("no labels")?;
    let (labels, number) = labels(rest)?;
    let number = number
        .parse()
        .map_err(|_| format!("`{number}` is no number"))?;
    Ok((name.to_string(), labels, number))
}

/// The family that is being read.
#[derive(Default)]
struct Open {
    name: String,
    kind: String,
    samples: Vec<Read>,
}

impl Open {
    fn suffixes(&self) -> Result<&'static [&'static str], String> {
        Ok(match self.kind.as_str() {
            "counter" => &["_total"],
            "gauge" => &[""],
            "info" => &["_info"],
            "histogram" => &["_bucket", "_count", "_sum"],
            other => return Err(format!("the type {other}")),
        })
    }

    fn check(&self) -> Result<(), String> {
        let mut seen = BTreeSet::new();
        for (name, labels, number) in &self.samples {
            let suffix = name
                .strip_prefix(&self.name)
                .ok_or(format!("{name} in {}", self.name))?;
            if !self.suffixes()?.contains(&suffix) {
                return Err(format!("{name} in a {}", self.kind));
            }
            if !seen.insert((name, labels)) {
                return Err(format!("{name} {labels:?} twice"));
            }
            let bad = match self.kind.as_str() {
                "info" => *number != 1.0,
                "gauge" => false,
                _ => !number.is_finite() || *number < 0.0,
            };
            if bad {
                return Err(format!("{name} is {number}"));
            }
        }
        if self.kind == "histogram" {
            self.check_buckets()?;
        }
        Ok(())
    }

    fn check_buckets(&self) -> Result<(), String> {
        let mut of: BTreeMap<Vec<(String, String)>, (f64, f64)> = BTreeMap::new();
        for (name, labels, number) in &self.samples {
            let mut labels = labels.clone();
            let le = labels.remove("le");
            let last = of
                .entry(labels.into_iter().collect())
                .or_insert((-1.0, 0.0));
            match le {
                Some(le) => {
                    let le = if le == "+Inf" {
                        f64::INFINITY
                    } else {
                        le.parse().map_err(|_| le)?
                    };
                    if le <= last.0 || *number < last.1 {
                        return Err(format!("{name}: buckets out of order"));
                    }
                    *last = (le, *number);
                }
                None if name.ends_with("_count") && (last.0.is_finite() || *number != last.1) => {
                    return Err(format!("{name} is not the last bucket"));
                }
                None => {}
            }
        }
        Ok(())
    }
}

/// Every sample of a text in the format.
fn check(text: &str) -> Result<Vec<Read>, String> {
    let text = text.strip_suffix("# EOF\n").ok_or("no end")?;
    let mut names = BTreeSet::new();
    let (mut open, mut all) = (Open::default(), Vec::new());
    for line in text.lines() {
        let words: Vec<_> = line.splitn(4, ' ').collect();
        match words[..] {
            ["#", "TYPE", name, kind] => {
                open.check()?;
                all.append(&mut open.samples);
                if !is_name(name) || !names.insert(name.to_string()) {
                    return Err(format!("{name} twice, or no name"));
                }
                (open.name, open.kind) = (name.into(), kind.into());
            }
            ["#", "UNIT", name, unit] if name == open.name && open.samples.is_empty() => {
                if !name.ends_with(&format!("_{unit}")) {
                    return Err(format!("{name} does not end in {unit}"));
                }
            }
            ["#", "HELP", name, _] if name == open.name && open.samples.is_empty() => {}
            ["#", ..] | [""] => return Err(format!("`{line}`")),
            _ => open.samples.push(sample(line)?),
        }
    }
    open.check()?;
    all.append(&mut open.samples);
    Ok(all)
}

fn status() -> Value {
    json!({
        "version": "0.1.0", "label": "a \"label\"\nof \\ two lines", "blocks": 10, "blocks_free": 4,
        "read_only": true, "uptime_ms": 1500, "scrub": { "findings": 3 },
        "counters": { "requests": 7, "bytes_written": 8, "device_flush_us": 2_500_000 },
        "messages": { "write": 5, "read": 2 },
        "latencies": { "write": { "classes": [1, 0, 4], "nanos": 3_000 }, "read": { "classes": [2], "nanos": 9 } },
    })
}

#[test]
fn what_is_printed_is_the_format() {
    let text = text(&families(&status()), "/srv/v\"");
    let all = check(&text).unwrap_or_else(|e| panic!("{e}:\n{text}"));
    let find = |name: &str, label: Option<(&str, &str)>| {
        let fits = |r: &&Read| {
            r.0 == name && label.is_none_or(|(l, v)| r.1.get(l).is_some_and(|x| x == v))
        };
        all.iter()
            .find(fits)
            .unwrap_or_else(|| panic!("{name}"))
            .clone()
    };
    assert_eq!(find("quayfs_data_size_bytes", None).2, 40_960.0);
    assert_eq!(find("quayfs_written_bytes_total", None).2, 8.0);
    assert_eq!(find("quayfs_device_flush_seconds_total", None).2, 2.5);
    assert_eq!(find("quayfs_uptime_seconds", None).2, 1.5);
    assert_eq!(find("quayfs_read_only", None).2, 1.0);
    assert_eq!(find("quayfs_scrub_findings", None).2, 3.0);
    assert_eq!(
        find("quayfs_messages_total", Some(("kind", "write"))).2,
        5.0
    );
    assert_eq!(
        find("quayfs_request_seconds_count", Some(("kind", "write"))).2,
        5.0
    );
    assert_eq!(
        find("quayfs_request_seconds_bucket", Some(("le", "0.000001024"))).2,
        2.0
    );
    let mount = find("quayfs_mount_info", None);
    assert_eq!(mount.1["label"], "a \"label\"\nof \\ two lines");
    assert_eq!(mount.1["volume"], "/srv/v\"");
}

#[test]
fn the_checker_sees_what_is_not() {
    let good = "# TYPE a_bytes counter\n# UNIT a_bytes bytes\n# HELP a_bytes x\na_bytes_total{v=\"\"} 1\n# EOF\n";
    assert_eq!(check(good).map(|all| all.len()), Ok(1));
    for (from, to) in [
        ("# EOF\n", ""),
        ("_total", ""),
        ("a_bytes bytes", "a_bytes seconds"),
        ("} 1", "} -1"),
        ("} 1", "} one"),
        ("{v=\"\"}", ""),
        ("{v=\"\"}", "{v=\"\",v=\"\"}"),
        ("{v=\"\"}", "{v=\"\\x\"}"),
        ("{v=\"\"}", "{1=\"\"}"),
        ("counter", "histogram"),
        ("counter", "number"),
        ("# HELP a_", "# HELP b_"),
        ("# EOF", "# TYPE a_bytes gauge\n# EOF"),
        ("# EOF", "\n# EOF"),
    ] {
        let bad = good.replacen(from, to, 1);
        assert!(check(&bad).is_err(), "{bad}");
    }
}

/// Every name that a mount has, with what the samples of its kind end in.
fn all_names() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for family in families(&status()) {
        let suffixes: &[&str] = match family.kind.word() {
            "counter" => &["_total"],
            "info" => &["_info"],
            "histogram" => &["_bucket", "_count", "_sum"],
            _ => &[""],
        };
        names.extend(suffixes.iter().map(|s| format!("{}{s}", family.name)));
    }
    names
}

/// Words of a text that are names of ours.
fn ours(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words
        .filter(|w| w.starts_with("quayfs_"))
        .map(str::to_string)
        .collect()
}

#[test]
fn the_dashboard_asks_for_what_there_is() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/packaging/grafana/quayfs.json");
    let board: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let mut asked = BTreeSet::new();
    let panels = board["panels"].as_array().unwrap();
    // A row for each volume is a panel without data.
    for panel in panels.iter().filter(|panel| panel["type"] != "row") {
        for target in panel["targets"].as_array().unwrap() {
            asked.append(&mut ours(target["expr"].as_str().unwrap()));
        }
    }
    assert!(panels.len() >= 8 && asked.len() >= 15, "{asked:?}");
    let unknown: Vec<_> = asked.difference(&all_names()).cloned().collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}

#[test]
fn the_page_describes_every_family() {
    let page =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/stats.md")).unwrap();
    let table = page.split_once("## The metrics").unwrap().1;
    let rows: Vec<String> = table
        .lines()
        .filter(|line| line.starts_with("| `"))
        .map(str::to_string)
        .collect();
    let row = |f: &catalogue::Family| {
        let kind = f.kind.word();
        format!("| `{}` | {kind} | {} | {} |", f.name, f.unit, f.help)
    };
    let due: Vec<String> = families(&status()).iter().map(row).collect();
    let missing: Vec<_> = due
        .iter()
        .filter(|row| !rows.contains(row))
        .cloned()
        .collect();
    let stale: Vec<_> = rows
        .iter()
        .filter(|row| !due.contains(row))
        .cloned()
        .collect();
    assert!(
        rows == due,
        "docs/stats.md, The metrics: the rows are those of the program, in its order.\nmissing:\n{}\nstale:\n{}",
        missing.join("\n"),
        stale.join("\n")
    );
}
