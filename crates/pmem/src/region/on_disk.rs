//! What a region on a disk needs besides: reading ahead, giving memory back, and the batch log. None of it does
//! anything where the region is memory.

use super::Region;
use crate::disk::Disk;
use crate::{BatchLog, PmemError};
use quayfs_sync::wait_for_device;
use std::fs::File;
use std::io;
use std::iter::once;

impl Region {
    /// Begins to read from a disk what is needed soon: loads read a page at a time otherwise. Many such calls, and then
    /// the loads, take as long as the disk needs for all of it at once. Nothing to do on memory.
    #[track_caller]
    pub fn will_need(&self, off: u64, len: u64) {
        if self.disk.is_some() {
            self.memory.will_need(off, len);
        }
    }

    /// Bytes of memory that belong to this process since they were stored to: at most what
    /// [`MapOptions::memory`](crate::MapOptions::memory) says, and what is being stored at the moment. Always 0 where
    /// the region is memory itself.
    pub fn memory_in_use(&self) -> u64 {
        self.disk.as_ref().map_or(0, Disk::copied)
    }

    /// From now on what is stored outlives this process in `file`, a memfd that another process holds as well, whenever
    /// this one dies. What the last process had stored, according to the file, is stored again first, and how many
    /// bytes these were is returned. Comes after the batch log has been replayed, and before anything else is read or
    /// stored. Nothing to do where the region is memory: there nothing dies with a process.
    ///
    /// # Errors
    /// [`PmemError::Drain`]: the file is that of another region, or there is no memory.
    pub fn outlive(&self, file: File) -> Result<u64, PmemError> {
        let Some(disk) = &self.disk else {
            return Ok(0);
        };
        wait_for_device(|| disk.outlive(&self.memory, file))
            .map_err(|source| PmemError::Drain { source })
    }

    /// Compares what the disk has of the pages of a range with what is in memory, which alone is asked as long as the region
    /// is open; `copies`: only those that were stored to since. Those that differ, and are not to be written anyway, are
    /// marked to be written with the next drain, and counted, and so are those that the disk cannot read. Always 0 where the
    /// region is memory itself.
    pub fn mend(&self, off: u64, len: u64, copies: bool) -> u64 {
        let Some(disk) = &self.disk else {
            return 0;
        };
        wait_for_device(|| disk.mend(&self.memory, &(off..off + len), copies))
    }

    /// Writes the heads of the batch log again if one of them is damaged, since nothing else says which batches count. Durable
    /// when it returns how many were. Always 0 where there is no batch log.
    ///
    /// # Errors
    /// [`PmemError::Drain`].
    pub fn mend_heads(&self) -> Result<u64, PmemError> {
        let Some(disk) = &self.disk else {
            return Ok(0);
        };
        let mended = wait_for_device(|| disk.mend_heads());
        mended.map_err(|source| PmemError::Drain { source })
    }

    /// Gives memory back, of pages that have been written and have not been stored to for a while, if the bound is
    /// near: a store that meets it has to do that first. To be called now and then.
    pub fn trim(&self) {
        if let Some(disk) = &self.disk {
            disk.trim(&self.memory);
        }
    }

    /// What [`Region::settle_ranges`] and drains write of `log.logged` goes to the batch log from now on, which has
    /// been replayed ([`Region::replay_batches`]). Only where the region is on a disk; elsewhere, and where it
    /// goes there already, this does nothing.
    ///
    /// # Errors
    /// [`PmemError::Drain`].
    pub fn log_batches(&self, log: &BatchLog) -> Result<(), PmemError> {
        let Some(disk) = self.disk.as_ref().filter(|disk| !disk.logs_batches()) else {
            return Ok(());
        };
        let last = self.head(log);
        let begun = wait_for_device(|| disk.log_batches(&self.memory, log, last));
        begun.map_err(|source| PmemError::Drain { source })
    }

    /// Whether [`Region::log_batches`] has done something, so that [`Region::serve_batches`] is of use.
    pub fn logs_batches(&self) -> bool {
        self.disk.as_ref().is_some_and(Disk::logs_batches)
    }

    /// For a thread of its own: brings home what a full half of the batch log has, so that settling need not, until
    /// [`Region::stop_batches`].
    pub fn serve_batches(&self) {
        if let Some(disk) = &self.disk {
            disk.serve_batches(&self.memory);
        }
    }

    /// Ends [`Region::serve_batches`], now or when it begins.
    pub fn stop_batches(&self) {
        if let Some(disk) = &self.disk {
            disk.stop_bringing_home();
        }
    }

    /// Brings everything home that the batch log has. Then nothing of it counts, durably.
    ///
    /// # Errors
    /// [`PmemError::Drain`].
    pub fn empty_batches(&self) -> Result<(), PmemError> {
        let Some(disk) = &self.disk else {
            return Ok(());
        };
        let emptied = wait_for_device(|| disk.empty_batches(&self.memory));
        emptied.map_err(|source| PmemError::Drain { source })
    }

    /// Writes what has been stored, so that the file can be read. Not durable.
    pub(crate) fn write_out(&self) -> io::Result<()> {
        match &self.disk {
            Some(disk) => {
                disk.write_out(&self.memory, once(0..self.len()))?;
                disk.empty_batches(&self.memory)
            }
            None => Ok(()),
        }
    }
}
