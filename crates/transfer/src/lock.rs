//! Advisory locks on files and devices, which are held until the file is closed.

use std::io;
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::reservation::lock_unless_reserved;

/// Which other locks may be held at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockKind {
    /// There is no other lock on the file.
    Exclusive,
    /// Others may hold shared locks too.
    Shared,
}

/// How often a held lock is tried again.
pub(crate) const RETRY: Duration = Duration::from_millis(10);
/// What only looks at a file holds a shared lock for a moment: udev at each device that has been open for writing, when it is
/// closed, and commands that say what a volume is.
const GLANCE: Duration = Duration::from_secs(3);

/// Takes the lock, trying for up to `wait`, and longer where all that is in the way may be about to go: shared locks.
/// `Ok(false)`: another holder kept it to the end, or the file is reserved ([`crate::Reservation`]).
///
/// # Errors
/// If the system cannot lock this file.
pub fn lock_within(fd: impl AsFd, kind: LockKind, wait: Duration) -> io::Result<bool> {
    lock_unless_reserved(fd, kind, wait, None)
}

/// That lock, whatever is reserved.
pub(crate) fn lock_any(fd: impl AsFd, kind: LockKind, wait: Duration) -> io::Result<bool> {
    let start = Instant::now();
    loop {
        if try_lock(&fd, kind)? {
            return Ok(true);
        }
        let patience = match kind {
            LockKind::Exclusive if wait < GLANCE && try_lock(&fd, LockKind::Shared)? => {
                flock(&fd, FlockOperation::Unlock)?;
                GLANCE
            }
            _ => wait,
        };
        let left = patience.saturating_sub(start.elapsed());
        if left.is_zero() {
            return Ok(false);
        }
        #[cfg(test)]
        tests::FAILED.take().into_iter().for_each(|then| then());
        thread::sleep(left.min(RETRY));
    }
}

fn try_lock(fd: impl AsFd, kind: LockKind) -> io::Result<bool> {
    let operation = match kind {
        LockKind::Exclusive => FlockOperation::NonBlockingLockExclusive,
        LockKind::Shared => FlockOperation::NonBlockingLockShared,
    };
    loop {
        return match flock(&fd, operation) {
            Ok(()) => Ok(true),
            Err(Errno::WOULDBLOCK) => Ok(false),
            Err(Errno::INTR) => continue,
            Err(e) => Err(e.into()),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::fs::File;

    thread_local! {
        /// What happens after the next attempt that fails.
        pub(super) static FAILED: Cell<Option<Box<dyn FnOnce()>>> = const { Cell::new(None) };
    }

    fn twice() -> (tempfile::NamedTempFile, File, File) {
        let named = tempfile::NamedTempFile::new().unwrap();
        let [one, other] = [0, 1].map(|_| File::open(named.path()).unwrap());
        (named, one, other)
    }

    const NOW: Duration = Duration::ZERO;

    #[test]
    fn an_exclusive_lock_excludes_all_others() {
        let (_named, one, other) = twice();
        assert!(lock_within(&one, LockKind::Exclusive, NOW).unwrap());
        assert!(!lock_within(&other, LockKind::Exclusive, NOW).unwrap());
        assert!(!lock_within(&other, LockKind::Shared, NOW).unwrap());
    }

    #[test]
    fn a_shared_lock_is_waited_for() {
        let (_named, one, other) = twice();
        assert!(lock_within(&one, LockKind::Shared, NOW).unwrap());
        FAILED.set(Some(Box::new(|| drop(one))));
        assert!(lock_within(&other, LockKind::Exclusive, NOW).unwrap());
        assert!(FAILED.take().is_none(), "it was waited for");
    }

    #[test]
    fn one_that_stays_is_told() {
        let (_named, one, other) = twice();
        assert!(lock_within(&one, LockKind::Shared, NOW).unwrap());
        assert!(!lock_within(&other, LockKind::Exclusive, NOW).unwrap());
        // What was tried meanwhile has left nothing.
        assert!(lock_within(&one, LockKind::Exclusive, NOW).unwrap());
    }
}
