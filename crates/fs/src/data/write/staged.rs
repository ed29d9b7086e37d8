//! The staged path: blocks in slots, and a record that names them.

use quayfs_layout::Lbn;
use quayfs_store::engine::Engine;
use quayfs_store::error::Result;
use quayfs_store::metrics::Metrics;
use quayfs_store::ns::extent::Piece;
use quayfs_store::ns::inode::Cell;
use quayfs_store::txn::{Edit, Txn};
use smallvec::SmallVec;

use super::allocation::{Allocation, left_behind};
use super::edges::Edges;
use super::{Look, Mapped, Request, holes, length};

/// The LBNs of a request's blocks.
pub(super) type Targets = SmallVec<[Lbn; MOST]>;
/// Blocks of most requests: 128 KiB that begin and end somewhere.
const MOST: usize = 36;

/// Stages the blocks of a request, in their places and in new ones, and maps what is new.
pub(super) fn write_staged(
    e: &Engine,
    cell: &Cell,
    mut txn: Txn<'_>,
    req: Request<'_>,
    (look, mapped): (&Look, &Mapped),
) -> Result<()> {
    let (blocks, pieces) = (req.blocks(), &mapped.pieces);
    // Overwrites go past the window: writers of disjoint ranges do not meet before the commit mutex.
    let mut window = (holes(pieces) > 0).then(|| cell.window.lock());
    let mut alloc = window
        .as_mut()
        .map(|w| Allocation::new(w, mapped.is_scattered));
    let moved = (alloc.as_ref())
        .filter(|a| look.may_move && a.is_new_place())
        .and_then(|_| left_behind(e, pieces));
    let mut targets = Targets::with_capacity((blocks.end - blocks.start) as usize);
    for p in pieces {
        match p.lbn.filter(|lbn| moved != Some(*lbn)) {
            Some(lbn) => (lbn..lbn + length(p)).for_each(|lbn| targets.push(lbn)),
            None => {
                if let Some(a) = &mut alloc {
                    let (goal, ahead) = (mapped.goal, look.ahead);
                    a.fill(&mut txn, p.blocks.clone(), goal, ahead, &mut targets)?;
                }
            }
        }
    }
    let edges = stage(e, &mut txn, req, pieces, &targets)?;
    if let Some(lbn) = moved {
        e.lbns.prepare_free(lbn..lbn + 1, &e.nodes, e)?;
    }

    // Ordering 5: under the commit mutex come extent changes, image, number, append and fence.
    let mut edit = Edit::shared_noting(cell, || Metrics::add(&e.metrics.commit_waits, 1))?;
    if let Some(a) = &alloc {
        edit.extents(&mut txn, a.placed.len(), |x, txn, image| {
            // What follows it is a hole: no extent is cut in two.
            if moved.is_some() {
                x.remove(txn, image, blocks.start..blocks.start + 1);
            }
            for (blocks, lbn) in &a.placed {
                x.insert(txn, image, blocks.clone(), *lbn);
            }
            Ok(())
        })?;
    }
    if let Some(lbn) = moved {
        txn.free_blocks(lbn..lbn + 1)?;
    }
    req.change(&mut edit.image);
    let _committed = txn.commit(edit)?;
    if let Some(a) = alloc {
        a.keep();
    }
    for (block, lbn) in edges.completed(&targets) {
        e.partials.keep(lbn, block);
    }
    Ok(())
}

/// Completes the first and the last block from their newest version and stages everything; returns those two.
fn stage(
    e: &Engine,
    txn: &mut Txn<'_>,
    req: Request<'_>,
    pieces: &[Piece],
    targets: &[Lbn],
) -> Result<Edges> {
    let edges = Edges::read(e, req, pieces)?;
    let mut blocks: SmallVec<[(Lbn, &[u8]); MOST]> = SmallVec::with_capacity(targets.len());
    for (i, &lbn) in targets.iter().enumerate() {
        blocks.push((lbn, edges.block(req, i)));
    }
    txn.stage(&blocks)?;
    drop(blocks);
    Ok(edges)
}
