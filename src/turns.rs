//! How background threads let others go first.
//!
//! Linux lets a thread that runs on a CPU go on for milliseconds while one that wakes there waits, even
//! if another CPU is idle: whoever asks the daemon and waits for its answer is woken where he went to
//! sleep. A third of a millisecond of digest in one piece was what the slowest request in a thousand took.

// Not the scheduler's of tests: it may let others go on at each lock and each access to a medium anyway,
// and the more moments there are, the seldomer a thread stands still through a whole round.
use std::thread;

/// Counts what has been done, and yields after some. Not to be stepped with a lock held that an operation takes.
#[derive(Default)]
pub struct Turns<'h> {
    steps: u32,
    hurry: Option<&'h dyn Fn() -> bool>,
}

/// Cache lines between two yields: some microseconds to some tens of them.
const STEPS: u32 = 256;

impl<'h> Turns<'h> {
    /// Yields to nobody while `hurry` says so: others wait for what this thread does.
    pub fn unless(hurry: &'h dyn Fn() -> bool) -> Self {
        Self {
            steps: 0,
            hurry: Some(hurry),
        }
    }

    /// Something that takes about as long as copying `lines` cache lines has been done.
    pub fn step(&mut self, lines: u32) {
        self.steps += lines;
        if self.steps >= STEPS {
            self.steps = 0;
            if !self.hurry.is_some_and(|hurry| hurry()) {
                thread::yield_now();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_add_up_and_begin_anew() {
        let mut turns = Turns::default();
        turns.step(STEPS - 1);
        assert_eq!(turns.steps, STEPS - 1);
        turns.step(1);
        assert_eq!(turns.steps, 0);
    }

    #[test]
    fn who_is_in_a_hurry_is_asked_when_it_is_time_to_yield() {
        let asked = std::cell::Cell::new(0);
        let hurry = || {
            asked.set(asked.get() + 1);
            true
        };
        let mut turns = Turns::unless(&hurry);
        for _ in 0..4 {
            turns.step(STEPS / 2);
        }
        assert_eq!((asked.get(), turns.steps), (2, 0));
    }
}
