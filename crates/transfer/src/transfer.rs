//! One contiguous read or write in progress, however many system calls it takes.

use crate::sys::{self, InPlace};
use rustix::io::Errno;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd};

/// The buffers of a transfer. What is done is removed from the front.
pub(crate) enum Slices<'a> {
    Read(Vec<IoSliceMut<'a>>),
    Write(Vec<IoSlice<'a>>),
    From(Vec<InPlace<'a>>),
}

/// A contiguous read or write of what remains in `slices`, at byte `off` of the device.
pub struct Transfer<'a> {
    off: u64,
    left: usize,
    slices: Slices<'a>,
}

impl<'a> Transfer<'a> {
    /// A read into a buffer.
    pub fn read(off: u64, buf: &'a mut [u8]) -> Self {
        Self {
            off,
            left: buf.len(),
            slices: Slices::Read(vec![IoSliceMut::new(buf)]),
        }
    }

    /// A write of buffers, one behind the other, at most 1024.
    pub fn write(off: u64, bufs: &[&'a [u8]]) -> Self {
        let left = bufs.iter().map(|buf| buf.len()).sum();
        Self {
            off,
            left,
            slices: Slices::Write(bufs.iter().map(|b| IoSlice::new(b)).collect()),
        }
    }

    /// A write of bytes where they lie, one range behind the other, at most 1024.
    pub fn write_from(off: u64, bytes: Vec<InPlace<'a>>) -> Self {
        Self {
            off,
            left: bytes.iter().map(InPlace::len).sum(),
            slices: Slices::From(bytes),
        }
    }

    pub(crate) fn off(&self) -> u64 {
        self.off
    }

    pub(crate) fn slices(&mut self) -> &mut Slices<'a> {
        &mut self.slices
    }

    pub(crate) fn is_done(&self) -> bool {
        self.left == 0
    }

    /// Takes account of `n` bytes that a system call transferred.
    ///
    /// # Errors
    /// If that is nothing: the device ends before the transfer does.
    pub(crate) fn advance(&mut self, n: usize) -> io::Result<()> {
        if n == 0 {
            return Err(match self.slices {
                Slices::Read(_) => io::ErrorKind::UnexpectedEof.into(),
                Slices::Write(_) | Slices::From(_) => io::ErrorKind::WriteZero.into(),
            });
        }
        self.off += n as u64;
        self.left = self.left.saturating_sub(n);
        if self.left > 0 {
            match &mut self.slices {
                Slices::Read(slices) => drop_front(slices, n, IoSliceMut::advance_slices),
                Slices::Write(slices) => drop_front(slices, n, IoSlice::advance_slices),
                Slices::From(slices) => drop_front(slices, n, InPlace::advance_slices),
            }
        }
        Ok(())
    }

    /// Completes the transfer with plain system calls.
    ///
    /// # Errors
    /// Those of the system; the file ends before the transfer does.
    pub fn run(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        while !self.is_done() {
            let result = match &mut self.slices {
                Slices::Read(slices) => rustix::io::preadv(fd.as_fd(), slices, self.off),
                Slices::Write(slices) => rustix::io::pwritev(fd.as_fd(), slices, self.off),
                Slices::From(slices) => sys::write_in_place(fd, slices, self.off),
            };
            match result {
                Ok(n) => self.advance(n)?,
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }
}

/// Removes `n` bytes from the front of a list of slices.
fn drop_front<S>(slices: &mut Vec<S>, n: usize, advance: impl FnOnce(&mut &mut [S], usize)) {
    let before = slices.len();
    let mut rest = &mut slices[..];
    advance(&mut rest, n);
    let kept = rest.len();
    slices.drain(..before - kept);
}

#[cfg(test)]
mod tests;
