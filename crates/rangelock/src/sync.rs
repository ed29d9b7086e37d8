//! The primitives this crate synchronises with: the real ones, or loom's models of them.
//!
//! Under `--cfg loom` the very modules that ship are compiled against loom.

#[cfg(loom)]
pub(crate) use loom::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};
#[cfg(not(loom))]
pub(crate) use quayfs_sync::{
    Mutex,
    atomic::{AtomicU32, Ordering},
    thread::{self, Thread},
    time::Instant as Moment,
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
/// one wakes no thread and parks for no time, as with spurious wake-ups, so that only the flag can order.
#[cfg(loom)]
pub(crate) mod thread {
    std::thread_local! {
        /// All threads of a model run on one thread of the system.
        static WEAK: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
        static HURRIED: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
    }

    /// Whether the clock lets every request lose patience.
    pub(crate) fn is_hurried() -> bool {
        HURRIED.get()
    }

    #[cfg(test)]
    pub(crate) fn set_hurried(hurried: bool) {
        HURRIED.set(hurried);
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

    pub(crate) fn yield_now() {
        loom::thread::yield_now()
    }
}
#[cfg(loom)]
use thread::Thread;

use crate::table::Waiting;

/// The clock, read where a request is overtaken.
#[cfg(not(loom))]
pub(crate) fn now() -> Moment {
    Moment::now()
}

#[cfg(loom)]
pub(crate) use std::time::Instant as Moment;

/// A clock for models: it stands still, so that no request loses patience, or runs so fast that every request
/// does that is overtaken a second time.
#[cfg(loom)]
pub(crate) fn now() -> Moment {
    use crate::table::PATIENCE;
    std::thread_local! {
        static NOW: std::cell::Cell<Moment> = std::cell::Cell::new(Moment::now());
    }
    if thread::is_hurried() {
        NOW.set(NOW.get() + PATIENCE);
    }
    NOW.get()
}

/// How often a waiter looks for its turn before it sleeps: a few microseconds, as long as most ranges are
/// held, and a fraction of what sleeping and waking cost. A model has no use for looking twice.
const LOOKS: u32 = if cfg!(loom) { 0 } else { 12 };
/// After so many of them it lets others run in between.
const PAUSES: u32 = 6;

/// It looks for its turn by itself.
const AWAKE: u32 = 0;
/// It has to be woken.
const ASLEEP: u32 = 1;
/// It was told to look again.
const TOLD: u32 = 2;

/// A waiting thread and the word that tells it to look again.
///
/// Relaxed is enough for all of it: a thread that was told takes the table's mutex before it goes on, and that
/// orders what the previous holder did to the range before what this thread does to it.
pub(crate) struct Waiter {
    state: AtomicU32,
    thread: Thread,
}

impl Waiter {
    pub(crate) fn for_this_thread() -> Self {
        Self {
            state: AtomicU32::new(AWAKE),
            thread: thread::current(),
        }
    }

    /// Returns once [`tell`](Self::tell) was called since this was called last. Called by the thread that
    /// made the waiter.
    pub(crate) fn wait(&self) {
        let mut looks = 0;
        while self.state.load(Ordering::Relaxed) != TOLD && looks < LOOKS {
            if looks < PAUSES {
                (0..1 << looks).for_each(|_| std::hint::spin_loop());
            } else {
                thread::yield_now();
            }
            looks += 1;
        }
        let (set, see) = (Ordering::Relaxed, Ordering::Relaxed);
        let sleeps = self.state.compare_exchange(AWAKE, ASLEEP, set, see);
        while sleeps.is_ok() && self.state.load(Ordering::Relaxed) == ASLEEP {
            thread::park();
        }
        // Before the table is asked again, which is before any thread may tell this one once more.
        self.state.store(AWAKE, Ordering::Relaxed);
    }

    /// Lets the waiting thread look again. The word is stored before the thread is woken: in the other
    /// order the wake-up could be used up on a word not yet stored.
    pub(crate) fn tell(&self) {
        if self.state.swap(TOLD, Ordering::Relaxed) == ASLEEP {
            self.thread.unpark();
        }
    }
}

impl Waiting for Arc<Waiter> {
    fn is_awake(&self) -> bool {
        self.state.load(Ordering::Relaxed) != ASLEEP
    }
}
