//! Fresh volumes, and runs on them: through the operation layer, or through a mount.

use quayfs_background::checkpoint;
use quayfs_background::digest::digest_all;
use quayfs_fs::Fs;
use quayfs_fs::volume::{Access, Opening, Volume};
use quayfs_mkfs::{MkfsOptions, mkfs};
use quayfs_options::MountOptions;

use super::free_writes::{CONTENT, FreeWrites, fill};
use super::kernel::Loop;
use super::mounted::{Mounted, Program};
use super::table::{Place, Variant, Writes};
use crate::library::OpLayer;
use crate::library::page_cache::PageCache;
use quayfs_bench::library::Library;
use quayfs_bench::observe::{Counters, Observed};
use quayfs_bench::report::Sample;
use quayfs_bench::run::{self, Between};
use quayfs_bench::runner::{Run, sample};
use quayfs_bench::target::Target;
use quayfs_bench::workload::{self, Params, Workload};
use quayfs_bench::{Error, Result};
use quayfs_blockdev::{BlockDevice, FileDevice, Options, create_file};
use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Where volumes are made, and how large. Everything in the directories goes when this goes.
pub struct Site {
    /// For the data, and for regions on the disk.
    pub data: Scratch,
    /// For regions.
    pub pmem: Scratch,
    /// For mount points.
    pub mounts: Scratch,
    /// What mounts.
    pub quayfs: Program,
    /// Bytes of a region.
    pub pmem_size: u64,
    /// Bytes of data.
    pub data_size: u64,
    /// The data file of all volumes, once it is there.
    pub written: OnceLock<PathBuf>,
}

/// A directory of this process.
pub struct Scratch(PathBuf);

impl Scratch {
    /// Makes one below `parent`.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn below(parent: &Path, name: &str) -> Result<Self> {
        let path = parent.join(format!("quayfs-papers-{name}.{}", std::process::id()));
        std::fs::create_dir(&path).map_err(Error::file(&path))?;
        Ok(Self(path))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What is left there does no harm.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Adapter for `map_err`: what went wrong with a file of ours.
pub fn about<E: Display>(path: &Path) -> impl FnOnce(E) -> Error {
    let path = path.to_owned();
    move |e| Error::File {
        path,
        source: io::Error::other(e.to_string()),
    }
}

impl Site {
    /// Makes an unused volume, with its data on `device` if there is one.
    ///
    /// # Errors
    /// `mkfs` fails.
    pub fn fresh(&self, variant: &Variant, device: Option<&Loop>) -> Result<Fresh> {
        let sizes = (self.pmem_size * variant.times, self.data_size);
        let data = match device {
            Some(device) => device.path().to_owned(),
            None => self.written()?,
        };
        self.make(variant, sizes, Some(data))
    }

    /// A loop device over the data file of all volumes.
    ///
    /// # Errors
    /// There is none.
    pub fn on_loop(&self) -> Result<Loop> {
        Loop::over(&self.written()?)
    }

    /// A file for data of which every block was written: the first write of a block makes the file system
    /// around it note that, which is not what is measured.
    fn written(&self) -> Result<PathBuf> {
        if let Some(path) = self.written.get() {
            return Ok(path.clone());
        }
        let path = self.data.path().join("written");
        let written = (|| {
            create_file(&path, self.data_size, false)?;
            let file = FileDevice::open(&path, Options::default());
            let file = file.map_err(|e| io::Error::other(e.to_string()))?;
            fill(&file, 0..file.blocks())
        })();
        written.map_err(Error::file(&path))?;
        Ok(self.written.get_or_init(|| path).clone())
    }

    /// As [`Site::fresh`], with a region and a device of these sizes, whose files have no blocks yet.
    ///
    /// # Errors
    /// As of [`Site::fresh`].
    pub fn sparse(&self, variant: &Variant, pmem_size: u64, data_size: u64) -> Result<Fresh> {
        self.make(variant, (pmem_size, data_size), None)
    }

    fn make(&self, variant: &Variant, sizes: (u64, u64), data: Option<PathBuf>) -> Result<Fresh> {
        let dir = self.data.path().join("volume");
        let region = match variant.place {
            Place::Pmem => Some(self.pmem.path().join("region")),
            Place::Disk | Place::Nowhere | Place::DataAlone | Place::Ext4(_) => None,
        };
        let fresh = Fresh {
            dir,
            region,
            writes: variant.writes,
        };
        let options = MkfsOptions {
            pmem: fresh.region.clone(),
            pmem_size: Some(sizes.0),
            data_size: Some(sizes.1),
            sparse: data.is_none(),
            // What the file has of the volume before is no loss.
            force: data.is_some(),
            data,
            buffers: variant.buffers,
            ..MkfsOptions::default()
        };
        mkfs(&fresh.dir, &options).map_err(about(&fresh.dir))?;
        Ok(fresh)
    }
}

/// A volume, removed when this goes.
pub struct Fresh {
    dir: PathBuf,
    region: Option<PathBuf>,
    writes: Writes,
}

impl Drop for Fresh {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
        if let Some(region) = &self.region {
            let _ = std::fs::remove_file(region);
        }
    }
}

/// A workload with all that a run of it needs.
pub struct Work<'a> {
    /// The workload.
    pub workload: &'a dyn Workload,
    /// Its parameters.
    pub params: &'a Params,
    /// Ends it when set.
    pub stop: &'a AtomicBool,
    /// On the operation layer it writes [`CONTENT`] instead of what it asks for: one of the variants does not write
    /// that to the device, and what takes less there has to take less with all of them.
    pub one_byte: bool,
    /// There is a page cache above the operation layer, as there is above a mount.
    pub page_cache: bool,
}

impl Fresh {
    /// The volume's directory.
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// Mounts it without a kernel.
    ///
    /// # Errors
    /// Options that contradict each other; the volume cannot be recovered.
    pub fn open(&self, options: &str) -> Result<Arc<Fs>> {
        let options = MountOptions::parse(&[options]).map_err(about(&self.dir))?;
        Fs::mount(self.volume()?, &options).map_err(about(&self.dir))
    }

    /// As [`Fresh::open`], without background threads.
    ///
    /// # Errors
    /// As of [`Fresh::open`].
    pub fn open_quiet(&self, options: &str) -> Result<Arc<Fs>> {
        let options = MountOptions::parse(&[options]).map_err(about(&self.dir))?;
        Fs::mount_quiet(self.volume()?, &options).map_err(about(&self.dir))
    }

    fn volume(&self) -> Result<Volume> {
        let usual = Opening::new(Access::ReadWrite, Duration::ZERO);
        // Regions of measurements are as large as their devices make them, and mostly holes.
        let opened = Volume::open_with(
            &self.dir,
            Opening {
                allocate: false,
                ..usual
            },
        );
        let volume = opened.map_err(about(&self.dir))?;
        let under = Arc::clone(volume.device());
        let geometry = &volume.config().geometry;
        let data = geometry.data_start..geometry.data_start + geometry.blocks;
        let device = match self.writes {
            Writes::Real => return Ok(volume),
            Writes::Free => FreeWrites::over(under, data),
            Writes::Long => FreeWrites::with_long_ones(under, data),
        };
        let device = device.map_err(about(&self.dir))?;
        let region = Arc::clone(volume.region());
        Volume::from_parts(region, Arc::new(device), Access::ReadWrite).map_err(about(&self.dir))
    }

    /// The data device, for a caller that destroys the volume.
    ///
    /// # Errors
    /// The volume cannot be opened.
    pub fn device(&self) -> Result<Arc<dyn BlockDevice>> {
        Ok(Arc::clone(self.volume()?.device()))
    }

    /// Runs a workload on the operation layer. What it leaves staged is written to the device before
    /// bytes are counted.
    ///
    /// # Errors
    /// What the file system said; [`Error::Stopped`].
    pub fn run_on_ops(&self, work: &Work<'_>, options: &str) -> Result<Sample> {
        let info = work.workload.info();
        info.check_library()?;
        let fs = self.open(options)?;
        // The region is faulted in.
        fs.finish_chores();
        let mut layer = OpLayer::new(Arc::clone(&fs));
        if work.one_byte {
            layer = layer.writing(&CONTENT);
        }
        let layer: Box<dyn Library> = match work.page_cache {
            true => Box::new(PageCache::over(layer)),
            false => Box::new(layer),
        };
        let place = workload::Place::within(work.params, &*layer, work.stop)?;
        let space = fs.statfs();
        let full_before = 1.0 - space.free as f64 / space.blocks.max(1) as f64;
        let mut between = Warm {
            fs: &fs,
            before: None,
            settled: false,
        };
        let job = work.workload.prepare(&place)?;
        let steps = info.steps.len();
        let tallies = run::run(&*job, &place, steps, false, work.stop, &mut between);
        let after = counters(&fs)?;
        drop((job, place));
        drop(layer);
        let ended = fs.shutdown().map_err(about(&self.dir));
        let (tallies, ()) = (tallies?, ended?);
        let last = counters(&fs)?;
        let before = between.before.as_ref().unwrap_or(&after);
        let mut observed = Observed::between(before, &after, &last);
        // There are no messages, and no other process does the work.
        observed.messages = None;
        observed.settled = [between.settled, true];
        let total = run::merge(tallies, work.params).ok_or(Error::Stopped)?;
        Ok(sample(info, total, observed, full_before, false))
    }

    /// Mounts it and runs a workload there. Bytes are counted until the run ends.
    ///
    /// # Errors
    /// What the file system said; [`Error::Stopped`].
    pub fn run_on_mount(&self, work: &Work<'_>, options: &str, site: &Site) -> Result<Sample> {
        let mounted = Mounted::new(&site.quayfs, &self.dir, &site.mounts, options)?;
        let sample = run_in(work, mounted.path());
        mounted.end()?;
        sample
    }
}

/// Runs a workload in a directory.
///
/// # Errors
/// What the file system said; [`Error::Stopped`].
pub fn run_in(work: &Work<'_>, dir: &Path) -> Result<Sample> {
    let target = Target::new("mount", dir)?;
    let run = Run {
        workload: work.workload,
        params: work.params,
        target: &target,
        patience: Duration::ZERO,
        pin: false,
        keep_caches: false,
        stop: work.stop,
    };
    run.make()
}

/// Runs a workload on something that is no volume.
///
/// # Errors
/// [`Error::Stopped`]; the workload wants more than that has.
pub fn run_on_library(work: &Work<'_>, layer: &dyn Library) -> Result<Sample> {
    let info = work.workload.info();
    info.check_library()?;
    let place = workload::Place::within(work.params, layer, work.stop)?;
    let job = work.workload.prepare(&place)?;
    let count = || Counters::of_library(serde_json::json!({}));
    let before = count()?;
    let steps = info.steps.len();
    let tallies = run::run(&*job, &place, steps, false, work.stop, &mut Unchanged)?;
    let after = count()?;
    let mut observed = Observed::between(&before, &after, &after);
    observed.messages = None;
    let total = run::merge(tallies, work.params).ok_or(Error::Stopped)?;
    Ok(sample(info, total, observed, 0.0, false))
}

/// There is nothing to do between the parts of a run.
struct Unchanged;

impl Between for Unchanged {
    fn prepared(&mut self) -> Result<()> {
        Ok(())
    }

    fn warm(&mut self) -> Result<()> {
        Ok(())
    }
}

/// Reads the counters when the warm-up is over.
struct Warm<'f> {
    fs: &'f Fs,
    before: Option<Counters>,
    settled: bool,
}

impl Between for Warm<'_> {
    /// What the preparation has staged is not for the run to write.
    fn prepared(&mut self) -> Result<()> {
        let e = &self.fs.e;
        let written = (|| {
            self.fs.sync_all()?;
            digest_all(e)?;
            checkpoint::round(e)
        })();
        written.map_err(about(self.fs.volume_path()))?;
        self.settled = self.fs.e.journal.stats().slots_used == 0;
        Ok(())
    }

    fn warm(&mut self) -> Result<()> {
        self.before = Some(counters(self.fs)?);
        Ok(())
    }
}

fn counters(fs: &Fs) -> Result<Counters> {
    let status = serde_json::to_value(fs.status()).map_err(about(fs.volume_path()))?;
    Counters::of_library(status)
}
