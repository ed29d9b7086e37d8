//! The page table and the checksums of a new geometry, where the old one has nothing that counts.

use quayfs_blockdev::{BlockDevice, ReadRun, WriteRun};
use quayfs_fs::volume::Volume;
use quayfs_layout::BLOCK;
use quayfs_layout::geometry::{Geometry, InUse};
use quayfs_layout::l2p::{BlockState, CRC_BYTES, ENTRY_BYTES, Entry, ZERO_CRC};
use quayfs_shown::progress::{Meter, Unit};

use crate::ResizeError;

/// Entries at a time.
const PIECE: u64 = 8192;
/// Blocks moved at a time.
const MOVES: usize = 256;

/// A physical block whose content is to lie elsewhere.
struct Move {
    from: u64,
    to: u64,
}

/// Writes both for `to`, after the content of blocks that would lie behind the end is durable in blocks that no file has.
/// The table itself is durable with the next drain.
///
/// # Errors
/// [`ResizeError::Damaged`], [`ResizeError::Device`].
pub(super) fn write(
    volume: &Volume,
    to: &Geometry,
    used: &InUse,
    meter: &Meter,
) -> Result<(), ResizeError> {
    meter.begin(
        "page table",
        to.blocks * (ENTRY_BYTES + CRC_BYTES),
        Unit::Bytes,
    );
    let from = volume.config().geometry;
    let (region, salt) = (volume.region(), volume.config().salt());
    let mut free = behind(volume, to)?.into_iter();
    let mut moves = Vec::new();
    for first in (0..to.blocks).step_by(PIECE as usize) {
        let end = (first + PIECE).min(to.blocks);
        let old = first.min(from.blocks)..end.min(from.blocks);
        let n = old.end - old.start;
        let words = region.read_vec(from.l2p_map_off + old.start * ENTRY_BYTES, n * ENTRY_BYTES);
        let mut crcs = region.read_vec(from.l2p_crc_off + old.start * CRC_BYTES, n * CRC_BYTES);
        let mut entries = Vec::with_capacity(((end - first) * ENTRY_BYTES) as usize);
        for (lbn, word) in old.clone().zip(words.chunks_exact(ENTRY_BYTES as usize)) {
            let mut entry = decoded(word, lbn, salt)?;
            if lbn >= used.lbns {
                // No file has it, whatever the spare pool has been used for.
                entry.state = BlockState::Zero;
                let at = ((lbn - old.start) * CRC_BYTES) as usize;
                crcs[at..at + CRC_BYTES as usize].copy_from_slice(&ZERO_CRC.to_le_bytes());
            }
            if entry.pbn >= to.blocks {
                let Some(pbn) = free.next() else {
                    return Err(ResizeError::Damaged("the page table".into()));
                };
                if entry.state == BlockState::Written {
                    moves.push(Move {
                        from: entry.pbn,
                        to: pbn,
                    });
                }
                entry.pbn = pbn;
            }
            entries.extend_from_slice(&entry.encode(lbn, salt).to_le_bytes());
        }
        // Blocks that are new lie where the device has become longer.
        for lbn in old.end.max(first)..end {
            let state = BlockState::Zero;
            entries.extend_from_slice(&Entry { pbn: lbn, state }.encode(lbn, salt).to_le_bytes());
            crcs.extend_from_slice(&ZERO_CRC.to_le_bytes());
        }
        region.write_nt(to.l2p_map_off + first * ENTRY_BYTES, &entries);
        region.write_nt(to.l2p_crc_off + first * CRC_BYTES, &crcs);
        meter.add((entries.len() + crcs.len()) as u64);
    }
    carry_out(volume.device().as_ref(), from.data_start, &moves, meter)
}

fn decoded(word: &[u8], lbn: u64, salt: u64) -> Result<Entry, ResizeError> {
    let word = quayfs_layout::bytes::get_u64(word, 0);
    Entry::decode(word, lbn, salt)
        .ok_or_else(|| ResizeError::Damaged(format!("the page-table entry of LBN {lbn}")))
}

/// Physical blocks below the new end that LBNs behind it have: as many as there are LBNs before it that have one behind it.
/// No file has such an LBN, so nothing is lost with their content.
fn behind(volume: &Volume, to: &Geometry) -> Result<Vec<u64>, ResizeError> {
    let from = volume.config().geometry;
    let (region, salt) = (volume.region(), volume.config().salt());
    let mut free = Vec::new();
    for first in (to.blocks.min(from.blocks)..from.blocks).step_by(PIECE as usize) {
        let n = PIECE.min(from.blocks - first);
        let words = region.read_vec(from.l2p_map_off + first * ENTRY_BYTES, n * ENTRY_BYTES);
        for (lbn, word) in (first..).zip(words.chunks_exact(ENTRY_BYTES as usize)) {
            let pbn = decoded(word, lbn, salt)?.pbn;
            if pbn < to.blocks {
                free.push(pbn);
            }
        }
    }
    Ok(free)
}

/// Copies blocks of the device and makes the copies durable.
fn carry_out(
    device: &dyn BlockDevice,
    start: u64,
    moves: &[Move],
    meter: &Meter,
) -> Result<(), ResizeError> {
    if moves.is_empty() {
        return Ok(());
    }
    meter.begin("moving blocks", (moves.len() * BLOCK) as u64, Unit::Bytes);
    let mut content = vec![0; MOVES * BLOCK];
    for some in moves.chunks(MOVES) {
        let content = &mut content[..some.len() * BLOCK];
        let mut reads: Vec<ReadRun<'_>> = some
            .iter()
            .zip(content.chunks_exact_mut(BLOCK))
            .map(|(m, buf)| ReadRun {
                block: start + m.from,
                buf,
            })
            .collect();
        device.read_many(&mut reads).map_err(ResizeError::Device)?;
        let bufs: Vec<[&[u8]; 1]> = content.chunks_exact(BLOCK).map(|b| [b]).collect();
        let writes: Vec<WriteRun<'_>> = some
            .iter()
            .zip(&bufs)
            .map(|(m, bufs)| WriteRun {
                block: start + m.to,
                bufs,
            })
            .collect();
        device.write_many(&writes).map_err(ResizeError::Device)?;
        meter.add(content.len() as u64);
    }
    device.flush().map_err(ResizeError::Device)
}
