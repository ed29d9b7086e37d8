//! `quayfs trace`: what is asked of a mount.
//!
//! Needs `/dev/fuse`, and root for what other users may not do.

use crate::program;

use program::{Mounted, QUAYFS, Scene, Start as _, as_nobody, can_be_root, can_mount, eventually};
use rustix::io::Errno;
use serde_json::Value;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command};

/// A trace of a mount, which has begun.
struct Traced {
    mounted: Mounted,
    process: Child,
}

impl Traced {
    fn new(words: &[&str]) -> Self {
        let mounted = Mounted::new("noatime");
        let file = |name: &str| File::create(mounted.0.dir().join(name)).unwrap();
        let process = Command::new(QUAYFS)
            .arg("trace")
            .arg(mounted.mnt())
            .args(words)
            .stdout(file("out"))
            .stderr(file("err"))
            .start()
            .unwrap();
        let traced = Self { mounted, process };
        let mut n = 0;
        eventually("something is traced", || {
            n += 1;
            fs::create_dir(traced.mounted.mnt().join(format!("dir-{n}"))).unwrap();
            traced.text("out").contains("mkdir")
        });
        traced
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.mounted.0.dir().join(name)).unwrap()
    }

    /// Whole lines that are there by now.
    fn lines(&self) -> Vec<String> {
        let text = self.text("out");
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        whole.lines().map(str::to_string).collect()
    }

    fn interrupt(&mut self) {
        let int = ["-s", "INT", &self.process.id().to_string()];
        assert!(Command::new("kill").args(int).finish().unwrap().success());
    }

    fn ends_well(&mut self) {
        let ended = self.process.wait().unwrap();
        assert!(ended.success(), "{ended}: {}", self.text("err"));
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn what_is_asked_is_told_until_it_is_interrupted() {
    if !can_mount() {
        return;
    }
    let mut traced = Traced::new(&["--json"]);
    let dir = traced.mounted.mnt().join("here");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("file"), b"abc").unwrap();
    let told = |is_it: &dyn Fn(&Value) -> bool| {
        let lines = traced.lines().into_iter();
        let mut all = lines.map(|line| serde_json::from_str::<Value>(&line).unwrap());
        all.find(|event| is_it(event))
    };
    let write = || told(&|event| event["op"] == "write");
    eventually("the write is told", || write().is_some());
    // The name of the directory was looked up before it was made.
    let lookup = told(&|event| event["op"] == "lookup" && event["name"] == "here").unwrap();
    assert_eq!(lookup["errno"], Errno::NOENT.raw_os_error(), "{lookup}");
    let event = write().unwrap();
    assert_eq!(event["path"], "/here/file", "{event}");
    assert_eq!((&event["offset"], &event["length"]), (&0.into(), &3.into()));
    assert_eq!(
        (&event["bytes"], &event["errno"]),
        (&3.into(), &Value::Null)
    );
    assert_eq!(event["pid"], std::process::id(), "{event}");
    assert!(event["latency_us"].as_f64().unwrap() > 0.0, "{event}");
    traced.interrupt();
    traced.ends_well();
    assert_eq!(traced.text("err"), "");
    traced.mounted.umount();
}

#[test]
fn it_ends_with_the_mount_and_is_not_in_its_way() {
    if !can_mount() {
        return;
    }
    let mut traced = Traced::new(&["--op", "mkdir", "--op", "rmdir"]);
    let dir = traced.mounted.mnt().join("there");
    fs::create_dir(&dir).unwrap();
    fs::remove_dir(&dir).unwrap();
    let told = |what: &str| traced.lines().iter().any(|l| l.contains(what));
    eventually("both are told", || {
        told(" rmdir ") && told("/there inode 1 = 0")
    });
    traced.mounted.umount();
    traced.ends_well();
    assert_eq!(traced.text("err"), "quayfs: the mount has ended\n");
    let lines = traced.lines();
    let is_asked_for = |line: &String| line.contains(" mkdir ") || line.contains(" rmdir ");
    assert!(lines.iter().all(is_asked_for), "{lines:?}");
}

#[test]
fn others_may_not_see_what_is_asked() {
    if !can_be_root() {
        return;
    }
    let m = Mounted::on(Scene::open_to_all(), "allow_other");
    let mnt: PathBuf = m.mnt();
    let mut room = [0; 512];
    let asked = rustix::fs::getxattr(&mnt, "quayfs.trace", &mut room[..]);
    assert!(asked.is_ok_and(|n| n > 0));
    let asked = as_nobody(|| {
        let mut room = [0; 512];
        rustix::fs::getxattr(&mnt, "quayfs.trace", &mut room[..])
    });
    assert_eq!(asked, Err(Errno::PERM));
    m.umount();
}
