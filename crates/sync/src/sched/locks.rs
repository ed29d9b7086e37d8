//! Locks that tell the scheduler which thread waits for what.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use super::threads::Instant;
use super::{Why, current};

/// Takes a lock: with `attempt` as often as it may have come free, or, without a scheduler, with
/// `block`.
fn acquire<G>(
    at: usize,
    alone: bool,
    attempt: impl Fn() -> Option<G>,
    block: impl FnOnce() -> G,
) -> G {
    let Some(m) = current() else {
        return block();
    };
    m.point();
    loop {
        // As with the real ones, a thread that shares a lock does not overtake one that wants it alone.
        if (alone || !m.is_wanted(at))
            && let Some(guard) = attempt()
        {
            return guard;
        }
        if m.wait(Why::Lock { at, alone }, None).is_none() {
            return block();
        }
    }
}

/// A lock has come free.
fn released(at: usize) {
    if let Some(m) = current() {
        m.wake(|why| matches!(why, Why::Lock { at: a, .. } if a == at));
        m.point();
    }
}

fn address<T: ?Sized>(of: &T) -> usize {
    std::ptr::from_ref(of).cast::<()>().addr()
}

/// As `parking_lot`'s.
#[derive(Default)]
pub struct Mutex<T: ?Sized>(parking_lot::Mutex<T>);

/// As `parking_lot`'s.
#[must_use]
pub struct MutexGuard<'a, T: ?Sized> {
    lock: &'a Mutex<T>,
    /// Taken only while waiting.
    inner: Option<parking_lot::MutexGuard<'a, T>>,
}

impl<T> Mutex<T> {
    /// An unlocked one.
    pub const fn new(value: T) -> Self {
        Self(parking_lot::Mutex::new(value))
    }

    /// What it protected.
    pub fn into_inner(self) -> T {
        self.0.into_inner()
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Locks it.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        let inner = acquire(address(self), true, || self.0.try_lock(), || self.0.lock());
        self.guard(inner)
    }

    /// Locks it if it is free.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        super::core::point();
        self.0.try_lock().map(|inner| self.guard(inner))
    }

    /// What it protects.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }

    fn guard<'a>(&'a self, inner: parking_lot::MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        MutexGuard {
            lock: self,
            inner: Some(inner),
        }
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<T: ?Sized> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        if self.inner.take().is_some() {
            released(address(self.lock));
        }
    }
}

const HELD: &str = "a guard that does not wait holds its lock";

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.inner.as_ref().expect(HELD)
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.inner.as_mut().expect(HELD)
    }
}

/// As `parking_lot`'s.
#[derive(Default)]
pub struct RwLock<T: ?Sized>(parking_lot::RwLock<T>);

impl<T> RwLock<T> {
    /// An unlocked one.
    pub const fn new(value: T) -> Self {
        Self(parking_lot::RwLock::new(value))
    }

    /// What it protected.
    pub fn into_inner(self) -> T {
        self.0.into_inner()
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Locks it together with others.
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        let at = address(self);
        let inner = acquire(at, false, || self.0.try_read(), || self.0.read());
        RwLockReadGuard {
            inner: Some(inner),
            at,
        }
    }

    /// Locks it alone.
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        let at = address(self);
        let inner = acquire(at, true, || self.0.try_write(), || self.0.write());
        RwLockWriteGuard {
            inner: Some(inner),
            at,
        }
    }

    /// What it protects.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }
}

macro_rules! rw_guard {
    ($name:ident, $inner:ident) => {
        /// As `parking_lot`'s.
        #[must_use]
        pub struct $name<'a, T: ?Sized> {
            inner: Option<parking_lot::$inner<'a, T>>,
            at: usize,
        }

        impl<T: ?Sized> Drop for $name<'_, T> {
            fn drop(&mut self) {
                self.inner = None;
                released(self.at);
            }
        }

        impl<T: ?Sized> Deref for $name<'_, T> {
            type Target = T;
            fn deref(&self) -> &T {
                self.inner.as_ref().expect(HELD)
            }
        }
    };
}

rw_guard!(RwLockReadGuard, RwLockReadGuard);
rw_guard!(RwLockWriteGuard, RwLockWriteGuard);

impl<T: ?Sized> DerefMut for RwLockWriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.inner.as_mut().expect(HELD)
    }
}

/// As `parking_lot`'s.
#[derive(Debug, Default)]
pub struct Condvar(parking_lot::Condvar);

/// Whether a wait took too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitTimeoutResult(bool);

impl WaitTimeoutResult {
    /// Whether it did.
    pub fn timed_out(&self) -> bool {
        self.0
    }
}

/// How long a thread waits at a time if no scheduler tells it any more that a run is over.
const WHILE: Duration = Duration::from_millis(1);

impl Condvar {
    /// One that no thread waits for.
    pub const fn new() -> Self {
        Self(parking_lot::Condvar::new())
    }

    /// Waits for a signal, with the lock free meanwhile.
    pub fn wait<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>) {
        self.wait_at_most(guard, None);
    }

    /// [`Condvar::wait`], for so long.
    pub fn wait_for<T: ?Sized>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        limit: Duration,
    ) -> WaitTimeoutResult {
        self.wait_at_most(guard, Some(limit))
    }

    /// [`Condvar::wait`], up to this moment.
    pub fn wait_until<T: ?Sized>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        until: Instant,
    ) -> WaitTimeoutResult {
        self.wait_at_most(guard, Some(until.saturating_duration_since(Instant::now())))
    }

    fn wait_at_most<T: ?Sized>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        limit: Option<Duration>,
    ) -> WaitTimeoutResult {
        let Some(m) = current() else {
            let inner = guard.inner.as_mut().expect(HELD);
            return WaitTimeoutResult(match limit {
                Some(limit) => self.0.wait_for(inner, limit).timed_out(),
                None => {
                    self.0.wait(inner);
                    false
                }
            });
        };
        // A thread that changes the condition without the lock may do so here.
        m.point();
        let lock = guard.lock;
        let at = address(lock);
        // No point between letting go and waiting, as with the real one.
        guard.inner = None;
        m.wake(|why| matches!(why, Why::Lock { at: a, .. } if a == at));
        let late = m.wait(Why::Signal(address(self)), limit);
        let again = || acquire(at, true, || lock.0.try_lock(), || lock.0.lock());
        guard.inner = Some(again());
        WaitTimeoutResult(late.unwrap_or_else(|| {
            let limit = limit.unwrap_or(WHILE).min(WHILE);
            self.0
                .wait_for(guard.inner.as_mut().expect(HELD), limit)
                .timed_out()
        }))
    }

    /// All waiting threads go on.
    pub fn notify_all(&self) {
        self.0.notify_all();
        if let Some(m) = current() {
            let at = address(self);
            m.wake(|why| why == Why::Signal(at));
            m.point();
        }
    }

    /// One of the waiting threads goes on.
    pub fn notify_one(&self) {
        self.0.notify_one();
        if let Some(m) = current() {
            m.wake_one(Why::Signal(address(self)));
            m.point();
        }
    }
}
