//! Atomic writes.

use std::ffi::OsStr;

use super::{finish, in_crashes, in_ways, run, script};
use crate::program::{self, Mounted, Scene, Start as _, can_be_root, quayfs};

const CALLS: &str = concat!(include_str!("common.py"), include_str!("atomic.py"));

/// Ways to mount: what is durable when, what is staged, how many threads serve.
const WAYS: [&str; 3] = [
    "atomic_writes",
    "atomic_writes,durability=commit,data=ordered",
    "atomic_writes,checkpoint=swap,threads=1",
];

#[test]
fn nobody_sees_what_is_not_committed() {
    in_ways(CALLS, "unseen", &WAYS);
}

#[test]
fn who_reads_all_the_time_sees_it_at_once() {
    in_ways(CALLS, "watched", &WAYS);
}

#[test]
fn what_is_given_up_never_was() {
    in_ways(CALLS, "given_up", &WAYS);
}

#[test]
fn what_a_dead_daemon_kept_can_only_be_given_up() {
    let ways = [
        "atomic_writes,restart",
        "atomic_writes,restart,durability=commit",
    ];
    in_ways(CALLS, "outlived", &ways);
    in_ways(CALLS, "among_them", &ways);
    in_ways(CALLS, "appended_once", &ways);
}

#[test]
fn a_commit_of_nothing_is_one() {
    if !program::can_mount() {
        return;
    }
    // On a disk, where a sync takes its time.
    let m = Mounted::on(Scene::new(), "atomic_writes,restart,durability=commit");
    let child = script(CALLS, "nothing", &m.mnt(), &[]).start();
    finish(child.expect("python3 runs"), "nothing", &m);
    m.umount();
    m.fsck();
}

#[test]
fn what_cannot_be_is_refused() {
    in_ways(CALLS, "refused", &WAYS);
    in_ways(CALLS, "unoffered", &["open=answer", "open=elide"]);
}

#[test]
fn others_write_meanwhile() {
    in_ways(CALLS, "beside", &WAYS);
}

#[test]
fn what_is_appended_meanwhile_is_seen() {
    in_ways(CALLS, "appended", &WAYS);
}

#[test]
fn mappings_keep_what_was_stored() {
    in_ways(CALLS, "mapped", &WAYS);
}

#[test]
fn privileges_go_with_the_content() {
    if !can_be_root() {
        return;
    }
    let m = run(CALLS, "privileges", "atomic_writes,allow_other,suid", &[]);
    m.umount();
    m.fsck();
}

#[test]
fn small_writes_beside_one_another_are_one() {
    in_ways(CALLS, "small", &WAYS);
}

#[test]
fn nobody_takes_the_memory_of_others() {
    if !can_be_root() {
        return;
    }
    run(CALLS, "shared", "atomic_writes,allow_other", &[]).umount();
}

#[test]
fn a_crowd_does_not_wait_for_ever() {
    in_ways(CALLS, "many", &WAYS);
}

#[test]
fn after_a_crash_it_is_all_or_nothing() {
    in_crashes(CALLS, "whole");
}

#[test]
fn it_goes_with_what_it_can_go_with() {
    let scene = Scene::new();
    for (options, about) in [
        ("atomic_writes,writeback", "writeback"),
        ("atomic_writes,open=elide", "open=elide"),
    ] {
        let (vol, mnt) = (scene.vol(), scene.mnt());
        let args = ["mount".as_ref(), vol.as_os_str(), mnt.as_os_str()];
        let options = ["-o".as_ref(), OsStr::new(options)];
        quayfs(args.into_iter().chain(options)).fails(1, about);
    }
}
