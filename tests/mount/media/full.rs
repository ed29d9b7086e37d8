//! Regions without all of their blocks, or with fewer than they had.

use super::below::Mount;
use super::{Process, Volume, eventually};
use crate::program::{QUAYFS, Start as _, can_be_root, quayfs};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt as _, chown};
use std::path::Path;
use std::process::{Command, Stdio};

#[test]
fn a_region_without_room_below_is_looked_at_and_not_mounted_for_writing() {
    if !can_be_root() {
        return;
    }
    let v = Volume::room();
    let below = Mount::in_memory(&v.at("below"), "24M");
    let region = v.at("below/region");
    v.mkfs(&[&"--pmem", &region, &"--pmem-size", &"32M", &"--sparse"])
        .ok();
    let filler = below.fill();
    let blocks = fs::metadata(&region).unwrap().blocks();
    // Even a load would need a page there.
    v.command("info").ok();
    v.command("fsck").ok();
    v.command("scrub").ok();
    let told = v.command("status");
    assert!(
        told.code == 1 && told.out.contains("and the volume can still need"),
        "{told:?}"
    );
    v.mount("rw").fails(32, "not allocated in full");
    v.mount("ro").ok();
    assert!(fs::read_dir(v.mnt()).unwrap().next().is_none());
    v.umount().ok();
    assert_eq!(fs::metadata(&region).unwrap().blocks(), blocks);
    fs::remove_file(filler).unwrap();
    v.mount("rw").fails(32, "make room");
    below.remount("size=64M");
    v.mount("rw").ok();
    // From here on nothing that others do there matters.
    assert!(fs::metadata(&region).unwrap().blocks() * 512 >= 32 << 20);
    below.fill();
    for n in 0..200 {
        fs::write(v.mnt().join(format!("{n}")), vec![n as u8; 100_000]).unwrap();
    }
    v.umount().ok();
    v.command("fsck").ok();
}

/// Cuts the region of a mount short and touches it until the daemon is gone.
fn cut(v: &Volume) {
    let region = fs::File::options()
        .write(true)
        .open(v.vol().join("pmem"))
        .unwrap();
    region.set_len(1 << 20).unwrap();
    for n in 0..1000 {
        if fs::write(v.mnt().join(format!("{n}")), vec![7; 10_000]).is_err() {
            break;
        }
    }
}

#[test]
fn a_region_that_is_cut_short_ends_the_daemon_with_a_line() {
    if !can_be_root() {
        return;
    }
    let v = Volume::room();
    v.mkfs(&[]).ok();
    let region = v.vol().join("pmem").display().to_string();
    v.mount("rw").ok();
    cut(&v);
    eventually("the daemon is gone", || fs::read_dir(v.mnt()).is_err());
    eventually("the log names the file, as an error", || {
        let log = v.log();
        log.contains(&format!(" ERROR {region}: the pmem region was cut short"))
    });
    let told = v.command("status");
    assert!(
        told.out.contains("1 in ") && told.out.contains("while it was in use"),
        "{told:?}"
    );
    v.umount();
    for (command, code) in [("info", 1), ("fsck", 8)] {
        v.command(command)
            .fails(code, &format!("{region}: cut short"));
    }
    v.mount("rw").fails(32, "cut short");
}

/// Wherever it ends: what is read first may be gone, or what is read last.
#[test]
fn a_region_that_is_cut_short_is_told_by_all_commands() {
    if !can_be_root() {
        return;
    }
    for len in [4096, 5000, 8192, 1 << 20, 40 << 20, (64 << 20) - 4096] {
        let v = Volume::room();
        v.mkfs(&[&"--pmem-size", &"64M"]).ok();
        let region = fs::File::options().write(true).open(v.vol().join("pmem"));
        region.unwrap().set_len(len).unwrap();
        let why = match len % 4096 {
            0 => "cut short",
            _ => "multiple of 4096",
        };
        for (command, code) in [
            ("info", 1),
            ("fsck", 8),
            ("scrub", 1),
            ("dump", 1),
            ("quota", 1),
        ] {
            v.command(command).fails(code, why);
        }
        v.mount("rw").fails(32, why);
        let status = v.command("status");
        assert!(status.code == 2 && status.out.contains(why), "{status:?}");
    }
}

#[test]
fn in_the_foreground_it_is_the_exit_code_of_a_failure() {
    if !can_be_root() {
        return;
    }
    for logs in [false, true] {
        ends_in_the_foreground(logs);
    }
}

fn ends_in_the_foreground(logs: bool) {
    let v = Volume::room();
    v.mkfs(&[]).ok();
    // Another user's directory: a thread without capabilities cannot search it.
    let (dir, log) = (v.at("logs"), v.at("logs/log"));
    fs::create_dir(&dir).unwrap();
    chown(&dir, Some(65534), Some(65534)).unwrap();
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)).unwrap();
    let more = logs.then_some([Path::new("--log-file"), &log]);
    let child = Command::new(QUAYFS)
        .args(["mount", "--foreground"])
        .args(more.into_iter().flatten())
        .args([v.vol(), v.mnt()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .start()
        .unwrap();
    let mut child = Process(child);
    eventually("it is mounted", || v.table().is_some());
    cut(&v);
    eventually("it ends", || child.0.try_wait().unwrap().is_some());
    let mut err = String::new();
    std::io::Read::read_to_string(child.0.stderr.as_mut().unwrap(), &mut err).unwrap();
    let code = child.0.wait().unwrap().code();
    assert_eq!(code, Some(32), "{err}");
    let text = if logs {
        fs::read_to_string(log).unwrap()
    } else {
        err.clone()
    };
    let last = text.lines().last().unwrap_or_default();
    assert!(
        last.contains(" ERROR ") && last.contains("cut short"),
        "{text}{err}"
    );
    v.umount();
}

/// The data file of a volume, to be made shorter.
fn data_file(v: &Volume) -> fs::File {
    let path = v.vol().join("data");
    fs::File::options().write(true).open(path).unwrap()
}

#[test]
fn a_data_file_that_is_cut_short_is_told_while_it_is_mounted() {
    if !can_be_root() {
        return;
    }
    let v = Volume::room();
    v.mkfs(&[]).ok();
    v.mount("rw").ok();
    assert!(v.command("status").ok().contains("ok"));
    let data = data_file(&v);
    let len = data.metadata().unwrap().len();
    data.set_len(len - (3 << 20)).unwrap();
    let told = v.command("status");
    let why = "the data device was cut short: its last 3 MiB are not there";
    assert!(told.code == 2 && told.out.contains(why), "{told:?}");
    assert!(
        told.out.contains("`truncate --size") && told.out.contains(&len.to_string()),
        "{told:?}"
    );
    // What was there does not come back.
    data.set_len(len).unwrap();
    assert_eq!(v.command("status").code, 2);
    assert!(v.log().contains("cut short: its last 3145728 bytes"));
    v.umount().ok();
}

/// What is lost is known until nothing damaged is left, and by name.
#[test]
fn what_a_data_file_has_lost_is_told_until_it_is_gone() {
    if !can_be_root() {
        return;
    }
    let v = Volume::room();
    v.mkfs(&[]).ok();
    v.mount("rw").ok();
    let file = v.mnt().join("lost");
    fs::write(&file, vec![7; 8 << 20]).unwrap();
    v.umount().ok();
    v.mount("rw").ok();
    let data = data_file(&v);
    let len = data.metadata().unwrap().len();
    data.set_len(4 << 20).unwrap();
    let told = v.umount();
    assert!(
        told.code == 0 && told.err.contains("was cut short"),
        "{told:?}"
    );
    data.set_len(len).unwrap();
    let vol = v.vol();
    let status = || quayfs(["status".as_ref(), vol.as_os_str()]);
    let told = status();
    assert!(
        told.code == 1 && told.out.contains("tells of a data"),
        "{told:?}"
    );

    let fsck = |more: &[&str]| {
        let args = ["fsck".as_ref(), vol.as_os_str(), "--data".as_ref()];
        quayfs(args.into_iter().chain(more.iter().map(OsStr::new)))
    };
    for more in [&[][..], &["--repair"][..]] {
        let found = fsck(more);
        let names = found.out.contains("\n/lost: ") && found.out.contains(" blocks damaged\n");
        assert!(found.code == 4 && names, "{found:?}");
        let told = status();
        assert!(
            told.code == 1 && told.out.contains("found damaged blocks"),
            "{told:?}"
        );
    }
    v.mount("rw").ok();
    assert_eq!(v.command("status").code, 1);
    fs::remove_file(&file).unwrap();
    v.umount().ok();
    quayfs(["scrub".as_ref(), vol.as_os_str()]).ok();
    let told = status();
    assert!(
        told.code == 0 && told.out.contains("verified, nothing found"),
        "{told:?}"
    );
}
