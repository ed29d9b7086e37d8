//! Quotas of users and groups on mounts: needs `/dev/fuse` and root.

use crate::program;

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::Path;

use program::{Mounted, Run, Scene, as_user, can_be_root, eventually, quayfs};
use rustix::thread::CapabilitySet;
use serde_json::Value;

const USER: u32 = 4711;

fn quota(target: &Path, args: &[&str]) -> Run {
    let mut all = vec!["quota".as_ref(), target.as_os_str()];
    all.extend(args.iter().map(std::ffi::OsStr::new));
    quayfs(all)
}

/// Bytes and inodes of a user or group.
fn has(target: &Path, kind: &str, id: u32) -> (u64, u64) {
    let list = quota(target, &[&format!("--{kind}"), &id.to_string(), "--json"]).ok();
    let all: Vec<Value> = serde_json::from_str(&list).unwrap();
    let Some(one) = all.first() else {
        return (0, 0);
    };
    assert_eq!((all.len(), &one[kind]), (1, &id.into()), "{list}");
    (
        one["bytes"].as_u64().unwrap(),
        one["inodes"].as_u64().unwrap(),
    )
}

#[track_caller]
fn over<T: std::fmt::Debug>(result: io::Result<T>) {
    let errno = result.unwrap_err().raw_os_error();
    assert_eq!(errno, Some(libc::EDQUOT));
}

/// Whether this process has `CAP_SYS_RESOURCE`: in containers root often has not.
fn may_exceed_limits() -> bool {
    let mine = rustix::thread::capabilities(None).unwrap();
    mine.effective.contains(CapabilitySet::SYS_RESOURCE)
}

#[test]
fn users_and_groups_have_limits_on_a_mount() {
    if !can_be_root() {
        return;
    }
    for way in [
        "open=answer,usrquota,grpquota",
        "open=elide,idmap",
        "durability=commit,data=ordered,quota",
        "norestart,transport=uring",
    ] {
        let m = Mounted::on(Scene::open_to_all(), &format!("allow_other,{way}"));
        let (mnt, vol) = (m.mnt(), m.0.vol());
        let home = mnt.join("home");
        fs::create_dir(&home).unwrap();
        fs::set_permissions(&home, fs::Permissions::from_mode(0o777)).unwrap();
        let file = |name: &str| home.join(name);
        let write = |name: &str, len: usize| fs::write(file(name), vec![1; len]);
        as_user(USER, || write("a", 100 << 10)).unwrap();
        assert_eq!(has(&mnt, "user", USER), (100 << 10, 1), "{way}");
        assert_eq!(has(&mnt, "group", USER), (100 << 10, 1), "{way}");
        let user = USER.to_string();
        quota(&mnt, &["--user", &user, "--bytes", "1M", "--inodes", "3"]).ok();
        as_user(USER, || {
            over(write("b", 2 << 20));
            fs::remove_file(file("b")).unwrap();
        });
        eventually("the removed file is gone", || {
            has(&mnt, "user", USER).1 == 1
        });
        as_user(USER, || {
            write("b", 10).unwrap();
            write("c", 10).unwrap();
            over(write("d", 0));
            over(fs::create_dir(file("d")));
        });
        // Whichever user's file it is, root is exempt, unless it lacks the capability.
        let exempt = may_exceed_limits();
        let inodes = if exempt { 4 } else { 3 };
        let has_got = |given: io::Result<()>| match exempt {
            true => given.unwrap(),
            false => over(given),
        };
        fs::write(mnt.join("of root"), vec![2; 2 << 20]).unwrap();
        has_got(chown(mnt.join("of root"), Some(USER), None));
        let bytes = if exempt { 2 << 20 } else { 0 } + (108 << 10);
        assert_eq!(has(&mnt, "user", USER), (bytes, inodes), "{way}");
        let group = format!("{}", USER + 1);
        quota(&mnt, &["--group", &group, "--inodes", "1"]).ok();
        chown(file("a"), None, Some(USER + 1)).unwrap();
        has_got(chown(file("b"), None, Some(USER + 1)));
        assert_eq!(has(&mnt, "group", USER + 1).1, inodes - 2, "{way}");
        // A user sees what is its own.
        as_user(USER, || {
            assert_eq!(has(&mnt, "user", USER).1, inodes, "{way}");
            quota(&mnt, &["--user", "0"]).fails(1, "only root");
            quota(&mnt, &["--user", &user, "--bytes", "none"]).fails(1, "only root");
        });
        let report = quota(&mnt, &["--users"]).ok();
        assert!(
            report.contains("root") && report.contains(&user),
            "{report}"
        );
        assert!(!quota(&mnt, &[]).ok().contains(&user));
        let all = (has(&mnt, "user", USER), has(&mnt, "group", USER + 1));
        m.umount();
        assert_eq!((has(&vol, "user", USER), has(&vol, "group", USER + 1)), all);
        m.fsck();
        quota(&vol, &["--user", &user, "--bytes", "none"]).ok();
        m.mount(&format!("allow_other,{way}"));
        as_user(USER, || {
            write("c", 1 << 20).unwrap();
            over(write("d", 0));
        });
        m.umount();
        m.mount("allow_other,noquota");
        as_user(USER, || write("d", 10)).unwrap();
        m.umount();
        m.fsck();
    }
}

#[test]
fn users_see_what_is_left() {
    if !can_be_root() {
        return;
    }
    let m = Mounted::on(Scene::in_memory(), "rw,allow_other");
    let mnt = m.mnt();
    let dir = mnt.join("dir");
    fs::create_dir(&dir).unwrap();
    chown(&dir, Some(USER), None).unwrap();
    let user = USER.to_string();
    let soft = ["--user", &user, "--inodes-soft", "2"];
    quota(&mnt, &soft).ok();
    let grace = ["--users", "--inodes-grace", "3h"];
    quota(&mnt, &grace).ok();
    let make = |name: &str| as_user(USER, || fs::write(dir.join(name), b""));
    make("a").unwrap();
    let line = |text: String| -> Vec<String> {
        let line = text.lines().nth(1).unwrap_or_default();
        line.split_whitespace().map(String::from).collect()
    };
    let one = || line(quota(&mnt, &["--user", &user]).ok());
    assert_eq!(one().last().unwrap(), "-");
    make("b").unwrap();
    let shown = one();
    assert_eq!(shown[1], "-+");
    let left = shown.join(" ");
    assert!(
        left.ends_with(" - 3 h") || left.ends_with(" - 2 h 59 min"),
        "{left}"
    );
    quota(&mnt, &["--user", &user, "--inodes-grace", "0s"]).ok();
    assert_eq!(one().last().unwrap(), "over");
    over(make("c"));
    // Those of projects are set in the same way.
    quota(&mnt, &["--bytes-grace", "1day"]).ok();
    assert_eq!(quota(&mnt, &[]).ok().lines().count(), 1);
    fs::remove_file(dir.join("a")).unwrap();
    eventually("there is room again", || make("c").is_ok());
    m.umount();
    m.fsck();
}
