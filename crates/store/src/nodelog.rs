//! `ablation=nodelog:ssd`: what a commit costs where the node log lies on the data device.
//!
//! This is what paper 5 (3.2) compares with: data, then nodes, on one device, and one flush for both before an
//! `fsync` returns. The very records that a commit covers are written to the device, packed into whole blocks, one
//! after the other in a ring of blocks that are taken from the free ones for as long as the mount lasts. A file
//! system that logs nodes writes a block for each instead, and its nodes and their table go to the device later, so
//! this is no slower than that. Recovery reads the records in pmem as always; nothing reads the copy.

use quayfs_blockdev::AlignedBuf;
use quayfs_journal::LogPositions;
use quayfs_layout::BLOCK;
use quayfs_sync::Mutex;

use crate::engine::Engine;
use crate::error::{FsError, Result};
use crate::metrics::Metrics;

/// Most blocks of the ring: 1 MiB.
const BLOCKS: u64 = 256;
/// Fewest.
const BLOCKS_LEAST: u64 = 8;

/// Where the copies go, and how far they have come.
pub struct NodeLog {
    /// Physical blocks that nothing else uses.
    ring: Vec<u64>,
    state: Mutex<State>,
}

struct State {
    next: usize,
    positions: LogPositions,
    /// Every record up to this one is on the device.
    covered: u64,
    /// Records that were read and are not on the device: those of the call under way, and of the ones before if they
    /// failed.
    bytes: Vec<u8>,
}

impl NodeLog {
    /// Takes blocks for the ring, of small volumes an eighth of what is free.
    ///
    /// # Errors
    /// [`FsError::NoSpace`] if eight are too many.
    pub fn new(e: &Engine) -> Result<Self> {
        let blocks = (e.lbns.free() / 8).clamp(BLOCKS_LEAST, BLOCKS);
        if !e.lbns.reserve(blocks, 0) {
            return Err(FsError::NoSpace);
        }
        let mut ring = Vec::new();
        let mut left = blocks;
        while left > 0 {
            let taken = e.lbns.take(left, None, &e.nodes, e)?;
            let run = taken.ok_or(FsError::NoSpace)?;
            left -= run.end - run.start;
            for lbn in run {
                ring.push(e.mapping(lbn)?.pbn);
            }
        }
        ring.sort_unstable();
        let state = State {
            next: 0,
            positions: e.journal.log_positions(),
            covered: e.journal.commit_ts(),
            bytes: Vec::new(),
        };
        Ok(Self {
            ring,
            state: Mutex::new(state),
        })
    }

    /// Blocks that are neither free nor owned by a file for as long as the mount lasts.
    pub fn blocks(&self) -> u64 {
        self.ring.len() as u64
    }

    /// Puts every record up to `cut` on the device, and makes durable what was written there, data included. A thread
    /// whose turn comes after another thread has done this returns at once.
    pub fn write(&self, e: &Engine, cut: u64) -> Result<()> {
        let mut state = self.state.lock();
        if state.covered >= cut {
            return Ok(());
        }
        let State {
            next,
            positions,
            covered,
            bytes,
        } = &mut *state;
        let upto = e.journal.last_seq();
        e.journal.read_appended(positions, bytes);
        let mut blocks = bytes.chunks(BLOCK).peekable();
        let mut written = 0;
        while blocks.peek().is_some() {
            let start = *next % self.ring.len();
            // Neighbours are one write.
            let run = self.ring[start..]
                .iter()
                .zip(self.ring[start]..)
                .take_while(|(pbn, expected)| **pbn == *expected)
                .count();
            let some: Vec<&[u8]> = blocks.by_ref().take(run).collect();
            let mut out = AlignedBuf::new(some.len() * BLOCK);
            for (to, from) in out.chunks_mut(BLOCK).zip(&some) {
                to[..from.len()].copy_from_slice(from);
            }
            e.device.write(e.data_start() + self.ring[start], &out)?;
            *next = start + some.len();
            written += some.len() as u64;
        }
        e.flush_device()?;
        bytes.clear();
        *covered = upto;
        Metrics::add(&e.metrics.blocks_logged, written);
        Ok(())
    }
}
