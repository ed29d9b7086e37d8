//! ext4 of the kernel, which paper 3 compares with, and the loop devices on which it lies. All of it takes root,
//! util-linux and e2fsprogs.

use super::volume::{Site, Work, run_in};
use quayfs_bench::report::Sample;
use quayfs_bench::{Error, Result};
use quayfs_blockdev::create_file;
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where ext4 has its journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JournalOn {
    /// With the data, as `mkfs.ext4` makes it.
    Device,
    /// On a loop device over a file where regions are, of a region's size.
    Memory,
}

impl JournalOn {
    /// What reports say of it.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Device => "ext4, its journal with the data",
            Self::Memory => "ext4, its journal on a loop device where regions are",
        }
    }
}

/// Runs a program of the system.
///
/// # Errors
/// It is not there, or what it says if it fails.
fn tool<'a>(name: &str, args: impl IntoIterator<Item = &'a OsStr>) -> Result<String> {
    let failed = |why: String| Error::File {
        path: name.into(),
        source: io::Error::other(why),
    };
    let out = Command::new(name).args(args).output();
    let out = out.map_err(|e| failed(e.to_string()))?;
    if out.status.success() {
        return Ok(String::from_utf8_lossy(&out.stdout).trim().to_owned());
    }
    Err(failed(
        String::from_utf8_lossy(&out.stderr).trim().to_owned(),
    ))
}

/// A loop device over a file, past the page cache of the file system below. Detached when this goes.
pub struct Loop(PathBuf);

impl Loop {
    /// Attaches one.
    ///
    /// # Errors
    /// What `losetup` says.
    pub fn over(file: &Path) -> Result<Self> {
        let options = ["--find", "--show", "--direct-io=on"].map(OsStr::new);
        let args = options.into_iter().chain([file.as_os_str()]);
        tool("losetup", args).map(|device| Self(device.into()))
    }

    /// Its node in `/dev`.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        // What is left attached does no harm, and `losetup` shows it.
        let _ = tool("losetup", [OsStr::new("--detach"), self.0.as_os_str()]);
    }
}

/// An unused ext4, mounted. Unmounted when this goes.
pub struct Ext4 {
    target: PathBuf,
    mounted: bool,
    // Detached after the mount is gone, in this order.
    data: Loop,
    journal: Option<Journal>,
}

/// A file of memory with a loop device above it.
struct Journal {
    device: Loop,
    file: PathBuf,
}

impl Drop for Journal {
    fn drop(&mut self) {
        // The device goes after its file, which keeps what it needs as long as it is attached.
        let _ = std::fs::remove_file(&self.file);
    }
}

impl Journal {
    fn make(site: &Site) -> Result<Self> {
        let file = site.pmem.path().join("journal");
        create_file(&file, site.pmem_size, false).map_err(Error::file(&file))?;
        let device = match Loop::over(&file) {
            Ok(device) => device,
            Err(e) => {
                let _ = std::fs::remove_file(&file);
                return Err(e);
            }
        };
        let journal = Self { device, file };
        let options = ["-q", "-F", "-b", "4096", "-O", "journal_dev"].map(OsStr::new);
        let device = journal.device.path().as_os_str();
        tool("mke2fs", options.into_iter().chain([device]))?;
        Ok(journal)
    }
}

impl Ext4 {
    /// Makes one over the site's data file, and mounts it with `options`.
    ///
    /// # Errors
    /// What one of the programs says.
    pub fn mount(site: &Site, journal: JournalOn, options: &str) -> Result<Self> {
        let journal = match journal {
            JournalOn::Device => None,
            JournalOn::Memory => Some(Journal::make(site)?),
        };
        let target = site.mounts.path().join("ext4");
        std::fs::create_dir_all(&target).map_err(Error::file(&target))?;
        let mut ext4 = Self {
            target,
            mounted: false,
            data: site.on_loop()?,
            journal,
        };
        // Nothing is left for later, and the file below keeps its blocks.
        let extended = "lazy_itable_init=0,lazy_journal_init=0,nodiscard";
        let mut args: Vec<String> = ["-q", "-F", "-t", "ext4", "-b", "4096", "-E", extended]
            .map(Into::into)
            .into();
        if let Some(journal) = &ext4.journal {
            let device = journal.device.path().display();
            args.extend(["-J".into(), format!("device={device}")]);
        }
        let device = ext4.data.path().as_os_str().to_owned();
        let args = args.iter().map(OsStr::new).chain([device.as_os_str()]);
        tool("mke2fs", args)?;
        let args = ["-t", "ext4", "-o", options].map(OsStr::new);
        let places = [device.as_os_str(), ext4.target.as_os_str()];
        tool("mount", args.into_iter().chain(places))?;
        ext4.mounted = true;
        Ok(ext4)
    }

    /// Runs a workload on it.
    ///
    /// # Errors
    /// What the file system or `umount` said; [`Error::Stopped`].
    pub fn run(mut self, work: &Work<'_>) -> Result<Sample> {
        let sample = run_in(work, &self.target);
        self.mounted = false;
        tool("umount", [self.target.as_os_str()])?;
        sample
    }
}

impl Drop for Ext4 {
    fn drop(&mut self) {
        if self.mounted {
            // The run has failed already, and with a better reason.
            let _ = tool("umount", [self.target.as_os_str()]);
        }
    }
}
