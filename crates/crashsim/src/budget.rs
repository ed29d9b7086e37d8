//! How many images to make.

/// How many images to make of one point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// If no more images than this are possible, all are made. If more are possible but there are no
    /// more than this many subsets of the stores in flight, all those are made, with every store
    /// whole, and what follows besides.
    pub exhaustive: u64,
    /// Otherwise, besides nothing, everything and one medium only: of how many of the stores in
    /// flight to make an image with that one alone, one with all but that one, and one with all up to
    /// that one; and how many granules to tear. Evenly spread if there are more.
    pub picks: usize,
    /// How many images at random then.
    pub random: usize,
    /// Where randomness starts. The same seed makes the same images.
    pub seed: u64,
}

impl Budget {
    /// For a quick look at long runs: 16 exhaustive, 4 picks, 4 random.
    pub const SMALL: Self = Self {
        exhaustive: 16,
        picks: 4,
        random: 4,
        seed: 1,
    };
    /// The default: 256 exhaustive, 16 picks, 16 random.
    pub const MEDIUM: Self = Self {
        exhaustive: 256,
        picks: 16,
        random: 16,
        seed: 1,
    };
    /// For short runs: 65536 exhaustive, 256 picks, 256 random.
    pub const LARGE: Self = Self {
        exhaustive: 65536,
        picks: 256,
        random: 256,
        seed: 1,
    };

    /// The same with another seed.
    pub fn with_seed(self, seed: u64) -> Self {
        Self { seed, ..self }
    }
}

impl Default for Budget {
    fn default() -> Self {
        Self::MEDIUM
    }
}
