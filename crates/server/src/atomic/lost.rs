//! Sessions that a death of the daemon has ended: what they kept is lost, and their programs do not know.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quayfs_fuse::Errno;
use quayfs_restart::Requests;

/// Lost sessions, by the number of their open file, each with the request that has begun it.
#[derive(Debug, Default)]
pub(super) struct Lost {
    /// What the next daemon learns of those that there are now; `None` if there will be none.
    requests: Option<Arc<Requests>>,
    sessions: Mutex<HashMap<u64, u64>>,
    /// How many there are: mostly none.
    count: AtomicUsize,
}

impl Lost {
    /// Those of the daemons before this one.
    pub(super) fn of(requests: Arc<Requests>) -> Self {
        let sessions: HashMap<_, _> = requests.sessions().into_iter().collect();
        Self {
            count: AtomicUsize::new(sessions.len()),
            sessions: Mutex::new(sessions),
            requests: Some(requests),
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, u64>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn of_file(&self, fh: u64) -> Option<u64> {
        match self.count.load(Ordering::Acquire) {
            0 => None,
            _ => self.lock().get(&fh).copied(),
        }
    }

    /// A number that no open file of this mount has had, if there are daemons before this one or after it.
    pub(super) fn number(&self) -> Option<u64> {
        self.requests.as_ref().map(|requests| requests.number())
    }

    /// Fails if the open file had a session that is lost.
    ///
    /// # Errors
    /// `ESTALE`.
    pub(super) fn check(&self, fh: u64) -> Result<(), Errno> {
        match self.of_file(fh) {
            Some(_) => Err(Errno::new(libc::ESTALE)),
            None => Ok(()),
        }
    }

    /// As [`Lost::check`], for a request that begins a session: nothing is lost if it is the one that had begun it, since it
    /// has not been answered.
    pub(super) fn begins(&self, fh: u64, request: u64) -> Result<(), Errno> {
        match self.of_file(fh) {
            Some(began) if began == request => {
                self.forget(fh);
                Ok(())
            }
            Some(_) => Err(Errno::new(libc::ESTALE)),
            None => Ok(()),
        }
    }

    /// Notes for the next daemon that there is a session now. `false` if there are too many.
    pub(super) fn note(&self, fh: u64, request: u64) -> bool {
        let requests = self.requests.as_ref();
        requests.is_none_or(|requests| requests.note_session(fh, request))
    }

    /// There is no session of this open file any more; whether there was one that is lost.
    pub(super) fn forget(&self, fh: u64) -> bool {
        if let Some(requests) = &self.requests {
            requests.forget_session(fh);
        }
        if self.count.load(Ordering::Acquire) == 0 {
            return false;
        }
        let mut sessions = self.lock();
        let was_lost = sessions.remove(&fh).is_some();
        self.count.store(sessions.len(), Ordering::Release);
        was_lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::atomic::Sessions;

    const STALE: Result<bool, i32> = Err(libc::ESTALE);

    fn keep(all: &Sessions, fh: u64) -> Result<bool, i32> {
        let kept = all.buffer_write(fh, (0, b"x"), || Ok(None), (false, 3));
        kept.map_err(Errno::number)
    }

    #[test]
    fn a_session_of_a_dead_daemon_can_only_be_given_up() {
        let requests = Arc::new(Requests::new().unwrap());
        let first = Sessions::outlived(Arc::clone(&requests));
        let [had, none, ended] = [(); 3].map(|()| first.number());
        first.begin(had, 7, 2).unwrap();
        first.begin(ended, 7, 4).unwrap();
        assert_eq!(keep(&first, had), Ok(true));
        first.give_up(ended);
        for _ in 0..2 {
            let left = Requests::left(requests.file().try_clone().unwrap()).unwrap();
            let next = Sessions::outlived(Arc::new(left));
            assert_eq!(keep(&next, had), STALE);
            let begun = next.begin(had, 7, 6).map_err(Errno::number);
            assert_eq!(begun, Err(libc::ESTALE));
            assert_eq!(keep(&next, none), Ok(false));
            assert_eq!(keep(&next, ended), Ok(false));
            assert!(![had, none, ended].contains(&next.number()));
        }
        let left = Requests::left(requests.file().try_clone().unwrap()).unwrap();
        let last = Sessions::outlived(Arc::new(left));
        assert!(last.give_up(had).is_some());
        assert_eq!(keep(&last, had), Ok(false));
        last.begin(had, 7, 8).unwrap();
        assert_eq!(keep(&last, had), Ok(true));
    }

    /// The program has not heard that it has begun.
    #[test]
    fn the_request_that_has_begun_it_begins_it_again() {
        let requests = Arc::new(Requests::new().unwrap());
        let first = Sessions::outlived(Arc::clone(&requests));
        first.begin(1, 7, 2).unwrap();
        let left = Requests::left(requests.file().try_clone().unwrap()).unwrap();
        let next = Sessions::outlived(Arc::new(left));
        next.begin(1, 7, 2).unwrap();
        assert_eq!(keep(&next, 1), Ok(true));
    }
}
