//! The proof that the map is a permutation.

use quayfs_layout::Lbn;
use quayfs_layout::l2p::{BlockState, ENTRY_BYTES};
use std::ops::Range;

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
        self.add_all(lbn..lbn + 1);
    }

    fn add_all(&mut self, lbns: Range<Lbn>) {
        self.count += lbns.end - lbns.start;
        let room = Self::KEPT - self.first.len();
        self.first.extend(lbns.take(room));
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
    /// and zeroing passes off meanwhile; takes one bit of memory per block.
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
        let each = |lbns: Range<Lbn>, words: Option<&[u8]>| {
            if words.is_none() && self.overlay.is_empty() {
                // An entry is never all zeros.
                report.damaged.add_all(lbns);
                return;
            }
            for (lbn, i) in lbns.zip(0..) {
                let word = words.map_or(0, |w| quayfs_layout::bytes::get_u64(w, i * 8));
                match self.verify_entry(lbn, word) {
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
        };
        let region = &self.area.region;
        region.table(geo.entry_off(0), geo.blocks, ENTRY_BYTES, each);
        for (word, n) in owned.iter().zip(0u64..) {
            let pbns = (geo.blocks - n * 64).min(64);
            let mut free = !word & u64::MAX >> (64 - pbns);
            if report.unowned.first.len() == Findings::KEPT {
                report.unowned.count += u64::from(free.count_ones());
                continue;
            }
            while free != 0 {
                report
                    .unowned
                    .add(n * 64 + u64::from(free.trailing_zeros()));
                free &= free - 1;
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
