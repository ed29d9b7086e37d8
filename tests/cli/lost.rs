//! A repair that could not keep everything says so: by its exit code, in the log, and by what `status` says.

use super::*;
use quayfs_layout::inode::S_IFREG;

#[test]
fn a_repair_with_losses_does_not_end_as_if_there_were_none() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (mounted, volume) = (dir.path().join("mounted"), dir.path().join("volume"));
    let shown = mounted.to_str().unwrap();
    quayfs(["mkfs", shown, "--size", "128M", "--pmem-size", "32M"]).ok();
    let opened = Volume::open(&mounted, Access::ReadWrite, Duration::ZERO).unwrap();
    let log = opened.config().geometry.batch_log_off;
    assert!(log > 0, "not on a disk");
    let fs = Fs::mount_quiet(opened, &MountOptions::default()).unwrap();
    let file = fs.mknod(Caller::default(), ROOT, b"file", S_IFREG | 0o644, 0);
    fs.fsync(file.unwrap().ino).unwrap();
    // As the power leaves it.
    std::fs::copy(&mounted, &volume).unwrap();
    fs.shutdown().unwrap();
    let region = std::fs::File::options().write(true).open(&volume).unwrap();
    let shown = volume.to_str().unwrap();

    // One head of the log costs nothing.
    region.write_all_at(&[0xa5; 512], log).unwrap();
    let run = quayfs(["fsck", "--repair", shown]);
    assert_eq!(run.code, 1, "{run:?}");
    assert!(
        run.out.contains("repaired: journal: a damaged head"),
        "{run:?}"
    );
    quayfs(["fsck", "--repair", shown]).ok();
    let run = quayfs(["status", shown]);
    assert!(!run.out.contains("could not keep"), "{run:?}");

    region.write_all_at(&[0xa5; 8192], log).unwrap();
    let run = quayfs(["fsck", "--repair", "--json", shown]);
    assert_eq!(run.code, 4, "{run:?}");
    let json: Value = serde_json::from_str(&run.out).unwrap();
    assert_eq!(
        (&json["outcome"], &json["lost_commits"]),
        (&"repaired".into(), &true.into())
    );
    quayfs(["fsck", "--repair", shown]).ok();
    let run = quayfs(["status", shown]);
    assert_eq!(run.code, 1, "{run:?}");
    let words: Vec<&str> = run.out.split_whitespace().collect();
    let losses = "commits that only the batch log had are lost";
    assert!(words.join(" ").contains(losses), "{run:?}");
}
