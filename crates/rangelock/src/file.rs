//! The lock of a file's bytes, as a mount takes it: ranges, or the whole file to measure ranges against.

use std::ops::Range;

use quayfs_sync::{RwLock, RwLockReadGuard, RwLockWriteGuard, read_noting, write_noting};

use crate::{RangeLock, ReadGuard, WriteGuard};

/// How much of a file a request locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// The range that was asked for.
    #[default]
    Range,
    /// The whole file, whatever was asked for, by a reader-writer lock of `parking_lot`: what a file system
    /// without range locks would take.
    File,
}

/// The lock of one file's bytes. Both kinds are asked the same, in the same places; nothing else differs.
///
/// ```
/// use quayfs_rangelock::{FileLock, Policy};
///
/// let by_range = FileLock::new(Policy::Range);
/// let _first = by_range.write(0..4096);
/// let second = by_range.write(4096..8192);
/// assert!(!second.waited(), "with Policy::File it would wait for the first one");
/// ```
pub enum FileLock {
    /// With [`Policy::Range`].
    Range(RangeLock),
    /// With [`Policy::File`].
    File(RwLock<()>),
}

/// What of a file is locked, and how it was come by; unlocked on drop.
#[must_use = "the range is unlocked again as soon as the guard is dropped"]
#[derive(Debug)]
pub struct FileGuard<R, F> {
    _held: Held<R, F>,
    waited: bool,
}

#[derive(Debug)]
enum Held<R, F> {
    Range { _guard: R },
    File { _guard: F },
}

/// Locked shared: no other holder writes there.
pub type FileReadGuard<'a> = FileGuard<ReadGuard<&'a RangeLock>, RwLockReadGuard<'a, ()>>;
/// Locked exclusively: no other holder reads or writes there.
pub type FileWriteGuard<'a> = FileGuard<WriteGuard<&'a RangeLock>, RwLockWriteGuard<'a, ()>>;

impl FileLock {
    /// An unlocked lock.
    pub fn new(policy: Policy) -> Self {
        match policy {
            Policy::Range => Self::Range(RangeLock::new()),
            Policy::File => Self::File(RwLock::new(())),
        }
    }

    /// Locks `range` shared, or all of the file. See [`RangeLock::read`].
    pub fn read(&self, range: Range<u64>) -> FileReadGuard<'_> {
        match self {
            Self::Range(lock) => {
                let guard = lock.read(range);
                let waited = guard.waited();
                FileGuard::new(Held::Range { _guard: guard }, waited)
            }
            Self::File(lock) => {
                let mut waited = false;
                let guard = read_noting(lock, || waited = true);
                FileGuard::new(Held::File { _guard: guard }, waited)
            }
        }
    }

    /// Locks `range` exclusively, or all of the file. See [`RangeLock::write`].
    pub fn write(&self, range: Range<u64>) -> FileWriteGuard<'_> {
        match self {
            Self::Range(lock) => {
                let guard = lock.write(range);
                let waited = guard.waited();
                FileGuard::new(Held::Range { _guard: guard }, waited)
            }
            Self::File(lock) => {
                let mut waited = false;
                let guard = write_noting(lock, || waited = true);
                FileGuard::new(Held::File { _guard: guard }, waited)
            }
        }
    }

    /// The range lock, if it is one.
    pub fn ranges(&self) -> Option<&RangeLock> {
        match self {
            Self::Range(lock) => Some(lock),
            Self::File(_) => None,
        }
    }
}

impl<R, F> FileGuard<R, F> {
    fn new(held: Held<R, F>, waited: bool) -> Self {
        Self {
            _held: held,
            waited,
        }
    }

    /// Whether the request had to wait for others.
    pub fn waited(&self) -> bool {
        self.waited
    }
}
