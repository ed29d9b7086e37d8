//! What all operations share: the journal, the page table, the allocators, the caches.
//!
//! The engine knows transactions but no operations; `fs` is built on it. Background work
//! (`background`) and operations meet here: shortages are relieved, freed numbers come back.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use quayfs_blockdev::BlockDevice;
use quayfs_journal::{Journal, StagedMap};
use quayfs_layout::config::{ConfigTable, Geometry};
use quayfs_pmem::{Backend, Region};
use quayfs_ppt::{BlockState, Ppt};

use crate::config::{DataMode, Durability, MountOptions, OnError};
use crate::error::{FsError, Result, Shortage};
use crate::metrics::Metrics;
use crate::ns::alloc::{Allocator, Kind, NoScreen, Screen};
use crate::ns::dir::NameHash;
use crate::ns::inode::InodeCache;
use crate::ns::intent::Intents;
use crate::ns::node::NodeStore;
use crate::txn::Freed;

/// Cached node pages that eviction leaves alone (64 MiB).
const PAGES_KEPT: usize = 16 << 10;
/// Inode cells that eviction leaves alone.
const CELLS_KEPT: usize = 64 << 10;

/// Records and blocks after which digest is woken.
const KICK_EVERY: u64 = 2048;

/// What the background threads are asked to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Digest what can be digested.
    pub digest: bool,
    /// Run a checkpoint round, then a zero batch.
    pub round: bool,
    /// End.
    pub stop: bool,
}

/// Progress counters: whoever waits for relief looks for a change.
#[derive(Debug, Default)]
struct Progress {
    wanted: Wanted,
    digests: u64,
    rounds: u64,
}

/// See the module documentation.
pub struct Engine {
    /// Who the volume is.
    pub config: ConfigTable,
    /// How it is mounted.
    pub options: MountOptions,
    /// When operations are durable.
    pub durability: Durability,
    /// The pmem region.
    pub region: Arc<Region>,
    /// The data device.
    pub device: Arc<dyn BlockDevice>,
    /// Node pages.
    pub nodes: Arc<NodeStore>,
    /// LBN allocator.
    pub lbns: Allocator,
    /// Inode-number allocator.
    pub inos: Allocator,
    /// Node-id allocator.
    pub node_ids: Allocator,
    /// The journal.
    pub journal: Journal,
    /// Newest staged version of each block that has one.
    pub staged: StagedMap,
    /// The page table.
    pub ppt: Ppt,
    /// Inodes in DRAM.
    pub inodes: InodeCache,
    /// Orphans and unfinished truncates.
    pub intents: Intents,
    /// Name hash of the volume.
    pub hash: NameHash,
    /// Counters.
    pub metrics: Metrics,
    unseen: AtomicU64,
    deferred: Mutex<BTreeMap<u64, Vec<Freed>>>,
    deferred_blocks: AtomicU64,
    stopping: AtomicBool,
    read_only: AtomicBool,
    progress: Mutex<Progress>,
    work: Condvar,
    done: Condvar,
    /// There are no background threads: who runs short does their work.
    inline: AtomicBool,
    /// One digest at a time.
    pub(crate) digesting: Mutex<()>,
    /// One round or zero batch at a time.
    pub(crate) rounding: Mutex<()>,
    /// Last record that a device flush covers (`data=ordered`).
    pub flushed: AtomicU64,
}

/// What recovery hands over.
pub struct Parts {
    /// See [`Engine`].
    pub config: ConfigTable,
    /// See [`Engine`].
    pub options: MountOptions,
    /// See [`Engine`].
    pub durability: Durability,
    /// See [`Engine`].
    pub region: Arc<Region>,
    /// See [`Engine`].
    pub device: Arc<dyn BlockDevice>,
    /// See [`Engine`].
    pub nodes: Arc<NodeStore>,
    /// See [`Engine`].
    pub journal: Journal,
    /// See [`Engine`].
    pub staged: StagedMap,
    /// See [`Engine`].
    pub ppt: Ppt,
}

impl Engine {
    /// Builds the engine over a recovered volume.
    pub fn new(p: Parts) -> Result<Self> {
        let g: Geometry = p.config.geometry;
        let policy = if p.options.ablation.file_locking {
            quayfs_rangelock::Policy::File
        } else {
            quayfs_rangelock::Policy::Range
        };
        // Who only reads needs none of this: damage to it must not keep him from his files.
        let lenient = p.options.read_only;
        let open = |kind, base, total| match Allocator::open(&p.nodes, kind, base, total) {
            Err(err) if lenient => {
                tracing::error!("{err}");
                Ok(Allocator::empty(kind, base, total))
            }
            other => other,
        };
        let lbns = open(Kind::Lbn, g.lbn_bitmap_base, g.visible_blocks())?;
        let inos = open(Kind::Inode, g.ino_bitmap_base, g.inodes())?;
        let node_ids = open(Kind::Node, g.dyn_bitmap_base, g.dyn_nodes())?;
        let intents = match Intents::open(&p.nodes) {
            Err(err) if lenient => {
                tracing::error!("{err}");
                Intents::empty(&g)
            }
            other => other?,
        };
        Ok(Self {
            hash: NameHash(p.config.hash_key),
            read_only: AtomicBool::new(p.options.read_only),
            config: p.config,
            options: p.options,
            durability: p.durability,
            region: p.region,
            device: p.device,
            nodes: p.nodes,
            lbns,
            inos,
            node_ids,
            journal: p.journal,
            staged: p.staged,
            ppt: p.ppt,
            inodes: InodeCache::new(policy),
            intents,
            metrics: Metrics::default(),
            unseen: AtomicU64::new(0),
            deferred: Mutex::default(),
            deferred_blocks: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
            progress: Mutex::default(),
            work: Condvar::new(),
            done: Condvar::new(),
            inline: AtomicBool::new(false),
            digesting: Mutex::new(()),
            rounding: Mutex::new(()),
            flushed: AtomicU64::new(0),
        })
    }

    /// First physical block of the data device that the page table maps.
    pub fn data_start(&self) -> u64 {
        self.config.geometry.data_start
    }

    /// The allocator of a kind of number.
    pub fn allocator(&self, kind: Kind) -> &Allocator {
        match kind {
            Kind::Lbn => &self.lbns,
            Kind::Inode => &self.inos,
            Kind::Node => &self.node_ids,
        }
    }

    /// What keeps freed numbers of a kind from being handed out at once.
    pub fn screen(&self, kind: Kind) -> &dyn Screen {
        match kind {
            Kind::Lbn => self,
            Kind::Inode | Kind::Node => &NoScreen,
        }
    }

    /// Fails if nothing may be changed.
    pub fn writable(&self) -> Result<()> {
        if self.read_only.load(Ordering::Acquire) {
            Err(FsError::ReadOnly)
        } else {
            Ok(())
        }
    }

    /// Whether nothing may be changed.
    pub fn is_read_only(&self) -> bool {
        self.read_only.load(Ordering::Acquire)
    }

    /// A device or a structure that everything depends on has failed: what can be read stays
    /// readable, nothing is changed any more.
    pub fn fail(&self, cause: &dyn std::fmt::Display) {
        if !self.read_only.swap(true, Ordering::AcqRel) {
            tracing::error!("{cause}; the mount is read-only from here on");
        }
        let _progress = self.progress.lock();
        self.done.notify_all();
        self.work.notify_all();
    }

    /// Damage was found in metadata; `errors=` decides what follows.
    pub fn damaged(&self, cause: &dyn std::fmt::Display) {
        match self.options.on_error {
            OnError::RemountRo => self.fail(cause),
            OnError::Continue => tracing::error!("{cause}"),
        }
    }

    /// Numbers freed by record `seq` come back once digest has passed it.
    pub fn defer_frees(&self, seq: u64, freed: Vec<Freed>) {
        if !freed.is_empty() {
            self.deferred_blocks
                .fetch_add(lbns_of(&freed), Ordering::AcqRel);
            self.deferred.lock().entry(seq).or_default().extend(freed);
            // Digest may have passed the record before its frees were known.
            let digested = self.journal.digested();
            if seq <= digested {
                self.release_digested(digested);
            }
        }
    }

    /// Brings back what records at or below the durable D have freed (ordering 4: nothing that a
    /// record above D released is consumed).
    pub fn release_digested(&self, digested: u64) {
        let due = {
            let mut all = self.deferred.lock();
            let later = all.split_off(&(digested + 1));
            std::mem::replace(&mut *all, later)
        };
        for f in due.into_values().flatten() {
            match f.kind {
                Kind::Lbn => {
                    let n = f.range.end - f.range.start;
                    self.lbns.add_pending(f.range);
                    self.deferred_blocks.fetch_sub(n, Ordering::AcqRel);
                }
                Kind::Inode => self.inos.release(f.range),
                Kind::Node => {
                    let n = f.range.end - f.range.start;
                    self.node_ids.release(f.range);
                    self.nodes.unpromise(n);
                }
            }
        }
    }

    /// Blocks that no file owns: free at once, after digest, or after a zero batch.
    pub fn blocks_free(&self) -> u64 {
        self.lbns.free() + self.deferred_blocks.load(Ordering::Acquire)
    }

    /// Drops cached objects beyond the limits whose records are digested.
    pub fn trim_caches(&self, digested: u64) {
        if self.inodes.len() > CELLS_KEPT + CELLS_KEPT / 4 {
            for w in self.inodes.evict(digested, CELLS_KEPT) {
                self.return_window(w);
            }
        }
        if self.nodes.cached() > PAGES_KEPT + PAGES_KEPT / 4 {
            self.nodes.evict(digested, PAGES_KEPT);
        }
    }

    /// LBNs taken ahead and not used go back to the allocator.
    pub fn return_window(&self, window: Range<u64>) {
        if !window.is_empty() {
            self.lbns.release(window);
        }
    }

    /// Takes back every append window; whether there were any.
    pub fn reclaim_windows(&self) -> bool {
        let mut any = false;
        self.inodes.for_each(|c| {
            if let Some(w) = c.window.try_lock().and_then(|mut w| w.take()) {
                any |= !w.is_empty();
                self.return_window(w);
            }
        });
        any
    }

    /// Makes everything appended so far durable and returns the sequence number it covers. In
    /// mode `op` there is nothing left to do.
    pub fn commit(&self) -> Result<u64> {
        if self.durability == Durability::Op {
            return Ok(self.journal.complete_upto());
        }
        // Not `complete_upto`: the number of a record whose operation has returned may lie above one
        // that is still being appended in another lane. The journal waits for that one.
        let cut = self.journal.last_seq();
        if self.journal.commit_ts() >= cut {
            return Ok(cut);
        }
        if self.options.data == DataMode::Ordered {
            // data=ordered: what the records refer to is on the device before they commit.
            self.flush_data(cut)?;
        }
        Metrics::add(&self.metrics.commits, 1);
        self.journal.commit(Some(cut)).map_err(|e| {
            self.fail(&e);
            FsError::io(e)
        })
    }

    /// Makes durable what records at or below `upto` have written to the data device directly.
    pub fn flush_data(&self, upto: u64) -> Result<()> {
        if self.flushed.load(Ordering::Acquire) < upto {
            // A number is taken after the data was written, so this covers what has one.
            let covered = self.journal.last_seq();
            self.device.flush().inspect_err(|e| self.fail(e))?;
            self.flushed.fetch_max(covered, Ordering::AcqRel);
        }
        Ok(())
    }

    /// Counts a record and the blocks it staged, and wakes digest now and then.
    pub fn appended(&self, blocks: u64) {
        Metrics::add(&self.metrics.blocks_staged, blocks);
        Metrics::add(&self.metrics.records, 1);
        let step = self.unseen.fetch_add(1 + blocks, Ordering::Relaxed) + 1 + blocks;
        if step >= KICK_EVERY {
            self.unseen.store(0, Ordering::Relaxed);
            self.kick(true, false);
        }
    }

    /// Asks the background threads to work.
    pub fn kick(&self, digest: bool, round: bool) {
        let mut p = self.progress.lock();
        let before = p.wanted;
        p.wanted.digest |= digest;
        p.wanted.round |= round;
        if p.wanted != before {
            self.work.notify_all();
        }
    }

    /// Set when the mount ends: chores stop where they are.
    pub fn stopping(&self) -> &AtomicBool {
        &self.stopping
    }

    /// Tells the background threads to end.
    pub fn stop(&self) {
        self.progress.lock().wanted.stop = true;
        self.work.notify_all();
    }

    /// Waits until `mine` picks something out of what is wanted, at most for `limit`; the picked
    /// part is taken.
    pub fn await_work(&self, limit: Duration, mut mine: impl FnMut(&mut Wanted) -> bool) -> Wanted {
        let mut p = self.progress.lock();
        loop {
            let asked = p.wanted;
            if asked.stop || mine(&mut p.wanted) {
                return asked;
            }
            if self.work.wait_for(&mut p, limit).timed_out() {
                return Wanted {
                    stop: p.wanted.stop,
                    ..Wanted::default()
                };
            }
        }
    }

    /// A digest pass or a round has ended.
    pub fn report(&self, digest: bool, round: bool) {
        let mut p = self.progress.lock();
        p.digests += u64::from(digest);
        p.rounds += u64::from(round);
        self.done.notify_all();
    }

    /// From here on whoever runs short does the work of the background threads, which do not run.
    pub fn relieve_inline(&self) {
        self.inline.store(true, Ordering::Release);
    }

    /// One digest pass, one round and one zero batch that begin after this call.
    fn cycle(&self) -> Result<()> {
        if self.inline.load(Ordering::Acquire) {
            crate::background::digest_all(self)?;
            crate::checkpoint::round(self)?;
            crate::checkpoint::zero_batch(self)?;
        } else {
            self.await_cycle();
        }
        Ok(())
    }

    /// Waits for one whole digest pass and one whole round that begin after this call.
    fn await_cycle(&self) {
        let mut p = self.progress.lock();
        // What runs now may have begun before our cause: wait for the end of the one after it.
        for _ in 0..2 {
            p.wanted.digest = true;
            p.wanted.round = true;
            self.work.notify_all();
            let (d, r) = (p.digests, p.rounds);
            while (p.digests == d || p.rounds == r) && !self.is_read_only() && !p.wanted.stop {
                self.done.wait_for(&mut p, Duration::from_millis(100));
            }
        }
    }

    /// Relieves a shortage. Fails with `NoSpace` when a whole cycle of commit, digest, round and
    /// zero batch has brought nothing (ordering 6).
    pub fn relieve(&self, short: Shortage, attempt: u32) -> Result<()> {
        self.writable()?;
        Metrics::add(&self.metrics.shortages, 1);
        match short {
            Shortage::Slots | Shortage::Log => {
                if self.durability == Durability::Commit {
                    self.commit()?;
                }
                if self.inline.load(Ordering::Acquire) {
                    return self.cycle();
                }
                self.kick(true, short == Shortage::Slots);
                Ok(())
            }
            Shortage::Blocks | Shortage::Nodes => {
                if self.reclaim_windows() {
                    return Ok(());
                }
                if attempt > 2 {
                    return Err(FsError::NoSpace);
                }
                self.commit()?;
                self.cycle()?;
                self.writable()
            }
        }
    }

    /// Runs an operation until it does not run short, with relief in between.
    pub fn retrying<T>(&self, mut op: impl FnMut() -> Result<T>) -> Result<T> {
        let mut attempt = 0;
        loop {
            match op() {
                Err(FsError::Short(s)) => {
                    attempt += 1;
                    self.relieve(s, attempt)?;
                }
                other => return other,
            }
        }
    }
}

impl Engine {
    /// Ends a mount: commits, digests, checkpoints everything and marks the volume clean. The
    /// background threads have ended and nothing calls operations any more.
    pub fn close(&self) -> Result<()> {
        if self.is_read_only() {
            return Ok(());
        }
        self.commit()?;
        crate::background::digest_all(self)?;
        while crate::checkpoint::round(self)?.slots > 0 {}
        crate::checkpoint::zero_batch(self)?;
        self.device.flush()?;
        self.journal.set_clean().map_err(FsError::io)
    }
}

impl Screen for Engine {
    /// LBNs whose bit is clear but that hold something: an entry in state written (a crash came
    /// between freeing or direct writing and the zero batch), or a live slot.
    fn unclean(&self, range: Range<u64>) -> Result<Vec<Range<u64>>> {
        let mut out: Vec<Range<u64>> = Vec::new();
        if self.region.backend() == Backend::Dax {
            // A previous daemon may have died between storing a zero entry and flushing it: what is
            // handed out on the strength of it must find it after a power failure.
            let map = self.config.geometry.l2p_map_off;
            self.region
                .flush(map + range.start * 8, (range.end - range.start) * 8);
            self.region.drain()?;
        }
        let probe = !self.staged.is_empty();
        for lbn in range {
            // A damaged entry is not handed out either; fsck reports it.
            let clean = matches!(self.ppt.lookup(lbn), Ok(m) if m.state == BlockState::Zero)
                && !(probe && self.staged.get(lbn).is_some());
            match out.last_mut() {
                _ if clean => {}
                Some(r) if r.end == lbn => r.end += 1,
                _ => out.push(lbn..lbn + 1),
            }
        }
        Ok(out)
    }
}

fn lbns_of(freed: &[Freed]) -> u64 {
    freed
        .iter()
        .filter(|f| f.kind == Kind::Lbn)
        .map(|f| f.range.end - f.range.start)
        .sum()
}

/// Translates the journal's word for a shortage.
pub fn shortage(s: quayfs_journal::Shortage) -> FsError {
    match s {
        quayfs_journal::Shortage::Slots => FsError::Short(Shortage::Slots),
        quayfs_journal::Shortage::Log => FsError::Short(Shortage::Log),
        quayfs_journal::Shortage::TooLarge => FsError::io("a record is larger than the log"),
        quayfs_journal::Shortage::Refused => FsError::io("the journal has stopped"),
    }
}

impl From<Durability> for quayfs_journal::Durability {
    fn from(d: Durability) -> Self {
        match d {
            Durability::Op => Self::Op,
            Durability::Commit => Self::Commit,
        }
    }
}
