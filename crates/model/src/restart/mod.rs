//! The restart model: requests that a daemon was answering when it died, and the daemons after it
//! (`docs/internals/crash-consistency.md`, "When the mount goes on").
//!
//! The machine goes on, so whatever was stored is there; what a death forgets is what threads were about to do. Each
//! thread has a slot of memory that outlives it, and stores to it word by word. Requests take one record or several. The
//! kernel sends what was not answered again, in any order, and daemons die while they judge, and while they carry out what
//! has come again.

use crate::checker::{Model, Property};
use crate::ordering::{Kept, Ordering};

mod recovery;

use recovery::highest;

const THREADS: usize = 2;
const REQUESTS: usize = 3;
const NOTES: usize = 2;

/// Bounds and switches.
#[derive(Clone, Debug)]
pub struct Config {
    pub name: &'static str,
    /// Records of each request; 0 for none.
    pub requests: [u8; REQUESTS],
    /// Threads that serve.
    pub threads: usize,
    /// Records of no request.
    pub background: u8,
    pub deaths: u8,
    pub kept: Kept,
}

/// A number of a record, 0 for none, and how far the request is when that record is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
struct Note {
    number: u8,
    far: u8,
}

/// What outlives a thread: the request, counted from 1, and two notes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
struct Slot {
    request: u8,
    notes: [Note; NOTES],
}

/// A request as the kernel has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Asked {
    Waits { sent_before: bool },
    Taken,
    Answered,
}

/// What a thread is at. `far`: records of the request that are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum At {
    Free,
    /// Stores to its slot that it is at another request: so many steps are done.
    Begins {
        request: u8,
        far: u8,
        done: u8,
    },
    /// Has the number of its next record: so many steps of noting and writing are done.
    Writes {
        request: u8,
        far: u8,
        number: u8,
        done: u8,
    },
    /// Needs the number of its next record, or answers.
    Between {
        request: u8,
        far: u8,
    },
}

/// What the daemon is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    /// Looks at this slot; `held`: has begun with a request that came so far, and not finished.
    Judges {
        slot: u8,
        held: Option<(u8, u8)>,
    },
    Raises,
    Serves,
}

/// A state of the restart model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    asked: [Asked; REQUESTS],
    at: [At; THREADS],
    /// Which of its notes a thread has stored last.
    newer: [u8; THREADS],
    /// An answer that a thread has not given yet, though it is at something else.
    late: [Option<u8>; THREADS],
    slots: [Slot; THREADS],
    /// How far requests are that daemons before this one have carried out.
    known: [Option<u8>; REQUESTS],
    /// Records above digested_seq, a bit each.
    log: u32,
    digested: u8,
    next: u8,
    phase: Phase,
    /// digested_seq was raised before anything was judged.
    raised: bool,
    /// Ghost: parts of each request that were carried out, a bit each, and whether one was a second time.
    parts: [u8; REQUESTS],
    twice: bool,
    left: [u8; 2],
}

/// A transition of the restart model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Take(usize, usize),
    Run(usize),
    Late(usize),
    Digest,
    Background,
    Judge,
    Raise,
    Death,
}

/// The restart model under one configuration.
pub struct Restarts(pub Config);

fn bit(number: u8) -> u32 {
    1 << number
}

impl Restarts {
    fn keeps(&self, ordering: Ordering) -> bool {
        self.0.kept.has(ordering)
    }

    fn records(&self, request: u8) -> u8 {
        self.0.requests[usize::from(request)]
    }

    fn happened(&self, s: &State, number: u8) -> bool {
        let is_digested = number <= s.digested && self.keeps(Ordering::DigestedCountsAsCarriedOut);
        number != 0 && (s.log & bit(number) != 0 || is_digested)
    }

    /// A free thread takes a request that waits.
    fn take(&self, s: &State, t: usize, request: usize) -> Option<State> {
        let Asked::Waits { sent_before } = s.asked[request] else {
            return None;
        };
        if s.at[t] != At::Free {
            return None;
        }
        let mut s = s.clone();
        s.asked[request] = Asked::Taken;
        let known =
            s.known[request].filter(|_| sent_before && self.keeps(Ordering::ResentLookedUp));
        let (request, far) = (request as u8, known.unwrap_or(0));
        s.at[t] = if far >= self.records(request) {
            At::Between { request, far }
        } else {
            let done = 0;
            At::Begins { request, far, done }
        };
        Some(s)
    }

    /// The next step of a thread.
    fn run(&self, s: &State, t: usize) -> Option<State> {
        let mut s = s.clone();
        match s.at[t] {
            At::Free => return None,
            At::Begins { request, far, done } => {
                let order = if self.keeps(Ordering::NotesClearedBeforeNumber) {
                    [0, 1, 2]
                } else {
                    [0, 2, 1]
                };
                match order[usize::from(done)] {
                    0 => s.slots[t].request = 0,
                    1 => s.slots[t].notes = [Note::default(); NOTES],
                    _ => s.slots[t].request = request + 1,
                }
                let done = done + 1;
                s.newer[t] = 1;
                s.at[t] = if usize::from(done) == order.len() {
                    At::Between { request, far }
                } else {
                    At::Begins { request, far, done }
                };
            }
            At::Between { request, far } if far < self.records(request) => {
                let (number, done) = (s.next, 0);
                s.next += 1;
                s.at[t] = At::Writes {
                    request,
                    far,
                    number,
                    done,
                };
            }
            At::Between { request, .. } => {
                s.at[t] = At::Free;
                if self.keeps(Ordering::AnsweredBeforeNext) {
                    s.asked[usize::from(request)] = Asked::Answered;
                } else if s.late[t].is_some() {
                    return None;
                } else {
                    s.late[t] = Some(request);
                }
            }
            At::Writes { .. } => self.write(&mut s, t),
        }
        Some(s)
    }

    /// One store of a thread that writes a record: the note, word by word, and the record.
    fn write(&self, s: &mut State, t: usize) {
        let At::Writes {
            request,
            far,
            number,
            done,
        } = s.at[t]
        else {
            return;
        };
        const RECORD: u8 = 3;
        let order = if self.keeps(Ordering::NotedBeforeRecord) {
            [0, 1, 2, RECORD]
        } else {
            [RECORD, 0, 1, 2]
        };
        let note = if self.keeps(Ordering::TwoNotes) {
            1 - s.newer[t]
        } else {
            0
        };
        let part = far;
        let note = &mut s.slots[t].notes[usize::from(note)];
        match order[usize::from(done)] {
            0 if self.keeps(Ordering::NoteVoidWhileChanged) => note.number = 0,
            0 => {}
            1 => note.far = far + 1,
            2 => note.number = number,
            _ => {
                s.log |= bit(number);
                let parts = &mut s.parts[usize::from(request)];
                s.twice |= *parts >> part & 1 == 1;
                *parts |= 1 << part;
            }
        }
        let done = done + 1;
        s.at[t] = if usize::from(done) == order.len() {
            s.newer[t] = 1 - s.newer[t];
            let far = far + 1;
            At::Between { request, far }
        } else {
            At::Writes {
                request,
                far,
                number,
                done,
            }
        };
    }

    fn late(s: &State, t: usize) -> Option<State> {
        let request = s.late[t]?;
        let mut s = s.clone();
        s.late[t] = None;
        s.asked[usize::from(request)] = Asked::Answered;
        Some(s)
    }

    fn digest(s: &State) -> Option<State> {
        let next = s.digested + 1;
        if s.phase != Phase::Serves || s.log & bit(next) == 0 {
            return None;
        }
        let mut s = s.clone();
        s.log &= !bit(next);
        s.digested = next;
        Some(s)
    }

    /// A record that no request is about.
    fn background(&self, s: &State) -> Option<State> {
        let early = matches!(s.phase, Phase::Judges { .. })
            && !s.raised
            && !self.keeps(Ordering::JudgedBeforeAppend);
        if s.left[0] == 0 || s.phase != Phase::Serves && !early {
            return None;
        }
        let mut s = s.clone();
        s.left[0] -= 1;
        let number = if early { highest(&s) + 1 } else { s.next };
        s.next = number + 1;
        s.log |= bit(number);
        Some(s)
    }
}

impl Model for Restarts {
    type State = State;
    type Step = Step;

    fn initial(&self) -> State {
        let asked = self.0.requests.map(|records| match records {
            0 => Asked::Answered,
            _ => Asked::Waits { sent_before: false },
        });
        State {
            asked,
            at: [At::Free; THREADS],
            newer: [1; THREADS],
            late: [None; THREADS],
            slots: [Slot::default(); THREADS],
            known: [None; REQUESTS],
            log: 0,
            digested: 0,
            next: 1,
            phase: Phase::Serves,
            raised: false,
            parts: [0; REQUESTS],
            twice: false,
            left: [self.0.background, self.0.deaths],
        }
    }

    fn successors(&self, s: &State, out: &mut Vec<(Step, State)>) {
        let mut push = |step, next: Option<State>| out.extend(next.map(|next| (step, next)));
        if s.phase == Phase::Serves {
            for t in 0..self.0.threads {
                for request in 0..REQUESTS {
                    push(Step::Take(t, request), self.take(s, t, request));
                }
                push(Step::Run(t), self.run(s, t));
                push(Step::Late(t), Self::late(s, t));
            }
        }
        push(Step::Digest, Self::digest(s));
        push(Step::Background, self.background(s));
        push(Step::Judge, self.judge(s));
        push(Step::Raise, self.raise(s));
    }

    fn crashes(&self, s: &State, out: &mut Vec<(Step, State)>) {
        out.extend(self.death(s).map(|next| (Step::Death, next)));
    }

    fn check(&self, s: &State) -> Result<(), Property> {
        if s.twice {
            return Err(Property::Twice);
        }
        let lacks = |r: &usize| {
            s.asked[*r] == Asked::Answered && s.parts[*r] != (1 << self.0.requests[*r]) - 1
        };
        match (0..REQUESTS).any(|r| lacks(&r)) {
            true => Err(Property::AckedLost),
            false => Ok(()),
        }
    }

    fn finished(&self, s: &State) -> Option<bool> {
        Some(s.asked.iter().all(|asked| *asked == Asked::Answered))
    }

    fn explain(&self, before: &State, step: Step, after: &State) -> String {
        match step {
            Step::Take(t, r) => match after.at[t] {
                At::Between { .. } => {
                    format!("thread {t} takes request {r}, which was carried out")
                }
                At::Begins { far, .. } => {
                    format!("thread {t} takes request {r}, from part {far} on")
                }
                _ => format!("thread {t} takes request {r}"),
            },
            Step::Run(t) if before.log != after.log => format!("thread {t}: the record is written"),
            Step::Run(t) if before.slots[t] != after.slots[t] => {
                format!("thread {t} stores: {:?}", after.slots[t])
            }
            Step::Run(t) if before.next != after.next => {
                format!("thread {t}: its record will have number {}", before.next)
            }
            Step::Run(t) if before.asked != after.asked => format!("thread {t} answers"),
            Step::Run(t) => format!("thread {t} goes on"),
            Step::Late(t) => format!("thread {t}: an answer that was put off"),
            Step::Digest => format!("record {} is digested, its space reused", after.digested),
            Step::Background => format!("record {} of no request", after.next - 1),
            Step::Judge => match after.phase {
                Phase::Judges { slot, held } => {
                    format!(
                        "judged up to slot {slot}, {held:?}; known {:?}",
                        after.known
                    )
                }
                _ => "all is judged".into(),
            },
            Step::Raise => format!("digested_seq raised to {}", after.digested),
            Step::Death => "DEATH".into(),
        }
    }
}
