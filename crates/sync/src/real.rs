//! The real ones.

pub use dashmap::DashMap;
pub use parking_lot::{
    Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, WaitTimeoutResult,
};

/// Locks, and calls `busy` before it waits for another thread.
#[inline]
pub fn lock_noting<T>(mutex: &Mutex<T>, busy: impl FnOnce()) -> MutexGuard<'_, T> {
    mutex.try_lock().unwrap_or_else(|| {
        busy();
        mutex.lock()
    })
}

/// As [`lock_noting`], to read.
#[inline]
pub fn read_noting<T>(lock: &RwLock<T>, busy: impl FnOnce()) -> RwLockReadGuard<'_, T> {
    lock.try_read().unwrap_or_else(|| {
        busy();
        lock.read()
    })
}

/// As [`lock_noting`], to write.
#[inline]
pub fn write_noting<T>(lock: &RwLock<T>, busy: impl FnOnce()) -> RwLockWriteGuard<'_, T> {
    lock.try_write().unwrap_or_else(|| {
        busy();
        lock.write()
    })
}

/// Entries of a [`DashMap`].
pub mod map {
    pub use dashmap::mapref::entry::Entry;
}

/// Grace periods.
pub mod epoch {
    pub use crossbeam_epoch::{Guard, pin};
}

/// Words that several threads change.
pub mod atomic {
    pub use std::sync::atomic::{
        AtomicBool, AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
    };
}

/// Threads.
pub mod thread {
    pub use std::thread::{
        Builder, JoinHandle, Scope, ScopedJoinHandle, Thread, available_parallelism, current, park,
        scope, sleep, spawn, yield_now,
    };
}

/// Clocks.
pub mod time {
    pub use std::time::Instant;
    use std::time::SystemTime;

    /// The time of day.
    #[inline(always)]
    pub fn now() -> SystemTime {
        SystemTime::now()
    }
}

/// A moment at which the scheduler may let another thread go on.
#[inline(always)]
pub fn point() {}

/// Whether a test has planted this bug.
#[inline(always)]
pub const fn planted(_bug: &str) -> bool {
    false
}
