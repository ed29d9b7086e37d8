//! The configurations. Quick ones keep every mechanism and cut the number of repetitions.

use super::{Bounds, Case, Kind};
use crate::ordering::Kept;
use crate::volume::{Budget, Config, OpKind, OpKind::*};
use crate::{credits, image, intent, lane, ppt, reader};

const NONE: Budget = Budget {
    ops: 0,
    rounds: 0,
    batches: 0,
    commits: 0,
    crashes: 0,
    rot: 0,
    scribbles: 0,
};

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
    cases.into_iter().map(Case).collect()
}

/// Bounds too large to be exhausted, for walks at random.
pub fn strolls() -> Vec<Case> {
    let base = Config {
        name: "stroll-op",
        mode: 0,
        remount: &[0],
        ops: &[
            Write(0, 0),
            WriteBoth(0),
            Write(1, 1),
            Unlink(0),
            Falloc(1, 0),
            Direct(1, 0),
        ],
        lbns: 3,
        slots: 3,
        ring: 3,
        in_place: true,
        swap: true,
        deaths: true,
        retired_after_commit: false,
        budget: Budget {
            ops: 8,
            rounds: 5,
            batches: 4,
            commits: 8,
            crashes: 5,
            ..NONE
        },
        kept: Kept::ALL,
    };
    let strolls = [
        base.clone(),
        Config {
            name: "stroll-commit",
            mode: 1,
            remount: &[1],
            ..base.clone()
        },
        Config {
            name: "stroll-modes",
            remount: &[0, 1],
            ..base.clone()
        },
        Config {
            name: "stroll-after",
            retired_after_commit: true,
            ..base
        },
    ];
    strolls
        .into_iter()
        .map(|config| Case(Kind::Volume(config)))
        .collect()
}

fn volumes(full: bool) -> Vec<Config> {
    let pick = |quick: Budget, big: Budget| if full { big } else { quick };
    let base = Config {
        name: "",
        mode: 0,
        remount: &[0],
        ops: &[],
        lbns: 2,
        slots: 2,
        ring: 2,
        in_place: false,
        swap: false,
        deaths: true,
        retired_after_commit: false,
        budget: NONE,
        kept: Kept::ALL,
    };
    let rounds = Config {
        in_place: true,
        swap: true,
        ..base.clone()
    };
    let commit = Config {
        mode: 1,
        remount: &[1],
        ..base.clone()
    };
    const FILES: &[OpKind] = &[Write(0, 0), Unlink(0), Falloc(1, 0)];
    const DIRECT: &[OpKind] = &[Direct(0, 0), Falloc(0, 0), Unlink(0), Direct(1, 0)];
    const NODES: &[OpKind] = &[Falloc(0, 0), Unlink(0)];
    vec![
        Config {
            name: "digest",
            ops: &[WriteBoth(0), Write(0, 0), Unlink(0)],
            slots: 3,
            budget: pick(
                Budget {
                    ops: 3,
                    crashes: 1,
                    scribbles: 1,
                    ..NONE
                },
                Budget {
                    ops: 3,
                    crashes: 2,
                    scribbles: 1,
                    ..NONE
                },
            ),
            ..base.clone()
        },
        Config {
            name: "round",
            ops: &[Write(0, 0)],
            budget: pick(
                Budget {
                    ops: 2,
                    rounds: 1,
                    crashes: 2,
                    ..NONE
                },
                Budget {
                    ops: 3,
                    rounds: 2,
                    crashes: 2,
                    ..NONE
                },
            ),
            ..rounds.clone()
        },
        Config {
            name: "reuse",
            ops: FILES,
            slots: if full { 2 } else { 1 },
            budget: pick(
                Budget {
                    ops: 3,
                    rounds: 1,
                    batches: 1,
                    crashes: 1,
                    ..NONE
                },
                Budget {
                    ops: 3,
                    rounds: 2,
                    batches: 1,
                    crashes: 1,
                    ..NONE
                },
            ),
            ..rounds.clone()
        },
        Config {
            name: "cut",
            ops: &[Write(0, 0)],
            lbns: 1,
            slots: 1,
            in_place: true,
            budget: pick(
                Budget {
                    ops: 2,
                    rounds: 1,
                    crashes: 1,
                    ..NONE
                },
                Budget {
                    ops: 3,
                    rounds: 3,
                    crashes: 2,
                    ..NONE
                },
            ),
            ..base.clone()
        },
        Config {
            name: "buffers",
            ops: &[WriteBoth(0)],
            in_place: true,
            budget: pick(
                Budget {
                    ops: 1,
                    rounds: 1,
                    crashes: 1,
                    ..NONE
                },
                Budget {
                    ops: 2,
                    rounds: 2,
                    crashes: 2,
                    ..NONE
                },
            ),
            ..base.clone()
        },
        Config {
            name: "batch",
            ops: FILES,
            slots: 1,
            swap: true,
            deaths: false,
            budget: pick(
                Budget {
                    ops: 3,
                    rounds: 2,
                    batches: 1,
                    ..NONE
                },
                Budget {
                    ops: 4,
                    rounds: 3,
                    batches: 2,
                    ..NONE
                },
            ),
            ..base.clone()
        },
        Config {
            name: "borrow",
            ops: &[Write(0, 0), Direct(1, 0)],
            slots: 1,
            swap: true,
            budget: pick(
                Budget {
                    ops: 2,
                    rounds: 1,
                    batches: 1,
                    crashes: 1,
                    ..NONE
                },
                Budget {
                    ops: 3,
                    rounds: 2,
                    batches: 1,
                    crashes: 2,
                    ..NONE
                },
            ),
            ..base.clone()
        },
        Config {
            name: "scrub",
            ops: &[Write(0, 0), Unlink(0)],
            lbns: 1,
            in_place: true,
            deaths: false,
            budget: Budget {
                ops: 3,
                rounds: 3,
                crashes: 1,
                ..NONE
            },
            ..base.clone()
        },
        Config {
            name: "direct-op",
            ops: DIRECT,
            slots: 1,
            budget: pick(
                Budget {
                    ops: 2,
                    batches: 1,
                    crashes: 1,
                    ..NONE
                },
                Budget {
                    ops: 3,
                    batches: 2,
                    crashes: 2,
                    ..NONE
                },
            ),
            ..base.clone()
        },
        Config {
            name: "direct",
            ops: DIRECT,
            deaths: full,
            budget: pick(
                Budget {
                    ops: 3,
                    commits: 1,
                    batches: 1,
                    crashes: 1,
                    ..NONE
                },
                Budget {
                    ops: 3,
                    commits: 2,
                    batches: 1,
                    crashes: 1,
                    ..NONE
                },
            ),
            ..commit.clone()
        },
        Config {
            name: "commit",
            ops: &[Write(0, 0), Unlink(0)],
            lbns: if full { 2 } else { 1 },
            in_place: true,
            deaths: false,
            budget: pick(
                Budget {
                    ops: 2,
                    rounds: 1,
                    commits: 2,
                    crashes: 1,
                    ..NONE
                },
                Budget {
                    ops: 3,
                    rounds: 1,
                    commits: 2,
                    crashes: 1,
                    ..NONE
                },
            ),
            ..commit.clone()
        },
        Config {
            name: "recommit",
            ops: &[Write(0, 0)],
            lbns: 1,
            slots: if full { 2 } else { 1 },
            budget: pick(
                Budget {
                    ops: 2,
                    commits: 2,
                    crashes: 2,
                    ..NONE
                },
                Budget {
                    ops: 3,
                    commits: 2,
                    crashes: 2,
                    ..NONE
                },
            ),
            ..commit.clone()
        },
        Config {
            name: "remount",
            remount: &[0, 1],
            ops: NODES,
            lbns: 1,
            deaths: full,
            budget: Budget {
                ops: 3,
                commits: 2,
                crashes: 2,
                ..NONE
            },
            ..commit.clone()
        },
        Config {
            name: "remounts",
            remount: &[0, 1],
            ops: NODES,
            lbns: 1,
            deaths: full,
            budget: pick(
                Budget {
                    ops: 2,
                    commits: 1,
                    crashes: 3,
                    ..NONE
                },
                Budget {
                    ops: 3,
                    commits: 1,
                    crashes: 3,
                    ..NONE
                },
            ),
            ..base.clone()
        },
        Config {
            name: "rot",
            ops: &[Write(0, 0)],
            lbns: 1,
            budget: pick(
                Budget {
                    ops: 1,
                    crashes: 2,
                    rot: 1,
                    ..NONE
                },
                Budget {
                    ops: 2,
                    crashes: 3,
                    rot: 1,
                    ..NONE
                },
            ),
            ..base.clone()
        },
        Config {
            name: "retired-after",
            ops: FILES,
            retired_after_commit: true,
            slots: if full { 2 } else { 1 },
            deaths: full,
            budget: pick(
                Budget {
                    ops: 2,
                    rounds: 1,
                    batches: 1,
                    crashes: 1,
                    ..NONE
                },
                Budget {
                    ops: 2,
                    rounds: 2,
                    batches: 1,
                    crashes: 2,
                    ..NONE
                },
            ),
            ..rounds.clone()
        },
    ]
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
