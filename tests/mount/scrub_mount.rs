//! `quayfs scrub` as a user runs it: on a volume at rest, on real mounts, interrupted, forbidden.
//!
//! Needs `/dev/fuse`, as `tests/mount/daemon.rs` does.

use crate::program;

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use quayfs_fs::volume::config_of;

use program::{QUAYFS, Run, Scene, Start as _, can_be_root, can_mount, copy_program, quayfs};
use serde_json::Value;

/// A mount that goes away with the test, whatever its end.
struct Mounted(Scene);

impl Mounted {
    fn vol(&self) -> String {
        self.0.vol().to_str().unwrap().into()
    }

    fn mnt(&self) -> String {
        self.0.mnt().to_str().unwrap().into()
    }

    #[track_caller]
    fn mount(&self, options: &str) {
        quayfs(["mount", &self.vol(), &self.mnt(), "-o", options]).ok();
    }

    #[track_caller]
    fn umount(&self) {
        quayfs(["umount", &self.mnt()]).ok();
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.mnt().join(name)
    }

    fn info(&self) -> Value {
        serde_json::from_str(&quayfs(["info", &self.mnt(), "--json"]).ok()).unwrap()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount")
            .args(["-i", "-l"])
            .arg(self.0.mnt())
            .stderr(Stdio::null())
            .finish();
    }
}

/// Two files on the data device; where the second block of the second one lies.
fn volume() -> (Mounted, u64) {
    let m = Mounted(Scene::new());
    m.mount("noatime");
    let marked: Vec<u8> = (0..3u8).flat_map(|i| [b'A' + i; 4096]).collect();
    fs::create_dir(m.file("dir")).unwrap();
    fs::write(m.file("good"), vec![7; 10_000]).unwrap();
    fs::write(m.file("dir/bad"), marked).unwrap();
    m.umount();
    let data = fs::read(m.0.vol().join("data")).unwrap();
    let at = data.chunks(4096).position(|b| b == [b'B'; 4096]);
    let at = at.expect("the block is on the data device") as u64 * 4096;
    (m, at)
}

fn rot(m: &Mounted, at: u64, byte: u8) {
    let data = fs::File::options().write(true).open(m.0.vol().join("data"));
    data.unwrap().write_all_at(&[byte], at + 77).unwrap();
}

#[track_caller]
fn names_the_damage(run: Run, path: &str) {
    assert_eq!(run.code, 4, "{run:?}");
    let lines: Vec<_> = run.out.lines().collect();
    assert_eq!(lines.len(), 2, "{run:?}");
    let first = format!("{path}/dir/bad: bytes 4096 to 8192: ");
    assert!(lines[0].starts_with(&first), "{run:?}");
    assert!(lines[1].contains("1 block or page damaged"), "{run:?}");
    assert_eq!(run.err, "");
}

/// What `quayfs status` says of it, and its exit code.
#[track_caller]
fn status(target: &str) -> (i32, Value) {
    let run = quayfs(["status", target, "--json"]);
    let all: Value = serde_json::from_str(&run.out).unwrap_or_else(|e| panic!("{e}: {run:?}"));
    assert_eq!(all["volumes"].as_array().unwrap().len(), 1, "{run:?}");
    (run.code, all["volumes"][0].clone())
}

#[test]
fn status_tells_of_a_read_that_failed_and_the_log_keeps_it() {
    if !can_mount() {
        return;
    }
    let (m, at) = volume();
    rot(&m, at, b'x');
    m.mount("noatime");
    assert_eq!(status(&m.mnt()).0, 0, "it has not been met yet");
    fs::read(m.file("dir/bad")).unwrap_err();
    let (code, s) = status(&m.mnt());
    assert_eq!((code, &s["health"]), (1, &Value::from("degraded")), "{s}");
    let reads = s["errors"]["reads"].as_u64().unwrap();
    assert!(reads > 0, "{s}");
    let ino = std::os::unix::fs::MetadataExt::ino(&fs::metadata(m.file("dir/bad")).unwrap());
    let said = s["errors"]["recent"][0]["what"].as_str().unwrap();
    assert!(said.starts_with(&format!("inode {ino}: ")), "{s}");
    m.umount();
    let (code, s) = status(&m.vol());
    let why = s["reasons"][0].as_str().unwrap_or_default();
    assert!(
        code == 1 && why.contains("reads of files have failed"),
        "{s}"
    );
    m.mount("noatime");
    quayfs(["scrub", &m.mnt()]);
    let (code, s) = status(&m.mnt());
    assert_eq!((code, &s["scrub"]["findings"]), (1, &Value::from(1)), "{s}");
    m.umount();
    // The volume is as clean as before, and the damage is still there.
    let (code, s) = status(&m.vol());
    assert_eq!((code, &s["clean"]), (1, &Value::from(true)), "{s}");
    let why = s["reasons"][0].as_str().unwrap();
    assert!(why.contains("damaged blocks or pages: 1"), "{s}");
    let log = &s["log"];
    assert!(log["errors"].as_u64().unwrap() > 0, "{s}");
    let scrub = log["last_scrub"]["what"].as_str().unwrap();
    assert!(scrub.starts_with("Finished after "), "{s}");
    assert!(scrub.ends_with(", damaged blocks and pages: 1"), "{s}");
    // Once it has been put right, the next scrub says so.
    rot(&m, at, b'B');
    m.mount("noatime");
    assert_eq!(status(&m.mnt()).0, 1);
    quayfs(["scrub", &m.mnt()]).ok();
    assert_eq!(status(&m.mnt()).0, 0);
    m.umount();
    assert_eq!(status(&m.vol()).0, 0);
}

#[test]
fn damage_is_named_at_rest_and_mounted() {
    if !can_mount() {
        return;
    }
    let (m, at) = volume();
    let (vol, mnt) = (m.vol(), m.mnt());
    assert!(quayfs(["scrub", &vol]).ok().contains("nothing found"));
    rot(&m, at, b'x');
    names_the_damage(quayfs(["scrub", &vol]), "");
    for options in ["noatime", "ro"] {
        m.mount(options);
        // A mount read-only is scrubbed from outside, which knows no mount point.
        let shown = if options == "ro" { "" } else { &mnt };
        names_the_damage(quayfs(["scrub", &mnt, "--rate", "100M/s"]), shown);
        names_the_damage(quayfs(["scrub", &vol]), shown);
        let read = fs::read(m.file("dir/bad")).unwrap_err();
        assert_eq!(read.raw_os_error(), Some(5));
        m.umount();
    }
    m.mount("noatime");
    let run = quayfs(["scrub", &mnt, "--json"]);
    assert_eq!(run.code, 4, "{run:?}");
    let report: Value = serde_json::from_str(&run.out).unwrap();
    assert_eq!(report["state"], "finished");
    assert_eq!(report["mountpoint"], mnt.as_str());
    assert_eq!(report["findings"], 1);
    let found = &report["list"][0];
    assert_eq!(found["area"], "data");
    assert_eq!(found["paths"], serde_json::json!(["/dir/bad"]));
    assert_eq!(found["bytes"]["start"], 4096);
    let status = &m.info()["scrub"];
    assert_eq!(
        (&status["state"], &status["findings"]),
        (&report["state"], &report["findings"])
    );
    let log = fs::read_to_string(m.0.vol().join("quayfs.log")).unwrap();
    assert!(log.contains("scrub: /dir/bad: bytes 4096 to 8192"), "{log}");
    // Put right behind the daemon's back: nothing sticks.
    rot(&m, at, b'B');
    assert!(quayfs(["scrub", &mnt]).ok().contains("nothing found"));
    m.umount();
}

#[test]
fn an_interrupt_stops_the_daemon() {
    if !can_mount() {
        return;
    }
    let (m, _) = volume();
    m.mount("noatime");
    let mnt = m.mnt();
    // That takes two minutes.
    fs::write(m.file("large"), vec![7; 8 << 20]).unwrap();
    let mut slow = Command::new(QUAYFS)
        .args(["scrub", &mnt, "--rate", "64K"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .start()
        .unwrap();
    while m.info()["scrub"]["state"] != "running" {
        assert!(slow.try_wait().unwrap().is_none(), "it ended");
        std::thread::yield_now();
    }
    quayfs(["scrub", &mnt]).fails(1, "already");
    rustix::process::kill_process(
        rustix::process::Pid::from_child(&slow),
        rustix::process::Signal::INT,
    )
    .unwrap();
    assert_eq!(slow.wait().unwrap().code(), Some(1));
    let mut text = String::new();
    slow.stderr.unwrap().read_to_string(&mut text).unwrap();
    assert!(
        text.contains("stopped after") && text.lines().count() == 1,
        "{text}"
    );
    assert_eq!(m.info()["scrub"]["state"], "stopped");
    // Unmounting does not wait for a scrub either.
    let start = rustix::fs::setxattr(
        m.0.mnt(),
        "quayfs.scrub",
        b"start rate=1",
        rustix::fs::XattrFlags::empty(),
    );
    start.unwrap();
    m.umount();
    quayfs(["fsck", &m.vol()]).ok();
}

#[test]
fn others_may_not_scrub() {
    if !can_be_root() {
        return;
    }
    let (m, _) = volume();
    m.mount("allow_other");
    fs::set_permissions(m.0.dir(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = m.0.dir().join("quayfs");
    copy_program(&program);
    let scrub = || -> Run {
        let mut command = Command::new(&program);
        command.args(["scrub", &m.mnt()]).uid(65534).gid(65534);
        command.capture().unwrap().into()
    };
    scrub().fails(1, "only root");
    // A user who may write to the root directory may not either.
    fs::set_permissions(m.0.mnt(), fs::Permissions::from_mode(0o777)).unwrap();
    scrub().fails(1, "only root");
    m.umount();
}

#[test]
fn wrong_targets_are_named() {
    let scene = Scene::new();
    let mnt = scene.mnt();
    quayfs(["scrub", "/no/such/volume"]).fails(1, "/no/such/volume");
    quayfs(["scrub", mnt.to_str().unwrap()]).fails(1, "nothing is mounted");
    quayfs(["scrub"]).fails(2, "quayfs scrub --help");
    quayfs(["scrub", "v", "--rate", "fast"]).fails(2, "fast");
    quayfs(["scrub", "v", "--rate", "100"])
        .fails(2, "100 B a second are too few, the least is 64K");
    assert!(quayfs(["scrub", "--help"]).ok().contains("Exit codes: 0"));
}

/// What rots on the disk under pages that the daemon has in memory is found while these are whole, and put right.
#[test]
fn what_rots_under_a_mount_is_written_again() {
    if !can_mount() {
        return;
    }
    let m = Mounted(Scene::new());
    m.mount("noatime");
    assert_eq!(m.info()["backend"], "file");
    // More than the batch log holds, so that pages are where they belong, and not in there alone.
    for round in 0..40 {
        for n in 0..100 {
            fs::write(m.file(&format!("{n}")), format!("{round}")).unwrap();
        }
        fs::File::open(m.file("0")).unwrap().sync_all().unwrap();
    }
    let config = config_of(&m.0.vol()).unwrap();
    let region = m.0.vol().join("pmem");
    let region = fs::File::options()
        .read(true)
        .write(true)
        .open(region)
        .unwrap();
    for page in 0..64 {
        let at = config.geometry.node_page(page);
        region.write_all_at(&[0xa5; 512], at).unwrap();
    }
    region.sync_all().unwrap();
    let said = quayfs(["scrub", &m.mnt()]).ok();
    assert!(said.contains("nothing found"), "{said}");
    assert!(said.contains("are written again"), "{said}");
    // The disk is to be looked at, also by later mounts, until there is nothing to mend.
    let told = |m: &Mounted| {
        let (code, volume) = status(&m.mnt());
        assert_eq!(code, 1, "{volume}");
        let todo = volume["advice"].as_str().unwrap();
        assert!(todo.starts_with("look at the disk "), "{todo}");
        volume
    };
    assert!(told(&m)["scrub"]["mended"].as_u64() > Some(0));
    m.umount();
    m.mount("noatime");
    told(&m);
    quayfs(["scrub", &m.mnt()]).ok();
    let (code, volume) = status(&m.mnt());
    assert_eq!(code, 0, "{volume}");
    m.umount();
    quayfs(["fsck", "--data", &m.vol()]).ok();
}

/// The batch log is written past the memory of the daemon: what is there of it is older than what the disk has.
#[test]
fn a_scrub_after_a_recovery_takes_nothing_back() {
    if !can_mount() {
        return;
    }
    let m = Mounted(Scene::new());
    let mut written = Vec::new();
    for life in 0..3 {
        m.mount("noatime,norestart");
        if life > 0 {
            let said = quayfs(["scrub", &m.mnt()]).ok();
            assert!(!said.contains("written again"), "{said}");
        }
        for n in 0..30 {
            let path = m.file(&format!("{life}-{n}"));
            let mut file = fs::File::create(&path).unwrap();
            file.write_all(&[n; 5000]).unwrap();
            file.sync_all().unwrap();
            written.push((path, n));
        }
        let pid = m.info()["pid"].as_i64().unwrap() as i32;
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        let _ = Command::new("umount").arg("-l").arg(m.mnt()).finish();
    }
    m.mount("noatime");
    for (path, n) in written {
        assert!(
            fs::read(&path).is_ok_and(|all| all == [n; 5000]),
            "{}",
            path.display()
        );
    }
    m.umount();
    quayfs(["fsck", "--data", &m.vol()]).ok();
}
