//! The search for crashes: what it meets, and what the documents say of it. Tests under the scheduler are a binary of
//! their own (`sched.rs`), since it takes a feature.

mod batches;
mod copies;
mod mutants_page;
mod repairs;
