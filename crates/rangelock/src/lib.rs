//! Shared and exclusive locks over ranges of a file's bytes (or of anything counted in `u64`).
//!
//! * Disjoint ranges never wait for each other.
//! * Overlapping requests that conflict are served in the order of their arrival: a request waits
//!   for every earlier conflicting one, whether that one already holds its range or still waits.
//!   So a writer of the whole file is not starved by a stream of small readers.
//! * A release grants exactly those requests whose last obstacle it was. Who waits for longer than
//!   about a microsecond is parked.
//!
//! The lock knows intervals and threads and nothing else. A thread that asks for a range that
//! conflicts with one it already holds waits for itself; the order in which several locks are
//! taken is the caller's business.
//!
//! How it works: one short mutexed list of all requests, held and waiting. A new request counts
//! the earlier entries it conflicts with; zero means that it holds its range at once. Removing an
//! entry decrements the count of each later entry that conflicts with it, and a count that reaches
//! zero is a grant. No entry is ever looked at twice for one event, and the critical section does
//! no system call.

mod guard;
mod policy;
mod sync;
mod table;

pub mod baseline;

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod table_tests;

use std::fmt;
use std::ops::Range;

pub use guard::{ReadGuard, WriteGuard};
pub use policy::Policy;

use guard::Hold;
use sync::{Arc, Mutex, Waiter};
use table::{Id, Mode, Span, Table};

/// A lock over the ranges of one file. See the crate's documentation for its guarantees.
///
/// A new lock owns no memory; the list grows with the number of simultaneous requests.
pub struct RangeLock {
    policy: Policy,
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
    /// An unlocked lock with [`Policy::Range`].
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self::with_policy(Policy::Range)
    }

    /// An unlocked lock with the given policy.
    #[cfg(not(loom))]
    pub const fn with_policy(policy: Policy) -> Self {
        Self {
            policy,
            table: Mutex::new(Table::new()),
        }
    }

    #[cfg(loom)]
    #[allow(missing_docs)]
    pub fn new() -> Self {
        Self::with_policy(Policy::Range)
    }

    #[cfg(loom)]
    #[allow(missing_docs)]
    pub fn with_policy(policy: Policy) -> Self {
        Self {
            policy,
            table: Mutex::new(Table::new()),
        }
    }

    /// Locks `range` shared, waiting for every earlier writer that overlaps it.
    ///
    /// An end of `u64::MAX` stands for infinity. An empty range conflicts with nothing.
    pub fn read(&self, range: Range<u64>) -> ReadGuard<&Self> {
        ReadGuard::new(self.hold(self, range, Mode::Shared))
    }

    /// Locks `range` exclusively, waiting for every earlier request that overlaps it.
    pub fn write(&self, range: Range<u64>) -> WriteGuard<&Self> {
        WriteGuard::new(self.hold(self, range, Mode::Exclusive))
    }

    /// Like [`read`](Self::read), but `None` instead of waiting. A request that still waits is an
    /// obstacle too: trying does not overtake.
    pub fn try_read(&self, range: Range<u64>) -> Option<ReadGuard<&Self>> {
        Some(ReadGuard::new(self.try_hold(self, range, Mode::Shared)?))
    }

    /// Like [`write`](Self::write), but `None` instead of waiting. A request that still waits is an
    /// obstacle too.
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

    /// The policy this lock was made with.
    pub fn policy(&self) -> Policy {
        self.policy
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
        let span = self.policy.span(range);
        let id = self.table.lock().try_acquire(span, mode)?;
        Some(Hold::new(owner, id, span, false))
    }

    /// Returns the entry's name, the span it covers, and whether the caller had to wait.
    fn acquire(&self, range: Range<u64>, mode: Mode) -> (Id, Span, bool) {
        let span = self.policy.span(range);
        let mut table = self.table.lock();
        if let Some(id) = table.try_acquire(span, mode) {
            return (id, span, false);
        }
        let waiter = Arc::new(Waiter::for_this_thread());
        let id = table.enqueue(span, mode, Arc::clone(&waiter));
        drop(table);
        waiter.wait();
        (id, span, true)
    }

    /// Called once per entry, by the guard's drop.
    fn release(&self, id: Id) {
        // Nothing is allocated unless somebody is woken, and waking, which may enter the kernel,
        // happens outside the critical section.
        let mut granted = Vec::new();
        self.table.lock().release(id, |waiter| granted.push(waiter));
        for waiter in granted {
            waiter.wake();
        }
    }
}

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
            .field("policy", &self.policy)
            .field("stats", &self.stats())
            .finish()
    }
}
