//! Threads of the mount that panic: nothing builds upon what they have left, and what was done before is kept.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use quayfs_background::guarded;
use quayfs_blockdev::{ReadRun, WriteRun};
use quayfs_fs::scrub::{Options, State};

use super::*;

/// A device with a fault of the program in it.
struct Broken {
    under: Arc<dyn BlockDevice>,
    /// A thread that reads or writes panics.
    armed: AtomicBool,
}

impl Broken {
    fn meet(&self) {
        assert!(!self.armed.load(Ordering::Acquire), "as the test wants it");
    }
}

impl BlockDevice for Broken {
    fn blocks(&self) -> u64 {
        self.under.blocks()
    }

    fn read(&self, block: u64, buf: &mut [u8]) -> io::Result<()> {
        self.meet();
        self.under.read(block, buf)
    }

    fn read_many(&self, runs: &mut [ReadRun<'_>]) -> io::Result<()> {
        self.meet();
        self.under.read_many(runs)
    }

    fn write(&self, block: u64, buf: &[u8]) -> io::Result<()> {
        self.meet();
        self.under.write(block, buf)
    }

    fn write_many(&self, runs: &[WriteRun<'_>]) -> io::Result<()> {
        self.meet();
        self.under.write_many(runs)
    }

    fn flush(&self) -> io::Result<()> {
        self.under.flush()
    }

    fn discard(&self, block: u64, count: u64) -> io::Result<()> {
        self.under.discard(block, count)
    }

    fn describe(&self) -> String {
        self.under.describe()
    }

    fn is_read_only(&self) -> bool {
        self.under.is_read_only()
    }

    fn silent_for(&self) -> Duration {
        self.under.silent_for()
    }

    fn missing(&self) -> u64 {
        self.under.missing()
    }
}

/// A disk, and the switch of the fault in its device.
fn broken(on: Backend) -> (Disk, Arc<Broken>) {
    let mut disk = Disk::on(on);
    let device = Arc::new(Broken {
        under: Arc::clone(&disk.device),
        armed: AtomicBool::new(false),
    });
    disk.device = Arc::<Broken>::clone(&device);
    (disk, device)
}

/// A round panics: the mount is read-only from there on, and its end commits what was done before.
#[test]
fn a_panic_in_the_background_keeps_what_was_done() {
    let (disk, device) = broken(Backend::File);
    let options = MountOptions::parse(&["durability=commit,commit=300"]).unwrap();
    let fs = Fs::mount(disk.volume(), &options).unwrap();
    let ino = file(&fs, ROOT, "kept");
    fs.write(ino, 0, &[7; 3 * BLOCK], false).unwrap();
    // Only what is committed and digested is written out.
    fs.e.commit().unwrap();
    quayfs_background::digest::digest_all(&fs.e).unwrap();
    file(&fs, ROOT, "not committed yet");
    device.armed.store(true, Ordering::Release);
    fs.e.kick(false, true);
    until(|| fs.has_failed());
    assert_eq!(
        fs.write(ino, 0, &[8; BLOCK], false).unwrap_err(),
        FsError::ReadOnly
    );
    device.armed.store(false, Ordering::Release);
    fs.shutdown().unwrap();
    drop(fs);

    let fs = disk.mount("noatime");
    assert_eq!(fs.read(ino, 0, 3 * BLOCK).unwrap(), [7; 3 * BLOCK]);
    fs.lookup(ROOT, b"not committed yet").unwrap();
    disk.ends(fs);
}

/// The thread that commits goes on doing that, and nothing else.
#[test]
fn who_panics_has_another_try_on_a_mount_that_has_failed() {
    let disk = Disk::new();
    let fs = disk.mount("noatime");
    let mut seen = Vec::new();
    let seen_by_body = std::sync::Mutex::new(&mut seen);
    guarded(&fs.e, "quayfs-test", |e| {
        seen_by_body.lock().unwrap().push(e.is_read_only());
        let first = !e.is_read_only();
        assert!(!first, "as the test wants it");
    });
    assert_eq!(seen, [false, true]);
    assert!(fs.has_failed());
    fs.shutdown().unwrap();
}

/// A scrub that panics has ended, and another can begin.
#[test]
fn a_scrub_that_panics_ends() {
    let (disk, device) = broken(Backend::Volatile);
    let fs = disk.mount("noatime");
    let ino = file(&fs, ROOT, "f");
    fs.write(ino, 0, &[7; 3 * BLOCK], false).unwrap();
    quayfs_background::digest::digest_all(&fs.e).unwrap();
    quayfs_background::checkpoint::round(&fs.e).unwrap();
    device.armed.store(true, Ordering::Release);
    let pass = fs.scrub.start(&fs.e, Options::default()).unwrap();
    until(|| pass.status().state != State::Running);
    assert_eq!(pass.status().state, State::Failed);
    device.armed.store(false, Ordering::Release);
    assert!(!fs.has_failed());
    let pass = fs.scrub.start(&fs.e, Options::default()).unwrap();
    until(|| pass.status().state != State::Running);
    assert_eq!(pass.status().state, State::Finished);
    disk.ends(fs);
}
