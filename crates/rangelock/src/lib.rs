//! Shared and exclusive locks over ranges of a file's bytes (or of anything counted in `u64`).
//!
//! * Disjoint ranges never wait for each other.
//! * A free range goes to the first request that comes: a request that conflicts with no held range goes on at
//!   once, though others wait. A thread that runs takes it before one that sleeps.
//! * That has an end. A request that has been overtaken for half a millisecond is woken, and is not overtaken
//!   any more once it is awake: requests that conflict with it and came later wait behind it, and its range is
//!   kept for it as soon as no part of it is held. Of requests that conflict with each other the earliest comes
//!   to that first. So a writer of the whole file is not starved by a stream of small readers.
//! * A thread that waits for longer than some microseconds sleeps. A release does not wake sleeping threads while
//!   a thread that conflicts with them is awake and waiting, or on the way.
//!
//! To hand each range to the next in order of arrival would be fairer, and slow: the range would be kept for a
//! thread that sleeps, every thread that comes meanwhile would go to sleep too, and from then on each turn
//! would cost a wake-up, whatever it protects (a convoy).
//!
//! The lock knows intervals and threads and nothing else. A thread that asks for a range that
//! conflicts with one it already holds waits for itself; the order in which several locks are
//! taken is the caller's business.
//!
//! How it works: one short mutexed list of all requests, held and waiting. A waiting thread is told to look
//! again; it takes the mutex and checks whether a request that is held, or is earlier and out of patience,
//! conflicts with its own. Every request that waits and was not told conflicts with one that is held, with one
//! that was told, or with an earlier one that insists; so some request always moves. The critical section does
//! no system call.
//!
//! [`FileLock`] is this lock, or one of the whole file to measure it against.

#![cfg_attr(doctest, doc = include_str!("../README.md"))]

#[cfg(not(loom))]
mod file;
mod guard;
mod sync;
mod table;

pub mod baseline;

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod table_tests;

use std::fmt;
use std::ops::Range;

#[cfg(not(loom))]
pub use file::{FileLock, FileReadGuard, FileWriteGuard, Policy};
pub use guard::{ReadGuard, WriteGuard};

use guard::Hold;
use smallvec::SmallVec;
use sync::{Arc, Mutex, Waiter, now};
use table::{Id, Mode, Span, Table};

/// A lock over the ranges of one file. See the crate's documentation for its guarantees.
///
/// A new lock owns no memory; the list grows with the number of simultaneous requests.
///
/// ```
/// use quayfs_rangelock::RangeLock;
///
/// let lock = RangeLock::new();
/// let reader = lock.read(0..100);
/// assert!(lock.try_read(50..150).is_some(), "readers share");
/// assert!(lock.try_write(50..150).is_none(), "a writer does not");
/// let writer = lock.write(100..150);
/// assert_eq!((writer.range(), writer.waited()), (100..150, false));
/// drop(reader);
/// assert!(lock.try_write(0..100).is_some());
/// ```
pub struct RangeLock {
    table: Mutex<Table<Arc<Waiter>>>,
}

/// What a lock has done since it was made, and what it is doing now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Requests granted so far, at once or after a wait. Failed `try_` calls do not count.
    pub granted: u64,
    /// Requests that had to wait.
    pub waited: u64,
    /// Ranges held at this moment.
    pub held: usize,
    /// Requests waiting at this moment.
    pub waiting: usize,
}

impl RangeLock {
    /// An unlocked lock.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self {
            table: Mutex::new(Table::new()),
        }
    }

    #[cfg(loom)]
    #[allow(missing_docs)]
    pub fn new() -> Self {
        Self {
            table: Mutex::new(Table::new()),
        }
    }

    /// Locks `range` shared, waiting as long as a writer holds a part of it or insists on one.
    ///
    /// An end of `u64::MAX` stands for infinity. An empty range conflicts with nothing.
    pub fn read(&self, range: Range<u64>) -> ReadGuard<&Self> {
        ReadGuard::new(self.hold(self, range, Mode::Shared))
    }

    /// Locks `range` exclusively, waiting as long as another request holds a part of it or insists on one.
    pub fn write(&self, range: Range<u64>) -> WriteGuard<&Self> {
        WriteGuard::new(self.hold(self, range, Mode::Exclusive))
    }

    /// Like [`read`](Self::read), but `None` instead of waiting.
    pub fn try_read(&self, range: Range<u64>) -> Option<ReadGuard<&Self>> {
        Some(ReadGuard::new(self.try_hold(self, range, Mode::Shared)?))
    }

    /// Like [`write`](Self::write), but `None` instead of waiting.
    pub fn try_write(&self, range: Range<u64>) -> Option<WriteGuard<&Self>> {
        Some(WriteGuard::new(self.try_hold(
            self,
            range,
            Mode::Exclusive,
        )?))
    }

    /// [`read`](Self::read) with a guard that keeps `lock` alive instead of borrowing it, for a
    /// range that stays locked longer than the function that locked it.
    ///
    /// `lock.as_ref()` must name the same lock for the life of the guard.
    ///
    /// ```
    /// use quayfs_rangelock::{RangeLock, ReadGuard};
    /// use std::sync::Arc;
    ///
    /// struct File(RangeLock);
    ///
    /// #[derive(Clone)]
    /// struct Handle(Arc<File>);
    ///
    /// impl AsRef<RangeLock> for Handle {
    ///     fn as_ref(&self) -> &RangeLock {
    ///         &self.0.0
    ///     }
    /// }
    ///
    /// fn first_page(file: &Handle) -> ReadGuard<Handle> {
    ///     RangeLock::read_owned(file.clone(), 0..4096)
    /// }
    ///
    /// let file = Handle(Arc::new(File(RangeLock::new())));
    /// let page = first_page(&file);
    /// assert!(file.as_ref().try_write(0..1).is_none());
    /// drop(page);
    /// assert!(file.as_ref().try_write(0..1).is_some());
    /// ```
    pub fn read_owned<L: AsRef<Self>>(lock: L, range: Range<u64>) -> ReadGuard<L> {
        let (id, span, waited) = lock.as_ref().acquire(range, Mode::Shared);
        ReadGuard::new(Hold::new(lock, id, span, waited))
    }

    /// [`write`](Self::write) with a guard that keeps `lock` alive; see
    /// [`read_owned`](Self::read_owned).
    pub fn write_owned<L: AsRef<Self>>(lock: L, range: Range<u64>) -> WriteGuard<L> {
        let (id, span, waited) = lock.as_ref().acquire(range, Mode::Exclusive);
        WriteGuard::new(Hold::new(lock, id, span, waited))
    }

    /// Counters and the present state, in one consistent snapshot.
    pub fn stats(&self) -> Stats {
        self.table.lock().stats()
    }

    fn hold<L: AsRef<Self>>(&self, owner: L, range: Range<u64>, mode: Mode) -> Hold<L> {
        let (id, span, waited) = self.acquire(range, mode);
        Hold::new(owner, id, span, waited)
    }

    fn try_hold<L: AsRef<Self>>(&self, owner: L, range: Range<u64>, mode: Mode) -> Option<Hold<L>> {
        let span = Span::from(range);
        let id = self.table.lock().try_acquire(span, mode, now)?;
        Some(Hold::new(owner, id, span, false))
    }

    /// Returns the entry's name, the span it covers, and whether the caller had to wait.
    fn acquire(&self, range: Range<u64>, mode: Mode) -> (Id, Span, bool) {
        let span = Span::from(range);
        let mut table = self.table.lock();
        if let Some(id) = table.try_acquire(span, mode, now) {
            return (id, span, false);
        }
        let waiter = Arc::new(Waiter::for_this_thread());
        let id = table.enqueue(span, mode, Arc::clone(&waiter));
        drop(table);
        loop {
            waiter.wait();
            let mut told = Told::new();
            let holds = (self.table.lock()).retry(id, now, |w| told.push(Arc::clone(w)));
            told.iter().for_each(|w| w.tell());
            if holds {
                return (id, span, true);
            }
        }
    }

    /// Called once per entry, by the guard's drop.
    fn release(&self, id: Id) {
        // Nothing is allocated unless many are told, and telling, which may enter the kernel, happens
        // outside the critical section.
        let mut told = Told::new();
        (self.table.lock()).release(id, |w| told.push(Arc::clone(w)));
        told.iter().for_each(|w| w.tell());
    }
}

/// Waiters that are to be told.
type Told = SmallVec<[Arc<Waiter>; 2]>;

impl Default for RangeLock {
    fn default() -> Self {
        Self::new()
    }
}

impl AsRef<RangeLock> for RangeLock {
    fn as_ref(&self) -> &RangeLock {
        self
    }
}

impl fmt::Debug for RangeLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RangeLock")
            .field("stats", &self.stats())
            .finish()
    }
}
