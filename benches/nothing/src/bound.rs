//! The least that an fsync can do on a disk: one write and one flush, which calls at one time share.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use parking_lot::{Condvar, Mutex};
use quayfs_blockdev::{AlignedBuf, BLOCK, BlockDevice, FileDevice, OpenError, Options};
use quayfs_fuse::{Answer, Errno, Postponed};

/// Most blocks of one write.
const GROUP: usize = 64;

/// A device that nothing is read from.
pub struct Bound {
    device: FileDevice,
    blocks: AlignedBuf,
    next: AtomicU64,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// A group is being written and flushed.
    busy: bool,
    /// The calls that have come meanwhile.
    queue: Vec<Postponed>,
}

impl Bound {
    /// Opens a device or file of at least a block, and starts the thread that writes for groups.
    pub fn open(path: &Path) -> Result<Arc<Self>, OpenError> {
        let device = FileDevice::open(path, Options::default())?;
        let most = (device.blocks() as usize).min(GROUP);
        let mut blocks = AlignedBuf::new(most * BLOCK);
        blocks.fill(1);
        let bound = Arc::new(Self {
            device,
            blocks,
            next: AtomicU64::new(0),
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let serving = Arc::clone(&bound);
        thread::spawn(move || serving.serve());
        Ok(bound)
    }

    /// Answers an fsync once a block has been written and flushed for it. While a group is on its way, the next one
    /// gathers, and no thread sleeps for it.
    pub fn answer(&self, postpone: &mut dyn FnMut() -> Postponed) -> Option<Answer> {
        let mut state = self.state.lock();
        if state.busy || !state.queue.is_empty() {
            state.queue.push(postpone());
            return None;
        }
        state.busy = true;
        drop(state);
        let answer = quayfs_fuse::waiting(|| self.write_and_flush(1));
        self.over();
        Some(answer)
    }

    /// Writes and flushes for those that have come meanwhile.
    fn serve(&self) {
        loop {
            let mut state = self.state.lock();
            while state.busy || state.queue.is_empty() {
                self.changed.wait(&mut state);
            }
            state.busy = true;
            let most = self.blocks.len() / BLOCK;
            let here = state.queue.len().min(most);
            let queue: Vec<_> = state.queue.drain(..here).collect();
            drop(state);
            let answer = self.write_and_flush(queue.len());
            self.over();
            queue.into_iter().for_each(|p| p.answer(answer));
        }
    }

    fn write_and_flush(&self, blocks: usize) -> Answer {
        let room = self.device.blocks() - blocks as u64 + 1;
        let at = self.next.fetch_add(blocks as u64, Ordering::Relaxed) % room;
        (self.device.write(at, &self.blocks[..blocks * BLOCK]))
            .and_then(|()| self.device.flush())
            .map_err(|_| Errno::new(libc::EIO))
    }

    /// A group is durable, or has failed.
    fn over(&self) {
        let mut state = self.state.lock();
        state.busy = false;
        let more = !state.queue.is_empty();
        drop(state);
        if more {
            self.changed.notify_one();
        }
    }
}
