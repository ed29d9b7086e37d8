//! Mount options that a volume keeps. Needs `/dev/fuse`.

use crate::program;

use program::{Mounted, Scene, can_mount, quayfs};
use std::ffi::OsStr;

fn tune(scene: &Scene, args: &[&str]) -> program::Run {
    let vol = scene.vol();
    let all = ["tune".as_ref(), vol.as_os_str()];
    quayfs(all.into_iter().chain(args.iter().map(OsStr::new)))
}

fn options(m: &Mounted) -> Vec<String> {
    let info = m.info();
    let all = info["options"].as_str().unwrap();
    all.split(',').map(String::from).collect()
}

#[test]
fn what_a_volume_keeps_holds_unless_the_mount_says_otherwise() {
    if !can_mount() {
        return;
    }
    let scene = Scene::new();
    tune(&scene, &["-o", "commit=30,durability=commit,noatime"]).ok();
    let m = Mounted::on(scene, "norestart");
    let has = |m: &Mounted, word: &str| options(m).iter().any(|w| w == word);
    assert!(
        has(&m, "commit=30") && has(&m, "noatime"),
        "{:?}",
        options(&m)
    );
    assert_eq!(
        m.info()["stored_options"],
        "commit=30,durability=commit,noatime"
    );
    // Not while it is in use.
    tune(&m.0, &["-o", ""]).fails(1, "in use");
    m.umount();
    // The default, said, counts more than what is kept.
    m.mount("commit=5,relatime");
    assert!(
        !has(&m, "commit=30") && !has(&m, "noatime"),
        "{:?}",
        options(&m)
    );
    m.umount();
    // What fits with what is said only without what is kept.
    tune(&m.0, &["-o", "data=ordered"]).ok();
    let (vol, mnt) = (m.0.vol(), m.mnt());
    let line = [
        "mount".as_ref(),
        vol.as_os_str(),
        mnt.as_os_str(),
        "-o".as_ref(),
        "durability=op".as_ref(),
    ];
    quayfs(line).fails(1, "the volume keeps `data=ordered`");
    m.mount("durability=op,data=journal");
    m.umount();
    m.fsck();
}
