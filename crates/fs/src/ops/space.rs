//! fallocate, lseek.

use std::ops::Range;

use quayfs_layout::inode::{FLAG_SYNC, Inode};
use quayfs_layout::node::BITS_PER_PAGE;
use quayfs_layout::{BLOCK, Ino};
use quayfs_ppt::BlockState;
use quayfs_store::error::{FsError, Result};
use quayfs_store::ns::extent::Piece;
use quayfs_store::ns::inode::InodeHandle;
use quayfs_store::ns::node::STEP;
use quayfs_store::txn::{Edit, Reservation, Txn};

use crate::attr::{Asker, drop_privileges, drop_privileges_by, now, written};
use crate::data::read::{self, Want};
use crate::data::write::SIZE_MAX;
use crate::ops::reap::{STEP_BYTES, step_reservation};
use crate::{Fs, extents, protect};

const B: u64 = BLOCK as u64;
/// Runs of LBNs that one record of `fallocate` allocates at most.
const RUNS: usize = 128;

/// Pages of the bitmap of LBNs that do not exist yet, and that so many blocks may need: the blocks of such a page are free,
/// all of them, so runs there are long.
fn bitmap_pages(blocks: u64) -> u64 {
    blocks.div_ceil(BITS_PER_PAGE).min(RUNS as u64) + 1
}

/// What `fallocate` does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FallocMode {
    /// Allocate; the size grows if `keep_size` is not set.
    Allocate {
        /// Leave the size as it is.
        keep_size: bool,
    },
    /// Make a hole.
    Punch,
    /// Make zeros, allocated.
    Zero {
        /// Leave the size as it is.
        keep_size: bool,
    },
}

/// What `lseek` looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whence {
    /// Data.
    Data,
    /// A hole; the end of the file counts as one.
    Hole,
}

impl Fs {
    /// Allocates, frees or zeroes a range of a file. What is allocated reads as zeros without a byte being written.
    /// Each step is atomic; a crash may leave the first of several steps. Privileges go, as with a caller in the
    /// group of the file.
    pub fn fallocate(&self, ino: Ino, mode: FallocMode, offset: u64, len: u64) -> Result<()> {
        self.allocate(ino, mode, (offset, len), drop_privileges)
    }

    /// [`Fs::fallocate`] by a known caller: with `CAP_FSETID` no privileges go.
    pub fn fallocate_by(
        &self,
        by: impl Asker,
        ino: Ino,
        mode: FallocMode,
        (offset, len): (u64, u64),
    ) -> Result<()> {
        self.allocate(ino, mode, (offset, len), |i| drop_privileges_by(&by, i))
    }

    fn allocate(
        &self,
        ino: Ino,
        mode: FallocMode,
        (offset, len): (u64, u64),
        drop: impl Fn(&mut Inode),
    ) -> Result<()> {
        let end = offset
            .checked_add(len)
            .filter(|e| *e <= SIZE_MAX)
            .ok_or(FsError::FileTooBig)?;
        if len == 0 {
            return Err(FsError::Invalid);
        }
        let handle = self.handle(ino)?;
        self.finish_left_truncate(ino)?;
        extents::ensure(&self.e, &handle)?;
        let keep_size = match mode {
            FallocMode::Punch => true,
            FallocMode::Allocate { keep_size } | FallocMode::Zero { keep_size } => keep_size,
        };
        let punches = !matches!(mode, FallocMode::Allocate { .. });
        if punches {
            let last = mode == FallocMode::Punch;
            while !self
                .e
                .retrying(|| self.punch_step(&handle, (offset..end, last), &drop))?
            {}
        }
        if mode != FallocMode::Punch {
            let blocks = offset / B..end.div_ceil(B);
            while !self
                .e
                .retrying(|| self.allocate_step(&handle, blocks.clone(), (end, keep_size), &drop))?
            {
            }
        }
        self.sync_if_flagged(&handle, FLAG_SYNC)
    }

    /// One record: zeroes the edges and frees whole blocks; whether all of the range is done. `last`: nothing else
    /// follows then.
    fn punch_step(
        &self,
        handle: &InodeHandle,
        (range, last): (Range<u64>, bool),
        drop: &impl Fn(&mut Inode),
    ) -> Result<bool> {
        let reservation = Reservation {
            slots: 2,
            record: STEP_BYTES + 1024,
            ..step_reservation()
        };
        let mut txn = Txn::begin(&self.e, reservation)?;
        let _op = handle.lock.read();
        handle.with(protect::change)?;
        let _range = handle
            .range
            .write(range.start / B * B..range.end.div_ceil(B) * B);
        let whole = range.start.div_ceil(B)..range.end / B;
        self.zero_edges(handle, &mut txn, &range)?;
        let end = extents::with(handle, |x| {
            if whole.start < whole.end {
                x.bounded_end(whole.clone(), STEP)
            } else {
                whole.end
            }
        })?;
        let cut = whole.start..end.max(whole.start);
        extents::prepare_free(&self.e, handle, cut.clone())?;
        let mut edit = Edit::shared(handle)?;
        let mut freed = Vec::new();
        edit.extents(&mut txn, 1, |x, txn, image| {
            freed = x.remove(txn, image, cut);
            Ok(())
        })?;
        for r in freed {
            txn.free_blocks(r)?;
        }
        written(&mut edit.image);
        drop(&mut edit.image);
        quayfs_restart::progress(u64::from(last && end >= whole.end));
        txn.commit(&mut edit)?;
        Ok(end >= whole.end)
    }

    /// Stages the partly covered blocks of a range with zeros in it.
    fn zero_edges(
        &self,
        handle: &InodeHandle,
        txn: &mut Txn<'_>,
        range: &Range<u64>,
    ) -> Result<()> {
        let mut edges = Vec::new();
        for block in [range.start / B, (range.end - 1) / B] {
            let part = range.start.max(block * B)..range.end.min((block + 1) * B);
            let seen = edges.iter().any(|(b, _, _)| *b == block);
            let Some(lbn) = extents::with(handle, |x| x.lbn(block))? else {
                continue;
            };
            if part.end - part.start == B || seen {
                continue;
            }
            let mut buf = vec![0; BLOCK];
            read::blocks(&self.e, &[Want { lbn, at: 0 }], &mut buf)?;
            buf[(part.start - block * B) as usize..(part.end - block * B) as usize].fill(0);
            edges.push((block, lbn, buf));
        }
        if edges.is_empty() {
            return Ok(());
        }
        let blocks: Vec<_> = edges.iter().map(|(_, lbn, buf)| (*lbn, &buf[..])).collect();
        txn.stage(&blocks)
    }

    /// One record: maps holes to fresh LBNs; whether none is left.
    fn allocate_step(
        &self,
        handle: &InodeHandle,
        blocks: Range<u64>,
        (end, keep): (u64, bool),
        drop: &impl Fn(&mut Inode),
    ) -> Result<bool> {
        let (holes, goal) =
            extents::with(handle, |x| (x.holes(blocks.clone()), x.goal(blocks.start)))?;
        let reservation = Reservation {
            record: 2048 + RUNS as u32 * 96,
            nodes: 8 + RUNS as u64 / 64 + bitmap_pages(holes),
            blocks: holes,
            ..Reservation::default()
        };
        let mut txn = Txn::begin(&self.e, reservation)?;
        let _op = handle.lock.read();
        handle.with(protect::grow)?;
        let _range = handle.range.write(blocks.start * B..u64::MAX);
        let pieces = extents::with(handle, |x| x.pieces(blocks.clone()))?;
        let mut placed = Vec::new();
        let mut left = holes;
        'all: for Piece { blocks, lbn } in pieces {
            let mut at = blocks.start;
            while lbn.is_none() && at < blocks.end {
                let want = (blocks.end - at).min(left);
                if placed.len() == RUNS || want == 0 {
                    break 'all;
                }
                let run = txn.take_blocks(want, goal)?;
                let n = run.end - run.start;
                placed.push((at..at + n, run.start));
                at += n;
                left -= n;
            }
        }
        let mut edit = Edit::shared(handle)?;
        edit.extents(&mut txn, placed.len(), |x, txn, image| {
            for (r, lbn) in &placed {
                x.insert(txn, image, r.clone(), *lbn);
            }
            Ok(())
        })?;
        let done = extents::with(handle, |x| x.holes(blocks.clone()))? == 0;
        let image = &mut edit.image;
        image.ctime = now();
        if done && !keep && end > image.size {
            image.size = end;
            image.mtime = image.ctime;
        }
        drop(image);
        quayfs_restart::progress(u64::from(done));
        txn.commit(&mut edit)?;
        Ok(done)
    }

    /// Next data or hole at or after `offset`. Allocated blocks that were never written are holes.
    pub fn seek(&self, ino: Ino, whence: Whence, offset: u64) -> Result<u64> {
        let handle = self.handle(ino)?;
        extents::ensure(&self.e, &handle)?;
        let _op = handle.lock.read();
        let _range = handle.range.read(offset / B * B..u64::MAX);
        let size = handle.with(|i| i.size);
        if offset >= size {
            return Err(FsError::NoData);
        }
        let pieces = extents::with(&handle, |x| x.pieces(offset / B..size.div_ceil(B)))?;
        for p in pieces {
            let Some(lbn) = p.lbn else {
                if whence == Whence::Hole {
                    return Ok(offset.max(p.blocks.start * B));
                }
                continue;
            };
            for (k, block) in p.blocks.enumerate() {
                let lbn = lbn + k as u64;
                let data = self.e.staged.get(lbn).is_some()
                    || self.e.mapping(lbn)?.state == BlockState::Written;
                if data == (whence == Whence::Data) {
                    return Ok(offset.max(block * B));
                }
            }
        }
        if whence == Whence::Hole {
            Ok(size)
        } else {
            Err(FsError::NoData)
        }
    }
}
