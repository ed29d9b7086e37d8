//! The state of the volume model: media, DRAM of the running daemon, and the oracle.

use super::cells::*;
use super::config::{Config, OpKind};
use crate::checker::Property;
use crate::medium::Medium;

/// Records and stages that one run of the model can create.
pub const MAX_RECS: usize = 8;
pub const MAX_STAGES: usize = 8;

/// What a record says. Cells of the ring hold 1 + the index of one of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Rec {
    pub pos: u8,
    pub seq: u8,
    pub epoch: u8,
    pub file: u8,
    pub image: Node,
    /// LBNs whose bit is set, and cleared.
    pub set: u8,
    pub clear: u8,
    /// 1 + stage of each slot it names, 0 for none.
    pub stage: [u8; BLKS],
    /// Ghost: what the volume shows once this operation has happened.
    pub after: View,
}

/// One staged block. Cells hold 1 + the index in a slot header, the version in a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Stage {
    pub pos: u8,
    pub lbn: u8,
    pub version: u8,
    pub epoch: u8,
}

impl Stage {
    pub fn slot(&self, cfg: &Config) -> usize {
        usize::from(self.pos) % cfg.slots
    }
}

/// What can be read: per file and block 0 for zeros, else the version of the content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct View(pub [[u8; BLKS]; FILES]);

/// A block of a file that does not exist.
pub const ABSENT: u8 = 0xfe;
/// A block that cannot be read.
pub const BROKEN: u8 = 0xff;

/// What the caller may expect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Oracle {
    /// `op`: the acknowledged state, then the one that an operation in flight would bring about.
    /// `commit`: the state at the last acknowledged commit, then one per appended record.
    pub hist: [View; MAX_RECS + 1],
    pub seq: [u8; MAX_RECS + 1],
    pub n: u8,
    /// A recovery has settled which state it is; later ones must find the same.
    pub fixed: bool,
}

/// A slot as DRAM knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct SlotInfo {
    pub used: bool,
    pub pos: u8,
    pub lbn: u8,
    pub version: u8,
    /// 0 until the record has its number.
    pub seq: u8,
}

/// The operation in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct OpThread {
    pub pc: u8,
    pub direct: bool,
    pub rec: Rec,
    pub lbn: u8,
    pub version: u8,
}

/// A digest in progress, in a running daemon or in recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Digest {
    pub pc: u8,
    /// Records to apply, one bit per index into [`World::recs`].
    pub recs: u8,
    pub upto: u8,
    /// 1 + new page per touched node, 0 where the node goes away.
    pub nat: [u8; NODES],
    pub touched: u8,
    pub old: u8,
}

/// The thread that stores digested_seq after a digest, and then the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct DWriter {
    pub pc: u8,
    pub dg: Digest,
}

/// One block of a round: where the content goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Load {
    pub lbn: u8,
    pub version: u8,
    /// 1 + borrowed LBN, 0 for a write in place.
    pub via: u8,
}

/// A round or a zeroing pass in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Round {
    pub pc: u8,
    pub cut: u8,
    /// What newer versions it looked at: those up to here.
    pub upto: u8,
    pub load: [Load; LBNS],
    pub loads: u8,
    pub generation: u8,
}

/// A zeroing pass in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct ZeroBatch {
    pub pc: u8,
    pub lbns: u8,
    /// The entries as they were read.
    pub read: [u8; LBNS],
}

/// Everything a crash forgets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Dram {
    pub node: [Node; FILES],
    pub bits: u8,
    /// 1 + slot of the newest staged content per LBN.
    pub staged: [u8; LBNS],
    pub slot: [SlotInfo; SLOTS],
    pub slot_head: u8,
    pub slot_tail: u8,
    pub ring_head: u8,
    pub ring_tail: u8,
    /// Records appended and not yet digested, a bit per index.
    pub undigested: u8,
    /// Of these, the durable ones (`op`).
    pub durable: u8,
    pub next_seq: u8,
    pub last_appended: u8,
    pub digested: u8,
    pub retired: u8,
    pub commit_ts: u8,
    /// Number of the record that released an LBN, 0 if none did in this life.
    pub released: [u8; LBNS],
    /// LBNs handed back by a round as zeroed without a look at the map (ablation only).
    pub trusted: u8,
    pub free_pages: u8,
    pub published: View,
    pub op: OpThread,
    pub dg: Digest,
    pub dw: DWriter,
    pub rd: Round,
    pub zb: ZeroBatch,
    /// Commit in progress: step and cut.
    pub cm: (u8, u8),
}

/// What a recovery knows while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Recovery {
    pub pc: u8,
    /// Durability of the next mount: 1 for `commit`.
    pub mode: u8,
    pub scanned: bool,
    /// `retired_seq` and epoch as scanned.
    pub retired: u8,
    pub epoch: u8,
    pub max_seq: u8,
    pub end: u8,
    pub slot: [SlotInfo; SLOTS],
    /// 1 + stage whose header must be rewritten, per slot.
    pub rewrite: [u8; SLOTS],
    pub dg: Digest,
}

/// Whether the volume is mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    Serving,
    Recovering,
    /// Damage was found and reported, and there was some.
    Reported,
}

/// What may still happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Budget {
    pub ops: u8,
    pub rounds: u8,
    pub batches: u8,
    pub commits: u8,
    pub crashes: u8,
    pub rot: u8,
    pub scribbles: u8,
}

/// A state of the volume model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    pub m: Medium<CELLS>,
    pub recs: [Rec; MAX_RECS],
    pub nrecs: u8,
    pub stages: [Stage; MAX_STAGES],
    pub nstages: u8,
    pub versions: u8,
    pub phase: Phase,
    pub dram: Dram,
    pub rc: Recovery,
    pub oracle: Oracle,
    pub left: Budget,
    pub rotted: bool,
    pub fault: Option<Property>,
}

/// A transition of the volume model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Begin(OpKind),
    Op(u8),
    DigestBegin,
    Digest(u8),
    StoreDigested(u8),
    Cut { swap: bool, older: bool },
    Round(u8),
    ZeroBegin,
    Zero(u8),
    Commit(u8),
    PowerLoss,
    Death,
    Rot(usize),
    Scribble(u8),
    Recover(u8),
}

impl World {
    pub fn rec_at(&self, cell: usize) -> Option<&Rec> {
        let value = self.m.load(cell);
        (value != 0 && value != crate::medium::TORN).then(|| &self.recs[usize::from(value) - 1])
    }
    pub fn stage_at(&self, cell: usize) -> Option<&Stage> {
        let value = self.m.load(cell);
        (value != 0 && value != crate::medium::TORN).then(|| &self.stages[usize::from(value) - 1])
    }
    pub fn word(&self, cell: usize) -> u8 {
        self.m.load(cell) as u8
    }
    /// What the map and the device hold for `lbn`; the checksum is verified.
    pub fn home(&self, lbn: usize) -> u8 {
        let entry = Entry::unpack(self.m.load(MAP + lbn));
        if !entry.written {
            return 0;
        }
        let data = self.m.load(DEV + usize::from(entry.pbn));
        if data == self.m.load(CRC + lbn) {
            data as u8
        } else {
            BROKEN
        }
    }
    /// The content of a node in its home page.
    pub fn home_node(&self, node: usize) -> Option<Node> {
        match self.m.load(NAT + node) {
            0 => Some(Node::default()),
            page => Node::unpack(self.m.load(PAGE + usize::from(page) - 1), node),
        }
    }
    pub fn fail(&mut self, property: Property) {
        self.fault.get_or_insert(property);
    }
}
