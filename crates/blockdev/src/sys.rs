//! The unsafe part: io_uring, and the one ioctl.
#![allow(unsafe_code)]

mod ring;

pub(crate) use ring::RingPool;

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// `BLKDISCARD`: `_IO(0x12, 119)`, with the byte offset and length.
const BLKDISCARD: libc::Ioctl = 0x1277;

/// Discards bytes of a block device.
pub(crate) fn discard_block_device(fd: BorrowedFd<'_>, off: u64, len: u64) -> io::Result<()> {
    let range = [off, len];
    // SAFETY: this request reads two u64 from the pointer, which is live, and stores nothing. On
    // anything but a block device it fails.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), BLKDISCARD, range.as_ptr()) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
