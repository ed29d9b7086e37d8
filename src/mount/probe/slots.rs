//! Places of processes that may be left waiting, so that there are not too many: what asks every minute does not fill the
//! system with them while a disk is away.
//!
//! A place is a file that the process has locked until it ends, however that comes about. The file says what it waits for,
//! and since when.

use rustix::fs::{Mode, OFlags, open};
use rustix::process::geteuid;
use rustix::time::{ClockId, clock_gettime};
use std::fs::{File, TryLockError};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Processes that wait for the same answer, and have for longer than anything is waited for.
const MOST: usize = 8;
/// Places of a user in all.
const PLACES: usize = 4096;
/// What a file says: a hash of what is waited for, and when that has begun, in nanoseconds of a clock that never stands still.
const WORDS: usize = 16;

/// What a process waits for.
#[derive(Clone, Copy, Debug)]
pub struct Awaited(u64);

impl Awaited {
    /// Told from others by these words.
    pub fn of(words: impl Hash) -> Self {
        let mut hasher = DefaultHasher::new();
        words.hash(&mut hasher);
        Self(hasher.finish())
    }
}

/// What there is for one more process.
pub enum Place {
    /// One that it takes while it has the file of [`Taken::to_hold`] open.
    Free(Taken),
    /// Nothing says how many there are: this user has no directory for it.
    Unlimited,
    /// Many have waited in vain.
    None,
}

/// A place that is taken.
pub struct Taken {
    /// Has the lock, and cannot write: the process may belong to a user that must not.
    lock: File,
    words: File,
}

impl Taken {
    /// Takes it if it is free, and says why.
    fn at(path: &Path, awaited: Awaited) -> io::Result<Option<Self>> {
        let words = opened(path, OFlags::RDWR | OFlags::CREATE)?;
        let lock = opened(path, OFlags::RDONLY)?;
        if lock.try_lock().is_err() {
            return Ok(None);
        }
        let mut said = [0; WORDS];
        said[..8].copy_from_slice(&awaited.0.to_le_bytes());
        said[8..].copy_from_slice(&(now().as_nanos() as u64).to_le_bytes());
        words.write_all_at(&said, 0)?;
        Ok(Some(Self { lock, words }))
    }

    /// For the process that is to have it, as long as it lives.
    ///
    /// # Errors
    /// There are no descriptors left.
    pub fn to_hold(&self) -> io::Result<File> {
        self.lock.try_clone()
    }

    /// The process has ended, or is about to: what is said there counts no more.
    pub fn give_back(self) {
        let _ = self.words.set_len(0);
    }
}

/// A place for a process of `user` that waits for this, where nothing is waited for longer than `patience`.
pub fn take(user: u32, awaited: Awaited, patience: Duration) -> Place {
    let Some(files) = files(user) else {
        return Place::Unlimited;
    };
    let (mut taken, mut stuck) = (None, 0);
    for n in 0..PLACES {
        let path = files.with_extension(n.to_string());
        if taken.is_none() {
            match Taken::at(&path, awaited) {
                Ok(Some(place)) => {
                    taken = Some(place);
                    continue;
                }
                Ok(None) => {}
                Err(_) => return Place::Unlimited,
            }
        }
        // The first one that is missing is the end, once there is a place.
        let Ok(file) = opened(&path, OFlags::RDONLY) else {
            break;
        };
        stuck += usize::from(is_stuck(&file, awaited, patience));
    }
    match taken {
        Some(place) if stuck < MOST => Place::Free(place),
        Some(place) => {
            place.give_back();
            Place::None
        }
        None => Place::None,
    }
}

/// Whether a process has this place that waits for this, and has for longer than `patience`. Others that look as well share the
/// lock.
fn is_stuck(file: &File, awaited: Awaited, patience: Duration) -> bool {
    if !matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)) {
        return false;
    }
    let mut words = [0; WORDS];
    let is_read = file.read_exact_at(&mut words, 0).is_ok();
    let word = |at: usize| words[at..at + 8].try_into().map_or(0, u64::from_le_bytes);
    let begun = Duration::from_nanos(word(8));
    is_read && word(0) == awaited.0 && begun + patience < now()
}

fn now() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    Duration::new(now.tv_sec.cast_unsigned(), now.tv_nsec as u32)
}

fn opened(path: &Path, how: OFlags) -> io::Result<File> {
    let flags = how | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    Ok(File::from(open(path, flags, Mode::RUSR | Mode::WUSR)?))
}

/// What the files of a user are called, but for their numbers. They lie where nobody else can put any; and what the user of a
/// process makes of the lock that it has is about the mounts of that user alone.
fn files(user: u32) -> Option<PathBuf> {
    let me = geteuid().as_raw();
    let dir = match me {
        0 => PathBuf::from("/run/quayfs"),
        _ => PathBuf::from(format!("/run/user/{me}/quayfs")),
    };
    let made = std::fs::DirBuilder::new().mode(0o700).create(&dir);
    match made {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => None,
        _ => Some(dir.join(format!("probe-{user}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    fn free(awaited: Awaited, patience: Duration) -> Option<Taken> {
        match take(geteuid().as_raw(), awaited, patience) {
            Place::Free(place) => Some(place),
            Place::Unlimited | Place::None => None,
        }
    }

    #[test]
    fn only_what_has_waited_long_for_the_same_counts() {
        let of = |what: &str| Awaited::of((what, std::process::id()));
        let (this, that) = (of("this"), of("that"));
        let Some(first) = free(this, LONG) else {
            assert!(!geteuid().is_root(), "root has a directory for it");
            return;
        };
        // Many may ask at once.
        let many: Vec<Taken> = (0..2 * MOST).map_while(|_| free(this, LONG)).collect();
        assert_eq!(many.len(), 2 * MOST);
        drop(first);
        assert!(free(this, Duration::ZERO).is_none(), "they have waited");
        assert!(free(that, Duration::ZERO).is_some(), "for something else");
        drop(many);
        assert!(free(this, Duration::ZERO).is_some(), "they have ended");
    }
}
