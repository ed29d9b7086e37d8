//! Inodes without a name that the kernel has forgotten: a thread of their own frees them, so that other requests need
//! not wait for that.

use std::thread::{ThreadId, current};
use std::time::Duration;

use quayfs_layout::Ino;
use quayfs_sync::atomic::Ordering;
use quayfs_sync::time::Instant;
use quayfs_sync::{Condvar, Mutex};

use crate::engine::Engine;
use quayfs_sync::Pacing;

/// Most that wait; beyond that, the thread that brings an orphan frees it, where it can.
const WAITING_MAX: usize = 1024;
/// How long the first one waits for others: waking a thread costs as much as freeing some.
const GATHER: Duration = Duration::from_millis(1);

#[derive(Debug, Default)]
struct State {
    /// The thread that frees them.
    by: Option<ThreadId>,
    waiting: Vec<Ino>,
    /// How many have ever come.
    came: u64,
    /// How many of them are freed.
    freed: u64,
    /// A thread waits for these.
    at_once: bool,
}

/// See the module documentation.
#[derive(Debug, Default)]
pub(super) struct Orphans {
    state: Mutex<State>,
    come: Condvar,
    gone: Condvar,
}

/// While this is there, a thread frees orphans.
struct Serving<'e>(&'e Orphans);

impl Drop for Serving<'_> {
    fn drop(&mut self) {
        *self.0.state.lock() = State::default();
        self.0.gone.notify_all();
    }
}

impl Engine {
    /// Leaves an orphan to the thread that frees them; whether there is one that has time for it.
    pub fn hand_over(&self, ino: Ino) -> bool {
        let mut s = self.orphans.state.lock();
        // Those that the kernel may know from another daemon have to wait: this thread cannot ask it.
        let too_many = s.waiting.len() >= WAITING_MAX && !self.inodes.presumes();
        if s.by.is_none() || too_many {
            return false;
        }
        s.waiting.push(ino);
        s.came += 1;
        if s.waiting.len() == 1 {
            self.orphans.come.notify_one();
        }
        true
    }

    /// Frees what is handed over with `free`, until the mount ends. What is left then keeps its intent.
    pub fn serve_orphans(&self, free: impl Fn(Ino)) {
        let orphans = &self.orphans;
        orphans.state.lock().by = Some(current().id());
        let _serving = Serving(orphans);
        let stopping = || self.stopping.load(Ordering::Acquire);
        let mut turns = Pacing::default();
        let mut s = orphans.state.lock();
        while !stopping() {
            if s.waiting.is_empty() {
                orphans.come.wait(&mut s);
                continue;
            }
            let until = Instant::now() + GATHER;
            while !s.at_once && !stopping() {
                if orphans.come.wait_until(&mut s, until).timed_out() {
                    break;
                }
            }
            let some = std::mem::take(&mut s.waiting);
            let freed = s.came;
            s.at_once = false;
            drop(s);
            for ino in some.into_iter().take_while(|_| !stopping()) {
                free(ino);
                turns.step(64);
            }
            s = orphans.state.lock();
            s.freed = freed;
            orphans.gone.notify_all();
        }
    }

    /// Returns when everything that was handed over before is freed, or the mount ends. No caller holds a lock of an
    /// inode.
    pub fn await_orphans(&self) {
        let mut s = self.orphans.state.lock();
        let last = s.came;
        while s.freed < last && s.by.is_some_and(|by| by != current().id()) {
            s.at_once = true;
            self.orphans.come.notify_one();
            self.orphans.gone.wait(&mut s);
        }
    }

    /// Tells the thread that frees orphans that the mount ends.
    pub fn stop_chores(&self) {
        self.stopping.store(true, Ordering::Release);
        let _state = self.orphans.state.lock();
        self.orphans.come.notify_one();
    }
}
