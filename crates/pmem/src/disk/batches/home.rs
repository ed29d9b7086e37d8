//! What is away in a full half is brought home; after that the half does not count any more.

use super::super::tap::Fault;
use super::super::{Disk, PIECE, WAVE};
use super::{Batches, Full};
use crate::memory::Memory;
use quayfs_layout::batch::LogHead;
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
        for wave in waves(runs) {
            if let Err(error) = self.write(memory, &wave) {
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

/// What is written at once, one after the other.
fn waves(runs: Vec<Range<u64>>) -> Vec<Vec<Range<u64>>> {
    let mut waves: Vec<(u64, Vec<Range<u64>>)> = Vec::new();
    for run in runs {
        for start in run.clone().step_by(PIECE as usize) {
            let part = start..(start + PIECE).min(run.end);
            let len = part.end - part.start;
            match waves.last_mut() {
                Some((bytes, wave)) if *bytes + len <= WAVE.0 && wave.len() < WAVE.1 => {
                    *bytes += len;
                    wave.push(part);
                }
                _ => waves.push((len, vec![part])),
            }
        }
    }
    waves.into_iter().map(|(_, wave)| wave).collect()
}
