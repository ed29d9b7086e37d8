//! The region or the data of a volume go to another place while programs work on its mount. Needs `/dev/fuse`.
//!
//! What a crash of the machine leaves is in `tests/library/migrate.rs`.

use crate::load::beside;
use crate::processes::{children, daemon, parent};
use crate::program;

use program::{
    Mounted, QUAYFS, Run, Scene, Start as _, as_nobody, can_be_root, can_mount, copy_program,
    eventually, named, quayfs,
};
use quayfs_oracle::rng::{Rng, bytes};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

/// Volumes with a region in memory, and on a disk.
fn scenes() -> [Scene; 2] {
    [Scene::in_memory(), Scene::new()]
}

fn words<'a>(m: &'a Path, part: &'a str, new: &'a Path) -> [&'a OsStr; 4] {
    let (part, new) = (OsStr::new(part), new.as_os_str());
    ["migrate".as_ref(), m.as_os_str(), part, new]
}

fn migrate(m: &Path, part: &str, new: &Path) -> Run {
    quayfs(words(m, part, new))
}

/// The same, in the background.
fn begin(m: &Path, part: &str, new: &Path) -> Child {
    Command::new(QUAYFS)
        .args(words(m, part, new))
        .arg("--force")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .start()
        .unwrap()
}

fn kill(pid: i32) {
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    // It may have ended by itself.
    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
}

fn supervisor(m: &Mounted) -> i32 {
    parent(daemon(m))
}

/// Writes to a file until it is told to stop, and finds there what it has written, or panics.
fn work(path: &Path, seed: u64, stop: &AtomicBool) {
    const LEN: usize = 4 << 20;
    let file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(path)
        .unwrap();
    let (mut rng, mut content) = (Rng::new(seed), vec![0; LEN]);
    file.write_all_at(&content, 0).unwrap();
    let mut n = 0;
    while !stop.load(Ordering::Relaxed) {
        let len = [100, 4096, 150_000][rng.below(3) as usize];
        let at = rng.below((LEN - len) as u64) as usize;
        let piece = bytes(seed + n, len);
        file.write_all_at(&piece, at as u64).unwrap();
        content[at..at + len].copy_from_slice(&piece);
        if n % 16 == 0 {
            file.sync_all().unwrap();
        }
        n += 1;
    }
    file.sync_all().unwrap();
    drop(file);
    assert!(fs::read(path).unwrap() == content, "{}", path.display());
}

/// Does something while programs write to the mount.
fn under_load<T>(m: &Mounted, name: &str, what: impl FnOnce() -> T) -> T {
    let write = |n: usize, stop: &AtomicBool| {
        let seed = [1000, 2_000_000][n];
        work(&m.mnt().join(format!("{name}{seed}")), seed, stop);
    };
    beside(write, what)
}

fn fill(m: &Mounted) {
    for n in 0..20 {
        fs::write(m.mnt().join(format!("old{n}")), bytes(n, 1 << 20)).unwrap();
    }
}

fn check(m: &Mounted) {
    for n in 0..20 {
        let content = fs::read(m.mnt().join(format!("old{n}"))).unwrap();
        assert!(content == bytes(n, 1 << 20), "{n}");
    }
}

/// Where a part is.
fn place(m: &Mounted, part: &str) -> PathBuf {
    m.0.vol().join(part).canonicalize().unwrap()
}

/// All is there, also for the next mount.
fn sound(m: &Mounted) {
    check(m);
    m.umount();
    m.fsck();
    m.mount("restart");
    check(m);
    m.umount();
    m.fsck();
}

#[test]
fn both_parts_move_while_programs_write() {
    if !can_mount() {
        return;
    }
    for scene in scenes() {
        let m = Mounted::on(scene, "restart");
        fill(&m);
        // A file in the volume's directory that is gone, and then one elsewhere that stays.
        let (one, two) = (m.0.dir().join("one"), m.0.dir().join("two"));
        under_load(&m, "data", || {
            let said = migrate(&m.mnt(), "--data", &one).ok();
            assert!(said.contains("is gone") && said.contains("ms"), "{said}");
            let said = migrate(&m.0.vol(), "--data", &two).ok();
            assert!(said.contains("part of no volume any more"), "{said}");
        });
        assert_eq!(place(&m, "data"), two.canonicalize().unwrap());
        check(&m);
        let (three, four) = (m.0.vol().join("three"), m.0.dir().join("four"));
        under_load(&m, "pmem", || {
            migrate(&m.mnt(), "--pmem", &three).ok();
            // Of another length.
            File::create(&four).unwrap().set_len(50 << 20).unwrap();
            fs::set_permissions(&four, fs::Permissions::from_mode(0o600)).unwrap();
            quayfs(
                words(&m.mnt(), "--pmem", &four)
                    .into_iter()
                    .chain(["--force".as_ref()]),
            )
            .ok();
            migrate(&m.mnt(), "--pmem", &m.0.dir().join("five")).ok();
        });
        assert_eq!(m.info()["replaced"], 7);
        check(&m);
        under_load(&m, "after", || {
            kill(m.info()["pid"].as_i64().unwrap() as i32)
        });
        sound(&m);
        // What was left is part of no volume, with either of the others.
        for (pmem, data) in [("four", "two"), ("five", "one")] {
            let vol = m.0.dir().join(format!("{pmem} {data}"));
            fs::create_dir(&vol).unwrap();
            for (name, what) in [("pmem", pmem), ("data", data)] {
                std::os::unix::fs::symlink(m.0.dir().join(what), vol.join(name)).unwrap();
            }
            let fsck = quayfs(["fsck".as_ref(), vol.as_os_str()]);
            fsck.fails(8, "belongs to another QuayFS volume");
        }
    }
}

/// Kills what `victim` finds when `turns` other daemons have come, if the command runs that long. Whatever that was, the
/// mount goes on with all files, and in one of the two places.
fn killed(m: &Mounted, part: &str, turns: u32, victim: impl Fn(&Child, i32) -> i32) {
    let supervisor = supervisor(m);
    let old = place(m, part);
    let new = m.0.dir().join(format!(
        "{part} {turns} {}",
        old.display().to_string().len()
    ));
    let name = format!("{part} {turns} ");
    let mut command = under_load(m, &name, || {
        let mut command = begin(&m.mnt(), &format!("--{part}"), &new);
        let mut last = children(supervisor).first().copied();
        for _ in 0..turns {
            eventually("another daemon comes", || {
                let now = children(supervisor).first().copied();
                let other = now.is_some() && now != last || command.try_wait().unwrap().is_some();
                last = now.or(last);
                other
            });
        }
        if let Some(daemon) = children(supervisor).first().copied() {
            kill(victim(&command, daemon));
        }
        command.wait().unwrap();
        command
    });
    let moved = command.wait().unwrap().success();
    check(m);
    let is = place(m, part);
    assert!(is == new || is == old && !moved, "{}", is.display());
    // What has become of the copy is no part of a volume, whole or not.
    if !moved && is == old && new.exists() {
        let mut start = [1; 8];
        File::open(&new)
            .unwrap()
            .read_exact_at(&mut start, 0)
            .unwrap();
        assert_eq!(start, [0; 8]);
    }
    // It can be done, from there.
    let next = m.0.dir().join(format!("{part} {turns} next"));
    migrate(&m.mnt(), &format!("--{part}"), &next).ok();
    check(m);
    assert_eq!(place(m, part), next);
    for left in [old, new] {
        // The volume's own file is gone, and a link has its name.
        if !left.starts_with(m.0.vol()) {
            let _ = fs::remove_file(left);
        }
    }
}

#[test]
fn a_daemon_dies_meanwhile() {
    if !can_mount() {
        return;
    }
    for scene in scenes() {
        let m = Mounted::on(scene, "restart");
        fill(&m);
        for turns in 0..=3 {
            killed(&m, "data", turns, |_, daemon| daemon);
            for n in [1000, 2_000_000] {
                fs::remove_file(m.mnt().join(format!("data {turns} {n}"))).unwrap();
            }
        }
        for turns in 0..=2 {
            killed(&m, "pmem", turns, |_, daemon| daemon);
        }
        sound(&m);
    }
}

#[test]
fn the_command_dies_meanwhile() {
    if !can_mount() {
        return;
    }
    for scene in scenes() {
        let m = Mounted::on(scene, "restart");
        fill(&m);
        for turns in 0..=2 {
            killed(&m, "data", turns, |command, _| command.id() as i32);
        }
        killed(&m, "pmem", 1, |command, _| command.id() as i32);
        sound(&m);
    }
}

#[test]
fn what_cannot_be_moved_stays_and_the_mount_goes_on() {
    if !can_mount() {
        return;
    }
    let m = Mounted::on(Scene::new(), "restart");
    fill(&m);
    let daemon = m.info()["pid"].clone();
    let new = m.0.dir().join("new");
    let small = m.0.dir().join("small");
    File::create(&small).unwrap();
    fs::set_permissions(&small, fs::Permissions::from_mode(0o600)).unwrap();
    migrate(&m.mnt(), "--data", &small).fails(1, "not one block");
    File::options()
        .write(true)
        .open(&small)
        .unwrap()
        .set_len(1 << 20)
        .unwrap();
    let forced = |part, new: &Path| {
        quayfs(
            words(&m.mnt(), part, new)
                .into_iter()
                .chain(["--force".as_ref()]),
        )
    };
    forced("--data", &small).fails(1, "too small");
    migrate(&m.mnt(), "--data", &small).fails(1, "--force");
    migrate(&m.mnt(), "--data", &m.0.vol().join("data")).fails(1, "already");
    migrate(&m.mnt(), "--pmem", &m.0.vol().join("data")).fails(1, "already");
    migrate(&m.mnt(), "--data", &m.mnt().join("file")).fails(1, "in the volume itself");
    // Another volume's, which is mounted.
    let other = Mounted::on(Scene::new(), "restart");
    forced("--data", &other.0.vol().join("data")).fails(1, "in use");
    forced("--pmem", &other.0.vol().join("pmem")).fails(1, "in use");
    other.umount();
    other.fsck();
    // Programs know by now when their calls are durable.
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let elsewhere = memory.path().join("region");
    migrate(&m.mnt(), "--pmem", &elsewhere).fails(1, "another kind of medium");
    assert!(!elsewhere.exists() && !new.exists());
    assert_eq!(m.info()["pid"], daemon);
    sound(&m);
    for options in ["norestart", "restart,ro"] {
        m.mount(options);
        let about = if options == "norestart" {
            "norestart"
        } else {
            "read-only"
        };
        migrate(&m.mnt(), "--data", &new).fails(1, about);
        check(&m);
        m.umount();
    }
    assert!(!new.exists());
    // Without the mount it can be done.
    migrate(&m.0.vol(), "--pmem", &elsewhere).ok();
    m.fsck();
    m.mount("restart");
    assert_eq!(m.info()["backend"], "volatile");
    migrate(&m.mnt(), "--pmem", &new).fails(1, "another kind of medium");
    sound(&m);
    migrate(&m.0.vol(), "--pmem", &new).ok();
    m.fsck();
}

/// A file system that fills up while it takes the copy.
#[test]
fn a_new_place_that_cannot_be_written_is_given_up() {
    if !can_be_root() {
        return;
    }
    let m = Mounted::on(Scene::new(), "restart");
    fill(&m);
    let full = m.0.dir().join("full");
    fs::create_dir(&full).unwrap();
    let mount = ["-t", "tmpfs", "-o", "size=8M", "none"];
    let mounted = Command::new("mount").args(mount).arg(&full).finish();
    assert!(mounted.unwrap().success());
    let new = full.join("new");
    let (old, before) = (place(&m, "data"), m.info()["restarts"].as_u64().unwrap());
    // Sparse, as the old file.
    let run = under_load(&m, "load", || migrate(&m.mnt(), "--data", &new));
    run.fails(1, "the new place fails: No space left on device");
    assert_eq!((place(&m, "data"), new.exists()), (old, false));
    // By a daemon that had something to note.
    assert_eq!(m.info()["restarts"], before + 1);
    assert!(
        Command::new("umount")
            .arg(&full)
            .finish()
            .unwrap()
            .success()
    );
    sound(&m);
}

/// A file that root makes for the volume of a user is of use to that user.
#[test]
fn what_root_moves_stays_with_its_owner() {
    if !can_be_root() {
        return;
    }
    let scene = Scene::open_to_all();
    let vol = scene.vol();
    for path in [vol.clone(), vol.join("pmem"), vol.join("data")] {
        std::os::unix::fs::chown(path, Some(65534), Some(65534)).unwrap();
    }
    let program = scene.dir().join("program");
    copy_program(&program);
    for (part, new) in [("--data", "data"), ("--pmem", "region")] {
        let new = scene.dir().join(new);
        migrate(&vol, part, &new).ok();
        assert_eq!(fs::metadata(&new).unwrap().uid(), 65534);
    }
    as_nobody(|| named(&program, ["fsck".as_ref(), vol.as_os_str()])).ok();
}

/// Another program need not know that it has something to note; so nothing is taken for copied.
#[test]
fn a_restart_by_hand_ends_a_move() {
    if !can_mount() {
        return;
    }
    let m = Mounted::on(Scene::in_memory(), "restart");
    fill(&m);
    let (new, old) = (m.0.dir().join("new"), place(&m, "data"));
    let supervisor = supervisor(&m);
    let first = children(supervisor).first().copied();
    let mut command = begin(&m.mnt(), "--data", &new);
    eventually("it is being copied", || {
        children(supervisor)
            .first()
            .copied()
            .is_some_and(|now| Some(now) != first)
    });
    // Stopped, it cannot come to its end before.
    let stopped = Command::new("kill")
        .args(["-s", "STOP", &command.id().to_string()])
        .finish();
    assert!(stopped.unwrap().success());
    // The daemon that begins the move may not have answered yet, and is replaced only then.
    eventually("it is replaced by hand", || {
        let run = quayfs(["restart".as_ref(), m.mnt().as_os_str()]);
        assert!(run.code == 0 || run.err.contains("under way"), "{run:?}");
        run.code == 0
    });
    let going_on = Command::new("kill")
        .args(["-s", "CONT", &command.id().to_string()])
        .finish();
    assert!(going_on.unwrap().success());
    let moved = command.wait().unwrap().success();
    check(&m);
    let is = place(&m, "data");
    assert!(
        moved && is == new || !moved && is == old,
        "{}",
        is.display()
    );
    sound(&m);
}

/// What a resize writes to the data device would be missing from the copy, since nothing notes it.
#[test]
fn what_is_being_moved_is_not_resized() {
    if !can_mount() {
        return;
    }
    // Long enough that it is not copied in the time of a look at the mount.
    let m = Mounted::on(Scene::with_data("4G"), "restart");
    fill(&m);
    let (old, new) = (place(&m, "data"), m.0.dir().join("new"));
    let mut command = begin(&m.mnt(), "--data", &new);
    eventually("what is written is noted", || m.info()["replaced"] == 1);
    let pid = rustix::process::Pid::from_child(&command);
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    let resize = |medium, size| quayfs([OsStr::new("resize"), m.mnt().as_os_str(), medium, size]);
    let [data, pmem] = ["--data", "--pmem"].map(OsStr::new);
    let size = OsStr::new("3G");
    resize(data, size).fails(1, "is being moved");
    let other = m.0.dir().join("other");
    migrate(&m.mnt(), "--pmem", &other).fails(1, "is being moved already");
    assert!(!other.exists());
    check(&m);
    // It might go on.
    kill(pid.as_raw_nonzero().get());
    assert!(!command.wait().unwrap().success());
    assert_eq!(place(&m, "data"), old);
    resize(pmem, OsStr::new("128M")).fails(1, "is being moved");
    quayfs(["restart".as_ref(), m.mnt().as_os_str()]).ok();
    resize(data, size).ok();
    sound(&m);
}

/// A region may go to another kind of medium, and what is staged counts differently there.
#[test]
fn what_stayed_staged_is_drained_before_a_region_is_moved() {
    if !can_mount() {
        return;
    }
    let m = Mounted::on(Scene::new(), "restart,checkpoint=adaptive");
    let staged = || {
        let told = quayfs(["status".as_ref(), "--json".as_ref(), m.0.vol().as_os_str()]).ok();
        let told: serde_json::Value = serde_json::from_str(&told).unwrap();
        told["volumes"][0]["staged"]["bytes"].as_u64().unwrap()
    };
    // Blocks of a file are staged one by one; a round may drain some of them before the end.
    for turn in 0.. {
        fill(&m);
        quayfs([
            "umount".as_ref(),
            "--no-drain".as_ref(),
            m.mnt().as_os_str(),
        ])
        .ok();
        if staged() > 0 {
            break;
        }
        assert!(turn < 100, "nothing is ever staged");
        m.mount("restart");
    }
    migrate(&m.0.vol(), "--pmem", &m.0.dir().join("new")).ok();
    assert_eq!(staged(), 0);
    m.mount("restart");
    sound(&m);
}
