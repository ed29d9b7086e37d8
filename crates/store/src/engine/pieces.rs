//! How scattered the blocks are that large writes go to.

use std::collections::VecDeque;

use quayfs_layout::Lbn;
use quayfs_sync::Mutex;
use quayfs_sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Large writes have to have gone to so many blocks before their pieces are judged.
const JUDGED: u64 = 4096;
/// The same at most, where putting blocks in order has gained nothing: 16 GiB.
const JUDGED_MOST: u64 = 1 << 22;
/// Pieces of so many blocks, on average, are long enough: 256 KiB.
const LONG: u64 = 64;

/// How long the pieces are that large writes go to, or will.
#[derive(Debug)]
pub struct Pieces {
    blocks: AtomicU64,
    /// Within requests: where one ends says nothing.
    breaks: AtomicU64,
    /// Blocks after which they are judged. More each time that putting in order has gained nothing.
    judged: AtomicU64,
    /// Pieces that have become free since blocks were put in order.
    freed: AtomicU64,
    /// Free LBNs at which long pieces were found to begin or go on, in order. Some are not free any more.
    long: Mutex<VecDeque<Lbn>>,
    /// There are some.
    some_long: AtomicBool,
}

/// Whether so many blocks with so many breaks among them lie in short pieces.
fn are_short(blocks: u64, breaks: u64) -> bool {
    blocks < breaks.saturating_mul(LONG)
}

impl Default for Pieces {
    fn default() -> Self {
        Self {
            blocks: AtomicU64::new(0),
            breaks: AtomicU64::new(0),
            judged: AtomicU64::new(JUDGED),
            freed: AtomicU64::new(0),
            long: Mutex::default(),
            some_long: AtomicBool::new(false),
        }
    }
}

impl Pieces {
    /// A large write has gone to so many blocks, in so many pieces. Returns whether free blocks should be put in order.
    pub fn count(&self, blocks: u64, pieces: u64) -> bool {
        self.blocks.fetch_add(blocks, Ordering::Relaxed);
        self.breaks
            .fetch_add(pieces.saturating_sub(1), Ordering::Relaxed);
        self.are_short()
    }

    /// Whether enough has been written, and to short pieces.
    pub fn are_short(&self) -> bool {
        let blocks = self.blocks.load(Ordering::Relaxed);
        if blocks < self.judged.load(Ordering::Relaxed) {
            return false;
        }
        let short = are_short(blocks, self.breaks.load(Ordering::Relaxed));
        if !short {
            self.begin_again(JUDGED);
        }
        short
    }

    /// So many pieces have become free.
    pub fn freed(&self, pieces: u64) {
        self.freed.fetch_add(pieces, Ordering::Relaxed);
    }

    /// Whether so many have become free that the `free` blocks are likely to be out of order.
    pub fn are_scattered(&self, free: u64) -> bool {
        let freed = self.freed.load(Ordering::Relaxed);
        freed >= JUDGED / LONG && freed.saturating_mul(LONG) >= free
    }

    /// Long pieces of free blocks begin or go on at these LBNs, each of them as far as the next, and at no others.
    /// Returns whether large writes knew of none before.
    pub fn found(&self, long: Vec<Lbn>) -> bool {
        let mut known = self.long.lock();
        self.some_long.store(!long.is_empty(), Ordering::Release);
        let are_news = known.is_empty() && !long.is_empty();
        *known = long.into();
        are_news
    }

    /// A better place than `near`, which is free, for a large write of `blocks`, if it would go to short pieces there and a
    /// long piece is known. `free` says of an LBN whether it can be allocated, `place` where its block is.
    pub fn better(
        &self,
        near: Lbn,
        blocks: u64,
        free: impl Fn(Lbn) -> bool,
        place: impl Fn(Lbn) -> Option<u64>,
    ) -> Option<Lbn> {
        if !self.some_long.load(Ordering::Acquire) || !free(near) {
            return None;
        }
        let mut last = place(near);
        let breaks = (1..blocks).filter(|i| {
            let before = std::mem::replace(&mut last, place(near + i));
            last != before.map(|pbn| pbn + 1)
        });
        if !are_short(blocks, breaks.count() as u64) {
            return None;
        }
        loop {
            let mut long = self.long.lock();
            let next = long.pop_front();
            self.some_long.store(!long.is_empty(), Ordering::Release);
            drop(long);
            // Others may have come there.
            if next.is_none_or(&free) {
                return next;
            }
        }
    }

    fn begin_again(&self, judged: u64) {
        self.blocks.store(0, Ordering::Relaxed);
        self.breaks.store(0, Ordering::Relaxed);
        self.judged.store(judged, Ordering::Relaxed);
    }

    /// Blocks are about to be put in order, whatever comes of it.
    pub fn tried(&self) {
        self.freed.store(0, Ordering::Relaxed);
        let judged = self.judged.load(Ordering::Relaxed);
        let next = match self.are_short() {
            true => judged.saturating_mul(2).min(JUDGED_MOST),
            false => judged,
        };
        self.begin_again(next);
    }

    /// Putting them in order was worth it.
    pub fn gained(&self) {
        self.begin_again(JUDGED);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_pieces_are_put_in_order_when_enough_has_been_written() {
        let pieces = Pieces::default();
        assert!(!pieces.count(JUDGED - 1, JUDGED - 1));
        assert!(pieces.count(1, 1));
        pieces.tried();
        assert!(!pieces.count(JUDGED, JUDGED), "it has gained nothing yet");
        assert!(pieces.count(JUDGED, JUDGED));
        pieces.gained();
        assert!(pieces.count(JUDGED, JUDGED));
    }

    #[test]
    fn requests_in_one_piece_are_never_short() {
        let pieces = Pieces::default();
        for _ in 0..3 * JUDGED {
            assert!(!pieces.count(32, 1));
        }
        // Nor are those that have a break now and then.
        for _ in 0..JUDGED {
            assert!(!pieces.count(2 * LONG, 2));
        }
    }

    #[test]
    fn a_large_write_that_would_be_short_goes_to_a_long_piece_once() {
        let pieces = Pieces::default();
        // Blocks below 1000 lie the other way round.
        let place = |lbn: Lbn| Some(if lbn < 1000 { 1000 - lbn } else { lbn });
        let all = |_: Lbn| true;
        assert_eq!(pieces.better(0, 256, all, place), None, "none is known");
        assert!(pieces.found(vec![2000, 3000, 4000]));
        assert_eq!(pieces.better(1000, 256, all, place), None, "it is in one");
        assert_eq!(pieces.better(0, 256, all, place), Some(2000));
        let but = |taken: Lbn| move |lbn: Lbn| lbn != taken;
        assert_eq!(pieces.better(0, 256, but(3000), place), Some(4000));
        assert_eq!(pieces.better(0, 256, all, place), None, "all are given");
        assert!(pieces.found(vec![5000]));
        assert!(!pieces.found(vec![5000]), "it is no news");
        assert_eq!(pieces.better(0, 1, all, place), None, "one is long enough");
        assert_eq!(pieces.better(0, 2, all, place), Some(5000));
    }

    #[test]
    fn attempts_in_a_pause_put_nothing_off() {
        let pieces = Pieces::default();
        for _ in 0..100 {
            pieces.freed(JUDGED);
            assert!(pieces.are_scattered(JUDGED));
            pieces.tried();
            assert!(!pieces.are_scattered(JUDGED));
        }
        assert!(pieces.count(JUDGED, JUDGED));
    }
}
