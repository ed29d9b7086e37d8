//! Content of a file in the model: sparse, cheap to copy.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use quayfs_layout::BLOCK;
use rangemap::RangeSet;

const B: u64 = BLOCK as u64;

/// A block that is not all zeros.
pub type Block = Arc<[u8; BLOCK]>;

/// Size, bytes, and which blocks are allocated and written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content {
    /// Bytes.
    pub size: u64,
    /// Blocks that are not all zeros.
    pub blocks: BTreeMap<u64, Block>,
    /// Allocated blocks.
    pub mapped: RangeSet<u64>,
    /// Blocks that count as data for `lseek`.
    pub written: RangeSet<u64>,
}

impl Content {
    fn put(&mut self, block: u64, bytes: [u8; BLOCK]) {
        if bytes.iter().all(|b| *b == 0) {
            self.blocks.remove(&block);
        } else {
            self.blocks.insert(block, Arc::new(bytes));
        }
    }

    /// Bytes of a block.
    pub fn block(&self, block: u64) -> [u8; BLOCK] {
        self.blocks.get(&block).map_or([0; BLOCK], |b| **b)
    }

    /// Writes what is not empty.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        let end = offset + data.len() as u64;
        let blocks = offset / B..end.div_ceil(B);
        for block in blocks.clone() {
            let (from, to) = (offset.max(block * B), end.min((block + 1) * B));
            let mut bytes = self.block(block);
            bytes[(from - block * B) as usize..(to - block * B) as usize]
                .copy_from_slice(&data[(from - offset) as usize..(to - offset) as usize]);
            self.put(block, bytes);
        }
        self.mapped.insert(blocks.clone());
        self.written.insert(blocks);
        self.size = self.size.max(end);
    }

    /// Up to `len` bytes, fewer at the end.
    pub fn read(&self, offset: u64, len: u64) -> Vec<u8> {
        let end = offset.saturating_add(len).min(self.size);
        let mut out = Vec::new();
        let mut at = offset;
        while at < end {
            let block = at / B;
            let to = end.min((block + 1) * B);
            let bytes = self.block(block);
            out.extend_from_slice(&bytes[(at - block * B) as usize..(to - block * B) as usize]);
            at = to;
        }
        out
    }

    /// Makes a range zero; its blocks stay.
    fn zero(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let touched = range.start / B..range.end.div_ceil(B);
        let hit: Vec<u64> = self.blocks.range(touched).map(|(b, _)| *b).collect();
        for block in hit {
            let mut bytes = self.block(block);
            let (from, to) = (range.start.max(block * B), range.end.min((block + 1) * B));
            bytes[(from - block * B) as usize..(to - block * B) as usize].fill(0);
            self.put(block, bytes);
        }
    }

    fn unmap(&mut self, blocks: Range<u64>) {
        if !blocks.is_empty() {
            self.mapped.remove(blocks.clone());
            self.written.remove(blocks);
        }
    }

    /// The mapped blocks of a range, counted from its start.
    pub fn mapped_in(&self, range: Range<u64>) -> BTreeSet<u64> {
        if range.is_empty() {
            return BTreeSet::new();
        }
        let runs = self.mapped.overlapping(&range);
        runs.flat_map(|r| r.start.max(range.start)..r.end.min(range.end))
            .map(|block| block - range.start)
            .collect()
    }

    /// What there is to say about a block.
    fn take(&mut self, block: u64) -> (Option<Block>, bool, bool) {
        let state = (
            self.blocks.remove(&block),
            self.mapped.contains(&block),
            self.written.contains(&block),
        );
        self.unmap(block..block + 1);
        state
    }

    fn give(&mut self, block: u64, (bytes, mapped, written): (Option<Block>, bool, bool)) {
        self.blocks.extend(bytes.map(|b| (block, b)));
        if mapped {
            self.mapped.insert(block..block + 1);
        }
        if written {
            self.written.insert(block..block + 1);
        }
    }

    /// Two blocks of a file change places.
    pub fn exchange_blocks(&mut self, one: u64, other: u64) {
        let (a, b) = (self.take(one), self.take(other));
        self.give(one, b);
        self.give(other, a);
    }

    /// A block of one file and one of another change places.
    pub fn exchange_block_with(&mut self, one: u64, there: &mut Self, other: u64) {
        let (a, b) = (self.take(one), there.take(other));
        self.give(one, b);
        there.give(other, a);
    }

    /// Sets the size.
    pub fn truncate(&mut self, size: u64) {
        if size < self.size {
            self.zero(size..self.size.next_multiple_of(B));
            self.unmap(size.div_ceil(B)..u64::MAX);
        }
        self.size = size;
    }

    /// Makes a hole.
    pub fn punch(&mut self, range: Range<u64>) {
        self.zero(range.clone());
        let edges = [range.start / B, (range.end - 1) / B];
        self.unmap(range.start.div_ceil(B)..range.end / B);
        for block in edges {
            // Half of a block is zeroed by writing the block, if there is one.
            let whole = range.start <= block * B && range.end >= (block + 1) * B;
            if !whole && self.mapped.contains(&block) {
                self.written.insert(block..block + 1);
            }
        }
    }

    /// Allocates.
    pub fn allocate(&mut self, range: Range<u64>, keep_size: bool) {
        self.mapped.insert(range.start / B..range.end.div_ceil(B));
        if !keep_size {
            self.size = self.size.max(range.end);
        }
    }

    /// Next data or hole at or after `offset`, which is before the end.
    pub fn seek(&self, data: bool, offset: u64) -> Option<u64> {
        let within = offset / B..self.size.div_ceil(B);
        if data {
            let r = self.written.overlapping(&within).next()?;
            Some(offset.max(r.start * B))
        } else {
            let end = self
                .written
                .gaps(&within)
                .next()
                .map_or(self.size, |r| r.start * B);
            Some(offset.max(end).min(self.size))
        }
    }

    /// Number of allocated blocks.
    pub fn allocated(&self) -> u64 {
        self.mapped.iter().map(|r| r.end - r.start).sum()
    }
}
