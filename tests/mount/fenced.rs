//! What is left of a mount that was taken away while its daemon was dead changes nothing of a volume that has been used since.
//!
//! Needs `/dev/fuse` and root.

use crate::program;

use program::{Mounted, QUAYFS, Start as _, can_be_root, eventually, quayfs};
use quayfs_fs::volume::config_of;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::ffi::CString;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

fn signal(pid: i64, name: &str) {
    let mut kill = Command::new("kill");
    let sent = kill.args(["-s", name, &pid.to_string()]).finish();
    assert!(sent.unwrap().success());
}

fn is_alive(pid: i64) -> bool {
    // A zombie waits for its parent.
    fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit(") ").next().unwrap().starts_with('Z'))
}

fn parent(pid: i64) -> i64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let mut words = stat.rsplit(") ").next().unwrap().split(' ');
    words.nth(1).unwrap().parse().unwrap()
}

/// A supervisor that starts no daemon meanwhile. It goes on when the test ends, in whatever way.
struct Held(i64);

impl Held {
    fn new(pid: i64) -> Self {
        signal(pid, "STOP");
        Self(pid)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        signal(self.0, "CONT");
    }
}

fn fill(dir: &Path, name: &str) {
    for n in 0..200 {
        fs::write(dir.join(format!("{name}{n}")), name.repeat(n)).unwrap();
    }
    fs::File::open(dir).unwrap().sync_all().unwrap();
}

fn is_filled(dir: &Path, name: &str) -> bool {
    (0..200).all(|n| {
        fs::read_to_string(dir.join(format!("{name}{n}"))).is_ok_and(|text| text == name.repeat(n))
    })
}

/// Has a daemon die with stores of its own that are on no disk yet, takes its mount away as `how` says, has `use_it` use the
/// volume, and lets the supervisor go on.
fn outlived(how: &str, use_it: impl FnOnce(&Path, &Path)) -> (Mounted, PathBuf) {
    let m = Mounted::new("restart,commit=300");
    fill(&m.mnt(), "before");
    fs::write(m.mnt().join("stored"), "by nothing but the daemon").unwrap();
    let other = m.0.dir().join("other");
    fs::create_dir(&other).unwrap();
    let daemon = m.info()["pid"].as_i64().unwrap();
    let supervisor = parent(daemon);
    let held = Held::new(supervisor);
    signal(daemon, "KILL");
    eventually("the daemon ends", || !is_alive(daemon));
    let mnt = m.mnt();
    let unmounted = quayfs(["umount", how, mnt.to_str().unwrap()]);
    // That its daemon did not end as it should is said, where that is waited for.
    assert!([0, 32].contains(&unmounted.code), "{unmounted:?}");
    // On another host it would not be reserved for the mount. Here another file is not.
    let (region, copy) = (m.0.vol().join("pmem"), m.0.vol().join("copy"));
    fs::copy(&region, &copy).unwrap();
    fs::rename(&copy, &region).unwrap();
    use_it(&m.0.vol(), &other);
    drop(held);
    eventually("nothing is left of the mount", || !is_alive(supervisor));
    (m, other)
}

#[test]
fn a_volume_that_has_been_used_since_is_left_alone() {
    if !can_be_root() {
        return;
    }
    for how in ["--lazy", "--force"] {
        let (m, other) = outlived(how, |vol, other| {
            let (vol, other) = (vol.to_str().unwrap(), other.to_str().unwrap());
            quayfs(["mount", vol, other]).ok();
            assert!(is_filled(Path::new(other), "before"));
            fill(Path::new(other), "since");
            quayfs(["umount", other]).ok();
        });
        let vol = m.0.vol();
        quayfs(["fsck".as_ref(), "--data".as_ref(), vol.as_os_str()]).ok();
        quayfs([Path::new("mount"), &vol, &other]).ok();
        assert!(
            is_filled(&other, "before") && is_filled(&other, "since"),
            "{how}"
        );
        quayfs([Path::new("umount"), &other]).ok();
    }
}

#[test]
fn a_volume_that_was_made_since_is_left_alone() {
    if !can_be_root() {
        return;
    }
    let (m, other) = outlived("--lazy", |vol, other| {
        let sizes = ["--pmem-size", "32M", "--data-size", "128M", "--sparse"];
        let mut mkfs = Command::new(QUAYFS);
        let made = mkfs.args(["mkfs", "-q", "--force"]).arg(vol).args(sizes);
        assert!(made.finish().unwrap().success());
        quayfs([Path::new("mount"), vol, other]).ok();
        fill(other, "since");
        quayfs([Path::new("umount"), other]).ok();
    });
    quayfs(["fsck".as_ref(), "--data".as_ref(), m.0.vol().as_os_str()]).ok();
    quayfs([Path::new("mount"), &m.0.vol(), &other]).ok();
    assert!(is_filled(&other, "since"));
    quayfs([Path::new("umount"), &other]).ok();
}

/// Not even a mount has been there since; and a build that knows no tokens may have made it.
#[test]
fn a_new_volume_is_left_alone() {
    if !can_be_root() {
        return;
    }
    for with_token in [true, false] {
        let mut made = (Vec::new(), Vec::new());
        let (m, _) = outlived("--lazy", |vol, _| {
            let sizes = ["--pmem-size", "32M", "--data-size", "128M", "--sparse"];
            let mut mkfs = Command::new(QUAYFS);
            let run = mkfs.args(["mkfs", "-q", "--force"]).arg(vol).args(sizes);
            assert!(run.finish().unwrap().success());
            if !with_token {
                let mut table = config_of(vol).unwrap();
                table.fencing_token = 0;
                let region = fs::OpenOptions::new().write(true).open(vol.join("pmem"));
                let region = region.unwrap();
                for off in [0, 4096] {
                    region.write_all_at(&table.encode(), off).unwrap();
                }
                // And the copy.
                let data = fs::OpenOptions::new().write(true).open(vol.join("data"));
                let copied = data.unwrap().write_all_at(&table.encode(), 128 * 4096);
                copied.unwrap();
            }
            made = (
                fs::read(vol.join("pmem")).unwrap(),
                fs::read(vol.join("data")).unwrap(),
            );
        });
        let log = m.log();
        assert!(
            log.contains("it has been used, or made anew, since"),
            "{log}"
        );
        let now = |part: &str| fs::read(m.0.vol().join(part)).unwrap();
        for (part, made) in [("pmem", &made.0), ("data", &made.1)] {
            let now = now(part);
            let differs = now.iter().zip(made).position(|(a, b)| a != b);
            assert_eq!((now.len(), differs), (made.len(), None), "{part}");
        }
    }
}

#[test]
fn a_volume_that_was_repaired_since_is_left_alone() {
    if !can_be_root() {
        return;
    }
    let (m, _) = outlived("--lazy", |vol, _| {
        // Something that a repair mends.
        let region = fs::OpenOptions::new().write(true).open(vol.join("pmem"));
        region.unwrap().write_all_at(&[0; 8], 4096).unwrap();
        let repaired = quayfs(["fsck".as_ref(), "--repair".as_ref(), vol.as_os_str()]);
        assert_eq!(repaired.code, 1, "{repaired:?}");
        let whole = quayfs(["fsck".as_ref(), vol.as_os_str()]);
        assert_eq!(whole.code, 0, "{whole:?}");
    });
    quayfs(["fsck".as_ref(), "--data".as_ref(), m.0.vol().as_os_str()]).ok();
    let log = m.log();
    assert!(
        log.contains("it has been used, or made anew, since"),
        "{log}"
    );
}

/// Where nothing has used it, what the daemon had stored is not lost.
#[test]
fn a_volume_that_has_not_been_used_has_all_that_was_stored() {
    if !can_be_root() {
        return;
    }
    let (m, other) = outlived("--lazy", |_, _| ());
    quayfs([Path::new("mount"), &m.0.vol(), &other]).ok();
    assert!(is_filled(&other, "before"));
    let stored = fs::read_to_string(other.join("stored")).unwrap();
    assert_eq!(stored, "by nothing but the daemon");
    quayfs([Path::new("umount"), &other]).ok();
}

/// A small file system in memory, until it is dropped.
struct Small(PathBuf);

impl Small {
    fn on(dir: PathBuf) -> Self {
        fs::create_dir(&dir).unwrap();
        let size = CString::new("size=80M").unwrap();
        mount("small", &dir, "tmpfs", MountFlags::empty(), size.as_c_str()).unwrap();
        Self(dir)
    }

    fn fill(&self) {
        let mut filler = fs::File::create(self.0.join("filler")).unwrap();
        while filler.write_all(&[1; 4096]).is_ok() {}
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}

/// The copy of the table on the data device is a help, and nothing that a mount or a repair needs.
#[test]
fn a_copy_of_the_table_that_cannot_be_written_stops_nothing() {
    if !can_be_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let small = Small::on(dir.path().join("small"));
    let (vol, mnt) = (dir.path().join("vol"), dir.path().join("mnt"));
    fs::create_dir(&mnt).unwrap();
    let sizes = ["--pmem-size", "32M", "--data-size", "64M", "--sparse"];
    let mut mkfs = Command::new(QUAYFS);
    let data = small.0.join("data");
    mkfs.args(["mkfs", "-q"])
        .args(sizes)
        .arg("--data")
        .args([&data, &vol]);
    assert!(mkfs.finish().unwrap().success());
    quayfs([Path::new("mount"), &vol, &mnt]).ok();
    fill(&mnt, "before");
    quayfs([Path::new("umount"), &mnt]).ok();
    small.fill();
    // The block that has it, which cannot come back.
    let file = fs::OpenOptions::new().write(true).open(&data).unwrap();
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&file, flags, 128 * 4096, 4096).unwrap();
    drop(file);
    small.fill();
    let region = fs::OpenOptions::new().write(true).open(vol.join("pmem"));
    region.unwrap().write_all_at(&[0; 8], 4096).unwrap();
    let repaired = quayfs(["fsck".as_ref(), "--repair".as_ref(), vol.as_os_str()]);
    assert_eq!(repaired.code, 1, "{repaired:?}");
    quayfs([Path::new("mount"), &vol, &mnt]).ok();
    assert!(is_filled(&mnt, "before"));
    fs::remove_file(small.0.join("filler")).unwrap();
    quayfs([Path::new("umount"), &mnt]).ok();
    quayfs(["fsck".as_ref(), vol.as_os_str()]).ok();
}

/// Between two daemons of a mount nothing else gets the volume, by whatever name.
#[test]
fn a_volume_is_reserved_for_its_mount() {
    if !can_be_root() {
        return;
    }
    let m = Mounted::new("restart,commit=300,fsname=other");
    fill(&m.mnt(), "before");
    fs::write(m.mnt().join("stored"), "by nothing but the daemon").unwrap();
    let (vol, name, other) = (m.0.vol(), m.0.dir().join("name"), m.0.dir().join("other"));
    fs::create_dir(&name).unwrap();
    fs::create_dir(&other).unwrap();
    for part in ["pmem", "data"] {
        std::os::unix::fs::symlink(vol.join(part), name.join(part)).unwrap();
    }
    let daemon = m.info()["pid"].as_i64().unwrap();
    let held = Held::new(parent(daemon));
    signal(daemon, "KILL");
    eventually("the daemon ends", || !is_alive(daemon));
    let [shown, name] = [&vol, &name].map(|path| path.to_str().unwrap());
    for (args, code) in [
        (&["fsck", shown][..], 8),
        (&["fsck", "--repair", name], 8),
        (&["tune", name, "--label", "other"], 1),
        (&["mkfs", "--force", shown], 1),
        (&["resize", name, "--data", "160M"], 1),
        (&["mount", name, other.to_str().unwrap()], 32),
    ] {
        let run = quayfs(args.iter().copied());
        assert!(run.code == code && run.err.contains("in use"), "{run:?}");
    }
    let status = quayfs(["status", "--json", name]);
    assert!(status.out.contains("\"in-use\""), "{status:?}");
    drop(held);
    let stored = fs::read_to_string(m.mnt().join("stored")).unwrap();
    assert_eq!(stored, "by nothing but the daemon");
    assert!(is_filled(&m.mnt(), "before"));
    m.umount();
    quayfs(["fsck", "--data", name]).ok();
}

/// A daemon of a build without tokens has left none. The next one goes on, and fences off what is left of others.
#[test]
fn a_mount_without_a_token_gets_one() {
    if !can_be_root() {
        return;
    }
    let m = Mounted::new("restart");
    let token = || config_of(&m.0.vol()).unwrap().fencing_token;
    let first = token();
    fill(&m.mnt(), "before");
    let daemon = m.info()["pid"].as_i64().unwrap();
    let supervisor = parent(daemon);
    let held = Held::new(supervisor);
    signal(daemon, "KILL");
    eventually("the daemon ends", || !is_alive(daemon));
    forget_token(supervisor);
    drop(held);
    assert!(is_filled(&m.mnt(), "before"));
    let second = token();
    assert_ne!(first, second);
    // From then on it is compared.
    signal(m.info()["pid"].as_i64().unwrap(), "KILL");
    assert!(is_filled(&m.mnt(), "before"));
    assert_eq!(second, token());
    m.umount();
}

/// Makes the memory that outlives the daemon that of a build that knows no token.
fn forget_token(supervisor: i64) {
    const TOKEN: u64 = 6 * 8;
    let kept = fs::read_dir(format!("/proc/{supervisor}/fd")).unwrap();
    let is_it = |path: &PathBuf| {
        let target = fs::read_link(path).unwrap_or_default();
        target.to_string_lossy().contains("quayfs-requests")
    };
    let paths = kept.map(|entry| entry.unwrap().path());
    let path = paths.into_iter().find(is_it).expect("it is kept");
    let file = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .unwrap();
    let mut before = [0; 8];
    file.read_exact_at(&mut before, TOKEN).unwrap();
    assert_ne!(before, [0; 8]);
    file.write_all_at(&[0; 8], TOKEN).unwrap();
}
