//! Runs of workloads in a directory that can be looked at afterwards.

use quayfs_bench::error::Result;
use quayfs_bench::meter::Calls;
use quayfs_bench::run::{self, Between, Total};
use quayfs_bench::workload::{Params, Place, Wishes, select};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use tempfile::TempDir;

/// Nothing happens in between.
pub struct Nothing;

impl Between for Nothing {
    fn prepared(&mut self) -> Result<()> {
        Ok(())
    }

    fn warm(&mut self) -> Result<()> {
        Ok(())
    }
}

/// When everything is prepared, the directory gets another name. Calls relative to an open directory do not
/// notice.
struct Renamed<'a>(&'a Path);

impl Between for Renamed<'_> {
    fn prepared(&mut self) -> Result<()> {
        std::fs::rename(self.0, self.0.with_extension("renamed")).unwrap();
        Ok(())
    }

    fn warm(&mut self) -> Result<()> {
        Ok(())
    }
}

/// Runs a workload in a directory that is renamed when everything is prepared.
pub fn renamed(name: &str, wishes: &Wishes) -> Result<Total> {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("run");
    std::fs::create_dir(&dir).unwrap();
    run_between(&dir, name, wishes, &mut Renamed(&dir))
}

/// A run and the directory where it was.
pub struct Done {
    /// What was done.
    pub total: Total,
    /// The directory.
    pub dir: TempDir,
}

impl Done {
    /// System calls.
    pub fn calls(&self) -> Calls {
        self.total.sum.calls
    }

    /// Operations.
    pub fn ops(&self) -> u64 {
        self.total.sum.ops
    }

    /// All files below the directory with their sizes, in the order of their paths.
    pub fn files(&self) -> Vec<(PathBuf, u64)> {
        let mut found = Vec::new();
        walk(self.dir.path(), &mut found);
        found.sort_unstable();
        found
    }
}

fn walk(dir: &Path, found: &mut Vec<(PathBuf, u64)>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() {
            walk(&entry.path(), found);
        } else {
            found.push((entry.path(), entry.metadata().unwrap().len()));
        }
    }
}

/// `n` operations a thread, without a warm-up; one thread unless told otherwise.
pub fn ops(n: u64) -> Wishes {
    Wishes {
        threads: Some(1),
        ops: Some(n),
        // A limit that no test reaches.
        seconds: Some(600.0),
        warmup: Some(0.0),
        file_bytes: Some(1 << 20),
        ..Wishes::default()
    }
}

/// Runs a workload in a new directory.
#[track_caller]
pub fn go(name: &str, wishes: &Wishes) -> Done {
    let dir = tempfile::tempdir().unwrap();
    let total = run_in(dir.path(), name, wishes).unwrap();
    Done { total, dir }
}

/// Runs a workload in this directory.
pub fn run_in(dir: &Path, name: &str, wishes: &Wishes) -> Result<Total> {
    run_between(dir, name, wishes, &mut Nothing)
}

/// Runs a workload in this directory, with something happening in between.
fn run_between(
    dir: &Path,
    name: &str,
    wishes: &Wishes,
    between: &mut dyn Between,
) -> Result<Total> {
    let workload = select(&[name.into()])?.remove(0);
    let params = Params::new(workload.info(), wishes)?;
    workload.check(&params)?;
    let stop = AtomicBool::new(false);
    let place = Place::new(&params, dir, &stop)?;
    let job = workload.prepare(&place)?;
    let steps = workload.info().steps.len();
    let tallies = run::run(&*job, &place, steps, false, &stop, between)?;
    Ok(run::merge(tallies, &params).unwrap())
}
