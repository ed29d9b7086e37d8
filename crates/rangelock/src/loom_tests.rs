//! Models of the shipped modules, run with
//! `RUSTFLAGS="--cfg loom" cargo test -p quayfs-rangelock --release --lib loom`.
//!
//! What protects a locked range is loom's `UnsafeCell`, which reports an access that is not
//! ordered after the previous holder's. Each model says which weakened ordering it catches; the
//! sentence was checked by weakening it.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use crate::{Policy, RangeLock};

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

/// Two writers of one byte.
///
/// Fails if `granted` is stored `Relaxed` in `Waiter::wake`, or loaded `Relaxed` in
/// `Waiter::wait`: the waiter then goes on without being ordered after the holder. Fails too if
/// `wake` unparks before it stores: loom reports the deadlock.
#[test]
fn loom_writers_of_one_byte_are_ordered() {
    loom::model(|| {
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
    });
}

/// A whole-file writer against a reader of each byte. The writer waits for two, and is granted by
/// whichever leaves last.
///
/// Fails if `release` decrements outside the mutex or wakes at the first obstacle gone, and, like
/// the model above, if `granted` is stored or loaded `Relaxed`.
#[test]
fn loom_a_writer_waits_for_all_its_obstacles() {
    loom::model(|| {
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

/// Disjoint writers never wait for each other, in any interleaving; under the whole-file policy
/// the same requests exclude each other.
#[test]
fn loom_disjoint_writers_never_wait() {
    for policy in [Policy::Range, Policy::File] {
        loom::model(move || {
            let lock = Arc::new(RangeLock::with_policy(policy));
            let file = Arc::new(File::default());
            let other = {
                let (lock, file) = (Arc::clone(&lock), Arc::clone(&file));
                thread::spawn(move || {
                    let _guard = lock.write(0..1);
                    file.increment(0);
                    if policy == Policy::File {
                        file.increment(1);
                    }
                })
            };
            {
                let _guard = lock.write(1..2);
                file.increment(1);
            }
            other.join().expect("the other writer");
            if policy == Policy::Range {
                assert_eq!(lock.stats().waited, 0);
            }
        });
    }
}

/// A guard may be dropped by another thread than the one that locked.
///
/// Fails if `release` were to wake before it removes the entry: the waiter's own release would
/// then find the table in disorder, or the cell unordered.
#[test]
fn loom_a_guard_released_elsewhere_orders_the_next_holder() {
    loom::model(|| {
        let (lock, file) = shared();
        let guard = RangeLock::write_owned(Arc::clone(&lock).into_handle(), 0..2);
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
}

/// loom's `Arc` does not implement `AsRef`.
struct Handle(Arc<RangeLock>);

impl AsRef<RangeLock> for Handle {
    fn as_ref(&self) -> &RangeLock {
        &self.0
    }
}

trait IntoHandle {
    fn into_handle(self) -> Handle;
}

impl IntoHandle for Arc<RangeLock> {
    fn into_handle(self) -> Handle {
        Handle(self)
    }
}
