//! Places at the connection: how many threads read requests and answer them at a time. A thread that waits for a
//! device gives its place up meanwhile, and one without a place takes it. So requests are read while many calls wait,
//! and calls that wait for the same flush can do so together.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

thread_local! {
    /// Where this thread has a place.
    static HERE: Cell<Option<Arc<Places>>> = const { Cell::new(None) };
}

/// Runs what waits for a device, or for another thread that does. A thread that serves a connection gives its place up
/// meanwhile; for others it is a plain call.
pub fn waiting<R>(wait: impl FnOnce() -> R) -> R {
    /// Takes the place again, also where `wait` panics.
    struct Back(Arc<Places>);
    impl Drop for Back {
        fn drop(&mut self) {
            self.0.enter();
            HERE.set(Some(Arc::clone(&self.0)));
        }
    }
    match HERE.take() {
        Some(places) => {
            places.leave();
            let _back = Back(places);
            wait()
        }
        None => wait(),
    }
}

/// The places of a connection, and the threads without one.
#[derive(Debug)]
pub(crate) struct Places {
    count: usize,
    /// May be more than there are: a thread that comes back finishes its request first.
    taken: AtomicUsize,
    /// Threads that wait for a request. While there is one, the next request is read without another thread's help.
    reading: AtomicUsize,
    without: Mutex<Without>,
    free: Condvar,
}

#[derive(Debug, Default)]
struct Without {
    threads: usize,
    ended: bool,
}

impl Places {
    pub(crate) fn new(count: usize) -> Arc<Self> {
        Arc::new(Self {
            count,
            taken: AtomicUsize::new(0),
            reading: AtomicUsize::new(0),
            without: Mutex::default(),
            free: Condvar::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Without> {
        self.without.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a place. `false`: the connection has ended.
    pub(crate) fn take(self: &Arc<Self>) -> bool {
        let mut without = self.lock();
        without.threads += 1;
        while !without.ended && self.taken.load(Ordering::Relaxed) >= self.count {
            without = (self.free.wait(without)).unwrap_or_else(PoisonError::into_inner);
        }
        without.threads -= 1;
        if without.ended {
            return false;
        }
        self.taken.fetch_add(1, Ordering::Relaxed);
        drop(without);
        HERE.set(Some(Arc::clone(self)));
        true
    }

    /// Gives a place up if more are taken than there are, and says whether it has.
    pub(crate) fn yield_place(&self) -> bool {
        if self.taken.load(Ordering::Relaxed) <= self.count {
            return false;
        }
        let _without = self.lock();
        let crowded = self.taken.load(Ordering::Relaxed) > self.count;
        if crowded {
            self.taken.fetch_sub(1, Ordering::Relaxed);
            HERE.set(None);
        }
        crowded
    }

    /// Calls `read` as a thread that waits for a request.
    pub(crate) fn read<R>(&self, read: impl FnOnce() -> R) -> R {
        self.reading.fetch_add(1, Ordering::SeqCst);
        let result = read();
        // No thread reads now, but one could.
        if self.reading.fetch_sub(1, Ordering::SeqCst) == 1
            && self.taken.load(Ordering::SeqCst) < self.count
        {
            self.call(&self.lock());
        }
        result
    }

    /// The connection has ended: no thread waits for a place any more.
    pub(crate) fn end(&self) {
        self.lock().ended = true;
        self.free.notify_all();
    }

    /// A thread with a place ends before the connection does.
    pub(crate) fn fail(&self) {
        HERE.set(None);
        self.leave();
    }

    fn leave(&self) {
        let without = self.lock();
        self.taken.fetch_sub(1, Ordering::SeqCst);
        if self.reading.load(Ordering::SeqCst) == 0 {
            self.call(&without);
        }
    }

    fn enter(&self) {
        let _without = self.lock();
        self.taken.fetch_add(1, Ordering::SeqCst);
    }

    fn call(&self, without: &Without) {
        if without.threads > 0 {
            self.free.notify_one();
        }
    }
}
