//! A data device on which writing costs no more than a copy in memory, and that is counted: without it a run would
//! have been shorter by the CPU time of all copies at most, so what is no faster on it then does not wait for what is
//! written. Reading takes what the device takes.

use std::io;
use std::sync::Arc;

use quayfs_blockdev::{BLOCK, BlockDevice, ReadRun, check_range};
use quayfs_sync::RwLock;
use quayfs_sync::atomic::{AtomicU64, Ordering};
use rustix::time::{ClockId, clock_gettime};

/// Stands in front of a device that is read and never written.
pub struct FreeWrites {
    under: Arc<dyn BlockDevice>,
    blocks: Box<[RwLock<Block>]>,
    copying: Arc<AtomicU64>,
}

struct Block {
    written: bool,
    bytes: Box<[u8]>,
}

impl FreeWrites {
    /// In front of `under`, with as much memory as that has, all of it touched. What copies take is added to
    /// `copying`, in nanoseconds of CPU time.
    pub fn over(under: Arc<dyn BlockDevice>, copying: Arc<AtomicU64>) -> Self {
        let block = |_| {
            RwLock::new(Block {
                written: false,
                // Zeros would be mapped at the first write.
                bytes: vec![1; BLOCK].into(),
            })
        };
        let blocks = (0..under.blocks()).map(block).collect();
        Self {
            under,
            blocks,
            copying,
        }
    }

    fn counted<T>(&self, copy: impl FnOnce() -> T) -> T {
        let began = cpu_time();
        let done = copy();
        self.copying
            .fetch_add(cpu_time() - began, Ordering::Relaxed);
        done
    }

    /// The block of this number and those behind it.
    fn from(&self, block: u64) -> io::Result<&[RwLock<Block>]> {
        let first = usize::try_from(block).map_err(io::Error::other)?;
        Ok(&self.blocks[first..])
    }

    /// Puts what was written over what was read from the device.
    fn cover(&self, block: u64, buf: &mut [u8]) -> io::Result<()> {
        let all = self.from(block)?.iter().zip(buf.chunks_exact_mut(BLOCK));
        self.counted(|| {
            for (kept, to) in all {
                let kept = kept.read();
                if kept.written {
                    to.copy_from_slice(&kept.bytes);
                }
            }
        });
        Ok(())
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
        self.cover(block, buf)
    }

    fn write(&self, block: u64, buf: &[u8]) -> io::Result<()> {
        check_range(self.blocks(), block, buf.len())?;
        let all = self.from(block)?.iter().zip(buf.chunks_exact(BLOCK));
        self.counted(|| {
            for (kept, from) in all {
                let mut kept = kept.write();
                kept.bytes.copy_from_slice(from);
                kept.written = true;
            }
        });
        Ok(())
    }

    fn read_many(&self, runs: &mut [ReadRun<'_>]) -> io::Result<()> {
        self.under.read_many(runs)?;
        runs.iter_mut()
            .try_for_each(|run| self.cover(run.block, run.buf))
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
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
    use super::*;
    use quayfs_blockdev::WriteRun;
    use quayfs_crashsim::SimDevice;

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
}
