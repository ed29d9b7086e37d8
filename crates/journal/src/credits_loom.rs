use super::*;
use crate::queue::WaitQueue;
use crate::sync::model::{Shared, weakened_tests, with_weak};
use loom::sync::Arc;
use loom::thread;
use std::time::Duration;

const ONE: Amount = Amount {
    slots: 1,
    lines: 0,
    records: 0,
};
const NOTHING: Amount = Amount {
    slots: 0,
    lines: 0,
    records: 0,
};

/// The thread that holds the only credit owns what it stands for.
fn a_credit_carries_ownership() {
    let state = Arc::new((Credits::new(ONE), Shared::new()));
    let work = |state: &(Credits, Shared)| {
        if state.0.try_take(ONE, NOTHING).is_ok() {
            state.1.write();
            state.0.give(ONE);
        }
    };
    let other = {
        let state = Arc::clone(&state);
        thread::spawn(move || work(&state))
    };
    work(&state);
    other.join().expect("no panic");
    assert_eq!(state.0.try_take(ONE, NOTHING), Ok(()));
}

/// Needs of several kinds: never more out than there is, and everything comes back.
fn all_or_nothing() {
    let all = Amount {
        slots: 3,
        lines: 2,
        records: 1,
    };
    let credits = Arc::new(Credits::new(all));
    let work = |credits: &Credits, need| {
        if credits.try_take(need, NOTHING).is_ok() {
            credits.give(need);
        }
    };
    let other = {
        let credits = Arc::clone(&credits);
        thread::spawn(move || {
            work(
                &credits,
                Amount {
                    slots: 2,
                    lines: 1,
                    records: 1,
                },
            )
        })
    };
    work(
        &credits,
        Amount {
            slots: 1,
            lines: 2,
            records: 0,
        },
    );
    work(
        &credits,
        Amount {
            slots: 1,
            lines: 0,
            records: 1,
        },
    );
    other.join().expect("no panic");
    assert_eq!(credits.try_take(all, NOTHING), Ok(()));
}

/// A credit given back while a thread goes to sleep for it wakes that thread: loom reports a deadlock if not.
fn no_wake_up_is_lost() {
    let state = Arc::new((Credits::new(Amount::default()), WaitQueue::new()));
    let giver = {
        let state = Arc::clone(&state);
        thread::spawn(move || {
            state.0.give(ONE);
            state.1.wake();
        })
    };
    let got = state
        .1
        .wait(ONE, Duration::MAX, || state.0.try_take(ONE, NOTHING).ok());
    assert_eq!(got, Some(()));
    giver.join().expect("no panic");
}

#[test]
fn loom_a_credit_carries_ownership() {
    with_weak(None, a_credit_carries_ownership);
}

#[test]
fn loom_all_or_nothing() {
    with_weak(None, all_or_nothing);
}

#[test]
fn loom_no_wake_up_is_lost() {
    with_weak(None, no_wake_up_is_lost);
}

weakened_tests! {
    loom_credit_taken_relaxed_fails: CreditTake, a_credit_carries_ownership;
    loom_credit_given_relaxed_fails: CreditGive, a_credit_carries_ownership;
    loom_waiter_without_fence_fails: WaitFence, no_wake_up_is_lost;
    loom_waker_without_fence_fails: WakeFence, no_wake_up_is_lost;
}
