//! A regular file or a block device as data device.

mod flush;
mod lock;
mod open;

pub use open::{OpenError, Options};

use self::flush::Flush;
use crate::device::copy_and_write;
use crate::pieces::{ReadPiece, RegionPiece, WritePiece};
use crate::sys;
use crate::{BLOCK, BlockDevice, ReadRun, RegionRun, Silence, WriteRun, check_range};
use quayfs_transfer::{RingPool, Transfer, run_all};
use rustix::fs::{FallocateFlags, SeekFrom, fallocate};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::slice;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Transfers prepared at a time: bounds the memory for copies of what is not aligned.
const WAVE: usize = 64;

/// A regular file or a block device. Its length is what it was when opened, rounded down to blocks.
pub struct FileDevice {
    file: File,
    path: PathBuf,
    /// The block of the file with which the device begins.
    start: u64,
    blocks: u64,
    block_device: bool,
    read_only: bool,
    direct: bool,
    /// How long it is by now can be asked without waiting.
    knows_end: bool,
    /// The most bytes that were found to be missing at its end.
    missing: AtomicU64,
    rings: Option<RingPool>,
    flush: Flush,
    silence: Silence,
    /// The system has refused to write out of a region.
    refuses_regions: AtomicBool,
    /// Byte from which on this process may not write to a file (`RLIMIT_FSIZE`): a limit that a shell has set, and that
    /// takes privileges to lift. It is about system calls; a mapping can be stored to.
    write_limit: Option<u64>,
}

impl FileDevice {
    /// The path it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What the system says of the file, which may have another name by now.
    ///
    /// # Errors
    /// Those of fstat(2).
    pub fn metadata(&self) -> io::Result<std::fs::Metadata> {
        self.file.metadata()
    }

    /// Whether transfers bypass the page cache.
    pub fn is_direct(&self) -> bool {
        self.direct
    }

    /// Whether io_uring is used where several transfers are made at once.
    pub fn has_uring(&self) -> bool {
        self.rings.is_some()
    }

    /// Whether this is a block device, not a regular file.
    pub fn is_block_device(&self) -> bool {
        self.block_device
    }

    /// The byte of the file with which a block begins.
    fn place(&self, block: u64) -> u64 {
        (self.start + block) * BLOCK as u64
    }

    fn check_writable(&self) -> io::Result<()> {
        if self.read_only {
            Err(Errno::ROFS.into())
        } else {
            Ok(())
        }
    }

    /// Whether all of these may be written by system calls.
    fn may_write(&self, runs: &[WriteRun<'_>]) -> bool {
        let end = |run: &WriteRun<'_>| self.place(run.block) + run.len() as u64;
        (self.write_limit).is_none_or(|limit| runs.iter().all(|run| end(run) <= limit))
    }

    fn run(&self, transfers: &mut [Transfer<'_>]) -> io::Result<()> {
        self.waiting(|| run_all(self.rings.as_ref(), self.file.as_fd(), transfers))
    }

    /// Carries out a request that waits for the device.
    fn waiting<T>(&self, request: impl FnOnce() -> T) -> T {
        self.silence
            .during(|| self.path.display().to_string(), request)
    }
}

impl BlockDevice for FileDevice {
    fn blocks(&self) -> u64 {
        self.blocks
    }

    fn read(&self, block: u64, buf: &mut [u8]) -> io::Result<()> {
        self.read_many(&mut [ReadRun { block, buf }])
    }

    fn write(&self, block: u64, buf: &[u8]) -> io::Result<()> {
        self.write_many(&[WriteRun {
            block,
            bufs: slice::from_ref(&buf),
        }])
    }

    fn read_many(&self, runs: &mut [ReadRun<'_>]) -> io::Result<()> {
        for run in &*runs {
            check_range(self.blocks, run.block, run.buf.len())?;
        }
        for wave in ReadPiece::cut(runs, self.start).chunks_mut(WAVE) {
            let mut transfers: Vec<_> = wave.iter_mut().map(|p| p.transfer(self.direct)).collect();
            let result = self.run(&mut transfers);
            drop(transfers);
            result?;
            wave.iter_mut().for_each(ReadPiece::finish);
        }
        Ok(())
    }

    fn write_many(&self, runs: &[WriteRun<'_>]) -> io::Result<()> {
        self.check_writable()?;
        for run in runs {
            run.bufs
                .iter()
                .try_for_each(|buf| check_range(self.blocks, 0, buf.len()))?;
            check_range(self.blocks, run.block, run.len())?;
        }
        if !self.may_write(runs) {
            let store =
                |run: &WriteRun<'_>| sys::store(self.file.as_fd(), run.bufs, self.place(run.block));
            return self.waiting(|| runs.iter().try_for_each(store));
        }
        for wave in WritePiece::cut(runs, self.start).chunks_mut(WAVE) {
            let mut transfers: Vec<_> = wave.iter_mut().map(|p| p.transfer(self.direct)).collect();
            let result = self.run(&mut transfers);
            drop(transfers);
            result?;
            wave.iter_mut().for_each(WritePiece::finish);
        }
        Ok(())
    }

    fn write_from(&self, runs: &[RegionRun<'_>]) -> io::Result<()> {
        self.check_writable()?;
        for run in runs {
            run.bytes
                .iter()
                .try_for_each(|bytes| check_range(self.blocks, 0, bytes.len()))?;
            check_range(self.blocks, run.block, run.len())?;
        }
        let straight = self
            .takes_regions()
            .then(|| RegionPiece::cut(runs, self.start))
            .flatten();
        let Some(pieces) = straight else {
            return copy_and_write(self, runs);
        };
        for wave in pieces.chunks(WAVE) {
            let mut transfers: Vec<_> = wave.iter().map(RegionPiece::transfer).collect();
            match self.run(&mut transfers) {
                // Memory that no device can read, of a file system that has no pages for it.
                Err(err) if err.raw_os_error() == Some(libc::EFAULT) => {
                    self.refuses_regions.store(true, Ordering::Relaxed);
                    return copy_and_write(self, runs);
                }
                other => other?,
            }
        }
        Ok(())
    }

    fn takes_regions(&self) -> bool {
        let refused = self.refuses_regions.load(Ordering::Relaxed);
        self.direct && self.write_limit.is_none() && !refused
    }

    fn flush(&self) -> io::Result<()> {
        if self.read_only {
            return Ok(());
        }
        let sync = || rustix::fs::fdatasync(&self.file);
        Ok(self.flush.run(|| self.waiting(sync))?)
    }

    fn discard(&self, block: u64, count: u64) -> io::Result<()> {
        self.check_writable()?;
        // The check is in bytes; any overflow is outside of the device as well.
        let bytes = usize::try_from(count)
            .ok()
            .and_then(|count| count.checked_mul(BLOCK));
        check_range(
            self.blocks,
            block,
            bytes.unwrap_or(usize::MAX - usize::MAX % BLOCK),
        )?;
        if count == 0 {
            return Ok(());
        }
        let (off, len) = (self.place(block), count * BLOCK as u64);
        let result = self.waiting(|| {
            if self.block_device {
                return sys::discard_block_device(self.file.as_fd(), off, len);
            }
            let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fallocate(&self.file, how, off, len).map_err(io::Error::from)
        });
        match result {
            Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(()),
            other => other,
        }
    }

    fn describe(&self) -> String {
        format!(
            "{}: {}, {} blocks, {}, {}{}",
            self.path.display(),
            if self.block_device {
                "block device"
            } else {
                "regular file"
            },
            self.blocks,
            match (self.direct, self.takes_regions()) {
                _ if self.write_limit.is_some() => "mapped where it is longer than files may be",
                (true, true) => "direct",
                (true, false) => "direct, but not out of the region",
                (false, _) => "buffered",
            },
            if self.rings.is_some() {
                "io_uring"
            } else {
                "plain system calls"
            },
            if self.read_only { ", read-only" } else { "" },
        )
    }

    fn is_read_only(&self) -> bool {
        self.read_only
    }

    fn silent_for(&self) -> Duration {
        self.silence.length()
    }

    fn missing(&self) -> u64 {
        if !self.knows_end {
            return 0;
        }
        // Nothing else uses the position. A device that is gone has no end, and says so by errors.
        let end = rustix::fs::seek(&self.file, SeekFrom::End(0));
        let now = end.map_or(0, |end| self.place(self.blocks).saturating_sub(end));
        // A write behind the end makes the file longer, and brings nothing back.
        let before = self.missing.fetch_max(now, Ordering::Relaxed);
        if now > before {
            let path = self.path.display();
            tracing::error!("{path}: cut short: its last {now} bytes are not there any more");
        }
        now.max(before)
    }

    fn is_unlinked(&self) -> bool {
        quayfs_transfer::is_unlinked(&self.file)
    }
}

#[cfg(test)]
mod tests;
