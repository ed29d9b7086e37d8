//! The shadow model: what is stored to a region on a disk outlives the process, in memory that another process holds, until
//! the region's own file has it (`docs/internals/crash-consistency.md`, "When the mount goes on").
//!
//! One page of two sectors, each of which has a thread that stores to it. A store goes to the memory of the process, then to
//! the shadow, and counts after that. Dirty sectors are written home, or to a batch that is brought home later. The machine
//! goes on when the process dies: a write that was submitted arrives, and one that was about to be never does.

use crate::checker::{Model, Property};
use crate::ordering::{Kept, Ordering};

/// Sectors of the page.
const SECTORS: usize = 2;

/// Bounds and switches.
#[derive(Clone, Debug)]
pub struct Config {
    pub name: &'static str,
    /// Stores to each sector, and how often the shadow is looked through.
    pub stores: u8,
    pub looks: u8,
    pub deaths: u8,
    pub kept: Kept,
}

/// Where the store of a thread is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum At {
    Rests,
    /// It is counted: the page does not leave.
    Counted,
    Stored,
    /// The shadow has had the sector.
    FoundValid,
    Repeated,
}

/// A write of what was dirty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Write {
    None,
    Home([Option<u8>; SECTORS]),
    Batch([Option<u8>; SECTORS]),
}

/// What looks for sectors that the region's file has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Look {
    Rests,
    /// Nothing of the page is on its way, nor can be.
    Claimed,
    /// It found nothing dirty; stores wait, if they have to.
    Holds,
}

/// A state of the shadow model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State {
    at: [At; SECTORS],
    /// The last store of each thread, and the last one that counts.
    begun: [u8; SECTORS],
    counts: [u8; SECTORS],
    memory: [u8; SECTORS],
    shadow: [u8; SECTORS],
    valid: [bool; SECTORS],
    dirty: [bool; SECTORS],
    home: [u8; SECTORS],
    /// What whole batches have that are not at home, and what is away from home: both by sector.
    batched: [Option<u8>; SECTORS],
    away: [bool; SECTORS],
    write: Write,
    look: Look,
    looks: u8,
    deaths: u8,
}

/// A transition of the shadow model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Store(usize),
    TakeHome,
    TakeBatch,
    Arrive,
    BringHome,
    Look,
    Death(bool),
}

/// The shadow model under one configuration.
pub struct Shadow(pub Config);

impl Shadow {
    fn keeps(&self, ordering: Ordering) -> bool {
        self.0.kept.has(ordering)
    }

    /// The next step of the thread that stores to a sector.
    fn store(&self, s: &State, n: usize) -> Option<State> {
        let mut next = *s;
        next.at[n] = match s.at[n] {
            At::Rests => {
                let waits = s.look == Look::Holds && self.keeps(Ordering::StoresWaitForForgetting);
                if s.begun[n] == self.0.stores || waits {
                    return None;
                }
                next.begun[n] += 1;
                At::Counted
            }
            At::Counted => {
                next.memory[n] = s.begun[n];
                if !self.keeps(Ordering::RepeatedBeforeItCounts) {
                    next.dirty[n] = true;
                    next.counts[n] = s.begun[n];
                }
                At::Stored
            }
            At::Stored if s.valid[n] => At::FoundValid,
            At::Stored => {
                next.valid[n] = true;
                next.shadow[n] = s.memory[n];
                At::Repeated
            }
            At::FoundValid => {
                next.shadow[n] = s.memory[n];
                At::Repeated
            }
            At::Repeated => {
                next.dirty[n] = true;
                next.counts[n] = s.begun[n];
                At::Rests
            }
        };
        Some(next)
    }

    /// Takes the marks of what is dirty, and is to be written there.
    fn take(&self, s: &State, to_batch: bool) -> Option<State> {
        if s.write != Write::None || s.look != Look::Rests {
            return None;
        }
        let mut next = *s;
        let taken: [Option<u8>; SECTORS] = std::array::from_fn(|n| {
            let is_taken = s.dirty[n] && (to_batch || !s.away[n]);
            is_taken.then_some(s.memory[n])
        });
        for (n, taken) in taken.iter().enumerate() {
            next.dirty[n] &= taken.is_none();
            next.away[n] |= to_batch && taken.is_some();
        }
        next.write = match to_batch {
            true => Write::Batch(taken),
            false => Write::Home(taken),
        };
        (taken != [None; SECTORS]).then_some(next)
    }

    fn arrive(s: &State) -> Option<State> {
        let mut next = *s;
        next.write = Write::None;
        match s.write {
            Write::None => return None,
            Write::Home(content) => {
                for (home, new) in next.home.iter_mut().zip(content) {
                    *home = new.unwrap_or(*home);
                }
            }
            Write::Batch(content) => {
                for (batched, new) in next.batched.iter_mut().zip(content) {
                    *batched = new.or(*batched);
                }
            }
        }
        Some(next)
    }

    /// What whole batches have is written home, and then they do not count.
    fn bring_home(s: &State) -> Option<State> {
        if s.batched == [None; SECTORS] || s.write != Write::None || s.look != Look::Rests {
            return None;
        }
        let mut next = *s;
        for n in 0..SECTORS {
            next.home[n] = s.batched[n].unwrap_or(s.home[n]);
        }
        next.batched = [None; SECTORS];
        next.away = [false; SECTORS];
        Some(next)
    }

    fn look(&self, s: &State) -> Option<State> {
        let mut next = *s;
        match s.look {
            Look::Rests => {
                let is_on_its_way = matches!(s.write, Write::Home(_));
                if s.looks == 0
                    || s.valid == [false; SECTORS]
                    || is_on_its_way && self.keeps(Ordering::ForgottenWhenArrived)
                {
                    return None;
                }
                next.looks -= 1;
                next.look = Look::Claimed;
            }
            Look::Claimed => {
                let counted = |at: &At| *at != At::Rests;
                let is_stored_to =
                    s.at.iter().any(counted) && self.keeps(Ordering::StoresWaitForForgetting);
                let is_away = s.away != [false; SECTORS] && self.keeps(Ordering::ForgottenWhenHome);
                let is_written = s.dirty == [false; SECTORS] && !is_stored_to && !is_away;
                next.look = if is_written { Look::Holds } else { Look::Rests };
            }
            Look::Holds => {
                next.valid = [false; SECTORS];
                next.look = Look::Rests;
            }
        }
        Some(next)
    }

    /// The process dies, its write was submitted or not, and the next one begins.
    fn death(s: &State, was_submitted: bool) -> Option<State> {
        if s.deaths == 0 || was_submitted && s.write == Write::None {
            return None;
        }
        let arrived = was_submitted.then(|| Self::arrive(s)).flatten();
        let mut next = arrived.unwrap_or(*s);
        next.deaths -= 1;
        next.write = Write::None;
        next.look = Look::Rests;
        for n in 0..SECTORS {
            next.home[n] = next.batched[n].unwrap_or(next.home[n]);
            next.memory[n] = if s.valid[n] {
                s.shadow[n]
            } else {
                next.home[n]
            };
            next.dirty[n] = s.valid[n];
            // A store that did not count may be there or not, and is not made again.
            next.at[n] = At::Rests;
        }
        next.batched = [None; SECTORS];
        next.away = [false; SECTORS];
        Some(next)
    }
}

impl Model for Shadow {
    type State = State;
    type Step = Step;

    fn initial(&self) -> State {
        State {
            at: [At::Rests; SECTORS],
            begun: [0; SECTORS],
            counts: [0; SECTORS],
            memory: [0; SECTORS],
            shadow: [0; SECTORS],
            valid: [false; SECTORS],
            dirty: [false; SECTORS],
            home: [0; SECTORS],
            batched: [None; SECTORS],
            away: [false; SECTORS],
            write: Write::None,
            look: Look::Rests,
            looks: self.0.looks,
            deaths: self.0.deaths,
        }
    }

    fn successors(&self, s: &State, out: &mut Vec<(Step, State)>) {
        for n in 0..SECTORS {
            out.extend(self.store(s, n).map(|next| (Step::Store(n), next)));
        }
        out.extend(self.take(s, false).map(|next| (Step::TakeHome, next)));
        out.extend(self.take(s, true).map(|next| (Step::TakeBatch, next)));
        out.extend(Self::arrive(s).map(|next| (Step::Arrive, next)));
        out.extend(Self::bring_home(s).map(|next| (Step::BringHome, next)));
        out.extend(self.look(s).map(|next| (Step::Look, next)));
    }

    fn crashes(&self, s: &State, out: &mut Vec<(Step, State)>) {
        for was_submitted in [false, true] {
            let died = Self::death(s, was_submitted);
            out.extend(died.map(|next| (Step::Death(was_submitted), next)));
        }
    }

    fn check(&self, s: &State) -> Result<(), Property> {
        let is_there = |n: usize| s.memory[n] >= s.counts[n];
        match (0..SECTORS).all(is_there) {
            true => Ok(()),
            false => Err(Property::AckedLost),
        }
    }

    fn finished(&self, s: &State) -> Option<bool> {
        Some(s.begun == [self.0.stores; SECTORS] && s.at == [At::Rests; SECTORS])
    }

    fn explain(&self, before: &State, step: Step, after: &State) -> String {
        match step {
            Step::Store(n) => format!("store {} to sector {n}: {:?}", after.begun[n], after.at[n]),
            Step::TakeHome => format!("{:?} is to be written", after.write),
            Step::TakeBatch => format!("{:?} is to be written", after.write),
            Step::Arrive => format!("{:?} is written", before.write),
            Step::BringHome => "the batches are brought home".into(),
            Step::Look => match before.look {
                Look::Holds => "the page is forgotten in the shadow".into(),
                _ => format!("a look at the page: {:?}", after.look),
            },
            Step::Death(true) => "DEATH, its write arrives".into(),
            Step::Death(false) => "DEATH".into(),
        }
    }
}
