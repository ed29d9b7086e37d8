//! Media that do not answer: what commands say all the same. A request that is in hand somewhere is waited for even as its
//! process is killed, so no command may make one itself.
//!
//! Needs `/dev/fuse` and root.

use crate::program;

use program::{Mounted, QUAYFS, Run, Scene, Start as _, can_be_root, eventually, quayfs};
use quayfs_fs::volume::{Access, Volume};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, open};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use serde_json::Value;
use std::ffi::CString;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, spawn};
use std::time::{Duration, Instant};

/// A command that has not ended by then waits for an answer. It gets one, so that the test ends.
const LONGEST: Duration = Duration::from_secs(100);

/// A file system that takes every request and answers none, on a directory; until it is dropped.
struct Mute {
    place: PathBuf,
    over: Arc<AtomicBool>,
    server: Option<JoinHandle<bool>>,
}

impl Mute {
    fn on(place: &Path) -> Self {
        let fuse = open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let options = format!(
            "fd={},rootmode=40000,user_id=0,group_id=0",
            fuse.as_raw_fd()
        );
        let options = CString::new(options).unwrap();
        mount(
            "mute",
            place,
            "fuse",
            MountFlags::empty(),
            options.as_c_str(),
        )
        .unwrap();
        let over = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&over);
        Self {
            place: place.into(),
            over,
            server: Some(spawn(move || serve(&fuse, &until))),
        }
    }

    /// Ends it. Whether nothing has waited for its end.
    fn end(&mut self) -> bool {
        self.over.store(true, Ordering::Release);
        let in_time = self
            .server
            .take()
            .is_none_or(|server| server.join().unwrap());
        let _ = unmount(&self.place, UnmountFlags::DETACH);
        in_time
    }
}

impl Drop for Mute {
    fn drop(&mut self) {
        self.end();
    }
}

#[expect(
    clippy::host_endian_bytes,
    reason = "the kernel of this machine reads it"
)]
fn word(number: u32) -> [u8; 4] {
    number.to_ne_bytes()
}

/// Takes requests, and answers the first one, by which the kernel makes its acquaintance. Whether that is over soon enough.
fn serve(fuse: &OwnedFd, over: &AtomicBool) -> bool {
    let begun = Instant::now();
    let mut request = vec![0_u8; 1 << 20];
    let moment = Timespec {
        tv_sec: 0,
        tv_nsec: 20_000_000,
    };
    while !over.load(Ordering::Acquire) {
        if begun.elapsed() > LONGEST {
            return false;
        }
        if poll(&mut [PollFd::new(fuse, PollFlags::IN)], Some(&moment)) != Ok(1) {
            continue;
        }
        // A request that has been taken back meanwhile is none.
        let n = rustix::io::read(fuse, &mut request[..]).unwrap_or_default();
        if n >= 40 && request[4..8] == word(26) {
            let mut answer = [0_u8; 16 + 64];
            answer[..4].copy_from_slice(&word(80));
            answer[8..16].copy_from_slice(&request[8..16]);
            // The version of the protocol is that of the kernel.
            answer[16..24].copy_from_slice(&request[40..48]);
            answer[36..40].copy_from_slice(&word(4096));
            rustix::io::write(fuse, &answer).unwrap();
        }
    }
    true
}

/// A volume below a directory of its own, and another name of it where it is looked for.
fn below() -> Scene {
    let scene = Scene::in_memory();
    let below = scene.dir().join("below");
    fs::create_dir(&below).unwrap();
    fs::rename(scene.vol(), below.join("vol")).unwrap();
    symlink(below.join("vol"), scene.vol()).unwrap();
    scene
}

/// Each of them waits for a while.
fn at_once(commands: &[&[&str]]) -> Vec<Run> {
    std::thread::scope(|scope| {
        let run = |args: &&'_ [&str]| quayfs(args.iter().copied());
        let all: Vec<_> = commands
            .iter()
            .map(|args| scope.spawn(move || run(args)))
            .collect();
        all.into_iter().map(|run| run.join().unwrap()).collect()
    })
}

fn json(run: &Run) -> Value {
    let all: Value = serde_json::from_str(&run.out).unwrap();
    all["volumes"][0].clone()
}

#[test]
fn a_mount_whose_media_do_not_answer_is_told() {
    if !can_be_root() {
        return;
    }
    let m = Mounted::on(below(), "restart");
    let (vol, mnt) = (m.0.vol().canonicalize().unwrap(), m.mnt());
    let [vol, mnt] = [&vol, &mnt].map(|path| path.to_str().unwrap());
    let pid = m.info()["pid"].clone();
    let elsewhere = m.0.dir().join("elsewhere");
    let elsewhere = elsewhere.to_str().unwrap();
    let mut mute = Mute::on(&m.0.dir().join("below"));
    let told = at_once(&[
        &["status", mnt, "--json"],
        &["status", vol, "--json"],
        &["info", mnt],
        &["stats", mnt],
        // Another daemon could not open the volume.
        &["restart", vol],
        &["resize", vol, "--data", "96M"],
        &["migrate", vol, "--data", elsewhere],
        &["umount", vol, "--no-drain"],
    ]);
    // The next daemon waits for the media, too.
    let mut kill = Command::new("kill");
    assert!(
        kill.args(["-KILL", &pid.to_string()])
            .finish()
            .unwrap()
            .success()
    );
    let dead = at_once(&[&["status", mnt, "--json"], &["info", mnt], &["stats", mnt]]);
    assert!(mute.end(), "something waited: {told:?} {dead:?}");
    let (told, refused) = told.split_at(4);
    for run in told {
        assert_eq!(run.code, 0, "{run:?}");
    }
    for (run, code) in refused.iter().zip([1, 1, 1, 32]) {
        assert_eq!(run.code, code, "{run:?}");
    }
    for status in [json(&told[0]), json(&told[1])] {
        assert_eq!(status["state"], "mounted");
        let unreadable = status["log"]["unreadable"].as_str().unwrap();
        assert!(
            unreadable.contains("has not answered within 2 s"),
            "{status}"
        );
    }
    assert_eq!(dead[0].code, 2, "{dead:?}");
    let status = json(&dead[0]);
    assert_eq!(status["state"], "silent");
    let reasons = status["reasons"].to_string();
    assert!(
        reasons.contains("what it lies on has not answered within 2 s"),
        "{status}"
    );
    for run in &dead[1..] {
        assert_eq!(run.code, 1, "{run:?}");
    }
    eventually("the next daemon", || m.info()["pid"] != pid);
    m.umount();
    m.fsck();
}

/// Whose daemon has a volume in use is found by what daemons were started for.
#[test]
fn a_volume_is_told_though_that_of_another_daemon_does_not_answer() {
    if !can_be_root() {
        return;
    }
    let m = Mounted::on(below(), "restart");
    let other = Scene::in_memory();
    let vol = other.vol().canonicalize().unwrap();
    let open = Volume::open(&vol, Access::ReadWrite, Duration::ZERO).unwrap();
    let mut mute = Mute::on(&m.0.dir().join("below"));
    let told = quayfs(["status".as_ref(), vol.as_os_str()]);
    assert!(mute.end(), "it waited: {told:?}");
    assert!(told.code == 1 && told.out.contains("in use"), "{told:?}");
    drop(open);
    m.umount();
}

#[test]
fn a_mount_whose_data_device_does_not_answer_is_told() {
    if !can_be_root() {
        return;
    }
    let scene = Scene::in_memory();
    let (below, data) = (scene.dir().join("below"), scene.vol().join("data"));
    fs::create_dir(&below).unwrap();
    fs::rename(&data, below.join("data")).unwrap();
    symlink(below.join("data"), &data).unwrap();
    let m = Mounted::on(scene, "restart");
    let mnt = m.mnt();
    let mnt = mnt.to_str().unwrap();
    let pid = m.info()["pid"].clone();
    let mut mute = Mute::on(&below);
    let told = at_once(&[&["status", mnt], &["info", mnt]]);
    let mut kill = Command::new("kill");
    let killed = kill.args(["-KILL", &pid.to_string()]).finish();
    assert!(killed.unwrap().success());
    let mut dead = at_once(&[&["status", mnt, "--json"], &["status"]]);
    let (listed, dead) = (dead.pop().unwrap(), dead.pop().unwrap());
    assert!(mute.end(), "something waited: {told:?} {dead:?}");
    for run in &told {
        assert_eq!(run.code, 0, "{run:?}");
    }
    let shown = below.join("data");
    assert!(told[1].out.contains(shown.to_str().unwrap()), "{told:?}");
    assert_eq!((dead.code, listed.code), (2, 2), "{dead:?}");
    let status = json(&dead);
    assert_eq!(status["state"], "silent");
    let reasons = status["reasons"].to_string();
    assert!(
        reasons.contains("what it lies on has not answered within 2 s"),
        "{status}"
    );
    eventually("the next daemon", || m.info()["pid"] != pid);
    m.umount();
    m.fsck();
}

/// Each of them waits for 20 seconds.
#[test]
fn what_is_at_rest_and_does_not_answer_is_told() {
    if !can_be_root() {
        return;
    }
    std::thread::scope(|scope| {
        scope.spawn(a_volume_whose_media_do_not_answer_is_told);
        scope.spawn(a_mount_that_waits_for_its_media_says_so);
        scope.spawn(a_check_that_is_interrupted_says_so);
        scope.spawn(what_is_left_waiting_keeps_nothing_busy);
        scope.spawn(a_volume_of_another_user_that_does_not_answer_is_told);
    });
}

fn a_volume_whose_media_do_not_answer_is_told() {
    let scene = below();
    let vol = scene.vol();
    let mut mute = Mute::on(&scene.dir().join("below"));
    let vol = vol.to_str().unwrap();
    let new = scene.dir().join("new");
    let runs = at_once(&[
        &["status", vol],
        &["scrub", vol],
        &["quota", vol],
        &["resize", vol, "--data", "96M"],
        &["migrate", vol, "--data", new.to_str().unwrap()],
        &["dump", vol, "superblock"],
        &["tune", vol],
    ]);
    assert!(mute.end(), "one waited: {runs:?}");
    for (run, code) in runs.iter().zip([3, 1, 1, 1, 1, 1, 1]) {
        let told = run
            .err
            .contains("what it lies on has not answered within 20 s");
        assert!(run.code == code && told, "{run:?}");
    }
    drop(mute);
    quayfs(["status", vol]).ok();
}

/// With the exit code of fsck(8), and a line. Here it does not end before the signal comes.
fn a_check_that_is_interrupted_says_so() {
    let scene = below();
    let mut mute = Mute::on(&scene.dir().join("below"));
    for (more, about) in [
        (&[][..], "has changed nothing"),
        (&["--repair"], "can go on with it"),
    ] {
        let mut fsck = Command::new(QUAYFS);
        fsck.arg("fsck").args(more).arg(scene.vol());
        let child = fsck.stderr(Stdio::piped()).start().unwrap();
        let threads = format!("/proc/{}/task", child.id());
        eventually("it heeds signals", || {
            let tasks = fs::read_dir(&threads).unwrap().flatten();
            let mut names = tasks.map(|task| fs::read_to_string(task.path().join("comm")));
            names.any(|name| name.is_ok_and(|name| name == "signals\n"))
        });
        let kill = ["-s", "INT", &child.id().to_string()];
        assert!(Command::new("kill").args(kill).finish().unwrap().success());
        let ended = child.wait_with_output().unwrap();
        let err = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(ended.status.code(), Some(32), "{err}");
        assert!(
            err.contains("interrupted (signal 2)") && err.contains(about),
            "{err}"
        );
    }
    mute.end();
}

/// What makes no sense without an answer goes on waiting, and says so.
fn a_mount_that_waits_for_its_media_says_so() {
    let scene = below();
    let mut mute = Mute::on(&scene.dir().join("below"));
    let mut mount = Command::new(QUAYFS);
    mount.arg("mount").args([scene.vol(), scene.mnt()]);
    let mut child = mount.stderr(Stdio::piped()).start().unwrap();
    let mut line = String::new();
    let said = child.stderr.take().unwrap();
    BufReader::new(said).read_line(&mut line).unwrap();
    assert!(line.contains("within 20 s, and is waited for"), "{line}");
    mute.end();
    child.wait().unwrap();
    drop(mute);
    quayfs(["umount", scene.mnt().to_str().unwrap()]);
}

/// What asks every minute does not fill the system with processes that wait: of eight that have waited for long, nothing is
/// asked again.
#[test]
fn not_many_processes_wait_for_the_same() {
    if !can_be_root() {
        return;
    }
    let m = Mounted::on(below(), "restart");
    let (vol, mnt) = (m.0.vol().canonicalize().unwrap(), m.mnt());
    let waiting = || {
        let words = [
            "-x",
            "-f",
            "--",
            &format!("quayfs probe --of=names -- {}", vol.display()),
        ];
        let found = Command::new("pgrep").args(words).capture().unwrap();
        String::from_utf8(found.stdout).unwrap().lines().count()
    };
    let mut mute = Mute::on(&m.0.dir().join("below"));
    let status = || quayfs(["status", mnt.to_str().unwrap()]);
    let mut runs: Vec<Run> = std::thread::scope(|scope| {
        let all: Vec<_> = (0..9).map(|_| scope.spawn(status)).collect();
        all.into_iter().map(|run| run.join().unwrap()).collect()
    });
    let first = waiting();
    assert!(first >= 8, "{first}");
    runs.extend((0..3).map(|_| status()));
    let most = waiting();
    assert!(mute.end(), "something waited: {runs:?}");
    assert!(runs.iter().all(|run| run.code == 0), "{runs:?}");
    assert_eq!(most, first);
    eventually("they end with what they wait for", || waiting() == 0);
    m.umount();
}

/// A process that waits for the data device has no lock that a mount would wait for.
fn what_is_left_waiting_keeps_nothing_busy() {
    let scene = Scene::in_memory();
    let (below, data) = (scene.dir().join("below"), scene.vol().join("data"));
    let beside = scene.dir().join("beside");
    fs::create_dir(&below).unwrap();
    fs::hard_link(&data, &beside).unwrap();
    fs::remove_file(&data).unwrap();
    symlink(below.join("data"), &data).unwrap();
    let mut mute = Mute::on(&below);
    let vol = scene.vol();
    let status = quayfs(["status".as_ref(), vol.as_os_str()]);
    fs::remove_file(&data).unwrap();
    symlink(&beside, &data).unwrap();
    let mounted = quayfs([Path::new("mount"), &vol, &scene.mnt()]);
    assert!(mute.end(), "it waited: {status:?}");
    status.fails(3, "what it lies on has not answered within 20 s");
    mounted.ok();
    quayfs([Path::new("umount"), &scene.mnt()]).ok();
}

/// Another user's mount is looked up by its volume, too.
fn a_volume_of_another_user_that_does_not_answer_is_told() {
    let scene = Scene::open_to_all();
    let (below, mnt) = (scene.dir().join("below"), scene.mnt());
    fs::create_dir(&below).unwrap();
    fs::rename(scene.vol(), below.join("vol")).unwrap();
    let mut chown = Command::new("chown");
    let chowned = chown
        .args(["-R", "65534:65534"])
        .args([&below, &mnt])
        .finish();
    assert!(chowned.unwrap().success());
    let program = scene.dir().join("quayfs");
    program::copy_program(&program);
    let vol = below.join("vol");
    let words: Vec<PathBuf> = vec!["mount".into(), vol.clone(), mnt.clone()];
    let mut mount = Command::new(&program);
    let mounted: Run = mount
        .args(words)
        .uid(65534)
        .gid(65534)
        .current_dir("/")
        .capture()
        .unwrap()
        .into();
    mounted.ok();
    let mut mute = Mute::on(&below);
    let status = quayfs(["status".as_ref(), vol.as_os_str()]);
    assert!(mute.end(), "it waited: {status:?}");
    status.fails(3, "what it lies on has not answered within 20 s");
    quayfs([Path::new("umount"), &mnt]).ok();
}
