//! Random lives of a journal, with restarts in between, against a plain list of operations.

use crate::common;

use common::*;
use proptest::prelude::*;
use quayfs_crashsim::SimDevice;
use quayfs_journal::*;
use quayfs_pmem::Region;
use std::sync::Arc;

#[derive(Clone, Debug)]
enum Step {
    Write(Vec<u64>),
    Fail(u64),
    Commit,
    Digest,
    Round,
    /// The daemon dies and is started again in this mode.
    Kill(Durability),
    /// An orderly unmount, then the same.
    Unmount(Durability),
}

fn mode() -> impl Strategy<Value = Durability> {
    prop_oneof![Just(Durability::Op), Just(Durability::Commit)]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => prop::collection::btree_set(0..LBNS, 0..4)
            .prop_map(|s| Step::Write(s.into_iter().collect())),
        2 => (0..LBNS).prop_map(Step::Fail),
        2 => Just(Step::Commit),
        1 => Just(Step::Digest),
        1 => Just(Step::Round),
        1 => mode().prop_map(Step::Kill),
        1 => mode().prop_map(Step::Unmount),
    ]
}

/// What has been done since the last restart, and how much of it would survive.
struct Model {
    /// State after each operation, and the number of its record; the first is the recovered state.
    history: Vec<(State, u64)>,
    mode: Durability,
}

impl Model {
    fn now(&self) -> &State {
        &self.history.last().expect("never empty").0
    }

    /// The state that a restart finds: in `commit` mode what commits have covered, some of them
    /// made by operations short of room.
    fn after_kill(&self, commit_ts: u64) -> State {
        let survives = |seq: u64| self.mode == Durability::Op || seq <= commit_ts;
        let kept = self.history.iter().rev().find(|(_, seq)| survives(*seq));
        kept.expect("the recovered state survives").0.clone()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    #[test]
    fn lives(first in mode(), steps in prop::collection::vec(step(), 1..120)) {
        let (geo, len) = small();
        let region = Arc::new(Region::anonymous(len));
        let device = Arc::new(SimDevice::unrecorded(LBNS));
        Journal::format(&region, &geo, first).expect("format");
        let mount = |mode| Volume::recover(Arc::clone(&region), Arc::clone(&device), mode, &"restart");
        let mut volume = mount(first);
        let mut model = Model { history: vec![(vec![0; LBNS as usize], 0)], mode: first };
        let mut last_seq = volume.journal.last_seq();
        for (op, step) in (1u64..).zip(steps) {
            match step {
                Step::Write(lbns) => {
                    let seq = volume.write(op, &lbns).seq;
                    prop_assert_eq!(seq, last_seq + 1);
                    last_seq = seq;
                    let mut state = model.now().clone();
                    lbns.iter().for_each(|&l| state[l as usize] = op);
                    model.history.push((state, seq));
                }
                Step::Fail(lbn) => volume.fail(op, lbn),
                Step::Commit => {
                    let upto = volume.journal.commit(None).expect("commit");
                    prop_assert_eq!(upto, last_seq);
                }
                Step::Digest => volume.digest(),
                Step::Round => volume.round(),
                Step::Kill(mode) => {
                    let expected = model.after_kill(volume.journal.commit_ts());
                    drop(volume);
                    volume = mount(mode);
                    prop_assert_eq!(&volume.state(&"killed"), &expected);
                    model = Model { history: vec![(expected, 0)], mode };
                    // Numbers that were taken are never taken again.
                    prop_assert_eq!(volume.journal.last_seq(), last_seq);
                }
                Step::Unmount(mode) => {
                    volume.journal.commit(None).expect("commit");
                    volume.digest();
                    volume.round();
                    volume.journal.set_clean(None).expect("everything is digested");
                    let expected = model.now().clone();
                    drop(volume);
                    let scan = Journal::scan(Arc::clone(&region), &geo).expect("scan");
                    prop_assert!(scan.clean() && scan.records.is_empty());
                    volume = mount(mode);
                    prop_assert_eq!(&volume.state(&"unmounted"), &expected);
                    model = Model { history: vec![(expected, 0)], mode };
                    prop_assert_eq!(volume.journal.last_seq(), last_seq);
                }
            }
            prop_assert_eq!(volume.journal.complete_upto(), last_seq);
        }
        volume.journal.commit(None).expect("commit");
        prop_assert_eq!(&volume.state(&"the end"), model.now());
    }
}
