//! Transactions: many entries, their checksums and one word elsewhere, all or nothing.

use std::collections::hash_map::Entry as Slot;

use quayfs_layout::Lbn;
use quayfs_layout::checksum::WORD_MAX;
use quayfs_layout::l2p::{BlockState, Entry, OldWord};
use quayfs_sync::MutexGuard;
use rustc_hash::FxHashMap;

use crate::area::Raw;
use crate::log::Old;
use crate::table::Turn;
use crate::{Mapping, Ppt, PptError};

#[derive(Clone, Copy, Debug)]
struct Change {
    old: Raw,
    new: Raw,
}

/// What a transaction collects its changes in.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    /// By LBN, as they come.
    changes: FxHashMap<Lbn, Change>,
    /// Those that change something, in order.
    sorted: Vec<(Lbn, Change)>,
    /// What the log says about these.
    old: Vec<Old>,
}

/// An open transaction. There is one at a time; dropping it uncommitted leaves no trace.
///
/// Changes are collected in DRAM, each seeing those before it, and reach the medium in
/// [`commit`](Self::commit).
///
/// ```
/// # use quayfs_pmem::Region;
/// # use quayfs_ppt::{Ppt, PptGeometry};
/// # let geometry = PptGeometry {
/// #     volume_salt: 1,
/// #     l2p_map_off: 4096,
/// #     l2p_crc_off: 8192,
/// #     blocks: 64,
/// #     l2p_log_off: 12288,
/// #     l2p_log_lanes: 1,
/// #     l2p_lane_bytes: 4096,
/// # };
/// # let region = std::sync::Arc::new(Region::anonymous(32768));
/// # Ppt::format(&region, &geometry)?;
/// # let (table, _) = Ppt::attach(region, geometry)?;
/// let mut txn = table.begin()?;
/// txn.swap(1, 2)?;
/// txn.swap(2, 3)?;
/// assert_eq!(txn.lookup(2)?.pbn, 3);
/// assert_eq!(table.lookup(2)?.pbn, 2, "others see nothing of it yet");
/// assert_eq!(txn.commit(1)?, 3);
/// assert_eq!([1, 2, 3].map(|lbn| table.lookup(lbn).unwrap().pbn), [2, 3, 1]);
/// # Ok::<(), quayfs_ppt::PptError>(())
/// ```
#[must_use = "a transaction that is not committed changes nothing"]
pub struct Txn<'a> {
    ppt: &'a Ppt,
    turn: MutexGuard<'a, Turn>,
    word: Option<(u64, u64)>,
}

impl<'a> Txn<'a> {
    pub(crate) fn begin(ppt: &'a Ppt) -> Result<Self, PptError> {
        let mut turn = ppt.take_turn()?;
        turn.room.changes.clear();
        if turn.generation >= WORD_MAX {
            return Err(PptError::Exhausted);
        }
        Ok(Self {
            ppt,
            turn,
            word: None,
        })
    }

    /// Where `lbn` will be if this is committed.
    ///
    /// # Errors
    /// [`PptError::OutOfRange`], [`PptError::Damaged`].
    pub fn lookup(&self, lbn: Lbn) -> Result<Mapping, PptError> {
        self.ppt.decode(lbn, self.raw(lbn)?)
    }

    /// Number of entries touched so far, which must stay within [`Ppt::capacity`].
    pub fn len(&self) -> usize {
        self.turn.room.changes.len()
    }

    /// Whether no entry has been touched.
    pub fn is_empty(&self) -> bool {
        self.turn.room.changes.is_empty()
    }

    /// Exchanges the contents of two logical blocks: physical block, state and checksum.
    ///
    /// # Errors
    /// [`PptError::OutOfRange`], [`PptError::Damaged`], [`PptError::Full`]; nothing has changed
    /// then.
    pub fn swap(&mut self, a: Lbn, b: Lbn) -> Result<(), PptError> {
        let (at_a, at_b) = (self.lookup(a)?, self.lookup(b)?);
        if a == b {
            return Ok(());
        }
        self.check_room(&[a, b])?;
        self.set(a, at_b)?;
        self.set(b, at_a)
    }

    /// Says that the block that `lbn` owns, after the changes so far, holds data with this
    /// CRC-32C. The data must be durable on the device before [`commit`](Self::commit).
    ///
    /// # Errors
    /// As [`swap`](Self::swap).
    pub fn set_written(&mut self, lbn: Lbn, crc: u32) -> Result<(), PptError> {
        self.set_content(lbn, BlockState::Written, crc)
    }

    /// Says that `lbn` reads as zeros, whatever the block it owns holds.
    ///
    /// # Errors
    /// As [`swap`](Self::swap).
    pub fn set_zero(&mut self, lbn: Lbn) -> Result<(), PptError> {
        self.set_content(lbn, BlockState::Zero, 0)
    }

    fn set_content(&mut self, lbn: Lbn, state: BlockState, crc: u32) -> Result<(), PptError> {
        let pbn = self.lookup(lbn)?.pbn;
        self.check_room(&[lbn])?;
        self.set(lbn, Mapping { pbn, state, crc })
    }

    /// Changes the 8-byte word at offset `off` of the region to `new` together with the map. A
    /// second call replaces the first. Nothing else may store to that word before the commit.
    ///
    /// # Errors
    /// [`PptError::Geometry`] if `off` is not the place of an aligned word outside of the page
    /// table's own areas.
    pub fn set_retired(&mut self, off: u64, new: u64) -> Result<(), PptError> {
        let area = &self.ppt.area;
        if !area.geo.word_is_foreign(off, area.region.len()) {
            return Err(PptError::Geometry(
                "a word of a transaction lies in the page table",
            ));
        }
        self.word = Some((off, new));
        Ok(())
    }

    /// Makes all changes durable, or, after a crash at any time before it returns, possibly none
    /// of them, never a part. Returns the number of entries that changed. `workers` is the number
    /// of log lanes, and of threads, to spread the log over if it is large.
    ///
    /// # Errors
    /// [`PptError::Pmem`] if draining fails. Whether the changes are durable is then decided by
    /// the next attach; this table is not changed any more, and lookups see either state.
    pub fn commit(mut self, workers: usize) -> Result<usize, PptError> {
        let outcome = self.write(workers);
        match outcome {
            Ok(entries) => Ok(entries),
            Err(error) => {
                self.turn.stopped = true;
                Err(error)
            }
        }
    }

    fn write(&mut self, workers: usize) -> Result<usize, PptError> {
        let area = &self.ppt.area;
        let Scratch {
            changes,
            sorted,
            old,
        } = &mut self.turn.room;
        sorted.clear();
        sorted.extend(changes.drain().filter(|(_, c)| c.old != c.new));
        if sorted.is_empty() && self.word.is_none() {
            return Ok(0);
        }
        sorted.sort_unstable_by_key(|&(lbn, _)| lbn);
        old.clear();
        old.extend(sorted.iter().map(|(lbn, change)| (*lbn, change.old)));
        let generation = self.turn.generation + 1;

        let word = self.word.map(|(off, _)| OldWord {
            off,
            value: area.region.load_u64(off),
        });
        // Edge A: the map changes only when every record of what it was is durable.
        area.write_log(generation, word, &self.turn.room.old, workers)?;

        let mut batch = area.batch();
        for (lbn, change) in &self.turn.room.sorted {
            if change.old.crc != change.new.crc {
                batch.store_crc(*lbn, change.new.crc);
            }
            if change.old.entry != change.new.entry {
                batch.store_entry(*lbn, change.new.entry);
            }
        }
        batch.flush();
        if let Some((off, new)) = self.word {
            area.region.store_u64(off, new);
            area.region.flush(off, 8);
        }
        // Edge B: the commit word is stored only when every change is durable.
        area.region.drain()?;

        // Edge C: durable, and with it the transaction, when this returns.
        area.close(generation)?;
        self.turn.generation = generation;
        Ok(self.turn.room.sorted.len())
    }

    fn raw(&self, lbn: Lbn) -> Result<Raw, PptError> {
        match self.turn.room.changes.get(&lbn) {
            Some(change) => Ok(change.new),
            None => self.ppt.raw(lbn),
        }
    }

    fn check_room(&self, lbns: &[Lbn]) -> Result<(), PptError> {
        let more = lbns
            .iter()
            .filter(|lbn| !self.turn.room.changes.contains_key(lbn))
            .count();
        let capacity = self.ppt.capacity();
        if (self.turn.room.changes.len() + more) as u64 > capacity {
            return Err(PptError::Full { capacity });
        }
        Ok(())
    }

    /// Records a change of `lbn`, which is in range and for which there is room.
    fn set(&mut self, lbn: Lbn, to: Mapping) -> Result<(), PptError> {
        let entry = Entry {
            pbn: to.pbn,
            state: to.state,
        };
        let entry = entry.encode(lbn, self.ppt.area.geo.volume_salt);
        let change = match self.turn.room.changes.entry(lbn) {
            Slot::Occupied(change) => change.into_mut(),
            Slot::Vacant(slot) => {
                let old = self.ppt.raw(lbn)?;
                slot.insert(Change { old, new: old })
            }
        };
        // Of what is lent and comes back in state zero the checksum is what it was, which saves a store.
        let crc = if to.state == BlockState::Zero {
            change.old.crc
        } else {
            to.crc
        };
        change.new = Raw { entry, crc };
        Ok(())
    }
}
