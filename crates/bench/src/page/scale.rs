//! Axes: where a value lies, and which values are written beside it.

/// How values become places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// From zero on, each step the same difference.
    Linear,
    /// Each step the same factor. Has no zero.
    Log,
    /// Quantiles from 0 to 1, each step another nine: 0.9, 0.99, 0.999. What is 1, the greatest of
    /// all, stands apart behind the last.
    Nines,
}

/// What stands behind the name of an axis that has no zero.
pub fn logarithmic(scale: Scale) -> &'static str {
    match scale {
        Scale::Log => " (logarithmic)",
        Scale::Linear | Scale::Nines => "",
    }
}

/// A value that is written beside an axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Tick {
    /// The value.
    pub value: f64,
    /// How it is written.
    pub text: String,
}

/// An axis with its ends.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    scale: Scale,
    /// The ends, as [`moved`](Self::moved) values.
    from: f64,
    to: f64,
    /// Where a quantile of 1 stands, as a moved value.
    beyond: f64,
    /// Values to write.
    pub ticks: Vec<Tick>,
}

/// Steps of a linear axis.
const STEPS: f64 = 5.0;
/// Decades up to which a logarithmic axis has ticks between powers of ten.
const FEW_DECADES: i32 = 3;
/// Ticks of a logarithmic axis.
const MOST_DECADES: i32 = 8;

impl Axis {
    /// From zero to a round number that is at least the greatest of `values`.
    pub fn linear(values: impl IntoIterator<Item = f64>) -> Self {
        let max = finite(values).fold(0.0, f64::max);
        let max = if max > 0.0 { max } else { 1.0 };
        let rough = max / STEPS;
        let magnitude = 10_f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0]
            .map(|n| n * magnitude)
            .into_iter()
            .find(|step| *step >= rough * (1.0 - 1e-9))
            .unwrap_or(rough);
        let steps = (max / step - 1e-9).ceil().max(1.0);
        let to = steps * step;
        let ticks = (0..=steps as u32).map(|n| f64::from(n) * step);
        let ticks = ticks.map(|value| tick(value, step, to)).collect();
        Self::new(Scale::Linear, 0.0, to, ticks)
    }

    /// Around all positive ones of `values`, with ends of which the first digit is 1, 2 or 5.
    pub fn log(values: impl IntoIterator<Item = f64> + Clone) -> Self {
        let positive = || finite(values.clone()).filter(|v| *v > 0.0);
        let min = positive().fold(f64::INFINITY, f64::min);
        let (min, max) = if min.is_finite() {
            (min, positive().fold(min, f64::max))
        } else {
            (1.0, 10.0)
        };
        let decades = (min.log10().floor() as i32 - 1)..=(max.log10().ceil() as i32 + 1);
        let round: Vec<f64> = decades
            .flat_map(|d| [1.0, 2.0, 5.0].map(|n| n * 10_f64.powi(d)))
            .collect();
        let below = round.iter().rposition(|r| *r <= min * (1.0 + 1e-9));
        let from = below.unwrap_or(0);
        let to = round.iter().position(|r| *r >= max * (1.0 - 1e-9));
        let to = to.unwrap_or(round.len() - 1).max(from + 1);
        let first = (round[from].log10() - 1e-9).ceil() as i32;
        let last = (round[to].log10() + 1e-9).floor() as i32;
        let ticks: Vec<f64> = if last - first < FEW_DECADES {
            round[from..=to].to_vec()
        } else {
            let every = 1 + (last - first) / MOST_DECADES;
            let powers = (first..=last).step_by(every as usize);
            powers.map(|d| 10_f64.powi(d)).collect()
        };
        let ticks = ticks.into_iter().map(|v| tick(v, v, v)).collect();
        Self::new(Scale::Log, round[from].log10(), round[to].log10(), ticks)
    }

    /// Logarithmic from the least to the greatest of `values`, which are the ticks.
    pub fn log_of(values: &[f64]) -> Self {
        let mut values: Vec<f64> = finite(values.iter().copied())
            .filter(|v| *v > 0.0)
            .collect();
        values.sort_unstable_by(f64::total_cmp);
        values.dedup();
        match (values.first(), values.last()) {
            (Some(min), Some(max)) if min < max => {
                let ticks = values.iter().map(|v| tick(*v, *v, *v)).collect();
                Self::new(Scale::Log, min.log10(), max.log10(), ticks)
            }
            _ => Self::log(values),
        }
    }

    /// Quantiles: those of `values` are the ticks.
    pub fn nines(values: &[f64]) -> Self {
        let mut values = values.to_vec();
        values.retain(|q| (0.0..=1.0).contains(q));
        values.sort_unstable_by(f64::total_cmp);
        values.dedup();
        let inner = || values.iter().filter(|q| **q < 1.0).map(|q| nines(*q));
        let from = inner().next().unwrap_or(0.0);
        let last = inner().next_back().unwrap_or(from);
        let beyond = last + 0.7;
        let to = if values.last() == Some(&1.0) {
            beyond
        } else {
            last
        };
        let ticks = values.iter().map(|q| Tick {
            value: *q,
            text: quantile(*q),
        });
        Self {
            beyond,
            ..Self::new(Scale::Nines, from, to, ticks.collect())
        }
    }

    fn new(scale: Scale, from: f64, to: f64, ticks: Vec<Tick>) -> Self {
        Self {
            scale,
            from,
            to,
            beyond: to,
            ticks,
        }
    }

    /// How it is divided.
    pub fn scale(&self) -> Scale {
        self.scale
    }

    fn moved(&self, value: f64) -> f64 {
        match self.scale {
            Scale::Linear => value,
            Scale::Log => value.log10(),
            Scale::Nines if value >= 1.0 => self.beyond,
            Scale::Nines => nines(value),
        }
    }

    /// Where a value lies between the ends, from 0 to 1. What is not between them, or on a
    /// logarithmic axis not positive, has no place.
    pub fn place(&self, value: f64) -> Option<f64> {
        let moved = self.moved(value);
        let place = if self.to > self.from {
            (moved - self.from) / (self.to - self.from)
        } else {
            moved - self.from + 0.5
        };
        (-1e-9..=1.0 + 1e-9)
            .contains(&place)
            .then(|| place.clamp(0.0, 1.0))
    }
}

fn finite(values: impl IntoIterator<Item = f64>) -> impl Iterator<Item = f64> {
    values.into_iter().filter(|v| v.is_finite())
}

fn nines(quantile: f64) -> f64 {
    -(1.0 - quantile).log10()
}

/// `p50`, `p99.9`; the last one of all is `max`.
pub fn quantile(q: f64) -> String {
    if q >= 1.0 {
        return "max".into();
    }
    // The difference to 1 has few digits, but not in binary.
    let text = format!("{:.6}", q * 100.0);
    format!("p{}", text.trim_end_matches('0').trim_end_matches('.'))
}

/// A tick of an axis that has these steps and goes so far, which say how many digits count and
/// whether thousands are cut off.
fn tick(value: f64, step: f64, far: f64) -> Tick {
    let (unit, suffix) = match far {
        f if !(1e-6..1e15).contains(&f) => {
            let text = if value == 0.0 {
                "0".into()
            } else {
                format!("{value:.0e}")
            };
            return Tick { value, text };
        }
        f if f >= 1e9 => (1e9, "G"),
        f if f >= 1e6 => (1e6, "M"),
        f if f >= 1e4 => (1e3, "k"),
        _ => (1.0, ""),
    };
    let text = if value == 0.0 {
        "0".into()
    } else {
        let digits = -((step / unit).log10() + 1e-9).floor();
        format!("{:.*}{suffix}", digits.max(0.0) as usize, value / unit)
    };
    Tick { value, text }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(axis: &Axis) -> String {
        let all: Vec<_> = axis.ticks.iter().map(|t| &*t.text).collect();
        all.join(" ")
    }

    #[test]
    fn linear_axes_begin_at_zero_and_have_round_ticks() {
        for (max, text) in [
            (0.0, "0 0.2 0.4 0.6 0.8 1.0"),
            (0.034, "0 0.01 0.02 0.03 0.04"),
            (1.0, "0 0.2 0.4 0.6 0.8 1.0"),
            (1.01, "0 0.5 1.0 1.5"),
            (5.0, "0 1 2 3 4 5"),
            (7.3, "0 2 4 6 8"),
            (999.0, "0 200 400 600 800 1000"),
            (62_865.0, "0 20k 40k 60k 80k"),
            (2_400_000.0, "0 0.5M 1.0M 1.5M 2.0M 2.5M"),
        ] {
            let axis = Axis::linear([max, f64::NAN, max / 3.0]);
            assert_eq!(texts(&axis), text, "{max}");
            assert_eq!(axis.place(0.0), Some(0.0));
            assert!(axis.place(max).is_some(), "{max}");
        }
        let axis = Axis::linear([10.0]);
        assert_eq!(axis.place(5.0), Some(0.5));
        assert_eq!((axis.place(-1.0), axis.place(11.0)), (None, None));
        assert_eq!(axis.place(f64::NAN), None);
    }

    #[test]
    fn linear_axes_of_extremes_stay_short() {
        for max in [1e-300, 1e-9, 1e15, 1e300] {
            let axis = Axis::linear([max]);
            assert!((2..=8).contains(&axis.ticks.len()), "{axis:?}");
            assert!(axis.ticks.iter().all(|t| t.text.len() <= 8), "{axis:?}");
        }
    }

    #[test]
    fn logarithmic_axes_have_round_ends() {
        for (values, text) in [
            (&[3.0, 40.0][..], "2 5 10 20 50"),
            (&[0.3, 0.3], "0.2 0.5"),
            (&[1.0, 1.0], "1 2"),
            (&[0.05, 7.0], "0.05 0.1 0.2 0.5 1 2 5 10"),
            (&[12.0, 5_046_271.0], "10 100 1000 10k 100k 1M 10M"),
            (&[0.0, -1.0, f64::INFINITY], "1 2 5 10"),
        ] {
            let axis = Axis::log(values.iter().copied());
            assert_eq!(texts(&axis), text, "{values:?}");
            for v in values.iter().filter(|v| **v > 0.0 && v.is_finite()) {
                assert!(axis.place(*v).is_some(), "{v} of {axis:?}");
            }
            assert_eq!((axis.place(0.0), axis.place(-1.0)), (None, None));
        }
        let axis = Axis::log([1.0, 100.0]);
        assert_eq!(axis.place(10.0), Some(0.5));
        let wide = Axis::log([1e-20, 1e20]);
        assert!(wide.ticks.len() <= 10, "{}", texts(&wide));
    }

    #[test]
    fn chosen_values_are_the_ticks() {
        let axis = Axis::log_of(&[4.0, 1.0, 16.0, 4.0]);
        assert_eq!(texts(&axis), "1 4 16");
        assert_eq!(axis.place(4.0), Some(0.5));
        assert_eq!((axis.place(0.5), axis.place(17.0)), (None, None));
        assert!(Axis::log_of(&[8.0]).place(8.0).is_some());
    }

    #[test]
    fn nines_are_equally_far_apart_and_the_greatest_stands_behind() {
        let axis = Axis::nines(&[0.5, 0.9, 0.99, 0.999, 0.9999, 1.0]);
        assert_eq!(texts(&axis), "p50 p90 p99 p99.9 p99.99 max");
        let places: Vec<f64> = axis
            .ticks
            .iter()
            .map(|t| axis.place(t.value).unwrap())
            .collect();
        let steps: Vec<f64> = places.windows(2).map(|w| w[1] - w[0]).collect();
        assert!((steps[1] - steps[2]).abs() < 1e-6 && (steps[2] - steps[3]).abs() < 1e-6);
        assert_eq!((places[0], places[5]), (0.0, 1.0));
        assert_eq!((axis.place(0.4), axis.place(0.99999)), (None, None));
        // One percentile alone is in the middle.
        assert_eq!(Axis::nines(&[0.5]).place(0.5), Some(0.5));
        assert!(Axis::nines(&[]).ticks.is_empty());
    }
}
