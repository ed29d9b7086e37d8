//! What a mount says of itself: `status`, `stats`, `top`.

use super::*;

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
