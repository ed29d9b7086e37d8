//! The page-table log model: transactions over a map, undo lanes, one commit word, attach.
//!
//! Finer than the volume model in what concerns the log: lanes, generations, stale records of an
//! earlier transaction, two workers, several crashes, single stores between transactions.

use crate::checker::{Model, Property};
use crate::medium::{Medium, TORN};
use crate::ordering::{Kept, Ordering};

const LBNS: usize = 4;
const LANES: usize = 2;
/// Undo records per lane.
const DEEP: usize = 1;
const WORKERS: usize = 2;

const RETIRED: usize = 0;
/// Commit words.
const WORD: usize = 1;
const START: usize = WORD + LANES;
const UNDO: usize = START + 1;
const MAP: usize = UNDO + LANES * DEEP;
const CELLS: usize = MAP + LBNS;

const BY_ATTACH: u8 = 9;
const BY_STORE: u8 = 8;

/// Bounds and switches.
#[derive(Clone, Debug)]
pub struct Config {
    pub name: &'static str,
    /// Transactions, single stores, crashes.
    pub txns: u8,
    pub stores: u8,
    pub crashes: u8,
    pub kept: Kept,
}

/// Map and `retired_seq` as they may be seen after attach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
struct Shown {
    map: [u8; LBNS],
    retired: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
struct Worker {
    pc: u8,
    generation: u8,
    a: u8,
    b: u8,
}

/// A state of the page-table log model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    m: Medium<CELLS>,
    worker: [Worker; WORKERS],
    store: (u8, u8),
    /// Step of the attach, or 0 while serving.
    attach: u8,
    /// What is committed, and what the transaction or store in flight would make of it.
    now: Shown,
    then: Option<Shown>,
    fixed: bool,
    left: [u8; 3],
    fault: Option<Property>,
}

/// A transition of the page-table log model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Begin { worker: usize, a: u8, b: u8 },
    Txn(usize, u8),
    Store(u8, u8),
    Attach(u8),
    PowerLoss,
    Death,
}

/// The page-table log model under one configuration.
pub struct Log(pub Config);

/// An undo record: generation, LBN, entry.
fn pack(generation: u8, lbn: u8, entry: u16) -> u16 {
    u16::from(generation) << 8 | u16::from(lbn) << 4 | entry
}

fn wide(at: usize) -> bool {
    (START..MAP).contains(&at)
}

impl Log {
    fn keeps(&self, ordering: Ordering) -> bool {
        self.0.kept.has(ordering)
    }

    fn shown(m: &Medium<CELLS>) -> Shown {
        let mut shown = Shown {
            retired: m.load(RETIRED) as u8,
            ..Shown::default()
        };
        for (lbn, entry) in shown.map.iter_mut().enumerate() {
            *entry = m.load(MAP + lbn) as u8;
        }
        shown
    }

    /// A worker swaps the blocks of `a` and `b` and retires one more number.
    fn begin(&self, s: &State, worker: usize, a: u8, b: u8) -> Option<State> {
        let other = s.worker[1 - worker];
        if s.left[0] == 0 || s.worker[worker].pc != 0 || s.store.0 != 0 {
            return None;
        }
        if other.pc != 0 && self.keeps(Ordering::OneTxnAtATime) {
            return None;
        }
        if other.pc != 0 && (other.a == a || other.b == a || other.a == b || other.b == b) {
            return None;
        }
        let mut s = s.clone();
        s.left[0] -= 1;
        s.fixed = false;
        let generation = s.m.load(WORD) as u8 + 1 + u8::from(other.pc != 0);
        s.worker[worker] = Worker {
            pc: 1,
            generation,
            a,
            b,
        };
        if other.pc == 0 {
            let mut then = s.now;
            then.map.swap(usize::from(a), usize::from(b));
            then.retired += 1;
            s.then = Some(then);
        }
        Some(s)
    }

    fn txn(&self, s: &State, worker: usize) -> Option<State> {
        let Worker {
            pc,
            generation,
            a,
            b,
        } = s.worker[worker];
        let me = worker as u8 + 1;
        let mut s = s.clone();
        s.worker[worker].pc = pc + 1;
        let words = if self.keeps(Ordering::OneCommitWord) {
            1
        } else {
            LANES
        };
        match pc {
            0 => return None,
            1 => {
                let retired = s.m.load(RETIRED);
                s.m.store(START, pack(generation, 0, retired), me);
                for (lane, lbn) in [a, b].into_iter().enumerate() {
                    let entry = s.m.load(MAP + usize::from(lbn));
                    s.m.store(UNDO + lane, pack(generation, lbn, entry), me);
                }
                if !self.keeps(Ordering::UndoBeforeMap) {
                    s.worker[worker].pc = 3;
                }
            }
            2 | 4 => s.m.fence(me),
            3 => {
                let (a, b) = (MAP + usize::from(a), MAP + usize::from(b));
                let (x, y) = (s.m.load(a), s.m.load(b));
                s.m.store(a, y, me);
                s.m.store(b, x, me);
                let retired = s.m.load(RETIRED);
                s.m.store(RETIRED, retired + 1, me);
                if !self.keeps(Ordering::MapBeforeCommitWord) {
                    s.worker[worker].pc = 5;
                }
            }
            5 => {
                for lane in 0..words {
                    s.m.store(WORD + lane, u16::from(generation), me);
                }
            }
            _ => {
                s.m.fence(me);
                s.worker[worker] = Worker::default();
                if let Some(then) = s.then.take() {
                    s.now = then;
                }
                s.fixed = false;
            }
        }
        Some(s)
    }

    /// A single store to an entry that no transaction touches (a zeroing pass, direct data).
    fn store(&self, s: &State, lbn: u8) -> Option<State> {
        if s.worker.iter().any(|w| w.pc != 0) {
            return None;
        }
        let mut s = s.clone();
        match s.store {
            (0, _) if s.left[1] > 0 => {
                s.left[1] -= 1;
                s.fixed = false;
                let mut then = s.now;
                then.map[usize::from(lbn)] ^= 8;
                s.then = Some(then);
                let at = MAP + usize::from(lbn);
                let entry = s.m.load(at);
                s.m.store(at, entry ^ 8, BY_STORE);
                s.store = (1, lbn);
            }
            (1, at) if at == lbn => {
                s.m.fence(BY_STORE);
                s.now = s.then.take()?;
                s.store = (0, 0);
                s.fixed = false;
            }
            _ => return None,
        }
        Some(s)
    }

    fn attach(&self, s: &State) -> State {
        let mut s = s.clone();
        let start = s.m.load(START);
        let lanes = if self.keeps(Ordering::OneCommitWord) {
            1
        } else {
            LANES
        };
        let open = |s: &State, lane: usize| {
            start != TORN && start >> 8 == s.m.load(WORD + lane % lanes) + 1
        };
        match s.attach {
            1 => {
                if self.keeps(Ordering::RecoveryDrainsFirst) {
                    s.m.drain(0..CELLS);
                }
                let any = (0..LANES).any(|lane| open(&s, lane));
                s.attach = if any {
                    2
                } else if self.keeps(Ordering::GenerationBurnt) {
                    4
                } else {
                    6
                };
            }
            2 => {
                let which: Vec<usize> = (0..LANES).filter(|&lane| open(&s, lane)).collect();
                let whole = open(&s, 0);
                for lane in which {
                    let undo = s.m.load(UNDO + lane);
                    let current = undo >> 8 == start >> 8;
                    if undo != TORN
                        && undo != 0
                        && (current || !self.keeps(Ordering::GenerationInRecords))
                    {
                        let lbn = usize::from(undo >> 4 & 15);
                        s.m.store(MAP + lbn, undo & 15, BY_ATTACH);
                    }
                }
                if whole && self.keeps(Ordering::RetiredUndone) {
                    s.m.store(RETIRED, start & 15, BY_ATTACH);
                }
                s.attach = if self.keeps(Ordering::UndoDurableBeforeClose) {
                    3
                } else {
                    4
                };
            }
            3 => {
                s.m.fence(BY_ATTACH);
                s.attach = if self.keeps(Ordering::UndoneTxnClosed) {
                    4
                } else {
                    6
                };
            }
            4 => {
                for lane in 0..lanes {
                    let word = s.m.load(WORD + lane);
                    s.m.store(WORD + lane, word + 1, BY_ATTACH);
                }
                s.attach = 5;
            }
            5 => {
                s.m.fence(BY_ATTACH);
                s.attach = 6;
            }
            _ => {
                let shown = Log::shown(&s.m);
                let wanted = shown == s.now || (!s.fixed && s.then == Some(shown));
                let blocks = shown
                    .map
                    .iter()
                    .fold(0, |set, entry| set | 1 << (entry & 7));
                if blocks != (1 << LBNS) - 1 {
                    s.fault = Some(Property::NotAPermutation);
                } else if !wanted {
                    s.fault = Some(if s.fixed {
                        Property::NotIdempotent
                    } else {
                        Property::Torn
                    });
                }
                s.now = shown;
                s.then = None;
                s.fixed = true;
                s.attach = 0;
            }
        }
        s
    }
}

impl Model for Log {
    type State = State;
    type Step = Step;

    fn initial(&self) -> State {
        let mut m = Medium::zeroed();
        for lbn in 0..LBNS {
            m.format(MAP + lbn, lbn as u16);
        }
        let now = Log::shown(&m);
        State {
            m,
            worker: Default::default(),
            store: (0, 0),
            attach: 0,
            now,
            then: None,
            fixed: false,
            left: [self.0.txns, self.0.stores, self.0.crashes],
            fault: None,
        }
    }

    fn successors(&self, s: &State, out: &mut Vec<(Step, State)>) {
        let mut push = |step, next: Option<State>| out.extend(next.map(|next| (step, next)));
        if s.attach != 0 {
            push(Step::Attach(s.attach), Some(self.attach(s)));
        } else {
            for worker in 0..WORKERS {
                push(Step::Txn(worker, s.worker[worker].pc), self.txn(s, worker));
                for (a, b) in [(0, 1), (2, 3), (0, 2)] {
                    push(Step::Begin { worker, a, b }, self.begin(s, worker, a, b));
                }
            }
            for lbn in 0..LBNS as u8 {
                push(Step::Store(lbn, s.store.0), self.store(s, lbn));
            }
        }
    }

    fn crashes(&self, s: &State, out: &mut Vec<(Step, State)>) {
        if s.left[2] > 0 {
            let down = |m: Medium<CELLS>| {
                let mut next = State {
                    m,
                    attach: 1,
                    store: (0, 0),
                    ..s.clone()
                };
                next.worker = Default::default();
                next.left[2] -= 1;
                next
            };
            s.m.after_power_loss(wide, |m| out.push((Step::PowerLoss, down(m))));
            if s.m.in_flight().next().is_some() {
                out.push((Step::Death, down(s.m.clone())));
            }
        }
    }

    fn check(&self, s: &State) -> Result<(), Property> {
        s.fault.map_or(Ok(()), Err)
    }

    fn explain(&self, before: &State, step: Step, after: &State) -> String {
        match step {
            Step::Begin { worker, a, b } => {
                format!("worker {worker} begins: swap LBN {a} and {b}")
            }
            Step::Txn(w, pc) => {
                let what = match pc {
                    1 => "start and undo records stored",
                    3 => "entries and retired_seq stored",
                    5 => "commit word stored",
                    _ => "fence",
                };
                format!("worker {w}: {what}")
            }
            Step::Store(lbn, 0) => format!("entry of LBN {lbn} stored by itself"),
            Step::Store(..) => "fence".into(),
            Step::Attach(pc) => format!(
                "attach: {}",
                match pc {
                    1 if self.keeps(Ordering::RecoveryDrainsFirst) => {
                        "what will be read is made durable"
                    }
                    1 => "starts to read",
                    2 => "undo stored",
                    4 => "generation closed",
                    3 | 5 => "fence",
                    _ => "serves",
                }
            ),
            Step::PowerLoss => {
                let cells = before.m.in_flight().map(|at| match after.m.load(at) {
                    TORN => format!("{} torn", name(at)),
                    value if value == before.m.load(at) => format!("{} new", name(at)),
                    _ => format!("{} old", name(at)),
                });
                format!("POWER LOSS [{}]", cells.collect::<Vec<_>>().join(", "))
            }
            Step::Death => "DEATH of the daemon; everything in flight stays in flight".into(),
        }
    }
}

fn name(at: usize) -> String {
    match at {
        RETIRED => "retired_seq".into(),
        WORD..START => "commit word".into(),
        START => "start record".into(),
        UNDO..MAP => format!("undo in lane {}", at - UNDO),
        _ => format!("entry {}", at - MAP),
    }
}
