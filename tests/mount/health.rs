//! What `quayfs status` says of what the next daemon, or the next mount, would meet.
//!
//! Needs `/dev/fuse` and root.

use crate::processes::{daemon, parent, runs};
use crate::program;

use program::namespace::Namespace;
use program::{
    Mounted, Run, Scene, Start as _, as_nobody, can_be_root, can_mount, eventually, quayfs,
};
use rustix::fs::getxattr;
use rustix::io::Errno;
use serde_json::Value;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

fn run(command: &str, target: &Path, more: &[&str]) -> Run {
    let words = [OsStr::new(command), target.as_os_str()];
    quayfs(words.into_iter().chain(more.iter().map(OsStr::new)))
}

/// The exit code, and what is said of this one.
fn status(target: &Path) -> (i32, Value) {
    let said = run("status", target, &["--json"]);
    let mut all: Value = serde_json::from_str(&said.out).unwrap();
    (said.code, all["volumes"][0].take())
}

/// What is said on a screen, in one line, without the spaces between the words.
fn screen(target: &Path) -> String {
    let said = run("status", target, &[]);
    let words: Vec<_> = said.out.split_whitespace().collect();
    words.join(" ")
}

fn signal(pid: i32, name: &str) {
    let mut kill = Command::new("kill");
    let sent = kill.args(["-s", name, &pid.to_string()]).finish();
    assert!(sent.unwrap().success());
}

fn writable(path: &Path) -> File {
    File::options().read(true).write(true).open(path).unwrap()
}

/// A volume of that name in one file.
fn in_one_file(scene: &Scene) {
    let vol = scene.vol();
    fs::remove_dir_all(&vol).unwrap();
    run("mkfs", &vol, &["--size", "64M", "--pmem-size", "32M"]).ok();
}

/// Where the tables are is wiped under a mount: that is told while the mount can still be copied, and what to do then.
#[test]
fn tables_that_are_lost_are_told_before_the_next_mount() {
    if !can_mount() {
        return;
    }
    for (options, is_one) in [("restart", false), ("norestart", false), ("restart", true)] {
        let scene = Scene::in_memory();
        if is_one {
            in_one_file(&scene);
        }
        let m = Mounted::on(scene, options);
        let (vol, mnt) = (m.0.vol(), m.mnt());
        fs::write(mnt.join("file"), b"content").unwrap();
        assert_eq!(status(&mnt).0, 0);
        let region = match is_one {
            true => vol.clone(),
            false => vol.join("pmem"),
        };
        writable(&region).write_all_at(&[0; 8192], 0).unwrap();
        let (code, told) = status(&mnt);
        assert_eq!(code, 1, "{told}");
        let why = told["reasons"][0].as_str().unwrap();
        assert!(
            why.contains("tables at its beginning are overwritten"),
            "{why}"
        );
        let todo = told["advice"].as_str().unwrap();
        assert!(
            todo.starts_with("copy what is on ") && todo.contains("fsck --repair"),
            "{todo}"
        );
        let said = screen(&mnt);
        assert!(said.contains("dead daemon ends the mount"), "{said}");

        m.umount();
        let (code, told) = status(&vol);
        assert_eq!((code, &told["health"]), (2, &"failed".into()), "{told}");
        let todo = told["advice"].as_str().unwrap();
        assert!(todo.starts_with("`quayfs fsck --repair "), "{todo}");
        assert_eq!(run("fsck", &vol, &["--repair"]).code, 1);
        m.mount(options);
        assert_eq!(fs::read(mnt.join("file")).unwrap(), b"content");
        m.umount();
    }
    // Nothing is said of a file that never was one.
    let scene = Scene::in_memory();
    let other = scene.dir().join("other");
    fs::write(&other, vec![0; 64 << 20]).unwrap();
    assert_eq!(run("status", &other, &[]).code, 3);
}

/// The same of the heads of its log, without which the next mount is refused, or has lost the last commits. A scrub puts them back,
/// as long as a daemon knows them.
#[test]
fn heads_of_the_log_that_are_lost_are_told_and_written_again() {
    if !can_mount() {
        return;
    }
    let m = Mounted(Scene::new());
    in_one_file(&m.0);
    let (vol, mnt) = (m.0.vol(), m.mnt());
    let dump = run("dump", &vol, &["superblock", "--json"]).ok();
    let off = serde_json::from_str::<Value>(&dump).unwrap()["geometry"]["batch_log_off"]
        .as_u64()
        .unwrap();
    assert!(off > 0, "{dump}");
    m.mount("restart,commit=300");
    let file = File::create(mnt.join("file")).unwrap();
    file.write_all_at(b"content", 0).unwrap();
    file.sync_all().unwrap();
    writable(&vol).write_all_at(&[0x5a; 4096], off).unwrap();
    assert_eq!(status(&mnt).0, 0);
    writable(&vol).write_all_at(&[0x5a; 8192], off).unwrap();
    let (code, told) = status(&mnt);
    assert_eq!(code, 1, "{told}");
    let todo = told["advice"].as_str().unwrap();
    assert!(todo.starts_with("`quayfs scrub "), "{todo}");
    let pid = daemon(&m);
    run("restart", &mnt, &[]).fails(1, "both heads of its batch log are damaged");
    assert_eq!(daemon(&m), pid);

    run("scrub", &mnt, &[]).ok();
    let (code, told) = status(&mnt);
    assert!(!told.to_string().contains("batch log"), "{code} {told}");
    signal(pid, "KILL");
    assert_eq!(fs::read(mnt.join("file")).unwrap(), b"content");
    drop(file);
    m.umount();
    m.fsck();

    // Once the daemon is dead, only a repair goes on, and it says what that costs.
    m.mount("norestart,commit=300");
    let file = File::create(mnt.join("other")).unwrap();
    file.sync_all().unwrap();
    drop(file);
    writable(&vol).write_all_at(&[0x5a; 8192], off).unwrap();
    signal(daemon(&m), "KILL");
    eventually("the daemon is gone", || status(&mnt).1["state"] == "dead");
    let (code, told) = status(&mnt);
    let todo = told["advice"].as_str().unwrap();
    assert!(
        code == 2 && todo.contains("fsck --repair") && !todo.contains("scrub"),
        "{told}"
    );
    run("umount", &mnt, &[]);
    let repaired = run("fsck", &vol, &["--repair"]);
    assert!(
        repaired.code == 4 && repaired.out.contains("commits that only the batch log had"),
        "{repaired:?}"
    );
    m.mount("norestart");
    assert_eq!(fs::read(mnt.join("file")).unwrap(), b"content");
    m.umount();
}

/// What is advised first costs nothing: the daemon has the tables in memory, whatever is where they were.
#[test]
fn tables_that_are_lost_under_a_mount_are_written_again() {
    if !can_mount() {
        return;
    }
    let scene = Scene::new();
    in_one_file(&scene);
    let m = Mounted::on(scene, "norestart");
    let (vol, mnt) = (m.0.vol(), m.mnt());
    fs::write(mnt.join("file"), b"content").unwrap();
    let mut other = [0; 12288];
    other[..4].copy_from_slice(b"XFSB");
    let medium = writable(&vol);
    medium.write_all_at(&other, 0).unwrap();
    medium.sync_all().unwrap();
    let (code, told) = status(&mnt);
    assert_eq!(code, 1, "{told}");
    let why = told["reasons"][0].as_str().unwrap();
    assert!(why.ends_with("what is there now is xfs data"), "{why}");
    let todo = told["advice"].as_str().unwrap();
    assert!(
        todo.starts_with("`quayfs scrub ") && todo.contains("`wipefs --all --force "),
        "{todo}"
    );
    assert_eq!(run("scrub", &mnt, &[]).code, 0);
    let (_, told) = status(&mnt);
    assert!(!told["reasons"].to_string().contains("tables"), "{told}");
    m.umount();
    assert_eq!(run("fsck", &vol, &["--data"]).code, 0);
    m.mount("norestart");
    assert_eq!(fs::read(mnt.join("file")).unwrap(), b"content");
    m.umount();
}

/// Of a dead mount, what makes the next one possible is the first advice.
#[test]
fn a_dead_mount_is_told_what_the_next_one_needs() {
    if !can_mount() {
        return;
    }
    let damaged = |vol: &Path| {
        writable(&vol.join("pmem"))
            .write_all_at(&[0; 8192], 0)
            .unwrap()
    };
    let cut = |vol: &Path| writable(&vol.join("data")).set_len(48 << 20).unwrap();
    type Hit<'h> = (&'h dyn Fn(&Path), &'h str);
    let hits: [Hit<'_>; 2] = [(&damaged, "fsck --repair"), (&cut, "as long again")];
    for (hit, todo) in hits {
        let m = Mounted::on(Scene::in_memory(), "norestart");
        let (vol, mnt) = (m.0.vol(), m.mnt());
        hit(&vol);
        let said = screen(&mnt);
        assert!(said.contains("dead daemon ends the mount"), "{said}");
        signal(daemon(&m), "KILL");
        eventually("it is dead", || status(&mnt).1["state"] == "dead");
        let (code, told) = status(&mnt);
        assert_eq!(code, 2);
        assert!(told["advice"].as_str().unwrap().contains(todo), "{told}");
        let first = told["todo"]
            .as_array()
            .unwrap()
            .iter()
            .find(|todo| !todo.is_null());
        assert_eq!(first, Some(&told["advice"]));
        m.umount();
    }
}

/// As long as it stays so, nothing would start another daemon.
#[test]
fn a_supervisor_that_is_stopped_is_told() {
    if !can_mount() {
        return;
    }
    let m = Mounted::on(Scene::in_memory(), "restart");
    let mnt = m.mnt();
    let last = daemon(&m);
    let supervisor = parent(last);
    let todo = Value::from(format!("`kill -CONT {supervisor}` lets it go on"));
    signal(supervisor, "STOP");
    let alive = (status(&mnt), screen(&mnt));
    signal(last, "KILL");
    let dead = status(&mnt);
    signal(supervisor, "CONT");
    let ((code, told), said) = alive;
    assert_eq!((code, &told["advice"]), (1, &todo), "{told}");
    assert!(
        said.contains("dead daemon ends the mount unless its supervisor"),
        "{said}"
    );
    let (code, told) = dead;
    assert_eq!((code, &told["advice"]), (2, &todo), "{told}");
    assert_ne!(daemon(&m), last);
    m.umount();
}

/// Damage of no file is nothing that a backup of files helps against, and the next mount may be refused.
#[test]
fn metadata_that_have_rotted_are_copied_and_repaired() {
    if !can_mount() {
        return;
    }
    let scene = Scene::in_memory();
    let of = |words: &[&str]| -> Value {
        serde_json::from_str(&run("dump", &scene.vol(), words).ok()).unwrap()
    };
    let (nodes, dump) = (of(&["nodes", "--json"]), of(&["--json"]));
    let node_off = dump["geometry"]["node_off"].as_u64().unwrap();
    let mut pages = nodes["nodes"].as_array().unwrap().iter();
    let page = pages.find(|node| node["kind"] == "bitmap").unwrap();
    let at = node_off + page["page"].as_u64().unwrap() * 4096 + 2000;
    let m = Mounted::on(scene, "restart");
    let mnt = m.mnt();
    let region = writable(&m.0.vol().join("pmem"));
    let turn = || {
        let mut byte = [0];
        region.read_exact_at(&mut byte, at).unwrap();
        region.write_all_at(&[!byte[0]], at).unwrap();
    };
    turn();
    assert_eq!(run("scrub", &mnt, &[]).code, 4);
    let (code, told) = status(&mnt);
    assert_eq!(code, 1, "{told}");
    assert_eq!(told["scrub"]["metadata"], told["scrub"]["findings"]);
    let todo = told["advice"].as_str().unwrap();
    assert!(
        todo.starts_with("copy what is on ") && todo.contains("fsck --repair --data"),
        "{todo}"
    );
    let said = screen(&mnt);
    assert!(said.contains("dead daemon may end the mount"), "{said}");
    for (command, words) in [("restart", &[][..]), ("resize", &["--data", "96M"])] {
        run(command, &mnt, words).fails(1, "a scrub has found damaged metadata");
    }
    turn();
    m.umount();
    m.fsck();
}

/// A bind mount of a directory or a file says what the mount says, also when nothing else of it is left.
#[test]
fn a_part_of_a_mount_can_be_asked() {
    if !can_mount() {
        return;
    }
    let m = Mounted::on(Scene::open_to_all(), "norestart,allow_other");
    let (vol, mnt) = (m.0.vol(), m.mnt());
    let [dir, file] = ["b", "fb"].map(|name| m.0.dir().join(name));
    fs::create_dir(mnt.join("dir")).unwrap();
    fs::create_dir(&dir).unwrap();
    for place in [&mnt.join("file"), &file] {
        fs::write(place, b"").unwrap();
    }
    let _parts = [
        Bound::new(&mnt.join("dir"), &dir),
        Bound::new(&mnt.join("file"), &file),
    ];
    for name in ["quayfs.status", "quayfs.quota", "quayfs.scrub"] {
        let get = || getxattr(&file, name, &mut [0; 64 << 10]);
        assert!(get().is_ok_and(|len| len > 0), "{name}");
        // What is given a part of a volume learns nothing of the rest.
        assert_eq!(as_nobody(get), Err(Errno::OPNOTSUPP), "{name}");
    }
    let uuid = &m.info()["uuid"];
    for place in [&dir, &file] {
        let (code, told) = status(place);
        assert_eq!((code, &told["uuid"]), (0, uuid), "{told}");
        assert_eq!(
            told["mountpoint"],
            mnt.to_str().unwrap(),
            "all is seen there"
        );
        for command in ["info", "stats", "scrub", "quota"] {
            run(command, place, &[]).ok();
        }
    }
    let gone = Command::new("umount").arg("-i").arg(&mnt).finish();
    assert!(gone.unwrap().success());
    for place in [&dir, &file, &vol] {
        let (code, told) = status(place);
        assert_eq!((code, &told["uuid"]), (0, uuid), "{told}");
        for command in ["info", "stats", "scrub", "quota"] {
            run(command, place, &[]).ok();
        }
    }
}

/// A mount that goes with the test.
struct Bound<'p>(&'p Path);

impl<'p> Bound<'p> {
    fn new(what: &Path, at: &'p Path) -> Self {
        let made = Command::new("mount")
            .arg("--bind")
            .args([what, at])
            .finish();
        assert!(made.unwrap().success());
        Self(at)
    }
}

impl Drop for Bound<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount")
            .args(["-i", "-l"])
            .arg(self.0)
            .finish();
    }
}

/// The list has a mount where it is seen, in whatever order the places were mounted.
#[test]
fn the_list_has_a_mount_that_is_covered_in_one_place() {
    if !can_mount() {
        return;
    }
    let m = Mounted::on(Scene::in_memory(), "norestart");
    let (mnt, other) = (m.mnt(), m.0.dir().join("other"));
    fs::create_dir(&other).unwrap();
    let _bound = Bound::new(&mnt, &other);
    let cover = ["-t", "tmpfs", "none"];
    let made = Command::new("mount").args(cover).arg(&mnt).finish();
    assert!(made.unwrap().success());
    let _cover = Bound(&mnt);
    let list = quayfs(["status", "--json"]);
    let list: Value = serde_json::from_str(&list.out).unwrap();
    let has = |place: &Path| {
        let all = list["volumes"].as_array().unwrap().iter();
        all.filter(|v| v["mountpoint"] == place.to_str().unwrap())
            .count()
    };
    assert_eq!((has(&mnt), has(&other)), (0, 1), "{list}");
}

/// What serves a volume out of sight is named, where it is mounted, and that it is stopped.
#[test]
fn a_daemon_out_of_sight_is_told() {
    if !can_be_root() {
        return;
    }
    let m = Mounted::on(Scene::in_memory(), "norestart");
    let (vol, mnt, pid) = (m.0.vol(), m.mnt(), daemon(&m));
    let namespace = Namespace::new(m.0.dir(), &mnt, "true");
    assert_eq!(run("umount", &mnt, &[]).code, 0);
    let (code, told) = status(&vol);
    assert_eq!((code, &told["state"]), (1, &"in-use".into()), "{told}");
    let place = format!(
        "mounted on {} in the mount namespace of process",
        mnt.display()
    );
    assert!(
        told["reasons"][0].as_str().unwrap().starts_with(&place),
        "{told}"
    );
    signal(pid, "STOP");
    let stopped = status(&vol);
    signal(pid, "CONT");
    let (code, told) = stopped;
    assert_eq!((code, &told["state"]), (2, &"stopped".into()), "{told}");
    let todo = format!("`kill -CONT {pid}` lets it go on");
    assert_eq!(told["advice"], todo);
    drop(namespace);
    eventually("the daemon ends", || !runs(pid));
    // Nor does anything else lead to what uses a tree that is mounted nowhere.
    m.mount("norestart");
    let (pid, held) = (daemon(&m), File::create(m.mnt().join("held")).unwrap());
    run("umount", &mnt, &["-l"]).ok();
    let (code, told) = status(&vol);
    let by = format!("used by process {}", std::process::id());
    let why = told["reasons"][0].as_str().unwrap();
    assert!(code == 1 && why.contains(&by), "{told}");
    drop(held);
    eventually("the daemon ends", || !runs(pid));
    m.fsck();
}
