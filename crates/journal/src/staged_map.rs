//! Which logical blocks have their newest content in a slot.

use std::iter::Peekable;

use crate::SlotRef;
use quayfs_sync::DashMap;
use quayfs_sync::map::Entry;
use rustc_hash::FxBuildHasher;

/// Neighbours that are kept together: what a file writes is staged, looked for and taken away with its neighbours, and
/// each time one of them is found so are the others.
const GROUP: u64 = 8;

/// Concurrent map from logical block to slot.
///
/// A slot found here may be read as long as the reader's epoch pin is older than the lookup: slots are
/// reused only after they were removed from the map and a grace period has passed.
#[derive(Default)]
pub struct StagedMap {
    groups: DashMap<u64, Group, FxBuildHasher>,
}

/// Neighbours of which one at least is staged.
#[derive(Clone, Copy, Default)]
struct Group {
    /// Those of blocks that are staged.
    slots: [SlotRef; GROUP as usize],
    /// Which are.
    staged: u8,
}

impl Group {
    fn get(&self, lbn: u64) -> Option<SlotRef> {
        let i = lbn % GROUP;
        (self.staged >> i & 1 != 0).then(|| self.slots[i as usize])
    }

    fn put(&mut self, lbn: u64, slot: SlotRef) -> bool {
        let old = self.get(lbn);
        let newest = old.is_none_or(|old| (slot.seq, slot.pos) >= (old.seq, old.pos));
        if newest {
            self.slots[(lbn % GROUP) as usize] = slot;
            self.staged |= 1 << (lbn % GROUP);
        }
        newest
    }

    fn remove(&mut self, lbn: u64) {
        self.staged &= !(1 << (lbn % GROUP));
    }
}

/// Calls `f` once for each group that follows another one, with what belongs to it.
fn by_group<T, I: Iterator<Item = T>>(
    items: I,
    lbn: impl Fn(&T) -> u64,
    mut f: impl FnMut(u64, &mut dyn Iterator<Item = T>),
) {
    let mut items: Peekable<I> = items.peekable();
    while let Some(first) = items.peek() {
        let group = lbn(first) / GROUP;
        let mut same = std::iter::from_fn(|| items.next_if(|item| lbn(item) / GROUP == group));
        f(group, &mut same);
        same.for_each(drop);
    }
}

impl StagedMap {
    /// `slot` holds `lbn` as of `slot.seq`. The newest number wins, whatever the order of calls; of
    /// two in one record the higher position. Returns whether `slot` is in the map now.
    pub fn publish(&self, lbn: u64, slot: SlotRef) -> bool {
        let mut group = self.groups.entry(lbn / GROUP).or_default();
        group.put(lbn, slot)
    }

    /// [`publish`](Self::publish) for each, one after the other.
    pub fn publish_all(&self, slots: impl Iterator<Item = (u64, SlotRef)>) {
        by_group(
            slots,
            |(lbn, _)| *lbn,
            |key, slots| {
                let mut group = self.groups.entry(key).or_default();
                for (lbn, slot) in slots {
                    group.put(lbn, slot);
                }
            },
        );
    }

    /// The slot with the newest content of `lbn`, if it is staged.
    pub fn get(&self, lbn: u64) -> Option<SlotRef> {
        self.groups.get(&(lbn / GROUP))?.get(lbn)
    }

    /// [`get`](Self::get) for the block of each item, neighbours at once; `each` is told what was found.
    pub fn get_each<T>(
        &self,
        items: impl Iterator<Item = T>,
        lbn: impl Fn(&T) -> u64,
        mut each: impl FnMut(T, Option<SlotRef>),
    ) {
        by_group(items, &lbn, |key, items| {
            // Copied, so that no lock is held while the iterator gets the next item, which may take long.
            let group = self.groups.get(&key).map(|group| *group);
            for item in items {
                let found = group.and_then(|g| g.get(lbn(&item)));
                each(item, found);
            }
        });
    }

    /// Removes `lbn` if it still maps to exactly `slot`; returns whether it did.
    pub fn remove_if(&self, lbn: u64, slot: &SlotRef) -> bool {
        let mut removed = false;
        self.change(lbn / GROUP, |group| {
            removed = group.get(lbn) == Some(*slot);
            if removed {
                group.remove(lbn);
            }
        });
        removed
    }

    /// [`remove_if`](Self::remove_if) for each, one after the other.
    pub fn remove_all(&self, slots: impl Iterator<Item = (u64, SlotRef)>) {
        by_group(
            slots,
            |(lbn, _)| *lbn,
            |key, slots| {
                self.change(key, |group| {
                    for (lbn, slot) in slots {
                        if group.get(lbn) == Some(slot) {
                            group.remove(lbn);
                        }
                    }
                });
            },
        );
    }

    fn change(&self, key: u64, change: impl FnOnce(&mut Group)) {
        if let Entry::Occupied(mut group) = self.groups.entry(key) {
            change(group.get_mut());
            if group.get().staged == 0 {
                group.remove();
            }
        }
    }

    /// Number of blocks; other threads may be changing it.
    pub fn len(&self) -> usize {
        let staged = |group: &Group| group.staged.count_ones() as usize;
        self.groups.iter().map(|group| staged(&group)).sum()
    }

    /// Whether no block is staged.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
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
        assert!(!m.remove_if(7, &slot(9, 2)));
    }

    /// Neighbours, strangers, the same one twice; and what one by one would have made of it.
    #[test]
    fn many_at_once_are_as_many_one_by_one() {
        let (all, single) = (StagedMap::default(), StagedMap::default());
        let some = |from: u64| {
            let lbns = [6, 7, 8, 9, 70, 9, 8, 15, 16, 6];
            let slots = lbns.into_iter().zip(from..);
            slots.map(|(lbn, seq)| (lbn, slot(seq, seq)))
        };
        for from in [20, 10] {
            all.publish_all(some(from));
            some(from).for_each(|(lbn, s)| {
                single.publish(lbn, s);
            });
        }
        let content = |m: &StagedMap| {
            let mut found = Vec::new();
            m.get_each(0..100_u64, |l| *l, |lbn, s| found.push((lbn, s)));
            assert!(found.iter().all(|(lbn, s)| m.get(*lbn) == *s));
            assert_eq!(found.len(), 100);
            found.retain(|(_, s)| s.is_some());
            assert_eq!(m.len(), found.len());
            found
        };
        let newest = [
            (6, 29),
            (7, 21),
            (8, 26),
            (9, 25),
            (15, 27),
            (16, 28),
            (70, 24),
        ];
        let newest = newest.map(|(lbn, seq)| (lbn, Some(slot(seq, seq))));
        assert_eq!(content(&all), newest);
        assert_eq!(content(&single), newest);
        // Of those that were published twice only the newer is there.
        all.remove_all(some(10).chain([(6, slot(20, 20)), (9, slot(25, 25)), (16, slot(28, 28))]));
        let left = [newest[0], newest[1], newest[2], newest[4], newest[6]];
        assert_eq!(content(&all), left);
        all.remove_all(some(20));
        assert!(all.is_empty() && content(&all).is_empty());
    }
}
