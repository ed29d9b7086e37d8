//! What is in the way of the next daemon, or of the end.

use super::*;
use crate::program::can_be_root;
use std::thread;

/// A mount whose daemons need a directory for their log, and a name for that while they are not to have it.
fn with_log_apart() -> (Mounted, [PathBuf; 2]) {
    let scene = Scene::in_memory();
    let [dir, away] = ["logs", "away"].map(|name| scene.dir().join(name));
    fs::create_dir(&dir).unwrap();
    let (vol, mnt, log) = (scene.vol(), scene.mnt(), dir.join("log"));
    let words = ["mount", "-orestart", "--log-file"].map(std::ffi::OsStr::new);
    let paths = [log.as_os_str(), vol.as_os_str(), mnt.as_os_str()];
    quayfs(words.into_iter().chain(paths)).ok();
    let m = Mounted(scene);
    fs::write(m.mnt().join("file"), b"content").unwrap();
    (m, [dir, away])
}

/// What cannot be had for a while is waited for, and so are the calls.
#[test]
fn a_daemon_that_cannot_serve_now_is_started_again_later() {
    if !can_mount() {
        return;
    }
    let (m, [dir, away]) = with_log_apart();
    let last = daemon(&m);
    let supervisor = parent(last);
    fs::rename(&dir, &away).unwrap();
    kill(last, "KILL");
    thread::scope(|scope| {
        let read = scope.spawn(|| fs::read(m.mnt().join("file")).unwrap());
        let mut seen = Vec::new();
        eventually("daemons have tried in vain", || {
            seen.extend(children(supervisor).into_iter().filter(|pid| *pid != last));
            seen.sort_unstable();
            seen.dedup();
            seen.len() > 2
        });
        assert!(!read.is_finished());
        fs::rename(&away, &dir).unwrap();
        assert_eq!(read.join().unwrap(), b"content");
    });
    assert_eq!(m.info()["restarts"], 1);
    m.umount();
    m.fsck();
}

/// A mount can be taken away meanwhile, and that says why its volume is in use for some time.
#[test]
fn what_was_stored_goes_to_the_media_after_the_mount_is_gone() {
    if !can_be_root() {
        return;
    }
    for (how, code) in [("-l", 0), ("--force", 32)] {
        let (m, [dir, away]) = with_log_apart();
        let last = daemon(&m);
        let supervisor = parent(last);
        fs::rename(&dir, &away).unwrap();
        kill(last, "KILL");
        // Not only without memory: its sockets go after that.
        let process = Path::new("/proc").join(last.to_string());
        eventually("it is gone", || !process.exists());
        let run = quayfs(["umount", how, m.mnt().to_str().unwrap()]);
        let named = format!("supervisor (process {supervisor})");
        for about in ["at most two minutes", &named] {
            assert!(run.code == code && run.err.contains(about), "{run:?}");
        }
        let vol = m.0.vol();
        quayfs(["fsck".as_ref(), vol.as_os_str()]).fails(8, &named);
        let status = quayfs(["status".as_ref(), vol.as_os_str()]);
        assert!(
            status.code == 1 && status.out.contains(&named) && !status.out.contains("fuser"),
            "{status:?}"
        );
        fs::rename(&away, &dir).unwrap();
        eventually("the supervisor ends", || !runs(supervisor));
        m.mount("rw");
        assert_eq!(fs::read(m.mnt().join("file")).unwrap(), b"content");
        m.umount();
    }
}

/// What no daemon can go on with is final: calls fail instead of waiting.
#[test]
fn a_volume_that_is_none_any_more_ends_the_mount() {
    if !can_mount() {
        return;
    }
    let m = Mounted::on(Scene::in_memory(), "restart");
    let last = daemon(&m);
    let supervisor = parent(last);
    kill(last, "STOP");
    let region = File::options()
        .write(true)
        .open(m.0.vol().join("pmem"))
        .unwrap();
    // Both copies of what says that this is a volume.
    region.write_all_at(&[0; 8192], 0).unwrap();
    kill(last, "KILL");
    eventually("the supervisor ends", || !runs(supervisor));
    expect_dead(&m);
    assert!(m.log().contains("no QuayFS signature"), "{}", m.log());
}

/// A daemon that is killed while it ends the mount has another one do that.
#[test]
fn an_end_that_was_asked_for_comes_though_the_daemon_dies() {
    if !can_mount() {
        return;
    }
    for to_daemon in [true, false] {
        let m = Mounted::on(Scene::in_memory(), "restart");
        fs::write(m.mnt().join("file"), b"content").unwrap();
        // Nothing is unmounted as long as it is in use.
        let open = File::open(m.mnt().join("file")).unwrap();
        let last = daemon(&m);
        let supervisor = parent(last);
        kill(if to_daemon { last } else { supervisor }, "TERM");
        eventually("it has begun", || m.log().contains("signal 15: unmounting"));
        kill(last, "KILL");
        eventually("the next one has begun", || {
            m.log().matches("signal 15: unmounting").count() == 2
        });
        drop(open);
        eventually("the supervisor ends", || !runs(supervisor));
        assert!(is_empty(&m.mnt()));
        assert!(
            m.log().contains("unmounted, the volume is clean"),
            "{}",
            m.log()
        );
        m.fsck();
        m.mount("rw");
        assert_eq!(fs::read(m.mnt().join("file")).unwrap(), b"content");
        m.umount();
    }
}

/// Nothing is mounted any more, and the daemon dies while it closes the volume: the next one does that, and `umount` waits
/// for it.
#[test]
fn an_unmount_is_well_though_the_daemon_dies() {
    if !can_mount() {
        return;
    }
    for _ in 0..3 {
        let m = Mounted::on(Scene::new(), "restart,commit=60");
        fs::write(m.mnt().join("file"), vec![7; 20 << 20]).unwrap();
        let last = daemon(&m);
        let supervisor = parent(last);
        let mnt = m.mnt();
        thread::scope(|scope| {
            let umount = scope.spawn(|| quayfs(["umount".as_ref(), mnt.as_os_str()]));
            // Nobody may be there meanwhile.
            let shown = mnt.to_str().unwrap();
            let is_mounted = || {
                let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
                table.contains(&format!(" {shown} "))
            };
            eventually("it is unmounted", || !is_mounted());
            // It may be done by now.
            let _ = Command::new("kill")
                .args(["-KILL", &last.to_string()])
                .finish();
            umount.join().unwrap().ok();
        });
        // `umount` has had the daemon's word, and the supervisor ends after its daemon.
        eventually("the supervisor ends", || !runs(supervisor));
        m.fsck();
        m.mount("rw");
        assert_eq!(fs::read(m.mnt().join("file")).unwrap(), vec![7; 20 << 20]);
        m.umount();
    }
}

/// `FS_IOC_SHUTDOWN`, as `xfs_io -x -c shutdown` calls it.
#[test]
fn a_mount_that_was_shut_down_stays_so() {
    if !can_be_root() {
        return;
    }
    let m = Mounted::on(Scene::in_memory(), "restart");
    fs::write(m.mnt().join("file"), b"content").unwrap();
    let shut_down = "import fcntl, os, struct, sys; \
                     fcntl.ioctl(os.open(sys.argv[1], 0), 0x8004587d, struct.pack('I', 1))";
    let done = Command::new("python3")
        .args(["-c", shut_down])
        .arg(m.mnt())
        .finish();
    assert!(done.unwrap().success());
    for _ in 0..2 {
        let dead = fs::write(m.mnt().join("file"), b"more").unwrap_err();
        assert_eq!(dead.raw_os_error(), Some(libc::EIO));
        restart(&m);
    }
    let mnt = m.mnt();
    let said = quayfs(["umount".as_ref(), mnt.as_os_str()]);
    assert!(said.err.contains("it had been shut down"), "{said:?}");
    m.mount("rw");
    assert_eq!(fs::read(m.mnt().join("file")).unwrap(), b"content");
    m.umount();
    m.fsck();
}
