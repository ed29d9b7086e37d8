//! The page table against a model: a vector of what every LBN owns.

use std::sync::Arc;

use proptest::prelude::*;
use quayfs_pmem::Region;
use quayfs_ppt::{BlockState, Mapping, Ppt, PptError, PptGeometry};

const BLOCKS: u64 = 48;
const WORD: u64 = 64;

fn geometry() -> PptGeometry {
    PptGeometry {
        volume_salt: 0x0123_4567_89ab_cdef,
        l2p_map_off: 4096,
        l2p_crc_off: 8192,
        blocks: BLOCKS,
        l2p_log_off: 12288,
        l2p_log_lanes: 3,
        l2p_lane_bytes: 256,
    }
}

/// Room for 8 records in each of 3 lanes.
const CAPACITY: usize = 24;

#[derive(Debug, Clone)]
enum Change {
    Swap(u64, u64),
    Written(u64, u32),
    Zero(u64),
}

#[derive(Debug, Clone)]
enum Step {
    Txn {
        changes: Vec<Change>,
        word: Option<u64>,
        workers: usize,
        commit: bool,
    },
    ZeroBatch(Vec<u64>),
    Direct(Vec<u64>, u32),
    Reattach,
}

fn change() -> impl Strategy<Value = Change> {
    let lbn = || 0..BLOCKS;
    prop_oneof![
        3 => (lbn(), lbn()).prop_map(|(a, b)| Change::Swap(a, b)),
        2 => (lbn(), any::<u32>()).prop_map(|(lbn, crc)| Change::Written(lbn, crc)),
        1 => lbn().prop_map(Change::Zero),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let lbns = || prop::collection::vec(0..BLOCKS, 0..10);
    let txn = (
        prop::collection::vec(change(), 0..20),
        prop::option::of(any::<u64>()),
        0usize..6,
        prop::bool::weighted(0.8),
    );
    prop_oneof![
        4 => txn.prop_map(|(changes, word, workers, commit)| {
            Step::Txn { changes, word, workers, commit }
        }),
        1 => lbns().prop_map(Step::ZeroBatch),
        1 => (lbns(), any::<u32>()).prop_map(|(lbns, crc)| Step::Direct(lbns, crc)),
        1 => Just(Step::Reattach),
    ]
}

#[derive(Clone)]
struct Model {
    map: Vec<Mapping>,
    word: u64,
}

impl Model {
    fn zero(&mut self, lbn: u64) {
        let pbn = self.map[lbn as usize].pbn;
        self.map[lbn as usize] = Mapping {
            pbn,
            state: BlockState::Zero,
            crc: 0,
        };
    }

    fn written(&mut self, lbn: u64, crc: u32) {
        let pbn = self.map[lbn as usize].pbn;
        self.map[lbn as usize] = Mapping {
            pbn,
            state: BlockState::Written,
            crc,
        };
    }

    fn apply(&mut self, change: &Change) {
        match *change {
            Change::Swap(a, b) => self.map.swap(a as usize, b as usize),
            Change::Written(lbn, crc) => self.written(lbn, crc),
            Change::Zero(lbn) => self.zero(lbn),
        }
    }
}

fn looked_up(ppt: &Ppt) -> Vec<Mapping> {
    ppt.read_run(0, BLOCKS as usize)
        .into_iter()
        .map(|entry| entry.expect("an intact entry"))
        .collect()
}

fn run(steps: Vec<Step>) -> Result<(), TestCaseError> {
    let geo = geometry();
    let region = Arc::new(Region::anonymous(20480));
    Ppt::format(&region, &geo).expect("format");
    let (mut ppt, _) = Ppt::attach(Arc::clone(&region), geo).expect("attach");
    let zero = |pbn| Mapping {
        pbn,
        state: BlockState::Zero,
        crc: 0,
    };
    let mut model = Model {
        map: (0..BLOCKS).map(zero).collect(),
        word: 0,
    };

    for step in steps {
        match step {
            Step::Txn {
                changes,
                word,
                workers,
                commit,
            } => {
                let mut next = model.clone();
                let mut txn = ppt.begin().expect("begin");
                for change in &changes {
                    let before = txn.len();
                    let done = match *change {
                        Change::Swap(a, b) => txn.swap(a, b),
                        Change::Written(lbn, crc) => txn.set_written(lbn, crc),
                        Change::Zero(lbn) => txn.set_zero(lbn),
                    };
                    match done {
                        Ok(()) => next.apply(change),
                        Err(PptError::Full { capacity }) => {
                            prop_assert_eq!(capacity as usize, CAPACITY);
                            prop_assert!(before + 2 > CAPACITY);
                            prop_assert_eq!(txn.len(), before);
                        }
                        Err(other) => return Err(TestCaseError::fail(other.to_string())),
                    }
                }
                if let Some(word) = word {
                    txn.set_retired(WORD, word).expect("a word of our own");
                    next.word = word;
                }
                for lbn in 0..BLOCKS {
                    prop_assert_eq!(txn.lookup(lbn).expect("intact"), next.map[lbn as usize]);
                }
                if commit {
                    let changed = txn.commit(workers).expect("commit");
                    let differ = (0..BLOCKS as usize).filter(|&n| next.map[n] != model.map[n]);
                    prop_assert_eq!(changed, differ.count());
                    model = next;
                }
            }
            Step::ZeroBatch(lbns) => {
                ppt.zero(&lbns).expect("zero");
                lbns.iter().for_each(|&lbn| model.zero(lbn));
            }
            Step::Direct(mut lbns, crc) => {
                lbns.sort_unstable();
                lbns.dedup();
                let blocks: Vec<_> = lbns.iter().map(|&lbn| (lbn, crc)).collect();
                let busy = |lbn: &&u64| model.map[**lbn as usize].state == BlockState::Written;
                match (ppt.write_direct(&blocks), lbns.iter().find(busy)) {
                    (Ok(()), None) => lbns.iter().for_each(|&lbn| model.written(lbn, crc)),
                    (Err(PptError::NotZero { lbn }), Some(first)) => prop_assert_eq!(lbn, *first),
                    other => return Err(TestCaseError::fail(format!("{other:?}"))),
                }
            }
            Step::Reattach => {
                let (again, report) = Ppt::attach(Arc::clone(&region), geo).expect("attach");
                prop_assert_eq!((report.undone, report.damage), (0, None));
                ppt = again;
            }
        }
        prop_assert_eq!(looked_up(&ppt), model.map.clone());
        prop_assert_eq!(region.load_u64(WORD), model.word);
        let report = ppt.verify().expect("verify");
        prop_assert!(report.is_sound());
        let written = model
            .map
            .iter()
            .filter(|m| m.state == BlockState::Written)
            .count();
        prop_assert_eq!(
            (report.written, report.zero),
            (written as u64, BLOCKS - written as u64)
        );
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn behaves_like_a_vector_of_owners(steps in prop::collection::vec(step(), 1..25)) {
        run(steps)?;
    }
}
