//! Words in a file without a name, which other processes map as well.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::sync::atomic::AtomicU64;

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
