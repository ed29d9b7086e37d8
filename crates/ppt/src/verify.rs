//! The proof that the map is a permutation.

use quayfs_layout::l2p::{BlockState, ENTRY_BYTES};
use quayfs_layout::{BLOCK, Lbn};

use crate::area::Raw;
use crate::{Mapping, Ppt, PptError};

/// How many LBNs share a property, and the first of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// How many there are.
    pub count: u64,
    /// The first [`Findings::KEPT`] of them, ascending.
    pub first: Vec<Lbn>,
}

impl Findings {
    /// The most that are named one by one.
    pub const KEPT: usize = 64;

    fn add(&mut self, lbn: Lbn) {
        self.count += 1;
        if self.first.len() < Self::KEPT {
            self.first.push(lbn);
        }
    }
}

/// The state of the whole map.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// LBNs looked at: all.
    pub blocks: u64,
    /// Sound entries in state zero.
    pub zero: u64,
    /// Sound entries in state written.
    pub written: u64,
    /// LBNs whose entry fails its check or names a block that does not exist.
    pub damaged: Findings,
    /// LBNs whose physical block an earlier LBN owns already.
    pub doubly_owned: Findings,
    /// Physical blocks that no LBN owns.
    pub unowned: Findings,
}

impl VerifyReport {
    /// Whether the map is a permutation and every entry is intact.
    pub fn is_sound(&self) -> bool {
        self.damaged.count == 0 && self.doubly_owned.count == 0 && self.unowned.count == 0
    }
}

impl Ppt {
    /// Reads the whole map and proves, or disproves, that it is a permutation. Holds transactions
    /// and zero batches off meanwhile; takes one bit of memory per block.
    ///
    /// # Errors
    /// None today; damage is a finding and not an error.
    pub fn verify(&self) -> Result<VerifyReport, PptError> {
        let _still = self.turn.lock();
        let geo = &self.area.geo;
        let mut report = VerifyReport {
            blocks: geo.blocks,
            ..VerifyReport::default()
        };
        let mut owned = vec![0u64; geo.blocks.div_ceil(64) as usize];
        let mut piece = vec![0; 16 * BLOCK];
        let per_piece = piece.len() as u64 / ENTRY_BYTES;
        for first in (0..geo.blocks).step_by(per_piece as usize) {
            let len = (geo.blocks - first).min(per_piece) * ENTRY_BYTES;
            let words = &mut piece[..len as usize];
            self.area.region.read(geo.entry_off(first), words);
            for (word, lbn) in words.chunks_exact(8).zip(first..) {
                match self.verify_entry(lbn, quayfs_layout::bytes::get_u64(word, 0)) {
                    Ok(mapping) => {
                        match mapping.state {
                            BlockState::Zero => report.zero += 1,
                            BlockState::Written => report.written += 1,
                        }
                        let bit = 1u64 << (mapping.pbn % 64);
                        let word = &mut owned[(mapping.pbn / 64) as usize];
                        if *word & bit != 0 {
                            report.doubly_owned.add(lbn);
                        }
                        *word |= bit;
                    }
                    Err(_) => report.damaged.add(lbn),
                }
            }
        }
        for (word, n) in owned.iter().zip(0u64..) {
            let mut free = !word;
            while free != 0 {
                let pbn = n * 64 + u64::from(free.trailing_zeros());
                free &= free - 1;
                if pbn < geo.blocks {
                    report.unowned.add(pbn);
                }
            }
        }
        Ok(report)
    }

    fn verify_entry(&self, lbn: Lbn, word: u64) -> Result<Mapping, PptError> {
        if !self.overlay.is_empty() && self.overlay.contains_key(&lbn) {
            return self.lookup(lbn);
        }
        // The piece was copied while direct writes may have stored to it: a word is damaged only
        // if a whole load of it says so as well.
        self.decode(
            lbn,
            Raw {
                entry: word,
                crc: 0,
            },
        )
        .or_else(|_| self.lookup(lbn))
    }
}
