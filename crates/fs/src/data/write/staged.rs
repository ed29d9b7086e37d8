//! The staged path: blocks in slots, and a record that names them.

use quayfs_layout::Lbn;
use quayfs_store::engine::Engine;
use quayfs_store::error::Result;
use quayfs_store::txn::{Edit, Txn};
use smallvec::SmallVec;

use super::allocation::{Allocation, Window, left_behind};
use super::edges::Edges;
use super::{Look, Mapped, Request, length};

/// The LBNs of a request's blocks.
pub(super) type Targets = SmallVec<[Lbn; MOST]>;
/// Blocks of most requests: 128 KiB that begin and end somewhere.
const MOST: usize = 36;

/// Where the blocks of a request go, and what has to be mapped for that when the record is appended.
pub(super) struct Places<'w, 'c> {
    /// For the holes, if there are any.
    alloc: Option<Allocation<'w, 'c>>,
    /// The place that the last block of the file leaves.
    moved: Option<Lbn>,
    targets: Targets,
}

impl<'w, 'c> Places<'w, 'c> {
    /// None yet. `window`: of the file, if there are holes.
    pub(super) fn new(window: Option<&'w mut Window<'c>>, mapped: &Mapped) -> Self {
        Self {
            alloc: window.map(|w| Allocation::new(w, mapped.is_scattered)),
            moved: None,
            targets: Targets::new(),
        }
    }

    /// Finds them: for what is new, out of the append window and the reservation.
    pub(super) fn find(
        &mut self,
        e: &Engine,
        txn: &mut Txn<'_>,
        look: &Look,
        mapped: &Mapped,
    ) -> Result<()> {
        let pieces = &mapped.pieces;
        self.targets
            .reserve(pieces.iter().map(length).sum::<u64>() as usize);
        self.moved = (self.alloc.as_ref())
            .filter(|a| look.may_move && a.is_new_place())
            .and_then(|_| left_behind(e, pieces));
        for p in pieces {
            match p.lbn.filter(|lbn| self.moved != Some(*lbn)) {
                Some(lbn) => self.targets.extend(lbn..lbn + length(p)),
                None => {
                    if let Some(a) = &mut self.alloc {
                        let (goal, ahead) = (mapped.goal, look.ahead);
                        a.fill(txn, p.blocks.clone(), goal, ahead, &mut self.targets)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Completes the first and the last block from their newest version and stages everything; returns those two.
    pub(super) fn stage(
        &self,
        e: &Engine,
        txn: &mut Txn<'_>,
        req: Request<'_>,
        mapped: &Mapped,
    ) -> Result<Edges> {
        let edges = Edges::read(e, req, &mapped.pieces)?;
        let mut blocks: SmallVec<[(Lbn, &[u8]); MOST]> =
            SmallVec::with_capacity(self.targets.len());
        for (i, &lbn) in self.targets.iter().enumerate() {
            blocks.push((lbn, edges.block(req, i)));
        }
        txn.stage(&blocks)?;
        drop(blocks);
        if let Some(lbn) = self.moved {
            e.lbns.prepare_free(lbn..lbn + 1, &e.nodes, e)?;
        }
        Ok(edges)
    }

    /// Maps what is new.
    pub(super) fn map(
        &self,
        txn: &mut Txn<'_>,
        edit: &mut Edit<'_>,
        req: Request<'_>,
    ) -> Result<()> {
        if let Some(a) = &self.alloc {
            edit.extents(txn, a.placed.len(), |x, txn, image| {
                // What follows it is a hole: no extent is cut in two.
                if self.moved.is_some() {
                    let first = req.blocks().start;
                    x.remove(txn, image, first..first + 1);
                }
                for (blocks, lbn) in &a.placed {
                    x.insert(txn, image, blocks.clone(), *lbn);
                }
                Ok(())
            })?;
        }
        if let Some(lbn) = self.moved {
            txn.free_blocks(lbn..lbn + 1)?;
        }
        Ok(())
    }

    /// The record was appended.
    pub(super) fn appended(&mut self, e: &Engine, edges: Edges) {
        if let Some(a) = &mut self.alloc {
            a.appended();
        }
        for (block, lbn) in edges.completed(&self.targets) {
            e.partials.insert(lbn, block);
        }
    }
}
