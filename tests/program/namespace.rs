//! Mount namespaces of tests that share a process.
//!
//! A new namespace begins with a copy of every mount, those of other tests included. A file system lives until its last
//! place is gone, so unmounting one of them meanwhile would not end its daemon. Therefore a namespace drops all copies
//! but those it is about, and no test unmounts until it has done so.

use super::{Run, Start as _};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

static COPIES: RwLock<()> = RwLock::new(());

/// While it is held no new namespace has copies of mounts.
pub fn no_copies() -> RwLockReadGuard<'static, ()> {
    // It guards no data: one that a failed test has left poisoned does as well.
    COPIES.read().unwrap_or_else(PoisonError::into_inner)
}

/// While it is held a namespace may have copies of mounts, and the other tests unmount nothing.
pub fn copies() -> RwLockWriteGuard<'static, ()> {
    COPIES.write().unwrap_or_else(PoisonError::into_inner)
}

/// A shell in a mount namespace of its own, until it is dropped.
pub struct Namespace(Child);

impl Namespace {
    /// Begins it, in `dir`, with what is mounted on `kept` and nothing else of its type, and runs `script` in it.
    #[track_caller]
    pub fn new(dir: &Path, kept: &Path, script: &str) -> Self {
        let _alone = copies();
        let drop = "for m in $(awk '$3 ~ /^fuse/ { print $2 }' /proc/mounts); do \
                    [ \"$m\" = \"$1\" ] || umount -i -l \"$m\"; done";
        let script = format!("{drop}; set -e; {script}; echo ready; read stop");
        let mut shell = Command::new("unshare")
            .args(["--mount", "--propagation", "private"])
            .args(["sh", "-c", &script, "sh"])
            .arg(kept)
            .current_dir(dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .start()
            .unwrap();
        let mut line = String::new();
        let out = shell.stdout.as_mut().unwrap();
        BufReader::new(out).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Self(shell)
    }

    /// Runs a program in it.
    pub fn run(&self, program: &[&str]) -> Run {
        let _alone = no_copies();
        let pid = self.pid().to_string();
        Command::new("nsenter")
            .args(["--mount", "--target", &pid, "--"])
            .args(program)
            .capture()
            .unwrap()
            .into()
    }

    /// The process id of the shell.
    pub fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // Its end of the standard input is closed first.
        let _ = self.0.wait();
    }
}
