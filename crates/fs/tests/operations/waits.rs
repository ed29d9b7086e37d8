//! What is counted where operations wait for each other.

use super::*;
use quayfs_store::txn::Edit;
use std::sync::atomic::Ordering;

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
