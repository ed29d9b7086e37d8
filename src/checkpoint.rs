//! Checkpoint rounds and zero batches: staged blocks move to the data device.
//!
//! A round takes the newest version of every block staged at or below its cut S, writes it, and
//! makes the move with one L2P transaction that also stores `retired_seq = S` (`docs/paper-map.md`;
//! papers 1 and 2). Where only room is wanted, S is the middle of what is staged ([`Reach::Older`]): a
//! block that has been written again above it stays where it is, and what is written all the time never
//! reaches the device. One round at a time; zero batches run between rounds on the same thread.

use std::ops::Range;

use quayfs_blockdev::AlignedBuf;
use quayfs_journal::LiveSlot;
use quayfs_layout::Lbn;
use quayfs_ppt::BlockState;
use rustc_hash::FxHashSet;

use crate::engine::Engine;
use crate::error::{FsError, Result};
use crate::grace::{self, Grace};
use crate::metrics::Metrics;
use crate::turns::Turns;

mod plan;
mod write;

use plan::plan;
use write::{journal_copy, write_out};

/// Physically consecutive blocks that are worth writing in place.
const RUN_MIN: usize = 8;
/// Mean length of a round's runs, in blocks, with which all is written in place.
const RUN_LONG: usize = 16;
/// LBNs of one zero batch.
const ZERO_BATCH: u64 = 32 << 10;
/// Most worker threads.
const WORKERS_MAX: usize = 4;

/// A block that a round writes.
#[derive(Clone, Copy, Debug)]
struct Move {
    slot: LiveSlot,
    /// Physical block to be written.
    pbn: u64,
    /// The borrowed LBN that owns it, if the block is swapped in.
    borrowed: Option<Lbn>,
}

/// Memory that one round leaves to the next: its first touch costs more than copying to it.
#[derive(Default)]
pub(crate) struct Workspace {
    /// What each worker writes from.
    bufs: Vec<AlignedBuf>,
    live: Vec<LiveSlot>,
    seqs: Vec<u64>,
    newest: Vec<LiveSlot>,
    moves: Vec<Move>,
}

/// How far a round goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Everything up to D.
    All,
    /// The older half of the slots up to D.
    Older,
}

/// What a round did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoundReport {
    /// Slots that died.
    pub slots: u64,
    /// Blocks written to the data device.
    pub written: u64,
    /// Of those, blocks swapped in.
    pub swapped: u64,
}

/// Runs a round that goes as far as it can: see [`round_of`].
pub fn round(e: &Engine) -> Result<RoundReport> {
    round_of(e, Reach::All)
}

/// Runs one round. Returns what it did; `Ok` with zeros if there was nothing to do. When it
/// returns, the slots it retired are free, and their blocks are durable on the data device unless
/// they have been overwritten in a slot that is still there.
pub fn round_of(e: &Engine, reach: Reach) -> Result<RoundReport> {
    let mut workspace = e.rounding.lock();
    let Workspace {
        bufs,
        live,
        seqs,
        newest,
        moves,
    } = &mut *workspace;
    let digested = e.journal.digested();
    // Before the first write in place: a reader that missed the staged map before a slot was published may
    // still be reading the block. All slots up to D are published.
    let grace = Grace::begin();
    e.journal.find_live_slots(digested, live);
    grace.look_after();
    // A round is bounded by the L2P log: a block takes up to two entries.
    let cut = cut(
        (live, seqs),
        digested,
        reach,
        (e.ppt.capacity() / 2) as usize,
    );
    let slots = live.iter().filter(|s| s.seq <= cut).count() as u64;
    if slots == 0 {
        e.journal
            .advance_heads(e.journal.retired(), grace::wait)
            .map_err(FsError::io)?;
        return Ok(RoundReport::default());
    }
    let orphaned = absorb(e, (live, newest), digested, cut);
    grace.look_after();
    let borrowed = plan(e, newest, moves)?;
    let report = RoundReport {
        slots,
        written: moves.len() as u64,
        swapped: moves.iter().filter(|m| m.borrowed.is_some()).count() as u64,
    };
    let outcome = journal_copy(e, moves, bufs)
        .and_then(|()| {
            grace.wait();
            // Entries are changed in DRAM until the commit, and nobody else changes those of a round.
            write_out(e, moves, bufs, || entries(e, moves, cut))
        })
        .and_then(|txn| commit(e, txn?));
    if let Err(err) = outcome {
        // Nothing was retired: the slots still hold everything.
        borrowed.give_back(e);
        return Err(err);
    }
    let mut turns = Turns::default();
    for slot in moves.iter().map(|m| &m.slot).chain(&orphaned) {
        e.staged.remove_if(slot.lbn, &slot.slot());
        turns.step(4);
    }
    e.journal
        .advance_heads(cut, grace::wait)
        .map_err(FsError::io)?;
    borrowed.give_back(e);
    Metrics::add(&e.metrics.rounds, 1);
    Metrics::add(&e.metrics.blocks_absorbed, slots - report.written);
    Metrics::add(&e.metrics.blocks_written, report.written);
    Metrics::add(&e.metrics.blocks_swapped, report.swapped);
    Ok(report)
}

/// Up to which number a round takes slots: at most `most`, and S <= D, so that in mode `commit` nothing
/// above the last commit leaves the rings.
fn cut(
    (live, seqs): (&[LiveSlot], &mut Vec<u64>),
    digested: u64,
    reach: Reach,
    most: usize,
) -> u64 {
    if live.is_empty() || (reach == Reach::All && live.len() <= most) {
        return digested;
    }
    seqs.clear();
    seqs.extend(live.iter().map(|s| s.seq));
    let mut nth = |n: usize| *seqs.select_nth_unstable(n).1;
    let cut = match reach {
        Reach::All => digested,
        // At least one record's.
        Reach::Older => nth((live.len() - 1) / 2),
    };
    if live.iter().filter(|s| s.seq <= cut).count() > most {
        nth(most) - 1
    } else {
        cut
    }
}

/// Finds the newest version of each LBN (write absorption), if that is at or below the cut, and returns
/// those of blocks that nobody owns any more. A newer one is digested and stays live: after a crash it counts,
/// and what the data device holds does not.
fn absorb(
    e: &Engine,
    (live, newest): (&[LiveSlot], &mut Vec<LiveSlot>),
    digested: u64,
    cut: u64,
) -> Vec<LiveSlot> {
    newest.clear();
    // Of these the newest slot of all is not the newest of those that count.
    let mut unclear = FxHashSet::default();
    for slot in live.iter().filter(|s| s.seq <= cut) {
        match e.staged.get(slot.lbn) {
            Some(s) if s == slot.slot() => newest.push(*slot),
            // Digested and staged again since, hence live: this one has been absorbed.
            Some(s) if s.seq <= digested && (s.seq, s.pos) > (slot.seq, slot.pos) => {}
            _ => {
                unclear.insert(slot.lbn);
            }
        }
    }
    if !unclear.is_empty() {
        let unclear = live.iter().filter(|s| unclear.contains(&s.lbn));
        newest.extend(newest_of(unclear.copied().collect(), cut));
    }
    newest.sort_unstable_by_key(|s| s.lbn);
    // A block that is staged again while this looks: clear at one of its slots, unclear at an older one.
    newest.dedup_by_key(|s| s.lbn);
    let mut orphaned = Vec::new();
    newest.retain(|slot| {
        let owned = !e.lbns.is_pending(slot.lbn);
        if !owned {
            orphaned.push(*slot);
        }
        owned
    });
    orphaned
}

/// The newest slot of each LBN among all of its live ones, if it is at or below the cut.
fn newest_of(mut live: Vec<LiveSlot>, cut: u64) -> Vec<LiveSlot> {
    live.sort_unstable_by_key(|s| (s.lbn, std::cmp::Reverse(s.seq), std::cmp::Reverse(s.pos)));
    live.dedup_by_key(|s| s.lbn);
    live.retain(|s| s.seq <= cut);
    live
}

/// The L2P transaction of a round, to be committed when the device has the blocks.
fn entries<'e>(e: &'e Engine, moves: &[Move], cut: u64) -> Result<quayfs_ppt::Txn<'e>> {
    let mut txn = e.ppt.begin().map_err(FsError::io)?;
    let fill = (|| {
        let mut turns = Turns::default();
        for m in moves {
            turns.step(4);
            if let Some(b) = m.borrowed {
                txn.swap(m.slot.lbn, b)?;
                txn.set_zero(b)?;
            }
            txn.set_written(m.slot.lbn, m.slot.crc)?;
        }
        let word = e.journal.retired_word();
        txn.set_retired(word.offset, word.encode(cut))
    })();
    fill.map_err(FsError::io)?;
    Ok(txn)
}

fn commit(e: &Engine, txn: quayfs_ppt::Txn<'_>) -> Result<()> {
    txn.commit(WORKERS_MAX).map_err(|err| {
        e.fail(&err);
        FsError::io(err)
    })?;
    Ok(())
}

/// Sets freed LBNs to state zero so that they can be handed out again; returns how many.
pub fn zero_batch(e: &Engine) -> Result<u64> {
    let _one = e.rounding.lock();
    let mut n = 0;
    for run in e.lbns.pending_runs(ZERO_BATCH) {
        // A block whose slot is live would come back with the next round: it waits for that.
        let lbns: Vec<Lbn> = run.filter(|l| e.staged.get(*l).is_none()).collect();
        let mut dirty = Vec::new();
        for &l in &lbns {
            if e.ppt.lookup(l).map_err(FsError::io)?.state == BlockState::Written {
                dirty.push(l);
            }
        }
        if !dirty.is_empty() {
            e.ppt.zero_batch(&dirty).map_err(|err| {
                e.fail(&err);
                FsError::io(err)
            })?;
        }
        n += lbns.len() as u64;
        for r in consecutive(&lbns) {
            e.lbns.cleaned(r);
        }
    }
    Metrics::add(&e.metrics.blocks_zeroed, n);
    Ok(n)
}

/// Runs of ascending numbers.
pub(crate) fn consecutive(lbns: &[u64]) -> Vec<Range<u64>> {
    let mut out: Vec<Range<Lbn>> = Vec::new();
    for &l in lbns {
        match out.last_mut() {
            Some(r) if r.end == l => r.end += 1,
            _ => out.push(l..l + 1),
        }
    }
    out
}
