//! The lock with real threads: exclusion, fairness, disjointness, and the baseline beside it.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::thread;

use quayfs_rangelock::baseline::RangeMapLock;
use quayfs_rangelock::{Policy, RangeLock};

const BYTES: usize = 64;

/// Per byte who is inside: the number of readers, or the top bit for a writer. It notices a breach
/// of exclusion, but excludes nobody itself.
struct Witness {
    bytes: Vec<AtomicU32>,
    breached: AtomicBool,
}

const WRITER: u32 = 1 << 31;

impl Witness {
    fn new() -> Self {
        Self {
            bytes: (0..BYTES).map(|_| AtomicU32::new(0)).collect(),
            breached: AtomicBool::new(false),
        }
    }

    fn visit(&self, range: Range<u64>, exclusive: bool) {
        let inside = &self.bytes[range.start as usize..range.end as usize];
        for byte in inside {
            let before = byte.fetch_add(if exclusive { WRITER } else { 1 }, Ordering::Relaxed);
            if before >= WRITER || (exclusive && before != 0) {
                self.breached.store(true, Ordering::Relaxed);
            }
        }
        thread::yield_now();
        for byte in inside {
            byte.fetch_sub(if exclusive { WRITER } else { 1 }, Ordering::Relaxed);
        }
    }
}

/// Small deterministic generator: the tests need variety, not quality.
fn next(state: &mut u64) -> u64 {
    *state = state
        .wrapping_mul(6364136223846793005)
        .wrapping_add(1442695040888963407);
    *state >> 33
}

fn hammer(locked: impl Fn(Range<u64>, bool, &dyn Fn()) + Sync) {
    let witness = Witness::new();
    thread::scope(|scope| {
        for seed in 0..4u64 {
            let (witness, locked) = (&witness, &locked);
            scope.spawn(move || {
                let mut random = seed + 1;
                for _ in 0..3000 {
                    let start = next(&mut random) % BYTES as u64;
                    let end = start + next(&mut random) % (BYTES as u64 - start + 1);
                    let exclusive = next(&mut random).is_multiple_of(3);
                    locked(start..end, exclusive, &|| {
                        witness.visit(start..end, exclusive)
                    });
                }
            });
        }
    });
    assert!(
        !witness.breached.load(Ordering::Relaxed),
        "two holders of one byte"
    );
}

fn range_lock(lock: &RangeLock, range: Range<u64>, exclusive: bool, inside: &dyn Fn()) {
    if exclusive {
        let _guard = lock.write(range);
        inside();
    } else {
        let _guard = lock.read(range);
        inside();
    }
}

#[test]
fn holders_exclude_each_other() {
    for policy in [Policy::Range, Policy::File] {
        let lock = RangeLock::with_policy(policy);
        hammer(|range, exclusive, inside| range_lock(&lock, range, exclusive, inside));
        let stats = lock.stats();
        assert_eq!((stats.held, stats.waiting, stats.granted), (0, 0, 4 * 3000));
    }
}

#[test]
fn the_baseline_excludes_too() {
    let lock = RangeMapLock::new();
    hammer(|range, exclusive, inside| {
        let _guard = if exclusive {
            lock.write(range)
        } else {
            lock.read(range)
        };
        inside();
    });
    let _all = lock.write(0..u64::MAX);
}

#[test]
fn disjoint_writers_are_inside_together() {
    let lock = RangeLock::new();
    let meet = Barrier::new(4);
    thread::scope(|scope| {
        for n in 0..4u64 {
            let (lock, meet) = (&lock, &meet);
            // Nobody passes the barrier unless all four hold their range at once.
            scope.spawn(move || {
                let _guard = lock.write(n * 4096..(n + 1) * 4096);
                meet.wait();
            });
        }
    });
    assert_eq!(lock.stats().waited, 0);
}

#[test]
fn the_file_policy_locks_everything() {
    let lock = RangeLock::with_policy(Policy::File);
    let guard = lock.write(0..1);
    assert_eq!(guard.range(), 0..u64::MAX);
    assert!(lock.try_read(100..200).is_none());
    drop(guard);
    let one = lock.try_read(0..1);
    let two = lock.try_read(100..200);
    assert!(one.is_some() && two.is_some(), "readers share the file");
}

/// Waits until `waiting` requests stand in line.
fn until_waiting(lock: &RangeLock, waiting: usize) {
    while lock.stats().waiting != waiting {
        thread::yield_now();
    }
}

#[test]
fn conflicting_requests_are_served_in_order_of_arrival() {
    let lock = RangeLock::new();
    let (order, served) = mpsc::channel();
    let first = lock.write(0..100);
    thread::scope(|scope| {
        for n in 0..6usize {
            let (lock, order) = (&lock, order.clone());
            scope.spawn(move || {
                // Every second one wants the whole file, the others a part of it.
                let end = if n.is_multiple_of(2) { u64::MAX } else { 50 };
                let guard = lock.write(0..end);
                assert!(guard.waited());
                order.send(n).expect("the test is listening");
            });
            until_waiting(lock, n + 1);
        }
        drop(first);
    });
    drop(order);
    assert_eq!(served.into_iter().collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
}

#[test]
fn a_whole_file_writer_is_not_starved_by_readers() {
    let lock = RangeLock::new();
    let done = AtomicBool::new(false);
    let inside = AtomicUsize::new(0);
    thread::scope(|scope| {
        // Two readers that hand over to each other so that some reader is always inside or asking.
        for n in 0..2u64 {
            let (lock, done, inside) = (&lock, &done, &inside);
            scope.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    let _guard = lock.read(n..n + 2);
                    inside.fetch_add(1, Ordering::Relaxed);
                    thread::yield_now();
                }
            });
        }
        while inside.load(Ordering::Relaxed) < 10 {
            thread::yield_now();
        }
        // Ends only if the writer is let in although readers keep coming.
        for _ in 0..50 {
            drop(lock.write(0..u64::MAX));
        }
        done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn an_owned_guard_outlives_its_maker_and_moves_between_threads() {
    let lock = Arc::new(RangeLock::new());
    let guard = {
        let lock = Arc::clone(&lock);
        thread::spawn(move || RangeLock::write_owned(lock, 10..u64::MAX))
            .join()
            .expect("locker")
    };
    assert!(lock.try_read(1_000_000..1_000_001).is_none());
    assert!(lock.try_write(0..10).is_some());
    drop(guard);
    assert!(lock.try_read(1_000_000..1_000_001).is_some());
}

#[test]
fn a_panicking_holder_releases() {
    let lock = RangeLock::new();
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _guard = lock.write(0..10);
        panic!("on purpose");
    }));
    assert!(outcome.is_err());
    assert!(lock.try_write(0..10).is_some());
}
