//! The reader model: a read beside a write, a round and the reuse of what they leave.
//!
//! No crash here. LBNs 0 and 1 are the two blocks of a file; one request overwrites both, one read
//! copies both. LBNs 2 and 3 are free, are borrowed by a swapping round, and take direct data of
//! another file as soon as they are free. The slots of the overwrite take another file's blocks as
//! soon as they are free.

use crate::checker::{Model, Property};
use crate::ordering::{Kept, Ordering};

const FILE: usize = 2;
const LBNS: usize = 4;

/// Bounds and switches.
#[derive(Clone, Debug)]
pub struct Config {
    pub name: &'static str,
    /// The round swaps instead of writing in place.
    pub swap: bool,
    /// The reader is fsck or scrub: it takes no range lock, wants no atomicity, skips what is
    /// staged, and believes the checksums.
    pub scrub: bool,
    pub kept: Kept,
}

/// Versions: what was there, the overwrite, another file's content, half-written.
const OLD: u8 = 1;
const NEW: u8 = 2;
const FOREIGN: u8 = 3;
const HALF: u8 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
struct Reader {
    pc: u8,
    block: u8,
    /// Version current when the read began.
    since: u8,
    pbn: u8,
    crc: u8,
    /// What block 0 was read as.
    got: u8,
    retries: u8,
    pinned: bool,
}

/// A state of the reader model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State {
    dev: [u8; LBNS],
    pbn: [u8; LBNS],
    crc: [u8; LBNS],
    slot: [u8; FILE],
    staged: [bool; FILE],
    current: u8,
    /// The range lock: held for a read, held for a write.
    shared: bool,
    exclusive: bool,
    reader: Reader,
    writer: u8,
    writer_pinned: bool,
    round: u8,
    /// Pins that the round waits for: reader, writer.
    waits: [bool; 2],
    slots_free: bool,
    blocks_free: bool,
    fault: Option<Property>,
}

/// A transition of the reader model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Read(u8),
    Write(u8),
    Round(u8),
    FreeSlots,
    FreeBlocks,
    SlotGuest(usize),
    BlockGuest(usize),
}

/// The reader model under one configuration.
pub struct Readers(pub Config);

impl Readers {
    fn keeps(&self, ordering: Ordering) -> bool {
        self.0.kept.has(ordering)
    }

    fn read(&self, s: &State) -> Option<State> {
        let mut s = *s;
        let lock = self.keeps(Ordering::ReaderHoldsRange) && !self.0.scrub;
        let r = s.reader;
        let block = usize::from(r.block);
        s.reader.pc = r.pc + 1;
        match r.pc {
            0 => {
                if lock && s.exclusive {
                    return None;
                }
                s.shared = lock;
                s.reader.since = s.current;
                s.reader.pinned = true;
            }
            // Staged map, else entry and CRC.
            1 => {
                if s.staged[block] {
                    s.reader.pc = 6;
                }
            }
            2 => s.reader.pbn = s.pbn[block],
            3 => s.reader.crc = s.crc[block],
            4 => {
                let data = s.dev[usize::from(r.pbn)];
                if data == r.crc {
                    self.got(&mut s, data);
                } else if r.retries < 2 && self.keeps(Ordering::RereadOnMismatch) {
                    let retries = r.retries + 1;
                    s.reader = Reader {
                        pc: 1,
                        pbn: 0,
                        crc: 0,
                        retries,
                        ..r
                    };
                } else {
                    s.fault = Some(Property::FalseDamage);
                }
            }
            // A copy out of a slot is not checked: the slot cannot have changed.
            6 => {
                let data = if self.0.scrub { NEW } else { s.slot[block] };
                self.got(&mut s, data);
            }
            _ => return None,
        }
        Some(s)
    }

    fn got(&self, s: &mut State, data: u8) {
        if data < s.reader.since || data > NEW {
            s.fault = Some(Property::ForeignContent);
        } else if s.reader.block == 0 {
            let Reader { since, pinned, .. } = s.reader;
            s.reader = Reader {
                pc: 1,
                block: 1,
                since,
                pinned,
                got: data,
                ..Reader::default()
            };
        } else {
            if s.reader.got != data && !self.0.scrub {
                s.fault = Some(Property::Torn);
            }
            s.shared = false;
            s.reader = Reader {
                pc: 9,
                ..Reader::default()
            };
        }
    }

    /// The overwrite of both blocks in one request.
    fn write(&self, s: &State) -> Option<State> {
        let mut s = *s;
        match s.writer {
            0 => {
                if s.shared {
                    return None;
                }
                s.exclusive = true;
                s.writer_pinned = self.keeps(Ordering::WriterPinned);
                s.slot = [NEW; FILE];
            }
            // The record is durable; digest and digested_seq may pass it from here on.
            1 => {}
            2 => s.staged[0] = true,
            3 => {
                s.staged[1] = true;
                s.current = NEW;
            }
            4 => {
                s.exclusive = false;
                s.writer_pinned = false;
            }
            _ => return None,
        }
        s.writer += 1;
        Some(s)
    }

    /// Whether all that were pinned when the round began to wait are gone.
    fn grace(s: &mut State) -> bool {
        s.waits = [s.waits[0] && s.reader.pinned, s.waits[1] && s.writer_pinned];
        s.waits == [false; 2]
    }

    fn round(&self, s: &State) -> Option<State> {
        let mut s = *s;
        let target = |s: &State, block: usize| {
            usize::from(s.pbn[if self.0.swap { block + FILE } else { block }])
        };
        match s.round {
            0 => {
                if s.writer < 2 {
                    return None;
                }
                s.waits = [s.reader.pinned, s.writer_pinned];
            }
            1 => {
                if self.keeps(Ordering::GraceBeforeInPlace) && !Readers::grace(&mut s) {
                    return None;
                }
                s.waits = [false; 2];
            }
            2 | 3 => {
                for block in 0..FILE {
                    let to = target(&s, block);
                    s.dev[to] = if s.round == 2 { HALF } else { NEW };
                }
            }
            4 => {
                if self.0.swap {
                    s.pbn.rotate_left(FILE);
                }
            }
            5 => s.crc[..FILE].fill(NEW),
            6 => {
                s.staged = [false; FILE];
                s.waits = [s.reader.pinned, s.writer_pinned];
            }
            _ => return None,
        }
        s.round += 1;
        Some(s)
    }

    fn free_slots(&self, s: &State) -> Option<State> {
        let mut s = *s;
        let wait = self.keeps(Ordering::GraceBeforeSlotReuse);
        if s.round != 7 || s.slots_free || (wait && !Readers::grace(&mut s)) {
            return None;
        }
        s.slots_free = true;
        Some(s)
    }

    fn free_blocks(&self, s: &State) -> Option<State> {
        let mut s = *s;
        let wait = self.keeps(Ordering::GraceBeforeBlockReuse);
        if s.round != 7 || s.blocks_free || !self.0.swap || (wait && !Readers::grace(&mut s)) {
            return None;
        }
        s.blocks_free = true;
        Some(s)
    }
}

impl Model for Readers {
    type State = State;
    type Step = Step;

    fn initial(&self) -> State {
        State {
            dev: [OLD, OLD, 0, 0],
            pbn: [0, 1, 2, 3],
            crc: [OLD, OLD, 0, 0],
            slot: [0; FILE],
            staged: [false; FILE],
            current: OLD,
            shared: false,
            exclusive: false,
            reader: Reader::default(),
            writer: 0,
            writer_pinned: false,
            round: 0,
            waits: [false; 2],
            slots_free: false,
            blocks_free: false,
            fault: None,
        }
    }

    fn successors(&self, s: &State, out: &mut Vec<(Step, State)>) {
        let mut push = |step, next: Option<State>| out.extend(next.map(|next| (step, next)));
        push(Step::Read(s.reader.pc), self.read(s));
        push(Step::Write(s.writer), self.write(s));
        push(Step::Round(s.round), self.round(s));
        push(Step::FreeSlots, self.free_slots(s));
        push(Step::FreeBlocks, self.free_blocks(s));
        for block in 0..FILE {
            if s.slots_free && s.slot[block] != FOREIGN {
                let mut next = *s;
                next.slot[block] = FOREIGN;
                push(Step::SlotGuest(block), Some(next));
            }
            let pbn = usize::from(s.pbn[block + FILE]);
            if s.blocks_free && s.dev[pbn] != FOREIGN {
                let mut next = *s;
                next.dev[pbn] = FOREIGN;
                push(Step::BlockGuest(block), Some(next));
            }
        }
    }

    fn check(&self, s: &State) -> Result<(), Property> {
        s.fault.map_or(Ok(()), Err)
    }

    fn finished(&self, s: &State) -> Option<bool> {
        Some(s.reader.pc == 9 && s.writer == 5 && s.slots_free)
    }

    fn explain(&self, before: &State, step: Step, after: &State) -> String {
        let block = before.reader.block;
        match step {
            Step::Read(0) => "reader: range locked (if it is), pinned".into(),
            Step::Read(1) if after.reader.pc == 6 => format!("reader: block {block} is staged"),
            Step::Read(1) => format!("reader: block {block} is not staged"),
            Step::Read(2) => format!("reader: entry says block {}", after.reader.pbn),
            Step::Read(3) => format!("reader: CRC is that of version {}", after.reader.crc),
            Step::Read(4) if after.fault == Some(Property::FalseDamage) => {
                "reader: checksum mismatch, EIO".into()
            }
            Step::Read(4) if after.reader.retries > before.reader.retries => {
                "reader: checksum mismatch, looks again".into()
            }
            Step::Read(_) => format!("reader: has copied block {block}"),
            Step::Write(0) => "writer: range locked, pinned (if it is), both blocks staged".into(),
            Step::Write(1) => "writer: record durable; digested_seq may pass it".into(),
            Step::Write(2) => "writer: block 0 published".into(),
            Step::Write(3) => "writer: block 1 published".into(),
            Step::Write(_) => "writer: unlocked, unpinned".into(),
            Step::Round(0) => "round: cut".into(),
            Step::Round(1) => "round: grace period, if any".into(),
            Step::Round(2) => "round: blocks half written".into(),
            Step::Round(3) => "round: blocks written, flushed".into(),
            Step::Round(4) => "round: entries".into(),
            Step::Round(5) => "round: CRCs".into(),
            Step::Round(_) => "round: committed; the LBNs leave the staged map".into(),
            Step::FreeSlots => "slots are free".into(),
            Step::FreeBlocks => "old physical blocks are free".into(),
            Step::SlotGuest(slot) => format!("another file's block is staged in slot {slot}"),
            Step::BlockGuest(b) => format!("another file's direct data overwrites old block {b}"),
        }
    }
}
