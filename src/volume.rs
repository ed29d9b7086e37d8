//! A volume: a directory with `pmem` and `data`, opened as a pair that belongs together.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use quayfs_blockdev::{BlockDevice, FileDevice, Options};
use quayfs_layout::BLOCK;
use quayfs_layout::config::{
    COPIES, ConfigError, ConfigTable, DataHeader, INCOMPAT_KNOWN, RO_COMPAT_KNOWN,
};
use quayfs_pmem::{LockKind, MapOptions, PmemError, Region};

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

/// Why a volume cannot be opened. Prints as one line that says what to do.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// The directory or one of its two members is missing.
    #[error("{}: no such volume; `quayfs mkfs {}` makes one", .0.display(), .0.display())]
    Missing(PathBuf),
    /// The pmem region cannot be used.
    #[error(transparent)]
    Pmem(#[from] PmemError),
    /// The data device cannot be used.
    #[error("data device: {0}")]
    Device(String),
    /// Another process uses the volume.
    #[error("{}: in use by another process (already mounted?)", .0.display())]
    Busy(PathBuf),
    /// No configuration table is intact.
    #[error("{}: not a QuayFS pmem region: {why}", path.display())]
    Config {
        /// The region.
        path: PathBuf,
        /// What is wrong with the better copy.
        why: ConfigError,
    },
    /// The data device is not the one of this region.
    #[error("{}: {why}", path.display())]
    Pairing {
        /// The data device.
        path: PathBuf,
        /// What does not fit.
        why: String,
    },
    /// Made by a newer version.
    #[error(
        "the volume has features (mask {0:#x}) that this version does not know; use a newer one"
    )]
    Features(u64),
}

/// Says whether a data device whose header is damaged belongs to a region all the same.
pub type Vouch = fn(&Region, &ConfigTable, &dyn BlockDevice) -> bool;

/// Damage to the header of the data device is never good enough.
pub fn nobody(_: &Region, _: &ConfigTable, _: &dyn BlockDevice) -> bool {
    false
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
}

impl Volume {
    /// Opens `dir`, waiting up to `wait` for a previous user to finish.
    pub fn open(dir: &Path, access: Access, wait: Duration) -> Result<Self, VolumeError> {
        Self::open_vouched(dir, access, wait, nobody)
    }

    /// As [`Volume::open`], but a device whose header is damaged will do if `vouch` says so: for
    /// checking and repairing.
    pub fn open_vouched(
        dir: &Path,
        access: Access,
        wait: Duration,
        vouch: Vouch,
    ) -> Result<Self, VolumeError> {
        let path = dir
            .canonicalize()
            .map_err(|_| VolumeError::Missing(dir.into()))?;
        let (pmem, data) = (path.join(PMEM), path.join(DATA));
        if !pmem.exists() || !data.exists() {
            return Err(VolumeError::Missing(dir.into()));
        }
        let read_only = access == Access::ReadOnly;
        let region = Region::open(
            &pmem,
            MapOptions {
                read_only,
                require: None,
            },
        )?;
        let kind = if read_only {
            LockKind::Shared
        } else {
            LockKind::Exclusive
        };
        if !region.lock_within(kind, wait)? {
            return Err(VolumeError::Busy(path));
        }
        let config = read_config(&region).map_err(|why| VolumeError::Config { path: pmem, why })?;
        let options = Options {
            read_only,
            ..Options::default()
        };
        let device =
            FileDevice::open(&data, options).map_err(|e| VolumeError::Device(e.to_string()))?;
        check_pair(&config, &region, &device, &data, vouch)?;
        Self::assemble(path, access, config, region, Arc::new(device))
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
        let config = read_config(&region).map_err(|why| VolumeError::Config {
            path: path.join(PMEM),
            why,
        })?;
        check_pair(&config, &region, &*device, &path, vouch)?;
        Ok(Self {
            path,
            access,
            config,
            region,
            device,
            _locked: None,
        })
    }

    fn assemble(
        path: PathBuf,
        access: Access,
        config: ConfigTable,
        region: Region,
        device: Arc<dyn BlockDevice>,
    ) -> Result<Self, VolumeError> {
        let unknown = config.compat[2] & !INCOMPAT_KNOWN
            | if access == Access::ReadWrite {
                config.compat[1] & !RO_COMPAT_KNOWN
            } else {
                0
            };
        if unknown != 0 {
            return Err(VolumeError::Features(unknown));
        }
        let (region, locked) = match access {
            Access::ReadWrite => (region, None),
            Access::ReadOnly => {
                let copy = region.private_copy();
                (copy, Some(region))
            }
        };
        Ok(Self {
            path,
            access,
            config,
            region: Arc::new(region),
            device,
            _locked: locked,
        })
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How it was opened.
    pub fn access(&self) -> Access {
        self.access
    }

    /// Who the volume is.
    pub fn config(&self) -> &ConfigTable {
        &self.config
    }

    /// The pmem region.
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// The data device.
    pub fn device(&self) -> &Arc<dyn BlockDevice> {
        &self.device
    }
}

fn read_config(region: &Region) -> Result<ConfigTable, ConfigError> {
    let mut worst = ConfigError::NotQuayfs;
    for off in COPIES {
        if off + BLOCK as u64 > region.len() {
            return Err(worst);
        }
        match ConfigTable::decode(&region.read_vec(off, BLOCK as u64)) {
            Ok(t) => return Ok(t),
            Err(ConfigError::NotQuayfs) => {}
            Err(e) => worst = e,
        }
    }
    Err(worst)
}

fn check_pair(
    config: &ConfigTable,
    region: &Region,
    device: &dyn BlockDevice,
    path: &Path,
    vouch: Vouch,
) -> Result<(), VolumeError> {
    let fail = |why: String| {
        Err(VolumeError::Pairing {
            path: path.into(),
            why,
        })
    };
    let (g, pmem_len) = (&config.geometry, region.len());
    if pmem_len < g.pmem_len {
        return fail(format!(
            "the pmem region has {pmem_len} bytes, mkfs made {}",
            g.pmem_len
        ));
    }
    let mut block = vec![0; BLOCK];
    device
        .read(0, &mut block)
        .map_err(|e| VolumeError::Device(e.to_string()))?;
    let theirs = |h: &DataHeader| h.uuid != config.uuid || h.data_uuid != config.data_uuid;
    match DataHeader::decode(&block) {
        Ok(h) if theirs(&h) => return fail("belongs to another QuayFS volume".into()),
        Err(e) if !vouch(region, config, device) => {
            return fail(format!("not a QuayFS data device: {e}"));
        }
        _ => {}
    }
    if device.blocks() < g.data_blocks {
        return fail(format!(
            "truncated: {} blocks, mkfs made {}",
            device.blocks(),
            g.data_blocks
        ));
    }
    Ok(())
}
