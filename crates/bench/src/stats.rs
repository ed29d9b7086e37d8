//! Medians and spreads of few figures, percentiles of many.

use crate::meter::Latencies;
use serde::{Deserialize, Serialize};

/// The median of some figures and how far they lie apart.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The middle one; between two, their mean.
    pub median: f64,
    /// The least.
    pub min: f64,
    /// The greatest.
    pub max: f64,
}

impl Summary {
    /// Of these figures; of none there is none. Figures that are no numbers are left out.
    pub fn of(figures: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut all: Vec<f64> = figures.into_iter().filter(|f| f.is_finite()).collect();
        all.sort_unstable_by(f64::total_cmp);
        let (min, max) = (*all.first()?, *all.last()?);
        let half = all.len() / 2;
        let median = if all.len().is_multiple_of(2) {
            f64::midpoint(all[half - 1], all[half])
        } else {
            all[half]
        };
        Some(Self { median, min, max })
    }

    /// Of the ratios of figures to those of the same repetition of another.
    pub fn of_ratios(figures: &[f64], base: &[f64]) -> Option<Self> {
        Self::of(figures.iter().zip(base).map(|(f, b)| f / b))
    }
}

/// Latencies in nanoseconds; each at most 1 % above the true one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Percentiles {
    /// Number of latencies.
    pub count: u64,
    /// Mean.
    pub mean: f64,
    /// Half are at most this.
    pub p50: u64,
    /// 90 % are.
    pub p90: u64,
    /// 99 % are.
    pub p99: u64,
    /// 99.9 % are.
    pub p999: u64,
    /// The longest.
    pub max: u64,
}

impl Percentiles {
    /// Of these latencies.
    pub fn of(latencies: &Latencies) -> Self {
        let at = |q| latencies.value_at_quantile(q);
        Self {
            count: latencies.len(),
            mean: latencies.mean(),
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: latencies.max(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(figures: &[f64]) -> (f64, f64, f64) {
        let s = Summary::of(figures.iter().copied()).unwrap();
        (s.median, s.min, s.max)
    }

    #[test]
    fn medians() {
        assert_eq!(summary(&[3.0]), (3.0, 3.0, 3.0));
        assert_eq!(summary(&[9.0, 1.0, 4.0]), (4.0, 1.0, 9.0));
        assert_eq!(summary(&[9.0, 1.0, 4.0, 6.0]), (5.0, 1.0, 9.0));
        assert_eq!(
            summary(&[2.0, f64::NAN, 1.0, f64::INFINITY]),
            (1.5, 1.0, 2.0)
        );
        assert_eq!(Summary::of([]), None);
        assert_eq!(Summary::of([f64::NAN]), None);
    }

    #[test]
    fn ratios_are_of_the_same_repetition() {
        // The machine was twice as slow in the second one: the ratio of the medians would be 2.5.
        let s = Summary::of_ratios(&[20.0, 10.0, 30.0], &[10.0, 5.0, 8.0]).unwrap();
        assert_eq!((s.median, s.min, s.max), (2.0, 2.0, 3.75));
        assert_eq!(Summary::of_ratios(&[1.0], &[0.0]), None);
        // A repetition that only one of them has counts for nothing.
        let s = Summary::of_ratios(&[4.0, 100.0], &[2.0]).unwrap();
        assert_eq!((s.min, s.max), (2.0, 2.0));
    }

    #[test]
    fn percentiles_of_known_latencies() {
        let mut all = crate::meter::latencies();
        (1..=100_000_u64).for_each(|n| all.record(n * 1000).unwrap());
        let p = Percentiles::of(&all);
        assert_eq!(p.count, 100_000);
        for (got, want) in [
            (p.p50, 50_000_000.0),
            (p.p90, 90_000_000.0),
            (p.p99, 99_000_000.0),
            (p.p999, 99_900_000.0),
            (p.max, 100_000_000.0),
            (p.mean as u64, 50_000_500.0),
        ] {
            let off = got as f64 / want - 1.0;
            assert!((-0.01..0.01).contains(&off), "{got} for {want}");
        }
    }

    #[test]
    fn merged_histograms_are_those_of_all() {
        let (mut one, mut two, mut both) = (
            crate::meter::latencies(),
            crate::meter::latencies(),
            crate::meter::latencies(),
        );
        for n in 0..5000_u64 {
            let latency = n * n;
            let half = if n % 3 == 0 { &mut one } else { &mut two };
            half.saturating_record(latency);
            both.saturating_record(latency);
        }
        one.add(&two).unwrap();
        assert_eq!(Percentiles::of(&one), Percentiles::of(&both));
    }
}
