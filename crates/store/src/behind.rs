//! Large writes on their way to the data device: their callers have been answered, and go on while the device writes.
//!
//! What is on its way is bounded. It has fresh blocks, so only these have to wait for it: a read of those blocks;
//! the commit that covers the record that names them, which comes before anything that could hand the blocks on; and a
//! request that fails before it has such a record, whose blocks are free at once ([`UnderWay`]). Where no thread
//! serves, the caller writes.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;

use quayfs_blockdev::{AlignedBuf, BlockDevice, WriteRun};
use quayfs_layout::BLOCK;
use quayfs_sync::atomic::{AtomicUsize, Ordering};
use quayfs_sync::{Condvar, Mutex, MutexGuard, wait_for_device};

use crate::engine::Engine;
use crate::error::Result;

/// Once more bytes than this wait for the device, posting waits until it has half of them: a thread that was woken for less
/// would only find it full again, and with many threads each finished write would wake all of them. A thread that waits
/// has its request in memory as well.
pub const MOST: usize = 16 << 20;
/// Most bytes of buffers that are kept for the next writes: what is written while nothing can be posted.
const KEPT: usize = MOST / 2;
/// Threads that write: while the device has the blocks of one, the other brings more.
pub const THREADS: usize = 2;

/// What a request has posted. Dropped without a record that names the blocks, it waits until they are written: others may
/// get them then.
pub struct UnderWay<'e> {
    engine: &'e Engine,
    blocks: Vec<Range<u64>>,
}

impl<'e> UnderWay<'e> {
    /// Nothing yet.
    pub fn new(engine: &'e Engine) -> Self {
        Self {
            engine,
            blocks: Vec::new(),
        }
    }

    /// [`Behind::post`].
    ///
    /// # Errors
    /// The same.
    pub fn post(&mut self, posting: Posting) -> Result<()> {
        self.blocks.extend(posting.blocks());
        self.engine.behind.post(self.engine, posting)
    }

    /// There is a record that names the blocks.
    pub fn keep(mut self) {
        self.blocks.clear();
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if !self.blocks.is_empty() {
            self.engine.behind.await_blocks(self.blocks.iter().cloned());
        }
    }
}

/// The blocks of a request, and their content.
pub struct Posting {
    /// Blocks that follow each other on the device. They are written together, in any order.
    pub runs: Vec<Range<u64>>,
    /// What goes there, one run behind the other.
    pub bytes: AlignedBuf,
}

impl Posting {
    fn blocks(&self) -> impl Iterator<Item = Range<u64>> {
        self.runs.iter().cloned()
    }

    /// Writes it now.
    ///
    /// # Errors
    /// Those of the device.
    pub fn write(&self, device: &dyn BlockDevice) -> io::Result<()> {
        let mut rest = &self.bytes[..];
        let slices: Vec<[&[u8]; 1]> = (self.runs.iter())
            .map(|run| {
                let (here, after) = rest.split_at((run.end - run.start) as usize * BLOCK);
                rest = after;
                [here]
            })
            .collect();
        let runs: Vec<WriteRun<'_>> = (self.runs.iter().zip(&slices))
            .map(|(run, bufs)| WriteRun {
                block: run.start,
                bufs,
            })
            .collect();
        device.write_many(&runs)
    }
}

/// See the module.
#[derive(Default)]
pub struct Behind {
    state: Mutex<State>,
    /// Something was posted, or this is the end.
    posted: Condvar,
    /// Something has been written, or given up.
    landed: Condvar,
    /// There is room for more.
    room: Condvar,
    /// Number of requests posted and not yet written, for callers that only need to know whether there is any.
    pending: AtomicUsize,
}

#[derive(Default)]
struct State {
    queue: VecDeque<(u64, Posting)>,
    /// What is queued or being written, with the number of its posting.
    under_way: Vec<(u64, Vec<Range<u64>>)>,
    next: u64,
    bytes: usize,
    /// Nothing is posted until there is room again.
    full: bool,
    /// The oldest first.
    buffers: VecDeque<AlignedBuf>,
    /// Bytes of them.
    kept: usize,
    waiting: usize,
    waiting_for_room: usize,
    servers: usize,
    stop: bool,
    failed: bool,
}

/// A thread that writes. Once the last one has ended, nothing writes what is left.
struct Serving<'b>(&'b Behind);

impl Drop for Serving<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.servers -= 1;
        if state.servers == 0 && !state.queue.is_empty() {
            state.failed = true;
            let left = std::mem::take(&mut state.queue);
            state.bytes -= left.iter().map(|(_, p)| p.bytes.len()).sum::<usize>();
            state.under_way.clear();
            self.0.pending.store(0, Ordering::Release);
        }
        drop(state);
        self.0.landed.notify_all();
        self.0.room.notify_all();
    }
}

/// What is being written, which is over when this is dropped, whatever became of it.
struct Landing<'b> {
    behind: &'b Behind,
    number: u64,
    posting: Posting,
    written: bool,
}

impl Drop for Landing<'_> {
    fn drop(&mut self) {
        let mut state = self.behind.state.lock();
        state.under_way.retain(|(number, _)| *number != self.number);
        let bytes = std::mem::take(&mut self.posting.bytes);
        state.bytes -= bytes.len();
        state.failed |= !self.written;
        let has_room = state.full && (state.bytes <= MOST / 2 || state.failed);
        state.full &= !has_room;
        state.kept += bytes.len();
        state.buffers.push_back(bytes);
        let mut too_many = Vec::new();
        while state.kept > KEPT
            && let Some(oldest) = state.buffers.pop_front()
        {
            state.kept -= oldest.len();
            too_many.push(oldest);
        }
        let left = state.under_way.len();
        self.behind.pending.store(left, Ordering::Release);
        drop(state);
        // Freed without the lock.
        drop(too_many);
        self.behind.landed.notify_all();
        if has_room {
            self.behind.room.notify_all();
        }
    }
}

impl Behind {
    /// Memory for so many bytes, whose content is undefined.
    pub fn buffer(&self, len: usize) -> AlignedBuf {
        let mut state = self.state.lock();
        let fits = state.buffers.iter().rposition(|b| b.len() == len);
        if let Some(buffer) = fits.and_then(|at| state.buffers.remove(at)) {
            state.kept -= len;
            return buffer;
        }
        drop(state);
        AlignedBuf::new(len)
    }

    /// Has it written. It may be read, and counts as written for [`Behind::settle`], from now on.
    ///
    /// # Errors
    /// Those of the device, if it is written at once, or if another write has failed.
    pub fn post(&self, e: &Engine, posting: Posting) -> Result<()> {
        let mut state = self.state.lock();
        if state.servers == 0 {
            drop(state);
            return e.write_device(|device| posting.write(device));
        }
        if state.full {
            drop(state);
            state = wait_for_device(|| self.await_room());
        }
        if state.failed || state.servers == 0 {
            return Err(failed().into());
        }
        let number = state.next;
        state.next += 1;
        state.bytes += posting.bytes.len();
        state.full = state.bytes > MOST;
        state.under_way.push((number, posting.runs.clone()));
        self.pending.store(state.under_way.len(), Ordering::Release);
        state.queue.push_back((number, posting));
        drop(state);
        self.posted.notify_one();
        Ok(())
    }

    /// Returns when none of these blocks of the device is on its way.
    pub fn await_blocks(&self, blocks: impl Iterator<Item = Range<u64>> + Clone) {
        if self.pending.load(Ordering::Acquire) == 0 {
            return;
        }
        let meets = |(_, posted): &(u64, Vec<Range<u64>>)| {
            let meets = |p: &Range<u64>, b: Range<u64>| b.start < p.end && p.start < b.end;
            (posted.iter()).any(|p| blocks.clone().any(|b| meets(p, b)))
        };
        if self.state.lock().under_way.iter().any(meets) {
            wait_for_device(|| drop(self.wait(|s| s.under_way.iter().any(meets))));
        }
    }

    /// Returns when everything that was posted before this call has been written. Nothing of it is durable before a flush.
    ///
    /// # Errors
    /// If any write has failed, ever.
    pub fn settle(&self) -> io::Result<()> {
        let upto = self.state.lock().next;
        let first = |s: &State| s.under_way.iter().any(|(number, _)| *number < upto);
        let state = self.wait(first);
        match state.failed {
            true => Err(failed()),
            false => Ok(()),
        }
    }

    fn wait(&self, more: impl Fn(&State) -> bool) -> MutexGuard<'_, State> {
        let mut state = self.state.lock();
        state.waiting += 1;
        while more(&state) {
            self.landed.wait(&mut state);
        }
        state.waiting -= 1;
        state
    }

    /// Waits until there is room, or nothing can be posted any more.
    fn await_room(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock();
        state.waiting_for_room += 1;
        while state.full && !state.failed && state.servers > 0 {
            self.room.wait(&mut state);
        }
        state.waiting_for_room -= 1;
        state
    }

    /// Writes what is posted, until [`Behind::stop`]. The body of a thread of the mount.
    pub fn serve(&self, e: &Engine) {
        self.state.lock().servers += 1;
        // Dropped after the lock.
        let _serving = Serving(self);
        let mut state = self.state.lock();
        loop {
            match state.queue.pop_front() {
                Some((number, posting)) => {
                    drop(state);
                    let mut landing = Landing {
                        behind: self,
                        number,
                        posting,
                        written: false,
                    };
                    landing.written =
                        (e.write_device(|device| landing.posting.write(device))).is_ok();
                    drop(landing);
                    state = self.state.lock();
                }
                None if state.stop => return,
                None => self.posted.wait(&mut state),
            }
        }
    }

    /// Whether any write has failed.
    pub fn has_failed(&self) -> bool {
        self.state.lock().failed
    }

    /// Whether a thread writes what is posted.
    pub fn is_served(&self) -> bool {
        self.state.lock().servers > 0
    }

    /// How many threads wait for the device.
    pub fn waiting(&self) -> usize {
        self.state.lock().waiting
    }

    /// How many threads wait for room.
    pub fn waiting_for_room(&self) -> usize {
        self.state.lock().waiting_for_room
    }

    /// Ends [`Behind::serve`], once what was posted has been written.
    pub fn stop(&self) {
        self.state.lock().stop = true;
        self.posted.notify_all();
    }
}

fn failed() -> io::Error {
    io::Error::other("a write of the data device has failed")
}
