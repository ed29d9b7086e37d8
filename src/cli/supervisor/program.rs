//! The program that daemons are started from.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{OWN, moved};
use crate::mount::control::open_program;

/// Ourselves, whatever lies there by now.
const SELF: &str = "/proc/self/exe";
/// What the kernel writes behind the path of a file that has none any more.
const GONE: &[u8] = b" (deleted)";

/// A program that stays what it is when its file is replaced, and can be started all the same.
#[derive(Debug)]
pub(super) struct Program {
    file: OwnedFd,
    /// Where it was found.
    pub(super) path: PathBuf,
}

impl Program {
    pub(super) fn new(file: OwnedFd, path: PathBuf) -> io::Result<Self> {
        let file = moved(file, OWN)?;
        Ok(Self { file, path })
    }

    /// The one that this process runs.
    pub(super) fn own() -> io::Result<Self> {
        let file = open_program(Path::new(SELF))?;
        let path = std::fs::read_link(SELF)?;
        let path = path.as_os_str().as_bytes();
        let path = path.strip_suffix(GONE).unwrap_or(path);
        Self::new(file, OsStr::from_bytes(path).into())
    }

    /// The same once more.
    pub(super) fn again(&self) -> io::Result<Self> {
        let file = rustix::io::fcntl_dupfd_cloexec(&self.file, OWN)?;
        let path = self.path.clone();
        Ok(Self { file, path })
    }

    /// To start it, in no directory in particular.
    pub(super) fn command(&self) -> Command {
        let mut command = Command::new(format!("/proc/self/fd/{}", self.file.as_raw_fd()));
        command.arg0("quayfs").current_dir("/");
        command
    }
}
