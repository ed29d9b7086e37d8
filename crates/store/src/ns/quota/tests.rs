//! Tests of quotas.

use super::*;
use quayfs_layout::config::{FEATURE_OWNERS, FEATURE_QUOTA, LABEL_MAX, OPTIONS_MAX};

const SEVEN: Subject = Subject::Project(7);

fn quotas() -> Quotas {
    Quotas::empty(&ConfigTable {
        uuid: [0; 16],
        data_uuid: [0; 16],
        next_data_uuid: [0; 16],
        compat: [0, 0, FEATURE_QUOTA | FEATURE_OWNERS],
        created: 0,
        label: [0; LABEL_MAX],
        hash_key: [0; 2],
        changes: 0,
        options: [0; OPTIONS_MAX],
        geometry: Geometry {
            quota_base: 9,
            quota_pages: 1,
            ..Geometry::default()
        },
    })
}

#[test]
fn limits_hold_for_what_grows() {
    let q = quotas();
    let p = q.claim(SEVEN).unwrap();
    q.limited(
        &p,
        Limits {
            blocks: 10,
            inodes: 2,
            ..Limits::default()
        },
    );
    assert!(p.reserve(10, 1, true));
    assert!(!p.reserve(1, 0, true) && !p.reserve(0, 2, true));
    assert!(p.reserve(0, 0, true) && p.reserve(1, 1, false));
    // One that does not fit takes nothing of the other.
    assert!(!p.reserve(-5, 1, true));
    let usage = Usage {
        blocks: 11,
        inodes: 2,
    };
    assert_eq!(p.usage(), usage);
    p.add(-11, -2);
    assert_eq!(p.usage(), Usage::default());
}

#[test]
fn places_are_used_again_when_nothing_is_left() {
    let q = quotas();
    for id in 1..=PER_PAGE as u32 {
        let p = q.claim(Subject::Project(id)).unwrap();
        assert!(p.reserve(1, 1, true));
    }
    let user = Subject::User(3);
    assert_eq!(q.claim(user).err(), Some(FsError::NoSpace));
    let three = q.claim(Subject::Project(3)).unwrap();
    let place = q.place(&three);
    three.add(-1, -1);
    // Project 3 is about to be used again.
    assert_eq!(q.claim(user).err(), Some(FsError::NoSpace));
    drop(three);
    let other = q.claim(user).unwrap();
    assert_eq!(q.place(&other), place);
    assert!(q.get(Subject::Project(3)).is_none());
}

#[test]
fn kinds_are_listed_apart_and_only_what_says_something() {
    let q = quotas();
    for subject in [
        Subject::User(0),
        SEVEN,
        Subject::Group(5),
        Subject::User(u32::MAX),
        Subject::User(9),
    ] {
        assert!(q.claim(subject).unwrap().reserve(1, 1, true));
    }
    q.claim(Subject::User(4)).unwrap();
    let list = |from, most| -> Vec<u32> {
        let all = q.list(from, most).into_iter();
        all.map(|t| t.subject.id()).collect()
    };
    assert_eq!(list(Subject::User(0), 9), [0, 9, u32::MAX]);
    assert_eq!(list(Subject::User(1), 1), [9]);
    assert_eq!(list(Subject::Project(0), 9), [7]);
    assert_eq!(list(Subject::Group(6), 9), [0; 0]);
}

#[test]
fn an_exempt_caller_is_bound_by_limits_of_projects_only() {
    let q = quotas();
    let user = Subject::User(7);
    assert!(q.enforces(user) && q.enforces(SEVEN));
    exempt(|| {
        exempt(|| assert!(!q.enforces(user) && q.enforces(SEVEN)));
        assert!(!q.enforces(user));
    });
    assert!(q.enforces(user));
    let q = q.enforcing(false);
    assert!(!q.enforces(user) && !q.enforces(SEVEN));
}
