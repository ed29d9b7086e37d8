//! What a round writes: which slots, and which of them hold the newest version of their block.

use std::ops::Range;

use quayfs_journal::LiveSlot;
use quayfs_layout::Lbn;
use quayfs_store::engine::Engine;
use quayfs_store::grace::Grace;
use rustc_hash::FxHashSet;

use super::{Reach, Round};

/// Memory of searches, and of rounds that are over.
#[derive(Default)]
pub(super) struct Search {
    live: Vec<LiveSlot>,
    seqs: Vec<u64>,
    rounds: Vec<Round>,
    /// How often in a row there was too little digested.
    put_off: u32,
}

/// How often in a row a round is put off because there is too little digested.
const PUT_OFF_MOST: u32 = 8;

impl Search {
    /// A round over slots above `above`, which is what is retired already or the cut of the round that is under
    /// way, which frees `freed`. None if there are none, or if more than half of what is staged is not digested yet,
    /// where slots are all that is wanted: a round would write what digest is about to find overwritten or freed, with
    /// a flush for a few blocks. Digest goes on then, and asks for a round again.
    pub(super) fn find(
        &mut self,
        e: &Engine,
        reach: Reach,
        (above, freed): (u64, u64),
    ) -> Option<Round> {
        let Self {
            live,
            seqs,
            rounds,
            put_off,
        } = self;
        let digested = e.journal.digested();
        // Before the first write in place: a reader that missed the staged map before a slot was published may
        // still be reading the block. All slots up to digested_seq are published.
        let grace = Grace::begin();
        e.journal.find_live_slots(above, digested, live);
        grace.look_after();
        if reach == Reach::Older && *put_off < PUT_OFF_MOST && is_behind(e, digested, live, freed) {
            *put_off += 1;
            e.kick(true, false);
            return None;
        }
        *put_off = 0;
        // A round is bounded by the page-table log: a block takes up to two entries.
        let most = (e.ppt.capacity() / 2) as usize;
        let cut = cut((live, seqs), digested, reach, most);
        let slots = live.iter().filter(|s| s.seq <= cut).count() as u64;
        if slots == 0 {
            return None;
        }
        let mut round = rounds.pop().unwrap_or_default();
        round.orphaned = absorb(e, (live, &mut round.newest), digested, cut);
        grace.look_after();
        round.cut = cut;
        round.slots = slots;
        round.grace = Some(grace);
        Some(round)
    }

    /// Takes the memory of a round that has ended.
    pub(super) fn reuse(&mut self, round: Round) {
        self.rounds.push(round);
    }
}

/// Whether what is digested has less than half of the slots, and digest, which asks for a round where so many are in
/// use, has something to do.
fn is_behind(e: &Engine, digested: u64, live: &[LiveSlot], freed: u64) -> bool {
    let stats = e.journal.stats();
    let used = stats.slots_used.saturating_sub(freed);
    (live.len() as u64) < used / 2
        && crate::threads::is_full(&stats)
        && digested < e.journal.digestable()
}

/// Up to which number a round takes slots: at most `most`, and S <= digested_seq, so that in mode `commit` nothing
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

/// Finds the newest version of each LBN (write absorption), if that is at or below the cut, and returns those of
/// blocks that no file owns any more. A newer one is digested and stays live: after a crash it counts, and what the
/// data device holds does not.
fn absorb(
    e: &Engine,
    (live, newest): (&[LiveSlot], &mut Vec<LiveSlot>),
    digested: u64,
    cut: u64,
) -> Vec<LiveSlot> {
    newest.clear();
    // Of these the newest slot of all is not the newest of those that count.
    let mut unclear = FxHashSet::default();
    let old = live.iter().filter(|s| s.seq <= cut);
    e.staged.get_each(
        old,
        |slot| slot.lbn,
        |slot, found| match found {
            Some(s) if s == slot.slot() => newest.push(*slot),
            // Digested and staged again since, hence live: this one has been absorbed.
            Some(s) if s.seq <= digested && (s.seq, s.pos) > (slot.seq, slot.pos) => {}
            _ => {
                unclear.insert(slot.lbn);
            }
        },
    );
    if !unclear.is_empty() {
        let unclear = live.iter().filter(|s| unclear.contains(&s.lbn));
        newest.extend(newest_of(unclear.copied().collect(), cut));
    }
    newest.sort_unstable_by_key(|s| s.lbn);
    // A block that is staged again while this looks: clear at one of its slots, unclear at an older one.
    newest.dedup_by_key(|s| s.lbn);
    let neighbours = |a: &LiveSlot, b: &LiveSlot| a.lbn + 1 == b.lbn;
    let runs = newest.chunk_by(neighbours);
    let pending = runs.flat_map(|run| e.lbns.pending_in(run[0].lbn..run[0].lbn + run.len() as u64));
    let pending: Vec<Range<Lbn>> = pending.collect();
    let mut pending = pending.iter().peekable();
    let is_pending = |slot: &mut LiveSlot| {
        while pending.next_if(|r| r.end <= slot.lbn).is_some() {}
        pending.peek().is_some_and(|r| r.start <= slot.lbn)
    };
    newest.extract_if(.., is_pending).collect()
}

/// The newest slot of each LBN among all of its live ones, if it is at or below the cut.
fn newest_of(mut live: Vec<LiveSlot>, cut: u64) -> Vec<LiveSlot> {
    live.sort_unstable_by_key(|s| (s.lbn, std::cmp::Reverse(s.seq), std::cmp::Reverse(s.pos)));
    live.dedup_by_key(|s| s.lbn);
    live.retain(|s| s.seq <= cut);
    live
}
