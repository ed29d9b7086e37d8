//! A scheduler that lets one thread at a time go on, and does the same again for the same seed.
//!
//! Its threads are threads of the operating system, so that what belongs to a thread (its stores
//! that no fence has settled, thread locals) does; all but one of them wait for their turn. The
//! chosen one runs until it passes a [`point`]: then it may lose its turn. A thread that waits for a
//! lock, a condition or the end of a thread gets no turn until that may have come. Time passes with
//! the points, and leaps to the next deadline when all threads wait.

mod choice;
mod core;
pub(crate) mod facade;
mod locks;
mod map;
mod quiesce;
mod threads;
mod words;

pub use core::{Outcome, Plan, Stuck, run, with_plan};

pub(crate) use core::{Why, current};
