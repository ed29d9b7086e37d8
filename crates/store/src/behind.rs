//! Large writes on their way to the data device: their callers have been answered, and go on while the device writes.
//!
//! What is on its way is bounded. It has fresh blocks, so only these have to wait for it: a read of those blocks;
//! the commit that covers the record that names them, which comes before anything that could hand the blocks on; and a
//! request that fails before it has such a record, whose blocks are free at once ([`UnderWay`]). Where no thread
//! serves, the caller writes.
//!
//! Where the mount is to go on when this process dies, what is on its way lies in memory that outlives it
//! ([`Behind::outlive`]), from before there can be a record of it until the device has it and before anything goes on that
//! waits for that: so it is never written again over something newer ([`write_again`]). What finds no room there is written
//! by the caller.

use std::collections::VecDeque;
use std::io;
use std::ops::{Deref, DerefMut, Range};
use std::sync::{Arc, OnceLock};

use quayfs_blockdev::{AlignedBuf, BlockDevice, WriteRun};
use quayfs_layout::BLOCK;
use quayfs_restart::{Buffer, MOST_RUNS, Postings};
use quayfs_sync::atomic::{AtomicUsize, Ordering};
use quayfs_sync::{Condvar, Mutex, MutexGuard, wait_for_device};

use crate::engine::Engine;
use crate::error::Result;

mod again;

pub use again::write_again;

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
            let e = self.engine;
            e.behind
                .await_blocks(&*e.device, self.blocks.iter().cloned());
        }
    }
}

/// The blocks of a request, and their content.
pub struct Posting {
    /// Blocks that follow each other on the device. They are written together, in any order.
    pub runs: Vec<Range<u64>>,
    /// What goes there, one run behind the other.
    pub bytes: Bytes,
}

/// Memory for direct I/O.
pub enum Bytes {
    /// Of this process.
    Own(AlignedBuf),
    /// That outlives it.
    Shared(Buffer),
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Own(bytes) => bytes,
            Self::Shared(bytes) => bytes,
        }
    }
}

impl DerefMut for Bytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Own(bytes) => bytes,
            Self::Shared(bytes) => bytes,
        }
    }
}

impl Posting {
    fn blocks(&self) -> impl Iterator<Item = Range<u64>> {
        self.runs.iter().cloned()
    }

    /// Whether [`Posting::publish`] can be called.
    fn can_outlive(&self) -> bool {
        matches!(self.bytes, Bytes::Shared(_)) && self.runs.len() <= MOST_RUNS
    }

    /// From here on the bytes are written also if this process dies.
    fn publish(&mut self) {
        if let Bytes::Shared(bytes) = &mut self.bytes {
            let is_published = bytes.publish(&self.runs);
            debug_assert!(is_published, "too many runs");
        }
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
    /// Where buffers are, if they are to outlive this process.
    shared: OnceLock<Arc<Postings>>,
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
    /// Where no thread serves, what is posted is written when it is waited for.
    postponed: bool,
    stop: bool,
    failed: bool,
}

impl State {
    /// Whether what is posted will be written.
    fn is_served(&self) -> bool {
        self.servers > 0 || self.postponed
    }
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
        let bytes = std::mem::replace(&mut self.posting.bytes, Bytes::Own(AlignedBuf::default()));
        let len = bytes.len();
        // Before anything that waits for these blocks goes on. What could not be written stays for the next daemon.
        let own = match bytes {
            Bytes::Own(bytes) => Some(bytes),
            Bytes::Shared(mut bytes) => {
                if self.written {
                    bytes.retire();
                }
                None
            }
        };
        let mut state = self.behind.state.lock();
        state.under_way.retain(|(number, _)| *number != self.number);
        state.bytes -= len;
        state.failed |= !self.written;
        let has_room = state.full && (state.bytes <= MOST / 2 || state.failed);
        state.full &= !has_room;
        if let Some(bytes) = own {
            state.kept += len;
            state.buffers.push_back(bytes);
        }
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
    /// From here on what is posted outlives this process, in memory of which nothing is in use. Can be said once.
    pub fn outlive(&self, shared: Arc<Postings>) {
        let _ = self.shared.set(shared);
    }

    /// Memory for so many bytes, whose content is undefined.
    pub fn buffer(&self, len: usize) -> Bytes {
        if let Some(buffer) = self.shared.get().and_then(|shared| shared.buffer(len)) {
            return Bytes::Shared(buffer);
        }
        let mut state = self.state.lock();
        let fits = state.buffers.iter().rposition(|b| b.len() == len);
        if let Some(buffer) = fits.and_then(|at| state.buffers.remove(at)) {
            state.kept -= len;
            return Bytes::Own(buffer);
        }
        drop(state);
        Bytes::Own(AlignedBuf::new(len))
    }

    /// Has it written. It may be read, and counts as written for [`Behind::settle`], from now on.
    ///
    /// # Errors
    /// Those of the device, if it is written at once, or if another write has failed.
    pub fn post(&self, e: &Engine, mut posting: Posting) -> Result<()> {
        let outlives = self.shared.get().is_none() || posting.can_outlive();
        let mut state = self.state.lock();
        if !outlives || !state.is_served() {
            drop(state);
            return e.write_device(|device| posting.write(device));
        }
        if state.full {
            drop(state);
            state = wait_for_device(|| self.await_room());
        }
        if state.failed || !state.is_served() {
            return Err(failed().into());
        }
        // Before there can be a record of it.
        posting.publish();
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
    pub fn await_blocks(
        &self,
        device: &dyn BlockDevice,
        blocks: impl Iterator<Item = Range<u64>> + Clone,
    ) {
        if self.pending.load(Ordering::Acquire) == 0 {
            return;
        }
        let meets = |(_, posted): &(u64, Vec<Range<u64>>)| {
            let meets = |p: &Range<u64>, b: Range<u64>| b.start < p.end && p.start < b.end;
            (posted.iter()).any(|p| blocks.clone().any(|b| meets(p, b)))
        };
        if self.state.lock().under_way.iter().any(meets) {
            wait_for_device(|| drop(self.wait(device, |s| s.under_way.iter().any(meets))));
        }
    }

    /// Returns when everything that was posted before this call has been written. Nothing of it is durable before a flush.
    ///
    /// # Errors
    /// If any write has failed, ever.
    pub fn settle(&self, device: &dyn BlockDevice) -> io::Result<()> {
        let upto = self.state.lock().next;
        let first = |s: &State| s.under_way.iter().any(|(number, _)| *number < upto);
        let state = self.wait(device, first);
        match state.failed {
            true => Err(failed()),
            false => Ok(()),
        }
    }

    fn wait(
        &self,
        device: &dyn BlockDevice,
        more: impl Fn(&State) -> bool,
    ) -> MutexGuard<'_, State> {
        let mut state = self.state.lock();
        state.waiting += 1;
        while more(&state) {
            if state.servers == 0 && std::thread::panicking() {
                // Nothing is brought to its end by a thread that is dying.
                break;
            }
            let mine = (state.servers == 0).then(|| state.queue.pop_front());
            match mine.flatten() {
                Some(first) => {
                    drop(state);
                    self.land(first, |posting| posting.write(device).is_ok());
                    state = self.state.lock();
                }
                None => self.landed.wait(&mut state),
            }
        }
        state.waiting -= 1;
        state
    }

    fn land(&self, (number, posting): (u64, Posting), write: impl FnOnce(&Posting) -> bool) {
        let mut landing = Landing {
            behind: self,
            number,
            posting,
            written: false,
        };
        landing.written = write(&landing.posting);
    }

    /// Where no thread serves: what is posted is written when something waits for it, by what waits, as late as a thread
    /// could write it at all.
    pub fn postpone(&self) {
        self.state.lock().postponed = true;
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
                Some(first) => {
                    drop(state);
                    self.land(first, |posting| {
                        e.write_device(|device| posting.write(device)).is_ok()
                    });
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
