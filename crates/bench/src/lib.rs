//! Benchmarks of mounted file systems, and of such that are called as a [`library`].
//!
//! A [`workload`] is a pattern of calls with a name, a seed and one operation that is counted.
//! The [`runner`] runs each on two or more directories in turn (A B A B ...), because on a shared
//! machine only ratios within one such run mean anything. What a run found is a [`report`], which is
//! stored as JSON and shown as a [`table`], or with others as a [`page`] of plots.
//!
//! ```text
//! workload ──► worker threads (run) ──► meter: counted calls, one clock, histograms
//!     ▲                                    │ merged afterwards
//! runner ── prepare, settle, counters ─────┴──► Sample ──► Report ──► JSON, table, page
//!              (target)   (observe)
//! ```
//!
//! Nothing here knows how QuayFS works inside: of a mount it reads the extended attribute
//! `quayfs.status`, if there is one, and `/proc`.

pub mod caches;
pub mod error;
pub mod figures;
pub mod fileset;
pub mod handle;
pub mod library;
pub mod machine;
pub mod meter;
pub mod name;
pub mod observe;
pub mod page;
pub mod progress;
pub mod random;
pub mod report;
pub mod run;
pub mod runner;
pub mod stats;
pub mod table;
pub mod target;
pub mod workload;
mod workloads;

pub use error::{Error, Result};

/// The commit that was built, if the build was told by `QUAYFS_COMMIT` (`make` does).
pub fn commit() -> Option<String> {
    let told = option_env!("QUAYFS_COMMIT").filter(|c| !c.is_empty());
    told.map(str::to_owned)
}
