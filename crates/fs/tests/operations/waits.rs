//! What is counted where operations wait for each other.

use super::rounds::{at_end, faulty};
use super::*;
use quayfs_crashsim::FaultOp;
use quayfs_store::txn::Edit;
use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::{LazyLock, Mutex};
use std::thread::{self, ThreadId};

/// Threads that have said that they wait for a device.
static WAITED: LazyLock<Mutex<HashSet<ThreadId>>> = LazyLock::new(Mutex::default);

fn note_wait(wait: &mut dyn FnMut()) {
    WAITED.lock().unwrap().insert(thread::current().id());
    wait();
}

/// Calls `f` on another thread while `held` is held, until `waits` says that it waits.
fn beside<G>(held: G, f: impl FnOnce() + Send, waits: impl Fn() -> bool) {
    std::thread::scope(|s| {
        let other = s.spawn(f);
        while !waits() {
            assert!(!other.is_finished(), "it does not wait");
            std::thread::yield_now();
        }
        drop(held);
    });
}

#[test]
fn waits_for_ranges_and_for_the_commit_mutex_are_counted() {
    let fs = Disk::new().mount("noatime");
    let ino = file(&fs, ROOT, "f");
    fs.write(ino, 0, &[1; 8192], false).unwrap();
    fs.read(ino, 0, 8192).unwrap();
    let counted = || {
        let c = fs.status().counters;
        (c.range_waits, c.commit_waits)
    };
    assert_eq!(counted(), (0, 0));
    let handle = fs.e.inodes.get(&fs.e.nodes, ino).unwrap();
    let waiting = || handle.range.ranges().unwrap().stats().waiting == 1;
    let first = || handle.range.write(0..4096);
    beside(
        first(),
        || fs.write(ino, 0, &[2; 10], false).unwrap(),
        waiting,
    );
    assert_eq!(counted(), (1, 0));
    beside(first(), || drop(fs.read(ino, 0, 10).unwrap()), waiting);
    assert_eq!(counted(), (2, 0));
    // Not counted where nothing is in the way.
    let held = first();
    fs.write(ino, 4096, &[3; 10], false).unwrap();
    drop(held);
    assert_eq!(counted(), (2, 0));
    let metrics = &fs.e.metrics;
    beside(
        Edit::shared(&handle).unwrap(),
        || fs.write(ino, 0, &[4; 10], false).unwrap(),
        || metrics.commit_waits.load(Ordering::Relaxed) == 1,
    );
    assert_eq!(counted(), (2, 1));
    drop(handle);
    fs.shutdown().unwrap();
}

#[test]
fn waiting_for_slots_uses_up_no_attempt_to_find_blocks() {
    let disk = Disk::new();
    let fs = disk.mount("noatime");
    let run = |shortages: &[Resource]| {
        let mut left = shortages.iter();
        let outcome = fs.e.retrying(|| match left.next() {
            Some(short) => Err(FsError::OutOf(*short)),
            None => Ok(()),
        });
        (outcome, left.len())
    };
    let (slots, blocks) = (Resource::Slots, Resource::Blocks);
    let waits = [slots, slots, slots, blocks, slots, blocks];
    assert_eq!(run(&waits), (Ok(()), 0));
    // Two cycles have brought nothing.
    assert_eq!(run(&[blocks; 4]), (Err(FsError::NoSpace), 1));
    fs.shutdown().unwrap();
}

/// A server has few threads that answer: one that waits for a stopped device, though it only wants room, must say so.
#[test]
fn a_write_that_waits_for_room_waits_for_the_device() {
    quayfs_sync::run_waits_in(note_wait);
    let (disk, device) = faulty(Disk::new());
    let options = MountOptions::parse(&["noatime"]).unwrap();
    let fs = Fs::mount(disk.volume(), &options).unwrap();
    let ino = file(&fs, ROOT, "f");
    let slots = fs.status().slots;
    let stall = device.stall(FaultOp::Write, 1);
    thread::scope(|s| {
        let writer = s.spawn(|| {
            for n in 0..2 * slots {
                fs.write(ino, n * 4096, &[n as u8; 4096], false).unwrap();
            }
        });
        let _release = at_end(|| device.heal());
        stall.reached();
        while !fs.e.journal.slots_are_wanted() {
            assert!(!writer.is_finished(), "it does not wait");
            thread::yield_now();
        }
        assert!(WAITED.lock().unwrap().contains(&writer.thread().id()));
    });
    fs.shutdown().unwrap();
}
