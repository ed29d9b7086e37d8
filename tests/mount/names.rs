//! Volumes whose names mislead: names that other volumes have, or that no text can show.
//!
//! Needs `/dev/fuse` and root.

use crate::program;

use program::{Mounted, QUAYFS, Run, Scene, Start as _, can_be_root, quayfs};
use serde_json::Value;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::process::Command;

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
