//! Commit cuts (`commit` mode).

use crate::Durability;
use crate::error::JournalError;
use crate::journal::Journal;
use quayfs_layout::jsb::{PROPOSALS, WordKind};
use quayfs_sync::wait_for_device;
use std::sync::atomic::Ordering;

/// Is told what has become of what it waits for: a number at or below which all is committed, or an error.
pub type Waiter = Box<dyn FnOnce(Result<u64, JournalError>) + Send>;

/// What commits have in common.
#[derive(Default)]
pub(crate) struct Committing {
    running: bool,
    /// Of the next proposal.
    place: u8,
    /// What is to be told when a number is committed. Not empty only while there is a thread for it.
    queue: Vec<(u64, Waiter)>,
    /// What becomes of the queue.
    service: Service,
}

/// Whether there is a thread that commits for the queue ([`Journal::serve_queue`]).
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Service {
    #[default]
    None,
    Open,
    /// It ends when the queue is empty.
    Ending,
}

/// The right to commit, until it is dropped.
struct Turn<'a> {
    journal: &'a Journal,
    place: u8,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let journal = self.journal;
        let mut committing = journal.committing.lock();
        committing.running = false;
        committing.place = self.place;
        let (upto, stopped) = (journal.commit_ts(), journal.check().is_err());
        let covered = |(want, _): &mut (u64, Waiter)| stopped || *want <= upto;
        let told: Vec<_> = committing.queue.extract_if(.., covered).collect();
        // The thread of the queue sleeps while a commit runs, also when the end has been announced meanwhile.
        let called = !committing.queue.is_empty() || committing.service == Service::Ending;
        drop(committing);
        journal.committed.notify_all();
        if called {
            journal.queued.notify_all();
        }
        for (want, waiter) in told {
            if want <= upto {
                journal.counters.count_shared_commit();
                waiter(Ok(upto));
            } else {
                waiter(Err(JournalError::Stopped));
            }
        }
    }
}

/// A thread that serves the queue.
struct Serving<'a>(&'a Journal);

impl Drop for Serving<'_> {
    /// Nobody waits for a thread that has panicked. Another one may serve, unless the end has been announced.
    fn drop(&mut self) {
        let mut committing = self.0.committing.lock();
        if committing.service == Service::Open {
            committing.service = Service::None;
        }
        let left = std::mem::take(&mut committing.queue);
        drop(committing);
        left.into_iter()
            .for_each(|(_, waiter)| waiter(Err(JournalError::Stopped)));
    }
}

impl Journal {
    /// Makes every record at or below `upto` durable; `None` means at least all that were appended before this
    /// call. With a number the cut is exactly there: what is above may refer to data that the caller has not made
    /// durable yet. Returns a number at or below which all is committed, more than asked for if
    /// others have committed. In `op` there is nothing to do.
    ///
    /// One commit runs at a time. Calls that come meanwhile wait for it; those that it covers return with it, and one of
    /// the others commits for all of them.
    ///
    /// # Errors
    /// [`JournalError::Stopped`], or [`JournalError::Pmem`] if the region cannot be drained.
    pub fn commit(&self, upto: Option<u64>) -> Result<u64, JournalError> {
        if self.durability == Durability::Op {
            return Ok(self.complete_upto());
        }
        let last = self.bounds.last_taken();
        let want = upto.map_or(last, |n| n.min(last));
        let done = self.commit_ts.load(Ordering::Acquire);
        if done >= want {
            return Ok(done);
        }
        let Some(mut turn) = self.turn(want) else {
            self.counters.count_shared_commit();
            return Ok(self.commit_ts.load(Ordering::Acquire));
        };
        self.check()?;
        let done = self.commit_ts.load(Ordering::Acquire);
        // One number in one order: it cannot separate an operation from what it depends on. What was appended
        // while this waited for its turn is covered as well.
        let cut = upto.map_or_else(|| self.bounds.last_taken(), |_| want);
        // Ordering 3: counter first, then bounds. Whoever took a number at or below the cut holds his
        // lane's lock until the append is finished, so taking the lock waits without spinning.
        let waited_for = self.bounds.appending_upto(cut);
        for lane in waited_for.filter(|_| !quayfs_sync::planted("commit waits for nobody")) {
            drop(self.buffers[lane].lane.lock());
        }
        match self.one_drain {
            true => self.propose(&mut turn.place, done, cut)?,
            false => {
                // Records and slots at or below the cut are settled before the number that vouches for them.
                self.drain()?;
                self.jsb().store(WordKind::CommitTs, cut);
                self.drain()?;
            }
        }
        // Ordering 8: visible, to digest and to `fsync`, only when persistent.
        self.commit_ts.store(cut, Ordering::Release);
        self.counters.count_commit();
        Ok(cut)
    }

    /// Makes every record that was appended before this call durable, as [`Journal::commit`] does, if that can begin at
    /// once. While another commit runs it returns `None` instead, and the waiter is told when its records are durable;
    /// so that a thread need not sleep for each. Only while a thread serves the queue; else this waits.
    ///
    /// # Errors
    /// As [`Journal::commit`].
    pub fn commit_or_queue(
        &self,
        waiter: impl FnOnce() -> Waiter,
    ) -> Option<Result<u64, JournalError>> {
        let want = self.bounds.last_taken();
        if self.durability == Durability::Commit {
            let mut committing = self.committing.lock();
            let durable = self.commit_ts() >= want;
            if !durable && committing.running && committing.service == Service::Open {
                committing.queue.push((want, waiter()));
                return None;
            }
        }
        Some(self.commit(None))
    }

    /// Commits for those who are queued, until [`Journal::end_queue`]. After each of its commits it calls `each`.
    pub fn serve_queue(&self, mut each: impl FnMut(Result<u64, JournalError>)) {
        let _serving = Serving(self);
        let mut committing = self.committing.lock();
        committing.service = match committing.service {
            Service::None => Service::Open,
            other => other,
        };
        loop {
            // The commit that runs tells what it covers, and calls for the rest.
            while committing.running
                || committing.queue.is_empty() && committing.service == Service::Open
            {
                self.queued.wait(&mut committing);
            }
            if committing.queue.is_empty() {
                return;
            }
            drop(committing);
            each(self.commit(None));
            committing = self.committing.lock();
        }
    }

    /// Whether a thread serves the queue, so that [`Journal::commit_or_queue`] may return `None`.
    pub fn serves_queue(&self) -> bool {
        self.committing.lock().service == Service::Open
    }

    /// Ends [`Journal::serve_queue`], now or when it begins: all that are queued are told, and from now on nobody is
    /// queued.
    pub fn end_queue(&self) {
        self.committing.lock().service = Service::Ending;
        self.queued.notify_all();
    }

    /// The right to commit, or `None` if all up to `want` has been committed meanwhile.
    fn turn(&self, want: u64) -> Option<Turn<'_>> {
        let mut committing = self.committing.lock();
        if committing.running {
            drop(committing);
            return wait_for_device(|| {
                let mut committing = self.committing.lock();
                while committing.running && self.commit_ts.load(Ordering::Acquire) < want {
                    self.committed.wait(&mut committing);
                }
                self.turn_of(&mut committing, want)
            });
        }
        self.turn_of(&mut committing, want)
    }

    fn turn_of(&self, committing: &mut Committing, want: u64) -> Option<Turn<'_>> {
        if self.commit_ts.load(Ordering::Acquire) >= want {
            return None;
        }
        committing.running = true;
        Some(Turn {
            journal: self,
            place: committing.place,
        })
    }

    /// The number goes with what it vouches for, and recovery looks whether that is there. It takes the place of the
    /// proposal before the last one, which is durable: if this one is not believed, the last one is. Slot headers are
    /// not among it: the record has what they say, and digest drains them before D passes it.
    fn propose(&self, place: &mut u8, done: u64, cut: u64) -> Result<(), JournalError> {
        self.jsb().store(WordKind::CommitTs, done);
        self.jsb().store(WordKind::Proposal(*place), cut);
        let drained = self.region.drain_ranges(&self.geo.log());
        drained.map_err(|e| self.stop(e))?;
        *place = (*place + 1) % PROPOSALS as u8;
        Ok(())
    }

    /// The last durable commit; in `op` what it was when the volume was recovered.
    pub fn commit_ts(&self) -> u64 {
        self.commit_ts.load(Ordering::Acquire)
    }
}
