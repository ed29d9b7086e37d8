//! The background threads: one digests and commits, one runs rounds and zero batches, some write for it, some write what
//! large requests bring, one commits for calls of `fsync` that come while another commit runs, one brings home what commits
//! have written to the batch log, one reads ahead.

use std::ops::{Deref, Range};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use quayfs_journal::{JournalStats, RecordRef, Records};
use quayfs_options::Durability;
use quayfs_store::behind;
use quayfs_store::engine::{Engine, Rest, Wanted};
use quayfs_store::error::{FsError, Result, Shortage};
use quayfs_store::grace;
use quayfs_store::metrics::Metrics;
use quayfs_store::ns::node::record_pages;
use quayfs_store::turns::Turns;
use quayfs_sync::Mutex;
use quayfs_sync::thread::{self, JoinHandle};
use quayfs_sync::time::Instant;

use crate::checkpoint::{self, Crew, Reach, Workspace};
use crate::digest::{Batch, Room};

/// Records of one digest batch.
const BATCH_RECORDS: usize = 4096;
/// Records of one digest batch that are read in one go.
const READ_RECORDS: usize = 128;
/// Bytes of log of one digest batch.
const BATCH_BYTES: usize = 2 << 20;
/// How long a record waits for digest at most, and how often caches are trimmed while the mount is used; on a disk, where
/// commits wait for the flushes of digest.
const DIGEST_EVERY: Duration = Duration::from_millis(50);
const DIGEST_EVERY_ON_DISK: Duration = Duration::from_secs(1);
/// How often the checkpoint thread looks around while the mount is used.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A volume without writes for this long is checkpointed.
const IDLE: Duration = Duration::from_secs(10);
/// Share of slots in use, in percent, at which a round begins.
const HIGH_WATER: u64 = 50;
/// One part in how many of the log, when in use, is committed.
const COMMIT_AT: u64 = 8;
/// One part in how many of the log, when in use, shows that digest falls behind: with `durability=op`, and with
/// `commit`, where there is nothing for it to do before a commit.
const BEHIND_AT: [u64; 2] = [8, 4];
/// Rounds that follow each other at most before others get their turn: they hold a lock.
const IN_A_ROW: u32 = 16;

/// An engine, and what works beside its operations: digest and rounds, which no operation calls. Those that run short
/// wait for the threads, or have this work done by what was given to [`Engine::relieve_inline`].
pub struct Background {
    engine: Engine,
    /// One digest at a time, with the memory of its batches.
    digesting: Mutex<Digesting>,
    /// One round or zero batch at a time.
    pub(crate) rounding: Mutex<Workspace>,
    /// The threads that write for it.
    pub(crate) crew: Crew,
}

impl Deref for Background {
    type Target = Engine;

    fn deref(&self) -> &Engine {
        &self.engine
    }
}

impl Background {
    /// Nothing works yet: [`Threads::start`], or [`Background::relieve_inline`].
    pub fn new(engine: Engine) -> Self {
        Self {
            engine,
            digesting: Mutex::default(),
            rounding: Mutex::default(),
            crew: Crew::default(),
        }
    }

    /// Without threads: operations that run short do this work.
    pub fn relieve_inline(self: &Arc<Self>) {
        let this = Arc::downgrade(self);
        self.engine.relieve_inline(move || {
            // What calls this has it.
            this.upgrade().map_or(Ok(()), |this| this.cycle())
        });
    }

    /// One digest pass, one round and one zero batch.
    fn cycle(&self) -> Result<()> {
        digest_all(self)?;
        checkpoint::round(self)?;
        checkpoint::zero_batch(self)?;
        Ok(())
    }

    /// Ends a mount: commits, digests, checkpoints everything and marks the volume clean. One that a failure has made
    /// read-only commits what was done before, if that can still be done; the next mount recovers the volume. The
    /// background threads have ended and nothing calls operations any more.
    pub fn close(&self) -> Result<()> {
        if self.options.read_only {
            return Ok(());
        }
        if self.is_read_only() {
            if let Err(err) = self.commit() {
                tracing::error!("commit: {err}");
            }
            return Ok(());
        }
        self.commit()?;
        digest_all(self)?;
        while checkpoint::round(self)?.slots > 0 {}
        checkpoint::zero_batch(self)?;
        self.mark_clean()
    }
}

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
                writers.push(spawn("quayfs-write", |e| e.crew.serve(e))?);
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
        e.crew.stop();
        e.behind.stop();
        e.region.stop_batches();
        join_all(&mut self.writers);
    }
}

/// Runs the body of a thread that changes the volume. Nothing may build upon what a thread that panics has left half
/// done: the mount is read-only from there on, as when a medium has failed. Then the body runs once more, for what a
/// thread still has to do after a failure: commit what was done before it.
pub(crate) fn guarded(e: &Background, name: &str, body: impl Fn(&Background)) {
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

/// Memory that one batch of digest leaves to the next.
#[derive(Default)]
struct Digesting {
    records: Records,
    room: Room,
}

/// Digests everything that may be digested when this begins. If that fails, whichever the caller, no record can
/// become a home page any more: the mount is read-only from there on.
pub fn digest_all(e: &Background) -> Result<()> {
    let mut memory = e.digesting.lock();
    digest_pending(e, &mut memory).inspect_err(|err| e.fail(&format_args!("digest: {err}")))
}

fn digest_pending(e: &Engine, memory: &mut Digesting) -> Result<()> {
    // What there is now, and not what comes meanwhile: close behind a writer, batches would be of a few records each,
    // and cost nearly as much as large ones.
    let upto = e.journal.digestable();
    while e.journal.digested() < upto {
        digest_some(e, upto, memory)?;
        if is_full(&e.journal.stats()) {
            e.kick(false, true);
        }
    }
    e.trim_caches(e.journal.digested());
    Ok(())
}

fn digest_some(e: &Engine, upto: u64, memory: &mut Digesting) -> Result<()> {
    let Digesting {
        records,
        room: batches,
    } = memory;
    let after = e.journal.digested();
    // A yielding thread goes behind all writers, and the log may be full before its turn comes again.
    let behind = BEHIND_AT[usize::from(e.durability == Durability::Commit)];
    let hurry = || e.journal.room_is_wanted() || e.journal.log_uses_more_than_one_in(behind);
    let mut turns = Turns::unless(&hurry);
    read_records(e, after..upto, records, &mut turns)?;
    let Some(last) = records.last_seq() else {
        // Only holes: numbers of an earlier epoch that no record took.
        e.journal
            .set_digested(upto)
            .map_err(|err| e.journal_error(err))?;
        e.release_digested(upto);
        return Ok(());
    };
    let mut done = 0;
    while done < records.len() {
        // Old pages come back after a grace period; a small region may have to wait for them.
        let room = 2 * record_pages(&e.config.geometry) as usize;
        let mut free = e.nodes.free_pages();
        for _ in 0..64 {
            if free > room {
                break;
            }
            grace::wait();
            free = e.nodes.free_pages();
        }
        let mut batch = Batch::new(&e.nodes, batches);
        let first = done;
        while done < records.len() && (done == first || batch.pages() + room / 2 < free) {
            let r = records.get(done);
            batch.apply(r.seq, r.items)?;
            done += 1;
            turns.step(4);
        }
        for r in (first..done).map(|i| records.get(i)) {
            e.journal.mark_committed(r);
            turns.step(1 + 2 * r.runs().count() as u32);
        }
        let seq = if done == records.len() {
            last
        } else {
            records.get(done - 1).seq
        };
        match batch.write(&mut turns) {
            Ok(retired) => {
                // Ordering "D before reuse": old pages and ring space come back after this.
                e.journal
                    .set_digested(seq)
                    .map_err(|err| e.journal_error(err))?;
                e.nodes.retire_pages(retired.pages);
                e.nodes.unpromise(retired.dropped);
                e.release_digested(seq);
            }
            Err(FsError::Short(Shortage::Nodes)) if done - first > 1 => {
                // The estimate was off: a record at a time always fits the reserve.
                digest_singly(e, (first..done).map(|i| records.get(i)), batches)?;
            }
            Err(err) => return Err(err),
        }
    }
    Metrics::add(&e.metrics.digests, 1);
    Ok(())
}

/// Replaces `records` with those of one batch, after the first number up to the last.
fn read_records(
    e: &Engine,
    range: Range<u64>,
    records: &mut Records,
    turns: &mut Turns<'_>,
) -> Result<()> {
    records.clear();
    let mut reader = e.journal.reader(range.start, range.end);
    while records.len() < BATCH_RECORDS && records.bytes() < BATCH_BYTES {
        let room = BATCH_BYTES - records.bytes();
        if (reader.read(room, READ_RECORDS, records)).map_err(|err| e.journal_error(err))? == 0 {
            break;
        }
        turns.step(16 * READ_RECORDS as u32);
    }
    Ok(())
}

fn digest_singly<'r>(
    e: &Engine,
    records: impl Iterator<Item = RecordRef<'r>>,
    room: &mut Room,
) -> Result<()> {
    for r in records {
        grace::wait();
        let mut batch = Batch::new(&e.nodes, room);
        batch.apply(r.seq, r.items)?;
        e.journal.mark_committed(r);
        let retired = batch.write(&mut Turns::default())?;
        e.journal
            .set_digested(r.seq)
            .map_err(|err| e.journal_error(err))?;
        e.nodes.retire_pages(retired.pages);
        e.nodes.unpromise(retired.dropped);
        e.release_digested(r.seq);
    }
    Ok(())
}

/// Whether so many slots are in use that a round is due.
pub(crate) fn is_full(stats: &JournalStats) -> bool {
    stats.slots_used * 100 > stats.slots * HIGH_WATER
}

fn round_loop(e: &Background) {
    let mut idle_since = Instant::now();
    let mut appended = 0;
    let mut rest = Rest::For(LOOK_EVERY);
    loop {
        let asked = e.await_work(rest, |w: &mut Wanted| {
            std::mem::take(&mut w.room)
                | std::mem::take(&mut w.round)
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
                if e.lbns.pending() > 0 && (asked.round || idle || zero_is_due(e)) {
                    checkpoint::zero_batch(e)?;
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

/// Puts free blocks in order if large writes go to short pieces, or, in a pause, if they would. What has been freed goes
/// first: it would lie between what is free.
fn gather(e: &Background, pause: bool) -> Result<()> {
    let zero_all = || {
        while e.lbns.pending() > 0 && checkpoint::zero_batch(e)? > 0 {}
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
