//! A service manager in the place of the supervisor.

use super::*;
use rustix::process::{Pid, Signal, kill_process};
use std::process::{Child, Stdio};

const MANAGER: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/tests/mount/restart/manager.py"
);

/// A daemon in the foreground, and what has started it.
struct Managed {
    mounted: Mounted,
    manager: Child,
}

impl Managed {
    fn new(options: &str) -> Self {
        let scene = Scene::in_memory();
        let (vol, mnt) = (scene.vol(), scene.mnt());
        let manager = Command::new("python3")
            .arg(MANAGER)
            .args([scene.dir().join("socket"), scene.dir().join("said")])
            .args([program::QUAYFS, "mount", "--foreground", "-o", options])
            .args([vol, mnt])
            .stderr(Stdio::null())
            .start()
            .unwrap();
        let managed = Self {
            mounted: Mounted(scene),
            manager,
        };
        managed.hears("READY=1", 1);
        managed
    }

    fn heard(&self, line: &str) -> usize {
        let said = self.mounted.0.dir().join("said");
        let said = fs::read_to_string(said).unwrap_or_default();
        said.lines().filter(|l| *l == line).count()
    }

    fn hears(&self, line: &str, times: usize) {
        eventually(line, || self.heard(line) >= times);
    }
}

#[test]
fn a_service_manager_can_take_the_place_of_the_supervisor() {
    if !can_mount() {
        return;
    }
    let mut managed = Managed::new("restart,threads=2");
    let m = &managed.mounted;
    fs::write(m.mnt().join("file"), b"content").unwrap();
    let open = File::open(m.mnt().join("file")).unwrap();
    restart(m);
    managed.hears("ended -9", 1);
    managed.hears("READY=1", 2);
    let info = m.info();
    assert_eq!(
        (&info["restarts"], &info["replaced"]),
        (&1.into(), &0.into())
    );
    assert_eq!(info["last_death"], "ended unexpectedly");
    assert!(info["last_pause_ms"].is_null());
    replaced(&managed);
    resized(&managed);
    let mut content = [0; 7];
    open.read_exact_at(&mut content, 0).unwrap();
    assert_eq!(&content, b"content");
    drop(open);
    m.umount();
    managed.manager.wait().unwrap();
    assert_eq!(managed.heard("ended 0"), 1);
    // Or the next daemon would go on with a mount that has ended, and end as well.
    assert_eq!(managed.heard("held 0"), 1);
    managed.mounted.fsck();
}

/// It is asked for another daemon, by way of the present one.
fn replaced(managed: &Managed) {
    let m = &managed.mounted;
    let mnt = m.mnt();
    let old = daemon(m);
    let words = ["restart".as_ref(), mnt.as_os_str()];
    let named = ["--binary", program::QUAYFS].map(std::ffi::OsStr::new);
    quayfs(words.into_iter().chain(named)).fails(1, "the program that it was told to");
    assert_eq!(daemon(m), old);
    let said = quayfs(words).ok();
    assert!(
        said.contains("served by quayfs") && !said.contains("null"),
        "{said}"
    );
    assert_eq!(managed.heard("ended 75"), 1);
    assert_ne!(daemon(m), old);
    let info = m.info();
    assert_eq!(
        (&info["restarts"], &info["replaced"]),
        (&2.into(), &1.into())
    );
    assert_eq!(info["last_death"], "replaced on request");
}

/// The next daemon resizes the volume also if a service manager starts it.
fn resized(managed: &Managed) {
    let m = &managed.mounted;
    let mnt = m.mnt();
    let words = ["resize", mnt.to_str().unwrap(), "--data", "160M"];
    let told = quayfs(words).ok();
    assert!(
        told.contains("data device  160 MiB, larger than 128 MiB"),
        "{told}"
    );
    assert_eq!(managed.heard("ended 75"), 2);
    let info = m.info();
    assert_eq!(
        (&info["restarts"], &info["replaced"]),
        (&3.into(), &2.into())
    );
}

#[test]
fn it_is_reassured_as_long_as_the_mount_answers() {
    if !can_mount() {
        return;
    }
    for options in ["restart", "rw"] {
        let mut managed = Managed::new(options);
        managed.hears("WATCHDOG=1", 3);
        managed.mounted.umount();
        managed.manager.wait().unwrap();
        assert_eq!(managed.heard("FDSTORE=1") > 0, options == "restart");
        assert_eq!(managed.heard("ended 0"), 1);
    }
}

/// As between the removal of a package and its installation, when its unit is not there. The mount is served by a daemon that went
/// on itself, the first time.
#[test]
fn what_the_service_manager_has_let_go_of_it_gets_again() {
    if !can_mount() {
        return;
    }
    let mut managed = Managed::new("restart,threads=2");
    let m = &managed.mounted;
    fs::write(m.mnt().join("file"), b"content").unwrap();
    let manager = Pid::from_child(&managed.manager);
    for lives in 1..3 {
        restart(m);
        managed.hears("READY=1", lives + 1);
        kill_process(manager, Signal::USR1).unwrap();
        managed.hears("forgotten", lives);
        // What was said before may still be read; of the third, everything came later.
        managed.hears("WATCHDOG=1", managed.heard("WATCHDOG=1") + 3);
    }
    let words = ["restart".as_ref(), m.mnt().as_os_str()].map(ToOwned::to_owned);
    quayfs(&words).ok();
    assert_eq!(fs::read(m.mnt().join("file")).unwrap(), b"content");
    m.umount();
    managed.manager.wait().unwrap();
    assert_eq!(managed.heard("held 0"), 1);
    managed.mounted.fsck();
}

/// It is asked for another daemon, and what would start that is gone: so it stays.
#[test]
fn without_a_service_manager_the_daemon_stays() {
    if !can_mount() {
        return;
    }
    let mut managed = Managed::new("restart");
    managed.manager.kill().unwrap();
    managed.manager.wait().unwrap();
    let m = &managed.mounted;
    let (mnt, last) = (m.mnt(), daemon(m));
    fs::write(mnt.join("file"), b"content").unwrap();
    let gone = "its service manager does not listen any more";
    // Only a message shows that it is gone. Afterwards it is known.
    for _ in 0..2 {
        quayfs(["restart".as_ref(), mnt.as_os_str()]).fails(1, gone);
        assert_eq!(m.info()["ends_with_daemon"], gone);
    }
    assert_eq!(daemon(m), last);
    assert_eq!(fs::read(mnt.join("file")).unwrap(), b"content");
    m.umount();
    eventually("the daemon ends", || !runs(last));
    m.fsck();
}

const UNIT: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/packaging/systemd/quayfs@.service"
);

/// What `systemd-analyze` finds in the unit. It looks for the program as well.
#[test]
fn the_unit_is_sound() {
    let dir = tempfile::tempdir().unwrap();
    let unit = fs::read_to_string(UNIT).unwrap();
    let unit = unit.replace("/usr/bin/quayfs", program::QUAYFS);
    let path = dir.path().join("quayfs@srv-data.service");
    fs::write(&path, unit).unwrap();
    let found = Command::new("systemd-analyze")
        .args(["verify", "--man=no"])
        .arg(&path)
        .capture()
        .unwrap();
    let found = String::from_utf8(found.stderr).unwrap();
    // Of other units of this machine it may say anything.
    let ours = found.lines().filter(|line| line.contains("quayfs"));
    assert_eq!(ours.collect::<Vec<_>>(), [""; 0]);
}

/// In a mount namespace of its own it would mount where no other process sees it, and in a network namespace `quayfs
/// umount` would not find it.
#[test]
fn the_unit_makes_no_namespace() {
    let unit = fs::read_to_string(UNIT).unwrap();
    let keys = unit.lines().filter(|line| !line.starts_with('#'));
    let keys = keys.filter_map(|line| line.split('=').next());
    for key in keys {
        let makes_one = key.starts_with("Private")
            || key.starts_with("Protect")
            || key.ends_with("Paths")
            || key.ends_with("Directory")
            || ["RootImage", "MountAPIVFS", "TemporaryFileSystem"].contains(&key);
        assert!(!makes_one, "{key}");
    }
}
