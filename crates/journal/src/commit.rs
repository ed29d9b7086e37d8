//! Commit cuts (`commit` mode).

use crate::Durability;
use crate::error::JournalError;
use crate::journal::{Journal, Media};
use quayfs_layout::jsb::{PROPOSALS, WordKind};
use quayfs_sync::wait_for_device;
use std::sync::atomic::Ordering;

/// Is told what has become of what it waits for: a number at or below which all is committed, or an error.
pub type Waiter = Box<dyn FnOnce(Result<u64, JournalError>) + Send>;

/// What commits have in common.
#[derive(Default)]
pub(crate) struct Committing {
    /// One is being put together and written.
    writing: bool,
    /// The cut of another one, the one before it, which has been written and waits for the device.
    flying: Option<u64>,
    /// Of the next proposal.
    place: u8,
    /// The highest number that a call waits for, or has waited for.
    wanted: u64,
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

/// The right to put a commit together and write it, until it is dropped.
struct Turn<'a>(&'a Journal);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.over(|committing| committing.writing = false);
    }
}

impl<'a> Turn<'a> {
    /// The commit is written. The next one, which has another place, may be put together.
    fn take_off(self, cut: u64, next: u8) -> Flight<'a> {
        let flight = Flight(self.0);
        let mut committing = self.0.committing.lock();
        committing.flying = Some(cut);
        if !quayfs_sync::planted("a commit goes where the one before it is") {
            committing.place = next;
        }
        drop(committing);
        flight
    }
}

/// A commit that is written and waits for the device, until this is dropped.
struct Flight<'a>(&'a Journal);

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // Others would take it for durable, and the last one that is would lose its place.
            self.0.stopped.store(true, Ordering::Release);
        }
        self.0.over(|committing| committing.flying = None);
    }
}

/// A thread that serves the queue.
struct Serving<'a>(&'a Journal);

impl Drop for Serving<'_> {
    /// No caller waits for a thread that has panicked. Another one may serve, unless the end has been announced.
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
    /// While one commit waits for the device, the next one is put together and written, for all calls that come
    /// meanwhile ([`JournalOptions::proposals`](crate::JournalOptions::proposals)). Calls that it covers return with
    /// it.
    ///
    /// # Errors
    /// [`JournalError::Stopped`], [`JournalError::Pmem`] if the region cannot be drained, or [`JournalError::Media`] if
    /// what a record refers to cannot be made durable; the last two stop the journal.
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
        let Some(turn) = self.turn(want) else {
            self.counters.count_shared_commit();
            return Ok(self.commit_ts.load(Ordering::Acquire));
        };
        self.check()?;
        let exact = upto.map(|_| want);
        let cut = match self.proposals {
            0 => self.commit_in_two_drains(exact)?,
            _ => self.propose(turn, exact)?,
        };
        self.counters.count_commit();
        Ok(cut)
    }

    /// Where a commit begins: one number in one order, which cannot separate an operation from what it depends on. What
    /// was appended while the commit waited for its turn is covered as well, unless the cut is to be exact.
    fn cut(&self, exact: Option<u64>) -> u64 {
        let cut = exact.unwrap_or_else(|| self.bounds.last_taken());
        // Ordering 3: counter first, then bounds. An append that has taken a number at or below the cut holds its
        // lane's lock until it is finished, so taking the lock waits without spinning.
        let waited_for = self.bounds.appending_upto(cut);
        for lane in waited_for.filter(|_| !quayfs_sync::planted("commit waits for nobody")) {
            drop(self.buffers[lane].lane.lock());
        }
        cut
    }

    fn commit_in_two_drains(&self, exact: Option<u64>) -> Result<u64, JournalError> {
        let cut = self.cut(exact);
        if let Some(media) = self.media.get().filter(|_| self.has_dependent()) {
            wait_for_device(media).map_err(|e| {
                // For good: nothing says what of it is there.
                self.stopped.store(true, Ordering::Release);
                self.wake();
                JournalError::Media(e)
            })?;
        }
        // Records and slots at or below the cut are settled before the number that vouches for them.
        self.drain()?;
        self.jsb().store(WordKind::CommitTs, cut);
        self.drain()?;
        // Ordering 8: visible, to digest and to `fsync`, only when persistent.
        self.commit_ts.store(cut, Ordering::Release);
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
            if !durable && !self.is_free(&committing, want) && committing.service == Service::Open {
                committing.queue.push((want, waiter()));
                self.want(&mut committing, want);
                return None;
            }
        }
        Some(self.commit(None))
    }

    /// Commits for the queued waiters, until [`Journal::end_queue`]. Calls `each` after each of its commits.
    pub fn serve_queue(&self, mut each: impl FnMut(Result<u64, JournalError>)) {
        let _serving = Serving(self);
        let mut committing = self.committing.lock();
        committing.service = match committing.service {
            Service::None => Service::Open,
            other => other,
        };
        loop {
            // The commit that runs tells what it covers, and calls for the rest.
            while !self.has_work(&committing) {
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

    /// Ends [`Journal::serve_queue`], now or when it begins: all queued waiters are told, and from now on none is
    /// queued.
    pub fn end_queue(&self) {
        self.committing.lock().service = Service::Ending;
        self.queued.notify_all();
    }

    /// Whether a commit can begin, of records that the one under way does not cover.
    fn is_free(&self, committing: &Committing, want: u64) -> bool {
        let pipelined = usize::from(self.proposals) == PROPOSALS;
        let behind = |cut| pipelined && cut < want;
        !committing.writing && committing.flying.is_none_or(behind)
    }

    /// Whether the thread of the queue has something to commit, or is to end.
    fn has_work(&self, committing: &Committing) -> bool {
        match committing.queue.iter().map(|(want, _)| *want).max() {
            Some(want) => self.is_free(committing, want),
            None => committing.service == Service::Ending,
        }
    }

    /// A call waits for a number, which a commit that waits for the one before it can take along.
    fn want(&self, committing: &mut Committing, want: u64) {
        committing.wanted = committing.wanted.max(want);
        if committing.flying.is_some() {
            self.committed.notify_all();
        }
    }

    /// The right to write a commit, or `None` if all up to `want` has been committed meanwhile.
    fn turn(&self, want: u64) -> Option<Turn<'_>> {
        let mut committing = self.committing.lock();
        if !self.is_free(&committing, want) {
            self.want(&mut committing, want);
            drop(committing);
            return wait_for_device(|| {
                let mut committing = self.committing.lock();
                while !self.is_free(&committing, want) && self.commit_ts() < want {
                    self.committed.wait(&mut committing);
                }
                self.turn_of(&mut committing, want)
            });
        }
        self.turn_of(&mut committing, want)
    }

    fn turn_of(&self, committing: &mut Committing, want: u64) -> Option<Turn<'_>> {
        if self.commit_ts() >= want {
            return None;
        }
        committing.writing = true;
        Some(Turn(self))
    }

    /// The number goes with what it vouches for, and recovery looks whether that is there. With it goes the last number
    /// that is durable, and its place is one that says nothing any more: of what the other places have, one may wait
    /// for the device, which recovery looks at if this one is not believed. Slot headers are not among it: the record
    /// has what they say, and digest drains them before digested_seq passes it.
    fn propose(&self, turn: Turn<'_>, exact: Option<u64>) -> Result<u64, JournalError> {
        let stop = |e| self.stop(e);
        let place = self.committing.lock().place;
        let cut = loop {
            let cut = self.cut(exact);
            if self.has_dependent() {
                // What it refers to would have to be looked at as well before this is believed.
                self.may_fly(cut, Some(cut));
                return self.commit_in_two_drains(exact);
            }
            self.jsb().store(WordKind::CommitTs, self.commit_ts());
            self.jsb().store(WordKind::Proposal(place), cut);
            self.region.settle_ranges(&self.geo.log()).map_err(stop)?;
            if self.may_fly(cut, exact) {
                break cut;
            }
        };
        // The next one may be written from now on.
        let _flight = turn.take_off(cut, (place + 1) % self.proposals);
        self.region.drain_settled().map_err(stop)?;
        // Ordering 8: visible, to digest and to `fsync`, only when persistent.
        self.commit_ts.store(cut, Ordering::Release);
        Ok(cut)
    }

    /// Whether a record that is not committed refers to more than the log.
    fn has_dependent(&self) -> bool {
        self.dependent.load(Ordering::Acquire) > self.commit_ts()
    }

    /// What a commit calls first, if it covers a record that refers to other media ([`Credit::depend_on_media`]). Set
    /// once.
    ///
    /// [`Credit::depend_on_media`]: crate::Credit::depend_on_media
    pub fn set_media(&self, settle: Media) {
        let _ = self.media.set(settle);
    }

    /// Waits until the commit before this one is durable, or has failed; or returns `false` if a call has come
    /// meanwhile whose records this one can take along.
    fn may_fly(&self, cut: u64, exact: Option<u64>) -> bool {
        if self.committing.lock().flying.is_none() {
            return true;
        }
        wait_for_device(|| {
            let mut committing = self.committing.lock();
            while committing.flying.is_some() {
                if exact.is_none() && committing.wanted > cut {
                    return false;
                }
                self.committed.wait(&mut committing);
            }
            true
        })
    }

    /// A commit has ended, or can be followed by another one. Tells those that wait what has become of it.
    fn over(&self, change: impl FnOnce(&mut Committing)) {
        let mut committing = self.committing.lock();
        change(&mut committing);
        let (upto, stopped) = (self.commit_ts(), self.check().is_err());
        let covered = |(want, _): &mut (u64, Waiter)| stopped || *want <= upto;
        let told: Vec<_> = committing.queue.extract_if(.., covered).collect();
        // The thread of the queue sleeps while there is nothing for it, also when the end has been announced meanwhile.
        let called = self.has_work(&committing);
        drop(committing);
        self.committed.notify_all();
        if called {
            self.queued.notify_all();
        }
        for (want, waiter) in told {
            if want <= upto {
                self.counters.count_shared_commit();
                waiter(Ok(upto));
            } else {
                waiter(Err(JournalError::Stopped));
            }
        }
    }

    /// The last durable commit; in `op` what it was when the volume was recovered.
    pub fn commit_ts(&self) -> u64 {
        self.commit_ts.load(Ordering::Acquire)
    }
}
