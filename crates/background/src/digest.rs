//! Digest: records become home pages, a [`Batch`] at a time, and their space and old pages come back.

mod batch;

use std::ops::Range;

use quayfs_journal::{RecordRef, Records};
use quayfs_options::Durability;
use quayfs_store::engine::Engine;
use quayfs_store::error::{FsError, Resource, Result};
use quayfs_store::grace;
use quayfs_store::metrics::Metrics;
use quayfs_store::ns::node::record_pages;
use quayfs_sync::Pacing;

use crate::Background;
use crate::threads::is_full;

pub use batch::{Batch, Scratch};

/// Records of one digest batch.
const BATCH_RECORDS: usize = 4096;
/// Records of one digest batch that are read in one go.
const READ_RECORDS: usize = 128;
/// Bytes of log of one digest batch.
const BATCH_BYTES: usize = 2 << 20;
/// One part in how many of the log, when in use, shows that digest falls behind: with `durability=op`, and with
/// `commit`, where there is nothing for it to do before a commit.
const BEHIND_AT: [u64; 2] = [8, 4];

/// Memory that one batch of digest leaves to the next.
#[derive(Default)]
pub(crate) struct Digesting {
    records: Records,
    room: Scratch,
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
    let urgent = || e.journal.room_is_wanted() || e.journal.log_uses_more_than_one_in(behind);
    let mut pacing = Pacing::unless(&urgent);
    read_records(e, after..upto, records, &mut pacing)?;
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
            pacing.step(4);
        }
        for r in (first..done).map(|i| records.get(i)) {
            e.journal.mark_committed(r);
            pacing.step(1 + 2 * r.runs().count() as u32);
        }
        let seq = if done == records.len() {
            last
        } else {
            records.get(done - 1).seq
        };
        match batch.write(&mut pacing) {
            Ok(retired) => {
                // Ordering "digested_seq before reuse": old pages and ring space come back after this.
                e.journal
                    .set_digested(seq)
                    .map_err(|err| e.journal_error(err))?;
                e.nodes.retire_pages(retired.pages);
                e.nodes.unreserve(retired.dropped);
                e.release_digested(seq);
            }
            Err(FsError::OutOf(Resource::Nodes)) if done - first > 1 => {
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
    pacing: &mut Pacing<'_>,
) -> Result<()> {
    records.clear();
    let mut reader = e.journal.reader(range.start, range.end);
    while records.len() < BATCH_RECORDS && records.bytes() < BATCH_BYTES {
        let room = BATCH_BYTES - records.bytes();
        if (reader.read(room, READ_RECORDS, records)).map_err(|err| e.journal_error(err))? == 0 {
            break;
        }
        pacing.step(16 * READ_RECORDS as u32);
    }
    Ok(())
}

fn digest_singly<'r>(
    e: &Engine,
    records: impl Iterator<Item = RecordRef<'r>>,
    room: &mut Scratch,
) -> Result<()> {
    for r in records {
        grace::wait();
        let mut batch = Batch::new(&e.nodes, room);
        batch.apply(r.seq, r.items)?;
        e.journal.mark_committed(r);
        let retired = batch.write(&mut Pacing::default())?;
        e.journal
            .set_digested(r.seq)
            .map_err(|err| e.journal_error(err))?;
        e.nodes.retire_pages(retired.pages);
        e.nodes.unreserve(retired.dropped);
        e.release_digested(r.seq);
    }
    Ok(())
}
