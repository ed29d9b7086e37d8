//! The primitives this crate synchronises with: the real ones, or loom's models of them.
//!
//! Under `--cfg loom` the very modules that ship are compiled against loom.

#[cfg(loom)]
pub(crate) use loom::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};
#[cfg(not(loom))]
pub(crate) use quayfs_sync::{
    Mutex,
    atomic::{AtomicBool, Ordering},
    thread::{self, Thread},
};
#[cfg(not(loom))]
pub(crate) use std::sync::Arc;

/// loom's mutex behind the interface of `parking_lot`'s, which knows no poisoning.
#[cfg(loom)]
pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

#[cfg(loom)]
impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(loom::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> loom::sync::MutexGuard<'_, T> {
        self.0
            .lock()
            .expect("a loom model that panics has failed already")
    }
}

/// loom's parking, or a weaker one. Waking a thread in loom orders it after the waker at once,
/// parked or not, which the real primitive does not promise to a thread that never parks. The weak
/// one wakes nobody and parks for no time, as spurious wake-ups do, so that only the flag can order.
#[cfg(loom)]
pub(crate) mod thread {
    std::thread_local! {
        /// All threads of a model run on one thread of the system.
        static WEAK: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
    }

    #[cfg(test)]
    pub(crate) fn set_weak(weak: bool) {
        WEAK.set(weak);
    }

    pub(crate) struct Thread(loom::thread::Thread);

    impl Thread {
        pub(crate) fn unpark(&self) {
            if !WEAK.get() {
                self.0.unpark();
            }
        }
    }

    pub(crate) fn current() -> Thread {
        Thread(loom::thread::current())
    }

    pub(crate) fn park() {
        if WEAK.get() {
            loom::thread::yield_now()
        } else {
            loom::thread::park()
        }
    }
}
#[cfg(loom)]
use thread::Thread;

/// How often a waiter looks for its grant before it parks: about a microsecond, a fraction of what
/// parking and waking cost. Without it two writers in turn would go through the kernel at each
/// turn. A model has no use for looking twice.
const LOOKS: u32 = if cfg!(loom) { 0 } else { 32 };

/// A waiting thread and the word that tells it to go on.
pub(crate) struct Waiter {
    granted: AtomicBool,
    thread: Thread,
}

impl Waiter {
    pub(crate) fn for_this_thread() -> Self {
        Self {
            granted: AtomicBool::new(false),
            thread: thread::current(),
        }
    }

    /// Returns once [`wake`](Self::wake) was called. Called by the thread that made the waiter.
    pub(crate) fn wait(&self) {
        // Acquire pairs with the Release in `wake`. A waiter does not take the table's mutex
        // again, so this pair alone orders what the previous holder did to the locked range
        // before what this thread does to it. Parking does not replace it: a thread that finds
        // the flag set never parks.
        let mut looks = 0;
        while !self.granted.load(Ordering::Acquire) {
            if looks == LOOKS {
                thread::park();
            } else {
                looks += 1;
                std::hint::spin_loop();
            }
        }
    }

    /// Lets the waiting thread go on. The flag is stored before the thread is woken: in the other
    /// order the wake-up could be used up on a flag not yet set.
    pub(crate) fn wake(&self) {
        self.granted.store(true, Ordering::Release);
        self.thread.unpark();
    }
}
