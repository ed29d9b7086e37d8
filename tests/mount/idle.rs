//! A daemon that gets no requests does not run.
//!
//! Needs `/dev/fuse`; QUAYFS_SKIP_FUSE=1 does without.

use crate::program;

use program::{Mounted, can_mount, eventually};
use std::collections::BTreeMap;
use std::fs;
use std::thread::sleep;
use std::time::Duration;

/// How often each thread of a process has gone to sleep.
fn sleeps(pid: u64) -> BTreeMap<String, u64> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let count = |dir: std::path::PathBuf| {
        let status = fs::read_to_string(dir.join("status")).ok()?;
        let field = |name: &str| {
            let line = status.lines().find(|l| l.starts_with(name))?;
            line.split_whitespace().nth(1).map(str::to_string)
        };
        let name = format!("{} {}", field("Name:")?, field("Pid:")?);
        Some((name, field("voluntary_ctxt_switches:")?.parse().ok()?))
    };
    tasks.filter_map(|t| count(t.unwrap().path())).collect()
}

/// Waits for a second in which no thread has woken. On a busy machine there is one as well: a thread that does not want
/// to run needs no turn.
#[track_caller]
fn await_rest(pid: u64) {
    let mut before = sleeps(pid);
    for _ in 0..60 {
        sleep(Duration::from_secs(1));
        let now = sleeps(pid);
        if now == before {
            return;
        }
        before = now;
    }
    sleep(Duration::from_secs(1));
    let now = sleeps(pid);
    let woken: Vec<_> = now
        .iter()
        .filter(|(k, n)| before.get(*k) != Some(n))
        .collect();
    panic!("they wake all the time: {woken:?}, before {before:?}");
}

#[test]
fn an_idle_daemon_sleeps() {
    if !can_mount() {
        return;
    }
    for options in ["durability=commit,commit=1", "durability=op", "ro"] {
        let m = Mounted::new("rw");
        m.umount();
        m.mount(options);
        let pid = m.info()["pid"].as_u64().unwrap();
        await_rest(pid);
        if options == "ro" {
            m.umount();
            continue;
        }
        // What was written then is committed and written out, and nothing is left to do.
        fs::write(m.mnt().join("f"), vec![7; 1 << 20]).unwrap();
        fs::remove_file(m.mnt().join("f")).unwrap();
        fs::write(m.mnt().join("g"), vec![7; 1 << 20]).unwrap();
        eventually("all blocks are written out", || m.info()["slots_used"] == 0);
        await_rest(pid);
        m.umount();
        m.fsck();
    }
}
