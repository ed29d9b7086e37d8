//! What a region holds: of a sparse file most may be holes, however long it claims to be. Code that goes through
//! a region looks only at the rest.

use crate::{Backend, Region};
use parking_lot::Mutex;
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use super::region::Source;

/// Bytes for which a copy has one bit.
const GRAIN: u64 = 64 << 10;
/// A range that is read sooner than the system is asked about it.
const SHORT: u64 = 1 << 20;
/// Bytes of a table that are looked at in one go.
const CHUNK: u64 = 64 << 10;
/// Bytes of a table that are read ahead of that.
const AHEAD: u64 = 2 << 20;

/// Which parts of a copy may hold something: all that was copied, and all that was stored since.
pub(crate) struct Touched(Vec<AtomicU64>);

impl Touched {
    pub(crate) fn nothing(len: u64) -> Self {
        let words = len.div_ceil(GRAIN).div_ceil(64);
        Self((0..words).map(|_| AtomicU64::new(0)).collect())
    }

    /// Something is stored there.
    pub(crate) fn note(&self, off: u64, len: u64) {
        for grain in off / GRAIN..(off + len).div_ceil(GRAIN) {
            let (word, bit) = (&self.0[(grain / 64) as usize], 1 << (grain % 64));
            if word.load(Ordering::Relaxed) & bit == 0 {
                word.fetch_or(bit, Ordering::Release);
            }
        }
    }

    fn has(&self, grain: u64) -> bool {
        self.0[(grain / 64) as usize].load(Ordering::Acquire) & 1 << (grain % 64) != 0
    }

    fn within(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let grains = range.start / GRAIN..range.end.div_ceil(GRAIN);
        let mut out = Vec::new();
        for grain in grains.filter(|g| self.has(*g)) {
            let part = grain * GRAIN..(grain + 1) * GRAIN;
            join(
                &mut out,
                part.start.max(range.start)..part.end.min(range.end),
            );
        }
        out
    }
}

fn join(out: &mut Vec<Range<u64>>, part: Range<u64>) {
    match out.last_mut() {
        Some(last) if last.end == part.start => last.end = part.end,
        _ => out.push(part),
    }
}

impl Region {
    /// The parts of `range` that may hold something other than zeros, in order. Everything where that cannot be
    /// told. What other threads store meanwhile may be left out.
    #[track_caller]
    pub fn held(&self, range: Range<u64>) -> Vec<Range<u64>> {
        self.memory
            .check(range.start, range.end.saturating_sub(range.start));
        if range.is_empty() {
            return Vec::new();
        }
        let whole = || vec![range.clone()];
        match &self.source {
            Source::Copy(touched) => touched.within(range.clone()),
            Source::Simulated(_) => whole(),
            Source::File { .. } if range.end - range.start <= SHORT => whole(),
            Source::File { file, .. } => {
                // What was stored and has not got any further is unknown to the file system, and may be to some
                // until it is on the disk.
                let settled = self.backend != Backend::File
                    || self.write_out().is_ok() && rustix::fs::fdatasync(file).is_ok();
                match settled.then(|| data_of(file, &self.longest, range.clone())) {
                    Some(Ok(parts)) => parts,
                    _ => whole(),
                }
            }
        }
    }

    /// Goes through a table of `count` entries of `size` bytes, a power of two, at `off`, a multiple of it: calls `each`
    /// with the numbers of some entries and their bytes, and without bytes where all of them are zeros and need not be
    /// looked at. In order.
    #[track_caller]
    pub fn table(
        &self,
        off: u64,
        count: u64,
        size: u64,
        mut each: impl FnMut(Range<u64>, Option<&[u8]>),
    ) {
        let mut buf = vec![0; CHUNK.min(count * size) as usize];
        let mut next = 0;
        for part in self.held(off..off + count * size) {
            let part = (part.start - off) / size..(part.end - off).div_ceil(size);
            if next < part.start {
                each(next..part.start, None);
            }
            let mut at = part.start.max(next);
            let mut read = at;
            while at < part.end {
                while read < part.end.min(at + AHEAD / size) {
                    let more = (AHEAD / 2 / size).min(part.end - read);
                    self.will_need(off + read * size, more * size);
                    read += more;
                }
                let n = (CHUNK / size).min(part.end - at);
                let bytes = &mut buf[..(n * size) as usize];
                self.read(off + at * size, bytes);
                each(at..at + n, Some(bytes));
                at += n;
            }
            next = at;
        }
        if next < count {
            each(next..count, None);
        }
    }
}

/// The longest extent with data that was found in a file. The system goes through all that its cache has of an extent to
/// say where it ends, however far behind the range in question that is: once has to do.
#[derive(Default)]
pub(crate) struct Extent(Mutex<Range<u64>>);

impl Extent {
    fn found(&self, extent: Range<u64>) {
        let mut longest = self.0.lock();
        if extent.end - extent.start > longest.end - longest.start {
            *longest = extent;
        }
    }

    /// Where it ends, if it has that.
    fn end_after(&self, at: u64) -> Option<u64> {
        let longest = self.0.lock();
        longest.contains(&at).then_some(longest.end)
    }
}

/// Where the file has data within the range. Where it had some once there may be none any more.
fn data_of(file: &File, longest: &Extent, range: Range<u64>) -> io::Result<Vec<Range<u64>>> {
    let mut out = Vec::new();
    let mut at = range.start;
    while at < range.end {
        if let Some(end) = longest.end_after(at) {
            join(&mut out, at..end.min(range.end));
            at = end;
            continue;
        }
        let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(start) => start,
            // A file that was cut is read to find that out.
            Err(Errno::NXIO) if file.metadata()?.len() >= range.end => break,
            Err(e) => return Err(e.into()),
        };
        if start >= range.end {
            break;
        }
        let end = rustix::fs::seek(file, SeekFrom::Hole(start))?;
        if end <= start {
            // Holes are being made meanwhile, or the file system does not know.
            return Err(io::ErrorKind::Unsupported.into());
        }
        longest.found(start..end);
        let end = end.min(range.end);
        join(&mut out, start..end);
        at = end;
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    /// Asked in any order; and what has been found is found again.
    #[test]
    fn parts_with_data_are_told_from_holes() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(64 * GRAIN).unwrap();
        let written = [2 * GRAIN..3 * GRAIN, 10 * GRAIN..30 * GRAIN];
        for part in &written {
            let bytes = vec![1; (part.end - part.start) as usize];
            file.write_all_at(&bytes, part.start).unwrap();
        }
        let longest = Extent::default();
        for asked in [20..64, 0..64, 12..15, 0..5, 30..64, 3..10, 29..31] {
            let asked = asked.start * GRAIN..asked.end * GRAIN;
            let cut = |part: &Range<u64>| part.start.max(asked.start)..part.end.min(asked.end);
            let parts = written.iter().map(cut).filter(|part| !part.is_empty());
            assert_eq!(
                data_of(&file, &longest, asked.clone()).unwrap(),
                parts.collect::<Vec<_>>()
            );
        }
    }
}
