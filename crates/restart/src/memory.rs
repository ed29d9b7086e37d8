//! Words and bytes in a file without a name, which other processes map as well.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ops::{Deref, DerefMut, Range};
use std::slice;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use memmap2::{MmapOptions, MmapRaw};

/// A mapping of words that are only ever loaded and stored one by one.
#[derive(Debug)]
pub(crate) struct Words {
    map: MmapRaw,
    len: usize,
}

impl Words {
    /// Maps the first `len` words of a file, which is at least that long.
    pub(crate) fn map(file: &File, len: usize) -> io::Result<Self> {
        let bytes = len * size_of::<u64>();
        if file.metadata()?.len() < bytes as u64 {
            return Err(io::Error::other(
                "the memory of the last daemon is too small",
            ));
        }
        let map = MmapOptions::new().len(bytes).map_raw(file)?;
        Ok(Self { map, len })
    }

    pub(crate) fn at(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.len, "word {index} of {}", self.len);
        // SAFETY: the mapping is aligned to a page, holds `len` words, of which this is one, and lives as long as
        // `self`. The file is a memfd that no process makes shorter. Every process uses the words as atomics.
        unsafe { AtomicU64::from_ptr(self.map.as_mut_ptr().cast::<u64>().add(index)) }
    }
}

/// A mapping of bytes, of which every part is in one hand at a time: that of a [`Part`].
#[derive(Debug)]
pub(crate) struct Arena {
    map: MmapRaw,
    /// What is in nobody's hand, in order, with something between any two.
    free: Mutex<Vec<Range<usize>>>,
}

impl Arena {
    /// Maps `len` bytes of a file from `at` on, where a page begins. The file is at least that long, and no process makes it
    /// shorter.
    pub(crate) fn map(file: &File, at: u64, len: usize) -> io::Result<Arc<Self>> {
        let map = MmapOptions::new().offset(at).len(len).map_raw(file)?;
        let whole = 0..len;
        let free = Mutex::new(vec![whole]);
        Ok(Arc::new(Self { map, free }))
    }

    fn free(&self) -> MutexGuard<'_, Vec<Range<usize>>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// So many bytes, with whatever they are; `None` if there is no room.
    pub(crate) fn take(self: &Arc<Self>, len: usize) -> Option<Part> {
        let mut free = self.free();
        let fits = free.iter().position(|gap| gap.len() >= len)?;
        let at = free[fits].start;
        free[fits].start += len;
        if free[fits].is_empty() {
            free.remove(fits);
        }
        drop(free);
        Some(self.part(at..at + len))
    }

    /// These bytes; `None` if there are no such bytes, or some of them are in another hand.
    pub(crate) fn claim(self: &Arc<Self>, part: Range<usize>) -> Option<Part> {
        let mut free = self.free();
        let holds = |gap: &Range<usize>| gap.start <= part.start && part.end <= gap.end;
        let at = free.iter().position(holds)?;
        let gap = free[at].clone();
        let left = [gap.start..part.start, part.end..gap.end];
        free.splice(at..=at, left.into_iter().filter(|gap| !gap.is_empty()));
        drop(free);
        Some(self.part(part))
    }

    fn part(self: &Arc<Self>, range: Range<usize>) -> Part {
        let arena = Arc::clone(self);
        Part { arena, range }
    }

    fn give_back(&self, part: Range<usize>) {
        let mut free = self.free();
        let at = free.partition_point(|gap| gap.start < part.start);
        free.insert(at, part);
        if free
            .get(at + 1)
            .is_some_and(|next| next.start == free[at].end)
        {
            free[at].end = free.remove(at + 1).end;
        }
        if at > 0 && free[at - 1].end == free[at].start {
            free[at - 1].end = free.remove(at).end;
        }
    }
}

/// Bytes of an [`Arena`], which go back to it when this is dropped.
#[derive(Debug)]
pub(crate) struct Part {
    arena: Arc<Arena>,
    range: Range<usize>,
}

impl Part {
    /// Where it is.
    pub(crate) fn range(&self) -> Range<usize> {
        self.range.clone()
    }
}

impl Deref for Part {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the range lies within the mapping, which lives as long as `arena`, and whose file no process makes
        // shorter. It is not free and was given out once, so nothing in this process stores to it while `self` is borrowed;
        // the only other process that has stored to it is dead.
        unsafe {
            let start = self.arena.map.as_ptr().add(self.range.start);
            slice::from_raw_parts(start, self.range.len())
        }
    }
}

impl DerefMut for Part {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed for this alone.
        unsafe {
            let start = self.arena.map.as_mut_ptr().add(self.range.start);
            slice::from_raw_parts_mut(start, self.range.len())
        }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.arena.give_back(self.range.clone());
    }
}
