//! Free blocks are put in order: LBNs that follow each other get physical blocks that do.
//!
//! Rounds that swap leave the physical blocks of free LBNs in any order. A large write takes LBNs in a row, and is as
//! many writes of the device as their blocks have pieces. Which physical block a free LBN owns means nothing to any
//! file, so free LBNs exchange theirs, a few thousand at a time, by page-table transactions. Meanwhile they are taken
//! from the allocator, as those of a [trim](crate::trim) are, and for the same reason no reader can be at their blocks:
//! nothing that has been freed reaches the allocator before its last reader is gone and its entry durably says *zero*.
//! Both states of a transaction are in order for recovery, which finds free LBNs in state zero with either block.
//!
//! Pieces that are long already stay where they are. In one order with all others each of them would have to move by a
//! block for every block that lies in front of it and did not before, for nothing.

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
/// Blocks of a long piece: 256 KiB. So many exchanges is a piece less worth.
const LONG: usize = 64;
/// Large writes are told of long pieces by so many blocks: 16 MiB.
const STRETCH: usize = 4096;
/// Exchanges of one transaction, at most. Each transaction flushes the device several times, and what others write
/// there waits for that.
const AT_ONCE: usize = 16 << 10;

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
    let free = owned(e)?;
    let needed = Needed::of(&free);
    let less = needed.pieces.saturating_sub(needed.in_order);
    let order = &needed.order;
    tracing::debug!(
        "{} free blocks in {} pieces, in {} if {} are put in order",
        free.len(),
        needed.pieces,
        needed.in_order,
        order.len()
    );
    if less == 0 || less < needed.pieces / gain || order.misplaced() > less.saturating_mul(LONG) {
        tell_of_long_pieces(e, &free);
        return Ok(0);
    }
    let is_all = order.len() == free.len();
    if !is_all {
        // They stay where they are.
        tell_of_long_pieces(e, &free);
    }
    drop(free);
    let mut order = needed.order;
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
    } else {
        if done > 0 {
            e.pieces.gained();
        }
        if is_all {
            tell_of_long_pieces(e, &order.owned());
        }
    }
    Metrics::add(&e.metrics.blocks_gathered, done);
    Ok(done)
}

/// Tells large writes where these free LBNs, in order, and the blocks that they own lie in long pieces. If that is
/// news, writes that have gone to short pieces say nothing about the next ones.
fn tell_of_long_pieces(e: &Engine, owned: &[(Lbn, u64)]) {
    let visible = spare(e).start;
    let long = pieces_of(owned).filter(|piece| piece[0].0 < visible);
    let stretches = long.flat_map(|piece| piece.chunks_exact(STRETCH).map(|part| part[0].0));
    if e.pieces.found(stretches.collect()) {
        e.pieces.gained();
    }
}

/// LBNs in a row that own blocks in a row.
fn pieces_of(owned: &[(Lbn, u64)]) -> impl Iterator<Item = &[(Lbn, u64)]> {
    owned.chunk_by(|a, b| (a.0 + 1, a.1 + 1) == *b)
}

/// Whether the thread of rounds has something better to do.
fn has_to_yield(e: &Engine) -> bool {
    e.journal.slots_are_wanted()
        || is_full(&e.journal.stats())
        || e.is_read_only()
        || e.stopping().load(Ordering::Acquire)
}

/// Free LBNs and those of the spare pool in order, and the physical blocks that they own.
fn owned(e: &Engine) -> Result<Vec<(Lbn, u64)>> {
    let mut runs = e.lbns.free_runs(MOST, &e.nodes, e)?;
    runs.sort_unstable_by_key(|run| run.start);
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

/// What is to be put in order, and what comes of it.
struct Needed {
    order: Order,
    /// Of all free blocks, now and then.
    pieces: usize,
    in_order: usize,
}

impl Needed {
    /// Of LBNs in order: what does not lie in long pieces; or all of them, if pieces are short on average after that
    /// and much fewer after this.
    fn of(owned: &[(Lbn, u64)]) -> Self {
        let pieces = count_pieces(owned.iter().copied());
        let long = pieces_of(owned).filter(|piece| piece.len() >= LONG).count();
        let short = pieces_of(owned).filter(|piece| piece.len() < LONG);
        let order = Order::of(short.flatten().copied().collect());
        let in_order = long + order.pieces_in_order();
        if in_order * LONG > owned.len() {
            let of_all = pieces_if_in_order(owned);
            if in_order > 2 * of_all {
                return Self {
                    order: Order::of(owned.to_vec()),
                    pieces,
                    in_order: of_all,
                };
            }
        }
        Self {
            order,
            pieces,
            in_order,
        }
    }
}

/// How many pieces LBNs in order would have if their blocks were.
fn pieces_if_in_order(owned: &[(Lbn, u64)]) -> usize {
    let mut pbns: Vec<u64> = owned.iter().map(|(_, pbn)| *pbn).collect();
    pbns.sort_unstable();
    count_pieces(owned.iter().map(|(lbn, _)| *lbn).zip(pbns))
}

/// How many pieces there are of LBNs and blocks in a row.
fn count_pieces(owned: impl Iterator<Item = (Lbn, u64)>) -> usize {
    let mut next = None;
    let begins = |now: &(Lbn, u64)| next.replace((now.0 + 1, now.1 + 1)) != Some(*now);
    owned.filter(begins).count()
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

    /// The LBNs in order, and what each owns.
    fn owned(&self) -> Vec<(Lbn, u64)> {
        let owned = |(lbn, place): (&Lbn, &u32)| (*lbn, self.pbns[*place as usize]);
        self.lbns.iter().zip(&self.owns).map(owned).collect()
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

    /// How many pieces there will be.
    fn pieces_in_order(&self) -> usize {
        let owned = self.lbns.iter().copied().zip(self.pbns.iter().copied());
        count_pieces(owned)
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
    fn long_pieces_stay_where_they_are() {
        // 40 LBNs whose blocks lie the other way round, and a long piece; in front one whose block lies behind all.
        let long = LONG as u64 * 50;
        let mut owned: Vec<(Lbn, u64)> = vec![(0, long + 41)];
        owned.extend((1..=long).map(|lbn| (lbn, lbn)));
        owned.extend((1..=40).map(|i| (long + i, long + 41 - i)));
        let needed = Needed::of(&owned);
        assert_eq!(needed.order.len(), 41);
        assert_eq!(needed.pieces, 42);
        assert!(needed.in_order <= 3);
        // In one order with all others each block of the long piece would have to move.
        assert!(Order::of(owned).misplaced() > LONG * 50);
    }

    #[test]
    fn all_are_put_in_order_if_that_is_much_better() {
        // Long pieces with gaps of eight LBNs, which own the blocks of another gap each, in any order.
        let gap = LONG as u64 + 8;
        let mut owned: Vec<(Lbn, u64)> = Vec::new();
        for n in 0..10 {
            let start = n * gap;
            owned.extend((start..start + LONG as u64).map(|lbn| (lbn, lbn + 8)));
            owned.extend((0..8).map(|i| {
                let pbn = if n == 9 { i } else { start + gap + i * 7 % 8 };
                (start + LONG as u64 + i, pbn)
            }));
        }
        let needed = Needed::of(&owned);
        assert_eq!(needed.in_order, 1);
        assert_eq!(needed.order.len(), owned.len());
    }

    #[test]
    fn a_piece_is_a_row_of_both() {
        let order = Order::of(vec![(1, 1), (2, 2), (3, 9), (4, 10), (7, 11), (8, 3)]);
        assert_eq!(count_pieces(order.owned().into_iter()), 4);
        // 1 2 | 3 9 | 10 11 in LBNs 1 2 3 4 | 7 8: broken between 2 and 3, 3 and 4, 4 and 7.
        assert_eq!(order.pieces_in_order(), 3);
    }
}
