//! A volume in memory, and the means to damage it in ways that no checksum shows.

use std::sync::Arc;

use quayfs_blockdev::BlockDevice;
use quayfs_crashsim::SimDevice;
use quayfs_layout::BLOCK;
use quayfs_layout::config::{ConfigTable, Geometry};
use quayfs_pmem::{Backend, Region};

use crate::config::MountOptions;
use crate::fs::Fs;
use crate::fsck::{FsckOptions, FsckReport, check_volume};
use crate::volume::{Access, Volume};

/// Bytes of the region and of the device.
const PMEM: u64 = 20 << 20;
const DATA: u64 = 24 << 20;

/// Both media of a volume.
pub struct Disk {
    pub region: Arc<Region>,
    pub device: Arc<dyn BlockDevice>,
    pub config: ConfigTable,
}

impl Disk {
    /// A new volume.
    pub fn new() -> Self {
        let geometry = Geometry::compute(PMEM, DATA, 2).unwrap();
        let region = Arc::new(Region::from_extents(PMEM, [], None, Backend::Volatile));
        let device: Arc<dyn BlockDevice> = Arc::new(SimDevice::unrecorded(DATA / BLOCK as u64));
        let config = crate::mkfs::format(&region, &*device, geometry, "test").unwrap();
        Self { region, device, config }
    }

    pub fn volume(&self) -> Volume {
        let (region, device) = (Arc::clone(&self.region), Arc::clone(&self.device));
        Volume::from_parts(region, device, Access::ReadWrite).unwrap()
    }

    /// Checks everything.
    pub fn check(&self) -> FsckReport {
        check_volume(self.volume(), &FsckOptions { check_data: true }).unwrap()
    }

    /// Mounts it without background threads.
    pub fn mount(&self) -> Arc<Fs> {
        Fs::mount_quiet(self.volume(), &MountOptions::default()).unwrap()
    }
}
