//! From an opened volume to an engine that answers.
//!
//! Undo and close the open page-table transaction, scan the journal, digest what is above digested_seq with the
//! same function as ever, build the staged map, begin a new epoch. Nothing here grows with the
//! size of the data device or the number of files.

use quayfs_shown::count;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quayfs_background::digest::{Batch, Scratch};
use quayfs_journal::{
    Death, Journal, JournalError, JournalOptions, RecoveredTo, Scan, StagedMap, Staging,
};
use quayfs_layout::config::{ConfigTable, FEATURE_PIPELINE, FEATURE_PROPOSALS};
use quayfs_layout::geometry::Geometry;
use quayfs_layout::inode::ROOT;
use quayfs_layout::jsb::PROPOSALS;
use quayfs_layout::jsb::{EpochWord, WordKind};
use quayfs_options::{DataMode, Durability, MountOptions, Quota};
use quayfs_pmem::{Backend, Region};
use quayfs_ppt::{Ppt, PptError};
use quayfs_store::behind;
use quayfs_store::damage::Watch;
use quayfs_store::engine::{Engine, Parts};
use quayfs_store::error::FsError;
use quayfs_store::metrics::Metrics;
use quayfs_store::ns::inode::read_image;
use quayfs_store::ns::node::{NodeStore, record_pages};
use quayfs_sync::Pacing;

use crate::volume::{Access, Volume};

mod geometry;

pub use geometry::{batch_log, journal_geometry, ppt_geometry};

/// Records of one digest batch during recovery.
const BATCH_RECORDS: usize = 8192;

/// Why a volume cannot be mounted. Prints as one line.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The journal cannot be read.
    #[error("journal: {0}")]
    Journal(#[from] JournalError),
    /// The page table cannot be read.
    #[error("page table: {0}")]
    Ppt(#[from] PptError),
    /// Metadata cannot be read.
    #[error("metadata: {0}")]
    Fs(#[source] FsError),
    /// The data device cannot be flushed.
    #[error("data device: {0}")]
    Device(#[source] std::io::Error),
    /// The mount cannot go on without this.
    #[error("what the last daemon was writing to the data device cannot be written again: {0}")]
    WriteAgain(#[source] std::io::Error),
    /// A thread cannot be started.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// Damage that no crash leaves behind.
    #[error(
        "damaged ({}, first: {first}); `-o ro` shows what can be read, `quayfs fsck` lists all",
        quayfs_shown::count(*count, "finding")
    )]
    Damaged {
        /// Number of findings.
        count: u64,
        /// The first one.
        first: String,
    },
    /// A repair has begun and not ended.
    #[error(
        "a repair was interrupted; run `quayfs fsck --repair` again, `-o ro` shows what can be read"
    )]
    Repairing,
    /// The options do not fit the volume.
    #[error("{0}")]
    Options(String),
}

impl From<FsError> for MountError {
    fn from(e: FsError) -> Self {
        match e {
            FsError::Damaged(damage) => Self::Damaged {
                count: 1,
                first: damage.to_string(),
            },
            e => Self::Fs(e),
        }
    }
}

/// The durability mode in force on a backend.
pub fn durability(options: &MountOptions, backend: Backend) -> Durability {
    let default = match backend {
        Backend::File => Durability::Commit,
        Backend::Dax | Backend::Volatile => Durability::Op,
    };
    options.durability_for(default)
}

/// Places of proposals for a mount. Where data goes to the device directly a record depends on more than the log, and a
/// commit is two drains.
fn proposals(backend: Backend, options: &MountOptions, config: &ConfigTable) -> u8 {
    let has = |feature| config.compat[2] & feature != 0;
    let alone = backend.needs_drain() && options.data == DataMode::Journal;
    match (alone && has(FEATURE_PROPOSALS), has(FEATURE_PIPELINE)) {
        (false, _) => 0,
        (true, false) => PROPOSALS as u8 - 1,
        (true, true) => PROPOSALS as u8,
    }
}

/// Recovers a volume. A crash during recovery, and another during that recovery, change nothing:
/// every step can be repeated, and the new epoch comes last.
///
/// On a private copy ([`Access::ReadOnly`]) damage is survived as well: what cannot be read is left
/// out, and records behind damage are given up. On the media themselves that is refused for
/// mounting, and done for `options.read_only`, which is how repair asks for it.
pub fn recover(volume: &Volume, options: &MountOptions) -> Result<Engine, MountError> {
    recover_telling(volume, options, &mut |_| ())
}

/// As [`recover`], which tells what parts of records it leaves out, and why.
pub fn recover_telling(
    volume: &Volume,
    options: &MountOptions,
    left_out: &mut dyn FnMut(String),
) -> Result<Engine, MountError> {
    let mut r = Recovery::of(volume, options)?;
    r.write_again()?;
    let (ppt, undone) = r.attach_table()?;
    let scan = r.scan_journal()?;
    if let Some(predecessor) = volume.predecessor() {
        predecessor.judge(&scan);
    }
    if !scan.clean() {
        r.make_durable(&scan)?;
    }
    r.clock.lap("scan");
    let nodes = r.attach_nodes()?;
    // Damage makes later records unreliable; what is before it is as good as ever.
    let intact = scan.intact_upto();
    let replayed = scan.records.iter().take_while(|r| r.seq <= intact).count();
    let digested = r.replay(&scan, replayed, &nodes, left_out)?;
    r.check_root(&nodes)?;
    let staged = StagedMap::default();
    let settled = scan.live.iter().filter(|l| l.seq <= digested);
    staged.publish_all(settled.map(|l| (l.lbn, l.slot())));
    let (closed, staged_blocks) = (scan.closed, staged.len());
    r.clock.lap("staged map");
    let journal = r.begin_epoch(scan, digested)?;
    let mut engine = Engine::new(Parts {
        config: volume.config().clone(),
        options: options.clone(),
        durability: r.mode,
        region: Arc::clone(volume.region()),
        device: Arc::clone(volume.device()),
        nodes,
        journal,
        staged,
        ppt,
        one_device: volume.is_one_device(),
    })?;
    if volume.predecessor().is_some() {
        engine.inodes.presume();
    }
    r.tell_of_damage(engine.watch());
    if let Some(postings) = volume.postings() {
        engine.behind.outlive(Arc::clone(postings));
    }
    r.clock.lap("allocators");
    if options.ablation.node_log_on_device && !options.read_only {
        engine.log_on_device()?;
    }
    let clock = r.clock;
    let took = clock.last - clock.start;
    Metrics::add(&engine.metrics.recovery_us, took.as_micros() as u64);
    Metrics::add(&engine.metrics.records_replayed, replayed as u64);
    tracing::info!(
        "volume {}, ready in {clock}: {}, {} replayed, {} staged, {} undone",
        crate::uuid_text(engine.config.uuid),
        if closed.is_clean() {
            "clean"
        } else {
            "not unmounted"
        },
        count(replayed as u64, "record"),
        count(staged_blocks as u64, "block"),
        count(undone, "page-table entry"),
    );
    Ok(engine)
}

/// The steps of a recovery, and what all of them need.
struct Recovery<'v> {
    volume: &'v Volume,
    options: &'v MountOptions,
    region: &'v Arc<Region>,
    mode: Durability,
    /// Of the volume: what its structures are told by.
    salt: u64,
    /// A mount that may write nothing has nothing to lose by a guess.
    lenient: bool,
    /// What it has passed over because of that: the first damage.
    obstacle: Option<MountError>,
    clock: Clock,
}

impl<'v> Recovery<'v> {
    /// Refuses what is not to be recovered at all.
    fn of(volume: &'v Volume, options: &'v MountOptions) -> Result<Self, MountError> {
        let clock = Clock::start();
        let region = volume.region();
        let (g, salt) = (&volume.config().geometry, volume.config().salt());
        let lenient = options.read_only;
        if volume.access() == Access::ReadOnly && !lenient {
            return Err(MountError::Options(
                "the volume was opened for reading only".into(),
            ));
        }
        if options.quota == Some(Quota::On) && !volume.config().counts_owners() {
            return Err(MountError::Options(
                "quotas: the volume was made before users and groups were counted, or without a quota table; \
                 drop usrquota and grpquota"
                    .into(),
            ));
        }
        let epoch = region.load_u64(g.jsb_off + WordKind::Epoch.offset());
        if !lenient && EpochWord::decode(epoch, salt).is_some_and(|e| e.repairing) {
            return Err(MountError::Repairing);
        }
        if !lenient {
            volume.settle_config().map_err(FsError::from)?;
        }
        Ok(Self {
            volume,
            options,
            region,
            mode: durability(options, region.backend()),
            salt,
            lenient,
            obstacle: None,
            clock,
        })
    }

    fn geometry(&self) -> &'v Geometry {
        &self.volume.config().geometry
    }

    /// Records of the log may name what the last daemon had not written when it died. On the device it is before
    /// anything of it is looked at.
    fn write_again(&mut self) -> Result<(), MountError> {
        let Some(postings) = self.volume.postings() else {
            return Ok(());
        };
        let (device, first) = (self.volume.device(), self.geometry().data_start);
        let count =
            behind::write_again(postings, &**device, first).map_err(MountError::WriteAgain)?;
        if count > 0 {
            tracing::info!("{count} writes that the last daemon had under way are written again");
        }
        self.clock.lap("writes under way");
        Ok(())
    }

    /// Undoes and closes the open page-table transaction; how many entries that was.
    fn attach_table(&mut self) -> Result<(Ppt, u64), MountError> {
        let attach = if self.lenient {
            Ppt::salvage
        } else {
            Ppt::attach
        };
        let geometry = ppt_geometry(self.geometry(), self.salt);
        let (ppt, attached) = attach(Arc::clone(self.region), geometry)?;
        if let Some(d) = &attached.damage {
            tracing::warn!("page table log: {d:?}");
            if attached.salvaged {
                self.pass_over(MountError::Ppt(PptError::Log(*d)))?;
            }
        }
        self.clock.lap("page table");
        Ok((ppt, attached.undone))
    }

    fn scan_journal(&mut self) -> Result<Scan, MountError> {
        let geometry = journal_geometry(self.geometry(), self.salt);
        // What is opened for reading only is as the last machine has left it: no daemon stores to it.
        let is_used = self.volume.access() == Access::ReadWrite;
        let death = match self.volume.predecessor().filter(|_| is_used) {
            Some(_) => Death::OfDaemon,
            None => Death::OfMachine,
        };
        let scan = Journal::scan_after(death, Arc::clone(self.region), &geometry)?;
        for d in &scan.damage {
            tracing::error!("journal: {d}");
        }
        if let Some(first) = scan.damage.first() {
            self.pass_over(MountError::Damaged {
                count: scan.damage.len() as u64,
                first: first.to_string(),
            })?;
        }
        Ok(scan)
    }

    /// Damage refuses a mount that may write.
    fn pass_over(&mut self, why: MountError) -> Result<(), MountError> {
        if !self.lenient {
            return Err(why);
        }
        self.obstacle.get_or_insert(why);
        Ok(())
    }

    /// The daemon may have died with words stored and not flushed, or flushed and not drained. Recovery builds on what
    /// it reads, so that has to be durable first, should power fail next.
    fn make_durable(&self, scan: &Scan) -> Result<(), MountError> {
        let g = self.geometry();
        self.region.flush(g.nat_off, g.nat_entries * 8);
        self.region.drain().map_err(FsError::from)?;
        if self.volume.access() == Access::ReadWrite && !self.lenient {
            // The same for blocks that it wrote and nothing has flushed: after this, whatever can be read is durable,
            // and no `fsync` of this life has to flush for an earlier one.
            self.volume.device().flush().map_err(MountError::Device)?;
        }
        // Before anything is changed on the strength of records that a power failure would have taken back.
        scan.adopt()?;
        Ok(())
    }

    /// What has been passed over, here or when the volume was opened.
    fn tell_of_damage(&mut self, watch: &Watch) {
        let obstacle = self.obstacle.take().map(|why| why.to_string());
        let met = || watch.noted().pop().filter(|_| watch.found() > 0);
        let why = (self.volume.obstacle().map(str::to_string))
            .or(obstacle)
            .or_else(|| met().map(|noted| noted.what));
        if let Some(why) = why.filter(|_| self.lenient) {
            watch.passed_over(why);
        }
    }

    fn attach_nodes(&mut self) -> Result<Arc<NodeStore>, MountError> {
        let nodes = self.look_at_nodes(Watch::new(self.options));
        if let Some((count, first)) = nodes.damage() {
            tracing::error!("metadata: {first} ({count} such findings)");
            self.pass_over(MountError::Damaged {
                count,
                first: first.into(),
            })?;
        }
        self.clock.lap("nodes");
        Ok(Arc::new(nodes))
    }

    /// Of a mount without a root nothing can be reached. One that goes on is better than none: files that are open can be read.
    fn check_root(&self, nodes: &NodeStore) -> Result<(), MountError> {
        if self.lenient || self.volume.predecessor().is_some() {
            return Ok(());
        }
        let why = match read_image(nodes, ROOT) {
            Ok(Some(image)) if image.is_dir() => return Ok(()),
            Ok(_) => "it is not there".into(),
            Err(FsError::Damaged(damage)) => damage.to_string(),
            Err(e) => return Err(e.into()),
        };
        Err(MountError::Damaged {
            count: 1,
            first: format!("the root directory: {why}"),
        })
    }

    fn look_at_nodes(&self, watch: Watch) -> NodeStore {
        NodeStore::attach(Arc::clone(self.region), *self.geometry(), self.salt, watch)
    }

    /// Digests the first `count` records of the scan, a batch at a time. Returns digested_seq.
    fn replay(
        &mut self,
        scan: &Scan,
        count: usize,
        nodes: &NodeStore,
        left_out: &mut dyn FnMut(String),
    ) -> Result<u64, MountError> {
        let room = record_pages(self.geometry()) as usize;
        let mut memory = Scratch::default();
        let mut digested = scan.digested;
        let mut done = 0;
        while done < count {
            let mut batch = match self.lenient {
                true => Batch::lenient(nodes, &mut memory),
                false => Batch::new(nodes, &mut memory),
            };
            let (first, free) = (done, nodes.free_pages());
            while done < count
                && (done == first || batch.pages() + room < free && done - first < BATCH_RECORDS)
            {
                let r = &scan.records[done];
                batch.apply(r.seq, &r.items)?;
                done += 1;
            }
            for first in batch.left_out() {
                left_out(first.clone());
                self.pass_over(MountError::Damaged { count: 1, first })?;
            }
            let retired = batch.write(&mut Pacing::default())?;
            // Committed words, then D: one call, in this order.
            digested = retired.seq;
            scan.store_digested(digested)?;
            nodes.put_back_pages(&retired.pages);
            // No operation has reserved these pages, and none gives them back.
            (0..retired.created).for_each(|_| nodes.force_live());
            nodes.unreserve(retired.freed + retired.dropped);
        }
        // What was counted along the way is what the NAT says now, if it says anything sensible.
        debug_assert!(
            nodes.damage().is_some() || {
                let n = self.look_at_nodes(Watch::bystander());
                n.live() == nodes.live() && n.free_pages() == nodes.free_pages()
            },
            "node pages are miscounted"
        );
        self.clock.lap("digest");
        Ok(digested)
    }

    /// Everything that was read is where this life expects it, up to D: makes the journal usable.
    fn begin_epoch(&mut self, scan: Scan, digested: u64) -> Result<Journal, MountError> {
        let options = self.options;
        let buffers = options.buffers.map_or(usize::MAX, |n| n as usize);
        let staging = match options.ablation.central_staging {
            true => Staging::Central,
            false => Staging::Sharded,
        };
        let backend = self.region.backend();
        let journal = scan.into_journal(
            RecoveredTo { digested },
            JournalOptions {
                buffers,
                staging,
                proposals: proposals(backend, options, self.volume.config()),
                ..JournalOptions::new(mode_of_journal(self.mode))
            },
        )?;
        self.clock.lap("epoch");
        let log = batch_log(self.geometry(), self.salt);
        if let Some(log) = log.filter(|_| self.volume.access() == Access::ReadWrite) {
            self.region.log_batches(&log).map_err(FsError::from)?;
        }
        Ok(journal)
    }
}

/// What recovery spends its time on.
struct Clock {
    start: Instant,
    last: Instant,
    laps: Vec<(&'static str, Duration)>,
}

impl Clock {
    fn start() -> Self {
        let now = Instant::now();
        Self {
            start: now,
            last: now,
            laps: Vec::new(),
        }
    }

    fn lap(&mut self, what: &'static str) {
        let now = Instant::now();
        self.laps.push((what, now - self.last));
        self.last = now;
    }
}

impl fmt::Display for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1?}", self.last - self.start)?;
        for (i, (what, time)) in self.laps.iter().enumerate() {
            write!(f, "{}{what} {time:.1?}", if i == 0 { " (" } else { ", " })?;
        }
        f.write_str(")")
    }
}

/// The journal's word for a mode.
fn mode_of_journal(durability: Durability) -> quayfs_journal::Durability {
    match durability {
        Durability::Op => quayfs_journal::Durability::Op,
        Durability::Commit => quayfs_journal::Durability::Commit,
    }
}
