//! Writing data: the path of `ARCHITECTURE.md`, up to where staged and direct writes part.

mod allocation;
mod direct;
mod edges;
mod staged;

use std::ops::Range;

use quayfs_layout::inode::Inode;
use quayfs_layout::{BLOCK, Lbn};
use quayfs_options::DataMode;
use quayfs_store::engine::Engine;
use quayfs_store::error::{FsError, Resource, Result};
use quayfs_store::metrics::Metrics;
use quayfs_store::ns::extent::{Piece, Pieces};
use quayfs_store::ns::inode::InodeHandle;
use quayfs_store::txn::{Edit, Reservation, Txn};

use crate::attr::{drop_privileges, written};
use crate::{extents, protect};

use allocation::{GROWS_FROM, SPARE_FROM, ahead};
use direct::write_direct;
use staged::Places;

const B: u64 = BLOCK as u64;
/// Largest file offset plus one.
pub const SIZE_MAX: u64 = quayfs_layout::inode::SIZE_MAX;

/// Where a write goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WriteAt {
    /// To where it is asked for.
    #[default]
    Offset,
    /// To the end of the file, wherever it was asked for: others may have moved it since.
    End,
    /// To where it is asked for, but nothing behind the end of the file.
    Within,
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
    pub at: WriteAt,
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
        match self.at {
            WriteAt::Offset => true,
            WriteAt::End => self.offset == size,
            WriteAt::Within => self.end() <= size,
        }
    }
}

/// Most bytes that one request may have, so that it is one record.
pub fn request_max(e: &Engine) -> usize {
    e.config.geometry.request_blocks() as usize * BLOCK
}

/// Carries out a request that is neither empty nor larger than [`request_max`]: all of it or
/// nothing, durable as the mount's mode promises. Nothing also, and `false`, if the file has another size than
/// the request's place needs.
pub fn write(e: &Engine, handle: &InodeHandle, req: Request<'_>) -> Result<bool> {
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
            if req.at != WriteAt::Offset && !req.fits(handle.with(|i| i.size)) {
                return Ok(false);
            }
            match attempt(e, handle, req, direct) {
                Ok(true) => return Ok(true),
                // The file changed between the look and the lock: look again.
                Ok(false) => {}
                // No fresh LBNs: through staging.
                Err(FsError::OutOf(Resource::Blocks)) if direct => direct = false,
                Err(err) => return Err(err),
            }
        }
    })?;
    if done {
        Metrics::add(&e.metrics.bytes_written, req.data.len() as u64);
    }
    Ok(done)
}

/// Whether it is done; if not, the file has changed between the look and the locks.
fn attempt(e: &Engine, handle: &InodeHandle, req: Request<'_>, direct: bool) -> Result<bool> {
    let look = Look::at(e, handle, req, direct)?;
    let mut txn = Txn::begin(e, look.reservation(handle, req, direct))?;
    let _op = handle.lock.read();
    let locked = look.locks(req);
    let range = handle.range.write(locked.clone());
    if range.waited() {
        Metrics::add(&e.metrics.range_waits, 1);
    }
    let size = size_if_writable(handle, req)?;
    let grows_now = req.end() > size && !look.extends(req);
    if grows_now || size < locked.start || !req.fits(size) {
        return Ok(false);
    }
    let mapped = Mapped::of(handle, req)?;
    if direct {
        write_direct(e, handle, txn, req, &mapped.pieces)?;
        return Ok(true);
    }
    let holes = holes(&mapped.pieces);
    if holes > look.holes {
        return Ok(false);
    }
    // Overwrites go past the window: writers of disjoint ranges do not meet before the commit mutex.
    let mut window = (holes > 0).then(|| handle.window.lock());
    let mut places = Places::new(window.as_mut(), &mapped);
    places.find(e, &mut txn, &look, &mapped)?;
    let edges = places.stage(e, &mut txn, req, &mapped)?;
    // Ordering 5: under the commit mutex come extent changes, image, number, append and fence.
    let mut edit = Edit::shared_noting(handle, || Metrics::add(&e.metrics.commit_waits, 1))?;
    places.map(&mut txn, &mut edit, req)?;
    req.change(&mut edit.image);
    txn.commit(&mut edit)?;
    places.appended(e, edges);
    Ok(true)
}

/// What is seen of a file before it is locked, to know what to reserve and what to lock.
struct Look {
    size: u64,
    /// Blocks of the request that are not mapped.
    holes: u64,
    /// Where blocks of the request are, or should go.
    near: Option<Lbn>,
    /// Blocks to be taken ahead.
    ahead: u64,
    /// Whether a last block that is in the wrong place may go elsewhere.
    may_move: bool,
}

impl Look {
    fn at(e: &Engine, handle: &InodeHandle, req: Request<'_>, direct: bool) -> Result<Self> {
        let blocks = req.blocks();
        let (holes, near) = extents::read(e, handle, |x| {
            let pieces = x.pieces(blocks.clone());
            let near = pieces.first().and_then(|p| p.lbn);
            (holes(&pieces), near.or_else(|| x.goal(blocks.start)))
        })?;
        let size = handle.with(|i| i.size);
        let appending = !direct && holes > 0 && req.end() > size;
        Ok(Self {
            size,
            holes,
            near,
            ahead: if appending { ahead(e, size) } else { 0 },
            may_move: appending && e.lbns.free() > SPARE_FROM,
        })
    }

    fn reservation(&self, handle: &InodeHandle, req: Request<'_>, direct: bool) -> Reservation {
        let blocks = req.blocks();
        let n = blocks.end - blocks.start;
        let fresh = if direct { n } else { self.holes };
        Reservation {
            slots: if direct { 0 } else { n as u32 },
            record: 1024 + (fresh + if direct { n } else { 0 }) as u32 * 80,
            // Without new blocks only the image changes, in a page that exists as long as the inode.
            nodes: if fresh > 0 { 8 } else { 0 },
            blocks: fresh + self.ahead + u64::from(self.may_move),
            prefer: (self.near.unwrap_or(handle.ino) / 64) as usize,
            ..Reservation::default()
        }
    }

    fn extends(&self, req: Request<'_>) -> bool {
        req.end() > self.size
    }

    /// The bytes that a request locks. A size change locks to infinity, so that the end of the file has one writer.
    fn locks(&self, req: Request<'_>) -> Range<u64> {
        if self.extends(req) {
            return req.offset.min(self.size) / B * B..u64::MAX;
        }
        let blocks = req.blocks();
        blocks.start * B..blocks.end * B
    }
}

/// The size of a file that may be written to.
fn size_if_writable(handle: &InodeHandle, req: Request<'_>) -> Result<u64> {
    handle.with(|image| {
        if image.mode == 0 {
            return Err(FsError::Stale);
        }
        if !image.is_file() {
            return Err(FsError::Invalid);
        }
        protect::write(image, req.append, req.offset)?;
        Ok(image.size)
    })
}

/// What the blocks of a request are mapped to, under its range lock.
struct Mapped {
    pieces: Pieces,
    /// Where a hole is best filled.
    goal: Option<Lbn>,
    /// Whether the file is in so many pieces that it is likely to grow.
    is_scattered: bool,
}

impl Mapped {
    fn of(handle: &InodeHandle, req: Request<'_>) -> Result<Self> {
        let blocks = req.blocks();
        extents::with(handle, |x| {
            let pieces = x.pieces(blocks.clone());
            let hole = pieces.iter().any(|p| p.lbn.is_none());
            let goal = hole.then(|| x.goal(blocks.start)).flatten();
            let is_scattered = x.len() >= GROWS_FROM;
            Self {
                pieces,
                goal,
                is_scattered,
            }
        })
    }
}

fn length(p: &Piece) -> u64 {
    p.blocks.end - p.blocks.start
}

/// Blocks that are not mapped.
fn holes(pieces: &[Piece]) -> u64 {
    pieces.iter().filter(|p| p.lbn.is_none()).map(length).sum()
}
