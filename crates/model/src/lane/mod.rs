//! The lane model: many writers, two lanes, sequence numbers, bounds, cuts and commits.
//!
//! Each operation sets one register. Operations on one register exclude each other, as operations
//! on one inode do; their lanes need not be the same. What is checked is whether numbers, bounds,
//! lane locks, digested_seq, heads and commits carry every acknowledged value over a crash. Records are a
//! header and a body; homes are words that the digest stores before digested_seq.

mod scan;
mod steps;

use crate::checker::{Model, Property};
use crate::medium::{Medium, TORN};
use crate::ordering::{Kept, Ordering};

/// Lanes, records per lane at most, registers, writers, and committers.
pub const LANES: usize = 2;
pub const RING: usize = 2;
pub const REGS: usize = 2;
pub const WRITERS: usize = 3;
pub const COMMITTERS: usize = 2;
/// Operations per writer, at most.
pub const EACH: usize = 2;
pub const OPS: usize = WRITERS * EACH;

pub const DIGESTED: usize = 0;
pub const COMMIT_TS: usize = 1;
pub const HEAD: usize = 2;
pub const HOME: usize = HEAD + LANES;
pub const REC_HEAD: usize = HOME + REGS;
pub const REC_BODY: usize = REC_HEAD + LANES * RING;
pub const CELLS: usize = REC_BODY + LANES * RING;

pub const BY_DIGEST: u8 = 10;
pub const BY_COMMIT: u8 = 11;
/// No append in progress.
pub const UNBOUNDED: u8 = u8::MAX;

/// One operation of a writer: where its record goes and which register it sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    pub lane: u8,
    pub reg: u8,
}

/// Bounds and switches.
#[derive(Clone, Debug)]
pub struct Config {
    pub name: &'static str,
    pub commit: bool,
    /// The operations of each writer, in order.
    pub jobs: [&'static [Job]; WRITERS],
    /// Records per lane.
    pub ring: usize,
    pub committers: usize,
    /// How many commits there may be, over all committers.
    pub commits: u8,
    /// One durable record may rot before the crash is recovered from.
    pub rot: bool,
    /// An operation may fail where nothing forbids it.
    pub failures: bool,
    pub kept: Kept,
}

/// A record that was appended, or is about to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Rec {
    pub seq: u8,
    pub pos: u8,
}

/// A writer: its step, and which of its operations it is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Writer {
    pub pc: u8,
    pub at: u8,
    pub seen: u8,
}

/// A reader of counter and bounds: digest or commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Reader {
    pub pc: u8,
    /// The next bound to load.
    pub next: u8,
    pub upto: u8,
}

/// A state of the lane model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub m: Medium<CELLS>,
    pub rec: [Rec; OPS],
    pub writer: [Writer; WRITERS],
    pub counter: u8,
    pub bound: [u8; WRITERS],
    /// 1 + writer that holds it, 0 for free.
    pub lane_lock: [u8; LANES],
    pub reg_lock: [u8; REGS],
    pub tail: [u8; LANES],
    pub freed: [u8; LANES],
    pub digest: Reader,
    pub digested: u8,
    pub committer: [Reader; COMMITTERS],
    pub committing: bool,
    pub commit_ts: u8,
    pub commits: u8,
    /// Ghost: operations acknowledged (`op`), the newest acknowledged cut (`commit`).
    pub acked: u8,
    pub acked_cut: u8,
    /// Ghost: operations that will never append a record.
    pub failed: u8,
    pub crashed: bool,
    pub rotted: bool,
}

/// A transition of the lane model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Write(usize, u8),
    Fail(usize),
    Digest(u8),
    Advance(usize),
    Commit(usize, u8),
    PowerLoss,
    Rot(usize),
}

/// The lane model under one configuration.
pub struct Lanes(pub Config);

impl Lanes {
    fn keeps(&self, ordering: Ordering) -> bool {
        self.0.kept.has(ordering)
    }
    fn job(&self, op: usize) -> Job {
        self.0.jobs[op / EACH][op % EACH]
    }
    fn cell(&self, lane: usize, pos: u8) -> usize {
        lane * RING + usize::from(pos) % self.0.ring
    }
}

impl Model for Lanes {
    type State = State;
    type Step = Step;

    fn initial(&self) -> State {
        State {
            m: Medium::zeroed(),
            rec: Default::default(),
            writer: Default::default(),
            counter: 0,
            bound: [UNBOUNDED; WRITERS],
            lane_lock: [0; LANES],
            reg_lock: [0; REGS],
            tail: [0; LANES],
            freed: [0; LANES],
            digest: Reader::default(),
            digested: 0,
            committer: Default::default(),
            committing: false,
            commit_ts: 0,
            commits: 0,
            acked: 0,
            acked_cut: 0,
            failed: 0,
            crashed: false,
            rotted: false,
        }
    }

    fn successors(&self, s: &State, out: &mut Vec<(Step, State)>) {
        if s.crashed {
            if self.0.rot && !s.rotted {
                for at in REC_HEAD..CELLS {
                    if !matches!(s.m.load(at), 0 | TORN) {
                        let mut next = s.clone();
                        next.m.format(at, TORN);
                        next.rotted = true;
                        out.push((Step::Rot(at), next));
                    }
                }
            }
            return;
        }
        let mut push = |step, next: Option<State>| out.extend(next.map(|next| (step, next)));
        for w in 0..WRITERS {
            push(Step::Write(w, s.writer[w].pc), self.write(s, w));
            push(Step::Fail(w), self.fail(s, w));
        }
        push(Step::Digest(s.digest.pc), self.digest(s));
        for lane in 0..LANES {
            push(Step::Advance(lane), self.advance(s, lane));
        }
        for c in 0..self.0.committers {
            push(Step::Commit(c, s.committer[c].pc), self.commit(s, c));
        }
    }

    fn crashes(&self, s: &State, out: &mut Vec<(Step, State)>) {
        if s.crashed {
            return;
        }
        let wide = |at| at >= REC_HEAD;
        let blank = Lanes::initial(self);
        s.m.after_power_loss(wide, |m| {
            // Only what the oracle asks about survives besides the medium.
            let ghost = (s.rec, s.acked, s.acked_cut, s.failed);
            let (rec, acked, acked_cut, failed) = ghost;
            let next = State {
                m,
                rec,
                acked,
                acked_cut,
                failed,
                crashed: true,
                ..blank.clone()
            };
            out.push((Step::PowerLoss, next));
        });
    }

    fn check(&self, s: &State) -> Result<(), Property> {
        if s.crashed { self.judge(s) } else { Ok(()) }
    }

    fn finished(&self, s: &State) -> Option<bool> {
        let done = |w: usize| usize::from(s.writer[w].at) == self.0.jobs[w].len();
        (!s.crashed).then(|| (0..WRITERS).all(done))
    }

    fn explain(&self, before: &State, step: Step, after: &State) -> String {
        self.describe(before, step, after)
    }
}
