//! A transaction: everything one operation changes, as one record.
//!
//! Resources are promised when it begins and before any lock is taken (ordering 6). The operation then reads and
//! writes pages through it: what it writes goes, as deltas, into the record, and only this transaction sees pages
//! with these changes. [`Txn::commit`] appends the record and changes the pages for all; dropping a transaction
//! returns everything and leaves no trace.

mod account;
mod edit;
mod outcome;

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;
use std::time::Duration;

use quayfs_journal::{self as journal, Credit, Need, Published, Staged};
use quayfs_layout::inode::{self, Inode};
use quayfs_layout::item::{self, DELTA_HEADER, Item};
use quayfs_layout::node::{self, NodeKind};
use quayfs_layout::{BLOCK, Ino, Lbn};
use smallvec::SmallVec;

use crate::damage::Watch;
use crate::engine::Engine;
use crate::error::{FsError, Result, Shortage};
use crate::ns::alloc::{Allocator, Kind, NoScreen};
use crate::ns::node::{NodeStore, Page, PageBytes, zero_page};
use crate::ns::tags::Tags;

use account::{Account, CHARGES_BYTES};
pub use edit::Edit;
pub use outcome::{Committed, Outcome, Told};

/// A source of the newest version of node pages.
pub trait PageSource {
    /// The newest version of node `id`.
    fn read(&self, id: u32) -> Result<PageRef<'_>>;

    /// The node as its home has it; `None` if it has none.
    fn home(&self, id: u32) -> Result<Option<PageBytes>>;

    /// Where the nodes are.
    fn store(&self) -> &NodeStore;

    /// What a page says cannot be true: the watch of this source takes notice.
    fn damaged(&self, what: &dyn fmt::Display) -> FsError;
}

impl<S: PageSource + ?Sized> PageSource for Arc<S> {
    fn read(&self, id: u32) -> Result<PageRef<'_>> {
        (**self).read(id)
    }

    fn home(&self, id: u32) -> Result<Option<PageBytes>> {
        (**self).home(id)
    }

    fn store(&self) -> &NodeStore {
        (**self).store()
    }

    fn damaged(&self, what: &dyn fmt::Display) -> FsError {
        (**self).damaged(what)
    }
}

/// A node page, shared or private to a transaction.
pub enum PageRef<'a> {
    /// Published.
    Shared(Arc<Page>),
    /// Made by the transaction that shows it.
    Own(&'a PageBytes),
    /// Published, with what the transaction that shows it has changed.
    Changed(PageBytes),
}

impl PageRef<'_> {
    /// Where the entries of a leaf of a directory are.
    pub fn tags(&self) -> Cow<'_, Tags> {
        match self {
            Self::Shared(p) => Cow::Borrowed(p.tags()),
            Self::Own(p) => Cow::Owned(Tags::of(&p[..])),
            Self::Changed(p) => Cow::Owned(Tags::of(&p[..])),
        }
    }
}

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

impl Deref for PageRef<'_> {
    type Target = [u8; BLOCK];

    fn deref(&self) -> &[u8; BLOCK] {
        match self {
            Self::Shared(p) => p.bytes(),
            Self::Own(p) => p,
            Self::Changed(p) => p,
        }
    }
}

impl PageSource for NodeStore {
    fn read(&self, id: u32) -> Result<PageRef<'_>> {
        self.page(id).map(PageRef::Shared)
    }

    fn home(&self, id: u32) -> Result<Option<PageBytes>> {
        Self::home(self, id)
    }

    fn store(&self) -> &NodeStore {
        self
    }

    fn damaged(&self, what: &dyn fmt::Display) -> FsError {
        self.watch().damaged(what)
    }
}

/// Pages for a caller that looks for damage: what is found has no consequence for the mount.
pub struct Aside<'s> {
    store: &'s NodeStore,
    watch: Watch,
}

impl<'s> Aside<'s> {
    /// A view of the same pages.
    pub fn new(store: &'s NodeStore) -> Self {
        Self {
            store,
            watch: Watch::bystander(),
        }
    }

    /// The watch that counts what is found.
    pub fn watch(&self) -> &Watch {
        &self.watch
    }
}

impl PageSource for Aside<'_> {
    fn read(&self, id: u32) -> Result<PageRef<'_>> {
        let page = self.store.look_page(id);
        page.map(PageRef::Shared).map_err(|f| self.watch.damaged(f))
    }

    fn home(&self, id: u32) -> Result<Option<PageBytes>> {
        self.store.look_home(id).map_err(|f| self.watch.damaged(f))
    }

    fn store(&self) -> &NodeStore {
        self.store
    }

    fn damaged(&self, what: &dyn fmt::Display) -> FsError {
        self.watch.damaged(what)
    }
}

/// What an operation needs at most. A record larger than it asked for is a bug.
#[derive(Clone, Copy, Debug)]
pub struct Needs {
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

impl Default for Needs {
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
const BLOCKS_KEPT: u64 = 8;

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
    account: Account,
    privileged: bool,
}

impl<'e> Txn<'e> {
    /// Promises what `needs` says, all or nothing. Call it before taking any lock.
    pub fn begin(engine: &'e Engine, needs: Needs) -> Result<Self> {
        engine.writable()?;
        let short = |s| Err(FsError::Short(s));
        let keep = if needs.privileged { 0 } else { BLOCKS_KEPT };
        if !engine.nodes.promise(needs.nodes, needs.privileged) {
            return short(Shortage::Nodes);
        }
        let mut txn = Self {
            engine,
            credit: None,
            staged: SmallVec::new(),
            items: ITEMS.take(),
            limit: needs.record as usize,
            nodes: needs.nodes,
            node_ids: 0,
            blocks: 0,
            inodes: 0,
            pages: SmallVec::new(),
            taken: SmallVec::new(),
            freed: Vec::new(),
            dropped: Vec::new(),
            account: Account::default(),
            privileged: needs.privileged,
        };
        if !engine.node_ids.promise(needs.nodes, 0) {
            return short(Shortage::Nodes);
        }
        txn.node_ids = needs.nodes;
        if !engine.lbns.promise(needs.blocks, keep) {
            return short(Shortage::Blocks);
        }
        txn.blocks = needs.blocks;
        if !engine.inos.promise(needs.inodes, 0) {
            return short(Shortage::Nodes);
        }
        txn.inodes = needs.inodes;
        let need = Need {
            slots: needs.slots,
            record_bytes: needs.record + CHARGES_BYTES,
            prefer: needs.prefer,
        };
        txn.credit = Some(match engine.journal.acquire(need) {
            Ok(c) => c,
            Err(s @ (journal::Shortage::Slots | journal::Shortage::Log)) => {
                let short = if s == journal::Shortage::Slots {
                    Shortage::Slots
                } else {
                    Shortage::Log
                };
                engine.relieve(short, 0)?;
                engine
                    .journal
                    .acquire_blocking(need, ROOM_WAIT)
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

    fn allocator(&self, kind: Kind) -> &'e Allocator {
        self.engine.allocator(kind)
    }

    fn item(&mut self, item: &Item<'_>) {
        item.encode(&mut self.items);
    }

    fn bits(&mut self, kind: Kind, range: Range<u64>, set: bool) {
        for (id, start, count) in self.allocator(kind).bits(range) {
            self.cover_static(id);
            self.item(&Item::Bits {
                id,
                start,
                count,
                set,
            });
        }
    }

    /// Pays for the page of a static node that does not exist yet.
    fn cover_static(&mut self, id: u32) {
        if self.engine.nodes.touch_static(id) {
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

    /// Logs an inode image; a free inode is all zeros.
    fn put_inode(&mut self, ino: Ino, image: &Inode) {
        self.account_image(ino, image);
        let (id, slot) = self.engine.nodes.geometry().inode_place(ino);
        self.write_static(id, inode::offset(slot), &image.encode());
    }

    /// Creates a node out of the promise.
    pub fn new_node(&mut self, kind: NodeKind, owner: Ino) -> Result<u32> {
        if self.nodes == 0 || self.node_ids == 0 {
            return Err(FsError::Short(Shortage::Nodes));
        }
        let range = self.take(Kind::Node, 1, None)?;
        self.nodes -= 1;
        self.node_ids -= 1;
        let id = (self.engine.nodes.geometry().dyn_base + range.start) as u32;
        self.bits(Kind::Node, range, true);
        self.item(&Item::NodeNew { id, kind, owner });
        let mut page = zero_page();
        node::init(&mut page[..], id, kind, owner);
        self.pages.push((id, Draft::New(page)));
        Ok(id)
    }

    /// Frees a node.
    pub fn free_node(&mut self, id: u32) -> Result<()> {
        let Some(n) = u64::from(id).checked_sub(self.engine.nodes.geometry().dyn_base) else {
            // The caller got this number from a page.
            let what = format_args!("node {id} is static and cannot be freed");
            return Err(self.engine.watch().damaged(what));
        };
        let range = n..n + 1;
        self.engine
            .node_ids
            .prepare_free(range.clone(), &self.engine.nodes, &NoScreen)?;
        self.item(&Item::NodeFree { id });
        self.bits(Kind::Node, range.clone(), false);
        self.freed.push(Freed {
            kind: Kind::Node,
            range,
        });
        self.pages.retain(|(p, _)| *p != id);
        self.dropped.push(id);
        Ok(())
    }

    /// Whether this transaction has allocated a number.
    fn has_taken(&self, kind: Kind, n: u64) -> bool {
        let of_kind = self.taken.iter().filter(|(k, _)| *k == kind);
        of_kind.into_iter().any(|(_, range)| range.contains(&n))
    }

    fn take(&mut self, kind: Kind, want: u64, goal: Option<u64>) -> Result<Range<u64>> {
        let screen = self.engine.screen(kind);
        let short = match kind {
            Kind::Lbn => Shortage::Blocks,
            Kind::Inode | Kind::Node => Shortage::Nodes,
        };
        let got = self
            .allocator(kind)
            .take(want, goal, &self.engine.nodes, screen)?;
        let range = got.ok_or(FsError::Short(short))?;
        self.taken.push((kind, range.clone()));
        Ok(range)
    }

    /// Allocates an inode number out of the promise.
    pub fn take_ino(&mut self) -> Result<Ino> {
        if self.inodes == 0 {
            return Err(FsError::Short(Shortage::Nodes));
        }
        let range = self.take(Kind::Inode, 1, None)?;
        self.inodes -= 1;
        quayfs_restart::inode(range.start);
        self.bits(Kind::Inode, range.clone(), true);
        Ok(range.start)
    }

    /// Frees an inode, which is in this project: its image becomes zeros.
    fn free_ino(&mut self, ino: Ino, project: u32) -> Result<()> {
        self.leaves_project(ino, project);
        let range = ino..ino + 1;
        self.engine
            .inos
            .prepare_free(range.clone(), &self.engine.nodes, &NoScreen)?;
        let (id, slot) = self.engine.nodes.geometry().inode_place(ino);
        self.write_static(id, inode::offset(slot), &[0; inode::SIZE]);
        self.bits(Kind::Inode, range.clone(), false);
        self.freed.push(Freed {
            kind: Kind::Inode,
            range,
        });
        Ok(())
    }

    /// Allocates one run of at most `want` LBNs out of the promise.
    pub fn take_blocks(&mut self, want: u64, goal: Option<Lbn>) -> Result<Range<Lbn>> {
        if self.blocks < want {
            return Err(FsError::Short(Shortage::Blocks));
        }
        let range = self.take(Kind::Lbn, want, goal)?;
        self.blocks -= range.end - range.start;
        self.bits(Kind::Lbn, range.clone(), true);
        Ok(range)
    }

    /// Logs LBNs that the caller had taken before (an append window) as allocated. Their promise
    /// is spent.
    pub fn use_blocks(&mut self, range: Range<Lbn>) {
        self.bits(Kind::Lbn, range, true);
    }

    /// Takes LBNs ahead of use: nothing is logged, and the promise goes to the caller. They are
    /// returned like all others if the transaction fails.
    pub fn take_window(&mut self, want: u64, goal: Option<Lbn>) -> Result<Range<Lbn>> {
        if self.blocks < want {
            return Err(FsError::Short(Shortage::Blocks));
        }
        let range = self.take(Kind::Lbn, want, goal)?;
        self.blocks -= range.end - range.start;
        Ok(range)
    }

    /// Frees LBNs.
    pub fn free_blocks(&mut self, range: Range<Lbn>) -> Result<()> {
        let screen = self.engine.screen(Kind::Lbn);
        self.engine
            .lbns
            .prepare_free(range.clone(), &self.engine.nodes, screen)?;
        self.bits(Kind::Lbn, range.clone(), false);
        self.freed.push(Freed {
            kind: Kind::Lbn,
            range,
        });
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
    /// [`FsError::Quota`] and [`FsError::NoSpace`] as [`Txn::admit`], and those of freeing an inode: nothing has happened.
    /// Any other error turns the mount read-only.
    pub fn commit<'c>(mut self, outcome: impl Into<Outcome<'c>>) -> Result<Committed<'c>> {
        let outcome = outcome.into();
        self.compose(&outcome)?;
        let seq = self.append()?;
        self.publish(seq);
        Ok(outcome.install(self.engine, seq))
    }

    /// Completes the record: what belongs to the operation as a whole is logged here.
    fn compose(&mut self, outcome: &Outcome<'_>) -> Result<()> {
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
        for (kind, range) in std::mem::take(&mut self.taken) {
            let n = range.end - range.start;
            self.allocator(kind).untake(range);
            match kind {
                Kind::Lbn => self.blocks += n,
                Kind::Inode => self.inodes += n,
                Kind::Node => {
                    self.nodes += n;
                    self.node_ids += n;
                }
            }
        }
        self.engine.nodes.unpromise(self.nodes);
        self.engine.node_ids.unpromise(self.node_ids);
        self.engine.lbns.unpromise(self.blocks);
        self.engine.inos.unpromise(self.inodes);
        let mut items = std::mem::take(&mut self.items);
        if items.capacity() <= ITEMS_KEPT {
            items.clear();
            ITEMS.set(items);
        }
    }
}
