//! Breadth-first enumeration of every reachable state of a [`Model`].
//!
//! Visited states are remembered by a 128-bit fingerprint, not in full; at the sizes explored here
//! (below 10^8 states) the chance that two distinct states collide is below 10^-22. Breadth first,
//! so a counterexample is a shortest one. Its trace is rebuilt by walking the recorded choices
//! again from the initial state, so states need not be kept once they have been expanded.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash};

use crate::fingerprint::{Pass, fingerprint};

/// What went wrong; the property that a counterexample refutes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Property {
    /// An acknowledged operation did not survive a crash.
    AckedLost,
    /// `commit` mode: what recovery shows is not the state at the recovered commit.
    NotTheCommit,
    /// An operation is visible in part.
    Torn,
    /// Content of another file, of an earlier owner or of an earlier time is readable.
    ForeignContent,
    /// Something a reader was shown is gone after a crash.
    ObservedLost,
    /// A read of intact media returned an error, or damage was reported where there is none.
    FalseDamage,
    /// A block or page that must be readable is not.
    Unreadable,
    /// The medium lost something and nothing noticed.
    SilentDamage,
    /// The page table is not a permutation.
    NotAPermutation,
    /// A page, block, slot or number has two owners.
    DoubleOwned,
    /// Something has no owner and can never be allocated again.
    Leaked,
    /// A derived counter disagrees with what it counts.
    WrongCounter,
    /// A second crash, inside recovery, changed what recovery shows.
    NotIdempotent,
    /// No step can be taken although work remains.
    Stuck,
    /// `ENOSPC` although space is free.
    SpuriousEnospc,
    /// A request, or a part of it, was carried out again.
    Twice,
}

impl Property {
    /// The property in words, as a violated claim.
    pub fn text(self) -> &'static str {
        match self {
            Property::AckedLost => "an acknowledged operation is lost",
            Property::NotTheCommit => "what is shown is not the recovered commit",
            Property::Torn => "an operation is visible in part",
            Property::ForeignContent => "stale or foreign content is exposed",
            Property::ObservedLost => "a change that was seen is gone",
            Property::FalseDamage => "damage or EIO is reported where there is none",
            Property::Unreadable => "a block or page that is needed is unreadable",
            Property::SilentDamage => "damage goes unnoticed",
            Property::NotAPermutation => "the page table is no permutation",
            Property::DoubleOwned => "something has two owners",
            Property::Leaked => "something has no owner",
            Property::WrongCounter => "a derived counter is wrong",
            Property::NotIdempotent => "a crash inside recovery changed its result",
            Property::Stuck => "no thread can proceed",
            Property::SpuriousEnospc => "ENOSPC with space free",
            Property::Twice => "a request is carried out twice",
        }
    }
}

/// A transition system to be enumerated.
pub trait Model {
    /// One state; two equal states have equal futures.
    type State: Clone + Hash;
    /// The name of a transition.
    type Step: Copy;

    /// The only initial state.
    fn initial(&self) -> Self::State;
    /// Pushes every state reachable by one step. The order must depend on the state alone.
    fn successors(&self, state: &Self::State, out: &mut Vec<(Self::Step, Self::State)>);
    /// Checks the properties of one state.
    fn check(&self, state: &Self::State) -> Result<(), Property>;
    /// The same for misfortunes, which do not count as progress.
    fn crashes(&self, _state: &Self::State, _out: &mut Vec<(Self::Step, Self::State)>) {}
    /// One misfortune, drawn at random: `draw(n)` is below `n`.
    fn crash_at_random(
        &self,
        _state: &Self::State,
        _draw: &mut dyn FnMut(usize) -> usize,
    ) -> Option<(Self::Step, Self::State)> {
        None
    }
    /// Whether everything that was begun is done. `None`: the model makes no claim of progress.
    /// Otherwise such a state must stay reachable, without crashes, from every state.
    fn finished(&self, _state: &Self::State) -> Option<bool> {
        None
    }
    /// One line of a trace.
    fn explain(&self, before: &Self::State, step: Self::Step, after: &Self::State) -> String;
}

/// A shortest path to a state that violates a property.
#[derive(Clone, Debug)]
pub struct Counterexample {
    /// What is violated in the last state.
    pub property: Property,
    /// One line per step.
    pub trace: Vec<String>,
}

/// The result of an enumeration.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Distinct states visited.
    pub states: usize,
    /// Longest distance from the initial state.
    pub depth: usize,
    /// The first violation met, if any.
    pub counterexample: Option<Counterexample>,
    /// False if the limit on states was met before everything had been visited.
    pub complete: bool,
}

impl Outcome {
    /// Everything was visited and nothing was violated.
    pub fn holds(&self) -> bool {
        self.complete && self.counterexample.is_none()
    }
}

/// Visits every state of `model`, at most `limit` of them, and stops at the first violation.
pub fn explore<M: Model>(model: &M, limit: usize) -> Outcome {
    let mut seen: HashMap<u128, u32, BuildHasherDefault<Pass>> = HashMap::default();
    let mut progress = Progress::default();
    let mut parent: Vec<(u32, u32)> = Vec::new();
    let mut level = Vec::new();
    let mut next = Vec::new();
    let mut out = Vec::new();
    let mut depth = 0;

    let first = model.initial();
    seen.insert(fingerprint(&first), 0);
    parent.push((0, 0));
    let mut bad = model.check(&first).err().map(|p| (0, p));
    level.push((0u32, first));
    'search: while bad.is_none() && !level.is_empty() {
        for (id, state) in level.drain(..) {
            out.clear();
            model.successors(&state, &mut out);
            let steps = out.len();
            model.crashes(&state, &mut out);
            let finished = model.finished(&state);
            progress.note(id, finished);
            for (choice, (_, after)) in out.drain(..).enumerate() {
                let child = parent.len() as u32;
                let known = *seen.entry(fingerprint(&after)).or_insert(child);
                if finished.is_some() && choice < steps {
                    progress.edges.push((known, id));
                }
                if known != child {
                    continue;
                }
                parent.push((id, choice as u32));
                if let Err(property) = model.check(&after) {
                    bad = Some((child, property));
                    break 'search;
                }
                next.push((child, after));
            }
            if parent.len() > limit {
                break 'search;
            }
        }
        std::mem::swap(&mut level, &mut next);
        depth += 1;
    }
    if bad.is_none() && level.is_empty() && next.is_empty() {
        bad = progress.stuck(parent.len()).map(|id| (id, Property::Stuck));
    }
    let complete = bad.is_some() || (level.is_empty() && next.is_empty());
    let counterexample = bad.map(|(id, property)| Counterexample {
        property,
        trace: replay(model, &parent, id),
    });
    Outcome {
        states: parent.len(),
        depth,
        counterexample,
        complete,
    }
}

/// Walks through `model` at random, `walks` times to the end, and stops at the first violation.
/// For bounds that are too large to be exhausted: it proves nothing, but it gets far.
pub fn walk<M: Model>(model: &M, seed: u64, walks: u32) -> Outcome {
    let mut random = seed | 1;
    let mut draw = |n: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % n
    };
    let (mut states, mut depth) = (0, 0);
    let mut out = Vec::new();
    for _ in 0..walks {
        let mut state = model.initial();
        let mut trace = Vec::new();
        loop {
            out.clear();
            model.successors(&state, &mut out);
            let crash = if out.is_empty() || draw(24) == 0 {
                model.crash_at_random(&state, &mut draw)
            } else {
                None
            };
            let next = match crash {
                Some(next) => next,
                None if out.is_empty() => break,
                None => out.swap_remove(draw(out.len())),
            };
            let (step, after) = next;
            trace.push((state, step));
            state = after;
            states += 1;
            depth = depth.max(trace.len());
            if let Err(property) = model.check(&state) {
                trace.push((state, step));
                let trace = trace
                    .windows(2)
                    .map(|pair| model.explain(&pair[0].0, pair[0].1, &pair[1].0))
                    .collect();
                let counterexample = Some(Counterexample { property, trace });
                return Outcome {
                    states,
                    depth,
                    counterexample,
                    complete: false,
                };
            }
        }
    }
    Outcome {
        states,
        depth,
        counterexample: None,
        complete: false,
    }
}

/// Which states can still reach a finished one.
#[derive(Default)]
struct Progress {
    claimed: Vec<u32>,
    finished: Vec<u32>,
    /// Backwards: (to, from).
    edges: Vec<(u32, u32)>,
}

impl Progress {
    fn note(&mut self, id: u32, finished: Option<bool>) {
        if let Some(finished) = finished {
            self.claimed.push(id);
            if finished {
                self.finished.push(id);
            }
        }
    }

    /// A state from which no finished one can be reached: the first in which nothing
    /// can be done at all, or else the first of all.
    fn stuck(mut self, states: usize) -> Option<u32> {
        self.edges.sort_unstable();
        let mut fine = vec![false; states];
        while let Some(id) = self.finished.pop() {
            if !std::mem::replace(&mut fine[id as usize], true) {
                let first = self.edges.partition_point(|&(to, _)| to < id);
                let into = self.edges[first..].iter().take_while(|&&(to, _)| to == id);
                self.finished.extend(into.map(|&(_, from)| from));
            }
        }
        let mut moves = vec![false; states];
        for &(to, from) in &self.edges {
            moves[from as usize] |= to != from;
        }
        let stuck = || {
            self.claimed
                .iter()
                .copied()
                .filter(|&id| !fine[id as usize])
        };
        stuck()
            .find(|&id| !moves[id as usize])
            .or_else(|| stuck().next())
    }
}

fn replay<M: Model>(model: &M, parent: &[(u32, u32)], mut id: u32) -> Vec<String> {
    let mut choices = Vec::new();
    while id != 0 {
        let (up, choice) = parent[id as usize];
        choices.push(choice);
        id = up;
    }
    let mut state = model.initial();
    let mut lines = Vec::new();
    let mut out = Vec::new();
    for choice in choices.into_iter().rev() {
        out.clear();
        model.successors(&state, &mut out);
        model.crashes(&state, &mut out);
        let (step, after) = out.swap_remove(choice as usize);
        lines.push(model.explain(&state, step, &after));
        state = after;
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two threads add one to a counter, each by a load and a store; `atomic` makes it one step.
    /// A thread may first wait for a lock that is never released.
    struct Counter {
        atomic: bool,
        deadlock: bool,
    }

    type Threads = [(u8, u8); 2];

    impl Model for Counter {
        type State = (u8, Threads);
        type Step = usize;

        fn initial(&self) -> Self::State {
            (0, [(0, 0); 2])
        }
        fn successors(&self, state: &Self::State, out: &mut Vec<(usize, Self::State)>) {
            for t in 0..2 {
                let (mut count, mut threads) = *state;
                match threads[t].0 {
                    0 if self.atomic => {
                        count += 1;
                        threads[t].0 = 2;
                    }
                    0 => threads[t] = (1, count),
                    1 if self.deadlock && t == 1 => continue,
                    1 => {
                        count = threads[t].1 + 1;
                        threads[t] = (2, 0);
                    }
                    _ => continue,
                }
                out.push((t, (count, threads)));
            }
        }
        fn check(&self, (count, threads): &Self::State) -> Result<(), Property> {
            let done = threads.iter().all(|thread| thread.0 == 2);
            if done && *count != 2 {
                Err(Property::AckedLost)
            } else {
                Ok(())
            }
        }
        fn finished(&self, state: &Self::State) -> Option<bool> {
            Some(state.1.iter().all(|thread| thread.0 == 2))
        }
        fn explain(&self, _: &Self::State, step: usize, _: &Self::State) -> String {
            format!("thread {step}")
        }
    }

    #[test]
    fn a_lost_update_is_found_by_a_shortest_trace() {
        let outcome = explore(
            &Counter {
                atomic: false,
                deadlock: false,
            },
            1000,
        );
        let found = outcome.counterexample.expect("two loads, then two stores");
        assert_eq!(found.property, Property::AckedLost);
        assert_eq!(found.trace.len(), 4);
    }

    #[test]
    fn a_correct_model_is_visited_completely() {
        let outcome = explore(
            &Counter {
                atomic: true,
                deadlock: false,
            },
            1000,
        );
        assert!(outcome.holds());
        assert_eq!((outcome.states, outcome.depth), (4, 3));
    }

    #[test]
    fn a_deadlock_is_found() {
        let outcome = explore(
            &Counter {
                atomic: false,
                deadlock: true,
            },
            1000,
        );
        assert_eq!(
            outcome.counterexample.map(|found| found.property),
            Some(Property::Stuck)
        );
    }

    #[test]
    fn a_limit_is_not_taken_for_completeness() {
        let outcome = explore(
            &Counter {
                atomic: true,
                deadlock: false,
            },
            1,
        );
        assert!(!outcome.complete && !outcome.holds());
    }

    #[test]
    fn walks_find_the_lost_update() {
        let outcome = walk(
            &Counter {
                atomic: false,
                deadlock: false,
            },
            7,
            50,
        );
        assert!(outcome.counterexample.is_some());
        assert!(
            walk(
                &Counter {
                    atomic: true,
                    deadlock: false
                },
                7,
                50
            )
            .counterexample
            .is_none()
        );
    }
}
