//! A volume: a pmem region and a data device, opened as a pair that belongs together. Either a directory names both, as
//! `pmem` and `data`, or one file or device holds the region and the data behind it.

pub(crate) mod backup;
mod below;
mod error;
mod evidence;
mod exposure;
mod fencing;
mod glance;
mod moving;
mod pair;
mod parts;
mod table;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::predecessor::Predecessor;
use crate::recovery::batch_log;
use quayfs_blockdev::{BlockDevice, FileDevice, OpenError, Options};
use quayfs_layout::BLOCK;
use quayfs_layout::config::ConfigTable;
use quayfs_pmem::{LockKind, MapOptions, PmemError, Region, Replayed};
use quayfs_restart::Postings;

pub use backup::{Beheaded, beheaded, occupant, refusal, store as store_backup, superblock};
pub use below::below;
pub use error::VolumeError;
pub use exposure::{exposure, is_only_readable, openness};
pub use glance::{Glance, Left, config_of, glance, has_lost_its_log, touch};
pub use moving::moved_region;
use pair::{check_features, check_pair, read_config};
pub use parts::{LOGS, Place, in_the_way, is_device_path, lasting_name, locate};

/// How long commands wait for a volume that a process has open: one that only looks, or is about to end, is gone by then.
pub const SETTLING: Duration = Duration::from_secs(1);

/// Name of the pmem region in a volume's directory.
pub const PMEM: &str = "pmem";
/// Name of the data device in a volume's directory.
pub const DATA: &str = "data";

/// How a volume is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Nothing on the media changes: recovery works on a private copy of the region in memory.
    ReadOnly,
    /// For mounting.
    ReadWrite,
}

/// Says whether a data device whose header is damaged belongs to a region all the same.
pub type Vouch = fn(&Region, &ConfigTable, &dyn BlockDevice) -> bool;

/// Damage to the header of the data device is never good enough.
pub fn nobody(_: &Region, _: &ConfigTable, _: &dyn BlockDevice) -> bool {
    false
}

/// How a volume is opened, in full.
#[derive(Clone, Copy, Debug)]
pub struct Opening {
    /// For reading, or for writing as well.
    pub access: Access,
    /// How long to wait for a previous user to finish.
    pub wait: Duration,
    /// What to do about a damaged header of the data device.
    pub vouch: Vouch,
    /// Whether a region that is to be written is allocated in full, as is right for a volume with a user's files.
    /// Without it a store that finds no space ends the process.
    pub allocate: bool,
    /// Whether media that others have access to ([`exposure()`]) are refused, before anything is changed.
    pub private: bool,
    /// Whether to go on, for a repair, if nothing says what of the batch log counts. For reading only that is always so.
    pub lenient: bool,
    /// Of a region on a disk, how many bytes may lie in memory of this process because they were stored to
    /// ([`MapOptions::memory`]).
    pub memory: Option<u64>,
}

impl Opening {
    /// The usual way.
    pub fn new(access: Access, wait: Duration) -> Self {
        Self {
            access,
            wait,
            vouch: nobody,
            allocate: true,
            private: false,
            lenient: false,
            memory: None,
        }
    }

    fn lock(&self) -> LockKind {
        match self.access {
            Access::ReadOnly => LockKind::Shared,
            Access::ReadWrite => LockKind::Exclusive,
        }
    }
}

/// An opened volume, not recovered.
pub struct Volume {
    path: PathBuf,
    access: Access,
    config: ConfigTable,
    region: Arc<Region>,
    device: Arc<dyn BlockDevice>,
    /// Holds the lock of a volume whose region is a private copy.
    _locked: Option<Region>,
    /// Holds those of the files below its devices.
    _below: Vec<File>,
    /// Why it is open for reading only, if that was not asked for.
    protected: Option<String>,
    /// Damage that opening it has passed over.
    obstacle: Option<String>,
    one_device: bool,
    predecessor: Option<Predecessor>,
    postings: Option<Arc<Postings>>,
}

impl Volume {
    /// Opens the volume at `dir`, waiting up to `wait` for a previous user to finish.
    pub fn open(dir: &Path, access: Access, wait: Duration) -> Result<Self, VolumeError> {
        Self::open_with(dir, Opening::new(access, wait))
    }

    /// Opens `dir` to be mounted: not if others have access to it, and for reading only where a medium is
    /// write-protected, as [`Volume::protected`] then says.
    pub fn open_for_mount(
        dir: &Path,
        access: Access,
        wait: Duration,
        memory: Option<u64>,
    ) -> Result<Self, VolumeError> {
        let open = |access| {
            let how = Opening {
                private: true,
                memory,
                ..Opening::new(access, wait)
            };
            Self::open_with(dir, how)
        };
        match open(access) {
            Err(VolumeError::WriteProtected { path, why }) => {
                let mut volume = open(Access::ReadOnly)?;
                volume.protected = Some(format!("{} is write-protected ({why})", path.display()));
                Ok(volume)
            }
            other => other,
        }
    }

    /// As [`Volume::open`], but a device whose header is damaged will do if `vouch` says so: for
    /// checking and repairing.
    pub fn open_vouched(
        dir: &Path,
        access: Access,
        wait: Duration,
        vouch: Vouch,
    ) -> Result<Self, VolumeError> {
        let opening = Opening::new(access, wait);
        let lenient = true;
        Self::open_with(
            dir,
            Opening {
                vouch,
                lenient,
                ..opening
            },
        )
    }

    /// Opens `dir`.
    ///
    /// For reading only, nothing of the region is looked at where it is mapped: it is read by system calls into a
    /// private copy. This neither fills holes nor dies of a file that another process cuts short.
    pub fn open_with(dir: &Path, how: Opening) -> Result<Self, VolumeError> {
        let place = locate(dir)?;
        let Place {
            path, pmem, data, ..
        } = place.clone();
        let read_only = how.access == Access::ReadOnly;
        let region = open_region(&place, how)?;
        let below = below::lock(([&pmem, &data], &path), how.lock(), how.wait)?;
        let config = read_config(&region)?.map_err(|why| VolumeError::Config {
            path: pmem.clone(),
            why,
        })?;
        if how.access == Access::ReadWrite {
            backup::refuse_others(&region, &pmem)?;
        }
        let options = Options {
            read_only,
            start: place.region_len.unwrap_or_default() / BLOCK as u64,
            ..Options::default()
        };
        let device = open_data(&data, options, how.wait)?;
        if place.region_len.is_none() {
            lock_data(&device, &path, how)?;
        }
        if how.access == Access::ReadWrite {
            await_the_dead(&device, &path, how)?;
        }
        check_pair(&config, (&region, &pmem), (&device, &data), how.vouch)?;
        check_features(&config, how.access)?;
        if how.private {
            check_exposure((&region, &pmem), (&device, &data))?;
        }
        let (region, locked) = match how.access {
            Access::ReadWrite => {
                if how.allocate {
                    region.allocate(0, region.len())?;
                }
                (region, None)
            }
            Access::ReadOnly => (region.load()?, Some(region)),
        };
        let lenient = how.access == Access::ReadOnly || how.lenient;
        let obstacle = replay_batches(&region, &config, lenient)?;
        let mut volume = Self {
            obstacle,
            path,
            access: how.access,
            config,
            region: Arc::new(region),
            device: Arc::new(device),
            _locked: locked,
            _below: below,
            protected: None,
            one_device: place.region_len.is_some(),
            predecessor: None,
            postings: None,
        };
        if how.private {
            volume.settle_before_anything()?;
        }
        volume.settle_move()?;
        Ok(volume)
    }

    /// A volume over parts that are open already: tests and crash images.
    pub fn from_parts(
        region: Arc<Region>,
        device: Arc<dyn BlockDevice>,
        access: Access,
    ) -> Result<Self, VolumeError> {
        Self::from_parts_vouched(region, device, access, nobody)
    }

    /// [`Volume::from_parts`] as [`Volume::open_vouched`].
    pub fn from_parts_vouched(
        region: Arc<Region>,
        device: Arc<dyn BlockDevice>,
        access: Access,
        vouch: Vouch,
    ) -> Result<Self, VolumeError> {
        let path = PathBuf::from("(memory)");
        let config = read_config(&region)?.map_err(|why| VolumeError::Config {
            path: path.join(PMEM),
            why,
        })?;
        check_pair(&config, (&region, &path), (&*device, &path), vouch)?;
        let mut volume = Self {
            path,
            access,
            config,
            region,
            device,
            _locked: None,
            _below: Vec::new(),
            protected: None,
            obstacle: None,
            one_device: false,
            predecessor: None,
            postings: None,
        };
        volume.settle_move()?;
        Ok(volume)
    }

    /// The mount goes on that this daemon had: nothing that it stored is missing, and what it has answered counts.
    pub fn follow(&mut self, predecessor: Predecessor) {
        self.predecessor = Some(predecessor);
    }

    /// The daemon whose mount goes on ([`Volume::follow`]).
    pub fn predecessor(&self) -> Option<&Predecessor> {
        self.predecessor.as_ref()
    }

    /// What large writes have on its way to the data device is to lie in this memory, which outlives this process. What the
    /// last daemon had on its way is in there already.
    pub fn post_from(&mut self, postings: Arc<Postings>) {
        self.postings = Some(postings);
    }

    /// The memory of [`Volume::post_from`].
    pub fn postings(&self) -> Option<&Arc<Postings>> {
        self.postings.as_ref()
    }

    /// The directory, or what holds both media.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How it was opened.
    pub fn access(&self) -> Access {
        self.access
    }

    /// Damage that opening it has passed over, and that a mount which may write is refused for.
    pub(crate) fn obstacle(&self) -> Option<&str> {
        self.obstacle.as_deref()
    }

    /// Why it could be opened for reading only ([`Volume::open_for_mount`]).
    pub fn protected(&self) -> Option<&str> {
        self.protected.as_deref()
    }

    /// The identity of the volume.
    pub fn config(&self) -> &ConfigTable {
        &self.config
    }

    /// Changes what the configuration table says, and counts that as one change. It must go on describing what the media
    /// hold. Durable when it returns; a crash before that leaves the old table or the new one. What this thread has stored
    /// before is durable when the new one counts.
    ///
    /// # Errors
    /// [`PmemError`] of drains: then either counts, and this is the old one.
    ///
    /// # Panics
    /// If the volume was opened for reading only.
    pub fn change_config(
        &mut self,
        change: impl FnOnce(&mut ConfigTable),
    ) -> Result<(), PmemError> {
        assert_eq!(self.access, Access::ReadWrite, "opened for writing");
        let mut new = self.config.clone();
        change(&mut new);
        new.changes += 1;
        let failed = |what| {
            let path = self.path.clone();
            move |source| PmemError::Io { what, path, source }
        };
        backup::take_back(&*self.device, &self.config)
            .map_err(failed("drop the copy of the configuration table"))?;
        table::replace(&self.region, &new)?;
        backup::store(&self.region, &*self.device, &new)
            .map_err(failed("write the copy of the configuration table"))?;
        self.config = new;
        Ok(())
    }

    /// Makes equal what a crash in [`Volume::change_config`] may have left different, and writes a damaged copy of the
    /// table again.
    pub(crate) fn settle_config(&self) -> Result<(), PmemError> {
        table::settle(&self.region)
    }

    /// The pmem region.
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Whether region and data device are one device or file, so that a flush of either is one of both.
    pub fn is_one_device(&self) -> bool {
        self.one_device
    }

    /// As if they were, in a test.
    pub fn of_one_device(mut self) -> Self {
        self.one_device = true;
        self
    }

    /// The data device.
    pub fn device(&self) -> &Arc<dyn BlockDevice> {
        &self.device
    }
}

/// Fails if users other than root and the one who runs this process have access to a medium. What is open counts, not
/// what has its name by now.
///
/// # Errors
/// [`VolumeError::Exposed`], and those of fstat(2).
pub fn check_exposure(
    (region, pmem): (&Region, &Path),
    (device, data): (&FileDevice, &Path),
) -> Result<(), VolumeError> {
    let of_region = region.metadata()?;
    let of_device = device
        .metadata()
        .map_err(|e| VolumeError::Device(e.to_string()))?;
    let media = [(pmem, of_region.as_ref()), (data, Some(&of_device))];
    for (path, meta) in media {
        if let Some(why) = meta.and_then(|meta| exposure(path, meta)) {
            let path = path.into();
            return Err(VolumeError::Exposed { path, why });
        }
    }
    Ok(())
}

/// Opens and locks the region.
fn open_region(place: &Place, how: Opening) -> Result<Region, VolumeError> {
    let read_only = how.access == Access::ReadOnly;
    let options = MapOptions {
        read_only,
        require: None,
        len: place.region_len,
        memory: how.memory,
    };
    let region = Region::open(&place.pmem, options)?;
    match region.lock_within(how.lock(), how.wait)? {
        true => Ok(region),
        false => Err(VolumeError::Busy(place.path.clone())),
    }
}

/// What the last mount has only written to the batch log is put where it belongs, in the region or in its copy.
///
/// Returns what was passed over because that is to be `lenient`.
fn replay_batches(
    region: &Region,
    config: &ConfigTable,
    lenient: bool,
) -> Result<Option<String>, PmemError> {
    let Some(log) = batch_log(&config.geometry, config.salt()) else {
        return Ok(None);
    };
    match region.replay_batches(&log) {
        Ok(Replayed { batches: 0, .. }) => Ok(None),
        Ok(Replayed { batches, bytes }) => {
            tracing::info!("{batches} batches of {bytes} bytes replayed");
            Ok(None)
        }
        Err(why @ PmemError::BatchLog) if lenient => {
            tracing::error!("{why}");
            Ok(Some(why.to_string()))
        }
        Err(other) => Err(other),
    }
}

/// How long a device that nothing of ours has open may be in use by what a daemon had under way that has died.
const LINGERS: Duration = Duration::from_secs(2);

/// Opens the data device. The region is locked, so no daemon has it; but a block device stays claimed until the last transfer
/// of a dead one has ended.
fn open_data(path: &Path, options: Options, wait: Duration) -> Result<FileDevice, OpenError> {
    let begun = Instant::now();
    loop {
        match FileDevice::open(path, options) {
            Err(OpenError::Io { source, .. })
                if source.raw_os_error() == Some(libc::EBUSY)
                    && begun.elapsed() < wait.min(LINGERS) =>
            {
                thread::sleep(Duration::from_millis(5));
            }
            other => return other,
        }
    }
}

/// What a daemon that has died had under way to the data device arrives before anything newer.
fn await_the_dead(device: &FileDevice, volume: &Path, how: Opening) -> Result<(), VolumeError> {
    match device.claim(how.wait) {
        Ok(true) => Ok(()),
        Ok(false) => Err(VolumeError::Busy(volume.into())),
        Err(e) => Err(VolumeError::Device(e.to_string())),
    }
}

/// Locks a data file, so that no other volume is made of it. The system looks after devices that are open for
/// writing.
fn lock_data(device: &FileDevice, volume: &Path, how: Opening) -> Result<(), VolumeError> {
    if device.is_block_device() {
        return Ok(());
    }
    let locked = match how.access {
        Access::ReadOnly => device.lock_shared(how.wait),
        Access::ReadWrite => device.lock_exclusive(how.wait),
    };
    match locked {
        Ok(true) => Ok(()),
        Ok(false) => Err(VolumeError::Busy(volume.into())),
        Err(e) => Err(VolumeError::Device(e.to_string())),
    }
}
