//! The interface of a data device.

use crate::{BLOCK, Scratch};
use quayfs_pmem::Bytes;
use std::io;
use std::time::Duration;

/// Contiguous blocks to write.
#[derive(Clone, Copy, Debug)]
pub struct WriteRun<'a> {
    /// The first block.
    pub block: u64,
    /// What to write there, one buffer after the other. The length of each is a multiple of
    /// [`BLOCK`]; they need no alignment.
    pub bufs: &'a [&'a [u8]],
}

impl WriteRun<'_> {
    /// The bytes of all buffers together.
    pub fn len(&self) -> usize {
        self.bufs.iter().map(|buf| buf.len()).sum()
    }

    /// Its buffers, each with the block that it begins at.
    pub fn parts(&self) -> impl Iterator<Item = (u64, &[u8])> {
        let mut next = self.block;
        self.bufs.iter().map(move |buf| {
            let block = next;
            next += (buf.len() / BLOCK) as u64;
            (block, *buf)
        })
    }

    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Contiguous blocks to write, out of a region.
#[derive(Clone, Copy, Debug)]
pub struct RegionRun<'a> {
    /// The first block.
    pub block: u64,
    /// What to write there, one after the other. The length of each is a multiple of [`BLOCK`].
    pub bytes: &'a [Bytes<'a>],
}

impl RegionRun<'_> {
    /// The number of bytes.
    pub fn len(&self) -> usize {
        self.bytes.iter().map(Bytes::len).sum()
    }

    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Contiguous blocks to read.
#[derive(Debug)]
pub struct ReadRun<'a> {
    /// The first block.
    pub block: u64,
    /// Where they go. The length is a multiple of [`BLOCK`]; it needs no alignment.
    pub buf: &'a mut [u8],
}

/// An array of 4 KiB blocks. Any number of threads may call at once; of two writes to one block at
/// the same time, either may win, in parts.
///
/// # Errors
/// All methods return the error of the system (`EIO`, `ENOSPC` of a sparse file, ...), and
/// [`io::ErrorKind::InvalidInput`] without having done anything if a block is outside of the device
/// or a buffer is not a multiple of [`BLOCK`].
pub trait BlockDevice: Send + Sync {
    /// The length of the device in blocks of 4 KiB.
    fn blocks(&self) -> u64;

    /// Reads `buf.len() / BLOCK` blocks from `block` on. On failure the content of `buf` is
    /// undefined.
    #[track_caller]
    fn read(&self, block: u64, buf: &mut [u8]) -> io::Result<()>;

    /// Writes `buf.len() / BLOCK` blocks from `block` on. Nothing is durable when it returns; on
    /// failure any part of it may have been written.
    #[track_caller]
    fn write(&self, block: u64, buf: &[u8]) -> io::Result<()>;

    /// Reads all runs, in no order, and returns when all are done. The first error wins, and then
    /// some may not have been read.
    #[track_caller]
    fn read_many(&self, runs: &mut [ReadRun<'_>]) -> io::Result<()> {
        for run in runs {
            self.read(run.block, run.buf)?;
        }
        Ok(())
    }

    /// Writes all runs, in no order, and returns when all are done. The first error wins, and then
    /// some may not have been written. Nothing is durable when it returns.
    #[track_caller]
    fn write_many(&self, runs: &[WriteRun<'_>]) -> io::Result<()> {
        runs.iter()
            .flat_map(WriteRun::parts)
            .try_for_each(|(block, buf)| self.write(block, buf))
    }

    /// [`BlockDevice::write_many`] of what lies in a region. No thread may store there meanwhile.
    #[track_caller]
    fn write_from(&self, runs: &[RegionRun<'_>]) -> io::Result<()> {
        copy_and_write(self, runs)
    }

    /// Whether [`BlockDevice::write_from`] is the better way to write what lies in a region at multiples of [`BLOCK`] in
    /// memory: a device that makes no copy of it.
    fn takes_regions(&self) -> bool {
        false
    }

    /// Makes durable every write that returned before this call. After a failure every later flush
    /// fails too: the system may have dropped what it could not write.
    #[track_caller]
    fn flush(&self) -> io::Result<()>;

    /// Tells the device that the content of `count` blocks is no longer needed. Until they are
    /// written again they read as anything. A device that cannot do it does nothing.
    #[track_caller]
    fn discard(&self, block: u64, count: u64) -> io::Result<()>;

    /// What this is and how it is accessed, for a log line.
    fn describe(&self) -> String;

    /// Whether writes are refused.
    fn is_read_only(&self) -> bool;

    /// For how long it has answered nothing, though requests are under way; zero if none is, or if it does not know.
    fn silent_for(&self) -> Duration;

    /// How many bytes at its end are not there any more: of a file or a device that was cut short since it was opened. Zero
    /// where that cannot be told without waiting for it.
    fn missing(&self) -> u64;

    /// Whether it is a regular file whose last name was removed: its content ends with this process. Does not wait for the file
    /// system.
    fn is_unlinked(&self) -> bool {
        false
    }
}

/// [`BlockDevice::write_from`] by way of a copy. For implementations of [`BlockDevice`].
///
/// # Errors
/// Those of [`BlockDevice::write_many`].
#[track_caller]
pub fn copy_and_write<D>(device: &D, runs: &[RegionRun<'_>]) -> io::Result<()>
where
    D: BlockDevice + ?Sized,
{
    let mut copies = Scratch::new(runs.iter().map(RegionRun::len).sum());
    let mut rest = &mut copies[..];
    for bytes in runs.iter().flat_map(|run| run.bytes) {
        let (here, after) = rest.split_at_mut(bytes.len());
        bytes.read(here);
        rest = after;
    }
    let mut rest = &copies[..];
    let slices: Vec<[&[u8]; 1]> = (runs.iter())
        .map(|run| {
            let (here, after) = rest.split_at(run.len());
            rest = after;
            [here]
        })
        .collect();
    let copied: Vec<WriteRun<'_>> = (runs.iter().zip(&slices))
        .map(|(run, bufs)| WriteRun {
            block: run.block,
            bufs,
        })
        .collect();
    device.write_many(&copied)
}

/// Checks that `bytes`, a multiple of [`BLOCK`], fit into a device of `blocks` at `block`. For
/// implementations of [`BlockDevice`].
///
/// # Errors
/// [`io::ErrorKind::InvalidInput`], naming the range.
pub fn check_range(blocks: u64, block: u64, bytes: usize) -> io::Result<()> {
    let invalid = |message| Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    if !bytes.is_multiple_of(BLOCK) {
        return invalid(format!(
            "a transfer of {bytes} bytes is not a multiple of {BLOCK}"
        ));
    }
    let count = (bytes / BLOCK) as u64;
    if block.checked_add(count).is_none_or(|end| end > blocks) {
        return invalid(format!("{count} blocks at {block} on a device of {blocks}"));
    }
    Ok(())
}
