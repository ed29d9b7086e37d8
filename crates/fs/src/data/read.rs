//! Reading blocks: staged map, else page table, else zeros; every checksum is verified.

use quayfs_blockdev::{BlockDevice, ReadRun, Scratch};
use quayfs_layout::{BLOCK, Guard, Lbn, checksum};
use quayfs_ppt::BlockState;
use quayfs_sync::{epoch, wait_for_device};
use smallvec::SmallVec;

use quayfs_store::damage::Watch;
use quayfs_store::engine::Engine;
use quayfs_store::error::{FsError, Result};

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

/// Blocks that follow each other on the device.
type Runs<'f> = SmallVec<[&'f [Fetch]; 8]>;

/// Reads whole blocks into `buf`. The caller holds the range lock of the file blocks, so no LBN
/// changes its owner meanwhile.
pub fn blocks(e: &Engine, wants: &[Want], buf: &mut [u8]) -> Result<()> {
    sound(e, wants, buf, (true, e.watch()))
}

/// As [`blocks`], and what is not staged comes from the device: whether that still has it is what the caller
/// wants to know, and what it finds is for its own watch.
pub fn blocks_on_media(e: &Engine, watch: &Watch, wants: &[Want], buf: &mut [u8]) -> Result<()> {
    sound(e, wants, buf, (false, watch))
}

/// Whether what is kept in memory will do, and which watch is told of damaged entries of the page table.
type How<'w> = (bool, &'w Watch);

fn sound(e: &Engine, wants: &[Want], buf: &mut [u8], how: How<'_>) -> Result<()> {
    let mut unsound = attempt(e, wants, buf, how)?;
    for _ in 1..TRIES {
        if unsound.is_empty() {
            break;
        }
        let again: Vec<Want> = unsound.iter().map(|f| f.want).collect();
        unsound = attempt(e, &again, buf, (false, how.1))?;
    }
    match unsound.first() {
        None => Ok(()),
        // A block that was never moved lies where its number says.
        Some(f) if f.want.lbn == f.pbn => Err(FsError::content(format_args!(
            "LBN {} fails its checksum",
            f.want.lbn
        ))),
        Some(f) => Err(FsError::content(format_args!(
            "LBN {} (physical block {}) fails its checksum",
            f.want.lbn, f.pbn
        ))),
    }
}

/// Reads all, and says which do not have their checksum; with `dram`, out of what is kept in memory too. Allocates
/// nothing where all are staged.
fn attempt(
    e: &Engine,
    wants: &[Want],
    buf: &mut [u8],
    (dram, watch): How<'_>,
) -> Result<Vec<Fetch>> {
    // Slots and physical blocks are reused only after a grace period, so what is looked up under this
    // pin stays what it was until the copy is done.
    let _pin = epoch::pin();
    let mut fetches = Vec::new();
    for (i, w) in wants.iter().enumerate() {
        let out = &mut buf[w.at..w.at + BLOCK];
        if let Some(slot) = e.staged.get(w.lbn) {
            e.journal
                .read_slot(&slot, out)
                .map_err(|err| FsError::content(format_args!("LBN {}: {err}", w.lbn)))?;
            continue;
        }
        let m = e.mapping_for(w.lbn, watch)?;
        match m.state {
            BlockState::Zero => out.fill(0),
            BlockState::Written
                if dram && e.partials.copy(w.lbn, out) && checksum::crc32c(out) == m.crc => {}
            BlockState::Written => {
                if fetches.is_empty() {
                    fetches.reserve_exact(wants.len() - i);
                }
                fetches.push(Fetch {
                    want: *w,
                    pbn: m.pbn,
                    crc: m.crc,
                });
            }
        }
    }
    if !fetches.is_empty() {
        let device = if dram { &*e.device } else { e.ahead.media() };
        let place = |f: &Fetch| e.data_start() + f.pbn;
        let blocks = fetches.iter().map(place).map(|b| b..b + 1);
        e.behind.await_blocks(&*e.device, blocks);
        fetch((device, e.data_start()), &mut fetches, buf)?;
        fetches.retain(|f| {
            let sound = checksum::crc32c(&buf[f.want.at..f.want.at + BLOCK]) == f.crc;
            !sound && Guard::Block.stands()
        });
    }
    Ok(fetches)
}

/// Reads physical blocks, consecutive ones with one request: straight to where they are wanted, if they are
/// wanted one after the other.
fn fetch(
    (device, data_start): (&dyn BlockDevice, u64),
    fetches: &mut [Fetch],
    buf: &mut [u8],
) -> Result<()> {
    fetches.sort_unstable_by_key(|f| f.pbn);
    let runs = fetches.chunk_by(|a, b| b.pbn == a.pbn + 1);
    let (mut straight, scattered): (Runs<'_>, Runs<'_>) =
        runs.partition(|run| run.windows(2).all(|w| w[1].want.at == w[0].want.at + BLOCK));
    straight.sort_unstable_by_key(|run| run[0].want.at);
    let mut copies: SmallVec<[Scratch; 8]> = (scattered.iter())
        .map(|run| Scratch::new(run.len() * BLOCK))
        .collect();

    let mut reads = Vec::with_capacity(straight.len() + scattered.len());
    let mut add = |run: &[Fetch], buf| {
        let block = data_start + run[0].pbn;
        reads.push(ReadRun { block, buf });
    };
    let (mut rest, mut at) = (&mut *buf, 0);
    for run in straight {
        let (start, len) = (run[0].want.at, run.len() * BLOCK);
        let (here, after) = rest[start - at..].split_at_mut(len);
        add(run, here);
        (rest, at) = (after, start + len);
    }
    for (run, copy) in scattered.iter().zip(&mut copies) {
        add(run, &mut copy[..]);
    }
    wait_for_device(|| device.read_many(&mut reads))?;

    for (run, copy) in scattered.iter().zip(&copies) {
        for (f, block) in run.iter().zip(copy.chunks(BLOCK)) {
            buf[f.want.at..f.want.at + BLOCK].copy_from_slice(block);
        }
    }
    Ok(())
}
