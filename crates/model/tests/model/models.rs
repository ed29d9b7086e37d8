//! The protocol as designed holds in every model, within the quick bounds.

use quayfs_model::ordering::Ordering;
use quayfs_model::suite::{Bounds, Case, cases, strolls};

fn all_hold(wanted: impl Fn(&Case) -> bool) {
    let cases = cases(Bounds::Quick);
    let mut ran = 0;
    for case in cases.iter().filter(|case| wanted(case)) {
        let outcome = case.run();
        assert!(outcome.complete, "{} was cut off", case.name());
        if let Some(found) = outcome.counterexample {
            let trace = found.trace.join("\n  ");
            panic!("{}: {}\n  {trace}", case.name(), found.property.text());
        }
        ran += 1;
    }
    assert!(ran > 0, "no such case");
}

#[test]
fn volume() {
    all_hold(|case| case.model() == "volume");
}

#[test]
fn everything_else() {
    all_hold(|case| case.model() != "volume");
}

#[test]
fn long_histories_hold_along_random_walks() {
    for case in strolls() {
        let outcome = case.stroll(0x51ab, 400).expect("a model with large bounds");
        if let Some(found) = outcome.counterexample {
            let trace = found.trace.join("\n  ");
            panic!("{}: {}\n  {trace}", case.name(), found.property.text());
        }
    }
}

#[test]
fn random_walks_find_what_is_wrong() {
    for out in [
        Ordering::RingAfterDigested,
        Ordering::UndoneTxnClosed,
        Ordering::PublishedBeforeRound,
    ] {
        let cases = strolls();
        let case = cases[0].without(&[out]);
        let outcome = case
            .stroll(0x51ab, 6_000)
            .expect("a model with large bounds");
        assert!(outcome.counterexample.is_some(), "{out:?} is not missed");
    }
}

#[test]
fn names_are_unique_and_bounds_only_grow() {
    let quick = cases(Bounds::Quick);
    let full = cases(Bounds::Full);
    let names = |cases: &[Case]| cases.iter().map(Case::name).collect::<Vec<_>>();
    assert_eq!(names(&quick), names(&full));
    let mut sorted = names(&quick);
    sorted.sort_unstable();
    sorted.dedup();
    assert_eq!(sorted.len(), quick.len());
}
