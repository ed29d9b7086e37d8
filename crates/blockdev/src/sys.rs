//! The unsafe part: addresses of what lies in a region, stores to a mapped file, and two ioctls.
#![allow(unsafe_code)]

use memmap2::{Advice, MmapOptions};
use quayfs_pmem::Bytes;
use quayfs_transfer::InPlace;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// `BLKDISCARD`: `_IO(0x12, 119)`, with the byte offset and length.
const BLKDISCARD: libc::Ioctl = 0x1277;

/// `BLKROGET`: `_IO(0x12, 94)`, with a place for the answer.
const BLKROGET: libc::Ioctl = 0x125e;

/// Whether a block device refuses to be written.
pub(crate) fn is_read_only(fd: BorrowedFd<'_>) -> bool {
    let mut answer: libc::c_int = 0;
    // SAFETY: this request stores one int at the pointer, which is live and exclusive. On anything but a block device
    // it fails.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), BLKROGET, &raw mut answer) };
    result == 0 && answer != 0
}

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

/// Bytes of a region as the system takes them.
pub(crate) fn in_place<'a>(bytes: &Bytes<'a>) -> InPlace<'a> {
    // SAFETY: the region that they point into is borrowed for `'a`, and stays mapped that long.
    unsafe { InPlace::new(bytes.as_ptr(), bytes.len()) }
}

/// Stores bytes, one buffer behind the other, to a file through a mapping. They are durable as written ones are.
///
/// # Errors
/// There is no room below, or the file has become shorter.
pub(crate) fn store(file: BorrowedFd<'_>, bufs: &[&[u8]], off: u64) -> io::Result<()> {
    let len = bufs.iter().map(|buf| buf.len()).sum();
    if len == 0 {
        return Ok(());
    }
    let map = (MmapOptions::new().offset(off).len(len)).map_raw(file.as_raw_fd())?;
    match map.advise(Advice::PopulateWrite) {
        // Linux 5.14 has it: there a page that cannot be had is an error, and not a signal.
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {}
        Err(e) if e.raw_os_error() == Some(libc::EFAULT) => {
            return Err(io::Error::other(
                "the file has no room for it, or has become shorter",
            ));
        }
        other => other?,
    }
    let mut at = 0;
    for buf in bufs {
        // SAFETY: the mapping is as long as all buffers together, it is ours alone, and no buffer is in it.
        unsafe {
            map.as_mut_ptr()
                .add(at)
                .copy_from_nonoverlapping(buf.as_ptr(), buf.len())
        };
        at += buf.len();
    }
    Ok(())
}
