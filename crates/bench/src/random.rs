//! Random numbers that belong to a seed, and what is made of them.

use rand::{Rng, RngCore, SeedableRng};
use rand_distr::{Distribution, Gamma};
use rand_xoshiro::Xoshiro256PlusPlus;

/// The generator of one thread: the same seed and number give the same sequence, on every machine
/// and in every version.
#[derive(Clone, Debug)]
pub struct Random(Xoshiro256PlusPlus);

impl Random {
    /// Stream number `stream` of a seed.
    pub fn new(seed: u64, stream: u64) -> Self {
        // seed_from_u64 spreads the bits, so neighbours are independent.
        let mut first = Xoshiro256PlusPlus::seed_from_u64(seed);
        Self(Xoshiro256PlusPlus::seed_from_u64(
            first.next_u64().wrapping_add(stream),
        ))
    }

    /// A number below `n`, each with the same probability.
    ///
    /// # Panics
    /// If `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        self.0.random_range(0..n)
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        self.0.random_range(low..=high)
    }

    /// True in one of two cases.
    pub fn coin(&mut self) -> bool {
        self.0.random()
    }

    /// Fills a buffer.
    pub fn fill(&mut self, buffer: &mut [u8]) {
        self.0.fill_bytes(buffer);
    }

    /// A sample of a distribution.
    pub fn sample<T>(&mut self, distribution: &impl Distribution<T>) -> T {
        distribution.sample(&mut self.0)
    }
}

/// Sizes that follow a gamma distribution.
#[derive(Clone, Copy, Debug)]
pub struct GammaSizes(Gamma<f64>);

impl GammaSizes {
    /// Sizes of this mean and shape, in bytes.
    ///
    /// # Panics
    /// If one of them is not positive.
    pub fn new(mean: f64, shape: f64) -> Self {
        Self(Gamma::new(shape, mean / shape).expect("mean and shape are positive"))
    }

    /// The next size.
    pub fn next(&self, random: &mut Random) -> u64 {
        random.sample(&self.0) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_and_a_stream_make_a_sequence() {
        let take = |seed, stream| -> Vec<u64> {
            let mut random = Random::new(seed, stream);
            (0..8).map(|_| random.below(1 << 40)).collect()
        };
        assert_eq!(take(1, 0), take(1, 0));
        assert_ne!(take(1, 0), take(1, 1));
        assert_ne!(take(1, 0), take(2, 0));
    }

    #[test]
    fn gamma_sizes_have_their_mean_and_spread() {
        let (mean, shape) = (16384.0, 1.5);
        let sizes = GammaSizes::new(mean, shape);
        let mut random = Random::new(7, 0);
        let n = 200_000;
        let all: Vec<f64> = (0..n).map(|_| sizes.next(&mut random) as f64).collect();
        let m = all.iter().sum::<f64>() / f64::from(n);
        let v = all.iter().map(|x| (x - m).powi(2)).sum::<f64>() / f64::from(n);
        // The variance of a gamma distribution is the squared mean over the shape.
        assert!((m / mean - 1.0).abs() < 0.02, "{m}");
        assert!((v / (mean * mean / shape) - 1.0).abs() < 0.05, "{v}");
    }
}
