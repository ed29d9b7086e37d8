//! `quayfs-bench` as a user runs it: what it prints, stores, refuses and leaves behind.

mod papers;
mod program;

use program::{BENCH, Start as _, bench, can_mount, quayfs};
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
fn measure(workload: &str, dirs: &[&str], more: &[&str]) -> program::Run {
    let mut args = vec!["run", workload, "--warmup", "0", "--settle", "0"];
    args.push("--keep-caches");
    dirs.iter().for_each(|d| args.extend(["--dir", d]));
    args.extend(more);
    if !more.contains(&"--file-size") {
        args.extend(["--ops", "20"]);
    }
    bench(args)
}

#[test]
fn the_list_names_every_workload() {
    let text = bench(["list"]).ok();
    for name in ["stat", "overwrite-fsync", "direct-read-16", "seq-write"] {
        assert!(text.contains(&format!("\n  {name} ")), "{name}: {text}");
    }
}

#[test]
fn help_teaches() {
    let text = bench(["--help"]).ok();
    let commands = ["list", "run", "papers", "show", "report"];
    for word in [&commands[..], &["Examples:", "Exit codes: 0"]].concat() {
        assert!(text.contains(word), "{word}: {text}");
    }
    for (command, words) in [
        ("run", ["--dir", "--settle", "--json", "Examples:"]),
        ("papers", ["--level", "--quayfs", "transcm", "Examples:"]),
    ] {
        let text = bench([command, "--help"]).ok();
        for word in words {
            assert!(text.contains(word), "{command}: {word}: {text}");
        }
    }
    assert_eq!(bench(["-h"]).code, 0);
    assert!(bench(["--version"]).ok().starts_with("quayfs-bench "));
}

#[test]
fn wrong_usage_is_one_line_that_names_the_help() {
    for (line, about) in [
        ("", "quayfs-bench --help"),
        ("frobnicate", "'frobnicate'"),
        ("frobnicate", "quayfs-bench --help"),
        ("run", "quayfs-bench run --help"),
        ("papers --turbo", "quayfs-bench papers --help"),
        ("papers --pmem-size 1X", "powers of 1024"),
    ] {
        bench(line.split_whitespace()).fails(2, about);
    }
}

#[test]
fn what_is_wrong_is_said_in_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    measure("nope", &[path], &[]).fails(2, "no workload is called `nope`");
    measure("stat", &["x=/no/such/place"], &[]).fails(1, "/no/such/place: No such file");
    measure("stat", &[path, path], &[]).fails(2, "two directories are called");
    measure("stat", &[path], &["--threads", "0"]).fails(2, "--threads");
    measure("stat", &[path], &["--seconds=-1"]).fails(2, "--seconds");
    measure("stat", &[path], &["--settle", "nan"]).fails(2, "--settle");
    measure("stat", &[path], &["--repeat", "0"]).fails(2, "--repeat");
    measure("read", &[path], &["--file-size", "1K"]).fails(2, "--file-size");
    measure("stat", &[path], &["--daemon", "x=1"]).fails(2, "no --dir has this label");
    measure("stat", &[path], &["--json", "/no/such/place/f"]).fails(1, "/no/such/place/f");
    bench(["run", "stat"]).fails(2, "--dir");
    bench(["show", "/no/such/report"]).fails(1, "/no/such/report");
    let other = dir.path().join("other.json");
    std::fs::write(&other, r#"{"format": 99}"#).unwrap();
    bench(["show", other.to_str().unwrap()]).fails(1, "format 99");
    let page = dir.path().join("page.html");
    let out = ["--out", page.to_str().unwrap()];
    let draw = |files: &[&str], out: &[&str]| bench([&["report"], files, out].concat());
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
    let shown = measure("durable", &dirs, &more).ok();
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
    assert_eq!(bench(["show", json]).ok(), shown);
    let out = dir.path().join("found.html");
    let name = |name: &str| format!("{name}={json}");
    let draw = |out: &str| bench(["report", json, &name("again"), "--out", out]);
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
    assert_eq!(bench(["show", json]).ok(), shown);
}

#[test]
fn a_mount_tells_its_messages_and_a_full_one_fails_the_run() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (vol, mnt) = (dir.path().join("vol"), dir.path().join("mnt"));
    std::fs::create_dir(&mnt).unwrap();
    let size = ["--pmem-size", "32M", "--data-size", "128M", "--sparse"];
    quayfs([&["mkfs", vol.to_str().unwrap()][..], &size].concat()).ok();
    quayfs(["mount", vol.to_str().unwrap(), mnt.to_str().unwrap()]).ok();
    let mounted = Unmount(mnt.clone());
    let json = dir.path().join("found.json");
    let stored = ["--json", json.to_str().unwrap(), "--repeat", "1"];
    let dir = format!("q={}", mnt.display());
    let shown = measure("overwrite-fsync", &[&dir], &stored).ok();
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
    measure("seq-write", &[&dir], &large).fails(1, "No space left on device");
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
    let mut child = Command::new(BENCH)
        .args(["run", "create", "--keep-caches", "--seconds", "600"])
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
