//! A toy volume on top of the journal: a word in the region (its "metadata") and a block on the data
//! device for each of a few logical blocks. Digest and rounds are done as the file system does them,
//! only smaller, so that crashes can be judged by what the volume says afterwards.

use quayfs_blockdev::{BLOCK, BlockDevice};
use quayfs_crashsim::{CrashImage, Recorder, SimDevice};
use quayfs_journal::*;
use quayfs_pmem::{Backend, Region};
use std::collections::HashMap;
use std::sync::Arc;

pub const LBNS: u64 = 8;
/// Most words that fill up a record.
const MAX_PAD: u32 = 90;

/// What the volume says: for each logical block the number of the operation that wrote it last.
pub type State = Vec<u64>;

pub fn geometry(buffers: u32, lane_bytes: u64, slots: u64) -> (JournalGeometry, u64) {
    let lane_off = 4096;
    let slot_hdr_off = lane_off + u64::from(buffers) * lane_bytes;
    let slot_data_off = (slot_hdr_off + u64::from(buffers) * slots * 64).next_multiple_of(4096);
    let geo = JournalGeometry {
        volume_salt: 0x5eed,
        jsb_off: 0,
        buffers,
        lane_off,
        lane_bytes,
        slot_hdr_off,
        slots_per_buffer: slots,
        slot_data_off,
    };
    (geo, slot_data_off + u64::from(buffers) * slots * 4096)
}

pub struct Volume {
    pub region: Arc<Region>,
    pub device: Arc<SimDevice>,
    pub geo: JournalGeometry,
    pub journal: Journal,
}

/// Two buffers whose rings and lanes wrap after a few operations.
pub fn small() -> (JournalGeometry, u64) {
    let (geo, len) = geometry(2, 4096, 4);
    (geo, len + 4096)
}

fn home(geo: &JournalGeometry, lbn: u64) -> u64 {
    geo.slot_data_off + u64::from(geo.buffers) * geo.slots_per_buffer * 4096 + lbn * 8
}

pub fn content(lbn: u64, op: u64) -> [u8; BLOCK] {
    let mut b = [0; BLOCK];
    for (i, w) in b.chunks_exact_mut(8).enumerate() {
        w.copy_from_slice(&(op << 32 | lbn << 16 | i as u64).to_le_bytes());
    }
    b
}

/// A recorder with a formatted volume, settled.
pub fn formatted(backend: Backend, durability: Durability) -> Recorder {
    formatted_with(small(), backend, durability)
}

pub fn formatted_with(
    (geo, len): (JournalGeometry, u64),
    backend: Backend,
    durability: Durability,
) -> Recorder {
    let recorder = Recorder::new(len, LBNS, backend);
    Journal::format(&recorder.region(), &geo, durability).expect("format");
    recorder.start_here();
    recorder
}

pub fn options(durability: Durability) -> JournalOptions {
    JournalOptions::new(durability)
}

/// Digests one record into the home words; flushed, not drained.
fn apply(region: &Region, geo: &JournalGeometry, r: &Record) {
    let words: Vec<u64> = r
        .items
        .chunks_exact(8)
        .map(|w| u64::from_le_bytes(w.try_into().expect("8 bytes")))
        .collect();
    if let [op, n, rest @ ..] = &words[..] {
        for &lbn in &rest[..*n as usize] {
            region.store_u64(home(geo, lbn), *op);
            region.flush(home(geo, lbn), 8);
        }
    }
}

impl Volume {
    /// Recovers, asserting that nothing looks like damage.
    pub fn recover(
        region: Arc<Region>,
        device: Arc<SimDevice>,
        mode: Durability,
        what: &dyn std::fmt::Display,
    ) -> Self {
        let (geo, _) = small();
        Self::recover_with(geo, region, device, mode, what)
    }

    pub fn recover_with(
        geo: JournalGeometry,
        region: Arc<Region>,
        device: Arc<SimDevice>,
        mode: Durability,
        what: &dyn std::fmt::Display,
    ) -> Self {
        let options = JournalOptions {
            proposals: if region.backend().needs_drain() {
                quayfs_layout::jsb::PROPOSALS as u8
            } else {
                0
            },
            ..options(mode)
        };
        Self::recover_as(geo, region, device, options, what)
    }

    pub fn recover_as(
        geo: JournalGeometry,
        region: Arc<Region>,
        device: Arc<SimDevice>,
        options: JournalOptions,
        what: &dyn std::fmt::Display,
    ) -> Self {
        let scan = Journal::scan(Arc::clone(&region), &geo).expect("scan");
        assert!(scan.damage.is_empty(), "{:?}\n{what}", scan.damage);
        assert_eq!(scan.repairs(), 0, "{what}");
        // What the scan has read and flushed, before anything is stored because of it.
        region.drain().expect("drain");
        let mut digested = scan.digested;
        // In two steps, so that a crash in between is seen as well.
        let half = scan.records.len() / 2;
        for (i, r) in scan.records.iter().enumerate() {
            apply(&region, &geo, r);
            digested = r.seq;
            if i + 1 == half {
                scan.store_digested(digested).expect("digest");
            }
        }
        scan.store_digested(digested).expect("digest");
        let journal = scan
            .into_journal(RecoveredTo { digested }, options)
            .expect("recover");
        Self {
            region,
            device,
            geo,
            journal,
        }
    }

    pub fn of_recorder(recorder: &Recorder, mode: Durability) -> Self {
        Self::recover(
            recorder.region(),
            recorder.device(),
            mode,
            &"before any crash",
        )
    }

    pub fn of_image(image: &CrashImage, mode: Durability) -> Self {
        Self::recover(
            Arc::new(image.region()),
            Arc::new(image.device()),
            mode,
            image,
        )
    }

    pub fn need(&self, slots: u32, prefer: usize) -> Need {
        Need {
            slots,
            record_bytes: 16 + 8 * slots + 8 * MAX_PAD,
            prefer,
        }
    }

    /// Room for an operation, with what a shortage makes necessary. `None` if it still is not there.
    pub fn room(&self, slots: u32, prefer: usize) -> Option<Credit<'_>> {
        let need = self.need(slots, prefer);
        self.journal.acquire(need).ok().or_else(|| {
            self.journal.commit(None).expect("commit");
            self.digest();
            self.round();
            self.journal.acquire(need).ok()
        })
    }

    /// Writes `lbns` in one operation numbered `op`.
    pub fn write(&self, op: u64, lbns: &[u64]) -> Appended {
        let credit = self.room(lbns.len() as u32, op as usize).expect("room");
        self.begin(credit, op, lbns)()
    }

    /// Stages `lbns`, in two pieces if there are several; the result appends the record. Records have
    /// many sizes, so that the ends of lanes are met in many ways.
    pub fn begin<'j>(
        &'j self,
        mut credit: Credit<'j>,
        op: u64,
        lbns: &[u64],
    ) -> impl FnOnce() -> Appended + 'j {
        let mut items = vec![op, lbns.len() as u64];
        let mut staged = Vec::new();
        for part in lbns.chunks(2) {
            let blocks: Vec<_> = part.iter().map(|&lbn| (lbn, content(lbn, op))).collect();
            let refs: Vec<(u64, &[u8])> = blocks.iter().map(|(l, b)| (*l, &b[..])).collect();
            staged.push(self.journal.stage(&mut credit, &refs).expect("stage"));
            items.extend(part);
        }
        items.extend((0..op * 13 % u64::from(MAX_PAD)).map(|i| i * op));
        let items: Vec<u8> = items.iter().flat_map(|w| w.to_le_bytes()).collect();
        move || self.journal.append(credit, staged, &items).expect("append")
    }

    /// Stages a block and gives up.
    pub fn fail(&self, op: u64, lbn: u64) {
        let mut credit = self.room(1, op as usize).expect("room");
        let block = content(lbn, op);
        drop(
            self.journal
                .stage(&mut credit, &[(lbn, &block)])
                .expect("stage"),
        );
    }

    pub fn digest(&self) {
        let upto = self.journal.digestable();
        loop {
            let after = self.journal.digested();
            let batch = self
                .journal
                .read_records(after, upto, 1000, 4)
                .expect("records");
            let Some(last) = batch.last_seq() else {
                break;
            };
            for r in batch.iter() {
                apply(&self.region, &self.geo, &r.to_record());
                self.journal.mark_committed(r);
            }
            self.journal.set_digested(last).expect("digest");
        }
    }

    /// Writes the newest staged content home and retires it, but leaves the last record or so for the
    /// next round. The retired word is stored alone: the toy has no page table whose transaction it
    /// would be part of.
    pub fn round(&self) {
        let cut = self.journal.digested() / 2 * 2;
        let cut = cut.max(self.journal.retired());
        for (lbn, slot) in newest(&self.journal.live_slots(cut)) {
            let mut buf = [0; BLOCK];
            self.journal
                .read_slot(&slot.slot(), &mut buf)
                .expect("payload");
            self.device.write(lbn, &buf).expect("device");
        }
        self.device.flush().expect("device");
        let word = self.journal.retired_word();
        self.region.store_u64(word.offset, word.encode(cut));
        self.region.persist(word.offset, 8).expect("persist");
        self.journal.advance_heads(cut, || ()).expect("retire");
    }

    /// Reads everything back: what the metadata says, which must be what the blocks hold.
    pub fn state(&self, what: &dyn std::fmt::Display) -> State {
        self.digest();
        let live = newest(&self.journal.live_slots(self.journal.complete_upto()));
        let mut buf = [0; BLOCK];
        (0..LBNS)
            .map(|lbn| {
                let op = self.region.load_u64(home(&self.geo, lbn));
                match live.get(&lbn) {
                    Some(slot) => self
                        .journal
                        .read_slot(&slot.slot(), &mut buf)
                        .unwrap_or_else(|e| panic!("{e}\n{what}")),
                    None => self.device.read(lbn, &mut buf).expect("device"),
                }
                let good = if op == 0 {
                    buf == [0; BLOCK]
                } else {
                    buf == content(lbn, op)
                };
                let found = u64::from_le_bytes(buf[..8].try_into().expect("8 bytes"));
                assert!(
                    good,
                    "block {lbn} is not of operation {op}, {found:x}\n{what}"
                );
                op
            })
            .collect()
    }
}

fn newest(live: &[LiveSlot]) -> HashMap<u64, LiveSlot> {
    let mut map: HashMap<u64, LiveSlot> = HashMap::new();
    for l in live {
        let e = map.entry(l.lbn).or_insert(*l);
        if (l.seq, l.pos) > (e.seq, e.pos) {
            *e = *l;
        }
    }
    map
}
