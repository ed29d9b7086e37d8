//! One step at a time, and more of its crashes than `make crash` looks at: a sample of very many.

use quayfs_crashsim::Budget;
use quayfs_oracle::crash::{Depth, explore};
use quayfs_oracle::search::alphabet::ALPHABET;
use quayfs_oracle::search::program::{MODES, Program, Text};

const DEPTH: Depth = Depth {
    budget: Budget {
        exhaustive: 600,
        picks: 24,
        random: 24,
        seed: 3,
    },
    fsck: 17,
    used: 29,
    again: 251,
    rot: 31,
    most: 250,
};

/// Every so many steps of the alphabet, from `first` on, so that tests share the work.
fn each(first: usize) {
    for mode in MODES {
        for step in ALPHABET.iter().skip(first).step_by(4) {
            let program = Program {
                mode,
                text: Text::Steps(vec![step.name]),
                dies: None,
                goes_on: false,
            };
            explore(&*program.run(), &DEPTH);
        }
    }
}

#[test]
fn steps_0() {
    each(0);
}

#[test]
fn steps_1() {
    each(1);
}

#[test]
fn steps_2() {
    each(2);
}

#[test]
fn steps_3() {
    each(3);
}
