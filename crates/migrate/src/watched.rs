//! The data device while it is copied: what is written to it is noted.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use quayfs_blockdev::{BLOCK, BlockDevice, ReadRun, RegionRun, WriteRun};
use quayfs_restart::Moves;

/// Passes everything on. What is discarded reads as anything, so it need not be copied again.
pub struct Watched {
    inner: Arc<dyn BlockDevice>,
    moves: Arc<Moves>,
}

impl Watched {
    /// Notes from here on what is written to a device. Nothing of another process is under way to it.
    pub fn new(inner: Arc<dyn BlockDevice>, moves: Arc<Moves>) -> Self {
        moves.attach();
        Self { inner, moves }
    }

    fn writing<T>(&self, runs: Vec<Range<u64>>, write: impl FnOnce() -> T) -> T {
        // Nothing is copied any more.
        if !self.moves.is_open() {
            return write();
        }
        let _under_way = UnderWay::new(&self.moves, runs);
        write()
    }
}

/// Writes that have begun, until this is dropped.
struct UnderWay<'a> {
    moves: &'a Moves,
    runs: Vec<Range<u64>>,
}

impl<'a> UnderWay<'a> {
    fn new(moves: &'a Moves, runs: Vec<Range<u64>>) -> Self {
        runs.iter().for_each(|run| moves.begin(run));
        Self { moves, runs }
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.runs.iter().for_each(|run| self.moves.end(run));
    }
}

fn run(block: u64, bytes: usize) -> Range<u64> {
    block..block.saturating_add(bytes.div_ceil(BLOCK) as u64)
}

impl BlockDevice for Watched {
    fn blocks(&self) -> u64 {
        self.inner.blocks()
    }

    fn read(&self, block: u64, buf: &mut [u8]) -> io::Result<()> {
        self.inner.read(block, buf)
    }

    fn write(&self, block: u64, buf: &[u8]) -> io::Result<()> {
        self.writing(vec![run(block, buf.len())], || self.inner.write(block, buf))
    }

    fn read_many(&self, runs: &mut [ReadRun<'_>]) -> io::Result<()> {
        self.inner.read_many(runs)
    }

    fn write_many(&self, runs: &[WriteRun<'_>]) -> io::Result<()> {
        let ranges = runs.iter().map(|r| run(r.block, r.len())).collect();
        self.writing(ranges, || self.inner.write_many(runs))
    }

    fn write_from(&self, runs: &[RegionRun<'_>]) -> io::Result<()> {
        let ranges = runs.iter().map(|r| run(r.block, r.len())).collect();
        self.writing(ranges, || self.inner.write_from(runs))
    }

    fn takes_regions(&self) -> bool {
        self.inner.takes_regions()
    }

    fn flush(&self) -> io::Result<()> {
        self.inner.flush()
    }

    fn discard(&self, block: u64, count: u64) -> io::Result<()> {
        self.inner.discard(block, count)
    }

    fn describe(&self) -> String {
        format!("{}, being copied", self.inner.describe())
    }

    fn is_read_only(&self) -> bool {
        self.inner.is_read_only()
    }

    fn missing(&self) -> u64 {
        self.inner.missing()
    }

    fn is_unlinked(&self) -> bool {
        self.inner.is_unlinked()
    }

    fn silent_for(&self) -> Duration {
        self.inner.silent_for()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::copy_marked;
    use quayfs_crashsim::{FaultDevice, FaultOp, SimDevice};
    use quayfs_shown::progress::Meter;
    use std::path::Path;
    use std::thread;

    const BLOCKS: u64 = 4000;

    fn moves() -> Arc<Moves> {
        Arc::new(Moves::new(0, BLOCKS, Path::new("/new"), [0, 0]).unwrap())
    }

    /// All but the header, which the second one does not have.
    fn same(one: &dyn BlockDevice, other: &dyn BlockDevice) -> bool {
        let mut bufs = [0, 1].map(|_| vec![0; BLOCKS as usize * BLOCK]);
        one.read(0, &mut bufs[0]).unwrap();
        other.read(0, &mut bufs[1]).unwrap();
        assert!(bufs[1][..BLOCK].iter().all(|b| *b == 0));
        bufs[0][BLOCK..] == bufs[1][BLOCK..]
    }

    fn copy(from: &dyn BlockDevice, to: &dyn BlockDevice, moves: &Moves) {
        copy_marked(from, to, moves, false, &Meter::default()).unwrap();
    }

    /// Every way to write, at places that do and do not begin a piece.
    #[test]
    fn what_is_written_meanwhile_is_copied_again() {
        let (old, new) = [0, 1]
            .map(|_| Arc::new(SimDevice::unrecorded(BLOCKS)))
            .into();
        let moves = moves();
        let watched = Watched::new(Arc::clone(&old) as _, Arc::clone(&moves));
        watched.write(0, &[2; BLOCK]).unwrap();
        watched.write(3, &[3; BLOCK]).unwrap();
        copy(&*old, &*new, &moves);
        assert!(same(&*old, &*new) && moves.marked() == 0);
        let region = quayfs_pmem::Region::anonymous(1 << 20);
        region.write(0, &[8; BLOCK]);
        for n in 0..3 {
            match n {
                0 => watched.write(31, &[4; 3 * BLOCK]),
                1 => watched.write_many(&[
                    WriteRun {
                        block: 900,
                        bufs: &[&[5; BLOCK], &[6; BLOCK]],
                    },
                    WriteRun {
                        block: BLOCKS - 1,
                        bufs: &[&[7; BLOCK]],
                    },
                ]),
                _ => watched.write_from(&[RegionRun {
                    block: 2000,
                    bytes: &[region.bytes(0, BLOCK)],
                }]),
            }
            .unwrap();
            assert!(!same(&*old, &*new), "{n}");
            copy(&*old, &*new, &moves);
            assert!(same(&*old, &*new) && moves.marked() == 0, "{n}");
        }
    }

    /// A write that is under way while its piece is copied is not missed when it ends.
    #[test]
    fn a_write_that_a_copy_overtakes_is_copied_again() {
        let (old, new) = [0, 1]
            .map(|_| Arc::new(SimDevice::unrecorded(BLOCKS)))
            .into();
        let slow = Arc::new(FaultDevice::new(Arc::clone(&old) as _));
        let moves = moves();
        let watched = Watched::new(Arc::clone(&slow) as _, Arc::clone(&moves));
        let stall = slow.stall(FaultOp::Write, 1);
        thread::scope(|scope| {
            let write = scope.spawn(|| watched.write(100, &[1; BLOCK]));
            stall.reached();
            copy(&*old, &*new, &moves);
            assert!(moves.marked() > 0, "it is under way");
            stall.release();
            write.join().unwrap().unwrap();
        });
        assert!(!same(&*old, &*new));
        copy(&*old, &*new, &moves);
        assert!(same(&*old, &*new) && moves.marked() == 0);
    }
}
