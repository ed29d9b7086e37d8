//! Exchanging the contents of two ranges: in the files' maps, without a byte being copied.
//!
//! This is what the authors of the persistent page table name as future work (paper 2): swapping is what the
//! table does anyway, here for applications. One record says all of it, so after a crash it has happened or
//! not. Blocks keep their LBNs, hence their slots, their checksums and their place on the device.

use std::ops::Range;
use std::sync::Arc;

use quayfs_layout::extent::PER_PAGE;
use quayfs_layout::inode::{FLAG_SYNC, Inode, Time};
use quayfs_layout::intent::IntentKind;
use quayfs_layout::{BLOCK, Ino, Lbn};
use quayfs_ppt::BlockState;
use quayfs_store::error::{FsError, Result};
use quayfs_store::ns::extent::ExtentMap;
use quayfs_store::ns::inode::InodeHandle;
use quayfs_store::ns::node::STEP;
use quayfs_store::txn::{Edit, Reservation, Txn};

use crate::attr::{Asker, drop_privileges_by, now};
use crate::data::write::SIZE_MAX;
use crate::locks::lock_all;
use crate::{Fs, extents, protect};

const B: u64 = BLOCK as u64;
/// Bytes of items for each extent that moves: its old place, its new one, and that of a rest.
const EXTENT_BYTES: u64 = 96;
/// Bytes of items besides: images, charges, a new page for each file and its bits.
const REST_BYTES: u64 = 2048;
/// Header, charges and padding of the record.
const FRAME_BYTES: u64 = 800;

/// Which ranges change places, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// A file, and where its range begins, in bytes.
    pub one: (Ino, u64),
    /// The other file, or the same one, and where its range begins.
    pub other: (Ino, u64),
    /// Bytes; of no account with `to_eof`.
    pub len: u64,
    /// Both ranges reach to the ends of their files, which are exchanged too.
    pub to_eof: bool,
    /// Only blocks of `one` that were written; holes and blocks that were only allocated stay.
    pub written: bool,
    /// Looks whether it is possible, and changes nothing.
    pub dry_run: bool,
    /// The other file has to be what it was then.
    pub unless_changed: Option<Freshness>,
}

/// By what is seen whether a file has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Freshness {
    /// Inode number.
    pub ino: Ino,
    /// Generation of the inode.
    pub generation: u32,
    /// Last change of content.
    pub mtime: Time,
    /// Last change of anything.
    pub ctime: Time,
}

/// Blocks of both files that change places.
#[derive(Debug)]
struct Move {
    one: Range<u64>,
    other: u64,
}

impl Move {
    fn there(&self) -> Range<u64> {
        self.other..self.other + (self.one.end - self.one.start)
    }
}

/// What is to be done: worked out once to know what to reserve, and again under the locks.
#[derive(Debug)]
struct Plan {
    moves: Vec<Move>,
    sizes: (u64, u64),
    /// Extents that are taken out of each file, rests not counted.
    extents: (usize, usize),
}

impl Plan {
    /// Places that each file needs besides those that it has in use.
    fn places(&self) -> (usize, usize) {
        let rests = 2 * self.moves.len();
        (self.extents.1 + rests, self.extents.0 + rests)
    }

    fn reservation(&self) -> Reservation {
        let (one, other) = self.places();
        let pages = one.div_ceil(PER_PAGE) + other.div_ceil(PER_PAGE);
        let rests = 4 * self.moves.len() as u64;
        let extents = (self.extents.0 + self.extents.1) as u64 + rests;
        let record = REST_BYTES + extents * EXTENT_BYTES + pages as u64 * EXTENT_BYTES;
        Reservation {
            record: u32::try_from(record).unwrap_or(u32::MAX / 2),
            nodes: pages as u64 + 4,
            ..Reservation::default()
        }
    }
}

/// What was at some blocks: where it goes, and its LBNs.
type Moved = Vec<(Range<u64>, Lbn)>;

/// What is mapped in `from`, as it is to be mapped at `to` and following.
fn moved(x: &ExtentMap, from: Range<u64>, to: u64) -> Moved {
    let start = from.start;
    let pieces = x.pieces(from).into_iter();
    let shift = |p: Range<u64>| to + (p.start - start)..to + (p.end - start);
    pieces
        .filter_map(|p| p.lbn.map(|lbn| (shift(p.blocks), lbn)))
        .collect()
}

impl Fs {
    /// Exchanges the contents of two ranges of one file or two, as `XFS_IOC_EXCHANGE_RANGE` does, atomically:
    /// durable in mode `op` when this returns, and at any time, after any crash, both ranges are as they
    /// were or both are exchanged. Both files lose their privileges as by a write.
    ///
    /// # Errors
    /// [`FsError::Invalid`]: ranges that begin behind the end of their file or, without `to_eof`, end
    /// behind it; that do not begin at a block; that end within a block which is not the last of both
    /// files; that overlap; `written` where the sizes would change.
    /// [`FsError::IsDir`] and [`FsError::Invalid`] for what is no file, [`FsError::Perm`] for one that flags
    /// protect. [`FsError::TooManyExtents`] if it would not be one record. [`FsError::Busy`] if the other file has
    /// changed. Nothing has happened then.
    pub fn exchange(&self, by: impl Asker, what: Exchange) -> Result<()> {
        self.e.writable()?;
        let (one, other) = (self.handle(what.one.0)?, self.handle(what.other.0)?);
        for handle in [&one, &other] {
            if !handle.with(Inode::is_file) {
                return Err(if handle.with(Inode::is_dir) {
                    FsError::IsDir
                } else {
                    FsError::Invalid
                });
            }
        }
        self.e.retrying(|| {
            loop {
                for handle in [&one, &other] {
                    self.finish_left_truncate(handle.ino)?;
                    extents::ensure(&self.e, handle)?;
                }
                if self.try_exchange(&by, (&one, &other), &what)? {
                    return Ok(());
                }
            }
        })?;
        self.sync_if_flagged(&one, FLAG_SYNC)?;
        self.sync_if_flagged(&other, FLAG_SYNC)
    }

    /// What [`Exchange::unless_changed`] is compared with.
    pub fn freshness(&self, ino: Ino) -> Result<Freshness> {
        Ok(self.handle(ino)?.with(|i| Freshness {
            ino,
            generation: i.generation,
            mtime: i.mtime,
            ctime: i.ctime,
        }))
    }

    /// Whether it is done; if not, the files have changed between the look and the locks.
    fn try_exchange(
        &self,
        by: &dyn Asker,
        (one, other): (&Arc<InodeHandle>, &Arc<InodeHandle>),
        what: &Exchange,
    ) -> Result<bool> {
        let reservation = {
            // A look at both at once: any write to them is seen as a whole or not at all.
            let _op = lock_all(&[one, other]);
            self.plan((one, other), what)?.reservation()
        };
        if u64::from(reservation.record) + FRAME_BYTES > self.e.journal.max_record_bytes() {
            return Err(FsError::TooManyExtents);
        }
        let mut txn = Txn::begin(&self.e, reservation)?;
        let _op = lock_all(&[one, other]);
        let left = |c: &InodeHandle| self.e.intents.has(c.ino, IntentKind::Truncate);
        if left(one) || left(other) {
            return Ok(false);
        }
        let plan = self.plan((one, other), what)?;
        let now_needed = plan.reservation();
        if now_needed.record > reservation.record || now_needed.nodes > reservation.nodes {
            return Ok(false);
        }
        let (mut here, mut there) = Edit::shared_pair(one, other)?;
        let done = now();
        let change = |i: &mut Inode, size| {
            i.size = size;
            i.mtime = done;
            i.ctime = done;
            drop_privileges_by(by, i);
        };
        change(&mut here.image, plan.sizes.0);
        match &mut there {
            None => self.swap_within(one, &mut txn, &mut here, &plan)?,
            Some(there) => {
                change(&mut there.image, plan.sizes.1);
                let news = self.contents((one, other), &plan)?;
                let places = plan.places();
                replace(&mut txn, &mut here, (places.0, &news.0))?;
                replace(&mut txn, there, (places.1, &news.1))?;
            }
        }
        if txn.pages_changed() > STEP {
            return Err(FsError::TooManyExtents);
        }
        if what.dry_run {
            return Ok(true);
        }
        txn.commit([Some(&mut here), there.as_mut()])?;
        Ok(true)
    }

    /// Checks what was asked for and works out what it means. The caller holds both files' locks.
    fn plan(&self, (one, other): (&InodeHandle, &InodeHandle), what: &Exchange) -> Result<Plan> {
        let (i, j) = (one.image(), other.image());
        if i.mode == 0 || j.mode == 0 {
            return Err(FsError::Stale);
        }
        protect::change(&i)?;
        protect::change(&j)?;
        if let Some(seen) = what.unless_changed
            && seen != self.freshness(other.ino)?
        {
            return Err(FsError::Busy);
        }
        let (from, to) = (what.one.1, what.other.1);
        let blocks = check((from, i.size), (to, j.size), what, one.ino == other.ino)?;
        let mut sizes = (i.size, j.size);
        if what.to_eof && one.ino != other.ino {
            sizes = (from + (j.size - to), to + (i.size - from));
            if sizes.0 > SIZE_MAX || sizes.1 > SIZE_MAX {
                return Err(FsError::FileTooBig);
            }
        }
        if what.written && sizes != (i.size, j.size) {
            // What stays behind could lie behind the new end, and would show when the file grows again.
            return Err(FsError::Invalid);
        }
        let whole = Move {
            one: from / B..from / B + blocks,
            other: to / B,
        };
        let moves = if what.written {
            self.written(one, &whole)?
        } else {
            vec![whole]
        };
        let mut count = (0, 0);
        for m in &moves {
            count.0 += extents::with(one, |x| x.count(m.one.clone()))?;
            count.1 += extents::with(other, |x| x.count(m.there()))?;
        }
        Ok(Plan {
            moves,
            sizes,
            extents: count,
        })
    }

    /// The parts of a move whose blocks in the first file were written.
    fn written(&self, one: &InodeHandle, whole: &Move) -> Result<Vec<Move>> {
        let mut moves: Vec<Move> = Vec::new();
        for p in extents::with(one, |x| x.pieces(whole.one.clone()))? {
            let Some(first) = p.lbn else { continue };
            for (lbn, block) in (first..).zip(p.blocks) {
                let is_written = self.e.staged.get(lbn).is_some()
                    || self.e.mapping(lbn)?.state == BlockState::Written;
                if !is_written {
                    continue;
                }
                match moves.last_mut() {
                    Some(m) if m.one.end == block => m.one.end += 1,
                    _ => moves.push(Move {
                        one: block..block + 1,
                        other: whole.other + (block - whole.one.start),
                    }),
                }
            }
        }
        Ok(moves)
    }

    /// What each of two files gets.
    fn contents(
        &self,
        (one, other): (&InodeHandle, &InodeHandle),
        plan: &Plan,
    ) -> Result<(News, News)> {
        let mut news = (News::default(), News::default());
        for m in &plan.moves {
            let from_other = extents::with(other, |x| moved(x, m.there(), m.one.start))?;
            let from_one = extents::with(one, |x| moved(x, m.one.clone(), m.other))?;
            news.0.put.extend(from_other);
            news.0.cut.push(m.one.clone());
            news.1.put.extend(from_one);
            news.1.cut.push(m.there());
        }
        Ok(news)
    }

    fn swap_within(
        &self,
        handle: &InodeHandle,
        txn: &mut Txn<'_>,
        edit: &mut Edit<'_>,
        plan: &Plan,
    ) -> Result<()> {
        let (mut here, there) = self.contents((handle, handle), plan)?;
        here.cut.extend(there.cut);
        here.put.extend(there.put);
        let (a, b) = plan.places();
        replace(txn, edit, (a + b, &here))
    }
}

/// What a file loses and gets.
#[derive(Debug, Default)]
struct News {
    cut: Vec<Range<u64>>,
    put: Moved,
}

/// Takes out what goes and puts in what comes.
fn replace(txn: &mut Txn<'_>, edit: &mut Edit<'_>, (places, news): (usize, &News)) -> Result<()> {
    edit.extents(txn, places, |x, txn, image| {
        for range in &news.cut {
            // Their LBNs are not free: the other side gets them, in the same record.
            x.remove(txn, image, range.clone());
        }
        for (blocks, lbn) in &news.put {
            x.insert(txn, image, blocks.clone(), *lbn);
        }
        Ok(())
    })
}

/// Number of blocks that two ranges have, given as offset and size of the file. The rules are those of XFS.
fn check(
    (from, size): (u64, u64),
    (to, other_size): (u64, u64),
    what: &Exchange,
    same: bool,
) -> Result<u64> {
    let wrong = Err(FsError::Invalid);
    if from > size || to > other_size || !from.is_multiple_of(B) || !to.is_multiple_of(B) {
        return wrong;
    }
    let len = if what.to_eof {
        (size - from).max(other_size - to)
    } else {
        what.len
    };
    let ends = (from.checked_add(len), to.checked_add(len));
    let (Some(end), Some(other_end)) = ends else {
        return wrong;
    };
    if !what.to_eof {
        if end > size || other_end > other_size {
            return wrong;
        }
        // A block that is only in part within a file must not come to lie in the middle of another.
        if !len.is_multiple_of(B) && (end != size || other_end != other_size) {
            return wrong;
        }
    }
    let blocks = len.div_ceil(B);
    let apart = from >= to + blocks * B || to >= from + blocks * B;
    if same && blocks > 0 && (what.to_eof || !apart) {
        return wrong;
    }
    Ok(blocks)
}
