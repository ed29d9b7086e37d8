//! The log: writing a transaction's records, reading them back, and the words that close it.

use quayfs_layout::l2p::{
    START_BYTES, Start, UNDO_BYTES, Undo, decode_commit, encode_commit, lane_records,
};
use quayfs_layout::{Guard, LINE, Lbn};
use quayfs_sync::thread;

use crate::PptError;
use crate::area::{Area, Raw};

/// From this many records per lane on, lanes are written by a thread each. Below, starting a
/// thread takes longer than writing the records.
const PARALLEL_FROM: usize = 8192;

/// Records encoded at a time, 4 KiB of them.
const PIECE: usize = 128;

/// The old state of one entry.
pub(crate) type Old = (Lbn, Raw);

impl Area {
    /// Writes the start record and one undo record for each of `old`, spread over as many lanes as
    /// there are workers, or as are needed. Durable when it returns.
    pub(crate) fn write_log(
        &self,
        generation: u64,
        word: Option<quayfs_layout::l2p::OldWord>,
        old: &[Old],
        workers: usize,
    ) -> Result<(), PptError> {
        let per_lane = self.records_per_lane(old.len(), workers);
        let start = Start {
            generation,
            records: old.len() as u64,
            per_lane: per_lane as u64,
            word,
        };
        for off in self.geo.start_offs() {
            self.region
                .write_nt(off, &start.encode(self.geo.volume_salt));
        }
        let lanes = old.chunks(per_lane).zip(0u32..);
        if workers > 1 && per_lane >= PARALLEL_FROM {
            thread::scope(|scope| {
                for (records, lane) in lanes {
                    scope.spawn(move || {
                        self.write_lane(generation, lane, records);
                        // A fence settles the stores of its own thread only.
                        self.region.fence();
                    });
                }
            });
        } else {
            lanes.for_each(|(records, lane)| self.write_lane(generation, lane, records));
        }
        self.region.drain()?;
        Ok(())
    }

    /// At least 1, at most a lane's capacity. The records fit, which the caller has checked.
    fn records_per_lane(&self, records: usize, workers: usize) -> usize {
        let lanes = workers.clamp(1, self.geo.l2p_log_lanes as usize);
        let room = lane_records(self.geo.l2p_lane_bytes) as usize;
        records.div_ceil(lanes).clamp(1, room.max(1))
    }

    fn write_lane(&self, generation: u64, lane: u32, records: &[Old]) {
        let mut bytes = Vec::with_capacity(PIECE * UNDO_BYTES);
        let mut index = 0;
        for piece in records.chunks(PIECE) {
            let off = self.geo.undo_off(lane, index);
            bytes.clear();
            for &(lbn, Raw { entry, crc }) in piece {
                let undo = Undo {
                    generation,
                    lbn,
                    entry,
                    crc,
                };
                bytes.extend_from_slice(&undo.encode(lane, index, self.geo.volume_salt));
                index += 1;
            }
            self.region.write_nt(off, &bytes);
        }
    }

    /// The latest start record, from whichever copy has it: a crash may have left one behind the
    /// other, and damage to one shall not hide a transaction.
    pub(crate) fn read_start(&self) -> Option<Start> {
        let copies = self.geo.start_offs().map(|off| {
            let mut bytes = [0; START_BYTES];
            self.region.read(off, &mut bytes);
            Start::decode(&bytes, self.geo.volume_salt)
        });
        copies
            .into_iter()
            .flatten()
            .max_by_key(|start| start.generation)
    }

    /// Whether the log has places for all that `start` announces.
    pub(crate) fn fits(&self, start: &Start) -> bool {
        let lanes = u64::from(self.geo.l2p_log_lanes);
        (1..=lane_records(self.geo.l2p_lane_bytes)).contains(&start.per_lane)
            && start.records <= start.per_lane * lanes
    }

    /// The readable undo records of the transaction that `start` began; all, if their number is
    /// `start.records`.
    pub(crate) fn read_undo(&self, start: &Start) -> Vec<Old> {
        let mut found = Vec::new();
        if !self.fits(start) {
            return found;
        }
        let mut bytes = vec![0; PIECE * UNDO_BYTES];
        let mut left = start.records;
        for lane in 0..self.geo.l2p_log_lanes {
            let mut index = 0;
            let end = left.min(start.per_lane);
            left -= end;
            while index < end {
                let piece = (end - index).min(PIECE as u64);
                let bytes = &mut bytes[..piece as usize * UNDO_BYTES];
                self.region.read(self.geo.undo_off(lane, index), bytes);
                for record in bytes.chunks_exact(UNDO_BYTES) {
                    found.extend(self.decode_undo(start.generation, lane, index, record));
                    index += 1;
                }
            }
        }
        found
    }

    fn decode_undo(&self, generation: u64, lane: u32, index: u64, bytes: &[u8]) -> Option<Old> {
        let bytes = bytes.first_chunk::<UNDO_BYTES>()?;
        let undo = Undo::decode(bytes, lane, index, self.geo.volume_salt)?;
        let ours = undo.generation == generation || !Guard::UndoGeneration.stands();
        (ours && undo.lbn < self.geo.blocks).then_some((
            undo.lbn,
            Raw {
                entry: undo.entry,
                crc: undo.crc,
            },
        ))
    }

    /// The generation in the commit word.
    pub(crate) fn read_commit(&self) -> Option<u64> {
        decode_commit(
            self.region.load_u64(self.geo.commit_off()),
            self.geo.volume_salt,
        )
    }

    /// The generation in the commit word's spare copy, never ahead of the commit word.
    pub(crate) fn read_spare(&self) -> Option<u64> {
        decode_commit(
            self.region.load_u64(self.geo.spare_off()),
            self.geo.volume_salt,
        )
    }

    /// Stores the commit word: every transaction up to `generation` is finished. Durable when it
    /// returns.
    pub(crate) fn close(&self, generation: u64) -> Result<(), PptError> {
        let word = encode_commit(generation, self.geo.volume_salt);
        self.region.store_u64(self.geo.commit_off(), word);
        self.region.flush(self.geo.commit_off(), LINE as u64);
        self.region.drain()?;
        // The spare copy follows what is durable and nothing waits for it, so the next fence settles
        // it: it counts only if the commit word is unreadable.
        self.region.store_u64(self.geo.spare_off(), word);
        self.region.flush(self.geo.spare_off(), LINE as u64);
        Ok(())
    }
}
