//! Shortages, and the background threads that reclaim space.

use std::sync::OnceLock;
use std::time::Duration;

use quayfs_options::Durability;
use quayfs_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use quayfs_sync::time::Instant;
use quayfs_sync::{Condvar, Mutex};

use crate::engine::Engine;
use crate::error::{FsError, Resource, Result};
use crate::metrics::Metrics;

/// As many damaged entries as a line of the page table has are no reason to call a volume damaged that is full.
const FEW: usize = 8;

/// Records and blocks after which digest is woken.
const KICK_EVERY: u64 = 2048;

/// What the background threads are asked to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackgroundWork {
    /// Digest what can be digested.
    pub digest: bool,
    /// Run a checkpoint round of the older half, so that slots become free.
    pub room: bool,
    /// Run a checkpoint round of everything, then a zeroing pass.
    pub round: bool,
    /// Make all freed blocks usable, however many there are.
    pub zeroing: bool,
    /// Put free blocks in order.
    pub gathering: bool,
    /// End.
    pub stop: bool,
}

/// How long a background thread waits for something to be wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// So long at most: something is going on.
    For(Duration),
    /// Until the mount is used, or so long: there is nothing to do before. `appended` is what
    /// [`Engine::appended_by_now`] said when that was found out.
    UntilUsed {
        /// See above.
        appended: u64,
        /// The longest; for ever without.
        limit: Option<Duration>,
    },
}

/// Progress counters: a thread that waits for reclaim looks for a change.
#[derive(Debug, Default)]
struct Progress {
    wanted: BackgroundWork,
    /// Times that the mount was used while a thread waited for that.
    used: u64,
    digests: u64,
    rounds: u64,
}

/// Where operations and background threads meet.
#[derive(Default)]
pub(super) struct Reclaim {
    /// Records and blocks since the mount.
    appended: AtomicU64,
    /// A thread waits for the mount to be used.
    resting: AtomicBool,
    progress: Mutex<Progress>,
    /// Something is wanted.
    work: Condvar,
    /// Something was done.
    done: Condvar,
    /// What an operation that runs short calls where there are no background threads: one digest pass, one round and
    /// one zeroing pass.
    inline: OnceLock<Cycle>,
}

/// See [`Engine::reclaim_inline`].
type Cycle = Box<dyn Fn() -> Result<()> + Send + Sync>;

impl Reclaim {
    /// Makes all waiting threads look at the state of the mount again.
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
        // In one order with the flag: either a thread about to rest sees this count, or its flag is seen below.
        let before = (self.reclaim.appended).fetch_add(1 + blocks, Ordering::SeqCst);
        if before / KICK_EVERY != (before + 1 + blocks) / KICK_EVERY {
            self.kick(true, false);
        }
        if self.reclaim.resting.load(Ordering::SeqCst) {
            self.rouse();
        }
    }

    /// Records and blocks that have been appended, for [`Rest::UntilUsed`].
    pub fn appended_by_now(&self) -> u64 {
        self.reclaim.appended.load(Ordering::SeqCst)
    }

    /// The mount is used: what operations look at fills caches, which a background thread has to trim. A use that is
    /// not noticed here at once is noticed with the next one.
    pub fn used(&self) {
        if self.reclaim.resting.load(Ordering::Relaxed) {
            self.rouse();
        }
    }

    /// Ends the rest of all background threads.
    pub fn rouse(&self) {
        let mut p = self.reclaim.progress.lock();
        if self.reclaim.resting.swap(false, Ordering::SeqCst) {
            p.used += 1;
            self.reclaim.work.notify_all();
        }
    }

    /// Asks the background threads for a digest, or for a round that frees slots.
    pub fn kick(&self, digest: bool, room: bool) {
        self.want(BackgroundWork {
            digest,
            room,
            ..BackgroundWork::default()
        });
    }

    /// Asks for free blocks to be put in order.
    pub fn want_gathering(&self) {
        self.want(BackgroundWork {
            gathering: true,
            ..BackgroundWork::default()
        });
    }

    fn want(&self, more: BackgroundWork) {
        let mut p = self.reclaim.progress.lock();
        let before = p.wanted;
        p.wanted.digest |= more.digest;
        p.wanted.room |= more.room;
        p.wanted.round |= more.round;
        p.wanted.gathering |= more.gathering;
        if p.wanted != before {
            self.reclaim.work.notify_all();
        }
    }

    /// Set when the mount ends: chores stop where they are.
    pub fn stopping(&self) -> &std::sync::atomic::AtomicBool {
        &self.stopping
    }

    /// Tells the background threads to end, but for those that write for rounds.
    pub fn stop(&self) {
        self.reclaim.progress.lock().wanted.stop = true;
        self.reclaim.work.notify_all();
        self.ahead.stop();
        self.journal.end_queue();
    }

    /// Waits until `mine` picks something out of what is wanted, at most as long as `rest` says; the picked
    /// part is taken.
    pub fn await_work(
        &self,
        rest: Rest,
        mut mine: impl FnMut(&mut BackgroundWork) -> bool,
    ) -> BackgroundWork {
        // Wake-ups meant for others must not put the limit off.
        let until = match rest {
            Rest::For(limit) => Some(limit),
            Rest::UntilUsed { limit, .. } => limit,
        }
        .map(|limit| Instant::now() + limit);
        let mut p = self.reclaim.progress.lock();
        let used = p.used;
        let asked = loop {
            let asked = p.wanted;
            if asked.stop || mine(&mut p.wanted) {
                break asked;
            }
            if let Rest::UntilUsed { appended, .. } = rest {
                // Again in each turn: a wake-up goes to all waiters.
                self.reclaim.resting.store(true, Ordering::SeqCst);
                if p.used != used || self.appended_by_now() != appended {
                    break BackgroundWork::default();
                }
            }
            let late = match until {
                Some(until) => self.reclaim.work.wait_until(&mut p, until).timed_out(),
                None => {
                    self.reclaim.work.wait(&mut p);
                    false
                }
            };
            if late {
                break BackgroundWork {
                    stop: p.wanted.stop,
                    ..BackgroundWork::default()
                };
            }
        };
        Metrics::add(&self.metrics.wakeups, 1);
        asked
    }

    /// Whether the checkpoint thread has been asked for more than room.
    pub fn round_is_wanted(&self) -> bool {
        let wanted = self.reclaim.progress.lock().wanted;
        wanted.round || wanted.stop
    }

    /// A digest pass or a round has ended.
    pub fn report(&self, digest: bool, round: bool) {
        let mut p = self.reclaim.progress.lock();
        p.digests += u64::from(digest);
        p.rounds += u64::from(round);
        self.reclaim.done.notify_all();
    }

    /// From here on an operation that runs short calls `cycle` for the work of the background threads, which do not
    /// run: one digest pass, one round and one zeroing pass. Can be said once.
    pub fn reclaim_inline(&self, cycle: impl Fn() -> Result<()> + Send + Sync + 'static) {
        let _ = self.reclaim.inline.set(Box::new(cycle));
    }

    /// One digest pass, one round and one zeroing pass that begin after this call.
    fn cycle(&self) -> Result<()> {
        match self.reclaim.inline.get() {
            Some(cycle) => cycle(),
            None => {
                self.await_cycle();
                Ok(())
            }
        }
    }

    /// Waits for one whole digest pass and one whole round, with the zeroing of all that is freed, that begin after this call.
    fn await_cycle(&self) {
        let mut p = self.reclaim.progress.lock();
        // What runs now may have begun before our cause: wait for the end of the one after it.
        for _ in 0..2 {
            p.wanted.digest = true;
            p.wanted.round = true;
            p.wanted.zeroing = true;
            self.reclaim.work.notify_all();
            let (d, r) = (p.digests, p.rounds);
            while (p.digests == d || p.rounds == r) && !self.is_read_only() && !p.wanted.stop {
                self.reclaim
                    .done
                    .wait_for(&mut p, Duration::from_millis(100));
            }
        }
    }

    /// Relieves a shortage, at the `attempt`-th attempt of an operation, and says whether the next one is another: so
    /// it is after a whole cycle of commit, digest, round and zeroing pass, and neither after waiting for slots nor
    /// when files have given back what they had taken ahead. Fails with `NoSpace` when cycles have brought nothing
    /// (ordering 6).
    pub fn reclaim(&self, short: Resource, attempt: u32) -> Result<bool> {
        self.writable()?;
        Metrics::add(&self.metrics.shortages, 1);
        match short {
            Resource::Slots | Resource::Log => {
                if self.durability == Durability::Commit {
                    self.commit()?;
                }
                if self.reclaim.inline.get().is_some() {
                    return self.cycle().map(|()| false);
                }
                // An operation that has waited in vain gets a whole round: the older half may have been in other
                // buffers than those that have run out.
                let slots = short == Resource::Slots;
                self.want(BackgroundWork {
                    digest: true,
                    room: slots && attempt == 0,
                    round: slots && attempt > 0,
                    ..BackgroundWork::default()
                });
                Ok(false)
            }
            Resource::Blocks | Resource::Nodes => {
                if self.reclaim_windows() {
                    return Ok(false);
                }
                if attempt > 2 {
                    let withheld = (short == Resource::Blocks).then(|| self.withheld());
                    return Err(withheld.flatten().unwrap_or(FsError::NoSpace));
                }
                self.await_orphans();
                self.commit()?;
                self.cycle()?;
                self.writable().map(|()| true)
            }
        }
    }

    /// What to say where blocks are free, but are not handed out since the page table does not tell any more which they are. A few
    /// of them do not make a full volume another thing.
    fn withheld(&self) -> Option<FsError> {
        let pending = self.lbns.pending_runs(0, u64::MAX).into_iter().flatten();
        let mut damaged = pending.filter_map(|lbn| self.ppt.lookup(lbn).err());
        Some(self.table_error(damaged.nth(FEW)?))
    }

    /// Runs an operation until it does not run short, with reclaim in between. What the kernel has forgotten
    /// counts neither as used up nor for a quota.
    pub fn retrying<T>(&self, mut op: impl FnMut() -> Result<T>) -> Result<T> {
        let mut attempt = 1;
        let mut alone = None;
        let mut waited = false;
        loop {
            match op() {
                Err(FsError::OutOf(s)) => {
                    if s == Resource::Blocks && alone.is_none() {
                        alone = Some(self.run_short());
                    }
                    attempt += u32::from(self.reclaim(s, attempt)?);
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
