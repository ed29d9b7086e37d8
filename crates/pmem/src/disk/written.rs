//! What the region's own file has need not outlive the process once more.
//!
//! Else the next process would store again all that is in memory, and write it again, however long ago it was written.

use super::pages::pages_of;
use super::shadow::Shadow;
use super::tap::Fault;
use super::{Disk, PIECE};
use crate::memory::Memory;
use crate::units::PAGE;
use quayfs_sync::Pacing;
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// How long a piece takes, as [`Pacing`] counts: some microseconds.
const PIECE_LINES: u32 = 64;

impl Disk {
    /// Sectors that have been written become invalid in the shadow. Durable they may be or not: a process that dies takes
    /// nothing along that the system has.
    pub(super) fn forget_written(&self, memory: &Memory) {
        let Some(shadow) = self.shadow.get() else {
            return;
        };
        // Commits take turns with it, but each of them is woken where this thread runs.
        let mut pacing = Pacing::default();
        let mut at = 0;
        while let Some(page) = shadow.next(at) {
            let start = page * PAGE / PIECE * PIECE;
            let piece = start..(start + PIECE).min(memory.len() as u64);
            at = piece.end.div_ceil(PAGE);
            self.forget_written_piece(memory, shadow, &piece);
            pacing.step(PIECE_LINES);
        }
    }

    fn forget_written_piece(&self, memory: &Memory, shadow: &Shadow, piece: &Range<u64>) {
        let is_written = |page: &u64| shadow.has(*page) && self.pages.is_written(*page);
        if !pages_of(piece).any(|page| is_written(&page)) {
            return;
        }
        // From here on nothing of it is on its way, and nothing becomes away. A write that failed has said so before.
        let planted = self.tap.planted(Fault::TakenForWritten);
        let landing = self.claim(piece);
        if landing.is_none() && !planted || self.gate.failure().is_some() {
            return;
        }
        let leave = self.pages.leave();
        for page in pages_of(piece).filter(is_written) {
            let is_home = planted || self.away(page) == 0;
            if is_home && self.is_read_as_written(memory, shadow, page) && leave.hold(page) {
                shadow.set_invalid(page);
            }
        }
    }

    /// Whether another process reads what has been written: a write past the page cache can leave an older page in there.
    fn is_read_as_written(&self, memory: &Memory, shadow: &Shadow, page: u64) -> bool {
        if self.direct.is_none() || !shadow.is_cached(page) {
            return true;
        }
        let off = page * PAGE;
        let mut cached = [0; PAGE as usize];
        let cached = &mut cached[..(memory.len() as u64 - off).min(PAGE) as usize];
        self.file.read_exact_at(cached, off).is_ok() && memory.has(off, cached)
    }
}

#[cfg(test)]
mod tests {
    use super::super::shadow::tests::{again, content, mapped, memfd};
    use super::super::tap::Tap;
    use super::*;
    use std::fs::File;
    use std::iter::once;
    use std::sync::Arc;

    const LEN: u64 = 4 * PAGE;

    fn outliving(fault: Option<Fault>) -> (Arc<File>, Memory, Disk, File) {
        let (file, memory, mut disk) = mapped(LEN);
        disk.tap = Tap::planting(fault);
        let shadow = memfd();
        disk.outlive(&memory, shadow.try_clone().unwrap()).unwrap();
        (file, memory, disk, shadow)
    }

    fn store(disk: &Disk, memory: &Memory, off: u64, value: u64) {
        disk.store(memory, off, 8, || memory.store_u64(off, value));
    }

    /// How many bytes the next process stores again, and what it finds.
    fn next(file: &Arc<File>, shadow: &File) -> (u64, Vec<u8>) {
        let (memory, disk) = again(file, LEN);
        let bytes = disk.outlive(&memory, shadow.try_clone().unwrap()).unwrap();
        (bytes, content(&memory))
    }

    #[test]
    fn what_has_been_written_is_not_stored_again() {
        let (file, memory, disk, shadow) = outliving(None);
        store(&disk, &memory, 0, 1);
        store(&disk, &memory, PAGE, 2);
        disk.forget_written(&memory);
        assert_eq!(next(&file, &shadow), (1024, content(&memory)));
        disk.drain(&memory).unwrap();
        store(&disk, &memory, PAGE + 512, 3);
        disk.forget_written(&memory);
        // Sectors of a page become invalid together, and those of this one are valid from before.
        assert_eq!(next(&file, &shadow), (1024, content(&memory)));
        disk.drain(&memory).unwrap();
        disk.forget_written(&memory);
        store(&disk, &memory, PAGE + 520, 4);
        assert_eq!(next(&file, &shadow), (512, content(&memory)));
    }

    #[test]
    fn what_is_on_its_way_is_stored_again() {
        let lost = [None, Some(Fault::TakenForWritten)].map(|fault| {
            let (file, memory, disk, shadow) = outliving(fault);
            store(&disk, &memory, 0, 1);
            let taken = disk.take(&mut once(0..PAGE).collect()).unwrap();
            // As each write does: the cache has the page from before, and would show that it is not written.
            disk.forget_stale();
            disk.forget_written(&memory);
            drop(taken);
            next(&file, &shadow).1 != content(&memory)
        });
        assert_eq!(lost, [false, true]);
    }

    #[test]
    fn what_could_not_be_written_is_stored_again() {
        let (file, memory, disk, shadow) = outliving(None);
        store(&disk, &memory, 0, 1);
        let taken = disk.take(&mut once(0..PAGE).collect()).unwrap();
        disk.gate.fail(&std::io::Error::other("the disk is gone"));
        disk.flight.lock().clear();
        drop(taken);
        disk.forget_written(&memory);
        assert_eq!(next(&file, &shadow).1, content(&memory));
    }

    /// The page cache may have an older page than the disk: here it is the file itself.
    #[test]
    fn what_is_not_read_as_written_is_stored_again() {
        let (file, memory, disk, shadow) = outliving(None);
        store(&disk, &memory, 0, 1);
        disk.drain(&memory).unwrap();
        file.write_all_at(&[0; 8], 0).unwrap();
        disk.forget_written(&memory);
        assert_eq!(next(&file, &shadow).1, content(&memory));
    }
}
