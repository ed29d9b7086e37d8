//! How fast a scrub reads.

use std::time::Duration;

/// Time as the limiter sees it, so that tests need none.
pub trait Clock {
    /// Time since some moment.
    fn now(&self) -> Duration;
    /// Returns after this long, or earlier if there is nothing to wait for any more.
    fn sleep(&self, time: Duration);
}

/// Lets at most `rate` bytes a second through, plus what was asked for last.
pub struct Limiter<'c> {
    clock: &'c dyn Clock,
    rate: Option<u64>,
    /// When all that was let through is paid for.
    paid: Duration,
}

impl<'c> Limiter<'c> {
    /// Without a rate everything goes through at once.
    pub fn new(clock: &'c dyn Clock, rate: Option<u64>) -> Self {
        Self {
            clock,
            rate,
            paid: clock.now(),
        }
    }

    /// Returns when `bytes` may be read. Time in which nothing was asked for is not made up for:
    /// what a scrub missed while the device was busy must not come back as a burst.
    pub fn wait_for(&mut self, bytes: u64) {
        let Some(rate) = self.rate else { return };
        let now = self.clock.now();
        if let Some(early) = self.paid.checked_sub(now)
            && !early.is_zero()
        {
            self.clock.sleep(early);
        }
        let cost = u128::from(bytes) * 1_000_000_000 / u128::from(rate.max(1));
        let cost = Duration::from_nanos(u64::try_from(cost).unwrap_or(u64::MAX));
        self.paid = self.paid.max(now).saturating_add(cost);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::cell::Cell;

    /// Advances when a caller sleeps on it, and when a test says so.
    #[derive(Default)]
    struct Fake(Cell<Duration>);

    impl Clock for Fake {
        fn now(&self) -> Duration {
            self.0.get()
        }

        fn sleep(&self, time: Duration) {
            self.0.set(self.0.get() + time);
        }
    }

    #[test]
    fn without_a_rate_nobody_waits() {
        let clock = Fake::default();
        let mut limiter = Limiter::new(&clock, None);
        (0..100).for_each(|_| limiter.wait_for(1 << 30));
        assert_eq!(clock.now(), Duration::ZERO);
    }

    #[test]
    fn steady_reading_goes_at_the_rate() {
        let clock = Fake::default();
        let mut limiter = Limiter::new(&clock, Some(1000));
        (0..11).for_each(|_| limiter.wait_for(500));
        // The eleventh begins when ten are paid for.
        assert_eq!(clock.now(), Duration::from_secs(5));
    }

    #[test]
    fn a_pause_gives_no_burst() {
        let clock = Fake::default();
        let mut limiter = Limiter::new(&clock, Some(1000));
        limiter.wait_for(500);
        clock.sleep(Duration::from_secs(3600));
        limiter.wait_for(500);
        limiter.wait_for(500);
        assert_eq!(clock.now(), Duration::from_millis(3_600_500));
    }

    proptest! {
        /// Between any two reads no more is begun than the rate allows, and never later than the
        /// rate alone would have it.
        #[test]
        fn no_window_exceeds_the_rate(
            rate in 1u64..10_000_000,
            reads in prop::collection::vec((1u64..2_000_000, 0u64..50_000_000), 1..60),
        ) {
            let clock = Fake::default();
            let mut limiter = Limiter::new(&clock, Some(rate));
            let mut begun: Vec<(Duration, u64)> = Vec::new();
            let mut busy = Duration::ZERO;
            for (bytes, nanos) in reads {
                limiter.wait_for(bytes);
                begun.push((clock.now(), bytes));
                let takes = Duration::from_nanos(nanos);
                clock.sleep(takes);
                busy += takes;
            }
            for i in 0..begun.len() {
                let mut bytes = 0u128;
                for j in i + 1..begun.len() {
                    bytes += u128::from(begun[j - 1].1);
                    let nanos = (begun[j].0 - begun[i].0).as_nanos() + begun.len() as u128;
                    prop_assert!(bytes * 1_000_000_000 <= nanos * u128::from(rate));
                }
            }
            let before: u128 = begun.iter().rev().skip(1).map(|b| u128::from(b.1)).sum();
            let paid = Duration::from_nanos((before * 1_000_000_000 / u128::from(rate)) as u64);
            prop_assert!(begun[begun.len() - 1].0 <= paid + busy);
        }
    }
}
