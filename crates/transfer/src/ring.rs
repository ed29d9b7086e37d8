//! Many transfers at once through io_uring.
#![allow(unsafe_code)]

use crate::Transfer;
use crate::transfer::Slices;
use io_uring::{IoUring, opcode, squeue, types};
use parking_lot::Mutex;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::thread;
use std::time::Duration;

/// Transfers in flight per ring.
const DEPTH: u32 = 64;

/// Rings kept for later.
const KEEP: usize = 8;

/// The rings of a file. Each is used by one thread at a time.
pub struct RingPool {
    free: Mutex<Vec<Ring>>,
}

impl RingPool {
    /// A pool with one ring; more come as threads need them.
    ///
    /// # Errors
    /// io_uring is not available, or not permitted.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            free: Mutex::new(vec![Ring::new()?]),
        })
    }

    /// Completes all transfers, several at a time. Returns the first error when nothing is in flight
    /// any more; then some may not have been made. `None`: no ring is to be had, nothing was done.
    pub(crate) fn run(
        &self,
        fd: BorrowedFd<'_>,
        transfers: &mut [Transfer<'_>],
    ) -> Option<io::Result<()>> {
        let free = self.free.lock().pop();
        let mut ring = free.or_else(|| Ring::new().ok())?;
        let result = ring.run(fd, transfers);
        if !ring.broken {
            let mut free = self.free.lock();
            if free.len() < KEEP {
                free.push(ring);
            }
        }
        Some(result)
    }
}

struct Ring {
    ring: IoUring,
    /// Entering the kernel failed in a way that is not expected; not to be used again.
    broken: bool,
}

impl Ring {
    fn new() -> io::Result<Self> {
        Ok(Self {
            ring: IoUring::new(DEPTH)?,
            broken: false,
        })
    }

    fn run(&mut self, fd: BorrowedFd<'_>, transfers: &mut [Transfer<'_>]) -> io::Result<()> {
        let mut first_error = None;
        // Transfers to submit next, the last one first.
        let mut todo: Vec<usize> = (0..transfers.len()).rev().collect();
        // Entries that the kernel has or will get with the next call.
        let mut in_flight = 0;
        loop {
            while in_flight < DEPTH && first_error.is_none() && !self.broken {
                let Some(i) = todo.pop() else { break };
                self.push(fd, i, &mut transfers[i]);
                in_flight += 1;
            }
            if in_flight == 0 {
                break;
            }
            // With nothing left to submit there is nothing to do before all are done.
            let want = if todo.is_empty() { in_flight } else { 1 };
            if let Err(e) = self.enter(&mut in_flight, want) {
                first_error.get_or_insert(e);
            }
            for entry in self.ring.completion() {
                in_flight -= 1;
                let i = entry.user_data() as usize;
                let transfer = &mut transfers[i];
                let result = match entry.result() {
                    code if code == -libc::EINTR || code == -libc::EAGAIN => Ok(()),
                    code if code < 0 => Err(io::Error::from_raw_os_error(-code)),
                    n => transfer.advance(n as usize),
                };
                match result {
                    Ok(()) if transfer.is_done() => {}
                    Ok(()) => todo.push(i),
                    Err(e) => drop(first_error.get_or_insert(e)),
                }
            }
        }
        first_error.map_or(Ok(()), Err)
    }

    fn push(&mut self, fd: BorrowedFd<'_>, i: usize, transfer: &mut Transfer<'_>) {
        let (fd, off) = (types::Fd(fd.as_raw_fd()), transfer.off());
        // `IoSlice` and `IoSliceMut` are guaranteed to have the layout of `iovec`, and `InPlace` is one.
        let entry: squeue::Entry = match transfer.slices() {
            Slices::Read(slices) => {
                opcode::Readv::new(fd, slices.as_ptr().cast(), slices.len() as u32)
                    .offset(off)
                    .build()
            }
            Slices::Write(slices) => {
                opcode::Writev::new(fd, slices.as_ptr().cast(), slices.len() as u32)
                    .offset(off)
                    .build()
            }
            Slices::From(slices) => {
                opcode::Writev::new(fd, slices.as_ptr().cast(), slices.len() as u32)
                    .offset(off)
                    .build()
            }
        };
        // SAFETY: the buffers and the list of them are borrowed by `transfer` for the whole of `run`,
        // which does not return, nor touch this transfer, before its completion has been seen.
        let pushed = unsafe { self.ring.submission().push(&entry.user_data(i as u64)) };
        assert!(
            pushed.is_ok(),
            "the submission queue is as long as the most that is in flight"
        );
    }

    /// Submits what is queued and waits for so many completions. If the kernel does not take it, that is the
    /// error, and what it has not taken is no longer counted as in flight.
    fn enter(&mut self, in_flight: &mut u32, want: u32) -> io::Result<()> {
        if self.broken {
            // What the kernel took before is still in flight, its buffers still in use; without a
            // working call to wait with, look from time to time.
            thread::sleep(Duration::from_micros(100));
            return Ok(());
        }
        match self.ring.submit_and_wait(want as usize) {
            Ok(_) => Ok(()),
            Err(e) if matches!(e.raw_os_error(), Some(libc::EINTR)) => Ok(()),
            Err(e) if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY)) => {
                // Short of memory, or of room for completions, which are about to be taken.
                thread::yield_now();
                Ok(())
            }
            Err(e) => {
                self.broken = true;
                *in_flight -= self.ring.submission().len() as u32;
                Err(e)
            }
        }
    }
}
