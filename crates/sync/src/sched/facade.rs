//! What takes the place of the real ones.

pub use super::core::{planted, point};
pub use super::locks::{
    Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, WaitTimeoutResult,
};
pub use super::map::DashMap;

/// Locks. Trying first would be one more moment for the scheduler, so `busy` is never called.
pub fn lock_noting<T>(mutex: &Mutex<T>, _busy: impl FnOnce()) -> MutexGuard<'_, T> {
    mutex.lock()
}

/// As [`lock_noting`], to read.
pub fn read_noting<T>(lock: &RwLock<T>, _busy: impl FnOnce()) -> RwLockReadGuard<'_, T> {
    lock.read()
}

/// As [`lock_noting`], to write.
pub fn write_noting<T>(lock: &RwLock<T>, _busy: impl FnOnce()) -> RwLockWriteGuard<'_, T> {
    lock.write()
}

pub mod map {
    //! Entries of a [`DashMap`](super::DashMap).
    pub use super::super::map::Entry;
}

pub mod epoch {
    //! Grace periods.
    pub use super::super::quiesce::{Guard, pin};
}

pub mod atomic {
    //! Words that several threads change.
    pub use super::super::words::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, AtomicUsize};
    pub use std::sync::atomic::{Ordering, fence};
}

pub mod thread {
    //! Threads.
    pub use super::super::threads::{
        Builder, JoinHandle, Scope, ScopedJoinHandle, Thread, available_parallelism, park, scope,
        sleep, spawn, this as current, yield_now,
    };
}

pub mod time {
    //! Clocks.
    pub use super::super::threads::{Instant, now};
}
