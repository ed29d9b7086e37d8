//! Without a daemon that answers: what commands say of a volume all the same. None of them waits for a daemon that is
//! stopped: it stays so until they have ended.
//!
//! Needs `/dev/fuse`.

use crate::program;

use program::{Mounted, QUAYFS, Run, Scene, Start as _, can_mount, eventually, quayfs};
use quayfs_fs::volume::config_of;
use quayfs_layout::node::nat_decode;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Command;

fn signal(pid: u64, name: &str) {
    let mut kill = Command::new("kill");
    let sent = kill.args(["-s", name, &pid.to_string()]);
    assert!(sent.finish().unwrap().success());
}

/// It goes on when the test ends, in whatever way: a stopped process cannot be waited for.
struct Stopped(u64);

impl Stopped {
    fn new(pid: u64) -> Self {
        signal(pid, "STOP");
        let stopped = Self(pid);
        eventually("it is stopped", || {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
            stat.rsplit(") ").next().unwrap().starts_with('T')
        });
        stopped
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        signal(self.0, "CONT");
    }
}

/// Runs the program. One that waits for the daemon is ended, and fails with 124.
fn patiently(args: &[&str]) -> Run {
    let mut command = Command::new("timeout");
    let run = command.args(["-k", "5", "60", QUAYFS]).args(args);
    run.capture().unwrap().into()
}

/// What it printed, where it printed that and failed.
#[track_caller]
fn shown(run: &Run, why: &str) -> Value {
    assert_eq!(run.code, 1, "{run:?}");
    assert_eq!(run.err.lines().count(), 1, "{run:?}");
    assert!(run.err.contains(why), "{run:?}");
    serde_json::from_str(&run.out).unwrap()
}

#[test]
fn a_stopped_daemon_is_not_waited_for() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new("noatime");
    let (info, mnt) = (m.info(), m.mnt());
    let mnt = mnt.to_str().unwrap();
    let pid = info["pid"].as_u64().unwrap();
    let why = format!("is stopped (SIGSTOP or a debugger): `kill -CONT {pid}`");
    let stopped = Stopped::new(pid);
    let status = patiently(&["status", mnt, "--json"]);
    let facts = shown(&patiently(&["info", mnt, "--json"]), &why);
    let words = patiently(&["info", mnt]);
    let stats = shown(&patiently(&["stats", mnt, "--json"]), &why);
    let mut refusing = vec!["scrub", "quota"];
    if info["ends_with_daemon"].is_null() {
        refusing.push("restart");
    }
    let refusals: Vec<Run> = (refusing.iter().map(|command| patiently(&[command, mnt]))).collect();
    let below = format!("{mnt}/below");
    let doctor = [mnt, &below].map(|path| patiently(&["doctor", path]));
    let top = on_a_terminal(mnt);
    drop(stopped);

    assert_eq!(status.code, 2, "{status:?}");
    let status: Value = serde_json::from_str(&status.out).unwrap();
    let status = &status["volumes"][0];
    assert_eq!(status["state"], "stopped");
    assert_eq!(status["uuid"], info["uuid"]);
    assert_eq!(status["daemon"]["pid"], pid);
    if info["ends_with_daemon"].is_null() {
        assert_eq!(
            status["daemon"]["version"], info["version"],
            "by its supervisor"
        );
        assert_eq!(status["daemon"]["restarts"], 0);
    }
    for run in doctor {
        assert!(run.out.contains("a volume is mounted on"), "{run:?}");
    }
    assert_eq!(facts["unserved"], "stopped");
    for known in [
        "uuid",
        "volume",
        "mountpoint",
        "pid",
        "pmem_bytes",
        "blocks",
        "slots",
        "inodes",
        "backend",
    ] {
        assert_eq!(facts[known], info[known], "{known}");
    }
    assert!(words.out.contains("unserved"), "{words:?}");
    let metrics = stats["metrics"].as_array().unwrap();
    let value = |name: &str| {
        let family = metrics.iter().find(|f| f["name"] == name)?;
        family["samples"]
            .get(0)
            .map(|sample| sample["value"].clone())
    };
    assert_eq!(value("quayfs_up"), Some(0.0.into()));
    assert!(value("quayfs_data_size_bytes").is_some() && value("quayfs_data_free_bytes").is_none());
    for refusal in refusals {
        refusal.fails(1, &why);
    }
    for said in [format!("process {pid}, up "), format!("kill -CONT {pid}")] {
        assert!(top.contains(&said), "{said}: {top}");
    }
    m.umount();
    m.fsck();
}

/// What `quayfs top` shows of a mount that has no numbers.
fn on_a_terminal(mnt: &str) -> String {
    let run = Command::new("timeout")
        .args(["-k", "5", "60", "python3", "-c", TOP, QUAYFS, mnt])
        .env("TERM", "xterm")
        .capture()
        .unwrap();
    let run = Run::from(run);
    assert_eq!(run.code, 0, "{run:?}");
    run.out
}

/// Ends it when it shows the last fact.
const TOP: &str = r#"
import fcntl, os, pty, re, struct, sys, termios
program, mnt = sys.argv[1:]
pid, tty = pty.fork()
if pid == 0:
    fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    os.execv(program, ["quayfs", "top", mnt])
seen = b""
while b"region" not in seen:
    seen += os.read(tty, 4096)
os.write(tty, b"q")
try:
    while part := os.read(tty, 4096):
        seen += part
except OSError:
    pass
_, status = os.waitpid(pid, 0)
assert os.waitstatus_to_exitcode(status) == 0, (status, seen)
# Blanks are not printed, but passed over.
print(re.sub(r"\x1b\[[0-9;]*H", " ", seen.decode()))
"#;

/// What `quayfs status` says of a volume, and its exit code.
#[track_caller]
fn status(vol: &Path) -> (i32, Value) {
    let run = quayfs(["status".as_ref(), vol.as_os_str(), "--json".as_ref()]);
    let all: Value = serde_json::from_str(&run.out).unwrap();
    (run.code, all["volumes"][0].clone())
}

/// What is in use of what there is.
fn full(volume: &Value) -> [&Value; 5] {
    let (data, inodes) = (&volume["data"], &volume["inodes"]);
    let region = &volume["region"];
    [
        &data["used_bytes"],
        &data["total_bytes"],
        &inodes["used"],
        &region["bytes"],
        &region["metadata_bytes"],
    ]
}

/// Unmounted as it should be, and after the death of the daemon.
#[test]
fn a_volume_that_is_not_mounted_says_how_full_it_is() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new("norestart");
    for n in 0..40 {
        fs::write(m.mnt().join(format!("file-{n}")), vec![7; 100_000]).unwrap();
    }
    fs::File::open(m.mnt()).unwrap().sync_all().unwrap();
    let (_, live) = status(&m.0.vol());
    assert!(live["data"]["used_bytes"].as_u64() >= Some(40 * 100_000));
    assert!(live["inodes"]["used"].as_u64() >= Some(40));
    m.umount();
    let (code, clean) = status(&m.0.vol());
    assert_eq!((code, full(&clean)), (0, full(&live)), "{clean}");
    assert!(clean["region"]["metadata_used_bytes"].as_u64() > Some(0));
    let text = quayfs(["status".as_ref(), m.0.vol().as_os_str()]).ok();
    assert!(
        text.contains("\n  data  ") && text.contains("\n  region  "),
        "{text}"
    );

    m.mount("norestart");
    fs::write(m.mnt().join("file-0"), b"").unwrap();
    fs::write(m.mnt().join("more"), vec![8; 100_000]).unwrap();
    fs::File::open(m.mnt()).unwrap().sync_all().unwrap();
    let (_, live) = status(&m.0.vol());
    let pid = live["daemon"]["pid"].as_u64().unwrap();
    signal(pid, "KILL");
    eventually("it is dead", || status(&m.mnt()).1["state"] == "dead");
    m.umount();
    let (code, left) = status(&m.0.vol());
    assert_eq!((code, &left["clean"]), (1, &false.into()), "{left}");
    assert_eq!(left["inodes"]["used"], live["inodes"]["used"]);
    // It was looked at, and nothing else.
    assert_eq!(status(&m.0.vol()), (1, left));
    m.mount("norestart");
    m.umount();
    m.fsck();
}

#[test]
fn errors_of_earlier_mounts_are_told() {
    let scene = Scene::new();
    let log = scene.vol().join("quayfs.log");
    fs::write(&log, "2026-01-02T03:04:05Z ERROR serving ended: bad\n").unwrap();
    let (_, volume) = status(&scene.vol());
    assert_eq!(volume["log"]["errors"], 1);
    assert_eq!(volume["log"]["last_error"]["what"], "serving ended: bad");
    let text = quayfs(["status".as_ref(), scene.vol().as_os_str()]).ok();
    assert!(
        text.contains("errors      1 in ") && text.contains("serving ended: bad"),
        "{text}"
    );
}

/// Where the page with the inode of the root directory lies in the region.
fn root_page(volume: &Path) -> u64 {
    inode_page(volume, 0)
}

/// The same of those pages that have inodes: the first one, or one behind it.
fn inode_page(volume: &Path, nth: u32) -> u64 {
    let config = config_of(volume).unwrap();
    let (geometry, id) = (config.geometry, config.geometry.inode_base as u32 + nth);
    let region = fs::File::open(volume.join("pmem")).unwrap();
    let mut word = [0; 8];
    region
        .read_exact_at(&mut word, geometry.nat_entry(id))
        .unwrap();
    let page = nat_decode(id, u64::from_le_bytes(word), config.salt()).flatten();
    geometry.node_page(page.unwrap())
}

/// A mount whose root directory is damaged answers nothing, and is in no good health for that.
#[test]
fn a_mount_without_a_root_is_told_and_repaired() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new("norestart");
    let (vol, mnt) = (m.0.vol(), m.mnt());
    m.umount();
    let region = fs::File::options().write(true).open(vol.join("pmem"));
    let at = root_page(&vol) + 200;
    region.unwrap().write_all_at(&[0xee; 12], at).unwrap();
    let target = mnt.to_str().unwrap();
    let refused = patiently(&["mount", vol.to_str().unwrap(), target]);
    refused.fails(32, "the root directory: node ");
    m.mount("norestart,ro");
    let told = patiently(&["status", target]);
    let says = |run: &Run, what: &str| run.out.contains(what) && run.out.contains("fsck --repair");
    assert!(
        told.code == 2 && says(&told, "root directory cannot be read"),
        "{told:?}"
    );
    let all = patiently(&["status"]);
    assert!(all.code == 2 && all.out.contains(target), "{all:?}");
    shown(&patiently(&["info", target, "--json"]), "cannot be read");
    patiently(&["umount", target]).ok();
    let left = patiently(&["status", vol.to_str().unwrap()]);
    assert!(left.code > 0, "{left:?}");
    let repaired = patiently(&["fsck", "--repair", vol.to_str().unwrap()]);
    // The names in the root are lost with it.
    assert_eq!(repaired.code, 4, "{repaired:?}");
    m.mount("norestart");
    // All is well with what is there. What is not there any more is told for a day.
    let told = patiently(&["status", target]);
    assert_eq!(told.code, 1, "{told:?}");
    let whys: Vec<_> = told.out.matches("because").collect();
    assert!(
        whys.len() == 1 && told.out.contains("the repair "),
        "{told:?}"
    );
    m.umount();
}

/// What cannot be read is no reason to leave its name out: a backup would take it for removed.
#[test]
fn a_file_whose_inode_is_damaged_is_listed() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new("norestart");
    let names: BTreeSet<String> = (0..60).map(|n| format!("file {n}")).collect();
    for name in &names {
        fs::write(m.mnt().join(name), name).unwrap();
    }
    m.umount();
    let region = fs::File::options().write(true).open(m.0.vol().join("pmem"));
    let at = inode_page(&m.0.vol(), 1) + 200;
    region.unwrap().write_all_at(&[0xee; 12], at).unwrap();
    m.mount("norestart,errors=continue");
    let listed = fs::read_dir(m.mnt()).unwrap();
    let listed: BTreeSet<_> = listed
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(listed, names);
    let found = names.iter().map(|name| fs::metadata(m.mnt().join(name)));
    let (found, failed): (Vec<_>, Vec<_>) = found.partition(Result::is_ok);
    assert!(!found.is_empty() && !failed.is_empty());
    for failed in failed {
        assert_eq!(failed.unwrap_err().raw_os_error(), Some(libc::EIO));
    }
    m.umount();
}

/// Of pages that only a look at the whole volume reads.
#[test]
fn status_at_rest_knows_of_damage_that_a_mount_would_meet() {
    let scene = Scene::new();
    let vol = scene.vol();
    let text = quayfs([
        "dump".as_ref(),
        vol.as_os_str(),
        "nodes".as_ref(),
        "--json".as_ref(),
    ])
    .ok();
    let nodes: Value = serde_json::from_str(&text).unwrap();
    let text = quayfs(["dump".as_ref(), vol.as_os_str(), "--json".as_ref()]).ok();
    let dump: Value = serde_json::from_str(&text).unwrap();
    let node_off = dump["geometry"]["node_off"].as_u64().unwrap();
    let region = fs::File::options()
        .read(true)
        .write(true)
        .open(vol.join("pmem"));
    let region = region.unwrap();
    let mut kinds = std::collections::BTreeSet::new();
    for node in nodes["nodes"].as_array().unwrap() {
        let at = node_off + node["page"].as_u64().unwrap() * 4096 + 2000;
        let mut bytes = [0; 64];
        region.read_exact_at(&mut bytes, at).unwrap();
        region.write_all_at(&bytes.map(|b| !b), at).unwrap();
        let (code, report) = status(&vol);
        assert!(code == 2 && report["data"].is_null(), "{node}: {report}");
        region.write_all_at(&bytes, at).unwrap();
        assert_eq!(status(&vol).0, 0, "{node}");
        kinds.insert(node["kind"].to_string());
    }
    assert!(kinds.len() > 1, "{kinds:?}");
}

#[test]
fn a_full_mount_whose_disk_does_not_answer_is_told_at_once() {
    if !can_mount() {
        return;
    }
    let below = Mounted::new("norestart");
    let (vol, mnt) = (below.0.dir().join("full"), below.0.dir().join("there"));
    let data = below.mnt().join("data");
    let [vol, mnt, data] = [&vol, &mnt, &data].map(|path| path.to_str().unwrap());
    fs::create_dir(mnt).unwrap();
    let sizes = [
        "--pmem-size",
        "32M",
        "--data-size",
        "32M",
        "--sparse",
        "--data",
    ];
    quayfs(["mkfs", "-q", vol].into_iter().chain(sizes).chain([data])).ok();
    quayfs(["mount", vol, mnt, "-o", "norestart"]).ok();
    let filler = fs::File::create(Path::new(mnt).join("filler")).unwrap();
    let free = rustix::fs::fstatvfs(&filler).unwrap();
    let most = free.f_bavail * free.f_frsize / 100 * 97;
    rustix::fs::fallocate(&filler, rustix::fs::FallocateFlags::empty(), 0, most).unwrap();
    drop(filler);
    // What the kernel has cached would be answered without the daemon below.
    let (link, uncached) = (Path::new(vol).join("data"), below.mnt().join("uncached"));
    fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink(&uncached, &link).unwrap();
    let uncached = uncached.to_str().unwrap();
    let told = {
        let _stopped = Stopped::new(below.info()["pid"].as_u64().unwrap());
        [&["status", mnt][..], &["info", mnt]].map(patiently)
    };
    assert!(
        told[0].code == 1 && told[0].out.contains("data: 9"),
        "{told:?}"
    );
    assert!(
        told[1].code == 0 && told[1].out.contains(uncached),
        "{told:?}"
    );
    quayfs(["umount", mnt]).ok();
    below.umount();
}
