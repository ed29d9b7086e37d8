//! Whose memory it is that the daemon keeps things in.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes for all users together.
const MOST: usize = 64 << 20;

/// What users take. No user may take more than is left for the others: there is something left for each new user,
/// even if all earlier ones were greedy.
#[derive(Debug, Default)]
pub(super) struct Accounts(Mutex<Taken>);

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    by_user: HashMap<u32, usize>,
}

impl Accounts {
    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes bytes for a user; false, and nothing is taken, if those are too many.
    pub(super) fn take(&self, user: u32, bytes: usize) -> bool {
        if bytes == 0 {
            return true;
        }
        let mut taken = self.lock();
        let all = taken.all + bytes;
        let own = taken.by_user.get(&user).copied().unwrap_or(0) + bytes;
        if all + own > MOST {
            return false;
        }
        taken.all = all;
        taken.by_user.insert(user, own);
        true
    }

    /// Gives back what was taken for this user.
    pub(super) fn give_back(&self, user: u32, bytes: usize) {
        let mut taken = self.lock();
        taken.all = taken.all.saturating_sub(bytes);
        let left = taken
            .by_user
            .get(&user)
            .map_or(0, |own| own.saturating_sub(bytes));
        match left {
            0 => drop(taken.by_user.remove(&user)),
            left => drop(taken.by_user.insert(user, left)),
        }
    }

    /// What all users have taken.
    #[cfg(test)]
    pub(super) fn taken(&self) -> usize {
        self.lock().all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_takes_all() {
        let accounts = Accounts::default();
        assert!(accounts.take(1, MOST / 2));
        assert!(!accounts.take(1, 1));
        assert!(accounts.take(2, MOST / 4));
        assert!(!accounts.take(2, 1));
        assert!(!accounts.take(3, MOST / 4));
        assert!(accounts.take(3, MOST / 8));
        accounts.give_back(1, MOST / 2);
        assert!(accounts.take(2, MOST / 8));
        assert_eq!(accounts.taken(), MOST / 2);
        accounts.give_back(2, MOST / 4 + MOST / 8);
        accounts.give_back(3, MOST / 8);
        assert_eq!(accounts.taken(), 0);
        assert!(accounts.lock().by_user.is_empty());
        assert!(accounts.take(3, 0));
    }
}
