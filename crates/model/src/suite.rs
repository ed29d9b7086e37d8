//! scratch
use crate::checker::*;
use crate::ordering::*;
use crate::volume::*;
use OpKind::*;

const NONE: Budget = Budget {
    ops: 0,
    rounds: 0,
    batches: 0,
    commits: 0,
    crashes: 0,
    rot: 0,
    scribbles: 0,
};

pub fn configs() -> Vec<Config> {
    let base = Config {
        name: "digest",
        mode: 0,
        remount: &[0],
        ops: &[WriteBoth(0), Write(0, 0), Unlink(0)],
        lbns: 3,
        slots: 3,
        ring: 2,
        in_place: false,
        swap: false,
        deaths: true,
        retired_after_commit: false,
        budget: Budget {
            ops: 3,
            crashes: 2,
            scribbles: 1,
            ..NONE
        },
        kept: Kept::ALL,
    };
    vec![
        base.clone(),
        Config {
            name: "round",
            ops: &[Write(0, 0)],
            lbns: 2,
            slots: 2,
            in_place: true,
            swap: true,
            budget: Budget {
                ops: 3,
                rounds: 2,
                crashes: 2,
                ..NONE
            },
            ..base.clone()
        },
        Config {
            name: "reuse",
            ops: &[Write(0, 0), Unlink(0), Falloc(1, 0)],
            lbns: 2,
            slots: 2,
            in_place: true,
            swap: true,
            budget: Budget {
                ops: 3,
                rounds: 2,
                batches: 1,
                crashes: 1,
                ..NONE
            },
            ..base.clone()
        },
        Config {
            name: "commit",
            mode: 1,
            remount: &[1],
            ops: &[Write(0, 0), Unlink(0)],
            lbns: 2,
            slots: 2,
            in_place: true,
            budget: Budget {
                ops: 3,
                rounds: 1,
                commits: 2,
                crashes: 1,
                ..NONE
            },
            ..base.clone()
        },
        Config {
            name: "commit2",
            mode: 1,
            remount: &[1],
            ops: &[Write(0, 0)],
            lbns: 1,
            slots: 2,
            budget: Budget {
                ops: 3,
                commits: 2,
                crashes: 2,
                ..NONE
            },
            ..base.clone()
        },
        Config {
            name: "remount",
            mode: 1,
            remount: &[0, 1],
            ops: &[Falloc(0, 0), Unlink(0)],
            lbns: 1,
            slots: 2,
            ring: 2,
            deaths: false,
            budget: Budget {
                ops: 3,
                commits: 2,
                crashes: 2,
                ..NONE
            },
            ..base.clone()
        },
        Config {
            name: "remount3",
            mode: 0,
            remount: &[0, 1],
            ops: &[Falloc(0, 0), Unlink(0)],
            lbns: 1,
            slots: 2,
            ring: 2,
            deaths: false,
            budget: Budget {
                ops: 3,
                commits: 1,
                crashes: 3,
                ..NONE
            },
            ..base.clone()
        },
        Config {
            name: "direct",
            mode: 1,
            remount: &[1],
            ops: &[Direct(0, 0), Falloc(0, 0), Unlink(0), Direct(1, 0)],
            lbns: 2,
            slots: 2,
            budget: Budget {
                ops: 3,
                commits: 2,
                batches: 1,
                crashes: 1,
                ..NONE
            },
            ..base.clone()
        },
        Config {
            name: "rot",
            ops: &[Write(0, 0)],
            lbns: 1,
            slots: 2,
            budget: Budget {
                ops: 1,
                crashes: 2,
                rot: 1,
                ..NONE
            },
            ..base.clone()
        },
    ]
}

pub fn run(cfg: &Config, limit: usize) -> Outcome {
    explore(&Volume(cfg.clone()), limit)
}

use crate::lane;
use lane::{Job, Lanes};
const X0: Job = Job { lane: 0, reg: 0 };
const X1: Job = Job { lane: 1, reg: 0 };
const Y0: Job = Job { lane: 0, reg: 1 };
const Y1: Job = Job { lane: 1, reg: 1 };
pub fn lanes() -> Vec<lane::Config> {
    let base = lane::Config {
        name: "lane-op",
        commit: false,
        jobs: [&[X0], &[X1], &[Y1]],
        ring: 2,
        committers: 0,
        commits: 2,
        rot: false,
        failures: true,
        kept: Kept::ALL,
    };
    vec![
        base.clone(),
        lane::Config {
            name: "lane-reuse",
            jobs: [&[X0], &[X1, Y1], &[]],
            ring: 1,
            ..base.clone()
        },
        lane::Config {
            name: "lane-rot",
            jobs: [&[X0], &[X0], &[Y1]],
            rot: true,
            ..base.clone()
        },
        lane::Config {
            name: "lane-commit",
            commit: true,
            jobs: [&[X0], &[X1], &[Y0]],
            committers: 1,
            ..base.clone()
        },
        lane::Config {
            name: "lane-full",
            commit: true,
            jobs: [&[X0, Y0], &[], &[]],
            ring: 1,
            committers: 1,
            commits: 9,
            failures: false,
            ..base.clone()
        },
        lane::Config {
            name: "lane-commit2",
            commit: true,
            jobs: [&[X0], &[X1], &[]],
            committers: 2,
            ..base.clone()
        },
    ]
}
pub fn run_lane(cfg: &lane::Config, limit: usize) -> Outcome {
    explore(&Lanes(cfg.clone()), limit)
}

use crate::image;
use image::Job as J;
pub fn images() -> Vec<image::Config> {
    let base = image::Config {
        name: "image-write",
        commit: false,
        jobs: [J::Extend(0), J::Extend(1), J::None],
        existing: 0,
        reader: true,
        counter_as_delta: false,
        kept: Kept::ALL,
    };
    vec![
        base.clone(),
        image::Config {
            name: "image-delta",
            counter_as_delta: true,
            ..base.clone()
        },
        image::Config {
            name: "image-create",
            jobs: [J::Create, J::Create, J::Extend(0)],
            ..base.clone()
        },
        image::Config {
            name: "image-number",
            jobs: [J::Unlink(0), J::Create, J::Create],
            existing: 1,
            ..base.clone()
        },
        image::Config {
            name: "image-commit",
            commit: true,
            jobs: [J::Extend(0), J::Extend(1), J::Create],
            ..base.clone()
        },
        image::Config {
            name: "image-number-commit",
            commit: true,
            jobs: [J::Unlink(0), J::Create, J::Create],
            existing: 1,
            ..base.clone()
        },
    ]
}
pub fn run_image(cfg: &image::Config, limit: usize) -> Outcome {
    explore(&image::Images(cfg.clone()), limit)
}

use crate::{credits, intent, ppt, reader};
use credits::Do;
pub fn ppts() -> Vec<ppt::Config> {
    vec![ppt::Config {
        name: "ppt",
        txns: 2,
        stores: 1,
        crashes: 3,
        kept: Kept::ALL,
    }]
}
pub fn readers() -> Vec<reader::Config> {
    vec![
        reader::Config {
            name: "read-in-place",
            swap: false,
            kept: Kept::ALL,
        },
        reader::Config {
            name: "read-swap",
            swap: true,
            kept: Kept::ALL,
        },
    ]
}
pub fn intents() -> Vec<intent::Config> {
    vec![intent::Config {
        name: "intent",
        shrink_to: &[0, 1, 2, 3],
        truncates: 2,
        writes: 2,
        extends: 2,
        crashes: 3,
        kept: Kept::ALL,
    }]
}
const RENAME: &[Do] = &[
    Do::Acquire([2, 1, 0, 0]),
    Do::Pin,
    Do::Lock(0),
    Do::Lock(1),
    Do::Use,
    Do::Unlock(1),
    Do::Unlock(0),
    Do::Unpin,
];
const WRITE: &[Do] = &[
    Do::Acquire([2, 1, 0, 0]),
    Do::Pin,
    Do::Lock(1),
    Do::Use,
    Do::Unlock(1),
    Do::Unpin,
];
const CREATE: &[Do] = &[
    Do::Acquire([0, 1, 0, 1]),
    Do::Lock(0),
    Do::Use,
    Do::Unlock(0),
];
const GROW: &[Do] = &[
    Do::Acquire([0, 1, 1, 0]),
    Do::Lock(0),
    Do::Use,
    Do::Unlock(0),
];
const SHRINK: &[Do] = &[Do::Acquire([0, 1, 0, 0]), Do::UseAndFree];
const TAIL: &[Do] = &[
    Do::Acquire([0, 1, 0, 0]),
    Do::Lock(0),
    Do::Use,
    Do::Unlock(0),
];
const INTENT: &[Do] = &[
    Do::Acquire([0, 1, 0, 0]),
    Do::Lock(0),
    Do::Use,
    Do::IntentStep,
    Do::IntentStep,
    Do::Unlock(0),
];
const HUGE: &[Do] = &[Do::Acquire([0, 3, 0, 0]), Do::Use];
pub fn credit() -> Vec<credits::Config> {
    let base = credits::Config {
        name: "credit-slots",
        space: [2, 2, 0, 0],
        copies: 0,
        programs: [RENAME, WRITE, WRITE],
        kept: Kept::ALL,
    };
    vec![
        base.clone(),
        credits::Config {
            name: "credit-pages",
            space: [0, 2, 0, 2],
            copies: 1,
            programs: [CREATE, CREATE, TAIL],
            ..base.clone()
        },
        credits::Config {
            name: "credit-lbns",
            space: [0, 2, 1, 0],
            programs: [GROW, SHRINK, GROW],
            ..base.clone()
        },
        credits::Config {
            name: "credit-intent",
            space: [0, 2, 0, 0],
            programs: [INTENT, TAIL, TAIL],
            ..base.clone()
        },
        credits::Config {
            name: "credit-huge",
            space: [0, 2, 0, 0],
            programs: [HUGE, TAIL, &[]],
            ..base.clone()
        },
    ]
}
