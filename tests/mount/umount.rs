//! `quayfs umount`: what it says of how the daemon ended, and that it does not wait for a daemon that does not answer.
//!
//! Needs `/dev/fuse` and root.

use crate::processes::runs;
use crate::program;

use program::doomed::Doomed;
use program::namespace::{Namespace, copies, no_copies};
use program::{Mounted, QUAYFS, Run, Scene, Start as _, can_be_root, eventually, quayfs};
use quayfs_fs::volume::{Access, Volume};
use rustix::mount::FsPickFlags;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Longer than anything here takes. What never ends is to fail, and not to stop the others.
const AT_LAST: &str = "120";

fn run(program: &[&str]) -> Run {
    let _alone = no_copies();
    Command::new("timeout")
        .args(["-s", "KILL", AT_LAST])
        .args(program)
        .capture()
        .unwrap()
        .into()
}

fn signal(pid: i32, name: &str) {
    let kill = ["-s", name, &pid.to_string()];
    assert!(Command::new("kill").args(kill).finish().unwrap().success());
}

fn is_mounted(target: &Path) -> bool {
    // Others may mount what has a name of any bytes.
    let table = fs::read("/proc/self/mountinfo").unwrap();
    String::from_utf8_lossy(&table)
        .lines()
        .any(|l| l.split(' ').nth(4).map(Path::new) == Some(target))
}

fn text(path: impl AsRef<Path>) -> String {
    path.as_ref().to_str().unwrap().into()
}

fn pid(m: &Mounted) -> i32 {
    m.info()["pid"].as_i64().unwrap() as i32
}

/// A stopped daemon. It goes on when the test ends, in whatever way: a stopped process cannot be waited for.
struct Stopped(i32);

impl Stopped {
    fn new(pid: i32) -> Self {
        signal(pid, "STOP");
        eventually("it is stopped", || {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
            stat.rsplit(") ").next().unwrap().starts_with('T')
        });
        Self(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = Command::new("kill")
            .args(["-s", "CONT", &self.0.to_string()])
            .finish();
    }
}

/// A second place of a mount, which goes away with the test.
struct Bind(PathBuf);

impl Bind {
    fn new(of: &Path, dir: &Path) -> Self {
        let other = dir.canonicalize().unwrap().join("other");
        fs::create_dir(&other).unwrap();
        let paths = [of, &other];
        let made = Command::new("mount").arg("--bind").args(paths).finish();
        assert!(made.unwrap().success());
        Self(other)
    }
}

impl Drop for Bind {
    fn drop(&mut self) {
        if is_mounted(&self.0) {
            let _ = Command::new("umount")
                .args(["-i", "-l"])
                .arg(&self.0)
                .finish();
        }
    }
}

#[test]
fn a_volume_that_could_not_be_closed_is_no_success() {
    if !can_be_root() {
        return;
    }
    let doomed = Doomed::new();
    let m = &doomed.mounted;
    let mnt = text(m.mnt());
    let run = run(&[QUAYFS, "umount", &mnt]);
    assert!(!is_mounted(&m.mnt()));
    for about in [
        "is unmounted, but the volume is not closed: ",
        "No space left on device",
        " block",
        " still in the pmem region, not on the data device, nothing is lost",
        "remove the cause and mount again, which recovers",
    ] {
        assert!(run.err.contains(about), "{about}: {run:?}");
    }
    run.fails(32, "");
}

/// Where the daemon's socket is out of reach, the volume says how it ended.
#[test]
fn the_volume_itself_says_that_it_was_not_closed() {
    if !can_be_root() {
        return;
    }
    let elsewhere = ["unshare", "--net", QUAYFS, "umount"];
    let doomed = Doomed::new();
    let mnt = text(doomed.mounted.mnt());
    let run_elsewhere = |mnt: &str| run(&[&elsewhere[..], &[mnt]].concat());
    let run = run_elsewhere(&mnt);
    // By now the mount table may have been told.
    let about = ["ended before it was done", "read-only at the end"];
    assert!(about.iter().any(|about| run.err.contains(about)), "{run:?}");
    run.fails(32, "is unmounted, but the volume is not closed: ");
    let m = Mounted::on(Scene::in_memory(), "rw");
    fs::write(m.mnt().join("file"), b"cargo").unwrap();
    let (daemon, mnt) = (pid(&m), text(m.mnt()));
    assert_eq!(run_elsewhere(&mnt).ok(), "");
    assert!(!runs(daemon));
}

/// A failure makes the table say `ro` as well, and is no reason to believe that nothing was open for writing.
#[test]
fn a_mount_that_has_failed_was_not_closed() {
    if !can_be_root() {
        return;
    }
    let doomed = Doomed::new();
    let mnt = doomed.mounted.mnt();
    eventually("the table says that it has failed", || {
        let _ = fs::write(mnt.join("more"), vec![7; 4 << 20]);
        fs::metadata(&mnt).unwrap();
        let table = fs::read("/proc/self/mountinfo").unwrap();
        let table = String::from_utf8_lossy(&table).into_owned();
        let line = table.lines().find(|l| l.contains(&text(&mnt))).unwrap();
        line.contains(" ro,user_id=")
    });
    run(&["unshare", "--net", QUAYFS, "umount", &text(&mnt)]).fails(32, "has closed it");
}

/// A daemon that has failed holds its file system while it changes the mount table.
#[test]
fn what_holds_a_file_system_for_a_moment_does_not_keep_it_alive() {
    if !can_be_root() {
        return;
    }
    let m = Mounted::on(Scene::in_memory(), "rw");
    let (daemon, mnt) = (pid(&m), m.mnt());
    let flags = FsPickFlags::FSPICK_CLOEXEC;
    let context = rustix::mount::fspick(rustix::fs::CWD, &mnt, flags).unwrap();
    let alone = no_copies();
    let umount = Command::new(QUAYFS)
        .arg("umount")
        .arg(&mnt)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .start()
        .unwrap();
    eventually("it is unmounted", || !is_mounted(&mnt));
    assert!(runs(daemon));
    drop(context);
    let run = Run::from(umount.wait_with_output().unwrap());
    drop(alone);
    assert_eq!(run.ok(), "");
    assert!(!runs(daemon));
}

/// A name that the administrator has chosen may be that of anything in the directory where a user is.
#[test]
fn a_name_is_not_taken_for_a_volume() {
    if !can_be_root() {
        return;
    }
    let m = Mounted::on(Scene::in_memory(), "fsname=vol");
    let out = Command::new("unshare")
        .args(["--net", QUAYFS, "umount", &text(m.mnt())])
        .current_dir(m.0.dir())
        .capture();
    Run::from(out.unwrap()).fails(32, "cannot be seen: the mount table names it vol");
    eventually("the daemon ends", || {
        Volume::open(&m.0.vol(), Access::ReadWrite, Duration::ZERO).is_ok()
    });
}

#[test]
fn a_daemon_that_does_not_answer_keeps_nobody_waiting() {
    if !can_be_root() {
        return;
    }
    for (flag, code) in [("-l", 0), ("-f", 32)] {
        let m = Mounted::on(Scene::in_memory(), "rw");
        let mnt = text(m.mnt());
        let daemon = pid(&m);
        let stopped = Stopped::new(daemon);
        run(&[QUAYFS, "umount", &mnt]).fails(32, &format!("kill -CONT {daemon}"));
        assert!(is_mounted(&m.mnt()));
        // Mounting it again does not wait either.
        run(&[QUAYFS, "mount", &text(m.0.vol()), &mnt]).fails(32, "mounted on");
        let helper = text(m.0.helper("umount.quayfs"));
        let forced = run(&[&helper, &mnt, flag]);
        assert_eq!(forced.code, code, "{forced:?}");
        assert!(!is_mounted(&m.mnt()));
        assert!(runs(daemon), "it is only stopped");
        if code != 0 {
            forced.fails(code, "is unmounted, but its daemon is stopped");
        }
        drop(stopped);
        eventually("the daemon ends", || !runs(daemon));
        m.mount("rw");
        m.umount();
    }
}

/// For root too, with nothing but the mount point: umount(8) then looks for a helper only where a table of its own says
/// that there is something to look for.
#[test]
fn umount8_waits_until_the_volume_is_closed() {
    if !can_be_root() {
        return;
    }
    let m = Scene::in_memory();
    let script = "set -e
        mkdir helpers
        ln -s \"$QUAYFS\" umount.fuse.quayfs
        printf '#!/bin/sh\\necho called with \"$@\"\\nexec \"%s/umount.fuse.quayfs\" \"$@\"' \"$PWD\" >helpers/umount.fuse.quayfs
        chmod +x helpers/umount.fuse.quayfs
        mount -t overlay none -o lowerdir=$PWD/helpers:/usr/sbin /usr/sbin
        \"$QUAYFS\" mount \"$1\" mnt
        echo content >mnt/file
        grep -F \" TARGET=$PWD/mnt \" /run/mount/utab
        umount mnt
        \"$QUAYFS\" mount \"$1\" mnt
        pid=$(\"$QUAYFS\" status mnt --json | grep -o '\"pid\":[0-9]*' | cut -d : -f 2)
        kill -TERM $pid
        tail -f --pid=$pid /dev/null
        \"$QUAYFS\" mount \"$1\" mnt
        \"$QUAYFS\" umount -l mnt
        ! grep -F \" TARGET=$PWD/mnt \" /run/mount/utab
        \"$QUAYFS\" mount \"$1\" mnt
        umount mnt";
    // All is copied, and gone with the shell. A lazy unmount is not waited for, so another one comes last.
    let _alone = copies();
    let out = Command::new("unshare")
        .args(["--mount", "sh", "-c", script, "sh", &text(m.vol())])
        .env("QUAYFS", QUAYFS)
        .current_dir(m.dir())
        .capture();
    let out = Run::from(out.unwrap()).ok();
    let called = format!("called with {}", text(m.dir().join("mnt")));
    assert!(out.contains(&called), "{out}");
    Volume::open(&m.vol(), Access::ReadWrite, Duration::ZERO).unwrap();
}

/// As the helper has them.
#[test]
fn the_flags_are_those_of_umount8() {
    if !can_be_root() {
        return;
    }
    let m = Mounted::on(Scene::in_memory(), "rw");
    let mnt = text(m.mnt());
    let mut held = fs::File::create_new(m.mnt().join("held")).unwrap();
    quayfs(["umount", "-lf", &mnt]).fails(1, "cannot be used with");
    assert_eq!(quayfs(["umount", "-l", &mnt]).ok(), "");
    assert!(!is_mounted(&m.mnt()));
    // It is served, and in no mount table.
    let listed = quayfs(["status", "--json"]).out;
    assert!(listed.contains(&text(m.0.vol())), "{listed}");
    held.write_all(b"still here").unwrap();
    drop(held);
    m.mount("rw");
    assert_eq!(fs::read(m.mnt().join("held")).unwrap(), b"still here");
    let daemon = pid(&m);
    let mut held = fs::File::create(m.mnt().join("held")).unwrap();
    assert_eq!(quayfs(["umount", "--force", &mnt]).ok(), "");
    assert!(held.write_all(b"not any more").is_err());
    assert!(!is_mounted(&m.mnt()) && !runs(daemon));
}

#[test]
fn a_file_system_that_is_mounted_twice_lives_on() {
    if !can_be_root() {
        return;
    }
    let m = Mounted::on(Scene::in_memory(), "rw");
    fs::write(m.mnt().join("file"), b"cargo").unwrap();
    let (mnt, other) = (text(m.mnt()), Bind::new(&m.mnt(), m.0.dir()));
    let daemon = pid(&m);
    let out = run(&[QUAYFS, "umount", &mnt]).ok();
    let there = text(&other.0);
    assert!(
        out.contains(&format!("the file system lives on, mounted on {there}")),
        "{out}"
    );
    assert_eq!(fs::read(other.0.join("file")).unwrap(), b"cargo");
    assert_eq!(run(&[QUAYFS, "umount", &there]).ok(), "");
    assert!(!runs(daemon));
    m.fsck();
}

#[test]
fn a_file_system_lives_on_in_another_namespace() {
    if !can_be_root() {
        return;
    }
    let m = Mounted::on(Scene::in_memory(), "rw");
    let mnt = text(m.mnt());
    let daemon = pid(&m);
    let namespace = Namespace::new(m.0.dir(), &m.mnt(), "true");
    let out = run(&[QUAYFS, "umount", &mnt]).ok();
    let who = format!("on {mnt} in the mount namespace of process");
    assert!(out.contains(&who), "{out}");
    assert!(runs(daemon) && !is_mounted(&m.mnt()));
    drop(namespace);
    eventually("the daemon ends with the namespace", || !runs(daemon));
    m.fsck();
}

/// The first signal waits for users, the second does not, wherever they are.
#[test]
fn a_signal_ends_a_file_system_in_other_places_too() {
    if !can_be_root() {
        return;
    }
    let m = Mounted::on(Scene::in_memory(), "rw");
    fs::write(m.mnt().join("file"), b"cargo").unwrap();
    let other = Bind::new(&m.mnt(), m.0.dir());
    let daemon = pid(&m);
    signal(daemon, "TERM");
    eventually("the signal unmounts", || !is_mounted(&m.mnt()));
    signal(daemon, "TERM");
    eventually("the daemon ends", || !runs(daemon));
    assert!(is_mounted(&other.0) && fs::read(other.0.join("file")).is_err());
    assert!(m.log().contains("the volume is clean"), "{}", m.log());
    m.fsck();
}

#[test]
fn a_dead_mount_in_use_is_taken_away_from_its_users() {
    if !can_be_root() {
        return;
    }
    let m = Mounted::on(Scene::in_memory(), "norestart");
    let mnt = text(m.mnt());
    let mut held = fs::File::create_new(m.mnt().join("held")).unwrap();
    held.write_all(b"x").unwrap();
    let daemon = pid(&m);
    signal(daemon, "KILL");
    eventually("the mount is dead", || fs::read_dir(m.mnt()).is_err());
    let warned = run(&[QUAYFS, "umount", &mnt]);
    assert!(
        warned.err.contains("its daemon had died") && warned.err.contains("have files of it open"),
        "{warned:?}"
    );
    warned.ok();
    assert!(!is_mounted(&m.mnt()));
    assert!(held.read(&mut [0]).is_err());
    m.mount("norestart");
    drop(held);
    // What is mounted there would go along.
    let below = text(m.mnt().join("below"));
    fs::create_dir(&below).unwrap();
    run(&["mount", "-t", "tmpfs", "other", &below]).ok();
    signal(pid(&m), "KILL");
    eventually("the mount is dead", || fs::read_dir(m.mnt()).is_err());
    let about = format!("something else is mounted on {below}");
    run(&[QUAYFS, "umount", &mnt]).fails(32, &about);
    run(&[QUAYFS, "umount", "-l", &mnt]).ok();
    m.mount("norestart");
    // Nothing holds this one.
    signal(pid(&m), "KILL");
    eventually("the mount is dead", || fs::read_dir(m.mnt()).is_err());
    let warned = run(&[QUAYFS, "umount", &mnt]);
    assert!(
        warned.err.contains("its daemon had died") && !warned.err.contains("have files of it open"),
        "{warned:?}"
    );
    warned.ok();
}

/// The kernel gives the number of a file system that has ended to the next one.
#[test]
fn a_signal_unmounts_nothing_that_others_have_mounted_since() {
    if !can_be_root() {
        return;
    }
    let m = Mounted::on(Scene::in_memory(), "rw");
    let mnt = text(m.mnt());
    let held = fs::File::create_new(m.mnt().join("held")).unwrap();
    let daemon = pid(&m);
    signal(daemon, "TERM");
    eventually("it is asked for", || m.log().contains("unmounting"));
    run(&["umount", "-i", "-l", &mnt]).ok();
    drop(held);
    run(&["mount", "-t", "tmpfs", "other", &mnt]).ok();
    fs::write(m.mnt().join("precious"), "content").unwrap();
    eventually("the daemon ends", || !runs(daemon));
    assert_eq!(fs::read(m.mnt().join("precious")).unwrap(), b"content");
    assert!(!m.log().contains("taking it away"), "{}", m.log());
    run(&["umount", "-i", &mnt]).ok();
    m.fsck();
}

#[test]
fn a_mount_says_what_it_waits_for() {
    if !can_be_root() {
        return;
    }
    let m = Mounted::on(Scene::in_memory(), "rw");
    let held = fs::File::create_new(m.mnt().join("held")).unwrap();
    let (vol, mnt) = (text(m.0.vol()), text(m.mnt()));
    run(&[QUAYFS, "umount", "-l", &mnt]).ok();
    let refused = run(&[QUAYFS, "mount", &vol, &mnt]);
    let about = format!("already mounted?); `quayfs status {vol}`");
    let lines: Vec<_> = refused.err.lines().collect();
    assert!(refused.code == 32 && lines.len() == 2, "{refused:?}");
    assert!(lines[0].contains("its end is waited for") && lines[1].contains(&about));
    // Nothing is wrong with the volume, whose log this is.
    assert!(!m.log().contains("ERROR"), "{}", m.log());
    drop(held);
    m.mount("rw");
    m.umount();
}

/// Memory that runs out at any moment of a mount.
#[test]
fn a_mount_that_fails_leaves_none() {
    if !can_be_root() {
        return;
    }
    let scene = Scene::in_memory();
    let (vol, mnt) = (text(scene.vol()), text(scene.mnt()));
    let mut failed = 0;
    for mib in (16..).step_by(2) {
        let limit = format!("--as={}", u64::from(mib as u32) << 20);
        let run = run(&["prlimit", &limit, QUAYFS, "mount", &vol, &mnt]);
        if run.code == 0 {
            break;
        }
        failed += 1;
        assert!(!is_mounted(&scene.mnt()), "with {mib} MiB: {run:?}");
    }
    assert!(failed > 0);
    // With just enough to mount it may not have enough to go on, which is another matter.
    quayfs(["umount", &mnt]);
    quayfs(["mount", &vol, &mnt]).ok();
    quayfs(["umount", &mnt]).ok();
}

/// Threads that run out: each of them is one less.
#[test]
fn a_mount_without_threads_leaves_none() {
    if !can_be_root() {
        return;
    }
    let scene = Scene::open_to_all();
    let (vol, mnt) = (text(scene.vol()), text(scene.mnt()));
    let group = Path::new("/sys/fs/cgroup/pids");
    let group = if group.is_dir() {
        group
    } else {
        Path::new("/sys/fs/cgroup")
    };
    let group = group.join(format!("quayfs-test-{}", std::process::id()));
    fs::create_dir(&group).unwrap();
    struct Gone(PathBuf);
    impl Drop for Gone {
        fn drop(&mut self) {
            eventually("the group is empty", || fs::remove_dir(&self.0).is_ok());
        }
    }
    let group = Gone(group);
    let script = "echo $$ > \"$1/cgroup.procs\"; shift; exec \"$@\"";
    let mut failed = 0;
    for threads in 3.. {
        fs::write(group.0.join("pids.max"), threads.to_string()).unwrap();
        let dir = text(&group.0);
        let run = run(&["sh", "-c", script, "sh", &dir, QUAYFS, "mount", &vol, &mnt]);
        if run.code == 0 {
            break;
        }
        failed += 1;
        assert!(!is_mounted(&scene.mnt()), "with {threads} threads: {run:?}");
    }
    assert!(failed > 0);
    // Whatever it has got it serves with.
    fs::write(scene.mnt().join("file"), b"cargo").unwrap();
    quayfs(["umount", &mnt]).ok();
}

/// A name of any length is shown: the kernel's newer calls take 255 bytes.
#[test]
fn a_long_name_is_mounted() {
    if !can_be_root() {
        return;
    }
    let name = "n".repeat(300);
    let m = Mounted::on(Scene::in_memory(), &format!("fsname={name},nosuid,ro"));
    let table = fs::read("/proc/self/mountinfo").unwrap();
    let table = String::from_utf8_lossy(&table);
    let line = table.lines().find(|l| l.contains(&text(m.mnt()))).unwrap();
    assert!(
        line.contains(&format!(" - fuse.quayfs {name} ro")),
        "{line}"
    );
    assert!(line.contains(" ro,nosuid"), "{line}");
    m.umount();
}

/// The daemon that is mounting this volume.
fn mounting(vol: &str) -> impl Iterator<Item = i32> {
    let pids = fs::read_dir("/proc").unwrap().flatten();
    pids.filter_map(|e| e.file_name().to_str()?.parse().ok())
        .filter(move |pid: &i32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let words: Vec<_> = line.split(|b| *b == 0).collect();
            words.contains(&&b"--daemon"[..]) && words.contains(&vol.as_bytes())
        })
}

/// Between the look at a mount point and the mount lies recovery. A user who owns a directory above can put something
/// else there meanwhile, and the mount must not follow.
#[test]
fn a_mount_goes_where_the_mount_point_was() {
    if !can_be_root() {
        return;
    }
    let scene = Scene::in_memory();
    let dir = scene.dir().canonicalize().unwrap();
    let (vol, above, other) = (scene.vol(), dir.join("above"), dir.join("other"));
    fs::create_dir_all(above.join("mnt")).unwrap();
    fs::create_dir_all(other.join("mnt")).unwrap();
    let held = Volume::open(&vol, Access::ReadWrite, Duration::ZERO).unwrap();
    let mut mount = Command::new(QUAYFS)
        .args(["mount", &text(&vol), &text(above.join("mnt"))])
        .start()
        .unwrap();
    let region = vol.join("pmem");
    eventually("the daemon waits for the volume", || {
        mounting(&text(&vol)).any(|pid| {
            let fds = fs::read_dir(format!("/proc/{pid}/fd"));
            (fds.into_iter().flatten().flatten())
                .any(|fd| fs::read_link(fd.path()).is_ok_and(|to| to == region))
        })
    });
    fs::rename(&above, dir.join("moved")).unwrap();
    symlink(&other, &above).unwrap();
    drop(held);
    assert!(mount.wait().unwrap().success());
    let moved = dir.join("moved/mnt");
    let there = (is_mounted(&moved), is_mounted(&other.join("mnt")));
    for target in [&moved, &other.join("mnt")] {
        if is_mounted(target) {
            quayfs(["umount", &text(target)]).ok();
        }
    }
    assert_eq!(there, (true, false));
}
