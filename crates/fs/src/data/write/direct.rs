//! The direct path, of `data=ordered|writeback` and of large requests.

use std::ops::Range;

use quayfs_layout::inode::Inode;
use quayfs_layout::{BLOCK, Lbn, checksum};
use quayfs_options::DataMode;
use quayfs_store::behind::{Posting, UnderWay};
use quayfs_store::engine::Engine;
use quayfs_store::error::{FsError, Result};
use quayfs_store::metrics::Metrics;
use quayfs_store::ns::extent::Piece;
use quayfs_store::ns::inode::InodeHandle;
use quayfs_store::txn::{Edit, Txn};
use rangemap::RangeSet;

use super::edges::Edges;
use super::{Request, length};
use crate::extents;

/// Writes the blocks of a request to where these LBNs are on the device, or has them written; their checksums.
fn bring<'e>(
    e: &'e Engine,
    edges: &Edges,
    req: Request<'_>,
    placed: &[(Range<u64>, Lbn)],
) -> Result<(Vec<(Lbn, u32)>, UnderWay<'e>)> {
    let mut under_way = UnderWay::new(e);
    let mut lbns = placed
        .iter()
        .flat_map(|(r, lbn)| *lbn..lbn + (r.end - r.start));
    let blocks = (0..edges.count).map(|_| {
        let lbn = lbns
            .next()
            .ok_or_else(|| FsError::internal("a block without a place"))?;
        Ok((lbn, e.mapping(lbn)?.pbn))
    });
    let blocks: Vec<(Lbn, u64)> = blocks.collect::<Result<_>>()?;
    let runs: Vec<Range<u64>> = (blocks.chunk_by(|a, b| a.1 + 1 == b.1))
        .map(|run| e.data_start() + run[0].1..e.data_start() + run[run.len() - 1].1 + 1)
        .collect();
    if e.pieces.count(blocks.len() as u64, runs.len() as u64) {
        e.want_gathering();
    }
    let mut bytes = e.behind.buffer(blocks.len() * BLOCK);
    let mut crcs = Vec::with_capacity(blocks.len());
    for ((lbn, _), out) in blocks.iter().zip(bytes.chunks_mut(BLOCK)) {
        let block = edges.block(req, crcs.len());
        // Of the original, which is in the cache then: what has just been copied is still on its way to its place.
        crcs.push((*lbn, checksum::crc32c(block)));
        out.copy_from_slice(block);
    }
    let posting = Posting { runs, bytes };
    match e.options.data {
        DataMode::Journal => under_way.post(posting)?,
        DataMode::Ordered | DataMode::Writeback => posting.write(&*e.device)?,
    }
    Ok((crcs, under_way))
}

/// A better place for so many blocks than the one near a goal, or than the next one that is free, if they would be
/// written in short pieces there.
fn in_long_pieces(e: &Engine, goal: Option<Lbn>, blocks: u64) -> Option<Lbn> {
    let near = goal.filter(|lbn| e.lbns.is_free(*lbn));
    e.pieces.better(
        near.unwrap_or_else(|| e.lbns.cursor()),
        blocks,
        |lbn| e.lbns.is_free(lbn),
        |lbn| Some(e.ppt.lookup(lbn).ok()?.pbn),
    )
}

/// The direct path: data goes to fresh LBNs on the device, the record remaps the extents. With `data=journal` the
/// commit that covers the record waits for the device first ([`Behind::settle`](quayfs_store::behind::Behind::settle)).
///
/// The data need not be flushed before the page-table entries say *written*: until the record commits,
/// the LBNs' bits are clear, and a clear bit with a written entry goes through a zeroing pass.
/// With `data=ordered` the commit flushes the device before it stores `commit_ts`.
pub(super) fn write_direct(
    e: &Engine,
    handle: &InodeHandle,
    mut txn: Txn<'_>,
    req: Request<'_>,
    pieces: &[Piece],
) -> Result<()> {
    let blocks = req.blocks();
    let edges = Edges::read(e, req, pieces)?;
    let goal = extents::with(handle, |x| x.goal(blocks.start))?;
    let goal = in_long_pieces(e, goal, blocks.end - blocks.start).or(goal);
    let mut placed: Vec<(Range<u64>, Lbn)> = Vec::new();
    let mut at = blocks.start;
    while at < blocks.end {
        let run = txn.take_blocks(blocks.end - at, goal)?;
        let n = run.end - run.start;
        placed.push((at..at + n, run.start));
        at += n;
    }
    // Dropped before the transaction, which gives the blocks back.
    let (crcs, under_way) = bring(e, &edges, req, &placed)?;
    for p in pieces {
        if let Some(lbn) = p.lbn {
            e.lbns.prepare_free(lbn..lbn + length(p), &e.nodes, e)?;
        }
    }
    let mut edit = Edit::shared(handle)?;
    let mut freed = RangeSet::new();
    edit.extents(&mut txn, placed.len() + 2, |x, txn, image| {
        // Limits too, for the blocks that are not remapped.
        let holes = pieces.iter().filter(|p| p.lbn.is_none()).map(length).sum();
        let after = Inode {
            blocks: image.blocks.saturating_add(holes),
            ..image.clone()
        };
        txn.admit(handle, &after)?;
        // Nothing fails behind this: an entry in state written must not return to the allocator.
        crcs.iter().for_each(|(lbn, _)| e.partials.forget(*lbn));
        e.ppt
            .write_direct(&crcs)
            .map_err(|err| e.table_error(err))?;
        for r in x.remove(txn, image, blocks.clone()) {
            freed.insert(r);
        }
        for (r, lbn) in &placed {
            x.insert(txn, image, r.clone(), *lbn);
        }
        Ok(())
    })?;
    for r in freed.iter() {
        txn.free_blocks(r.clone())?;
    }
    req.change(&mut edit.image);
    if e.options.data == DataMode::Journal {
        txn.depend_on_media();
    }
    txn.commit(&mut edit)?;
    under_way.keep();
    Metrics::add(&e.metrics.blocks_direct, edges.count as u64);
    Ok(())
}
