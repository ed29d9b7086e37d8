//! Ranges exchanged.

use super::{in_crashes, in_ways, run};
use crate::program::{Mounted, Scene, can_be_root, can_mount};

const CALLS: &str = concat!(include_str!("common.py"), include_str!("ranges.py"));

/// Ways to mount: what is durable when, what is staged, how many threads serve.
const WAYS: [&str; 3] = [
    "atomic_writes",
    "atomic_writes,durability=commit,data=ordered",
    "atomic_writes,checkpoint=swap,threads=1",
];

#[test]
fn daemons_die_meanwhile() {
    in_ways(CALLS, "among_them", &["atomic_writes,restart"]);
}

#[test]
fn contents_and_sizes_change_places() {
    in_ways(CALLS, "whole", &WAYS);
}

#[test]
fn a_mount_later_it_is_still_so() {
    if !can_mount() {
        return;
    }
    let m = run(CALLS, "whole", "atomic_writes", &[]);
    let read = |name: &str| std::fs::read(m.mnt().join(name)).unwrap();
    let before = (read("one"), read("other"));
    assert_ne!(before.0, before.1);
    m.umount();
    m.mount("open=elide");
    assert!((read("one"), read("other")) == before);
    m.umount();
    m.fsck();
}

#[test]
fn the_kernel_sees_that_a_file_has_grown() {
    in_ways(CALLS, "grown", &WAYS);
}

#[test]
fn what_must_not_be_is_refused() {
    if !can_mount() {
        return;
    }
    for options in WAYS {
        let elsewhere = tempfile::tempdir().unwrap();
        let m = run(CALLS, "refused", options, &[elsewhere.path().as_os_str()]);
        m.umount();
        m.fsck();
    }
    in_ways(CALLS, "unoffered", &["open=answer", "open=elide"]);
}

#[test]
fn files_of_two_mounts_stay_apart() {
    if !can_mount() {
        return;
    }
    let other = Mounted::on(Scene::in_memory(), "atomic_writes");
    let m = run(
        CALLS,
        "refused",
        "atomic_writes",
        &[other.mnt().as_os_str()],
    );
    for mount in [&m, &other] {
        mount.umount();
        mount.fsck();
    }
}

#[test]
fn mapped_memory_goes_along() {
    in_ways(CALLS, "mapped", &WAYS);
}

#[test]
fn a_change_in_between_is_found_out() {
    in_ways(CALLS, "commits", &WAYS);
}

#[test]
fn nothing_that_somebody_else_writes_is_lost() {
    in_ways(CALLS, "beside", &WAYS);
}

#[test]
fn privileges_do_not_go_along() {
    if !can_be_root() {
        return;
    }
    let m = run(CALLS, "privileges", "atomic_writes,allow_other,suid", &[]);
    m.umount();
    m.fsck();
}

#[test]
fn who_reads_all_the_time_sees_it_at_once() {
    in_ways(CALLS, "watched", &WAYS);
}

#[test]
fn descriptors_that_change_meanwhile() {
    in_ways(CALLS, "replaced", &WAYS);
}

#[test]
fn a_crowd_does_not_wait_for_ever() {
    in_ways(CALLS, "crowd", &WAYS);
}

#[test]
fn after_a_crash_there_is_one_version() {
    in_crashes(CALLS, "one_version");
}
