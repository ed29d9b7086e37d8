//! Where everything lies on the model's media, and how values are packed into cells.

/// Files, blocks per file, logical (= physical) blocks, slots, records, node pages, nodes.
pub const FILES: usize = 2;
pub const BLKS: usize = 2;
pub const LBNS: usize = 3;
pub const SLOTS: usize = 3;
pub const RING: usize = 3;
pub const PAGES: usize = 6;
/// One node per file, then the allocation bitmap.
pub const NODES: usize = FILES + 1;
pub const BITMAP: usize = FILES;

/// Journal superblock words: epoch (times two, plus one in `commit` mode), digested_seq, `retired_seq`,
/// `commit_ts`, and the lane's head.
pub const EPOCH: usize = 0;
pub const DIGESTED: usize = 1;
pub const RETIRED: usize = 2;
pub const COMMIT_TS: usize = 3;
pub const HEAD: usize = 4;
/// Page-table log: commit word, start record, one undo record per entry.
pub const TXN_WORD: usize = 5;
pub const TXN_START: usize = 6;
pub const UNDO: usize = 7;
pub const NAT: usize = UNDO + LBNS;
pub const MAP: usize = NAT + NODES;
pub const CRC: usize = MAP + LBNS;
pub const PAGE: usize = CRC + LBNS;
pub const REC_HEAD: usize = PAGE + PAGES;
pub const REC_BODY: usize = REC_HEAD + RING;
pub const SLOT_HEAD: usize = REC_BODY + RING;
pub const SLOT_DATA: usize = SLOT_HEAD + SLOTS;
pub const SLOT_WORD: usize = SLOT_DATA + SLOTS;
/// Blocks of the data device; everything before is persistent memory.
pub const DEV: usize = SLOT_WORD + SLOTS;
pub const CELLS: usize = DEV + LBNS;

/// Threads that store: operations, digest, rounds and zeroing passes, the writer of digested_seq, recovery.
pub const BY_OP: u8 = 1;
pub const BY_DIGEST: u8 = 2;
pub const BY_ROUND: u8 = 3;
pub const BY_D: u8 = 4;
pub const BY_COMMIT: u8 = 5;
pub const BY_RECOVERY: u8 = 6;
/// Writes to the data device: only a device flush settles them.
pub const BY_DEVICE: u8 = 7;
/// The next owner of a freed page.
pub const BY_OTHER: u8 = 8;
pub const BY_ZERO: u8 = 9;

/// Whether a cell is larger than an aligned 8-byte word, and so can tear.
pub fn wide(at: usize) -> bool {
    matches!(at, TXN_START..NAT | PAGE..SLOT_WORD | DEV..CELLS)
}

/// The name of a cell in a trace.
pub fn name(at: usize) -> String {
    match at {
        EPOCH => "epoch".into(),
        DIGESTED => "digested_seq".into(),
        RETIRED => "retired_seq".into(),
        COMMIT_TS => "commit_ts".into(),
        HEAD => "lane head".into(),
        TXN_WORD => "L2P commit word".into(),
        TXN_START => "L2P start".into(),
        UNDO..NAT => format!("undo of LBN {}", at - UNDO),
        NAT..MAP => format!("NAT of {}", node_name(at - NAT)),
        MAP..CRC => format!("page-table entry {}", at - MAP),
        CRC..PAGE => format!("CRC of LBN {}", at - CRC),
        PAGE..REC_HEAD => format!("page {}", at - PAGE),
        REC_HEAD..REC_BODY => format!("record header {}", at - REC_HEAD),
        REC_BODY..SLOT_HEAD => format!("record body {}", at - REC_BODY),
        SLOT_HEAD..SLOT_DATA => format!("header of slot {}", at - SLOT_HEAD),
        SLOT_DATA..SLOT_WORD => format!("payload of slot {}", at - SLOT_DATA),
        SLOT_WORD..DEV => format!("committed word of slot {}", at - SLOT_WORD),
        _ => format!("device block {}", at - DEV),
    }
}

/// The name of a node in a trace.
pub fn node_name(node: usize) -> String {
    match node {
        BITMAP => "the bitmap".into(),
        file => format!("file {}", char::from(b'A' + file as u8)),
    }
}

/// A page-table entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub pbn: u16,
    pub written: bool,
}

impl Entry {
    pub fn pack(self) -> u16 {
        self.pbn | u16::from(self.written) << 4
    }
    pub fn unpack(value: u16) -> Entry {
        Entry {
            pbn: value & 15,
            written: value >> 4 & 1 == 1,
        }
    }
}

/// An undo record: generation, the entry and the CRC as they were.
pub fn pack_undo(generation: u16, entry: u16, crc: u16) -> u16 {
    generation << 12 | entry << 6 | crc
}

/// Generation, entry and CRC of an undo record.
pub fn unpack_undo(value: u16) -> (u16, u16, u16) {
    (value >> 12, value >> 6 & 0x3f, value & 0x3f)
}

/// A start record: generation, `retired_seq` and digested_seq as they were.
pub fn pack_start(generation: u16, retired: u16, digested: u16) -> u16 {
    generation << 12 | digested << 6 | retired
}

/// Decoded content of a node page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Node {
    /// Files: whether it exists. The bitmap always does.
    pub exists: bool,
    /// Files: LBN + 1 per block, 0 for a hole.
    pub map: [u8; BLKS],
    /// The bitmap: one bit per LBN.
    pub bits: u8,
}

impl Node {
    /// The content of a page that holds this node.
    pub fn pack(self, node: usize) -> u16 {
        1 << 14
            | (node as u16) << 12
            | u16::from(self.exists) << 10
            | u16::from(self.map[0]) << 7
            | u16::from(self.map[1]) << 4
            | u16::from(self.bits)
    }
    /// `None` if the page fails its check or holds another node.
    pub fn unpack(value: u16, node: usize) -> Option<Node> {
        (value >> 14 == 1 && usize::from(value >> 12 & 3) == node).then_some(Node {
            exists: value >> 10 & 1 == 1,
            map: [(value >> 7 & 7) as u8, (value >> 4 & 7) as u8],
            bits: (value & 15) as u8,
        })
    }
}
