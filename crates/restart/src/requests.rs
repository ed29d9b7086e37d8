//! Requests under way, a slot for each thread that answers some, and the requests that were carried out by daemons that
//! have died.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{MemfdFlags, memfd_create};

use crate::memory::Words;
use crate::sessions::{self, MOST_SESSIONS, Table};

/// Threads that answer requests at a time, at most.
const SLOTS: usize = 1024;
/// Requests of dead daemons that are remembered.
const KEPT: usize = 4096;

/// What the memory begins with.
const MAGIC: u64 = u64::from_le_bytes(*b"quayreq2");
/// Words of the head: magic, connection, place of the next kept request, whether the mount was shut down, how
/// its daemons have ended, last number of an open file, what the next daemon is asked for.
const HEAD: usize = 16;
const CONNECTION: usize = 1;
/// Within the connection, where earlier versions leave a 0.
const FENCING_TOKEN: usize = CONNECTION + 5;
const NEXT: usize = CONNECTION + CONNECTION_WORDS;
const SHUT_DOWN: usize = NEXT + 1;
const DEATHS: usize = NEXT + 2;
const REPLACED: usize = NEXT + 3;
const LEFT_AT: usize = NEXT + 4;
pub(crate) const LAST_NUMBER: usize = NEXT + 5;
pub(crate) const WISH: usize = NEXT + 6;
const CONNECTION_WORDS: usize = 8;
/// Words of a slot: one line.
const SLOT: usize = 8;
/// Words of a kept request: unique, inode, progress.
const REMEMBERED: usize = 3;
const SLOTS_AT: usize = HEAD;
const KEPT_AT: usize = SLOTS_AT + SLOTS * SLOT;
pub(crate) const SESSIONS_AT: usize = KEPT_AT + KEPT * REMEMBERED;
const LEN: usize = SESSIONS_AT + MOST_SESSIONS * sessions::WORDS;

/// Words of a slot.
const UNIQUE: usize = 0;
const INODE: usize = 1;
/// Two notes, of which the older one is overwritten: a sequence number, and how far the request is when the record with
/// that number is there.
const NOTES: [usize; 2] = [2, 4];

/// What became of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The inode that its answer tells of; 0 if it tells of none.
    pub inode: u64,
    /// How far it came, as [`progress`] said; [`WHOLE`] if it was one record.
    pub progress: u64,
}

/// Nothing is left to do.
pub const WHOLE: u64 = u64::MAX;

/// In the place of a sequence number: the request was carried out without a record.
const NO_RECORD: u64 = u64::MAX;

/// How the daemons of a mount have ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ends {
    /// Those that have died.
    pub deaths: u64,
    /// Those that have left the mount to the next one.
    pub replaced: u64,
    /// When the last one did ([`Requests::leave`]); `None` if it has died.
    pub left_at: Option<u64>,
}

/// What the daemon and the kernel have agreed on, and what the mount is. What the words mean is known to the code that
/// stores them.
pub type Connection = [u64; CONNECTION_WORDS];

/// See the module.
#[derive(Debug)]
pub struct Requests {
    file: File,
    pub(crate) words: Words,
    /// Slots that no thread has.
    free: Mutex<Vec<usize>>,
    /// Which open files have sessions.
    pub(crate) sessions: Mutex<Table>,
}

impl Requests {
    /// Memory in which nothing is noted.
    ///
    /// # Errors
    /// Those of the system, which has no memory.
    pub fn new() -> io::Result<Self> {
        let file = File::from(memfd_create("quayfs-requests", MemfdFlags::CLOEXEC)?);
        file.set_len((LEN * size_of::<u64>()) as u64)?;
        let requests = Self::map(file)?;
        requests.words.at(0).store(MAGIC, Ordering::Release);
        Ok(requests)
    }

    /// The memory that the last daemon has left.
    ///
    /// # Errors
    /// It is not such a memory; those of the system.
    pub fn left(file: File) -> io::Result<Self> {
        let requests = Self::map(file)?;
        match requests.words.at(0).load(Ordering::Acquire) {
            MAGIC => Ok(requests),
            _ => Err(io::Error::other(
                "the memory of the last daemon is of another version",
            )),
        }
    }

    fn map(file: File) -> io::Result<Self> {
        let words = Words::map(&file, LEN)?;
        let free = Mutex::new((0..SLOTS).rev().collect());
        let sessions = Mutex::new(Table::of(&words));
        Ok(Self {
            file,
            words,
            free,
            sessions,
        })
    }

    /// The fencing token of the volume, once it is known.
    pub fn fencing_token(&self) -> Option<u64> {
        let token = self.words.at(FENCING_TOKEN).load(Ordering::Acquire);
        (token != 0).then_some(token)
    }

    /// Stores it. To be called before anything is stored that the next daemon would store again.
    pub fn set_fencing_token(&self, token: u64) {
        self.words.at(FENCING_TOKEN).store(token, Ordering::Release);
    }

    /// The file, for the process that holds it.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// What was stored with [`Requests::connect`]; zeros before.
    pub fn connection(&self) -> Connection {
        std::array::from_fn(|n| self.words.at(CONNECTION + n).load(Ordering::Acquire))
    }

    /// Stores what the next daemon has to know of the connection.
    pub fn connect(&self, connection: &Connection) {
        for (n, word) in connection.iter().enumerate() {
            self.words
                .at(CONNECTION + n)
                .store(*word, Ordering::Release);
        }
    }

    /// This daemon leaves the mount to the next one, at this time, not 0 and of any unit.
    pub fn leave(&self, at: u64) {
        self.words.at(LEFT_AT).store(at, Ordering::Release);
    }

    /// Counts the end of the last daemon. To be called once by each that goes on.
    pub fn count_end(&self) -> Ends {
        let left_at = self.words.at(LEFT_AT).swap(0, Ordering::AcqRel);
        let left_at = (left_at != 0).then_some(left_at);
        let count = if left_at.is_some() { REPLACED } else { DEATHS };
        self.words.at(count).fetch_add(1, Ordering::AcqRel);
        Ends {
            deaths: self.words.at(DEATHS).load(Ordering::Acquire),
            replaced: self.words.at(REPLACED).load(Ordering::Acquire),
            left_at,
        }
    }

    /// From now on the mount is at its end, also for daemons that go on with it.
    pub fn shut_down(&self) {
        self.words.at(SHUT_DOWN).store(1, Ordering::Release);
    }

    /// Whether [`Requests::shut_down`] was called.
    pub fn is_shut_down(&self) -> bool {
        self.words.at(SHUT_DOWN).load(Ordering::Acquire) != 0
    }

    /// Decides which of the requests that the last daemon was answering have been carried out: those with a record that
    /// `happened`. To be called when the log has been read and before anything is appended to it, since a number that
    /// no record has yet may be given to another one. May be interrupted and called again.
    pub fn judge(&self, happened: impl Fn(u64) -> bool) {
        for slot in (0..SLOTS).map(|n| SLOTS_AT + n * SLOT) {
            let unique = self.words.at(slot + UNIQUE).load(Ordering::Acquire);
            if unique == 0 {
                continue;
            }
            let progress = NOTES.iter().filter_map(|at| {
                let seq = self.words.at(slot + at).load(Ordering::Acquire);
                let progress = self.words.at(slot + at + 1).load(Ordering::Acquire);
                let is_there = seq == NO_RECORD || seq != 0 && happened(seq);
                is_there.then_some(progress)
            });
            if let Some(progress) = progress.max() {
                let inode = self.words.at(slot + INODE).load(Ordering::Acquire);
                self.remember(unique, Outcome { inode, progress });
            }
            // Last: until then it is judged again, with the same result.
            self.words.at(slot + UNIQUE).store(0, Ordering::Release);
        }
    }

    fn remember(&self, unique: u64, outcome: Outcome) {
        let next = self.words.at(NEXT);
        let at = KEPT_AT + (next.load(Ordering::Acquire) as usize % KEPT) * REMEMBERED;
        self.words.at(at).store(0, Ordering::Release);
        self.words
            .at(at + 1)
            .store(outcome.inode, Ordering::Release);
        self.words
            .at(at + 2)
            .store(outcome.progress, Ordering::Release);
        self.words.at(at).store(unique, Ordering::Release);
        next.fetch_add(1, Ordering::AcqRel);
    }

    /// What became of a request that the kernel has sent again; `None` if it was not carried out. `unique`: its number,
    /// without the mark that says that it was sent again.
    pub fn outcome(&self, unique: u64) -> Option<Outcome> {
        let kept = (0..KEPT).map(|n| KEPT_AT + n * REMEMBERED);
        let same = kept.filter(|at| self.words.at(*at).load(Ordering::Acquire) == unique);
        // Several daemons may have died of it, each of which brought it further.
        let outcomes = same.map(|at| Outcome {
            inode: self.words.at(at + 1).load(Ordering::Acquire),
            progress: self.words.at(at + 2).load(Ordering::Acquire),
        });
        outcomes.max_by_key(|outcome| outcome.progress)
    }

    /// Whether a request that was carried out is about this inode.
    pub fn tells_of(&self, inode: u64) -> bool {
        let kept = (0..KEPT).map(|n| KEPT_AT + n * REMEMBERED);
        let is_used = |at: &usize| self.words.at(*at).load(Ordering::Acquire) != 0;
        (kept.filter(is_used)).any(|at| self.words.at(at + 1).load(Ordering::Acquire) == inode)
    }

    /// From now on this thread carries out the request with this number, not 0, until the result is dropped. `from`: what
    /// is known of it already, if it was sent again and had been carried out in part.
    pub fn begin(self: &Arc<Self>, unique: u64, from: Outcome) -> UnderWay {
        SLOT_OF_THREAD.with_borrow_mut(|mine| {
            let slot = match mine {
                Some(slot) if Arc::ptr_eq(&slot.requests, self) => slot,
                other => other.insert(Slot::take(self)),
            };
            slot.begin(unique, from);
        });
        UnderWay(())
    }
}

/// A request is being carried out by this thread.
#[derive(Debug)]
#[must_use]
pub struct UnderWay(());

impl Drop for UnderWay {
    fn drop(&mut self) {
        SLOT_OF_THREAD.with_borrow(|slot| {
            if let Some(slot) = slot {
                slot.active.set(false);
            }
        });
    }
}

thread_local! {
    static SLOT_OF_THREAD: RefCell<Option<Slot>> = const { RefCell::new(None) };
}

/// The slot of a thread.
struct Slot {
    requests: Arc<Requests>,
    /// Index of its first word; `None` if there are too many threads.
    at: Option<usize>,
    active: Cell<bool>,
    /// How far daemons before this one have brought the request.
    from: Cell<u64>,
    /// How far the request will be with its next record.
    next: Cell<Option<u64>>,
    /// Which note is the newer one.
    newer: Cell<Option<usize>>,
    /// A record has been noted with which the request is carried out.
    whole: Cell<bool>,
    /// Records bring it no further.
    prepares: Cell<bool>,
}

impl Slot {
    fn take(requests: &Arc<Requests>) -> Self {
        let mut free = requests.free.lock().unwrap_or_else(PoisonError::into_inner);
        Self {
            requests: Arc::clone(requests),
            at: free.pop().map(|n| SLOTS_AT + n * SLOT),
            active: Cell::new(false),
            from: Cell::new(0),
            next: Cell::new(None),
            newer: Cell::new(None),
            whole: Cell::new(false),
            prepares: Cell::new(false),
        }
    }

    fn word(&self, index: usize) -> Option<&AtomicU64> {
        self.at.map(|at| self.requests.words.at(at + index))
    }

    fn store(&self, index: usize, value: u64) {
        if let Some(word) = self.word(index) {
            word.store(value, Ordering::Release);
        }
    }

    /// What was noted of the last request goes before the number of the next one comes.
    fn begin(&self, unique: u64, from: Outcome) {
        self.store(UNIQUE, 0);
        for at in NOTES {
            self.store(at, 0);
        }
        self.store(INODE, from.inode);
        self.store(UNIQUE, unique);
        self.active.set(true);
        self.from.set(from.progress);
        self.next.set(None);
        self.newer.set(None);
        self.whole.set(false);
        self.prepares.set(false);
    }

    fn record(&self, seq: u64) {
        if self.whole.get() || self.prepares.get() {
            return;
        }
        let progress = self.next.take().unwrap_or(WHOLE);
        let note = self.newer.get().map_or(0, |newer| 1 - newer);
        let at = NOTES[note];
        self.store(at, 0);
        self.store(at + 1, progress);
        self.store(at, seq);
        self.newer.set(Some(note));
        self.whole.set(progress == WHOLE);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // What it says stays: the thread may have ended because the daemon dies.
        if let Some(at) = self.at {
            let mut free = (self.requests.free.lock()).unwrap_or_else(PoisonError::into_inner);
            free.push((at - SLOTS_AT) / SLOT);
        }
    }
}

fn with_slot(f: impl FnOnce(&Slot)) {
    SLOT_OF_THREAD.with_borrow(|slot| {
        if let Some(slot) = slot.as_ref().filter(|slot| slot.active.get()) {
            f(slot);
        }
    });
}

/// The record that is about to be written has this sequence number: if it is found, the request of this thread has been
/// carried out, or has come as far as [`progress`] said. Records that follow one without such a word do not count: what
/// they do is finished by recovery. Nothing happens in threads that carry out no request.
pub fn record(seq: u64) {
    with_slot(|slot| slot.record(seq));
}

/// How far the request of this thread has come when its next record is written, in whatever it counts: less than
/// [`WHOLE`].
pub fn progress(far: u64) {
    with_slot(|slot| slot.next.set(Some(far)));
}

/// How far daemons that have died have brought the request of this thread, in what [`progress`] counts; 0 if they have not,
/// or this thread carries out no request.
pub fn come_so_far() -> u64 {
    let mut far = 0;
    with_slot(|slot| far = slot.from.get());
    far
}

/// The request of this thread has been carried out, though it writes no record: what it has changed is in memory that
/// outlives this process.
pub fn without_record() {
    with_slot(|slot| slot.record(NO_RECORD));
}

/// Carries out `first`, with which the request of this thread comes no further, in however many records: they are not
/// noted.
pub fn preparing<T>(first: impl FnOnce() -> T) -> T {
    let set = |prepares| with_slot(|slot| slot.prepares.set(prepares));
    set(true);
    let done = first();
    set(false);
    done
}

/// The answer to the request of this thread will tell of this inode.
pub fn inode(ino: u64) {
    with_slot(|slot| slot.store(INODE, ino));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn again(requests: &Requests) -> Requests {
        Requests::left(requests.file().try_clone().unwrap()).unwrap()
    }

    #[test]
    fn a_request_is_carried_out_when_its_record_is_there() {
        let requests = Arc::new(Requests::new().unwrap());
        // Each thread keeps its slot until it ends, so that the death of all of them leaves what they were doing.
        let (done, wait) = std::sync::mpsc::channel::<()>();
        let wait = Arc::new(Mutex::new(wait));
        let (begun, all_begun) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            for n in 1..=3 {
                let (requests, begun) = (Arc::clone(&requests), begun.clone());
                let wait = Arc::clone(&wait);
                scope.spawn(move || {
                    let _under_way = requests.begin(2 * n, Outcome::default());
                    inode(100 + n);
                    record(10 + n);
                    // The first record decides.
                    record(1000);
                    begun.send(()).unwrap();
                    let _ = wait.lock().unwrap().recv();
                });
            }
            (0..3).for_each(|_| all_begun.recv().unwrap());
            let next = again(&requests);
            next.judge(|seq| seq == 11 || seq == 13);
            let outcome = |inode| Outcome {
                inode,
                progress: WHOLE,
            };
            assert_eq!(next.outcome(2), Some(outcome(101)));
            assert_eq!(next.outcome(4), None);
            assert_eq!(next.outcome(6), Some(outcome(103)));
            // Later numbers mean other records.
            next.judge(|_| true);
            assert_eq!(next.outcome(4), None);
            assert_eq!(again(&next).outcome(6), Some(outcome(103)));
            drop(done);
        });
    }

    #[test]
    fn a_request_of_several_records_has_come_as_far_as_the_last_one_there() {
        for (last, expected) in [(0, None), (1, Some(10)), (2, Some(20)), (3, Some(30))] {
            let requests = Arc::new(Requests::new().unwrap());
            let under_way = requests.begin(8, Outcome::default());
            for n in 1..=3 {
                progress(10 * n);
                record(n);
            }
            let next = again(&requests);
            // Of three records two are noted: the oldest is there if any is.
            next.judge(|seq| seq <= last);
            let far = next.outcome(8).map(|outcome| outcome.progress);
            assert_eq!(far, if last == 1 { None } else { expected });
            drop(under_way);
        }
    }

    #[test]
    fn what_is_left_of_a_request_begins_where_it_was_left() {
        let requests = Arc::new(Requests::new().unwrap());
        let inode = 5;
        let from = Outcome {
            inode,
            progress: 20,
        };
        assert_eq!(come_so_far(), 0);
        let under_way = requests.begin(8, from);
        assert_eq!(come_so_far(), 20);
        drop(under_way);
        assert_eq!(come_so_far(), 0);
        let _under_way = requests.begin(10, Outcome::default());
        assert_eq!(come_so_far(), 0);
    }

    #[test]
    fn what_prepares_a_request_is_not_the_request() {
        for records in [0, 1, 2, 3] {
            let requests = Arc::new(Requests::new().unwrap());
            let _under_way = requests.begin(8, Outcome::default());
            preparing(|| (1..=records).for_each(record));
            record(5);
            let next = again(&requests);
            next.judge(|seq| seq < 5);
            assert_eq!(next.outcome(8), None);
            let _under_way = requests.begin(10, Outcome::default());
            preparing(|| (1..=records).for_each(record));
            record(5);
            next.judge(|_| true);
            assert_eq!(next.outcome(10).map(|o| o.progress), Some(WHOLE));
        }
    }

    #[test]
    fn a_request_without_a_record_is_carried_out_when_it_says_so() {
        let requests = Arc::new(Requests::new().unwrap());
        let first = requests.begin(8, Outcome::default());
        let next = again(&requests);
        next.judge(|_| false);
        assert_eq!(next.outcome(8), None);
        drop(first);
        let second = requests.begin(10, Outcome::default());
        without_record();
        next.judge(|_| false);
        assert_eq!(next.outcome(10).map(|o| o.progress), Some(WHOLE));
        drop(second);
    }

    #[test]
    fn records_of_no_request_are_not_noted() {
        let requests = Arc::new(Requests::new().unwrap());
        drop(requests.begin(8, Outcome::default()));
        record(1);
        let next = again(&requests);
        next.judge(|_| true);
        assert_eq!(next.outcome(8), None);
    }

    #[test]
    fn what_was_carried_out_is_remembered_over_many_deaths() {
        let requests = Arc::new(Requests::new().unwrap());
        for n in 1..=KEPT as u64 + 1 {
            drop(requests.begin(2 * n, Outcome::default()));
            let under_way = requests.begin(2 * n, Outcome::default());
            record(n);
            again(&requests).judge(|_| true);
            drop(under_way);
        }
        assert_eq!(requests.outcome(2), None);
        assert!(requests.outcome(4).is_some());
    }

    #[test]
    fn the_end_of_a_mount_is_remembered() {
        let requests = Requests::new().unwrap();
        assert!(!again(&requests).is_shut_down());
        requests.shut_down();
        assert!(again(&requests).is_shut_down());
        assert_eq!(requests.connection(), [0; 8]);
    }

    #[test]
    fn the_ends_of_daemons_are_counted() {
        let ends = |deaths, replaced, left_at| Ends {
            deaths,
            replaced,
            left_at,
        };
        let requests = Requests::new().unwrap();
        assert_eq!(again(&requests).count_end(), ends(1, 0, None));
        requests.leave(7);
        assert_eq!(again(&requests).count_end(), ends(1, 1, Some(7)));
        assert_eq!(again(&requests).count_end(), ends(2, 1, None));
        assert!(!requests.is_shut_down());
    }

    #[test]
    fn the_connection_is_left_as_it_was_stored() {
        let requests = Requests::new().unwrap();
        assert_eq!(requests.connection(), [0; 8]);
        requests.connect(&[1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(again(&requests).connection(), [1, 2, 3, 4, 5, 6, 7, 8]);
        let other = File::from(memfd_create("other", MemfdFlags::CLOEXEC).unwrap());
        assert!(Requests::left(other.try_clone().unwrap()).is_err());
        other.set_len((LEN * 8) as u64).unwrap();
        assert!(Requests::left(other).is_err());
    }
}
