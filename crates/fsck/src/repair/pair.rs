//! What says which region belongs to which device: the copies of the configuration table, and the
//! header of the data device.

use quayfs_blockdev::BlockDevice;
use quayfs_layout::BLOCK;
use quayfs_layout::checksum::crc32c;
use quayfs_layout::config::{COPIES, ConfigTable, DataHeader};
use quayfs_layout::l2p::{BlockState, CRC_BYTES, ENTRY_BYTES, Entry};
use quayfs_pmem::Region;

use super::{Area, Failed, Repair};

/// Written blocks that are read to find out whose a device without a header is.
const SAMPLE: usize = 64;

/// Whether a device whose header is damaged is the one of this region all the same: the header
/// still has one of the two UUIDs in its place, or most of what the page table says about the
/// device is true.
pub fn belongs(region: &Region, config: &ConfigTable, device: &dyn BlockDevice) -> bool {
    let mut block = vec![0; BLOCK];
    if device.read(0, &mut block).is_err() {
        return false;
    }
    if block[16..32] == config.uuid || block[32..48] == config.data_uuid {
        return true;
    }
    let (g, salt) = (&config.geometry, config.salt());
    let (mut read, mut right) = (0, 0);
    for lbn in 0..g.blocks {
        let word = region.load_u64(g.l2p_map_off + lbn * ENTRY_BYTES);
        let Some(entry) = Entry::decode(word, lbn, salt) else {
            continue;
        };
        if entry.state != BlockState::Written || entry.pbn >= g.blocks {
            continue;
        }
        let crc = region.load_u32(g.l2p_crc_off + lbn * CRC_BYTES);
        let there = device.read(g.data_start + entry.pbn, &mut block).is_ok();
        read += 1;
        right += usize::from(there && crc32c(&block) == crc);
        if read == SAMPLE {
            break;
        }
    }
    right > read / 2
}

impl Repair<'_> {
    /// Both copies become the one that the volume was opened by.
    pub(super) fn config(&mut self) -> Result<(), Failed> {
        let region = &self.media.region;
        let copies = COPIES.map(|off| region.read_vec(off, BLOCK as u64));
        let Some(good) = copies.iter().position(|c| ConfigTable::decode(c).is_ok()) else {
            return Ok(());
        };
        for (i, off) in COPIES.into_iter().enumerate() {
            if copies[i] != copies[good] {
                region.write(off, &copies[good]);
                region.flush(off, BLOCK as u64);
                let what = format_args!("copy {i} of the configuration table is written again");
                self.log.add(Area::Config, what);
            }
        }
        Ok(())
    }

    /// The header says what the configuration table says. Whether the device is the right one has
    /// been decided when the volume was opened.
    pub(super) fn header(&mut self) -> Result<(), Failed> {
        let header = DataHeader {
            data_uuid: self.config.data_uuid,
            uuid: self.config.uuid,
            blocks: self.media.geo.data_blocks,
        };
        let mut block = vec![0; BLOCK];
        self.media.device.read(0, &mut block)?;
        let is_it = |h: &DataHeader| {
            let blocks = if self.media.resized {
                h.blocks
            } else {
                header.blocks
            };
            *h == DataHeader {
                blocks,
                ..header.clone()
            }
        };
        if DataHeader::decode(&block).is_ok_and(|h| is_it(&h)) {
            return Ok(());
        }
        self.media.device.write(0, &header.encode())?;
        self.media.device.flush()?;
        self.log.add(
            Area::Device,
            "the header of the data device is written again",
        );
        Ok(())
    }
}
