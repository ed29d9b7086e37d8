//! The extent map of one file: which LBN holds which file block.
//!
//! In DRAM it is a map of ranges; on pmem it is a set of 16-byte places, in the inode and in a chain
//! of extent pages (see `layout::extent`). Every change writes the places it touches through the
//! transaction. Changes are made under the inode's commit mutex.

use std::cell::Cell;
use std::fmt;
use std::ops::Range;

use quayfs_layout::extent::{Extent, INLINE, LEN_MAX, PER_PAGE, SIZE};
use quayfs_layout::inode::Inode;
use quayfs_layout::node::{self, BITS_PER_PAGE, HEADER, NodeKind};
use quayfs_layout::{Ino, Lbn, flaw};
use smallvec::SmallVec;

use crate::error::Result;
use crate::ns::runs::Runs;
use crate::txn::{PageSource, Txn};

/// Where an extent is stored: in the inode (`page` 0) or in an extent page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    page: u32,
    slot: u16,
}

/// Value of the range map. Equal neighbours would be merged by it; the place keeps them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    /// LBN of file block 0, if the run reached that far (wrapping).
    base: u64,
    place: Place,
}

/// A piece of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// File blocks.
    pub blocks: Range<u64>,
    /// LBN of the first one, `None` for a hole.
    pub lbn: Option<Lbn>,
}

/// What takes a change back.
#[derive(Debug)]
enum Undo {
    Put(Range<u64>),
    Cut(Range<u64>, Run),
    Took(Place),
    Gave(Place),
    NewPage(u32),
    DroppedPages(Vec<u32>),
}

/// See the module documentation.
#[derive(Debug, Default)]
pub struct ExtentMap {
    runs: Runs<Run>,
    /// Extent pages in chain order.
    pages: Vec<u32>,
    /// Places that are free, best one last.
    free: SmallVec<[Place; INLINE]>,
    /// Changes whose record has not been appended, in order.
    changes: Vec<Undo>,
}

/// What a range of a file consists of. Most are one piece.
pub type Pieces = SmallVec<[Piece; 1]>;

thread_local! {
    /// Memory for what is changed next by this thread: a file needs it only as long as a record of it is made.
    static CHANGES: Cell<Vec<Undo>> = const { Cell::new(Vec::new()) };
}

/// More changes than this are not kept room for.
const CHANGES_KEPT: usize = 256;

impl ExtentMap {
    /// Reads all extents of a file.
    pub fn load(src: &dyn PageSource, ino: Ino, inode: &Inode) -> Result<Self> {
        let mut map = Self::default();
        let g = src.store().geometry();
        let damaged = |what: fmt::Arguments<'_>| src.damaged(&format_args!("inode {ino}: {what}"));
        let overlap = |blocks| damaged(format_args!("extents overlap at {blocks:?}"));
        let mut id = inode.root;
        while id != 0 {
            if map.pages.len() as u64 > inode.blocks {
                return Err(damaged(format_args!("extent chain does not end")));
            }
            // Changes log places without reading the page, so only homes tell the truth. An inode whose extents have
            // to be loaded has no record above digested_seq (handles with one keep their map).
            let Some(page) = src.home(id)? else {
                return Err(damaged(format_args!("extent page {id} is missing")));
            };
            if node::kind(&page[..]) != Some(NodeKind::Extents) || node::owner(&page[..]) != ino {
                return Err(damaged(format_args!("{id} is not its extent page")));
            }
            map.pages.push(id);
            for slot in (0..PER_PAGE as u16).rev() {
                let at = HEADER + usize::from(slot) * SIZE;
                let place = Place { page: id, slot };
                let extent = Extent::decode(&page[at..at + SIZE]);
                map.learn(place, extent).map_err(&overlap)?;
            }
            id = node::next(&page[..]);
        }
        flaw::extents(g, &inode.inline.0[..INLINE * SIZE])
            .map_err(|flaw| damaged(format_args!("{flaw}")))?;
        for slot in (0..INLINE as u16).rev() {
            let place = Place { page: 0, slot };
            let extent = inode.inline_extent(usize::from(slot));
            map.learn(place, extent).map_err(&overlap)?;
        }
        Ok(map)
    }

    /// Takes an extent in, or says that some of its blocks are mapped already.
    fn learn(
        &mut self,
        place: Place,
        extent: Option<Extent>,
    ) -> std::result::Result<(), Range<u64>> {
        let Some(e) = extent else {
            self.free.push(place);
            return Ok(());
        };
        let blocks = e.file_block..e.file_block + e.len;
        if self.runs.overlapping(&blocks).next().is_some() {
            return Err(blocks);
        }
        self.runs.insert(
            blocks.clone(),
            Run {
                base: e.lbn.wrapping_sub(blocks.start),
                place,
            },
        );
        Ok(())
    }

    /// The piece that `range` is, if one look shows that it is one.
    fn one_piece(&self, range: &Range<u64>) -> Option<Piece> {
        let hole = || Piece {
            blocks: range.clone(),
            lbn: None,
        };
        // Most files have one extent, and an append is behind the last.
        let Some((last, run)) = self.runs.last() else {
            return Some(hole());
        };
        if range.start >= last.end {
            return Some(hole());
        }
        let (r, run) = match last.start <= range.start {
            true => (last, run),
            false => self.runs.get(range.start)?,
        };
        (range.end <= r.end).then(|| Piece {
            blocks: range.clone(),
            lbn: Some(run.base.wrapping_add(range.start)),
        })
    }

    /// The pieces of `range`, holes included, in order.
    pub fn pieces(&self, range: Range<u64>) -> Pieces {
        let mut out = Pieces::new();
        let mut at = range.start;
        if range.is_empty() {
            return out;
        }
        if let Some(piece) = self.one_piece(&range) {
            out.push(piece);
            return out;
        }
        for (r, run) in self.runs.overlapping(&range) {
            let r = r.start.max(range.start)..r.end.min(range.end);
            if at < r.start {
                out.push(Piece {
                    blocks: at..r.start,
                    lbn: None,
                });
            }
            at = r.end;
            let lbn = run.base.wrapping_add(r.start);
            out.push(Piece {
                blocks: r,
                lbn: Some(lbn),
            });
        }
        if at < range.end {
            out.push(Piece {
                blocks: at..range.end,
                lbn: None,
            });
        }
        out
    }

    /// LBNs mapped in `range`.
    pub fn mapped(&self, range: Range<u64>) -> Vec<Range<Lbn>> {
        if range.is_empty() {
            return Vec::new();
        }
        self.runs
            .overlapping(&range)
            .map(|(r, run)| {
                let r = r.start.max(range.start)..r.end.min(range.end);
                run.base.wrapping_add(r.start)..run.base.wrapping_add(r.end)
            })
            .collect()
    }

    /// LBN of one file block.
    pub fn lbn(&self, block: u64) -> Option<Lbn> {
        self.runs
            .get(block)
            .map(|(_, r)| r.base.wrapping_add(block))
    }

    /// Blocks of `range` that are holes.
    pub fn holes(&self, range: Range<u64>) -> u64 {
        if range.is_empty() {
            return 0;
        }
        let mapped: u64 = self
            .runs
            .overlapping(&range)
            .map(|(r, _)| r.end.min(range.end) - r.start.max(range.start))
            .sum();
        range.end - range.start - mapped
    }

    /// The LBN behind the mapped block before `block`: where an append best continues.
    pub fn goal(&self, block: u64) -> Option<Lbn> {
        block
            .checked_sub(1)
            .and_then(|b| self.lbn(b))
            .map(|l| l + 1)
    }

    /// Number of extents that overlap `range`.
    pub fn count(&self, range: Range<u64>) -> usize {
        if range.is_empty() {
            return 0;
        }
        self.runs.overlapping(&range).count()
    }

    /// Number of extents.
    pub fn len(&self) -> usize {
        self.runs.len()
    }

    /// Whether nothing is mapped.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// The end of what one record can free of `range`: of the first `max` extents that overlap it, and of the blocks that
    /// `max` pages of a bitmap are about, as each page takes an item. It may lie within an extent.
    pub fn bounded_end(&self, range: Range<u64>, max: usize) -> u64 {
        if range.is_empty() {
            return range.end;
        }
        let mut left = max as u64 * BITS_PER_PAGE;
        for (n, (r, _)) in self.runs.overlapping(&range).enumerate() {
            let part = r.start.max(range.start)..r.end.min(range.end);
            if n == max {
                return part.start;
            }
            let len = part.end - part.start;
            if len > left {
                return part.start + left;
            }
            left -= len;
        }
        range.end
    }

    /// All extents.
    pub fn iter(&self) -> impl Iterator<Item = (Range<u64>, Lbn)> {
        self.runs
            .iter()
            .map(|(r, run)| (r.clone(), run.base.wrapping_add(r.start)))
    }

    /// The extent pages of the file.
    pub fn pages(&self) -> &[u32] {
        &self.pages
    }

    /// Makes sure that `n` places are free. This is the only part of a change that can fail, so
    /// it comes before the first one.
    pub fn reserve(
        &mut self,
        txn: &mut Txn<'_>,
        ino: Ino,
        inode: &mut Inode,
        n: usize,
    ) -> Result<()> {
        while self.free.len() < n {
            let id = txn.new_node(NodeKind::Extents, ino)?;
            // A new page becomes the head of the chain; no other page changes.
            txn.write(id, node::OFF_NEXT, &inode.root.to_le_bytes());
            inode.root = id;
            inode.blocks = inode.blocks.saturating_add(1);
            self.pages.insert(0, id);
            self.free.insert_many(0, places(id));
            self.note(Undo::NewPage(id));
        }
        Ok(())
    }

    /// The record of all changes so far was appended.
    pub fn appended(&mut self) {
        self.changes.clear();
        self.give_memory();
    }

    /// The transaction failed: takes back all changes since the last [`ExtentMap::appended`].
    pub fn undo(&mut self) {
        while let Some(change) = self.changes.pop() {
            match change {
                Undo::Put(r) => self.runs.remove(&r),
                Undo::Cut(r, run) => self.runs.insert(r, run),
                Undo::Took(place) => self.free.push(place),
                Undo::Gave(place) => self.free.retain(|p| *p != place),
                Undo::NewPage(id) => {
                    self.pages.retain(|p| *p != id);
                    self.free.retain(|p| p.page != id);
                }
                Undo::DroppedPages(ids) => {
                    // Nothing was mapped, so all their places were free.
                    let again = ids.iter().flat_map(|id| places(*id));
                    self.free.insert_many(0, again);
                    self.pages.splice(0..0, ids);
                }
            }
        }
        self.give_memory();
    }

    fn note(&mut self, change: Undo) {
        if self.changes.capacity() == 0 {
            self.changes = CHANGES.take();
        }
        self.changes.push(change);
    }

    fn give_memory(&mut self) {
        let memory = std::mem::take(&mut self.changes);
        if (1..=CHANGES_KEPT).contains(&memory.capacity()) {
            CHANGES.set(memory);
        }
    }

    fn take_place(&mut self) -> Option<Place> {
        let place = self.free.pop()?;
        self.note(Undo::Took(place));
        Some(place)
    }

    fn cut(&mut self, range: Range<u64>, run: Run) {
        self.runs.remove(&range);
        self.note(Undo::Cut(range, run));
    }

    fn put(&self, txn: &mut Txn<'_>, inode: &mut Inode, place: Place, e: Option<Extent>) {
        if place.page == 0 {
            inode.set_inline_extent(usize::from(place.slot), e);
        } else {
            let bytes = e.map_or([0; SIZE], |e| e.encode());
            txn.write_unread(place.page, HEADER + usize::from(place.slot) * SIZE, &bytes);
        }
    }

    fn store(&mut self, txn: &mut Txn<'_>, inode: &mut Inode, blocks: Range<u64>, run: Run) {
        let e = Extent {
            file_block: blocks.start,
            lbn: run.base.wrapping_add(blocks.start),
            len: blocks.end - blocks.start,
        };
        self.put(txn, inode, run.place, Some(e));
        self.runs.insert(blocks.clone(), run);
        self.note(Undo::Put(blocks));
    }

    /// Maps the hole `blocks` to `lbn` and following. Needs one free place per 2^24 blocks.
    pub fn insert(&mut self, txn: &mut Txn<'_>, inode: &mut Inode, blocks: Range<u64>, lbn: Lbn) {
        inode.blocks = inode.blocks.saturating_add(blocks.end - blocks.start);
        let base = lbn.wrapping_sub(blocks.start);
        let mut at = blocks.start;
        // An append mostly continues the extent before it.
        if let Some(before) = blocks.start.checked_sub(1)
            && let Some((r, run)) = self.runs.get(before)
            && run.base == base
        {
            let (r, run) = (r.clone(), *run);
            let n = (LEN_MAX - (r.end - r.start)).min(blocks.end - at);
            if n > 0 {
                // What covers it takes its place.
                self.note(Undo::Cut(r.clone(), run));
                self.store(txn, inode, r.start..at + n, run);
                at += n;
            }
        }
        while at < blocks.end {
            let n = LEN_MAX.min(blocks.end - at);
            let Some(place) = self.take_place() else {
                unreachable!("reserve() precedes every change");
            };
            self.store(txn, inode, at..at + n, Run { base, place });
            at += n;
        }
    }

    /// Unmaps `range` and returns the LBNs that were mapped there. Needs one free place if an
    /// extent reaches beyond both ends.
    pub fn remove(
        &mut self,
        txn: &mut Txn<'_>,
        inode: &mut Inode,
        range: Range<u64>,
    ) -> Vec<Range<Lbn>> {
        if range.is_empty() {
            return Vec::new();
        }
        let hit: Vec<(Range<u64>, Run)> = self
            .runs
            .overlapping(&range)
            .map(|(r, run)| (r.clone(), *run))
            .collect();
        let mut freed = Vec::with_capacity(hit.len());
        for (r, run) in hit {
            let cut = r.start.max(range.start)..r.end.min(range.end);
            let lbn = run.base.wrapping_add(cut.start);
            let n = cut.end - cut.start;
            inode.blocks = inode.blocks.saturating_sub(n);
            freed.push(lbn..lbn + n);
            self.cut(r.clone(), run);
            let mut place = Some(run.place);
            for rest in [r.start..cut.start, cut.end..r.end] {
                if rest.is_empty() {
                    continue;
                }
                let Some(place) = place.take().or_else(|| self.take_place()) else {
                    unreachable!("reserve() precedes every change");
                };
                self.store(
                    txn,
                    inode,
                    rest,
                    Run {
                        base: run.base,
                        place,
                    },
                );
            }
            if let Some(place) = place {
                self.put(txn, inode, place, None);
                self.free.push(place);
                self.note(Undo::Gave(place));
            }
        }
        freed
    }

    /// Frees up to `max` extent pages of a file that maps nothing any more; whether none is left.
    pub fn drop_pages(&mut self, txn: &mut Txn<'_>, inode: &mut Inode, max: usize) -> Result<bool> {
        if !self.runs.is_empty() {
            return Ok(false);
        }
        let n = self.pages.len().min(max);
        for id in &self.pages[..n] {
            txn.free_node(*id)?;
            inode.blocks = inode.blocks.saturating_sub(1);
        }
        let gone: Vec<u32> = self.pages.drain(..n).collect();
        self.free.retain(|p| !gone.contains(&p.page));
        self.note(Undo::DroppedPages(gone));
        inode.root = self.pages.first().copied().unwrap_or(0);
        Ok(self.pages.is_empty())
    }
}

/// The places of an extent page, best one last.
fn places(id: u32) -> impl Iterator<Item = Place> {
    (0..PER_PAGE as u16)
        .rev()
        .map(move |slot| Place { page: id, slot })
}
