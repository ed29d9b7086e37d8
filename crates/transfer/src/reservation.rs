//! A file that is reserved for processes that come one after the other: nothing else gets its lock between two of them.
//!
//! The lock of a file ([`crate::lock_within`]) belongs to what reads and writes it, so that it goes with the last transfer. The
//! reservation is a lock of its own, on a byte that no file has, of a descriptor through which nothing is transferred and
//! which is passed on from process to process.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FileType, FlockOperation, Stat, flock, fstat, fstatfs};

use crate::lock::{LockKind, RETRY, lock_any};
use crate::sys::{is_range_locked, lock_range};

/// The last byte that a file could have.
const BYTE: i64 = i64::MAX - 1;

/// A file is reserved as long as a duplicate of this descriptor is open, in any process.
#[derive(Debug)]
pub struct Reservation(File);

impl Reservation {
    /// Reserves a file for the processes that have this from now on. `None`: something else has, or that is not to be had
    /// here. There is none where a file system may keep such locks elsewhere, together with all others ([`is_local`]).
    pub fn new(file: &File) -> Option<Self> {
        if !is_local(file) {
            return None;
        }
        let name = format!("/proc/self/fd/{}", file.as_raw_fd());
        let own = File::options().read(true).write(true).open(name).ok()?;
        lock_range(own.as_fd(), BYTE, 1).ok()?;
        Some(Self(own))
    }

    /// One that another process has made.
    pub fn inherited(file: File) -> Self {
        Self(file)
    }

    /// For the next process.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Whether it is one of this file.
    pub fn is_of(&self, file: impl AsFd) -> bool {
        let number = |stat: Stat| (stat.st_dev, stat.st_ino);
        let own = fstat(&self.0).map(number);
        own.is_ok() && own == fstat(file).map(number)
    }
}

/// [`crate::lock_within`] of a file that may be reserved, if that is `ours`.
///
/// # Errors
/// As of [`crate::lock_within`].
pub fn lock_unless_reserved(
    file: impl AsFd,
    kind: LockKind,
    wait: Duration,
    ours: Option<&Reservation>,
) -> io::Result<bool> {
    let begun = Instant::now();
    loop {
        let left = wait.saturating_sub(begun.elapsed());
        if !lock_any(&file, kind, left)? {
            return Ok(false);
        }
        // Only what has the lock reserves a file, so it stays free of that.
        if ours.is_some_and(|ours| ours.is_of(&file)) || !is_reserved(&file) {
            return Ok(true);
        }
        flock(&file, FlockOperation::Unlock)?;
        if left.is_zero() {
            return Ok(false);
        }
        #[cfg(test)]
        tests::REFUSED.take().into_iter().for_each(|then| then());
        thread::sleep(left.min(RETRY));
    }
}

fn is_reserved(file: impl AsFd) -> bool {
    is_local(&file) && is_range_locked(file.as_fd(), BYTE, 1).unwrap_or(false)
}

/// Whether the system knows by itself all there is to know of a file: it asks no server, for whose answer it may wait forever.
pub fn is_local(file: impl AsFd) -> bool {
    const LOCAL: [libc::c_long; 5] = [
        libc::EXT4_SUPER_MAGIC,
        libc::XFS_SUPER_MAGIC,
        libc::BTRFS_SUPER_MAGIC,
        libc::F2FS_SUPER_MAGIC,
        libc::TMPFS_MAGIC,
    ];
    let kind = fstat(&file).map(|stat| FileType::from_raw_mode(stat.st_mode));
    kind == Ok(FileType::BlockDevice) || fstatfs(file).is_ok_and(|fs| LOCAL.contains(&fs.f_type))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    thread_local! {
        /// What happens after the next attempt that finds the file reserved.
        pub(super) static REFUSED: Cell<Option<Box<dyn FnOnce()>>> = const { Cell::new(None) };
    }

    const NOW: Duration = Duration::ZERO;

    fn opened(path: &std::path::Path) -> File {
        File::options().read(true).write(true).open(path).unwrap()
    }

    #[test]
    fn a_reserved_file_is_locked_by_nothing_else() {
        let named = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
        let first = opened(named.path());
        assert!(lock_unless_reserved(&first, LockKind::Exclusive, NOW, None).unwrap());
        let reservation = Reservation::new(&first).unwrap();
        let passed_on = Reservation::inherited(reservation.0.try_clone().unwrap());
        drop((first, reservation));
        let (next, other) = (opened(named.path()), opened(named.path()));
        for kind in [LockKind::Exclusive, LockKind::Shared] {
            assert!(!lock_unless_reserved(&other, kind, NOW, None).unwrap());
        }
        let ours = Some(&passed_on);
        assert!(lock_unless_reserved(&next, LockKind::Exclusive, NOW, ours).unwrap());
        assert!(Reservation::new(&other).is_none(), "it has one");
        drop((next, passed_on));
        assert!(lock_unless_reserved(&other, LockKind::Exclusive, NOW, None).unwrap());
    }

    #[test]
    fn one_of_another_file_is_of_no_use() {
        let [one, two] = [0, 1].map(|_| tempfile::NamedTempFile::new_in("/dev/shm").unwrap());
        let [first, second] = [&one, &two].map(|named| opened(named.path()));
        let _reserved = Reservation::new(&first).unwrap();
        let ours = Reservation::new(&second).unwrap();
        let other = opened(one.path());
        assert!(!lock_unless_reserved(&other, LockKind::Shared, NOW, Some(&ours)).unwrap());
    }

    #[test]
    fn its_end_is_waited_for() {
        let named = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
        let (first, other) = (opened(named.path()), opened(named.path()));
        let reservation = Reservation::new(&first).unwrap();
        REFUSED.set(Some(Box::new(|| drop(reservation))));
        let kind = LockKind::Exclusive;
        assert!(lock_unless_reserved(&other, kind, Duration::MAX, None).unwrap());
        assert!(REFUSED.take().is_none(), "it was waited for");
    }
}
