//! Runs whose every crash is looked at.

use quayfs_crashsim::{Budget, CrashImage, Trace};

use crate::rng::Rng;
pub use crate::script::Script;

/// How much of what is possible is looked at.
#[derive(Clone, Copy, Debug)]
pub struct Depth {
    /// Of each crash.
    pub budget: Budget,
    /// Of every so many images one is checked by fsck before it is recovered.
    pub fsck: u64,
    /// Of every so many images one is used after recovery: written to, checkpointed, mounted again.
    pub used: u64,
    /// Of every so many images one sees the crashes of its recovery.
    pub again: u64,
    /// Of every so many images one is found with a bit flipped in a word of which there is a copy.
    pub rot: u64,
    /// Images that are looked at, at most about; others are left out at random.
    pub most: u64,
}

impl Depth {
    /// For runs of some hundred events.
    pub const USUAL: Self = Self {
        budget: Budget {
            exhaustive: 64,
            picks: 6,
            random: 8,
            seed: 1,
        },
        fsck: 9,
        used: 13,
        again: 97,
        rot: 7,
        most: 6000,
    };
    /// For recoveries that have much to do: most of them are interrupted.
    pub const RECOVERY: Self = Self {
        again: 4,
        ..Self::USUAL
    };
}

/// A recorded run whose crashes can be judged.
pub trait Run {
    /// What ran.
    fn name(&self) -> &str;

    /// What was recorded.
    fn trace(&self) -> Trace;

    /// Recoveries from an image, as runs: every crash of them has to lead to the same state.
    ///
    /// # Errors
    /// What is wrong with the image.
    fn recoveries(&self, _image: &CrashImage) -> Result<Vec<Box<dyn Run + '_>>, String> {
        Ok(Vec::new())
    }

    /// Recovers from what a crash has left, the `n`th that is looked at, and says what is wrong with
    /// the result, or else which of the trees that may be there was there, as a number.
    fn judge(&self, image: &CrashImage, n: u64, depth: &Depth) -> Result<u64, String>;
}

/// Looks at the crashes of a run; panics at the first after which something is wrong.
pub fn explore(run: &dyn Run, depth: &Depth) {
    let trace = run.trace();
    let total = trace.explore(&depth.budget).count() as u64;
    let mut rng = Rng::new(total);
    let mut n = 0;
    for image in trace.explore(&depth.budget) {
        if total > depth.most && rng.below(total) >= depth.most {
            continue;
        }
        n += 1;
        if let Err(e) = run.judge(&image, n, depth) {
            panic!("{}: {e}\n{image}", run.name());
        }
    }
    assert!(n > 0);
    eprintln!("{}: {n} of {total} images", run.name());
}
