//! Several writes to one file as one: all of them are there after a crash, or none (the "atomic multi-write"
//! that paper 2 names as future work).
//!
//! It is the path of a staged write with as many ranges as there are: blocks in slots, one record that names
//! them all, whatever the data mode.

use std::collections::BTreeMap;
use std::ops::Range;

use quayfs_layout::{BLOCK, Lbn};
use quayfs_store::engine::Engine;
use quayfs_store::error::{FsError, Result};
use quayfs_store::metrics::Metrics;
use quayfs_store::ns::inode::InodeHandle;
use quayfs_store::ns::node::STEP;
use quayfs_store::txn::{Edit, Reservation, Txn};
use smallvec::SmallVec;

use crate::attr::{drop_privileges, written};
use crate::data::read::{self, Want};
use crate::data::write::{SIZE_MAX, request_max};
use crate::{extents, protect};

const B: u64 = BLOCK as u64;

/// Bytes at an offset.
pub type Piece<'a> = (u64, &'a [u8]);

/// Blocks of a file that are new, and their LBNs.
type Placed = SmallVec<[(u64, Lbn); 8]>;

/// Bytes of the record for each block: its extent, its slot, its bit.
const BLOCK_BYTES: u32 = 160;
/// Bytes of the record besides.
const REST_BYTES: u32 = 1024;
/// Framing of each slot and of the record, which the journal adds, and charges.
const FRAME_BYTES: (u64, u64) = (40, 800);

/// Most blocks that writes can have together: those of a request, on small regions what a record can say.
pub fn blocks_max(e: &Engine) -> usize {
    let each = u64::from(BLOCK_BYTES) + FRAME_BYTES.0;
    let rest = u64::from(REST_BYTES) + FRAME_BYTES.1;
    let said = e.journal.max_record_bytes().saturating_sub(rest) / each;
    (request_max(e) / BLOCK).min(said as usize)
}

/// The file blocks that a write of `len` bytes at `offset` touches.
pub fn blocks(offset: u64, len: usize) -> Range<u64> {
    if len == 0 {
        return 0..0;
    }
    offset / B..(offset + len as u64).div_ceil(B)
}

/// Carries out writes that touch at most [`blocks_max`] blocks, in order, as one record.
pub fn write(
    e: &Engine,
    handle: &InodeHandle,
    pieces: &[Piece<'_>],
    kill_privileges: bool,
) -> Result<()> {
    let mut touched: Vec<u64> = Vec::new();
    for (offset, data) in pieces {
        if *offset > SIZE_MAX || data.len() as u64 > SIZE_MAX - offset {
            return Err(FsError::FileTooBig);
        }
        touched.extend(blocks(*offset, data.len()));
    }
    touched.sort_unstable();
    touched.dedup();
    if touched.is_empty() {
        return Ok(());
    }
    if touched.len() > blocks_max(e) {
        return Err(FsError::TooManyExtents);
    }
    e.retrying(|| {
        loop {
            extents::ensure(e, handle)?;
            if attempt(e, handle, pieces, (&touched, kill_privileges))? {
                return Ok(());
            }
        }
    })?;
    let bytes: usize = pieces.iter().map(|(_, data)| data.len()).sum();
    Metrics::add(&e.metrics.bytes_written, bytes as u64);
    Ok(())
}

/// Whether it is done; if not, the file has changed between the look and the locks.
fn attempt(
    e: &Engine,
    handle: &InodeHandle,
    pieces: &[Piece<'_>],
    (touched, kill): (&[u64], bool),
) -> Result<bool> {
    let holes = holes(handle, touched)?;
    let mut txn = Txn::begin(e, reservation(handle, touched.len(), holes))?;
    let _op = handle.lock.read();
    // They may change the size, and lie anywhere: no other operation may see only some of them.
    let _range = handle.range.write(touched[0] * B..u64::MAX);
    let image = handle.image();
    if image.mode == 0 {
        return Err(FsError::Stale);
    }
    if !image.is_file() {
        return Err(FsError::Invalid);
    }
    protect::change(&image)?;
    if self::holes(handle, touched)? > holes {
        return Ok(false);
    }
    let content = contents(e, handle, pieces, touched)?;
    let (targets, placed) = place(handle, &mut txn, touched)?;
    let staged: Vec<(Lbn, &[u8])> = targets
        .iter()
        .zip(content.chunks_exact(BLOCK))
        .map(|(lbn, bytes)| (*lbn, bytes))
        .collect();
    txn.stage(&staged)?;

    let mut edit = Edit::shared(handle)?;
    edit.extents(&mut txn, placed.len(), |x, txn, image| {
        for (block, lbn) in &placed {
            x.insert(txn, image, *block..*block + 1, *lbn);
        }
        Ok(())
    })?;
    // What digest keeps pages in reserve for.
    if !placed.is_empty() && txn.pages_changed() > STEP {
        return Err(FsError::TooManyExtents);
    }
    let image = &mut edit.image;
    image.size = image.size.max(end(pieces));
    written(image);
    if kill {
        drop_privileges(image);
    }
    txn.commit(&mut edit)?;
    Ok(true)
}

fn reservation(handle: &InodeHandle, blocks: usize, holes: u64) -> Reservation {
    Reservation {
        slots: blocks as u32,
        record: REST_BYTES + (blocks as u32 + holes as u32) * (BLOCK_BYTES / 2),
        nodes: if holes > 0 { 8 } else { 0 },
        blocks: holes,
        prefer: (handle.ino / 64) as usize,
        ..Reservation::default()
    }
}

/// The LBNs of all blocks, and which blocks get theirs here.
fn place(handle: &InodeHandle, txn: &mut Txn<'_>, touched: &[u64]) -> Result<(Vec<Lbn>, Placed)> {
    let mut placed = Placed::new();
    let mut targets = Vec::with_capacity(touched.len());
    for block in touched {
        let (lbn, goal) = extents::with(handle, |x| (x.lbn(*block), x.goal(*block)))?;
        targets.push(match lbn {
            Some(lbn) => lbn,
            None => {
                let after = placed.last().map(|(_, lbn)| lbn + 1);
                let lbn = txn.take_blocks(1, after.or(goal))?.start;
                placed.push((*block, lbn));
                lbn
            }
        });
    }
    Ok((targets, placed))
}

/// Where the last of the writes ends.
fn end(pieces: &[Piece<'_>]) -> u64 {
    let ends = pieces
        .iter()
        .filter(|(_, data)| !data.is_empty())
        .map(|(offset, data)| offset + data.len() as u64);
    ends.max().unwrap_or(0)
}

fn holes(handle: &InodeHandle, touched: &[u64]) -> Result<u64> {
    extents::with(handle, |x| {
        touched.iter().filter(|b| x.lbn(**b).is_none()).count() as u64
    })
}

/// The blocks as the writes leave them, one behind the other.
fn contents(
    e: &Engine,
    handle: &InodeHandle,
    pieces: &[Piece<'_>],
    touched: &[u64],
) -> Result<Vec<u8>> {
    let mut out = vec![0; touched.len() * BLOCK];
    let at: BTreeMap<u64, usize> = touched.iter().copied().zip((0..).step_by(BLOCK)).collect();
    let covers = |block: u64| {
        let whole = |(offset, data): &Piece<'_>| {
            *offset <= block * B && offset + data.len() as u64 >= (block + 1) * B
        };
        pieces.iter().any(whole)
    };
    let mut wants = Vec::new();
    for (block, at) in &at {
        if !covers(*block)
            && let Some(lbn) = extents::with(handle, |x| x.lbn(*block))?
        {
            wants.push(Want { lbn, at: *at });
        }
    }
    read::blocks(e, &wants, &mut out)?;
    for (offset, data) in pieces {
        overlay(&at, (*offset, data), &mut out);
    }
    Ok(out)
}

/// Puts a write into the blocks that are at these places of `out`.
fn overlay(at: &BTreeMap<u64, usize>, (offset, data): Piece<'_>, out: &mut [u8]) {
    for block in blocks(offset, data.len()) {
        let Some(place) = at.get(&block) else {
            continue;
        };
        let from = offset.max(block * B);
        let to = (offset + data.len() as u64).min((block + 1) * B);
        let start = place + (from - block * B) as usize;
        out[start..start + (to - from) as usize]
            .copy_from_slice(&data[(from - offset) as usize..(to - offset) as usize]);
    }
}
