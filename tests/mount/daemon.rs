//! The program with real mounts: daemon, signals, helpers of mount(8), users without privileges.
//!
//! Needs `/dev/fuse`. Where there is none these tests fail, unless QUAYFS_SKIP_FUSE=1 says that
//! this is known.

use crate::processes::runs;
use crate::program;

use program::namespace::Namespace;
use program::{
    QUAYFS, Run, Scene, Start as _, as_nobody, can_be_root, can_mount, copy_program, eventually,
    named, quayfs,
};
use serde_json::Value;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A mount that goes away with the test, whatever its end.
struct Mounted(Scene);

impl Mounted {
    #[track_caller]
    fn new(options: &[&str]) -> Self {
        let mounted = Self(Scene::new());
        mounted.mount(options).ok();
        mounted
    }

    fn mount(&self, options: &[&str]) -> Run {
        let (vol, mnt) = self.paths();
        quayfs([&["mount", &vol, &mnt][..], options].concat())
    }

    fn umount(&self) -> Run {
        quayfs(["umount", &self.paths().1])
    }

    fn paths(&self) -> (String, String) {
        let text = |p: std::path::PathBuf| p.to_str().unwrap().to_string();
        (text(self.0.vol()), text(self.0.mnt()))
    }

    #[track_caller]
    fn info(&self) -> Value {
        serde_json::from_str(&quayfs(["info", &self.paths().1, "--json"]).ok()).unwrap()
    }

    #[track_caller]
    fn pid(&self) -> i32 {
        self.info()["pid"].as_i64().unwrap() as i32
    }

    fn log(&self) -> String {
        fs::read_to_string(self.0.vol().join("quayfs.log")).unwrap_or_default()
    }

    /// The line of the mount table.
    fn table(&self) -> Option<String> {
        let (_, mnt) = self.paths();
        // Others may mount what has a name of any bytes.
        let table = fs::read("/proc/self/mountinfo").unwrap();
        String::from_utf8_lossy(&table)
            .lines()
            .rfind(|l| l.split(' ').nth(4) == Some(&mnt))
            .map(str::to_string)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.table().is_some() {
            let _ = Command::new("umount")
                .args(["-i", "-l"])
                .arg(self.0.mnt())
                .finish();
        }
    }
}

fn signal(pid: i32, name: &str) {
    let status = Command::new("kill")
        .args(["-s", name, &pid.to_string()])
        .finish()
        .unwrap();
    assert!(status.success());
}

/// What `quayfs status` says of a mount or volume, and its exit code.
#[track_caller]
fn status(target: &str) -> (i32, Value) {
    let run = quayfs(["status", target, "--json"]);
    let all: Value = serde_json::from_str(&run.out).unwrap_or_else(|e| panic!("{e}: {run:?}"));
    assert_eq!(all["schema"], 1);
    (run.code, all["volumes"][0].clone())
}

#[test]
fn status_says_how_a_mount_is_whatever_its_daemon_does() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new(&["-o", "norestart"]);
    let (vol, mnt) = m.paths();
    let text = quayfs(["status", &vol]).ok();
    assert!(text.starts_with(&format!("{mnt}: ok\n")), "{text}");
    assert!(
        text.lines()
            .all(|l| l.chars().count() <= 80 || !l.contains("  ")),
        "{text}"
    );
    assert!(quayfs(["status"]).out.contains(&format!("{mnt}: ok\n")));
    let (code, s) = status(&mnt);
    assert_eq!((code, &s["state"]), (0, &Value::from("mounted")), "{s}");
    assert_eq!(s["daemon"]["version"], env!("CARGO_PKG_VERSION"));
    let pid = m.pid();
    assert_eq!(s["daemon"]["pid"], pid);

    // Nothing of this may ask the daemon, or it would never return.
    signal(pid, "STOP");
    let (code, s) = status(&mnt);
    signal(pid, "CONT");
    assert_eq!((code, &s["state"]), (2, &Value::from("stopped")), "{s}");

    signal(pid, "KILL");
    eventually("the daemon is gone", || !runs(pid));
    let (code, s) = status(&mnt);
    assert_eq!((code, &s["state"]), (2, &Value::from("dead")), "{s}");
    assert_eq!(s["uuid"].as_str().unwrap().len(), 36, "by the media: {s}");
    m.umount();

    let (code, s) = status(&vol);
    assert_eq!((code, &s["clean"]), (1, &Value::from(false)), "{s}");
    m.mount(&[]).ok();
    m.umount().ok();
    let (code, s) = status(&vol);
    assert_eq!((code, &s["clean"]), (0, &Value::from(true)), "{s}");
    quayfs(["status", "/proc"]).fails(3, "/proc");
}

/// The samples of a metric in what `quayfs stats --json` prints.
fn samples(stats: &Value, name: &str) -> Vec<Value> {
    let all = stats["metrics"].as_array().unwrap();
    let family = all.iter().find(|f| f["name"] == name);
    family.unwrap()["samples"].as_array().unwrap().clone()
}

#[test]
fn stats_count_what_a_program_does() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new(&[]);
    let (_, mnt) = m.paths();
    fs::write(m.0.mnt().join("file"), [7; 10_000]).unwrap();
    let stats: Value = serde_json::from_str(&quayfs(["stats", &mnt, "--json"]).ok()).unwrap();
    assert_eq!(stats["schema"], 1);
    assert_eq!(
        samples(&stats, "quayfs_written_bytes")[0]["value"],
        10_000.0
    );
    let of_writes = |name: &str, suffix: &str| {
        let found = samples(&stats, name)
            .into_iter()
            .find(|s| s["labels"]["kind"] == "write" && s["suffix"] == suffix);
        found.unwrap()["value"].as_f64().unwrap()
    };
    let writes = of_writes("quayfs_messages", "_total");
    assert!(writes >= 1.0);
    assert_eq!(
        of_writes("quayfs_request_seconds", "_count"),
        writes,
        "each is timed"
    );
    assert!(of_writes("quayfs_request_seconds", "_sum") > 0.0);
    let text = quayfs(["stats", &mnt, "--openmetrics"]).ok();
    assert!(text.ends_with("# EOF\n") && text.contains("quayfs_written_bytes_total{volume="));
    assert!(
        quayfs(["stats", &mnt])
            .ok()
            .contains("Bytes acknowledged by writes")
    );
    quayfs(["stats", &mnt, "--listen", "0.0.0.0:9641"]).fails(2, "127.0.0.1");
    // Nothing that could be read from a screen.
    quayfs(["top", &mnt]).fails(1, "quayfs stats");
}

#[test]
fn stats_are_served_until_a_signal_comes() {
    use std::io::{BufRead, BufReader, Read, Write};
    if !can_mount() {
        return;
    }
    let m = Mounted::new(&[]);
    let (_, mnt) = m.paths();
    let socket = m.0.dir().join("socket");
    let place = format!("unix:{}", socket.display());
    let mut server = Command::new(QUAYFS)
        .args(["stats", &mnt, "--listen", &place])
        .stdout(std::process::Stdio::piped())
        .start()
        .unwrap();
    let mut said = String::new();
    BufReader::new(server.stdout.take().unwrap())
        .read_line(&mut said)
        .unwrap();
    assert_eq!(said, format!("listening: {place}\n"));
    for _ in 0..2 {
        let mut client = std::os::unix::net::UnixStream::connect(&socket).unwrap();
        client
            .write_all(b"GET /metrics HTTP/1.1\r\nHost: q\r\n\r\n")
            .unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert!(answer.ends_with("# EOF\n"), "{answer}");
    }
    signal(server.id() as i32, "TERM");
    assert!(server.wait().unwrap().success());
    assert!(!socket.exists());
}

/// Runs `quayfs top` on a terminal of 80 columns and 24 lines until it shows numbers, ends it as it is told, and says what
/// has become of the terminal.
const ON_A_TERMINAL: &str = r#"
import fcntl, os, pty, signal, struct, sys, termios
program, mnt, how = sys.argv[1:]
pid, tty = pty.fork()
if pid == 0:
    fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    os.execv(program, ["quayfs", "top", mnt])
before, seen = None, b""
while b"REQUEST" not in seen:
    seen += os.read(tty, 4096)
if how == "hang-up":
    # It must not go on without a terminal. A minute is long enough for that.
    os.close(tty)
    signal.alarm(60)
    os.waitpid(pid, 0)
    sys.exit()
if how == "term":
    os.kill(pid, signal.SIGTERM)
else:
    os.write(tty, b"q" if how == "q" else b"\x03")
try:
    while part := os.read(tty, 4096):
        seen += part
except OSError:
    pass
_, status = os.waitpid(pid, 0)
assert os.waitstatus_to_exitcode(status) == 0, (status, seen)
assert b"PROCESS" in seen and b"quit" in seen, seen
left = seen.rindex(b"\x1b[?1049l")
assert left > seen.index(b"\x1b[?1049h"), "the screen is given back"
"#;

#[test]
fn top_shows_numbers_and_leaves_the_terminal_as_it_was() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new(&[]);
    for how in ["q", "control-c", "term", "hang-up"] {
        let run = Command::new("python3")
            .args(["-c", ON_A_TERMINAL, QUAYFS, &m.paths().1, how])
            .env("TERM", "xterm")
            .capture()
            .unwrap();
        assert!(
            run.status.success(),
            "{how}: {}",
            String::from_utf8_lossy(&run.stderr)
        );
    }
}

/// A daemon that is killed while it waits for an answer of its own never goes away: Linux does not let a
/// process be killed while its request is being served, and the connection ends with the process that
/// serves it.
#[test]
fn the_daemon_asks_nothing_of_its_own_mount() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new(&[]);
    let info = m.info();
    let messages: Vec<_> = info["messages"].as_object().unwrap().iter().collect();
    // `info` itself: the root's attributes for the path, and the status.
    let asked = |name: &str| {
        messages
            .iter()
            .find(|(k, _)| *k == name)
            .map(|(_, n)| n.as_u64())
    };
    assert_eq!(asked("getxattr"), Some(Some(1)), "{messages:?}");
    assert!(
        matches!(asked("getattr"), None | Some(Some(1))),
        "{messages:?}"
    );
    assert_eq!(
        messages.len(),
        1 + usize::from(asked("getattr").is_some()),
        "{messages:?}"
    );
}

#[test]
fn files_know_when_they_were_born() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new(&[]);
    let file = m.0.mnt().join("file");
    let born = || fs::metadata(&file).unwrap().created().unwrap();
    let before = std::time::SystemTime::now();
    fs::write(&file, b"cargo").unwrap();
    let first = born();
    assert!(before <= first && first <= std::time::SystemTime::now());
    // Until the clock has gone on by as much as time stamps tell.
    eventually("a later time stamp", || {
        fs::write(&file, b"other cargo").unwrap();
        fs::metadata(&file).unwrap().modified().unwrap() > first
    });
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(born(), first);
    m.umount().ok();
    m.mount(&[]).ok();
    assert_eq!(born(), first);
}

/// With `writeback` the kernel has data that the daemon does not know of, until the file is synced or
/// closed. A program that copies it meanwhile leaves out what it is told are holes.
#[test]
fn collected_writes_are_no_holes() {
    if !can_mount() {
        return;
    }
    use rustix::fs::{SeekFrom, ftruncate, seek};
    for (option, first) in [("writeback", 0), ("writethrough", 8192)] {
        let m = Mounted::new(&["-o", option]);
        let path = m.0.mnt().join("file");
        let file = fs::File::create_new(&path).unwrap();
        ftruncate(&file, 1 << 20).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &[1; 4096], 8192).unwrap();
        assert_eq!(seek(&file, SeekFrom::Data(0)), Ok(first), "{option}");
        // Beyond what the daemon knows the file to be, too.
        std::os::unix::fs::FileExt::write_all_at(&file, &[1; 4096], 1 << 20).unwrap();
        assert_eq!(
            seek(&file, SeekFrom::Data(1 << 20)),
            Ok(1 << 20),
            "{option}"
        );
        let end = (1 << 20) + 4096;
        assert_eq!(seek(&file, SeekFrom::Hole(1 << 20)), Ok(end), "{option}");
        drop(file);
        m.umount().ok();
    }
}

#[test]
fn a_mount_keeps_what_is_written_to_it() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new(&[]);
    let mnt = m.0.mnt();
    fs::create_dir(mnt.join("dir")).unwrap();
    fs::write(mnt.join("dir/file"), b"cargo").unwrap();
    let info = m.info();
    let (vol, target) = m.paths();
    assert_eq!(
        (info["volume"].as_str(), info["mountpoint"].as_str()),
        (Some(&*vol), Some(&*target))
    );
    let by_volume: Value = serde_json::from_str(&quayfs(["info", &vol, "--json"]).ok()).unwrap();
    assert_eq!(by_volume["pid"], info["pid"]);
    assert!(quayfs(["info", &target]).ok().contains(&vol));
    let line = m.table().unwrap();
    assert!(line.contains(&format!(" - fuse.quayfs {vol} ")), "{line}");
    let name = fs::read_to_string(format!("/proc/{}/comm", info["pid"])).unwrap();
    assert_eq!(name, "quayfs\n", "what ps shows");

    m.umount().ok();
    assert!(
        !runs(info["pid"].as_i64().unwrap() as i32),
        "umount waits for the daemon"
    );
    assert!(m.table().is_none() && !mnt.join("dir").exists());
    quayfs(["fsck", &vol]).ok();
    m.mount(&["-o", "ro"]).ok();
    assert_eq!(fs::read(mnt.join("dir/file")).unwrap(), b"cargo");
    assert!(fs::write(mnt.join("new"), b"x").is_err());
    m.umount().ok();
    assert!(m.log().contains("mounted"), "{}", m.log());
}

#[test]
fn a_volume_is_mounted_once() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new(&[]);
    let (vol, _) = m.paths();
    m.mount(&[]).fails(32, "mounted on");
    let other = m.0.dir().join("other");
    fs::create_dir(&other).unwrap();
    quayfs(["mount", &vol, other.to_str().unwrap()]).fails(32, "quayfs umount");
    quayfs(["fsck", &vol]).fails(8, "in use");
    m.umount().ok();
}

#[test]
fn a_used_tree_is_not_unmounted() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new(&[]);
    let file = fs::File::create(m.0.mnt().join("held")).unwrap();
    m.umount().fails(32, "fuser -vm");
    assert!(m.table().is_some());
    drop(file);
    m.umount().ok();
}

#[test]
fn a_killed_daemon_leaves_what_was_synced() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new(&["-o", "norestart"]);
    let mnt = m.0.mnt();
    let file = fs::File::create(mnt.join("safe")).unwrap();
    std::io::Write::write_all(&mut &file, b"cargo").unwrap();
    file.sync_all().unwrap();
    signal(m.pid(), "KILL");
    eventually("the mount is dead", || fs::read_dir(&mnt).is_err());
    drop(file);
    quayfs(["info", &m.paths().1]).fails(1, "quayfs umount");
    m.mount(&[]).fails(32, "quayfs umount");
    m.umount().ok();
    m.mount(&[]).ok();
    assert_eq!(fs::read(mnt.join("safe")).unwrap(), b"cargo");
    m.umount().ok();
    quayfs(["fsck", &m.paths().0]).ok();
}

#[test]
fn sigterm_unmounts_cleanly() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new(&[]);
    fs::write(m.0.mnt().join("file"), b"cargo").unwrap();
    let pid = m.pid();
    signal(pid, "TERM");
    eventually("the daemon ends", || !runs(pid));
    assert!(m.table().is_none());
    assert!(m.log().contains("the volume is clean"), "{}", m.log());
    m.mount(&[]).ok();
    assert_eq!(fs::read(m.0.mnt().join("file")).unwrap(), b"cargo");
    m.umount().ok();
}

#[test]
fn a_second_sigterm_does_not_wait_for_users() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new(&[]);
    let held = fs::File::create(m.0.mnt().join("held")).unwrap();
    let pid = m.pid();
    signal(pid, "TERM");
    eventually("the signal is heard", || m.log().contains("signal 15"));
    assert!(runs(pid));
    signal(pid, "TERM");
    eventually("the daemon ends", || !runs(pid));
    assert!(held.sync_all().is_err());
    assert!(m.table().is_none());
}

#[test]
fn the_foreground_serves_until_interrupted() {
    if !can_mount() {
        return;
    }
    let m = Mounted(Scene::new());
    let (vol, mnt) = m.paths();
    let log = m.0.dir().join("log");
    let mut child = Command::new(QUAYFS)
        .args([
            "mount",
            &vol,
            &mnt,
            "--foreground",
            "--log-file",
            log.to_str().unwrap(),
        ])
        .start()
        .unwrap();
    eventually("it is mounted", || {
        m.table().is_some() && fs::write(m.0.mnt().join("x"), b"").is_ok()
    });
    assert_eq!(m.pid() as u32, child.id());
    signal(m.pid(), "INT");
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(m.table().is_none());
    let log = fs::read_to_string(log).unwrap();
    assert!(log.contains("signal 2") && log.contains("clean"), "{log}");
}

#[test]
fn failures_of_the_daemon_reach_the_command() {
    if !can_mount() {
        return;
    }
    let m = Mounted(Scene::new());
    fs::write(m.0.vol().join("pmem"), vec![0; 32 << 20]).unwrap();
    m.mount(&[]).fails(32, "not a QuayFS pmem region");
    assert!(m.log().contains("not a QuayFS pmem region"));
    m.mount(&["--foreground"])
        .fails(32, "not a QuayFS pmem region");
    let log = m.0.dir().join("no/such/log");
    m.mount(&["--log-file", log.to_str().unwrap()])
        .fails(32, "--log-file");
    assert!(m.table().is_none());
}

#[test]
fn options_reach_kernel_and_daemon() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new(&[
        "-o",
        "nosuid,noatime,allow_other",
        "-o",
        "durability=commit,commit=9",
    ]);
    let line = m.table().unwrap();
    for word in ["nosuid", "noatime", "allow_other", "default_permissions"] {
        assert!(line.contains(word), "{word}: {line}");
    }
    let info = m.info();
    assert!(
        info["options"].as_str().unwrap().contains("commit=9"),
        "{info}"
    );
    m.umount().ok();
    m.mount(&["-o", "fsname=cargo,subtype=none"]).ok();
    let line = m.table().unwrap();
    assert!(line.contains(" - fuse cargo "), "{line}");
    m.umount().ok();
}

/// Only root may tell the kernel; for others it stays as it is, and mounting works all the same.
#[test]
fn the_kernel_reads_ahead_as_far_as_it_is_told() {
    if !can_mount() {
        return;
    }
    let m = Mounted(Scene::new());
    for (options, want) in [
        ("rw", "4096"),
        ("read_ahead=1M", "1024"),
        ("read_ahead=0", "0"),
    ] {
        m.mount(&["-o", options]).ok();
        let line = m.table().unwrap();
        let device = line.split(' ').nth(2).unwrap();
        let kib = fs::read_to_string(format!("/sys/class/bdi/{device}/read_ahead_kb")).unwrap();
        let root = rustix::process::geteuid().is_root();
        assert_eq!(kib.trim(), if root { want } else { "128" }, "{options}");
        m.umount().ok();
        assert_eq!(m.log().contains("read_ahead= has no effect"), !root);
    }
}

/// A file that was written in any order is read back in long requests.
#[test]
fn who_reads_in_order_waits_for_few_requests() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new(&[]);
    let file = m.0.mnt().join("file");
    fs::write(&file, vec![7; 8 << 20]).unwrap();
    let reads = |options: &[&str]| {
        m.umount().ok();
        m.mount(options).ok();
        assert_eq!(fs::read(&file).unwrap().len(), 8 << 20);
        m.info()["counters"]["reads"].as_u64().unwrap()
    };
    let (by_default, without) = (reads(&[]), reads(&["-o", "read_ahead=128K"]));
    assert!(without >= 64, "{without}");
    match rustix::process::geteuid().is_root() {
        true => assert!(by_default <= 16, "{by_default}"),
        false => assert!(by_default >= 64, "{by_default}"),
    }
    m.umount().ok();
}

#[test]
fn the_helpers_of_mount8_mount_remount_and_unmount() {
    if !can_mount() {
        return;
    }
    let m = Mounted(Scene::new());
    let (vol, mnt) = m.paths();
    let helper = m.0.helper("mount.quayfs");
    assert_eq!(named(&helper, [&vol, &mnt, "-o", "rw,_netdev"]).ok(), "");
    fs::write(m.0.mnt().join("file"), b"1").unwrap();
    named(&helper, [&vol, &mnt, "-o", "remount,ro"]).ok();
    assert!(fs::write(m.0.mnt().join("file"), b"2").is_err());
    named(&helper, [&vol, &mnt, "-o", "remount,rw,nodev"]).ok();
    fs::write(m.0.mnt().join("file"), b"3").unwrap();
    assert!(m.table().unwrap().contains("nodev"));
    let pid = m.pid();
    named(&m.0.helper("umount.fuse.quayfs"), [&*mnt, "-n"]).ok();
    assert!(!runs(pid));
    assert!(named(&helper, [&vol, &mnt, "-v"]).ok().contains("mounted"));
    m.umount().ok();
}

/// mount(8), umount(8) and fsck(8) themselves, by an fstab, in a mount namespace whose `/sbin` has the helpers.
#[test]
fn fstab_mounts_and_checks() {
    if !can_be_root() {
        return;
    }
    let m = Mounted(Scene::in_memory());
    let (vol, mnt) = m.paths();
    fs::create_dir(m.0.dir().join("sbin")).unwrap();
    for name in ["mount.quayfs", "umount.quayfs", "fsck.quayfs"] {
        m.0.helper(&format!("sbin/{name}"));
    }
    let script = "mount -t overlay none -o lowerdir=$PWD/sbin:/usr/sbin /usr/sbin";
    let shell = Namespace::new(m.0.dir(), Path::new(""), script);
    let fstab = m.0.dir().join("fstab");
    let fstab = fstab.to_str().unwrap();
    let pid = || {
        let info = shell.run(&[QUAYFS, "info", &mnt, "--json"]).ok();
        serde_json::from_str::<Value>(&info).unwrap()["pid"].clone()
    };
    for (options, says_so) in [
        (
            "defaults,nofail,_netdev,x-systemd.device-timeout=5,relatime",
            false,
        ),
        // The mount table shows another name then, so that mount(8) does not know.
        ("noatime,fsname=disk", true),
    ] {
        fs::write(fstab, format!("{vol} {mnt} quayfs {options} 0 2\n")).unwrap();
        shell.run(&["mount", "-a", "-T", fstab]).ok();
        let daemon = pid();
        let again = shell.run(&["mount", "-a", "-T", fstab]);
        assert_eq!(
            again.err.contains("already: nothing is done"),
            says_so,
            "{again:?}"
        );
        again.ok();
        assert_eq!(pid(), daemon);
        // It is left alone while it is mounted.
        let fsck = [
            "env",
            &format!("FSTAB_FILE={fstab}"),
            "fsck",
            "-A",
            "-T",
            "-M",
            "-a",
        ];
        if !says_so {
            assert_eq!(shell.run(&fsck).code, 0);
        }
        shell.run(&["umount", &mnt]).ok();
    }
    let fsck = || {
        let fstab = format!("FSTAB_FILE={fstab}");
        shell.run(&["env", &fstab, "fsck", "-A", "-T", "-a"])
    };
    assert_eq!(fsck().code, 0);
    let pmem = fs::File::options().write(true).open(m.0.vol().join("pmem"));
    pmem.unwrap().write_all_at(&[0xff; 64], 512).unwrap();
    assert_eq!(fsck().code, 1, "repaired");
    assert_eq!(fsck().code, 0);
    fs::write(fstab, format!("{vol} {mnt} quayfs defaults,discard 0 0\n")).unwrap();
    let refused = shell.run(&["mount", "-a", "-T", fstab]);
    assert!(
        refused.code != 0 && refused.err.contains("fstrim(8)"),
        "{refused:?}"
    );
}

/// Runs the program as a user who may not call mount(2). If the tests run as root that is user 65534, in
/// a mount namespace where the device is open to every user, as it is on most systems.
struct Unprivileged {
    program: PathBuf,
    namespace: Option<Namespace>,
}

impl Unprivileged {
    fn new(dir: &Path) -> Self {
        let program = dir.join("quayfs");
        copy_program(&program);
        let namespace = rustix::process::getuid().is_root().then(|| {
            fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).unwrap();
            let script = "mkdir dev; mount -t tmpfs none dev; mknod -m 666 dev/fuse c 10 229; \
                          mount --bind dev/fuse /dev/fuse";
            Namespace::new(dir, Path::new(""), script)
        });
        Self { program, namespace }
    }

    /// Makes a path belong to the user.
    fn own(&self, path: &Path) {
        if self.namespace.is_some() {
            chown(path, Some(65534), Some(65534)).unwrap();
        }
    }

    fn run(&self, args: &[&str]) -> Run {
        self.command(args).capture().unwrap().into()
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = match &self.namespace {
            None => Command::new(&self.program),
            Some(shell) => {
                let mut command = Command::new("nsenter");
                command.args([
                    "--mount",
                    "--target",
                    &shell.pid().to_string(),
                    "--",
                    "setpriv",
                ]);
                command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
                command.arg(&self.program);
                command
            }
        };
        command.args(args);
        command
    }

    fn mounted(&self, what: &str) -> bool {
        let pid = self
            .namespace
            .as_ref()
            .map_or("self".into(), |shell| shell.pid().to_string());
        let table = fs::read(format!("/proc/{pid}/mountinfo")).unwrap();
        String::from_utf8_lossy(&table).contains(what)
    }
}

impl Drop for Unprivileged {
    fn drop(&mut self) {
        if let Some(shell) = &self.namespace {
            let _ = Command::new("nsenter")
                .args(["--mount", "--target", &shell.pid().to_string(), "--"])
                .args(["umount", "-i", "-l", "-a", "-t", "fuse.quayfs"])
                .capture();
        }
    }
}

#[test]
fn users_without_privileges_mount_through_fusermount() {
    if !can_mount() {
        return;
    }
    let m = Mounted(Scene::new());
    let (vol, mnt) = m.paths();
    // Root, if the tests run as root, has been there before and has left a log.
    m.mount(&[]).ok();
    m.umount().ok();
    let user = Unprivileged::new(m.0.dir());
    for path in [
        m.0.vol(),
        m.0.mnt(),
        m.0.vol().join("pmem"),
        m.0.vol().join("data"),
    ] {
        user.own(&path);
    }
    let entry = format!("{mnt} rw,nosuid,nodev");
    let pid = || {
        let info: Value = serde_json::from_str(&user.run(&["info", &vol, "--json"]).ok()).unwrap();
        info["pid"].as_i64().unwrap() as i32
    };
    assert!(!user.run(&["mount", &vol, &mnt]).ok().is_empty());
    assert!(user.mounted(&entry) && user.mounted(&format!("fuse.quayfs {vol}")));
    let log = fs::metadata(m.0.vol().join("quayfs.log")).unwrap();
    assert_eq!(log.uid(), fs::metadata(m.0.vol()).unwrap().uid());
    let daemon = pid();
    // What others have written is not for other processes of the same user.
    let memory = || fs::read_to_string(format!("/proc/{daemon}/maps")).map(drop);
    let memory = if rustix::process::getuid().is_root() {
        as_nobody(memory)
    } else {
        memory()
    };
    assert_eq!(memory.unwrap_err().kind(), ErrorKind::PermissionDenied);
    user.run(&["umount", &mnt]).ok();
    assert!(!user.mounted(&entry) && !runs(daemon));

    // Root may not enter, and yet finds the daemon and changes its mount.
    if let Some(namespace) = &user.namespace {
        user.run(&["mount", &vol, &mnt]).ok();
        let daemon = pid();
        namespace
            .run(&[QUAYFS, "mount", &vol, &mnt, "-o", "remount,ro"])
            .ok();
        assert!(user.mounted(&format!("{mnt} ro,nosuid,nodev")));
        let about = "`noatime` cannot be changed";
        let remount = ["mount", &vol, &mnt, "-o", "remount,noatime"];
        namespace
            .run(&[&[QUAYFS], &remount[..]].concat())
            .fails(32, about);
        namespace.run(&[QUAYFS, "umount", &mnt]).ok();
        assert!(!user.mounted(&mnt) && !runs(daemon));
    }

    user.run(&["mount", &vol, &mnt]).ok();
    let daemon = pid();
    signal(daemon, "TERM");
    eventually("the daemon ends", || !runs(daemon));
    assert!(!user.mounted(&entry));

    // Requests that do not say which user asks come from the owner of the mount all the same.
    user.run(&["mount", &vol, &mnt, "-o", "idmap"]).ok();
    user.run(&["quota", &mnt]).ok();
    user.run(&["umount", &mnt]).ok();

    user.run(&["mount", &vol, &mnt, "--log-file", "/no/such/log"])
        .fails(32, "--log-file");
    user.run(&["mount", &vol, "/proc"])
        .fails(32, "fusermount3: ");
}

/// The directory above has been moved, and another mount is where its path leads by now.
#[test]
fn a_signal_ends_the_mount_of_its_daemon_and_no_other() {
    if !can_mount() {
        return;
    }
    let (m, other) = (Mounted(Scene::new()), Scene::new());
    let user = Unprivileged::new(m.0.dir());
    let at = |name: &str| m.0.dir().canonicalize().unwrap().join(name);
    let (above, moved, second) = (at("above"), at("moved"), at("second"));
    fs::rename(other.vol(), &second).unwrap();
    for volume in [m.0.vol(), second.clone()] {
        for path in [volume.clone(), volume.join("pmem"), volume.join("data")] {
            user.own(&path);
        }
    }
    let mount = |volume: &Path| {
        let mnt = above.join("mnt");
        fs::create_dir_all(&mnt).unwrap();
        user.own(&mnt);
        let (volume, mnt) = (volume.to_str().unwrap(), mnt.to_str().unwrap());
        user.run(&["mount", volume, mnt]).ok();
        let info: Value = serde_json::from_str(&user.run(&["info", mnt, "--json"]).ok()).unwrap();
        info["pid"].as_i64().unwrap() as i32
    };
    let first = mount(&m.0.vol());
    fs::rename(&above, &moved).unwrap();
    let other = mount(&second);
    signal(first, "TERM");
    eventually("the first one ends", || !runs(first));
    let is_mounted = |dir: &Path| user.mounted(&format!(" {} ", dir.join("mnt").display()));
    assert!(!is_mounted(&moved) && is_mounted(&above) && runs(other));
    let mnt = above.join("mnt");
    user.run(&["umount", mnt.to_str().unwrap()]).ok();
}

/// The source in the mount table is what the mounting user said. A mount that claims to be another user's volume
/// does not keep that volume from being mounted, and is not asked about it.
#[test]
fn who_mounts_under_the_name_of_a_volume_does_not_stand_in_for_it() {
    if !can_mount() {
        return;
    }
    let (m, other) = (Mounted(Scene::new()), Scene::new());
    let (vol, mnt) = m.paths();
    let user = Unprivileged::new(m.0.dir());
    let Some(namespace) = &user.namespace else {
        return;
    };
    for path in [
        m.0.vol(),
        m.0.mnt(),
        m.0.vol().join("pmem"),
        m.0.vol().join("data"),
    ] {
        user.own(&path);
    }
    let theirs = other.vol().canonicalize().unwrap();
    let theirs = theirs.to_str().unwrap();
    user.run(&["mount", &vol, &mnt, "-o", &format!("fsname={theirs}")])
        .ok();
    assert!(user.mounted(&format!("fuse.quayfs {theirs}")));
    let run = |args: &[&str]| namespace.run(&[&[QUAYFS], args].concat());
    let info: Value = serde_json::from_str(&run(&["info", theirs, "--json"]).ok()).unwrap();
    assert_eq!(info["mountpoint"], Value::Null);
    let at = other.mnt();
    let at = at.to_str().unwrap();
    run(&["mount", theirs, at]).ok();
    let info: Value = serde_json::from_str(&run(&["info", theirs, "--json"]).ok()).unwrap();
    assert_eq!(info["mountpoint"].as_str(), Some(at));
    run(&["umount", at]).ok();
    user.run(&["umount", &mnt]).ok();
}

/// A daemon that is killed when `fusermount3` has just mounted for it can take nothing away any more; the command that
/// started it does.
#[test]
fn a_daemon_that_is_killed_while_mounting_leaves_no_mount() {
    if !can_mount() {
        return;
    }
    let m = Mounted(Scene::new());
    let (vol, mnt) = m.paths();
    let user = Unprivileged::new(m.0.dir());
    for path in [
        m.0.vol(),
        m.0.mnt(),
        m.0.vol().join("pmem"),
        m.0.vol().join("data"),
    ] {
        user.own(&path);
    }
    let helper = m.0.dir().join("bin/fusermount3");
    fs::create_dir(helper.parent().unwrap()).unwrap();
    let path = std::env::var("PATH").unwrap();
    let script = format!(
        "#!/bin/sh\nPATH='{path}' fusermount3 \"$@\"; code=$?\n\
         if [ \"$1\" = -o ]; then kill -KILL $PPID; fi\nexit $code\n"
    );
    fs::write(&helper, script).unwrap();
    fs::set_permissions(&helper, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{path}", helper.parent().unwrap().display());
    for options in ["norestart", "restart"] {
        let run: Run = user
            .command(&["mount", &vol, &mnt, "-o", options])
            .env("PATH", &path)
            .capture()
            .unwrap()
            .into();
        assert!(!user.mounted(&mnt), "{options}: {run:?}");
        run.fails(32, "signal: 9");
    }
    user.run(&["mount", &vol, &mnt]).ok();
    user.run(&["umount", &mnt]).ok();
}
