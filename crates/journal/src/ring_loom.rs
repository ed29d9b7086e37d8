use super::*;
use crate::credits::{Amount, Credits};
use crate::sync::model::{Shared, weakened_tests, with_weak};
use loom::sync::Arc;
use loom::thread;

const ONE: Amount = Amount {
    slots: 1,
    lines: 0,
    records: 0,
};

/// A ring of one slot, its credit, and the payload of the slot.
struct Buffer {
    ring: SlotRing,
    credits: Credits,
    payload: Shared,
}

impl Buffer {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            ring: SlotRing::new(1, 0, 0),
            credits: Credits::new(ONE),
            payload: Shared::new(),
        })
    }

    /// An operation that succeeds (with the number) or fails; `None` if there is no credit.
    fn operate(&self, seq: Option<u64>) -> Option<u64> {
        self.credits.try_take(ONE, Amount::default()).ok()?;
        let pos = self.ring.take(1);
        self.payload.write();
        match seq {
            Some(seq) => self.ring.commit(pos, 100 + seq, 200 + seq as u32, seq),
            None => self.ring.abandon(pos, 1),
        }
        Some(pos)
    }

    /// A round: read what is live, then let the head pass.
    fn round(&self, retired: u64) {
        for live in self.ring.committed(0, retired) {
            assert_eq!(
                (live.lbn, live.crc),
                (100 + live.seq, 200 + live.seq as u32)
            );
            self.payload.read();
        }
        let slots = self.ring.pass(self.ring.passable(retired));
        self.credits.give(Amount {
            slots,
            ..Amount::default()
        });
    }
}

/// A thread that sees the number of a slot sees its block, checksum and payload.
fn committed_slots_are_whole() {
    let buffer = Buffer::new();
    let other = {
        let buffer = Arc::clone(&buffer);
        thread::spawn(move || buffer.operate(Some(1)))
    };
    for live in buffer.ring.committed(0, 1) {
        assert_eq!((live.pos, live.lbn, live.crc, live.seq), (0, 101, 201, 1));
        buffer.payload.read();
    }
    assert_eq!(other.join().expect("no panic"), Some(0));
    assert_eq!(buffer.ring.committed(0, 1).count(), 1);
}

/// A slot is used by one operation after another, with a round in between, and their stores never meet.
fn reuse_comes_after(first: Option<u64>) {
    let buffer = Buffer::new();
    let writer = {
        let buffer = Arc::clone(&buffer);
        thread::spawn(move || buffer.operate(first))
    };
    let next = {
        let buffer = Arc::clone(&buffer);
        thread::spawn(move || buffer.operate(Some(2)))
    };
    buffer.round(1);
    let taken = [writer.join(), next.join()].map(|r| r.expect("no panic"));
    assert_ne!(taken[0], taken[1]);
    // No round has come to number 2.
    let live: Vec<_> = buffer
        .ring
        .committed(0, 2)
        .map(|c| (c.pos, c.seq))
        .collect();
    if let Some(pos) = taken[1] {
        assert_eq!(live, [(pos, 2)]);
    }
}

fn reuse_after_retirement() {
    reuse_comes_after(Some(1));
}

fn reuse_after_failure() {
    reuse_comes_after(None);
}

#[test]
fn loom_committed_slots_are_whole() {
    with_weak(None, committed_slots_are_whole);
}

#[test]
fn loom_reuse_after_retirement() {
    with_weak(None, reuse_after_retirement);
}

#[test]
fn loom_reuse_after_failure() {
    with_weak(None, reuse_after_failure);
}

weakened_tests! {
    loom_slot_committed_relaxed_fails: SlotCommit, committed_slots_are_whole;
    loom_slot_read_relaxed_fails: SlotRead, committed_slots_are_whole;
    loom_slot_abandoned_relaxed_fails: SlotAbandon, reuse_after_failure;
    loom_abandoned_slot_read_relaxed_fails: SlotRead, reuse_after_failure;
    loom_slot_credit_given_relaxed_fails: CreditGive, reuse_after_retirement;
    loom_slot_credit_taken_relaxed_fails: CreditTake, reuse_after_retirement;
}
