//! Free blocks are put in order: LBNs that follow each other get physical blocks that do.
//!
//! Rounds that swap leave the physical blocks of free LBNs in any order. A large write takes LBNs in a row, and is as
//! many writes of the device as their blocks have pieces. Which physical block a free LBN owns means nothing to any
//! file, so free LBNs exchange theirs, a few thousand at a time, by page-table transactions. Meanwhile they are taken
//! from the allocator, as those of a [trim](crate::trim) are, and for the same reason no reader can be at their blocks:
//! nothing that has been freed reaches the allocator before its last reader is gone and its entry durably says *zero*.
//! Both states of a transaction are in order for recovery, which finds free LBNs in state zero with either block.

use std::ops::Range;
use std::sync::atomic::Ordering;

use quayfs_layout::Lbn;
use quayfs_ppt::BlockState;
use quayfs_store::engine::Engine;
use quayfs_store::error::Result;
use quayfs_store::metrics::Metrics;
use rustc_hash::FxHashSet;

use super::WORKERS;
use crate::Background;
use crate::threads::is_full;

/// Free LBNs that are looked at: 4 GiB, beginning with those that are allocated next.
const MOST: u64 = 1 << 20;
/// Worth it if at least one piece in so many goes away.
pub const GAIN: usize = 4;
/// Exchanges that a piece less is worth: as many as a long one has blocks.
const LONG: usize = 64;
/// Exchanges of one transaction.
const AT_ONCE: usize = 4096;

/// Puts free blocks in order if at least one piece in `gain` goes away, and for each that does no more than
/// a few dozen blocks have to be exchanged. Ends early if something else wants rounds, or with the
/// mount; what has been exchanged by then is durable, and stays. Returns how many LBNs own another block.
///
/// # Errors
/// Those of the page table, and of bitmap pages that cannot be read. The mount is read-only after a transaction that
/// fails.
pub fn gather(e: &Background, gain: usize) -> Result<u64> {
    let _one = e.rounding.lock();
    e.pieces.tried();
    if has_to_yield(e) {
        return Ok(0);
    }
    let mut order = Order::of(owned(e)?);
    let (pieces, in_order) = (order.pieces(), order.pieces_in_order());
    let less = pieces.saturating_sub(in_order);
    tracing::debug!(
        "{} free blocks in {pieces} pieces, in {in_order} if put in order",
        order.len()
    );
    if less == 0 || less < pieces / gain || order.misplaced() > less.saturating_mul(LONG) {
        return Ok(0);
    }
    let (mut at, mut done) = (0, 0);
    while at < order.len() && !has_to_yield(e) {
        // Both LBNs of each are taken, and together no more than a quarter of what is free.
        let most = (e.ppt.capacity() / 2).min(e.lbns.free() / 8).max(1);
        let plan = order.plan(&mut at, AT_ONCE.min(most as usize));
        // Operations that are short of blocks come first.
        let Some(_lent) = e.try_lend() else { break };
        let mut taken = Taken::of(e, &order, &plan);
        done += exchange(e, &mut order, &plan, &mut taken)?;
    }
    if at < order.len() {
        // For another attempt.
        e.pieces.freed(less as u64);
    } else if done > 0 {
        e.pieces.gained();
    }
    Metrics::add(&e.metrics.blocks_gathered, done);
    Ok(done)
}

/// Whether the thread of rounds has something better to do.
fn has_to_yield(e: &Engine) -> bool {
    e.journal.slots_are_wanted()
        || is_full(&e.journal.stats())
        || e.is_read_only()
        || e.stopping().load(Ordering::Acquire)
}

/// Free LBNs and those of the spare pool, and the physical blocks that they own.
fn owned(e: &Engine) -> Result<Vec<(Lbn, u64)>> {
    let runs = e.lbns.free_runs(MOST, &e.nodes, e)?;
    let owned = |lbn| Some((lbn, e.ppt.lookup(lbn).ok()?.pbn));
    let free = runs.into_iter().flatten();
    Ok(free.chain(spare(e)).filter_map(owned).collect())
}

/// LBNs that no file ever owns. Rounds use them, one at a time.
fn spare(e: &Engine) -> Range<Lbn> {
    let geo = &e.config.geometry;
    geo.visible_blocks()..geo.blocks
}

/// LBNs that nothing else can allocate.
struct Taken<'e> {
    engine: &'e Engine,
    lbns: Vec<Lbn>,
    /// Those of them, and of the spare pool, that are as the plan has them.
    sound: FxHashSet<Lbn>,
    /// They do not go back: nothing says which block each of them owns.
    lost: bool,
}

impl<'e> Taken<'e> {
    fn of(engine: &'e Engine, order: &Order, plan: &[(usize, usize)]) -> Self {
        let mut wanted: Vec<usize> = plan.iter().flat_map(|&(a, b)| [a, b]).collect();
        wanted.sort_unstable();
        wanted.dedup();
        let wanted = wanted.iter().map(|&i| order.lbns[i]);
        let (spare, visible): (Vec<Lbn>, Vec<Lbn>) =
            wanted.partition(|lbn| spare(engine).contains(lbn));
        let lbns = engine.lbns.take_these(&visible);
        let is_sound = |lbn: &&Lbn| {
            let pbn = order.pbn_of(**lbn);
            (engine.ppt.lookup(**lbn))
                .is_ok_and(|m| m.state == BlockState::Zero && Some(m.pbn) == pbn)
        };
        let all = lbns.iter().chain(&spare);
        let sound = all.filter(is_sound).copied().collect();
        Self {
            engine,
            lbns,
            sound,
            lost: false,
        }
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if self.lost {
            return;
        }
        for run in super::consecutive(&self.lbns) {
            self.engine.lbns.release(run);
        }
    }
}

/// Carries out what can be carried out of a plan; returns how many LBNs own another block. Nothing is given back before
/// that is durable.
fn exchange(
    e: &Engine,
    order: &mut Order,
    plan: &[(usize, usize)],
    taken: &mut Taken<'_>,
) -> Result<u64> {
    let mut txn = e.ppt.begin().map_err(|err| e.table_error(err))?;
    for &(i, _) in plan {
        let holder = order.holder_of(i);
        let (a, b) = (order.lbns[i], order.lbns[holder]);
        if a != b && taken.sound.contains(&a) && taken.sound.contains(&b) {
            txn.swap(a, b).map_err(|err| e.table_error(err))?;
            order.exchange(i, holder);
        }
    }
    let changed = txn.commit(WORKERS).map_err(|err| {
        taken.lost = true;
        e.fail(&err);
        e.table_error(err)
    })?;
    Ok(changed as u64)
}

/// LBNs and physical blocks, each in order, and which of them belong together now.
struct Order {
    lbns: Vec<Lbn>,
    pbns: Vec<u64>,
    /// Of an LBN, by its place: the place of the block that it owns.
    owns: Vec<u32>,
    /// Of a block, by its place: the place of its owner.
    owner: Vec<u32>,
}

impl Order {
    fn of(mut pairs: Vec<(Lbn, u64)>) -> Self {
        pairs.sort_unstable();
        let mut by_pbn: Vec<u32> = (0..pairs.len() as u32).collect();
        by_pbn.sort_unstable_by_key(|&i| pairs[i as usize].1);
        let mut owns = vec![0; pairs.len()];
        for (place, &i) in by_pbn.iter().enumerate() {
            owns[i as usize] = place as u32;
        }
        Self {
            pbns: by_pbn.iter().map(|&i| pairs[i as usize].1).collect(),
            lbns: pairs.into_iter().map(|(lbn, _)| lbn).collect(),
            owns,
            owner: by_pbn,
        }
    }

    fn len(&self) -> usize {
        self.lbns.len()
    }

    /// The place of the LBN that owns the block in place `i`.
    fn holder_of(&self, i: usize) -> usize {
        self.owner[i] as usize
    }

    fn pbn_of(&self, lbn: Lbn) -> Option<u64> {
        let i = self.lbns.binary_search(&lbn).ok()?;
        Some(self.pbns[self.owns[i] as usize])
    }

    /// Two LBNs exchange their blocks.
    fn exchange(&mut self, a: usize, b: usize) {
        self.owns.swap(a, b);
        self.owner[self.owns[a] as usize] = a as u32;
        self.owner[self.owns[b] as usize] = b as u32;
    }

    /// The next exchanges, at most `most`, after which the LBNs from place `at` on own the blocks in the same places;
    /// moves `at` to where the next plan begins.
    fn plan(&mut self, at: &mut usize, most: usize) -> Vec<(usize, usize)> {
        let mut plan = Vec::new();
        while *at < self.len() && plan.len() < most {
            let holder = self.holder_of(*at);
            if holder != *at {
                self.exchange(*at, holder);
                plan.push((*at, holder));
            }
            *at += 1;
        }
        for &(a, b) in plan.iter().rev() {
            self.exchange(a, b);
        }
        plan
    }

    /// How many LBNs own another block than the one in their place.
    fn misplaced(&self) -> usize {
        let is_misplaced = |(i, place): &(usize, &u32)| **place as usize != *i;
        self.owns.iter().enumerate().filter(is_misplaced).count()
    }

    /// How many pieces there are, each of LBNs and blocks in a row.
    fn pieces(&self) -> usize {
        self.pieces_where(|i| self.owns[i] as usize)
    }

    /// How many there will be.
    fn pieces_in_order(&self) -> usize {
        self.pieces_where(|i| i)
    }

    fn pieces_where(&self, owns: impl Fn(usize) -> usize) -> usize {
        let pbn = |i| self.pbns[owns(i)];
        let begins =
            |&i: &usize| i == 0 || self.lbns[i] != self.lbns[i - 1] + 1 || pbn(i) != pbn(i - 1) + 1;
        (0..self.len()).filter(begins).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What LBNs own, in order.
    fn owned(order: &Order) -> Vec<u64> {
        let pbn = |lbn: &Lbn| order.pbn_of(*lbn).unwrap();
        order.lbns.iter().map(pbn).collect()
    }

    #[test]
    fn plans_put_everything_in_order() {
        // 7 generates the residues of 101: every number once, none near its place.
        let mut pbn = 1;
        let pairs: Vec<(Lbn, u64)> = (0..100)
            .map(|lbn| {
                pbn = pbn * 7 % 101;
                (lbn * 2, pbn)
            })
            .collect();
        let mut order = Order::of(pairs.clone());
        let before: Vec<u64> = pairs.iter().map(|(_, pbn)| *pbn).collect();
        let mut at = 0;
        while at < order.len() {
            let plan = order.plan(&mut at, 7);
            assert!(plan.len() <= 7);
            let last = order.lbns.len();
            for (a, b) in plan {
                assert!(a < b && b < last);
                assert_eq!(order.holder_of(a), b);
                order.exchange(a, b);
            }
            let mut all = owned(&order);
            all.sort_unstable();
            assert!(all.iter().copied().eq(1..=100), "none is lost");
        }
        assert_ne!(before, owned(&order));
        assert!(owned(&order).into_iter().eq(1..=100));
    }

    #[test]
    fn a_plan_alone_changes_nothing() {
        let pairs = vec![(5, 12), (6, 10), (7, 11)];
        let mut order = Order::of(pairs);
        let mut at = 0;
        assert_eq!(order.plan(&mut at, 10), [(0, 1), (1, 2)]);
        assert_eq!((at, owned(&order)), (3, vec![12, 10, 11]));
    }

    #[test]
    fn a_piece_is_a_row_of_both() {
        let order = Order::of(vec![(1, 1), (2, 2), (3, 9), (4, 10), (7, 11), (8, 3)]);
        assert_eq!(order.pieces(), 4);
        // 1 2 | 3 9 | 10 11 in LBNs 1 2 3 4 | 7 8: broken between 2 and 3, 3 and 4, 4 and 7.
        assert_eq!(order.pieces_in_order(), 3);
    }
}
