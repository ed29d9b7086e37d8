//! Digest: records become home pages.
//!
//! A batch applies records in sequence order to copies of the home pages they name, writes the
//! results to free pages and switches the NAT entries. Recovery is the same function over the
//! records above digested_seq. The orderings (`docs/internals/crash-consistency.md`):
//!
//! 1. new pages and the committed words of the slots, durable, before
//! 2. the NAT entries that name them, durable, before
//! 3. `digested_seq`, durable, before
//! 4. ring space and old pages are reused.
//!
//! A crash between any two replays the same records over pages that may already contain their
//! effect, which changes nothing (see `layout::item`).

use quayfs_layout::inode;
use quayfs_layout::item::{self, Item};
use quayfs_layout::node::{self, HEADER, INODES_PER_PAGE, NodeKind, OFF_SEQ};
use quayfs_layout::{BLOCK, LINE, bytes, quota};
use rustc_hash::FxHashMap;
use std::collections::hash_map::Entry;
use std::fmt;

use quayfs_store::error::{FsError, Result};
use quayfs_store::ns::node::{NodeStore, PageBytes, zero_page};
use quayfs_sync::Pacing;

struct Work {
    page: PageBytes,
    /// Physical page that the NAT names now.
    home: Option<u64>,
    exists: bool,
    /// Neither NAT entry nor page can be read: nothing is applied, and nothing written.
    lost: bool,
}

/// What a written batch leaves to be done once digested_seq is durable.
#[derive(Debug, Default)]
pub struct Retired {
    /// Physical pages that nothing names any more.
    pub pages: Vec<u64>,
    /// Pages of static nodes that went away: their promises end.
    pub dropped: u64,
    /// Dynamic nodes that got their first page: operations promised it, or recovery accounts for it.
    pub created: u64,
    /// Dynamic nodes that went away: the promise ends with the release of the node id, or recovery
    /// accounts for it.
    pub freed: u64,
    /// Highest sequence number applied.
    pub seq: u64,
}

/// Memory that one batch leaves to the next.
#[derive(Default)]
pub struct Scratch {
    work: FxHashMap<u32, Work>,
    pages: Vec<PageBytes>,
}

/// Pages that are kept for the next batch: 2 MiB.
const PAGES_KEPT: usize = 512;

/// Records applied to page copies, not yet written.
pub struct Batch<'s> {
    store: &'s NodeStore,
    room: &'s mut Scratch,
    seq: u64,
    lenient: bool,
    left_out: Vec<String>,
}

impl<'s> Batch<'s> {
    /// An empty batch.
    pub fn new(store: &'s NodeStore, room: &'s mut Scratch) -> Self {
        Self {
            store,
            room,
            seq: 0,
            lenient: false,
            left_out: Vec::new(),
        }
    }

    /// A batch that leaves out what cannot be applied: for showing, or repairing, a damaged volume.
    pub fn lenient(store: &'s NodeStore, room: &'s mut Scratch) -> Self {
        let mut batch = Self::new(store, room);
        batch.lenient = true;
        batch
    }

    /// Why parts of records were left out, since it was asked last. Pages that cannot be read are not
    /// among the reasons.
    pub fn left_out(&mut self) -> Vec<String> {
        std::mem::take(&mut self.left_out)
    }

    /// Pages that the batch will write at most.
    pub fn pages(&self) -> usize {
        self.room.work.len()
    }

    /// Highest sequence number applied.
    pub fn seq(&self) -> u64 {
        self.seq
    }

    /// The page of a node as its home has it, or as it begins, in memory that may hold anything.
    fn load(store: &NodeStore, lenient: bool, id: u32, mut page: PageBytes) -> Result<Work> {
        let found = store.home_of(id);
        let found = found.and_then(|home| Ok((home, store.read_home(id, &mut page)?)));
        match found.map_err(|fault| store.watch().damaged(fault)) {
            Err(_) if lenient && u64::from(id) < store.geometry().nat_entries => {
                page.fill(0);
                Ok(Work {
                    page,
                    // A record that makes the node anew replaces the page.
                    home: store.home_of(id).ok().flatten(),
                    exists: false,
                    lost: true,
                })
            }
            Err(err) => Err(err),
            Ok((home, true)) => Ok(Work {
                page,
                home,
                exists: true,
                lost: false,
            }),
            Ok((_, false)) => {
                page.fill(0);
                let kind = store.static_kind(id);
                if let Some(kind) = kind {
                    node::init(&mut page[..], id, kind, 0);
                }
                // A dynamic node without a home was freed by a later record of a digest that
                // a crash interrupted: that record comes again and frees it again.
                Ok(Work {
                    page,
                    home: None,
                    exists: kind.is_some(),
                    lost: false,
                })
            }
        }
    }

    fn work(&mut self, id: u32) -> Result<&mut Work> {
        let Scratch { work, pages } = &mut *self.room;
        match work.entry(id) {
            Entry::Occupied(e) => Ok(e.into_mut()),
            Entry::Vacant(e) => {
                let page = pages.pop().unwrap_or_else(zero_page);
                Ok(e.insert(Self::load(self.store, self.lenient, id, page)?))
            }
        }
    }

    /// Applies the items of record `seq`. Records come in sequence order.
    pub fn apply(&mut self, seq: u64, items: &[u8]) -> Result<()> {
        for item in item::decode(items) {
            let item = item.map_err(|e| self.damaged(format_args!("record {seq}: {e}")));
            match item.and_then(|item| self.apply_one(seq, item)) {
                Err(err) if self.lenient => {
                    let cause = err.cause().unwrap_or_else(|| err.to_string());
                    self.left_out.push(cause);
                }
                other => other?,
            }
        }
        self.seq = seq;
        Ok(())
    }

    /// A record says something that cannot be.
    fn damaged(&self, what: fmt::Arguments<'_>) -> FsError {
        self.store.watch().damaged(what)
    }

    fn apply_one(&mut self, seq: u64, item: Item<'_>) -> Result<()> {
        let id = item.node();
        let store = self.store;
        let w = self.work(id)?;
        match item {
            Item::NodeNew { kind, owner, .. } => {
                w.page.fill(0);
                node::init(&mut w.page[..], id, kind, owner);
                w.exists = true;
                w.lost = false;
            }
            _ if w.lost => {}
            Item::Delta { at, bytes, .. } => {
                if at < HEADER && (at + bytes.len() > HEADER || at < node::OFF_NEXT) {
                    let what = format_args!("record {seq} changes the header of node {id}");
                    return Err(store.watch().damaged(what));
                }
                w.page[at..at + bytes.len()].copy_from_slice(bytes);
            }
            Item::NodeFree { .. } if store.static_kind(id).is_some() => {
                let what = format_args!("record {seq} frees static node {id}");
                return Err(store.watch().damaged(what));
            }
            Item::NodeFree { .. } => w.exists = false,
            Item::Bits {
                start, count, set, ..
            } => {
                if node::kind(&w.page[..]) != Some(NodeKind::Bitmap) {
                    let what = format_args!("node {id} is not a bitmap page");
                    return Err(store.watch().damaged(what));
                }
                node::change_bits(&mut w.page[..], u64::from(start), u64::from(count), set);
            }
            Item::Charge {
                slot,
                subject,
                blocks,
                inodes,
                ..
            } => {
                if node::kind(&w.page[..]) != Some(NodeKind::Quota) {
                    let what = format_args!("node {id} is no quota page");
                    return Err(store.watch().damaged(what));
                }
                // The home says up to where it has been charged: a crash may have come between its
                // NAT entry and digested_seq. In between lies nothing, a page is switched as a whole.
                if seq > bytes::get_u64(&w.page[..], OFF_SEQ) {
                    let slot = usize::from(slot);
                    quota::charge(&mut w.page[..], slot, subject, blocks, inodes.into());
                }
            }
        }
        Ok(())
    }

    /// Writes the batch: pages, then NAT. The caller has set the committed words of the slots
    /// before and stores digested_seq afterwards.
    pub fn write(self, pacing: &mut Pacing<'_>) -> Result<Retired> {
        let region = self.store.region();
        let (geo, salt) = (*self.store.geometry(), self.store.salt());
        let mut retired = Retired {
            seq: self.seq,
            ..Retired::default()
        };
        let mut switch = Vec::with_capacity(self.pages());
        let mut taken = Vec::with_capacity(self.pages());
        for (&id, w) in self.room.work.iter_mut().filter(|(_, w)| !w.lost) {
            let is_static = self.store.static_kind(id).is_some();
            if is_static && w.exists && is_unused(&w.page) {
                w.exists = false;
            }
            if w.exists {
                let Some(page) = self.store.take_page() else {
                    self.store.put_back_pages(&taken);
                    return Err(FsError::OutOf(quayfs_store::error::Resource::Nodes));
                };
                taken.push(page);
                // It never goes back: a recovery that needs several batches may be at records that an
                // interrupted digest has applied, and at charges among them in the next batch.
                let seq = self.seq.max(bytes::get_u64(&w.page[..], OFF_SEQ));
                w.page[OFF_SEQ..OFF_SEQ + 8].copy_from_slice(&seq.to_le_bytes());
                node::seal(&mut w.page[..], salt);
                region.write_nt(geo.node_page(page), &w.page[..]);
                switch.push((id, node::nat_encode(id, page, salt)));
                pacing.step(BLOCK as u32 / LINE as u32);
            } else if w.home.is_some() {
                switch.push((id, node::nat_absent(id, salt)));
            }
            retired.pages.extend(w.home);
            match (is_static, w.exists, w.home.is_some()) {
                (true, true, false) if self.store.touch_static(id) => self.store.force_live(),
                // Also a page that came and went within the batch was paid for.
                (true, false, _) if self.store.untouch_static(id) => retired.dropped += 1,
                (false, true, false) => retired.created += 1,
                (false, false, true) => retired.freed += 1,
                _ => {}
            }
        }
        // Ordering "page before NAT": a NAT entry must never name a page that is not whole. The
        // same edge makes the committed words durable before digested_seq.
        region.drain()?;
        for &(id, word) in &switch {
            region.store_u64(geo.nat_entry(id), word);
            region.flush(geo.nat_entry(id), 8);
        }
        // Ordering "NAT before digested_seq": a record below digested_seq is not replayed. The thread that stores
        // digested_seq drains first, which completes this thread's flushes and those of the committed words in one.
        Ok(retired)
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        let Scratch { work, pages } = &mut *self.room;
        pages.extend(work.drain().map(|(_, w)| w.page));
        pages.truncate(PAGES_KEPT);
    }
}

/// Whether an inode-table page holds no inode: it is then given back.
fn is_unused(page: &PageBytes) -> bool {
    node::kind(&page[..]) == Some(NodeKind::Inodes)
        && (0..INODES_PER_PAGE as usize).all(|slot| {
            let at = inode::offset(slot);
            page[at..at + 4].iter().all(|b| *b == 0)
        })
}
