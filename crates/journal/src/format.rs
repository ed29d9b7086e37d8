//! What mkfs writes.

use crate::Durability;
use crate::error::JournalError;
use crate::geometry::JournalGeometry;
use crate::journal::Journal;
use crate::superblock::Superblock;
use quayfs_layout::jsb::{EpochWord, JSB_BYTES, WordKind};
use quayfs_layout::slot::{SLOT_HEADER_BYTES, blank_header};
use quayfs_pmem::Region;

/// Slot headers written at a time.
const CHUNK: u64 = 1024;

impl Journal {
    /// Writes an empty journal: no live slot, no record, epoch 1, clean. Durable with the next drain;
    /// until then nothing may refer to it.
    ///
    /// The lanes are not touched: what an earlier life left in them has another volume's salt.
    ///
    /// # Errors
    /// [`JournalError::Geometry`].
    pub fn format(
        region: &Region,
        geo: &JournalGeometry,
        durability: Durability,
    ) -> Result<(), JournalError> {
        geo.check(region.len())?;
        for buffer in 0..geo.buffers as u16 {
            let mut index = 0;
            while index < geo.slots_per_buffer {
                let n = CHUNK.min(geo.slots_per_buffer - index);
                let headers: Vec<u8> = (index..index + n)
                    .flat_map(|i| blank_header(geo.volume_salt, buffer, i))
                    .collect();
                debug_assert_eq!(headers.len(), n as usize * SLOT_HEADER_BYTES);
                region.write_nt(geo.header(buffer, index), &headers);
                index += n;
            }
        }
        region.write_nt(geo.jsb_off, &[0; JSB_BYTES]);
        let jsb = Superblock { region, geo };
        for kind in [WordKind::Digested, WordKind::Retired, WordKind::CommitTs] {
            jsb.store(kind, 0);
        }
        for lane in 0..geo.buffers as u16 {
            jsb.store(WordKind::Head(lane), 0);
        }
        jsb.store(WordKind::Clean, 1);
        jsb.store_epoch(EpochWord {
            repairing: false,
            epoch: 1,
            mode: durability.mode(),
        });
        Ok(())
    }
}
