//! Bits that rot, drains that fail, requests that make no sense, and transactions too large for
//! one thread.

use crate::common;

use std::collections::HashSet;
use std::io;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::{Event, Medium, Tape};
use quayfs_layout::l2p::{COMMIT_AT, Entry, SPARE_AT, Undo, lane_off};
use quayfs_pmem::{Backend, MapOptions, Observer, Region};
use quayfs_ppt::{BlockState, Mapping, Ppt, PptError, PptGeometry};

const BLOCKS: u64 = 24;
const WORD: u64 = 8;
const LEN: usize = 4096 + 2048;

fn geometry() -> PptGeometry {
    PptGeometry {
        volume_salt: 0x5a17_5a17_5a17_5a17,
        l2p_map_off: 64,
        l2p_crc_off: 256,
        blocks: BLOCKS,
        l2p_log_off: 384,
        l2p_log_lanes: 2,
        l2p_lane_bytes: 256,
    }
}

fn attach(region: &Arc<Region>) -> Result<Ppt, PptError> {
    Ppt::attach(Arc::clone(region), geometry()).map(|(ppt, _)| ppt)
}

fn formatted() -> Vec<u8> {
    let region = Region::from_image(vec![0; LEN], None, Backend::Dax);
    Ppt::format(&region, &geometry()).expect("format");
    region.read_vec(0, LEN as u64)
}

fn fresh() -> (Arc<Region>, Ppt) {
    let region = Arc::new(Region::from_image(formatted(), None, Backend::Dax));
    let ppt = attach(&region).expect("attach");
    (region, ppt)
}

fn map(ppt: &Ppt) -> Vec<Option<Mapping>> {
    ppt.read_run(0, BLOCKS as usize)
        .into_iter()
        .map(Result::ok)
        .collect()
}

fn some_transaction(ppt: &Ppt) -> Result<usize, PptError> {
    let mut txn = ppt.begin()?;
    for n in 0..4 {
        txn.swap(n, 12 + n)?;
        txn.set_written(n, 1000 + n as u32)?;
    }
    txn.set_retired(WORD, 4711)?;
    txn.commit(2)
}

/// A forged generation: no volume counts that far.
#[test]
fn an_undo_record_of_the_last_generation() {
    let (region, ppt) = fresh();
    some_transaction(&ppt).expect("commit");
    drop(ppt);
    let geo = geometry();
    // A commit word that cannot be read, nor its copy.
    for off in [COMMIT_AT, SPARE_AT] {
        region.store_u64(geo.l2p_log_off + off, 99);
    }
    let undo = Undo {
        generation: u64::MAX,
        lbn: 0,
        entry: 0,
        crc: 0,
    };
    let at = geo.l2p_log_off + lane_off(1, geo.l2p_lane_bytes);
    region.write(at, &undo.encode(1, 0, geo.volume_salt));
    assert!(matches!(attach(&region), Err(PptError::Log(_))));
    let (_, report) = Ppt::salvage(Arc::clone(&region), geo).expect("salvage");
    assert!(report.damage.is_some());
    attach(&region).expect("closed");
}

#[test]
fn a_damaged_entry_is_an_error_for_its_block_alone() {
    let (region, ppt) = fresh();
    some_transaction(&ppt).expect("commit");
    let sound = map(&ppt);
    for bit in 0..64 {
        let lbn = bit % BLOCKS;
        let off = 64 + 8 * lbn;
        let word = region.load_u64(off);
        region.store_u64(off, word ^ (1 << bit));
        assert!(matches!(ppt.lookup(lbn), Err(PptError::Damaged { lbn: l }) if l == lbn));
        let others = map(&ppt);
        assert!((0..BLOCKS).all(|n| (others[n as usize] == sound[n as usize]) == (n != lbn)));
        let report = ppt.verify().expect("verify");
        assert_eq!(
            (report.damaged.count, &report.damaged.first[..]),
            (1, &[lbn][..])
        );
        assert_eq!(report.unowned.count, 1);
        assert!(!report.is_sound());

        let image = region.read_vec(0, LEN as u64);
        let other = (lbn + 1) % BLOCKS;
        let damaged = |r: Result<(), PptError>| assert!(matches!(r, Err(PptError::Damaged { .. })));
        damaged(ppt.zero(&[other, lbn]));
        damaged(ppt.write_direct(&[(lbn, 1)]));
        let mut txn = ppt.begin().expect("begin");
        damaged(txn.swap(other, lbn));
        damaged(txn.set_written(lbn, 1));
        damaged(txn.set_zero(lbn));
        assert!(txn.is_empty());
        drop(txn);
        assert_eq!(
            region.read_vec(0, LEN as u64),
            image,
            "nothing has been changed"
        );
        region.store_u64(off, word);
    }
    assert!(ppt.verify().expect("verify").is_sound());
}

#[test]
fn verify_finds_what_breaks_the_permutation() {
    let (region, ppt) = fresh();
    let entry = |pbn, lbn| {
        let word = Entry {
            pbn,
            state: BlockState::Zero,
        }
        .encode(lbn, geometry().volume_salt);
        region.store_u64(64 + 8 * lbn, word);
    };
    entry(3, 7);
    entry(BLOCKS, 9);
    let report = ppt.verify().expect("verify");
    assert_eq!(report.doubly_owned.first, [7]);
    assert_eq!(report.damaged.first, [9], "a block that does not exist");
    assert_eq!(report.unowned.first, [7, 9]);
    assert_eq!(
        (report.blocks, report.zero, report.written),
        (BLOCKS, BLOCKS - 1, 0)
    );
}

#[test]
fn no_single_rotten_bit_in_the_log_changes_a_finished_map() {
    let (region, ppt) = fresh();
    some_transaction(&ppt).expect("commit");
    let (image, sound) = (region.read_vec(0, LEN as u64), map(&ppt));
    for bit in 8 * 384..8 * (384 + 4096 + 512) {
        let mut rotten = image.clone();
        rotten[bit / 8] ^= 1 << (bit % 8);
        let region = Arc::new(Region::from_image(&rotten, None, Backend::Dax));
        let ppt = attach(&region).expect("one fault is survived");
        assert_eq!(map(&ppt), sound, "bit {bit}");
        assert_eq!(region.load_u64(WORD), 4711);
    }
}

/// A crash in the middle of a transaction, and one rotten bit on top: the map is right or refused.
#[test]
fn no_single_rotten_bit_in_the_log_mixes_an_open_transaction() {
    let base = formatted();
    let (tape, region) = Tape::region(Backend::Dax, &base);
    let ppt = attach(&region).expect("attach");
    let before = map(&ppt);
    some_transaction(&ppt).expect("commit");
    let mut medium = Medium::new(Backend::Dax, base);
    let mut image = None;
    for event in &tape.take() {
        medium.step(event);
        // Five of eight entries, with everything stored so far on the medium.
        if matches!(event, Event::Store { off: 160, .. }) {
            medium.some_images(0, 1, |full| image = Some(full));
        }
    }
    let image = image.expect("an entry was stored");
    let (mut undone, mut refused) = (0, 0);
    for bit in 8 * 384..8 * (384 + 4096 + 512) {
        let mut rotten = image.clone();
        rotten[bit / 8] ^= 1 << (bit % 8);
        let region = Arc::new(Region::from_image(&rotten, None, Backend::Dax));
        match attach(&region) {
            Ok(ppt) => {
                assert_eq!(map(&ppt), before, "bit {bit}");
                assert_eq!(region.load_u64(WORD), 0);
                undone += 1;
            }
            Err(PptError::Log(_)) => refused += 1,
            Err(other) => panic!("bit {bit}: {other}"),
        }
    }
    // Only the commit word and the undo records are single.
    assert_eq!(refused, 64 + 8 * 32 * 8);
    assert_eq!(undone + refused, 8 * (4096 + 512));
}

/// Fails one drain of its choice.
struct Faulty {
    fail_at: usize,
    drains: AtomicUsize,
}

impl Observer for Faulty {
    fn store(&self, _: u64, _: &[u8], _: bool, _: &'static Location<'static>) {}
    fn flush(&self, _: u64, _: u64, _: &'static Location<'static>) {}
    fn fence(&self, _: &'static Location<'static>) {}
    fn drain(&self, _: &'static Location<'static>) {}

    fn drain_fault(&self) -> Option<io::Error> {
        let n = self.drains.fetch_add(1, Ordering::Relaxed);
        (n == self.fail_at).then(|| io::Error::from_raw_os_error(5))
    }
}

#[test]
fn after_a_failed_drain_nothing_is_changed_any_more() {
    let base = formatted();
    let (_, reference) = fresh();
    let before = map(&reference);
    some_transaction(&reference).expect("commit");
    let after = map(&reference);
    for fail_at in 0..5 {
        let faulty = Arc::new(Faulty {
            fail_at,
            drains: AtomicUsize::new(0),
        });
        let region = Arc::new(Region::from_image(&base, Some(faulty), Backend::File));
        let ppt = match attach(&region) {
            Ok(ppt) => ppt,
            Err(error) => {
                assert!(
                    matches!(error, PptError::Pmem(_)) && fail_at == 0,
                    "{error}"
                );
                continue;
            }
        };
        match fail_at {
            1..4 => {
                let error = some_transaction(&ppt).expect_err("a drain fails");
                assert!(matches!(error, PptError::Pmem(_)), "{error}");
            }
            _ => {
                some_transaction(&ppt).expect("commit");
                let error = ppt.zero(&[0]).expect_err("its drain fails");
                assert!(matches!(error, PptError::Pmem(_)), "{error}");
            }
        }
        let image = region.read_vec(0, LEN as u64);
        assert!(matches!(some_transaction(&ppt), Err(PptError::Stopped)));
        assert!(matches!(ppt.zero(&[1]), Err(PptError::Stopped)));
        assert_eq!(region.read_vec(0, LEN as u64), image);
        if fail_at < 4 {
            // Here every store reached the medium.
            let region = Arc::new(Region::from_image(&image, None, Backend::File));
            let now = map(&attach(&region).expect("attach"));
            assert_eq!(
                now,
                if fail_at == 3 {
                    after.clone()
                } else {
                    before.clone()
                }
            );
        }
    }
}

#[test]
fn a_read_only_table_refuses_changes() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("image");
    let mut image = formatted();
    image.resize(8192, 0);
    std::fs::write(&file, image).expect("a file for the image");
    let options = MapOptions {
        read_only: true,
        ..MapOptions::default()
    };
    let region = Arc::new(Region::open(&file, options).expect("open"));
    assert!(matches!(
        Ppt::format(&region, &geometry()),
        Err(PptError::ReadOnly)
    ));
    let ppt = attach(&region).expect("attach");
    assert!(matches!(ppt.begin(), Err(PptError::ReadOnly)));
    assert!(matches!(ppt.zero(&[0]), Err(PptError::ReadOnly)));
    assert!(matches!(
        ppt.write_direct(&[(0, 0)]),
        Err(PptError::ReadOnly)
    ));
    assert!(ppt.verify().expect("verify").is_sound());
}

#[test]
fn requests_outside_of_the_map_are_errors() {
    let (region, ppt) = fresh();
    let image = region.read_vec(0, LEN as u64);
    for lbn in [BLOCKS, BLOCKS + 1, u64::MAX] {
        let outside =
            |e: PptError| assert!(matches!(e, PptError::OutOfRange { lbn: l, .. } if l == lbn));
        outside(ppt.lookup(lbn).expect_err("outside"));
        outside(ppt.zero(&[0, lbn]).expect_err("outside"));
        outside(ppt.write_direct(&[(0, 1), (lbn, 1)]).expect_err("outside"));
        let mut txn = ppt.begin().expect("begin");
        outside(txn.swap(0, lbn).expect_err("outside"));
        outside(txn.swap(lbn, 0).expect_err("outside"));
        outside(txn.set_written(lbn, 0).expect_err("outside"));
        outside(txn.set_zero(lbn).expect_err("outside"));
    }
    let run = ppt.read_run(BLOCKS - 2, 4);
    assert_eq!(
        run.iter().map(Result::is_ok).collect::<Vec<_>>(),
        [true, true, false, false]
    );
    assert!(ppt.read_run(u64::MAX, 2).iter().all(Result::is_err));
    let mut txn = ppt.begin().expect("begin");
    // Not aligned, in the map, in the checksums, in the log, outside of the region, nowhere.
    for off in [
        WORD + 1,
        64,
        256 + 8,
        384,
        384 + 4096 + 504,
        LEN as u64,
        u64::MAX - 7,
        0,
    ] {
        assert!(
            matches!(txn.set_retired(off, 1), Err(PptError::Geometry(_))),
            "{off}"
        );
    }
    drop(txn);
    assert_eq!(region.read_vec(0, LEN as u64), image);
}

#[test]
fn impossible_geometries_are_refused() {
    let region = Arc::new(Region::from_image(vec![0; LEN], None, Backend::Dax));
    let good = geometry();
    let bad = [
        PptGeometry { blocks: 0, ..good },
        PptGeometry {
            blocks: (1 << 40) + 1,
            ..good
        },
        PptGeometry {
            blocks: BLOCKS + 1,
            ..good
        },
        PptGeometry {
            l2p_log_lanes: 0,
            ..good
        },
        PptGeometry {
            l2p_log_lanes: u32::MAX,
            ..good
        },
        PptGeometry {
            l2p_lane_bytes: 0,
            ..good
        },
        PptGeometry {
            l2p_lane_bytes: 100,
            ..good
        },
        PptGeometry {
            l2p_lane_bytes: u64::MAX - 63,
            ..good
        },
        PptGeometry {
            l2p_map_off: 72,
            ..good
        },
        PptGeometry {
            l2p_crc_off: 64,
            ..good
        },
        PptGeometry {
            l2p_log_off: u64::MAX - 63,
            ..good
        },
        PptGeometry {
            l2p_log_off: LEN as u64 - 4096,
            ..good
        },
    ];
    for geo in bad {
        let refused = |r: Result<(), PptError>| assert!(matches!(r, Err(PptError::Geometry(_))));
        refused(Ppt::format(&region, &geo));
        refused(Ppt::attach(Arc::clone(&region), geo).map(|_| ()));
    }
    assert_eq!(
        region.read_vec(0, LEN as u64),
        vec![0; LEN],
        "nothing has been stored"
    );
}

#[test]
fn another_volume_or_none_is_refused() {
    let region = Arc::new(Region::from_image(formatted(), None, Backend::Dax));
    let other = PptGeometry {
        volume_salt: 1,
        ..geometry()
    };
    assert!(matches!(Ppt::attach(region, other), Err(PptError::Log(_))));
    let blank = Arc::new(Region::from_image(vec![0; LEN], None, Backend::Dax));
    assert!(matches!(attach(&blank), Err(PptError::Log(_))));
}

/// From some size on the lanes are written by a thread each, whose stores only its own fence
/// settles.
#[test]
fn large_transactions_are_durable_from_every_worker() {
    const MANY: u64 = 1 << 15;
    let geo = PptGeometry {
        volume_salt: 77,
        l2p_map_off: 4096,
        l2p_crc_off: 4096 + 8 * MANY,
        blocks: MANY,
        l2p_log_off: 4096 + 12 * MANY,
        l2p_log_lanes: 2,
        l2p_lane_bytes: 9000 * 32,
    };
    let len = (geo.l2p_log_off + geo.log_bytes()).next_multiple_of(4096) as usize;
    let plain = Region::from_image(vec![0; len], None, Backend::Dax);
    Ppt::format(&plain, &geo).expect("format");
    let image = plain.read_vec(0, len as u64);
    let (tape, region) = Tape::region(Backend::Dax, &image);
    let (ppt, _) = Ppt::attach(Arc::clone(&region), geo).expect("attach");
    let owners = |ppt: &Ppt| -> Vec<u64> {
        ppt.read_run(0, MANY as usize)
            .into_iter()
            .map(|m| m.expect("intact").pbn)
            .collect()
    };
    let before = owners(&ppt);
    let mut txn = ppt.begin().expect("begin");
    for n in 0..8300 {
        txn.swap(n, MANY - 1 - n).expect("swap");
    }
    txn.commit(2).expect("commit");
    let after = owners(&ppt);

    let events = tape.take();
    let threads: HashSet<_> = events
        .iter()
        .filter_map(|e| {
            if let Event::Store { by, .. } = e {
                Some(*by)
            } else {
                None
            }
        })
        .collect();
    assert_eq!(threads.len(), 3, "two workers and the thread that commits");
    let drains: Vec<usize> = (0..events.len())
        .filter(|&n| matches!(events[n], Event::Drain { .. }))
        .collect();
    let [_, a, b, _] = drains[..] else {
        panic!("attach and three edges: {drains:?}")
    };
    let mut medium = Medium::new(Backend::Dax, image);
    for (n, event) in events.iter().enumerate() {
        medium.step(event);
        if n == a || n == (a + b) / 2 {
            let mut images = Vec::new();
            medium.some_images(4, n as u64, |image| images.push(image));
            for image in images {
                let region = Arc::new(Region::from_image(image, None, Backend::Dax));
                let (ppt, report) = Ppt::attach(region, geo).expect("attach");
                assert_eq!(report.undone, 16600, "no record is missing");
                assert_eq!(owners(&ppt), before);
            }
        }
    }
    medium.some_images(2, 1, |image| {
        let region = Arc::new(Region::from_image(image, None, Backend::Dax));
        let (ppt, _) = Ppt::attach(region, geo).expect("attach");
        assert_eq!(owners(&ppt), after);
    });
}
