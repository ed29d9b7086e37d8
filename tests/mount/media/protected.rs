//! Media that cannot be written, and those that cannot be any more.

use super::below::{Loop, Mount, run};
use super::{Volume, as_nobody, eventually};
use crate::program::{Start as _, can_be_root};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

/// Asserts that it mounts read-only, says so everywhere, and takes no change.
#[track_caller]
fn mounts_read_only(v: &Volume, medium: &Path) {
    let medium = medium.display().to_string();
    let run = v.mount("rw");
    assert!(
        run.err.contains(&medium)
            && run.err.contains("write-protected")
            && run.err.contains("mounted read-only"),
        "{run:?}"
    );
    run.ok();
    assert_eq!(v.table().unwrap(), "ro");
    let info = v.info();
    assert_eq!(info["read_only"], true);
    let why = info["read_only_reason"].as_str().unwrap();
    assert!(
        why.contains(&medium) && why.contains("write-protected"),
        "{why}"
    );
    assert!(info["options"].as_str().unwrap().starts_with("ro"));
    let told = v.command("status");
    assert!(
        told.code == 1 && told.out.contains("`-o ro`") && told.out.contains("writable"),
        "{told:?}"
    );
    assert_eq!(fs::read(v.mnt().join("file")).unwrap(), b"cargo");
    let refused = fs::write(v.mnt().join("new"), b"x").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
    v.umount().ok();
    v.mount("ro").ok();
    v.command("status").ok();
    v.umount().ok();
    // What has to write says what is in the way.
    let vol = v.vol();
    for args in [
        &["fsck", "--repair"][..],
        &["quota", "--project", "7", "--bytes", "1M"],
    ] {
        let code = if args[0] == "fsck" { 8 } else { 1 };
        let args = args.iter().map(AsRef::as_ref).chain([vol.as_os_str()]);
        super::quayfs(args).fails(code, "write-protected");
    }
    v.command("info").ok();
    v.command("fsck").ok();
}

#[track_caller]
fn with_a_file(v: &Volume) {
    v.mount("rw").ok();
    fs::write(v.mnt().join("file"), b"cargo").unwrap();
    v.umount().ok();
}

#[test]
fn a_write_protected_device_is_mounted_read_only() {
    if !can_be_root() {
        return;
    }
    let v = Volume::room();
    let disk = Loop::new(&v.at("disk"), 64 << 20);
    v.mkfs(&[&"--data", &disk.path()]).ok();
    with_a_file(&v);
    disk.protect(true);
    // The link in the volume is what it was opened by.
    mounts_read_only(&v, &v.vol().join("data"));
    disk.protect(false);
    v.mount("rw").ok();
    assert_eq!(v.table().unwrap(), "rw");
    assert_eq!(v.info()["read_only_reason"], serde_json::Value::Null);
    fs::write(v.mnt().join("new"), b"x").unwrap();
    v.umount().ok();
}

#[test]
fn a_region_on_a_write_protected_device_is_mounted_read_only() {
    if !can_be_root() {
        return;
    }
    let v = Volume::room();
    let disk = Loop::new(&v.at("disk"), 32 << 20);
    v.mkfs(&[&"--pmem", &disk.path()]).ok();
    with_a_file(&v);
    disk.protect(true);
    mounts_read_only(&v, &v.vol().join("pmem"));
}

#[test]
fn a_volume_on_a_read_only_file_system_is_mounted_read_only() {
    if !can_be_root() {
        return;
    }
    let v = Volume::room();
    let below = Mount::in_memory(&v.at("below"), "200M");
    fs::create_dir(v.at("below/vol")).unwrap();
    symlink("below/vol", v.vol()).unwrap();
    v.mkfs(&[]).ok();
    with_a_file(&v);
    below.remount("ro");
    mounts_read_only(&v, &v.at("below/vol/pmem"));
}

/// What the kernel does for ext4, the daemon has to do for itself.
#[test]
fn a_mount_that_fails_is_read_only_in_the_mount_table_too() {
    if !can_be_root() {
        return;
    }
    let v = Volume::room();
    let disk = Loop::new(&v.at("disk"), 64 << 20);
    v.mkfs(&[&"--data", &disk.path()]).ok();
    v.mount("nosuid").ok();
    let held = fs::File::create(v.mnt().join("held")).unwrap();
    fs::write(v.mnt().join("file"), vec![7; 1 << 20]).unwrap();
    assert_eq!(v.table().unwrap(), "rw");
    disk.protect(true);
    // It runs a round, which cannot write.
    let _ = Command::new("fstrim").arg(v.mnt()).capture();
    eventually("the mount fails", || v.info()["read_only"] == true);
    let why = v.info()["read_only_reason"].as_str().unwrap().to_string();
    assert!(why.starts_with("data device: "), "{why}");
    eventually("it is told that files are open", || {
        v.log().contains("files are open for writing")
    });
    assert_eq!(v.table().unwrap(), "rw");
    drop(held);
    eventually("the table says so", || v.table().unwrap() == "ro");
    let entry = run("findmnt", &[&"-no", &"OPTIONS", &v.mnt()]);
    assert!(
        entry.contains("nosuid"),
        "nothing else has changed: {entry}"
    );
    assert_eq!(fs::read(v.mnt().join("file")).unwrap(), vec![7; 1 << 20]);
    let mnt = v.mnt();
    super::quayfs(["scrub".as_ref(), mnt.as_os_str()]).fails(1, "quayfs umount");
    disk.protect(false);
    v.umount();
    v.mount("rw").ok();
    assert_eq!(fs::read(v.mnt().join("file")).unwrap(), vec![7; 1 << 20]);
    v.umount().ok();
}

#[test]
fn who_may_not_look_is_told_so() {
    if !can_be_root() {
        return;
    }
    let v = Volume::room();
    v.mkfs(&[]).ok();
    let (vol, mnt) = (v.vol(), v.mnt());
    for command in ["info", "fsck", "scrub", "quota"] {
        let code = if command == "fsck" { 8 } else { 1 };
        let run = as_nobody(v.dir.path(), &[&command, &vol]);
        run.fails(code, "permission denied to read");
    }
    v.mount("rw").ok();
    as_nobody(v.dir.path(), &[&"info", &mnt]).fails(1, "mounted by another user");
    v.umount().ok();
}
