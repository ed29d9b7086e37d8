//! The program with real mounts: daemon, signals, helpers of mount(8), users without privileges.
//!
//! Needs `/dev/fuse`. Where there is none these tests fail, unless QUAYFS_SKIP_FUSE=1 says that
//! this is known.

mod users;
mod views;

use crate::processes::runs;
use crate::program;

use program::namespace::Namespace;
use program::{
    QUAYFS, Run, Scene, Start as _, as_nobody, can_be_root, can_mount, copy_program, eventually,
    named, quayfs,
};
use serde_json::Value;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A mount that goes away with the test, whatever its end.
struct Mounted(Scene);

impl Mounted {
    #[track_caller]
    fn new(options: &[&str]) -> Self {
        let mounted = Self(Scene::new());
        mounted.mount(options).ok();
        mounted
    }

    fn mount(&self, options: &[&str]) -> Run {
        let (vol, mnt) = self.paths();
        quayfs([&["mount", &vol, &mnt][..], options].concat())
    }

    fn umount(&self) -> Run {
        quayfs(["umount", &self.paths().1])
    }

    fn paths(&self) -> (String, String) {
        let text = |p: std::path::PathBuf| p.to_str().unwrap().to_string();
        (text(self.0.vol()), text(self.0.mnt()))
    }

    #[track_caller]
    fn info(&self) -> Value {
        serde_json::from_str(&quayfs(["info", &self.paths().1, "--json"]).ok()).unwrap()
    }

    #[track_caller]
    fn pid(&self) -> i32 {
        self.info()["pid"].as_i64().unwrap() as i32
    }

    fn log(&self) -> String {
        fs::read_to_string(self.0.vol().join("quayfs.log")).unwrap_or_default()
    }

    /// The line of the mount table.
    fn table(&self) -> Option<String> {
        let (_, mnt) = self.paths();
        // Others may mount what has a name of any bytes.
        let table = fs::read("/proc/self/mountinfo").unwrap();
        String::from_utf8_lossy(&table)
            .lines()
            .rfind(|l| l.split(' ').nth(4) == Some(&mnt))
            .map(str::to_string)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.table().is_some() {
            let _ = Command::new("umount")
                .args(["-i", "-l"])
                .arg(self.0.mnt())
                .finish();
        }
    }
}

fn signal(pid: i32, name: &str) {
    let status = Command::new("kill")
        .args(["-s", name, &pid.to_string()])
        .finish()
        .unwrap();
    assert!(status.success());
}

/// What `quayfs status` says of a mount or volume, and its exit code.
#[track_caller]
fn status(target: &str) -> (i32, Value) {
    let run = quayfs(["status", target, "--json"]);
    let all: Value = serde_json::from_str(&run.out).unwrap_or_else(|e| panic!("{e}: {run:?}"));
    assert_eq!(all["schema"], 1);
    (run.code, all["volumes"][0].clone())
}

/// A daemon that is killed while it waits for an answer of its own never goes away: Linux does not let a
/// process be killed while its request is being served, and the connection ends with the process that
/// serves it.
#[test]
fn the_daemon_asks_nothing_of_its_own_mount() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new(&[]);
    let info = m.info();
    let messages: Vec<_> = info["messages"].as_object().unwrap().iter().collect();
    // `info` itself: the root's attributes for the path, and the status.
    let asked = |name: &str| {
        messages
            .iter()
            .find(|(k, _)| *k == name)
            .map(|(_, n)| n.as_u64())
    };
    assert_eq!(asked("getxattr"), Some(Some(1)), "{messages:?}");
    assert!(
        matches!(asked("getattr"), None | Some(Some(1))),
        "{messages:?}"
    );
    assert_eq!(
        messages.len(),
        1 + usize::from(asked("getattr").is_some()),
        "{messages:?}"
    );
}

#[test]
fn files_know_when_they_were_born() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new(&[]);
    let file = m.0.mnt().join("file");
    let born = || fs::metadata(&file).unwrap().created().unwrap();
    let before = std::time::SystemTime::now();
    fs::write(&file, b"cargo").unwrap();
    let first = born();
    assert!(before <= first && first <= std::time::SystemTime::now());
    // Until the clock has gone on by as much as time stamps tell.
    eventually("a later time stamp", || {
        fs::write(&file, b"other cargo").unwrap();
        fs::metadata(&file).unwrap().modified().unwrap() > first
    });
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(born(), first);
    m.umount().ok();
    m.mount(&[]).ok();
    assert_eq!(born(), first);
}

/// With `writeback` the kernel has data that the daemon does not know of, until the file is synced or
/// closed. A program that copies it meanwhile leaves out what it is told are holes.
#[test]
fn collected_writes_are_no_holes() {
    if !can_mount() {
        return;
    }
    use rustix::fs::{SeekFrom, ftruncate, seek};
    for (option, first) in [("writeback", 0), ("writethrough", 8192)] {
        let m = Mounted::new(&["-o", option]);
        let path = m.0.mnt().join("file");
        let file = fs::File::create_new(&path).unwrap();
        ftruncate(&file, 1 << 20).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &[1; 4096], 8192).unwrap();
        assert_eq!(seek(&file, SeekFrom::Data(0)), Ok(first), "{option}");
        // Beyond what the daemon knows the file to be, too.
        std::os::unix::fs::FileExt::write_all_at(&file, &[1; 4096], 1 << 20).unwrap();
        assert_eq!(
            seek(&file, SeekFrom::Data(1 << 20)),
            Ok(1 << 20),
            "{option}"
        );
        let end = (1 << 20) + 4096;
        assert_eq!(seek(&file, SeekFrom::Hole(1 << 20)), Ok(end), "{option}");
        drop(file);
        m.umount().ok();
    }
}

#[test]
fn a_mount_keeps_what_is_written_to_it() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new(&[]);
    let mnt = m.0.mnt();
    fs::create_dir(mnt.join("dir")).unwrap();
    fs::write(mnt.join("dir/file"), b"cargo").unwrap();
    let info = m.info();
    let (vol, target) = m.paths();
    assert_eq!(
        (info["volume"].as_str(), info["mountpoint"].as_str()),
        (Some(&*vol), Some(&*target))
    );
    let by_volume: Value = serde_json::from_str(&quayfs(["info", &vol, "--json"]).ok()).unwrap();
    assert_eq!(by_volume["pid"], info["pid"]);
    assert!(quayfs(["info", &target]).ok().contains(&vol));
    let line = m.table().unwrap();
    assert!(line.contains(&format!(" - fuse.quayfs {vol} ")), "{line}");
    let name = fs::read_to_string(format!("/proc/{}/comm", info["pid"])).unwrap();
    assert_eq!(name, "quayfs\n", "what ps shows");

    m.umount().ok();
    assert!(
        !runs(info["pid"].as_i64().unwrap() as i32),
        "umount waits for the daemon"
    );
    assert!(m.table().is_none() && !mnt.join("dir").exists());
    quayfs(["fsck", &vol]).ok();
    m.mount(&["-o", "ro"]).ok();
    assert_eq!(fs::read(mnt.join("dir/file")).unwrap(), b"cargo");
    assert!(fs::write(mnt.join("new"), b"x").is_err());
    m.umount().ok();
    assert!(m.log().contains("mounted"), "{}", m.log());
}

#[test]
fn a_volume_is_mounted_once() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new(&[]);
    let (vol, _) = m.paths();
    m.mount(&[]).fails(32, "mounted on");
    let other = m.0.dir().join("other");
    fs::create_dir(&other).unwrap();
    quayfs(["mount", &vol, other.to_str().unwrap()]).fails(32, "quayfs umount");
    quayfs(["fsck", &vol]).fails(8, "in use");
    m.umount().ok();
}

#[test]
fn a_used_tree_is_not_unmounted() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new(&[]);
    let file = fs::File::create(m.0.mnt().join("held")).unwrap();
    m.umount().fails(32, "fuser -vm");
    assert!(m.table().is_some());
    drop(file);
    m.umount().ok();
}

#[test]
fn a_killed_daemon_leaves_what_was_synced() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new(&["-o", "norestart"]);
    let mnt = m.0.mnt();
    let file = fs::File::create(mnt.join("safe")).unwrap();
    std::io::Write::write_all(&mut &file, b"cargo").unwrap();
    file.sync_all().unwrap();
    signal(m.pid(), "KILL");
    eventually("the mount is dead", || fs::read_dir(&mnt).is_err());
    drop(file);
    quayfs(["info", &m.paths().1]).fails(1, "quayfs umount");
    m.mount(&[]).fails(32, "quayfs umount");
    m.umount().ok();
    m.mount(&[]).ok();
    assert_eq!(fs::read(mnt.join("safe")).unwrap(), b"cargo");
    m.umount().ok();
    quayfs(["fsck", &m.paths().0]).ok();
}

#[test]
fn sigterm_unmounts_cleanly() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new(&[]);
    fs::write(m.0.mnt().join("file"), b"cargo").unwrap();
    let pid = m.pid();
    signal(pid, "TERM");
    eventually("the daemon ends", || !runs(pid));
    assert!(m.table().is_none());
    assert!(m.log().contains("the volume is clean"), "{}", m.log());
    m.mount(&[]).ok();
    assert_eq!(fs::read(m.0.mnt().join("file")).unwrap(), b"cargo");
    m.umount().ok();
}

#[test]
fn a_second_sigterm_does_not_wait_for_users() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new(&[]);
    let held = fs::File::create(m.0.mnt().join("held")).unwrap();
    let pid = m.pid();
    signal(pid, "TERM");
    eventually("the signal is heard", || m.log().contains("signal 15"));
    assert!(runs(pid));
    signal(pid, "TERM");
    eventually("the daemon ends", || !runs(pid));
    assert!(held.sync_all().is_err());
    assert!(m.table().is_none());
}

#[test]
fn the_foreground_serves_until_interrupted() {
    if !can_mount() {
        return;
    }
    let m = Mounted(Scene::new());
    let (vol, mnt) = m.paths();
    let log = m.0.dir().join("log");
    let mut child = Command::new(QUAYFS)
        .args([
            "mount",
            &vol,
            &mnt,
            "--foreground",
            "--log-file",
            log.to_str().unwrap(),
        ])
        .start()
        .unwrap();
    eventually("it is mounted", || {
        m.table().is_some() && fs::write(m.0.mnt().join("x"), b"").is_ok()
    });
    assert_eq!(m.pid() as u32, child.id());
    signal(m.pid(), "INT");
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(m.table().is_none());
    let log = fs::read_to_string(log).unwrap();
    assert!(log.contains("signal 2") && log.contains("clean"), "{log}");
}

#[test]
fn failures_of_the_daemon_reach_the_command() {
    if !can_mount() {
        return;
    }
    let m = Mounted(Scene::new());
    fs::write(m.0.vol().join("pmem"), vec![0; 32 << 20]).unwrap();
    m.mount(&[]).fails(32, "not a QuayFS pmem region");
    assert!(m.log().contains("not a QuayFS pmem region"));
    m.mount(&["--foreground"])
        .fails(32, "not a QuayFS pmem region");
    let log = m.0.dir().join("no/such/log");
    m.mount(&["--log-file", log.to_str().unwrap()])
        .fails(32, "--log-file");
    assert!(m.table().is_none());
}

#[test]
fn options_reach_kernel_and_daemon() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new(&[
        "-o",
        "nosuid,noatime,allow_other",
        "-o",
        "durability=commit,commit=9",
    ]);
    let line = m.table().unwrap();
    for word in ["nosuid", "noatime", "allow_other", "default_permissions"] {
        assert!(line.contains(word), "{word}: {line}");
    }
    let info = m.info();
    assert!(
        info["options"].as_str().unwrap().contains("commit=9"),
        "{info}"
    );
    m.umount().ok();
    m.mount(&["-o", "fsname=cargo,subtype=none"]).ok();
    let line = m.table().unwrap();
    assert!(line.contains(" - fuse cargo "), "{line}");
    m.umount().ok();
}

/// Only root may tell the kernel; for others it stays as it is, and mounting works all the same.
#[test]
fn the_kernel_reads_ahead_as_far_as_it_is_told() {
    if !can_mount() {
        return;
    }
    let m = Mounted(Scene::new());
    for (options, want) in [
        ("rw", "4096"),
        ("read_ahead=1M", "1024"),
        ("read_ahead=0", "0"),
    ] {
        m.mount(&["-o", options]).ok();
        let line = m.table().unwrap();
        let device = line.split(' ').nth(2).unwrap();
        let kib = fs::read_to_string(format!("/sys/class/bdi/{device}/read_ahead_kb")).unwrap();
        let root = rustix::process::geteuid().is_root();
        assert_eq!(kib.trim(), if root { want } else { "128" }, "{options}");
        m.umount().ok();
        assert_eq!(m.log().contains("read_ahead= has no effect"), !root);
    }
}

/// A file that was written in any order is read back in long requests.
#[test]
fn who_reads_in_order_waits_for_few_requests() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new(&[]);
    let file = m.0.mnt().join("file");
    fs::write(&file, vec![7; 8 << 20]).unwrap();
    let reads = |options: &[&str]| {
        m.umount().ok();
        m.mount(options).ok();
        assert_eq!(fs::read(&file).unwrap().len(), 8 << 20);
        m.info()["counters"]["reads"].as_u64().unwrap()
    };
    let (by_default, without) = (reads(&[]), reads(&["-o", "read_ahead=128K"]));
    assert!(without >= 64, "{without}");
    match rustix::process::geteuid().is_root() {
        true => assert!(by_default <= 16, "{by_default}"),
        false => assert!(by_default >= 64, "{by_default}"),
    }
    m.umount().ok();
}
