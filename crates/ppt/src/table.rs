//! The page table in use: looking up, and the changes that need no transaction.

use std::fmt;

use quayfs_layout::Lbn;
use quayfs_layout::l2p::{BlockState, Entry, ZERO_CRC};
use quayfs_sync::{Mutex, MutexGuard};
use rustc_hash::FxHashMap;

use crate::area::{Area, Raw};
use crate::txn::{Scratch, Txn};
use crate::{PptError, PptGeometry};

/// Entries that a read-only attach undid in DRAM.
pub(crate) type Overlay = FxHashMap<Lbn, Raw>;

/// Where a logical block is and what it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Its physical block, below the number of blocks.
    pub pbn: u64,
    /// What that block holds.
    pub state: BlockState,
    /// CRC-32C of the content; 0 in state [`BlockState::Zero`].
    pub crc: u32,
}

/// What only one thread at a time may change.
#[derive(Debug)]
pub(crate) struct Turn {
    /// Every transaction up to this one is finished.
    pub(crate) generation: u64,
    /// A drain failed: what is durable is no longer known.
    pub(crate) stopped: bool,
    /// Memory that one transaction leaves to the next: its first touch costs more than filling it.
    pub(crate) room: Scratch,
}

/// An attached page table. Share it as `Arc<Ppt>`.
///
/// Looking up takes no lock. While a transaction is being committed a lookup sees each of its
/// entries old or new. A caller that must not meet a mixture prevents it by other means. A caller
/// whose data does not fit the checksum looks up again before calling it damage.
///
/// ```
/// # use quayfs_pmem::Region;
/// use quayfs_ppt::{BlockState, Ppt, PptGeometry};
/// # use std::sync::Arc;
///
/// # let geometry = PptGeometry {
/// #     volume_salt: 1,
/// #     l2p_map_off: 4096,
/// #     l2p_crc_off: 8192,
/// #     blocks: 64,
/// #     l2p_log_off: 12288,
/// #     l2p_log_lanes: 1,
/// #     l2p_lane_bytes: 4096,
/// # };
/// # let region = Arc::new(Region::anonymous(32768));
/// Ppt::format(&region, &geometry)?;
/// region.drain()?;
/// let (table, report) = Ppt::attach(region, geometry)?;
/// assert_eq!(report.undone, 0, "nothing was interrupted");
///
/// // A new table maps each LBN to the block of the same number, which reads as zeros.
/// assert_eq!(table.lookup(5)?.pbn, 5);
/// // Fresh blocks whose content is on the device need no transaction.
/// table.write_direct(&[(5, 0x1234_5678)])?;
/// assert_eq!(table.lookup(5)?.state, BlockState::Written);
/// table.zero(&[5])?;
/// assert_eq!(table.lookup(5)?.state, BlockState::Zero);
/// # Ok::<(), quayfs_ppt::PptError>(())
/// ```
pub struct Ppt {
    pub(crate) area: Area,
    pub(crate) overlay: Overlay,
    pub(crate) turn: Mutex<Turn>,
}

impl Ppt {
    pub(crate) fn new(area: Area, overlay: Overlay, generation: u64) -> Self {
        Self {
            area,
            overlay,
            turn: Mutex::new(Turn {
                generation,
                stopped: false,
                room: Scratch::default(),
            }),
        }
    }

    /// The geometry this was attached with.
    pub fn geometry(&self) -> &PptGeometry {
        &self.area.geo
    }

    /// Stores the words that close the last transaction once more. The spare copy otherwise waits for
    /// the next fence of the thread that stored it, which may have ended; after this it is durable with
    /// the next drain of this thread.
    ///
    /// # Errors
    /// [`PptError::ReadOnly`], [`PptError::Stopped`], and [`PptError::Pmem`] if draining fails.
    pub fn close_again(&self) -> Result<(), PptError> {
        let turn = self.take_turn()?;
        self.area.close(turn.generation)
    }

    /// Number of LBNs.
    pub fn blocks(&self) -> u64 {
        self.area.geo.blocks
    }

    /// The most entries that one transaction can change.
    pub fn capacity(&self) -> u64 {
        self.area.geo.capacity()
    }

    /// Where `lbn` is.
    ///
    /// # Errors
    /// [`PptError::OutOfRange`], [`PptError::Damaged`].
    pub fn lookup(&self, lbn: Lbn) -> Result<Mapping, PptError> {
        self.decode(lbn, self.raw(lbn)?)
    }

    /// [`lookup`](Self::lookup) of `n` consecutive LBNs, each with its own result: damage to one
    /// entry says nothing of the next.
    pub fn read_run(&self, lbn: Lbn, n: usize) -> Vec<Result<Mapping, PptError>> {
        (0..n as u64)
            .map(|i| self.lookup(lbn.saturating_add(i)))
            .collect()
    }

    /// Begins a transaction. Waits while another one is open or a zeroing pass is running.
    ///
    /// # Errors
    /// [`PptError::ReadOnly`], [`PptError::Stopped`], [`PptError::Exhausted`].
    pub fn begin(&self) -> Result<Txn<'_>, PptError> {
        Txn::begin(self)
    }

    /// Sets LBNs to state zero, each by one store, in any order and repetition, and their checksums to
    /// that of a block of zeros: what is left of their content is not theirs any more. Durable when it
    /// returns; after a crash before that, any of them may be zero, with either checksum
    /// ([`is_zeroed`](Self::is_zeroed)).
    ///
    /// Waits while a transaction is open; a thread that has one open itself must not call this.
    ///
    /// # Errors
    /// [`PptError::OutOfRange`] and [`PptError::Damaged`] for the first LBN that is (nothing has
    /// been changed then), [`PptError::ReadOnly`], [`PptError::Stopped`], and [`PptError::Pmem`] if
    /// draining fails.
    pub fn zero(&self, lbns: &[Lbn]) -> Result<(), PptError> {
        let mut turn = self.take_turn()?;
        let mut changes = Vec::with_capacity(lbns.len());
        for &lbn in lbns {
            let now = self.lookup(lbn)?;
            if now.state != BlockState::Zero || self.raw(lbn)?.crc != ZERO_CRC {
                changes.push((
                    lbn,
                    Entry {
                        pbn: now.pbn,
                        state: BlockState::Zero,
                    },
                ));
            }
        }
        changes.sort_unstable_by_key(|&(lbn, _)| lbn);
        let mut batch = self.area.batch();
        for (lbn, entry) in changes {
            batch.store_entry(lbn, entry.encode(lbn, self.area.geo.volume_salt));
            // After the entry: a reader of what was there must not find this checksum with it.
            batch.store_crc(lbn, ZERO_CRC);
        }
        batch.flush();
        // Also when nothing was stored: an earlier store may be in flight, and the caller will
        // rely on the state.
        self.area
            .region
            .drain()
            .inspect_err(|_| turn.stopped = true)?;
        Ok(())
    }

    /// Whether an LBN is in state zero and its checksum is of nothing that it held before: a crash may have
    /// come between the two, and an earlier build has left the checksum as it was. Where it is 0 that build has
    /// never used the LBN.
    pub fn is_zeroed(&self, lbn: Lbn) -> bool {
        let raw = self.raw(lbn).ok();
        raw.is_some_and(|raw| {
            [0, ZERO_CRC].contains(&raw.crc)
                && matches!(self.decode(lbn, raw), Ok(m) if m.state == BlockState::Zero)
        })
    }

    /// Turns LBNs in state zero into written ones with the given content checksums, each by one
    /// store. The content must be durable on the data device before a file's reference to them is.
    ///
    /// Flushed when this returns, and durable, in no order, with the next fence of the calling
    /// thread; on [`Backend::File`](quayfs_pmem::Backend::File) with the next drain. Until a file
    /// refers to these LBNs no reader uses them, and the record that makes a file refer to them is
    /// fenced by the same thread. Runs beside a transaction that does not touch these LBNs.
    ///
    /// # Errors
    /// [`PptError::OutOfRange`], [`PptError::Damaged`] and [`PptError::NotZero`] for the first LBN
    /// that is (nothing has been changed then), [`PptError::ReadOnly`].
    pub fn write_direct(&self, blocks: &[(Lbn, u32)]) -> Result<(), PptError> {
        if self.area.region.is_read_only() {
            return Err(PptError::ReadOnly);
        }
        let mut entries = Vec::with_capacity(blocks.len());
        for &(lbn, _) in blocks {
            let now = self.lookup(lbn)?;
            if now.state != BlockState::Zero {
                return Err(PptError::NotZero { lbn });
            }
            entries.push((
                lbn,
                Entry {
                    pbn: now.pbn,
                    state: BlockState::Written,
                },
            ));
        }
        let mut batch = self.area.batch();
        for &(lbn, crc) in blocks {
            batch.store_crc(lbn, crc);
        }
        for (lbn, entry) in entries {
            batch.store_entry(lbn, entry.encode(lbn, self.area.geo.volume_salt));
        }
        batch.flush();
        Ok(())
    }

    /// The right to change the map, until the guard is dropped.
    pub(crate) fn take_turn(&self) -> Result<MutexGuard<'_, Turn>, PptError> {
        if self.area.region.is_read_only() {
            return Err(PptError::ReadOnly);
        }
        let turn = self.turn.lock();
        if turn.stopped {
            Err(PptError::Stopped)
        } else {
            Ok(turn)
        }
    }

    /// What `lbn` has on the medium, with what a read-only attach undid.
    pub(crate) fn raw(&self, lbn: Lbn) -> Result<Raw, PptError> {
        let blocks = self.area.geo.blocks;
        if lbn >= blocks {
            return Err(PptError::OutOfRange { lbn, blocks });
        }
        if !self.overlay.is_empty()
            && let Some(raw) = self.overlay.get(&lbn)
        {
            return Ok(*raw);
        }
        Ok(self.area.load(lbn))
    }

    /// Checks and decodes an entry.
    pub(crate) fn decode(&self, lbn: Lbn, raw: Raw) -> Result<Mapping, PptError> {
        match Entry::decode(raw.entry, lbn, self.area.geo.volume_salt) {
            Some(Entry { pbn, state }) if pbn < self.area.geo.blocks => {
                let crc = if state == BlockState::Written {
                    raw.crc
                } else {
                    0
                };
                Ok(Mapping { pbn, state, crc })
            }
            _ => Err(PptError::Damaged { lbn }),
        }
    }
}

impl fmt::Debug for Ppt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ppt")
            .field("geometry", &self.area.geo)
            .field("undone_in_dram", &self.overlay.len())
            .finish_non_exhaustive()
    }
}
