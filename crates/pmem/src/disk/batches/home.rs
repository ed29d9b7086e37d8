//! What is away in a full half is brought home; after that the half does not count any more.

use super::super::tap::Fault;
use super::super::{ALIGN, Disk, WAVE};
use super::{Batches, Full};
use crate::memory::Memory;
use crate::throttle::WriteThrottle;
use quayfs_layout::batch::LogHead;
use std::collections::VecDeque;
use std::io;
use std::ops::Range;

impl Disk {
    /// Brings the full half home, if there is one.
    pub(super) fn bring_home(
        &self,
        memory: &Memory,
        batches: &Batches,
        full: &mut Full,
    ) -> io::Result<()> {
        let Some((half, lap)) = full.half else {
            return Ok(());
        };
        if let Some(error) = self.gate.failure() {
            return Err(error);
        }
        // Nothing else writes home what is away, and it can only get newer meanwhile.
        let mut runs = batches.away.in_half(half);
        if self.tap.planted(Fault::NotBroughtHome) {
            runs.clear();
        }
        let mut left = VecDeque::from(runs);
        while !left.is_empty() {
            let most = match full.throttle.is_short(self.flushes()) {
                true => WriteThrottle::PART,
                false => WAVE,
            };
            let part = next_part(&mut left, most);
            if let Err(error) = self.write(memory, &part) {
                self.gate.fail(&error);
                return Err(error);
            }
        }
        if !self.tap.planted(Fault::RetiredBeforeHome) {
            self.flush()?;
        }
        let head = LogHead {
            generation: full.head.generation + 1,
            life: batches.life,
            retired: lap,
        };
        if !self.tap.planted(Fault::HeadLeftOut) {
            self.write_head(&batches.log, &head, None)?;
        }
        full.head = head;
        // From here on any settle may write them home. Under the lock under which that is decided.
        let flight = self.flight.lock();
        batches.away.forget(half);
        drop(flight);
        full.half = None;
        Ok(())
    }

    /// Writes both heads again if one of them cannot be read any more, durably: without them the next mount finds none of the
    /// batches. Returns how many were damaged.
    pub(crate) fn mend_heads(&self) -> io::Result<u64> {
        let Some(batches) = self.batches.get() else {
            return Ok(0);
        };
        // None is written meanwhile.
        let full = batches.full.lock();
        let heads = batches.log.heads();
        let is_intact = |at: &Range<u64>| {
            let mut head = vec![0; self.unit as usize + ALIGN];
            let skip = head.as_ptr().align_offset(ALIGN);
            let bytes = &mut head[skip..skip + self.unit as usize];
            let read = self.read_past_cache(bytes, at.start);
            read.is_ok() && LogHead::decode(bytes, batches.log.salt) == Some(full.head)
        };
        let intact = heads.iter().position(is_intact);
        let damaged = heads.iter().filter(|at| !is_intact(at)).count();
        if damaged > 0 {
            self.write_head(&batches.log, &full.head, intact)?;
        }
        Ok(damaged as u64)
    }

    /// Brings full halves home when there are some, until [`Disk::stop_bringing_home`].
    pub(crate) fn serve_batches(&self, memory: &Memory) {
        let Some(batches) = self.batches.get() else {
            return;
        };
        let mut full = batches.full.lock();
        while !full.stopped {
            // A failure is final, and every later settle reports it.
            if full.half.is_none() || self.bring_home(memory, batches, &mut full).is_err() {
                batches.changed.wait(&mut full);
            }
        }
    }

    /// Ends [`Disk::serve_batches`], now or when it begins.
    pub(crate) fn stop_bringing_home(&self) {
        if let Some(batches) = self.batches.get() {
            batches.full.lock().stopped = true;
            batches.changed.notify_all();
        }
    }
}

/// Takes what is written at once off the front of some runs: so many bytes and writes at most.
fn next_part(left: &mut VecDeque<Range<u64>>, most: (u64, usize)) -> Vec<Range<u64>> {
    let (mut bytes, mut part) = (0, Vec::new());
    while let (Some(run), true) = (left.front_mut(), bytes < most.0 && part.len() < most.1) {
        let end = run.end.min(run.start + most.0 - bytes);
        bytes += end - run.start;
        part.push(run.start..end);
        run.start = end;
        if run.is_empty() {
            left.pop_front();
        }
    }
    part
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_have_no_more_than_they_may_and_leave_nothing_out() {
        let runs = vec![
            0..512,
            4096..10 * 4096,
            1 << 20..(1 << 20) + 512,
            2 << 20..3 << 20,
        ];
        let whole: u64 = runs.iter().map(|run| run.end - run.start).sum();
        for most in [(4096, 32), (128 << 10, 2), (1 << 20, 64)] {
            let mut left = VecDeque::from(runs.clone());
            let (mut sum, mut at) = (0, 0);
            while !left.is_empty() {
                let part = next_part(&mut left, most);
                let bytes: u64 = part.iter().map(|run| run.end - run.start).sum();
                assert!(bytes > 0 && bytes <= most.0 && part.len() <= most.1);
                for run in part {
                    assert!(run.start >= at, "in order, and nothing twice");
                    at = run.end;
                }
                sum += bytes;
            }
            assert_eq!(sum, whole);
        }
    }
}
