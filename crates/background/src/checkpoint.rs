//! Checkpoint rounds and zeroing passes: staged blocks move to the data device.
//!
//! A round takes the newest version of every block staged at or below its cut S, writes it, and
//! makes the move with one page-table transaction that also stores `retired_seq = S` (`docs/internals/paper-map.md`;
//! papers 1 and 2). Where only room is wanted, S is the middle of what is staged ([`Reach::Older`]): a
//! block that has been written again above it stays where it is, and what is written all the time never
//! reaches the device.
//!
//! One round at a time writes to the device and one transaction after the other is committed. Where rounds follow
//! each other ([`rounds`]), what needs no device is done meanwhile: while one writes, the slots of the one before it
//! are returned, freed blocks are zeroed, and the blocks of the one after it are looked for, above its cut. Larger zero
//! batches run between rounds on the same thread.

use std::ops::Range;
use std::sync::Arc;

use quayfs_blockdev::AlignedBuf;
use quayfs_journal::LiveSlot;
use quayfs_layout::Lbn;
use quayfs_options::CheckpointPolicy;
use quayfs_store::engine::Engine;
use quayfs_store::error::Result;
use quayfs_store::grace::{self, Grace};
use quayfs_store::metrics::Metrics;
use quayfs_sync::Pacing;
use quayfs_sync::time::Instant;

use crate::Background;

mod find;
mod gather;
mod plan;
mod worker_pool;
mod write;

use find::Search;
pub use gather::{GAIN, gather};
use plan::{Borrowed, plan};
pub(crate) use worker_pool::WorkerPool;
use write::{Spare, submit};

/// Physically consecutive blocks that are worth writing in place.
pub const RUN_MIN: usize = 8;
/// LBNs of one zeroing pass.
const ZEROED_AT_ONCE: u64 = 32 << 10;
/// LBNs of one while a round writes: the device takes longer.
const ZERO_BESIDE: u64 = 4 << 10;
/// Such a batch is due when more LBNs than one for each so many free ones wait for it.
const ZERO_SHARE: u64 = 16;
/// Slots that are taken out of the staged map before others get a turn.
const TAKEN_AWAY: usize = 64;
/// Threads that write at a time, that of the round among them. They wait for the device, not for CPUs.
pub(crate) const WORKERS: usize = 4;

/// A block that a round writes.
#[derive(Clone, Copy, Debug)]
struct Move {
    slot: LiveSlot,
    /// Physical block to be written.
    pbn: u64,
    /// The borrowed LBN that owns it, if the block is swapped in.
    borrowed: Option<Lbn>,
}

/// What a round found, and what it makes of it.
#[derive(Default)]
struct Round {
    /// S.
    cut: u64,
    /// Live slots at or below it.
    slots: u64,
    /// Since before they were looked for.
    grace: Option<Grace>,
    /// Newest versions, by LBN.
    newest: Vec<LiveSlot>,
    /// Slots of blocks that no file owns any more.
    orphaned: Vec<LiveSlot>,
    /// By physical block. The workers have them too while they write.
    moves: Arc<Vec<Move>>,
    borrowed: Borrowed,
}

/// Memory that one round leaves to the next: its first touch costs more than copying to it.
#[derive(Default)]
pub(crate) struct Workspace {
    /// What this thread copies to, where slots are not written from where they lie.
    buf: AlignedBuf,
    search: Search,
}

/// How far a round goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Everything up to digested_seq.
    All,
    /// The older half of the slots up to digested_seq.
    Older,
}

/// What rounds did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoundReport {
    /// Slots that died.
    pub slots: u64,
    /// Blocks written to the data device.
    pub written: u64,
    /// Of those, blocks swapped in.
    pub swapped: u64,
}

/// Runs a round that goes as far as it can: see [`rounds`].
pub fn round(e: &Background) -> Result<RoundReport> {
    round_of(e, Reach::All)
}

/// Runs one round: see [`rounds`].
pub fn round_of(e: &Background, reach: Reach) -> Result<RoundReport> {
    rounds(e, reach, |_| false)
}

/// Runs a round, and another one as long as that would be at least half as large as the one before it and `more` says
/// so, which is told how many slots will be free when the present one has ended. Returns what they did together; `Ok`
/// with zeros if there was nothing to do. When it returns, the slots they retired are free, and their blocks are
/// durable on the data device unless they have been overwritten in a slot that is still there.
///
/// # Errors
/// That of the first round that fails. What the rounds before it did stays done, and the mount is read-only.
pub fn rounds(e: &Background, reach: Reach, more: impl FnMut(u64) -> bool) -> Result<RoundReport> {
    let mut workspace = e.rounding.lock();
    let began = Instant::now();
    let mut next = workspace.search.find(e, reach, (e.journal.retired(), 0));
    let mut pipeline = Pipeline {
        e,
        reach,
        more,
        workspace: &mut workspace,
        committed: None,
        report: RoundReport::default(),
    };
    let mut outcome = Ok(());
    while let Some(mut round) = next.take() {
        match pipeline.carry_out(&mut round) {
            Ok(found) => {
                pipeline.commits(round);
                next = found;
            }
            Err(err) => {
                // Nothing was retired: the slots still hold everything. They will not become free, as no round can pass
                // over a block, so no operation may wait for them.
                e.fail(&format_args!("checkpoint: {err}"));
                round.borrowed.give_back(e);
                outcome = Err(err);
            }
        }
    }
    if pipeline.committed.is_some() {
        pipeline.end_committed()?;
    } else if outcome.is_ok() {
        // Slots that were abandoned.
        free_slots(e, e.journal.retired())?;
    }
    let took = began.elapsed().as_micros() as u64;
    Metrics::add(
        &e.metrics.round_us,
        took * u64::from(pipeline.report.slots > 0),
    );
    outcome.map(|()| pipeline.report)
}

/// Rounds that follow each other: while one is on its way to the device, the one before it ends, and the one after it
/// is found.
struct Pipeline<'e, M> {
    e: &'e Background,
    reach: Reach,
    /// See [`rounds`].
    more: M,
    workspace: &'e mut Workspace,
    /// The round whose slots are retired and not returned yet.
    committed: Option<Round>,
    report: RoundReport,
}

impl<M: FnMut(u64) -> bool> Pipeline<'_, M> {
    /// From the plan to the commit. Returns the round that follows.
    fn carry_out(&mut self, round: &mut Round) -> Result<Option<Round>> {
        let e = self.e;
        plan(e, round)?;
        self.copy_first(&round.moves)?;
        // Before the first write in place: see `Search::find`.
        if let Some(grace) = round.grace.take() {
            grace.wait();
        }
        let writing = submit(e, &round.moves);

        // While the workers write: what needs no device.
        // The next round takes what is digested by then.
        e.kick(true, false);
        self.end_committed()?;
        if e.lbns.pending() * ZERO_SHARE > e.lbns.free() {
            zero_some(e, ZERO_BESIDE)?;
        }
        // Entries are changed in DRAM until the commit, and nothing else changes those of a round.
        let txn = entries(e, &round.moves, round.cut)?;
        writing.help(&mut self.workspace.buf);
        let next = self.find_next(round);
        writing.finish()?;

        // Ordering "device flush before the page-table transaction": a retired slot is gone for good.
        e.flush_device()?;
        commit(e, txn)?;
        Ok(next)
    }

    /// With `checkpoint=double`: writes all blocks to free ones and flushes them, before they are written in place. The
    /// slots hold them all the time, so the copy is never read.
    fn copy_first(&mut self, moves: &[Move]) -> Result<()> {
        let e = self.e;
        if e.options.checkpoint_policy() != CheckpointPolicy::Double {
            return Ok(());
        }
        let spare = Spare::borrow(e, moves.len());
        for copies in spare.copies(moves) {
            let n = copies.len() as u64;
            let writing = submit(e, &Arc::new(copies));
            self.end_committed()?;
            writing.help(&mut self.workspace.buf);
            writing.finish()?;
            e.flush_device()?;
            Metrics::add(&e.metrics.blocks_copied, n);
        }
        Ok(())
    }

    /// Returns the slots of the round before, if that has not been done.
    fn end_committed(&mut self) -> Result<()> {
        if let Some(round) = self.committed.take() {
            let ended = end(self.e, round)?;
            self.workspace.search.reuse(ended);
        }
        Ok(())
    }

    /// Another round above the cut of this one, if one is wanted and not too small.
    fn find_next(&mut self, this: &Round) -> Option<Round> {
        if !(self.more)(this.slots) {
            return None;
        }
        let search = &mut self.workspace.search;
        let found = search.find(self.e, self.reach, (this.cut, this.slots))?;
        // Not if there is little left, as where digest is behind: half of it, then half of that.
        if found.slots < this.slots / 2 {
            search.reuse(found);
            return None;
        }
        Some(found)
    }

    /// The slots of a round are retired.
    fn commits(&mut self, round: Round) {
        self.report.slots += round.slots;
        self.report.written += round.moves.len() as u64;
        self.report.swapped += round.swapped();
        self.committed = Some(round);
    }
}

impl Round {
    fn swapped(&self) -> u64 {
        self.moves.iter().filter(|m| m.borrowed.is_some()).count() as u64
    }
}

/// Takes the slots of a round out of the staged map, so that no reader finds them any more, and frees them.
fn end(e: &Engine, mut round: Round) -> Result<Round> {
    let urgent = || e.journal.slots_are_wanted();
    let mut pacing = Pacing::unless(&urgent);
    for slots in (round.newest.chunks(TAKEN_AWAY)).chain(round.orphaned.chunks(TAKEN_AWAY)) {
        e.staged.remove_all(slots.iter().map(|s| (s.lbn, s.slot())));
        pacing.step(slots.len() as u32);
    }
    free_slots(e, round.cut)?;
    std::mem::take(&mut round.borrowed).give_back(e);
    let written = round.moves.len() as u64;
    Metrics::add(&e.metrics.rounds, 1);
    Metrics::add(&e.metrics.blocks_absorbed, round.slots - written);
    Metrics::add(&e.metrics.blocks_written, written);
    let swapped = round.swapped();
    if swapped > 0 {
        // The LBNs that were borrowed own what lay here and there.
        e.pieces.freed(swapped);
        e.ahead.expect();
    }
    Metrics::add(&e.metrics.blocks_swapped, swapped);
    Ok(round)
}

/// If it fails, slots are lost until the next mount, and rounds would take them for live ones.
fn free_slots(e: &Engine, retired: u64) -> Result<()> {
    e.journal
        .advance_heads(retired, grace::wait)
        .map_err(|err| {
            e.fail(&err);
            e.journal_error(err)
        })?;
    Ok(())
}

/// The page-table transaction of a round, to be committed when the device has the blocks.
fn entries<'e>(e: &'e Engine, moves: &[Move], cut: u64) -> Result<quayfs_ppt::Txn<'e>> {
    let mut txn = e.ppt.begin().map_err(|err| e.table_error(err))?;
    let fill = (|| {
        let urgent = || e.journal.slots_are_wanted();
        let mut pacing = Pacing::unless(&urgent);
        for m in moves {
            pacing.step(4);
            if let Some(b) = m.borrowed {
                txn.swap(m.slot.lbn, b)?;
                txn.set_zero(b)?;
            }
            txn.set_written(m.slot.lbn, m.slot.crc)?;
        }
        let word = e.journal.retired_word();
        txn.set_retired(word.offset, word.encode(cut))
    })();
    fill.map_err(|err| e.table_error(err))?;
    Ok(txn)
}

fn commit(e: &Engine, txn: quayfs_ppt::Txn<'_>) -> Result<()> {
    txn.commit(WORKERS).map_err(|err| {
        e.fail(&err);
        e.table_error(err)
    })?;
    Ok(())
}

/// Sets freed LBNs to state zero so that they can be handed out again; returns how many.
pub fn zero_freed(e: &Background) -> Result<u64> {
    let _one = e.rounding.lock();
    zero_some(e, ZEROED_AT_ONCE)
}

/// [`zero_freed`] until nothing is left that can be, for an operation that waits for free blocks.
pub fn zero_all(e: &Background) -> Result<()> {
    while e.lbns.pending() > 0 && zero_freed(e)? > 0 {}
    Ok(())
}

/// What [`zero_freed`] does, for at most so many, by the thread that runs rounds. One that writes may be under way, if its
/// page-table transaction has not begun: what it writes is staged until it ends, and left out here.
fn zero_some(e: &Engine, most: u64) -> Result<u64> {
    let mut from = 0;
    loop {
        let runs = e.lbns.pending_runs(from, most);
        let last = runs.last().map(|run| run.end);
        let (zeroed, damaged) = zero_these(e, runs)?;
        match last {
            // They would be met first by each pass.
            Some(end) if zeroed == 0 && damaged => from = end,
            _ => return Ok(zeroed),
        }
    }
}

/// The same for these. Also says whether entries of some are damaged.
fn zero_these(e: &Engine, runs: Vec<Range<Lbn>>) -> Result<(u64, bool)> {
    let (mut free, mut dirty, mut damaged) = (Vec::new(), Vec::new(), false);
    for run in runs {
        // A block whose slot is live would come back with the next round: it waits for that.
        let mut lbns: Vec<Lbn> = Vec::with_capacity((run.end - run.start) as usize);
        e.staged.get_each(
            run,
            |l| *l,
            |l, slot| {
                if slot.is_none() {
                    lbns.push(l);
                }
            },
        );
        let (mut pieces, mut next) = (0, None);
        lbns.retain(|&l| match e.ppt.lookup(l) {
            Ok(m) => {
                pieces += u64::from(next != Some((l, m.pbn)));
                next = Some((l + 1, m.pbn + 1));
                // Also one in state zero whose checksum is of what it held: a repair would take that for its content.
                if !e.ppt.is_zeroed(l) {
                    dirty.push(l);
                }
                true
            }
            // A damaged entry: that block is not handed out before a repair, and it keeps no others from their turn.
            Err(_) => {
                damaged = true;
                false
            }
        });
        free.push((lbns, pieces));
    }
    // At once: each call waits for the medium.
    if !dirty.is_empty() {
        e.ppt.zero(&dirty).map_err(|err| {
            e.fail(&err);
            e.table_error(err)
        })?;
    }
    let mut n = 0;
    for (lbns, pieces) in free {
        n += lbns.len() as u64;
        e.pieces.freed(pieces);
        for r in consecutive(&lbns) {
            e.lbns.cleaned(r);
        }
    }
    Metrics::add(&e.metrics.blocks_zeroed, n);
    Ok((n, damaged))
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
