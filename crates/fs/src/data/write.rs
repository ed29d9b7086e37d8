//! Writing data: the path of `ARCHITECTURE.md`, and the direct path of `data=ordered|writeback` and of large requests.

use std::ops::Range;

use quayfs_layout::inode::Inode;
use quayfs_layout::{BLOCK, Lbn, checksum};
use quayfs_options::DataMode;
use quayfs_store::behind::{Posting, UnderWay};
use quayfs_store::engine::Engine;
use quayfs_store::error::{FsError, Result, Shortage};
use quayfs_store::metrics::Metrics;
use quayfs_store::ns::extent::Piece;
use quayfs_store::ns::inode::Cell;
use quayfs_store::txn::{Edit, Needs, Txn};
use quayfs_sync::MutexGuard;
use rangemap::RangeSet;
use smallvec::SmallVec;

use crate::attr::{drop_privileges, written};
use crate::data::read::{self, Want};
use crate::{extents, protect};

const B: u64 = BLOCK as u64;
/// Largest file offset plus one.
pub const SIZE_MAX: u64 = quayfs_layout::inode::SIZE_MAX;
/// The LBNs of a request's blocks.
type Targets = SmallVec<[Lbn; MOST]>;
/// Blocks of most requests: 128 KiB that begin and end somewhere.
const MOST: usize = 36;
/// Longest preallocation behind an append, in blocks.
const AHEAD_MAX: u64 = 512;

/// A file of so many extents has been appended to again and again, and was opened anew each time.
const GROWS_FROM: usize = 3;
/// Blocks that have to be free for a request to ask for more than it writes: each counts where there are fewer.
const SPARE_FROM: u64 = 1024;

/// Where a write goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Place {
    /// To where it is asked for.
    #[default]
    Asked,
    /// To the end of the file, wherever it was asked for: others may have moved it since.
    End,
    /// To where it is asked for, but nothing behind the end of the file.
    Inside,
}

/// One write request.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Byte offset.
    pub offset: u64,
    /// Bytes.
    pub data: &'a [u8],
    /// Clear set-user-id and set-group-id bits.
    pub kill_privileges: bool,
    /// The writer opened the file for appending only.
    pub append: bool,
    /// Where the offset has to be, or the end.
    pub place: Place,
}

impl Request<'_> {
    fn end(&self) -> u64 {
        self.offset + self.data.len() as u64
    }

    fn blocks(&self) -> Range<u64> {
        self.offset / B..self.end().div_ceil(B)
    }

    /// What it changes in the image of the file, besides extents.
    fn change(&self, image: &mut Inode) {
        image.size = image.size.max(self.end());
        written(image);
        if self.kill_privileges {
            drop_privileges(image);
        }
    }

    /// Whether it is in its place in a file of this size.
    fn fits(&self, size: u64) -> bool {
        match self.place {
            Place::Asked => true,
            Place::End => self.offset == size,
            Place::Inside => self.end() <= size,
        }
    }
}

/// Most bytes that one request may have, so that it is one record.
pub fn request_max(e: &Engine) -> usize {
    let slots = e.config.geometry.slots_per_buffer / 4;
    (slots.clamp(2, 257) as usize - 1) * BLOCK
}

/// Carries out a request that is neither empty nor larger than [`request_max`]: all of it or
/// nothing, durable as the mount's mode promises. Nothing also, and `false`, if the file has another size than
/// the request's place needs.
pub fn write(e: &Engine, cell: &Cell, req: Request<'_>) -> Result<bool> {
    if req.offset > SIZE_MAX || req.data.len() as u64 > SIZE_MAX - req.offset {
        return Err(FsError::FileTooBig);
    }
    // Less than a block goes through staging in every mode. On the device the block would have to be completed and
    // written elsewhere each time, and a process that appends a line at a time waits for nothing else.
    let mut direct = match e.options.data {
        DataMode::Journal => e.large > 0 && req.data.len() as u64 >= e.large,
        DataMode::Ordered | DataMode::Writeback => req.data.len() >= BLOCK,
    };
    let done = e.retrying(|| {
        loop {
            if req.place != Place::Asked && !req.fits(cell.with(|i| i.size)) {
                return Ok(false);
            }
            match attempt(e, cell, req, direct) {
                Ok(true) => return Ok(true),
                // The file changed between the look and the lock: look again.
                Ok(false) => {}
                // No fresh LBNs: through staging.
                Err(FsError::Short(Shortage::Blocks)) if direct => direct = false,
                Err(err) => return Err(err),
            }
        }
    })?;
    if done {
        Metrics::add(&e.metrics.bytes_written, req.data.len() as u64);
    }
    Ok(done)
}

fn attempt(e: &Engine, cell: &Cell, req: Request<'_>, direct: bool) -> Result<bool> {
    let blocks = req.blocks();
    let n = blocks.end - blocks.start;
    let (holes, near) = extents::look(e, cell, |x| {
        let pieces = x.pieces(blocks.clone());
        let near = pieces.first().and_then(|p| p.lbn);
        (holes(&pieces), near.or_else(|| x.goal(blocks.start)))
    })?;
    let size = cell.with(|i| i.size);
    let fresh = if direct { n } else { holes };
    let appending = !direct && holes > 0 && req.end() > size;
    let ahead = if appending { ahead(e, size) } else { 0 };
    let may_move = appending && e.lbns.free() > SPARE_FROM;
    let mut txn = Txn::begin(
        e,
        Needs {
            slots: if direct { 0 } else { n as u32 },
            record: 1024 + (fresh + if direct { n } else { 0 }) as u32 * 80,
            // Without new blocks only the image changes, in a page that exists as long as the inode.
            nodes: if fresh > 0 { 8 } else { 0 },
            blocks: fresh + ahead + u64::from(may_move),
            prefer: (near.unwrap_or(cell.ino) / 64) as usize,
            ..Needs::default()
        },
    )?;
    let _op = cell.lock.read();
    // A size change locks to infinity, so that the end of the file has one writer.
    let extends = req.end() > size;
    let locked = if extends {
        (req.offset.min(size) / B * B)..u64::MAX
    } else {
        blocks.start * B..blocks.end * B
    };
    let range = cell.range.write(locked.clone());
    if range.waited() {
        Metrics::add(&e.metrics.range_waits, 1);
    }
    let size = cell.with(|image| {
        if image.mode == 0 {
            return Err(FsError::Stale);
        }
        if !image.is_file() {
            return Err(FsError::Invalid);
        }
        protect::write(image, req.append, req.offset)?;
        Ok(image.size)
    })?;
    if req.end() > size && !extends || size < locked.start || !req.fits(size) {
        return Ok(false);
    }
    // Where a hole is filled is looked up once it is known that none has come up since.
    let (pieces, goal, scattered) = extents::with(cell, |x| {
        let pieces = x.pieces(blocks.clone());
        let hole = pieces.iter().any(|p| p.lbn.is_none());
        let goal = hole.then(|| x.goal(blocks.start)).flatten();
        (pieces, goal, x.len() >= GROWS_FROM)
    })?;
    let holes_now = self::holes(&pieces);
    if !direct && holes_now > holes {
        return Ok(false);
    }
    if direct {
        write_direct(e, cell, txn, req, &pieces)?;
        return Ok(true);
    }
    // Overwrites go past the window: writers of disjoint ranges do not meet before the commit mutex.
    let mut window = (holes_now > 0).then(|| cell.window.lock());
    let mut alloc = window.as_mut().map(|w| Allocation::new(w, scattered));
    let moved = (alloc.as_ref())
        .filter(|a| may_move && a.window.as_ref().is_none_or(Range::is_empty))
        .and_then(|_| left_behind(e, &pieces));
    let mut targets = Targets::with_capacity(n as usize);
    for p in &pieces {
        match p.lbn.filter(|lbn| moved != Some(*lbn)) {
            Some(lbn) => (lbn..lbn + length(p)).for_each(|lbn| targets.push(lbn)),
            None => {
                if let Some(a) = &mut alloc {
                    a.fill(&mut txn, p.blocks.clone(), goal, ahead, &mut targets)?;
                }
            }
        }
    }
    let edges = stage(e, &mut txn, req, &pieces, &targets)?;
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
    Ok(true)
}

fn length(p: &Piece) -> u64 {
    p.blocks.end - p.blocks.start
}

/// Blocks that are not mapped.
fn holes(pieces: &[Piece]) -> u64 {
    pieces.iter().filter(|p| p.lbn.is_none()).map(length).sum()
}

/// The last block of a file, if an append has to fill it up, cannot go on behind it, and does not find it
/// staged: to write it where it is would be a write of its own, so it goes where the new blocks go. One that is
/// staged is likely to lie among what is written at that time.
fn left_behind(e: &Engine, pieces: &[Piece]) -> Option<Lbn> {
    let [tail, hole] = pieces else { return None };
    let lbn = tail
        .lbn
        .filter(|_| hole.lbn.is_none() && length(tail) == 1)?;
    (e.staged.get(lbn).is_none() && !e.lbns.is_free(lbn + 1)).then_some(lbn)
}

/// How many blocks an append takes ahead, so that files that grow side by side do not interleave. The first write of
/// a file takes none: most files are written at once and never grow. Nor does the first append since a file was
/// opened, unless the file is in several pieces ([`GROWS_FROM`]): blocks taken ahead and never used would lie between
/// what is written at one time.
fn ahead(e: &Engine, size: u64) -> u64 {
    let free = e.lbns.free();
    if free > SPARE_FROM {
        (size / B).min(AHEAD_MAX).min(free / 256)
    } else {
        0
    }
}

/// LBNs for the holes of one request, from the file's append window and the allocator. Dropping
/// it without [`Allocation::keep`] puts the window back as it was.
struct Allocation<'a, 'c> {
    window: &'a mut MutexGuard<'c, Option<Range<u64>>>,
    before: Option<Range<u64>>,
    /// Whether more is likely to be appended.
    grows: bool,
    placed: SmallVec<[(Range<u64>, Lbn); 1]>,
    kept: bool,
}

impl<'a, 'c> Allocation<'a, 'c> {
    fn new(window: &'a mut MutexGuard<'c, Option<Range<u64>>>, scattered: bool) -> Self {
        let before = window.clone();
        Self {
            window,
            grows: scattered || before.is_some(),
            before,
            placed: SmallVec::new(),
            kept: false,
        }
    }

    fn fill(
        &mut self,
        txn: &mut Txn<'_>,
        hole: Range<u64>,
        goal: Option<Lbn>,
        ahead: u64,
        targets: &mut Targets,
    ) -> Result<()> {
        let mut at = hole.start;
        while at < hole.end {
            let want = hole.end - at;
            let run = match self.window.take() {
                Some(w) if !w.is_empty() => {
                    let cut = w.start + want.min(w.end - w.start);
                    **self.window = Some(cut..w.end);
                    w.start..cut
                }
                _ => {
                    let near = targets.last().map(|l| l + 1).or(goal);
                    let ahead = if self.grows { ahead } else { 0 };
                    let r = txn.take_window(want + ahead, near)?;
                    let cut = r.start + want.min(r.end - r.start);
                    **self.window = Some(cut..r.end);
                    r.start..cut
                }
            };
            txn.use_blocks(run.clone());
            let n = run.end - run.start;
            run.clone().for_each(|lbn| targets.push(lbn));
            match self.placed.last_mut() {
                Some((blocks, lbn))
                    if blocks.end == at && *lbn + (at - blocks.start) == run.start =>
                {
                    blocks.end += n;
                }
                _ => self.placed.push((at..at + n, run.start)),
            }
            at += n;
        }
        Ok(())
    }

    fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for Allocation<'_, '_> {
    fn drop(&mut self) {
        if !self.kept {
            **self.window = self.before.take();
        }
    }
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

/// The blocks that a request covers only in part, completed.
struct Edges {
    first: Option<Vec<u8>>,
    last: Option<Vec<u8>>,
    count: usize,
}

impl Edges {
    fn read(e: &Engine, req: Request<'_>, pieces: &[Piece]) -> Result<Self> {
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
    fn completed(self, targets: &[Lbn]) -> impl Iterator<Item = (Vec<u8>, Lbn)> {
        let first = self.first.zip(targets.first().copied());
        let last = self.last.zip(targets.last().copied());
        first.into_iter().chain(last)
    }

    /// Content of the `i`-th block of the request.
    fn block<'a>(&'a self, req: Request<'a>, i: usize) -> &'a [u8] {
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
        out.copy_from_slice(edges.block(req, crcs.len()));
        crcs.push((*lbn, checksum::crc32c(out)));
    }
    let posting = Posting { runs, bytes };
    match e.options.data {
        DataMode::Journal => under_way.post(posting)?,
        DataMode::Ordered | DataMode::Writeback => posting.write(&*e.device)?,
    }
    Ok((crcs, under_way))
}

/// The direct path: data goes to fresh LBNs on the device, the record remaps the extents. With `data=journal` the commit
/// that covers the record waits for the device first ([`Behind::settle`](quayfs_store::behind::Behind::settle)).
///
/// The data need not be flushed before the L2P entries say *written*: until the record commits,
/// the LBNs' bits are clear, and a clear bit with a written entry goes through a zero batch.
/// With `data=ordered` the commit flushes the device before it stores `commit_ts`.
fn write_direct(
    e: &Engine,
    cell: &Cell,
    mut txn: Txn<'_>,
    req: Request<'_>,
    pieces: &[Piece],
) -> Result<()> {
    let blocks = req.blocks();
    let edges = Edges::read(e, req, pieces)?;
    let goal = extents::with(cell, |x| x.goal(blocks.start))?;
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
    let mut edit = Edit::shared(cell)?;
    let mut freed = RangeSet::new();
    edit.extents(&mut txn, placed.len() + 2, |x, txn, image| {
        // Limits too, that of the project for the blocks that are not remapped.
        let holes = pieces.iter().filter(|p| p.lbn.is_none()).map(length).sum();
        let after = Inode {
            blocks: image.blocks.saturating_add(holes),
            ..image.clone()
        };
        txn.admit(cell.ino, &after)?;
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
    txn.commit(edit)?;
    under_way.keep();
    Metrics::add(&e.metrics.blocks_direct, edges.count as u64);
    Ok(())
}
