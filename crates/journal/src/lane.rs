//! One record lane: where the next record goes, and where those above digested_seq are.

use std::collections::VecDeque;

/// A record that digested_seq has not passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) seq: u64,
    pub(crate) pos: u64,
    pub(crate) bytes: u64,
}

/// State of a lane, under its lock. Positions are monotonic bytes.
pub(crate) struct Lane {
    /// Where the next header goes.
    pub(crate) tail: u64,
    /// Records above digested_seq, in order.
    pub(crate) entries: VecDeque<Entry>,
    /// Number of the last record; 0 if there is none in this epoch.
    pub(crate) last_seq: u64,
    pub(crate) appends: u64,
    pub(crate) append_bytes: u64,
}

impl Lane {
    pub(crate) fn new(tail: u64) -> Self {
        Self {
            tail,
            entries: VecDeque::new(),
            last_seq: 0,
            appends: 0,
            append_bytes: 0,
        }
    }

    /// Bytes up to the end of the ring that a record of `bytes` does not fit into; 0 if it fits.
    pub(crate) fn filler_before(&self, bytes: u64, ring: u64) -> u64 {
        let room = ring - self.tail % ring;
        if bytes <= room { 0 } else { room }
    }

    /// Drops the records at or below `seq` and returns how many and how many bytes they were.
    pub(crate) fn drop_upto(&mut self, seq: u64) -> (u64, u64) {
        let n = self.entries.partition_point(|e| e.seq <= seq);
        let bytes = self.entries.drain(..n).map(|e| e.bytes).sum();
        (n as u64, bytes)
    }

    /// Where a walk has to start to find every record above digested_seq.
    pub(crate) fn head(&self) -> u64 {
        self.entries.front().map_or(self.tail, |e| e.pos)
    }

    /// Replaces `out` with the records with numbers in (`after`, `upto`], at most `limit`.
    pub(crate) fn range_into(&self, after: u64, upto: u64, limit: usize, out: &mut Vec<Entry>) {
        out.clear();
        let from = self.entries.partition_point(|e| e.seq <= after);
        let some = self.entries.range(from..).take_while(|e| e.seq <= upto);
        out.extend(some.take(limit));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn lane(seqs: &[u64]) -> Lane {
        let mut l = Lane::new(0);
        for &seq in seqs {
            l.entries.push_back(Entry {
                seq,
                pos: l.tail,
                bytes: 128,
            });
            l.tail += 128;
        }
        l
    }

    #[test]
    fn a_record_that_does_not_fit_leaves_a_filler() {
        let mut l = Lane::new(1000 * 1024);
        assert_eq!(l.filler_before(1024, 1024), 0);
        l.tail += 960;
        assert_eq!(l.filler_before(64, 1024), 0);
        assert_eq!(l.filler_before(128, 1024), 64);
    }

    #[test]
    fn the_head_is_the_first_record_above_digested() {
        let mut l = lane(&[3, 5, 9]);
        assert_eq!(l.head(), 0);
        assert_eq!(l.drop_upto(2), (0, 0));
        assert_eq!(l.drop_upto(5), (2, 256));
        assert_eq!(l.head(), 256);
        assert_eq!(l.drop_upto(100), (1, 128));
        assert_eq!(l.head(), l.tail);
    }

    #[test]
    fn ranges_are_half_open_below() {
        let l = lane(&[3, 5, 9]);
        let seqs = |a, u, n| {
            let mut out = vec![l.entries[0]];
            l.range_into(a, u, n, &mut out);
            out.iter().map(|e| e.seq).collect::<Vec<_>>()
        };
        assert_eq!(seqs(0, 9, 9), [3, 5, 9]);
        assert_eq!(seqs(3, 8, 9), [5]);
        assert_eq!(seqs(0, 9, 2), [3, 5]);
        assert!(seqs(9, 99, 9).is_empty());
    }
}
