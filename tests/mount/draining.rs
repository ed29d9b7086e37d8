//! Mounts that end with something staged: left in the region, or drained, which is seen by all who ask.
//!
//! Needs `/dev/fuse`.

use crate::program;

use program::{Mounted, QUAYFS, Scene, Start as _, can_mount, eventually, quayfs};
use serde_json::Value;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

const BLOCK: usize = 4096;

fn status(of: &Path) -> (i32, Value) {
    let run = quayfs(["status".as_ref(), of.as_os_str(), "--json".as_ref()]);
    let all: Value = serde_json::from_str(&run.out).unwrap();
    (run.code, all["volumes"][0].clone())
}

fn text(path: impl AsRef<Path>) -> String {
    path.as_ref().to_str().unwrap().into()
}

/// Where the region is durable. A round may have been there before: then less is staged, or nothing, and all must say
/// the same.
fn stays(m: &Mounted) {
    let file = File::create(m.mnt().join("file")).unwrap();
    for n in 0..64 {
        let block = [n as u8; BLOCK];
        file.write_all_at(&block, (n * BLOCK) as u64).unwrap();
    }
    drop(file);
    let said = quayfs(["umount", "--no-drain", &text(m.mnt())]).ok();
    let (code, volume) = status(&m.0.vol());
    assert_eq!((code, &volume["clean"]), (0, &true.into()), "{volume}");
    let bytes = volume["staged"]["bytes"].as_u64().unwrap();
    assert_eq!(bytes % BLOCK as u64, 0);
    assert!(said.contains(" stay staged in the region"), "{said}");
    let words = quayfs(["status".as_ref(), m.0.vol().as_os_str()]).ok();
    assert!(words.contains("not mounted, nothing to recover"), "{words}");
    let is_told = words.contains(", until it is mounted again");
    assert_eq!(is_told, bytes > 0, "{words}");
    let fsck = quayfs(["fsck".as_ref(), m.0.vol().as_os_str()]).ok();
    assert!(fsck.contains("unmounted, nothing to recover"), "{fsck}");
    m.mount("noatime");
    let content = fs::read(m.mnt().join("file")).unwrap();
    assert!((content.chunks(BLOCK).enumerate()).all(|(n, block)| block == [n as u8; BLOCK]));
    m.umount();
    let (_, volume) = status(&m.0.vol());
    assert_eq!(volume["staged"]["bytes"], 0, "{volume}");
    m.fsck();
}

/// Where it is in ordinary memory.
fn is_refused(m: &Mounted) {
    let refused = quayfs(["umount", "--no-drain", &text(m.mnt())]);
    refused.fails(32, "backend `volatile`");
    // It is mounted as before.
    fs::write(m.mnt().join("file"), b"content").unwrap();
    m.umount();
    m.fsck();
}

#[test]
fn what_stays_staged_is_told_and_found_again_where_it_is_not_lost() {
    if !can_mount() {
        return;
    }
    for scene in [Scene::new(), Scene::in_memory()] {
        let m = Mounted::on(scene, "noatime");
        let info = m.info();
        match info["backend"] == "volatile" {
            true => is_refused(&m),
            false => stays(&m),
        }
        assert_eq!(info["leaves_staged"], info["backend"] != "volatile");
    }
}

/// Holds a volume as a daemon does that closes it, and says so until its standard input ends.
const CLOSES: &str = r#"
import fcntl, os, select, socket, sys
uuid, volume, said = sys.argv[1:]
region = open(volume + "/pmem", "rb")
fcntl.flock(region, fcntl.LOCK_EX)
desk = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
desk.bind(f"\0quayfs-closing/{uuid}/{os.getpid()}")
desk.listen(64)
print("closes", flush=True)
callers = []
while True:
    ready, _, _ = select.select([desk, sys.stdin], [], [])
    if sys.stdin in ready:
        break
    caller, _ = desk.accept()
    wishes = b""
    while not wishes.endswith(b"progress\n"):
        wishes += caller.recv(4096)
    if b"volume\n" in wishes:
        caller.send(f"volume {volume}\n".encode())
    caller.send(said.encode() + b"\n")
    callers.append(caller)
    print("asked", flush=True)
for caller in callers:
    try:
        caller.send(b"closed\n")
    except OSError:
        pass
"#;

struct Closing {
    process: Child,
    said: std::io::BufReader<std::process::ChildStdout>,
}

impl Closing {
    fn new(scene: &Scene, said: &str) -> Self {
        Self::of(scene, &scene.vol(), said)
    }

    /// Under the UUID of the volume of a scene, and of that at a path by its word.
    fn of(scene: &Scene, volume: &Path, said: &str) -> Self {
        let info = quayfs(["info".as_ref(), scene.vol().as_os_str(), "--json".as_ref()]).ok();
        let info: Value = serde_json::from_str(&info).unwrap();
        let mut process = Command::new("python3")
            .args(["-c", CLOSES, info["uuid"].as_str().unwrap()])
            .args([&text(volume), said])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .start()
            .unwrap();
        let said = std::io::BufReader::new(process.stdout.take().unwrap());
        let mut closing = Self { process, said };
        closing.hears("closes");
        closing
    }

    fn hears(&mut self, word: &str) {
        let mut line = String::new();
        std::io::BufRead::read_line(&mut self.said, &mut line).unwrap();
        assert_eq!(line.trim_end(), word);
    }

    fn ends(&mut self) {
        drop(self.process.stdin.take());
        assert!(self.process.wait().unwrap().success());
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn a_volume_that_is_being_closed_says_how_far_it_is() {
    let scene = Scene::new();
    let said = format!("draining {} {}", 1229u64 << 20, 160u64 << 20);
    let mut closing = Closing::new(&scene, &said);
    let vol = text(scene.vol());
    let (code, volume) = status(&scene.vol());
    assert_eq!((code, &volume["state"]), (0, &"closing".into()), "{volume}");
    assert_eq!(volume["staged"]["bytes"], 1229u64 << 20);
    assert_eq!(volume["staged"]["drain_seconds"], 8);
    closing.hears("asked");
    let words = quayfs(["status", &vol]).ok();
    closing.hears("asked");
    assert!(words.contains("unmounted, being closed"), "{words}");
    assert!(
        words.contains("1.2 GiB to be drained, in about 8 s at 160 MiB/s"),
        "{words}"
    );
    let refusals: [(&[&str], i32); 5] = [
        (&["info", &vol], 1),
        (&["fsck", &vol], 8),
        (&["fsck", "--repair", &vol], 8),
        (&["scrub", &vol], 1),
        (&["quota", &vol], 1),
    ];
    for (command, code) in refusals {
        let why = format!("{vol} is unmounted and being closed: 1.2 GiB left, 8 s");
        quayfs(command).fails(code, &why);
        closing.hears("asked");
    }
    closing.ends();
    let (code, volume) = status(&scene.vol());
    assert_eq!(
        (code, &volume["state"]),
        (0, &"unmounted".into()),
        "{volume}"
    );
}

/// What `quayfs status` says of this volume among all.
fn listed(vol: &Path) -> Option<Value> {
    let all: Value = serde_json::from_str(&quayfs(["status", "--json"]).out).unwrap();
    let volumes = all["volumes"].as_array().unwrap();
    let same = |volume: &&Value| volume["volume"] == text(vol);
    volumes.iter().find(same).cloned()
}

#[test]
fn a_volume_that_is_being_closed_is_listed_with_those_that_are_mounted() {
    let scene = Scene::new();
    let mut closing = Closing::new(&scene, "draining 8192 4096");
    let volume = listed(&scene.vol()).unwrap();
    assert_eq!(volume["state"], "closing", "{volume}");
    assert_eq!(volume["mountpoint"], Value::Null);
    assert_eq!(volume["staged"]["drain_seconds"], 2);
    let words = quayfs(["status"]).out;
    let shown = text(scene.vol());
    assert!(words.contains(&format!("{shown}: ok\n")), "{words}");
    closing.ends();
    assert_eq!(listed(&scene.vol()), None);
}

/// The word of a process that says it closes a volume of another UUID.
#[test]
fn a_volume_is_listed_only_if_its_uuid_is_that_of_the_name() {
    let (scene, other) = (Scene::new(), Scene::new());
    let _closing = Closing::of(&other, &scene.vol(), "draining 8192 4096");
    let (_, volume) = status(&scene.vol());
    assert_eq!(volume["state"], "in-use", "{volume}");
    assert_eq!(listed(&scene.vol()), None);
}

#[test]
fn a_stopped_daemon_that_closes_a_volume_is_named() {
    let scene = Scene::new();
    let closing = Closing::new(&scene, "draining 8192 4096");
    let pid = closing.process.id();
    let uuid = status(&scene.vol()).1["uuid"].as_str().unwrap().to_string();
    // It is killed in the end, which a stopped process cannot prevent.
    let stop = ["-s", "STOP", &pid.to_string()];
    assert!(Command::new("kill").args(stop).finish().unwrap().success());
    eventually("it is stopped", || {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        stat.rsplit(") ").next().unwrap().starts_with('T')
    });
    let (code, volume) = status(&scene.vol());
    assert_eq!((code, &volume["state"]), (2, &"stopped".into()), "{volume}");
    let by_uuid = listed(Path::new(&format!("UUID={uuid}"))).unwrap();
    assert_eq!(by_uuid["state"], "stopped");
    let why = format!("stopped (SIGSTOP or a debugger), process {pid}");
    quayfs(["fsck", &text(scene.vol())]).fails(8, &why);
}

/// What uses a volume may be waiting for its data device. What only looks must not wait for that too, so it does not even
/// follow the link.
#[test]
fn the_data_device_of_a_volume_in_use_is_not_looked_at() {
    let scene = Scene::new();
    let mut closing = Closing::new(&scene, "draining 8192 4096");
    let data = scene.vol().join("data");
    fs::remove_file(&data).unwrap();
    std::os::unix::fs::symlink("nowhere", &data).unwrap();
    let (code, volume) = status(&scene.vol());
    assert_eq!((code, &volume["state"]), (0, &"closing".into()), "{volume}");
    closing.ends();
    let (code, volume) = status(&scene.vol());
    assert_eq!(code, 2, "{volume}");
    let why = volume["reasons"][0].as_str().unwrap();
    assert!(why.contains("there is no"), "{volume}");
}

#[test]
fn a_mount_waits_while_the_last_one_closes_the_volume() {
    if !can_mount() {
        return;
    }
    let m = Mounted(Scene::new());
    let mut closing = Closing::new(&m.0, "draining 8192 4096");
    let mut mount = Command::new(QUAYFS)
        .arg("mount")
        .args([m.0.vol(), m.mnt()])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .start()
        .unwrap();
    closing.hears("asked");
    assert!(mount.try_wait().unwrap().is_none(), "it waits");
    closing.ends();
    assert!(mount.wait().unwrap().success());
    fs::write(m.mnt().join("file"), b"content").unwrap();
    m.umount();
    m.fsck();
}

/// Runs a command on a terminal until it shows something, and says what it has shown in all.
const ON_A_TERMINAL: &str = r#"
import fcntl, os, pty, struct, sys, termios
shown, program = sys.argv[1], sys.argv[2:]
pid, tty = pty.fork()
if pid == 0:
    fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    os.execv(program[0], program)
seen = b""
while shown.encode() not in seen:
    seen += os.read(tty, 4096)
print("seen", flush=True)
try:
    while part := os.read(tty, 4096):
        seen += part
except OSError:
    pass
_, status = os.waitpid(pid, 0)
assert os.waitstatus_to_exitcode(status) == 0, (status, seen)
print(repr(seen), flush=True)
"#;

#[test]
fn a_terminal_has_a_bar_while_something_takes_long() {
    if !can_mount() {
        return;
    }
    let m = Mounted(Scene::new());
    let mut closing = Closing::new(&m.0, "draining 8192 4096");
    let words = "8 KiB left of 8 KiB";
    let mut terminal = Command::new("python3")
        .args(["-c", ON_A_TERMINAL, words, QUAYFS, "mount"])
        .args([m.0.vol(), m.mnt()])
        .env("TERM", "xterm")
        .stdout(Stdio::piped())
        .start()
        .unwrap();
    let mut said = std::io::BufReader::new(terminal.stdout.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut said, &mut line).unwrap();
    assert_eq!(line, "seen\n");
    closing.ends();
    line.clear();
    std::io::Read::read_to_string(&mut said, &mut line).unwrap();
    assert!(terminal.wait().unwrap().success());
    // A bar, which is wiped away.
    assert!(
        line.contains("draining [") && line.contains("] 0% 8 KiB"),
        "{line}"
    );
    assert!(line.contains("\\x1b[2K"), "{line}");
    m.umount();
}

#[test]
fn elsewhere_there_is_a_line() {
    if !can_mount() {
        return;
    }
    let m = Mounted(Scene::new());
    let mut closing = Closing::new(&m.0, "draining 8192 4096");
    let mut mount = Command::new(QUAYFS)
        .arg("mount")
        .args([m.0.vol(), m.mnt()])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .start()
        .unwrap();
    let mut said = std::io::BufReader::new(mount.stderr.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut said, &mut line).unwrap();
    assert_eq!(line, "quayfs: draining: 8 KiB left of 8 KiB\n");
    closing.ends();
    assert!(mount.wait().unwrap().success());
    m.umount();
}

/// A service manager that counts how long a stop takes is told to wait: as soon as the volume is being closed.
#[test]
fn a_stop_gets_the_time_that_it_needs() {
    if !can_mount() {
        return;
    }
    let m = Mounted(Scene::new());
    let socket = m.0.dir().join("notify");
    let inbox = std::os::unix::net::UnixDatagram::bind(&socket).unwrap();
    let mut daemon = Command::new(QUAYFS)
        .args(["mount", "--foreground", "-o", "norestart"])
        .args([m.0.vol(), m.mnt()])
        .env("NOTIFY_SOCKET", &socket)
        .stderr(Stdio::null())
        .start()
        .unwrap();
    let hear = || {
        let mut word = [0; 4096];
        let n = inbox.recv(&mut word).unwrap();
        String::from_utf8_lossy(&word[..n]).into_owned()
    };
    while !hear().contains("READY=1") {}
    File::create(m.mnt().join("file"))
        .and_then(|mut file| file.write_all(&[7; 8 * BLOCK]))
        .unwrap();
    let term = ["-s", "TERM", &daemon.id().to_string()];
    assert!(Command::new("kill").args(term).finish().unwrap().success());
    let word = loop {
        let word = hear();
        if word.contains("EXTEND_TIMEOUT_USEC=") {
            break word;
        }
    };
    let more = word
        .lines()
        .find_map(|l| l.strip_prefix("EXTEND_TIMEOUT_USEC="));
    assert!(
        more.unwrap().parse::<u64>().unwrap() >= 10_000_000,
        "{word}"
    );
    assert!(
        word.contains("STOPPING=1\n") && word.contains("STATUS="),
        "{word}"
    );
    assert!(daemon.wait().unwrap().success());
    m.fsck();
}
