//! Advisory locks: one daemon per device.

use super::FileDevice;
use quayfs_transfer::{LockKind, lock_within};
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

impl FileDevice {
    /// Takes the exclusive advisory lock on the file, held until the device is dropped, trying for
    /// up to `wait`, and longer if only shared locks are in the way ([`lock_within`]). `Ok(false)`: another holder kept it
    /// to the end.
    ///
    /// # Errors
    /// If the system cannot lock this file.
    pub fn lock_exclusive(&self, wait: Duration) -> io::Result<bool> {
        lock_within(&self.file, LockKind::Exclusive, wait)
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
        lock_within(&self.file, LockKind::Shared, wait)
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
}
