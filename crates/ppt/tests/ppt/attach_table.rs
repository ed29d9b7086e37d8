//! Attach over every combination of what log and map can look like, built on media byte by byte.
//! What is expected is said by what the combination means, not by how attach decides.

use std::path::Path;
use std::sync::Arc;

use quayfs_layout::l2p::{self, OldWord, encode_commit};
use quayfs_pmem::{Backend, MapOptions, Region};
use quayfs_ppt::{Damage, Mapping, Ppt, PptError, PptGeometry};

const SALT: u64 = 0x7001_7002_7003_7004;
const BLOCKS: u64 = 32;
const WORD: usize = 8;
const MAP: usize = 64;
const CRC: usize = MAP + 8 * BLOCKS as usize;
const LOG: usize = CRC + 4 * BLOCKS as usize;
const START: [usize; 2] = [LOG + 1024, LOG + 2048];
const SPARE: usize = LOG + 3072;
const LANES: usize = LOG + 4096;
const LEN: usize = 2 * 4096;

fn geometry() -> PptGeometry {
    PptGeometry {
        volume_salt: SALT,
        l2p_map_off: MAP as u64,
        l2p_crc_off: CRC as u64,
        blocks: BLOCKS,
        l2p_log_off: LOG as u64,
        l2p_log_lanes: 2,
        l2p_lane_bytes: 512,
    }
}

/// The transaction in question. Attach closes 1, an earlier transaction is 2.
const G: u64 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    Both,
    FirstOnly,
    SecondOnly,
    Torn,
    Previous,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Records {
    All,
    OneLost,
    NoneThere,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Home {
    Old,
    Mixed,
    New,
}

#[derive(Clone, Copy, Debug)]
struct Case {
    /// `None`: damaged.
    commit: Option<u64>,
    spare: Option<u64>,
    start: Start,
    records: Records,
    home: Home,
}

/// Images before and after the transaction.
struct Media {
    old: Vec<u8>,
    new: Vec<u8>,
}

fn transaction(ppt: &Ppt, swaps: &[(u64, u64)], word: u64) {
    let mut txn = ppt.begin().expect("begin");
    for &(a, b) in swaps {
        txn.swap(a, b).expect("swap");
        txn.set_written(a, (word + a) as u32).expect("set_written");
    }
    txn.set_retired(WORD as u64, word).expect("set_retired");
    txn.commit(2).expect("commit");
}

fn media() -> Media {
    let region = Arc::new(Region::from_image(vec![0; LEN], None, Backend::Dax));
    Ppt::format(&region, &geometry()).expect("format");
    let (ppt, report) = Ppt::attach(Arc::clone(&region), geometry()).expect("attach");
    assert_eq!(report.generation, 1);
    transaction(&ppt, &[(0, 8), (4, 9)], 500);
    let old = region.read_vec(0, LEN as u64);
    transaction(&ppt, &[(0, 16), (1, 17), (2, 18), (3, 8)], 600);
    Media {
        old,
        new: region.read_vec(0, LEN as u64),
    }
}

fn put(image: &mut [u8], at: usize, from: &[u8], len: usize) {
    image[at..at + len].copy_from_slice(&from[at..at + len]);
}

fn build(media: &Media, case: &Case) -> Vec<u8> {
    let mut image = media.old.clone();
    for (at, number) in [(LOG, case.commit), (SPARE, case.spare)] {
        let word = number.map_or(!encode_commit(G, SALT), |number| {
            encode_commit(number, SALT)
        });
        image[at..at + 8].copy_from_slice(&word.to_le_bytes());
    }
    for (at, only) in START.into_iter().zip([Start::FirstOnly, Start::SecondOnly]) {
        if case.start == Start::Both || case.start == only {
            put(&mut image, at, &media.new, 64);
        } else if case.start != Start::Previous {
            put(&mut image, at, &media.new, 24);
            image[at + 24..at + 64].fill(0xee);
        }
    }
    // 8 entries change, 4 records in each of 2 lanes.
    for lane in [LANES, LANES + 512] {
        match case.records {
            Records::All => put(&mut image, lane, &media.new, 4 * 32),
            // The record is the previous transaction's or zeros.
            Records::OneLost if lane == LANES => put(&mut image, lane + 32, &media.new, 3 * 32),
            Records::OneLost => put(&mut image, lane, &media.new, 4 * 32),
            Records::NoneThere => {}
        }
    }
    if case.home != Home::Old {
        put(&mut image, WORD, &media.new, 8);
        for lbn in 0..BLOCKS as usize {
            if case.home == Home::New || lbn.is_multiple_of(2) {
                put(&mut image, MAP + 8 * lbn, &media.new, 8);
                put(&mut image, CRC + 4 * lbn, &media.new, 4);
            }
        }
    }
    image
}

#[derive(Debug, PartialEq, Eq)]
enum Expected {
    /// Map and word are as they are in the image.
    AsItIs,
    /// Map and word are as they were before the transaction.
    Old,
    Refused,
}

fn expected(case: &Case) -> Expected {
    let begun = !matches!(case.start, Start::Torn | Start::Previous);
    match (case.commit, case.spare) {
        (Some(commit), _) if commit >= G || !begun => Expected::AsItIs,
        (Some(_), _) => match (case.records, case.home) {
            (Records::All, _) => Expected::Old,
            (_, Home::Old) => Expected::AsItIs,
            (..) => Expected::Refused,
        },
        // The spare follows the commit word.
        (None, Some(spare)) if spare >= G => Expected::AsItIs,
        // Whether it was finished is not known, which does not matter to an unchanged map.
        (None, _) if begun && case.home == Home::Old => Expected::AsItIs,
        (None, _) if begun => Expected::Refused,
        (None, Some(spare)) if spare + 1 >= G || case.start == Start::Torn => Expected::AsItIs,
        // The previous transaction, which changed the map, is not known to be finished either.
        (None, _) => Expected::Refused,
    }
}

fn map(ppt: &Ppt) -> Vec<Mapping> {
    let run = ppt.read_run(0, BLOCKS as usize);
    run.into_iter()
        .map(|entry| entry.expect("an intact entry"))
        .collect()
}

/// Map and word of an image, read past the log.
fn home(image: &[u8]) -> (Vec<Mapping>, u64) {
    let mut closed = image.to_vec();
    let word = encode_commit(1000, SALT).to_le_bytes();
    closed[LOG..LOG + 8].copy_from_slice(&word);
    let region = Arc::new(Region::from_image(closed, None, Backend::Dax));
    let (ppt, _) = Ppt::attach(Arc::clone(&region), geometry()).expect("nothing is open");
    (map(&ppt), region.load_u64(WORD as u64))
}

fn check(media: &Media, case: &Case, file: &Path) {
    let image = build(media, case);
    let region = Arc::new(Region::from_image(&image, None, Backend::Dax));
    let attached = Ppt::attach(Arc::clone(&region), geometry());

    // Reading only never fails, never stores, and shows what writing would have made of it.
    std::fs::write(file, &image).expect("a file for the image");
    let options = MapOptions {
        read_only: true,
        ..MapOptions::default()
    };
    let reader = Arc::new(Region::open(file, options).expect("open"));
    let (view, seen) = Ppt::attach(Arc::clone(&reader), geometry()).expect("read-only");
    assert_eq!(reader.read_vec(0, LEN as u64), image);

    let expected = expected(case);
    let (ppt, report) = match attached {
        Ok(attached) => attached,
        Err(PptError::Log(damage)) => {
            assert_eq!(expected, Expected::Refused, "{case:?}: {damage}");
            assert_eq!(
                region.read_vec(0, LEN as u64),
                image,
                "{case:?}: refused, yet changed"
            );
            assert_eq!(seen.damage, Some(damage));
            return;
        }
        Err(other) => panic!("{case:?}: {other}"),
    };
    let want = match expected {
        Expected::AsItIs => home(&image),
        Expected::Old => home(&media.old),
        Expected::Refused => panic!("{case:?} was not refused: {report:?}"),
    };
    assert_eq!((map(&ppt), region.load_u64(WORD as u64)), want, "{case:?}");
    assert_eq!(map(&view), want.0, "{case:?}: the read-only view");
    let damage = case.commit.is_none().then_some(Damage::CommitWord);
    assert_eq!((report.damage, seen.damage), (damage, damage), "{case:?}");
    assert_eq!(
        report.undone,
        if expected == Expected::Old { 8 } else { 0 },
        "{case:?}"
    );

    // It is closed: nothing is found a second time, and the next transaction is its own.
    let (ppt, again) = Ppt::attach(Arc::clone(&region), geometry()).expect("attach again");
    assert_eq!(
        (again.undone, again.restored_word, again.damage),
        (0, None, None),
        "{case:?}"
    );
    assert_eq!(map(&ppt), want.0, "{case:?}");
    transaction(&ppt, &[(5, 6)], 700);
    let after = (map(&ppt), region.load_u64(WORD as u64));
    let (ppt, _) = Ppt::attach(Arc::clone(&region), geometry()).expect("attach after more");
    assert_eq!((map(&ppt), region.load_u64(WORD as u64)), after, "{case:?}");
}

#[test]
fn every_combination_of_log_and_map() {
    let media = media();
    assert_ne!(home(&media.old), home(&media.new));
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("image");
    let mut kinds = [0; 3];
    for commit in [Some(G - 1), Some(G), None] {
        for spare in [Some(G - 2), Some(G - 1), Some(G), None] {
            for start in [
                Start::Both,
                Start::FirstOnly,
                Start::SecondOnly,
                Start::Torn,
                Start::Previous,
            ] {
                for records in [Records::All, Records::OneLost, Records::NoneThere] {
                    for home in [Home::Old, Home::Mixed, Home::New] {
                        let case = Case {
                            commit,
                            spare,
                            start,
                            records,
                            home,
                        };
                        check(&media, &case, &file);
                        kinds[expected(&case) as usize] += 1;
                    }
                }
            }
        }
    }
    assert_eq!(kinds.iter().sum::<usize>(), 3 * 4 * 5 * 3 * 3);
    assert!(
        kinds.iter().all(|&n| n >= 36),
        "all outcomes occur: {kinds:?}"
    );
}

#[test]
fn a_commit_word_that_went_back_is_refused() {
    let media = media();
    let mut image = media.new.clone();
    image[LOG..LOG + 8].copy_from_slice(&encode_commit(G - 2, SALT).to_le_bytes());
    let region = Arc::new(Region::from_image(&image, None, Backend::Dax));
    match Ppt::attach(Arc::clone(&region), geometry()) {
        Err(PptError::Log(Damage::Ahead { start, closed })) => {
            assert_eq!((start, closed), (G, G - 2));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(region.read_vec(0, LEN as u64), image);
}

/// Records that are intact and yet make no sense here: nothing is undone by them, nothing stored.
#[test]
fn an_open_transaction_that_does_not_fit_is_refused() {
    let media = media();
    let case = Case {
        commit: Some(G - 1),
        spare: Some(G - 1),
        start: Start::Both,
        records: Records::All,
        home: Home::Mixed,
    };
    let mut good = build(&media, &case);
    // The map is mixed, and the word says nothing of it.
    put(&mut good, WORD, &media.old, 8);
    let first: [u8; 64] = *good[START[0]..].first_chunk().expect("a start record");
    let start = l2p::Start::decode(&first, SALT).expect("intact");
    let in_the_map = OldWord {
        off: MAP as u64,
        value: 1,
    };
    let bad = [
        l2p::Start {
            records: 1 << 40,
            ..start
        },
        l2p::Start {
            per_lane: 0,
            ..start
        },
        l2p::Start {
            per_lane: 17,
            ..start
        },
        l2p::Start {
            word: Some(in_the_map),
            ..start
        },
    ];
    for start in bad {
        let mut image = good.clone();
        for at in START {
            image[at..at + 64].copy_from_slice(&start.encode(SALT));
        }
        let region = Arc::new(Region::from_image(&image, None, Backend::Dax));
        match Ppt::attach(Arc::clone(&region), geometry()) {
            Err(PptError::Log(Damage::MissingUndo { .. })) => {}
            other => panic!("{start:?}: {other:?}"),
        }
        assert_eq!(region.read_vec(0, LEN as u64), image, "{start:?}");
    }
}
