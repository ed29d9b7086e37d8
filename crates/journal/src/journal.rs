//! The journal of a recovered volume.

use crate::Durability;
use crate::bounds::Bounds;
use crate::commit::Committing;
use crate::credits::Credits;
use crate::error::JournalError;
use crate::geometry::JournalGeometry;
use crate::lane::Lane;
use crate::queue::WaitQueue;
use crate::ring::SlotRing;
use crate::superblock::Superblock;
use crossbeam_utils::CachePadded;
use quayfs_layout::jsb::{Closed, WordKind};
use quayfs_layout::record::RecordSeed;
use quayfs_layout::slot::HeaderSeed;
use quayfs_pmem::{PmemError, Region};
use quayfs_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use quayfs_sync::{Condvar, Mutex, MutexGuard, lock_noting};
use std::sync::{Arc, OnceLock};

/// Which buffers operations use; an ablation switch, one code path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Staging {
    /// All of [`JournalOptions::buffers`].
    #[default]
    Sharded,
    /// The first buffer only, under one lock for staging and appending.
    Central,
}

/// A place in each lane.
#[derive(Clone, Debug)]
pub struct LogPositions(Vec<u64>);

/// How a journal is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalOptions {
    /// Fixed for the life of the mount; stored with the epoch.
    pub durability: Durability,
    /// How many of the formatted buffers to use, at least 1; capped at what is formatted.
    pub buffers: usize,
    /// Ablation switch.
    pub staging: Staging,
    /// Most bytes of records above digested_seq, over all lanes. Bounds recovery.
    pub log_bytes: u64,
    /// Most records above digested_seq, over all lanes. Bounds recovery.
    pub log_records: u64,
    /// Places of proposals. With some a commit is one drain, after which recovery looks whether all of it is there,
    /// instead of two; with all three ([`PROPOSALS`](quayfs_layout::jsb::PROPOSALS)) one is put together and written
    /// while the one before it waits for the device. For a medium where a drain is dear; the volume must have the
    /// features, and records must not depend on anything in the region but each other and what they stage.
    pub proposals: u8,
}

impl JournalOptions {
    /// The default limits: 16 MiB and 64 k records of live log, all buffers.
    pub fn new(durability: Durability) -> Self {
        Self {
            durability,
            buffers: usize::MAX,
            staging: Staging::Sharded,
            log_bytes: 16 << 20,
            log_records: 64 << 10,
            proposals: 0,
        }
    }
}

/// Makes durable what has been written to other media before it is called.
pub type Media = Box<dyn Fn() -> std::io::Result<()> + Send + Sync>;

/// One staging buffer: a slot ring, a record lane, and the credits for both.
pub(crate) struct Buffer {
    /// Part of the checksum of each of its slot headers.
    pub(crate) seed: HeaderSeed,
    pub(crate) ring: SlotRing,
    pub(crate) lane: CachePadded<Mutex<Lane>>,
    pub(crate) credits: CachePadded<Credits>,
    /// What `credits` would be with nothing in use.
    pub(crate) capacity: crate::credits::Amount,
}

/// Staging buffers, lanes and superblock of a recovered volume. Shared by reference; all methods may
/// be called from any thread.
///
/// ```
/// # use quayfs_journal::{Durability, Journal, JournalGeometry, JournalOptions, RecoveredTo};
/// use quayfs_journal::Need;
/// # use quayfs_pmem::Region;
/// # use std::sync::Arc;
/// #
/// # let geometry = JournalGeometry {
/// #     volume_salt: 1,
/// #     jsb_off: 0,
/// #     buffers: 1,
/// #     lane_off: 4096,
/// #     lane_bytes: 8192,
/// #     slot_hdr_off: 12288,
/// #     slots_per_buffer: 4,
/// #     slot_data_off: 16384,
/// # };
/// # let region = Arc::new(Region::anonymous(16384 + 4 * 4096));
/// # Journal::format(&region, &geometry, Durability::Commit)?;
/// # let scan = Journal::scan(Arc::clone(&region), &geometry)?;
/// # let options = JournalOptions::new(Durability::Commit);
/// # let journal = scan.into_journal(RecoveredTo { digested: 0 }, options)?;
/// let need = Need { slots: 0, record_bytes: 3, prefer: 0 };
/// let append = |items: &[u8]| {
///     let credit = journal.acquire(need).expect("an empty journal has room");
///     journal.append(credit, vec![], items)
/// };
/// append(b"one")?;
/// let second = append(b"two")?;
/// append(b"six")?;
/// // In `commit` mode nothing is durable before this, and then all of it up to a number.
/// let covered = journal.commit(Some(second.seq))?;
/// assert!(covered >= second.seq);
///
/// // Digest: the records are applied to what they describe, and their log space returns.
/// for record in journal.read_records(0, covered, usize::MAX, usize::MAX)?.iter() {
///     println!("{}: {:?}", record.seq, record.items);
///     journal.mark_committed(record);
/// }
/// journal.set_digested(covered)?;
/// assert_eq!(journal.digested(), covered);
/// # Ok::<(), quayfs_journal::JournalError>(())
/// ```
///
/// Lock order, as far as this crate is concerned: central, digest or retire, the turn to commit, lane. The lane
/// lock is a leaf but for the drain of the region, `committing` one altogether.
pub struct Journal {
    pub(crate) region: Arc<Region>,
    pub(crate) geo: JournalGeometry,
    /// Part of the checksums of each record.
    pub(crate) record_seed: RecordSeed,
    pub(crate) epoch: u32,
    pub(crate) durability: Durability,
    pub(crate) buffers: Vec<Buffer>,
    /// How many of `buffers` take new work.
    pub(crate) active: usize,
    pub(crate) bounds: Bounds,
    pub(crate) commit_ts: AtomicU64,
    pub(crate) digested: AtomicU64,
    pub(crate) retired: AtomicU64,
    pub(crate) committing: Mutex<Committing>,
    /// A commit has ended, or has been written, or one that waits for another can take something along.
    pub(crate) committed: Condvar,
    /// A commit can begin and there is something in the queue, or the queue is to end.
    pub(crate) queued: Condvar,
    pub(crate) proposals: u8,
    /// The highest number of a record that needs more than the log ([`Credit::depend_on_media`](crate::Credit)).
    pub(crate) dependent: AtomicU64,
    pub(crate) media: OnceLock<Media>,
    pub(crate) digest_lock: Mutex<()>,
    pub(crate) retire_lock: Mutex<()>,
    pub(crate) central: Option<Mutex<()>>,
    /// Waiters for slots, and waiters for log space alone: an operation that only frees things must
    /// not queue behind writers when no round can make progress.
    pub(crate) slot_waiters: WaitQueue,
    pub(crate) log_waiters: WaitQueue,
    pub(crate) stopped: AtomicBool,
    pub(crate) closed: AtomicBool,
    pub(crate) counters: crate::stats::Counters,
}

impl Journal {
    pub(crate) fn jsb(&self) -> Superblock<'_> {
        Superblock {
            region: &self.region,
            geo: &self.geo,
        }
    }

    pub(crate) fn buffer(&self, buffer: u16) -> &Buffer {
        &self.buffers[usize::from(buffer)]
    }

    /// `Ok` as long as the journal accepts work.
    ///
    /// # Errors
    /// [`JournalError::Stopped`] after a failed drain or commit, [`JournalError::Closed`] after
    /// [`Journal::set_clean`].
    pub fn check(&self) -> Result<(), JournalError> {
        if self.stopped.load(Ordering::Acquire) {
            return Err(JournalError::Stopped);
        }
        if self.closed.load(Ordering::Acquire) {
            return Err(JournalError::Closed);
        }
        Ok(())
    }

    /// Nothing that was not durable may be built upon.
    pub(crate) fn stop(&self, e: PmemError) -> JournalError {
        self.stopped.store(true, Ordering::Release);
        self.wake();
        JournalError::Pmem(e)
    }

    /// Drains the region; a failure stops the journal for good.
    #[track_caller]
    pub(crate) fn drain(&self) -> Result<(), JournalError> {
        self.region.drain().map_err(|e| self.stop(e))
    }

    /// Whether a caller waits for slots. Not exact: meant for a thread that decides how fast to free some.
    pub fn slots_are_wanted(&self) -> bool {
        self.slot_waiters.is_waiting()
    }

    /// Whether more than one part in so many of the log is in use or promised to an operation. Takes no lock, and is
    /// as exact as that allows.
    pub fn log_uses_more_than_one_in(&self, parts: u64) -> bool {
        let (mut all, mut left) = (0, 0);
        for buffer in &self.buffers[..self.active] {
            all += buffer.capacity.lines;
            left += buffer.credits.left().lines;
        }
        all.saturating_sub(left) * parts > all
    }

    /// Whether a caller waits for slots or for log space, or did a moment ago.
    pub fn room_is_wanted(&self) -> bool {
        self.slot_waiters.is_waiting() || self.log_waiters.is_waiting()
    }

    pub(crate) fn wake(&self) {
        self.slot_waiters.wake();
        self.log_waiters.wake();
    }

    pub(crate) fn enter_central(&self) -> Option<MutexGuard<'_, ()>> {
        let central = self.central.as_ref()?;
        Some(lock_noting(central, || self.counters.count_central_wait()))
    }

    /// Log epoch of this mount.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Durability mode of this mount.
    pub fn durability(&self) -> Durability {
        self.durability
    }

    /// Number of staging buffers that take new work.
    pub fn buffers(&self) -> usize {
        self.active
    }

    /// D: every record at or below it has been digested, durably.
    pub fn digested(&self) -> u64 {
        self.digested.load(Ordering::Acquire)
    }

    /// The highest number handed to [`Journal::advance_heads`], or recovered.
    pub fn retired(&self) -> u64 {
        self.retired.load(Ordering::Acquire)
    }

    /// How far each lane has come.
    pub fn log_positions(&self) -> LogPositions {
        let tails = self.buffers.iter().map(|b| b.lane.lock().tail);
        LogPositions(tails.collect())
    }

    /// Appends to `out` what was logged since `from`, fillers included, and moves that on. Records up to every
    /// number taken before this call are among it. What is behind `from` must not be digested yet.
    pub fn read_appended(&self, from: &mut LogPositions, out: &mut Vec<u8>) {
        for (lane, at) in from.0.iter_mut().enumerate() {
            // A thread that took a number holds this lock until its record is there.
            let tail = self.buffers[lane].lane.lock().tail;
            while *at < tail {
                let within = *at % self.geo.lane_bytes;
                let len = (tail - *at).min(self.geo.lane_bytes - within);
                let bytes = self.region.read_vec(self.geo.lane(lane) + within, len);
                out.extend_from_slice(&bytes);
                *at += len;
            }
        }
    }

    /// Bytes of the largest record, header and padding included.
    pub fn max_record_bytes(&self) -> u64 {
        self.geo.max_record_bytes()
    }

    /// The last sequence number taken. Whatever happened before this call has a number at or below.
    pub fn last_seq(&self) -> u64 {
        self.bounds.last_taken()
    }

    /// Marks the volume as cleanly unmounted and closes the journal: every later operation is
    /// refused. `staged`: so many blocks are left in their slots, for the next mount; `None`: all slots are retired.
    /// Durable when it returns.
    ///
    /// # Errors
    /// [`JournalError::NotRecovered`] if a record is not digested yet, [`JournalError::Pmem`].
    pub fn set_clean(&self, staged: Option<u64>) -> Result<(), JournalError> {
        self.check()?;
        self.closed.store(true, Ordering::Release);
        self.wake();
        // Threads that passed the check before this are in a lane now, or will see `closed` there.
        for buffer in &self.buffers {
            drop(buffer.lane.lock());
        }
        let (last, digested) = (self.bounds.last_taken(), self.digested());
        if last != digested {
            self.closed.store(false, Ordering::Release);
            return Err(JournalError::NotRecovered { last, digested });
        }
        // Clean means clean in this epoch: the next mount's epoch revokes it.
        let closed = match staged {
            None => Closed::Empty,
            Some(blocks) => {
                // A crash between the two may leave another number there, which nothing depends on.
                self.jsb().store(WordKind::Staged, blocks);
                Closed::Staged
            }
        };
        self.jsb().store(WordKind::Clean, closed.number(self.epoch));
        if self.durability == Durability::Commit {
            // What proposals have said until now.
            self.jsb().store(WordKind::CommitTs, last);
        }
        self.drain()
    }
}
