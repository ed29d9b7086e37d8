//! What ends a run.

use rustix::io::Errno;
use std::io;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Why nothing was measured. Each displays as one line.
#[derive(Debug, Error)]
pub enum Error {
    /// A system call of a workload failed.
    #[error("{call} {path}: {errno}", path = path.display())]
    Call {
        /// Its name.
        call: &'static str,
        /// What it was called for.
        path: PathBuf,
        /// Why it failed.
        errno: Errno,
    },
    /// A system call moved fewer bytes than it was asked to.
    #[error("{call} {path}: {got} of {asked} bytes", path = path.display())]
    Short {
        /// Its name.
        call: &'static str,
        /// What it was called for.
        path: PathBuf,
        /// Bytes moved.
        got: usize,
        /// Bytes asked for.
        asked: usize,
    },
    /// A file that the runner itself needs.
    #[error("{path}: {source}", path = path.display())]
    File {
        /// Its path.
        path: PathBuf,
        /// Why it cannot be had.
        source: io::Error,
    },
    /// No workload has this name.
    #[error("no workload is called `{0}`: `quayfs-bench list` shows all")]
    UnknownWorkload(String),
    /// Two directories under one name, or a name that is not one.
    #[error("{0}")]
    Usage(String),
    /// A workload cannot run here.
    #[error("{workload}: {why}")]
    Unsupported {
        /// Its name.
        workload: &'static str,
        /// What is missing.
        why: String,
    },
    /// A stored report that is none.
    #[error("{path}: not a report of `quayfs-bench`: {why}", path = path.display())]
    Report {
        /// Its path.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// SQLite said no.
    #[error("SQLite on {path}: {why}", path = path.display())]
    Sqlite {
        /// The database.
        path: PathBuf,
        /// What it said.
        why: String,
    },
    /// Another thread of the run failed first, or the end was asked for.
    #[error("stopped")]
    Stopped,
}

/// Results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Adapter for `map_err` that names a file.
    pub fn file(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::File { path, source }
    }
}
