//! What makes stores durable, on every backend: the [persistence model](crate) says when.

use super::{Region, Source};
use crate::{Observer, PmemError, SECTOR, libpmem};
use quayfs_sync::wait_for_device;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::panic::Location;
use std::sync::atomic::{self, Ordering};

impl Region {
    /// Begins to write back every line that `off..off + len` touches, a partial first and last one
    /// included. Durable after the next fence of this thread, on [`Backend::File`](crate::Backend::File) after a drain.
    #[track_caller]
    pub fn flush(&self, off: u64, len: u64) {
        if self.is_real_memory() {
            self.memory.flush(off, len);
            return;
        }
        self.memory.check(off, len);
        if let (Some(observer), true) = (self.observer(), len > 0) {
            observer.flush(off, len, Location::caller());
        }
    }

    /// Waits until everything that this thread flushed or wrote non-temporally is durable. On
    /// [`Backend::File`](crate::Backend::File) it orders stores for other threads and makes nothing durable.
    #[track_caller]
    pub fn fence(&self) {
        if let Some(observer) = self.observer() {
            observer.fence(Location::caller());
        }
        self.cpu_fence();
    }

    fn cpu_fence(&self) {
        if self.is_real_memory() {
            atomic::fence(Ordering::Release);
            libpmem::pmem_drain();
        } else {
            atomic::fence(Ordering::SeqCst);
        }
    }

    /// The durability edge on every backend. When it returns `Ok`, durable is what a fence makes
    /// durable and, on [`Backend::File`](crate::Backend::File), everything that any thread stored before the call.
    /// There, concurrent callers share system calls.
    ///
    /// # Errors
    /// [`PmemError::Drain`] if the device failed, now or in any earlier drain of this region.
    #[track_caller]
    pub fn drain(&self) -> Result<(), PmemError> {
        let site = Location::caller();
        let result = match &self.source {
            Source::Simulated(observer) => {
                self.cpu_fence();
                self.drain_simulated(observer.as_deref(), false, site)
            }
            Source::Copy(_) => {
                self.cpu_fence();
                Ok(())
            }
            Source::File { file, .. } => {
                self.cpu_fence();
                match &self.disk {
                    Some(disk) => wait_for_device(|| disk.drain(&self.memory)),
                    None if self.backend.needs_drain() => wait_for_device(|| self.sync(file)),
                    None => Ok(()),
                }
            }
        };
        result.map_err(|source| PmemError::Drain { source })
    }

    /// Writes what was stored in some ranges, which are made of whole [`SECTOR`]s: the first half of a drain, which
    /// takes less time where others have much to write. The second is [`Region::drain_settled`]. On memory it does
    /// nothing.
    ///
    /// # Errors
    /// As [`Region::drain`].
    #[track_caller]
    pub fn settle_ranges(&self, ranges: &[Range<u64>]) -> Result<(), PmemError> {
        for range in ranges {
            (self.memory).check(range.start, range.end.saturating_sub(range.start));
            debug_assert!(range.start % SECTOR == 0 && range.end % SECTOR == 0);
        }
        self.cpu_fence();
        let result = match (&self.source, &self.disk) {
            (_, Some(disk)) => {
                wait_for_device(|| disk.write_out(&self.memory, ranges.iter().cloned()))
            }
            (Source::Simulated(Some(observer)), None) if self.backend.needs_drain() => {
                match self.gate.failure() {
                    Some(error) => Err(error),
                    None => {
                        observer.settle_ranges(ranges, Location::caller());
                        Ok(())
                    }
                }
            }
            _ => Ok(()),
        };
        result.map_err(|source| PmemError::Drain { source })
    }

    /// When it returns `Ok`, durable is what this thread has last settled with [`Region::settle_ranges`]. Of anything
    /// else it promises nothing.
    ///
    /// # Errors
    /// As [`Region::drain`].
    #[track_caller]
    pub fn drain_settled(&self) -> Result<(), PmemError> {
        let site = Location::caller();
        let result = match (&self.source, &self.disk) {
            (_, Some(disk)) => wait_for_device(|| disk.flush()),
            (Source::Simulated(observer), None) => {
                self.drain_simulated(observer.as_deref(), self.backend.needs_drain(), site)
            }
            (Source::File { file, .. }, None) if self.backend.needs_drain() => {
                wait_for_device(|| self.sync(file))
            }
            (Source::File { .. } | Source::Copy(_), None) => Ok(()),
        };
        result.map_err(|source| PmemError::Drain { source })
    }

    /// Flushes of its disk that have begun, for [`WriteThrottle`](crate::WriteThrottle). None where a region is no area
    /// of a disk.
    pub fn flushes(&self) -> u64 {
        self.disk.as_ref().map_or(0, |disk| disk.flushes())
    }

    /// A drain of a shared mapping of a file on a disk: the kernel writes all of it.
    fn sync(&self, file: &File) -> io::Result<()> {
        self.gate.drain(|| Ok(rustix::fs::fdatasync(file)?))
    }

    /// Of all there is, or of what this thread has settled. No coalescing: the observer shall see each drain, and it
    /// takes no time.
    fn drain_simulated(
        &self,
        observer: Option<&dyn Observer>,
        settled: bool,
        site: &'static Location<'static>,
    ) -> io::Result<()> {
        let Some(observer) = observer else {
            return Ok(());
        };
        if let Some(error) = self.gate.failure() {
            return Err(error);
        }
        if let Some(error) = observer.drain_fault() {
            self.gate.fail(&error);
            return Err(error);
        }
        match settled {
            true => observer.drain_settled(site),
            false => observer.drain(site),
        }
        Ok(())
    }

    /// [`Region::flush`] and [`Region::drain`].
    ///
    /// # Errors
    /// As [`Region::drain`].
    #[track_caller]
    pub fn persist(&self, off: u64, len: u64) -> Result<(), PmemError> {
        self.flush(off, len);
        self.drain()
    }
}
