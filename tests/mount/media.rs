//! The media below a volume: write-protected, full, cut short, gone, or open to others; and what a mkfs that
//! fails leaves of them.
//!
//! Needs `/dev/fuse`, root, loop devices, e2fsprogs and util-linux.

mod below;
mod exposed;
mod full;
mod gone;
mod made;
mod one;
mod protected;

use crate::program::{self, Run, Start as _, eventually, quayfs};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

/// A volume of these media, and where it is mounted.
struct Volume {
    dir: tempfile::TempDir,
}

impl Volume {
    /// Room for one, below a directory that every user may pass, on a medium where a flush costs nothing.
    fn room() -> Self {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let volume = Self { dir };
        std::fs::create_dir(volume.mnt()).unwrap();
        volume
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn vol(&self) -> PathBuf {
        self.at("vol")
    }

    fn mnt(&self) -> PathBuf {
        self.at("mnt")
    }

    /// Makes it: 32 MiB and 64 MiB, unless `more` says otherwise.
    fn mkfs(&self, more: &[&dyn AsRef<OsStr>]) -> Run {
        let mut args = vec![OsStr::new("mkfs").to_owned(), self.vol().into()];
        args.extend(more.iter().map(|a| a.as_ref().to_owned()));
        for (option, medium, size) in [
            ("--pmem-size", "--pmem", "32M"),
            ("--data-size", "--data", "64M"),
        ] {
            if !args.iter().any(|a| a == option || a == medium) {
                args.extend([option.into(), size.into()]);
            }
        }
        quayfs(args)
    }

    fn command(&self, name: &str) -> Run {
        quayfs([OsStr::new(name), self.vol().as_os_str()])
    }

    fn mount(&self, options: &str) -> Run {
        let (vol, mnt) = (self.vol(), self.mnt());
        quayfs([
            OsStr::new("mount"),
            vol.as_os_str(),
            mnt.as_os_str(),
            OsStr::new("-o"),
            OsStr::new(options),
        ])
    }

    fn umount(&self) -> Run {
        quayfs([OsStr::new("umount"), self.mnt().as_os_str()])
    }

    #[track_caller]
    fn info(&self) -> serde_json::Value {
        let mnt = self.mnt();
        let text = quayfs([OsStr::new("info"), mnt.as_os_str(), OsStr::new("--json")]);
        serde_json::from_str(&text.ok()).unwrap()
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.vol().join("quayfs.log")).unwrap_or_default()
    }

    /// `ro` or `rw`, as the mount table has it.
    fn table(&self) -> Option<String> {
        // Others may have mounted what is no text.
        let table = std::fs::read("/proc/mounts").unwrap();
        let table = String::from_utf8_lossy(&table);
        let mnt = self.mnt();
        let line = table
            .lines()
            .rfind(|l| l.split(' ').nth(1).map(Path::new) == Some(&mnt))?;
        Some(line.split([' ', ',']).nth(3)?.to_string())
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        if self.table().is_some() {
            let _ = Command::new("umount")
                .args(["-i", "-l"])
                .arg(self.mnt())
                .finish();
        }
    }
}

/// A process that does not outlive the test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The program run by user 65534 in `dir`. That user may not go where the program is, so a copy is run.
fn as_nobody(dir: &Path, args: &[&dyn AsRef<OsStr>]) -> Run {
    use std::os::unix::fs::PermissionsExt;
    let place = tempfile::tempdir().unwrap();
    std::fs::set_permissions(place.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let program = place.path().join("quayfs");
    program::copy_program(&program);
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    command.arg(program);
    command.args(args.iter().map(|a| a.as_ref()));
    command.current_dir(dir).capture().unwrap().into()
}
