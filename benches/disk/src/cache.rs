//! A volatile write cache: what was written and is not durable yet, by sectors.

use std::collections::BTreeMap;

use rand::Rng;

/// Bytes of a sector: a power cut keeps all of it or nothing.
pub const SECTOR: usize = 512;

/// What a sector was written with, and by which write.
#[derive(Debug)]
struct Version {
    write: u64,
    data: Box<[u8]>,
}

/// Bytes for the medium, and where they belong.
pub type Run = (u64, Vec<u8>);

/// What a power cut leaves.
#[derive(Debug)]
pub struct Cut {
    /// What reached the medium.
    pub runs: Vec<Run>,
    /// Sectors of which a version did.
    pub kept: usize,
    /// Sectors that were not durable.
    pub pending: usize,
}

/// Every version of each sector since it was durable: any of them may be on the medium when the power is cut.
#[derive(Debug, Default)]
pub struct Cache {
    sectors: BTreeMap<u64, Vec<Version>>,
    writes: u64,
}

impl Cache {
    /// Takes a write of whole sectors. It is completed when this returns.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        self.writes += 1;
        for (sector, data) in (offset / SECTOR as u64..).zip(data.chunks_exact(SECTOR)) {
            self.sectors.entry(sector).or_default().push(Version {
                write: self.writes,
                data: data.into(),
            });
        }
    }

    /// Puts the newest content over that of the medium, for whole sectors.
    pub fn read(&self, offset: u64, out: &mut [u8]) {
        let first = offset / SECTOR as u64;
        let end = first + (out.len() / SECTOR) as u64;
        for (sector, versions) in self.sectors.range(first..end) {
            let at = (sector - first) as usize * SECTOR;
            if let Some(newest) = versions.last() {
                out[at..at + SECTOR].copy_from_slice(&newest.data);
            }
        }
    }

    /// How many writes are completed: what a flush that begins now covers.
    pub fn completed(&self) -> u64 {
        self.writes
    }

    /// The end of a flush that covers so many writes: what is to be on the medium now. Versions of later writes stay.
    pub fn flush(&mut self, covered: u64) -> Vec<Run> {
        let mut runs = Vec::new();
        self.sectors.retain(|sector, versions| {
            let old = versions.partition_point(|v| v.write <= covered);
            if let Some(newest) = versions.drain(..old).next_back() {
                append(&mut runs, *sector, &newest.data);
            }
            !versions.is_empty()
        });
        runs
    }

    /// The power is cut: each sector that is not durable has one of its versions, or what it had on the medium. Cuts
    /// differ in how much they keep: a disk may have written nearly all of its cache, or nearly nothing.
    pub fn cut(&mut self, rng: &mut impl Rng) -> Cut {
        let share: f64 = rng.random();
        let (mut runs, mut kept) = (Vec::new(), 0);
        let pending = std::mem::take(&mut self.sectors);
        for (sector, versions) in &pending {
            if rng.random_bool(share) {
                let one = rng.random_range(0..versions.len());
                append(&mut runs, *sector, &versions[one].data);
                kept += 1;
            }
        }
        let pending = pending.len();
        Cut {
            runs,
            kept,
            pending,
        }
    }
}

/// Adds a sector behind those before it; neighbours are one run.
fn append(runs: &mut Vec<Run>, sector: u64, data: &[u8]) {
    let at = sector * SECTOR as u64;
    match runs.last_mut() {
        Some((start, bytes)) if *start + bytes.len() as u64 == at => bytes.extend_from_slice(data),
        _ => runs.push((at, data.to_vec())),
    }
}

#[cfg(test)]
mod tests;
