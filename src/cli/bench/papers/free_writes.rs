//! A data device on which writing costs a copy in memory and no more, to see whether anybody waits for what is written.
//! The CPU time of the copies is counted, and a run taken as shorter by that. It is no bound where CPUs are short:
//! Tokubench is slower on it than on a disk. Reading takes what the device takes. Or as much is written to the device
//! as well, long runs one after the other: what longer writes could gain, with reads as they are.

use std::io;
use std::sync::Arc;

use quayfs_blockdev::{BLOCK, BlockDevice, ReadRun, WriteRun, check_range};
use quayfs_sync::RwLock;
use quayfs_sync::atomic::{AtomicU64, Ordering};
use rustix::time::{ClockId, clock_gettime};

use crate::checkpoint::RUN_MIN;

/// Blocks of a segment: large pieces of memory, which the allocator keeps apart from what the file system takes.
const SEGMENT: usize = 256;

/// Stands in front of a device that is read and never written.
pub struct FreeWrites {
    under: Arc<dyn BlockDevice>,
    segments: Box<[RwLock<Segment>]>,
    copying: Arc<AtomicU64>,
    /// Where the device is written next, wherever blocks belong.
    log: Option<AtomicU64>,
}

struct Segment {
    written: [bool; SEGMENT],
    bytes: Box<[u8]>,
}

impl FreeWrites {
    /// In front of `under`, with as much memory as that has, all of it touched. What copies take is added to
    /// `copying`, in nanoseconds of CPU time.
    pub fn over(under: Arc<dyn BlockDevice>, copying: Arc<AtomicU64>) -> Self {
        let segment = |_| {
            RwLock::new(Segment {
                written: [false; SEGMENT],
                // Zeros would be mapped at the first write.
                bytes: vec![1; SEGMENT * BLOCK].into(),
            })
        };
        let count = under.blocks().div_ceil(SEGMENT as u64);
        let segments = (0..count).map(segment).collect();
        Self {
            under,
            segments,
            copying,
            log: None,
        }
    }

    /// As [`FreeWrites::over`], and what is written at a time is written to the device as well: long runs in one
    /// piece, behind those before, and short ones where they belong. Those are appends, and an append that lies
    /// where its file ends is a write of its own.
    pub fn with_long_ones(under: Arc<dyn BlockDevice>, copying: Arc<AtomicU64>) -> Self {
        Self {
            log: Some(AtomicU64::new(0)),
            ..Self::over(under, copying)
        }
    }

    /// Calls `copy` for each block from this one on, with its segment, its place there, and its number from 0 on.
    fn each(&self, block: u64, count: usize, mut copy: impl FnMut(&RwLock<Segment>, usize, usize)) {
        let began = cpu_time();
        for i in 0..count {
            let at = block as usize + i;
            copy(&self.segments[at / SEGMENT], at % SEGMENT, i);
        }
        self.copying
            .fetch_add(cpu_time() - began, Ordering::Relaxed);
    }

    /// Puts what was written over what was read from the device.
    fn cover(&self, block: u64, buf: &mut [u8]) {
        self.each(block, buf.len() / BLOCK, |segment, at, i| {
            let segment = segment.read();
            if segment.written[at] {
                buf[i * BLOCK..][..BLOCK].copy_from_slice(&segment.bytes[at * BLOCK..][..BLOCK]);
            }
        });
    }
}

/// Nanoseconds of CPU time of this thread.
fn cpu_time() -> u64 {
    let t = clock_gettime(ClockId::ThreadCPUTime);
    t.tv_sec.cast_unsigned() * 1_000_000_000 + t.tv_nsec.cast_unsigned()
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
        self.each(block, buf.len() / BLOCK, |segment, at, i| {
            let mut segment = segment.write();
            segment.bytes[at * BLOCK..][..BLOCK].copy_from_slice(&buf[i * BLOCK..][..BLOCK]);
            segment.written[at] = true;
        });
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
        let Some(log) = &self.log else {
            return Ok(());
        };
        let is_long = |run: &WriteRun<'_>| run.len() >= RUN_MIN * BLOCK;
        let (long, mut all): (Vec<_>, Vec<_>) = runs.iter().copied().partition(is_long);
        let bufs: Vec<&[u8]> = long.iter().flat_map(|run| run.bufs).copied().collect();
        let len = long.iter().map(WriteRun::len).sum::<usize>() / BLOCK;
        let mut block = log.fetch_add(len as u64, Ordering::Relaxed) % self.blocks();
        if block + len as u64 > self.blocks() {
            block = 0;
        }
        if len > 0 {
            all.push(WriteRun { block, bufs: &bufs });
        }
        self.under.write_many(&all)
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
        format!("{}, written to memory", self.under.describe())
    }

    fn is_read_only(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use quayfs_crashsim::SimDevice;

    use super::*;

    fn firsts(device: &dyn BlockDevice) -> Vec<u8> {
        let mut read = vec![0; 4 * BLOCK];
        let run = ReadRun {
            block: 0,
            buf: &mut read,
        };
        device.read_many(&mut [run]).unwrap();
        read.iter().step_by(BLOCK).copied().collect()
    }

    #[test]
    fn what_was_written_is_read_and_the_device_keeps_what_it_had() {
        let under = Arc::new(SimDevice::unrecorded(4));
        under.write(1, &[7; 2 * BLOCK]).unwrap();
        let copying = Arc::new(AtomicU64::new(0));
        let free = FreeWrites::over(Arc::<SimDevice>::clone(&under), Arc::clone(&copying));
        let new = vec![9; BLOCK];
        let bufs: &[&[u8]] = &[&new, &new];
        free.write_many(&[WriteRun { block: 2, bufs }]).unwrap();
        assert!(free.write(4, &new).is_err(), "behind the end");
        assert!(free.discard(0, 5).is_err(), "behind the end");
        assert!(copying.load(Ordering::Relaxed) > 0, "nothing is counted");
        assert_eq!(firsts(&free), [0, 7, 9, 9]);
        assert_eq!(firsts(&*under), [0, 7, 7, 0]);
    }

    #[test]
    fn long_ones_lie_behind_each_other_and_short_ones_where_they_belong() {
        let under = Arc::new(SimDevice::unrecorded(32));
        let long = FreeWrites::with_long_ones(Arc::<SimDevice>::clone(&under), Arc::default());
        let write = |runs: &[(u64, usize)], byte| {
            let buf = vec![byte; 32 * BLOCK];
            let bufs: Vec<[&[u8]; 1]> = runs.iter().map(|(_, n)| [&buf[..n * BLOCK]]).collect();
            let run = |(&(block, _), bufs)| WriteRun { block, bufs };
            let runs: Vec<_> = runs
                .iter()
                .zip(bufs.iter().map(|b| &b[..]))
                .map(run)
                .collect();
            long.write_many(&runs).unwrap();
        };
        let is = |device: &dyn BlockDevice, blocks: Range<u64>, byte| {
            let mut read = vec![0; (blocks.end - blocks.start) as usize * BLOCK];
            device.read(blocks.start, &mut read).unwrap();
            assert!(read.iter().all(|b| *b == byte), "{blocks:?}: {read:?}");
        };
        write(&[(24, RUN_MIN)], 1);
        is(&*under, 0..8, 1);
        is(&*under, 8..32, 0);
        is(&long, 8..24, 0);
        is(&long, 24..32, 1);
        write(&[(0, 8), (10, 9), (30, 2)], 2);
        is(&*under, 8..25, 2);
        is(&*under, 30..32, 2);
        is(&long, 0..8, 2);
        is(&long, 10..19, 2);
        is(&long, 24..30, 1);
        is(&long, 30..32, 2);
        // Not over the end: 25 were long, and 8 are.
        write(&[(16, 8)], 3);
        is(&*under, 0..8, 3);
        is(&long, 16..24, 3);
    }
}
