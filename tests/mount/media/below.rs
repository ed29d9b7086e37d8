//! Devices and file systems for volumes to lie on. They go with the test.

use crate::program::Start as _;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Runs a program that has to succeed, and returns what it says.
#[track_caller]
pub fn run(program: &str, args: &[&dyn AsRef<OsStr>]) -> String {
    let args = args.iter().map(|a| a.as_ref());
    let output = Command::new(program).args(args).capture().unwrap();
    assert!(output.status.success(), "{program}: {output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_string()
}

/// A loop device.
pub struct Loop(PathBuf);

impl Loop {
    /// On a new file of so many bytes.
    #[track_caller]
    pub fn new(file: &Path, len: u64) -> Self {
        std::fs::File::create_new(file)
            .and_then(|f| f.set_len(len))
            .unwrap();
        Self(run("losetup", &[&"-f", &"--show", &file]).into())
    }

    /// Another one on the same file.
    #[track_caller]
    pub fn again(file: &Path) -> Self {
        Self(run("losetup", &[&"-f", &"--show", &file]).into())
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Whether it refuses writes from now on.
    #[track_caller]
    pub fn protect(&self, yes: bool) {
        run(
            "blockdev",
            &[&if yes { "--setro" } else { "--setrw" }, &self.0],
        );
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        // The next user of this loop device would find it protected.
        let _ = Command::new("blockdev")
            .arg("--setrw")
            .arg(&self.0)
            .finish();
        let _ = Command::new("losetup").arg("-d").arg(&self.0).finish();
    }
}

/// A mounted file system.
pub struct Mount(PathBuf);

impl Mount {
    /// One in memory.
    #[track_caller]
    pub fn in_memory(at: &Path, size: &str) -> Self {
        std::fs::create_dir(at).unwrap();
        let size = format!("size={size},mode=755");
        run("mount", &[&"-t", &"tmpfs", &"-o", &size, &"none", &at]);
        Self(at.into())
    }

    /// An ext4 on a device.
    #[track_caller]
    pub fn ext4(at: &Path, device: &Loop) -> Self {
        std::fs::create_dir(at).unwrap();
        run("mkfs.ext4", &[&"-q", &device.path()]);
        run("mount", &[&device.path(), &at]);
        Self(at.into())
    }

    #[track_caller]
    pub fn remount(&self, options: &str) {
        let options = format!("remount,{options}");
        run("mount", &[&"-o", &options, &self.0]);
    }

    /// Takes what space is left, as a file that can be removed.
    #[track_caller]
    pub fn fill(&self) -> PathBuf {
        let path = self.0.join("filler");
        let mut file = std::fs::File::create_new(&path).unwrap();
        let mut zeros = &[0; 1 << 20][..];
        loop {
            match std::io::Write::write(&mut file, zeros) {
                Ok(_) => {}
                Err(e) if e.raw_os_error() == Some(libc::ENOSPC) && zeros.len() > 4096 => {
                    zeros = &zeros[..4096];
                }
                Err(e) if e.raw_os_error() == Some(libc::ENOSPC) => return path,
                Err(e) => panic!("{e}"),
            }
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).finish();
    }
}
