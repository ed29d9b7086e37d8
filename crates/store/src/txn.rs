//! A transaction: everything one operation changes, as one record.
//!
//! Resources are reserved when it begins and before any lock is taken (ordering 6). The operation then reads and
//! writes pages through it: what it writes goes, as deltas, into the record, and only this transaction sees pages
//! with these changes. [`Txn::commit`] appends the record and changes the pages for all; dropping a transaction
//! returns everything and leaves no trace.

mod account;
mod edit;
mod numbers;
mod outcome;
mod source;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use quayfs_journal::{self as journal, Credit, Need, Published, Staged};
use quayfs_layout::inode::{self, Inode};
use quayfs_layout::item::{self, DELTA_HEADER, Item};
use quayfs_layout::node::{self, NodeKind};
use quayfs_layout::{Ino, Lbn};
use quayfs_sync::wait_for_device;
use smallvec::SmallVec;

use crate::engine::Engine;
use crate::error::{FsError, Resource, Result};
use crate::ns::alloc::Kind;
use crate::ns::node::{NodeStore, Page, PageBytes};

use account::{Account, CHARGES_BYTES, Part};
pub use edit::Edit;
pub use outcome::{Outcome, Told};
pub use source::{Aside, PageRef, PageSource};

/// A node page as a transaction leaves it.
enum Draft {
    /// Made by it.
    New(PageBytes),
    /// Was there before. What changes in it lies among the items: at which offset of the page, and where.
    Changed(Arc<Page>, SmallVec<[(usize, Range<usize>); 4]>),
}

/// The bytes that a draft changes.
fn deltas<'i>(
    at: &'i [(usize, Range<usize>)],
    items: &'i [u8],
) -> impl Iterator<Item = (usize, &'i [u8])> {
    at.iter().map(|(at, r)| (*at, &items[r.clone()]))
}

/// What an operation needs at most. A record larger than it asked for is a bug.
#[derive(Clone, Copy, Debug)]
pub struct Reservation {
    /// Staging slots.
    pub slots: u32,
    /// Bytes of items.
    pub record: u32,
    /// Node pages and dynamic node ids.
    pub nodes: u64,
    /// LBNs.
    pub blocks: u64,
    /// Inode numbers.
    pub inodes: u64,
    /// Whether the operation gives space back and may use what is kept for that.
    pub privileged: bool,
    /// Preferred staging buffer.
    pub prefer: usize,
}

impl Default for Reservation {
    fn default() -> Self {
        Self {
            slots: 0,
            record: 2048,
            nodes: 2,
            blocks: 0,
            inodes: 0,
            privileged: false,
            prefer: 0,
        }
    }
}

/// Numbers that a record frees; they come back when digest has passed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Freed {
    /// Which allocator.
    pub kind: Kind,
    /// Numbers.
    pub range: Range<u64>,
}

/// How long an operation queues for slots or log space before it starts over.
const ROOM_WAIT: Duration = Duration::from_millis(200);
/// LBNs kept for operations that give space back.
pub const BLOCKS_KEPT: u64 = 8;

thread_local! {
    /// Memory for the items of the next transaction of this thread.
    static ITEMS: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// More memory than this is not kept for the next transaction.
const ITEMS_KEPT: usize = 64 << 10;

/// See the module documentation.
pub struct Txn<'e> {
    engine: &'e Engine,
    credit: Option<Credit<'e>>,
    staged: SmallVec<[Staged<'e>; 1]>,
    items: Vec<u8>,
    limit: usize,
    nodes: u64,
    node_ids: u64,
    blocks: u64,
    inodes: u64,
    pages: SmallVec<[(u32, Draft); 2]>,
    taken: SmallVec<[(Kind, Range<u64>); 2]>,
    freed: Vec<Freed>,
    dropped: Vec<u32>,
    /// Static nodes that have no page yet, for which this transaction has paid.
    covered: SmallVec<[u32; 2]>,
    account: Account,
    privileged: bool,
}

impl<'e> Txn<'e> {
    /// Reserves what `reservation` says, all or nothing. Call it before taking any lock.
    pub fn begin(engine: &'e Engine, reservation: Reservation) -> Result<Self> {
        engine.writable()?;
        let short = |s| Err(FsError::OutOf(s));
        let keep = if reservation.privileged {
            0
        } else {
            BLOCKS_KEPT
        };
        if !engine
            .nodes
            .reserve(reservation.nodes, reservation.privileged)
        {
            return short(Resource::Nodes);
        }
        let mut txn = Self {
            engine,
            credit: None,
            staged: SmallVec::new(),
            items: ITEMS.take(),
            limit: reservation.record as usize,
            nodes: reservation.nodes,
            node_ids: 0,
            blocks: 0,
            inodes: 0,
            pages: SmallVec::new(),
            taken: SmallVec::new(),
            freed: Vec::new(),
            dropped: Vec::new(),
            covered: SmallVec::new(),
            account: Account::default(),
            privileged: reservation.privileged,
        };
        if !engine.node_ids.reserve(reservation.nodes, 0) {
            return short(Resource::Nodes);
        }
        txn.node_ids = reservation.nodes;
        if !engine.lbns.reserve(reservation.blocks, keep) {
            return short(Resource::Blocks);
        }
        txn.blocks = reservation.blocks;
        if !engine.inos.reserve(reservation.inodes, 0) {
            return short(Resource::Nodes);
        }
        txn.inodes = reservation.inodes;
        let need = Need {
            slots: reservation.slots,
            record_bytes: reservation.record + CHARGES_BYTES,
            prefer: reservation.prefer,
        };
        txn.credit = Some(match engine.journal.acquire(need) {
            Ok(c) => c,
            Err(s @ (journal::AcquireError::Slots | journal::AcquireError::Log)) => {
                let short = if s == journal::AcquireError::Slots {
                    Resource::Slots
                } else {
                    Resource::Log
                };
                engine.reclaim(short, 0)?;
                // A round makes the room, and that waits for the device.
                wait_for_device(|| engine.journal.acquire_blocking(need, ROOM_WAIT))
                    .map_err(crate::engine::shortage)?
            }
            Err(s) => return Err(crate::engine::shortage(s)),
        });
        Ok(txn)
    }

    /// The engine this transaction belongs to.
    pub fn engine(&self) -> &'e Engine {
        self.engine
    }

    fn item(&mut self, item: &Item<'_>) {
        item.encode(&mut self.items);
    }

    /// Pays for the page of a static node that does not exist yet.
    fn cover_static(&mut self, id: u32) {
        if self.engine.nodes.touch_static(id) {
            self.covered.push(id);
            // Needs are stated with room for one static page each; the reserve covers the rest.
            if self.nodes > 0 {
                self.nodes -= 1
            } else {
                self.engine.nodes.force_live()
            }
        }
    }

    /// Logs the bytes; the page shows them to this transaction from here on, to others when it commits.
    pub fn write(&mut self, id: u32, at: usize, bytes: &[u8]) {
        self.item(&Item::Delta { id, at, bytes });
        let end = self.items.len();
        let change = (at, end - bytes.len()..end);
        match self.pages.iter_mut().find(|(p, _)| *p == id) {
            Some((_, Draft::New(page))) => page[at..at + bytes.len()].copy_from_slice(bytes),
            Some((_, Draft::Changed(_, changes))) => changes.push(change),
            None => {
                // The caller has read the page in this transaction, so it is cached or ours.
                let Ok(page) = self.engine.nodes.page(id) else {
                    return;
                };
                let changes = SmallVec::from_iter([change]);
                self.pages.push((id, Draft::Changed(page, changes)));
            }
        }
    }

    /// Logs bytes of a page whose content is not kept in DRAM as a page.
    pub fn write_unread(&mut self, id: u32, at: usize, bytes: &[u8]) {
        self.item(&Item::Delta { id, at, bytes });
    }

    /// Logs bytes of a static page (shared; every user of it owns the bytes that it logs).
    pub fn write_static(&mut self, id: u32, at: usize, bytes: &[u8]) {
        self.cover_static(id);
        self.item(&Item::Delta { id, at, bytes });
    }

    /// Logs the image of an inode of which `before` was counted.
    fn put_inode(&mut self, ino: Ino, before: Option<Part>, image: &Inode) -> Result<()> {
        self.account_for(ino, before, Part::of(image))?;
        let (id, slot) = self.engine.nodes.geometry().inode_place(ino);
        self.write_static(id, inode::offset(slot), &image.encode());
        Ok(())
    }

    /// Copies blocks into staging slots; they are durable (in mode `op`) when this returns.
    pub fn stage(&mut self, blocks: &[(Lbn, &[u8])]) -> Result<()> {
        let Some(credit) = self.credit.as_mut() else {
            return Err(FsError::internal("no credit"));
        };
        // Only a journal that has stopped refuses: the region cannot be made durable any more.
        let staged = self.engine.journal.stage(credit, blocks).map_err(|err| {
            self.engine.fail(&err);
            self.engine.journal_error(err)
        })?;
        self.staged.push(staged);
        Ok(())
    }

    /// Node pages that the record changes so far.
    pub fn pages_changed(&self) -> usize {
        let nodes = item::decode(&self.items).filter_map(|i| i.ok().map(|i| i.node()));
        nodes.collect::<BTreeSet<_>>().len()
    }

    /// Bytes of items that still fit.
    pub fn room(&self) -> usize {
        self.limit.saturating_sub(self.items.len() + DELTA_HEADER)
    }

    /// What the record refers to is written, and durable only after a flush of the device and a drain of the region.
    pub fn depend_on_media(&mut self) {
        if let Some(credit) = &mut self.credit {
            credit.depend_on_media();
        }
    }

    /// Logs the images of `outcome`, appends the record, shows its pages, and then `outcome`: the only way to an image
    /// that others see. When this returns the operation has happened: durably in mode `op`, as part of the running
    /// transaction in mode `commit`.
    ///
    /// # Errors
    /// [`FsError::Quota`] and [`FsError::NoSpace`] as [`Txn::admit`], and those of freeing an inode: nothing has
    /// happened. Any other error turns the mount read-only.
    #[inline]
    pub fn commit<'o, 'c: 'o>(self, outcome: impl Into<Outcome<'o, 'c>>) -> Result<()> {
        self.carry_out(outcome.into())
    }

    fn carry_out(mut self, mut outcome: Outcome<'_, '_>) -> Result<()> {
        self.compose(&outcome)?;
        let seq = self.append()?;
        self.publish(seq);
        outcome.install(self.engine, seq);
        Ok(())
    }

    /// Completes the record: what belongs to the operation as a whole is logged here.
    fn compose(&mut self, outcome: &Outcome<'_, '_>) -> Result<()> {
        outcome.log(self)?;
        self.reserve_shares()?;
        debug_assert!(
            self.items.len() <= self.limit,
            "{} > {}",
            self.items.len(),
            self.limit
        );
        self.log_charges();
        Ok(())
    }

    /// Appends the record, and publishes its slots. Returns its sequence number.
    fn append(&mut self) -> Result<u64> {
        let Some(credit) = self.credit.take() else {
            return Err(FsError::internal("no credit"));
        };
        let staged = std::mem::take(&mut self.staged);
        let e = self.engine;
        let blocks = staged.iter().map(|s| s.run().blocks.len() as u64).sum();
        // Published before the number counts as complete: a round never sees a slot that could
        // still be published after it retired it.
        let publish = |run: Published<'_>| {
            run.lbns().for_each(|lbn| e.partials.forget(lbn));
            e.staged.publish_all(run);
        };
        let appended =
            (e.journal).append_with(credit, staged, &self.items, quayfs_restart::record, publish);
        let seq = appended.map_err(|err| {
            e.fail(&err);
            e.journal_error(err)
        })?;
        self.settle_account();
        self.covered.clear();
        e.appended(blocks);
        Ok(seq)
    }

    /// The record was appended: its pages are those of all, and what it frees comes back when it is digested.
    fn publish(&mut self, seq: u64) {
        let e = self.engine;
        for (id, draft) in self.pages.drain(..) {
            match draft {
                Draft::New(page) if node::kind(&page[..]) == Some(NodeKind::Extents) => {}
                Draft::New(page) => e.nodes.publish(id, Page::new(page, seq)),
                Draft::Changed(page, changes) => {
                    e.nodes.change(id, page, seq, deltas(&changes, &self.items));
                }
            }
        }
        for id in self.dropped.drain(..) {
            e.nodes.forget(id);
        }
        self.taken.clear();
        e.defer_frees(seq, std::mem::take(&mut self.freed));
    }
}

impl PageSource for Txn<'_> {
    fn read(&self, id: u32) -> Result<PageRef<'_>> {
        match self.pages.iter().find(|(p, _)| *p == id) {
            Some((_, Draft::New(page))) => Ok(PageRef::Own(page)),
            Some((_, Draft::Changed(page, changes))) => {
                let mut page = page.bytes().clone();
                for (at, new) in deltas(changes, &self.items) {
                    page[at..at + new.len()].copy_from_slice(new);
                }
                Ok(PageRef::Changed(page))
            }
            None => self.engine.nodes.read(id),
        }
    }

    fn home(&self, id: u32) -> Result<Option<PageBytes>> {
        self.engine.nodes.home(id)
    }

    fn store(&self) -> &NodeStore {
        &self.engine.nodes
    }

    fn damaged(&self, what: &dyn fmt::Display) -> FsError {
        self.engine.watch().damaged(what)
    }
}

impl Drop for Txn<'_> {
    fn drop(&mut self) {
        // Another transaction may rely on it meanwhile: then the reserve covers the page, as digest sees to.
        for id in std::mem::take(&mut self.covered) {
            self.nodes += u64::from(self.engine.nodes.untouch_static(id));
        }
        for (kind, range) in std::mem::take(&mut self.taken) {
            let n = range.end - range.start;
            self.allocator(kind).put_back(range);
            match kind {
                Kind::Lbn => self.blocks += n,
                Kind::Inode => self.inodes += n,
                Kind::Node => {
                    self.nodes += n;
                    self.node_ids += n;
                }
            }
        }
        self.engine.nodes.unreserve(self.nodes);
        self.engine.node_ids.unreserve(self.node_ids);
        self.engine.lbns.unreserve(self.blocks);
        self.engine.inos.unreserve(self.inodes);
        let mut items = std::mem::take(&mut self.items);
        if items.capacity() <= ITEMS_KEPT {
            items.clear();
            ITEMS.set(items);
        }
    }
}
