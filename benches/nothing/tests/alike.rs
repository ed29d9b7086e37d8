//! Behind `crates/fuse` and behind `fuser` the same calls have the same outcome: what is measured of both is the
//! same work. Needs `/dev/fuse` and root, as all tests on mounts; `QUAYFS_SKIP_FUSE=1` leaves it out.

#![allow(missing_docs, reason = "tests")]

use std::fs;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A daemon in the foreground with its mount, unmounted when this goes.
struct Mounted {
    daemon: Child,
    at: PathBuf,
}

impl Mounted {
    fn new(program: &str, at: &Path, options: &str) -> Self {
        Self::with(program, at, options, &[])
    }

    fn with(program: &str, at: &Path, options: &str, more: &[&str]) -> Self {
        fs::create_dir(at).unwrap();
        let above = fs::metadata(at).unwrap().dev();
        let mut daemon = Command::new(program)
            .arg(at)
            .args(["--ram", "8M", "-o", options])
            .args(more)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        while fs::metadata(at).is_ok_and(|m| m.dev() == above) {
            assert!(daemon.try_wait().unwrap().is_none(), "{program} has ended");
            std::thread::yield_now();
        }
        let at = at.to_owned();
        Self { daemon, at }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg(&self.at).status();
        if !unmounted.is_ok_and(|s| s.success()) {
            // Its mount is dead then, and not in the way.
            let _ = self.daemon.kill();
        }
        let _ = self.daemon.wait();
    }
}

/// What calls of each kind say.
fn outcomes(dir: &Path) -> Vec<String> {
    let mut said = Vec::new();
    let mut note = |what: &str, of: io::Result<String>| {
        let of = of.unwrap_or_else(|e| format!("{:?}", e.raw_os_error()));
        said.push(format!("{what}: {of}"));
    };
    let file = dir.join("d/f");
    note("absent", fs::metadata(&file).map(|m| m.len().to_string()));
    note(
        "mkdir",
        fs::create_dir(dir.join("d")).map(|()| "done".into()),
    );
    note(
        "mkdir again",
        fs::create_dir(dir.join("d")).map(|()| "done".into()),
    );
    note(
        "write",
        fs::write(&file, [7; 10_000]).map(|()| "done".into()),
    );
    let attributes =
        |m: fs::Metadata| format!("{} {:o} {} {}", m.len(), m.mode(), m.nlink(), m.blocks());
    note("stat", fs::metadata(&file).map(attributes));
    let opened = fs::File::options()
        .read(true)
        .write(true)
        .open(&file)
        .unwrap();
    note(
        "overwrite",
        opened.write_at(&[9; 5000], 3000).map(|n| n.to_string()),
    );
    note("fsync", opened.sync_all().map(|()| "done".into()));
    let mut end = [0; 4096];
    note(
        "read at the end",
        opened
            .read_at(&mut end, 9000)
            .map(|n| format!("{n} {:?}", &end[..n])),
    );
    note("truncate", opened.set_len(4000).map(|()| "done".into()));
    drop(opened);
    note("read", fs::read(&file).map(|b| format!("{b:?}")));
    note(
        "symlink",
        symlink("d/f", dir.join("l")).map(|()| "done".into()),
    );
    note(
        "readlink",
        fs::read_link(dir.join("l")).map(|l| format!("{l:?}")),
    );
    note(
        "link",
        fs::hard_link(&file, dir.join("g")).map(|()| "done".into()),
    );
    note("stat", fs::metadata(&file).map(attributes));
    note(
        "rename",
        fs::rename(&file, dir.join("d/h")).map(|()| "done".into()),
    );
    let list = |path: &Path| -> io::Result<String> {
        let names: io::Result<Vec<_>> = fs::read_dir(path)?
            .map(|entry| Ok((entry.as_ref().unwrap().file_name(), entry?.file_type()?)))
            .collect();
        Ok(format!("{:?}", names?))
    };
    note("list", list(dir));
    note("list", list(&dir.join("d")));
    note(
        "unlink",
        fs::remove_file(dir.join("d/h")).map(|()| "done".into()),
    );
    note(
        "unlink again",
        fs::remove_file(dir.join("d/h")).map(|()| "done".into()),
    );
    note(
        "rmdir",
        fs::remove_dir(dir.join("d")).map(|()| "done".into()),
    );
    note("list", list(dir));
    said
}

fn may_mount() -> bool {
    let skipped = std::env::var_os("QUAYFS_SKIP_FUSE").is_some_and(|v| v == "1");
    if skipped {
        eprintln!("not tested: QUAYFS_SKIP_FUSE=1");
    }
    !skipped
}

/// With a device, each fsync of a file or directory writes a block, and nothing else does.
#[test]
fn an_fsync_writes_one_block() {
    if !may_mount() {
        return;
    }
    let scene = tempfile::tempdir().unwrap();
    let (device, at) = (scene.path().join("device"), scene.path().join("bound"));
    fs::write(&device, [0; 5 * 4096]).unwrap();
    let program = env!("CARGO_BIN_EXE_quayfs-nothing");
    let more = ["--device", device.to_str().unwrap()];
    let _mounted = Mounted::with(program, &at, "transport=dev", &more);
    let written = || {
        let content = fs::read(&device).unwrap();
        content
            .chunks(4096)
            .map(|block| block == [1; 4096])
            .collect::<Vec<_>>()
    };
    fs::write(at.join("f"), [7; 10_000]).unwrap();
    assert_eq!(written(), [false; 5]);
    let file = fs::File::options().write(true).open(at.join("f")).unwrap();
    file.sync_all().unwrap();
    file.sync_data().unwrap();
    assert_eq!(written(), [true, true, false, false, false]);
    fs::File::open(&at).unwrap().sync_all().unwrap();
    assert_eq!(written(), [true, true, true, false, false]);
}

#[test]
fn both_answer_alike() {
    if !may_mount() {
        return;
    }
    let scene = tempfile::tempdir().unwrap();
    for open in ["elide", "answer"] {
        let options = format!("open={open},transport=dev,threads=1");
        let said = |program: &str, label: &str| {
            let at = scene.path().join(format!("{label}-{open}"));
            let _mounted = Mounted::new(program, &at, &options);
            outcomes(&at)
        };
        let ours = said(env!("CARGO_BIN_EXE_quayfs-nothing"), "crates-fuse");
        let theirs = said(env!("CARGO_BIN_EXE_quayfs-nothing-fuser"), "fuser");
        assert_eq!(ours, theirs, "open={open}");
        assert!(ours.contains(&"write: done".into()), "{ours:?}");
    }
}
