//! Where a round writes each block.

use std::ops::Range;

use quayfs_journal::LiveSlot;
use quayfs_layout::Lbn;
use quayfs_ppt::BlockState;

use super::{Move, RUN_MIN};
use crate::config::CheckpointPolicy;
use crate::engine::Engine;
use crate::error::{FsError, Result};
use crate::turns::Turns;

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

/// Decides for each block where it is written, and replaces `moves` by that, in physical order.
pub(super) fn plan(e: &Engine, newest: &[LiveSlot], moves: &mut Vec<Move>) -> Result<Borrowed> {
    let policy = e.options.checkpoint_policy();
    moves.clear();
    let mut turns = Turns::default();
    for slot in newest {
        let m = e.ppt.lookup(slot.lbn).map_err(FsError::io)?;
        moves.push(Move {
            slot: *slot,
            pbn: m.pbn,
            borrowed: None,
        });
        turns.step(2);
    }
    moves.sort_unstable_by_key(|m| m.pbn);
    let mut borrowed = Borrowed::default();
    let mut scattered: Vec<usize> = match policy {
        CheckpointPolicy::InPlace | CheckpointPolicy::Double => Vec::new(),
        CheckpointPolicy::Swap => (0..moves.len()).collect(),
        CheckpointPolicy::Adaptive => runs(moves)
            .filter(|r| r.len() < RUN_MIN)
            .flatten()
            .collect(),
    };
    if policy == CheckpointPolicy::Adaptive && scattered.len() < RUN_MIN {
        scattered.clear();
    }
    // Neighbours in the file stay neighbours on the device.
    scattered.sort_unstable_by_key(|&i| moves[i].slot.lbn);
    let homes = borrow(e, scattered.len(), &mut borrowed)?;
    for (i, (pbn, lbn)) in scattered.into_iter().zip(homes) {
        moves[i].pbn = pbn;
        moves[i].borrowed = Some(lbn);
    }
    moves.sort_unstable_by_key(|m| m.pbn);
    Ok(borrowed)
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
pub(super) fn borrow(e: &Engine, n: usize, borrowed: &mut Borrowed) -> Result<Vec<(u64, Lbn)>> {
    if n == 0 {
        return Ok(Vec::new());
    }
    let geo = &e.config.geometry;
    // A small share of what is free: files come first.
    let ask = (n as u64).min(e.lbns.free() / 4);
    let mut pool: Vec<(u64, Lbn)> = Vec::with_capacity(n);
    let mut left = if e.lbns.promise(ask, 1024.min(geo.blocks / 64)) {
        ask
    } else {
        0
    };
    while left > 0 {
        let Some(r) = e.lbns.take(left, None, &e.nodes, e)? else {
            e.lbns.unpromise(left);
            break;
        };
        left -= r.end - r.start;
        for lbn in r.clone() {
            pool.push((e.ppt.lookup(lbn).map_err(FsError::io)?.pbn, lbn));
        }
        borrowed.ranges.push(r);
    }
    if pool.len() < n {
        // The spare pool: no file ever owns these LBNs, so they are always clean.
        for lbn in geo.visible_blocks()..geo.blocks {
            if pool.len() == n {
                break;
            }
            let m = e.ppt.lookup(lbn).map_err(FsError::io)?;
            if m.state == BlockState::Zero {
                pool.push((m.pbn, lbn));
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
    Ok(out)
}
