//! What QuayFS's threads synchronise with, wait for and tell the time by.
//!
//! Normally these are the types of `parking_lot`, `dashmap`, `crossbeam-epoch` and the standard
//! library, re-exported and nothing else. With the feature `sched` they are types of the same
//! interface that a deterministic scheduler (module `sched`) looks through: of the threads that it runs
//! one goes on at a time, and at each lock operation, each access to a medium and each atomic access
//! it decides which. The same seed gives the same interleaving. Threads that no scheduler runs
//! behave as without the feature.
//!
//! Where the scheduler is to see something, code uses this crate: a lock, channel or sleep of
//! another kind that a thread really waits for stops the whole run.

mod pacing;
mod wait;
pub use pacing::Pacing;
pub use wait::{run_waits_in, wait_for_device};

#[cfg(not(feature = "sched"))]
mod real;
#[cfg(not(feature = "sched"))]
pub use real::*;

#[cfg(feature = "sched")]
pub mod sched;
#[cfg(feature = "sched")]
pub use sched::facade::*;
