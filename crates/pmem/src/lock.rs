//! Advisory locks on backing files: one daemon per volume.

use rustix::fs::{FlockOperation, flock};
use std::io;
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

/// How a backing file is locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockKind {
    /// There is no other lock on the file.
    Exclusive,
    /// Others may hold shared locks too.
    Shared,
}

/// How often a held lock is tried again.
const RETRY: Duration = Duration::from_millis(10);

/// Takes the lock, trying for up to `wait`. `Ok(false)`: another holder kept it to the end.
pub(crate) fn lock_within(fd: impl AsFd, kind: LockKind, wait: Duration) -> io::Result<bool> {
    let operation = match kind {
        LockKind::Exclusive => FlockOperation::NonBlockingLockExclusive,
        LockKind::Shared => FlockOperation::NonBlockingLockShared,
    };
    let start = Instant::now();
    loop {
        match flock(&fd, operation) {
            Ok(()) => return Ok(true),
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let left = wait.saturating_sub(start.elapsed());
                if left.is_zero() {
                    return Ok(false);
                }
                thread::sleep(left.min(RETRY));
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}
