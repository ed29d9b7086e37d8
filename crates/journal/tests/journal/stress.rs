//! Many threads on small rings that wrap over and over, with digest and rounds going on all the time:
//! a read returns nothing but the newest content, or an older one that was the newest during the
//! read; nothing is lost over a restart, and all room comes back.

use crate::common;

use common::{content, geometry};
use parking_lot::{Mutex, RwLock};
use quayfs_journal::*;
use quayfs_pmem::Region;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const LBNS: usize = 64;
const WRITERS: u64 = 4;
const OPS: u64 = 3000;

struct World {
    region: Arc<Region>,
    geo: JournalGeometry,
    journal: Journal,
    staged: StagedMap,
    /// Version on the data device.
    device: Vec<Mutex<u64>>,
    /// Stands for the lock of the file range.
    locks: Vec<Mutex<()>>,
    /// Newest acknowledged version.
    acked: Vec<AtomicU64>,
    /// Digested versions, by number of record: what replay made of them.
    home: Vec<AtomicU64>,
    /// Stands for the epoch pins of readers: a grace period is one exclusive acquisition.
    pins: RwLock<()>,
    versions: AtomicU64,
    done: AtomicBool,
    rounds: AtomicU64,
}

fn version_of(block: &[u8; 4096]) -> u64 {
    u64::from_le_bytes(block[..8].try_into().expect("8 bytes")) >> 32
}

impl World {
    fn new(options: JournalOptions) -> Self {
        let (geo, len) = geometry(4, 8192, 16);
        let region = Arc::new(Region::anonymous(len));
        Journal::format(&region, &geo, options.durability).expect("format");
        let scan = Journal::scan(Arc::clone(&region), &geo).expect("scan");
        let journal = scan
            .into_journal(RecoveredTo { digested: 0 }, options)
            .expect("recover");
        Self {
            region,
            geo,
            journal,
            staged: StagedMap::default(),
            device: (0..LBNS).map(|_| Mutex::new(0)).collect(),
            locks: (0..LBNS).map(|_| Mutex::new(())).collect(),
            acked: (0..LBNS).map(|_| AtomicU64::new(0)).collect(),
            home: (0..LBNS).map(|_| AtomicU64::new(0)).collect(),
            pins: RwLock::new(()),
            versions: AtomicU64::new(1),
            done: AtomicBool::new(false),
            rounds: AtomicU64::new(0),
        }
    }

    fn grace(&self) {
        drop(self.pins.write());
    }

    /// One to three blocks in one operation; now and then one that fails after staging.
    fn write(&self, thread: u64, n: u64) {
        let mix = (thread << 32 | n).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
        let mut lbns: Vec<usize> = (0..1 + mix % 3)
            .map(|i| (mix >> (8 * i)) as usize % LBNS)
            .collect();
        lbns.sort_unstable();
        lbns.dedup();
        let need = Need {
            slots: lbns.len() as u32,
            record_bytes: 8 + 8 * lbns.len() as u32,
            prefer: mix as usize,
        };
        let mut credit = self
            .journal
            .acquire_blocking(need, Duration::MAX)
            .expect("room");
        let _locks: Vec<_> = lbns.iter().map(|&l| self.locks[l].lock()).collect();
        let version = self.versions.fetch_add(1, Ordering::Relaxed);
        let blocks: Vec<_> = lbns
            .iter()
            .map(|&l| (l as u64, content(l as u64, version)))
            .collect();
        let refs: Vec<(u64, &[u8])> = blocks.iter().map(|(l, b)| (*l, &b[..])).collect();
        let staged = self.journal.stage(&mut credit, &refs).expect("stage");
        if mix.is_multiple_of(17) {
            return;
        }
        let mut items = version.to_le_bytes().to_vec();
        items.extend(lbns.iter().flat_map(|&l| (l as u64).to_le_bytes()));
        let publish = |mut run: Published<'_>| {
            let newest = run.all(|(lbn, slot)| self.staged.publish(lbn, slot));
            assert!(newest, "locked, so newest");
        };
        self.journal
            .append_with(credit, vec![staged].into(), &items, |_| (), publish)
            .expect("append");
        lbns.iter()
            .for_each(|&l| self.acked[l].store(version, Ordering::Release));
    }

    fn read(&self, lbn: usize) {
        let floor = self.acked[lbn].load(Ordering::Acquire);
        let _pin = self.pins.read();
        let found = match self.staged.get(lbn as u64) {
            Some(slot) => {
                let mut block = [0; 4096];
                self.journal
                    .read_slot(&slot, &mut block)
                    .expect("pinned, so not reused");
                let version = version_of(&block);
                assert_eq!(block, content(lbn as u64, version), "block {lbn}");
                version
            }
            None => *self.device[lbn].lock(),
        };
        assert!(
            found >= floor,
            "block {lbn}: {found}, but {floor} was acknowledged"
        );
    }

    fn digest(&self) {
        let j = &self.journal;
        j.commit(None).expect("commit");
        let (after, upto) = (j.digested(), j.digestable());
        let batch = j.read_records(after, upto, 1 << 20, 64).expect("records");
        for (expected, r) in (after + 1..).zip(batch.iter()) {
            assert_eq!(r.seq, expected, "no holes while running");
            replay(&self.home, &r.to_record());
            j.mark_committed(r);
        }
        if let Some(last) = batch.last_seq() {
            j.set_digested(last).expect("digest");
        }
    }

    fn round(&self) {
        let j = &self.journal;
        let cut = j.digested();
        let mut live = j.live_slots(cut);
        live.sort_unstable_by_key(|l| (l.lbn, std::cmp::Reverse(l.seq)));
        live.dedup_by_key(|l| l.lbn);
        self.grace();
        for l in &live {
            let mut block = [0; 4096];
            j.read_slot(&l.slot(), &mut block).expect("live");
            let version = version_of(&block);
            assert_eq!(block, content(l.lbn, version));
            let mut home = self.device[l.lbn as usize].lock();
            assert!(
                version > *home,
                "block {} goes back from {} to {version}",
                l.lbn,
                *home
            );
            *home = version;
        }
        let word = j.retired_word();
        self.region.store_u64(word.offset, word.encode(cut));
        self.region.persist(word.offset, 8).expect("persist");
        for l in &live {
            self.staged.remove_if(l.lbn, &l.slot());
        }
        if j.advance_heads(cut, || self.grace()).expect("retire") > 0 {
            self.rounds.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn run(&self) {
        std::thread::scope(|s| {
            let writers: Vec<_> = (0..WRITERS)
                .map(|t| s.spawn(move || (0..OPS).for_each(|n| self.write(t, n))))
                .collect();
            let until_done = |job: &(dyn Fn() + Sync)| {
                let _on_panic = SetOnDrop(&self.done);
                while !self.done.load(Ordering::Relaxed) {
                    job();
                    std::thread::yield_now();
                }
            };
            s.spawn(move || until_done(&|| (0..LBNS).for_each(|l| self.read(l))));
            s.spawn(move || until_done(&|| self.digest()));
            s.spawn(move || until_done(&|| self.round()));
            let results: Vec<_> = writers.into_iter().map(|w| w.join()).collect();
            self.done.store(true, Ordering::Relaxed);
            assert!(results.iter().all(Result::is_ok), "a writer failed");
        });
    }
}

struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn replay(home: &[AtomicU64], r: &Record) {
    let mut words = r
        .items
        .chunks_exact(8)
        .map(|w| u64::from_le_bytes(w.try_into().expect("8")));
    let version = words.next().expect("every record has a version");
    for lbn in words {
        // In order of number, each block's versions only grow: operations hold its lock.
        let old = home[lbn as usize].swap(version, Ordering::Relaxed);
        assert!(old < version, "block {lbn}: {version} after {old}");
    }
}

fn stress(options: JournalOptions) {
    let w = World::new(options);
    w.run();
    let j = &w.journal;
    let stats = j.stats();
    let staged = stats.appends * 3 / 2;
    assert!(
        staged > 2 * stats.slots && stats.append_bytes > 2 * 4 * w.geo.lane_bytes,
        "{stats:?}"
    );
    assert!(w.rounds.load(Ordering::Relaxed) > 2, "rings did not wrap");
    assert!(stats.abandoned > 0);
    assert_eq!(stats.last_seq, stats.appends);

    // Half of what is left is digested before the restart, the rest after.
    j.commit(None).expect("commit");
    w.digest();
    let (geo, region) = (w.geo, Arc::clone(&w.region));
    let World {
        journal,
        staged,
        device,
        acked,
        home,
        ..
    } = w;
    drop((journal, staged));
    let scan = Journal::scan(region, &geo).expect("scan");
    assert!(scan.damage.is_empty(), "{:?}", scan.damage);
    let last = scan.records.last().map_or(scan.digested, |r| r.seq);
    assert_eq!((last, scan.max_seq_seen), (stats.last_seq, stats.last_seq));
    scan.records.iter().for_each(|r| replay(&home, r));
    scan.store_digested(last).expect("digest");
    let staged = StagedMap::default();
    staged.publish_all(scan.live.iter().map(|l| (l.lbn, l.slot())));
    let j = scan
        .into_journal(RecoveredTo { digested: last }, options)
        .expect("recover");
    for lbn in 0..LBNS {
        let acked = acked[lbn].load(Ordering::Relaxed);
        assert_eq!(
            home[lbn].load(Ordering::Relaxed),
            acked,
            "metadata of {lbn}"
        );
        match staged.get(lbn as u64) {
            Some(slot) => {
                let mut block = [0; 4096];
                j.read_slot(&slot, &mut block).expect("live");
                assert_eq!(block, content(lbn as u64, acked));
            }
            None => assert_eq!(*device[lbn].lock(), acked, "block {lbn}"),
        }
    }
    // All room comes back.
    let word = j.retired_word();
    let region = &w.region;
    region.store_u64(word.offset, word.encode(j.digested()));
    region.persist(word.offset, 8).expect("persist");
    j.advance_heads(j.digested(), || ()).expect("retire");
    assert_eq!((j.stats().slots_used, j.stats().log_bytes_used), (0, 0));
    let all = Need {
        slots: geo.slots_per_buffer as u32,
        record_bytes: 8,
        prefer: 0,
    };
    let credits: Vec<_> = (0..j.buffers())
        .map(|_| j.acquire(all).expect("all of it"))
        .collect();
    drop(credits);
    j.set_clean(None).expect("clean");
}

#[test]
fn op() {
    stress(JournalOptions::new(Durability::Op));
}

#[test]
fn commit() {
    stress(JournalOptions::new(Durability::Commit));
}

#[test]
fn central_staging() {
    stress(JournalOptions {
        staging: Staging::Central,
        ..JournalOptions::new(Durability::Op)
    });
}

#[test]
fn fewer_buffers_than_formatted() {
    stress(JournalOptions {
        buffers: 2,
        ..JournalOptions::new(Durability::Commit)
    });
}
