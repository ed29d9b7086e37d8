//! A data device of another length, with files, on real mounts. Needs `/dev/fuse`.

use crate::program;

use program::{Mounted, Scene, can_mount, quayfs};
use std::fs;
use std::path::Path;

mod mounted;

fn content(n: u32) -> Vec<u8> {
    quayfs_oracle::rng::bytes(n.into(), 300_000 + n as usize)
}

fn fill(dir: &Path, files: std::ops::Range<u32>) {
    for n in files {
        fs::write(dir.join(n.to_string()), content(n)).unwrap();
    }
}

fn check(dir: &Path, files: std::ops::Range<u32>) {
    for n in files {
        assert!(
            fs::read(dir.join(n.to_string())).unwrap() == content(n),
            "{n}"
        );
    }
}

fn resize(scene: &Scene, data: &str) -> program::Run {
    let vol = scene.vol();
    quayfs([
        "resize".as_ref(),
        vol.as_os_str(),
        "--data".as_ref(),
        data.as_ref(),
    ])
}

#[test]
fn a_volume_that_was_full_takes_more_and_gives_it_back() {
    if !can_mount() {
        return;
    }
    let m = Mounted::on(Scene::with_data("64M"), "norestart");
    fill(&m.mnt(), 0..150);
    let full = fs::write(m.mnt().join("rest"), vec![1; 64 << 20]).unwrap_err();
    assert_eq!(full.raw_os_error(), Some(libc::ENOSPC));
    fs::remove_file(m.mnt().join("rest")).unwrap();
    resize(&m.0, "128M").fails(1, "would not outlive its daemon");
    m.umount();
    resize(&m.0, "128M").ok();
    m.fsck();
    m.mount("norestart");
    check(&m.mnt(), 0..150);
    fill(&m.mnt(), 150..300);
    m.umount();
    m.fsck();
    m.mount("norestart");
    check(&m.mnt(), 0..300);
    for n in 100..300 {
        fs::remove_file(m.mnt().join(n.to_string())).unwrap();
    }
    m.umount();
    resize(&m.0, "64M").ok();
    m.fsck();
    m.mount("norestart");
    check(&m.mnt(), 0..100);
    fill(&m.mnt(), 100..120);
    check(&m.mnt(), 0..120);
    m.umount();
    m.fsck();
}
