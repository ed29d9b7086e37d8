use super::*;
use proptest::prelude::*;
use std::collections::VecDeque;

#[test]
fn after_recovery_everything_is_abandoned_until_committed() {
    let r = SlotRing::new(8, 20, 27);
    r.commit(22, 5, 6, 100);
    assert_eq!(
        r.committed(0, u64::MAX - 1)
            .map(|c| c.pos)
            .collect::<Vec<_>>(),
        [22]
    );
    assert_eq!((r.used(), r.index(27)), (7, 3));
    assert_eq!(r.passable(99), 22);
    assert_eq!(r.passable(100), 27);
}

#[test]
#[should_panic(expected = "at most its slots")]
fn a_ring_cannot_be_longer_than_its_slots() {
    SlotRing::new(8, 0, 9);
}

#[test]
fn the_head_stops_at_what_is_in_flight() {
    let r = SlotRing::new(4, 0, 0);
    assert_eq!(r.passable(u64::MAX - 1), 0);
    assert_eq!((r.take(2), r.take(1)), (0, 2));
    r.abandon(0, 1);
    r.commit(2, 9, 9, 7);
    assert_eq!(r.passable(7), 1);
    r.commit(1, 8, 8, 8);
    assert_eq!(r.passable(7), 1, "8 is not retired");
    assert_eq!(r.passable(8), 3);
    assert_eq!(r.pass(3), 3);
    assert_eq!(r.passable(8), 3, "what was passed is in flight again");
}

#[derive(Clone, Debug)]
enum Op {
    Take(u64),
    Commit(prop::sample::Index),
    Abandon(prop::sample::Index),
    Retire(u64),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        (1u64..4).prop_map(Op::Take),
        any::<prop::sample::Index>().prop_map(Op::Commit),
        any::<prop::sample::Index>().prop_map(Op::Abandon),
        (0u64..40).prop_map(Op::Retire),
    ]
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Slot {
    InFlight,
    Abandoned,
    Committed(u64),
}

proptest! {
    /// Against a queue of slots: the same are live, the head passes the same.
    #[test]
    fn behaves_like_a_queue(
        size in 1u64..9,
        start in 0u64..20,
        ops in prop::collection::vec(op(), 0..200),
    ) {
        let ring = SlotRing::new(size, start, start);
        let (mut head, mut model) = (start, VecDeque::new());
        let mut seq = 0;
        for op in ops {
            match op {
                Op::Take(n) if model.len() as u64 + n <= size => {
                    prop_assert_eq!(ring.take(n), head + model.len() as u64);
                    model.extend((0..n).map(|_| Slot::InFlight));
                }
                Op::Take(_) => {}
                Op::Commit(at) | Op::Abandon(at) => {
                    let open: Vec<usize> =
                        (0..model.len()).filter(|&i| model[i] == Slot::InFlight).collect();
                    if open.is_empty() {
                        continue;
                    }
                    let i = *at.get(&open);
                    let pos = head + i as u64;
                    if matches!(op, Op::Commit(_)) {
                        seq += 1;
                        ring.commit(pos, seq * 10, seq as u32, seq);
                        model[i] = Slot::Committed(seq);
                    } else {
                        ring.abandon(pos, 1);
                        model[i] = Slot::Abandoned;
                    }
                }
                Op::Retire(upto) => {
                    let mut passed = 0;
                    while let Some(Slot::Abandoned | Slot::Committed(..)) = model.front() {
                        if matches!(model[0], Slot::Committed(s) if s > upto) {
                            break;
                        }
                        model.pop_front();
                        passed += 1;
                    }
                    prop_assert_eq!(ring.passable(upto), head + passed);
                    prop_assert_eq!(ring.pass(head + passed), passed);
                    head += passed;
                }
            }
            prop_assert_eq!(ring.used(), model.len() as u64);
            let live: Vec<Committed> = ring.committed(0, seq).collect();
            let expected: Vec<Committed> = (head..)
                .zip(&model)
                .filter_map(|(pos, s)| match *s {
                    Slot::Committed(seq) => {
                        Some(Committed { pos, lbn: seq * 10, crc: seq as u32, seq })
                    }
                    _ => None,
                })
                .collect();
            prop_assert_eq!(live, expected);
        }
    }
}
