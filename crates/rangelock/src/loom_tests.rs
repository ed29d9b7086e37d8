//! Models of the shipped modules, run with
//! `RUSTFLAGS="--cfg loom" cargo test -p quayfs-rangelock --release --lib loom`.
//!
//! What a lock protects is loom's `UnsafeCell`, which reports an access that is not ordered after
//! the previous holder's. Each model says what it catches; every such sentence was checked by
//! weakening the code so.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use crate::sync::thread::set_weak;
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

/// The flag alone orders the waiter after the holder.
///
/// Fails if `granted` is stored `Relaxed` in `Waiter::wake`, and if it is loaded `Relaxed` in
/// `Waiter::wait`.
#[test]
fn loom_the_flag_orders_a_waiter_that_never_parks() {
    set_weak(true);
    loom::model(two_writers_of_one_byte);
    set_weak(false);
}

/// No wake-up is lost.
///
/// Fails (loom reports the deadlock) if `wake` unparks before it stores the flag, and if `acquire`
/// drops the mutex between the refusal and entering the request as waiting.
#[test]
fn loom_no_wake_up_is_lost() {
    set_weak(false);
    loom::model(two_writers_of_one_byte);
}

/// A whole-file writer against a reader of each byte. The writer waits for two, and is granted by
/// whichever leaves last.
///
/// Fails if `release` grants at the first obstacle gone instead of the last.
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

/// Disjoint writers never wait for each other, in any interleaving; under the whole-file policy
/// the same requests exclude each other.
///
/// Fails if `Span::overlaps` holds for ranges that only touch, and if `Policy::File` locks no more
/// than was asked for.
#[test]
fn loom_disjoint_writers_never_wait() {
    set_weak(false);
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
