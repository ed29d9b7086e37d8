//! From slots to the data device, in large writes.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use quayfs_blockdev::{AlignedBuf, RegionRun, WriteRun};
use quayfs_layout::{BLOCK, LINE, Lbn};
use quayfs_pmem::{Bytes, WriteThrottle};
use quayfs_store::engine::Engine;
use quayfs_store::error::Result;
use quayfs_sync::Pacing;

use super::plan::{Borrowed, borrow, runs};
use super::worker_pool::{Submission, WorkerPool};
use super::{Move, RUN_MIN};
use crate::Background;

/// Longest single write in blocks (1 MiB).
const RUN_MAX: usize = 256;
/// Blocks that a worker hands over at a time, at least: while the device writes those of some workers, another prepares
/// more, and copies them where that is needed.
const BATCH: usize = 256;
/// Most writes that a worker hands over at a time.
const BATCH_RUNS: usize = 64;

/// Free blocks, for copies of what a round writes. They are given back when this is dropped.
pub(super) struct Spare<'e> {
    e: &'e Engine,
    borrowed: Borrowed,
    free: Vec<(u64, Lbn)>,
}

impl<'e> Spare<'e> {
    /// As many as `n` if there are as many.
    pub(super) fn borrow(e: &'e Engine, n: usize) -> Self {
        let mut borrowed = Borrowed::default();
        // No fewer than a run: shorter ones are not lent.
        let free = borrow(e, n.max(RUN_MIN), &mut borrowed);
        Self { e, borrowed, free }
    }

    /// What is to be written there, one after the other: round and round, where there are fewer of them than moves.
    pub(super) fn copies(&self, moves: &[Move]) -> impl Iterator<Item = Vec<Move>> {
        // No chunk without a free block.
        let moves = if self.free.is_empty() { &[] } else { moves };
        moves.chunks(self.free.len().max(1)).map(|some| {
            (some.iter().zip(&self.free))
                .map(|(m, (pbn, _))| Move { pbn: *pbn, ..*m })
                .collect()
        })
    }
}

impl Drop for Spare<'_> {
    fn drop(&mut self) {
        std::mem::take(&mut self.borrowed).give_back(self.e);
    }
}

/// Has blocks written to their places, by as many as the mount has for that.
pub(super) fn submit<'e>(e: &'e Background, moves: &Arc<Vec<Move>>) -> Submission<'e> {
    WorkerPool::submit(e, moves, e.options.ablation.one_worker)
}

/// Runs of blocks, divided into what is handed over at a time.
pub(super) struct Batches {
    /// Of the moves, each a write.
    pieces: Vec<Range<usize>>,
    /// Of the pieces.
    batches: Vec<Range<usize>>,
}

impl Batches {
    /// Those of blocks in the order of their places.
    pub(super) fn of(moves: &[Move]) -> Self {
        let cut = |run: Range<usize>| {
            let starts = run.clone().step_by(RUN_MAX);
            starts.map(move |s| s..(s + RUN_MAX).min(run.end))
        };
        let pieces: Vec<Range<usize>> = runs(moves).flat_map(cut).collect();
        Self {
            batches: batches(&pieces),
            pieces,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.batches.len()
    }

    pub(super) fn get(&self, n: usize) -> &[Range<usize>] {
        &self.pieces[self.batches[n].clone()]
    }
}

/// Divides runs among what is handed over at a time.
fn batches(pieces: &[Range<usize>]) -> Vec<Range<usize>> {
    let mut all = Vec::new();
    let mut at = 0;
    while at < pieces.len() {
        let mut blocks = 0;
        let fits = |p: &&Range<usize>| {
            let fits = blocks < BATCH;
            blocks += p.len();
            fits
        };
        let rest = pieces[at..].iter().take(BATCH_RUNS);
        let end = at + rest.take_while(fits).count();
        all.push(at..end);
        at = end;
    }
    all
}

/// Takes a short part off the front of a batch.
pub(super) fn next_part(left: &mut VecDeque<Range<usize>>) -> Vec<Range<usize>> {
    let (bytes, writes) = WriteThrottle::PART;
    let (mut room, mut part) = (bytes as usize / BLOCK, Vec::new());
    while let (Some(piece), true) = (left.front_mut(), room > 0 && part.len() < writes) {
        let end = piece.end.min(piece.start + room);
        room -= end - piece.start;
        part.push(piece.start..end);
        piece.start = end;
        if piece.start == piece.end {
            left.pop_front();
        }
    }
    part
}

/// Writes the slots of a batch. Their checksums go to the page table as they are, and are verified where blocks are
/// read, on the device as in a slot. A damaged block stays what it is, an error for readers of that block, and keeps
/// no others from leaving.
pub(super) fn write_batch(
    e: &Engine,
    moves: &[Move],
    batch: &[Range<usize>],
    buf: &mut AlignedBuf,
) -> Result<()> {
    let block = |piece: &Range<usize>| e.data_start() + moves[piece.start].pbn;
    if e.device.takes_regions() && e.region.is_contiguous() {
        let lists: Vec<Vec<Bytes<'_>>> = (batch.iter())
            .map(|piece| in_place(e, &moves[piece.clone()]))
            .collect();
        let runs: Vec<RegionRun<'_>> = (batch.iter().zip(&lists))
            .map(|(piece, bytes)| RegionRun {
                block: block(piece),
                bytes,
            })
            .collect();
        return e.write_device(|device| device.write_from(&runs));
    }
    copy(e, moves, batch, buf);
    let mut rest = &buf[..];
    let slices: Vec<[&[u8]; 1]> = (batch.iter())
        .map(|piece| {
            let (here, after) = rest.split_at(piece.len() * BLOCK);
            rest = after;
            [here]
        })
        .collect();
    let runs: Vec<WriteRun<'_>> = (batch.iter().zip(&slices))
        .map(|(piece, bufs)| WriteRun {
            block: block(piece),
            bufs,
        })
        .collect();
    e.write_device(|device| device.write_many(&runs))
}

/// Where the slots of these moves lie; what one operation has staged lies side by side.
fn in_place<'e>(e: &'e Engine, moves: &[Move]) -> Vec<Bytes<'e>> {
    let mut list: Vec<Bytes<'e>> = Vec::new();
    for m in moves {
        let slot = e.journal.slot_bytes(&m.slot.slot());
        let last = list.pop();
        match last.and_then(|last| last.join(slot)) {
            Some(both) => list.push(both),
            None => list.extend(last.into_iter().chain([slot])),
        }
    }
    list
}

/// Copies the slots of a batch to a buffer, for a device that wants them in one piece.
fn copy(e: &Engine, moves: &[Move], batch: &[Range<usize>], buf: &mut AlignedBuf) {
    let len = batch.iter().map(ExactSizeIterator::len).sum::<usize>() * BLOCK;
    if buf.len() < len {
        *buf = AlignedBuf::new(len.next_power_of_two());
    }
    let all = batch.iter().flat_map(|piece| &moves[piece.clone()]);
    let urgent = || e.journal.slots_are_wanted();
    let mut pacing = Pacing::unless(&urgent);
    for (m, out) in all.zip(buf.chunks_mut(BLOCK)) {
        pacing.step((BLOCK / LINE) as u32);
        e.journal.slot_bytes(&m.slot.slot()).read(out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lengths(pieces: &[Range<usize>]) -> Vec<usize> {
        batches(pieces).iter().map(|b| b.len()).collect()
    }

    #[test]
    fn short_parts_are_cut_from_the_front_until_nothing_is_left() {
        let batch = [0..200, 200..201, 300..301].to_vec();
        let mut left = VecDeque::from(batch.clone());
        let mut all = Vec::new();
        while !left.is_empty() {
            let part = next_part(&mut left);
            let blocks = part.iter().map(ExactSizeIterator::len).sum::<usize>();
            assert!((1..=32).contains(&blocks), "{blocks} of 4 KiB");
            all.extend(part.into_iter().flatten());
        }
        assert!(all.into_iter().eq(batch.into_iter().flatten()));
        let mut single: VecDeque<Range<usize>> = (0..40).map(|i| 2 * i..2 * i + 1).collect();
        assert_eq!(next_part(&mut single).len(), WriteThrottle::PART.1);
        assert_eq!(next_part(&mut single).len(), 8);
    }

    #[test]
    fn batches_have_enough_blocks_and_not_too_many_writes() {
        let single: Vec<Range<usize>> = (0..150).map(|i| i..i + 1).collect();
        assert_eq!(lengths(&single), [BATCH_RUNS, BATCH_RUNS, 22]);
        let full = vec![0..RUN_MAX; 3];
        assert_eq!(lengths(&full), [1, 1, 1]);
        let mixed = [0..200, 0..55, 0..1, 0..256, 0..1, 0..255];
        assert_eq!(lengths(&mixed), [3, 1, 2]);
        let whole: usize = batches(&mixed).iter().map(|b| b.len()).sum();
        assert_eq!(whole, mixed.len());
        assert_eq!(lengths(&[]), [0; 0]);
    }
}
