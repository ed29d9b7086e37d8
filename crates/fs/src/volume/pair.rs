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

/// Whether all of the region is there.
pub(super) fn check_length(
    config: &ConfigTable,
    region: &Region,
    pmem: &Path,
) -> Result<(), VolumeError> {
    let (have, made) = (region.len(), config.geometry.pmem_len);
    match have < made {
        true => Err(VolumeError::Pairing {
            path: pmem.into(),
            why: format!("cut short: the pmem region has {have} bytes, mkfs made {made}"),
        }),
        false => Ok(()),
    }
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
    check_length(config, region, pmem)?;
    let g = &config.geometry;
    let mut block = vec![0; BLOCK];
    device
        .read(0, &mut block)
        .map_err(|e| VolumeError::Device(e.to_string()))?;
    let theirs = |h: &DataHeader| h.uuid != config.uuid || !is_named(config, h.data_uuid);
    match decode_header(config, &block) {
        Ok(h) if theirs(&h) => return fail(data, "belongs to another QuayFS volume".into()),
        Err(e) if !vouch(region, config, device) => {
            return Err(VolumeError::Header {
                path: data.into(),
                why: e,
            });
        }
        _ => {}
    }
    if device.blocks() < g.data_blocks {
        // In one file or device the data begin behind the region.
        let before = if pmem == data { g.pmem_len } else { 0 };
        let bytes = |blocks: u64| before + blocks * BLOCK as u64;
        let (left, needed) = (bytes(device.blocks()), bytes(g.data_blocks));
        let how = match data.is_file() {
            true => {
                let shown = quayfs_shown::argument(data);
                format!(" (`truncate --size {needed} {shown}`)")
            }
            false => String::new(),
        };
        let why = format!(
            "truncated: {left} bytes are left in whole blocks, and it has to have {needed}; make it as long again{how}, what was behind the cut is lost"
        );
        return fail(data, why);
    }
    Ok(())
}

/// Whether the header of the data device may have this UUID: while a part of the volume is being moved there are two.
pub(super) fn is_named(config: &ConfigTable, uuid: [u8; 16]) -> bool {
    uuid == config.data_uuid || config.is_moving() && uuid == config.next_data_uuid
}

/// The header of a data device. One of a volume that is being moved may have been torn while it got its next UUID: its
/// sectors then say the old or the new, each whole.
pub(super) fn decode_header(config: &ConfigTable, block: &[u8]) -> Result<DataHeader, ConfigError> {
    let found = DataHeader::decode(block);
    let said: [u8; 16] = std::array::from_fn(|i| block[DataHeader::DATA_UUID + i]);
    if found != Err(ConfigError::Checksum) || !config.is_moving() || !is_named(config, said) {
        return found;
    }
    let mut whole = block.to_vec();
    for uuid in [config.data_uuid, config.next_data_uuid] {
        whole[DataHeader::DATA_UUID..][..uuid.len()].copy_from_slice(&uuid);
        if let Ok(header) = DataHeader::decode(&whole) {
            return Ok(header);
        }
    }
    found
}
