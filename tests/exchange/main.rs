//! Ranges of files exchanged through the calls of XFS: what becomes of content, sizes and caches, what is
//! refused, and that nobody waits for ever while the kernel is asked for what it has collected.
//!
//! Needs `/dev/fuse` and python3.

#[path = "../program/mod.rs"]
mod program;

use std::path::Path;
use std::process::Command;

use program::{Mounted, Scene, can_mount};

const CALLS: &str = include_str!("calls.py");

/// Ways to mount: who opens, what is staged, who collects writes.
const WAYS: [&str; 4] = [
    "open=answer",
    "open=elide,checkpoint=swap",
    "durability=commit,data=ordered,open=elide",
    "open=answer,writeback",
];

/// Calls a function of the script on a new mount; the volume is checked afterwards.
#[track_caller]
fn run(what: &str, options: &str, more: &[&Path]) -> Mounted {
    let m = Mounted::on(Scene::in_memory(), options);
    let mut python = Command::new("python3");
    python.args(["-c", CALLS, what]).arg(m.mnt()).args(more);
    let out = python
        .output()
        .expect("python3 runs: `make deps` installs it");
    let err = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{what}, {options}: {err}{}", m.log());
    m
}

#[track_caller]
fn in_all_ways(what: &str, ways: &[&str]) {
    if !can_mount() {
        return;
    }
    for options in ways {
        let m = run(what, options, &[]);
        m.umount();
        m.fsck();
    }
}

#[test]
fn contents_and_sizes_change_places() {
    in_all_ways("whole", &WAYS[..3]);
}

#[test]
fn a_mount_later_it_is_still_so() {
    if !can_mount() {
        return;
    }
    let m = run("whole", "open=answer", &[]);
    let read = |name: &str| std::fs::read(m.mnt().join(name)).unwrap();
    let before = (read("one"), read("other"));
    assert_ne!(before.0, before.1);
    m.umount();
    m.mount("open=elide");
    let read = |name: &str| std::fs::read(m.mnt().join(name)).unwrap();
    assert!((read("one"), read("other")) == before);
    m.umount();
    m.fsck();
}

#[test]
fn what_must_not_be_is_refused() {
    if !can_mount() {
        return;
    }
    let elsewhere = tempfile::tempdir().unwrap();
    for options in WAYS {
        let m = run("refused", options, &[elsewhere.path()]);
        m.umount();
        m.fsck();
    }
}

#[test]
fn mapped_memory_goes_along() {
    in_all_ways("mapped", &WAYS);
}

#[test]
fn a_change_in_between_is_found_out() {
    in_all_ways("commits", &WAYS);
}

#[test]
fn writes_that_belong_together() {
    let ways = [
        "atomic_writes,open=answer",
        "atomic_writes,open=elide",
        "atomic_writes,durability=commit,data=ordered",
    ];
    in_all_ways("atomic", &ways);
    in_all_ways("unoffered", &["open=answer"]);
}

#[test]
fn a_crowd_does_not_wait_for_ever() {
    in_all_ways("crowd", &WAYS);
}

#[test]
fn sizes_stay_where_the_kernel_collects_writes() {
    in_all_ways("collected", &WAYS[3..]);
}
