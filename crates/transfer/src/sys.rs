//! The unsafe part beside the ring: memory that others may be storing to, a write of it, and a lock.
#![allow(unsafe_code)]

use rustix::io::Errno;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd};

/// A lock for writing on some bytes of a file, which belongs to the open file description.
fn of_range(start: i64, len: i64) -> libc::flock {
    libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: start,
        l_len: len,
        l_pid: 0,
    }
}

/// Takes that lock.
pub(crate) fn lock_range(fd: BorrowedFd<'_>, start: i64, len: i64) -> Result<(), Errno> {
    let lock = of_range(start, len);
    // SAFETY: this request reads the structure behind the pointer, which is live, and stores nothing.
    let result = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
    match result {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

/// Whether another open file description has a lock for writing on just these bytes.
pub(crate) fn is_range_locked(fd: BorrowedFd<'_>, start: i64, len: i64) -> Result<bool, Errno> {
    let mut lock = of_range(start, len);
    // SAFETY: this request reads and stores the structure behind the pointer, which is live and borrowed by nothing else.
    let result = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) };
    match result {
        0 => {
            Ok(i32::from(lock.l_type) == libc::F_WRLCK
                && (lock.l_start, lock.l_len) == (start, len))
        }
        _ => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

/// Bytes of memory that others may be storing to, as the system takes them.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct InPlace<'a> {
    iovec: libc::iovec,
    of: PhantomData<&'a ()>,
}

impl<'a> InPlace<'a> {
    /// `len` bytes at an address.
    ///
    /// # Safety
    /// For the lifetime of the result the memory stays mapped. It may be stored to meanwhile, also by
    /// other threads: then what is transferred is a mixture.
    pub unsafe fn new(start: *const u8, len: usize) -> Self {
        let iovec = libc::iovec {
            // The system only reads there.
            iov_base: start.cast_mut().cast(),
            iov_len: len,
        };
        Self {
            iovec,
            of: PhantomData,
        }
    }

    /// Bytes that nothing stores to.
    #[cfg(test)]
    pub(crate) fn of(bytes: &'a [u8]) -> Self {
        // SAFETY: borrowed for the lifetime of the result.
        unsafe { Self::new(bytes.as_ptr(), bytes.len()) }
    }

    pub(crate) fn len(&self) -> usize {
        self.iovec.iov_len
    }

    /// [`IoSlice::advance_slices`].
    ///
    /// [`IoSlice::advance_slices`]: std::io::IoSlice::advance_slices
    pub(crate) fn advance_slices(slices: &mut &mut [Self], mut n: usize) {
        while let Some(first) = slices.first_mut() {
            if n < first.iovec.iov_len {
                first.iovec.iov_base = first.iovec.iov_base.wrapping_byte_add(n);
                first.iovec.iov_len -= n;
                return;
            }
            n -= first.iovec.iov_len;
            *slices = &mut std::mem::take(slices)[1..];
        }
    }
}

/// `pwritev` of bytes where they lie. Returns how many were written.
pub(crate) fn write_in_place(
    fd: BorrowedFd<'_>,
    bytes: &[InPlace<'_>],
    off: u64,
) -> Result<usize, Errno> {
    // SAFETY: an `InPlace` is an `iovec`, whose memory is there for its lifetime (`InPlace::new`), so for the whole
    // call; the system reads all of it at its own risk: no code here looks at these bytes.
    let n = unsafe {
        libc::pwritev(
            fd.as_raw_fd(),
            bytes.as_ptr().cast(),
            bytes.len() as libc::c_int,
            off as libc::off_t,
        )
    };
    usize::try_from(n)
        .map_err(|_| Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO))
}
