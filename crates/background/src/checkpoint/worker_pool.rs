//! The worker pool of rounds (paper 1, III.2): threads that write what a round submits, while the round goes on with
//! what needs no device. They live as long as the mount. Where there are none, the submitting thread writes it all.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use quayfs_blockdev::AlignedBuf;
use quayfs_pmem::WriteThrottle;
use quayfs_store::error::{FsError, Result};
use quayfs_sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use quayfs_sync::{Condvar, Mutex, MutexGuard};

use super::Move;
use super::write::{Batches, next_part, write_batch};
use crate::Background;
use crate::threads::are_scarce;

/// Where rounds and the threads that write for them meet.
#[derive(Default)]
pub(crate) struct WorkerPool {
    state: Mutex<State>,
    /// Something was submitted, or this is the end.
    submitted: Condvar,
    /// The last batch of what was submitted has been dealt with.
    written: Condvar,
    throttle: WriteThrottle,
    /// Held while a short part is written.
    short: Mutex<()>,
    /// Blocks that were handed to the device, of rounds that have not ended too: counted to tell how far they are.
    sent: std::sync::atomic::AtomicU64,
}

#[derive(Default)]
struct State {
    job: Option<Arc<Job>>,
    stop: bool,
}

/// What is to be written, batch by batch.
struct Job {
    moves: Arc<Vec<Move>>,
    batches: Batches,
    /// The batch that is taken next.
    next: AtomicUsize,
    /// Batches that no thread will touch any more.
    over: AtomicUsize,
    /// Nothing more is begun.
    given_up: AtomicBool,
    failure: Mutex<Option<FsError>>,
}

/// Blocks that are being written. Dropping this waits until no thread writes any of them.
#[must_use = "blocks are on their way to the device until this has ended"]
pub(super) struct Submission<'e> {
    e: &'e Background,
    job: Arc<Job>,
}

/// A batch that a thread has taken. It is over when this is dropped, whatever became of it.
struct Taken<'j> {
    job: &'j Job,
    pool: &'j WorkerPool,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.job
                .fail(FsError::internal("a thread that writes panicked"));
        }
        // Release pairs with the Acquire in `is_over`: the slots of this batch have been read.
        let over = self.job.over.fetch_add(1, Ordering::AcqRel) + 1;
        if over == self.job.batches.len() {
            // With the lock, so that no thread is between looking and waiting.
            let _state = self.pool.state.lock();
            self.pool.written.notify_all();
        }
    }
}

impl Job {
    fn is_begun(&self) -> bool {
        self.next.load(Ordering::Relaxed) >= self.batches.len()
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire) == self.batches.len()
    }

    fn fail(&self, err: FsError) {
        self.failure.lock().get_or_insert(err);
        self.given_up.store(true, Ordering::Relaxed);
    }

    /// Writes batches until none is left.
    fn work(&self, e: &Background, buf: &mut AlignedBuf) {
        loop {
            let n = self.next.fetch_add(1, Ordering::Relaxed);
            if n >= self.batches.len() {
                return;
            }
            let _taken = Taken {
                job: self,
                pool: &e.pool,
            };
            if self.given_up.load(Ordering::Relaxed) {
                continue;
            }
            if let Err(err) = self.write(e, self.batches.get(n), buf) {
                self.fail(err);
            }
        }
    }

    /// Writes a batch, in short parts while commits flush the same disk: one at a time then, whatever the number of
    /// threads.
    fn write(&self, e: &Background, batch: &[Range<usize>], buf: &mut AlignedBuf) -> Result<()> {
        let mut left = VecDeque::from(batch.to_vec());
        while !left.is_empty() {
            let short = e.pool.short_part(e);
            let part = match short {
                Some(_) => next_part(&mut left),
                None => std::mem::take(&mut left).into(),
            };
            write_batch(e, &self.moves, &part, buf)?;
            let blocks: usize = part.iter().map(ExactSizeIterator::len).sum();
            e.pool.sent.fetch_add(blocks as u64, Ordering::Relaxed);
            drop(short);
        }
        Ok(())
    }
}

impl WorkerPool {
    /// Writes what rounds submit, until [`WorkerPool::stop`]. The body of a thread of the mount.
    pub(crate) fn serve(&self, e: &Background) {
        let mut buf = AlignedBuf::default();
        let mut state = self.state.lock();
        while !state.stop {
            match &state.job {
                Some(job) if !job.is_begun() => {
                    let job = Arc::clone(job);
                    drop(state);
                    job.work(e, &mut buf);
                    state = self.state.lock();
                }
                _ => self.submitted.wait(&mut state),
            }
        }
    }

    /// Blocks that were handed to the device so far.
    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// The turn to write a short part, if the next one is to be short: commits flush the disk that holds data and region,
    /// and no operation is about to wait for slots, which counts more.
    fn short_part(&self, e: &Background) -> Option<MutexGuard<'_, ()>> {
        let is_short = e.drain_flushes
            && self.throttle.is_short(e.region.flushes())
            && !e.journal.slots_are_wanted()
            && !are_scarce(&e.journal.stats());
        is_short.then(|| self.short.lock())
    }

    /// Ends [`WorkerPool::serve`], once what was submitted has been written.
    pub(crate) fn stop(&self) {
        self.state.lock().stop = true;
        self.submitted.notify_all();
    }

    /// Has blocks written, in the order of their places. One job at a time: the caller holds the lock of rounds.
    /// `alone`: no other thread writes any of them.
    pub(super) fn submit<'e>(
        e: &'e Background,
        moves: &Arc<Vec<Move>>,
        alone: bool,
    ) -> Submission<'e> {
        let job = Arc::new(Job {
            batches: Batches::of(moves),
            moves: Arc::clone(moves),
            next: AtomicUsize::new(0),
            over: AtomicUsize::new(0),
            given_up: AtomicBool::new(false),
            failure: Mutex::default(),
        });
        if !alone && job.batches.len() > 0 {
            e.pool.state.lock().job = Some(Arc::clone(&job));
            e.pool.submitted.notify_all();
        }
        Submission { e, job }
    }
}

impl Submission<'_> {
    /// Takes part, until all that is left is with others.
    pub(super) fn help(&self, buf: &mut AlignedBuf) {
        self.job.work(self.e, buf);
    }

    /// Returns when everything has been written (the round barrier of paper 1). Nothing of it is durable before the
    /// device has been flushed. Without workers it is [`Submission::help`] that writes.
    ///
    /// # Errors
    /// The first; then some of the blocks may not have been written.
    pub(super) fn finish(self) -> Result<()> {
        self.wait();
        let failure = self.job.failure.lock().take();
        failure.map_or(Ok(()), Err)
    }

    fn wait(&self) {
        let mut state = self.e.pool.state.lock();
        while !self.job.is_over() {
            self.e.pool.written.wait(&mut state);
        }
        state.job = None;
    }
}

impl Drop for Submission<'_> {
    fn drop(&mut self) {
        if !self.job.is_over() {
            self.job.fail(FsError::device(io::ErrorKind::Interrupted));
            // Leaves no batch to a thread that would have to be waited for.
            self.job.work(self.e, &mut AlignedBuf::default());
        }
        self.wait();
    }
}
