//! The primitives that the lock-free modules synchronise with: the real ones, or loom's models.
//!
//! Each ordering that carries an argument has a name ([`Site`]). Under `--cfg loom` a test can
//! weaken exactly one of them, in the very modules that ship, and show that a model then fails.

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(not(loom))]
pub(crate) use quayfs_sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

#[cfg(not(loom))]
pub(crate) use quayfs_sync::{Condvar, Mutex};

/// A place where an ordering matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Site {
    /// A lane publishes its lower bound.
    BoundPublish,
    /// A lane takes a number.
    NumberTake,
    /// A lane clears its bound after the append.
    BoundClear,
    /// A reader loads the counter.
    CounterRead,
    /// A reader loads a bound.
    BoundRead,
    /// Credits are taken.
    CreditTake,
    /// Credits come back.
    CreditGive,
    /// A slot's record is durable.
    SlotCommit,
    /// A slot's operation failed.
    SlotAbandon,
    /// The state of a slot is read.
    SlotRead,
    /// A waiter has announced itself and looks for credits once more.
    WaitFence,
    /// Credits were returned and the giver looks for waiters.
    WakeFence,
    /// Not an ordering but an order: the counter is loaded before the bounds.
    CounterFirst,
}

/// `order`, unless a loom test weakens `site`.
#[cfg(not(loom))]
#[inline(always)]
pub(crate) const fn ord(_site: Site, order: Ordering) -> Ordering {
    order
}

/// Whether a loom test has taken out `site`.
#[cfg(not(loom))]
#[inline(always)]
pub(crate) const fn weakened(_site: Site) -> bool {
    false
}

#[cfg(loom)]
pub(crate) use model::{Condvar, Mutex, ord, weakened};

#[cfg(loom)]
pub(crate) mod model {
    use super::{Ordering, Site};
    use std::cell::Cell;
    use std::time::Duration;

    thread_local! {
        // loom runs all threads of a model on the thread that started it.
        static WEAK: Cell<Option<Site>> = const { Cell::new(None) };
    }

    pub(crate) fn ord(site: Site, order: Ordering) -> Ordering {
        if weakened(site) {
            Ordering::Relaxed
        } else {
            order
        }
    }

    pub(crate) fn weakened(site: Site) -> bool {
        WEAK.get() == Some(site)
    }

    /// Runs `model` under loom with `site` weakened.
    #[cfg(test)]
    pub(crate) fn with_weak(site: Option<Site>, model: impl Fn() + Send + Sync + 'static) {
        WEAK.set(site);
        loom::model(model);
    }

    /// A test for each ordering that a model needs: with it weakened the model must fail.
    #[cfg(test)]
    macro_rules! weakened_tests {
        ($($name:ident: $site:ident, $model:expr;)*) => {$(
            #[test]
            #[should_panic]
            fn $name() {
                with_weak(Some(crate::sync::Site::$site), $model);
            }
        )*};
    }
    #[cfg(test)]
    pub(crate) use weakened_tests;

    /// Memory that is not atomic: loom reports unordered accesses to it.
    #[cfg(test)]
    pub(crate) struct Shared(loom::cell::UnsafeCell<u64>);

    #[cfg(test)]
    impl Shared {
        pub(crate) fn new() -> Self {
            Self(loom::cell::UnsafeCell::new(0))
        }

        // The pointers are not followed: loom checks the access, not the memory.
        pub(crate) fn write(&self) {
            self.0.with_mut(|_| ());
        }

        pub(crate) fn read(&self) {
            self.0.with(|_| ());
        }
    }

    /// loom's mutex behind the interface of `parking_lot`'s.
    pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(loom::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            MutexGuard(Some(
                self.0
                    .lock()
                    .expect("a loom model that panics has failed already"),
            ))
        }
    }

    pub(crate) struct MutexGuard<'a, T>(Option<loom::sync::MutexGuard<'a, T>>);

    impl<T> std::ops::Deref for MutexGuard<'_, T> {
        type Target = T;
        fn deref(&self) -> &T {
            self.0.as_ref().expect("taken only while waiting")
        }
    }

    impl<T> std::ops::DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.0.as_mut().expect("taken only while waiting")
        }
    }

    /// loom's condition variable; it never times out, so a lost wake-up is a deadlock loom reports.
    pub(crate) struct Condvar(loom::sync::Condvar);

    impl Condvar {
        pub(crate) fn new() -> Self {
            Self(loom::sync::Condvar::new())
        }

        pub(crate) fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, _limit: Duration) {
            let inner = guard.0.take().expect("taken only while waiting");
            guard.0 = Some(self.0.wait(inner).expect("see `lock`"));
        }

        pub(crate) fn notify_all(&self) {
            self.0.notify_all();
        }
    }
}
