//! Node pages: homes on pmem found through the NAT, newest versions in DRAM.
//!
//! A home page is immutable once the NAT names it; only digest switches NAT entries. A page that
//! an operation has changed lives in the cache until digest has passed its last record, so a
//! page that is not cached can always be read from its home.

use std::sync::{Arc, OnceLock};

use quayfs_layout::geometry::Geometry;
use quayfs_layout::node::{self, INODES_PER_PAGE, NodeError, NodeKind};
use quayfs_layout::{BLOCK, flaw, inode};
use quayfs_pmem::Region;
use quayfs_sync::atomic::{AtomicU64, Ordering};
use quayfs_sync::map::Entry;
use quayfs_sync::{DashMap, Mutex, epoch};
use rustc_hash::FxBuildHasher;

use crate::damage::{Fault, Watch};
use crate::error::Result;
use crate::ns::nat::Nat;
use crate::ns::tags::Tags;

/// A 4 KiB page in DRAM.
pub type PageBytes = Box<[u8; BLOCK]>;

/// A fresh page of zeros.
pub fn zero_page() -> PageBytes {
    Box::new([0; BLOCK])
}

/// The newest version of a node page. A thread that shares one sees it as it was then: it is changed in its place
/// only while no thread shares it.
#[derive(Clone)]
pub struct Page {
    /// Content; the checksum field is stale.
    bytes: PageBytes,
    /// Sequence number of the last record that changed it.
    seq: u64,
    /// Where its entries are, if it is a leaf of a directory in which a name has been looked up.
    tags: OnceLock<Tags>,
}

impl Page {
    /// A page as of the record with this number.
    pub fn new(bytes: PageBytes, seq: u64) -> Self {
        Self {
            bytes,
            seq,
            tags: OnceLock::new(),
        }
    }

    /// Content; the checksum field is stale.
    pub fn bytes(&self) -> &PageBytes {
        &self.bytes
    }

    /// Where the entries of a leaf of a directory are.
    pub fn tags(&self) -> &Tags {
        self.tags.get_or_init(|| Tags::of(&self.bytes[..]))
    }

    /// Record `seq` has written `deltas`, each bytes at an offset.
    fn change<'d>(&mut self, seq: u64, deltas: impl Iterator<Item = (usize, &'d [u8])>) {
        self.seq = seq;
        for (at, new) in deltas {
            self.bytes[at..at + new.len()].copy_from_slice(new);
            if (self.tags.get()).is_some_and(|tags| !tags.survive(at, new.len())) {
                self.tags.take();
            }
        }
        if let Some(tags) = self.tags.get_mut() {
            tags.extend(&self.bytes[..]);
        }
    }
}

/// Extents or pages that one record frees. Digest keeps pages in reserve for as many.
pub const STEP: usize = 64;

/// Node pages that one record can change at most: a step of freeing touches an extent page and a
/// bitmap page for each extent, and a write into scattered holes a bitmap page for each block.
pub fn record_pages(g: &Geometry) -> u64 {
    let groups = g.visible_blocks().div_ceil(node::BITS_PER_PAGE);
    STEP as u64 + groups.min(264) + 16
}

/// Home pages that are read ahead at once.
const AHEAD: u64 = 32;

/// Node pages of a volume.
pub struct NodeStore {
    region: Arc<Region>,
    geo: Geometry,
    salt: u64,
    watch: Watch,
    cache: DashMap<u32, Arc<Page>, FxBuildHasher>,
    free: Arc<Mutex<Vec<u64>>>,
    /// Pages reserved: every node that exists or that an operation may still create.
    live: AtomicU64,
    /// One bit per static node id: its page exists or is reserved.
    present: Vec<AtomicU64>,
    /// Pages that no reservation may touch: the largest record must always be digestible.
    reserve: u64,
    /// The home page that was read last: a hint, of which the scheduler of tests need not know.
    last_read: std::sync::atomic::AtomicU64,
    /// Pages beyond that which only operations that give space back may be reserved.
    privileged: u64,
    /// Damaged NAT entries: how many, and the first one.
    damage: Option<(u64, String)>,
}

impl NodeStore {
    /// Reads the NAT and derives the free pages from it. Nodes whose entry is damaged cannot be
    /// read; see [`NodeStore::damage`].
    pub fn attach(region: Arc<Region>, geo: Geometry, salt: u64, watch: Watch) -> Self {
        let present: Vec<AtomicU64> = (0..geo.dyn_base.div_ceil(64))
            .map(|_| AtomicU64::new(0))
            .collect();
        let Nat { used, live, damage } = Nat::read_all(&region, &geo, salt, &present);
        let free = (0..geo.node_pages)
            .rev()
            .filter(|p| used[*p as usize / 64] & (1 << (p % 64)) == 0)
            .collect();
        let reserve = record_pages(&geo).min(geo.node_pages / 4);
        Self {
            region,
            geo,
            salt,
            watch,
            cache: DashMap::with_hasher(FxBuildHasher),
            free: Arc::new(Mutex::new(free)),
            live: AtomicU64::new(live),
            present,
            reserve,
            last_read: std::sync::atomic::AtomicU64::new(u64::MAX / 2),
            privileged: (geo.node_pages / 64)
                .clamp(16, 2048)
                .min(geo.node_pages / 16),
            damage,
        }
    }

    /// The watch that takes notice of damage.
    pub fn watch(&self) -> &Watch {
        &self.watch
    }

    /// How many NAT entries are damaged, and the first of them. Nothing may be written then: the
    /// pages of such nodes count as free.
    pub fn damage(&self) -> Option<(u64, &str)> {
        self.damage.as_ref().map(|(n, first)| (*n, &first[..]))
    }

    /// How many LBNs files can own.
    pub fn visible_blocks(&self) -> u64 {
        self.geo.visible_blocks()
    }

    /// The region that holds the pages.
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// The volume's geometry.
    pub fn geometry(&self) -> &Geometry {
        &self.geo
    }

    /// Part of every checksum of this volume.
    pub fn salt(&self) -> u64 {
        self.salt
    }

    /// Kind of page of a static node id, `None` for dynamic ones.
    pub fn static_kind(&self, id: u32) -> Option<NodeKind> {
        self.geo.static_kind(id)
    }

    /// Physical page of a node as the NAT has it.
    pub fn home_of(&self, id: u32) -> std::result::Result<Option<u64>, Fault> {
        if u64::from(id) >= self.geo.nat_entries || id == 0 {
            return Err(Fault::new(format_args!("node id {id} is out of range")));
        }
        let word = self.region.load_u64(self.geo.nat_entry(id));
        match node::nat_decode(id, word, self.salt) {
            Some(Some(p)) if p >= self.geo.node_pages => Err(Fault::new(format_args!(
                "NAT entry of node {id} points outside the area"
            ))),
            Some(p) => Ok(p),
            None => Err(Fault::new(format_args!(
                "NAT entry of node {id} is damaged"
            ))),
        }
    }

    /// Pages that were written together are often read together: once homes are read in order, those behind are asked
    /// for.
    fn read_ahead(&self, page: u64) {
        let last = self.last_read.swap(page, Ordering::Relaxed);
        let is_next = (last + 1..last + 4).contains(&page);
        if is_next && page / AHEAD != last / AHEAD {
            let first = (page / AHEAD + 1) * AHEAD;
            let end = (first + AHEAD).min(self.geo.node_pages);
            if first < end {
                let bytes = (end - first) * BLOCK as u64;
                self.region.will_need(self.geo.node_page(first), bytes);
            }
        }
    }

    /// The home page of a node is read soon, if it has one.
    pub fn will_need(&self, id: u32) {
        if let Ok(Some(page)) = self.home_of(id) {
            self.region
                .will_need(self.geo.node_page(page), BLOCK as u64);
        }
    }

    /// Reads and checks the home page of a node; `None` if the node has none.
    ///
    /// # Errors
    /// [`FsError::Damaged`](crate::error::FsError::Damaged) if it is not one that the node can have, whatever its
    /// checksum says.
    pub fn home(&self, id: u32) -> Result<Option<PageBytes>> {
        self.look_home(id)
            .map_err(|fault| self.watch.damaged(fault))
    }

    /// [`NodeStore::home`] for a caller that looks for damage.
    pub fn look_home(&self, id: u32) -> std::result::Result<Option<PageBytes>, Fault> {
        let mut page = zero_page();
        if !self.read_home(id, &mut page)? {
            return Ok(None);
        }
        let kind = node::kind(&page[..]).ok_or(NodeError::Header);
        kind.map_err(|e| e.to_string())
            .and_then(|kind| {
                flaw::content(&self.geo, id, &page[..], kind).map_err(|e| e.to_string())
            })
            .map_err(|why| Fault::new(format_args!("node {id}: {why}")))?;
        Ok(Some(page))
    }

    /// Checks all there is to check of a node for itself; whether it has a page.
    pub fn verify(&self, id: u32) -> std::result::Result<bool, Fault> {
        let Some(page) = self.look_home(id)? else {
            return Ok(false);
        };
        if node::kind(&page[..]) == Some(NodeKind::Inodes) {
            let first = (u64::from(id) - self.geo.inode_base) * INODES_PER_PAGE;
            for slot in 0..INODES_PER_PAGE {
                let at = inode::offset(slot as usize);
                flaw::image(first + slot, &page[at..at + inode::SIZE])
                    .map_err(|flaw| Fault::new(format_args!("node {id}: {flaw}")))?;
            }
        }
        Ok(true)
    }

    /// The home page of a node in memory that is there; whether the node has one. Its checksum holds, and it is of
    /// this node. What is in it is not looked at: a caller that only adds to it writes back what was there.
    pub fn read_home(&self, id: u32, page: &mut PageBytes) -> std::result::Result<bool, Fault> {
        let mut last = None;
        loop {
            // The pin keeps digest from reusing a page that the NAT named when we looked.
            let pin = epoch::pin();
            let Some(p) = self.home_of(id)? else {
                return Ok(false);
            };
            self.read_ahead(p);
            self.region.read(self.geo.node_page(p), &mut page[..]);
            drop(pin);
            match node::check(&page[..], id, self.salt) {
                Ok(kind) => {
                    return match flaw::place(&self.geo, id, &page[..], kind) {
                        Ok(()) => Ok(true),
                        Err(flaw) => Err(Fault::new(format_args!("node {id} in page {p}: {flaw}"))),
                    };
                }
                Err(e) if last == Some(p) => {
                    return Err(Fault::new(format_args!("node {id} in page {p}: {e}")));
                }
                Err(_) => last = Some(p),
            }
        }
    }

    /// The newest version of a node page. It was checked when it was loaded.
    pub fn page(&self, id: u32) -> Result<Arc<Page>> {
        self.look_page(id)
            .map_err(|fault| self.watch.damaged(fault))
    }

    /// [`NodeStore::page`] for a caller that looks for damage.
    pub fn look_page(&self, id: u32) -> std::result::Result<Arc<Page>, Fault> {
        if let Some(p) = self.cache.get(&id) {
            return Ok(p.clone());
        }
        let bytes = match self.look_home(id)? {
            Some(b) => b,
            None => match self.static_kind(id) {
                Some(kind) => {
                    let mut b = zero_page();
                    node::init(&mut b[..], id, kind, 0);
                    b
                }
                None => return Err(Fault::new(format_args!("node {id} does not exist"))),
            },
        };
        let page = Arc::new(Page::new(bytes, 0));
        // Another reader may have been faster; a writer cannot, the owner's lock excludes it.
        Ok(self.cache.entry(id).or_insert(page).clone())
    }

    /// Makes `page` the newest version of node `id`.
    pub fn publish(&self, id: u32, page: Page) {
        self.cache.insert(id, Arc::new(page));
    }

    /// Record `seq` has changed node `id`, which was `before`: these bytes are at these offsets now. The page stays
    /// where it is unless another thread is still looking at it.
    pub fn change<'d>(
        &self,
        id: u32,
        before: Arc<Page>,
        seq: u64,
        deltas: impl Iterator<Item = (usize, &'d [u8])>,
    ) {
        match self.cache.entry(id) {
            Entry::Occupied(mut e) => {
                drop(before);
                Arc::make_mut(e.get_mut()).change(seq, deltas);
            }
            // Not while the caller has it: only pages that no thread has are evicted.
            Entry::Vacant(e) => {
                let mut page = Arc::unwrap_or_clone(before);
                page.change(seq, deltas);
                e.insert(Arc::new(page));
            }
        }
    }

    /// Forgets the cached version of a freed node.
    pub fn forget(&self, id: u32) {
        self.cache.remove(&id);
    }

    /// Pages in the cache.
    pub fn cached(&self) -> usize {
        self.cache.len()
    }

    /// Drops cached pages whose last record is digested until about `keep` are left.
    pub fn evict(&self, digested: u64, keep: usize) {
        let mut surplus = self.cache.len().saturating_sub(keep);
        if surplus > 0 {
            self.cache.retain(|_, p| {
                let drop = surplus > 0 && p.seq <= digested && Arc::strong_count(p) == 1;
                surplus -= usize::from(drop);
                !drop
            });
        }
    }

    /// Reserves `n` pages. Deletes and truncates (`privileged`) may use some that ordinary operations leave alone;
    /// none may use those that digest needs (ordering 6).
    pub fn reserve(&self, n: u64, privileged: bool) -> bool {
        if n == 0 {
            return true;
        }
        let keep = self.reserve + if privileged { 0 } else { self.privileged };
        let limit = self.geo.node_pages.saturating_sub(keep);
        self.live
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, |l| {
                (l + n <= limit).then_some(l + n)
            })
            .is_ok()
    }

    /// Gives back reserved pages that are not needed (any more).
    pub fn unreserve(&self, n: u64) {
        if n > 0 {
            self.live.fetch_sub(n, Ordering::AcqRel);
        }
    }

    /// Marks the page of a static node as existing; whether it did not before, in which case the
    /// caller's reservation covers it from now on.
    pub fn touch_static(&self, id: u32) -> bool {
        let bit = 1 << (id % 64);
        self.present[id as usize / 64].fetch_or(bit, Ordering::AcqRel) & bit == 0
    }

    /// The page of a static node is gone; whether it was counted as existing.
    pub fn untouch_static(&self, id: u32) -> bool {
        let bit = 1 << (id % 64);
        self.present[id as usize / 64].fetch_and(!bit, Ordering::AcqRel) & bit != 0
    }

    /// Accounts for a page that digest creates without a reservation: an inode page that was dropped
    /// as empty while an operation was about to use it. The reserve covers it.
    pub fn force_live(&self) {
        self.live.fetch_add(1, Ordering::AcqRel);
    }

    /// Pages that ordinary operations can still be reserved.
    pub fn available(&self) -> u64 {
        let limit = self
            .geo
            .node_pages
            .saturating_sub(self.reserve + self.privileged);
        limit.saturating_sub(self.live.load(Ordering::Acquire))
    }

    /// Pages of the inode table that exist or are reserved.
    pub fn inode_pages(&self) -> u64 {
        let (first, end) = (self.geo.inode_base, self.geo.inode_end());
        let words = first / 64..end.div_ceil(64);
        words
            .map(|w| {
                let mut word = self.present[w as usize].load(Ordering::Relaxed);
                if w == first / 64 {
                    word &= u64::MAX << (first % 64);
                }
                if end < (w + 1) * 64 {
                    word &= !(u64::MAX << (end % 64));
                }
                u64::from(word.count_ones())
            })
            .sum()
    }

    /// Pages reserved or in use.
    pub fn live(&self) -> u64 {
        self.live.load(Ordering::Acquire)
    }

    /// Takes a free physical page for digest.
    pub fn take_page(&self) -> Option<u64> {
        self.free.lock().pop()
    }

    /// Number of free physical pages.
    pub fn free_pages(&self) -> usize {
        self.free.lock().len()
    }

    /// Returns pages that never became reachable.
    pub fn put_back_pages(&self, pages: &[u64]) {
        self.free.lock().extend_from_slice(pages);
    }

    /// Returns pages that the NAT does not name any more, after a grace period: a reader may
    /// still be copying them.
    pub fn retire_pages(&self, pages: Vec<u64>) {
        if pages.is_empty() {
            return;
        }
        let free = Arc::clone(&self.free);
        let pin = epoch::pin();
        pin.defer(move || free.lock().extend(pages));
        pin.flush();
    }
}
