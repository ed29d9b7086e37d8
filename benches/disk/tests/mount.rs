//! What the simulated disk leaves in its image, on real mounts. Needs `/dev/fuse` and root, as all tests on mounts;
//! `QUAYFS_SKIP_FUSE=1` leaves it out.

#![allow(missing_docs, reason = "tests")]

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Lines};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

const SECTOR: usize = 512;
const SECTORS: usize = 256;

fn may_mount() -> bool {
    let skip = std::env::var_os("QUAYFS_SKIP_FUSE").is_some_and(|v| v == "1");
    if skip {
        eprintln!("not tested: QUAYFS_SKIP_FUSE=1");
    }
    !skip
}

/// A disk with an image of zeros.
struct Disk {
    scene: tempfile::TempDir,
    process: Child,
    said: Lines<BufReader<ChildStdout>>,
}

impl Disk {
    fn new(options: &[&str]) -> Self {
        let scene = tempfile::tempdir().unwrap();
        let (image, at) = (scene.path().join("image"), scene.path().join("mnt"));
        fs::write(&image, vec![0; SECTORS * SECTOR]).unwrap();
        fs::create_dir(&at).unwrap();
        let mut process = Command::new(env!("CARGO_BIN_EXE_quayfs-disk"))
            .args([&image, &at])
            .args(options)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(process.stdout.take().unwrap()).lines();
        let mut disk = Self {
            scene,
            process,
            said,
        };
        assert_eq!(disk.says(), "ready");
        disk
    }

    fn path(&self) -> PathBuf {
        self.scene.path().join("mnt/disk")
    }

    fn open(&self) -> File {
        let how = File::options().read(true).write(true).open(self.path());
        how.unwrap()
    }

    fn says(&mut self) -> String {
        self.said.next().expect("it has not ended").unwrap()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }

    /// Ends it; its image.
    fn end(mut self) -> Vec<u8> {
        self.signal(Signal::TERM);
        assert!(self.process.wait().unwrap().success());
        fs::read(self.scene.path().join("image")).unwrap()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Of a test that has failed: its mount is taken away, too.
        let _ = self.process.kill();
        let _ = self.process.wait();
        let at = self.scene.path().join("mnt");
        let _ = Command::new("umount")
            .args(["-q".as_ref(), at.as_os_str()])
            .status();
    }
}

fn write(file: &File, sector: usize, byte: u8, sectors: usize) {
    let content = vec![byte; sectors * SECTOR];
    file.write_all_at(&content, (sector * SECTOR) as u64)
        .unwrap();
}

#[test]
fn a_cut_keeps_what_was_flushed_and_ends_all() {
    if !may_mount() {
        return;
    }
    let mut disk = Disk::new(&["--seed", "3", "--flush-takes", "1", "--requests", "100000"]);
    let names: Vec<_> = fs::read_dir(disk.path().parent().unwrap())
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert_eq!(names, ["disk"]);
    let file = disk.open();
    assert_eq!(file.metadata().unwrap().len(), (SECTORS * SECTOR) as u64);
    write(&file, 0, 1, SECTORS);
    file.sync_data().unwrap();
    write(&file, 0, 2, SECTORS / 2);
    let mut seen = vec![0; 2 * SECTOR];
    let middle = ((SECTORS / 2 - 1) * SECTOR) as u64;
    file.read_exact_at(&mut seen, middle).unwrap();
    assert_eq!((seen[0], seen[SECTOR]), (2, 1));
    disk.signal(Signal::USR1);
    let said = disk.says();
    assert!(file.read_at(&mut seen, 0).is_err());
    assert!(file.write_at(&seen, 0).is_err());
    assert!(file.sync_all().is_err());
    drop(file);
    let left = disk.end();
    let kept = left
        .chunks_exact(SECTOR)
        .filter(|s| s.iter().all(|b| *b == 2))
        .count();
    let half = SECTORS / 2;
    assert_eq!(
        said,
        format!("cut: {kept} of {half} sectors that were not flushed were kept")
    );
    let old = left.chunks_exact(SECTOR);
    assert_eq!(
        old.filter(|s| s.iter().all(|b| *b == 1)).count(),
        SECTORS - kept
    );
    assert!(left[half * SECTOR..].iter().all(|b| *b == 1));
}

#[test]
fn an_orderly_end_loses_nothing() {
    if !may_mount() {
        return;
    }
    let disk = Disk::new(&[]);
    let file = disk.open();
    write(&file, 5, 7, 3);
    // No part of a sector, and nothing behind the end.
    assert!(file.write_at(&[1; 100], 0).is_err());
    assert!(
        file.write_at(&[1; SECTOR], (SECTORS * SECTOR) as u64)
            .is_err()
    );
    assert!(file.set_len(0).is_err());
    // A program that has it open goes on after the signal, until it closes it.
    disk.signal(Signal::TERM);
    write(&file, 6, 8, 1);
    drop(file);
    let mut disk = disk;
    assert!(disk.process.wait().unwrap().success());
    let left = fs::read(disk.scene.path().join("image")).unwrap();
    let firsts: Vec<_> = left.chunks_exact(SECTOR).map(|s| s[0]).collect();
    assert_eq!(firsts[4..9], [0, 7, 8, 7, 0]);
}
