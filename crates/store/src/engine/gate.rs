//! Between operations that run short of blocks and what takes free ones away for a while, a trim or a gathering: what
//! it holds is no reason for `ENOSPC`.

use quayfs_sync::{Condvar, Mutex};

use crate::engine::Engine;

#[derive(Debug, Default)]
struct State {
    /// Operations that have run short and have not ended.
    short: usize,
    /// A batch of a trim, or of a gathering, holds free blocks.
    lent: bool,
}

/// See the module documentation.
#[derive(Debug, Default)]
pub(super) struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

/// No such batch holds blocks while this is there.
#[must_use]
pub struct Short<'e>(&'e Gate);

/// A batch may hold blocks while this is there.
#[must_use]
pub struct Lent<'e>(&'e Gate);

impl Engine {
    /// An operation has run short: waits for the end of a batch that is under way, which waits for no
    /// operation, and keeps the next one off.
    pub(super) fn run_short(&self) -> Short<'_> {
        let mut state = self.gate.state.lock();
        state.short += 1;
        while state.lent {
            self.gate.changed.wait(&mut state);
        }
        Short(&self.gate)
    }

    /// A trim begins its next batch, when no operation is short of blocks. One batch at a time.
    pub fn lend(&self) -> Lent<'_> {
        let mut state = self.gate.state.lock();
        while state.lent || state.short > 0 {
            self.gate.changed.wait(&mut state);
        }
        state.lent = true;
        Lent(&self.gate)
    }

    /// The same for a thread that may not wait: `None` if an operation is short of blocks, and this thread may be the one that
    /// has to help it, or if blocks are lent.
    pub fn try_lend(&self) -> Option<Lent<'_>> {
        let mut state = self.gate.state.lock();
        if state.lent || state.short > 0 {
            return None;
        }
        state.lent = true;
        Some(Lent(&self.gate))
    }
}

impl Drop for Short<'_> {
    fn drop(&mut self) {
        self.0.state.lock().short -= 1;
        self.0.changed.notify_all();
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        self.0.state.lock().lent = false;
        self.0.changed.notify_all();
    }
}
