//! The log of the daemon, and what happens to it: full disks, readers that went away or do not read, files that are
//! moved, removed, planted. None of it may happen to the file system.
//!
//! Needs `/dev/fuse`, some of it root; QUAYFS_SKIP_FUSE=1 and QUAYFS_SKIP_ROOT=1 do without.

use crate::processes::{daemon, runs};
use crate::program;

use program::{Mounted, QUAYFS, Scene, Start as _, can_be_root, can_mount, eventually, quayfs};
use rustix::fs::{Gid, Uid, chownat};
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

fn signal(pid: i32, name: &str) {
    let mut kill = Command::new("kill");
    let sent = kill.args(["-s", name, &pid.to_string()]).finish().unwrap();
    assert!(sent.success());
}

fn is_mounted(dir: &Path) -> bool {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    (table.lines()).any(|l| l.split(' ').nth(4).map(Path::new) == Some(dir))
}

#[track_caller]
fn assert_clean(vol: &Path) {
    let said = quayfs(["fsck".as_ref(), vol.as_os_str()]).ok();
    assert!(said.contains(": unmounted, nothing to recover"), "{said}");
}

/// Spoils every block of the data, but for the first few.
fn damage(data: &Path) {
    let file = File::options().write(true).open(data).unwrap();
    for block in 20..file.metadata().unwrap().len() / 4096 {
        file.write_all_at(b"spoilt", block * 4096 + 100).unwrap();
    }
}

/// A volume whose directory lies on a small disk of its own, and its media elsewhere.
struct Small {
    m: Mounted,
    disk: PathBuf,
}

impl Small {
    #[track_caller]
    fn new() -> Self {
        let m = Mounted(Scene::new());
        let disk = m.0.dir().join("disk");
        fs::create_dir(&disk).unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=64k", "none"]);
        assert!(mount.arg(&disk).finish().unwrap().success());
        let small = Self { m, disk };
        fs::create_dir(small.vol()).unwrap();
        for name in ["pmem", "data"] {
            symlink(small.m.0.vol().join(name), small.vol().join(name)).unwrap();
        }
        small
    }

    fn vol(&self) -> PathBuf {
        self.disk.join("vol")
    }

    /// Leaves no room for another line.
    fn fill(&self) {
        for name in ["hog", "vol/quayfs.log"] {
            let mut file = File::options();
            let file = file.append(true).create(true);
            let mut file = file.open(self.disk.join(name)).unwrap();
            while file.write_all(&[b'.'; 512]).is_ok() {}
            while file.write_all(b".").is_ok() {}
        }
    }

    /// Makes room again.
    fn clear(&self) {
        fs::remove_file(self.disk.join("hog")).unwrap();
        fs::remove_file(self.vol().join("quayfs.log")).unwrap();
    }

    #[track_caller]
    fn mount(&self, options: &str) {
        let (vol, mnt) = (self.vol(), self.m.mnt());
        let words = ["mount".as_ref(), vol.as_os_str(), mnt.as_os_str()];
        quayfs(words.into_iter().chain(["-o".as_ref(), options.as_ref()])).ok();
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        for dir in [self.m.mnt(), self.disk.clone()] {
            if is_mounted(&dir) {
                let _ = Command::new("umount").args(["-i", "-l"]).arg(dir).finish();
            }
        }
    }
}

#[test]
fn a_full_log_fails_no_mount_and_no_unmount() {
    if !can_be_root() {
        return;
    }
    let s = Small::new();
    let mnt = s.m.mnt();
    s.fill();
    for options in ["rw", "ro"] {
        s.mount(options);
        assert_eq!(mnt.join("dir").exists(), options == "ro");
        if options == "rw" {
            fs::create_dir(mnt.join("dir")).unwrap();
        }
        s.m.umount();
        assert_clean(&s.vol());
    }

    for end in ["umount", "TERM"] {
        s.clear();
        s.mount("rw");
        fs::create_dir(mnt.join(end)).unwrap();
        s.fill();
        let pid = daemon(&s.m);
        match end {
            "umount" => s.m.umount(),
            _ => signal(pid, end),
        }
        eventually("the daemon ends", || !runs(pid));
        assert!(!is_mounted(&mnt), "{end}");
        assert_clean(&s.vol());
    }
    s.clear();
    s.mount("ro");
    assert!(mnt.join("umount").exists() && mnt.join("TERM").exists());
    s.m.umount();
}

/// Complaints do not fit into the log. The caller that meets the trouble is answered, and so are others. With room
/// again the log says what is missing.
#[test]
fn a_full_log_fails_no_operation() {
    if !can_be_root() {
        return;
    }
    let s = Small::new();
    let mnt = s.m.mnt();
    s.mount("rw");
    fs::write(mnt.join("f"), vec![7; 1 << 20]).unwrap();
    s.m.umount();
    damage(&s.m.0.vol().join("data"));
    s.mount("rw");
    s.fill();
    assert_eq!(
        fs::read(mnt.join("f")).unwrap_err().raw_os_error(),
        Some(rustix::io::Errno::IO.raw_os_error())
    );
    let found = quayfs(["scrub".as_ref(), mnt.as_os_str()]);
    assert_eq!(found.code, 4, "{found:?}");
    fs::create_dir(mnt.join("afterwards")).unwrap();
    s.clear();
    signal(daemon(&s.m), "HUP");
    let log = || fs::read_to_string(s.vol().join("quayfs.log")).unwrap_or_default();
    eventually("the log says what is missing", || {
        log().contains("lines of the log are missing here: ")
    });
    s.m.umount();
    s.mount("rw");
    assert!(mnt.join("afterwards").exists());
    s.m.umount();
    assert_clean(&s.vol());
}

/// A daemon in the foreground with this standard error.
fn foreground(m: &Mounted, stderr: Stdio) -> Child {
    let (vol, mnt) = (m.0.vol(), m.mnt());
    let mut command = Command::new(QUAYFS);
    command.args(["mount".as_ref(), vol.as_os_str(), mnt.as_os_str()]);
    let child = command.arg("--foreground").stderr(stderr).start().unwrap();
    eventually("it is mounted", || {
        is_mounted(&mnt)
            && fs::metadata(mnt.join("nothing"))
                .is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound)
    });
    child
}

/// As with `| less`, before the end is reached and after it was left.
#[test]
fn readers_of_the_log_stop_nobody() {
    if !can_mount() {
        return;
    }
    let m = Mounted(Scene::new());
    for leaves in [false, true] {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let reader = File::from(reader);
        let size = rustix::pipe::fcntl_setpipe_size(&writer, 4096).unwrap();
        // Full to the last byte.
        File::from(writer.try_clone().unwrap())
            .write_all(&vec![b'.'; size])
            .unwrap();
        let reader = (!leaves).then_some(reader);
        let mut child = foreground(&m, writer.into());
        fs::create_dir(m.mnt().join(format!("{leaves}"))).unwrap();
        m.umount();
        assert_eq!(child.wait().unwrap().code(), Some(0));
        drop(reader);
        assert_clean(&m.0.vol());
    }
    m.mount("ro");
    assert!(m.mnt().join("true").exists() && m.mnt().join("false").exists());
    m.umount();
}

/// `quayfs status` reads what a daemon has logged, also one that a service manager has started.
#[test]
fn in_the_foreground_the_usual_log_is_written_too() {
    if !can_mount() {
        return;
    }
    let m = Mounted(Scene::new());
    let (mut reader, writer) = std::io::pipe().unwrap();
    let mut child = foreground(&m, writer.into());
    let log = m.info()["log"].as_str().map(PathBuf::from);
    assert_eq!(log, Some(m.0.vol().join("quayfs.log")));
    m.umount();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let mut said = String::new();
    reader.read_to_string(&mut said).unwrap();
    assert!(said.contains("the volume is clean"), "{said}");
    // But for the moments at which they were written.
    let words = |log: &str| {
        let lines = log
            .lines()
            .map(|line| line.split_once(' ').map(|(_, words)| words.to_string()));
        lines.collect::<Vec<_>>()
    };
    assert_eq!(words(&m.log()), words(&said));
}

/// Neither of the two misses what the other one cannot take.
#[test]
fn the_usual_log_is_whole_where_the_standard_error_takes_nothing() {
    if !can_mount() {
        return;
    }
    let m = Mounted(Scene::new());
    let full = File::options().write(true).open("/dev/full").unwrap();
    let mut child = foreground(&m, full.into());
    m.umount();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let log = m.log();
    assert!(
        log.contains("INFO mounted ") && log.contains("the volume is clean"),
        "{log}"
    );
    assert!(!log.contains("missing here"), "{log}");
}

/// logrotate moves the log and sends SIGHUP. The file system stays where it is.
#[test]
fn sighup_opens_the_log_anew() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new("rw");
    let (log, moved) = (m.0.vol().join("quayfs.log"), m.0.vol().join("moved"));
    let pid = daemon(&m);
    for _ in 0..3 {
        fs::rename(&log, &moved).unwrap();
        signal(pid, "HUP");
        eventually("there is a new log", || {
            fs::read_to_string(&log).is_ok_and(|l| l.contains("signal 1"))
        });
    }
    fs::write(m.mnt().join("f"), b"cargo").unwrap();
    m.umount();
    assert!(m.log().contains("the volume is clean"), "{}", m.log());
    assert!(!fs::read_to_string(moved).unwrap().contains("clean"));
}

/// Whatever is done to the file, the next line finds one.
#[test]
fn a_log_that_is_removed_comes_back() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new("rw");
    fs::remove_file(m.0.vol().join("quayfs.log")).unwrap();
    m.umount();
    assert!(m.log().contains("the volume is clean"), "{}", m.log());
}

/// A program that tries again for ever is told each time; the log is told now and then.
#[test]
fn the_same_complaint_is_counted() {
    if !can_mount() {
        return;
    }
    const TRIES: usize = 2000;
    let m = Mounted::new("rw");
    fs::write(m.mnt().join("f"), vec![7; 1 << 20]).unwrap();
    m.umount();
    damage(&m.0.vol().join("data"));
    m.mount("rw");
    let begun = Instant::now();
    let file = File::open(m.mnt().join("f")).unwrap();
    for _ in 0..TRIES {
        file.read_at(&mut [0; 4096], 0).unwrap_err();
    }
    drop(file);
    m.umount();
    let log = m.log();
    let about = |line: &&str| line.contains("fails its checksum");
    // In each time in which a complaint is not repeated so many different ones at most, and a count.
    let most = 21 * (begun.elapsed().as_secs() as usize / 10 + 2);
    let said = log.lines().filter(about).count();
    assert!((2..=most).contains(&said), "{said} of {most}: {log}");
    let left_out: usize = (log.lines().filter(about))
        .filter_map(|l| l.split(" more lines like this were left out").next())
        .filter_map(|l| l.rsplit(' ').next()?.parse::<usize>().ok())
        .sum();
    let told = log
        .lines()
        .filter(about)
        .filter(|l| !l.contains("left out"));
    assert!(left_out + told.count() >= TRIES, "{left_out}: {log}");
}

/// The directory of the volume belongs to a user, who has put something under the name of the log. Root mounts.
#[test]
fn root_writes_to_no_file_of_others() {
    if !can_be_root() {
        return;
    }
    type Plant = fn(&Path, &Path);
    let plants: [(&str, Plant); 4] = [
        ("symbolic link", |victim, log| symlink(victim, log).unwrap()),
        ("dangling link", |victim, log| {
            symlink(victim.with_file_name("new"), log).unwrap();
        }),
        ("hard link", |victim, log| {
            fs::hard_link(victim, log).unwrap()
        }),
        ("file", |_, log| fs::write(log, "theirs").unwrap()),
    ];
    for (what, plant) in plants {
        let m = Mounted(Scene::open_to_all());
        let (vol, victim) = (m.0.vol(), m.0.dir().join("victim"));
        let log = vol.join("quayfs.log");
        fs::write(&victim, "victim").unwrap();
        plant(&victim, &log);
        let nobody = (Some(Uid::from_raw(65534)), Some(Gid::from_raw(65534)));
        for path in [&vol, &log] {
            if what != "hard link" || path != &log {
                let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
                chownat(rustix::fs::CWD, path, nobody.0, nobody.1, flags).unwrap();
            }
        }
        m.mount("rw");
        m.umount();
        assert_eq!(fs::read_to_string(&victim).unwrap(), "victim", "{what}");
        assert!(!m.0.dir().join("new").exists(), "{what}");
        let stat = log.symlink_metadata().unwrap();
        let is = (stat.uid(), stat.mode(), stat.nlink());
        assert_eq!(is, (0, 0o100_600, 1), "{what}");
        assert!(m.log().contains("the volume is clean"), "{what}");
        if what == "file" {
            let old = fs::read_to_string(vol.join("quayfs.log.old")).unwrap();
            assert_eq!(old, "theirs");
        }
    }
}

/// A log file that the user has asked for is not put aside. To ask for one that is not ours is a mistake that can be
/// put right.
#[test]
fn a_log_that_was_asked_for_is_ours_or_refused() {
    if !can_mount() {
        return;
    }
    let m = Mounted(Scene::new());
    let (vol, mnt) = (m.0.vol(), m.mnt());
    let (log, victim) = (m.0.dir().join("log"), m.0.dir().join("victim"));
    fs::write(&victim, "victim").unwrap();
    symlink(&victim, &log).unwrap();
    let mount = |more: &[&str]| {
        let words = ["mount".as_ref(), vol.as_os_str(), mnt.as_os_str()];
        let asked = ["--log-file".as_ref(), log.as_os_str()];
        let more = more.iter().map(std::ffi::OsStr::new);
        quayfs(words.into_iter().chain(asked).chain(more))
    };
    mount(&[]).fails(32, "symbolic link; choose another --log-file");
    mount(&["--foreground"]).fails(32, "symbolic link; choose another --log-file");
    assert!(!is_mounted(&mnt));
    fs::remove_file(&log).unwrap();
    mount(&[]).ok();
    m.umount();
    assert_eq!(log.metadata().unwrap().mode() & 0o7777, 0o600);
    assert_eq!(fs::read_to_string(&victim).unwrap(), "victim");
    let mut text = String::new();
    File::open(&log).unwrap().read_to_string(&mut text).unwrap();
    assert!(text.contains("the volume is clean"), "{text}");
}
