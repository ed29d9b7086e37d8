//! Media that other users have access to, and the owner of the root directory.

use super::Volume;
use super::as_nobody;
use super::below::Loop;
use crate::program::can_be_root;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};

fn mode(path: &std::path::Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

fn set_mode(path: &std::path::Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn mkfs_takes_no_file_that_others_have_access_to() {
    if !can_be_root() {
        return;
    }
    for (option, name, len) in [("--pmem", "region", 32 << 20), ("--data", "data", 64 << 20)] {
        for (owner, bits) in [(65534, 0o666), (65534, 0o600), (0, 0o620), (0, 0o602)] {
            let v = Volume::room();
            let path = v.at(name);
            fs::File::create_new(&path).unwrap().set_len(len).unwrap();
            set_mode(&path, bits);
            chown(&path, Some(owner), None).unwrap();
            v.mkfs(&[&option, &path]).fails(1, "--force takes it over");
            assert!(!v.vol().exists());
            let forced = v.mkfs(&[&option, &path, &"--force"]);
            assert!(
                forced
                    .err
                    .contains(&format!("{}: open to others until now", path.display())),
                "{forced:?}"
            );
            forced.ok();
            assert_eq!(
                (mode(&path), fs::metadata(&path).unwrap().uid()),
                (0o600, 0)
            );
            v.mount("rw").ok();
            v.umount().ok();
        }
    }
}

/// What an ordinary umask makes of a file is no reason to refuse it.
#[test]
fn mkfs_makes_private_what_others_can_only_read() {
    if !can_be_root() {
        return;
    }
    for bits in [0o644, 0o640, 0o604] {
        let v = Volume::room();
        let path = v.at("data");
        fs::File::create_new(&path)
            .unwrap()
            .set_len(64 << 20)
            .unwrap();
        set_mode(&path, bits);
        let made = v.mkfs(&[&"--data", &path]);
        assert!(made.err.contains("its mode is 0600 now"), "{made:?}");
        made.ok();
        assert_eq!(mode(&path), 0o600);
        v.mount("rw").ok();
        v.umount().ok();
    }
}

#[test]
fn a_mount_takes_no_file_that_others_have_access_to() {
    if !can_be_root() {
        return;
    }
    let v = Volume::room();
    v.mkfs(&[]).ok();
    for name in ["pmem", "data"] {
        let path = v.vol().join(name);
        assert_eq!(mode(&path), 0o600);
        let shown = path.display().to_string();
        for options in ["rw", "ro"] {
            set_mode(&path, 0o644);
            v.mount(options).fails(32, &format!("`chmod 600 {shown}`"));
            set_mode(&path, 0o600);
            chown(&path, Some(65534), None).unwrap();
            v.mount(options).fails(32, &format!("`chown 0 {shown}`"));
            chown(&path, Some(0), None).unwrap();
        }
        // Looking is no risk.
        set_mode(&path, 0o666);
        v.command("info").ok();
        v.command("fsck").ok();
        set_mode(&path, 0o600);
    }
    v.mount("rw").ok();
    v.umount().ok();
}

/// Those of group `disk` are as usual.
#[test]
fn devices_are_the_business_of_the_system() {
    if !can_be_root() {
        return;
    }
    let v = Volume::room();
    let disk = Loop::new(&v.at("disk"), 64 << 20);
    let before = fs::metadata(disk.path()).unwrap();
    set_mode(disk.path(), 0o660);
    let made = v.mkfs(&[&"--data", &disk.path()]);
    let mounted = v.mount("rw");
    v.umount();
    set_mode(disk.path(), before.mode() & 0o7777);
    made.ok();
    mounted.ok();
}

#[test]
fn a_volume_belongs_to_who_makes_it() {
    if !can_be_root() {
        return;
    }
    let v = Volume::room();
    let root = |more: &[&str]| {
        let more: Vec<&dyn AsRef<std::ffi::OsStr>> = more
            .iter()
            .map(|a| a as &dyn AsRef<std::ffi::OsStr>)
            .chain([&"--force" as &dyn AsRef<std::ffi::OsStr>])
            .collect();
        v.mkfs(&more).ok();
        shown(&v)
    };
    assert_eq!(root(&[]), (0, 0, 0o755));
    assert_eq!(root(&["--owner", "7"]), (7, 0, 0o755));
    assert_eq!(root(&["--owner", "7:8", "--mode", "1770"]), (7, 8, 0o1770));
    for args in [
        ["--owner", "me"],
        ["--owner", "1:"],
        ["--mode", "8"],
        ["--mode", "17777"],
    ] {
        v.mkfs(&[&args[0], &args[1]]).fails(2, "quayfs mkfs --help");
    }
    fs::remove_dir_all(v.vol()).unwrap();
    // Another user's volume: only the media have to change hands for us to see it.
    let home = v.at("home");
    fs::create_dir(&home).unwrap();
    chown(&home, Some(65534), Some(65534)).unwrap();
    let vol = home.join("vol");
    let sizes: [&dyn AsRef<std::ffi::OsStr>; 6] = [
        &"mkfs",
        &vol,
        &"--pmem-size",
        &"32M",
        &"--data-size",
        &"64M",
    ];
    as_nobody(v.dir.path(), &sizes).ok();
    std::os::unix::fs::symlink(&vol, v.vol()).unwrap();
    for name in ["pmem", "data"] {
        chown(vol.join(name), Some(0), None).unwrap();
    }
    assert_eq!(shown(&v), (65534, 65534, 0o755));
}

/// Owner, group and mode of the root directory.
#[track_caller]
fn shown(v: &Volume) -> (u32, u32, u32) {
    v.mount("rw").ok();
    let meta = fs::metadata(v.mnt()).unwrap();
    v.umount().ok();
    (meta.uid(), meta.gid(), meta.mode() & 0o7777)
}
