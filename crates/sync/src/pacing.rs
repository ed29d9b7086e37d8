//! How background threads let others go first.
//!
//! Linux lets a thread that runs on a CPU go on for milliseconds while one that wakes there waits, even
//! if another CPU is idle: a program that waits for the daemon's answer is woken where it went to
//! sleep. A third of a millisecond of digest in one piece was what the slowest request in a thousand took.

// Not the scheduler's of tests: it may let others go on at each lock and each access to a medium anyway,
// and the more moments there are, the seldomer a thread stands still through a whole round.
use std::thread;
use std::time::{Duration, Instant};

/// Counts what has been done, and yields after some. Not to be stepped with a lock held that an operation takes.
///
/// A thread that yields goes behind all that can run. Where there are many of those, it would hardly get on, and the
/// log would fill up meanwhile: it yields for about as long as it works, and no longer.
#[derive(Default)]
pub struct Pacing<'h> {
    steps: u32,
    urgent: Option<&'h dyn Fn() -> bool>,
    /// When this thread last began to work.
    since: Option<Instant>,
    /// Time that it has yielded and not yet worked again.
    behind: Duration,
}

/// Cache lines between two yields: some microseconds to some tens of them.
const STEPS: u32 = 256;

impl<'h> Pacing<'h> {
    /// Does not yield while `urgent` says so: others wait for what this thread does.
    pub fn unless(urgent: &'h dyn Fn() -> bool) -> Self {
        Self {
            urgent: Some(urgent),
            ..Self::default()
        }
    }

    /// Something that takes about as long as copying `lines` cache lines has been done.
    pub fn step(&mut self, lines: u32) {
        self.steps += lines;
        if self.steps >= STEPS {
            self.steps = 0;
            if !self.urgent.is_some_and(|urgent| urgent()) {
                self.let_others_go();
            }
        }
    }

    fn let_others_go(&mut self) {
        let now = Instant::now();
        let worked = self.since.map_or(Duration::ZERO, |since| now - since);
        self.since = Some(now);
        if self.is_level(worked) {
            thread::yield_now();
            let back = Instant::now();
            self.since = Some(back);
            self.behind = back - now;
        }
    }

    /// Whether the work of another `worked` makes up for the last time it yielded.
    fn is_level(&mut self, worked: Duration) -> bool {
        self.behind = self.behind.saturating_sub(worked);
        self.behind.is_zero()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_add_up_and_begin_anew() {
        let mut pacing = Pacing::default();
        pacing.step(STEPS - 1);
        assert_eq!(pacing.steps, STEPS - 1);
        pacing.step(1);
        assert_eq!(pacing.steps, 0);
    }

    #[test]
    fn a_thread_that_has_yielded_works_as_long_before_it_yields_again() {
        let mut pacing = Pacing {
            behind: Duration::from_micros(50),
            ..Pacing::default()
        };
        let worked = [20, 20, 20, 1].map(|us| pacing.is_level(Duration::from_micros(us)));
        assert_eq!(worked, [false, false, true, true]);
    }

    #[test]
    fn a_hurry_is_asked_for_when_it_is_time_to_yield() {
        let asked = std::cell::Cell::new(0);
        let urgent = || {
            asked.set(asked.get() + 1);
            true
        };
        let mut pacing = Pacing::unless(&urgent);
        for _ in 0..4 {
            pacing.step(STEPS / 2);
        }
        assert_eq!((asked.get(), pacing.steps), (2, 0));
    }
}
