//! Blocks that were written in part, kept in DRAM: an append to a file that has not grown for a while need not wait
//! for the data device to complete its last block, nor need a read of such a block. If the page of such a block was
//! not there, the kernel does not keep it, and asks for it again.
//!
//! A block is here only while its newest content is. A thread that stages it again, or writes it to the device, removes
//! it from here. A thread that takes it from here compares it with its checksum in the page table, as if it came from
//! the device. Nothing here is ever written anywhere, so nothing of it matters to recovery.

use quayfs_layout::{BLOCK, Lbn};
use quayfs_sync::Mutex;
use quayfs_sync::atomic::{AtomicU64, Ordering};

/// Sets of places: 16 MiB of blocks at most.
const SETS: usize = 512;
/// Places of a set: their numbers share a cache line.
const WAYS: usize = 8;
/// No LBN.
const NONE: u64 = u64::MAX;

/// Blocks that were written in part not long ago. See the module documentation.
pub struct Partials {
    sets: Box<[Set]>,
}

/// The places of some LBNs. The block that was kept before all others leaves for another one, whether its file is still
/// there or not.
#[repr(align(64))]
struct Set {
    /// Changed under the lock; a thread that looks without it has to look again.
    lbns: [AtomicU64; WAYS],
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    blocks: [Vec<u8>; WAYS],
    /// When each was kept.
    at: [u64; WAYS],
    /// Blocks kept so far.
    clock: u64,
}

impl Default for Partials {
    fn default() -> Self {
        let set = |_| Set {
            lbns: [const { AtomicU64::new(NONE) }; WAYS],
            kept: Mutex::default(),
        };
        Self {
            sets: (0..SETS).map(set).collect(),
        }
    }
}

impl Set {
    fn way(&self, lbn: Lbn) -> Option<usize> {
        self.lbns
            .iter()
            .position(|l| l.load(Ordering::Acquire) == lbn)
    }
}

impl Partials {
    /// Neighbours have different places, and so have files that begin at multiples of something.
    fn set(&self, lbn: Lbn) -> &Set {
        let mixed = lbn.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        &self.sets[mixed as usize % SETS]
    }

    /// Keeps a block whose content has just been staged. The caller holds the lock of its range since before
    /// it did that.
    pub fn insert(&self, lbn: Lbn, block: Vec<u8>) {
        debug_assert_eq!(block.len(), BLOCK);
        let set = self.set(lbn);
        let mut kept = set.kept.lock();
        let oldest = || (0..WAYS).min_by_key(|way| kept.at[*way]);
        let there = set.way(lbn).or_else(|| set.way(NONE));
        let Some(way) = there.or_else(oldest) else {
            return;
        };
        kept.clock += 1;
        kept.at[way] = kept.clock;
        kept.blocks[way] = block;
        set.lbns[way].store(lbn, Ordering::Release);
    }

    /// The block is about to have other content.
    pub fn forget(&self, lbn: Lbn) {
        let set = self.set(lbn);
        if set.way(lbn).is_some() {
            let _kept = set.kept.lock();
            if let Some(way) = set.way(lbn) {
                set.lbns[way].store(NONE, Ordering::Release);
            }
        }
    }

    /// Copies a block that is kept, and says whether it is. The caller holds the lock of its range.
    pub fn copy(&self, lbn: Lbn, out: &mut [u8]) -> bool {
        let set = self.set(lbn);
        if set.way(lbn).is_none() {
            return false;
        }
        let kept = set.kept.lock();
        let Some(way) = set.way(lbn) else {
            return false;
        };
        out.copy_from_slice(&kept.blocks[way]);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(partials: &Partials, lbn: Lbn) -> Option<u8> {
        let mut out = vec![0; BLOCK];
        partials.copy(lbn, &mut out).then(|| out[BLOCK - 1])
    }

    #[test]
    fn a_block_is_kept_until_it_is_forgotten() {
        let partials = Partials::default();
        assert_eq!(kept(&partials, 7), None);
        partials.insert(7, vec![1; BLOCK]);
        partials.insert(8, vec![2; BLOCK]);
        assert_eq!((kept(&partials, 7), kept(&partials, 8)), (Some(1), Some(2)));
        partials.insert(7, vec![3; BLOCK]);
        assert_eq!(kept(&partials, 7), Some(3));
        partials.forget(7);
        assert_eq!((kept(&partials, 7), kept(&partials, 8)), (None, Some(2)));
    }

    #[test]
    fn the_oldest_of_those_that_share_places_leaves() {
        let partials = Partials::default();
        let set = |lbn| std::ptr::from_ref(partials.set(lbn));
        let shared: Vec<Lbn> = (7..).filter(|l| set(*l) == set(7)).take(WAYS + 3).collect();
        let there = || -> Vec<usize> {
            let there = |i: &usize| kept(&partials, shared[*i]) == Some(*i as u8);
            (0..shared.len()).filter(there).collect()
        };
        let keep = |i: usize| partials.insert(shared[i], vec![i as u8; BLOCK]);
        (0..WAYS).for_each(keep);
        assert_eq!(there(), (0..WAYS).collect::<Vec<_>>());
        // A block that is there takes no other's place; nor does a new one where one has been forgotten.
        keep(0);
        partials.forget(shared[WAYS]);
        assert_eq!(there(), (0..WAYS).collect::<Vec<_>>());
        partials.forget(shared[3]);
        keep(WAYS);
        assert_eq!(there(), [0, 1, 2, 4, 5, 6, 7, 8]);
        keep(WAYS + 1);
        assert_eq!(there(), [0, 2, 4, 5, 6, 7, 8, 9]);
        keep(WAYS + 2);
        assert_eq!(there(), [0, 4, 5, 6, 7, 8, 9, 10]);
    }
}
