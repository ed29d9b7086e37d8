//! How scattered the blocks are that large writes go to.

use quayfs_sync::atomic::{AtomicU64, Ordering};

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
}

impl Default for Pieces {
    fn default() -> Self {
        Self {
            blocks: AtomicU64::new(0),
            breaks: AtomicU64::new(0),
            judged: AtomicU64::new(JUDGED),
            freed: AtomicU64::new(0),
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
        let short = blocks < self.breaks.load(Ordering::Relaxed) * LONG;
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
