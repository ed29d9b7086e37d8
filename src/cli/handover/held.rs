//! What a service manager is given to hold, again: it lets go of everything while the unit is not there, as between the
//! removal of a package and its installation.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Descriptors and their names.
#[derive(Clone, Debug, Default)]
pub(super) struct Held(Arc<Mutex<Vec<(&'static str, OwnedFd)>>>);

impl Held {
    /// Remembers one. It is left out if the process has no descriptor to spare: then it is held as before.
    pub(super) fn keep(&self, name: &'static str, descriptor: BorrowedFd<'_>) {
        if let Ok(copy) = descriptor.try_clone_to_owned() {
            self.all().push((name, copy));
        }
    }

    /// What is remembered is not to be held any more.
    pub(super) fn forget(&self) {
        self.all().clear();
    }

    /// All of them.
    pub(super) fn each(&self, mut f: impl FnMut(&'static str, BorrowedFd<'_>)) {
        for (name, descriptor) in &*self.all() {
            f(name, descriptor.as_fd());
        }
    }

    fn all(&self) -> MutexGuard<'_, Vec<(&'static str, OwnedFd)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
