//! The configurations of the volume model.

use super::{Case, Kind};
use crate::ordering::Kept;
use crate::volume::{Budget, Config, OpKind, OpKind::*};

const NONE: Budget = Budget {
    ops: 0,
    rounds: 0,
    batches: 0,
    commits: 0,
    crashes: 0,
    rot: 0,
    scribbles: 0,
};

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
        progress: false,
        budget: Budget {
            ops: 8,
            rounds: 5,
            batches: 4,
            commits: 8,
            crashes: 5,
            scribbles: 3,
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

/// Bounds that are exhausted.
pub fn volumes(full: bool) -> Vec<Config> {
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
        progress: false,
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
            progress: true,
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
            progress: true,
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
            progress: true,
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
            progress: true,
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
            progress: true,
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
            progress: true,
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
