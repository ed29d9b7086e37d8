//! What works beside operations, which never call it: digest turns records into home pages, rounds move staged blocks
//! to the data device, zeroing passes make freed blocks fit for new content, and trim tells the device of them.
//!
//! An operation that runs short asks the [engine](quayfs_store::engine) for space. What reclaims it is here: the
//! [`Threads`] of a mount, or, where there are none, the function that [`Background::reclaim_inline`] has handed to
//! the engine.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use quayfs_store::engine::Engine;
use quayfs_store::error::{FsError, Result};
use quayfs_sync::Mutex;

pub mod checkpoint;
pub mod digest;
mod threads;
pub mod trim;

use checkpoint::{WorkerPool, Workspace};
use digest::{Digesting, digest_all};
pub use threads::{Threads, guarded};

/// What becomes of staged blocks at the end of a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Staged {
    /// They are moved to the data device.
    Drain,
    /// They stay in the region, which has to be durable, until the next mount moves them.
    Leave,
}

/// An engine, and what works beside its operations: digest and rounds, which no operation calls. Those that run short
/// wait for the threads, or have this work done by what was given to [`Engine::reclaim_inline`].
pub struct Background {
    engine: Engine,
    /// One digest at a time, with the memory of its batches.
    digesting: Mutex<Digesting>,
    /// One round or zeroing pass at a time.
    pub(crate) rounding: Mutex<Workspace>,
    /// The threads that write for it.
    pub(crate) pool: WorkerPool,
}

impl Deref for Background {
    type Target = Engine;

    fn deref(&self) -> &Engine {
        &self.engine
    }
}

impl Background {
    /// Nothing works yet: [`Threads::start`], or [`Background::reclaim_inline`].
    pub fn new(engine: Engine) -> Self {
        Self {
            engine,
            digesting: Mutex::default(),
            rounding: Mutex::default(),
            pool: WorkerPool::default(),
        }
    }

    /// Without threads: operations that run short do this work.
    pub fn reclaim_inline(self: &Arc<Self>) {
        let this = Arc::downgrade(self);
        self.engine.reclaim_inline(move || {
            match this.upgrade() {
                Some(this) => this.cycle(),
                // What calls this has it.
                None => Err(FsError::internal("the mount has ended")),
            }
        });
    }

    /// One digest pass, one round, and the zeroing of all that is freed.
    fn cycle(&self) -> Result<()> {
        digest_all(self)?;
        checkpoint::round(self)?;
        checkpoint::zero_all(self)?;
        Ok(())
    }

    /// Writes what rounds submit, until [`Background::end_writes`]. The body of a thread.
    pub fn serve_writes(&self) {
        self.pool.serve(self);
    }

    /// Ends [`Background::serve_writes`], once what was submitted has been written.
    pub fn end_writes(&self) {
        self.pool.stop();
    }

    /// Ends a mount: commits, digests, checkpoints everything unless what is staged is left where it is, and marks the
    /// volume clean. One that a failure has made read-only commits what was done before, if that can still be done; the
    /// next mount recovers the volume. The background threads have ended and nothing calls operations any more.
    pub fn close(&self, staged: Staged) -> Result<()> {
        if self.options.read_only {
            return Ok(());
        }
        if self.is_read_only() {
            if let Err(err) = self.commit() {
                tracing::error!("commit: {err}");
            }
            return Ok(());
        }
        self.commit()?;
        digest_all(self)?;
        if staged == Staged::Leave {
            return self.mark_clean(Some(self.staged.len() as u64));
        }
        // The log has it then, also if nothing has asked before: what drains makes a file longer again.
        self.device.missing();
        while checkpoint::round(self)?.slots > 0 {}
        checkpoint::zero_freed(self)?;
        self.mark_clean(None)
    }

    /// Blocks that are staged and that no round has written to the data device yet. Not exact while one writes.
    pub fn left_to_drain(&self) -> u64 {
        let counted = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let ended = counted(&self.metrics.blocks_written) + counted(&self.metrics.blocks_copied);
        let under_way = self.pool.sent().saturating_sub(ended);
        (self.staged.len() as u64).saturating_sub(under_way)
    }
}
