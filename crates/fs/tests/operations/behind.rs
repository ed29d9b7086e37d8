//! Large writes that go to the data device directly, behind the answer.

use quayfs_crashsim::{Fault, FaultDevice, FaultOp, Repeat, Stall};
use quayfs_fs::predecessor::Predecessor;
use quayfs_fs::recovery::MountError;
use quayfs_fs::{SetQuota, Subject};
use quayfs_restart::{Postings, Requests};
use quayfs_store::behind::MOST;

use super::*;

const LARGE: usize = 128 << 10;

/// A mount with its threads on a disk, whose data device does what it is told.
fn mounted(options: &str) -> (Disk, Arc<FaultDevice>, Arc<Fs>) {
    mounted_on(Disk::on(Backend::File), options)
}

fn mounted_on(mut disk: Disk, options: &str) -> (Disk, Arc<FaultDevice>, Arc<Fs>) {
    let device = Arc::new(FaultDevice::new(Arc::clone(&disk.device)));
    disk.device = Arc::<FaultDevice>::clone(&device);
    let options = MountOptions::parse(&["noatime", options]).unwrap();
    let fs = Fs::mount(disk.volume(), &options).unwrap();
    until(|| fs.e.behind.is_served());
    (disk, device, fs)
}

fn content(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i / 7) as u8).collect()
}

/// Runs `f`, which has to wait for the write that is held up, and lets that go on then.
fn waits<R: Send>(
    fs: &Fs,
    device: &FaultDevice,
    held_up: &Stall,
    f: impl FnOnce() -> R + Send,
) -> R {
    thread::scope(|s| {
        let f = s.spawn(f);
        held_up.reached();
        while fs.e.behind.waiting() == 0 {
            assert!(!f.is_finished(), "it does not wait");
            thread::yield_now();
        }
        device.heal();
        f.join().unwrap()
    })
}

#[test]
fn a_large_write_is_answered_at_once_and_read_when_the_device_has_it() {
    let (disk, device, fs) = mounted("");
    let ino = file(&fs, ROOT, "f");
    let stall = device.stall(FaultOp::Write, 1);
    fs.write(ino, 0, &content(LARGE), false).unwrap();
    let read = waits(&fs, &device, &stall, || fs.read(ino, 0, LARGE).unwrap());
    assert!(read == content(LARGE));
    disk.ends(fs);
}

#[test]
fn a_commit_waits_for_the_large_writes_that_it_covers() {
    let (disk, device, fs) = mounted("");
    let ino = file(&fs, ROOT, "f");
    let stall = device.stall(FaultOp::Write, 1);
    fs.write(ino, 0, &content(LARGE), false).unwrap();
    let committed = waits(&fs, &device, &stall, || fs.e.sync().unwrap());
    assert!(committed >= fs.e.journal.last_seq());
    let fs = disk.dies(fs, "noatime");
    assert!(fs.read(ino, 0, LARGE).unwrap() == content(LARGE));
    disk.ends(fs);
}

#[test]
fn a_device_that_does_not_answer_is_told_of() {
    let (disk, device, fs) = mounted("");
    let ino = file(&fs, ROOT, "f");
    let stall = device.stall(FaultOp::Write, 1);
    fs.write(ino, 0, &content(LARGE), false).unwrap();
    stall.reached();
    // It counts in milliseconds.
    while fs.status().device_silent_ms == 0 {
        thread::yield_now();
    }
    device.heal();
    fs.e.sync().unwrap();
    assert_eq!(fs.status().device_silent_ms, 0);
    disk.ends(fs);
}

/// Calls that come while a commit waits for the device are told of its failure too, and the mount ends.
#[test]
fn queued_calls_are_told_of_a_large_write_that_fails() {
    let (_disk, device, fs) = mounted("");
    let ino = file(&fs, ROOT, "f");
    until(|| fs.e.journal.serves_queue());
    let stall = device.stall(FaultOp::Write, 1);
    device.fail(FaultOp::Write, 1, Fault::Errno(libc::EIO), Repeat::Forever);
    fs.write(ino, 0, &content(LARGE), false).unwrap();
    stall.reached();
    let (told, is_told) = std::sync::mpsc::channel();
    thread::scope(|s| {
        let first = s.spawn(|| fs.e.sync());
        while fs.e.behind.waiting() == 0 {
            thread::yield_now();
        }
        let waiter = || -> quayfs_journal::Waiter {
            Box::new(move |done| told.send(done.is_err()).unwrap())
        };
        assert!(fs.e.sync_or_queue(waiter).is_none());
        stall.release();
        assert!(first.join().unwrap().is_err());
    });
    assert!(is_told.recv().unwrap());
    fs.abandon();
}

/// Its blocks are free again then, and another file gets them: what is still on its way must not arrive after that
/// file's content.
#[test]
fn a_large_write_that_is_refused_has_ended_before_others_get_its_blocks() {
    let (disk, device, fs) = mounted("");
    let (ino, other) = (file(&fs, ROOT, "f"), file(&fs, ROOT, "g"));
    let project = SetFlags {
        flags: 0,
        mask: 0,
        project: Some(5),
    };
    fs.set_flags(ROOT_USER, ino, project).unwrap();
    let half = SetQuota {
        subject: Subject::Project(5),
        bytes_hard: Some((LARGE / 2) as u64),
        ..SetQuota::default()
    };
    fs.set_quota(ROOT_USER, half).unwrap();
    let stall = device.stall(FaultOp::Write, 1);
    let refused = waits(&fs, &device, &stall, || {
        fs.write(ino, 0, &[0xaa; LARGE], false)
    });
    assert_eq!(refused, Err(FsError::Quota));
    fs.write(other, 0, &content(LARGE), false).unwrap();
    fs.e.sync().unwrap();
    assert!(fs.read(other, 0, LARGE).unwrap() == content(LARGE));
    disk.ends(fs);
}

#[test]
fn where_region_and_data_are_one_the_drain_of_a_commit_flushes_both() {
    let (disk, device, fs) = mounted("");
    disk.ends(fs);
    let flushes = |name: &str, volume: Volume| {
        let options = MountOptions::parse(&["noatime"]).unwrap();
        let fs = Fs::mount_quiet(volume, &options).unwrap();
        let ino = file(&fs, ROOT, name);
        let before = device.calls(FaultOp::Flush);
        fs.write(ino, 0, &content(LARGE), false).unwrap();
        fs.e.sync().unwrap();
        let flushes = device.calls(FaultOp::Flush) - before;
        // But where one has failed before, no other says that all is well.
        device.fail(FaultOp::Flush, 1, Fault::Errno(libc::EIO), Repeat::Once);
        fs.write(ino, 0, &content(LARGE), false).unwrap();
        assert!(fs.e.flush_device().is_err());
        assert!(fs.e.sync().is_err());
        fs.abandon();
        flushes
    };
    assert_eq!(flushes("two", disk.volume()), 1);
    assert_eq!(flushes("one", disk.volume().of_one_device()), 0);
}

#[test]
fn the_failure_of_a_large_write_is_that_of_the_commit() {
    let (_disk, device, fs) = mounted("");
    let ino = file(&fs, ROOT, "f");
    fs.e.sync().unwrap();
    let committed = fs.e.journal.commit_ts();
    device.fail(FaultOp::Write, 1, Fault::Errno(libc::EIO), Repeat::Forever);
    fs.write(ino, 0, &content(LARGE), false).unwrap();
    assert!(fs.e.sync().is_err());
    assert_eq!(fs.e.journal.commit_ts(), committed);
    assert_eq!(
        fs.write(ino, 0, &content(LARGE), false),
        Err(FsError::ReadOnly)
    );
    fs.abandon();
}

/// Threads that find no room wait, and each gets its turn once the device goes on.
#[test]
fn writers_wait_for_room_and_all_get_it() {
    const WRITERS: usize = 8;
    // Together half as much again as there is room for.
    const EACH: usize = MOST / WRITERS / 2 * 3;
    let (disk, device, fs) = mounted_on(Disk::with(Backend::File, 4 * MOST as u64), "");
    let inos: Vec<Ino> = (0..WRITERS)
        .map(|i| file(&fs, ROOT, &format!("f{i}")))
        .collect();
    // Each thread that writes is held up, so nothing comes back.
    let stalls = [1, 2].map(|nth| device.stall(FaultOp::Write, nth));
    thread::scope(|s| {
        let fs = &fs;
        for &ino in &inos {
            let part = vec![ino as u8; EACH / 3];
            s.spawn(move || {
                for at in (0..EACH).step_by(part.len()) {
                    fs.write(ino, at as u64, &part, false).unwrap();
                }
            });
        }
        stalls.iter().for_each(|stall| stall.reached());
        until(|| fs.e.behind.waiting_for_room() > 0);
        device.heal();
    });
    for ino in inos {
        assert!(fs.read(ino, 0, EACH).unwrap() == vec![ino as u8; EACH]);
    }
    disk.ends(fs);
}

#[test]
fn an_unmount_writes_what_is_left() {
    let (disk, device, fs) = mounted("");
    let ino = file(&fs, ROOT, "f");
    let stall = device.stall(FaultOp::Write, 1);
    for i in 0..8 {
        let at = i * LARGE;
        fs.write(ino, at as u64, &content(LARGE)[..], false)
            .unwrap();
    }
    stall.reached();
    device.heal();
    disk.ends(fs);
    let fs = disk.mount("noatime");
    for i in 0..8 {
        assert!(fs.read(ino, (i * LARGE) as u64, LARGE).unwrap() == content(LARGE));
    }
    disk.ends(fs);
}

#[test]
fn only_large_writes_go_to_the_device_directly() {
    let direct = |options: &str, backend, len: usize| {
        let disk = Disk::on(backend);
        let fs = disk.mount(options);
        let ino = file(&fs, ROOT, "f");
        fs.write(ino, 0, &content(len), false).unwrap();
        let blocks = fs.status().counters.blocks_direct;
        assert!(fs.read(ino, 0, len).unwrap() == content(len));
        disk.ends(fs);
        blocks
    };
    let disk = Backend::File;
    assert_eq!(direct("noatime", disk, LARGE), (LARGE / BLOCK) as u64);
    assert_eq!(direct("noatime", disk, LARGE - 1), 0);
    assert_eq!(direct("noatime,large=0", disk, LARGE), 0);
    assert_eq!(direct("noatime,large=8K", disk, 2 * BLOCK), 2);
    assert_eq!(direct("noatime,durability=op", disk, LARGE), 0);
    let memory = Backend::Dax;
    assert_eq!(direct("noatime,durability=commit", memory, LARGE), 0);
    assert_eq!(
        direct("noatime,durability=commit,large=8K", memory, 2 * BLOCK),
        2
    );
}

/// A mount that goes on when its daemon dies. What it posts is written when that is waited for, and not before.
struct GoesOn {
    disk: Disk,
    device: Arc<FaultDevice>,
    requests: Arc<Requests>,
    postings: Arc<Postings>,
}

impl GoesOn {
    fn new() -> (Self, Arc<Fs>) {
        let mut disk = Disk::on(Backend::File);
        let device = Arc::new(FaultDevice::new(Arc::clone(&disk.device)));
        disk.device = Arc::<FaultDevice>::clone(&device);
        let one = Self {
            disk,
            device,
            requests: Arc::new(Requests::new().unwrap()),
            postings: Postings::new().unwrap(),
        };
        let mut volume = one.disk.volume();
        volume.post_from(Arc::clone(&one.postings));
        let fs = Fs::mount_quiet(volume, &MountOptions::default()).unwrap();
        fs.e.behind.postpone();
        (one, fs)
    }

    /// The daemon dies as it is, and the next one mounts.
    fn dies(&mut self, fs: Arc<Fs>) -> Result<Arc<Fs>, MountError> {
        std::mem::forget(fs);
        self.mounts()
    }

    fn mounts(&mut self) -> Result<Arc<Fs>, MountError> {
        self.postings = Postings::left(self.postings.file().try_clone().unwrap()).unwrap();
        let mut volume = self.disk.volume();
        volume.post_from(Arc::clone(&self.postings));
        volume.follow(Predecessor {
            requests: Arc::clone(&self.requests),
            knows: Box::new(|_| true),
            deaths: 1,
            replaced: 0,
            is_replaced: false,
            ended: None,
            cause: "killed".into(),
            pause: std::sync::OnceLock::new(),
        });
        let fs = Fs::mount_quiet(volume, &MountOptions::default())?;
        fs.e.behind.postpone();
        Ok(fs)
    }

    fn writes(&self) -> u64 {
        self.device.calls(FaultOp::Write)
    }
}

#[test]
fn what_a_dead_daemon_had_on_its_way_is_written_by_the_next_one() {
    let (mut mount, fs) = GoesOn::new();
    let ino = file(&fs, ROOT, "f");
    fs.e.sync().unwrap();
    let before = mount.writes();
    fs.write(ino, 0, &content(LARGE), false).unwrap();
    fs.write(ino, LARGE as u64, &[7; 2 * LARGE], false).unwrap();
    assert_eq!(mount.writes(), before, "they are on their way");
    let fs = mount.dies(fs).unwrap();
    assert!(mount.writes() > before);
    assert!(fs.read(ino, 0, LARGE).unwrap() == content(LARGE));
    assert!(fs.read(ino, LARGE as u64, 2 * LARGE).unwrap() == [7; 2 * LARGE]);
    // It was written once more, and not again at the next death.
    fs.write(ino, 0, &[8; LARGE], false).unwrap();
    fs.e.sync().unwrap();
    let before = mount.writes();
    let fs = mount.dies(fs).unwrap();
    assert_eq!(mount.writes(), before);
    assert!(fs.read(ino, 0, LARGE).unwrap() == [8; LARGE]);
    mount.disk.ends(fs);
}

#[test]
fn a_mount_does_not_go_on_without_what_was_on_its_way() {
    let (mut mount, fs) = GoesOn::new();
    let ino = file(&fs, ROOT, "f");
    fs.e.sync().unwrap();
    fs.write(ino, 0, &content(LARGE), false).unwrap();
    mount
        .device
        .fail(FaultOp::Write, 1, Fault::Errno(libc::EIO), Repeat::Forever);
    let died = mount.dies(fs);
    assert!(matches!(died, Err(MountError::WriteAgain(_))));
    // A death in recovery changes nothing.
    mount.device.heal();
    let fs = mount.mounts().unwrap();
    assert!(fs.read(ino, 0, LARGE).unwrap() == content(LARGE));
    mount.disk.ends(fs);
}

/// Callers write what finds no room where it would outlive them.
#[test]
fn no_more_is_on_its_way_than_there_is_room_for() {
    let mut disk = Disk::with(Backend::File, 4 * MOST as u64);
    let device = Arc::new(FaultDevice::new(Arc::clone(&disk.device)));
    disk.device = Arc::<FaultDevice>::clone(&device);
    let postings = Postings::new().unwrap();
    let mut volume = disk.volume();
    volume.post_from(Arc::clone(&postings));
    let fs = Fs::mount_quiet(volume, &MountOptions::default()).unwrap();
    fs.e.behind.postpone();
    let ino = file(&fs, ROOT, "f");
    let held = postings.buffer(quayfs_restart::ROOM - 2 * LARGE).unwrap();
    let writes = |n: u64| {
        let before = device.calls(FaultOp::Write);
        fs.write(ino, n * LARGE as u64, &[n as u8; LARGE], false)
            .unwrap();
        device.calls(FaultOp::Write) - before
    };
    assert_eq!([0, 1, 2].map(writes), [0, 0, 1]);
    drop(held);
    assert_eq!(writes(3), 0);
    for n in 0..4 {
        assert!(fs.read(ino, n * LARGE as u64, LARGE).unwrap() == [n as u8; LARGE]);
    }
    disk.ends(fs);
}
