//! Volumes whose names mislead: names that other volumes have, or that no text can show.
//!
//! Needs `/dev/fuse` and root.

use crate::program;

use program::{Mounted, QUAYFS, Run, Scene, Start as _, can_be_root, quayfs};
use rustix::fs::{Mode, OFlags, open};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use serde_json::Value;
use std::ffi::{CString, OsStr};
use std::fs;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::process::Command;

fn run(program: &[&str]) -> Run {
    let mut command = Command::new(program[0]);
    command.args(&program[1..]).capture().unwrap().into()
}

fn first(run: &Run) -> Value {
    let all: Value = serde_json::from_str(&run.out).unwrap();
    all["volumes"][0].clone()
}

/// Any text can be in the mount table.
#[test]
fn a_name_in_the_mount_table_is_no_path() {
    if !can_be_root() {
        return;
    }
    let m = Mounted::on(Scene::in_memory(), "fsname=vol");
    let other = Scene::in_memory();
    let mut status = Command::new(QUAYFS);
    status
        .args(["status", "vol", "--json"])
        .current_dir(other.dir());
    let run = Run::from(status.capture().unwrap());
    let told = first(&run);
    assert_eq!(told["state"], "unmounted", "{run:?}");
    assert_eq!(told["volume"], other.vol().to_str().unwrap());
    let info = quayfs(["info".as_ref(), m.mnt().as_os_str()]).ok();
    let region = m.0.vol().join("pmem");
    assert!(info.contains(region.to_str().unwrap()), "{info}");
    m.umount();
}

#[test]
fn a_name_that_no_text_can_show_is_no_damage() {
    if !can_be_root() {
        return;
    }
    let scene = Scene::in_memory();
    for name in [&b"not \xff text"[..], b"two\nlines", b"back\\slash"] {
        let vol = scene.dir().join(OsStr::from_bytes(name));
        fs::rename(scene.vol(), &vol).unwrap();
        quayfs([Path::new("mount"), &vol, &scene.mnt()]).ok();
        let run = quayfs(["status".as_ref(), scene.mnt().as_os_str()]);
        quayfs([Path::new("umount"), &scene.mnt()]).ok();
        assert_eq!(run.code, 0, "{run:?}");
        fs::rename(&vol, scene.vol()).unwrap();
    }
}

/// Any user may mount something that the table shows as a volume of root's.
#[test]
fn a_mount_of_another_user_is_not_one_of_the_volume() {
    if !can_be_root() {
        return;
    }
    let scene = Scene::in_memory();
    let (vol, mnt) = (scene.vol(), scene.mnt());
    let fuse = open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).unwrap();
    let options = format!(
        "fd={},rootmode=40000,user_id=4711,group_id=4711",
        fuse.as_raw_fd()
    );
    let options = CString::new(options).unwrap();
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    mount(&vol, &mnt, "fuse.quayfs", flags, options.as_c_str()).unwrap();
    let status = quayfs(["status".as_ref(), "--json".as_ref(), vol.as_os_str()]);
    let unmounted = quayfs(["umount".as_ref(), vol.as_os_str()]);
    // Another one is served beside it.
    let other = scene.dir().join("other");
    fs::create_dir(&other).unwrap();
    let mounted = quayfs(["mount".as_ref(), vol.as_os_str(), other.as_os_str()]);
    let served = quayfs(["status".as_ref(), "--json".as_ref(), vol.as_os_str()]);
    let ended = quayfs(["umount".as_ref(), vol.as_os_str()]);
    unmount(&mnt, UnmountFlags::DETACH).unwrap();
    assert_eq!(first(&status)["state"], "unmounted", "{status:?}");
    assert_ne!(unmounted.code, 0, "{unmounted:?}");
    assert_eq!([mounted.code, ended.code], [0, 0], "{mounted:?} {ended:?}");
    assert_eq!(first(&served)["mountpoint"], other.to_str().unwrap());
}

/// A volume is not the other one that is mounted over it.
#[test]
fn what_is_mounted_over_a_volume_is_not_asked_in_its_place() {
    if !can_be_root() {
        return;
    }
    let m = Mounted::new("usrquota");
    let other = Scene::in_memory();
    let (vol, mnt) = (m.0.vol(), m.mnt());
    let [vol, mnt] = [&vol, &mnt].map(|path| path.to_str().unwrap());
    let over = quayfs(["mount", other.vol().to_str().unwrap(), mnt]);
    assert!(over.code == 0 && over.err.contains("hidden"), "{over:?}");
    for (args, code) in [
        (&["status", vol][..], 3),
        (&["info", vol], 1),
        (&["quota", vol, "--user", "4711", "--bytes", "1M"], 1),
        (&["resize", vol, "--data", "96M"], 1),
        (&["restart", vol], 1),
        (&["scrub", vol], 1),
        (&["umount", vol], 32),
    ] {
        let run = quayfs(args.iter().copied());
        assert!(
            run.code == code && run.err.contains(" over it"),
            "{args:?} {run:?}"
        );
    }
    let there = quayfs(["status", "--json", mnt]);
    assert_eq!(first(&there)["volume"], other.vol().to_str().unwrap());
    quayfs(["umount", mnt]).ok();
    quayfs(["restart", vol]).ok();
    m.umount();
}

/// A directory of a volume that is mounted elsewhere, too, does not stand for the volume; nor does a place that is hidden.
#[test]
fn a_volume_is_asked_where_all_of_it_is_seen() {
    if !can_be_root() {
        return;
    }
    let m = Mounted::new("rw");
    let (vol, mnt) = (m.0.vol(), m.mnt());
    let [vol, mnt] = [&vol, &mnt].map(|path| path.to_str().unwrap());
    let places = tempfile::tempdir().unwrap();
    let [part, whole] = ["part", "whole"].map(|name| places.path().join(name));
    fs::create_dir(m.mnt().join("part")).unwrap();
    for place in [&part, &whole] {
        fs::create_dir(place).unwrap();
    }
    let [part, whole] = [&part, &whole].map(|place| place.to_str().unwrap());
    run(&["mount", "--bind", whole, whole]).ok();
    run(&["mount", "--make-private", whole]).ok();
    run(&["mount", "--bind", mnt, whole]).ok();
    run(&["mount", "--bind", &format!("{mnt}/part"), part]).ok();
    let seen = |at: &str| {
        let said = quayfs(["status", "--json", vol]);
        assert_eq!(first(&said)["mountpoint"], at);
        quayfs(["restart", vol]).ok();
    };
    seen(whole);
    run(&["mount", "-t", "tmpfs", "none", whole]).ok();
    seen(mnt);
    // A file alone, as containers have it.
    let (one, other) = (m.mnt().join("one"), places.path().join("other"));
    for file in [&one, &other] {
        fs::write(file, "").unwrap();
    }
    let [one, other] = [&one, &other].map(|file| file.to_str().unwrap());
    run(&["mount", "--bind", one, other]).ok();
    quayfs(["umount", other]).ok();
    let refused = quayfs(["fsck", vol]);
    assert!(refused.code == 8 && refused.err.contains(&format!("mounted on {mnt}")));
    for place in [part, whole, whole, whole] {
        run(&["umount", "-i", place]).ok();
    }
    m.umount();
    // What all programs read is not covered.
    run(&["mount", "-t", "proc", "proc", whole]).ok();
    quayfs(["mount", vol, whole]).fails(32, "find processes and mounts there");
    run(&["umount", whole]).ok();
}
