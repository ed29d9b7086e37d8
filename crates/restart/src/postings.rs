//! Writes of the data device that are under way, each in a buffer with a descriptor beside it.

use std::fs::File;
use std::io;
use std::ops::{Deref, DerefMut, Range};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, memfd_create};

use crate::memory::{Arena, Part, Words};

/// Bytes of all buffers together. Memory is taken for those that are in use, and stays until the mount ends.
pub const ROOM: usize = 24 << 20;
/// Buffers at a time: all of the room in pieces of 64 KiB.
const SLOTS: usize = 384;
/// Places on the device that the bytes of one buffer can go to.
pub const MOST_RUNS: usize = (SLOT - RUNS) / 2;

/// What the memory begins with.
const MAGIC: u64 = u64::from_le_bytes(*b"quaypst1");
/// Words of the head, a page.
const HEAD: usize = 512;
/// Words of a descriptor, a page: whether it counts, where the bytes are and how many, how many runs there are, and each of
/// these, its first block and the one behind it.
const SLOT: usize = 512;
const STATE: usize = 0;
const AT: usize = 1;
const LEN: usize = 2;
const COUNT: usize = 3;
const RUNS: usize = 4;
const WORDS: usize = HEAD + SLOTS * SLOT;
const ARENA_AT: u64 = (WORDS * size_of::<u64>()) as u64;
/// State of a descriptor that counts.
const LIVE: u64 = 1;

/// See the module.
#[derive(Debug)]
pub struct Postings {
    file: File,
    words: Words,
    arena: Arc<Arena>,
    /// Descriptors that no buffer has.
    free: Mutex<Vec<usize>>,
}

impl Postings {
    /// Memory with nothing in it.
    ///
    /// # Errors
    /// Those of the system, which has no memory.
    pub fn new() -> io::Result<Arc<Self>> {
        let file = File::from(memfd_create("quayfs-postings", MemfdFlags::CLOEXEC)?);
        file.set_len(ARENA_AT + ROOM as u64)?;
        let postings = Self::map(file)?;
        postings.words.at(0).store(MAGIC, Ordering::Release);
        Ok(postings)
    }

    /// The memory that the last daemon has left.
    ///
    /// # Errors
    /// It is not such a memory; those of the system.
    pub fn left(file: File) -> io::Result<Arc<Self>> {
        if file.metadata()?.len() < ARENA_AT + ROOM as u64 {
            return Err(unknown());
        }
        let postings = Self::map(file)?;
        match postings.words.at(0).load(Ordering::Acquire) {
            MAGIC => Ok(postings),
            _ => Err(unknown()),
        }
    }

    fn map(file: File) -> io::Result<Arc<Self>> {
        let words = Words::map(&file, WORDS)?;
        let arena = Arena::map(&file, ARENA_AT, ROOM)?;
        let free = Mutex::new((0..SLOTS).rev().collect());
        Ok(Arc::new(Self {
            file,
            words,
            arena,
            free,
        }))
    }

    /// The file, for the process that holds it.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Memory for so many bytes, whose content is undefined, and which begins where a block does if others have such
    /// lengths; `None` if there is no room.
    pub fn buffer(self: &Arc<Self>, len: usize) -> Option<Buffer> {
        let part = self.arena.take(len)?;
        let slot = (self.free.lock().unwrap_or_else(PoisonError::into_inner)).pop()?;
        Some(self.buffer_of(slot, part))
    }

    fn buffer_of(self: &Arc<Self>, slot: usize, part: Part) -> Buffer {
        Buffer {
            postings: Arc::clone(self),
            slot,
            part: Some(part),
            is_live: false,
        }
    }

    /// What the last daemon had published and not retired: the runs and the bytes, which count until they are retired. To be
    /// called before there is any other buffer. May be interrupted and called again, with the same result.
    ///
    /// # Errors
    /// A descriptor makes no sense.
    pub fn left_over(self: &Arc<Self>) -> io::Result<Vec<(Vec<Range<u64>>, Buffer)>> {
        let mut left = Vec::new();
        for slot in 0..SLOTS {
            let word = |n: usize| self.words.at(HEAD + slot * SLOT + n);
            if word(STATE).load(Ordering::Acquire) != LIVE {
                continue;
            }
            let number = |n: usize| word(n).load(Ordering::Relaxed);
            let size = |n: usize| usize::try_from(number(n)).map_err(|_| nonsense());
            let (at, len, count) = (size(AT)?, size(LEN)?, size(COUNT)?);
            if len == 0 || count > MOST_RUNS {
                return Err(nonsense());
            }
            let runs = (0..count).map(|n| number(RUNS + 2 * n)..number(RUNS + 2 * n + 1));
            let end = at.checked_add(len).ok_or_else(nonsense)?;
            let part = self.arena.claim(at..end).ok_or_else(nonsense)?;
            (self.free.lock().unwrap_or_else(PoisonError::into_inner)).retain(|n| *n != slot);
            let mut buffer = self.buffer_of(slot, part);
            buffer.is_live = true;
            left.push((runs.collect(), buffer));
        }
        Ok(left)
    }

    /// Buffers get other memory from here on: what a dead daemon has handed to a device may still be read there, and must not
    /// change. To be called while there is no buffer.
    ///
    /// # Errors
    /// Those of the system.
    pub fn renew(&self) -> io::Result<()> {
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(fallocate(&self.file, how, ARENA_AT, ROOM as u64)?)
    }
}

/// Bytes that outlive this process from when they are published until they are retired.
#[derive(Debug)]
pub struct Buffer {
    postings: Arc<Postings>,
    slot: usize,
    /// There until the end.
    part: Option<Part>,
    is_live: bool,
}

impl Buffer {
    fn store(&self, word: usize, value: u64, order: Ordering) {
        let at = HEAD + self.slot * SLOT + word;
        self.postings.words.at(at).store(value, order);
    }

    /// From here on the bytes belong to these runs of blocks, one behind the other, and are written there if this process
    /// dies. `false`, and nothing is published, if there are more than [`MOST_RUNS`].
    #[must_use]
    pub fn publish(&mut self, runs: &[Range<u64>]) -> bool {
        if runs.len() > MOST_RUNS {
            return false;
        }
        let range = self.part.as_ref().map(Part::range).unwrap_or_default();
        let facts = [range.start, range.len(), runs.len()];
        for (n, fact) in (AT..).zip(facts) {
            self.store(n, fact as u64, Ordering::Relaxed);
        }
        for (n, bound) in (RUNS..).zip(runs.iter().flat_map(|run| [run.start, run.end])) {
            self.store(n, bound, Ordering::Relaxed);
        }
        // Last: a descriptor of which less is stored does not count.
        self.store(STATE, LIVE, Ordering::Release);
        self.is_live = true;
        true
    }

    /// The device has the bytes. Until this returns nothing else may be written to these blocks.
    pub fn retire(&mut self) {
        self.store(STATE, 0, Ordering::Release);
        self.is_live = false;
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.part.as_deref().unwrap_or_default()
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.part.as_deref_mut().unwrap_or_default()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.is_live {
            // The next daemon has to find it as it is.
            std::mem::forget(self.part.take());
            return;
        }
        drop(self.part.take());
        let postings = &self.postings;
        (postings.free.lock().unwrap_or_else(PoisonError::into_inner)).push(self.slot);
    }
}

fn unknown() -> io::Error {
    io::Error::other("the memory of writes under way is not known to this version")
}

fn nonsense() -> io::Error {
    io::Error::other("what the last daemon was writing to the data device cannot be told")
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: usize = 4096;

    fn again(postings: &Postings) -> Arc<Postings> {
        Postings::left(postings.file().try_clone().unwrap()).unwrap()
    }

    fn filled(postings: &Arc<Postings>, blocks: usize, with: u8) -> Buffer {
        let mut buffer = postings.buffer(blocks * BLOCK).unwrap();
        buffer.fill(with);
        buffer
    }

    fn one_run(run: Range<u64>) -> Vec<Range<u64>> {
        vec![run]
    }

    fn found(postings: &Arc<Postings>) -> Vec<(Vec<Range<u64>>, usize, u8)> {
        let left = postings.left_over().unwrap();
        let shown = left.iter().map(|(runs, buffer)| {
            assert!(buffer.iter().all(|b| *b == buffer[0]));
            (runs.clone(), buffer.len(), buffer[0])
        });
        shown.collect()
    }

    #[test]
    fn what_is_published_and_not_retired_is_left() {
        let postings = Postings::new().unwrap();
        let mut one = filled(&postings, 3, 1);
        let mut two = filled(&postings, 2, 2);
        let three = filled(&postings, 1, 3);
        assert!(one.publish(&[7..9, 20..21]));
        assert!(two.publish(&one_run(30..32)));
        two.retire();
        let next = again(&postings);
        let expected = vec![(vec![7..9, 20..21], 3 * BLOCK, 1)];
        assert_eq!(found(&next), expected);
        // A death meanwhile changes nothing.
        assert_eq!(found(&again(&next)), expected);
        drop((one, two, three));
        let last = again(&next);
        for (_, mut buffer) in last.left_over().unwrap() {
            buffer.retire();
        }
        assert_eq!(found(&again(&last)), []);
    }

    #[test]
    fn what_is_left_is_in_no_other_buffer() {
        let postings = Postings::new().unwrap();
        let mut kept = filled(&postings, 5, 1);
        assert!(kept.publish(&one_run(0..5)));
        drop(kept);
        for postings in [Arc::clone(&postings), again(&postings)] {
            let left = postings.left_over();
            let mut all = Vec::new();
            while let Some(mut buffer) = postings.buffer(BLOCK) {
                buffer.fill(9);
                all.push(buffer);
            }
            // There are fewer descriptors than blocks.
            assert_eq!(all.len(), SLOTS - 1);
            drop((left, all));
            assert_eq!(found(&again(&postings)), [(one_run(0..5), 5 * BLOCK, 1)]);
        }
    }

    #[test]
    fn there_is_room_again_when_buffers_are_gone() {
        let postings = Postings::new().unwrap();
        for step in [1, 3, 2, 7] {
            let quarter = ROOM / 4;
            let mut all: Vec<_> = (0..4).map(|_| postings.buffer(quarter)).collect();
            assert!(all.iter().all(Option::is_some));
            assert!(postings.buffer(BLOCK).is_none());
            // In every order.
            while !all.is_empty() {
                drop(all.remove(step % all.len()));
            }
        }
        assert!(postings.buffer(ROOM).is_some());
        assert!(postings.buffer(ROOM + BLOCK).is_none());
        assert!(postings.buffer(ROOM).is_some());
    }

    #[test]
    fn more_runs_than_a_descriptor_has_are_refused() {
        let postings = Postings::new().unwrap();
        let runs = |n: usize| (0..n as u64).map(|n| 2 * n..2 * n + 1).collect::<Vec<_>>();
        let mut buffer = filled(&postings, MOST_RUNS + 1, 1);
        assert!(!buffer.publish(&runs(MOST_RUNS + 1)));
        assert_eq!(found(&again(&postings)), []);
        let mut buffer = filled(&postings, MOST_RUNS, 1);
        assert!(buffer.publish(&runs(MOST_RUNS)));
        let left = again(&postings).left_over().unwrap();
        assert_eq!(left[0].0, runs(MOST_RUNS));
    }

    #[test]
    fn nonsense_is_refused() {
        for (word, value) in [
            (AT, u64::MAX),
            (AT, ROOM as u64),
            (LEN, ROOM as u64 + 1),
            (COUNT, MOST_RUNS as u64 + 1),
        ] {
            let postings = Postings::new().unwrap();
            let mut buffer = filled(&postings, 1, 1);
            assert!(buffer.publish(&one_run(1..2)));
            buffer.store(word, value, Ordering::Relaxed);
            assert!(again(&postings).left_over().is_err(), "{word} {value}");
        }
        // Two that have the same bytes.
        let postings = Postings::new().unwrap();
        let mut all = [1, 2].map(|n| filled(&postings, 1, n));
        assert!(all.iter_mut().all(|buffer| buffer.publish(&one_run(1..2))));
        let first = all[0].part.as_ref().unwrap().range().start as u64;
        all[1].store(AT, first, Ordering::Relaxed);
        assert!(again(&postings).left_over().is_err());
        let other = File::from(memfd_create("other", MemfdFlags::CLOEXEC).unwrap());
        assert!(Postings::left(other.try_clone().unwrap()).is_err());
        other.set_len(ARENA_AT + ROOM as u64).unwrap();
        assert!(Postings::left(other).is_err());
    }

    #[test]
    fn renewed_memory_is_not_that_of_before() {
        let postings = Postings::new().unwrap();
        drop(filled(&postings, 2, 1));
        postings.renew().unwrap();
        assert!(postings.buffer(2 * BLOCK).unwrap().iter().all(|b| *b == 0));
    }
}
