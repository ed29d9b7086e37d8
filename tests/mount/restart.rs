//! `-o restart`: the daemon dies and the mount goes on.
//!
//! Needs `/dev/fuse` and root. What is random about deaths is in `tests/apps/outlive`.

mod hindered;
mod managed;
mod orphaned;
mod planned;
mod users;

use crate::processes::{children, daemon, expect_dead, parent, runs};
use crate::program;

use program::{Mounted, Scene, Start as _, can_mount, eventually, quayfs};
use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Volumes with a region in memory, and on a disk.
fn scenes() -> [Scene; 2] {
    [Scene::in_memory(), Scene::new()]
}

fn kill(pid: i32, signal: &str) {
    let kill = ["-s", signal, &pid.to_string()];
    assert!(Command::new("kill").args(kill).finish().unwrap().success());
}

/// Kills the daemon, and returns when another one has answered.
fn restart(m: &Mounted) {
    let pid = daemon(m);
    kill(pid, "KILL");
    assert_ne!(daemon(m), pid);
}

#[test]
fn what_was_answered_is_there_and_what_is_open_stays_open() {
    if !can_mount() {
        return;
    }
    for scene in scenes() {
        let m = Mounted::on(scene, "restart");
        let path = |name: &str| m.mnt().join(name);
        fs::create_dir(path("dir")).unwrap();
        fs::write(path("dir/file"), b"before").unwrap();
        let mut open = File::options()
            .read(true)
            .append(true)
            .open(path("dir/file"))
            .unwrap();
        fs::write(path("gone"), b"without a name").unwrap();
        let gone = File::options()
            .read(true)
            .write(true)
            .open(path("gone"))
            .unwrap();
        fs::remove_file(path("gone")).unwrap();
        let ino = open.metadata().unwrap().ino();
        for n in 1..=3 {
            restart(&m);
            let info = m.info();
            assert_eq!(info["restarts"], n);
            assert_eq!(info["last_death"], "ended by signal 9");
            // It serves before it has looked at the clock.
            eventually("the pause is known", || m.info()["last_pause_ms"].is_u64());
            open.write_all(b", after").unwrap();
            gone.write_all_at(b"WITH", 0).unwrap();
        }
        let mut text = String::new();
        open.rewind().unwrap();
        open.read_to_string(&mut text).unwrap();
        assert_eq!(text, "before, after, after, after");
        assert_eq!(fs::metadata(path("dir/file")).unwrap().ino(), ino);
        let mut content = [0; 14];
        gone.read_exact_at(&mut content, 0).unwrap();
        assert_eq!(&content, b"WITHout a name");
        drop((open, gone));
        m.umount();
        m.fsck();
    }
}

/// A file without a name lives as long as the kernel knows it, also if that began with another daemon, and no longer.
#[test]
fn what_nothing_holds_any_more_is_freed() {
    if !can_mount() {
        return;
    }
    for scene in scenes() {
        let m = Mounted::on(scene, "restart,commit=1");
        // Freed numbers come back when their records are digested, which nothing else has to wait for.
        let free = || {
            let info = m.info();
            let count = |name: &str| info[name].as_u64().unwrap();
            count("blocks_free") + count("blocks_pending")
        };
        let before = free();
        let temporary = || {
            let mut options = File::options();
            options.read(true).write(true).custom_flags(libc::O_TMPFILE);
            let file = options.open(m.mnt()).unwrap();
            file.write_all_at(b"content", 0).unwrap();
            file
        };
        let held: Vec<_> = (0..10).map(|_| temporary()).collect();
        restart(&m);
        for file in &held {
            let mut content = [0; 7];
            file.read_exact_at(&mut content, 0).unwrap();
            assert_eq!(&content, b"content");
        }
        assert!(free() <= before - 10);
        drop(held);
        eventually("they are freed", || free() == before);
        // More than the thread that frees them has in hand at a time, all of them known from the last daemon.
        let names: Vec<_> = (0..1500)
            .map(|n| m.mnt().join(format!("file{n}")))
            .collect();
        (names.iter()).for_each(|name| fs::write(name, b"content").unwrap());
        restart(&m);
        (names.iter()).for_each(|name| fs::remove_file(name).unwrap());
        eventually("these too", || free() == before);
        m.umount();
        m.fsck();
    }
}

/// Requests that a stopped daemon has taken, or not, are those of the next one.
#[test]
fn calls_that_were_under_way_are_carried_out_once() {
    if !can_mount() {
        return;
    }
    for scene in scenes() {
        let m = Mounted::on(scene, "restart,threads=2");
        let pid = daemon(&m);
        kill(pid, "STOP");
        let root = m.mnt();
        let calls: Vec<_> = (0..8)
            .map(|n| {
                let root = root.clone();
                std::thread::spawn(move || {
                    let name = |what: &str| root.join(format!("{what}{n}"));
                    fs::create_dir(name("dir")).unwrap();
                    let mut options = File::options();
                    let mut file = options
                        .append(true)
                        .create_new(true)
                        .open(name("a"))
                        .unwrap();
                    file.write_all(b"once").unwrap();
                    fs::rename(name("a"), name("b")).unwrap();
                    fs::hard_link(name("b"), name("c")).unwrap();
                    fs::remove_dir(name("dir")).unwrap();
                })
            })
            .collect();
        kill(pid, "KILL");
        calls.into_iter().for_each(|call| call.join().unwrap());
        for n in 0..8 {
            let name = |what: &str| root.join(format!("{what}{n}"));
            assert_eq!(fs::read(name("c")).unwrap(), b"once");
            assert_eq!(fs::metadata(name("b")).unwrap().nlink(), 2);
            assert!(!name("a").exists() && !name("dir").exists());
        }
        m.umount();
        m.fsck();
    }
}

#[test]
fn nothing_is_left_after_the_end() {
    if !can_mount() {
        return;
    }
    type End = fn(&Mounted, i32);
    let ends: [(&str, End); 3] = [
        ("umount", |m, _| m.umount()),
        ("SIGTERM to the daemon", |m, _| kill(daemon(m), "TERM")),
        ("SIGTERM to the supervisor", |_, supervisor| {
            kill(supervisor, "TERM")
        }),
    ];
    for (how, end) in ends {
        for dies in [false, true] {
            let m = Mounted::on(Scene::in_memory(), "restart");
            let supervisor = parent(daemon(&m));
            if dies {
                restart(&m);
            }
            let last = daemon(&m);
            end(&m, supervisor);
            eventually(how, || !runs(last) && !runs(supervisor));
            assert!(is_empty(&m.mnt()), "{how}");
            m.fsck();
        }
    }
}

fn is_empty(dir: &Path) -> bool {
    fs::read_dir(dir).unwrap().next().is_none()
}

/// Each of them dies before anything asks it anything.
#[test]
fn daemons_that_die_one_after_the_other_are_given_up() {
    if !can_mount() {
        return;
    }
    let m = Mounted::on(Scene::in_memory(), "restart");
    fs::write(m.mnt().join("file"), b"kept").unwrap();
    let supervisor = parent(daemon(&m));
    let mut last = 0;
    for n in 0..6 {
        let mut now = Vec::new();
        eventually("a daemon runs, or it is given up", || {
            now = children(supervisor);
            now.iter().any(|pid| *pid != last) || !runs(supervisor)
        });
        last = *(now.iter().find(|pid| **pid != last))
            .unwrap_or_else(|| panic!("given up after {n} deaths"));
        kill(last, "KILL");
    }
    eventually("it is given up", || !runs(supervisor));
    expect_dead(&m);
    assert!(m.log().contains("the mount is given up"), "{}", m.log());
    quayfs(["umount".as_ref(), m.mnt().as_os_str()]).ok();
    m.mount("restart");
    assert_eq!(fs::read(m.mnt().join("file")).unwrap(), b"kept");
    m.umount();
    m.fsck();
}

/// KiB of memory of a process: of pages that it shares its part only.
fn memory(pid: i32) -> u64 {
    let all = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let line = all.lines().find_map(|line| line.strip_prefix("Pss:"));
    let words = line.unwrap().trim().strip_suffix(" kB");
    words.unwrap().parse().unwrap()
}

/// The memory that daemons leave to each other is nobody's as long as it is not used, and the supervisor does not use it.
#[test]
fn the_supervisor_is_small() {
    if !can_mount() {
        return;
    }
    for scene in scenes() {
        let m = Mounted::on(scene, "restart");
        let supervisor = parent(daemon(&m));
        for _ in 0..3 {
            fs::write(m.mnt().join("file"), vec![1; 8 << 20]).unwrap();
            restart(&m);
            assert!(memory(supervisor) < 5 << 10, "{} KiB", memory(supervisor));
        }
        m.umount();
    }
}

#[test]
fn what_cannot_survive_is_refused_beside_it() {
    if !can_mount() {
        return;
    }
    let scene = Scene::in_memory();
    for other in ["transport=uring", "norestart"] {
        let options = format!("restart,{other}");
        let paths: [PathBuf; 2] = [scene.vol(), scene.mnt()];
        let words = ["mount", "-o", &options].map(std::ffi::OsStr::new);
        let words = words.into_iter().chain(paths.iter().map(|p| p.as_os_str()));
        quayfs(words).fails(1, "contradict");
    }
}
