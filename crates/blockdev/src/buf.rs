//! Memory that direct I/O accepts.

use crate::BLOCK;
use std::fmt;
use std::ops::{Deref, DerefMut};

/// A byte buffer that starts at a multiple of [`BLOCK`], so that direct I/O needs no copy of it.
#[derive(Default)]
pub struct AlignedBuf {
    /// Longer than needed by up to a block, never resized: its content never moves.
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl AlignedBuf {
    /// A buffer of `len` zero bytes.
    pub fn new(len: usize) -> Self {
        let memory = vec![0_u8; len + BLOCK - 1];
        let start = memory.as_ptr().addr().wrapping_neg() % BLOCK;
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
        &self.memory[self.start..self.start + self.len]
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.len]
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
