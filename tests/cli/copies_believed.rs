//! Which copy of a configuration table is believed, by what is left of the volume that it describes.

use super::copies::lives;
use super::*;
use quayfs_fs::uuid_text;
use quayfs_fs::volume::config_of;
use quayfs_layout::config::ConfigTable;
use quayfs_layout::inode::S_IFREG;
use std::fs::{File, OpenOptions};
use std::path::PathBuf;

const MIB: u64 = 1 << 20;
const FILES: u64 = 26;

fn made(scene: &Scene, pmem: &str, more: &[&str]) -> PathBuf {
    let file = scene.dir().join("disk");
    let args = [
        "mkfs",
        "--force",
        "--size",
        "1G",
        "--sparse",
        "--pmem-size",
        pmem,
    ];
    let args = args.iter().chain(more).map(OsStr::new);
    quayfs(args.chain([file.as_os_str()])).ok();
    file
}

fn opened(file: &Path) -> File {
    OpenOptions::new()
        .read(true)
        .write(true)
        .open(file)
        .unwrap()
}

/// The region and the first data.
fn front(file: &Path) -> Vec<u8> {
    let mut bytes = vec![0; 80 << 20];
    opened(file).read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

/// No two blocks of the files are alike.
fn content(nth: u64) -> Vec<u8> {
    let blocks = if nth == 0 { 325 } else { nth % 4 + 1 };
    let block = |n: u64| {
        let mut block = vec![nth as u8 + 1; BLOCK];
        block[..8].copy_from_slice(&n.to_le_bytes());
        block
    };
    (0..blocks).flat_map(block).collect()
}

fn fill(volume: &Path) {
    let opened = Volume::open(volume, Access::ReadWrite, Duration::ZERO).unwrap();
    let fs = Fs::mount(opened, &MountOptions::default()).unwrap();
    for nth in 0..FILES {
        let (by, name) = (Caller::default(), format!("file {nth}"));
        let made = fs.mknod(by, ROOT, name.as_bytes(), S_IFREG | 0o644, 0);
        fs.write(made.unwrap().ino, 0, &content(nth), false)
            .unwrap();
    }
    fs.shutdown().unwrap();
}

#[track_caller]
fn has_all(volume: &Path) {
    quayfs(["fsck".as_ref(), volume.as_os_str(), "--data".as_ref()]).ok();
    let opened = Volume::open(volume, Access::ReadWrite, Duration::ZERO).unwrap();
    let fs = Fs::mount(opened, &MountOptions::default()).unwrap();
    for nth in 0..FILES {
        let ino = fs
            .lookup(ROOT, format!("file {nth}").as_bytes())
            .unwrap()
            .ino;
        let want = content(nth);
        let read = fs.read(ino, 0, want.len() + 1).unwrap();
        assert!(read == want, "file {nth}");
    }
    fs.shutdown().unwrap();
}

/// What a `dd` to the wrong disk takes.
#[test]
fn the_first_mebibyte_of_a_volume_is_put_back() {
    let scene = Scene::new();
    let file = made(&scene, "64M", &[]);
    fill(&file);
    let whole = front(&file);
    let shown = file.to_str().unwrap();
    let much = [(200 << 10, 0), (480 << 10, 0xff), (512 << 10, 0x5a)];
    for (len, fill) in much
        .into_iter()
        .chain([(MIB, 0), (MIB, 0x5a), (3 * MIB / 2, 0)])
    {
        let disk = opened(&file);
        disk.write_all_at(&vec![fill; len as usize], 0).unwrap();
        quayfs(["fsck", shown]).fails(4, "the copy beside the data is whole");
        let said = quayfs(["fsck", "--repair", shown]);
        assert_eq!(said.code, 1, "{len} bytes of {fill}: {said:?}");
        has_all(&file);
        disk.write_all_at(&whole, 0).unwrap();
    }
}

#[track_caller]
fn is_refused(file: &Path, config: &ConfigTable, why: &str) {
    let before = front(file);
    for args in [&["fsck"][..], &["fsck", "--repair"]] {
        let args = args.iter().map(OsStr::new);
        let said = quayfs(args.chain([file.as_os_str()]));
        assert!(said.code == 8 && said.err.contains(why), "{said:?}");
        let at = config.geometry.pmem_len + 128 * BLOCK as u64;
        let named = format!("at byte {at} of {}", file.display());
        for what in [&named, &uuid_text(config.uuid), &config.label()] {
            assert!(said.err.contains(what.as_str()), "{what}: {said:?}");
        }
    }
    assert!(front(file) == before);
}

#[test]
fn a_copy_of_which_too_little_is_left_is_named() {
    let scene = Scene::new();
    let file = made(&scene, "64M", &["--label", "archive"]);
    fill(&file);
    let config = config_of(&file).unwrap();
    // All that the page table said is gone, with its checksums and its log.
    let log = config.geometry.l2p_log_off as usize + BLOCK;
    opened(&file).write_all_at(&vec![0; log], 0).unwrap();
    is_refused(
        &file,
        &config,
        "is not put back, since most of its page table is gone, and so is the log",
    );
}

/// A volume on a disk that had another one before, whose tables were lost, so that mkfs saw none: all that the later one has
/// not written is still there.
fn with_an_earlier(scene: &Scene) -> (PathBuf, ConfigTable) {
    let file = made(scene, "32M", &["--label", "earlier"]);
    fill(&file);
    let mut earlier = config_of(&file).unwrap();
    earlier.created -= 1;
    let copy = earlier.geometry.pmem_len + 128 * BLOCK as u64;
    opened(&file).write_all_at(&earlier.encode(), copy).unwrap();
    let before = front(&file);
    let file = made(scene, "64M", &["--label", "later"]);
    lives(&file);
    let (now, g) = (front(&file), config_of(&file).unwrap().geometry);
    let disk = opened(&file);
    // The log of the page table is zeroed.
    let log = g.l2p_log_off..g.lane_off;
    for (at, old) in (0..).step_by(BLOCK).zip(before.chunks(BLOCK)) {
        let is_free = now[at..at + BLOCK].iter().all(|b| *b == 0);
        let at = at as u64;
        let is_copy = [earlier.geometry.pmem_len, copy].contains(&at);
        if is_copy || is_free && !log.contains(&at) {
            disk.write_all_at(old, at).unwrap();
        }
    }
    (file, earlier)
}

#[test]
fn the_last_volume_on_a_disk_is_put_back() {
    for len in [34 * 512, 200 << 10, MIB] {
        let scene = Scene::new();
        let (file, _) = with_an_earlier(&scene);
        let now = config_of(&file).unwrap();
        opened(&file)
            .write_all_at(&vec![0; len as usize], 0)
            .unwrap();
        quayfs(["fsck".as_ref(), file.as_os_str()]).fails(4, "puts them back");
        let said = quayfs(["fsck".as_ref(), "--repair".as_ref(), file.as_os_str()]);
        assert_eq!(said.code, 1, "{said:?}");
        assert_eq!(config_of(&file).unwrap().uuid, now.uuid);
        lives(&file);
    }
}

/// Also where the copy of the later one is lost, or too little is left of that.
#[test]
fn an_earlier_volume_is_never_put_back() {
    for (len, keeps) in [(34 * 512, false), (MIB, false), (4 * MIB, true)] {
        let scene = Scene::new();
        let (file, earlier) = with_an_earlier(&scene);
        let now = config_of(&file).unwrap();
        let disk = opened(&file);
        disk.write_all_at(&vec![0; len as usize], 0).unwrap();
        if !keeps {
            let at = now.geometry.pmem_len + 128 * BLOCK as u64;
            disk.write_all_at(&[0; BLOCK], at).unwrap();
        }
        is_refused(&file, &earlier, "is not put back, since");
    }
}
