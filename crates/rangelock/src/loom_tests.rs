//! Models of the shipped modules, run with
//! `RUSTFLAGS="--cfg loom" cargo test -p quayfs-rangelock --release --lib loom`.
//!
//! What a lock protects is loom's `UnsafeCell`, which reports an access that is not ordered after
//! the previous holder's. Each model says what it catches; every such sentence was checked by
//! weakening the code so.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use crate::RangeLock;
use crate::sync::thread::{set_hurried, set_weak};

/// Two cells, "bytes" 0 and 1 of a file. An access is in order only under the lock on that byte.
#[derive(Default)]
struct File {
    bytes: [UnsafeCell<u64>; 2],
}

impl File {
    fn increment(&self, byte: usize) {
        self.bytes[byte].with_mut(|_| ());
    }

    fn look(&self, byte: usize) {
        self.bytes[byte].with(|_| ());
    }
}

fn shared() -> (Arc<RangeLock>, Arc<File>) {
    (Arc::new(RangeLock::new()), Arc::new(File::default()))
}

fn two_writers_of_one_byte() {
    let (lock, file) = shared();
    let other = {
        let (lock, file) = (Arc::clone(&lock), Arc::clone(&file));
        thread::spawn(move || {
            let _guard = lock.write(0..1);
            file.increment(0);
        })
    };
    {
        let _guard = lock.write(0..1);
        file.increment(0);
    }
    other.join().expect("the other writer");
    assert_eq!(lock.stats().held + lock.stats().waiting, 0);
}

/// The table's mutex orders the waiter after the holder, though neither the word nor the wake-up does.
///
/// Fails if a waiter that was told goes on without asking the table.
#[test]
fn loom_the_mutex_orders_a_waiter_that_never_parks() {
    set_weak(true);
    loom::model(two_writers_of_one_byte);
    set_weak(false);
}

/// No wake-up is lost.
///
/// Fails (loom reports the deadlock) if `tell` unparks before it stores the word, if `wait` makes the waiter
/// awake again after the table was asked, and if `acquire` drops the mutex between the refusal and entering
/// the request as waiting.
#[test]
fn loom_no_wake_up_is_lost() {
    set_weak(false);
    loom::model(two_writers_of_one_byte);
}

/// One writer comes back again and again, and the other loses patience when it is overtaken a second time:
/// the byte is kept for it, awake or asleep again.
///
/// Fails if a range that was handed over is handed over once more when the waiter looks, and (loom reports
/// the deadlock) if no waiter is told of a range that is handed over.
#[test]
fn loom_a_range_is_handed_to_who_was_overtaken() {
    set_weak(false);
    set_hurried(true);
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(|| {
        let (lock, file) = shared();
        let other = {
            let (lock, file) = (Arc::clone(&lock), Arc::clone(&file));
            thread::spawn(move || {
                let _guard = lock.write(0..1);
                file.increment(0);
            })
        };
        for _ in 0..4 {
            let _guard = lock.write(0..1);
            file.increment(0);
        }
        other.join().expect("the other writer");
        assert_eq!(lock.stats().held + lock.stats().waiting, 0);
    });
    set_hurried(false);
}

/// A whole-file writer against a reader of each byte. The writer waits for two, and is
/// let on by whichever leaves last.
///
/// Fails if a request that looks again is let on as soon as one that held its range is gone.
#[test]
fn loom_a_writer_waits_for_all_its_obstacles() {
    set_weak(false);
    let mut builder = loom::model::Builder::new();
    // Complete for up to three preemptions; without a bound three threads take minutes.
    builder.preemption_bound = Some(3);
    builder.check(|| {
        let (lock, file) = shared();
        let readers: Vec<_> = (0..2)
            .map(|byte| {
                let (lock, file) = (Arc::clone(&lock), Arc::clone(&file));
                thread::spawn(move || {
                    let _guard = lock.read(byte as u64..byte as u64 + 1);
                    file.look(byte);
                })
            })
            .collect();
        {
            let _guard = lock.write(0..u64::MAX);
            file.increment(0);
            file.increment(1);
        }
        for reader in readers {
            reader.join().expect("a reader");
        }
    });
}

/// Disjoint writers never wait for each other, in any interleaving.
///
/// Fails if `Span::overlaps` holds for ranges that only touch.
#[test]
fn loom_disjoint_writers_never_wait() {
    set_weak(false);
    loom::model(move || {
        let (lock, file) = shared();
        let other = {
            let (lock, file) = (Arc::clone(&lock), Arc::clone(&file));
            thread::spawn(move || {
                let _guard = lock.write(0..1);
                file.increment(0);
            })
        };
        {
            let _guard = lock.write(1..2);
            file.increment(1);
        }
        other.join().expect("the other writer");
        assert_eq!(lock.stats().waited, 0);
    });
}

/// A guard may be dropped by another thread than the one that locked, and orders the next holder
/// after the dropping thread.
///
/// Fails for the same reasons as the first model.
#[test]
fn loom_a_guard_released_elsewhere_orders_the_next_holder() {
    set_weak(true);
    loom::model(|| {
        let (lock, file) = shared();
        let guard = RangeLock::write_owned(Handle(Arc::clone(&lock)), 0..2);
        let releaser = {
            let file = Arc::clone(&file);
            thread::spawn(move || {
                file.increment(0);
                drop(guard);
            })
        };
        {
            let _guard = lock.write(0..1);
            file.increment(0);
        }
        releaser.join().expect("the releasing thread");
    });
    set_weak(false);
}

/// loom's `Arc` does not implement `AsRef`.
struct Handle(Arc<RangeLock>);

impl AsRef<RangeLock> for Handle {
    fn as_ref(&self) -> &RangeLock {
        &self.0
    }
}
