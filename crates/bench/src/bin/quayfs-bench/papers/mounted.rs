//! Mounts of volumes, which the program `quayfs` makes.

use super::volume::{Scratch, about};
use crate::FAILED;
use quayfs_bench::{Error, Result};
use quayfs_shown::command::Failure;
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// What the program answers to `--version`: the report names one version for both programs.
const VERSION: &str = concat!("quayfs ", env!("CARGO_PKG_VERSION"));

/// The program that mounts.
pub struct Program(PathBuf);

impl Program {
    /// The one that is named; else the one beside this program, where a build puts it; else the one in `PATH`.
    pub fn find(named: Option<PathBuf>) -> Self {
        let beside = || {
            let path = std::env::current_exe().ok()?.with_file_name("quayfs");
            path.exists().then_some(path)
        };
        Self(named.or_else(beside).unwrap_or_else(|| "quayfs".into()))
    }

    /// Runs it once: better now than after an hour.
    ///
    /// # Errors
    /// It does not run, or is of another version.
    pub fn check(&self) -> std::result::Result<(), Failure> {
        let why = match self.output(["--version"]) {
            Ok(out) if out.stdout.trim_ascii() == VERSION.as_bytes() => return Ok(()),
            Ok(_) => format!("not {VERSION}"),
            Err(e) => e.to_string(),
        };
        let path = self.0.display();
        let line = format!("{path}: {why}: name the program that mounts with --quayfs");
        Err(Failure::new(FAILED, line))
    }

    fn output<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> io::Result<Output> {
        Command::new(&self.0).args(args).output()
    }

    /// Runs it with a command and its arguments.
    fn run<const N: usize>(&self, args: [&OsStr; N]) -> std::result::Result<(), String> {
        let out = self.output(args).map_err(|e| e.to_string())?;
        if out.status.success() {
            return Ok(());
        }
        Err(String::from_utf8_lossy(&out.stderr).trim().to_owned())
    }
}

/// A mount, unmounted when this goes.
pub struct Mounted<'p> {
    program: &'p Program,
    target: PathBuf,
}

impl<'p> Mounted<'p> {
    /// Mounts `volume` below `mounts`.
    ///
    /// # Errors
    /// What the program said.
    pub fn new(
        program: &'p Program,
        volume: &Path,
        mounts: &Scratch,
        options: &str,
    ) -> Result<Self> {
        let target = mounts.path().join("mnt");
        std::fs::create_dir_all(&target).map_err(Error::file(&target))?;
        let options = if options.is_empty() { "rw" } else { options };
        let mounted = Self { program, target };
        let (volume, target) = (volume.as_os_str(), mounted.target.as_os_str());
        let args = [
            "mount".as_ref(),
            volume,
            target,
            "-o".as_ref(),
            options.as_ref(),
        ];
        program.run(args).map_err(about(&mounted.target))?;
        Ok(mounted)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.target
    }

    /// Unmounts it, which waits until all is on the data device.
    ///
    /// # Errors
    /// What the program said.
    pub fn end(mut self) -> Result<()> {
        let target = std::mem::take(&mut self.target);
        self.umount(&target).map_err(about(&target))
    }

    fn umount(&self, target: &Path) -> std::result::Result<(), String> {
        self.program.run(["umount".as_ref(), target.as_os_str()])
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        if !self.target.as_os_str().is_empty() {
            // The run has failed already, and with a better reason.
            let _ = self.umount(&self.target);
        }
    }
}
