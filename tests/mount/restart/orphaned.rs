//! What would start the next daemon is killed: the present one is the last, and stays.

use super::*;
use crate::program::Run;
use rustix::process::{Pid, Signal, kill_process};

const GONE: &str = "its supervisor is gone";

/// What a command has to say of a mount.
fn says(m: &Mounted, command: &str, words: &[&str]) -> Run {
    let mnt = m.mnt();
    let words = words.iter().map(std::ffi::OsStr::new);
    quayfs([command.as_ref(), mnt.as_os_str()].into_iter().chain(words))
}

/// At once, without a process that does so.
fn send(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

/// A mount that has lost its supervisor, and its daemon.
fn orphan(scene: Scene) -> (Mounted, i32) {
    let m = Mounted::on(scene, "restart");
    let last = daemon(&m);
    let supervisor = parent(last);
    assert!(m.info()["ends_with_daemon"].is_null());
    kill(supervisor, "KILL");
    eventually("the supervisor is gone", || parent(last) != supervisor);
    (m, last)
}

/// It says so itself, and is asked before its supervisor has quite ended, too.
#[test]
fn a_daemon_without_a_supervisor_stays() {
    if !can_mount() {
        return;
    }
    for (scene, dies_meanwhile) in scenes().into_iter().zip([false, true]) {
        let m = Mounted::on(scene, "restart");
        let path = m.mnt().join("file");
        let open = File::create_new(&path).unwrap();
        open.write_all_at(b"before", 0).unwrap();
        let last = daemon(&m);
        let supervisor = parent(last);
        send(supervisor, Signal::KILL);
        if !dies_meanwhile {
            eventually("the supervisor is gone", || parent(last) != supervisor);
        }
        send(last, Signal::USR2);
        eventually("it says that it stays", || {
            m.log().contains("none would come (its supervisor is gone)")
        });
        open.write_all_at(b", after", 6).unwrap();
        drop(open);
        assert_eq!(daemon(&m), last);
        assert!(!m.log().contains("is left to another daemon"));
        m.umount();
        eventually("the daemon ends", || !runs(last));
        m.fsck();
        m.mount("restart");
        assert_eq!(fs::read(&path).unwrap(), b"before, after");
        m.umount();
    }
}

#[test]
fn commands_that_need_another_daemon_refuse_where_none_would_come() {
    if !can_mount() {
        return;
    }
    let (m, last) = orphan(Scene::in_memory());
    fs::write(m.mnt().join("file"), b"not durable").unwrap();
    let new = m.0.dir().join("new");
    let refused = [
        says(&m, "restart", &[]),
        says(&m, "restart", &["--binary", program::QUAYFS]),
        says(&m, "resize", &["--data", "160M"]),
        says(&m, "resize", &["--pmem", "80M"]),
        says(&m, "migrate", &["--data", new.to_str().unwrap()]),
        says(&m, "migrate", &["--pmem", new.to_str().unwrap()]),
    ];
    for said in refused {
        said.fails(1, GONE);
    }
    assert!(!new.exists());
    assert_eq!(daemon(&m), last);
    assert_eq!(fs::read(m.mnt().join("file")).unwrap(), b"not durable");
    m.umount();
    m.fsck();
}

#[test]
fn a_mount_without_a_supervisor_is_degraded() {
    if !can_mount() {
        return;
    }
    let (m, _) = orphan(Scene::in_memory());
    let said = says(&m, "status", &[]);
    assert_eq!(said.code, 1, "{said:?}");
    let text = said.out.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in [
        "because its supervisor is gone: the mount would end with its daemon",
        "dead daemon ends the mount;",
        "then mount again",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!(m.info()["ends_with_daemon"], GONE);
    let warning = format!("from now on the mount ends with this daemon: {GONE}");
    assert_eq!(m.log().matches(&warning).count(), 1, "{}", m.log());
    m.umount();
    m.mount("restart");
    assert!(m.info()["ends_with_daemon"].is_null());
    assert_eq!(says(&m, "status", &[]).code, 0);
    m.umount();
}
