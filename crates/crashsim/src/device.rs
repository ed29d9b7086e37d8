//! A data device in memory.

use crate::event::Kind;
use crate::pages::Pages;
use crate::recorder::Log;
use parking_lot::Mutex;
use quayfs_blockdev::{
    BLOCK, BlockDevice, ReadRun, RegionRun, WriteRun, check_range, copy_and_write,
};
use std::fmt;
use std::io;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

/// What discarded blocks read as: something that is never written.
const GARBAGE: u8 = 0xd5;

/// A data device in memory. What is written is seen at once; what a crash leaves of it is the
/// recorder's business.
pub struct SimDevice {
    content: Mutex<Pages>,
    log: Option<Arc<Log>>,
}

impl SimDevice {
    pub(crate) fn new(content: Pages, log: Option<Arc<Log>>) -> Self {
        Self {
            content: Mutex::new(content),
            log,
        }
    }

    /// A device of zeros that is not recorded.
    pub fn unrecorded(blocks: u64) -> Self {
        Self::new(Pages::new(blocks * BLOCK as u64), None)
    }

    pub(crate) fn content(&self) -> Pages {
        self.content.lock().clone()
    }

    fn size(&self) -> u64 {
        self.content.lock().len() / BLOCK as u64
    }

    /// Records and does it, in the same order for all threads.
    fn put(&self, block: u64, bytes: &[u8], discard: bool, site: &'static Location<'static>) {
        if bytes.is_empty() {
            return;
        }
        let off = block * BLOCK as u64;
        quayfs_sync::point();
        let mut content = self.content.lock();
        if let Some(log) = &self.log {
            log.push_now(
                Kind::DeviceWrite {
                    off,
                    bytes: bytes.into(),
                    discard,
                },
                site,
            );
        }
        content.write(off, bytes);
    }
}

impl BlockDevice for SimDevice {
    fn blocks(&self) -> u64 {
        self.size()
    }

    fn read(&self, block: u64, buf: &mut [u8]) -> io::Result<()> {
        check_range(self.size(), block, buf.len())?;
        quayfs_sync::point();
        self.content.lock().read(block * BLOCK as u64, buf);
        Ok(())
    }

    #[track_caller]
    fn write(&self, block: u64, buf: &[u8]) -> io::Result<()> {
        check_range(self.size(), block, buf.len())?;
        self.put(block, buf, false, Location::caller());
        Ok(())
    }

    fn read_many(&self, runs: &mut [ReadRun<'_>]) -> io::Result<()> {
        for run in &*runs {
            check_range(self.size(), run.block, run.buf.len())?;
        }
        runs.iter_mut()
            .try_for_each(|run| self.read(run.block, run.buf))
    }

    #[track_caller]
    fn write_many(&self, runs: &[WriteRun<'_>]) -> io::Result<()> {
        let site = Location::caller();
        for run in runs {
            run.bufs
                .iter()
                .try_for_each(|buf| check_range(self.size(), 0, buf.len()))?;
            check_range(self.size(), run.block, run.len())?;
        }
        for run in runs {
            self.put(run.block, &run.bufs.concat(), false, site);
        }
        Ok(())
    }

    /// As a device that takes its time until it looks there.
    #[track_caller]
    fn write_from(&self, runs: &[RegionRun<'_>]) -> io::Result<()> {
        quayfs_sync::point();
        copy_and_write(self, runs)
    }

    fn takes_regions(&self) -> bool {
        true
    }

    #[track_caller]
    fn flush(&self) -> io::Result<()> {
        let site = Location::caller();
        if let Some(log) = &self.log {
            log.push(Kind::DeviceFlush, site);
        }
        Ok(())
    }

    #[track_caller]
    fn discard(&self, block: u64, count: u64) -> io::Result<()> {
        let site = Location::caller();
        let bytes = usize::try_from(count)
            .ok()
            .and_then(|count| count.checked_mul(BLOCK));
        let bytes = bytes.unwrap_or(usize::MAX - usize::MAX % BLOCK);
        check_range(self.size(), block, bytes)?;
        self.put(block, &vec![GARBAGE; bytes], true, site);
        Ok(())
    }

    fn describe(&self) -> String {
        format!("simulated, {} blocks", self.size())
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn silent_for(&self) -> Duration {
        Duration::ZERO
    }

    fn missing(&self) -> u64 {
        0
    }
}

impl fmt::Debug for SimDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimDevice")
            .field("blocks", &self.size())
            .finish_non_exhaustive()
    }
}
