//! A part of a volume goes to another device or file, and of two copies of it only one may go on.
//!
//! The configuration table and the header of the data device have a UUID in common. Before there is a second copy of
//! either, the table says which UUID comes next ([`Volume::begin_move`]); until then the header may have either. What
//! opens the volume to write gives the header that UUID, and then forgets the old one, before anything else: from then on
//! the copy that was not opened, a region that expects another UUID or a device that has the old one, is part of no
//! volume. docs/internals/crash-consistency.md has the order.

use std::fs::File;
use std::sync::Arc;

use quayfs_blockdev::BlockDevice;
use quayfs_layout::BLOCK;
use quayfs_layout::config::{ConfigError, ConfigTable, DataHeader, FEATURE_MOVING};
use quayfs_pmem::PmemError;

use super::pair::decode_header;
use super::{Access, Volume, VolumeError, backup, table};

impl Volume {
    /// From here on the region may be copied together with what it says of the data device, or the device with its header:
    /// `next` is the UUID that the header gets when this volume is opened to write the next time. A copy of the region has
    /// to name another one ([`moved_region`]). Durable when it returns.
    ///
    /// # Errors
    /// As of [`Volume::change_config`].
    ///
    /// # Panics
    /// If the volume was opened for reading only.
    pub fn begin_move(&mut self, next: [u8; 16]) -> Result<(), PmemError> {
        self.change_config(|config| {
            config.next_data_uuid = next;
            config.compat[2] |= FEATURE_MOVING;
        })?;
        // The old place keeps no copy of the table: with that it could become part of a volume again.
        self.take_backup_back().map_err(|source| PmemError::Io {
            what: "drop the copy of the configuration table",
            path: self.path.clone(),
            source,
        })
    }

    /// What [`Volume::begin_move`] has begun ends here, whichever copies these are. Also to be called where a move that has
    /// begun is given up. Durable when it returns; a crash before that leaves it to be done again.
    ///
    /// # Errors
    /// The data device or the region cannot be written.
    pub fn settle_move(&mut self) -> Result<(), VolumeError> {
        if self.access == Access::ReadOnly || !self.config.is_moving() {
            return Ok(());
        }
        let next = self.config.next_data_uuid;
        name_device(&*self.device, &self.config, next)?;
        self.change_config(|config| {
            config.data_uuid = next;
            config.next_data_uuid = [0; 16];
            config.compat[2] &= !FEATURE_MOVING;
        })?;
        tracing::info!("a move of the volume that had begun is brought to an end");
        Ok(())
    }

    /// Makes the copies of the configuration table equal, that on the data device as well, before anything of an earlier daemon is stored again, which must
    /// not bring an older table back.
    pub(super) fn settle_before_anything(&self) -> Result<(), PmemError> {
        match self.access {
            Access::ReadOnly => Ok(()),
            Access::ReadWrite => {
                table::settle(&self.region)?;
                // Without one the volume is as good as those of earlier builds.
                if let Err(e) = backup::settle(&self.region, &*self.device, &self.config) {
                    tracing::warn!("the copy of the configuration table is not written: {e}");
                }
                Ok(())
            }
        }
    }

    /// What was stored by the last daemon is stored again, and from here on all that is stored outlives this process in that
    /// file ([`Region::outlive`](quayfs_pmem::Region::outlive)). The configuration table stays as it is on the disk: it may
    /// have been changed since, by what had the volume open between two daemons. Returns how many bytes were stored again.
    ///
    /// # Errors
    /// As of `Region::outlive`, and [`PmemError`] of drains.
    pub fn outlive(&self, stores: File) -> Result<u64, PmemError> {
        let bytes = self.region.outlive(stores)?;
        if self.access == Access::ReadWrite {
            table::keep(&self.region, &self.config)?;
        }
        Ok(bytes)
    }

    /// What is done to the data device passes this one from here on.
    pub fn watch_device(
        &mut self,
        watch: impl FnOnce(Arc<dyn BlockDevice>) -> Arc<dyn BlockDevice>,
    ) {
        self.device = watch(Arc::clone(&self.device));
    }
}

/// The configuration table of a copy of a region: as that of the region, but for the UUID that the data device gets if the
/// copy goes on.
pub fn moved_region(config: &ConfigTable, next: [u8; 16]) -> ConfigTable {
    let mut config = config.clone();
    config.next_data_uuid = next;
    config.compat[2] |= FEATURE_MOVING;
    config
}

/// Gives a device the next UUID.
fn name_device(
    device: &dyn BlockDevice,
    config: &ConfigTable,
    uuid: [u8; 16],
) -> Result<(), VolumeError> {
    let failed = |e: std::io::Error| VolumeError::Device(e.to_string());
    let mut block = vec![0; BLOCK];
    device.read(0, &mut block).map_err(failed)?;
    let blocks = match decode_header(config, &block) {
        Ok(header) => header.blocks,
        // It belongs to the region, or the volume would not be open.
        Err(ConfigError::Checksum | ConfigError::NotQuayfs) => config.geometry.data_blocks,
        Err(e) => return Err(VolumeError::Device(e.to_string())),
    };
    let header = DataHeader {
        data_uuid: uuid,
        uuid: config.uuid,
        blocks,
    };
    device.write(0, &header.encode()).map_err(failed)?;
    device.flush().map_err(failed)
}
