//! A cache before a medium in memory, every sector of which is filled with one byte.

use rand::SeedableRng;
use rand::rngs::StdRng;

use super::*;

const SECTORS: usize = 64;

struct Sim {
    cache: Cache,
    medium: Vec<u8>,
}

impl Sim {
    fn new() -> Self {
        Self {
            cache: Cache::default(),
            medium: vec![0; SECTORS * SECTOR],
        }
    }

    fn write(&mut self, sector: usize, count: usize, byte: u8) {
        self.cache
            .write((sector * SECTOR) as u64, &vec![byte; count * SECTOR]);
    }

    fn store(&mut self, runs: &[Run]) {
        for (at, bytes) in runs {
            self.medium[*at as usize..][..bytes.len()].copy_from_slice(bytes);
        }
    }

    fn flush(&mut self, covered: u64) {
        let runs = self.cache.flush(covered);
        self.store(&runs);
    }

    fn cut(&mut self, seed: u64) -> (usize, usize) {
        let cut = self.cache.cut(&mut StdRng::seed_from_u64(seed));
        self.store(&cut.runs);
        (cut.kept, cut.pending)
    }

    /// The byte of each sector, which has to be one throughout.
    fn bytes(content: &[u8]) -> Vec<u8> {
        let sectors = content.chunks_exact(SECTOR);
        sectors
            .map(|s| {
                assert!(s.iter().all(|b| *b == s[0]), "a torn sector");
                s[0]
            })
            .collect()
    }

    fn seen(&self) -> Vec<u8> {
        let mut content = self.medium.clone();
        self.cache.read(0, &mut content);
        Self::bytes(&content)
    }

    fn durable(&self) -> Vec<u8> {
        Self::bytes(&self.medium)
    }
}

#[test]
fn reads_see_the_newest() {
    let mut sim = Sim::new();
    sim.write(3, 4, 1);
    sim.write(5, 1, 2);
    assert_eq!(sim.seen()[2..8], [0, 1, 1, 2, 1, 0]);
    let covered = sim.cache.completed();
    sim.write(4, 1, 3);
    sim.flush(covered);
    assert_eq!(sim.seen()[2..8], [0, 1, 3, 2, 1, 0]);
    // A read that begins in the middle.
    let mut part = vec![9; 2 * SECTOR];
    sim.cache.read(4 * SECTOR as u64, &mut part);
    assert_eq!(Sim::bytes(&part), [3, 9]);
}

#[test]
fn a_flush_covers_what_was_completed_before_it_began() {
    let mut sim = Sim::new();
    sim.write(0, 2, 1);
    sim.write(1, 2, 2);
    let covered = sim.cache.completed();
    sim.write(2, 2, 3);
    assert_eq!(sim.durable()[..4], [0, 0, 0, 0]);
    sim.flush(covered);
    assert_eq!(sim.durable()[..4], [1, 2, 2, 0]);
    sim.flush(covered);
    assert_eq!(sim.durable()[..4], [1, 2, 2, 0]);
    sim.flush(sim.cache.completed());
    assert_eq!(sim.durable()[..4], [1, 2, 3, 3]);
    assert!(sim.cache.flush(u64::MAX).is_empty());
}

#[test]
fn neighbours_are_stored_at_once() {
    let mut sim = Sim::new();
    sim.write(7, 1, 1);
    sim.write(5, 2, 2);
    sim.write(9, 1, 3);
    let runs = sim.cache.flush(u64::MAX);
    let places: Vec<_> = runs.iter().map(|(at, b)| (*at, b.len())).collect();
    let sector = SECTOR as u64;
    assert_eq!(places, [(5 * sector, 3 * SECTOR), (9 * sector, SECTOR)]);
}

#[test]
fn a_cut_leaves_of_each_sector_something_that_it_had() {
    let mut met = [[false; 4]; SECTORS];
    for seed in 0..200 {
        let mut sim = Sim::new();
        sim.write(0, SECTORS / 2, 1);
        sim.flush(u64::MAX);
        sim.write(8, SECTORS / 2, 2);
        sim.write(16, SECTORS / 2, 3);
        let (kept, pending) = sim.cut(seed);
        assert_eq!(pending, SECTORS / 2 + 8);
        let left = sim.durable();
        let mut changed = 0;
        for (sector, byte) in left.iter().enumerate() {
            let old = u8::from(sector < SECTORS / 2);
            let written = [2u8, 3]
                .into_iter()
                .filter(|b| (8 * (usize::from(*b) - 1)..).contains(&sector))
                .filter(|b| sector < SECTORS / 2 + 8 * (usize::from(*b) - 1));
            let allowed: Vec<_> = written.chain([old]).collect();
            assert!(allowed.contains(byte), "sector {sector} has {byte}");
            changed += usize::from(*byte != old);
            met[sector][usize::from(*byte)] = true;
        }
        assert_eq!(kept, changed);
        // Nothing is left in the cache.
        assert_eq!(sim.seen(), left);
    }
    // What has several possibilities has each of them sometimes.
    assert_eq!(met[20], [false, true, true, true]);
    assert_eq!(met[36], [true, false, true, true]);
}

#[test]
fn what_was_flushed_survives() {
    for seed in 0..100 {
        let mut sim = Sim::new();
        sim.write(0, SECTORS, 1);
        let covered = sim.cache.completed();
        sim.write(10, 10, 2);
        sim.flush(covered);
        sim.cut(seed);
        let left = sim.durable();
        assert!(left[..10].iter().chain(&left[20..]).all(|b| *b == 1));
        assert!(left[10..20].iter().all(|b| [1, 2].contains(b)));
    }
}

#[test]
fn the_seed_decides_what_is_kept() {
    let left = |seed| {
        let mut sim = Sim::new();
        (0..3).for_each(|n| sim.write(0, SECTORS, n + 1));
        sim.cut(seed);
        sim.durable()
    };
    assert_eq!(left(7), left(7));
    assert_ne!(left(7), left(8));
}
