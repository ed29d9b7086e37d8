//! Memory that direct I/O accepts.

use crate::BLOCK;
use memmap2::{Advice, MmapMut};
use std::fmt;
use std::ops::{Deref, DerefMut};

/// Buffers from this length on ask for huge pages: a disk takes what is in one piece with few and long transfers
/// instead of one for each page.
const LONG: usize = 1 << 20;
/// What a huge page holds.
const HUGE: usize = 2 << 20;

/// A byte buffer that starts at a multiple of [`BLOCK`], so that direct I/O needs no copy of it.
#[derive(Default)]
pub struct AlignedBuf {
    memory: Memory,
    start: usize,
    len: usize,
}

/// Longer than needed, never resized: its content never moves.
enum Memory {
    Heap(Vec<u8>),
    Map(MmapMut),
}

impl Default for Memory {
    fn default() -> Self {
        Self::Heap(Vec::new())
    }
}

impl Memory {
    /// Memory that is mapped in huge pages from where the first one begins, if the kernel has them.
    fn huge(len: usize) -> Option<(Self, usize)> {
        let map = MmapMut::map_anon(len + 2 * HUGE).ok()?;
        let start = map.as_ptr().addr().wrapping_neg() % HUGE;
        let whole = len.next_multiple_of(HUGE);
        map.advise_range(Advice::HugePage, start, whole).ok()?;
        Some((Self::Map(map), start))
    }
}

impl AlignedBuf {
    /// A buffer of `len` zero bytes.
    pub fn new(len: usize) -> Self {
        let huge = (len >= LONG).then(|| Memory::huge(len)).flatten();
        let (memory, start) = huge.unwrap_or_else(|| {
            let memory = vec![0_u8; len + BLOCK - 1];
            let start = memory.as_ptr().addr().wrapping_neg() % BLOCK;
            (Memory::Heap(memory), start)
        });
        Self { memory, start, len }
    }

    /// Whether a buffer starts at a multiple of [`BLOCK`].
    pub fn is_aligned(bytes: &[u8]) -> bool {
        bytes.as_ptr().addr().is_multiple_of(BLOCK)
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let memory = match &self.memory {
            Memory::Heap(memory) => &memory[..],
            Memory::Map(memory) => &memory[..],
        };
        &memory[self.start..][..self.len]
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        let memory = match &mut self.memory {
            Memory::Heap(memory) => &mut memory[..],
            Memory::Map(memory) => &mut memory[..],
        };
        &mut memory[self.start..][..self.len]
    }
}

impl From<&[u8]> for AlignedBuf {
    fn from(bytes: &[u8]) -> Self {
        let mut buf = Self::new(bytes.len());
        buf.copy_from_slice(bytes);
        buf
    }
}

impl Clone for AlignedBuf {
    fn clone(&self) -> Self {
        Self::from(&self[..])
    }
}

impl fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AlignedBuf")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}
