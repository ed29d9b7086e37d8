//! What a commit writes goes to the batch log of the region, in one request.
//!
//! A sector in a batch that counts is *away*. It can be settled only by another batch, since a replay would put older
//! content over what lay at home. When a half of the log is full, the other one is written
//! to; what is away in the full one is brought home, and the head of the log says then, durably, that it does not count any
//! more. Sectors stop being away after that, and not before.

mod away;
mod home;

use super::pages::{Pages, SECTORS, sectors};
use super::tap::Fault;
use super::{ALIGN, Disk, meet};
use crate::batches::{self, BatchLog};
use crate::memory::Memory;
use crate::throttle::WriteThrottle;
use crate::units::{PAGE, SECTOR};
use away::Away;
use parking_lot::{Condvar, Mutex};
use quayfs_layout::batch::{BatchId, EXTENTS_MAX, LogHead, head_bytes, seal};
use quayfs_transfer::Transfer;
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

/// The most bytes of the region that a batch has.
const BATCH_MAX: u64 = 256 << 10;
/// What is larger than this on average is written where it belongs: a request less is worth as much as the time that a
/// disk takes for a few kilobytes, and what is in a batch is written twice.
const PIECE_MEAN: u64 = 4 << 10;
/// As many bytes go to a batch whatever their pieces are: the commits of a few threads, each of which has a block or two.
const ALWAYS: u64 = 16 << 10;

/// The batch log of a region that is written to.
pub(super) struct Batches {
    log: BatchLog,
    life: u64,
    away: Away,
    /// One batch is written at a time: the next one has what others settle meanwhile. Goes before `full`.
    writing: Mutex<Writing>,
    /// A half that is to be brought home. Goes before `flight`.
    full: Mutex<Full>,
    /// There is a full half, or the thread that waits for one is to stop.
    changed: Condvar,
}

impl Batches {
    /// The bytes of the region that the log takes.
    pub(super) fn log(&self) -> Range<u64> {
        self.log.off..self.log.off + self.log.len
    }
}

/// Where the next batch goes.
struct Writing {
    half: usize,
    /// From the start of the half.
    at: u64,
    next: BatchId,
    /// Bytes of each half that are used.
    room: u64,
    buffer: Vec<u8>,
}

struct Full {
    /// Which half, and its lap.
    half: Option<(usize, u64)>,
    /// The head that is durable.
    head: LogHead,
    throttle: WriteThrottle,
    stopped: bool,
}

impl Batches {
    fn new(log: &BatchLog, len: u64, head: LogHead, memory: u64) -> Self {
        let [half, _] = log.halves();
        let whole = half.end - half.start;
        Self {
            log: log.clone(),
            life: head.life,
            away: Away::none(len),
            writing: Mutex::new(Writing {
                half: 0,
                at: 0,
                next: BatchId {
                    life: head.life,
                    lap: 1,
                    seq: 1,
                },
                // What is away stays in memory.
                room: whole.min((memory / 8).max(2 * BATCH_MAX) / PAGE * PAGE),
                buffer: Vec::new(),
            }),
            full: Mutex::new(Full {
                half: None,
                head,
                throttle: WriteThrottle::default(),
                stopped: false,
            }),
            changed: Condvar::new(),
        }
    }

    /// What of some ranges goes through the log, and what does not.
    pub(super) fn part(&self, ranges: &[Range<u64>]) -> (Vec<Range<u64>>, Vec<Range<u64>>) {
        let (mut logged, mut others) = (Vec::new(), Vec::new());
        let add = |to: &mut Vec<Range<u64>>, part: Range<u64>| {
            if !part.is_empty() {
                to.push(part);
            }
        };
        for range in ranges {
            let mut at = range.start;
            for log in &self.log.logged {
                let (start, end) = (log.start.max(at), log.end.min(range.end));
                if start < end {
                    add(&mut others, at..start);
                    add(&mut logged, start..end);
                    at = end;
                }
            }
            add(&mut others, at..range.end);
        }
        (logged, others)
    }

    /// The sectors of a page that are not at home.
    pub(super) fn away(&self, page: u64) -> u32 {
        self.away.of(page)
    }

    /// The most bytes of the region in one batch.
    fn batch_max(&self, writing: &Writing) -> u64 {
        BATCH_MAX.min(writing.room / 4)
    }

    /// A batch that is being written by another thread has been.
    pub(super) fn wait(&self) {
        drop(self.writing.lock());
    }
}

impl Disk {
    /// Settles by batches from now on. The log has been replayed, and no other thread has the region.
    ///
    /// # Errors
    /// Those of the system: the log has to say first, durably, that nothing of it counts.
    pub(crate) fn log_batches(
        &self,
        memory: &Memory,
        log: &BatchLog,
        last: Option<(LogHead, usize)>,
    ) -> io::Result<()> {
        let head = batches::next_head(last.map(|(head, _)| head))?;
        let bound = self.limit().saturating_mul(PAGE);
        let batches = Batches::new(log, memory.len() as u64, head, bound);
        self.write_head(log, &head, last.map(|(_, copy)| copy))?;
        self.forget_cached(log.off..log.off + log.len);
        let _ = self.batches.set(batches);
        Ok(())
    }

    /// Whether there is a batch log.
    pub(crate) fn logs_batches(&self) -> bool {
        self.batches.get().is_some()
    }

    /// Where what is stored to ends, in a region of `len` bytes: a batch log lies behind it.
    pub(crate) fn end_of_areas(&self, len: u64) -> u64 {
        self.batches.get().map_or(len, |batches| batches.log.off)
    }

    /// Durable when it returns. Past the memory of the region: a store could have to make room first, by a batch.
    fn write_head(&self, log: &BatchLog, head: &LogHead, read: Option<usize>) -> io::Result<()> {
        let mut buffer = vec![0; self.unit as usize + ALIGN];
        let skip = buffer.as_ptr().align_offset(ALIGN);
        let bytes = &mut buffer[skip..skip + self.unit as usize];
        bytes[..SECTOR as usize].copy_from_slice(&head.encode(log.salt));
        let file = self.direct.as_ref().unwrap_or(&self.file);
        for at in log.heads_to_write(read) {
            let id = self.tap.writing(at.start, bytes);
            if let Err(error) = Transfer::write(at.start, &[bytes]).run(file.as_fd()) {
                self.gate.fail(&error);
                return Err(error);
            }
            self.tap.written(id);
            self.flush()?;
        }
        Ok(())
    }

    /// Settles what goes through the log: all of it by batches, or, if it is much or `at_home` is wanted, what is away;
    /// the rest is left. Returns whether something may be.
    pub(super) fn settle_logged(
        &self,
        memory: &Memory,
        batches: &Batches,
        ranges: &[Range<u64>],
        at_home: bool,
    ) -> io::Result<bool> {
        let mut writing = batches.writing.lock();
        let most = batches.batch_max(&writing);
        let is_much = at_home || self.pages.are_much(ranges, most);
        loop {
            let needed = most + head_bytes(EXTENTS_MAX) as u64 + PAGE;
            if writing.at + needed > writing.room {
                self.turn_over(memory, batches, &mut writing)?;
            }
            // Marks that are taken and not written are lost.
            let guard = Writes(self);
            let (runs, is_all) = self.take_logged(batches, ranges, writing.half, most, is_much);
            if runs.is_empty() {
                return Ok(is_much);
            }
            let result = self.write_batch(memory, batches, &mut writing, &runs);
            if let Err(error) = &result {
                // Their marks are gone, and others may wait for them.
                self.gate.fail(error);
            }
            drop(guard);
            result?;
            // What is stored from now on has time until the next batch.
            if is_all {
                return Ok(is_much);
            }
        }
    }

    /// Takes the marks of what is dirty in these ranges, or what of it is away, up to a number of bytes; it is away from
    /// here on. Also says whether that was all.
    fn take_logged(
        &self,
        batches: &Batches,
        ranges: &[Range<u64>],
        half: usize,
        most: u64,
        only_away: bool,
    ) -> (Vec<Range<u64>>, bool) {
        let mut flight = self.flight.lock();
        // What is on its way home is older than what comes after it, and would lie over what is brought home later.
        let meets = |f: &Range<u64>| ranges.iter().any(|range| meet(f, range));
        while flight.iter().any(meets) && !self.tap.planted(Fault::FlightIgnored) {
            self.batch_waits.store(true, Ordering::Relaxed);
            self.landed.wait(&mut flight);
        }
        // There is one batch at a time. What has waited for it goes on when this has the marks, and the lock is free.
        if self.batch_waits.swap(false, Ordering::Relaxed) {
            self.landed.notify_all();
        }
        let allowed = |page| match only_away {
            true => batches.away.of(page),
            false => SECTORS,
        };
        let (mut taken, mut bytes): (Vec<Range<u64>>, u64) = (Vec::new(), 0);
        for range in ranges {
            let mut at = range.start;
            while let Some(start) = self.pages.next(at..range.end) {
                let page = start / PAGE;
                at = (page + 1) * PAGE;
                let part =
                    start / self.unit * self.unit..at.min(range.end.next_multiple_of(self.unit));
                for run in self.pages.take(part, self.unit, allowed) {
                    let bits = sectors(page, &run);
                    batches.away.add(half, page, bits);
                    bytes += run.end - run.start;
                    match taken.last_mut() {
                        Some(last) if last.end == run.start => last.end = run.end,
                        _ => taken.push(run),
                    }
                }
                if bytes + PAGE > most || taken.len() + 8 > EXTENTS_MAX {
                    return (taken, false);
                }
            }
        }
        (taken, true)
    }

    fn write_batch(
        &self,
        memory: &Memory,
        batches: &Batches,
        writing: &mut Writing,
        runs: &[Range<u64>],
    ) -> io::Result<()> {
        let head = head_bytes(runs.len());
        let content: u64 = runs.iter().map(|run| run.end - run.start).sum();
        let len = head + content as usize;
        let padded = len.next_multiple_of(self.unit as usize);
        let room = padded + ALIGN;
        if writing.buffer.len() < room {
            writing.buffer.resize(room, 0);
        }
        let skip = writing.buffer.as_ptr().align_offset(ALIGN);
        let buffer = &mut writing.buffer[skip..skip + padded];
        let mut at = head;
        for run in runs {
            let end = at + (run.end - run.start) as usize;
            memory.read(run.start, &mut buffer[at..end]);
            at = end;
        }
        seal(&mut buffer[..len], writing.next, runs, batches.log.salt);
        buffer[len..].fill(0);
        let off = batches.log.halves()[writing.half].start + writing.at;
        writing.at += padded as u64;
        writing.next = batches::after(writing.next);
        let file = self.direct.as_ref().unwrap_or(&self.file);
        let id = self.tap.writing(off, buffer);
        Transfer::write(off, &[buffer]).run(file.as_fd())?;
        self.tap.written(id);
        Ok(())
    }

    /// Goes on in the other half, which has to be at home.
    fn turn_over(
        &self,
        memory: &Memory,
        batches: &Batches,
        writing: &mut Writing,
    ) -> io::Result<()> {
        let mut full = batches.full.lock();
        if !self.tap.planted(Fault::HalfReused) {
            self.bring_home(memory, batches, &mut full)?;
        }
        full.half = Some((writing.half, writing.next.lap));
        drop(full);
        batches.changed.notify_all();
        writing.half = 1 - writing.half;
        writing.next.lap += 1;
        writing.at = 0;
        Ok(())
    }

    /// Brings everything home that has been settled. Durable when it returns, and the log has nothing that counts.
    ///
    /// # Errors
    /// Those of the system, as of [`Disk::write_out`].
    pub(crate) fn empty_batches(&self, memory: &Memory) -> io::Result<()> {
        let Some(batches) = self.batches.get() else {
            return Ok(());
        };
        let mut writing = batches.writing.lock();
        if writing.at > 0 {
            self.turn_over(memory, batches, &mut writing)?;
        }
        self.bring_home(memory, batches, &mut batches.full.lock())
    }
}

/// A batch is being written, until this is dropped.
struct Writes<'a>(&'a Disk);

impl Drop for Writes<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let error = io::Error::other("a thread panicked while it wrote the region");
            self.0.gate.fail(&error);
        }
    }
}

impl Pages {
    /// Whether what is dirty in these ranges is more than `most` bytes, or in large pieces.
    fn are_much(&self, ranges: &[Range<u64>], most: u64) -> bool {
        let (mut bytes, mut pieces, mut end) = (0, 0, None);
        for range in ranges {
            let mut at = range.start;
            while let Some(start) = self.next(at..range.end) {
                let page = start / PAGE;
                at = (page + 1) * PAGE;
                let dirty = self.dirty_sectors(page);
                for sector in (0..PAGE / SECTOR).filter(|s| dirty & 1 << s != 0) {
                    let start = page * PAGE + sector * SECTOR;
                    pieces += u64::from(end != Some(start));
                    end = Some(start + SECTOR);
                    bytes += SECTOR;
                }
                if bytes > most {
                    return true;
                }
            }
        }
        bytes > ALWAYS.max(pieces * PIECE_MEAN)
    }
}

#[cfg(test)]
mod tests;
