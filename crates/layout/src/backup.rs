//! Copies on the data device of what a volume cannot be opened without: the configuration table, and the journal
//! superblock as the last clean unmount left it. They lie where what overwrites the beginning of a disk, or rots there,
//! does not reach them.

use crate::bytes::{get_u32, put_u32};
use crate::checksum::{crc32c, crc32c_append};
use crate::config::{ConfigTable, FEATURE_BACKUP};
use crate::jsb::JSB_BYTES;

/// Block of the data device, counted from its header, with the copy of the configuration table. Half a MiB from the
/// header, and in the mirror area of every volume.
pub const BACKUP_BLOCK: u64 = 128;
/// Blocks that both copies take; the second one is that of the superblock.
pub const BACKUP_BLOCKS: u64 = 2;

/// The last word of the superblock page that can be in use ends before.
const OFF_CRC: usize = JSB_BYTES - 4;

/// Whether a volume has the copies: it is made so, and there is room.
pub fn has_backup(config: &ConfigTable) -> bool {
    let g = &config.geometry;
    config.compat[1] & FEATURE_BACKUP != 0
        && g.mirror_start <= BACKUP_BLOCK
        && g.mirror_start + g.mirror_blocks >= BACKUP_BLOCK + BACKUP_BLOCKS
}

fn checksum(page: &[u8], salt: u64) -> u32 {
    crc32c_append(crc32c(&salt.to_le_bytes()), &page[..OFF_CRC])
}

/// The copy of a superblock page.
pub fn encode_superblock(page: &[u8], salt: u64) -> Vec<u8> {
    let mut block = page[..JSB_BYTES].to_vec();
    let crc = checksum(&block, salt);
    put_u32(&mut block, OFF_CRC, crc);
    block
}

/// The superblock page that is in a copy, or `None` if it is not whole.
pub fn decode_superblock(block: &[u8], salt: u64) -> Option<Vec<u8>> {
    let page = block.get(..JSB_BYTES)?;
    (get_u32(page, OFF_CRC) == checksum(page, salt)).then(|| {
        let mut page = page.to_vec();
        put_u32(&mut page, OFF_CRC, 0);
        page
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::DATA_MAGIC;
    use crate::geometry::Geometry;

    #[test]
    fn a_copy_is_whole_and_of_this_volume() {
        let page: Vec<u8> = (0..JSB_BYTES).map(|i| (i % 251) as u8).collect();
        let block = encode_superblock(&page, 7);
        let back = decode_superblock(&block, 7).unwrap();
        assert_eq!(back[..OFF_CRC], page[..OFF_CRC]);
        assert_eq!(back[OFF_CRC..], [0; 4]);
        assert!(decode_superblock(&block, 8).is_none());
        assert!(decode_superblock(&block[1..], 7).is_none());
        for at in [0, 511, 512, OFF_CRC - 1, OFF_CRC] {
            let mut torn = block.clone();
            torn[at] ^= 1;
            assert!(decode_superblock(&torn, 7).is_none(), "{at}");
        }
        assert!(decode_superblock(&[0; JSB_BYTES], 7).is_none());
        assert_ne!(block[..8], DATA_MAGIC);
    }

    /// Whatever the sizes, the copies lie between the header and the first block of the page table.
    #[test]
    fn there_is_room_in_every_volume() {
        for (pmem, data) in [(16, 16), (64, 64), (256, 16 << 10), (16 << 10, 4 << 20)] {
            let g = Geometry::compute(pmem << 20, data << 20, 1).unwrap();
            assert!(g.mirror_start <= BACKUP_BLOCK);
            assert!(g.mirror_start + g.mirror_blocks >= BACKUP_BLOCK + BACKUP_BLOCKS);
            assert!(g.data_start >= BACKUP_BLOCK + BACKUP_BLOCKS);
        }
    }
}
