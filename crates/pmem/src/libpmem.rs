//! Bindings to libpmem, as far as it is used or compared with here.
//!
//! The functions have the names and the meaning of `libpmem(7)`. [`Region`](crate::Region) uses
//! `pmem_flush`, `pmem_drain` and `pmem_memcpy`; they choose the best instructions of the processor
//! when the library is loaded.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

/// `pmem_map_file`: create the file if it does not exist.
pub const PMEM_FILE_CREATE: c_int = 1 << 0;
/// `pmem_map_file`: with [`PMEM_FILE_CREATE`], fail if the file exists.
pub const PMEM_FILE_EXCL: c_int = 1 << 1;
/// `pmem_map_file`: with [`PMEM_FILE_CREATE`], do not allocate the file's blocks.
pub const PMEM_FILE_SPARSE: c_int = 1 << 2;
/// `pmem_map_file`: make an unnamed file in the directory given.
pub const PMEM_FILE_TMPFILE: c_int = 1 << 3;

/// `pmem_memcpy`: do not wait for the stores; [`pmem_drain`] does.
pub const PMEM_F_MEM_NODRAIN: c_uint = 1 << 0;
/// `pmem_memcpy`: bypass the cache. Ragged ends are stored and flushed.
pub const PMEM_F_MEM_NONTEMPORAL: c_uint = 1 << 1;
/// `pmem_memcpy`: store through the cache.
pub const PMEM_F_MEM_TEMPORAL: c_uint = 1 << 2;
/// `pmem_memcpy`: do not flush at all.
pub const PMEM_F_MEM_NOFLUSH: c_uint = 1 << 5;

unsafe extern "C" {
    /// Maps the file at `path`, all of it if `len` is 0, and returns null on failure.
    ///
    /// # Safety
    /// `path` is a C string; the two result pointers are null or valid for a store.
    pub fn pmem_map_file(
        path: *const c_char,
        len: usize,
        flags: c_int,
        mode: libc::mode_t,
        mapped_len: *mut usize,
        is_pmem: *mut c_int,
    ) -> *mut c_void;

    /// Unmaps what [`pmem_map_file`] mapped. 0 or -1.
    ///
    /// # Safety
    /// Nothing refers to the range any more.
    pub fn pmem_unmap(addr: *mut c_void, len: usize) -> c_int;

    /// 1 if the range is persistent memory mapped by [`pmem_map_file`], else 0.
    ///
    /// # Safety
    /// The range is mapped.
    pub fn pmem_is_pmem(addr: *const c_void, len: usize) -> c_int;

    /// Flushes and drains.
    ///
    /// # Safety
    /// The range is mapped.
    pub fn pmem_persist(addr: *const c_void, len: usize);

    /// `msync` with the range widened to pages. 0 or -1.
    ///
    /// # Safety
    /// The range is mapped.
    pub fn pmem_msync(addr: *const c_void, len: usize) -> c_int;

    /// 1 if the processor caches are flushed by the platform on power loss (eADR), 0 if not, -1 if
    /// that cannot be found out.
    pub safe fn pmem_has_auto_flush() -> c_int;

    /// Begins to write the lines that the range touches back to memory.
    ///
    /// # Safety
    /// The range is mapped.
    pub fn pmem_flush(addr: *const c_void, len: usize);

    /// Waits for what this thread flushed or stored non-temporally.
    pub safe fn pmem_drain();

    /// Copies into persistent memory; `flags` as above. Returns `dest`.
    ///
    /// # Safety
    /// `src` is valid for reading and `dest` for writing `len` bytes, and they do not overlap.
    pub fn pmem_memcpy(
        dest: *mut c_void,
        src: *const c_void,
        len: usize,
        flags: c_uint,
    ) -> *mut c_void;

    /// The message of this thread's last failure.
    pub safe fn pmem_errormsg() -> *const c_char;
}

/// The message of the calling thread's last failure in libpmem, empty if there was none.
pub fn errormsg() -> String {
    let message = pmem_errormsg();
    if message.is_null() {
        return String::new();
    }
    // SAFETY: libpmem returns a C string in thread-local storage that stays valid until this thread
    // calls the library again; it is copied before that.
    unsafe { CStr::from_ptr(message) }
        .to_string_lossy()
        .into_owned()
}

#[cfg(test)]
mod tests;
