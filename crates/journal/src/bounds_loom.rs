use super::*;
use crate::sync::Mutex;
use crate::sync::model::{Shared, weakened_tests, with_weak};
use loom::sync::Arc;
use loom::thread;

/// Bounds, the lane locks, and what the append of each number stores.
struct Log {
    bounds: Bounds,
    locks: [Mutex<()>; 2],
    stored: [Shared; 3],
    appended: [AtomicU64; 3],
}

impl Log {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            bounds: Bounds::new(1, 2),
            locks: [Mutex::new(()), Mutex::new(())],
            stored: [(); 3].map(|()| Shared::new()),
            appended: [(); 3].map(|()| AtomicU64::new(0)),
        })
    }

    fn append(&self, lane: usize) {
        let _guard = self.locks[lane].lock();
        let seq = self.bounds.begin(lane);
        self.stored[seq as usize].write();
        self.appended[seq as usize].store(1, Ordering::Relaxed);
        self.bounds.finish(lane);
    }

    /// loom reports a read that is not ordered after the store as a race.
    fn assert_stored(&self, upto: u64) {
        for seq in 1..=upto {
            self.stored[seq as usize].read();
            let appended = self.appended[seq as usize].load(Ordering::Relaxed);
            assert_eq!(appended, 1, "{seq} of {upto}");
        }
    }
}

// The readers below are spawned and the appends start in the main thread, which loom runs first.
// For each access loom remembers only the last other one to come back to, so an append's own load of
// the counter would hide a reader that came before it; a reader that comes after is always moved.

/// Appends in two lanes, and a reader that believes the bounds.
fn complete_over_lanes() {
    let log = Log::new();
    let spawn = |job: fn(&Log)| {
        let log = Arc::clone(&log);
        thread::spawn(move || job(&log))
    };
    let reader = spawn(|log| log.assert_stored(log.bounds.complete_upto()));
    let other = spawn(|log| log.append(1));
    log.append(0);
    other.join().expect("no panic");
    reader.join().expect("no panic");
    assert_eq!(log.bounds.complete_upto(), 2);
}

/// Appends one after another in a lane: a bound replaces the cleared one of the append before.
fn complete_along_a_lane() {
    let log = Log::new();
    let reader = {
        let log = Arc::clone(&log);
        thread::spawn(move || log.assert_stored(log.bounds.complete_upto()))
    };
    log.append(0);
    log.append(0);
    reader.join().expect("no panic");
    assert_eq!(log.bounds.complete_upto(), 2);
}

/// A commit: cut, then wait for each append that may be at or below it by taking its lane's lock.
fn a_cut_waits_for_appends() {
    let log = Log::new();
    let spawn = |job: fn(&Log)| {
        let log = Arc::clone(&log);
        thread::spawn(move || job(&log))
    };
    let committer = spawn(|log| {
        let cut = log.bounds.last_taken();
        for lane in log.bounds.appending_upto(cut) {
            drop(log.locks[lane].lock());
        }
        log.assert_stored(cut);
    });
    let other = spawn(|log| log.append(1));
    log.append(0);
    other.join().expect("no panic");
    committer.join().expect("no panic");
}

#[test]
fn loom_complete_over_lanes() {
    with_weak(None, complete_over_lanes);
}

#[test]
fn loom_complete_along_a_lane() {
    with_weak(None, complete_along_a_lane);
}

#[test]
fn loom_a_cut_waits_for_appends() {
    with_weak(None, a_cut_waits_for_appends);
}

weakened_tests! {
    loom_bound_published_relaxed_fails: BoundPublish, complete_along_a_lane;
    loom_number_taken_relaxed_fails: NumberTake, complete_over_lanes;
    loom_bound_cleared_relaxed_fails: BoundClear, complete_over_lanes;
    loom_counter_read_relaxed_fails: CounterRead, complete_over_lanes;
    loom_bound_read_relaxed_fails: BoundRead, complete_over_lanes;
    loom_counter_after_bounds_fails: CounterFirst, complete_over_lanes;
    loom_cut_number_taken_relaxed_fails: NumberTake, a_cut_waits_for_appends;
    loom_cut_counter_read_relaxed_fails: CounterRead, a_cut_waits_for_appends;
    loom_cut_bound_read_relaxed_fails: BoundRead, a_cut_waits_for_appends;
    loom_cut_bound_cleared_relaxed_fails: BoundClear, a_cut_waits_for_appends;
}
