//! A data device on which writing costs next to nothing, to see whether any thread waits for what is written, or on
//! which writing is done in the longest pieces, to see what these could gain. Reading takes what the device takes.
//!
//! All that a workload writes there is one byte, over and over ([`CONTENT`]), and so is all that is on the device
//! before: a block that was not written, or was written somewhere else, reads as if it had been. Of the last block of a
//! file only its length is kept. Were anything else written, the checksums of blocks would say so.
//!
//! It is no bound where CPUs are short: Tokubench is slower on it than on a disk.

use std::io;
use std::ops::Range;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use quayfs_blockdev::{BLOCK, BlockDevice, ReadRun, RegionRun, WriteRun, check_range};
use quayfs_pmem::Bytes;
use quayfs_sync::atomic::{AtomicU32, AtomicU64, Ordering};

use quayfs_background::checkpoint::RUN_MIN;

/// What everything is full of. No zeros: a disk may take those for nothing.
pub static CONTENT: LazyLock<Vec<u8>> = LazyLock::new(|| vec![1; 1 << 20]);

/// Writes [`CONTENT`] to these blocks and flushes them.
///
/// # Errors
/// Those of the device.
pub fn fill(device: &dyn BlockDevice, blocks: Range<u64>) -> io::Result<()> {
    let mut at = blocks.start;
    while at < blocks.end {
        let count = (blocks.end - at).min((CONTENT.len() / BLOCK) as u64);
        device.write(at, &CONTENT[..count as usize * BLOCK])?;
        at += count;
    }
    device.flush()
}

/// Stands in front of a device.
pub struct FreeWrites {
    under: Arc<dyn BlockDevice>,
    /// Blocks of files. Those around them belong to the volume.
    data: Range<u64>,
    /// For each block of files how many bytes are content. Zeros follow.
    lengths: Box<[AtomicU32]>,
    /// Blocks written one after the other so far, wherever they belong.
    log: Option<AtomicU64>,
}

impl FreeWrites {
    /// In front of `under`, whose blocks `data` are filled.
    ///
    /// # Errors
    /// The device cannot be written.
    pub fn over(under: Arc<dyn BlockDevice>, data: Range<u64>) -> io::Result<Self> {
        fill(&*under, data.clone())?;
        let whole = |_| AtomicU32::new(BLOCK as u32);
        Ok(Self {
            under,
            lengths: data.clone().map(whole).collect(),
            data,
            log: None,
        })
    }

    /// As [`FreeWrites::over`], and as much is written to the device: long runs in one piece, behind those before,
    /// and short ones where they belong. Those are appends, and an append that lies where its file ends is a
    /// write of its own.
    ///
    /// # Errors
    /// As of [`FreeWrites::over`].
    pub fn with_long_ones(under: Arc<dyn BlockDevice>, data: Range<u64>) -> io::Result<Self> {
        Ok(Self {
            log: Some(AtomicU64::new(0)),
            ..Self::over(under, data)?
        })
    }

    /// How much content a block of a file has.
    fn length(&self, block: u64) -> Option<&AtomicU32> {
        let known = self.data.contains(&block);
        known.then(|| &self.lengths[(block - self.data.start) as usize])
    }

    /// Puts the ends of files into what was read from the device.
    fn cover(&self, block: u64, buf: &mut [u8]) {
        for (block, bytes) in (block..).zip(buf.chunks_mut(BLOCK)) {
            if let Some(length) = self.length(block) {
                bytes[length.load(Ordering::Relaxed) as usize..].fill(0);
            }
        }
    }

    /// A block that is written.
    fn note(&self, block: u64, bytes: Bytes<'_>) -> io::Result<()> {
        let mut copy = [0; BLOCK];
        let Some(length) = self.length(block) else {
            bytes.read(&mut copy);
            return self.under.write(block, &copy);
        };
        let (_, end) = bytes.split_at(BLOCK - 1);
        end.read(&mut copy[..1]);
        if copy[0] == 0 {
            bytes.read(&mut copy);
        } else {
            copy[BLOCK - 1] = copy[0];
        }
        length.store(content(&copy), Ordering::Relaxed);
        Ok(())
    }

    /// Writes as much as these blocks of files, each run with its first one, if anything is written.
    fn write_content(&self, runs: impl Iterator<Item = (u64, usize)>) -> io::Result<()> {
        let Some(log) = &self.log else {
            return Ok(());
        };
        let (long, short): (Vec<_>, Vec<_>) = runs
            .filter(|(block, _)| self.length(*block).is_some())
            .partition(|(_, count)| *count >= RUN_MIN);
        // Without the ends of files, which would be read in the place of other blocks.
        let filled = |count: usize| {
            let full = count * BLOCK / CONTENT.len();
            let mut bufs: Vec<&[u8]> = vec![&CONTENT; full];
            bufs.push(&CONTENT[..count * BLOCK % CONTENT.len()]);
            bufs.retain(|buf| !buf.is_empty());
            bufs
        };
        let len: usize = long.iter().map(|(_, count)| count).sum();
        let mut places: Vec<(u64, Vec<&[u8]>)> = (short.iter())
            .map(|&(block, count)| (block, filled(count)))
            .collect();
        if len > 0 {
            places.push((self.behind(log, len as u64), filled(len)));
        }
        let all: Vec<WriteRun<'_>> = (places.iter())
            .map(|&(block, ref bufs)| WriteRun { block, bufs })
            .collect();
        self.under.write_many(&all)
    }

    /// Where the next so many blocks go.
    fn behind(&self, log: &AtomicU64, count: u64) -> u64 {
        let most = self.data.end - self.data.start;
        let at = log.fetch_add(count, Ordering::Relaxed) % most;
        self.data.start + if at + count > most { 0 } else { at }
    }
}

/// How much of a block is content.
fn content(block: &[u8]) -> u32 {
    let n = match block.last() {
        Some(0) => block.partition_point(|b| *b != 0),
        _ => block.len(),
    };
    n as u32
}

impl BlockDevice for FreeWrites {
    fn blocks(&self) -> u64 {
        self.under.blocks()
    }

    fn read(&self, block: u64, buf: &mut [u8]) -> io::Result<()> {
        self.under.read(block, buf)?;
        self.cover(block, buf);
        Ok(())
    }

    fn write(&self, block: u64, buf: &[u8]) -> io::Result<()> {
        check_range(self.blocks(), block, buf.len())?;
        for (block, bytes) in (block..).zip(buf.chunks(BLOCK)) {
            match self.length(block) {
                Some(length) => length.store(content(bytes), Ordering::Relaxed),
                None => self.under.write(block, bytes)?,
            }
        }
        Ok(())
    }

    fn read_many(&self, runs: &mut [ReadRun<'_>]) -> io::Result<()> {
        self.under.read_many(runs)?;
        runs.iter_mut()
            .for_each(|run| self.cover(run.block, run.buf));
        Ok(())
    }

    fn write_many(&self, runs: &[WriteRun<'_>]) -> io::Result<()> {
        for (block, buf) in runs.iter().flat_map(WriteRun::parts) {
            self.write(block, buf)?;
        }
        let blocks = |run: &WriteRun<'_>| (run.block, run.len() / BLOCK);
        self.write_content(runs.iter().map(blocks))
    }

    fn write_from(&self, runs: &[RegionRun<'_>]) -> io::Result<()> {
        for run in runs {
            check_range(self.blocks(), run.block, run.len())?;
            (run.bytes.iter()).try_for_each(|b| check_range(self.blocks(), 0, b.len()))?;
            let mut block = run.block;
            for mut rest in run.bytes.iter().copied() {
                while !rest.is_empty() {
                    let (one, others) = rest.split_at(BLOCK);
                    self.note(block, one)?;
                    (block, rest) = (block + 1, others);
                }
            }
        }
        let blocks = |run: &RegionRun<'_>| (run.block, run.len() / BLOCK);
        self.write_content(runs.iter().map(blocks))
    }

    fn takes_regions(&self) -> bool {
        self.under.takes_regions()
    }

    fn flush(&self) -> io::Result<()> {
        match self.log {
            Some(_) => self.under.flush(),
            None => Ok(()),
        }
    }

    fn discard(&self, block: u64, count: u64) -> io::Result<()> {
        let bytes = usize::try_from(count).ok();
        let bytes = bytes.and_then(|n| n.checked_mul(BLOCK));
        let most = usize::MAX - usize::MAX % BLOCK;
        check_range(self.blocks(), block, bytes.unwrap_or(most))
    }

    fn describe(&self) -> String {
        format!("{}, written as one byte", self.under.describe())
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn silent_for(&self) -> Duration {
        self.under.silent_for()
    }

    fn missing(&self) -> u64 {
        self.under.missing()
    }
}

#[cfg(test)]
mod tests {
    use quayfs_crashsim::SimDevice;

    use super::*;

    const DATA: Range<u64> = 4..36;

    /// A device that has been written to.
    fn under() -> Arc<SimDevice> {
        let under = Arc::new(SimDevice::unrecorded(40));
        under.write(0, &vec![7; 40 * BLOCK]).unwrap();
        under
    }

    fn read(device: &dyn BlockDevice) -> Vec<u8> {
        let mut read = vec![0; 40 * BLOCK];
        let run = ReadRun {
            block: 0,
            buf: &mut read,
        };
        device.read_many(&mut [run]).unwrap();
        read
    }

    /// Blocks of files that begin with `full`, and after so many bytes of it have zeros.
    fn blocks(full: u8, lengths: &[usize]) -> Vec<u8> {
        let block = |n: &usize| [vec![full; *n], vec![0; BLOCK - n]].concat();
        lengths.iter().flat_map(block).collect()
    }

    #[test]
    fn what_was_written_is_read_and_nothing_was() {
        let under = under();
        let free = FreeWrites::over(Arc::<SimDevice>::clone(&under), DATA).unwrap();
        let mut want = [blocks(7, &[BLOCK; 4]), blocks(1, &[BLOCK; 32])].concat();
        want.extend(blocks(7, &[BLOCK; 4]));
        assert!(read(&*under) == want);
        let mut write = |block: usize, bytes: &[u8]| {
            let run = WriteRun {
                block: block as u64,
                bufs: &[bytes],
            };
            free.write_many(&[run]).unwrap();
            want[block * BLOCK..][..bytes.len()].copy_from_slice(bytes);
            assert!(read(&free) == want, "{block}");
        };
        write(4, &blocks(1, &[BLOCK, BLOCK - 1, BLOCK, 1]));
        write(5, &blocks(1, &[BLOCK, 0]));
        write(35, &blocks(1, &[100]));
        assert!(read(&*under)[4 * BLOCK..36 * BLOCK].iter().all(|b| *b == 1));
        // What belongs to the volume is written as it is.
        write(3, &blocks(9, &[70]));
        write(36, &blocks(9, &[BLOCK]));
        assert!(free.write(40, &[1; BLOCK]).is_err(), "behind the end");
        assert!(free.discard(0, 41).is_err(), "behind the end");
    }

    #[test]
    fn long_ones_lie_behind_each_other_and_short_ones_where_they_belong() {
        let under = under();
        let long = FreeWrites::with_long_ones(Arc::<SimDevice>::clone(&under), DATA).unwrap();
        // Where it writes can be seen where the device had something else.
        let written = |runs: &[(u64, usize)]| {
            under.write(0, &vec![7; 40 * BLOCK]).unwrap();
            let bytes: Vec<Vec<u8>> = (runs.iter())
                .map(|(_, n)| [vec![1; n * BLOCK - 1], vec![0]].concat())
                .collect();
            let bufs: Vec<[&[u8]; 1]> = bytes.iter().map(|b| [&b[..]]).collect();
            let run = |(&(block, _), bufs)| WriteRun { block, bufs };
            let runs: Vec<_> = (runs.iter().zip(bufs.iter().map(|b| &b[..])))
                .map(run)
                .collect();
            long.write_many(&runs).unwrap();
            let read = read(&*under);
            let whole = |n: &u64| read[*n as usize * BLOCK..][..BLOCK].iter().all(|b| *b == 1);
            (0..40).filter(whole).collect::<Vec<u64>>()
        };
        assert_eq!(written(&[(28, RUN_MIN)]), (4..12).collect::<Vec<_>>());
        let both: Vec<u64> = (12..29).chain(34..36).collect();
        assert_eq!(written(&[(4, 8), (14, 9), (34, 2)]), both);
        // Not over the end: 25 were long, and 8 are.
        assert_eq!(written(&[(20, 8)]), (4..12).collect::<Vec<_>>());
        // Ends of files are where those are: that of the second run was written over.
        fill(&*under, DATA).unwrap();
        let ends: Vec<u64> = (4..36)
            .filter(|b| read(&long)[*b as usize * BLOCK..][BLOCK - 1] == 0)
            .collect();
        assert_eq!(ends, [11, 27, 35]);
    }
}
