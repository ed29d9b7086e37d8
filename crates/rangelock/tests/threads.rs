//! The lock with real threads: exclusion, fairness, disjointness, and the baseline beside it.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::thread;

use quayfs_rangelock::baseline::RangeMapLock;
use quayfs_rangelock::{FileLock, Policy, RangeLock};

const BYTES: usize = 64;

/// What is inside, per byte: the number of readers, or the top bit for a writer. It notices a breach
/// of exclusion, but does not exclude any thread itself.
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

#[test]
fn holders_exclude_each_other() {
    for policy in [Policy::Range, Policy::File] {
        let lock = FileLock::new(policy);
        hammer(|range, exclusive, inside| {
            if exclusive {
                let _guard = lock.write(range);
                inside();
            } else {
                let _guard = lock.read(range);
                inside();
            }
        });
        let _all = lock.write(0..u64::MAX);
        if let Some(ranges) = lock.ranges() {
            let stats = ranges.stats();
            let after = (stats.held, stats.waiting, stats.granted);
            assert_eq!(after, (1, 0, 4 * 3000 + 1));
        }
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
            // No thread passes the barrier unless all four hold their range at once.
            scope.spawn(move || {
                let _guard = lock.write(n * 4096..(n + 1) * 4096);
                meet.wait();
            });
        }
    });
    assert_eq!(lock.stats().waited, 0);
}

/// The lock that ranges are measured against is the reader-writer lock of `parking_lot`, of the whole file.
#[test]
fn the_file_policy_locks_everything() {
    let lock = FileLock::new(Policy::File);
    let FileLock::File(whole) = &lock else {
        panic!("a lock of ranges");
    };
    let writer = lock.write(0..1);
    assert!(!writer.waited() && whole.is_locked_exclusive());
    thread::scope(|scope| {
        let (inside, waits) = mpsc::channel();
        let lock = &lock;
        scope.spawn(move || {
            let reader = lock.read(100..200);
            inside.send(reader.waited()).expect("the test is listening");
        });
        assert!(waits.try_recv().is_err(), "a reader beside a writer");
        drop(writer);
        waits.recv().expect("the reader gets in");
    });
    let _one = lock.read(0..1);
    assert!(lock.ranges().is_none() && !whole.is_locked_exclusive());
    let _two = lock.read(0..1);
}

/// Waits until `waiting` requests stand in line.
fn until_waiting(lock: &RangeLock, waiting: usize) {
    while lock.stats().waiting != waiting {
        thread::yield_now();
    }
}

#[test]
fn the_first_to_come_goes_on_though_others_wait() {
    let lock = RangeLock::new();
    let reader = lock.read(0..10);
    thread::scope(|scope| {
        let lock = &lock;
        let writer = scope.spawn(move || lock.write(0..u64::MAX).waited());
        until_waiting(lock, 1);
        let second = lock.try_read(5..20);
        assert!(second.is_some(), "nobody holds what would be in its way");
        // Until the writer has had enough of that.
        while lock.try_read(5..20).is_some() {
            thread::yield_now();
        }
        assert!(lock.try_read(90..91).is_none(), "it wants the whole file");
        drop((reader, second));
        assert!(writer.join().expect("the writer"));
    });
    assert_eq!(lock.stats().waiting, 0);
}

#[test]
fn everybody_who_waits_gets_there() {
    let lock = RangeLock::new();
    let first = lock.write(0..100);
    thread::scope(|scope| {
        for n in 0..6u64 {
            let lock = &lock;
            scope.spawn(move || {
                // Every second one wants the whole file, the others a part of it.
                let end = if n.is_multiple_of(2) { u64::MAX } else { 50 };
                assert!(lock.write(n..end).waited());
            });
        }
        until_waiting(&lock, 6);
        drop(first);
    });
    let stats = lock.stats();
    assert_eq!((stats.granted, stats.waited, stats.held), (7, 6, 0));
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
