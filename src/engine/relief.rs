//! Shortages and the background threads that relieve them.

use std::time::Duration;

use quayfs_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use quayfs_sync::time::Instant;
use quayfs_sync::{Condvar, Mutex};

use crate::config::Durability;
use crate::engine::Engine;
use crate::error::{FsError, Result, Shortage};
use crate::metrics::Metrics;

/// Records and blocks after which digest is woken.
const KICK_EVERY: u64 = 2048;

/// What the background threads are asked to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Digest what can be digested.
    pub digest: bool,
    /// Run a checkpoint round of the older half, so that slots become free.
    pub room: bool,
    /// Run a checkpoint round of everything, then a zero batch.
    pub round: bool,
    /// End.
    pub stop: bool,
}

/// Progress counters: whoever waits for relief looks for a change.
#[derive(Debug, Default)]
struct Progress {
    wanted: Wanted,
    digests: u64,
    rounds: u64,
}

/// Where operations and background threads meet.
#[derive(Debug, Default)]
pub(super) struct Relief {
    /// Records and blocks since digest was last woken.
    unseen: AtomicU64,
    progress: Mutex<Progress>,
    /// Something is wanted.
    work: Condvar,
    /// Something was done.
    done: Condvar,
    /// There are no background threads: who runs short does their work.
    inline: AtomicBool,
}

impl Relief {
    /// Everybody looks at the state of the mount again.
    pub fn wake_all(&self) {
        let _progress = self.progress.lock();
        self.done.notify_all();
        self.work.notify_all();
    }
}

impl Engine {
    /// Counts a record and the blocks it staged, and wakes digest now and then.
    pub fn appended(&self, blocks: u64) {
        Metrics::add(&self.metrics.blocks_staged, blocks);
        Metrics::add(&self.metrics.records, 1);
        let step = self.relief.unseen.fetch_add(1 + blocks, Ordering::Relaxed) + 1 + blocks;
        if step >= KICK_EVERY {
            self.relief.unseen.store(0, Ordering::Relaxed);
            self.kick(true, false);
        }
    }

    /// Asks the background threads for a digest, or for a round that frees slots.
    pub fn kick(&self, digest: bool, room: bool) {
        self.want(Wanted {
            digest,
            room,
            ..Wanted::default()
        });
    }

    fn want(&self, more: Wanted) {
        let mut p = self.relief.progress.lock();
        let before = p.wanted;
        p.wanted.digest |= more.digest;
        p.wanted.room |= more.room;
        p.wanted.round |= more.round;
        if p.wanted != before {
            self.relief.work.notify_all();
        }
    }

    /// Set when the mount ends: chores stop where they are.
    pub fn stopping(&self) -> &std::sync::atomic::AtomicBool {
        &self.stopping
    }

    /// Tells the background threads to end, but for those that write for rounds.
    pub fn stop(&self) {
        self.relief.progress.lock().wanted.stop = true;
        self.relief.work.notify_all();
        self.ahead.stop();
    }

    /// Waits until `mine` picks something out of what is wanted, at most for `limit`; the picked
    /// part is taken.
    pub fn await_work(&self, limit: Duration, mut mine: impl FnMut(&mut Wanted) -> bool) -> Wanted {
        // Wake-ups meant for others must not put the limit off.
        let until = Instant::now() + limit;
        let mut p = self.relief.progress.lock();
        loop {
            let asked = p.wanted;
            if asked.stop || mine(&mut p.wanted) {
                return asked;
            }
            if self.relief.work.wait_until(&mut p, until).timed_out() {
                return Wanted {
                    stop: p.wanted.stop,
                    ..Wanted::default()
                };
            }
        }
    }

    /// Whether the checkpoint thread has been asked for more than room.
    pub fn round_is_wanted(&self) -> bool {
        let wanted = self.relief.progress.lock().wanted;
        wanted.round || wanted.stop
    }

    /// A digest pass or a round has ended.
    pub fn report(&self, digest: bool, round: bool) {
        let mut p = self.relief.progress.lock();
        p.digests += u64::from(digest);
        p.rounds += u64::from(round);
        self.relief.done.notify_all();
    }

    /// From here on whoever runs short does the work of the background threads, which do not run.
    pub fn relieve_inline(&self) {
        self.relief.inline.store(true, Ordering::Release);
    }

    /// One digest pass, one round and one zero batch that begin after this call.
    fn cycle(&self) -> Result<()> {
        if self.relief.inline.load(Ordering::Acquire) {
            crate::background::digest_all(self)?;
            crate::checkpoint::round(self)?;
            crate::checkpoint::zero_batch(self)?;
        } else {
            self.await_cycle();
        }
        Ok(())
    }

    /// Waits for one whole digest pass and one whole round that begin after this call.
    fn await_cycle(&self) {
        let mut p = self.relief.progress.lock();
        // What runs now may have begun before our cause: wait for the end of the one after it.
        for _ in 0..2 {
            p.wanted.digest = true;
            p.wanted.round = true;
            self.relief.work.notify_all();
            let (d, r) = (p.digests, p.rounds);
            while (p.digests == d || p.rounds == r) && !self.is_read_only() && !p.wanted.stop {
                self.relief
                    .done
                    .wait_for(&mut p, Duration::from_millis(100));
            }
        }
    }

    /// Relieves a shortage, at the `attempt`-th attempt of an operation, and says whether the next one is another: so it
    /// is after a whole cycle of commit, digest, round and zero batch, and neither after waiting for slots nor when
    /// files have given back what they had taken ahead. Fails with `NoSpace` when cycles have brought nothing
    /// (ordering 6).
    pub fn relieve(&self, short: Shortage, attempt: u32) -> Result<bool> {
        self.writable()?;
        Metrics::add(&self.metrics.shortages, 1);
        match short {
            Shortage::Slots | Shortage::Log => {
                if self.durability == Durability::Commit {
                    self.commit()?;
                }
                if self.relief.inline.load(Ordering::Acquire) {
                    return self.cycle().map(|()| false);
                }
                // Who has waited in vain gets a whole round: the older half may have been in other
                // buffers than those that have run out.
                let slots = short == Shortage::Slots;
                self.want(Wanted {
                    digest: true,
                    room: slots && attempt == 0,
                    round: slots && attempt > 0,
                    stop: false,
                });
                Ok(false)
            }
            Shortage::Blocks | Shortage::Nodes => {
                if self.reclaim_windows() {
                    return Ok(false);
                }
                if attempt > 2 {
                    return Err(FsError::NoSpace);
                }
                self.await_orphans();
                self.commit()?;
                self.cycle()?;
                self.writable().map(|()| true)
            }
        }
    }

    /// Runs an operation until it does not run short, with relief in between. What the kernel has forgotten
    /// counts neither as used up nor for a quota.
    pub fn retrying<T>(&self, mut op: impl FnMut() -> Result<T>) -> Result<T> {
        let mut attempt = 1;
        let mut alone = None;
        let mut waited = false;
        loop {
            match op() {
                Err(FsError::Short(s)) => {
                    if s == Shortage::Blocks && alone.is_none() {
                        alone = Some(self.run_short());
                    }
                    attempt += u32::from(self.relieve(s, attempt)?);
                }
                // Once more also if there are none any more: the last may have been freed since.
                Err(FsError::Quota | FsError::NoSpace) if !waited => {
                    self.await_orphans();
                    waited = true;
                }
                other => return other,
            }
        }
    }
}
