use super::super::{All, SCHEMA};
use super::*;
use crate::mount::table::Entry;
use rustix::process::geteuid;
use serde_json::json;
use std::collections::BTreeSet;

/// The status of a mount at work, in part.
fn status() -> Value {
    json!({
        "volume": "/srv/vol", "uuid": "u", "label": "", "backend": "file", "durability": "commit",
        "options": "rw,data=journal,commit=5,writethrough", "read_only": false, "read_only_reason": null,
        "blocks": 1000, "blocks_free": 750, "files": 100, "sequence": [9, 9, 9, 5], "files_free": 90, "pmem_bytes": 1 << 28,
        "slots": 200, "slots_used": 50, "node_pages": 400, "node_pages_used": 100, "staged_blocks": 30,
        "commit_age_ms": 2500, "device_silent_ms": 0, "damage_met": 0, "errors": [{ "time": 7, "count": 2, "what": "odd" }],
        "scrub": { "pass": 1, "state": "finished", "bytes": 10, "total_bytes": 10, "findings": 0, "ended": 99 },
        "pid": 17, "version": "0.1.0", "started": 5, "uptime_ms": 65_000, "restarts": 0, "last_death": null,
        "counters": { "blocks_written": 20, "round_us": 2_000_000, "read_errors": 0 },
    })
}

/// A mount that is well.
pub fn sample() -> Report {
    Report::live(Path::new("/mnt/q"), false, &status())
}

#[test]
fn what_the_daemon_counts_in_blocks_is_told_in_bytes() {
    let r = sample();
    let data = r.data.unwrap();
    assert_eq!((data.used_bytes, data.total_bytes), (250 * B, 1000 * B));
    let inodes = r.inodes.unwrap();
    assert_eq!((inodes.used, inodes.total), (10, 100));
    let region = r.region.unwrap();
    assert_eq!(region.staging_used_bytes, 50 * B);
    assert_eq!(region.metadata_bytes, 400 * B);
    assert_eq!((r.last_commit_seconds, r.label), (Some(2), None));
    assert_eq!(r.errors.recent[0].what, "odd");
    assert_eq!(r.uncommitted, Some(false));
}

#[test]
fn draining_takes_as_long_as_rounds_have_taken() {
    // 20 blocks in 2 seconds are 10 a second.
    let staged = sample().staged.unwrap();
    assert_eq!(staged.drain_bytes_per_second, Some(10 * B));
    assert_eq!(staged.drain_seconds, Some(3));
    let mut s = status();
    s["counters"]["round_us"] = json!(0);
    let staged = super::staged(&s).unwrap();
    assert_eq!(
        (staged.drain_bytes_per_second, staged.drain_seconds),
        (None, None)
    );
    s["staged_blocks"] = json!(0);
    assert_eq!(super::staged(&s).unwrap().drain_seconds, Some(0));
}

#[test]
fn a_mount_whose_supervisor_is_gone_is_told_from_one_that_never_had_one() {
    for (why, lost) in [
        (json!(SUPERVISOR_GONE), true),
        (json!(MANAGER_GONE), true),
        (json!("norestart"), false),
        (json!(null), false),
    ] {
        let mut s = status();
        s["ends_with_daemon"] = why.clone();
        let r = Report::live(Path::new("/m"), false, &s);
        assert_eq!(r.goes_on, Some(why.is_null()), "{why}");
        assert_eq!(r.health == Health::Degraded, lost, "{why}");
    }
}

#[test]
fn a_daemon_that_says_nothing_is_no_reason_to_fail() {
    let r = Report::live(Path::new("/m"), false, &json!({}));
    assert!(r.data.is_none() && r.daemon.is_none() && r.log.is_none());
    assert_eq!(r.health, Health::Ok);
}

/// The fields of a value, by their paths; of a list those of its elements.
fn paths(value: &Value, path: &str, out: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                let path = format!("{path}.{key}");
                out.insert(path.trim_start_matches('.').to_string());
                paths(value, &path, out);
            }
        }
        Value::Array(list) => list.iter().for_each(|v| paths(v, path, out)),
        _ => {}
    }
}

#[test]
fn the_page_describes_every_field_and_no_other() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/status.md");
    let page = std::fs::read_to_string(page).unwrap();
    assert!(
        page.contains(&format!("`schema` is {SCHEMA}")),
        "the version"
    );
    let (_, table) = page.split_once("## The fields").unwrap();
    let rows = table.lines().take_while(|l| !l.starts_with("## "));
    let rows =
        rows.filter_map(|line| Some(line.strip_prefix("| `")?.split_once('`')?.0.to_string()));
    let described: BTreeSet<String> = rows.collect();
    let mut r = sample();
    let line = super::super::logged::Line {
        time: 1,
        what: String::new(),
    };
    r.log = Some(Logged {
        last_error: Some(line.clone()),
        last_scrub: Some(line.clone()),
        last_repair: Some(line),
        ..Logged::default()
    });
    let all = All {
        schema: SCHEMA,
        volumes: vec![r],
    };
    let mut printed = BTreeSet::new();
    paths(&serde_json::to_value(all).unwrap(), "", &mut printed);
    let wrong: Vec<_> = printed.symmetric_difference(&described).collect();
    assert!(wrong.is_empty(), "in one of them only: {wrong:?}");
}

/// A daemon of another user says what it likes, and root reads it.
#[test]
fn no_command_has_what_the_daemon_of_another_user_names() {
    let mut s = status();
    s["device"] = json!("/etc/passwd: regular file, x");
    (s["device_missing_bytes"], s["device_needs_bytes"]) = (json!(4096), json!(8192));
    (s["volume"], s["log"]) = (json!("/etc"), json!("/proc/self/maps"));
    s["read_only_reason"] = json!("/dev/sda is write-protected (x)");
    let entry = |user: u32| Entry {
        id: 1,
        parent: 0,
        device: "0:0".into(),
        root: "/".into(),
        target: "/m".into(),
        options: "rw".into(),
        fstype: "fuse.quayfs".into(),
        source: "/home/vol".into(),
        superblock: format!("rw,user_id={user},group_id={user}"),
    };
    let said = |user| {
        let r = Report::live(Path::new("/m"), false, &s).look_ahead(&entry(user));
        (
            r.todo.into_iter().flatten().collect::<Vec<_>>().join(" "),
            r.volume,
        )
    };
    let me = geteuid().as_raw();
    let (todo, volume) = said(me + 7);
    assert!(
        todo.contains("as long again") && volume == "/home/vol",
        "{todo}"
    );
    for named in ["/etc", "/dev/sda", "8192"] {
        assert!(!todo.contains(named), "{todo}");
    }
    let (todo, volume) = said(me);
    assert!(
        todo.contains("--setrw /dev/sda") && volume == "/etc",
        "{todo}"
    );
    // One that is long enough is not cut by what is to lengthen it.
    s["device"] = json!("/proc/self/exe: regular file, x");
    let r = Report::live(Path::new("/m"), false, &s);
    assert!(
        r.look_ahead(&entry(me))
            .todo
            .iter()
            .flatten()
            .all(|todo| !todo.contains("truncate"))
    );
    s["device_needs_bytes"] = json!(0);
    let r = Report::live(Path::new("/m"), false, &s);
    assert!(
        r.todo
            .iter()
            .flatten()
            .all(|todo| !todo.contains("truncate"))
    );
}
