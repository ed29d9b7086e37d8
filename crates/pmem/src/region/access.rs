//! Loads and stores. A simulated region reports its stores, a copy keeps account of where they are, and a region on a
//! disk of what is to be written.

use super::{Region, Source};
use crate::Bytes;
use std::panic::Location;

impl Region {
    /// Copies `buf.len()` bytes at `off` into `buf`. Bytes that other threads are storing to come out
    /// old or new, each for itself.
    #[track_caller]
    pub fn read(&self, off: u64, buf: &mut [u8]) {
        quayfs_sync::point();
        self.memory.read(off, buf);
    }

    /// `len` bytes at `off`, where they lie.
    #[track_caller]
    pub fn bytes(&self, off: u64, len: usize) -> Bytes<'_> {
        Bytes::new(self, off, len)
    }

    /// The address of `len` bytes at `off`.
    #[track_caller]
    pub(crate) fn address(&self, off: u64, len: usize) -> *const u8 {
        self.memory.address(off, len)
    }

    /// [`Region::read`] into a new vector.
    #[track_caller]
    pub fn read_vec(&self, off: u64, len: u64) -> Vec<u8> {
        self.memory.check(off, len);
        let mut buf = vec![0; len as usize];
        quayfs_sync::point();
        self.memory.read(off, &mut buf);
        buf
    }

    /// Loads the little-endian word at `off`, a multiple of 8, with acquire ordering.
    #[track_caller]
    pub fn load_u64(&self, off: u64) -> u64 {
        quayfs_sync::point();
        self.memory.load_u64(off)
    }

    /// Loads the little-endian word at `off`, a multiple of 4, with acquire ordering.
    #[track_caller]
    pub fn load_u32(&self, off: u64) -> u32 {
        quayfs_sync::point();
        self.memory.load_u32(off)
    }

    /// Stores a word in little-endian order at `off`, a multiple of 8: atomically for other threads
    /// (release ordering) and for the medium. Not durable before flush and drain.
    #[track_caller]
    pub fn store_u64(&self, off: u64, value: u64) {
        if let Some(observer) = self.observer() {
            self.memory.check_store(off, 8, 8);
            observer.store(off, &value.to_le_bytes(), false, Location::caller());
        }
        self.note_store(off, 8, 8);
        self.stores(off, 8, 8, || self.memory.store_u64(off, value));
    }

    /// Stores a word in little-endian order at `off`, a multiple of 4, otherwise as
    /// [`Region::store_u64`].
    #[track_caller]
    pub fn store_u32(&self, off: u64, value: u32) {
        if let Some(observer) = self.observer() {
            self.memory.check_store(off, 4, 4);
            observer.store(off, &value.to_le_bytes(), false, Location::caller());
        }
        self.note_store(off, 4, 4);
        self.stores(off, 4, 4, || self.memory.store_u32(off, value));
    }

    /// Stores `bytes` at `off` through the cache. Not durable before flush and drain.
    #[track_caller]
    pub fn write(&self, off: u64, bytes: &[u8]) {
        self.report_write(off, bytes, false, Location::caller());
        self.stores(off, bytes.len(), 1, || self.memory.write(off, bytes));
    }

    /// Stores `bytes` at `off` past the cache: right for payloads that are not read soon. Not durable,
    /// and not ordered for other threads, before a fence; no flush is needed. A ragged head or tail is
    /// stored through the cache and flushed.
    #[track_caller]
    pub fn write_nt(&self, off: u64, bytes: &[u8]) {
        self.report_write(off, bytes, true, Location::caller());
        if self.is_real_memory() {
            self.memory.write_nt(off, bytes);
        } else {
            self.stores(off, bytes.len(), 1, || {
                self.memory.write_unordered(off, bytes)
            });
        }
    }

    #[track_caller]
    fn report_write(&self, off: u64, bytes: &[u8], nt: bool, site: &'static Location<'static>) {
        if let Some(observer) = self.observer() {
            self.memory.check_store(off, bytes.len(), 1);
            if !bytes.is_empty() {
                observer.store(off, bytes, nt, site);
            }
        }
        self.note_store(off, bytes.len(), 1);
    }

    /// A copy keeps account of where something was stored.
    #[track_caller]
    fn note_store(&self, off: u64, len: usize, align: u64) {
        if let Source::Copy(touched) = &self.source {
            self.memory.check_store(off, len, align);
            touched.note(off, len as u64);
        }
    }

    /// What is stored on a disk has to be written.
    #[track_caller]
    fn stores(&self, off: u64, len: usize, align: u64, store: impl FnOnce()) {
        match &self.disk {
            Some(disk) => {
                self.memory.check_store(off, len, align);
                disk.store(&self.memory, off, len as u64, store);
            }
            None => store(),
        }
    }
}
