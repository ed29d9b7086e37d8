//! What a daemon starts with does not depend on the process that starts it.
//!
//! Needs `/dev/fuse`, root, util-linux and coreutils; QUAYFS_SKIP_FUSE=1 and QUAYFS_SKIP_ROOT=1 do without.

use crate::program;

use program::{Mounted, QUAYFS, Run, Scene, Start as _, can_be_root, eventually};
use rustix::process::{Resource, getrlimit};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A shell that has everything set that could be in the way, and runs the program.
const HOSTILE: &str = "exec 9>\"$LOCK\"; flock 9; umask 000; \
    exec choom -n 700 -- prlimit --fsize=10485760 --nofile=24: --cpu=3600: --as=17179869184: --data=17179869184: \
    env --block-signal --ignore-signal \"$@\"";

struct Place {
    m: Mounted,
}

impl Place {
    fn new() -> Self {
        let m = Mounted(Scene::new());
        fs::create_dir(m.0.dir().join("cwd")).unwrap();
        Self { m }
    }

    fn lock(&self) -> PathBuf {
        self.m.0.dir().join("lock")
    }

    /// `quayfs mount`, started by that shell or as usual.
    fn command(&self, hostile: bool, more: &[&str]) -> Command {
        let mut command = if hostile {
            let mut shell = Command::new("sh");
            shell.args(["-ec", HOSTILE, "sh", QUAYFS]);
            shell
        } else {
            Command::new(QUAYFS)
        };
        command
            .arg("mount")
            .args([self.m.0.vol(), self.m.mnt()])
            .args(more)
            .env("LOCK", self.lock())
            .current_dir(self.m.0.dir().join("cwd"));
        command
    }

    fn is_mounted(&self) -> bool {
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let mnt = self.m.mnt();
        (table.lines()).any(|l| l.split(' ').nth(4).map(Path::new) == Some(&mnt))
    }

    /// Mounts; what stays in the foreground is returned.
    #[track_caller]
    fn mount(&self, hostile: bool, foreground: bool) -> Option<Child> {
        if !foreground {
            Run::from(self.command(hostile, &[]).capture().unwrap()).ok();
            return None;
        }
        let mut command = self.command(hostile, &["--foreground"]);
        command.stderr(Stdio::null());
        let child = command.start().unwrap();
        eventually("it is mounted", || {
            self.is_mounted() && fs::write(self.m.mnt().join("x"), b"").is_ok()
        });
        Some(child)
    }

    #[track_caller]
    fn pid(&self) -> u64 {
        self.m.info()["pid"].as_u64().unwrap()
    }
}

/// What this is about, of a process.
#[derive(Debug, PartialEq, Eq)]
struct State {
    limits: Vec<String>,
    /// Of signals: blocked, ignored; then the umask.
    status: Vec<String>,
    cwd: PathBuf,
    oom: String,
}

impl State {
    #[track_caller]
    fn of(pid: u64) -> Self {
        let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap();
        let some = |text: String, names: &[&str]| -> Vec<String> {
            let lines = text
                .lines()
                .filter(|l| names.iter().any(|n| l.starts_with(n)));
            let words = |l: &str| l.split_whitespace().collect::<Vec<_>>().join(" ");
            lines.map(words).collect()
        };
        let limits = ["Max file", "Max cpu", "Max address", "Max data", "Max open"];
        Self {
            limits: some(read("limits"), &limits),
            status: some(read("status"), &["SigBlk", "SigIgn", "Umask"]),
            cwd: fs::read_link(format!("/proc/{pid}/cwd")).unwrap(),
            oom: read("oom_score_adj").trim().into(),
        }
    }
}

impl State {
    /// Signals 32 and 33 belong to the C library, which lets no program change them.
    fn forget_signals_of_the_library(&mut self) {
        for line in self.status.iter_mut().filter(|l| l.starts_with("SigIgn")) {
            let set = u64::from_str_radix(&line["SigIgn: ".len()..], 16).unwrap();
            *line = format!("SigIgn: {:016x}", set & !(0b11 << 31));
        }
    }
}

/// Whether this process has CAP_SYS_RESOURCE: in containers root often has not.
fn may_lift_limits() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with("CapEff:")).unwrap();
    let set = u64::from_str_radix(line.split_whitespace().nth(1).unwrap(), 16).unwrap();
    set & 1 << 24 != 0
}

#[test]
fn every_daemon_starts_in_the_same_state() {
    if !can_be_root() {
        return;
    }
    let place = Place::new();
    for foreground in [false, true] {
        let mut states = Vec::new();
        for hostile in [false, true] {
            let child = place.mount(hostile, foreground);
            let pid = place.pid();
            let mut state = State::of(pid);
            state.forget_signals_of_the_library();
            // Signals: pipes without readers, sizes of files, terminals.
            let ignored = 1_u64 << (13 - 1) | 1 << (25 - 1) | 1 << (22 - 1);
            let want = [
                "Umask: 0077".to_string(),
                "SigBlk: 0000000000000000".into(),
                format!("SigIgn: {ignored:016x}"),
            ];
            assert_eq!(state.status, want);
            let may_lift = may_lift_limits();
            let oom = if may_lift { "-900" } else { "0" };
            assert_eq!((&*state.cwd, &*state.oom), (Path::new("/"), oom));
            for limit in &state.limits {
                let is_files = limit.starts_with("Max open");
                // What the shell has limited for good.
                let stays = limit.starts_with("Max file size") && hostile && !may_lift;
                assert!(
                    is_files || stays || limit.contains("unlimited unlimited"),
                    "{limit}"
                );
            }
            // The lock of the shell is not held any more, nor is anything else that the shell had open.
            for fd in fs::read_dir(format!("/proc/{pid}/fd")).unwrap() {
                let to = fs::read_link(fd.unwrap().path()).unwrap_or_default();
                assert_ne!(to, place.lock());
            }
            let mut flock = Command::new("flock");
            let free = flock.arg("-n").arg(place.lock()).arg("true").finish();
            assert!(free.unwrap().success());
            // Longer than the shell could make one.
            let file = place.m.mnt().join("file");
            fs::write(&file, vec![7; 24 << 20]).unwrap();
            place.m.umount();
            if let Some(mut child) = child {
                assert_eq!(child.wait().unwrap().code(), Some(0));
            }
            place.m.fsck();
            states.push(state);
        }
        let files = |s: &State| -> u64 {
            let line = s.limits.iter().find(|l| l.starts_with("Max open")).unwrap();
            line.split(' ').nth(3).unwrap().parse().unwrap()
        };
        let most = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
        let want = if may_lift_limits() {
            65536
        } else {
            most.min(65536)
        };
        assert!(states.iter().all(|s| files(s) >= want), "{states:?}");
    }
}

/// Signals that the shell has blocked or ignored reach the daemon.
#[test]
fn a_daemon_hears_its_signals() {
    if !can_be_root() {
        return;
    }
    let place = Place::new();
    place.mount(true, false);
    let pid = place.pid().to_string();
    let mut kill = Command::new("kill");
    assert!(kill.args(["-s", "TERM", &pid]).finish().unwrap().success());
    eventually("it unmounts", || !place.is_mounted());
    let line = format!("/proc/{pid}/cmdline");
    eventually("it ends", || !fs::read(&line).is_ok_and(|l| !l.is_empty()));
    place.m.fsck();
}
