//! From slots to the data device, in large writes by several workers.

use std::ops::Range;

use quayfs_blockdev::{AlignedBuf, WriteRun};
use quayfs_layout::{BLOCK, LINE};
use quayfs_sync::atomic::{AtomicUsize, Ordering};
use quayfs_sync::{Mutex, thread};

use super::plan::{Borrowed, borrow, runs};
use super::{Move, RUN_MIN, WORKERS_MAX};
use crate::config::CheckpointPolicy;
use crate::engine::Engine;
use crate::error::{FsError, Result};
use crate::metrics::Metrics;
use crate::turns::Turns;

/// Longest single write in blocks (1 MiB).
const RUN_MAX: usize = 256;
/// Writes that a worker hands over at a time.
const BATCH: usize = 8;
/// Attempts to write before the device is given up.
const TRIES: u32 = 3;

/// With `checkpoint=double`: writes all blocks to free ones and flushes them, before they are written in
/// place. The slots hold them all the time, so nobody ever reads the copy.
pub(super) fn journal_copy(e: &Engine, moves: &[Move], bufs: &mut Vec<AlignedBuf>) -> Result<()> {
    if e.options.checkpoint_policy() != CheckpointPolicy::Double {
        return Ok(());
    }
    let mut borrowed = Borrowed::default();
    // No fewer than a run: shorter ones are not lent.
    let copied = borrow(e, moves.len().max(RUN_MIN), &mut borrowed).and_then(|free| {
        if free.is_empty() {
            return Ok(());
        }
        // Round and round, where there are fewer of them.
        for some in moves.chunks(free.len()) {
            let copies: Vec<Move> = (some.iter().zip(&free))
                .map(|(m, (pbn, _))| Move { pbn: *pbn, ..*m })
                .collect();
            write_out(e, &copies, bufs)?;
            Metrics::add(&e.metrics.blocks_copied, copies.len() as u64);
        }
        Ok(())
    });
    borrowed.give_back(e);
    copied
}

/// Writes all blocks with a pool of workers, waits for all of them (the round barrier of paper
/// 1), and flushes the device.
pub(super) fn write_out(e: &Engine, moves: &[Move], bufs: &mut Vec<AlignedBuf>) -> Result<()> {
    let pieces: Vec<Range<usize>> = runs(moves)
        .flat_map(|r| {
            r.clone()
                .step_by(RUN_MAX)
                .map(move |s| s..(s + RUN_MAX).min(r.end))
        })
        .collect();
    let workers = if e.options.ablation.one_worker {
        1
    } else {
        thread::available_parallelism()
            .map_or(1, usize::from)
            .min(WORKERS_MAX)
    };
    let workers = workers.min(pieces.len() / 16 + 1);
    if bufs.len() < workers {
        bufs.resize_with(workers, AlignedBuf::default);
    }
    let next = AtomicUsize::new(0);
    let failure: Mutex<Option<FsError>> = Mutex::new(None);
    let work = |buf: &mut AlignedBuf| {
        while failure.lock().is_none() {
            let i = next.fetch_add(BATCH, Ordering::Relaxed);
            if i >= pieces.len() {
                break;
            }
            let batch = &pieces[i..(i + BATCH).min(pieces.len())];
            if let Err(err) = write_batch(e, moves, batch, buf) {
                failure.lock().get_or_insert(err);
            }
        }
    };
    let (mine, others) = bufs[..workers].split_at_mut(1);
    thread::scope(|s| {
        for buf in others {
            let work = &work;
            s.spawn(move || work(buf));
        }
        work(&mut mine[0]);
    });
    if let Some(err) = failure.into_inner() {
        return Err(err);
    }
    // Ordering "device flush before the L2P transaction": a retired slot is gone for good.
    e.flush_device()
}

fn write_batch(
    e: &Engine,
    moves: &[Move],
    batch: &[Range<usize>],
    buf: &mut AlignedBuf,
) -> Result<()> {
    let len = batch.iter().map(ExactSizeIterator::len).sum::<usize>() * BLOCK;
    if buf.len() < len {
        *buf = AlignedBuf::new(len);
    }
    let all = batch.iter().flat_map(|piece| &moves[piece.clone()]);
    let mut turns = Turns::default();
    for (m, out) in all.zip(buf.chunks_mut(BLOCK)) {
        turns.step((BLOCK / LINE) as u32);
        if let Err(err) = e.journal.read_slot(&m.slot.slot(), out) {
            let err = FsError::io(format_args!("LBN {}: {err}", m.slot.lbn));
            e.damaged(&err);
            return Err(err);
        }
    }
    let mut rest = &buf[..len];
    let slices: Vec<[&[u8]; 1]> = batch
        .iter()
        .map(|piece| {
            let (here, after) = rest.split_at(piece.len() * BLOCK);
            rest = after;
            [here]
        })
        .collect();
    let runs: Vec<WriteRun<'_>> = batch
        .iter()
        .zip(&slices)
        .map(|(p, s)| WriteRun {
            block: e.data_start() + moves[p.start].pbn,
            bufs: &s[..],
        })
        .collect();
    let mut tries = 0;
    while let Err(err) = e.device.write_many(&runs) {
        tries += 1;
        tracing::warn!("data device: {err}");
        if tries == TRIES {
            e.fail(&err);
            return Err(FsError::io(err));
        }
    }
    Ok(())
}
