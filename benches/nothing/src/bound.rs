//! The least that an fsync can do on a disk: one write and one flush.

use quayfs_blockdev::{AlignedBuf, BLOCK, BlockDevice, FileDevice, OpenError, Options};
use quayfs_fuse::{Answer, Errno};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// A device that nothing is read from.
pub struct Bound {
    device: FileDevice,
    block: AlignedBuf,
    next: AtomicU64,
}

impl Bound {
    /// Opens a device or file of at least a block.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        let mut block = AlignedBuf::new(BLOCK);
        block.fill(1);
        Ok(Self {
            device: FileDevice::open(path, Options::default())?,
            block,
            next: AtomicU64::new(0),
        })
    }

    /// Writes the next block, and flushes. Calls at one time share what the kernel lets them share.
    pub fn write_and_flush(&self) -> Answer {
        let block = self.next.fetch_add(1, Ordering::Relaxed) % self.device.blocks();
        let mut result = Ok(());
        quayfs_fuse::waiting(&mut || {
            result = self.device.write(block, &self.block);
            if result.is_ok() {
                result = self.device.flush();
            }
        });
        result.map_err(|_| Errno::new(libc::EIO))
    }
}
