//! The credit model: operations that wait for space and for each other (orderings 6 and 9).
//!
//! No crash and no content, only resources, locks and pins. Each thread runs a short program;
//! digest, rounds and zeroing passes give space back. The property is that from every state all
//! threads can still finish.

use crate::checker::{Model, Property};
use crate::ordering::{Kept, Ordering};

/// Slots, records, LBNs, node pages.
pub const KINDS: usize = 4;
pub const SLOT: usize = 0;
pub const LOG: usize = 1;
pub const LBN: usize = 2;
pub const PAGE: usize = 3;
const LOCKS: usize = 2;
const THREADS: usize = 3;

/// One instruction of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Do {
    Pin,
    Unpin,
    /// Credits, all or nothing (one after another where that is taken out).
    Acquire([u8; KINDS]),
    Lock(usize),
    Unlock(usize),
    /// What was acquired is used up: slots are dirty, records live, LBNs and pages owned.
    Use,
    /// The same, and the record releases an LBN.
    UseAndFree,
    /// One step of an intent: a record of its own, from the reserve if there is one.
    IntentStep,
}

/// Bounds and switches.
#[derive(Clone, Debug)]
pub struct Config {
    pub name: &'static str,
    /// Capacity per kind, as credits see it.
    pub space: [u8; KINDS],
    /// Pages that a record's digest writes besides those it was credited for.
    pub copies: u8,
    pub programs: [&'static [Do]; THREADS],
    pub kept: Kept,
}

/// A state of the credit model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// Credits left, and pages that are physically free.
    credit: [u8; KINDS],
    pages: u8,
    at: [u8; THREADS],
    held: [[u8; KINDS]; THREADS],
    pinned: [bool; THREADS],
    /// 1 + thread, 0 for free.
    lock: [u8; LOCKS],
    dirty: u8,
    /// Live records, oldest first: new pages each needs besides copies, LBNs it releases.
    log: [u8; 4],
    live: u8,
    /// LBNs released: by live records, and by digested ones.
    freeing: u8,
    freed: u8,
    /// The record that an intent may always write.
    reserve: u8,
    fault: Option<Property>,
}

/// A transition of the credit model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Run(usize, Do),
    Digest,
    Round,
    ZeroBatch,
}

/// The credit model under one configuration.
pub struct Credits(pub Config);

impl Credits {
    fn keeps(&self, ordering: Ordering) -> bool {
        self.0.kept.has(ordering)
    }

    fn program(&self, t: usize) -> Vec<Do> {
        let mut program = self.0.programs[t].to_vec();
        let acquire = program.iter().position(|i| matches!(i, Do::Acquire(_)));
        let lock = program.iter().position(|i| matches!(i, Do::Lock(_)));
        if let (Some(acquire), Some(lock)) = (acquire, lock)
            && !self.keeps(Ordering::CreditsBeforeLocks)
            && acquire < lock
        {
            let credits = program.remove(acquire);
            program.insert(lock, credits);
        }
        let pin = program.iter().position(|i| *i == Do::Pin);
        if let Some(pin) = pin
            && !self.keeps(Ordering::NoPinWhileWaiting)
        {
            program.remove(pin);
            program.insert(0, Do::Pin);
        }
        program
    }

    fn run(&self, s: &State, t: usize) -> Option<(Do, State)> {
        let todo = *self.program(t).get(usize::from(s.at[t]))?;
        let mut s = *s;
        s.at[t] += 1;
        match todo {
            Do::Pin => s.pinned[t] = true,
            Do::Unpin => s.pinned[t] = false,
            Do::Acquire(want) => {
                let missing = |k: usize| want[k] - s.held[t][k];
                let at_once = self.keeps(Ordering::CreditsAllOrNothing)
                    || (0..KINDS).map(missing).sum::<u8>() == 1;
                if at_once && (0..KINDS).all(|k| s.credit[k] >= missing(k)) {
                    for (k, credit) in s.credit.iter_mut().enumerate() {
                        *credit -= missing(k);
                    }
                    s.held[t] = want;
                } else if s.credit[LBN] < missing(LBN)
                    && (s.freeing + s.freed == 0 || !self.keeps(Ordering::BatchBeforeEnospc))
                {
                    if s.freeing + s.freed > 0 {
                        s.fault = Some(Property::SpuriousEnospc);
                    }
                    // Nothing can be had: the operation fails, and that is fine.
                    s = self.quit(s, t);
                } else if s.credit[PAGE] < missing(PAGE) {
                    s = self.quit(s, t);
                } else if want[LOG] > self.0.space[LOG] && self.keeps(Ordering::RecordsBounded) {
                    // A larger operation is split; here: refused.
                    s = self.quit(s, t);
                } else if self.keeps(Ordering::CreditsAllOrNothing) {
                    return None;
                } else {
                    let k = (0..KINDS).find(|&k| s.credit[k] > 0 && missing(k) > 0)?;
                    s.credit[k] -= 1;
                    s.held[t][k] += 1;
                    s.at[t] -= 1;
                }
            }
            Do::Lock(lock) => {
                if s.lock[lock] != 0 {
                    return None;
                }
                s.lock[lock] = t as u8 + 1;
            }
            Do::Unlock(lock) => s.lock[lock] = 0,
            Do::Use | Do::UseAndFree => {
                let frees = u8::from(todo == Do::UseAndFree);
                s.freeing += frees;
                s.dirty += s.held[t][SLOT];
                s.log[usize::from(s.live)] = s.held[t][PAGE] | frees << 4;
                s.live += 1;
                s.held[t] = [0; KINDS];
            }
            Do::IntentStep => {
                if self.keeps(Ordering::IntentReserve) && s.reserve > 0 {
                    s.reserve -= 1;
                } else if s.credit[LOG] > 0 {
                    s.credit[LOG] -= 1;
                } else {
                    return None;
                }
                s.log[usize::from(s.live)] = 0;
                s.live += 1;
            }
        }
        Some((todo, s))
    }

    fn quit(&self, mut s: State, t: usize) -> State {
        for k in 0..KINDS {
            s.credit[k] += s.held[t][k];
        }
        s.held[t] = [0; KINDS];
        s.pinned[t] = false;
        for lock in &mut s.lock {
            if usize::from(*lock) == t + 1 {
                *lock = 0;
            }
        }
        s.at[t] = self.program(t).len() as u8;
        s
    }
}

impl Model for Credits {
    type State = State;
    type Step = Step;

    fn initial(&self) -> State {
        let mut credit = self.0.space;
        let pages = credit[PAGE];
        if self.keeps(Ordering::DigestReserve) {
            credit[PAGE] = pages.saturating_sub(self.0.copies);
        }
        State {
            credit,
            pages,
            at: [0; THREADS],
            held: [[0; KINDS]; THREADS],
            pinned: [false; THREADS],
            lock: [0; LOCKS],
            dirty: 0,
            log: [0; 4],
            live: 0,
            freeing: 0,
            freed: 0,
            reserve: 1,
            fault: None,
        }
    }

    fn successors(&self, s: &State, out: &mut Vec<(Step, State)>) {
        for t in 0..THREADS {
            if let Some((todo, next)) = self.run(s, t) {
                out.push((Step::Run(t, todo), next));
            }
        }
        // A record at a time: it needs its new pages and the copies, and gives the copies back.
        let (pages, frees) = (s.log[0] & 15, s.log[0] >> 4);
        if s.live > 0 && s.pages >= pages + self.0.copies {
            let mut next = *s;
            next.pages -= pages;
            next.log.rotate_left(1);
            next.log[3] = 0;
            next.live -= 1;
            if next.reserve == 0 {
                next.reserve = 1;
            } else {
                next.credit[LOG] += 1;
            }
            next.freed += frees;
            next.freeing -= frees;
            out.push((Step::Digest, next));
        }
        if s.dirty > 0 && s.live == 0 && s.pinned == [false; THREADS] {
            let mut next = *s;
            next.credit[SLOT] += s.dirty;
            next.dirty = 0;
            out.push((Step::Round, next));
        }
        if s.freed > 0 {
            let mut next = *s;
            next.credit[LBN] += s.freed;
            next.freed = 0;
            out.push((Step::ZeroBatch, next));
        }
    }

    fn check(&self, s: &State) -> Result<(), Property> {
        s.fault.map_or(Ok(()), Err)
    }

    fn finished(&self, s: &State) -> Option<bool> {
        let done = |t: usize| usize::from(s.at[t]) == self.program(t).len();
        Some((0..THREADS).all(done) && s.live == 0 && s.dirty == 0)
    }

    fn explain(&self, before: &State, step: Step, after: &State) -> String {
        match step {
            Step::Run(t, todo) => {
                let what = match todo {
                    Do::Acquire(_) if after.fault.is_some() => "is told ENOSPC".into(),
                    Do::Acquire(_) if after.at[t] == before.at[t] => "gets one credit".into(),
                    Do::Acquire(_) if after.held[t] == [0; KINDS] => "is told ENOSPC".into(),
                    Do::Acquire(_) => "has its credits".into(),
                    Do::Pin => "pins the epoch".into(),
                    Do::Unpin => "unpins".into(),
                    Do::Lock(lock) => format!("takes lock {lock}"),
                    Do::Unlock(lock) => format!("releases lock {lock}"),
                    Do::Use => "has appended its record".into(),
                    Do::UseAndFree => "has appended a record that releases an LBN".into(),
                    Do::IntentStep => "has appended a step of the intent".into(),
                };
                format!("operation {t} {what}")
            }
            Step::Digest => "digest of a record".into(),
            Step::Round => "round: slots are free".into(),
            Step::ZeroBatch => "zeroing pass".into(),
        }
    }
}
