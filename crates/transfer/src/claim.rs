//! Waiting for transfers of a process that has died.

use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::sys::lock_range;

/// How often it is tried again.
const RETRY: Duration = Duration::from_millis(2);

/// Returns when no other process has transfers of these bytes of a file under way through a descriptor for which it has
/// called this, and from then on keeps others from returning, until all transfers through this descriptor have ended. That
/// may be after the process has: what it had handed to the kernel goes on, and the kernel keeps the open file description
/// for that, with the lock on it. `Ok(false)`: that took longer than `wait`. Where a file system has no such locks it
/// returns at once.
///
/// # Errors
/// Those of fcntl(2).
pub fn claim(fd: BorrowedFd<'_>, bytes: Range<u64>, wait: Duration) -> io::Result<bool> {
    let begun = Instant::now();
    let offset = |at: u64| i64::try_from(at).map_err(|_| io::Error::from(Errno::INVAL));
    let (start, len) = (offset(bytes.start)?, offset(bytes.end - bytes.start)?);
    loop {
        match lock_range(fd, start, len) {
            Ok(()) | Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOLCK) => {
                return Ok(true);
            }
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN | Errno::ACCESS) => {
                let left = wait.saturating_sub(begun.elapsed());
                if left.is_zero() {
                    return Ok(false);
                }
                thread::sleep(left.min(RETRY));
            }
            Err(e) => return Err(e.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;

    use super::*;

    const NOW: Duration = Duration::ZERO;

    #[test]
    fn it_is_held_until_the_last_descriptor_is_gone() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let open = || {
            File::options()
                .read(true)
                .write(true)
                .open(file.path())
                .unwrap()
        };
        let (one, other) = (open(), open());
        let claims = |file: &File, bytes| claim(file.as_fd(), bytes, NOW).unwrap();
        assert!(claims(&one, 0..100));
        assert!(!claims(&other, 99..200));
        assert!(claims(&other, 100..200), "other bytes");
        // As the kernel does for what is under way.
        let held = one.try_clone().unwrap();
        drop(one);
        assert!(!claims(&other, 0..100));
        drop(held);
        assert!(claim(other.as_fd(), 0..100, Duration::MAX).unwrap());
    }
}
