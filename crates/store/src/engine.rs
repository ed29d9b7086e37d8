//! What all operations share: the journal, the page table, the allocators, the caches.
//!
//! The engine knows transactions but no operations; `fs` is built on it. Background work
//! (`background`) and operations meet here: space is reclaimed (`reclaim`), freed numbers come
//! back (`frees`).

mod commit;
mod frees;
mod gate;
mod orphans;
mod pieces;
mod reclaim;

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use quayfs_blockdev::BlockDevice;
use quayfs_journal::{Journal, JournalError, StagedMap};
use quayfs_layout::Lbn;
use quayfs_layout::config::ConfigTable;
use quayfs_options::{DataMode, Durability, MountOptions, Quota};
use quayfs_pmem::{Backend, PAGE, Region};
use quayfs_ppt::{Mapping, Ppt, PptError};
use quayfs_sync::Mutex;
use quayfs_sync::atomic::{AtomicBool, AtomicU64};
use quayfs_sync::time::Instant;

use crate::ahead::ReadAhead;
use crate::behind::Behind;
use crate::damage::Watch;
use crate::error::{FsError, Resource, Result};
use crate::metrics::Metrics;
use crate::nodelog::NodeLog;
use crate::ns::alloc::{Allocator, Kind, NoScreen, Screen};
use crate::ns::dir::NameHash;
use crate::ns::inode::{HANDLE_BYTES, InodeCache};
use crate::ns::intent::Intents;
use crate::ns::node::NodeStore;
use crate::ns::quota::Quotas;
use crate::partial::Partials;

use commit::media;
use frees::Deferred;
use gate::Gate;
use orphans::Orphans;
use pieces::Pieces;
use reclaim::Reclaim;
pub use reclaim::{BackgroundWork, Rest};

/// Cached node pages that eviction leaves alone, at most (64 MiB).
const PAGES_KEPT: u64 = 16 << 10;
/// Inode handles that eviction leaves alone, at most.
const CELLS_KEPT: u64 = 64 << 10;

/// What the caches may have, in pages and in handles. Eviction begins when they have a quarter more.
fn kept(options: &MountOptions) -> (usize, usize) {
    let count = |bytes: u64, each: usize, most: u64| (bytes / 5 * 4 / each as u64).min(most);
    let pages = count(options.memory_for_pages(), PAGE as usize, PAGES_KEPT);
    let handles = count(options.memory_for_inodes(), HANDLE_BYTES, CELLS_KEPT);
    (pages as usize, handles as usize)
}

/// See the module documentation.
pub struct Engine {
    /// Identity and layout of the volume.
    pub config: ConfigTable,
    /// How it is mounted.
    pub options: MountOptions,
    /// When operations are durable.
    pub durability: Durability,
    /// The pmem region.
    pub region: Arc<Region>,
    /// The data device, read through `ahead`.
    pub device: Arc<dyn BlockDevice>,
    /// What is read from it before it is asked for.
    pub ahead: Arc<ReadAhead>,
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
    /// Blocks that were written in part, for appends to them and reads of them.
    pub partials: Partials,
    /// The page table.
    pub ppt: Ppt,
    /// Inodes in DRAM.
    pub inodes: InodeCache,
    /// Orphans and unfinished truncates.
    pub intents: Intents,
    /// What projects, users and groups have and may have.
    pub quotas: Quotas,
    /// Name hash of the volume.
    pub hash: NameHash,
    /// Counters.
    pub metrics: Metrics,
    deferred: Deferred,
    reclaim: Arc<Reclaim>,
    gate: Gate,
    orphans: Orphans,
    /// The region's own code looks at it too.
    stopping: std::sync::atomic::AtomicBool,
    flush_failed: Arc<AtomicBool>,
    /// Large writes that the device does not have yet.
    pub behind: Arc<Behind>,
    /// What large writes go to.
    pub pieces: Pieces,
    /// Requests of so many bytes go to the data device directly, with `data=journal`; 0: none.
    pub large: u64,
    /// Pages and handles that stay in their caches.
    kept: (usize, usize),
    /// A flush of the region's disk is one of the data device: they are one.
    pub drain_flushes: bool,
    /// The copy of the records on the data device (`ablation=nodelog:ssd`).
    node_log: OnceLock<NodeLog>,
    /// Last record that a device flush covers (`data=ordered`).
    pub flushed: AtomicU64,
    /// When the last commit had ended, in milliseconds since `began`, and 1; 0: there was none. No thread waits for it.
    committed: std::sync::atomic::AtomicU64,
    began: Instant,
    /// One flush for records at a time. The next one covers what all threads that wait for their turn need.
    flushing: Mutex<()>,
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
    /// Region and data device are one: what is flushed there is flushed here.
    pub one_device: bool,
}

/// From how many bytes on a request goes to the data device directly: it would be written twice else, and a commit
/// waits for a few more flushes instead. On memory the first time costs little.
fn large(options: &MountOptions, durability: Durability, backend: Backend) -> u64 {
    const LARGE: u64 = 128 << 10;
    let journaled = options.data == DataMode::Journal && !options.ablation.node_log_on_device;
    match options.large {
        _ if !journaled || durability == Durability::Op => 0,
        Some(bytes) => bytes,
        None if backend.needs_drain() => LARGE,
        None => 0,
    }
}

/// What is read when the volume is opened.
struct Tables {
    lbns: Allocator,
    inos: Allocator,
    node_ids: Allocator,
    intents: Intents,
    quotas: Quotas,
}

impl Tables {
    /// `lenient`: a read-only mount needs none of them, and damage to one must not keep files from being read.
    fn open(nodes: &NodeStore, config: &ConfigTable, options: &MountOptions) -> Result<Self> {
        let (g, lenient) = (&config.geometry, options.read_only);
        let or_without = |what, err| match lenient {
            true => {
                tracing::warn!("opened without {what}: {err}");
                Ok(())
            }
            false => Err(err),
        };
        let allocator = |kind, base, total| {
            Allocator::open(nodes, kind, base, total).or_else(|err| {
                or_without("an allocator", err).map(|()| Allocator::empty(kind, base, total))
            })
        };
        Ok(Self {
            lbns: allocator(Kind::Lbn, g.lbn_bitmap_base, g.visible_blocks())?,
            inos: allocator(Kind::Inode, g.ino_bitmap_base, g.inodes())?,
            node_ids: allocator(Kind::Node, g.dyn_bitmap_base, g.dyn_nodes())?,
            intents: Intents::open(nodes)
                .or_else(|err| or_without("intents", err).map(|()| Intents::empty(g)))?,
            quotas: Quotas::open(nodes, config)
                .or_else(|err| or_without("quotas", err).map(|()| Quotas::empty(config)))?
                .enforcing(options.quota != Some(Quota::Off)),
        })
    }
}

impl Engine {
    /// Builds the engine over a recovered volume.
    pub fn new(p: Parts) -> Result<Self> {
        let policy = if p.options.ablation.file_locking {
            quayfs_rangelock::Policy::File
        } else {
            quayfs_rangelock::Policy::Range
        };
        let tables = Tables::open(&p.nodes, &p.config, &p.options)?;
        let ahead = Arc::new(ReadAhead::new(p.device));
        let (behind, flush_failed) = (Arc::new(Behind::default()), Arc::default());
        let drain_flushes = p.one_device && p.region.backend().needs_drain();
        p.journal
            .set_media(media(&behind, &ahead, &flush_failed, drain_flushes));
        let large = large(&p.options, p.durability, p.region.backend());
        let kept = kept(&p.options);
        let reclaim = Arc::new(Reclaim::default());
        let waiting = Arc::clone(&reclaim);
        // Threads that wait for reclaim look at the state of the mount again.
        p.nodes.watch().on_failure(move || waiting.wake_all());
        Ok(Self {
            hash: NameHash(p.config.hash_key),
            config: p.config,
            options: p.options,
            durability: p.durability,
            region: p.region,
            device: Arc::<ReadAhead>::clone(&ahead),
            ahead,
            nodes: p.nodes,
            lbns: tables.lbns,
            inos: tables.inos,
            node_ids: tables.node_ids,
            journal: p.journal,
            staged: p.staged,
            partials: Partials::default(),
            ppt: p.ppt,
            inodes: InodeCache::new(policy),
            intents: tables.intents,
            quotas: tables.quotas,
            metrics: Metrics::default(),
            deferred: Deferred::default(),
            reclaim,
            gate: Gate::default(),
            orphans: Orphans::default(),
            stopping: std::sync::atomic::AtomicBool::new(false),
            flush_failed,
            behind,
            pieces: Pieces::default(),
            large,
            kept,
            drain_flushes,
            node_log: OnceLock::new(),
            flushed: AtomicU64::new(0),
            committed: std::sync::atomic::AtomicU64::new(0),
            began: Instant::now(),
            flushing: Mutex::new(()),
        })
    }

    /// From here on commits write records to the data device as well (`ablation=nodelog:ssd`).
    ///
    /// # Errors
    /// [`FsError::NoSpace`]: there are too few free blocks.
    pub fn log_on_device(&self) -> Result<()> {
        let log = NodeLog::new(self)?;
        // Set once, when the mount begins.
        let _ = self.node_log.set(log);
        Ok(())
    }

    /// The copy of the records on the data device, with `ablation=nodelog:ssd`.
    pub fn node_log(&self) -> Option<&NodeLog> {
        self.node_log.get()
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
        if self.is_read_only() {
            Err(FsError::ReadOnly)
        } else {
            Ok(())
        }
    }

    /// Whether nothing may be changed.
    pub fn is_read_only(&self) -> bool {
        self.watch().is_read_only()
    }

    /// The watch that takes notice of damage and failures.
    pub fn watch(&self) -> &Watch {
        self.nodes.watch()
    }

    /// A device or a structure that everything depends on has failed: what can be read stays
    /// readable, nothing is changed any more.
    pub fn fail(&self, cause: &dyn std::fmt::Display) {
        self.watch().fail(cause);
    }

    /// What has made the mount read-only, if a failure has.
    pub fn failure(&self) -> Option<&str> {
        self.watch().failure()
    }

    /// Has `tell` called when the mount becomes read-only: once, by the thread that met the failure, which must not
    /// wait. Can be said once; what happened before is not told.
    pub fn on_failure(&self, tell: impl Fn() + Send + Sync + 'static) {
        self.watch().on_read_only(tell);
    }

    /// Where a block is on the device, and whether it is.
    ///
    /// # Errors
    /// [`FsError::Damaged`] if its entry of the page table is.
    pub fn mapping(&self, lbn: Lbn) -> Result<Mapping> {
        self.mapping_for(lbn, self.watch())
    }

    /// [`Engine::mapping`] for a caller with a watch of its own.
    pub fn mapping_for(&self, lbn: Lbn, watch: &Watch) -> Result<Mapping> {
        self.ppt.lookup(lbn).map_err(|err| of_table(err, watch))
    }

    /// What an error of the page table is to operations.
    pub fn table_error(&self, err: PptError) -> FsError {
        of_table(err, self.watch())
    }

    /// What an error of the journal is to operations.
    pub fn journal_error(&self, err: JournalError) -> FsError {
        match err {
            JournalError::Payload { .. } => FsError::content(err),
            JournalError::Record { .. } | JournalError::Superblock(_) => self.watch().damaged(err),
            other => FsError::device(other),
        }
    }

    /// Drops cached objects beyond the limits whose records are digested.
    pub fn trim_caches(&self, digested: u64) {
        let (pages, handles) = self.kept;
        if self.inodes.len() > handles + handles / 4 {
            for w in self.inodes.evict(digested, handles) {
                self.return_window(w);
            }
        }
        if self.nodes.cached() > pages + pages / 4 {
            self.nodes.evict(digested, pages);
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
}

fn of_table(err: PptError, watch: &Watch) -> FsError {
    match err {
        PptError::Damaged { .. } | PptError::Log(_) => watch.damaged(err),
        other => FsError::device(other),
    }
}

/// Translates the journal's word for a shortage.
pub fn shortage(s: quayfs_journal::AcquireError) -> FsError {
    match s {
        quayfs_journal::AcquireError::Slots => FsError::OutOf(Resource::Slots),
        quayfs_journal::AcquireError::Log => FsError::OutOf(Resource::Log),
        quayfs_journal::AcquireError::TooLarge => {
            FsError::internal("a record is larger than the log")
        }
        quayfs_journal::AcquireError::Refused => FsError::device("the journal has stopped"),
    }
}
