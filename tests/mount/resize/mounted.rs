//! Of a volume that is mounted, while programs use it.

use super::*;
use crate::load::under_load;
use crate::processes::{children, daemon, parent};
use crate::program::{QUAYFS, Start as _, eventually};
use serde_json::Value;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};
use std::thread;

/// Volumes with a region in memory, and on a disk.
fn scenes() -> [Scene; 2] {
    [Scene::in_memory(), Scene::new()]
}

fn data_blocks(scene: &Scene) -> Value {
    let vol = scene.vol();
    let text = quayfs(["dump".as_ref(), vol.as_os_str(), "--json".as_ref()]).ok();
    let dump: Value = serde_json::from_str(&text).unwrap();
    dump["geometry"]["data_blocks"].as_u64().unwrap().into()
}

/// A file that is open and has no name any more.
struct Nameless(File);

impl Nameless {
    fn new(m: &Mounted) -> Self {
        let path = m.mnt().join("gone");
        fs::write(&path, content(1)).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        fs::remove_file(path).unwrap();
        Self(file)
    }

    fn check(&self) {
        let mut found = vec![0; content(1).len()];
        self.0.read_exact_at(&mut found, 0).unwrap();
        assert!(found == content(1));
    }
}

#[test]
fn a_mounted_volume_gets_more_and_less_while_programs_work() {
    if !can_mount() {
        return;
    }
    for scene in scenes() {
        let m = Mounted::on(scene, "restart");
        fill(&m.mnt(), 0..20);
        let nameless = Nameless::new(&m);
        let resized = |n: u64, size: &str, blocks: u64| {
            let old = daemon(&m);
            let told = resize(&m.0, size).ok();
            assert!(told.contains("data device  "), "{told}");
            assert_ne!(daemon(&m), old);
            let info = m.info();
            assert_eq!(info["replaced"], n, "no daemon has died");
            assert_eq!(info["restarts"], n);
            let wanted = format!("data {blocks}");
            assert_eq!(info["last_resize"]["wanted"], wanted.as_str());
            let len = fs::metadata(m.0.vol().join("data")).unwrap().len();
            assert_eq!(len, blocks * 4096);
            nameless.check();
            check(&m.mnt(), 0..20);
        };
        under_load(&m, || {
            resized(1, "160M", 40960);
            resized(2, "192M", 49152);
        });
        // What programs have just written may lie anywhere. They have removed it again, so nothing is in the way.
        resized(3, "128M", 32768);
        nameless.check();
        drop(nameless);
        check(&m.mnt(), 0..20);
        m.umount();
        assert_eq!(data_blocks(&m.0), 32768);
        m.fsck();
    }
}

/// In a directory the region is a file of its own; in one file the data are behind it, and copied.
#[test]
fn the_region_of_a_mounted_volume_gets_larger_and_smaller() {
    if !can_mount() {
        return;
    }
    for scene in scenes() {
        let one = scene.dir().join("one");
        let words = ["--size", "160M", "--pmem-size", "32M", "--sparse"];
        quayfs(["mkfs", one.to_str().unwrap()].into_iter().chain(words)).ok();
        let m = Mounted::on(scene, "restart");
        let nameless = Nameless::new(&m);
        fill(&m.mnt(), 0..20);
        let pages = |m: &Mounted| m.info()["node_pages"].as_u64().unwrap();
        let before = pages(&m);
        under_load(&m, || {
            for (size, mib, how) in [
                ("128M", 128, "larger"),
                ("24M", 24, "smaller"),
                ("32M", 32, "larger"),
            ] {
                let mnt = m.mnt();
                let words = ["resize", mnt.to_str().unwrap(), "--pmem", size];
                let told = quayfs(words).ok();
                assert!(
                    told.contains(&format!("pmem region  {mib} MiB, {how} than ")),
                    "{told}"
                );
                let info = m.info();
                assert_eq!(info["pmem_bytes"], mib << 20);
                assert_eq!(info["replaced"], info["restarts"], "no daemon has died");
                assert_eq!(pages(&m) > before, mib > 32);
                nameless.check();
                check(&m.mnt(), 0..20);
            }
        });
        nameless.check();
        drop(nameless);
        m.umount();
        m.fsck();
        in_one_file(&m, &one);
    }
}

fn in_one_file(m: &Mounted, one: &Path) {
    let (mnt, file) = (m.mnt(), one.to_str().unwrap());
    let mnt_name = mnt.to_str().unwrap();
    quayfs(["mount", file, mnt_name]).ok();
    fill(&mnt, 0..20);
    let nameless = Nameless::new(m);
    // By the name of the volume as well.
    for (name, size, mib) in [(mnt_name, "64M", 64), (file, "24M", 24)] {
        quayfs(["resize", name, "--pmem", size]).ok();
        assert_eq!(m.info()["pmem_bytes"], mib << 20);
        nameless.check();
        check(&mnt, 0..20);
        let len = fs::metadata(one).unwrap().len();
        assert_eq!(len >> 20, mib + 128);
    }
    drop(nameless);
    quayfs(["umount", mnt_name]).ok();
    quayfs(["fsck", "--data", file]).ok();
}

#[test]
fn a_volume_that_is_full_takes_more_without_an_unmount() {
    if !can_mount() {
        return;
    }
    let m = Mounted::on(Scene::with_data("64M"), "restart");
    let nameless = Nameless::new(&m);
    let mut n = 0;
    while fs::write(m.mnt().join(n.to_string()), content(n)).is_ok() {
        n += 1;
    }
    fs::remove_file(m.mnt().join(n.to_string())).unwrap();
    resize(&m.0, "128M").ok();
    check(&m.mnt(), 0..n);
    fill(&m.mnt(), n..n + 50);
    check(&m.mnt(), 0..n + 50);
    nameless.check();
    let free = |m: &Mounted| m.info()["blocks_free"].as_u64().unwrap();
    let before = free(&m);
    drop(nameless);
    // It lived as long as it was open, and no longer.
    eventually("its blocks are free", || free(&m) > before);
    m.umount();
    m.fsck();
}

#[test]
fn what_is_refused_leaves_the_mount_as_it_was() {
    if !can_mount() {
        return;
    }
    let m = Mounted::on(Scene::in_memory(), "restart");
    fill(&m.mnt(), 0..200);
    let nameless = Nameless::new(&m);
    let data = |m: &Mounted| fs::metadata(m.0.vol().join("data")).unwrap().len();
    let old = daemon(&m);
    // Known before anything happens.
    resize(&m.0, "1T").fails(1, "the region has room for the page table of");
    assert_eq!(daemon(&m), old);
    // Known when the volume is closed.
    resize(&m.0, "40M").fails(1, "goes on as it was");
    assert_eq!(data(&m), 128 << 20);
    let info = m.info();
    assert_eq!(
        (&info["replaced"], &info["restarts"]),
        (&1.into(), &1.into())
    );
    let why = info["last_resize"]["refused"].as_str().unwrap();
    assert!(why.contains("too little for data"), "{why}");
    fs::hard_link(m.0.vol().join("pmem"), m.0.dir().join("other")).unwrap();
    let mnt = m.mnt();
    let run = quayfs(["resize", mnt.to_str().unwrap(), "--pmem", "64M"]);
    run.fails(1, "hard link");
    fs::remove_file(m.0.dir().join("other")).unwrap();
    nameless.check();
    drop(nameless);
    check(&m.mnt(), 0..200);
    m.umount();
    for (options, about) in [
        ("norestart", "norestart"),
        ("transport=uring", "ring"),
        ("ro", "read-only"),
    ] {
        if options == "transport=uring"
            && std::env::var_os("QUAYFS_SKIP_URING").is_some_and(|v| v == "1")
        {
            continue;
        }
        m.mount(options);
        let run = resize(&m.0, "256M");
        let advice = format!("`quayfs resize {}`", m.0.vol().display());
        assert!(
            run.err.contains(about) && run.err.contains(&advice),
            "{run:?}"
        );
        run.fails(1, "then mount again");
        m.umount();
    }
    m.fsck();
}

/// Where each daemon of a mount, or the command, is ended at any moment of it: the size is the old or the new one, and
/// nothing is lost.
#[test]
fn whatever_is_killed_the_mount_goes_on() {
    if !can_mount() {
        return;
    }
    for scene in scenes() {
        let m = Mounted::on(scene, "restart");
        fill(&m.mnt(), 0..20);
        let nameless = Nameless::new(&m);
        under_load(&m, || {
            for turn in 0..24 {
                let words = [
                    ["--data", "160M"],
                    ["--pmem", "48M"],
                    ["--data", "128M"],
                    ["--pmem", "32M"],
                ];
                let victim = match turn % 5 {
                    0 => Victim::Command,
                    _ => Victim::Daemon,
                };
                interrupted(&m, words[turn % 4], (victim, turn as u32));
                nameless.check();
                check(&m.mnt(), 0..20);
            }
        });
        nameless.check();
        drop(nameless);
        m.umount();
        m.fsck();
        let blocks = data_blocks(&m.0);
        assert!(blocks == 40960 || blocks == 32768, "{blocks}");
        let pmem = fs::metadata(m.0.vol().join("pmem")).unwrap().len() >> 20;
        assert!(pmem == 48 || pmem == 32, "{pmem}");
    }
}

#[derive(Clone, Copy)]
enum Victim {
    Command,
    Daemon,
}

fn begun(m: &Mounted, words: [&str; 2]) -> Child {
    Command::new(program::QUAYFS)
        .arg("resize")
        .arg(m.mnt())
        .args(words)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .start()
        .unwrap()
}

fn kill(pid: i32) {
    // It may have ended by itself.
    let _ = Command::new("kill")
        .args(["-s", "KILL", &pid.to_string()])
        .stderr(Stdio::null())
        .finish();
}

/// Begins to resize, and ends one of those that do it: `turn` says how soon. Each moment will do.
fn interrupted(m: &Mounted, words: [&str; 2], (victim, turn): (Victim, u32)) {
    let old = daemon(m);
    let supervisor = parent(old);
    let mut command = begun(m, words);
    match victim {
        Victim::Command => kill(command.id().cast_signed()),
        Victim::Daemon => {
            // The one that resizes, a little later each time: anything from its first moment to the time when it serves.
            eventually("another daemon begins", || {
                let now = children(supervisor);
                !now.is_empty() && !now.contains(&old)
            });
            thread::sleep(std::time::Duration::from_millis(u64::from(turn) * 20));
            children(supervisor).into_iter().for_each(kill);
        }
    }
    command.wait().unwrap();
    // Until no daemon is to do anything any more.
    eventually("the mount answers", || m.info()["pid"].is_i64());
}

/// The kernel has been told once how large a request may be. A size with which staging could not take that is refused, and one
/// with which it could take more changes nothing.
#[test]
fn requests_stay_as_large_as_the_kernel_knows() {
    if !can_mount() {
        return;
    }
    let m = Mounted::on(Scene::in_memory(), "restart");
    let large = vec![7; 4 << 20];
    let mut refused = Vec::new();
    for (medium, size) in [
        ("--data", "500M"),
        ("--data", "2G"),
        ("--pmem", "64M"),
        ("--data", "5G"),
        ("--pmem", "20M"),
        ("--data", "300M"),
        ("--pmem", "24M"),
        ("--pmem", "17M"),
        ("--pmem", "128M"),
    ] {
        let mut command = Command::new("timeout");
        command.args(["60", QUAYFS, "resize"]).arg(m.mnt());
        let run = command.args([medium, size]).capture().unwrap();
        let said = String::from_utf8_lossy(&run.stderr).into_owned();
        assert!(
            [Some(0), Some(1)].contains(&run.status.code()),
            "{medium} {size}: {said}"
        );
        if !run.status.success() {
            refused.push(said);
        }
        // It is answered, and takes what it took.
        let path = m.mnt().join(format!("{medium}{size}"));
        fs::write(&path, &large).unwrap();
        assert!(fs::read(&path).unwrap() == large);
    }
    let told = refused
        .iter()
        .any(|why| why.contains("the kernel has been told"));
    assert!(told, "{refused:?}");
    assert!(refused.len() < 9, "{refused:?}");
    m.umount();
    m.fsck();
}
