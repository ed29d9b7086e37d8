//! Reading blocks: staged map, else page table, else zeros; every checksum is verified.

use quayfs_blockdev::ReadRun;
use quayfs_layout::{BLOCK, Guard, Lbn, checksum};
use quayfs_ppt::BlockState;
use quayfs_sync::epoch;

use crate::engine::Engine;
use crate::error::{FsError, Result};

/// Attempts before a checksum mismatch counts: a round may have moved the block in between.
const TRIES: usize = 4;

/// Where one wanted block goes in the caller's buffer.
#[derive(Clone, Copy, Debug)]
pub struct Want {
    /// Logical block.
    pub lbn: Lbn,
    /// Byte offset in the buffer.
    pub at: usize,
}

struct Fetch {
    want: Want,
    pbn: u64,
    crc: u32,
}

/// Reads whole blocks into `buf`. The caller holds the range lock of the file blocks, so no LBN
/// changes its owner meanwhile.
pub fn blocks(e: &Engine, wants: &[Want], buf: &mut [u8]) -> Result<()> {
    let mut unsound = attempt(e, wants, buf)?;
    for _ in 1..TRIES {
        if unsound.is_empty() {
            break;
        }
        let again: Vec<Want> = unsound.iter().map(|f| f.want).collect();
        unsound = attempt(e, &again, buf)?;
    }
    match unsound.first() {
        None => Ok(()),
        Some(f) => Err(FsError::io(format_args!(
            "LBN {} (physical block {}) fails its checksum",
            f.want.lbn, f.pbn
        ))),
    }
}

/// Reads all, and says which do not have their checksum. Allocates nothing where all are staged.
fn attempt(e: &Engine, wants: &[Want], buf: &mut [u8]) -> Result<Vec<Fetch>> {
    // Slots and physical blocks are reused only after a grace period, so what is looked up under this
    // pin stays what it was until the copy is done.
    let _pin = epoch::pin();
    let mut fetches = Vec::new();
    for w in wants {
        let out = &mut buf[w.at..w.at + BLOCK];
        if let Some(slot) = e.staged.get(w.lbn) {
            e.journal
                .read_slot(&slot, out)
                .map_err(|err| FsError::io(format_args!("LBN {}: {err}", w.lbn)))?;
            continue;
        }
        let m = e.ppt.lookup(w.lbn).map_err(FsError::io)?;
        match m.state {
            BlockState::Zero => out.fill(0),
            BlockState::Written => fetches.push(Fetch {
                want: *w,
                pbn: m.pbn,
                crc: m.crc,
            }),
        }
    }
    if !fetches.is_empty() {
        fetch(e, &mut fetches, buf)?;
        fetches.retain(|f| {
            let sound = checksum::crc32c(&buf[f.want.at..f.want.at + BLOCK]) == f.crc;
            !sound && Guard::Block.stands()
        });
    }
    Ok(fetches)
}

/// Reads physical blocks, consecutive ones with one request.
fn fetch(e: &Engine, fetches: &mut [Fetch], buf: &mut [u8]) -> Result<()> {
    let start = e.data_start();
    fetches.sort_unstable_by_key(|f| f.pbn);
    if fetches
        .windows(2)
        .all(|w| w[1].pbn == w[0].pbn + 1 && w[1].want.at == w[0].want.at + BLOCK)
    {
        let at = fetches[0].want.at;
        let out = &mut buf[at..at + fetches.len() * BLOCK];
        return Ok(e.device.read(start + fetches[0].pbn, out)?);
    }
    let mut runs: Vec<(u64, Vec<u8>)> = Vec::new();
    for f in fetches.iter() {
        match runs.last_mut() {
            Some((b, v)) if *b + (v.len() / BLOCK) as u64 == f.pbn => v.resize(v.len() + BLOCK, 0),
            _ => runs.push((f.pbn, vec![0; BLOCK])),
        }
    }
    let mut reads: Vec<ReadRun<'_>> = runs
        .iter_mut()
        .map(|(b, v)| ReadRun {
            block: start + *b,
            buf: &mut v[..],
        })
        .collect();
    e.device.read_many(&mut reads)?;
    drop(reads);
    let all = runs.iter().flat_map(|(_, v)| v.chunks(BLOCK));
    for (f, piece) in fetches.iter().zip(all) {
        buf[f.want.at..f.want.at + BLOCK].copy_from_slice(piece);
    }
    Ok(())
}
