//! Reading ahead on the data device, for files that are read in order but whose blocks rounds have put in several
//! places.
//!
//! A round writes what it moves in the order of files. So a read of such a file in order goes through a number of
//! places on the device in order, with a short read in each of them for every request; a disk takes longer for those
//! than for one long read. Where a request has many short runs and some of them go on where earlier ones ended, what
//! follows there is read in long pieces by a thread of its own, while requests are served from what it has read.
//!
//! [`ReadAhead`] is the device below with this in between. What is written through it is forgotten when the write
//! returns, so a read that begins later gets what was written. What it holds is in DRAM only, so nothing of it matters
//! to recovery. Readers compare each block with its checksum, wherever it comes from, before they do anything with it.

mod streams;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use quayfs_blockdev::{AlignedBuf, BlockDevice, ReadRun, RegionRun, WriteRun};
use quayfs_layout::BLOCK;
use quayfs_sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use quayfs_sync::{Condvar, Mutex};

use streams::{Cover, Limits, Segment, Streams};

/// Bytes that are read at a time, and that a buffer holds: a huge page.
const BUFFER: usize = 2 << 20;
/// Buffers at most: 32 MiB.
const BUFFERS: usize = 16;
/// Buffers that are kept for the next reader once rounds have put blocks elsewhere: 16 MiB.
const READY: usize = 8;

/// A data device, and what is read from it before it is asked for. See the module documentation.
pub struct ReadAhead {
    under: Arc<dyn BlockDevice>,
    limits: Limits,
    state: Mutex<State>,
    /// There is something to read.
    work: Condvar,
    /// Something has been read.
    filled: Condvar,
    /// Streams may exist. Set before anything is read for them.
    any: AtomicBool,
    memory: Arc<Memory>,
    counts: Counts,
}

struct State {
    streams: Streams,
    /// There is a thread that reads.
    serving: bool,
    /// Reads of blocks that are not in the order of their files are expected.
    expected: bool,
    stop: bool,
}

/// Blocks.
#[derive(Default)]
struct Counts {
    read: AtomicU64,
    served: AtomicU64,
}

/// The buffers. Those that are not in use are kept: their first touch takes longer than to read into them, much longer
/// in a virtual machine whose host has to find the memory first.
#[derive(Debug, Default)]
struct Memory {
    free: Mutex<Vec<AlignedBuf>>,
    lent: AtomicUsize,
}

/// A buffer of several segments, which goes back when the last of them is given up.
#[derive(Debug)]
struct Lent {
    buf: AlignedBuf,
    memory: Arc<Memory>,
}

/// The part of a buffer that a segment has.
#[derive(Debug)]
struct Chunk {
    lent: Arc<Lent>,
    at: usize,
}

impl Memory {
    fn take(self: &Arc<Self>) -> Option<Lent> {
        if self.lent.load(Ordering::Relaxed) >= BUFFERS {
            return None;
        }
        self.lent.fetch_add(1, Ordering::Relaxed);
        let buf = self.free.lock().pop();
        Some(Lent {
            buf: buf.unwrap_or_else(|| AlignedBuf::new(BUFFER)),
            memory: Arc::clone(self),
        })
    }

    fn is_ready(&self) -> bool {
        let free = self.free.lock().len();
        free + self.lent.load(Ordering::Relaxed) >= READY
    }

    /// One more buffer, touched.
    fn prepare(&self) {
        let mut buf = AlignedBuf::new(BUFFER);
        buf.iter_mut().step_by(BLOCK).for_each(|byte| *byte = 1);
        self.free.lock().push(buf);
    }

    fn shrink_to(&self, most: usize) {
        self.free.lock().truncate(most);
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let buf = std::mem::take(&mut self.buf);
        self.memory.free.lock().push(buf);
        self.memory.lent.fetch_sub(1, Ordering::Relaxed);
    }
}

impl ReadAhead {
    /// A device that reads nothing ahead before [`ReadAhead::serve`] is called.
    pub fn new(under: Arc<dyn BlockDevice>) -> Self {
        Self::with(under, Limits::MOUNT)
    }

    fn with(under: Arc<dyn BlockDevice>, limits: Limits) -> Self {
        let streams = Streams::new(limits, under.blocks());
        Self {
            under,
            limits,
            state: Mutex::new(State {
                streams,
                serving: false,
                expected: false,
                stop: false,
            }),
            work: Condvar::default(),
            filled: Condvar::default(),
            any: AtomicBool::new(false),
            memory: Arc::default(),
            counts: Counts::default(),
        }
    }

    /// The device itself, for a caller that wants to know what is on it.
    pub fn media(&self) -> &dyn BlockDevice {
        &*self.under
    }

    /// Blocks that were read ahead, and blocks that requests got from there.
    pub fn counts(&self) -> (u64, u64) {
        let Counts { read, served } = &self.counts;
        (read.load(Ordering::Relaxed), served.load(Ordering::Relaxed))
    }

    /// Reads ahead until [`ReadAhead::stop`], in the thread that calls it: one at a time.
    pub fn serve(&self) {
        let _serving = Serving::begin(self);
        let mut state = self.state.lock();
        while !state.stop {
            let batch = state.streams.next((BUFFER / BLOCK) as u64);
            if !batch.is_empty() {
                drop(state);
                self.fill(&batch);
                state = self.state.lock();
                self.filled.notify_all();
            } else if state.expected && !self.memory.is_ready() {
                drop(state);
                self.memory.prepare();
                state = self.state.lock();
            } else if !self.any.load(Ordering::SeqCst) {
                self.work.wait(&mut state);
            } else {
                let before = state.streams.requests();
                let late = self.work.wait_for(&mut state, self.limits.rest).timed_out();
                if late && state.streams.requests() == before {
                    state.streams.clear();
                    self.any.store(false, Ordering::SeqCst);
                    self.memory
                        .shrink_to(if state.expected { READY } else { 0 });
                }
            }
        }
    }

    /// Blocks have been written apart from their neighbours in the file: memory is made ready for reads of them.
    pub fn expect(&self) {
        let mut state = self.state.lock();
        if !state.expected {
            state.expected = true;
            self.work.notify_one();
        }
    }

    /// Whether a thread is in [`ReadAhead::serve`].
    pub fn is_served(&self) -> bool {
        self.state.lock().serving
    }

    /// Ends [`ReadAhead::serve`]. Reads and writes go on without it.
    pub fn stop(&self) {
        self.state.lock().stop = true;
        self.work.notify_all();
    }

    /// Reads segments, which fit into one buffer. Those that cannot be read are left to the requests that want them.
    fn fill(&self, batch: &[Arc<Segment>]) {
        let _settled = Settled(batch);
        let lent = self.memory.take().or_else(|| {
            self.state.lock().streams.give_up_idle();
            self.memory.take()
        });
        let read = lent.map(|mut lent| {
            let mut rest = &mut lent.buf[..];
            let mut reads = Vec::with_capacity(batch.len());
            for segment in batch {
                let (buf, after) = rest.split_at_mut(segment.len() as usize * BLOCK);
                let block = segment.blocks.start;
                reads.push(ReadRun { block, buf });
                rest = after;
            }
            let mut sound = vec![true; reads.len()];
            if self.under.read_many(&mut reads).is_err() {
                // One of them failed, maybe with a block that no request will ask for.
                for (run, sound) in reads.iter_mut().zip(&mut sound) {
                    *sound = self.under.read(run.block, run.buf).is_ok();
                }
            }
            (Arc::new(lent), sound)
        });
        let Some((lent, sound)) = read else {
            return;
        };
        let mut at = 0;
        for (segment, sound) in batch.iter().zip(sound) {
            let lent = Arc::clone(&lent);
            let _ = segment.data.set(sound.then_some(Chunk { lent, at }));
            at += segment.len() as usize * BLOCK;
            let blocks = if sound { segment.len() } else { 0 };
            self.counts.read.fetch_add(blocks, Ordering::Relaxed);
        }
    }

    /// Waits until it is known whether these segments have been read.
    fn await_read(&self, cover: &Cover) {
        if cover.iter().all(|s| s.is_settled()) {
            return;
        }
        let mut state = self.state.lock();
        while state.serving && !cover.iter().all(|s| s.is_settled()) {
            self.filled.wait(&mut state);
        }
    }

    /// What a request gets from what was read ahead: the index of a run, and the segments that it lies in.
    fn cover(&self, runs: &[ReadRun<'_>]) -> Vec<(usize, Cover)> {
        // Few are not worth the lock, and what is no block is for the device to refuse.
        let blocks = |run: &ReadRun<'_>| run.buf.len().is_multiple_of(BLOCK);
        if runs.len() < self.limits.places || !runs.iter().all(blocks) {
            return Vec::new();
        }
        let ranges: Vec<_> = runs
            .iter()
            .map(|run| run.block..run.block + (run.buf.len() / BLOCK) as u64)
            .collect();
        let mut state = self.state.lock();
        if !state.serving {
            return Vec::new();
        }
        let covered = state.streams.request(&ranges);
        if state.streams.has_next() {
            self.any.store(true, Ordering::SeqCst);
            self.work.notify_one();
        }
        covered
    }

    /// Reads the runs that are marked.
    fn read_those(&self, runs: &mut [ReadRun<'_>], marked: &[bool]) -> io::Result<()> {
        let runs = runs.iter_mut().zip(marked).filter(|(_, marked)| **marked);
        let mut those: Vec<ReadRun<'_>> = runs
            .map(|(run, _)| ReadRun {
                block: run.block,
                buf: &mut *run.buf,
            })
            .collect();
        if those.is_empty() {
            return Ok(());
        }
        self.under.read_many(&mut those)
    }

    /// These blocks may have other content now.
    fn forget(&self, written: impl Iterator<Item = (u64, usize)>) {
        // A thread that reads ahead but has not set `any` yet begins to read after the write.
        if !self.any.load(Ordering::SeqCst) {
            return;
        }
        let mut state = self.state.lock();
        for (block, bytes) in written {
            let end = block.saturating_add((bytes / BLOCK) as u64);
            state.streams.forget(&(block..end));
        }
    }
}

/// What has not been read when this is dropped will not be.
struct Settled<'a>(&'a [Arc<Segment>]);

impl Drop for Settled<'_> {
    fn drop(&mut self) {
        for segment in self.0 {
            // Fails where it has been.
            let _ = segment.data.set(None);
        }
    }
}

/// The thread that reads ahead is there. When it ends, in whatever way, requests do not wait for it any more.
struct Serving<'a>(&'a ReadAhead);

impl<'a> Serving<'a> {
    fn begin(ahead: &'a ReadAhead) -> Self {
        ahead.state.lock().serving = true;
        Self(ahead)
    }
}

impl Drop for Serving<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.serving = false;
        state.streams.clear();
        self.0.filled.notify_all();
    }
}

/// Copies a run out of the segments that it lies in. False if one of them could not be read.
fn copy(cover: &Cover, run: &mut ReadRun<'_>) -> bool {
    for segment in cover {
        let Some(Some(chunk)) = segment.data.get() else {
            return false;
        };
        let end = run.block + (run.buf.len() / BLOCK) as u64;
        let part = run.block.max(segment.blocks.start)..end.min(segment.blocks.end);
        let bytes = |from: u64, to: u64| (to - from) as usize * BLOCK;
        let len = bytes(part.start, part.end);
        let from = chunk.at + bytes(segment.blocks.start, part.start);
        let to = bytes(run.block, part.start);
        run.buf[to..to + len].copy_from_slice(&chunk.lent.buf[from..from + len]);
    }
    true
}

impl BlockDevice for ReadAhead {
    fn blocks(&self) -> u64 {
        self.under.blocks()
    }

    fn read(&self, block: u64, buf: &mut [u8]) -> io::Result<()> {
        self.under.read(block, buf)
    }

    fn read_many(&self, runs: &mut [ReadRun<'_>]) -> io::Result<()> {
        let covered = self.cover(runs);
        if covered.is_empty() {
            return self.under.read_many(runs);
        }
        let mut missing = vec![true; runs.len()];
        covered.iter().for_each(|(i, _)| missing[*i] = false);
        self.read_those(runs, &missing)?;
        missing.fill(false);
        let mut served = 0;
        for (i, cover) in &covered {
            self.await_read(cover);
            if copy(cover, &mut runs[*i]) {
                served += (runs[*i].buf.len() / BLOCK) as u64;
            } else {
                missing[*i] = true;
            }
        }
        self.counts.served.fetch_add(served, Ordering::Relaxed);
        self.read_those(runs, &missing)
    }

    fn write(&self, block: u64, buf: &[u8]) -> io::Result<()> {
        let result = self.under.write(block, buf);
        self.forget(std::iter::once((block, buf.len())));
        result
    }

    fn write_many(&self, runs: &[WriteRun<'_>]) -> io::Result<()> {
        let result = self.under.write_many(runs);
        self.forget(runs.iter().map(|run| (run.block, run.len())));
        result
    }

    fn write_from(&self, runs: &[RegionRun<'_>]) -> io::Result<()> {
        let result = self.under.write_from(runs);
        self.forget(runs.iter().map(|run| (run.block, run.len())));
        result
    }

    fn takes_regions(&self) -> bool {
        self.under.takes_regions()
    }

    fn flush(&self) -> io::Result<()> {
        self.under.flush()
    }

    fn discard(&self, block: u64, count: u64) -> io::Result<()> {
        let result = self.under.discard(block, count);
        let bytes = (count as usize).saturating_mul(BLOCK);
        self.forget(std::iter::once((block, bytes)));
        result
    }

    fn describe(&self) -> String {
        self.under.describe()
    }

    fn is_read_only(&self) -> bool {
        self.under.is_read_only()
    }

    fn silent_for(&self) -> Duration {
        self.under.silent_for()
    }

    fn missing(&self) -> u64 {
        self.under.missing()
    }

    fn is_unlinked(&self) -> bool {
        self.under.is_unlinked()
    }
}

#[cfg(test)]
mod tests;
