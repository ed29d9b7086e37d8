//! Volumes that are there, but with something missing or in the way: no message says to make new ones.

use super::below::{Mount, run};
use super::{Volume, as_nobody, quayfs};
use crate::program::{Run, can_be_root, can_mount};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Runs every command that opens a volume; each fails in one line that has these words, and none of mkfs.
#[track_caller]
fn all_say(v: &Volume, target: &Path, words: &[&str], but: &[&str]) {
    let mnt = v.mnt();
    for (command, code) in [
        ("info", 1),
        ("fsck", 8),
        ("scrub", 1),
        ("quota", 1),
        ("mount", 32),
    ] {
        if but.contains(&command) {
            continue;
        }
        let mut args = vec![OsStr::new(command), target.as_os_str()];
        if command == "mount" {
            args.push(mnt.as_os_str());
        }
        says(quayfs(args), code, words);
    }
    let repair = [
        OsStr::new("fsck"),
        OsStr::new("--repair"),
        target.as_os_str(),
    ];
    if !but.contains(&"fsck") {
        says(quayfs(repair), 8, words);
    }
}

#[track_caller]
fn says(run: Run, code: i32, words: &[&str]) {
    assert!(!run.err.contains("mkfs"), "{run:?}");
    for word in words {
        assert!(run.err.contains(word), "{word}: {run:?}");
    }
    run.fails(code, "");
}

#[test]
fn a_file_system_that_is_not_mounted_is_named() {
    if !can_be_root() {
        return;
    }
    let v = Volume::room();
    let below = Mount::in_memory(&v.at("pm"), "64M");
    let region = v.at("pm/region");
    v.mkfs(&[&"--pmem", &region, &"--pmem-size", &"32M"]).ok();
    drop(below);
    let (link, region) = (v.vol().join("pmem"), region.display().to_string());
    let points = format!("{} points to {region}", link.display());
    all_say(
        &v,
        &v.vol(),
        &[
            &points,
            &format!("there is no {region}"),
            "mount the file system",
        ],
        &[],
    );
    assert!(!v.vol().join("quayfs.log").exists());
}

#[test]
fn half_a_volume_is_none_to_make_again() {
    if !can_be_root() {
        return;
    }
    let v = Volume::room();
    v.mkfs(&[]).ok();
    fs::remove_file(v.vol().join("pmem")).unwrap();
    all_say(&v, &v.vol(), &["`pmem` is missing", "`data` is there"], &[]);
    let status = quayfs([OsStr::new("status"), v.vol().as_os_str()]);
    assert_eq!(status.code, 2, "{status:?}");
    assert!(status.out.contains("`pmem` is missing"), "{status:?}");
    all_say(
        &v,
        &v.vol().join("data"),
        &["a data device, one half", "directory"],
        &[],
    );
}

#[test]
fn what_a_mount_shows_is_no_volume() {
    if !can_be_root() {
        return;
    }
    let v = Volume::room();
    v.mkfs(&[]).ok();
    v.mount("rw").ok();
    fs::create_dir(v.mnt().join("dir")).unwrap();
    fs::write(v.mnt().join("dir/file"), b"x").unwrap();
    let (vol, mnt) = (v.vol().display().to_string(), v.mnt().display().to_string());
    let other = v.at("other");
    fs::create_dir(&other).unwrap();
    // What asks the mount has no reason to complain of the mount point.
    all_say(
        &v,
        &v.mnt(),
        &[
            &format!("where the volume {vol} is mounted"),
            &format!("`quayfs umount {mnt}`"),
        ],
        &["info", "scrub", "quota", "mount"],
    );
    for inner in ["dir", "dir/file"] {
        let lies = format!("lies in the volume {vol}, mounted on {mnt}");
        all_say(&v, &v.mnt().join(inner), &[&lies], &["mount"]);
        let inner = v.mnt().join(inner);
        let args = [OsStr::new("mount"), inner.as_os_str(), other.as_os_str()];
        says(quayfs(args), 32, &[&lies]);
    }
    assert!(!v.mnt().join("dir/quayfs.log").exists());
    v.umount().ok();
}

#[test]
fn who_may_not_pass_is_told_where() {
    if !can_be_root() {
        return;
    }
    let v = Volume::room();
    v.mkfs(&[]).ok();
    fs::set_permissions(v.vol(), fs::Permissions::from_mode(0o700)).unwrap();
    let (vol, mnt) = (v.vol(), v.mnt());
    for (command, code) in [("info", 1), ("fsck", 8), ("scrub", 1), ("quota", 1)] {
        let run = as_nobody(v.dir.path(), &[&command, &vol]);
        says(run, code, &["permission denied at", "user 0", "0700"]);
    }
    let run = as_nobody(v.dir.path(), &[&"mount", &vol, &mnt]);
    says(run, 32, &["permission denied at"]);
}

#[test]
fn mkfs_is_not_advised_even_where_there_is_nothing() {
    let dir = tempfile::tempdir().unwrap();
    // More often than an empty place for a volume this is a mount point without its mount.
    let nothing_mounted = "nothing is mounted on this directory";
    let new = dir.path().join("new");
    for (path, says) in [
        (dir.path(), nothing_mounted),
        (&new, "there is no volume at"),
    ] {
        quayfs([OsStr::new("info"), path.as_os_str()]).fails(1, says);
        quayfs([OsStr::new("fsck"), path.as_os_str()]).fails(8, says);
    }
}

/// The files of the parts are removed while they are mounted: the volume lives on in its daemon, and no longer.
#[test]
fn parts_that_are_removed_are_told_before_they_are_lost() {
    if !can_mount() {
        return;
    }
    for part in ["pmem", "data"] {
        let v = Volume::room();
        v.mkfs(&[&"--pmem-size", &"32M", &"--data-size", &"64M"])
            .ok();
        v.mount("restart").ok();
        fs::write(v.mnt().join("file"), "content").unwrap();
        fs::remove_file(v.vol().join(part)).unwrap();
        let status = quayfs(["status".as_ref(), v.mnt().as_os_str()]);
        let told = format!("{part}: removed while it was mounted");
        assert!(
            status.code == 2 && words(&status.out).contains(&told),
            "{status:?}"
        );
        let refused: [&[&str]; 3] = [
            &["restart"],
            &["resize", "--data", "80M"],
            &["migrate", "--data", "new"],
        ];
        for command in refused {
            let words = command.iter().map(AsRef::as_ref);
            quayfs(words.chain([v.mnt().as_os_str()])).fails(1, &told);
        }
        assert_eq!(fs::read(v.mnt().join("file")).unwrap(), b"content");
        v.umount().fails(32, &told);
        assert_eq!(fs::read(v.mnt().join("file")).unwrap(), b"content");
        let mnt = v.mnt();
        quayfs(["umount".as_ref(), "-l".as_ref(), mnt.as_os_str()]).ok();
    }
}

/// The next daemon opens the volume by its name.
#[test]
fn what_the_next_daemon_would_miss_is_told_while_this_one_serves() {
    if !can_mount() {
        return;
    }
    let v = Volume::room();
    v.mkfs(&[]).ok();
    v.mount("restart").ok();
    let tells = |about: &str| {
        let status = quayfs(["status".as_ref(), v.mnt().as_os_str()]);
        let told = words(&status.out);
        assert!(status.code == 1 && told.contains(about), "{status:?}");
        assert!(told.contains("ends the mount") || told.contains("mount again"));
    };
    let mode = |mode| fs::set_permissions(v.vol().join("data"), fs::Permissions::from_mode(mode));
    mode(0o644).unwrap();
    tells("`chmod 600");
    mode(0o600).unwrap();
    let elsewhere = v.at("elsewhere");
    fs::rename(v.vol(), &elsewhere).unwrap();
    tells("it was moved or removed");
    fs::rename(&elsewhere, v.vol()).unwrap();
    let status = quayfs(["status".as_ref(), v.mnt().as_os_str()]);
    assert!(
        words(&status.out).contains("another one goes on"),
        "{status:?}"
    );
    status.ok();
    v.umount().ok();
}

/// Lines are broken where the terminal ends.
fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// What daemons of others serve may be mounted where only these can tell.
#[test]
fn a_list_has_what_daemons_of_this_user_serve_out_of_sight() {
    if !can_be_root() {
        return;
    }
    let v = Volume::room();
    v.mkfs(&[]).ok();
    v.mount("rw").ok();
    let _used = fs::File::create(v.mnt().join("file")).unwrap();
    run("umount", &[&"-i", &"-l", &v.mnt()]);
    let vol = v.vol().display().to_string();
    let list = quayfs(["status"]);
    assert!(words(&list.out).contains(&vol), "{list:?}");
    let list = as_nobody(Path::new("/"), &[&"status"]);
    assert!(!words(&list.out).contains(&vol), "{list:?}");
}
