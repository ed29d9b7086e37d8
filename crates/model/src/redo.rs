//! The redo model: the batch log of a region on a disk (`docs/internals/crash-consistency.md`, "A batch").
//!
//! Two sectors are stored to in DRAM, and settled: by a batch in the log, or at home. The log has two halves with room for two
//! batches each, and a head in two copies. A full half is brought home while stores and batches go on. A sector is atomic;
//! a batch and a head may be torn.

use crate::checker::{Model, Property};
use crate::medium::{Medium, TORN};
use crate::ordering::{Kept, Ordering};

const SECTORS: usize = 2;
const HALF: usize = 2;

/// Homes, then what may be torn.
const LOG: usize = SECTORS;
const HEAD: usize = LOG + 2 * HALF;
const CELLS: usize = HEAD + 2;

/// There is one disk, so one owner.
const BY: u8 = 1;

/// Bounds and switches.
#[derive(Clone, Debug)]
pub struct Config {
    pub name: &'static str,
    pub stores: u8,
    /// How often a sector may be settled at home.
    pub at_home: u8,
    pub crashes: u8,
    pub kept: Kept,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Batch {
    life: u8,
    lap: u8,
    seq: u8,
    sector: u8,
    version: u8,
}

impl Batch {
    fn encode(self) -> u16 {
        let field = |value: u8, at: u32| u16::from(value) << at;
        assert!(self.life < 4 && self.lap < 8 && self.seq < 16 && self.version < 16);
        // Never zero, and never what is torn.
        field(self.life, 0)
            | field(self.lap, 2)
            | field(self.seq, 5)
            | field(self.sector, 9)
            | field(self.version, 10)
            | 1 << 14
    }

    fn decode(value: u16) -> Option<Self> {
        let field = |at: u32, bits: u32| (value >> at & ((1 << bits) - 1)) as u8;
        (value != 0 && value != TORN).then(|| Self {
            life: field(0, 2),
            lap: field(2, 3),
            seq: field(5, 4),
            sector: field(9, 1),
            version: field(10, 4),
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
struct Head {
    generation: u8,
    life: u8,
    retired: u8,
}

impl Head {
    fn encode(self) -> u16 {
        assert!(self.generation < 32 && self.life < 4 && self.retired < 8);
        u16::from(self.generation)
            | u16::from(self.life) << 5
            | u16::from(self.retired) << 7
            | 1 << 14
    }

    fn decode(value: u16) -> Option<Self> {
        (value != 0 && value != TORN).then_some(Self {
            generation: (value & 31) as u8,
            life: (value >> 5 & 3) as u8,
            retired: (value >> 7 & 7) as u8,
        })
    }
}

/// How far the full half is on its way home.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Homing {
    Begins,
    /// What is away is written home.
    Written,
    /// And durable.
    Home,
    /// So many copies of the head say that the lap is retired.
    Head(u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Running,
    Down,
    /// The batches are written home.
    Replayed,
    /// So many copies of the head have another life.
    Heads(u8),
}

/// A state of the redo model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    m: Medium<CELLS>,
    phase: Phase,
    /// DRAM: what each sector holds, and what of it has been settled last.
    held: [u8; SECTORS],
    settled: [u8; SECTORS],
    /// What is being written home, older than what DRAM may have by now.
    landing: Option<(u8, u8)>,
    head: Head,
    /// The copy that recovery has read it from.
    copy: u8,
    /// Where the next batch goes.
    half: u8,
    at: u8,
    lap: u8,
    seq: u8,
    /// Which sectors are in each half.
    away: [u8; 2],
    full: Option<(u8, u8, Homing)>,
    /// Ghost: what is durable, what was ever stored.
    durable: [u8; SECTORS],
    newest: [u8; SECTORS],
    damage: bool,
    left: [u8; 3],
}

/// A transition of the redo model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Store(u8),
    Batch(u8),
    HomeBegins(u8),
    HomeLands,
    Flush,
    WriteHome,
    FlushHome,
    Retire,
    Forget,
    Replay,
    NewLife,
    Serve,
    PowerLoss,
    Death,
}

/// The redo model under one configuration.
pub struct Redo(pub Config);

impl Redo {
    fn keeps(&self, ordering: Ordering) -> bool {
        self.0.kept.has(ordering)
    }

    fn batch(&self, s: &State, sector: u8) -> Option<State> {
        let i = usize::from(sector);
        let over = s.landing.is_some_and(|(other, _)| other == sector);
        if s.held[i] == s.settled[i] || over && self.keeps(Ordering::BatchAfterLanding) {
            return None;
        }
        let mut next = s.clone();
        if usize::from(s.at) == HALF {
            if s.full.is_some() && self.keeps(Ordering::RetiredBeforeReuse) {
                return None;
            }
            next.full = Some((s.half, s.lap, Homing::Begins));
            next.half = 1 - s.half;
            next.lap += 1;
            next.at = 0;
        }
        let cell = LOG + usize::from(next.half) * HALF + usize::from(next.at);
        if next.m.is_full(cell) || next.lap > 7 || next.seq > 14 {
            return None;
        }
        let batch = Batch {
            life: s.head.life,
            lap: next.lap,
            seq: next.seq,
            sector,
            version: s.held[i],
        };
        next.m.store(cell, batch.encode(), BY);
        next.at += 1;
        next.seq += 1;
        next.away[usize::from(next.half)] |= 1 << sector;
        next.settled[i] = s.held[i];
        Some(next)
    }

    fn home_begins(&self, s: &State, sector: u8) -> Option<State> {
        let i = usize::from(sector);
        let away = (s.away[0] | s.away[1]) >> sector & 1 == 1;
        let may = !away || !self.keeps(Ordering::AwayByBatch);
        let dirty = s.held[i] != s.settled[i];
        if !dirty || !may || s.landing.is_some() || s.left[1] == 0 || s.m.is_full(i) {
            return None;
        }
        let mut next = s.clone();
        next.left[1] -= 1;
        next.landing = Some((sector, s.held[i]));
        Some(next)
    }

    fn homing(&self, s: &State) -> Option<(Step, State)> {
        let (half, lap, how) = s.full?;
        let mut next = s.clone();
        let mut become_ = |how| next.full = Some((half, lap, how));
        let step = match how {
            Homing::Begins => {
                become_(Homing::Written);
                for i in 0..SECTORS {
                    if s.away[usize::from(half)] >> i & 1 == 1 {
                        if s.m.is_full(i) {
                            return None;
                        }
                        next.m.store(i, s.held[i].into(), BY);
                    }
                }
                Step::WriteHome
            }
            Homing::Written => {
                become_(Homing::Home);
                if self.keeps(Ordering::HomeBeforeRetired) {
                    next.m.drain(0..CELLS);
                }
                Step::FlushHome
            }
            Homing::Home | Homing::Head(1) => {
                let copy = usize::from(how == Homing::Head(1));
                if copy == 1 && self.keeps(Ordering::HeadsOneByOne) {
                    next.m.drain(0..CELLS);
                }
                let head = Head {
                    generation: s.head.generation + 1,
                    retired: lap,
                    ..s.head
                };
                if s.m.is_full(HEAD + copy) {
                    return None;
                }
                next.m.store(HEAD + copy, head.encode(), BY);
                next.full = Some((half, lap, Homing::Head(copy as u8 + 1)));
                Step::Retire
            }
            Homing::Head(_) => {
                if self.keeps(Ordering::RetiredBeforeReuse) {
                    next.m.drain(0..CELLS);
                }
                next.head.generation += 1;
                next.head.retired = lap;
                next.away[usize::from(half)] = 0;
                next.full = None;
                Step::Forget
            }
        };
        Some((step, next))
    }

    fn running(&self, s: &State, out: &mut Vec<(Step, State)>) {
        for sector in 0..SECTORS as u8 {
            let i = usize::from(sector);
            if s.left[0] > 0 {
                let mut next = s.clone();
                next.left[0] -= 1;
                next.newest[i] += 1;
                next.held[i] = next.newest[i];
                out.push((Step::Store(sector), next));
            }
            out.extend(
                self.batch(s, sector)
                    .map(|next| (Step::Batch(sector), next)),
            );
            out.extend(
                self.home_begins(s, sector)
                    .map(|next| (Step::HomeBegins(sector), next)),
            );
        }
        if let Some((sector, version)) = s.landing
            && !s.m.is_full(usize::from(sector))
        {
            let i = usize::from(sector);
            let mut next = s.clone();
            next.m.store(i, version.into(), BY);
            next.settled[i] = next.settled[i].max(version);
            next.landing = None;
            out.push((Step::HomeLands, next));
        }
        let mut next = s.clone();
        next.m.drain(0..CELLS);
        next.durable = s.settled;
        out.push((Step::Flush, next));
        out.extend(self.homing(s));
    }

    /// The batches that count, in the order in which they are applied.
    fn counting(&self, s: &State, head: Head) -> Vec<Batch> {
        let decoded = (LOG..HEAD).filter_map(|at| Batch::decode(s.m.load(at)));
        let counts = |b: &Batch| b.life == head.life && b.lap > head.retired;
        let mut batches: Vec<_> = decoded.filter(counts).collect();
        if self.keeps(Ordering::ReplayInOrder) {
            batches.sort_by_key(|b| b.seq);
        }
        batches
    }

    fn recovering(&self, s: &State) -> Option<(Step, State)> {
        let mut next = s.clone();
        match s.phase {
            Phase::Running => None,
            Phase::Down => {
                let of = |copy: u8| Head::decode(s.m.load(HEAD + usize::from(copy)));
                let heads = [0, 1]
                    .into_iter()
                    .filter_map(|copy| Some((of(copy)?, copy)));
                let Some((head, copy)) = heads.max_by_key(|(head, _)| head.generation) else {
                    next.damage = true;
                    return (!s.damage).then_some((Step::Replay, next));
                };
                (next.head, next.copy) = (head, copy);
                for batch in self.counting(s, head) {
                    let i = usize::from(batch.sector);
                    if next.m.is_full(i) {
                        next.m.drain(i..i + 1);
                    }
                    next.m.store(i, batch.version.into(), BY);
                }
                next.phase = Phase::Replayed;
                Some((Step::Replay, next))
            }
            Phase::Replayed | Phase::Heads(1) => {
                let second = u8::from(s.phase == Phase::Heads(1));
                // The copy that has been read may be the only one.
                let first = match self.keeps(Ordering::IntactHeadLast) {
                    true => 1 - s.copy,
                    false => 0,
                };
                next.m.drain(0..CELLS);
                let head = Head {
                    generation: s.head.generation + 1,
                    life: s.head.life + 1,
                    retired: 0,
                };
                next.m
                    .store(HEAD + usize::from(first ^ second), head.encode(), BY);
                next.phase = Phase::Heads(second + 1);
                Some((Step::NewLife, next))
            }
            Phase::Heads(_) => {
                next.m.drain(0..CELLS);
                next.head = Head {
                    generation: s.head.generation + 1,
                    life: s.head.life + 1,
                    retired: 0,
                };
                for i in 0..SECTORS {
                    let found = s.m.load(i) as u8;
                    (next.held[i], next.settled[i], next.durable[i]) = (found, found, found);
                }
                (next.half, next.at, next.lap, next.seq) = (0, 0, 1, 0);
                next.phase = Phase::Running;
                Some((Step::Serve, next))
            }
        }
    }
}

impl Model for Redo {
    type State = State;
    type Step = Step;

    fn initial(&self) -> State {
        let mut m = Medium::zeroed();
        let head = Head {
            generation: 1,
            life: 0,
            retired: 0,
        };
        (HEAD..CELLS).for_each(|at| m.format(at, head.encode()));
        State {
            m,
            phase: Phase::Running,
            held: [0; SECTORS],
            settled: [0; SECTORS],
            landing: None,
            head,
            copy: 0,
            half: 0,
            at: 0,
            lap: 1,
            seq: 0,
            away: [0; 2],
            full: None,
            durable: [0; SECTORS],
            newest: [0; SECTORS],
            damage: false,
            left: [self.0.stores, self.0.at_home, self.0.crashes],
        }
    }

    fn successors(&self, s: &State, out: &mut Vec<(Step, State)>) {
        match s.phase {
            Phase::Running => self.running(s, out),
            _ => out.extend(self.recovering(s)),
        }
    }

    fn crashes(&self, s: &State, out: &mut Vec<(Step, State)>) {
        if s.left[2] == 0 || s.damage {
            return;
        }
        let down = |m: Medium<CELLS>| {
            let mut next = s.clone();
            next.left[2] -= 1;
            next.m = m;
            next.phase = Phase::Down;
            next.landing = None;
            next.full = None;
            next.away = [0; 2];
            (next.held, next.settled) = ([0; SECTORS], [0; SECTORS]);
            (next.half, next.at, next.lap, next.seq, next.copy) = (0, 0, 0, 0, 0);
            next
        };
        (s.m).after_power_loss(|at| at >= LOG, |m| out.push((Step::PowerLoss, down(m))));
        out.push((Step::Death, down(s.m.clone())));
        if let Some((sector, version)) = s.landing {
            let mut m = s.m.clone();
            if !m.is_full(usize::from(sector)) {
                m.store(usize::from(sector), version.into(), BY);
                out.push((Step::Death, down(m)));
            }
        }
    }

    fn check(&self, s: &State) -> Result<(), Property> {
        if s.damage {
            return Err(Property::FalseDamage);
        }
        if !matches!(s.phase, Phase::Replayed | Phase::Heads(_)) {
            return Ok(());
        }
        for i in 0..SECTORS {
            let found = s.m.load(i);
            if found < s.durable[i].into() {
                return Err(Property::AckedLost);
            }
            if found > s.newest[i].into() {
                return Err(Property::ForeignContent);
            }
        }
        Ok(())
    }

    fn finished(&self, s: &State) -> Option<bool> {
        Some(s.damage || s.phase == Phase::Running && s.left[0] == 0)
    }

    fn explain(&self, before: &State, step: Step, after: &State) -> String {
        match step {
            Step::Store(i) => format!(
                "sector {i} is stored to: version {}",
                after.newest[usize::from(i)]
            ),
            Step::Batch(i) => format!("a batch with sector {i} is written to half {}", after.half),
            Step::HomeBegins(i) => format!("sector {i} is being written home"),
            Step::HomeLands => "that has arrived".into(),
            Step::Flush => format!("flush: durable are {:?}", after.durable),
            Step::WriteHome => "what is away in the full half is written home".into(),
            Step::FlushHome => "flush of that".into(),
            Step::Retire => "a copy of the head says that the half is retired".into(),
            Step::Forget => "flush; its sectors are not away any more".into(),
            Step::Replay => format!("replay: {:?}", after.m),
            Step::NewLife => "a copy of the head has another life".into(),
            Step::Serve => "flush, and it serves".into(),
            Step::PowerLoss => format!("POWER LOSS in {:?}", before.phase),
            Step::Death => format!("DEATH in {:?}", before.phase),
        }
    }
}
