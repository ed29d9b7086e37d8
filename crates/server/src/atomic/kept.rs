//! What was written and not committed, in memory: the blocks that it touches, whole, and which of their bytes are
//! meant. So what it takes depends on the blocks alone, however small and many the writes are, and neighbours are
//! one piece.

use std::collections::BTreeMap;
use std::ops::Range;

use quayfs_layout::BLOCK;

use quayfs_fs::data::atomic::{Piece, blocks};

const B: u64 = BLOCK as u64;
const WORD: usize = u64::BITS as usize;

/// Memory that a block takes, with its place in the map.
pub(super) const BLOCK_COST: usize = size_of::<Block>() + 64;

/// A block of a file, and a bit for each byte that was written.
#[derive(Debug)]
struct Block {
    bytes: [u8; BLOCK],
    written: Written,
}

/// A bit for each byte of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Written([u64; BLOCK / WORD]);

impl Written {
    const NOTHING: Self = Self([0; BLOCK / WORD]);

    fn add(&mut self, bytes: Range<usize>) {
        for (i, word) in self.0.iter_mut().enumerate() {
            let from = bytes.start.clamp(i * WORD, (i + 1) * WORD) - i * WORD;
            let to = bytes.end.clamp(i * WORD, (i + 1) * WORD) - i * WORD;
            if from < to {
                *word |= (u64::MAX >> (WORD - (to - from))) << from;
            }
        }
    }

    /// Ranges of bytes with nothing between them.
    fn runs(&self) -> usize {
        let mut before = 0;
        let begin = |word: &u64| {
            let begins = word & !(word << 1 | before);
            before = word >> (WORD - 1);
            begins.count_ones() as usize
        };
        self.0.iter().map(begin).sum()
    }

    /// The first byte from `at` on whose bit is this one, or the end.
    fn next(&self, at: usize, is: bool) -> usize {
        let mut at = at;
        while at < BLOCK {
            let word = if is {
                self.0[at / WORD]
            } else {
                !self.0[at / WORD]
            };
            let rest = word >> (at % WORD);
            if rest != 0 {
                return at + rest.trailing_zeros() as usize;
            }
            at = (at / WORD + 1) * WORD;
        }
        BLOCK
    }

    fn ranges(&self) -> impl Iterator<Item = Range<usize>> {
        let mut at = 0;
        std::iter::from_fn(move || {
            let from = self.next(at, true);
            at = self.next(from, false);
            (from < BLOCK).then_some(from..at)
        })
    }
}

/// The part of a write that is in this block: where in the block, and where in what is written.
fn part(block: u64, (offset, data): Piece<'_>) -> (Range<usize>, Range<usize>) {
    let from = offset.max(block * B);
    let to = (offset + data.len() as u64).min((block + 1) * B);
    let within = |base: u64| (from - base) as usize..(to - base) as usize;
    (within(block * B), within(offset))
}

/// What is kept of one open file.
#[derive(Debug, Default)]
pub(super) struct Kept {
    blocks: BTreeMap<u64, Box<Block>>,
    /// Pieces that it is: within each block those with nothing between them.
    pieces: usize,
    /// Where the last one ends.
    pub(super) upto: u64,
    /// Whether there was a writer whose writes take privileges away.
    pub(super) kill: bool,
    /// It is committed, or given up.
    pub(super) over: bool,
    /// On whose account it is.
    pub(super) user: u32,
}

impl Kept {
    /// Nothing yet, on this user's account.
    pub(super) fn of(user: u32) -> Self {
        Self {
            user,
            ..Self::default()
        }
    }

    /// Lets go of everything, for good.
    pub(super) fn end(&mut self) {
        *self = Self {
            over: true,
            ..Self::default()
        };
    }

    /// Blocks that it has.
    pub(super) fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Blocks that a write needs besides.
    pub(super) fn fresh(&self, offset: u64, len: usize) -> usize {
        let new = blocks(offset, len).filter(|b| !self.blocks.contains_key(b));
        new.count()
    }

    /// Pieces that there would be after a write.
    pub(super) fn pieces_with(&self, write: Piece<'_>) -> usize {
        let mut pieces = self.pieces;
        for block in blocks(write.0, write.1.len()) {
            let before = self.blocks.get(&block).map(|b| &b.written);
            let mut after = before.cloned().unwrap_or(Written::NOTHING);
            after.add(part(block, write).0);
            pieces = pieces + after.runs() - before.map_or(0, Written::runs);
        }
        pieces
    }

    /// Takes a write in, over those before it.
    pub(super) fn put(&mut self, (offset, data): Piece<'_>) {
        self.pieces = self.pieces_with((offset, data));
        for block in blocks(offset, data.len()) {
            let (to, from) = part(block, (offset, data));
            let nothing = || {
                Box::new(Block {
                    bytes: [0; BLOCK],
                    written: Written::NOTHING,
                })
            };
            let kept = self.blocks.entry(block).or_insert_with(nothing);
            kept.bytes[to.clone()].copy_from_slice(&data[from]);
            kept.written.add(to);
        }
        self.upto = self.upto.max(offset + data.len() as u64);
    }

    /// What there is to write.
    pub(super) fn pieces(&self) -> Vec<Piece<'_>> {
        let mut pieces = Vec::with_capacity(self.pieces);
        for (block, kept) in &self.blocks {
            let piece = |range: Range<usize>| {
                let at = block * B + range.start as u64;
                (at, &kept.bytes[range])
            };
            pieces.extend(kept.written.ranges().map(piece));
        }
        pieces
    }

    /// The bytes that the kernel has to forget, in whole blocks.
    pub(super) fn ranges(&self) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for block in self.blocks.keys() {
            let at = block * B;
            match ranges.last_mut() {
                Some(last) if last.end == at => last.end += B,
                _ => ranges.push(at..at + B),
            }
        }
        ranges
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(kept: &Kept) -> Vec<(u64, String)> {
        let text = |(at, bytes): Piece<'_>| (at, String::from_utf8(bytes.to_vec()).unwrap());
        assert_eq!(kept.pieces, kept.pieces().len());
        kept.pieces().into_iter().map(text).collect()
    }

    #[test]
    fn later_writes_lie_over_earlier_ones() {
        let mut kept = Kept::default();
        for (at, data) in [
            (10, "aaaa"),
            (14, "bbbb"),
            (20, "cc"),
            (12, "XXXX"),
            (21, "YYYY"),
        ] {
            kept.put((at, data.as_bytes()));
        }
        let two = |a: &str, b: &str| vec![(10, a.into()), (20, b.into())];
        assert_eq!(pieces(&kept), two("aaXXXXbb", "cYYYY"));
        kept.put((18, b"--"));
        assert_eq!(pieces(&kept), [(10, "aaXXXXbb--cYYYY".into())]);
        assert_eq!((kept.len(), kept.upto), (1, 25));
    }

    #[test]
    fn bytes_one_by_one_are_one_piece() {
        let (mut up, mut down) = (Kept::default(), Kept::default());
        for i in 0..2 * B {
            up.put((i, b"u"));
            down.put((2 * B - 1 - i, b"d"));
        }
        for kept in [&up, &down] {
            // Blocks are pieces of their own.
            assert_eq!((kept.pieces().len(), kept.pieces, kept.len()), (2, 2, 2));
            let both = 0..2 * B;
            assert_eq!(kept.ranges(), [both]);
        }
    }

    #[test]
    fn pieces_are_counted_before_they_are_there() {
        let mut kept = Kept::default();
        for i in 0..B / 2 {
            assert_eq!(kept.pieces_with((2 * i, b"x")), i as usize + 1);
            kept.put((2 * i, b"x"));
        }
        assert_eq!(kept.pieces_with((1, b"x")), BLOCK / 2 - 1);
        assert_eq!(kept.pieces_with((0, &[0; 2 * BLOCK])), 2);
        assert_eq!((kept.fresh(0, 2 * BLOCK), kept.fresh(7, 0)), (1, 0));
        assert_eq!(pieces(&kept).len(), BLOCK / 2);
    }

    #[test]
    fn pieces_end_where_they_end() {
        for (at, len) in [
            (0, 1),
            (63, 1),
            (63, 2),
            (64, 64),
            (1, 4095),
            (4095, 1),
            (4000, 200),
        ] {
            let mut kept = Kept::default();
            kept.put((at, &vec![7; len]));
            let bytes = |(_, bytes): &Piece<'_>| bytes.to_vec();
            let whole: Vec<u8> = kept.pieces().iter().flat_map(bytes).collect();
            assert_eq!(kept.pieces()[0].0, at);
            assert_eq!(whole, vec![7; len], "{at} {len}");
        }
    }
}
