//! Tests of quotas.

use super::*;
use quayfs_layout::config::{FEATURE_OWNERS, FEATURE_QUOTA, LABEL_MAX, OPTIONS_MAX};
use std::time::UNIX_EPOCH;

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
        fencing_token: 0,
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
        Grace::default(),
    );
    let reserve = |blocks, inodes, enforced| p.reserve(blocks, inodes, enforced, Grace::default);
    assert!(reserve(10, 1, true));
    assert!(!reserve(1, 0, true) && !reserve(0, 2, true));
    assert!(reserve(0, 0, true) && reserve(1, 1, false));
    // One that does not fit takes nothing of the other.
    assert!(!reserve(-5, 1, true));
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
        assert!(p.reserve(1, 1, true, Grace::default));
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
        assert!(
            q.claim(subject)
                .unwrap()
                .reserve(1, 1, true, Grace::default)
        );
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

#[test]
fn soft_limits_are_exceeded_for_a_while() {
    let q = quotas();
    let user = q.claim(Subject::User(7)).unwrap();
    let limits = Limits {
        blocks_soft: 10,
        ..Limits::default()
    };
    let reserve = |blocks, enforced| user.reserve(blocks, 0, enforced, || q.period(user.subject));
    assert!(reserve(8, true));
    q.limited(
        &user,
        limits,
        user.grace_under(&limits, [None; 2], q.period(user.subject)),
    );
    assert_eq!(user.grace(), Grace::default(), "it is not exceeded");
    assert!(reserve(2, true) && Logging::begin(&user).is_none());
    assert!(reserve(1, true), "the grace time begins");
    let logging = Logging::begin(&user).unwrap();
    assert!(Logging::begin(&user).is_none(), "one at a time");
    drop(logging);
    let logging = Logging::begin(&user).unwrap();
    let week = u64::from(logging.grace.blocks) - UNIX_EPOCH.elapsed().unwrap().as_secs();
    assert!(
        week <= GRACE.into() && week > u64::from(GRACE) - 60,
        "{week}"
    );
    logging.appended();
    assert!(reserve(5, true) && Logging::begin(&user).is_none());
    // It is over.
    let over = user.grace_under(&limits, [Some(0), None], q.period(user.subject));
    q.limited(&user, limits, over);
    assert!(!reserve(1, true) && reserve(1, false));
    assert_eq!(user.usage().blocks, 17);
    user.add(-7, 0);
    assert_eq!(user.grace().blocks, 0, "it is exceeded no more");
    assert!(reserve(1, true));
    // Limits that were found out before something was taken away.
    user.add(-1, 0);
    q.limited(&user, limits, over);
    assert_eq!(user.grace().blocks, 0);
    // A time that is over and was left binds nothing that begins another one.
    let left = Entry {
        usage: Usage {
            blocks: 11,
            inodes: 0,
        },
        limits,
        grace: over,
        ..Entry::default()
    };
    let left = Tally::new(
        0,
        &Entry {
            subject: Subject::User(8),
            ..left
        },
    );
    left.blocks.add(-5);
    assert_eq!(left.grace(), over);
    assert!(left.reserve(6, 0, true, || q.period(user.subject)));
    assert!(left.grace().blocks > over.blocks);
}

#[test]
fn number_0_of_a_kind_has_the_grace_times_of_all() {
    let q = quotas();
    let (first, other) = (Subject::Group(0), Subject::Group(9));
    assert_eq!(
        q.period(other),
        Grace {
            blocks: GRACE,
            inodes: GRACE
        }
    );
    let tally = q.claim(first).unwrap();
    let limits = Limits {
        blocks_soft: 1,
        ..Limits::default()
    };
    let grace = tally.grace_under(&limits, [Some(60), None], q.period(first));
    q.limited(&tally, limits, grace);
    assert_eq!(
        q.period(other),
        Grace {
            blocks: 60,
            inodes: GRACE
        }
    );
    // Its own soft limits are only shown.
    assert!(tally.reserve(5, 0, true, || panic!("it has no grace time")));
    tally.add(-5, 0);
    assert_eq!(q.period(other).blocks, 60);
    // Such times keep the place of a project that nothing has.
    let project = q.claim(Subject::Project(0)).unwrap();
    assert!(q.list(Subject::Project(0), 9).is_empty());
    q.limited(
        &project,
        Limits::default(),
        Grace {
            blocks: 5,
            inodes: 0,
        },
    );
    assert_eq!(q.list(Subject::Project(0), 9).len(), 1);
}

/// What a crash left: the end of a grace time is logged later than what ended it.
#[test]
fn a_grace_time_without_a_cause_ends_with_the_mount() {
    let mut e = Entry {
        subject: Subject::User(7),
        usage: Usage {
            blocks: 5,
            inodes: 5,
        },
        limits: Limits {
            blocks_soft: 5,
            inodes_soft: 4,
            ..Limits::default()
        },
        grace: Grace {
            blocks: 77,
            inodes: 88,
        },
    };
    let expected = Grace {
        blocks: 0,
        inodes: 88,
    };
    assert_eq!(Tally::new(0, &e).grace(), expected);
    e.subject = Subject::User(0);
    assert_eq!(Tally::new(0, &e).grace(), e.grace);
}
