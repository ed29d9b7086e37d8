//! Open files with something that lies in the memory of the daemon and is lost with it.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};

use crate::memory::Words;
use crate::requests::{LAST_NUMBER, Requests, SESSIONS_AT};

/// Open files of a mount that can have such a thing at a time.
pub const MOST_SESSIONS: usize = 4096;

/// Words of each: the number of the open file, 0 where there is none, and that of the request.
pub(crate) const WORDS: usize = 2;
const FILE: usize = 0;
const REQUEST: usize = 1;

/// Where they are.
#[derive(Debug)]
pub(crate) struct Table {
    at: HashMap<u64, usize>,
    free: Vec<usize>,
}

impl Table {
    pub(crate) fn of(words: &Words) -> Self {
        let mut table = Self {
            at: HashMap::new(),
            free: Vec::new(),
        };
        for at in (0..MOST_SESSIONS).rev().map(|n| SESSIONS_AT + n * WORDS) {
            match words.at(at + FILE).load(Ordering::Acquire) {
                0 => table.free.push(at),
                file => drop(table.at.insert(file, at)),
            }
        }
        table
    }
}

impl Requests {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A number for an open file that none of this mount has had, of whichever daemon. They begin with 1.
    pub fn number(&self) -> u64 {
        self.words.at(LAST_NUMBER).fetch_add(1, Ordering::AcqRel) + 1
    }

    /// This daemon has something of an open file, not 0, in its memory, because this request asked for it. `false`, and
    /// nothing is noted, if [`MOST_SESSIONS`] others have.
    #[must_use]
    pub fn note_session(&self, file: u64, request: u64) -> bool {
        let mut table = self.table();
        let at = match table.at.get(&file) {
            Some(at) => *at,
            None => {
                let Some(at) = table.free.pop() else {
                    return false;
                };
                table.at.insert(file, at);
                at
            }
        };
        self.words
            .at(at + REQUEST)
            .store(request, Ordering::Release);
        // Last: this is what counts.
        self.words.at(at + FILE).store(file, Ordering::Release);
        true
    }

    /// It has not any more, or the open file is gone.
    pub fn forget_session(&self, file: u64) {
        let mut table = self.table();
        if let Some(at) = table.at.remove(&file) {
            self.words.at(at + FILE).store(0, Ordering::Release);
            table.free.push(at);
        }
    }

    /// The open files that have been noted and not forgotten, each with the request.
    pub fn sessions(&self) -> Vec<(u64, u64)> {
        let request = |at: &usize| self.words.at(at + REQUEST).load(Ordering::Acquire);
        let table = self.table();
        table
            .at
            .iter()
            .map(|(file, at)| (*file, request(at)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn again(requests: &Requests) -> Requests {
        Requests::left(requests.file().try_clone().unwrap()).unwrap()
    }

    fn noted(requests: &Requests) -> Vec<(u64, u64)> {
        let mut all = requests.sessions();
        all.sort_unstable();
        all
    }

    #[test]
    fn the_next_daemon_knows_what_is_lost() {
        let requests = Requests::new().unwrap();
        assert!(requests.note_session(1 << 63 | 3, 10));
        assert!(requests.note_session(5, 12));
        assert!(requests.note_session(7, 14));
        requests.forget_session(5);
        requests.forget_session(6);
        let next = again(&requests);
        assert_eq!(noted(&next), [(7, 14), (1 << 63 | 3, 10)]);
        // Over any number of deaths.
        next.forget_session(7);
        assert!(next.note_session(9, 16));
        assert_eq!(noted(&again(&next)), [(9, 16), (1 << 63 | 3, 10)]);
    }

    #[test]
    fn there_is_room_for_so_many_and_again_when_some_are_gone() {
        let requests = Requests::new().unwrap();
        let most = MOST_SESSIONS as u64;
        assert!((1..=most).all(|file| requests.note_session(file, 2)));
        assert!(!requests.note_session(most + 1, 2));
        assert!(requests.note_session(most, 4), "it is there");
        requests.forget_session(17);
        assert!(again(&requests).note_session(most + 1, 2));
    }

    #[test]
    fn no_number_is_given_twice() {
        let requests = Requests::new().unwrap();
        assert_eq!([1, 2].map(|_| requests.number()), [1, 2]);
        assert_eq!(again(&requests).number(), 3);
    }
}
