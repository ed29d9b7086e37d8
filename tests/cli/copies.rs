//! Volumes whose beginning was overwritten.

use super::*;
use quayfs_fs::volume::config_of;
use quayfs_layout::inode::S_IFREG;
use std::fs::OpenOptions;
use std::path::PathBuf;

pub(super) fn lives(volume: &Path) {
    let opened = Volume::open(volume, Access::ReadWrite, Duration::ZERO).unwrap();
    let fs = Fs::mount(opened, &MountOptions::default()).unwrap();
    let by = Caller::default();
    let there = fs.lookup(ROOT, b"kept");
    let made = there.or_else(|_| fs.mknod(by, ROOT, b"kept", S_IFREG | 0o644, 0));
    let ino = made.unwrap().ino;
    fs.write(ino, 0, &[7; 5 * BLOCK], false).unwrap();
    fs.shutdown().unwrap();
}

fn is_whole(volume: &Path) {
    quayfs(["fsck".as_ref(), volume.as_os_str(), "--data".as_ref()]).ok();
    let opened = Volume::open(volume, Access::ReadWrite, Duration::ZERO).unwrap();
    let fs = Fs::mount(opened, &MountOptions::default()).unwrap();
    let ino = fs.lookup(ROOT, b"kept").unwrap().ino;
    assert_eq!(fs.read(ino, 0, 5 * BLOCK).unwrap(), [7; 5 * BLOCK]);
    fs.shutdown().unwrap();
}

/// What a partition table takes, and some more.
fn overwrite(region: &Path) {
    let file = OpenOptions::new().write(true).open(region).unwrap();
    file.write_all_at(&[0xa5; 34 * 512], 0).unwrap();
}

fn of_one_file(scene: &Scene, pmem: &str) -> PathBuf {
    let file = scene.dir().join("disk");
    let args = [
        "mkfs",
        "--force",
        "--size",
        "128M",
        "--sparse",
        "--pmem-size",
        pmem,
    ];
    quayfs(args.iter().map(OsStr::new).chain([file.as_os_str()])).ok();
    file
}

#[track_caller]
fn is_put_back(volume: &Path, region: &Path) {
    lives(volume);
    overwrite(region);
    let before = std::fs::read(region).unwrap();
    let shown = volume.to_str().unwrap();
    quayfs(["fsck", shown]).fails(4, "the copy beside the data is whole");
    quayfs(["fsck", shown]).fails(4, &format!("`quayfs fsck --repair {shown}`"));
    assert!(
        std::fs::read(region).unwrap() == before,
        "a check changes nothing"
    );
    assert_eq!(quayfs(["fsck", "--repair", shown]).code, 1);
    is_whole(volume);
}

#[test]
fn the_beginning_of_a_volume_is_put_back() {
    let scene = Scene::new();
    is_put_back(&scene.vol(), &scene.vol().join("pmem"));
    // An earlier volume on the same disk had a shorter region, and what said so is still there.
    of_one_file(&scene, "16M");
    let file = of_one_file(&scene, "32M");
    is_put_back(&file, &file);
}

#[test]
fn what_was_no_volume_does_not_become_one() {
    let scene = Scene::new();
    let file = scene.dir().join("zeros");
    std::fs::File::create(&file)
        .unwrap()
        .set_len(64 << 20)
        .unwrap();
    let shown = file.to_str().unwrap();
    for args in [&["fsck", shown][..], &["fsck", "--repair", shown]] {
        quayfs(args.iter().copied()).fails(8, "no volume");
    }
    // A volume that is inside another file, and not at its beginning.
    let volume = of_one_file(&scene, "16M");
    let content = std::fs::read(&volume).unwrap();
    let image = scene.dir().join("image");
    let to = std::fs::File::create(&image).unwrap();
    to.write_all_at(&content, 1 << 20).unwrap();
    quayfs(["fsck".as_ref(), image.as_os_str()]).fails(8, "no volume");
    // The region of another volume.
    overwrite(&scene.vol().join("pmem"));
    let other = scene.dir().join("other");
    let args = [
        "mkfs",
        "--pmem-size",
        "32M",
        "--data-size",
        "128M",
        "--sparse",
    ];
    quayfs(args.iter().map(OsStr::new).chain([other.as_os_str()])).ok();
    std::fs::copy(other.join("data"), scene.vol().join("data")).unwrap();
    quayfs(["fsck".as_ref(), scene.vol().as_os_str()]).fails(8, "not a QuayFS pmem region");
}

/// A change of the region's length does not leave a copy that says the old one.
#[test]
fn a_copy_says_what_the_table_says() {
    let scene = Scene::new();
    let (vol, mut copy) = (scene.vol(), vec![0; BLOCK]);
    let shown = vol.to_str().unwrap();
    let mut is_same = |data: &str| {
        let data = std::fs::File::open(vol.join(data)).unwrap();
        data.read_exact_at(&mut copy, 128 * BLOCK as u64).unwrap();
        let mut table = vec![0; BLOCK];
        let region = std::fs::File::open(vol.join("pmem")).unwrap();
        region.read_exact_at(&mut table, 0).unwrap();
        table == copy
    };
    assert!(is_same("data"));
    quayfs(["tune", shown, "--label", "new"]).ok();
    assert!(is_same("data"));
    quayfs(["resize", shown, "--data", "200M"]).ok();
    assert!(is_same("data"));
    quayfs(["resize", shown, "--pmem", "40M"]).ok();
    lives(&vol);
    assert!(is_same("data"));
    let to = scene.dir().join("elsewhere");
    quayfs(["migrate", shown, "--data", to.to_str().unwrap()]).ok();
    lives(&vol);
    assert!(is_same("data"));
    is_put_back(&vol, &vol.join("pmem"));
}

/// What has overwritten a volume may be there on purpose, and what it was may have had another place.
#[test]
fn what_is_there_now_is_not_overwritten() {
    let scene = Scene::new();
    let file = of_one_file(&scene, "32M");
    lives(&file);
    overwrite(&file);
    let other = OpenOptions::new().write(true).open(&file).unwrap();
    other.write_all_at(b"XFSB", 0).unwrap();
    let before = std::fs::read(&file).unwrap();
    let shown = file.to_str().unwrap();
    for args in [
        &["fsck", shown][..],
        &["fsck", "--repair", shown],
        &["fsck", "--quiet", "--repair", shown],
    ] {
        quayfs(args.iter().copied()).fails(8, "holds xfs data, and what is left of a volume");
    }
    assert!(std::fs::read(&file).unwrap() == before);
    // As wipefs does it.
    other.write_all_at(&[0; 4], 0).unwrap();
    quayfs(["fsck", shown]).fails(4, "puts them back");
    // Not while anything has it.
    let held = std::fs::File::open(&file).unwrap();
    held.lock().unwrap();
    quayfs(["fsck", shown]).fails(8, "in use");
    quayfs(["fsck", "--repair", shown]).fails(8, "in use");
    drop(held);
    assert_eq!(quayfs(["fsck", "--repair", shown]).code, 1);
    is_whole(&file);
}

/// On a disk that had another volume before, with a shorter region: its header and its copies are still there, and the end of
/// its page table.
#[test]
fn an_earlier_volume_does_not_come_back() {
    let scene = Scene::new();
    let earlier = std::fs::read(of_one_file(&scene, "16M")).unwrap();
    let geometry = config_of(&scene.dir().join("disk")).unwrap().geometry;
    let file = of_one_file(&scene, "64M");
    lives(&file);
    let end = geometry.l2p_map_off + geometry.blocks * 8;
    let tail = end - geometry.blocks * 2..end;
    let header = 16 << 20..(16 << 20) + 130 * BLOCK as u64;
    let disk = OpenOptions::new().write(true).open(&file).unwrap();
    // The end of the table lies where the new one has its own.
    let now = config_of(&file).unwrap();
    for range in [tail, header] {
        let bytes = &earlier[range.start as usize..range.end as usize];
        disk.write_all_at(bytes, range.start).unwrap();
    }
    overwrite(&file);
    quayfs(["fsck", file.to_str().unwrap()]).fails(4, "puts them back");
    let said = quayfs(["fsck", "--repair", file.to_str().unwrap()]);
    assert!([1, 4].contains(&said.code), "{}", said.code);
    assert_eq!(config_of(&file).unwrap().uuid, now.uuid);
}

/// A partition table is not mended away where only one of the two tables was hit.
#[test]
fn what_has_hit_one_table_is_not_overwritten_either() {
    let scene = Scene::new();
    let file = of_one_file(&scene, "32M");
    lives(&file);
    let shown = file.to_str().unwrap();
    let disk = OpenOptions::new()
        .write(true)
        .read(true)
        .open(&file)
        .unwrap();
    for (at, what) in [(0, &b"XFSB"[..]), (4096, &b"\xfc\x4e\x2b\xa9"[..])] {
        let mut before = vec![0; BLOCK];
        let off = at / 4096 * 4096;
        disk.read_exact_at(&mut before, off).unwrap();
        disk.write_all_at(&[0; BLOCK], off).unwrap();
        disk.write_all_at(what, at).unwrap();
        quayfs(["fsck", "--repair", shown]).fails(8, "what is left of a volume");
        quayfs(["tune", shown, "--label", "x"]).fails(1, "what is left of a volume");
        // No mount would be served.
        let status = quayfs(["status", shown]);
        assert_eq!(status.code, 2, "{status:?}");
        assert!(
            status.out.contains("what is left of a volume"),
            "{status:?}"
        );
        disk.write_all_at(&before, off).unwrap();
    }
    is_whole(&file);
}

/// What was a volume, and is the data of another one now, is not both.
#[test]
fn the_data_of_a_volume_are_no_volume() {
    let scene = Scene::new();
    let file = of_one_file(&scene, "16M");
    lives(&file);
    let dir = scene.dir().join("dir");
    let args = ["mkfs", "--force", "--pmem-size", "32M", "--data"].map(OsStr::new);
    quayfs(args.into_iter().chain([file.as_os_str(), dir.as_os_str()])).ok();
    lives(&dir);
    quayfs(["info".as_ref(), file.as_os_str()]).fails(1, "a data device, one half of a volume");
    let disk = std::fs::read(&file).unwrap();
    let second = &disk[BLOCK..2 * BLOCK];
    assert!(
        second.iter().all(|byte| *byte == 0),
        "the second table of the earlier volume"
    );
    is_whole(&dir);
}

/// Where both tables were lost before the device became the data of another volume, so that mkfs saw none.
#[test]
fn what_is_left_of_a_volume_does_not_take_the_data_of_another_one() {
    let scene = Scene::new();
    let file = of_one_file(&scene, "16M");
    lives(&file);
    let disk = OpenOptions::new().write(true).open(&file).unwrap();
    disk.write_all_at(&[0; 2 * BLOCK], 0).unwrap();
    let dir = scene.dir().join("dir");
    let args = ["mkfs", "--pmem-size", "32M", "--data"].map(OsStr::new);
    quayfs(args.into_iter().chain([file.as_os_str(), dir.as_os_str()])).ok();
    lives(&dir);
    for repair in [&["fsck"][..], &["fsck", "--repair"]] {
        let args = repair.iter().map(OsStr::new);
        quayfs(args.chain([file.as_os_str()])).fails(8, "the data device of another volume");
    }
    is_whole(&dir);
}

/// The second table is as good as the first one.
#[test]
fn a_volume_with_one_table_is_not_overwritten_without_force() {
    let scene = Scene::new();
    let file = of_one_file(&scene, "16M");
    lives(&file);
    let disk = OpenOptions::new().write(true).open(&file).unwrap();
    disk.write_all_at(&[0; BLOCK], 0).unwrap();
    let shown = file.to_str().unwrap();
    quayfs(["mkfs", shown]).fails(1, "a QuayFS volume");
    let dir = scene.dir().join("dir");
    quayfs(["mkfs", "--data", shown, dir.to_str().unwrap()]).fails(1, "a QuayFS volume");
    lives(&file);
    is_whole(&file);
}
