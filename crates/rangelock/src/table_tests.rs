//! The table against a model that says in a few lines which request may hold what, and against invariants
//! that keep every request moving.

use std::time::Duration;

use proptest::prelude::*;

use crate::sync::{Moment, now};
use crate::table::{Id, Mode, PATIENCE, Span, Table, Waiting};

/// A waiting party: a number, and whether it is awake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Party(usize, bool);

impl Waiting for Party {
    fn is_awake(&self) -> bool {
        self.1
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Is {
    /// It holds its range and knows that.
    Holding,
    /// It holds its range, and will know once it looks.
    Handed,
    Told,
    Waiting,
}

struct Request {
    id: Id,
    span: Span,
    mode: Mode,
    is: Is,
    party: Party,
    /// When it was overtaken for the first time, as the first of those in the way.
    since: Option<Moment>,
    /// It has been overtaken for long enough.
    impatient: bool,
    insists: bool,
}

impl Request {
    fn holds(&self) -> bool {
        matches!(self.is, Is::Holding | Is::Handed)
    }

    fn conflicts(&self, other: (Span, Mode)) -> bool {
        conflict((self.span, self.mode), other)
    }
}

fn conflict(a: (Span, Mode), b: (Span, Mode)) -> bool {
    let exclusive = a.1 == Mode::Exclusive || b.1 == Mode::Exclusive;
    let shared_byte = (a.0.start..a.0.end).any(|x| x >= b.0.start && x < b.0.end);
    exclusive && shared_byte
}

#[derive(Default)]
struct Model {
    /// In order of arrival.
    requests: Vec<Request>,
}

impl Model {
    /// Whether what came after the first `before` requests may go on beside all others.
    fn free(&self, before: usize, what: (Span, Mode)) -> bool {
        let bars = |(i, r): (usize, &Request)| {
            i != before && r.conflicts(what) && (r.holds() || r.insists && i < before)
        };
        !self.requests.iter().enumerate().any(bars)
    }

    /// The request at `index` goes on: the first that came earlier and is in its way has been overtaken.
    fn overtaken_by(&mut self, index: usize, what: (Span, Mode), at: Moment) {
        let mut earlier = self.requests[..index].iter_mut();
        if let Some(r) = earlier.find(|r| !r.holds() && r.conflicts(what)) {
            let since = *r.since.get_or_insert(at);
            r.impatient = at - since >= PATIENCE;
        }
    }

    /// What the table said that it told, in its order.
    fn told(&mut self, parties: &[Party]) {
        // A request that insists is handed its range, told before or not.
        for i in 0..self.requests.len() {
            let r = &self.requests[i];
            if !r.holds() && r.insists && self.free(i, (r.span, r.mode)) {
                let told = r.is == Is::Told || parties.contains(&r.party);
                assert!(told, "a range is handed to a request that is not told");
                self.requests[i].is = Is::Handed;
            }
        }
        for party in parties {
            let i = self.requests.iter().position(|r| r.party == *party);
            let i = i.expect("only a request that waits is told");
            let r = &self.requests[i];
            if r.is == Is::Handed {
                continue;
            }
            assert_eq!(r.is, Is::Waiting, "told twice");
            let free = self.free(i, (r.span, r.mode));
            assert!(free || r.impatient, "told in vain");
            self.requests[i].is = Is::Told;
        }
    }

    fn check(&self) {
        for (i, r) in self.requests.iter().enumerate() {
            let others = || (self.requests.iter().enumerate()).filter(move |(j, _)| *j != i);
            let in_the_way = |o: &Request| o.conflicts((r.span, r.mode));
            if r.holds() {
                let both = others().any(|(_, o)| o.holds() && in_the_way(o));
                assert!(!both, "two hold one byte");
            }
            if r.is == Is::Waiting {
                let waits_for = |(j, o): (usize, &Request)| {
                    in_the_way(o) && (o.holds() || o.is == Is::Told || o.insists && j < i)
                };
                assert!(others().any(waits_for), "nobody would wake it");
            }
        }
    }
}

#[derive(Debug, Clone)]
enum Step {
    Try(u64, u64, bool),
    Ask(u64, u64, bool, bool),
    Release(usize),
    Look(usize),
    Later(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let range = || (0u64..24, 0u64..10, any::<bool>());
    prop_oneof![
        1 => range().prop_map(|(s, l, x)| Step::Try(s, s + l, x)),
        4 => (range(), any::<bool>()).prop_map(|((s, l, x), a)| Step::Ask(s, s + l, x, a)),
        3 => any::<usize>().prop_map(Step::Release),
        3 => any::<usize>().prop_map(Step::Look),
        1 => (1u64..600).prop_map(Step::Later),
    ]
}

fn mode(exclusive: bool) -> Mode {
    if exclusive {
        Mode::Exclusive
    } else {
        Mode::Shared
    }
}

/// Table and model side by side.
struct Both {
    table: Table<Party>,
    model: Model,
    at: Moment,
}

impl Both {
    fn new() -> Self {
        Self {
            table: Table::new(),
            model: Model::default(),
            at: now(),
        }
    }

    /// Asks, and waits if told to; whether the range is held.
    fn ask(&mut self, span: Span, mode: Mode, waits: Option<Party>) -> bool {
        let index = self.model.requests.len();
        let free = self.model.free(index, (span, mode));
        let at = self.at;
        let got = self.table.try_acquire(span, mode, || at);
        assert_eq!(got.is_some(), free);
        let id = match (got, waits) {
            (Some(id), _) => id,
            (None, Some(party)) => self.table.enqueue(span, mode, party),
            (None, None) => return false,
        };
        if free {
            self.model.overtaken_by(index, (span, mode), at);
        }
        self.model.requests.push(Request {
            id,
            span,
            mode,
            is: if free { Is::Holding } else { Is::Waiting },
            party: waits.unwrap_or(Party(usize::MAX - index, false)),
            since: None,
            impatient: false,
            insists: false,
        });
        free
    }

    /// Releases one of those that know that they hold a range; whether there was one.
    fn release(&mut self, pick: usize) -> bool {
        let Some(i) = self.pick(pick, &[Is::Holding]) else {
            return false;
        };
        let gone = self.model.requests.remove(i);
        let mut told = Vec::new();
        self.table.release(gone.id, |p| told.push(*p));
        self.model.told(&told);
        true
    }

    /// One of those that were told looks; whether there was one.
    fn look(&mut self, pick: usize) -> bool {
        let Some(i) = self.pick(pick, &[Is::Handed, Is::Told]) else {
            return false;
        };
        let (id, what) = {
            let r = &self.model.requests[i];
            (r.id, (r.span, r.mode))
        };
        let free = self.model.free(i, what);
        let handed = self.model.requests[i].is == Is::Handed;
        let (mut told, at) = (Vec::new(), self.at);
        let holds = self.table.retry(id, || at, |p| told.push(*p));
        assert_eq!(holds, handed || free);
        let request = &mut self.model.requests[i];
        request.is = if holds { Is::Holding } else { Is::Waiting };
        request.insists |= !holds && request.impatient;
        if holds && !handed {
            self.model.overtaken_by(i, what, at);
        }
        self.model.told(&told);
        true
    }

    fn pick(&self, pick: usize, states: &[Is]) -> Option<usize> {
        let requests = self.model.requests.iter().enumerate();
        let there: Vec<usize> = requests
            .filter(|(_, r)| states.contains(&r.is))
            .map(|(i, _)| i)
            .collect();
        (!there.is_empty()).then(|| there[pick % there.len()])
    }

    fn check(&self) {
        self.model.check();
        let held = self.model.requests.iter().filter(|r| r.holds()).count();
        let stats = self.table.stats();
        assert_eq!(stats.held, held);
        assert_eq!(stats.waiting, self.model.requests.len() - held);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn grants_exactly_what_the_model_grants(steps in prop::collection::vec(step(), 1..80)) {
        let mut both = Both::new();
        for (n, step) in steps.into_iter().enumerate() {
            match step {
                Step::Try(start, end, x) => {
                    both.ask(span(start, end), mode(x), None);
                }
                Step::Ask(start, end, x, awake) => {
                    both.ask(span(start, end), mode(x), Some(Party(n, awake)));
                }
                Step::Release(pick) => {
                    both.release(pick);
                }
                Step::Look(pick) => {
                    both.look(pick);
                }
                Step::Later(us) => both.at += Duration::from_micros(us),
            }
            both.check();
        }
        // However it went, every request gets there in the end.
        while both.release(0) || both.look(0) {
            both.check();
        }
        prop_assert!(both.model.requests.is_empty());
    }
}

fn span(start: u64, end: u64) -> Span {
    Span { start, end }
}

/// No request is overtaken.
fn never() -> Moment {
    panic!("nobody waits")
}

#[test]
fn empty_ranges_conflict_with_nothing() {
    let mut table: Table<Party> = Table::new();
    let all = table
        .try_acquire(span(0, u64::MAX), Mode::Exclusive, never)
        .expect("free");
    for (start, end) in [(5, 5), (7, 3), (u64::MAX, u64::MAX), (0, 0)] {
        assert!(
            table
                .try_acquire(span(start, end), Mode::Exclusive, never)
                .is_some(),
            "{start}..{end}"
        );
    }
    table.release(all, |_| panic!("nobody waits"));
}

#[test]
fn touching_ranges_are_disjoint() {
    let mut table: Table<Party> = Table::new();
    let mut exclusive = |start, end| table.try_acquire(span(start, end), Mode::Exclusive, never);
    assert!(exclusive(0, 4096).is_some());
    assert!(exclusive(4096, u64::MAX).is_some());
    let shared = table.try_acquire(span(4095, 4096), Mode::Shared, never);
    assert!(shared.is_none());
}

const WHOLE: Span = Span {
    start: 0,
    end: u64::MAX,
};
const ASLEEP: Party = Party(1, false);

/// The range stays free for the first thread that comes while the waiter is being woken: no thread holds it in
/// its sleep. So a thread that comes back goes on, and the waiter is woken once, not at each turn.
#[test]
fn a_thread_that_comes_back_does_not_wait_for_one_that_sleeps() {
    let mut table = Table::new();
    let start = now();
    let mut held = table
        .try_acquire(span(0, 10), Mode::Exclusive, never)
        .expect("free");
    table.enqueue(span(0, 10), Mode::Exclusive, ASLEEP);
    let mut told = Vec::new();
    for turn in 0..100 {
        table.release(held, |p| told.push(*p));
        let back = table.try_acquire(span(0, 10), Mode::Exclusive, || start);
        held = back.unwrap_or_else(|| panic!("turn {turn}: the range is held by one that sleeps"));
    }
    assert_eq!(told, [ASLEEP]);
    assert_eq!(table.stats().held, 1);
}

/// A waiter that is awake is told, and sleepers are left alone as long as there is one.
#[test]
fn sleepers_are_not_woken_while_somebody_is_awake() {
    let (early, awake, late) = (Party(1, false), Party(2, true), Party(3, false));
    let mut table = Table::new();
    let start = now();
    let held = table
        .try_acquire(WHOLE, Mode::Exclusive, never)
        .expect("free");
    let first = table.enqueue(WHOLE, Mode::Exclusive, early);
    let second = table.enqueue(span(0, 10), Mode::Exclusive, awake);
    table.enqueue(span(5, 6), Mode::Exclusive, late);
    let mut told = Vec::new();
    table.release(held, |p| told.push(*p));
    assert_eq!(told, [awake], "all of them are in each other's way");
    assert!(table.retry(second, || start, |_| panic!("the range is taken")));
    table.release(second, |p| told.push(*p));
    assert_eq!(told, [awake, early]);
    assert!(table.retry(first, || start, |_| panic!("the range is taken")));
}

/// Readers that come and go overtake a writer, but not for long.
#[test]
fn a_writer_is_overtaken_until_its_patience_ends() {
    let mut table = Table::new();
    let start = now();
    let shared = |table: &mut Table<Party>, after: Duration| {
        table.try_acquire(span(0, 10), Mode::Shared, || start + after)
    };
    let mut reader = shared(&mut table, Duration::ZERO).expect("free");
    let writer = table.enqueue(WHOLE, Mode::Exclusive, ASLEEP);
    let (mut told, mut overtaken) = (Vec::new(), 0);
    // A reader is always there.
    while told.is_empty() {
        let next = shared(&mut table, PATIENCE / 10 * overtaken);
        let next = next.expect("no sleeping request is in the way");
        table.release(reader, |p| told.push(*p));
        (reader, overtaken) = (next, overtaken + 1);
    }
    assert_eq!(overtaken, 11, "from the first to the end of its patience");
    // It is awake now, and the reader still there.
    assert!(!table.retry(writer, now, |_| panic!("nobody else waits")));
    assert!(shared(&mut table, PATIENCE).is_none());
    let elsewhere = table.try_acquire(span(90, 91), Mode::Exclusive, now);
    assert!(elsewhere.is_none(), "it wants the whole file");
    let late = Party(2, true);
    table.enqueue(span(0, 10), Mode::Shared, late);
    table.release(reader, |p| told.push(*p));
    assert_eq!(told, [ASLEEP, ASLEEP], "the range is kept for it");
    assert_eq!(table.stats().held, 1);
    assert!(table.retry(writer, now, |_| panic!("the file is taken")));
    table.release(writer, |p| told.push(*p));
    assert_eq!(told, [ASLEEP, ASLEEP, late]);
}

#[test]
#[should_panic(expected = "a held range is in its lock")]
fn releasing_twice_is_a_bug() {
    let mut table: Table<Party> = Table::new();
    let id = table
        .try_acquire(span(0, 1), Mode::Shared, never)
        .expect("free");
    table.release(id, |_| ());
    table.release(id, |_| ());
}

#[test]
#[should_panic(expected = "only a held range can be released")]
fn releasing_a_waiting_request_is_a_bug() {
    let mut table = Table::new();
    let _held = table
        .try_acquire(span(0, 1), Mode::Shared, never)
        .expect("free");
    let waiting = table.enqueue(span(0, 1), Mode::Exclusive, ASLEEP);
    table.release(waiting, |_| ());
}
