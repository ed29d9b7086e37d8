//! The background threads: one digests and commits, one runs rounds and zero batches.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use quayfs_journal::{Record, SlotRun};
use quayfs_sync::thread::{self, JoinHandle};
use quayfs_sync::time::Instant;

use crate::checkpoint::{self, Reach};
use crate::config::Durability;
use crate::digest::Batch;
use crate::engine::{Engine, Wanted};
use crate::error::{FsError, Result, Shortage};
use crate::grace;
use crate::metrics::Metrics;
use crate::ns::node::record_pages;
use crate::turns::Turns;

/// Records of one digest batch.
const BATCH_RECORDS: usize = 4096;
/// Records of one digest batch that are read in one go.
const READ_RECORDS: usize = 128;
/// Bytes of log of one digest batch.
const BATCH_BYTES: usize = 2 << 20;
/// How long a record waits for digest at most.
const DIGEST_EVERY: Duration = Duration::from_millis(50);
/// How often the checkpoint thread looks around.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A volume without writes for this long is checkpointed.
const IDLE: Duration = Duration::from_secs(10);
/// Share of slots in use, in percent, at which a round begins.
const HIGH_WATER: u64 = 50;

/// The threads of a mount.
pub struct Threads {
    handles: Vec<JoinHandle<()>>,
}

impl Threads {
    /// Starts them.
    pub fn start(engine: &Arc<Engine>) -> Result<Self> {
        let mut handles = Vec::new();
        type Loop = fn(&Engine);
        let run = [
            ("quayfs-digest", digest_loop as Loop),
            ("quayfs-round", round_loop as Loop),
        ];
        for (name, body) in run {
            let engine = Arc::clone(engine);
            handles.push(
                thread::Builder::new()
                    .name(name.into())
                    .spawn(move || body(&engine))?,
            );
        }
        Ok(Self { handles })
    }

    /// Waits for their end, after [`Engine::stop`].
    pub fn join(self) {
        for h in self.handles {
            if h.join().is_err() {
                tracing::error!("a background thread panicked");
            }
        }
    }
}

fn digest_loop(e: &Engine) {
    let commit_every = Duration::from_secs(u64::from(e.options.commit_seconds));
    let mut committed = Instant::now();
    loop {
        let asked = e.await_work(DIGEST_EVERY, |w| std::mem::take(&mut w.digest));
        if asked.stop {
            return;
        }
        if !e.is_read_only() {
            if e.durability == Durability::Commit && committed.elapsed() >= commit_every {
                committed = Instant::now();
                if let Err(err) = e.commit() {
                    tracing::error!("commit: {err}");
                }
            }
            // What went wrong has been said, and the mount is read-only.
            let _ = digest_all(e);
        }
        e.report(true, false);
    }
}

/// Digests everything that may be digested when this begins. If that fails, whoever asked for it, no record can
/// become a home page any more: the mount is read-only from there on.
pub fn digest_all(e: &Engine) -> Result<()> {
    let _one = e.digesting.lock();
    digest_pending(e).inspect_err(|err| e.fail(&format_args!("digest: {err}")))
}

fn digest_pending(e: &Engine) -> Result<()> {
    // What there is now, and not what comes meanwhile: close behind somebody who writes, batches would
    // be of a few records each, and cost nearly as much as large ones.
    let upto = e.journal.digestable();
    while e.journal.digested() < upto {
        digest_some(e, upto)?;
        let stats = e.journal.stats();
        if stats.slots_used * 100 > stats.slots * HIGH_WATER {
            e.kick(false, true);
        }
    }
    e.trim_caches(e.journal.digested());
    Ok(())
}

fn digest_some(e: &Engine, upto: u64) -> Result<()> {
    let after = e.journal.digested();
    let mut turns = Turns::default();
    let records = read_records(e, after..upto, &mut turns)?;
    let Some(last) = records.last().map(|r| r.seq) else {
        // Only holes: numbers of an earlier epoch that nobody took.
        e.journal.set_digested(upto).map_err(FsError::io)?;
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
        let mut batch = Batch::new(&e.nodes);
        let first = done;
        while done < records.len() && (done == first || batch.pages() + room / 2 < free) {
            batch.apply(records[done].seq, &records[done].items)?;
            done += 1;
            turns.step(8);
        }
        for r in &records[first..done] {
            e.journal.mark_committed(r);
            turns.step(1 + 4 * r.runs.len() as u32);
        }
        let seq = if done == records.len() {
            last
        } else {
            records[done - 1].seq
        };
        match batch.write(&mut turns) {
            Ok(retired) => {
                // Ordering "D before reuse": old pages and ring space come back after this.
                e.journal.set_digested(seq).map_err(FsError::io)?;
                e.nodes.retire_pages(retired.pages);
                e.nodes.unpromise(retired.dropped);
                e.release_digested(seq);
            }
            Err(FsError::Short(Shortage::Nodes)) if done - first > 1 => {
                // The estimate was off: a record at a time always fits the reserve.
                digest_singly(e, &records[first..done])?;
            }
            Err(err) => return Err(err),
        }
    }
    Metrics::add(&e.metrics.digests, 1);
    Ok(())
}

/// Bytes that a record takes in its lane, without header and padding.
fn bytes_of(record: &Record) -> usize {
    let runs = record.runs.iter().map(SlotRun::encoded_bytes);
    record.items.len() + runs.sum::<usize>()
}

/// Records of one batch, those after the first number up to the last.
fn read_records(e: &Engine, range: Range<u64>, turns: &mut Turns) -> Result<Vec<Record>> {
    let mut records: Vec<Record> = Vec::new();
    let mut bytes = 0;
    while records.len() < BATCH_RECORDS && bytes < BATCH_BYTES {
        let after = records.last().map_or(range.start, |r| r.seq);
        let some = (e.journal)
            .read_records(after, range.end, BATCH_BYTES - bytes, READ_RECORDS)
            .map_err(FsError::io)?;
        if some.is_empty() {
            break;
        }
        bytes += some.iter().map(bytes_of).sum::<usize>();
        records.extend(some);
        turns.step(16 * READ_RECORDS as u32);
    }
    Ok(records)
}

fn digest_singly(e: &Engine, records: &[Record]) -> Result<()> {
    for r in records {
        grace::wait();
        let mut batch = Batch::new(&e.nodes);
        batch.apply(r.seq, &r.items)?;
        e.journal.mark_committed(r);
        let retired = batch.write(&mut Turns::default())?;
        e.journal.set_digested(r.seq).map_err(FsError::io)?;
        e.nodes.retire_pages(retired.pages);
        e.nodes.unpromise(retired.dropped);
        e.release_digested(r.seq);
    }
    Ok(())
}

fn round_loop(e: &Engine) {
    let mut idle_since = Instant::now();
    let mut records = 0;
    loop {
        let asked = e.await_work(LOOK_EVERY, |w: &mut Wanted| {
            std::mem::take(&mut w.room) | std::mem::take(&mut w.round)
        });
        if asked.stop {
            return;
        }
        let stats = e.journal.stats();
        let appended = e.metrics.snapshot().records;
        if appended != records {
            records = appended;
            idle_since = Instant::now();
        }
        let idle = idle_since.elapsed() >= IDLE;
        let full = stats.slots_used * 100 > stats.slots * HIGH_WATER;
        if !e.is_read_only() {
            let zero = e.lbns.pending() > 0 && (asked.round || idle || zero_is_due(e));
            let result = (|| {
                if asked.round || (idle && stats.slots_used > 0) {
                    checkpoint::round(e)?;
                } else if asked.room || full {
                    checkpoint::round_of(e, Reach::Older)?;
                }
                if zero {
                    checkpoint::zero_batch(e)?;
                }
                Ok::<_, FsError>(())
            })();
            if let Err(err) = result {
                tracing::error!("checkpoint: {err}");
            }
        }
        e.report(false, true);
    }
}

/// Whether freed blocks make up a good part of what is free.
fn zero_is_due(e: &Engine) -> bool {
    e.lbns.pending() * 8 > e.lbns.free()
}
