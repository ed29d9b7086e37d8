//! The mechanisms of the papers, a little of each run.

use crate::entries;
use crate::program::{Run, Start as _, bench, can_be_root, can_mount, mounter};
use quayfs_bench::page::plot::figure;
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// A little of each run of `papers`, with more arguments behind.
fn papers(dir: &Path, json: &Path, more: &[&str]) -> Run {
    let mut args = vec!["papers", "--warmup", "0", "--repeat", "1"];
    args.extend(["--threads", "1", "--ops", "20", "--files", "40"]);
    args.extend(["--recovery-files", "50,500", "--recovery-data", "128M,256M"]);
    args.extend([
        "--file-size",
        "1M",
        "--pmem-size",
        "32M",
        "--data-size",
        "256M",
    ]);
    for place in ["--data", "--pmem", "--dir"] {
        args.extend([place, dir.to_str().unwrap()]);
    }
    args.extend(["--json", json.to_str().unwrap()]);
    args.extend(more);
    bench(args)
}

#[test]
fn papers_compares_every_mechanism_without_a_kernel() {
    let scene = tempfile::tempdir().unwrap();
    let dir = scene.path().join("volumes");
    std::fs::create_dir(&dir).unwrap();
    let json = scene.path().join("found.json");
    let shown = papers(&dir, &json, &["--commit", "v1-2-gabc"]).ok();
    assert_eq!(entries(&dir), 0, "nothing is left behind");
    let report: Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    assert_eq!(
        (&report["papers_format"], &report["failure"]),
        (&1.into(), &Value::Null)
    );
    assert_eq!(report["commit"], "v1-2-gabc");
    assert!(report["machine"]["kernel"].is_string() && report["data"]["fstype"].is_string());
    let experiments = report["experiments"].as_array().unwrap();
    let names: Vec<&str> = experiments
        .iter()
        .map(|e| e["name"].as_str().unwrap())
        .collect();
    let papers = ["staging", "ppt", "transcm", "rangelock", "nodelog"];
    assert_eq!(names, [&papers[..], &["together"]].concat());
    for e in experiments {
        assert!(shown.contains(e["mechanism"].as_str().unwrap()), "{shown}");
        for cell in e["cells"].as_array().unwrap() {
            assert_eq!(cell["level"], "ops");
            let variants = cell["variants"].as_array().unwrap();
            let targets = cell["workload"]["targets"].as_array().unwrap();
            assert_eq!(variants.len(), targets.len());
            for t in targets {
                let sample = &t["samples"][0];
                assert!(sample["ops"].as_u64().unwrap() > 0, "{cell}");
                assert!(sample["observed"]["device_written"].is_number(), "{cell}");
                assert!(sample["observed"]["messages"].is_null(), "{cell}");
            }
            for c in cell["comparisons"].as_array().unwrap() {
                // Runs as small as this may write no data at all.
                if !c["unit"].as_str().unwrap().starts_with("bytes") {
                    assert!(c["ratio"]["median"].as_f64().unwrap() > 0.0, "{c}");
                }
            }
        }
    }
    what_is_compared(&shown, experiments);
    papers_page(scene.path(), &json, &report);
    let recovery = experiments[2]["recovery"].as_array().unwrap();
    let series = |by: &str, of: &str| -> Vec<u64> {
        let rows = recovery.iter().filter(|r| r["by"] == by);
        rows.map(|r| r[of].as_u64().unwrap()).collect()
    };
    let staged = series("staged", "staged_bytes");
    assert!(staged.is_sorted() && staged.len() == 4, "{recovery:?}");
    assert_eq!(series("files", "files"), [50, 500]);
    assert_eq!(series("data", "data_bytes"), [128 << 20, 256 << 20]);
    assert!(recovery.iter().all(|r| r["records"].as_u64().unwrap() > 0));
}

/// Comparisons that change several mechanisms say so, and those of checkpoints how many blocks were swapped.
fn what_is_compared(shown: &str, experiments: &[Value]) {
    let all = |e: &Value| -> Vec<Value> {
        let cells = e["cells"].as_array().unwrap().iter();
        cells
            .flat_map(|c| c["comparisons"].as_array().unwrap().clone())
            .collect()
    };
    let central = |c: &&Value| c["of"] == "sharded" && c["to"] == "central";
    let staging = all(&experiments[0]);
    for c in staging.iter().filter(central) {
        assert!(c["differ"].is_null(), "{c}");
    }
    assert!(staging.iter().any(|c| central(&c)));
    let several = "differ in staging, checkpoint policy, checkpoint workers";
    assert!(shown.contains(several), "{shown}");
    let ppt = &experiments[1];
    for cell in ppt["cells"].as_array().unwrap() {
        let first = &cell["comparisons"][0];
        assert_eq!(first["to"], "inplace", "{first}");
    }
    for c in all(ppt).iter().filter(|c| c["of"] == "adaptive") {
        let [swapped, written] = [0, 1].map(|n| c["swapped"][n].as_u64().unwrap());
        let said = match swapped {
            _ if written == 0 => "no block was written while it was measured".to_owned(),
            0 => "no block of adaptive was swapped".to_owned(),
            n => format!("{n} of {written} blocks of adaptive were swapped"),
        };
        assert!(shown.contains(&said), "{said}: {shown}");
    }
    for e in experiments.iter().filter(|e| e["name"] != "together") {
        let machine = e["machine"].as_str().unwrap();
        assert!(!machine.is_empty() && shown.contains(machine), "{shown}");
    }
}

/// The page has each figure of the report.
fn papers_page(dir: &Path, json: &Path, report: &Value) {
    let out = dir.join("page.html");
    let out_arg = out.to_str().unwrap();
    bench(["report", json.to_str().unwrap(), "--out", out_arg]).ok();
    let page = std::fs::read_to_string(&out).unwrap();
    let has = |text: &str| assert!(page.contains(text), "{text}");
    let cell = |n: &Value| {
        if let Some(n) = n.as_f64() {
            has(&format!("<td>{}</td>", figure(n)));
        }
    };
    has("v1-2-gabc");
    has(report["machine"]["kernel"].as_str().unwrap());
    for e in report["experiments"].as_array().unwrap() {
        has(e["mechanism"].as_str().unwrap());
        has(e["paper"].as_str().unwrap());
        has(e["machine"].as_str().unwrap());
        for c in e["cells"].as_array().unwrap() {
            for t in c["workload"]["targets"].as_array().unwrap() {
                cell(&t["ops_per_s"]["median"]);
            }
            for v in c["variants"].as_array().unwrap() {
                has(v["options"].as_str().unwrap());
            }
            for c in c["comparisons"].as_array().unwrap() {
                cell(&c["ratio"]["median"]);
                match c["paper"].as_str().map(|p| (p, p.parse::<f64>())) {
                    Some((_, Ok(n))) => has(&format!("<td>{}</td>", figure(n))),
                    Some((p, Err(_))) => has(p),
                    None => {}
                }
            }
        }
    }
    let other = dir.join("other.json");
    std::fs::write(&other, r#"{"papers_format": 99}"#).unwrap();
    let other = other.to_str().unwrap();
    bench(["report", other, "--out", out_arg]).fails(1, "papers_format 99");
}

#[test]
fn papers_runs_what_is_chosen() {
    let scene = tempfile::tempdir().unwrap();
    let json = scene.path().join("found.json");
    let chosen = ["rangelock", "--workload", "DWOL", "--variant", "range"];
    papers(scene.path(), &json, &chosen).ok();
    let report: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let cells = report["experiments"][0]["cells"].as_array().unwrap();
    assert_eq!(cells.len(), 1);
    assert_eq!(cells[0]["workload"]["name"], "DWOL");
    let targets = cells[0]["workload"]["targets"].as_array().unwrap();
    assert!(targets.len() == 1 && targets[0]["label"] == "range");
    assert!(cells[0]["comparisons"].as_array().unwrap().is_empty());
    let shown = bench(["show", json.to_str().unwrap()]).ok();
    assert!(shown.contains("DWOL") && shown.contains("range"), "{shown}");
}

#[test]
fn papers_mounts_and_refuses() {
    let scene = tempfile::tempdir().unwrap();
    let dir = scene.path().join("volumes");
    std::fs::create_dir(&dir).unwrap();
    let json = scene.path().join("found.json");
    papers(&dir, &json, &["nope"]).fails(2, "no experiment is called `nope`: staging");
    papers(&dir, &json, &["--workload", "DWOL", "--variant", "ssd"]).fails(2, "no row of these");
    papers(&dir, &json, &["nodelog", "-o", "nope"]).fails(2, "--options");
    papers(&dir, &json, &["nodelog", "--seed", "x"]).fails(2, "--seed");
    assert_eq!(entries(&dir), 0, "nothing is left behind");
    let more = ["rangelock", "nodelog", "--level", "mount"];
    for (program, about) in [
        ("/no/such/program", "/no/such/program: No such file"),
        ("/bin/true", "/bin/true: not quayfs"),
    ] {
        let named = [&more[..], &["--quayfs", program]].concat();
        papers(&dir, &json, &named).fails(1, about);
    }
    assert_eq!(entries(&dir), 0, "nothing is left behind");
    if !can_mount() {
        return;
    }
    mounter();
    let shown = papers(&dir, &json, &more).ok();
    assert!(shown.contains("  mount, durability=op: DWOM"), "{shown}");
    assert_eq!(entries(&dir), 0, "nothing is left behind");
    let report: Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    for e in report["experiments"].as_array().unwrap() {
        for cell in e["cells"].as_array().unwrap() {
            assert_eq!(cell["level"], "mount");
            for t in cell["workload"]["targets"].as_array().unwrap() {
                let seen = &t["samples"][0]["observed"];
                assert!(seen["messages"].as_u64().unwrap() > 0, "{seen}");
            }
        }
    }
}

/// Paper 3's journal in memory beside ext4, all of them on loop devices of one disk, and nothing left of them.
#[test]
fn papers_stand_beside_ext4_on_the_same_kind_of_device() {
    if !can_be_root() {
        return;
    }
    mounter();
    let scene = tempfile::tempdir().unwrap();
    let dir = scene.path().join("volumes");
    std::fs::create_dir(&dir).unwrap();
    let json = scene.path().join("found.json");
    let variants =
        "journal,ext4 writeback,ext4 writeback + journal in memory,ext4 journal in memory";
    let chosen = ["transcm", "--level", "mount", "--variant", variants];
    let shown = papers(&dir, &json, &chosen).ok();
    assert_eq!(entries(&dir), 0, "nothing is left behind");
    let loops = Command::new("losetup").arg("--list").capture().unwrap();
    let loops = String::from_utf8_lossy(&loops.stdout).into_owned();
    assert!(!loops.contains(dir.to_str().unwrap()), "{loops}");
    let report: Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    let cells = report["experiments"][0]["cells"].as_array().unwrap();
    let beside = |c: &&Value| c["variants"].as_array().unwrap().len() == 4;
    let cell = cells.iter().find(beside).unwrap();
    let ext4: Vec<&str> = (cell["variants"].as_array().unwrap().iter())
        .filter_map(|v| v["kernel"].as_str())
        .collect();
    assert_eq!(ext4.len(), 3, "{cell}");
    for what in &ext4 {
        assert!(shown.contains(what), "{shown}");
    }
    for c in cell["comparisons"].as_array().unwrap().iter().take(3) {
        assert_eq!(c["of"], "journal");
        assert!(c["ratio"]["median"].as_f64().unwrap() > 0.0, "{c}");
    }
    let targets = cell["workload"]["targets"].as_array().unwrap();
    for t in targets {
        let seen = &t["samples"][0]["observed"];
        assert!(seen["device_written"].is_number(), "{t}");
        let messages = seen["messages"].as_u64();
        assert_eq!(messages.is_some(), t["label"] == "journal", "{t}");
    }
}
