//! Taking an ordering out is noticed: each has a counterexample that the checker finds, or a stated
//! reason why there is none.

use quayfs_model::ordering::Ordering;
use quayfs_model::suite::{Bounds, Expect, Trial, cases, trials};

fn as_expected(trial: &Trial) -> Result<(), String> {
    let cases = cases(Bounds::Quick);
    let case = cases.iter().find(|case| case.name() == trial.case);
    let case = case.ok_or_else(|| format!("no case named {}", trial.case))?;
    let outcome = case.without(trial.out).run();
    match (trial.expect, outcome.counterexample) {
        (Expect::Breaks(property), Some(found)) if found.property == property => Ok(()),
        (Expect::Holds(_), None) if outcome.complete => Ok(()),
        (expect, found) => Err(format!(
            "without {:?} in {}: expected {expect:?}, got {:?}",
            trial.out,
            trial.case,
            found.map(|found| found.property)
        )),
    }
}

fn all_as_expected(part: usize) {
    let wrong: Vec<String> = trials()
        .iter()
        .skip(part)
        .step_by(2)
        .filter_map(|trial| as_expected(trial).err())
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_trial_ends_as_expected_first_half() {
    all_as_expected(0);
}

#[test]
fn every_trial_ends_as_expected_second_half() {
    all_as_expected(1);
}

#[test]
fn every_ordering_has_a_trial() {
    let trials = trials();
    for ordering in Ordering::ALL {
        assert!(
            trials.iter().any(|trial| trial.out[0] == *ordering),
            "{ordering:?} is never taken out"
        );
    }
}

#[test]
fn every_ordering_is_documented() {
    let page = include_str!("../../../../docs/internals/model.md");
    for ordering in Ordering::ALL {
        assert!(
            page.contains(&format!("`{ordering:?}`")),
            "{ordering:?} is not in docs/internals/model.md"
        );
    }
}
