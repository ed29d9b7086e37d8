//! Blocks of one device to another, each compared with what has arrived.

use std::io;
use std::ops::Range;

use quayfs_blockdev::{AlignedBuf, BlockDevice, ReadRun, WriteRun};
use quayfs_layout::BLOCK;
use quayfs_shown::progress::Meter;

/// Blocks that are copied, made durable and compared together.
pub(super) const WINDOW: u64 = 4096;
/// Blocks of one transfer.
const RUN: u64 = 256;

/// Why blocks are not copied.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// The old place cannot be read.
    #[error("the old place cannot be read: {0}")]
    Read(io::Error),
    /// The new place cannot be written, or not be read.
    #[error("the new place fails: {0}")]
    Write(io::Error),
    /// The new place has something else than what was written.
    #[error("the new place does not keep what is written to it (block {0})")]
    Differs(u64),
}

/// Copies between two devices, from each block to the one with the same number.
pub(super) struct Copier<'a> {
    from: &'a dyn BlockDevice,
    to: &'a dyn BlockDevice,
    content: AlignedBuf,
    there: AlignedBuf,
}

impl<'a> Copier<'a> {
    pub(super) fn new(from: &'a dyn BlockDevice, to: &'a dyn BlockDevice) -> Self {
        let buffer = || AlignedBuf::new(WINDOW as usize * BLOCK);
        Self {
            from,
            to,
            content: buffer(),
            there: buffer(),
        }
    }

    /// Copies ranges of blocks, which do not overlap. They are durable and have been compared when it returns. `is_blank`:
    /// the new place has zeros there. What others write to the old place meanwhile may be missing, and is not taken for a
    /// failure.
    ///
    /// # Errors
    /// [`CopyError`]; any part may have been written.
    pub(super) fn copy(
        &mut self,
        ranges: impl IntoIterator<Item = Range<u64>>,
        is_blank: bool,
        meter: &Meter,
    ) -> Result<(), CopyError> {
        let (mut runs, mut blocks) = (Vec::new(), 0);
        for range in ranges {
            for first in (range.start..range.end).step_by(RUN as usize) {
                let run = first..range.end.min(first + RUN);
                if blocks + run.end - run.start > WINDOW {
                    self.window(&runs, is_blank, meter)?;
                    (runs, blocks) = (Vec::new(), 0);
                }
                blocks += run.end - run.start;
                runs.push(run);
            }
        }
        self.window(&runs, is_blank, meter)
    }

    /// At most [`WINDOW`] blocks.
    fn window(
        &mut self,
        runs: &[Range<u64>],
        is_blank: bool,
        meter: &Meter,
    ) -> Result<(), CopyError> {
        if runs.is_empty() {
            return Ok(());
        }
        read(self.from, runs, &mut self.content).map_err(CopyError::Read)?;
        let parts = parts(runs, &self.content);
        let is_written = |part: &[u8]| !is_blank || part.iter().any(|b| *b != 0);
        let bufs: Vec<(u64, [&[u8]; 1])> = parts
            .iter()
            .filter(|(_, part)| is_written(part))
            .map(|(block, part)| (*block, [*part]))
            .collect();
        let writes: Vec<WriteRun<'_>> = bufs
            .iter()
            .map(|(block, bufs)| WriteRun {
                block: *block,
                bufs,
            })
            .collect();
        self.to.write_many(&writes).map_err(CopyError::Write)?;
        self.to.flush().map_err(CopyError::Write)?;
        read(self.to, runs, &mut self.there).map_err(CopyError::Write)?;
        let bytes = parts.iter().map(|(_, part)| part.len()).sum::<usize>();
        if let Some(at) = (0..bytes).step_by(BLOCK).find(|at| {
            let block = *at..*at + BLOCK;
            self.content[block.clone()] != self.there[block]
        }) {
            return Err(CopyError::Differs(block_at(runs, at)));
        }
        meter.add(bytes as u64);
        Ok(())
    }
}

/// Reads runs of blocks, one behind the other.
fn read(device: &dyn BlockDevice, runs: &[Range<u64>], buf: &mut [u8]) -> io::Result<()> {
    let mut rest = buf;
    let mut reads = Vec::with_capacity(runs.len());
    for run in runs {
        let (buf, after) = rest.split_at_mut(bytes(run));
        rest = after;
        reads.push(ReadRun {
            block: run.start,
            buf,
        });
    }
    device.read_many(&mut reads)
}

/// The first block of each run, and its bytes.
fn parts<'b>(runs: &[Range<u64>], buf: &'b [u8]) -> Vec<(u64, &'b [u8])> {
    let mut rest = buf;
    let cut = runs.iter().map(|run| {
        let (part, after) = rest.split_at(bytes(run));
        rest = after;
        (run.start, part)
    });
    cut.collect()
}

/// The block whose bytes are at this place of the buffer.
fn block_at(runs: &[Range<u64>], at: usize) -> u64 {
    let mut left = (at / BLOCK) as u64;
    for run in runs {
        if left < run.end - run.start {
            return run.start + left;
        }
        left -= run.end - run.start;
    }
    0
}

fn bytes(run: &Range<u64>) -> usize {
    (run.end - run.start) as usize * BLOCK
}

#[cfg(test)]
mod tests {
    use super::*;
    use quayfs_crashsim::{Fault, FaultDevice, FaultOp, Repeat, SimDevice};
    use std::iter::once;
    use std::sync::Arc;

    fn block(n: u64) -> Vec<u8> {
        (0..BLOCK).map(|i| (i as u64 * 7 + n * 13) as u8).collect()
    }

    fn device(blocks: u64, filled: Range<u64>) -> SimDevice {
        let device = SimDevice::unrecorded(blocks);
        filled.for_each(|n| device.write(n, &block(n)).unwrap());
        device
    }

    fn content(device: &dyn BlockDevice, n: u64) -> Vec<u8> {
        let mut buf = vec![0; BLOCK];
        device.read(n, &mut buf).unwrap();
        buf
    }

    #[test]
    fn ranges_are_copied_and_nothing_else() {
        let blocks = 2 * WINDOW + 100;
        let (from, to) = (device(blocks, 0..blocks), device(blocks, 0..0));
        let meter = Meter::default();
        meter.begin("copying", 0, quayfs_shown::progress::Unit::Bytes);
        let ranges = [3..4, 10..WINDOW + 700, blocks - 1..blocks];
        let all: u64 = ranges.iter().map(|r| r.end - r.start).sum();
        let mut copier = Copier::new(&from, &to);
        copier.copy(ranges.clone(), false, &meter).unwrap();
        assert_eq!(meter.look().unwrap().done, all * BLOCK as u64);
        for n in 0..blocks {
            let copied = ranges.iter().any(|range| range.contains(&n));
            let wanted = if copied { block(n) } else { vec![0; BLOCK] };
            assert!(content(&to, n) == wanted, "{n}");
        }
    }

    /// Only a place that has zeros is spared them.
    #[test]
    fn zeros_are_written_over_what_is_there() {
        let (from, to) = (device(1000, 0..0), device(1000, 0..1000));
        Copier::new(&from, &to)
            .copy(once(0..500), false, &Meter::default())
            .unwrap();
        assert!(content(&to, 499).iter().all(|b| *b == 0));
        let told = Copier::new(&from, &to).copy(once(500..1000), true, &Meter::default());
        assert!(matches!(told, Err(CopyError::Differs(500))), "{told:?}");
    }

    #[test]
    fn failures_say_which_place_fails() {
        let device = |filled| FaultDevice::new(Arc::new(device(600, filled)));
        let copied = |from: &FaultDevice, to: &FaultDevice| {
            Copier::new(from, to).copy(once(0..600), false, &Meter::default())
        };
        let eio = Fault::Errno(rustix::io::Errno::IO.raw_os_error());
        for op in [FaultOp::Read, FaultOp::Write, FaultOp::Flush] {
            let (from, to) = (device(0..600), device(0..0));
            to.fail(op, 1, eio, Repeat::Once);
            let told = copied(&from, &to);
            assert!(matches!(told, Err(CopyError::Write(_))), "{op:?}: {told:?}");
        }
        let (from, to) = (device(0..600), device(0..0));
        from.fail(FaultOp::Read, 1, eio, Repeat::Once);
        let told = copied(&from, &to);
        assert!(matches!(told, Err(CopyError::Read(_))), "{told:?}");
    }
}
