//! Which logical blocks have their newest content in a slot.

use crate::SlotRef;
use quayfs_sync::DashMap;
use quayfs_sync::map::Entry;
use rustc_hash::FxBuildHasher;

/// Concurrent map from logical block to slot.
///
/// A slot found here may be read as long as the reader's epoch pin is older than the lookup: slots are
/// reused only after they were removed from the map and a grace period has passed.
pub struct StagedMap {
    map: DashMap<u64, SlotRef, FxBuildHasher>,
}

impl Default for StagedMap {
    fn default() -> Self {
        Self::with_capacity(0)
    }
}

impl StagedMap {
    /// An empty map with room for `blocks` without growing.
    pub fn with_capacity(blocks: usize) -> Self {
        Self {
            map: DashMap::with_capacity_and_hasher(blocks, FxBuildHasher),
        }
    }

    /// `slot` holds `lbn` as of `slot.seq`. The newest number wins, whatever the order of calls; of
    /// two in one record the higher position. Returns whether `slot` is in the map now.
    pub fn publish(&self, lbn: u64, slot: SlotRef) -> bool {
        match self.map.entry(lbn) {
            Entry::Occupied(mut e) => {
                let old = e.get();
                let newer = (slot.seq, slot.pos) >= (old.seq, old.pos);
                if newer {
                    e.insert(slot);
                }
                newer
            }
            Entry::Vacant(e) => {
                e.insert(slot);
                true
            }
        }
    }

    /// The slot with the newest content of `lbn`, if it is staged.
    pub fn get(&self, lbn: u64) -> Option<SlotRef> {
        self.map.get(&lbn).map(|e| *e)
    }

    /// Removes `lbn` if it still maps to exactly `slot`; returns whether it did.
    pub fn remove_if(&self, lbn: u64, slot: &SlotRef) -> bool {
        self.map.remove_if(&lbn, |_, s| s == slot).is_some()
    }

    /// Removes `lbn` whatever it maps to (its block was freed); returns what that was.
    pub fn remove(&self, lbn: u64) -> Option<SlotRef> {
        self.map.remove(&lbn).map(|(_, s)| s)
    }

    /// Number of blocks; other threads may be changing it.
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Whether no block is staged.
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn slot(seq: u64, pos: u64) -> SlotRef {
        SlotRef {
            buffer: 0,
            pos,
            seq,
            crc: 0,
        }
    }

    #[test]
    fn the_newest_number_wins() {
        let m = StagedMap::default();
        assert!(m.publish(7, slot(5, 1)));
        assert!(!m.publish(7, slot(4, 2)));
        assert_eq!(m.get(7), Some(slot(5, 1)));
        assert!(m.publish(7, slot(6, 0)));
        assert!(m.publish(7, slot(6, 1)));
        assert!(!m.publish(7, slot(6, 0)));
        assert_eq!((m.get(7), m.len()), (Some(slot(6, 1)), 1));
    }

    #[test]
    fn a_round_removes_only_what_it_wrote() {
        let m = StagedMap::default();
        m.publish(7, slot(5, 1));
        m.publish(7, slot(9, 2));
        assert!(!m.remove_if(7, &slot(5, 1)));
        assert!(m.remove_if(7, &slot(9, 2)));
        assert!(m.is_empty());
        assert_eq!(m.remove(7), None);
    }
}
