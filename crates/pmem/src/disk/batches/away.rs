//! Which sectors are away.

use super::super::pages::SECTORS;
use crate::units::{PAGE, SECTOR};
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// Words that are made together, when the first of them is needed.
const CHUNK: u64 = 4096;

/// Of each page 8 bits for either half.
pub(super) struct Away {
    words: Vec<OnceLock<Box<[AtomicU32]>>>,
}

impl Away {
    pub(super) fn none(len: u64) -> Self {
        let chunks = len.div_ceil(PAGE).div_ceil(CHUNK);
        Self {
            words: (0..chunks).map(|_| OnceLock::new()).collect(),
        }
    }

    /// The sectors of a page that are in either half.
    pub(super) fn of(&self, page: u64) -> u32 {
        let bits = self.bits(page);
        (bits | bits >> 8) & SECTORS
    }

    fn bits(&self, page: u64) -> u32 {
        let chunk = self.words[(page / CHUNK) as usize].get();
        chunk.map_or(0, |c| c[(page % CHUNK) as usize].load(Ordering::Acquire))
    }

    pub(super) fn add(&self, half: usize, page: u64, sectors: u32) {
        let new = || (0..CHUNK).map(|_| AtomicU32::new(0)).collect();
        let chunk = self.words[(page / CHUNK) as usize].get_or_init(new);
        chunk[(page % CHUNK) as usize].fetch_or(sectors << (8 * half), Ordering::AcqRel);
    }

    /// What is in a half, in order.
    pub(super) fn in_half(&self, half: usize) -> Vec<Range<u64>> {
        let mut runs: Vec<Range<u64>> = Vec::new();
        for (i, chunk) in self.words.iter().enumerate() {
            for (j, word) in chunk.get().into_iter().flatten().enumerate() {
                let bits = word.load(Ordering::Acquire) >> (8 * half) & SECTORS;
                let page = (i as u64 * CHUNK + j as u64) * PAGE;
                for sector in (0..8).filter(|s| bits & 1 << s != 0) {
                    let start = page + sector * SECTOR;
                    match runs.last_mut() {
                        Some(last) if last.end == start => last.end += SECTOR,
                        _ => runs.push(start..start + SECTOR),
                    }
                }
            }
        }
        runs
    }

    pub(super) fn forget(&self, half: usize) {
        for word in self.words.iter().filter_map(|c| c.get()).flatten() {
            word.fetch_and(!(SECTORS << (8 * half)), Ordering::AcqRel);
        }
    }
}
