//! Aligned memory for one transfer, out of what the thread has kept from earlier ones.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};

use crate::{AlignedBuf, BLOCK};

/// Most bytes that a thread keeps.
const KEPT: usize = 2 << 20;

thread_local! {
    static SPARE: RefCell<Vec<AlignedBuf>> = const { RefCell::new(Vec::new()) };
}

/// As [`AlignedBuf`], but with anything in it, and kept for the next one of this thread when it is dropped: to
/// touch fresh memory, and to have it zeroed, costs more than to copy to it.
#[derive(Debug)]
pub struct Scratch {
    memory: AlignedBuf,
    len: usize,
}

impl Scratch {
    /// A buffer of `len` bytes with undefined content.
    pub fn new(len: usize) -> Self {
        let spare = SPARE.with_borrow_mut(|spare| {
            let fit = spare.iter().position(|b| b.len() >= len)?;
            Some(spare.swap_remove(fit))
        });
        let memory = spare.unwrap_or_else(|| {
            // In few sizes, so that the next one finds one that fits.
            AlignedBuf::new(len.next_power_of_two().max(BLOCK))
        });
        Self { memory, len }
    }

    /// The concatenation of `parts`.
    pub(crate) fn gather(parts: &[&[u8]]) -> Self {
        let mut scratch = Self::new(parts.iter().map(|part| part.len()).sum());
        let mut rest = &mut scratch[..];
        for part in parts {
            let (here, after) = rest.split_at_mut(part.len());
            here.copy_from_slice(part);
            rest = after;
        }
        scratch
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let memory = std::mem::take(&mut self.memory);
        // A thread that ends keeps nothing.
        let _ = SPARE.try_with(|spare| {
            let mut spare = spare.borrow_mut();
            let kept: usize = spare.iter().map(|b| b.len()).sum();
            if kept + memory.len() <= KEPT {
                spare.push(memory);
            }
        });
    }
}

impl Deref for Scratch {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[..self.len]
    }
}

impl DerefMut for Scratch {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory[..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept() -> Vec<usize> {
        SPARE.with_borrow(|spare| spare.iter().map(|b| b.len()).collect())
    }

    #[test]
    fn is_aligned_and_as_long_as_asked() {
        for len in [0, 1, BLOCK, 3 * BLOCK + 1] {
            let scratch = Scratch::new(len);
            assert_eq!(scratch.len(), len);
            assert!(AlignedBuf::is_aligned(&scratch));
        }
    }

    #[test]
    fn is_kept_for_the_next_one_that_fits() {
        let first = Scratch::new(3 * BLOCK);
        let at = first.as_ptr();
        drop(first);
        assert_eq!(kept(), [4 * BLOCK]);
        let second = Scratch::new(4 * BLOCK);
        assert_eq!(second.as_ptr(), at);
        assert!(kept().is_empty());
        assert_ne!(Scratch::new(BLOCK).as_ptr(), at);
        assert_eq!(kept(), [BLOCK]);
    }

    #[test]
    fn no_more_is_kept_than_the_limit() {
        drop([
            Scratch::new(KEPT / 2),
            Scratch::new(KEPT / 2),
            Scratch::new(1),
        ]);
        assert_eq!(kept(), [KEPT / 2, KEPT / 2]);
        drop(Scratch::new(2 * KEPT));
        assert_eq!(kept(), [KEPT / 2, KEPT / 2]);
    }
}
