//! The primitives this crate synchronises with: the real ones, or loom's models of them.
//!
//! Under `--cfg loom` the very modules that ship are compiled against loom.

#[cfg(loom)]
pub(crate) use loom::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, Thread},
};
#[cfg(not(loom))]
pub(crate) use parking_lot::Mutex;
#[cfg(not(loom))]
pub(crate) use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, Thread},
};

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

/// A parked thread and the word that tells it to go on.
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

    /// Parks until [`wake`](Self::wake) was called. Called by the thread that made the waiter.
    pub(crate) fn wait(&self) {
        // Acquire pairs with the Release in `wake`. A waiter does not take the table's mutex
        // again, so this pair alone orders what the previous holder did to the locked range
        // before what this thread does to it. Parking does not replace it: a thread that finds
        // the flag set never parks.
        while !self.granted.load(Ordering::Acquire) {
            thread::park();
        }
    }

    /// Lets the waiting thread go on. The flag is stored before the thread is woken: in the other
    /// order the wake-up could be used up on a flag not yet set.
    pub(crate) fn wake(&self) {
        self.granted.store(true, Ordering::Release);
        self.thread.unpark();
    }
}
