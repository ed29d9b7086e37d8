//! What the daemon of a mount may do itself.
//!
//! Needs `/dev/fuse`, and root, which has something to lose.

use crate::program;

use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{PermissionsExt as _, chown};

use program::{Mounted, Scene, can_be_root, eventually};
use rustix::thread::CapabilitySet;

/// What a thread may, and whether it can get more.
#[derive(Debug, PartialEq, Eq)]
struct Rights {
    capabilities: CapabilitySet,
    no_new_privileges: bool,
}

fn field<'a>(status: &'a str, name: &str) -> &'a str {
    let line = status.lines().find_map(|l| l.strip_prefix(name)).unwrap();
    line.trim_start_matches(':').trim()
}

fn rights(status: &str) -> Rights {
    let set = |name| u64::from_str_radix(field(status, name), 16).unwrap();
    let sets = ["CapInh", "CapPrm", "CapEff", "CapAmb"].map(set);
    Rights {
        capabilities: CapabilitySet::from_bits_retain(sets.into_iter().fold(0, |all, s| all | s)),
        no_new_privileges: field(status, "NoNewPrivs") == "1",
    }
}

/// The threads of a process, by name and number.
fn threads(pid: i64) -> BTreeMap<String, Rights> {
    let read = |task: fs::DirEntry| {
        // One that has just ended is no longer of interest.
        let status = fs::read_to_string(task.path().join("status")).ok()?;
        let name = format!("{} {}", field(&status, "Name"), task.file_name().display());
        Some((name, rights(&status)))
    };
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    tasks.filter_map(|task| read(task.unwrap())).collect()
}

fn pid(m: &Mounted) -> i64 {
    m.info()["pid"].as_i64().unwrap()
}

#[test]
fn threads_have_the_rights_that_they_need() {
    if !can_be_root() {
        return;
    }
    for options in ["", "atomic_writes,idle=poll", "ro"] {
        let m = Mounted::on(Scene::in_memory(), options);
        if options != "ro" {
            fs::write(m.mnt().join("file"), vec![7; 1 << 20]).unwrap();
            File::open(m.mnt().join("file"))
                .unwrap()
                .sync_all()
                .unwrap();
        }
        let looks = CapabilitySet::SYS_PTRACE | CapabilitySet::DAC_READ_SEARCH;
        let unmounts = CapabilitySet::SYS_ADMIN | CapabilitySet::DAC_READ_SEARCH;
        let logs = CapabilitySet::DAC_OVERRIDE | CapabilitySet::FOWNER;
        let of = |name: &str| match name.split(' ').next().unwrap() {
            "outside" => (looks, true),
            "log" => (logs, true),
            // They start programs, of which `fusermount3` is another user's.
            "signals" | "table" => (unmounts, false),
            _ => (CapabilitySet::empty(), true),
        };
        let all = threads(pid(&m));
        for (name, rights) in &all {
            let (capabilities, no_new_privileges) = of(name);
            let want = Rights {
                capabilities,
                no_new_privileges,
            };
            assert_eq!(*rights, want, "{name}");
        }
        for name in ["serve ", "fuse-", "outside ", "signals ", "log "] {
            assert!(all.keys().any(|k| k.starts_with(name)), "{name}: {all:?}");
        }
        m.umount();
    }
}

/// Threads without rights have the region open, but may not go to where it is.
#[test]
fn a_region_in_the_directory_of_a_user_is_faulted_in() {
    if !can_be_root() {
        return;
    }
    let scene = Scene::in_memory();
    let vol = scene.vol();
    chown(&vol, Some(65534), Some(65534)).unwrap();
    fs::set_permissions(&vol, Permissions::from_mode(0o700)).unwrap();
    let m = Mounted::on(scene, "rw");
    let (pid, len) = (pid(&m), fs::metadata(vol.join("pmem")).unwrap().len());
    eventually("the region is in memory", || {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let kib = field(&status, "VmRSS").trim_end_matches(" kB");
        kib.parse::<u64>().unwrap() << 10 >= len
    });
    m.umount();
}

/// A core dump would have in it what users have written. That other processes of its user do not see its memory is
/// tested where ordinary users mount.
#[test]
fn a_daemon_leaves_no_core() {
    if !can_be_root() {
        return;
    }
    let m = Mounted::on(Scene::in_memory(), "");
    let pid = pid(&m);
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let core = field(&limits, "Max core file size");
    assert!(core.starts_with("0 "), "{core}");
    m.umount();
}
