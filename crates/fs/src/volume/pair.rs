//! Whether two media are a volume, and one that this version knows.

use std::path::Path;

use quayfs_blockdev::BlockDevice;
use quayfs_layout::BLOCK;
use quayfs_layout::config::{
    COPIES, ConfigError, ConfigTable, DataHeader, INCOMPAT_KNOWN, RO_COMPAT_KNOWN,
};
use quayfs_pmem::{PmemError, Region};

use super::{Access, VolumeError, Vouch};

/// The first intact copy of the configuration table, or what is wrong with the better one.
pub(super) fn read_config(region: &Region) -> Result<Result<ConfigTable, ConfigError>, PmemError> {
    let mut worst = ConfigError::NotQuayfs;
    for off in COPIES {
        if off + BLOCK as u64 > region.len() {
            break;
        }
        match ConfigTable::decode(&region.peek(off, BLOCK as u64)?) {
            Ok(t) => return Ok(Ok(t)),
            Err(ConfigError::NotQuayfs) => {}
            Err(e) => worst = e,
        }
    }
    Ok(Err(worst))
}

pub(super) fn check_features(config: &ConfigTable, access: Access) -> Result<(), VolumeError> {
    let unknown = config.compat[2] & !INCOMPAT_KNOWN
        | if access == Access::ReadWrite {
            config.compat[1] & !RO_COMPAT_KNOWN
        } else {
            0
        };
    if unknown != 0 {
        return Err(VolumeError::Features(unknown));
    }
    Ok(())
}

pub(super) fn check_pair(
    config: &ConfigTable,
    (region, pmem): (&Region, &Path),
    (device, data): (&dyn BlockDevice, &Path),
    vouch: Vouch,
) -> Result<(), VolumeError> {
    let fail = |path: &Path, why: String| {
        Err(VolumeError::Pairing {
            path: path.into(),
            why,
        })
    };
    let (g, pmem_len) = (&config.geometry, region.len());
    if pmem_len < g.pmem_len {
        let why = format!(
            "cut short: the pmem region has {pmem_len} bytes, mkfs made {}",
            g.pmem_len
        );
        return fail(pmem, why);
    }
    let mut block = vec![0; BLOCK];
    device
        .read(0, &mut block)
        .map_err(|e| VolumeError::Device(e.to_string()))?;
    let theirs = |h: &DataHeader| h.uuid != config.uuid || h.data_uuid != config.data_uuid;
    match DataHeader::decode(&block) {
        Ok(h) if theirs(&h) => return fail(data, "belongs to another QuayFS volume".into()),
        Err(e) if !vouch(region, config, device) => {
            return fail(data, format!("not a QuayFS data device: {e}"));
        }
        _ => {}
    }
    if device.blocks() < g.data_blocks {
        let why = format!(
            "truncated: {} blocks, mkfs made {}",
            device.blocks(),
            g.data_blocks
        );
        return fail(data, why);
    }
    Ok(())
}
