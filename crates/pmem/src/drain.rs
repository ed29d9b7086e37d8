//! Coalescing of concurrent drains, and the memory of a failed one.

use parking_lot::{Condvar, Mutex};
use std::io;

/// Lets many threads share completed synchronizations.
///
/// A caller needs one that *began* after it arrived. So at any time one is running and at most one
/// more is wanted, by however many callers came in the meantime.
#[derive(Default)]
pub(crate) struct DrainGate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    running: bool,
    /// Rounds begun; also the number of the running one.
    begun: u64,
    /// The newest round that succeeded.
    done: u64,
    /// Callers asleep.
    waiting: u64,
    failed: Option<Failure>,
}

/// `io::Error` cannot be cloned; this much of it can.
#[derive(Clone)]
struct Failure {
    errno: Option<i32>,
    kind: io::ErrorKind,
}

impl Failure {
    fn to_error(&self) -> io::Error {
        match self.errno {
            Some(errno) => io::Error::from_raw_os_error(errno),
            None => io::Error::from(self.kind),
        }
    }
}

impl DrainGate {
    /// Returns once a call of `sync`, by any thread, that began after this call has succeeded.
    ///
    /// # Errors
    /// The error of the first `sync` that ever failed.
    pub(crate) fn drain(&self, sync: impl Fn() -> io::Result<()>) -> io::Result<()> {
        let mut state = self.state.lock();
        let wanted = state.begun + 1;
        loop {
            if state.done >= wanted {
                return Ok(());
            }
            if let Some(failure) = &state.failed {
                return Err(failure.to_error());
            }
            if state.running {
                state.waiting += 1;
                self.changed.wait(&mut state);
                state.waiting -= 1;
                continue;
            }
            state.running = true;
            state.begun += 1;
            let round = state.begun;
            drop(state);
            let result = sync();
            state = self.state.lock();
            state.running = false;
            match result {
                Ok(()) => state.done = round,
                Err(e) => {
                    state.failed = Some(Failure {
                        errno: e.raw_os_error(),
                        kind: e.kind(),
                    });
                }
            }
            self.changed.notify_all();
        }
    }

    /// How often `sync` has been called.
    pub(crate) fn begun(&self) -> u64 {
        self.state.lock().begun
    }

    /// The error of the first `sync` that failed, if one did.
    pub(crate) fn failure(&self) -> Option<io::Error> {
        self.state.lock().failed.as_ref().map(Failure::to_error)
    }

    /// Remembers a failure that came from elsewhere, unless there is one already.
    pub(crate) fn fail(&self, error: &io::Error) {
        let mut state = self.state.lock();
        state.failed.get_or_insert(Failure {
            errno: error.raw_os_error(),
            kind: error.kind(),
        });
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests;
