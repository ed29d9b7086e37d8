//! Turns an input into a forged volume: patches, and the checksums that go with them.

use std::sync::LazyLock;

use quayfs_blockdev::BlockDevice;
use quayfs_layout::bytes::{get_u32, get_u64, put_u32, put_u64};
use quayfs_layout::checksum::{WORD_MAX, crc32c, seal_word};
use quayfs_layout::config::COPIES;
use quayfs_layout::jsb::{MAX_NUMBER, PROPOSALS, SeqWord, WordKind};
use quayfs_layout::l2p::{self, Entry, START_BYTES, UNDO_BYTES};
use quayfs_layout::record::RecordHeader;
use quayfs_layout::slot::SlotHeader;
use quayfs_layout::{BLOCK, LINE, node};

use crate::fixup;
use crate::input::Input;
use crate::volumes::{BASES, Base, Media};

const B: u64 = BLOCK as u64;

/// A structure on the media: where it is, and how its checksum is made.
#[derive(Clone, Copy, Debug)]
struct Place {
    off: usize,
    len: usize,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Table,
    Word(WordKind),
    Entry {
        lbn: u64,
    },
    Plain,
    Commit,
    Start,
    Undo {
        lane: u32,
        index: u64,
    },
    Record,
    Slot {
        buffer: u16,
        index: u64,
    },
    Payload {
        header: usize,
        buffer: u16,
        index: u64,
    },
    Nat {
        id: u32,
    },
    Page,
    /// On the data device; `off` counts from its start.
    DataHeader,
    DataBlock {
        crc: usize,
    },
}

/// The structures of each area of a volume that are in use.
type Areas = Vec<Vec<Place>>;

static AREAS: LazyLock<Vec<Areas>> = LazyLock::new(|| BASES.iter().map(areas).collect());

fn areas(base: &Base) -> Areas {
    let g = &base.config.geometry;
    let salt = base.config.salt();
    let at = |off: u64, len: usize, kind| Place {
        off: off as usize,
        len,
        kind,
    };
    let word = |off: u64| get_u64(&base.pmem, off as usize);
    let proposals = (0..PROPOSALS as u8).map(WordKind::Proposal);
    let words = WordKind::all(g.buffers as u16).chain(proposals);
    let entry = |lbn| at(g.l2p_map_off + lbn * 8, 8, Kind::Entry { lbn });
    let log = g.l2p_log_off;
    let undos = (0..g.l2p_lanes as u32).flat_map(|lane| {
        (0..l2p::lane_records(g.l2p_lane_bytes)).map(move |index| {
            let off = log + l2p::lane_off(lane, g.l2p_lane_bytes) + index * UNDO_BYTES as u64;
            at(off, UNDO_BYTES, Kind::Undo { lane, index })
        })
    });
    let slots = (0..g.buffers).flat_map(|b| (0..g.slots_per_buffer).map(move |i| (b, i)));
    let (mut headers, mut payloads) = (Vec::new(), Vec::new());
    for (n, (b, index)) in slots.enumerate() {
        let buffer = b as u16;
        let h = at(
            g.slot_hdr_off + n as u64 * LINE as u64,
            LINE,
            Kind::Slot { buffer, index },
        );
        let bytes: &[u8; LINE] = base.pmem[h.off..h.off + LINE].try_into().expect("a line");
        if SlotHeader::decode(bytes, salt, buffer).is_some() {
            let header = h.off;
            let kind = Kind::Payload {
                header,
                buffer,
                index,
            };
            payloads.push(at(g.slot_data_off + n as u64 * B, BLOCK, kind));
        }
        headers.push(h);
    }
    let nat = |id: u32| at(g.nat_entry(id), 8, Kind::Nat { id });
    let homes = (1..g.nat_entries as u32).filter_map(|id| {
        let page = node::nat_decode(id, word(g.nat_entry(id)), salt)??;
        Some((id, page))
    });
    let (used, pages): (Vec<_>, Vec<_>) = homes
        .map(|(id, page)| (nat(id), at(g.node_page(page), BLOCK, Kind::Page)))
        .unzip();
    let blocks = (0..g.blocks).filter_map(|lbn| {
        let e = Entry::decode(word(g.l2p_map_off + lbn * 8), lbn, salt)?;
        let crc = (g.l2p_crc_off + lbn * 4) as usize;
        let written = e.state == l2p::BlockState::Written;
        written.then(|| at((g.data_start + e.pbn) * B, BLOCK, Kind::DataBlock { crc }))
    });
    vec![
        COPIES.map(|off| at(off, BLOCK, Kind::Table)).to_vec(),
        words
            .map(|k| at(g.jsb_off + k.offset(), 8, Kind::Word(k)))
            .collect(),
        (0..g.blocks).map(entry).collect(),
        (0..g.blocks)
            .map(|lbn| at(g.l2p_crc_off + lbn * 4, 4, Kind::Plain))
            .collect(),
        vec![
            at(log + l2p::COMMIT_AT, 8, Kind::Commit),
            at(log + l2p::SPARE_AT, 8, Kind::Commit),
            at(log + l2p::START_AT[0], START_BYTES, Kind::Start),
            at(log + l2p::START_AT[1], START_BYTES, Kind::Start),
        ],
        undos
            .filter(|p| base.pmem[p.off..p.off + p.len] != [0; UNDO_BYTES])
            .collect(),
        records(base),
        headers,
        payloads,
        used,
        (1..g.nat_entries as u32).map(nat).collect(),
        pages,
        vec![at(0, BLOCK, Kind::DataHeader)],
        blocks.collect(),
        vec![at(0, base.pmem.len(), Kind::Plain)],
    ]
}

/// Every record in the lanes, of whatever lap.
fn records(base: &Base) -> Vec<Place> {
    let g = &base.config.geometry;
    let lines = (0..g.buffers * g.lane_bytes).step_by(LINE);
    let mut out = Vec::new();
    for off in lines.map(|o| g.lane_off + o) {
        let b = &base.pmem[off as usize..off as usize + LINE];
        let (lane, epoch) = ((off - g.lane_off) / g.lane_bytes, get_u32(b, 4));
        let header: &[u8; LINE] = b.try_into().expect("a line");
        let pos = get_u64(b, 16);
        let h = RecordHeader::decode(header, base.config.salt(), lane as u16, epoch, pos);
        if let Some(h) = h {
            let end = (g.lane_off + (lane + 1) * g.lane_bytes).min(off + h.total_bytes());
            out.push(Place {
                off: off as usize,
                len: (end - off) as usize,
                kind: Kind::Record,
            });
        }
    }
    out
}

/// A volume being forged.
struct Forgery {
    pmem: Vec<u8>,
    device: quayfs_crashsim::SimDevice,
    salt: u64,
}

impl Forgery {
    fn read(&self, p: &Place) -> Vec<u8> {
        match p.kind {
            Kind::DataHeader | Kind::DataBlock { .. } => {
                let mut block = vec![0; BLOCK];
                let read = self.device.read(p.off as u64 / B, &mut block);
                read.expect("a block of the device");
                block
            }
            _ => self.pmem[p.off..p.off + p.len].to_vec(),
        }
    }

    fn write(&mut self, p: &Place, bytes: &[u8], fix: bool) {
        match p.kind {
            Kind::DataHeader | Kind::DataBlock { .. } => {
                let written = self.device.write(p.off as u64 / B, bytes);
                written.expect("a block of the device");
            }
            _ => self.pmem[p.off..p.off + p.len].copy_from_slice(bytes),
        }
        if !fix {
            return;
        }
        match p.kind {
            Kind::DataBlock { crc } => put_u32(&mut self.pmem, crc, crc32c(bytes)),
            Kind::Payload {
                header,
                buffer,
                index,
            } => {
                put_u32(&mut self.pmem, header + 28, crc32c(bytes));
                let line = &mut self.pmem[header..header + LINE];
                let line = line.try_into().expect("a line");
                fixup::slot_header(line, self.salt, buffer, index);
            }
            _ => {}
        }
    }

    /// Makes the checksum within a structure right.
    fn fix(&self, kind: Kind, b: &mut [u8]) {
        let salt = self.salt;
        let word = |b: &mut [u8], f: &dyn Fn(u64) -> u64| {
            let sealed = f(get_u64(b, 0));
            put_u64(b, 0, sealed);
        };
        match kind {
            Kind::Table | Kind::DataHeader => {
                let crc = crc32c(&b[..BLOCK - 4]);
                put_u32(b, BLOCK - 4, crc);
            }
            Kind::Word(k) => word(b, &|w| SeqWord::encode(w & MAX_NUMBER, k.salt(salt))),
            Kind::Entry { lbn } => word(b, &|w| {
                seal_word(w & WORD_MAX, fixup::l2p_entry_salt(salt, lbn))
            }),
            Kind::Commit => word(b, &|w| l2p::encode_commit(w & WORD_MAX, salt)),
            Kind::Nat { id } => word(b, &|w| seal_word(w & WORD_MAX, fixup::nat_salt(salt, id))),
            Kind::Start => fixup::start(b.try_into().expect("a start record"), salt),
            Kind::Undo { lane, index } => {
                fixup::undo(b.try_into().expect("an undo record"), salt, lane, index);
            }
            Kind::Record => fixup::record(b, salt),
            Kind::Slot { buffer, index } => {
                fixup::slot_header(b.try_into().expect("a slot header"), salt, buffer, index);
            }
            Kind::Page => node::seal(b, salt),
            Kind::Plain | Kind::Payload { .. } | Kind::DataBlock { .. } => {}
        }
    }
}

/// Changes some bytes of a structure.
fn tamper(input: &mut Input<'_>, bytes: &mut [u8], other: &[u8], how: u8) {
    let at = match bytes.len() {
        0..=256 => usize::from(input.u8()),
        257..=65_536 => usize::from(input.u16()),
        _ => input.u32() as usize,
    } % bytes.len();
    let room = bytes.len() - at;
    match how % 6 {
        0 => {
            let n = usize::from(input.u8() % 32) + 1;
            let piece = input.bytes(n.min(room));
            bytes[at..at + piece.len()].copy_from_slice(piece);
        }
        1 => bytes[at] ^= 1 << (input.u8() % 8),
        2 => bytes[at] = bytes[at].wrapping_add(input.u8()),
        // Numbers, where numbers are.
        3 if bytes.len() >= 8 => put_u64(bytes, at / 8 * 8 % (bytes.len() - 7), input.number()),
        4 if bytes.len() >= 4 => {
            put_u32(bytes, at / 4 * 4 % (bytes.len() - 3), input.number() as u32);
        }
        // Something of the same kind from elsewhere, all of it or from here on.
        _ => {
            let n = other.len().min(bytes.len());
            let from = if input.flag() { at.min(n) } else { 0 };
            bytes[from..n].copy_from_slice(&other[from..n]);
        }
    }
}

/// Most patches of one input.
const PATCHES: usize = 12;

/// A volume to start from, and what the first bytes of the input make of it.
pub fn forge(input: &mut Input<'_>) -> (&'static Base, Media) {
    let n = input.below(BASES.len());
    let (base, areas) = (&BASES[n], &AREAS[n]);
    let mut forgery = Forgery {
        pmem: base.pmem.clone(),
        device: base.device(),
        salt: base.config.salt(),
    };
    for _ in 0..usize::from(input.u8()) % (PATCHES + 1) {
        let area = &areas[input.below(areas.len())];
        if area.is_empty() {
            continue;
        }
        let place = area[input.below(area.len())];
        let how = input.u8();
        let other = match how % 6 {
            5 => forgery.read(&area[input.below(area.len())]),
            _ => Vec::new(),
        };
        let mut bytes = forgery.read(&place);
        tamper(input, &mut bytes, &other, how);
        let fix = how < 216;
        if fix {
            forgery.fix(place.kind, &mut bytes);
        }
        forgery.write(&place, &bytes, fix);
        if fix && place.kind == Kind::Table {
            // The other copy would be taken for the right one, or be the only one that is.
            let both = COPIES.map(|off| Place {
                off: off as usize,
                ..place
            });
            both.iter().for_each(|p| forgery.write(p, &bytes, fix));
        }
    }
    let Forgery { pmem, device, .. } = forgery;
    (base, base.media(&pmem, device))
}
