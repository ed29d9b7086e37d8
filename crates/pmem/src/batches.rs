//! The batch log of a region as the last mount left it: what it has is put where it belongs before anything else is read.

use crate::region::Source;
use crate::{Backend, PmemError, Region, SECTOR};
use quayfs_layout::batch::{Batch, BatchId, HEADS, LogHead, halves};
use rustix::rand::{GetRandomFlags, getrandom};
use std::io;
use std::ops::Range;

/// Read at a time.
const PIECE: u64 = 1 << 20;

/// A batch log, and what goes through it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchLog {
    /// Its first byte in the region, a multiple of 4096.
    pub off: u64,
    /// Its bytes.
    pub len: u64,
    /// Goes into its checksums.
    pub salt: u64,
    /// What of the region is written to it: ranges that begin at multiples of 4096, in order, none of them in the log.
    pub logged: Vec<Range<u64>>,
}

/// What was found in a batch log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Batches that were put where they belong.
    pub batches: u64,
    /// Bytes of them.
    pub bytes: u64,
}

impl BatchLog {
    /// The two halves, in bytes of the region.
    pub(crate) fn halves(&self) -> [Range<u64>; 2] {
        halves(self.len).map(|half| self.off + half.start..self.off + half.end)
    }

    /// Where the heads lie, in whole sectors of the region.
    pub(crate) fn heads(&self) -> [Range<u64>; 2] {
        HEADS.map(|at| self.off + at..self.off + at + SECTOR)
    }

    /// The heads in the order in which they are written, each durable before the next: power loss may make unreadable what
    /// is being written, and of the copies that there were, `read` may be the only intact one.
    pub(crate) fn heads_to_write(&self, read: Option<usize>) -> [Range<u64>; 2] {
        let [first, second] = self.heads();
        match read {
            Some(0) => [second, first],
            _ => [first, second],
        }
    }

    fn has(&self, piece: &Range<u64>) -> bool {
        let holds = |range: &Range<u64>| range.start <= piece.start && piece.end <= range.end;
        self.logged.iter().any(holds)
    }
}

/// A number that cannot be guessed.
///
/// # Errors
/// [`PmemError::Random`].
pub fn random() -> Result<u64, PmemError> {
    life().map_err(|source| PmemError::Random { source })
}

fn life() -> io::Result<u64> {
    let mut bytes = [0; 8];
    match getrandom(&mut bytes[..], GetRandomFlags::empty())? {
        8 => Ok(u64::from_le_bytes(bytes)),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// A head that makes whatever the halves have void.
pub(crate) fn next_head(last: Option<LogHead>) -> io::Result<LogHead> {
    Ok(LogHead {
        generation: last.map_or(0, |head| head.generation) + 1,
        life: life()?,
        retired: 0,
    })
}

/// The batches that begin in `half`, all that are whole. What lies between them is looked at sector by sector: one of
/// them may be torn, or rotten, and then the records that it had are missed where they are looked for.
fn batches_in<'a>(half: &'a [u8], head: &LogHead, salt: u64, out: &mut Vec<Batch<'a>>) {
    let mut at = 0;
    while at < half.len() {
        match Batch::decode(&half[at..], head.life, salt) {
            Some(batch) => {
                at += batch.len;
                if batch.id.lap > head.retired {
                    out.push(batch);
                }
            }
            None => at += SECTOR as usize,
        }
    }
}

impl Region {
    /// Begins a batch log that has nothing in it, or leaves nothing in one that is in use. Durable when it returns.
    ///
    /// # Errors
    /// [`PmemError::Random`], [`PmemError::Drain`].
    pub fn format_batches(&self, log: &BatchLog) -> Result<(), PmemError> {
        if self.logs_batches() {
            return self.empty_batches();
        }
        let last = self.head(log);
        let next = next_head(last.map(|(head, _)| head));
        let head = next.map_err(|source| PmemError::Random { source })?;
        for at in log.heads_to_write(last.map(|(_, copy)| copy)) {
            self.write(at.start, &head.encode(log.salt));
            self.flush(at.start, SECTOR);
            self.drain()?;
        }
        Ok(())
    }

    /// Puts everything where it belongs that the last mount has only written to the batch log, and makes it durable.
    /// Comes before anything of `log.logged` is read; after a crash in it, it is done again. On a copy
    /// ([`Region::load`]) it changes the copy.
    ///
    /// # Errors
    /// [`PmemError::BatchLog`] if both heads of the log are damaged, so that nothing says what counts of it;
    /// [`PmemError::Drain`], [`PmemError::Random`], and those of [`Region::peek`].
    pub fn replay_batches(&self, log: &BatchLog) -> Result<Replayed, PmemError> {
        let heads = self.heads(log);
        let Some((head, _)) = heads
            .iter()
            .copied()
            .max_by_key(|(head, _)| head.generation)
        else {
            return Err(PmemError::BatchLog);
        };
        let are_equal = heads.iter().filter(|(other, _)| *other == head).count() == 2;
        let halves = log.halves().map(|half| self.read_out(half));
        let [first, second] = halves;
        let (first, second) = (first?, second?);
        let mut batches = Vec::new();
        batches_in(&first, &head, log.salt, &mut batches);
        batches_in(&second, &head, log.salt, &mut batches);
        batches.sort_by_key(|batch| batch.id.seq);
        let mut replayed = Replayed::default();
        for batch in &batches {
            for (off, content) in &batch.pieces {
                let piece = *off..off.saturating_add(content.len() as u64);
                if log.has(&piece) {
                    self.write(*off, content);
                    self.flush(*off, content.len() as u64);
                    replayed.bytes += content.len() as u64;
                }
            }
            replayed.batches += 1;
        }
        // Of a copy nothing else is read, and fsck tells what the heads were. Where one is damaged, or says less than the
        // other, it must not be the only one some day.
        let is_copy = matches!(self.source, Source::Copy(_));
        if (replayed.batches > 0 || !are_equal) && !is_copy {
            // Not before: until then a crash has to find the batches.
            self.drain()?;
            self.format_batches(log)?;
        }
        Ok(replayed)
    }

    /// How many of the two heads of a log are intact. With one nothing is lost.
    pub fn intact_batch_heads(&self, log: &BatchLog) -> usize {
        self.heads(log).len()
    }

    fn heads(&self, log: &BatchLog) -> Vec<(LogHead, usize)> {
        let copies = log.heads().map(|at| self.read_vec(at.start, SECTOR));
        let intact = |(i, b): (usize, &Vec<u8>)| Some((LogHead::decode(b, log.salt)?, i));
        copies.iter().enumerate().filter_map(intact).collect()
    }

    /// The newer one of the heads that are intact, and which copy it is.
    pub(crate) fn head(&self, log: &BatchLog) -> Option<(LogHead, usize)> {
        let heads = self.heads(log).into_iter();
        heads.max_by_key(|(head, _)| head.generation)
    }

    /// What lies there, past the mapping where there is a file: pages that are mapped would be in the way of what is
    /// written there later.
    fn read_out(&self, range: Range<u64>) -> Result<Vec<u8>, PmemError> {
        if self.backend() != Backend::File {
            return Ok(self.read_vec(range.start, range.end - range.start));
        }
        let mut bytes = Vec::with_capacity((range.end - range.start) as usize);
        for off in range.clone().step_by(PIECE as usize) {
            bytes.extend(self.peek(off, PIECE.min(range.end - off))?);
        }
        Ok(bytes)
    }
}

/// The id of the batch behind another one.
pub(crate) fn after(id: BatchId) -> BatchId {
    BatchId {
        seq: id.seq + 1,
        ..id
    }
}
