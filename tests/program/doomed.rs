//! A mount whose last rounds find that the disk below is full.

use super::{Mounted, Scene, Start as _, is_mounted, quayfs};
use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// A small file system for files that are to find it full; it goes away with the test.
struct Small(PathBuf);

impl Small {
    fn take_away(&self) {
        if is_mounted(&self.0) {
            let _ = Command::new("umount").arg("-l").arg(&self.0).finish();
        }
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        self.take_away();
    }
}

/// The mount, with more in its pmem region than its data device has room for. Takes root.
pub struct Doomed {
    /// The mount.
    pub mounted: Mounted,
    small: Small,
}

impl Drop for Doomed {
    /// Both mounts go before the directory that they are in, which cannot be removed otherwise.
    fn drop(&mut self) {
        self.mounted.take_away();
        self.small.take_away();
    }
}

impl Doomed {
    /// Makes it.
    #[track_caller]
    pub fn new() -> Self {
        let scene = Scene::in_memory();
        let small = scene.dir().join("small");
        fs::create_dir(&small).unwrap();
        let mount = ["-t", "tmpfs", "-o", "size=24m", "none"];
        let made = Command::new("mount").args(mount).arg(&small).finish();
        assert!(made.unwrap().success());
        let small = Small(small);
        fs::remove_dir_all(scene.vol()).unwrap();
        let (vol, data) = (scene.vol(), small.0.join("data"));
        let paths = [
            "mkfs",
            vol.to_str().unwrap(),
            "--data",
            data.to_str().unwrap(),
        ];
        let sizes = ["--pmem-size", "64M", "--data-size", "256M", "--sparse"];
        quayfs([&paths[..], &sizes].concat()).ok();
        let mounted = Mounted::on(scene, "rw");
        fs::write(mounted.mnt().join("file"), vec![7; 28 << 20]).unwrap();
        Self { mounted, small }
    }
}
