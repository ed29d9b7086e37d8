//! The ends of files, kept in DRAM: an append to a file that has not grown for a while need not wait for the
//! data device to complete its last block.
//!
//! A block is here only while its newest content is: whoever stages it again, or writes it to the device, makes
//! it forgotten, and who takes it from here compares it with its checksum in the page table, as if it came from
//! the device. Nothing here is ever written anywhere, so nothing of it matters to recovery.

use quayfs_layout::{BLOCK, Lbn};
use quayfs_sync::Mutex;
use quayfs_sync::atomic::{AtomicU64, Ordering};

/// Blocks that are kept at most: 16 MiB.
const PLACES: usize = 4096;
/// No LBN.
const NONE: u64 = u64::MAX;

/// Last blocks of files that were written not long ago. See the module documentation.
pub struct Tails {
    places: Box<[Place]>,
}

/// Each LBN has one place, which it shares with others.
struct Place {
    /// Changes under the lock; who looks without it has to look again.
    lbn: AtomicU64,
    block: Mutex<Vec<u8>>,
}

impl Default for Tails {
    fn default() -> Self {
        let place = |_| Place {
            lbn: AtomicU64::new(NONE),
            block: Mutex::default(),
        };
        Self {
            places: (0..PLACES).map(place).collect(),
        }
    }
}

impl Tails {
    /// Neighbours have different places, and so have files that begin at multiples of something.
    fn place(&self, lbn: Lbn) -> &Place {
        let mixed = lbn.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        &self.places[mixed as usize % PLACES]
    }

    /// Keeps a block whose content has just been staged. The caller holds the lock of its range since before
    /// it did that.
    pub fn keep(&self, lbn: Lbn, block: Vec<u8>) {
        debug_assert_eq!(block.len(), BLOCK);
        let place = self.place(lbn);
        let mut kept = place.block.lock();
        place.lbn.store(lbn, Ordering::Release);
        *kept = block;
    }

    /// The block is about to have other content.
    pub fn forget(&self, lbn: Lbn) {
        let place = self.place(lbn);
        if place.lbn.load(Ordering::Acquire) == lbn {
            let _kept = place.block.lock();
            if place.lbn.load(Ordering::Acquire) == lbn {
                place.lbn.store(NONE, Ordering::Release);
            }
        }
    }

    /// Copies a block that is kept, and says whether it is. The caller holds the lock of its range.
    pub fn copy(&self, lbn: Lbn, out: &mut [u8]) -> bool {
        let place = self.place(lbn);
        if place.lbn.load(Ordering::Acquire) != lbn {
            return false;
        }
        let kept = place.block.lock();
        if place.lbn.load(Ordering::Acquire) != lbn {
            return false;
        }
        out.copy_from_slice(&kept);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(tails: &Tails, lbn: Lbn) -> Option<u8> {
        let mut out = vec![0; BLOCK];
        tails.copy(lbn, &mut out).then(|| out[BLOCK - 1])
    }

    #[test]
    fn a_block_is_kept_until_it_is_forgotten() {
        let tails = Tails::default();
        assert_eq!(kept(&tails, 7), None);
        tails.keep(7, vec![1; BLOCK]);
        tails.keep(8, vec![2; BLOCK]);
        assert_eq!((kept(&tails, 7), kept(&tails, 8)), (Some(1), Some(2)));
        tails.keep(7, vec![3; BLOCK]);
        assert_eq!(kept(&tails, 7), Some(3));
        tails.forget(7);
        assert_eq!((kept(&tails, 7), kept(&tails, 8)), (None, Some(2)));
    }

    #[test]
    fn one_that_shares_a_place_takes_it() {
        let tails = Tails::default();
        let place = |lbn| std::ptr::from_ref(tails.place(lbn));
        let other = (8..).find(|lbn| place(*lbn) == place(7)).unwrap();
        tails.keep(7, vec![1; BLOCK]);
        tails.forget(other);
        assert_eq!(kept(&tails, 7), Some(1));
        tails.keep(other, vec![2; BLOCK]);
        assert_eq!((kept(&tails, 7), kept(&tails, other)), (None, Some(2)));
        tails.forget(7);
        assert_eq!(kept(&tails, other), Some(2));
    }
}
