//! What programs leave behind, what can be tested here, and waiting. Tests of `quayfs-bench` include it as well: `NAME` is
//! the program that theirs are about.

use super::NAME;
use std::io::Write as _;
use std::path::Path;
use std::process::Output;
use std::thread;
use std::time::Duration;

/// What a run of the program left behind.
#[derive(Debug)]
pub struct Run {
    /// Exit code; -1 after a signal.
    pub code: i32,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

impl From<Output> for Run {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl Run {
    /// Asserts success and returns the standard output.
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!(self.code, 0, "{self:?}");
        self.out
    }

    /// Asserts a failure with this exit code and exactly one line on the standard error, which
    /// contains `about`.
    #[track_caller]
    pub fn fails(self, code: i32, about: &str) {
        assert_eq!(self.code, code, "{self:?}");
        assert_eq!(self.err.lines().count(), 1, "one line: {self:?}");
        assert!(self.err.starts_with(&format!("{NAME}: ")), "{self:?}");
        assert!(self.err.contains(about), "about {about:?}: {self:?}");
        assert_eq!(self.out, "", "{self:?}");
    }
}

/// Waits for something that the kernel or other processes bring about, however long this machine takes for it.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let mut looks = 0u32;
    while !holds() {
        looks += 1;
        // About a minute. Not by `eprintln!`, which is kept back until the test has ended.
        if looks.is_multiple_of(6000) {
            let _ = writeln!(std::io::stderr(), "still waiting: {what}");
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// Whether mounts can be tested here.
pub fn can_mount() -> bool {
    if std::env::var_os("QUAYFS_SKIP_FUSE").is_some_and(|v| v == "1") {
        eprintln!("not tested: QUAYFS_SKIP_FUSE=1");
        return false;
    }
    assert!(
        Path::new("/dev/fuse").exists(),
        "no /dev/fuse: load the module `fuse`, or set QUAYFS_SKIP_FUSE=1 to do without these tests"
    );
    true
}

/// Whether what takes root can be tested here, on mounts.
pub fn can_be_root() -> bool {
    if !can_mount() {
        return false;
    }
    if std::env::var_os("QUAYFS_SKIP_ROOT").is_some_and(|v| v == "1") {
        eprintln!("not tested: QUAYFS_SKIP_ROOT=1");
        return false;
    }
    assert!(
        rustix::process::getuid().is_root(),
        "this test becomes other users, or does what only root may: run it as root, or set \
         QUAYFS_SKIP_ROOT=1 to leave such tests out"
    );
    true
}
