//! The first and the last block of a request, which it may cover only in part.

use quayfs_layout::{BLOCK, Lbn};
use quayfs_store::engine::Engine;
use quayfs_store::error::Result;
use quayfs_store::ns::extent::Piece;

use crate::data::read::{self, Want};
use crate::data::write::{B, Request};

/// The blocks that a request covers only in part, completed.
pub(super) struct Edges {
    first: Option<Vec<u8>>,
    last: Option<Vec<u8>>,
    pub(super) count: usize,
}

impl Edges {
    pub(super) fn read(e: &Engine, req: Request<'_>, pieces: &[Piece]) -> Result<Self> {
        let blocks = req.blocks();
        let count = (blocks.end - blocks.start) as usize;
        let complete = |block: u64| -> Result<Vec<u8>> {
            let mut buf = vec![0; BLOCK];
            let lbn = pieces
                .iter()
                .find(|p| p.blocks.contains(&block))
                .and_then(|p| p.lbn.map(|l| l + (block - p.blocks.start)));
            if let Some(lbn) = lbn {
                read::blocks(e, &[Want { lbn, at: 0 }], &mut buf)?;
            }
            let from = req.offset.max(block * B);
            let to = req.end().min((block + 1) * B);
            let data = &req.data[(from - req.offset) as usize..(to - req.offset) as usize];
            let at = (from - block * B) as usize;
            buf[at..at + data.len()].copy_from_slice(data);
            Ok(buf)
        };
        let last = blocks.end - 1;
        let head = !req.offset.is_multiple_of(B);
        let tail = !req.end().is_multiple_of(B);
        let first = if head || (count == 1 && tail) {
            Some(complete(blocks.start)?)
        } else {
            None
        };
        let last = if tail && count > 1 {
            Some(complete(last)?)
        } else {
            None
        };
        Ok(Self { first, last, count })
    }

    /// Those blocks, and where they have gone.
    pub(super) fn completed(self, targets: &[Lbn]) -> impl Iterator<Item = (Vec<u8>, Lbn)> {
        let first = self.first.zip(targets.first().copied());
        let last = self.last.zip(targets.last().copied());
        first.into_iter().chain(last)
    }

    /// Content of the `i`-th block of the request.
    pub(super) fn block<'a>(&'a self, req: Request<'a>, i: usize) -> &'a [u8] {
        match (&self.first, &self.last) {
            (Some(b), _) if i == 0 => b,
            (_, Some(b)) if i + 1 == self.count => b,
            _ => {
                let skip = (req.offset % B) as usize;
                let at = i * BLOCK - skip;
                &req.data[at..at + BLOCK]
            }
        }
    }
}
