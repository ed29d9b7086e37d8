//! Several writes as one through the calls of F2FS, and ranges exchanged through those of XFS, on real mounts: which
//! program sees what, and when; what is refused; what a crash leaves; and that no program waits for ever.
//!
//! Needs `/dev/fuse` and python3.

mod atomic;
mod ranges;
mod sqlite;

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use crate::program::{self, Mounted, Scene, Start as _};
use rustix::mount::{UnmountFlags, unmount};

/// How long a script may do nothing. Each of its steps takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(240);

/// A script in python with its arguments, of which the second is the mount point.
fn script(text: &str, what: &str, mnt: &Path, more: &[&OsStr]) -> Command {
    let mut python = Command::new("python3");
    python.args(["-c", text, what]).arg(mnt).args(more);
    python.stdout(Stdio::piped()).stderr(Stdio::piped());
    python
}

/// Waits for a script, which prints something for each of its steps: this tells a script that hangs from one that is
/// slow. If it hangs, ending the mount wakes all that wait.
#[track_caller]
fn finish(mut child: Child, what: &str, m: &Mounted) {
    let (mut steps, mut errors) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let done = AtomicU64::new(0);
    let (status, late, err) = thread::scope(|s| {
        s.spawn(|| {
            let mut some = [0; 4096];
            while let Ok(1..) = steps.read(&mut some) {
                done.fetch_add(1, Ordering::Relaxed);
            }
        });
        let err = s.spawn(|| {
            let mut text = String::new();
            errors.read_to_string(&mut text).map(|_| text)
        });
        let (mut seen, mut since, mut late) = (0, Instant::now(), false);
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            let now = done.load(Ordering::Relaxed);
            if now != seen {
                (seen, since) = (now, Instant::now());
            } else if !late && since.elapsed() > PATIENCE {
                late = true;
                let _ = unmount(m.mnt(), UnmountFlags::FORCE | UnmountFlags::DETACH);
                let _ = child.kill();
            }
            sleep(Duration::from_millis(10));
        };
        (status, late, err.join().unwrap().unwrap())
    });
    assert!(!late, "{what} waits for ever: {err}{}", m.log());
    assert!(status.success(), "{what}: {err}{}", m.log());
}

/// Calls a function of a script on a new mount.
#[track_caller]
fn run(text: &str, what: &str, options: &str, more: &[&OsStr]) -> Mounted {
    let m = Mounted::on(Scene::open_to_all(), options);
    let child = script(text, what, &m.mnt(), more).start();
    finish(
        child.expect("python3 runs: `make deps` installs it"),
        what,
        &m,
    );
    m
}

/// The same with each of these options; the volume is checked afterwards.
#[track_caller]
fn in_ways(text: &str, what: &str, ways: &[&str]) {
    if !program::can_mount() {
        return;
    }
    for options in ways {
        let m = run(text, what, options, &[]);
        m.umount();
        m.fsck();
    }
}

/// Kills the daemon after a script has printed a line and this time has passed; the last line. The script must
/// not end by itself. Nothing is mounted afterwards.
fn lines_until_killed(text: &str, what: &str, m: &Mounted, after: Duration) -> String {
    let mut child = script(text, what, &m.mnt(), &[]).start().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut last = lines.next().expect("it prints a line").unwrap();
    let pid = m.info()["pid"].as_u64().unwrap().to_string();
    sleep(after);
    let killed = Command::new("kill").args(["-KILL", &pid]).finish();
    assert!(killed.unwrap().success());
    for line in lines {
        last = line.unwrap();
    }
    assert!(!child.wait().unwrap().success(), "it went on for ever");
    m.umount();
    last
}

/// Kills the daemon at moments of `until_killed`, and lets another function of the script judge what a mount finds. It is
/// told the last line.
fn in_crashes(text: &str, judge: &str) {
    if !program::can_mount() {
        return;
    }
    for options in [
        "atomic_writes,norestart",
        "atomic_writes,norestart,durability=commit,data=ordered",
    ] {
        let m = Mounted::on(Scene::in_memory(), options);
        for turn in 0..4 {
            let after = Duration::from_millis(20 + 37 * turn);
            let last = lines_until_killed(text, "until_killed", &m, after);
            m.mount(options);
            let child = script(text, judge, &m.mnt(), &[OsStr::new(&last)]).start();
            finish(child.unwrap(), judge, &m);
        }
        m.umount();
        m.fsck();
    }
}
