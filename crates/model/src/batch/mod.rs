//! The batch model: commits on an ordinary disk, each one batch of writes and one flush.
//!
//! Each operation sets one of two registers: its record goes into the log, its payload into a staging slot,
//! or into a fresh block of the device that the record names. All of that is in DRAM until a commit writes it,
//! together with a *commit record*: its generation, the cut, and a cut that is known to be durable. While one commit
//! waits for its flush the next one may be written, and written again with what is appended meanwhile; the one after
//! that may not. A sector of the log has room for two records; what writes everything that is dirty, for the digest,
//! may meet the commit there.
//!
//! A write is in flight until a flush that begins after it, and what it writes may be torn after power loss: a disk may
//! leave a sector that it was writing unreadable. Recovery takes, of the last two commit records that there are, the
//! newest whose batch is whole.

mod judge;
mod run;

use crate::checker::{Model, Property};
use crate::medium::{Medium, TORN};
use crate::ordering::{Kept, Ordering};

/// Registers, sectors of the log, records in a sector, records in the log.
pub const REGS: usize = 2;
pub const SECTORS: usize = 3;
pub const SHARE: usize = 2;
pub const RING: usize = SECTORS * SHARE;
/// Staging slots, and blocks of the device.
pub const SLOTS: usize = 2;
pub const BLOCKS: usize = REGS + 1;

/// Places of commit records.
pub const PLACES: usize = 3;

/// Two words, then what may be torn, first of all the places of commit records.
pub const DIGESTED: usize = 0;
pub const EPOCH: usize = 1;
pub const COMMIT: usize = 2;
pub const LOG: usize = COMMIT + PLACES;
pub const SLOT: usize = LOG + SECTORS;
pub const BLOCK: usize = SLOT + SLOTS;
pub const HOME: usize = BLOCK + BLOCKS;
pub const CELLS: usize = HOME + REGS;

pub const BY_LAZY: u8 = 1;
pub const BY_DIGEST: u8 = 2;
pub const BY_RECOVERY: u8 = 3;
/// Commits take turns, to tell apart what those in flight have written.
pub const BY_COMMIT: u8 = 4;

/// Operations that there can be: their numbers take three bits, with 0 for none.
pub const OPS: usize = 6;

/// One operation: the register that it sets, and whether its payload goes to a fresh block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    pub reg: u8,
    pub direct: bool,
}

/// Bounds and switches.
#[derive(Clone, Debug)]
pub struct Config {
    pub name: &'static str,
    /// In the order of their numbers.
    pub jobs: &'static [Job],
    /// How often a sector is written because it is dirty.
    pub lazy: u8,
    pub crashes: u8,
    /// One durable cell may rot before a recovery reads it.
    pub rot: bool,
    pub kept: Kept,
}

impl Config {
    pub fn bounds(&self) -> String {
        let direct = self.jobs.iter().filter(|job| job.direct).count();
        let rot = if self.rot { ", rot 1" } else { "" };
        format!(
            "{} operations, {direct} of them direct; lazy writes {}, crashes or deaths {}{rot}",
            self.jobs.len(),
            self.lazy,
            self.crashes
        )
    }
}

/// A commit record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub struct CommitRecord {
    pub epoch: u8,
    pub generation: u8,
    pub cut: u8,
    /// A cut that is durable.
    pub before: u8,
}

impl CommitRecord {
    pub fn encode(self) -> u16 {
        let field = |value: u8, at: u32| {
            assert!(value < 8, "{self:?} has a field of more than three bits");
            u16::from(value) << at
        };
        // Never zero, which is no record.
        field(self.epoch, 0)
            | field(self.generation, 3)
            | field(self.cut, 6)
            | field(self.before, 9)
            | 1 << 12
    }

    pub fn decode(value: u16) -> Option<Self> {
        let field = |at: u32| (value >> at & 7) as u8;
        (value != 0 && value != TORN).then(|| Self {
            epoch: field(0),
            generation: field(3),
            cut: field(6),
            before: field(9),
        })
    }
}

/// What a home says: the operation whose value it is, and the block that has it, if it is not in the home itself.
pub fn home(op: u8, block: Option<u8>) -> u16 {
    u16::from(op) | block.map_or(0, |b| u16::from(b) + 1) << 3
}

/// The two parts of a home.
pub fn parts(home: u16) -> (u8, Option<u8>) {
    ((home & 7) as u8, ((home >> 3) as u8).checked_sub(1))
}

/// What runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    Running,
    Down,
    /// Homes are stored, digested_seq is not.
    Replayed,
    /// digested_seq is stored, the new epoch is not.
    Raised,
    /// The new epoch is stored, and not durable.
    Begun,
}

/// How far the digest is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Digest {
    Idle,
    /// Homes up to here are stored.
    Stored(u8),
    /// And durable.
    Settled(u8),
    /// digested_seq is stored.
    Raised(u8),
}

/// A state of the batch model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub m: Medium<CELLS>,
    pub phase: Phase,
    pub epoch: u8,
    /// The last operation of this life, and the last one that there ever was.
    pub appended: u8,
    /// Where each operation has its record.
    pub pos_of: [u8; OPS],
    /// Where the next record goes.
    pub tail: u8,
    /// Where each operation has its payload: 1 + a block, if it is direct.
    pub block_of: [u8; OPS],
    /// For each block, the operation that freed it: it must be below digested_seq before the block is used again. 0 if
    /// it is free.
    pub freed_by: [u8; BLOCKS],
    /// DRAM: the log, and which block each register is in.
    pub log: [u8; RING],
    pub named: [Option<u8>; REGS],
    /// The commit: the last generation, the cuts of the one that waits for its flush and of the one behind it, what is
    /// durable.
    pub generation: u8,
    /// The generation of that which waits for its flush.
    pub first: u8,
    pub flying: Option<u8>,
    pub ahead: Option<u8>,
    pub commit_ts: u8,
    /// A sector that is being written because it is dirty, and what it will hold.
    pub lazy: Option<(u8, u16)>,
    pub digest: Digest,
    pub digested: u8,
    /// Recovery: what it has decided.
    pub cut: u8,
    pub damage: bool,
    pub rotted: bool,
    /// Ghost: what rotted can be told from a batch that was cut off.
    pub excused: bool,
    /// Ghost: the newest cut that was acknowledged, operations that a crash has undone, cuts that there were.
    pub acked: u8,
    pub undone: u8,
    pub cuts: u8,
    pub left: [u8; 2],
}

/// A transition of the batch model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Append,
    Write,
    Extend,
    Flush,
    Acknowledge,
    LazyBegin(u8),
    LazyEnd,
    StoreHome,
    SettleHomes,
    RaiseDigested,
    SettleDigested,
    Rot(usize),
    Scan,
    RecoveryRaisesD,
    RecoveryBeginsEpoch,
    Serve,
    PowerLoss,
    Death,
}

/// The batch model under one configuration.
pub struct Batches(pub Config);

impl Batches {
    fn keeps(&self, ordering: Ordering) -> bool {
        self.0.kept.has(ordering)
    }

    fn job(&self, op: u8) -> Job {
        self.0.jobs[usize::from(op) - 1]
    }

    /// The last operation that set a register, up to a cut, without those that a crash has undone.
    fn last_of(&self, s: &State, reg: usize, cut: u8) -> u8 {
        let mine = |op: &u8| usize::from(self.job(*op).reg) == reg && s.undone >> op & 1 == 0;
        (1..=cut).rev().find(mine).unwrap_or(0)
    }
}

/// The sector of a position in the log.
pub fn sector_of(pos: u8) -> usize {
    usize::from(pos) % RING / SHARE
}

/// The slot of a staged operation.
pub fn slot(op: u8) -> usize {
    (usize::from(op) - 1) % SLOTS
}

/// What a sector holds.
pub fn sector(log: &[u8; RING], sector: usize) -> u16 {
    let of = |i: usize| u16::from(log[sector * SHARE + i]) << (4 * i);
    (0..SHARE).map(of).sum()
}

impl Model for Batches {
    type State = State;
    type Step = Step;

    fn initial(&self) -> State {
        let mut m = Medium::zeroed();
        m.format(EPOCH, 1);
        State {
            m,
            phase: Phase::Running,
            epoch: 1,
            appended: 0,
            pos_of: [0; OPS],
            tail: 0,
            block_of: [0; OPS],
            freed_by: [0; BLOCKS],
            log: [0; RING],
            named: [None; REGS],
            generation: 0,
            first: 0,
            flying: None,
            ahead: None,
            commit_ts: 0,
            lazy: None,
            digest: Digest::Idle,
            digested: 0,
            cut: 0,
            damage: false,
            rotted: false,
            excused: false,
            acked: 0,
            undone: 0,
            cuts: 1,
            left: [self.0.lazy, self.0.crashes],
        }
    }

    fn successors(&self, s: &State, out: &mut Vec<(Step, State)>) {
        match s.phase {
            Phase::Running => self.running(s, out),
            _ => self.recovering(s, out),
        }
    }

    fn crashes(&self, s: &State, out: &mut Vec<(Step, State)>) {
        if s.left[1] == 0 || s.damage {
            return;
        }
        let down = |m: Medium<CELLS>| {
            let mut next = s.clone();
            next.left[1] -= 1;
            next.m = m;
            self.goes_down(&mut next);
            next
        };
        let torn = |at: usize| at >= COMMIT;
        s.m.after_power_loss(torn, |m| out.push((Step::PowerLoss, down(m))));
        // What a process that is gone was writing arrives, or does not.
        out.push((Step::Death, down(s.m.clone())));
        if let Some((sector, value)) = s.lazy {
            let mut m = s.m.clone();
            m.store(LOG + usize::from(sector), value, BY_LAZY);
            out.push((Step::Death, down(m)));
        }
    }

    fn check(&self, s: &State) -> Result<(), Property> {
        self.judge(s)
    }

    fn finished(&self, s: &State) -> Option<bool> {
        let resting = s.phase == Phase::Running && s.digested == s.appended;
        Some(resting || s.damage)
    }

    fn explain(&self, before: &State, step: Step, after: &State) -> String {
        match step {
            Step::Append => format!("operation {} is appended", after.appended),
            Step::Write => format!(
                "commit {}: everything up to {} is being written",
                after.generation, after.appended
            ),
            Step::Extend => format!(
                "commit {} takes along everything up to {}",
                after.generation, after.appended
            ),
            Step::Flush => format!("the device is flushed: {} is committed", after.commit_ts),
            Step::Acknowledge => format!("fsync answers: {}", after.acked),
            Step::LazyBegin(n) => format!("sector {n} of the log is dirty and is being written"),
            Step::LazyEnd => "that has arrived".into(),
            Step::StoreHome => format!("digest stores homes: {:?}", after.digest),
            Step::SettleHomes => "digest: flush of the homes".into(),
            Step::RaiseDigested => "digest stores digested_seq".into(),
            Step::SettleDigested => format!("digest: flush, digested_seq is {}", after.digested),
            Step::Rot(at) => format!("cell {at} rots"),
            Step::Scan => format!(
                "recovery: cut {}, homes stored, damage {}",
                after.cut, after.damage
            ),
            Step::RecoveryRaisesD => {
                format!("recovery: flush, digested_seq is {} now", after.digested)
            }
            Step::RecoveryBeginsEpoch => format!("recovery: flush, epoch {} begins", after.epoch),
            Step::Serve => "recovery: flush, and it serves".into(),
            Step::PowerLoss => format!("POWER LOSS in {:?}; {:?}", before.phase, cells(&after.m)),
            Step::Death => format!("DEATH in {:?}; {:?}", before.phase, cells(&after.m)),
        }
    }
}

/// What is on the medium, for a trace.
fn cells(m: &Medium<CELLS>) -> Vec<u16> {
    (0..CELLS).map(|at| m.load(at)).collect()
}
