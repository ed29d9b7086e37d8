//! Another file system on a loop device on a file of a mount whose writers bypass the page cache
//! (`atomic_writes`), through the page cache and with `O_DIRECT`: nothing is lost on the way, and a process that has
//! the file in the page cache sees what was written.
//!
//! A test binary of its own: to its end the namespace of the script has copies of what other tests have mounted.
//!
//! Needs `/dev/fuse`, root, xfsprogs and python3. `QUAYFS_LOOP_ROUNDS`: how often it is written to, else a few times.

mod program;

use std::process::Command;

use program::{Mounted, Scene, Start as _, can_be_root};

/// The options of both transports' mounts.
const OPTIONS: &str = "atomic_writes";

/// One after the other: a namespace that one of them makes would keep what the other one has mounted.
#[test]
fn an_image_of_xfs() {
    if !can_be_root() {
        return;
    }
    let rounds = std::env::var("QUAYFS_LOOP_ROUNDS").unwrap_or("4".into());
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/loops/xfs.py");
    for direct in ["off", "on"] {
        let m = Mounted::on(Scene::with_data("512M"), OPTIONS);
        let run = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "python3", script])
            .args([m.mnt(), m.0.dir().into()])
            .args([&rounds, direct])
            .capture()
            .expect("unshare runs");
        let said = String::from_utf8_lossy(&run.stderr);
        let log = m.log();
        assert!(run.status.success(), "--direct-io={direct}: {said}{log}");
        m.umount();
        m.fsck();
    }
}
