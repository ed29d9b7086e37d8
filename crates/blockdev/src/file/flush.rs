//! The memory of a failed flush.

use parking_lot::Mutex;
use rustix::io::Errno;

/// Runs flushes one after the other, and none after one that failed.
///
/// The system reports a failed write to one flush only and may then have dropped what it could not
/// write. So neither a later flush nor one that runs at the same time may be believed.
#[derive(Default)]
pub(crate) struct Flush {
    failure: Mutex<Option<Errno>>,
}

impl Flush {
    /// Runs `sync`, unless one has failed before.
    ///
    /// # Errors
    /// The error of the first that failed.
    pub(crate) fn run(&self, sync: impl FnOnce() -> Result<(), Errno>) -> Result<(), Errno> {
        let mut failure = self.failure.lock();
        if let Some(errno) = *failure {
            return Err(errno);
        }
        sync().inspect_err(|errno| *failure = Some(*errno))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::thread;

    #[test]
    fn the_first_failure_is_kept_and_nothing_is_tried_again() {
        let flush = Flush::default();
        assert_eq!(flush.run(|| Ok(())), Ok(()));
        assert_eq!(flush.run(|| Err(Errno::NOSPC)), Err(Errno::NOSPC));
        assert_eq!(
            flush.run(|| panic!("flushed after a failure")),
            Err(Errno::NOSPC)
        );
    }

    #[test]
    fn a_flush_at_the_same_time_as_a_failing_one_fails() {
        let flush = Flush::default();
        let (entered, first_entered) = mpsc::channel();
        let (go_on, gate) = mpsc::channel::<()>();
        thread::scope(|scope| {
            let flush = &flush;
            scope.spawn(move || {
                let result = flush.run(|| {
                    entered.send(()).unwrap();
                    gate.recv().unwrap();
                    Err(Errno::IO)
                });
                assert_eq!(result, Err(Errno::IO));
            });
            first_entered.recv().unwrap();
            let second = scope.spawn(move || flush.run(|| Ok(())));
            assert!(!second.is_finished());
            go_on.send(()).unwrap();
            assert_eq!(second.join().unwrap(), Err(Errno::IO));
        });
    }
}
