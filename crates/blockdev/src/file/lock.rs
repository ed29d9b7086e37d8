//! Advisory locks: one daemon per device.

use super::FileDevice;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::io;
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

/// How often a held lock is tried again.
const RETRY: Duration = Duration::from_millis(10);

impl FileDevice {
    /// Takes the exclusive advisory lock on the file, held until the device is dropped, trying for
    /// up to `wait`. `Ok(false)`: another holder kept it to the end.
    ///
    /// # Errors
    /// If the system cannot lock this file.
    pub fn lock_exclusive(&self, wait: Duration) -> io::Result<bool> {
        self.lock(FlockOperation::NonBlockingLockExclusive, wait)
    }

    /// [`FileDevice::lock_exclusive`] without waiting.
    ///
    /// # Errors
    /// If the system cannot lock this file.
    pub fn try_lock_exclusive(&self) -> io::Result<bool> {
        self.lock_exclusive(Duration::ZERO)
    }

    /// Takes the shared advisory lock instead, which excludes the exclusive one only.
    ///
    /// # Errors
    /// If the system cannot lock this file.
    pub fn lock_shared(&self, wait: Duration) -> io::Result<bool> {
        self.lock(FlockOperation::NonBlockingLockShared, wait)
    }

    /// Waits until nothing is under way to this device that a process had begun which has died, and has others wait for what
    /// this one begins ([`quayfs_transfer::claim`]). `Ok(false)`: that took longer than `wait`.
    ///
    /// # Errors
    /// Those of fcntl(2).
    pub fn claim(&self, wait: Duration) -> io::Result<bool> {
        let bytes = self.place(0)..self.place(self.blocks);
        quayfs_transfer::claim(self.file.as_fd(), bytes, wait)
    }

    fn lock(&self, operation: FlockOperation, wait: Duration) -> io::Result<bool> {
        let start = Instant::now();
        loop {
            match flock(&self.file, operation) {
                Ok(()) => return Ok(true),
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) => {
                    let left = wait.saturating_sub(start.elapsed());
                    if left.is_zero() {
                        return Ok(false);
                    }
                    thread::sleep(left.min(RETRY));
                }
                Err(e) => return Err(e.into()),
            }
        }
    }
}
