//! The configurations. Quick ones keep every mechanism and cut the number of repetitions.

use super::volumes::volumes;
use super::{Bounds, Case, Kind};
use crate::ordering::Kept;
use crate::{batch, behind, credits, image, intent, lane, ppt, reader, redo, restart, shadow};

/// Every model under every configuration.
pub fn cases(bounds: Bounds) -> Vec<Case> {
    let full = bounds == Bounds::Full;
    let mut cases = Vec::new();
    cases.extend(volumes(full).into_iter().map(Kind::Volume));
    cases.extend(lanes(full).into_iter().map(Kind::Lane));
    cases.extend(images().into_iter().map(Kind::Image));
    cases.extend(logs(full).into_iter().map(Kind::Log));
    cases.extend(readers().into_iter().map(Kind::Reader));
    cases.extend(credits().into_iter().map(Kind::Credit));
    cases.extend(intents().into_iter().map(Kind::Intent));
    cases.extend(batches(full).into_iter().map(Kind::Batch));
    cases.extend(redos(full).into_iter().map(Kind::Redo));
    cases.extend(restarts(full).into_iter().map(Kind::Restart));
    cases.push(Kind::Behind(behind_writes(full)));
    cases.push(Kind::Shadow(shadow_of_stores(full)));
    cases.into_iter().map(Case).collect()
}

fn lanes(full: bool) -> Vec<lane::Config> {
    use lane::Job;
    // Register x or y, through lane 0 or 1.
    const X0: Job = Job { lane: 0, reg: 0 };
    const X1: Job = Job { lane: 1, reg: 0 };
    const Y0: Job = Job { lane: 0, reg: 1 };
    const Y1: Job = Job { lane: 1, reg: 1 };
    let base = lane::Config {
        name: "lanes",
        commit: false,
        jobs: if full {
            [&[X0, Y0], &[X1], &[Y1, X1]]
        } else {
            [&[X0], &[X1], &[Y1]]
        },
        ring: 2,
        committers: 0,
        commits: 0,
        rot: false,
        failures: true,
        kept: Kept::ALL,
    };
    let commit = lane::Config {
        commit: true,
        committers: 1,
        commits: 2,
        ..base.clone()
    };
    vec![
        base.clone(),
        lane::Config {
            name: "lanes-wrap",
            jobs: if full {
                [&[X0, X0], &[X1, Y1], &[Y1]]
            } else {
                [&[X0], &[X1, Y1], &[]]
            },
            ring: 1,
            ..base.clone()
        },
        lane::Config {
            name: "lanes-rot",
            jobs: if full {
                [&[X0, X0], &[Y0], &[Y1]]
            } else {
                [&[X0], &[X0], &[Y1]]
            },
            rot: true,
            ..base.clone()
        },
        lane::Config {
            name: "lanes-commit",
            jobs: if full {
                [&[X0], &[X1], &[Y1]]
            } else {
                [&[X0], &[Y1], &[]]
            },
            ..commit.clone()
        },
        lane::Config {
            name: "lanes-full",
            jobs: [&[X0, Y0], &[], &[]],
            ring: 1,
            commits: u8::MAX,
            failures: false,
            ..commit.clone()
        },
        lane::Config {
            name: "lanes-commits",
            jobs: [&[X0], &[X1], &[]],
            committers: 2,
            ..commit.clone()
        },
    ]
}

fn images() -> Vec<image::Config> {
    use image::Job::{Create, Extend, None, Other, Unlink};
    let base = image::Config {
        name: "writers",
        commit: false,
        jobs: [Extend(0), Extend(1), None],
        existing: 0,
        reader: false,
        counter_as_delta: false,
        kept: Kept::ALL,
    };
    let numbers = [Unlink(0), Create, Create];
    vec![
        base.clone(),
        image::Config {
            name: "writers-read",
            reader: true,
            ..base.clone()
        },
        image::Config {
            name: "writers-delta",
            counter_as_delta: true,
            ..base.clone()
        },
        image::Config {
            name: "two-files",
            jobs: [Extend(0), Other, None],
            ..base.clone()
        },
        image::Config {
            name: "creators",
            jobs: [Create, Create, Extend(0)],
            ..base.clone()
        },
        image::Config {
            name: "numbers",
            jobs: numbers,
            existing: 1,
            ..base.clone()
        },
        image::Config {
            name: "writers-commit",
            commit: true,
            jobs: [Extend(0), Extend(1), Create],
            ..base.clone()
        },
        image::Config {
            name: "numbers-commit",
            commit: true,
            jobs: numbers,
            existing: 1,
            ..base.clone()
        },
    ]
}

fn logs(full: bool) -> Vec<ppt::Config> {
    let crashes = if full { 4 } else { 2 };
    vec![ppt::Config {
        name: "log",
        txns: if full { 3 } else { 2 },
        stores: 1,
        crashes,
        kept: Kept::ALL,
    }]
}

fn readers() -> Vec<reader::Config> {
    let base = reader::Config {
        name: "read-in-place",
        swap: false,
        scrub: false,
        kept: Kept::ALL,
    };
    vec![
        base.clone(),
        reader::Config {
            name: "read-swap",
            swap: true,
            ..base.clone()
        },
        reader::Config {
            name: "scrub-in-place",
            scrub: true,
            ..base.clone()
        },
        reader::Config {
            name: "scrub-swap",
            scrub: true,
            swap: true,
            ..base.clone()
        },
    ]
}

fn credits() -> Vec<credits::Config> {
    use credits::Do::{self, Acquire, IntentStep, Lock, Pin, Unlock, Unpin, Use, UseAndFree};
    const RENAME: &[Do] = &[
        Acquire([2, 1, 0, 0]),
        Pin,
        Lock(0),
        Lock(1),
        Use,
        Unlock(1),
        Unlock(0),
        Unpin,
    ];
    const WRITE: &[Do] = &[Acquire([2, 1, 0, 0]), Pin, Lock(1), Use, Unlock(1), Unpin];
    const CREATE: &[Do] = &[Acquire([0, 1, 0, 1]), Lock(0), Use, Unlock(0)];
    const GROW: &[Do] = &[Acquire([0, 1, 1, 0]), Lock(0), Use, Unlock(0)];
    const SHRINK: &[Do] = &[Acquire([0, 1, 0, 0]), UseAndFree];
    const TAIL: &[Do] = &[Acquire([0, 1, 0, 0]), Lock(0), Use, Unlock(0)];
    const TRUNCATE: &[Do] = &[
        Acquire([0, 1, 0, 0]),
        Lock(0),
        Use,
        IntentStep,
        IntentStep,
        Unlock(0),
    ];
    const HUGE: &[Do] = &[Acquire([0, 3, 0, 0]), Use];
    let base = credits::Config {
        name: "slots",
        space: [2, 2, 0, 0],
        copies: 0,
        programs: [RENAME, WRITE, WRITE],
        kept: Kept::ALL,
    };
    let of = |name, space, programs| credits::Config {
        name,
        space,
        programs,
        ..base.clone()
    };
    vec![
        base.clone(),
        credits::Config {
            copies: 1,
            ..of("pages", [0, 2, 0, 2], [CREATE, CREATE, TAIL])
        },
        of("lbns", [0, 2, 1, 0], [GROW, SHRINK, GROW]),
        of("intents", [0, 2, 0, 0], [TRUNCATE, TAIL, TAIL]),
        of("large-record", [0, 2, 0, 0], [HUGE, TAIL, &[]]),
    ]
}

fn intents() -> Vec<intent::Config> {
    vec![intent::Config {
        name: "truncate",
        shrink_to: &[0, 1, 2, 3],
        truncates: 2,
        writes: 2,
        extends: 2,
        crashes: 3,
        kept: Kept::ALL,
    }]
}

fn batches(full: bool) -> Vec<batch::Config> {
    use batch::Job;
    // Register x or y, by a slot or by a fresh block.
    const X: Job = Job {
        reg: 0,
        direct: false,
    };
    const Y: Job = Job {
        reg: 1,
        direct: false,
    };
    const XD: Job = Job {
        reg: 0,
        direct: true,
    };
    const YD: Job = Job {
        reg: 1,
        direct: true,
    };
    let base = batch::Config {
        name: "batches",
        jobs: if full {
            &[X, Y, X, Y, X]
        } else {
            &[X, Y, X, X]
        },
        lazy: 1,
        crashes: 1,
        rot: false,
        kept: Kept::ALL,
    };
    vec![
        base.clone(),
        batch::Config {
            name: "batches-direct",
            jobs: if full {
                &[XD, XD, YD, X, XD]
            } else {
                &[XD, XD, YD, XD]
            },
            lazy: 0,
            ..base.clone()
        },
        batch::Config {
            name: "batches-again",
            jobs: if full { &[X, XD, Y, X] } else { &[X, Y, X] },
            lazy: 0,
            crashes: 2,
            ..base.clone()
        },
        batch::Config {
            name: "batches-rot",
            jobs: if full { &[X, YD, X, Y] } else { &[X, Y, X] },
            lazy: 0,
            rot: true,
            ..base
        },
    ]
}

fn redos(full: bool) -> Vec<redo::Config> {
    let base = redo::Config {
        name: "redo",
        stores: if full { 7 } else { 6 },
        at_home: 1,
        crashes: 1,
        kept: Kept::ALL,
    };
    vec![
        base.clone(),
        redo::Config {
            name: "redo-again",
            stores: if full { 6 } else { 5 },
            at_home: if full { 1 } else { 0 },
            crashes: 2,
            ..base
        },
    ]
}

fn restarts(full: bool) -> Vec<restart::Config> {
    let base = restart::Config {
        name: "restarts",
        requests: [1, 1, 0],
        threads: 2,
        background: 1,
        deaths: 2,
        kept: Kept::ALL,
    };
    vec![
        restart::Config {
            requests: if full { [1, 1, 1] } else { [1, 1, 0] },
            ..base.clone()
        },
        restart::Config {
            name: "restarts-parts",
            requests: if full { [3, 1, 0] } else { [3, 0, 0] },
            background: u8::from(full),
            ..base.clone()
        },
        restart::Config {
            name: "restarts-again",
            requests: if full { [2, 1, 0] } else { [2, 0, 0] },
            background: 0,
            deaths: if full { 4 } else { 3 },
            ..base
        },
    ]
}

fn behind_writes(full: bool) -> behind::Config {
    behind::Config {
        name: "behind",
        files: if full { 4 } else { 3 },
        deaths: if full { 3 } else { 2 },
        kept: Kept::ALL,
    }
}

fn shadow_of_stores(full: bool) -> shadow::Config {
    shadow::Config {
        name: "shadow",
        stores: if full { 3 } else { 2 },
        looks: if full { 3 } else { 2 },
        deaths: if full { 2 } else { 1 },
        kept: Kept::ALL,
    }
}
