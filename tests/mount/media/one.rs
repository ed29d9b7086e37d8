//! One device or file that holds both media.

use super::below::{Loop, run};
use super::{OsStr, Path, PathBuf, Volume};
use crate::program::namespace::Namespace;
use crate::program::{Run, can_be_root, eventually, quayfs};
use rustix::fs::FallocateFlags;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};

const LEN: u64 = 128 << 20;
/// What mkfs takes for the region of so small a device.
const REGION: u64 = LEN / 2;

fn on(command: &str, volume: &Path, more: &[&str]) -> Run {
    let all = [OsStr::new(command), volume.as_os_str()];
    quayfs(all.into_iter().chain(more.iter().map(OsStr::new)))
}

/// Mounts, and says at which process.
#[track_caller]
fn mount(room: &Volume, volume: &Path) -> i32 {
    let target = room.mnt();
    let words = [target.to_str().unwrap(), "-o", "norestart"];
    on("mount", volume, &words).ok();
    room.info()["pid"].as_i64().unwrap() as i32
}

#[track_caller]
fn synced(path: PathBuf, content: &[u8]) {
    fs::write(&path, content).unwrap();
    File::open(path).unwrap().sync_all().unwrap();
}

/// Makes it, uses it, lets the daemon die, uses it again, and looks at it.
#[track_caller]
fn lives(room: &Volume, volume: &Path, mkfs: &[&str]) {
    let made = on("mkfs", volume, mkfs).ok();
    assert!(made.contains("backend `file`"), "{made}");
    let pid = mount(room, volume);
    let large: Vec<u8> = (0..3_000_000u32).map(|n| (n / 7) as u8).collect();
    synced(room.mnt().join("large"), &large);
    synced(room.mnt().join("small"), b"one");
    run("kill", &[&"-KILL", &pid.to_string()]);
    run("umount", &[&"-i", &"-l", &room.mnt()]);
    eventually("the daemon's death", || {
        !Path::new(&format!("/proc/{pid}")).exists()
    });

    mount(room, volume);
    assert_eq!(fs::read(room.mnt().join("large")).unwrap(), large);
    assert_eq!(fs::read(room.mnt().join("small")).unwrap(), b"one");
    let taken = on("mkfs", volume, &["--force"]);
    taken.fails(1, "in use");
    // As umount(8) takes a device.
    on("umount", volume, &[]).ok();

    let checked = on("fsck", volume, &["--data"]).ok();
    assert!(!checked.contains("repair"), "{checked}");
    let info = on("info", volume, &["--json"]).ok();
    let info: serde_json::Value = serde_json::from_str(&info).unwrap();
    assert_eq!(info["volume"], volume.to_str().unwrap());
    on("scrub", volume, &[]).ok();
    on("mkfs", volume, mkfs).fails(1, "--force");
}

#[test]
fn a_device_is_a_volume() {
    if !crate::program::can_be_root() {
        return;
    }
    let room = Volume::room();
    let device = Loop::new(&room.at("device"), LEN);
    lives(&room, device.path(), &[]);
    // Through mount(8)'s helper, as from fstab.
    let helper = room.at("mount.quayfs");
    std::os::unix::fs::symlink(crate::program::QUAYFS, &helper).unwrap();
    run(
        helper.to_str().unwrap(),
        &[&device.path(), &room.mnt(), &"-o", &"rw"],
    );
    assert_eq!(fs::read(room.mnt().join("small")).unwrap(), b"one");
    room.umount().ok();
    let log = Path::new("/var/log").join(format!(
        "quayfs-{}.log",
        device.path().file_name().unwrap().to_str().unwrap()
    ));
    assert!(fs::read_to_string(&log).unwrap().contains("unmounted"));
    fs::remove_file(log).unwrap();
}

/// In a mount namespace with a `/dev` of its own and with the helper: udev looks at a device by our rule alone, then the
/// device is mounted by what `fstab` there names it.
const UDEV: &str = r#"
mount -t overlay none -o lowerdir=$PWD/sbin:/usr/sbin /usr/sbin
mkdir dev; mount --rbind /dev dev
mount -t tmpfs none /dev
cp -a dev/$NAME dev/null dev/fuse /dev
mkdir /dev/shm; mount --rbind dev/shm /dev/shm
mount -t tmpfs none /run
mkdir -p /etc/udev/rules.d /usr/lib/udev/rules.d
mount -t tmpfs none /etc/udev/rules.d
mount -t tmpfs none /usr/lib/udev/rules.d
sed "s|@PROGRAM@|$QUAYFS|" "$RULE" >/usr/lib/udev/rules.d/60-quayfs.rules
PATH=$PATH:/lib/systemd:/usr/lib/systemd
systemd-udevd >udevd.log 2>&1 & udevd=$!
trap 'kill $udevd; wait $udevd || true' EXIT
until [ -S /run/udev/control ]; do sleep 0.05; done
udevadm trigger --action=change --settle /sys/block/$NAME
"#;

#[test]
fn a_device_has_a_name_and_a_number() {
    if !super::program::can_be_root() {
        return;
    }
    let room = Volume::room();
    let device = Loop::new(&room.at("device"), LEN);
    on("mkfs", device.path(), &["--label", "a b"]).ok();
    // Nothing else has such lines, and halves of volumes have not.
    on("identify", Path::new("/dev/null"), &[]).fails(1, "no volume");
    on("identify", room.dir.path(), &[]).fails(1, "");
    let info = on("info", device.path(), &["--json"]).ok();
    let info: serde_json::Value = serde_json::from_str(&info).unwrap();
    let uuid = info["uuid"].as_str().unwrap();

    let shown = device.path().to_str().unwrap();
    let name = shown.rsplit('/').next().unwrap();
    fs::create_dir(room.at("sbin")).unwrap();
    let helper = room.at("sbin/mount.quayfs");
    std::os::unix::fs::symlink(super::program::QUAYFS, helper).unwrap();
    let rule = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/packaging/udev/60-quayfs.rules"
    );
    let quayfs = super::program::QUAYFS;
    let script = format!(
        "NAME={name} QUAYFS='{quayfs}' RULE='{rule}'{}",
        UDEV.trim_end()
    );
    let shell = Namespace::new(room.dir.path(), Path::new(""), &script);
    let known = shell
        .run(&["udevadm", "info", "--query=property", shown])
        .ok();
    for property in [
        "ID_FS_TYPE=quayfs",
        "ID_FS_LABEL=a_b",
        &format!("ID_FS_UUID={uuid}"),
    ] {
        assert!(known.lines().any(|l| l == property), "{property}: {known}");
    }
    let mnt = room.mnt();
    let mnt = mnt.to_str().unwrap();
    let fstab = room.at("fstab");
    let fstab_shown = fstab.to_str().unwrap();
    for tag in [r"LABEL=a\040b".into(), format!("UUID={uuid}")] {
        fs::write(&fstab, format!("{tag} {mnt} quayfs noauto,noatime 0 0\n")).unwrap();
        shell.run(&["mount", "-T", fstab_shown, mnt]).ok();
        let info = shell.run(&[quayfs, "info", mnt]).ok();
        assert!(
            info.contains(shown) && info.contains("noatime"),
            "{tag}: {info}"
        );
        shell.run(&[quayfs, "umount", mnt]).ok();
    }
    // As on a command line.
    shell.run(&["mount", "-t", "quayfs", "LABEL=a b", mnt]).ok();
    shell.run(&[quayfs, "umount", mnt]).ok();
    fs::remove_file(Path::new("/var/log").join(format!("quayfs-{name}.log"))).unwrap();
}

#[test]
fn a_file_is_a_volume() {
    if !crate::program::can_mount() {
        return;
    }
    let room = Volume::room();
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let file = dir.path().join("volume");
    lives(&room, &file, &["--size", "128M", "--pmem-size", "32M"]);
    let meta = fs::metadata(&file).unwrap();
    assert_eq!(
        (meta.len(), meta.permissions().mode() & 0o777),
        (LEN, 0o600)
    );
    let log = fs::read_to_string(dir.path().join("quayfs-volume.log")).unwrap();
    assert!(log.contains("unmounted"), "{log}");
}

#[test]
fn what_is_damaged_or_cut_is_found_all_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("volume");
    on("mkfs", &path, &["--size", "128M"]).ok();
    let file = File::options().write(true).open(&path).unwrap();
    // The first configuration table, and the header of the data.
    file.write_all_at(&[0; 4096], 0).unwrap();
    on("info", &path, &[]).ok();
    let repaired = on("fsck", &path, &["--repair"]);
    assert_eq!(repaired.code, 1, "{repaired:?}");
    assert!(repaired.out.contains("copy 0 of the configuration table"));
    on("fsck", &path, &["--data"]).ok();
    file.set_len(LEN - 4096).unwrap();
    on("info", &path, &[]).fails(1, "truncated");
    file.write_all_at(&[0; 4096], LEN - 4096).unwrap();
    file.write_all_at(&[0; 4096], REGION).unwrap();
    on("info", &path, &[]).fails(1, "not a QuayFS data device");
    file.set_len(REGION).unwrap();
    on("info", &path, &[]).fails(1, "one half of a volume");
}

#[test]
fn what_is_meant_for_two_media_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("volume");
    for (more, about) in [
        (["--pmem", "/nowhere"], "--pmem"),
        (["--data", "/nowhere"], "--data"),
        (["--data-size", "64M"], "--pmem-size"),
    ] {
        let all = [&["--size", "128M"], &more[..]].concat();
        on("mkfs", &path, &all).fails(1, about);
    }
    on("mkfs", dir.path(), &["--size", "128M"]).fails(1, "directory");
    on("mkfs", &path, &["--size", "8M"]).fails(1, "at least 32 MiB");
    on("mkfs", &path, &["--size", "64M", "--pmem-size", "64M"]).fails(1, "smaller --pmem-size");
    assert!(!path.exists());
    let gone = Path::new("/dev/no-such-disk");
    on("mkfs", gone, &[]).fails(1, "No such file");
    assert!(!gone.exists());
    on("mkfs", Path::new("/dev/null"), &["--size", "64M"]).fails(1, "nor a directory");
}

/// Partitions end anywhere.
#[test]
fn a_device_may_be_longer_than_its_blocks() {
    if !crate::program::can_be_root() {
        return;
    }
    let room = Volume::room();
    let device = Loop::new(&room.at("device"), (64 << 20) + 512);
    on("mkfs", device.path(), &[]).ok();
    let log = room.at("log");
    let (mnt, log) = (room.mnt(), log.to_str().unwrap());
    on(
        "mount",
        device.path(),
        &[mnt.to_str().unwrap(), "--log-file", log],
    )
    .ok();
    fs::write(mnt.join("file"), "x").unwrap();
    room.umount().ok();
    on("fsck", device.path(), &["--data"]).ok();
}

#[test]
fn one_in_use_is_not_made_anew_whatever_its_length() {
    if !crate::program::can_mount() {
        return;
    }
    let room = Volume::room();
    let file = room.at("volume");
    on("mkfs", &file, &["--size", "67108965"]).ok();
    on("mount", &file, &[room.mnt().to_str().unwrap()]).ok();
    on("mkfs", &file, &["--force"]).fails(1, "in use");
    room.umount().ok();
    on("fsck", &file, &["--data"]).ok();
}

/// Each page of a bitmap is made when it is first needed, and this needs many at once. What is freed is about as many.
#[test]
fn most_of_a_large_volume_is_allocated_and_freed_at_once() {
    if !can_be_root() {
        return;
    }
    let room = Volume::room();
    let volume = room.at("volume");
    on(
        "mkfs",
        &volume,
        &["--size", "100G", "--pmem-size", "1G", "--sparse"],
    )
    .ok();
    mount(&room, &volume);
    let path = room.mnt().join("file");
    let s = rustix::fs::statvfs(room.mnt()).unwrap();
    let len = s.f_bavail / 10 * 9 * s.f_frsize;
    assert!(len > 80 << 30);
    let allocated = |file: &File| file.metadata().unwrap().blocks() * 512;
    for how in ["truncate", "punch", "remove"] {
        let file = File::create(&path).unwrap();
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, len).unwrap();
        assert!(allocated(&file) >= len, "{how}");
        match how {
            "truncate" => file.set_len(5000).unwrap(),
            "punch" => {
                let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(&file, hole, 5000, len - 10_000).unwrap();
            }
            _ => fs::remove_file(&path).unwrap(),
        }
        if how != "remove" {
            assert!(allocated(&file) < 1 << 20, "{how}");
        }
    }
    eventually("the blocks of the removed file are free", || {
        rustix::fs::statvfs(room.mnt()).unwrap().f_bavail + 100 > s.f_bavail
    });
    synced(path, b"it can be written");
    on("umount", &volume, &[]).ok();
    on("fsck", &volume, &[]).ok();
}

/// A device, its file, and another device on that file: a lock on one of them is none on the others.
#[test]
fn a_volume_is_mounted_once_whatever_it_is_called() {
    if !can_be_root() {
        return;
    }
    let room = Volume::room();
    let file = room.at("disk");
    let disk = Loop::new(&file, LEN);
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let other = Loop::again(&file);
    on("mkfs", disk.path(), &[]).ok();
    let names = [disk.path(), other.path(), &file];
    for name in names {
        mount(&room, name);
        synced(room.mnt().join("file"), b"content");
        for again in names.into_iter().filter(|again| *again != name) {
            on("fsck", again, &["--repair"]).fails(8, "in use");
            on("tune", again, &["--label", "x"]).fails(1, "in use");
            on("mkfs", again, &["--force"]).fails(1, "in use");
            let status = on("status", again, &[]);
            // Of a file, the loop device over it tells where it is mounted.
            let by_mount = format!("{}: ok", room.mnt().display());
            let is_told = ["in use", "mounted", &by_mount].map(|said| status.out.contains(said));
            let is_told = is_told.contains(&true);
            assert!(status.code <= 1 && is_told, "{status:?}");
            assert!(!status.out.contains("not mounted"), "{status:?}");
        }
        assert_eq!(fs::read(room.mnt().join("file")).unwrap(), b"content");
        on("umount", name, &[]).ok();
    }
    let target = room.mnt().display().to_string();
    mount(&room, names[0]);
    let run = on("mount", names[2], &[&target]);
    assert!(run.code == 32 && run.err.contains("in use"), "{run:?}");
    on("umount", names[0], &[]).ok();
    on("fsck", names[0], &["--data"]).ok();
}

/// As `mount -o loop` does.
#[test]
fn a_file_below_a_loop_device_means_the_mount_of_that() {
    if !can_be_root() {
        return;
    }
    let room = Volume::room();
    let file = room.at("device");
    let device = Loop::new(&file, LEN);
    on("mkfs", device.path(), &[]).ok();
    mount(&room, device.path());
    let told = on("status", &file, &[]).ok();
    let first = format!("{}: ok", room.mnt().display());
    assert_eq!(told.lines().next(), Some(&*first), "{told}");
    room.umount().ok();
    let told = on("status", &file, &[]).out;
    assert!(told.contains("not mounted"), "{told}");
    let log = device.path().file_name().unwrap().to_str().unwrap();
    fs::remove_file(format!("/var/log/quayfs-{log}.log")).unwrap();
}
