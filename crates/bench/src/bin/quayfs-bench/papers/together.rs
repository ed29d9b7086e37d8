//! All five mechanisms together, against each subset of them.
//!
//! The node log in pmem is set against one that lies on the device as well, the staging of data against
//! `data=ordered`, where data goes to the device before what refers to it: both go with `durability=commit`
//! only. Swap is set against writing twice.

use super::table::{Comparison, PLAIN, Row, Variant, on_pmem, rate};

/// One staging buffer has all of the staging area, so that the variants can stage equally much.
const fn central(name: &'static str, options: &'static str) -> Variant {
    Variant {
        buffers: Some(1),
        ..on_pmem(name, options)
    }
}

/// Every subset, by what it is without.
const SUBSETS: &[Variant] = &[
    on_pmem("all", ""),
    central("without staging", "ablation=staging:central"),
    on_pmem("without ppt", "checkpoint=double"),
    on_pmem("without rangelock", "ablation=locking:file"),
    central(
        "without staging ppt",
        "ablation=staging:central,checkpoint=double",
    ),
    central(
        "without staging rangelock",
        "ablation=staging:central,ablation=locking:file",
    ),
    on_pmem(
        "without ppt rangelock",
        "checkpoint=double,ablation=locking:file",
    ),
    central(
        "without staging ppt rangelock",
        "ablation=staging:central,checkpoint=double,ablation=locking:file",
    ),
    on_pmem("without transcm", "data=ordered"),
    central(
        "without staging transcm",
        "ablation=staging:central,data=ordered",
    ),
    on_pmem("without ppt transcm", "checkpoint=double,data=ordered"),
    on_pmem(
        "without transcm rangelock",
        "data=ordered,ablation=locking:file",
    ),
    central(
        "without staging ppt transcm",
        "ablation=staging:central,checkpoint=double,data=ordered",
    ),
    central(
        "without staging transcm rangelock",
        "ablation=staging:central,data=ordered,ablation=locking:file",
    ),
    on_pmem(
        "without ppt transcm rangelock",
        "checkpoint=double,data=ordered,ablation=locking:file",
    ),
    central(
        "without staging ppt transcm rangelock",
        "ablation=staging:central,checkpoint=double,data=ordered,ablation=locking:file",
    ),
    on_pmem("without nodelog", "ablation=nodelog:ssd"),
    central(
        "without staging nodelog",
        "ablation=staging:central,ablation=nodelog:ssd",
    ),
    on_pmem(
        "without ppt nodelog",
        "checkpoint=double,ablation=nodelog:ssd",
    ),
    on_pmem(
        "without transcm nodelog",
        "data=ordered,ablation=nodelog:ssd",
    ),
    on_pmem(
        "without rangelock nodelog",
        "ablation=locking:file,ablation=nodelog:ssd",
    ),
    central(
        "without staging ppt nodelog",
        "ablation=staging:central,checkpoint=double,ablation=nodelog:ssd",
    ),
    central(
        "without staging transcm nodelog",
        "ablation=staging:central,data=ordered,ablation=nodelog:ssd",
    ),
    central(
        "without staging rangelock nodelog",
        "ablation=staging:central,ablation=locking:file,ablation=nodelog:ssd",
    ),
    on_pmem(
        "without ppt transcm nodelog",
        "checkpoint=double,data=ordered,ablation=nodelog:ssd",
    ),
    on_pmem(
        "without ppt rangelock nodelog",
        "checkpoint=double,ablation=locking:file,ablation=nodelog:ssd",
    ),
    on_pmem(
        "without transcm rangelock nodelog",
        "data=ordered,ablation=locking:file,ablation=nodelog:ssd",
    ),
    central(
        "without staging ppt transcm nodelog",
        "ablation=staging:central,checkpoint=double,data=ordered,ablation=nodelog:ssd",
    ),
    central(
        "without staging ppt rangelock nodelog",
        "ablation=staging:central,checkpoint=double,ablation=locking:file,ablation=nodelog:ssd",
    ),
    central(
        "without staging transcm rangelock nodelog",
        "ablation=staging:central,data=ordered,ablation=locking:file,ablation=nodelog:ssd",
    ),
    on_pmem(
        "without ppt transcm rangelock nodelog",
        "checkpoint=double,data=ordered,ablation=locking:file,ablation=nodelog:ssd",
    ),
    central(
        "without staging ppt transcm rangelock nodelog",
        "ablation=staging:central,checkpoint=double,data=ordered,ablation=locking:file,ablation=nodelog:ssd",
    ),
];

const COMPARISONS: &[Comparison] = &[
    rate("all", "without staging", None),
    rate("all", "without ppt", None),
    rate("all", "without rangelock", None),
    rate("all", "without staging ppt", None),
    rate("all", "without staging rangelock", None),
    rate("all", "without ppt rangelock", None),
    rate("all", "without staging ppt rangelock", None),
    rate("all", "without transcm", None),
    rate("all", "without staging transcm", None),
    rate("all", "without ppt transcm", None),
    rate("all", "without transcm rangelock", None),
    rate("all", "without staging ppt transcm", None),
    rate("all", "without staging transcm rangelock", None),
    rate("all", "without ppt transcm rangelock", None),
    rate("all", "without staging ppt transcm rangelock", None),
    rate("all", "without nodelog", None),
    rate("all", "without staging nodelog", None),
    rate("all", "without ppt nodelog", None),
    rate("all", "without transcm nodelog", None),
    rate("all", "without rangelock nodelog", None),
    rate("all", "without staging ppt nodelog", None),
    rate("all", "without staging transcm nodelog", None),
    rate("all", "without staging rangelock nodelog", None),
    rate("all", "without ppt transcm nodelog", None),
    rate("all", "without ppt rangelock nodelog", None),
    rate("all", "without transcm rangelock nodelog", None),
    rate("all", "without staging ppt transcm nodelog", None),
    rate("all", "without staging ppt rangelock nodelog", None),
    rate("all", "without staging transcm rangelock nodelog", None),
    rate("all", "without ppt transcm rangelock nodelog", None),
    rate("all", "without staging ppt transcm rangelock nodelog", None),
];

/// Of the subsets those that go with `durability=op`.
const WITH_OP: usize = 8;

const COMMIT: Row = Row {
    workload: "varmail",
    threads: &[16],
    options: "durability=commit",
    variants: SUBSETS,
    comparisons: COMPARISONS,
    ..PLAIN
};

const OP: Row = Row {
    options: "durability=op",
    variants: SUBSETS.split_at(WITH_OP).0,
    comparisons: COMPARISONS.split_at(WITH_OP - 1).0,
    ..COMMIT
};

/// What is run.
pub const ROWS: &[Row] = &[
    OP,
    Row {
        workload: "fileserver",
        files: Some(1000),
        ..OP
    },
    COMMIT,
    Row {
        workload: "fileserver",
        files: Some(1000),
        ..COMMIT
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// What each of the five is set against.
    const OFF: [(&str, &str); 5] = [
        ("staging", "ablation=staging:central"),
        ("ppt", "checkpoint=double"),
        ("transcm", "data=ordered"),
        ("rangelock", "ablation=locking:file"),
        ("nodelog", "ablation=nodelog:ssd"),
    ];

    #[test]
    fn every_subset_is_there_once_and_says_what_it_is_without() {
        let mut seen = BTreeSet::new();
        for (i, v) in SUBSETS.iter().enumerate() {
            let without: Vec<&str> = v
                .name
                .trim_start_matches("without")
                .split_whitespace()
                .collect();
            let options: Vec<&str> = v.options.split(',').filter(|o| !o.is_empty()).collect();
            let bits: usize = (OFF.iter().enumerate())
                .filter(|(_, (name, option))| {
                    assert_eq!(
                        without.contains(name),
                        options.contains(option),
                        "{}",
                        v.name
                    );
                    without.contains(name)
                })
                .map(|(bit, _)| 1 << bit)
                .sum();
            assert!(seen.insert(bits), "{} twice", v.name);
            assert_eq!(
                v.buffers,
                without.contains(&"staging").then_some(1),
                "{}",
                v.name
            );
            let by_commit = without.contains(&"transcm") || without.contains(&"nodelog");
            assert_eq!(by_commit, i >= WITH_OP, "{}", v.name);
        }
        assert_eq!(seen.len(), 1 << OFF.len());
        assert_eq!(COMPARISONS.len(), SUBSETS.len() - 1);
    }
}
