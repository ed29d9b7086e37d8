//! A device that fails when it is told to.

use parking_lot::{Condvar, Mutex};
use quayfs_blockdev::{BLOCK, BlockDevice, ReadRun, Silence, WriteRun};
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Which calls of a device fail. A `read_many` or `write_many` counts as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultOp {
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Flushes.
    Flush,
    /// Discards.
    Discard,
}

/// How a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// With this error number (`EIO`, `ENOSPC`, ...), having done nothing.
    Errno(i32),
    /// After the first half of the blocks, or of the runs, with `EIO`. A flush or discard does nothing.
    Short,
}

/// How often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    /// That call only.
    Once,
    /// That call and all later ones.
    Forever,
}

/// A call that does not come back until it is let go.
#[derive(Default)]
pub struct Stall {
    state: Mutex<Progress>,
    changed: Condvar,
}

#[derive(Default)]
struct Progress {
    reached: bool,
    released: bool,
}

impl Stall {
    /// Waits until the call has come.
    pub fn reached(&self) {
        let mut state = self.state.lock();
        while !state.reached {
            self.changed.wait(&mut state);
        }
    }

    /// As [`Stall::reached`], but gives up as soon as `over` says so, which is asked each time
    /// [`Stall::look_again`] is called; whether the call has come.
    pub fn reached_unless(&self, over: impl Fn() -> bool) -> bool {
        let mut state = self.state.lock();
        while !state.reached && !over() {
            self.changed.wait(&mut state);
        }
        state.reached
    }

    /// Lets [`Stall::reached_unless`] ask again.
    pub fn look_again(&self) {
        let _state = self.state.lock();
        self.changed.notify_all();
    }

    /// Lets the call go on, also if it has not come yet.
    pub fn release(&self) {
        self.state.lock().released = true;
        self.changed.notify_all();
    }

    fn hold(&self) {
        let mut state = self.state.lock();
        state.reached = true;
        self.changed.notify_all();
        while !state.released {
            self.changed.wait(&mut state);
        }
    }
}

/// A [`BlockDevice`] in front of another that fails when it is told to.
pub struct FaultDevice {
    inner: Arc<dyn BlockDevice>,
    state: Mutex<State>,
    silence: Silence,
}

#[derive(Default)]
struct State {
    calls: [u64; 4],
    plans: Vec<Plan>,
    stalls: Vec<(FaultOp, u64, Arc<Stall>)>,
}

struct Plan {
    op: FaultOp,
    /// The number of the call, as counted in `calls`.
    call: u64,
    fault: Fault,
    repeat: Repeat,
}

impl FaultDevice {
    /// Passes everything on until told otherwise.
    pub fn new(inner: Arc<dyn BlockDevice>) -> Self {
        Self {
            inner,
            state: Mutex::default(),
            silence: Silence::default(),
        }
    }

    /// Lets the `nth` call of this kind from now on fail; the next one is number 1.
    pub fn fail(&self, op: FaultOp, nth: u64, fault: Fault, repeat: Repeat) {
        let mut state = self.state.lock();
        let call = state.calls[op as usize] + nth;
        state.plans.push(Plan {
            op,
            call,
            fault,
            repeat,
        });
    }

    /// Holds up the `nth` call of this kind from now on, before it does anything, until it is
    /// released.
    pub fn stall(&self, op: FaultOp, nth: u64) -> Arc<Stall> {
        let stall = Arc::new(Stall::default());
        let mut state = self.state.lock();
        let call = state.calls[op as usize] + nth;
        state.stalls.push((op, call, Arc::clone(&stall)));
        stall
    }

    /// Forgets all that was told, and lets go every call that is held up.
    pub fn heal(&self) {
        let mut state = self.state.lock();
        state.plans.clear();
        for (_, _, stall) in state.stalls.drain(..) {
            stall.release();
        }
    }

    /// How many calls of this kind there have been, failed ones included.
    pub fn calls(&self, op: FaultOp) -> u64 {
        self.state.lock().calls[op as usize]
    }

    /// Counts a call and says how it shall fail.
    fn next(&self, op: FaultOp) -> Option<Fault> {
        let mut state = self.state.lock();
        state.calls[op as usize] += 1;
        let call = state.calls[op as usize];
        // It stays in the list, so that healing lets it go.
        let held = state.stalls.iter().find(|s| (s.0, s.1) == (op, call));
        if let Some(stall) = held.map(|s| Arc::clone(&s.2)) {
            drop(state);
            self.silence.during(|| self.describe(), || stall.hold());
            state = self.state.lock();
        }
        let due = |plan: &&Plan| {
            let now = match plan.repeat {
                Repeat::Once => plan.call == call,
                Repeat::Forever => plan.call <= call,
            };
            plan.op == op && now
        };
        state.plans.iter().find(due).map(|plan| plan.fault)
    }

    /// The whole of `items` if nothing is to fail, otherwise how much to do and the error after it.
    fn allowed(&self, op: FaultOp, items: usize) -> (usize, io::Result<()>) {
        match self.next(op) {
            None => (items, Ok(())),
            Some(Fault::Errno(errno)) => (0, Err(io::Error::from_raw_os_error(errno))),
            Some(Fault::Short) => (items / 2, Err(io::Error::from_raw_os_error(libc::EIO))),
        }
    }
}

impl BlockDevice for FaultDevice {
    fn blocks(&self) -> u64 {
        self.inner.blocks()
    }

    #[track_caller]
    fn read(&self, block: u64, buf: &mut [u8]) -> io::Result<()> {
        let (blocks, result) = self.allowed(FaultOp::Read, buf.len() / BLOCK);
        if blocks > 0 || result.is_ok() {
            let whole = if result.is_ok() {
                buf.len()
            } else {
                blocks * BLOCK
            };
            self.inner.read(block, &mut buf[..whole])?;
        }
        result
    }

    #[track_caller]
    fn write(&self, block: u64, buf: &[u8]) -> io::Result<()> {
        let (blocks, result) = self.allowed(FaultOp::Write, buf.len() / BLOCK);
        if blocks > 0 || result.is_ok() {
            let whole = if result.is_ok() {
                buf.len()
            } else {
                blocks * BLOCK
            };
            self.inner.write(block, &buf[..whole])?;
        }
        result
    }

    #[track_caller]
    fn read_many(&self, runs: &mut [ReadRun<'_>]) -> io::Result<()> {
        let (count, result) = self.allowed(FaultOp::Read, runs.len());
        if count > 0 {
            self.inner.read_many(&mut runs[..count])?;
        }
        result
    }

    #[track_caller]
    fn write_many(&self, runs: &[WriteRun<'_>]) -> io::Result<()> {
        // Which can be cut short in the middle of it.
        if let [WriteRun { block, bufs: [buf] }] = *runs {
            return self.write(block, buf);
        }
        let (count, result) = self.allowed(FaultOp::Write, runs.len());
        if count > 0 {
            self.inner.write_many(&runs[..count])?;
        }
        result
    }

    fn takes_regions(&self) -> bool {
        self.inner.takes_regions()
    }

    #[track_caller]
    fn flush(&self) -> io::Result<()> {
        self.allowed(FaultOp::Flush, 0).1?;
        self.inner.flush()
    }

    #[track_caller]
    fn discard(&self, block: u64, count: u64) -> io::Result<()> {
        self.allowed(FaultOp::Discard, 0).1?;
        self.inner.discard(block, count)
    }

    fn describe(&self) -> String {
        format!("faulty: {}", self.inner.describe())
    }

    fn is_read_only(&self) -> bool {
        self.inner.is_read_only()
    }

    fn silent_for(&self) -> Duration {
        self.silence.length().max(self.inner.silent_for())
    }

    fn missing(&self) -> u64 {
        self.inner.missing()
    }
}

#[cfg(test)]
mod tests;
