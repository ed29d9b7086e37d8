//! A region as blocks to copy.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use quayfs_blockdev::{BlockDevice, check_range};
use quayfs_layout::BLOCK;
use quayfs_pmem::Region;

/// The first blocks of a region, to be read.
pub(super) struct RegionBlocks {
    region: Arc<Region>,
    blocks: u64,
}

impl RegionBlocks {
    pub(super) fn new(region: &Arc<Region>, blocks: u64) -> Self {
        Self {
            region: Arc::clone(region),
            blocks,
        }
    }
}

impl BlockDevice for RegionBlocks {
    fn blocks(&self) -> u64 {
        self.blocks
    }

    fn read(&self, block: u64, buf: &mut [u8]) -> io::Result<()> {
        check_range(self.blocks, block, buf.len())?;
        self.region.read(block * BLOCK as u64, buf);
        Ok(())
    }

    fn write(&self, _: u64, _: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn discard(&self, _: u64, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn describe(&self) -> String {
        format!("{:?}", self.region)
    }

    fn is_read_only(&self) -> bool {
        true
    }

    fn silent_for(&self) -> Duration {
        Duration::ZERO
    }

    fn missing(&self) -> u64 {
        0
    }
}
