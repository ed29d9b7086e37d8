//! What every byte of a volume is for. Made from the format alone, so that a check can be held
//! against it; nothing here asks the checker.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use quayfs_fs::Fs;
use quayfs_fs::recovery::journal_geometry;
use quayfs_journal::Journal;
use quayfs_layout::config::ConfigTable;
use quayfs_layout::geometry::Geometry;
use quayfs_layout::jsb::{EpochWord, Mode, PROPOSALS, SeqWord, WordKind};
use quayfs_layout::l2p::{
    COMMIT_AT, SPARE_AT, START_AT, START_BYTES, Start, UNDO_BYTES, decode_commit, lane_off,
};
use quayfs_layout::node;
use quayfs_layout::record::{RECORD_HEADER_BYTES, RecordHeader, SlotRun};
use quayfs_layout::{BLOCK, LINE, bytes};
use quayfs_ppt::BlockState;

use super::{Image, runs, volume};

const B: u64 = BLOCK as u64;

/// What a piece of a medium is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Use {
    /// A copy of the configuration table.
    Config,
    /// A word of the journal superblock.
    Superblock,
    /// An entry of the page table.
    L2pEntry,
    /// The checksum of a block that a file has on the data device.
    L2pChecksum,
    /// A word or record of the page-table log.
    L2pLog,
    /// A record that is to be replayed.
    Record,
    /// The last record of a lane in mode `op`: a crash may have torn it.
    LastRecord,
    /// Content of a slot that such a record names: without it the record does not count.
    LastPayload,
    /// Committed word of a slot.
    Committed,
    /// Header of a live slot.
    SlotHeader,
    /// Content of a live slot.
    SlotData,
    /// An entry of the NAT.
    Nat,
    /// A node page that the NAT names.
    NodePage,
    /// Header of the data device.
    DataHeader,
    /// A block that a file has on the data device.
    Data,
    /// Bytes that nothing reads, and why.
    Dead(&'static str),
}

impl Use {
    /// Whether a check without reading data must find a flipped bit.
    pub fn is_metadata(self) -> bool {
        !matches!(
            self,
            Self::Dead(_) | Self::Data | Self::L2pChecksum | Self::LastRecord | Self::LastPayload
        )
    }

    /// Whether a check that reads data must find a flipped bit.
    pub fn is_live(self) -> bool {
        !matches!(self, Self::Dead(_) | Self::LastRecord | Self::LastPayload)
    }
}

/// A piece of a medium.
#[derive(Clone, Debug)]
pub struct Area {
    pub what: Use,
    pub bytes: Range<u64>,
}

/// All bytes of both media, without gaps or overlaps.
pub struct Map {
    pub pmem: Vec<Area>,
    pub device: Vec<Area>,
    pub config: ConfigTable,
}

struct Builder<'a> {
    g: Geometry,
    salt: u64,
    pmem: &'a [u8],
    areas: Vec<Area>,
    at: u64,
    /// Slots that the last records of lanes name, buffer and index, in mode `op`.
    unsettled: BTreeSet<(u16, u64)>,
}

impl Map {
    /// Reads the format.
    pub fn of(image: &Image) -> Self {
        let config = ConfigTable::decode(&image.pmem).expect("config");
        let (g, salt) = (config.geometry, config.salt());
        let mut b = Builder {
            g,
            salt,
            pmem: &image.pmem,
            areas: Vec::new(),
            at: 0,
            unsettled: BTreeSet::new(),
        };
        let facts = Facts::of(image, &g, salt);
        b.put(Use::Config, 2 * B);
        b.superblock(&facts);
        b.to(g.l2p_map_off, "alignment");
        b.put(Use::L2pEntry, g.blocks * 8);
        b.checksums(&facts);
        b.l2p_log();
        b.lanes(&facts);
        b.slots(&facts);
        b.to(g.nat_off, "alignment");
        b.put(Use::Nat, g.nat_entries * 8);
        b.nodes();
        b.to(image.pmem.len() as u64, "behind the node pages");
        let mut d = Builder {
            areas: Vec::new(),
            at: 0,
            ..b
        };
        d.put(Use::DataHeader, B);
        for (pbn, _) in facts
            .written
            .iter()
            .map(|(lbn, pbn)| (*pbn, lbn))
            .collect::<BTreeMap<_, _>>()
        {
            d.to((g.data_start + pbn) * B, "no file has these blocks");
            d.put(Use::Data, B);
        }
        d.to(image.device_blocks * B, "no file has these blocks");
        Self {
            pmem: b.areas,
            device: d.areas,
            config,
        }
    }

    /// How many structures of each use there are; a log's words and records count as one each.
    pub fn structures(&self) -> BTreeMap<Use, u64> {
        let mut out = BTreeMap::new();
        for a in self.pmem.iter().chain(&self.device) {
            let bytes = a.bytes.end - a.bytes.start;
            let n = match a.what {
                Use::Config | Use::NodePage => bytes / B,
                Use::L2pEntry | Use::Nat => bytes / 8,
                Use::L2pLog if bytes > LINE as u64 => bytes / UNDO_BYTES as u64,
                _ => 1,
            };
            *out.entry(a.what).or_default() += n;
        }
        out
    }

    /// Bytes of each use.
    pub fn sizes(&self) -> BTreeMap<Use, u64> {
        let mut out = BTreeMap::new();
        for a in self.pmem.iter().chain(&self.device) {
            *out.entry(a.what).or_default() += a.bytes.end - a.bytes.start;
        }
        out
    }
}

/// What recovery makes of the volume: read from a copy.
struct Facts {
    /// Live slots by place.
    live: BTreeSet<(u16, u64)>,
    /// LBNs of files whose newest version is on the data device, with their physical blocks.
    written: Vec<(u64, u64)>,
    op: bool,
}

impl Facts {
    fn of(image: &Image, g: &Geometry, salt: u64) -> Self {
        let media = image.media();
        // The undo of an open transaction comes first, as in every recovery.
        let (ppt, _) = quayfs_ppt::Ppt::attach(
            Arc::clone(&media.region),
            quayfs_fs::recovery::ppt_geometry(g, salt),
        )
        .expect("attach");
        drop(ppt);
        let scan = Journal::scan(Arc::clone(&media.region), &journal_geometry(g, salt));
        let scan = scan.unwrap_or_else(|e| panic!("{e}"));
        assert!(scan.damage.is_empty(), "{:?}", scan.damage);
        let live = scan
            .live
            .iter()
            .map(|l| (l.buffer, l.pos % g.slots_per_buffer))
            .collect();
        drop(scan);
        let word = bytes::get_u64(&image.pmem, (g.jsb_off + WordKind::Epoch.offset()) as usize);
        let mode = EpochWord::decode(word, salt).expect("epoch").mode;
        let fs = quayfs_fs::Fs::mount_quiet(volume(&image.media()), &crate::options("ro"));
        let written = match fs {
            Ok(fs) => written(&fs),
            Err(e) => panic!("{e}"),
        };
        Self {
            live,
            written,
            op: mode == Mode::Op,
        }
    }
}

fn written(fs: &Fs) -> Vec<(u64, u64)> {
    let runs = runs(fs).into_iter();
    let lbns = runs.flat_map(|(_, r, lbn)| lbn..lbn + (r.end - r.start));
    let at_home = |lbn| {
        let m = fs.e.ppt.lookup(lbn).expect("entry");
        (fs.e.staged.get(lbn).is_none() && m.state == BlockState::Written).then_some((lbn, m.pbn))
    };
    lbns.filter_map(at_home).collect()
}

impl Builder<'_> {
    fn put(&mut self, what: Use, len: u64) {
        if len > 0 {
            self.areas.push(Area {
                what,
                bytes: self.at..self.at + len,
            });
            self.at += len;
        }
    }

    /// Everything up to `end` is dead.
    fn to(&mut self, end: u64, why: &'static str) {
        assert!(end >= self.at, "{why}: {end} is before {}", self.at);
        self.put(Use::Dead(why), end - self.at);
    }

    fn superblock(&mut self, facts: &Facts) {
        // Only `commit` mode proposes commits.
        let proposals = (0..PROPOSALS as u8).map(WordKind::Proposal);
        let all = WordKind::all(self.g.buffers as u16);
        let mut words: Vec<_> = all.chain(proposals.filter(|_| !facts.op)).collect();
        words.sort_by_key(|w| w.offset());
        for w in words {
            self.to(self.g.jsb_off + w.offset(), "between superblock words");
            self.put(Use::Superblock, 8);
        }
        self.to(self.g.jsb_off + B, "between superblock words");
    }

    fn checksums(&mut self, facts: &Facts) {
        let off = self.g.l2p_crc_off;
        for lbn in facts
            .written
            .iter()
            .map(|(lbn, _)| *lbn)
            .collect::<BTreeSet<_>>()
        {
            self.to(off + lbn * 4, "checksum of a block that nobody reads");
            self.put(Use::L2pChecksum, 4);
        }
        self.to(self.g.l2p_log_off, "checksum of a block that nobody reads");
    }

    fn l2p_log(&mut self) {
        let off = self.g.l2p_log_off;
        let word = |at: u64| bytes::get_u64(self.pmem, (off + at) as usize);
        let last = decode_commit(word(COMMIT_AT), self.salt).expect("commit word");
        let start = START_AT.map(|at| {
            let b = &self.pmem[(off + at) as usize..][..START_BYTES];
            Start::decode(b.try_into().expect("64 bytes"), self.salt)
        });
        // A transaction is open if its start record is above the commit word.
        let open = start[0].filter(|s| s.generation > last);
        let why = "records of a finished transaction";
        self.put(Use::L2pLog, 8);
        for at in START_AT {
            self.to(off + at, why);
            if open.is_some() {
                self.put(Use::L2pLog, START_BYTES as u64);
            }
        }
        self.to(off + SPARE_AT, why);
        self.put(Use::L2pLog, 8);
        if let Some(s) = open {
            let mut left = s.records;
            for lane in 0..self.g.l2p_lanes as u32 {
                let n = left.min(s.per_lane);
                left -= n;
                self.to(off + lane_off(lane, self.g.l2p_lane_bytes), why);
                self.put(Use::L2pLog, n * UNDO_BYTES as u64);
            }
        }
    }

    fn lanes(&mut self, facts: &Facts) {
        let why = "free log space";
        let word = |kind: WordKind| {
            let raw = bytes::get_u64(self.pmem, (self.g.jsb_off + kind.offset()) as usize);
            SeqWord::decode(raw, kind.salt(self.salt)).expect("word")
        };
        let epoch = word(WordKind::Epoch) as u32;
        let digested = word(WordKind::Digested);
        let heads: Vec<u64> = (0..self.g.buffers as u16)
            .map(|l| word(WordKind::Head(l)) * LINE as u64)
            .collect();
        for (lane, head) in heads.into_iter().enumerate() {
            let base = self.g.lane_off + lane as u64 * self.g.lane_bytes;
            let mut pos = head;
            let mut records = Vec::new();
            let mut runs = 0..0;
            loop {
                let at = (base + pos % self.g.lane_bytes) as usize;
                let b = self.pmem[at..].first_chunk::<RECORD_HEADER_BYTES>();
                let h = b.and_then(|b| RecordHeader::decode(b, self.salt, lane as u16, epoch, pos));
                let Some(h) = h else { break };
                assert!(h.seq > digested, "a lane begins above digested_seq");
                records.push((at as u64, u64::from(h.body_len), h.total_bytes()));
                runs = at + RECORD_HEADER_BYTES..at + RECORD_HEADER_BYTES + h.runs_len as usize;
                pos += h.total_bytes();
            }
            assert!(
                pos / self.g.lane_bytes == head / self.g.lane_bytes,
                "no wrap"
            );
            if facts.op {
                let table = SlotRun::decode_table(&self.pmem[runs]).expect("slot runs");
                for run in table {
                    let slots = (run.pos..).take(run.blocks.len());
                    let slots = slots.map(|pos| (run.buffer, pos % self.g.slots_per_buffer));
                    self.unsettled.extend(slots);
                }
            }
            let n = records.len();
            for (i, (at, body, total)) in records.into_iter().enumerate() {
                self.to(at, why);
                let what = match facts.op && i + 1 == n {
                    true => Use::LastRecord,
                    false => Use::Record,
                };
                self.put(what, LINE as u64 + body);
                self.to(at + total, "padding of a record");
            }
        }
        self.to(self.g.slot_hdr_off, why);
    }

    fn slots(&mut self, facts: &Facts) {
        let per = self.g.slots_per_buffer;
        let all = || (0..self.g.buffers as u16).flat_map(move |b| (0..per).map(move |i| (b, i)));
        let slots: Vec<_> = all().collect();
        for s in &slots {
            let what = match facts.live.contains(s) {
                true if self.unsettled.contains(s) => Use::Dead(
                    "header of a slot that the last record of a lane names: written again",
                ),
                true => Use::SlotHeader,
                false => Use::Dead("header of a free slot"),
            };
            self.put(what, LINE as u64 - 8);
            self.put(Use::Committed, 8);
        }
        self.to(self.g.slot_data_off, "alignment");
        for s in &slots {
            let what = match facts.live.contains(s) {
                true if self.unsettled.contains(s) => Use::LastPayload,
                true => Use::SlotData,
                false => Use::Dead("content of a free slot"),
            };
            self.put(what, B);
        }
    }

    fn nodes(&mut self) {
        let mut used = BTreeSet::new();
        for id in 0..self.g.nat_entries {
            let word = bytes::get_u64(self.pmem, (self.g.nat_off + id * 8) as usize);
            let page = node::nat_decode(id as u32, word, self.salt).expect("NAT");
            used.extend(page);
        }
        for page in used {
            self.to(self.g.node_off + page * B, "free node page");
            self.put(Use::NodePage, B);
        }
    }
}
