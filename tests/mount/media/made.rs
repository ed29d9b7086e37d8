//! A mkfs that fails leaves nothing, and says what it overwrites.

use super::below::{Loop, Mount, run};
use super::{Process, Volume, eventually};
use crate::program::{QUAYFS, Start as _, can_be_root, quayfs};
use std::fs;
use std::os::unix::fs::symlink;
use std::process::{Command, Stdio};

#[test]
fn a_mkfs_that_fails_leaves_nothing() {
    if !can_be_root() {
        return;
    }
    let v = Volume::room();
    let _below = Mount::in_memory(&v.at("small"), "48M");
    let taken = v.at("taken");
    fs::write(&taken, [&b"QUAYFSDD"[..], &[0; 4096]].concat()).unwrap();
    run("chmod", &[&"600", &taken]);
    let long = "x".repeat(65);
    let data = v.at("small/data");
    let cases: [(&str, Vec<&dyn AsRef<std::ffi::OsStr>>); 7] = [
        ("at most 64 bytes", vec![&"--label", &long]),
        ("too small", vec![&"--pmem-size", &"1M"]),
        ("too small", vec![&"--data-size", &"1M"]),
        (
            "no space left: 64 MiB are needed",
            vec![&"--data", &data, &"--data-size", &"64M"],
        ),
        ("QuayFS data device", vec![&"--data", &taken]),
        (
            "No such file",
            vec![&"--pmem", &"/no/such/place/region", &"--pmem-size", &"32M"],
        ),
        (
            "at once",
            vec![
                &"--pmem",
                &data,
                &"--data",
                &data,
                &"--pmem-size",
                &"32M",
                &"--data-size",
                &"32M",
            ],
        ),
    ];
    for (about, args) in cases {
        v.mkfs(&args).fails(1, about);
        assert!(!v.vol().exists() && !data.exists(), "{about}");
    }
    // What was there before stays.
    fs::create_dir(v.vol()).unwrap();
    fs::write(v.vol().join("note"), "mine").unwrap();
    let run = v.mkfs(&[&"--data", &data, &"--data-size", &"64M", &"--force"]);
    run.fails(1, "no space left: 64 MiB are needed");
    let left: Vec<_> = fs::read_dir(v.vol())
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert_eq!(left, ["note"]);
    v.mkfs(&[&"--force"]).ok();
}

#[test]
fn beyond_the_limit_of_file_sizes_is_a_failure_like_others() {
    let v = Volume::room();
    let script = "ulimit -f 40960; exec \"$@\"";
    let vol = v.vol();
    let run: super::Run = Command::new("bash")
        .args(["-c", script, "sh", QUAYFS, "mkfs"])
        .arg(&vol)
        .args(["--pmem-size", "32M", "--data-size", "64M"])
        .capture()
        .unwrap()
        .into();
    run.fails(1, "File too large");
    assert!(!vol.exists());
}

/// The region lies in a file system that is frozen: mkfs stays where it is, with everything else made.
#[test]
fn a_mkfs_that_is_interrupted_leaves_nothing() {
    if !can_be_root() {
        return;
    }
    for signal in ["INT", "TERM", "HUP"] {
        let v = Volume::room();
        let disk = Loop::new(&v.at("disk"), 80 << 20);
        let _below = Mount::ext4(&v.at("below"), &disk);
        let region = v.at("below/region");
        fs::File::create_new(&region)
            .and_then(|f| f.set_len(32 << 20))
            .unwrap();
        run("chmod", &[&"600", &region]);
        let frozen = Frozen::new(&v.at("below"));
        let child = Command::new(QUAYFS)
            .arg("mkfs")
            .arg(v.vol())
            .args(["--data-size", "64M", "--pmem"])
            .arg(&region)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .start()
            .unwrap();
        let waiting = (frozen, Process(child));
        let link = v.vol().join("data");
        eventually("the data is made", || link.exists());
        run("kill", &[&"-s", &signal, &waiting.1.0.id().to_string()]);
        eventually("all of it is gone", || !v.vol().exists());
        // Here and if the test fails it thaws first: until then the process cannot end.
        let (frozen, mut child) = waiting;
        drop(frozen);
        eventually("it ends", || child.0.try_wait().unwrap().is_some());
        let code = child.0.wait().unwrap().code();
        let mut err = String::new();
        std::io::Read::read_to_string(child.0.stderr.as_mut().unwrap(), &mut err).unwrap();
        assert_eq!((code, err.lines().count()), (Some(1), 1), "{signal}: {err}");
        assert!(err.contains("interrupted"), "{err}");
        // What was not made by it is still there.
        assert_eq!(fs::metadata(&region).unwrap().len(), 32 << 20);
        v.mkfs(&[&"--pmem", &region]).ok();
    }
}

/// A file system that takes no change until this goes.
struct Frozen(std::path::PathBuf);

impl Frozen {
    #[track_caller]
    fn new(at: &std::path::Path) -> Self {
        run("fsfreeze", &[&"-f", &at]);
        Self(at.into())
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let _ = Command::new("fsfreeze").arg("-u").arg(&self.0).finish();
    }
}

#[test]
fn force_names_what_it_overwrites() {
    if !can_be_root() {
        return;
    }
    let v = Volume::room();
    let disk = Loop::new(&v.at("disk"), 64 << 20);
    run("mkfs.ext4", &[&"-q", &disk.path()]);
    fs::create_dir(v.vol()).unwrap();
    symlink("/no/such/region", v.vol().join("pmem")).unwrap();
    fs::write(v.vol().join("data"), "mine").unwrap();
    let device = disk.path().display().to_string();
    let lines = [
        format!("{device}: ext4 data"),
        format!(
            "{}: a link to /no/such/region",
            v.vol().join("pmem").display()
        ),
        format!("{}: a file of 4 B", v.vol().join("data").display()),
    ];
    let args: [&dyn AsRef<std::ffi::OsStr>; 2] = [&"--data", &device];
    let refused = v.mkfs(&args);
    for line in &lines {
        assert!(refused.err.contains(line), "{line}: {refused:?}");
    }
    refused.fails(1, "--force overwrites");
    assert_eq!(fs::read(v.vol().join("data")).unwrap(), b"mine");
    let forced = v.mkfs(&[&"--data", &device, &"--force"]);
    for line in &lines {
        let warning = format!("warning: --force overwrites {line}");
        assert!(forced.err.contains(&warning), "{warning}: {forced:?}");
    }
    forced.ok();
    v.mount("rw").ok();
    // Not what is in use, whatever its name in the volume.
    v.mkfs(&[&"--pmem", &v.at("new"), &"--pmem-size", &"32M", &"--force"])
        .fails(1, "in use");
    v.umount().ok();
    v.command("fsck").ok();
}

/// Nor where a volume is mounted, or where the name has a slip.
#[test]
fn a_mount_point_and_a_mistyped_path_are_no_place_for_a_volume() {
    if !can_be_root() {
        return;
    }
    let v = Volume::room();
    v.mkfs(&[]).ok();
    v.mount("rw").ok();
    let mnt = v.mnt();
    let made = quayfs(["mkfs".as_ref(), mnt.as_os_str()]);
    made.fails(1, "is mounted there");
    let deep = v.at("tpyo/deep");
    quayfs(["mkfs".as_ref(), deep.as_os_str()]).fails(1, "there is no directory");
    assert!(!v.at("tpyo").exists());
    v.umount().ok();
}

/// It takes a wrong argument to get there.
#[test]
fn a_directory_with_other_things_in_it_is_left_alone() {
    let v = Volume::room();
    fs::create_dir(v.vol()).unwrap();
    let other = v.vol().join("thesis");
    fs::write(&other, "mine").unwrap();
    v.mkfs(&[]).fails(1, "other things in it (thesis)");
    assert!(!v.vol().join("data").exists());
    v.mkfs(&[&"--force"]).ok();
    assert_eq!(fs::read(&other).unwrap(), b"mine");
    // What a mount has left there is no reason.
    fs::remove_file(&other).unwrap();
    fs::write(v.vol().join("quayfs.log"), "").unwrap();
    for part in ["pmem", "data"] {
        fs::remove_file(v.vol().join(part)).unwrap();
    }
    v.mkfs(&[]).ok();
}

/// `--force` is not for what is mounted.
#[test]
fn a_mounted_device_is_in_use() {
    if !can_be_root() {
        return;
    }
    let v = Volume::room();
    let disk = Loop::new(&v.at("disk"), 64 << 20);
    let _mount = Mount::ext4(&v.at("there"), &disk);
    for option in ["--pmem", "--data"] {
        v.mkfs(&[&option, &disk.path(), &"--force"])
            .fails(1, "in use");
        // No advice that would not help.
        let run = v.mkfs(&[&option, &disk.path()]);
        assert!(!run.err.contains("--force"), "{run:?}");
        run.fails(1, &format!("mounted on {}", v.at("there").display()));
        assert!(!v.vol().exists());
    }
}

#[test]
fn the_data_of_a_mounted_volume_is_in_use() {
    if !can_be_root() {
        return;
    }
    let v = Volume::room();
    v.mkfs(&[]).ok();
    v.mount("rw").ok();
    let other = v.at("other");
    let data = v.vol().join("data");
    let sizes = ["--pmem-size", "32M", "--force", "--data"].map(std::ffi::OsStr::new);
    let args = [std::ffi::OsStr::new("mkfs"), other.as_os_str()];
    let args = args.into_iter().chain(sizes).chain([data.as_os_str()]);
    super::quayfs(args).fails(1, "in use");
    assert!(!other.exists());
    v.umount().ok();
    v.command("fsck").ok();
}

#[test]
fn mkfs_allocates_what_it_writes() {
    if !can_be_root() {
        return;
    }
    let v = Volume::room();
    let below = Mount::in_memory(&v.at("below"), "8M");
    let region = v.at("below/region");
    below.fill();
    v.mkfs(&[&"--pmem", &region, &"--pmem-size", &"32M", &"--sparse"])
        .fails(1, "make room");
    assert!(!region.exists() && !v.vol().exists());
}

#[test]
fn mkfs_looks_whether_a_device_takes_writes_before_it_makes_anything() {
    if !can_be_root() {
        return;
    }
    let v = Volume::room();
    let disk = Loop::new(&v.at("disk"), 64 << 20);
    disk.protect(true);
    for option in ["--data", "--pmem"] {
        v.mkfs(&[&option, &disk.path()]).fails(1, "write-protected");
        assert!(!v.vol().exists(), "{option}");
    }
}

#[test]
fn a_link_whose_file_system_is_not_mounted_stays() {
    if !can_be_root() {
        return;
    }
    let v = Volume::room();
    let below = Mount::in_memory(&v.at("pm"), "64M");
    let region = v.at("pm/region");
    v.mkfs(&[&"--pmem", &region, &"--pmem-size", &"32M"]).ok();
    drop(below);
    v.mkfs(&[]).fails(1, "is its file system mounted?");
    let other = v.at("other");
    v.mkfs(&[&"--pmem", &other, &"--pmem-size", &"32M"])
        .fails(1, "is its file system mounted?");
    assert!(!other.exists());
    let link = v.vol().join("pmem");
    assert_eq!(fs::read_link(&link).unwrap(), region);
    // Nor is anything made through a link that leads nowhere.
    v.mkfs(&[&"--pmem", &link])
        .fails(1, "is its file system mounted?");
    let away = v.at("away");
    symlink(v.at("pm/vol"), &away).unwrap();
    let args = [std::ffi::OsStr::new("mkfs"), away.as_os_str()];
    super::quayfs(args).fails(1, "there is no");
}
