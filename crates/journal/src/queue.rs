//! Waiting for credits: first come, first served, and no wake-up is lost.
//!
//! A newcomer passes the callers that wait if what it leaves is enough for the first of them. If newcomers
//! always queued, a queue would never end once it has begun: a caller that is served comes back before the last
//! one in the queue has been woken, and every operation sleeps once.

use crate::credits::Amount;
use crate::sync::{AtomicU64, Condvar, Mutex, Ordering, Site, fence, weakened};
use quayfs_sync::time::Instant;
use std::collections::VecDeque;
use std::time::Duration;

/// Places to sleep at. Only the first in line has anything to do when something changes; woken together, all
/// others would run for nothing, once for each credit that is given.
#[cfg(not(loom))]
const BEDS: usize = 32;
/// In the models there are two waiters.
#[cfg(loom)]
const BEDS: usize = 2;

/// The callers that wait, in order of arrival.
pub(crate) struct WaitQueue {
    waiting: AtomicU64,
    /// What the first in line wants, packed.
    claim: AtomicU64,
    tickets: Mutex<Tickets>,
    /// A caller that has a ticket sleeps at the bed of the ticket's number.
    beds: [Condvar; BEDS],
}

#[derive(Default)]
struct Tickets {
    next: u64,
    queue: VecDeque<(u64, Amount)>,
}

impl WaitQueue {
    pub(crate) fn new() -> Self {
        Self {
            waiting: AtomicU64::new(0),
            claim: AtomicU64::new(0),
            tickets: Mutex::new(Tickets::default()),
            beds: std::array::from_fn(|_| Condvar::new()),
        }
    }

    /// What a newcomer must leave, or a large need would starve: the need of the first in line, which takes it as
    /// soon as it is there. Nothing if no caller waits.
    pub(crate) fn claim(&self) -> Amount {
        Amount::unpack(self.claim.load(Ordering::Relaxed))
    }

    /// Calls `attempt`, which takes `need`, whenever it is this caller's turn and something may have changed,
    /// until it yields a value or `limit` has passed.
    pub(crate) fn wait<T>(
        &self,
        need: Amount,
        limit: Duration,
        mut attempt: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        let start = Instant::now();
        let mut tickets = self.tickets.lock();
        let mine = tickets.next;
        tickets.next += 1;
        tickets.queue.push_back((mine, need));
        self.show_claim(&tickets);
        self.waiting.fetch_add(1, Ordering::Relaxed);
        // Pairs with the fence in `wake`: of a giver and a waiter at least one sees the other.
        if !weakened(Site::WaitFence) {
            fence(Ordering::SeqCst);
        }
        let result = loop {
            let got = if tickets.queue.front().is_some_and(|(t, _)| *t == mine) {
                attempt()
            } else {
                None
            };
            let left = limit.checked_sub(start.elapsed());
            match (got, left) {
                (Some(value), _) => break Some(value),
                (None, None) => break None,
                (None, Some(left)) => {
                    self.bed(mine).wait_for(&mut tickets, left);
                }
            }
        };
        tickets.queue.retain(|(t, _)| *t != mine);
        self.show_claim(&tickets);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        // The next in line may be served from what is left.
        self.wake_first(&tickets);
        result
    }

    /// Whether a caller waits, or did a moment ago.
    pub(crate) fn is_waiting(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) != 0
    }

    /// Something may have changed: to be called after credits were given.
    pub(crate) fn wake(&self) {
        if !weakened(Site::WakeFence) {
            fence(Ordering::SeqCst);
        }
        if self.waiting.load(Ordering::Relaxed) != 0 {
            // With the mutex held a waiter is either before its attempt, or asleep.
            self.wake_first(&self.tickets.lock());
        }
    }

    fn bed(&self, ticket: u64) -> &Condvar {
        &self.beds[ticket as usize % BEDS]
    }

    fn wake_first(&self, tickets: &Tickets) {
        if let Some((first, _)) = tickets.queue.front() {
            self.bed(*first).notify_all();
        }
    }

    /// A newcomer may see the new claim late: it then goes on a little too early, or queues once more.
    fn show_claim(&self, tickets: &Tickets) {
        let first = tickets.queue.front().map_or(Amount::default(), |(_, a)| *a);
        self.claim.store(first.pack(), Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{Amount, WaitQueue};
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::time::Duration;

    const LONG: Duration = Duration::MAX;

    fn slots(slots: u64) -> Amount {
        Amount {
            slots,
            ..Amount::default()
        }
    }

    #[test]
    fn gives_up_after_the_limit_and_leaves_the_queue() {
        let q = WaitQueue::new();
        assert_eq!(
            q.wait(slots(1), Duration::from_millis(1), || None::<()>),
            None
        );
        assert_eq!(q.claim(), Amount::default());
        assert_eq!(q.waiting.load(Ordering::Relaxed), 0);
        assert_eq!(q.wait(slots(1), LONG, || Some(1)), Some(1));
    }

    #[test]
    fn a_waiter_is_woken() {
        let (q, ready) = (WaitQueue::new(), AtomicBool::new(false));
        std::thread::scope(|s| {
            let waiter = s.spawn(|| {
                q.wait(slots(3), LONG, || {
                    ready.load(Ordering::Relaxed).then_some(7)
                })
            });
            while q.waiting.load(Ordering::Relaxed) == 0 {
                std::thread::yield_now();
            }
            assert_eq!(q.claim(), slots(3));
            ready.store(true, Ordering::Relaxed);
            q.wake();
            assert_eq!(waiter.join().expect("the waiter does not panic"), Some(7));
            assert_eq!(q.claim(), Amount::default());
        });
    }

    #[test]
    fn served_in_order_of_arrival() {
        let (q, budget) = (WaitQueue::new(), AtomicU64::new(0));
        let order = parking_lot::Mutex::new(Vec::new());
        let (q, budget, order) = (&q, &budget, &order);
        std::thread::scope(|s| {
            // The first needs 3 of the budget, the later ones 1: they must not overtake it.
            for (i, need) in [3u64, 1, 1].into_iter().enumerate() {
                s.spawn(move || {
                    q.wait(slots(need), LONG, || {
                        let take = |b: u64| b.checked_sub(need);
                        budget
                            .fetch_update(Ordering::AcqRel, Ordering::Acquire, take)
                            .ok()?;
                        order.lock().push(i);
                        Some(())
                    })
                });
                while q.waiting.load(Ordering::Relaxed) != i as u64 + 1 {
                    std::thread::yield_now();
                }
            }
            for _ in 0..5 {
                budget.fetch_add(1, Ordering::AcqRel);
                q.wake();
            }
        });
        assert_eq!(*order.lock(), [0, 1, 2]);
    }
}
