//! Where a round writes each block.

use std::ops::Range;
use std::sync::Arc;

use quayfs_layout::Lbn;
use quayfs_options::CheckpointPolicy;
use quayfs_ppt::BlockState;
use quayfs_store::engine::Engine;
use quayfs_store::error::Result;
use quayfs_sync::Pacing;

use super::{Move, RUN_MIN, Round, consecutive};

/// LBNs that a round has borrowed.
#[derive(Default)]
pub(super) struct Borrowed {
    /// From the allocator.
    ranges: Vec<Range<Lbn>>,
}

impl Borrowed {
    pub(super) fn give_back(self, e: &Engine) {
        for r in self.ranges {
            e.lbns.release(r);
        }
    }
}

/// Decides for each block where it is written. The round before has been committed: it may have moved some.
pub(super) fn plan(e: &Engine, round: &mut Round) -> Result<()> {
    let policy = e.options.checkpoint_policy();
    let Round {
        newest,
        moves,
        borrowed,
        ..
    } = round;
    let moves = Arc::make_mut(moves);
    moves.clear();
    let urgent = || e.journal.slots_are_wanted();
    let mut pacing = Pacing::unless(&urgent);
    for slot in &*newest {
        let m = e.mapping(slot.lbn)?;
        moves.push(Move {
            slot: *slot,
            pbn: m.pbn,
            borrowed: None,
        });
        pacing.step(2);
    }
    moves.sort_unstable_by_key(|m| m.pbn);
    let mut new_homes: Vec<usize> = match policy {
        CheckpointPolicy::InPlace | CheckpointPolicy::Double => Vec::new(),
        CheckpointPolicy::Swap => (0..moves.len()).collect(),
        CheckpointPolicy::Adaptive => scattered(moves),
    };
    keep_together(&mut new_homes, moves);
    let homes = borrow(e, new_homes.len(), borrowed);
    for (i, (pbn, lbn)) in new_homes.into_iter().zip(homes) {
        moves[i].pbn = pbn;
        moves[i].borrowed = Some(lbn);
    }
    moves.sort_unstable_by_key(|m| m.pbn);
    Ok(())
}

/// Blocks that are better written elsewhere, together, than each in its place: those of short runs. None where
/// runs are long enough on average: files keep their blocks in one piece then, and the few short writes, many at a
/// time, take less than their readers would. And each piece that is moved makes runs of later rounds shorter.
fn scattered(moves: &[Move]) -> Vec<usize> {
    if moves.len() >= RUN_MIN * runs(moves).count() {
        return Vec::new();
    }
    let short = runs(moves).filter(|r| r.len() < RUN_MIN);
    let scattered: Vec<usize> = short.flatten().collect();
    if scattered.len() < RUN_MIN {
        return Vec::new();
    }
    scattered
}

/// Orders blocks that get new homes. Neighbours in a file stay neighbours on the device as far as LBNs tell,
/// and so does what one record staged: the tail of a file and what was appended to it are read together, and
/// their LBNs may be far from each other.
fn keep_together(scattered: &mut [usize], moves: &[Move]) {
    let record = |i: &usize| moves[*i].slot.seq;
    scattered.sort_unstable_by_key(|&i| (record(&i), moves[i].slot.lbn));
    let mut keyed: Vec<(Lbn, usize)> = Vec::with_capacity(scattered.len());
    for blocks in scattered.chunk_by(|a, b| record(a) == record(b)) {
        let first = moves[blocks[0]].slot.lbn;
        keyed.extend(blocks.iter().map(|&i| (first, i)));
    }
    // Stable: within a record by LBN, as they are.
    keyed.sort_by_key(|(first, _)| *first);
    for (to, (_, i)) in scattered.iter_mut().zip(keyed) {
        *to = i;
    }
}

/// Index ranges of physically consecutive blocks.
pub(super) fn runs(moves: &[Move]) -> impl Iterator<Item = Range<usize>> + '_ {
    let mut at = 0;
    std::iter::from_fn(move || {
        let start = at;
        if start == moves.len() {
            return None;
        }
        at += 1;
        while at < moves.len() && moves[at].pbn == moves[at - 1].pbn + 1 {
            at += 1;
        }
        Some(start..at)
    })
}

/// Borrows free LBNs for `n` blocks, as (physical block, LBN) in physical order; only those whose
/// physical blocks lie in runs worth a single write. May return fewer.
pub(super) fn borrow(e: &Engine, n: usize, borrowed: &mut Borrowed) -> Vec<(u64, Lbn)> {
    if n == 0 {
        return Vec::new();
    }
    let geo = &e.config.geometry;
    // A small share of what is free: files come first.
    let ask = (n as u64).min(e.lbns.free() / 4);
    let mut pool: Vec<(u64, Lbn)> = Vec::with_capacity(n);
    let mut left = if e.lbns.reserve(ask, 1024.min(geo.blocks / 64)) {
        ask
    } else {
        0
    };
    while left > 0 {
        // A round can do without.
        let taken = e.lbns.take(left, None, &e.nodes, e);
        let Some(r) = taken.ok().flatten() else {
            e.lbns.unreserve(left);
            break;
        };
        left -= r.end - r.start;
        let mut sound = Vec::with_capacity((r.end - r.start) as usize);
        for lbn in r {
            match e.mapping(lbn) {
                Ok(m) => {
                    pool.push((m.pbn, lbn));
                    sound.push(lbn);
                }
                // Not handed out before a repair: a round could not write it.
                Err(_) => e.lbns.add_pending(lbn..lbn + 1),
            }
        }
        borrowed.ranges.extend(consecutive(&sound));
    }
    if pool.len() < n {
        // The spare pool: no file ever owns these LBNs, so they are always clean.
        for lbn in geo.visible_blocks()..geo.blocks {
            if pool.len() == n {
                break;
            }
            match e.ppt.lookup(lbn) {
                Ok(m) if m.state == BlockState::Zero => pool.push((m.pbn, lbn)),
                _ => {}
            }
        }
    }
    pool.sort_unstable();
    let mut out = Vec::with_capacity(pool.len());
    let mut i = 0;
    while i < pool.len() {
        let start = i;
        i += 1;
        while i < pool.len() && pool[i].0 == pool[i - 1].0 + 1 {
            i += 1;
        }
        if i - start >= RUN_MIN {
            out.extend_from_slice(&pool[start..i]);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use quayfs_journal::LiveSlot;

    use super::*;

    /// A block of this record at this place; its LBN is that place.
    fn block(seq: u64, pbn: u64) -> Move {
        let slot = LiveSlot {
            buffer: 0,
            pos: 0,
            lbn: pbn,
            crc: 0,
            seq,
        };
        Move {
            slot,
            pbn,
            borrowed: None,
        }
    }

    /// Runs of these lengths, with a block between two of them that is not written.
    fn with_runs(lengths: &[u64]) -> Vec<Move> {
        let mut moves = Vec::new();
        let mut pbn = 0;
        for len in lengths {
            moves.extend((pbn..pbn + len).map(|pbn| block(1, pbn)));
            pbn += len + 1;
        }
        moves
    }

    #[test]
    fn short_runs_go_elsewhere_unless_there_are_few() {
        // Seven blocks are no run themselves.
        assert_eq!(scattered(&with_runs(&[3, 4, 8])), [0; 0]);
        let nine: Vec<usize> = (0..5).chain(13..17).collect();
        assert_eq!(scattered(&with_runs(&[5, 8, 4])), nine);
        let all_short = with_runs(&[1; 100]);
        assert_eq!(scattered(&all_short).len(), 100);
    }

    #[test]
    fn long_runs_keep_all_in_place() {
        // 80 blocks in ten runs.
        let mut lengths = vec![1; 8];
        lengths.extend([36, 36]);
        assert_eq!(scattered(&with_runs(&lengths)), [0; 0]);
        lengths[9] = 35;
        assert_eq!(scattered(&with_runs(&lengths)), (0..8).collect::<Vec<_>>());
    }

    #[test]
    fn blocks_of_a_record_stay_together_and_records_in_the_order_of_their_first() {
        let moves = [
            block(3, 10),
            block(1, 11),
            block(2, 12),
            block(3, 13),
            block(2, 900),
            block(1, 901),
        ];
        let mut order = [5, 4, 3, 2, 1, 0];
        keep_together(&mut order, &moves);
        assert_eq!(order, [0, 3, 1, 5, 2, 4]);
    }
}
