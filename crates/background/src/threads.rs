//! The background threads: one digests and commits, one runs rounds and zeroing passes, some write for it, some write
//! what large requests bring, one commits for calls of `fsync` that come while another commit runs, one brings home
//! what commits have written to the batch log, one reads ahead.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use quayfs_journal::JournalStats;
use quayfs_options::Durability;
use quayfs_store::behind;
use quayfs_store::engine::{BackgroundWork, Engine, Rest};
use quayfs_store::error::{FsError, Result};
use quayfs_sync::thread::{self, JoinHandle};
use quayfs_sync::time::Instant;

use crate::Background;
use crate::checkpoint::{self, Reach};
use crate::digest::digest_all;

/// How long a record waits for digest at most, and how often caches are trimmed while the mount is used; on a disk,
/// where commits wait for the flushes of digest.
const DIGEST_EVERY: Duration = Duration::from_millis(50);
const DIGEST_EVERY_ON_DISK: Duration = Duration::from_secs(1);
/// How often the checkpoint thread looks around while the mount is used.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A volume without writes for this long is checkpointed.
const IDLE: Duration = Duration::from_secs(10);
/// Share of slots in use, in percent, at which a round begins.
const HIGH_WATER: u64 = 50;
/// Share of slots in use, in percent, from which a round does not mind commits: operations would soon wait for slots.
const SCARCE: u64 = 75;
/// One part in how many of the log, when in use, is committed.
const COMMIT_AT: u64 = 8;
/// Rounds that follow each other at most before others get their turn: they hold a lock.
const IN_A_ROW: u32 = 16;

/// The threads of a mount.
pub struct Threads {
    handles: Vec<JoinHandle<()>>,
    /// Those that write for rounds, the last one of a mount too, and what requests have left to them.
    writers: Vec<JoinHandle<()>>,
}

impl Threads {
    /// Starts them. Where nothing may change there is only the one that reads ahead.
    pub fn start(engine: &Arc<Background>) -> Result<Self> {
        let spawn = |name: &'static str, body: fn(&Background)| {
            let engine = Arc::clone(engine);
            let builder = thread::Builder::new().name(name.into());
            builder.spawn(move || guarded(&engine, name, body))
        };
        // Reads do without read-ahead if this thread is gone.
        let ahead = {
            let engine = Arc::clone(engine);
            let builder = thread::Builder::new().name("quayfs-ahead".into());
            builder.spawn(move || engine.ahead.serve())?
        };
        let mut handles = vec![ahead];
        let mut writers = Vec::new();
        if !engine.options.read_only {
            handles.push(spawn("quayfs-digest", digest_loop)?);
            handles.push(spawn("quayfs-round", round_loop)?);
            handles.push(spawn("quayfs-commit", |e| e.serve_commits())?);
            // One thread writes anyway: the one that runs the round.
            let more = if engine.options.ablation.one_worker {
                0
            } else {
                checkpoint::WORKERS - 1
            };
            if engine.region.logs_batches() {
                writers.push(spawn("quayfs-home", |e| e.region.serve_batches())?);
            }
            if engine.large > 0 {
                for _ in 0..behind::THREADS {
                    writers.push(spawn("quayfs-behind", |e| e.behind.serve(e))?);
                }
            }
            for _ in 0..more {
                writers.push(spawn("quayfs-write", Background::serve_writes)?);
            }
        }
        Ok(Self { handles, writers })
    }

    /// Waits for the end of those that do something of their own, after [`Engine::stop`].
    pub fn join(&mut self) {
        join_all(&mut self.handles);
    }

    /// Ends those that write.
    pub fn dismiss(mut self, e: &Background) {
        e.end_writes();
        e.behind.stop();
        e.region.stop_batches();
        join_all(&mut self.writers);
    }
}

/// Runs the body of a thread that changes the volume. Nothing may build upon what a thread that panics has left half
/// done: the mount is read-only from there on, as when a medium has failed. Then the body runs once more, for what a
/// thread still has to do after a failure: commit what was done before it.
pub fn guarded(e: &Background, name: &str, body: impl Fn(&Background)) {
    for _ in 0..2 {
        if catch_unwind(AssertUnwindSafe(|| body(e))).is_ok() {
            return;
        }
        e.fail(&format_args!("the thread {name} panicked"));
    }
}

fn join_all(handles: &mut Vec<JoinHandle<()>>) {
    for h in handles.drain(..) {
        if h.join().is_err() {
            tracing::error!("a background thread panicked");
        }
    }
}

fn digest_loop(e: &Background) {
    let commit_every = Duration::from_secs(u64::from(e.options.commit_seconds));
    let mut committed = Instant::now();
    let mut failed = false;
    let mut given_up = false;
    let every = match e.region.backend().needs_drain() {
        true => DIGEST_EVERY_ON_DISK,
        false => DIGEST_EVERY,
    };
    let mut rest = Rest::For(every);
    loop {
        let before = e.appended_by_now();
        let asked = e.await_work(rest, |w| std::mem::take(&mut w.digest));
        if asked.stop {
            return;
        }
        let appended = e.appended_by_now();
        let digested = e.journal.digested();
        // Digest may not touch what is not committed, and is to begin long before the log is full. A commit that
        // has failed is repeated in its time.
        let due = committed.elapsed() >= commit_every
            || !failed && e.journal.log_uses_more_than_one_in(COMMIT_AT);
        // Also what was done before a failure, while that can be done.
        if !given_up && e.durability == Durability::Commit && due {
            committed = Instant::now();
            let done = e.commit();
            failed = done.is_err();
            if let Err(err) = done {
                tracing::error!("commit: {err}");
                given_up = e.is_read_only();
            }
        }
        if !e.is_read_only() {
            // What went wrong has been said, and the mount is read-only.
            let _ = digest_all(e);
        }
        e.region.trim();
        e.report(true, false);
        if e.journal.digested() != digested {
            // Now there may be something to write out.
            e.rouse();
        }
        // After a use come others, and the first of them would wake a thread that rests.
        let is_quiet = appended == before && matches!(rest, Rest::For(_));
        let left = e.journal.digested() < e.journal.digestable() && !e.is_read_only();
        rest = if !is_quiet || left {
            Rest::For(every)
        } else {
            let uncommitted = e.durability == Durability::Commit
                && !given_up
                && e.journal.commit_ts() < e.journal.last_seq();
            let limit = uncommitted.then(|| commit_every.saturating_sub(committed.elapsed()));
            Rest::UntilUsed { appended, limit }
        };
    }
}

/// Whether so many slots are in use that a round is due.
pub(crate) fn is_full(stats: &JournalStats) -> bool {
    stats.slots_used * 100 > stats.slots * HIGH_WATER
}

/// Whether slots will soon have to be waited for.
pub(crate) fn are_scarce(stats: &JournalStats) -> bool {
    stats.slots_used * 100 > stats.slots * SCARCE
}

fn round_loop(e: &Background) {
    let mut idle_since = Instant::now();
    let mut appended = 0;
    let mut rest = Rest::For(LOOK_EVERY);
    loop {
        let asked = e.await_work(rest, |w: &mut BackgroundWork| {
            std::mem::take(&mut w.room)
                | std::mem::take(&mut w.round)
                | std::mem::take(&mut w.zeroing)
                | std::mem::take(&mut w.gathering)
        });
        if asked.stop {
            return;
        }
        let stats = e.journal.stats();
        let before = appended;
        appended = e.appended_by_now();
        if appended != before {
            idle_since = Instant::now();
        }
        let begun = (stats.slots_used, e.lbns.pending());
        let mut failed = false;
        let idle = idle_since.elapsed() >= IDLE;
        let full = is_full(&stats);
        if !e.is_read_only() {
            let result = (|| {
                if asked.round || (idle && stats.slots_used > 0) {
                    checkpoint::round(e)?;
                } else if asked.room || full {
                    let mut run = 0;
                    checkpoint::rounds(e, Reach::Older, |freed| {
                        run += 1;
                        run < IN_A_ROW && goes_on(e, freed)
                    })?;
                }
                if asked.zeroing {
                    checkpoint::zero_all(e)?;
                } else if e.lbns.pending() > 0 && (asked.round || idle || zero_is_due(e)) {
                    checkpoint::zero_freed(e)?;
                }
                gather(e, appended == before)?;
                Ok::<_, FsError>(())
            })();
            if let Err(err) = result {
                tracing::error!("checkpoint: {err}");
                failed = true;
            }
        }
        e.report(false, true);
        let left = (e.journal.stats().slots_used, e.lbns.pending());
        let is_done = e.is_read_only() || left == (0, 0) || idle && left == begun;
        // After a use come others, and the first of them would wake a thread that rests.
        let is_quiet = appended == before && !failed && matches!(rest, Rest::For(_));
        rest = match (is_quiet, is_done) {
            // What is left, if anything, cannot be written out before more is digested.
            (true, true) => Rest::UntilUsed {
                appended,
                limit: None,
            },
            (true, false) if !idle && !full => Rest::UntilUsed {
                appended,
                limit: Some(IDLE.saturating_sub(idle_since.elapsed())),
            },
            _ => Rest::For(LOOK_EVERY),
        };
    }
}

/// Whether slots will still be short when this many more are free, and a round is what is most wanted.
fn goes_on(e: &Engine, freed: u64) -> bool {
    let stats = e.journal.stats();
    let used = stats.slots_used.saturating_sub(freed);
    used * 100 > stats.slots * HIGH_WATER && !e.round_is_wanted() && !zero_is_due(e)
}

/// Puts free blocks in order if large writes go to short pieces, or, in a pause, if they would. What has been freed
/// goes first: it would lie between what is free.
fn gather(e: &Background, pause: bool) -> Result<()> {
    let zero_all = || {
        while e.lbns.pending() > 0 && checkpoint::zero_freed(e)? > 0 {}
        Ok::<_, FsError>(())
    };
    let needed = e.pieces.are_short();
    if needed || pause && e.pieces.are_scattered(e.lbns.free()) {
        zero_all()?;
        if needed && zero_is_due(e) {
            // Blocks whose last version is staged. In a pause they wait for a round that something else wants.
            checkpoint::round(e)?;
            zero_all()?;
        }
        checkpoint::gather(e, checkpoint::GAIN)?;
    }
    Ok(())
}

/// Whether freed blocks make up a good part of what is free.
fn zero_is_due(e: &Engine) -> bool {
    e.lbns.pending() * 8 > e.lbns.free()
}
