//! `quayfs bench` as a user runs it: what it prints, stores, refuses and leaves behind.

mod program;

use program::{QUAYFS, Scene, Start as _, can_mount, quayfs};
use quayfs_bench::page::plot::figure;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

fn entries(dir: &Path) -> usize {
    std::fs::read_dir(dir).unwrap().count()
}

/// Unmounts whatever is still there when a test has failed.
struct Unmount(PathBuf);

impl Drop for Unmount {
    fn drop(&mut self) {
        let lazily = Command::new("umount")
            .args(["-i", "-l", "-q"])
            .arg(&self.0)
            .capture();
        drop(lazily);
    }
}

/// Runs `workload` in `dirs`, with more arguments behind: 20 operations, unless a size is given.
fn bench(workload: &str, dirs: &[&str], more: &[&str]) -> program::Run {
    let mut args = vec!["bench", "run", workload, "--warmup", "0", "--settle", "0"];
    args.push("--keep-caches");
    dirs.iter().for_each(|d| args.extend(["--dir", d]));
    args.extend(more);
    if !more.contains(&"--file-size") {
        args.extend(["--ops", "20"]);
    }
    quayfs(args)
}

#[test]
fn the_list_names_every_workload() {
    let text = quayfs(["bench", "list"]).ok();
    for name in ["stat", "overwrite-fsync", "direct-read-16", "seq-write"] {
        assert!(text.contains(&format!("\n  {name} ")), "{name}: {text}");
    }
}

#[test]
fn what_is_wrong_is_said_in_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    bench("nope", &[path], &[]).fails(2, "no workload is called `nope`");
    bench("stat", &["x=/no/such/place"], &[]).fails(1, "/no/such/place: No such file");
    bench("stat", &[path, path], &[]).fails(2, "two directories are called");
    bench("stat", &[path], &["--threads", "0"]).fails(2, "--threads");
    bench("stat", &[path], &["--seconds=-1"]).fails(2, "--seconds");
    bench("stat", &[path], &["--settle", "nan"]).fails(2, "--settle");
    bench("stat", &[path], &["--repeat", "0"]).fails(2, "--repeat");
    bench("read", &[path], &["--file-size", "1K"]).fails(2, "--file-size");
    bench("stat", &[path], &["--daemon", "x=1"]).fails(2, "no --dir has this label");
    bench("stat", &[path], &["--json", "/no/such/place/f"]).fails(1, "/no/such/place/f");
    quayfs(["bench", "run", "stat"]).fails(2, "--dir");
    quayfs(["bench", "show", "/no/such/report"]).fails(1, "/no/such/report");
    let other = dir.path().join("other.json");
    std::fs::write(&other, r#"{"format": 99}"#).unwrap();
    quayfs(["bench", "show", other.to_str().unwrap()]).fails(1, "format 99");
    let page = dir.path().join("page.html");
    let out = ["--out", page.to_str().unwrap()];
    let draw = |files: &[&str], out: &[&str]| quayfs([&["bench", "report"], files, out].concat());
    draw(&["/no/such/report"], &out).fails(1, "/no/such/report");
    draw(&[other.to_str().unwrap()], &out).fails(1, "other.json: not a report");
    draw(&["=x.json"], &out).fails(2, "the name is empty");
    draw(&[], &out).fails(2, "FILE");
    draw(&["x.json"], &[]).fails(2, "--out");
    assert_eq!(entries(dir.path()), 1, "nothing is left behind");
}

#[test]
fn directories_take_turns_and_all_is_stored() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    std::fs::create_dir(&a).unwrap();
    std::fs::create_dir(&b).unwrap();
    let json = dir.path().join("found.json");
    let json = json.to_str().unwrap();
    let dirs = [
        format!("one={}", a.display()),
        format!("two={}", b.display()),
    ];
    let more = ["--json", json, "--commit", "v1-2-gabc", "--seed", "7"];
    let dirs = [&*dirs[0], &*dirs[1]];
    let shown = bench("durable", &dirs, &more).ok();
    assert_eq!((entries(&a), entries(&b)), (0, 0));
    let report: Value = serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
    assert_eq!(report["commit"], "v1-2-gabc");
    assert_eq!(report["failure"], Value::Null);
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    assert_eq!(report["machine"]["kernel"], kernel.trim());
    assert_eq!(report["targets"][1]["label"], "two");
    assert!(!report["targets"][0]["options"].as_str().unwrap().is_empty());
    let workloads = report["workloads"].as_array().unwrap();
    assert_eq!(workloads.len(), 6);
    for w in workloads {
        assert_eq!(
            (&w["params"]["seed"], &w["params"]["ops"]),
            (&7.into(), &20.into())
        );
        let mut turns: Vec<(f64, u64)> = Vec::new();
        for (n, t) in w["targets"].as_array().unwrap().iter().enumerate() {
            let samples = t["samples"].as_array().unwrap();
            assert_eq!(samples.len(), 3);
            for s in samples {
                assert_eq!(
                    (&s["ops"], &s["latency"]["count"]),
                    (&20.into(), &20.into())
                );
                assert_eq!(s["caches_dropped"], false);
                turns.push((s["began"].as_f64().unwrap(), n as u64));
            }
            assert!(t["ratio"]["median"].as_f64().unwrap() > 0.0);
        }
        turns.sort_by(|x, y| x.0.total_cmp(&y.0));
        let order: Vec<u64> = turns.iter().map(|t| t.1).collect();
        assert_eq!(order, [0, 1, 0, 1, 0, 1], "A B A B A B");
        assert!(shown.contains(w["name"].as_str().unwrap()), "{shown}");
    }
    assert_eq!(quayfs(["bench", "show", json]).ok(), shown);
    let out = dir.path().join("found.html");
    let name = |name: &str| format!("{name}={json}");
    let draw = |out: &str| quayfs(["bench", "report", json, &name("again"), "--out", out]);
    assert_eq!(draw(out.to_str().unwrap()).ok(), "");
    let page = std::fs::read_to_string(&out).unwrap();
    for there in [
        "commit v1-2-gabc",
        kernel.trim(),
        "again: ",
        "<svg",
        "found.json",
    ] {
        assert!(page.contains(there), "{there}");
    }
    for w in workloads {
        let heading = format!("<h2>{}</h2>", w["name"].as_str().unwrap());
        assert_eq!(page.matches(&heading).count(), 1, "{heading}");
    }
    draw(out.to_str().unwrap()).ok();
    assert_eq!(
        std::fs::read_to_string(&out).unwrap(),
        page,
        "the same bytes"
    );
    // The report itself stays.
    draw(json).fails(2, "is one of the reports");
    assert_eq!(quayfs(["bench", "show", json]).ok(), shown);
}

/// A little of each run of `bench papers`, with more arguments behind.
fn papers(dir: &Path, json: &Path, more: &[&str]) -> program::Run {
    let mut args = vec!["bench", "papers", "--warmup", "0", "--repeat", "1"];
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
    quayfs(args)
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
    quayfs(["bench", "report", json.to_str().unwrap(), "--out", out_arg]).ok();
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
    quayfs(["bench", "report", other, "--out", out_arg]).fails(1, "papers_format 99");
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
    let shown = quayfs(["bench", "show", json.to_str().unwrap()]).ok();
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
    if !can_mount() {
        return;
    }
    let more = ["rangelock", "nodelog", "--level", "mount"];
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

#[test]
fn a_mount_tells_its_messages_and_a_full_one_fails_the_run() {
    if !can_mount() {
        return;
    }
    let scene = Scene::new();
    let (vol, mnt) = (scene.vol(), scene.mnt());
    quayfs(["mount", vol.to_str().unwrap(), mnt.to_str().unwrap()]).ok();
    let mounted = Unmount(mnt.clone());
    let json = scene.dir().join("found.json");
    let stored = ["--json", json.to_str().unwrap(), "--repeat", "1"];
    let dir = format!("q={}", mnt.display());
    let shown = bench("overwrite-fsync", &[&dir], &stored).ok();
    let report: Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    let seen = &report["workloads"][0]["targets"][0]["samples"][0]["observed"];
    // At least the writes.
    assert!(seen["messages"].as_u64().unwrap() >= 20, "{seen}");
    assert_eq!(seen["counters"]["writes"], 20, "{seen}");
    assert!(seen["daemon_cpu_s"].is_number() && seen["daemon_peak_bytes"].is_number());
    assert!(seen["device_written"].is_number(), "{seen}");
    assert!(report["targets"][0]["status"]["uuid"].is_string());
    assert!(shown.contains("msg/op"), "{shown}");
    assert!(
        shown.contains("q: backend file, durability commit, transport"),
        "{shown}"
    );
    assert_eq!(seen["messages_by_opcode"]["write"], 20, "{seen}");
    // 128 MiB have no room for it; what was found before is kept.
    let large = ["--file-size", "1G", "--json", json.to_str().unwrap()];
    bench("seq-write", &[&dir], &large).fails(1, "No space left on device (os error 28)");
    let report: Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    let failure = report["failure"].as_str().unwrap();
    assert!(failure.starts_with("write "), "{failure}");
    assert_eq!(entries(&mnt), 0, "nothing is left behind");
    quayfs(["umount".as_ref(), mnt.as_os_str()]).ok();
    drop(mounted);
}

#[test]
fn a_signal_stops_it_and_nothing_is_left() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = Command::new(QUAYFS)
        .args([
            "bench",
            "run",
            "create",
            "--keep-caches",
            "--seconds",
            "600",
        ])
        .arg("--dir")
        .arg(dir.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .start()
        .unwrap();
    program::eventually("it has begun", || {
        assert!(child.try_wait().unwrap().is_none(), "it has ended");
        entries(dir.path()) > 0
    });
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let run = program::Run::from(child.wait_with_output().unwrap());
    run.fails(1, "stopped");
    assert_eq!(entries(dir.path()), 0);
}

/// Paper 3's journal in memory beside ext4, all of them on loop devices of one disk, and nothing left of them.
#[test]
fn papers_stand_beside_ext4_on_the_same_kind_of_device() {
    if !program::can_be_root() {
        return;
    }
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
