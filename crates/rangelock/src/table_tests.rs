//! The table against a model that says in one line who may hold what: an entry is granted if and
//! only if no earlier entry conflicts with it.

use proptest::prelude::*;

use crate::table::{Id, Mode, Span, Table};

struct Request {
    id: Id,
    span: Span,
    mode: Mode,
    granted: bool,
}

#[derive(Default)]
struct Model {
    /// In order of arrival, held and waiting.
    requests: Vec<Request>,
}

fn conflict(a: (Span, Mode), b: (Span, Mode)) -> bool {
    let exclusive = a.1 == Mode::Exclusive || b.1 == Mode::Exclusive;
    let shared_byte = (a.0.start..a.0.end).any(|x| x >= b.0.start && x < b.0.end);
    exclusive && shared_byte
}

impl Model {
    fn free(&self, span: Span, mode: Mode) -> bool {
        !self
            .requests
            .iter()
            .any(|r| conflict((r.span, r.mode), (span, mode)))
    }

    /// Removes a request and returns who must be granted by that.
    fn release(&mut self, index: usize) -> Vec<u64> {
        self.requests.remove(index);
        let mut granted = Vec::new();
        for i in 0..self.requests.len() {
            let (earlier, rest) = self.requests.split_at_mut(i);
            let me = &mut rest[0];
            let blocked = earlier
                .iter()
                .any(|r| conflict((r.span, r.mode), (me.span, me.mode)));
            if !blocked && !me.granted {
                me.granted = true;
                granted.push(i as u64);
            }
        }
        granted
    }
}

#[derive(Debug, Clone)]
enum Step {
    Try(u64, u64, bool),
    Ask(u64, u64, bool),
    Release(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let range = || (0u64..24, 0u64..10, any::<bool>());
    prop_oneof![
        1 => range().prop_map(|(s, l, x)| Step::Try(s, s + l, x)),
        3 => range().prop_map(|(s, l, x)| Step::Ask(s, s + l, x)),
        3 => any::<usize>().prop_map(Step::Release),
    ]
}

fn mode(exclusive: bool) -> Mode {
    if exclusive {
        Mode::Exclusive
    } else {
        Mode::Shared
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn grants_exactly_what_the_model_grants(steps in prop::collection::vec(step(), 1..80)) {
        let mut table: Table<(Span, Mode, usize)> = Table::new();
        let mut model = Model::default();
        for (n, step) in steps.into_iter().enumerate() {
            match step {
                Step::Try(start, end, x) => {
                    let (span, mode) = (Span { start, end }, mode(x));
                    let free = model.free(span, mode);
                    let id = table.try_acquire(span, mode);
                    prop_assert_eq!(id.is_some(), free);
                    if let Some(id) = id {
                        model.requests.push(Request { id, span, mode, granted: true });
                    }
                }
                Step::Ask(start, end, x) => {
                    let (span, mode) = (Span { start, end }, mode(x));
                    let free = model.free(span, mode);
                    let (id, granted) = match table.try_acquire(span, mode) {
                        Some(id) => (id, true),
                        None => (table.enqueue(span, mode, (span, mode, n)), false),
                    };
                    prop_assert_eq!(granted, free);
                    model.requests.push(Request { id, span, mode, granted });
                }
                Step::Release(pick) => {
                    let held: Vec<usize> = (0..model.requests.len())
                        .filter(|&i| model.requests[i].granted)
                        .collect();
                    if held.is_empty() {
                        // Somebody is always first, so an entered request is always held.
                        prop_assert!(model.requests.is_empty());
                        continue;
                    }
                    let index = held[pick % held.len()];
                    let id = model.requests[index].id;
                    let mut woken = Vec::new();
                    table.release(id, |(span, mode, _)| woken.push((span, mode)));
                    let expected: Vec<_> = model
                        .release(index)
                        .into_iter()
                        .map(|i| &model.requests[i as usize])
                        .map(|r| (r.span, r.mode))
                        .collect();
                    prop_assert_eq!(sorted(woken), sorted(expected));
                }
            }
            let stats = table.stats();
            prop_assert_eq!(stats.held, model.requests.iter().filter(|r| r.granted).count());
            prop_assert_eq!(stats.waiting, model.requests.iter().filter(|r| !r.granted).count());
        }
        // However it went, releasing in any order grants everybody in the end.
        while let Some(index) = model.requests.iter().position(|r| r.granted) {
            table.release(model.requests[index].id, drop);
            model.release(index);
        }
        prop_assert!(model.requests.is_empty());
        prop_assert_eq!((table.stats().held, table.stats().waiting), (0, 0));
    }
}

fn sorted(mut entries: Vec<(Span, Mode)>) -> Vec<(u64, u64, bool)> {
    let mut keys: Vec<_> = entries
        .drain(..)
        .map(|(s, m)| (s.start, s.end, m == Mode::Exclusive))
        .collect();
    keys.sort_unstable();
    keys
}

fn span(start: u64, end: u64) -> Span {
    Span { start, end }
}

#[test]
fn empty_ranges_conflict_with_nothing() {
    let mut table: Table<()> = Table::new();
    let all = table
        .try_acquire(span(0, u64::MAX), Mode::Exclusive)
        .expect("free");
    for (start, end) in [(5, 5), (7, 3), (u64::MAX, u64::MAX), (0, 0)] {
        assert!(
            table
                .try_acquire(span(start, end), Mode::Exclusive)
                .is_some(),
            "{start}..{end}"
        );
    }
    table.release(all, drop);
}

#[test]
fn touching_ranges_are_disjoint() {
    let mut table: Table<()> = Table::new();
    assert!(table.try_acquire(span(0, 4096), Mode::Exclusive).is_some());
    assert!(
        table
            .try_acquire(span(4096, u64::MAX), Mode::Exclusive)
            .is_some()
    );
    assert!(table.try_acquire(span(4095, 4096), Mode::Shared).is_none());
}

#[test]
fn a_reader_does_not_overtake_a_waiting_writer() {
    let mut table: Table<&str> = Table::new();
    let reader = table.try_acquire(span(0, 10), Mode::Shared).expect("free");
    let writer = table.enqueue(span(0, u64::MAX), Mode::Exclusive, "writer");
    assert!(
        table.try_acquire(span(0, 10), Mode::Shared).is_none(),
        "behind the writer"
    );
    table.enqueue(span(0, 10), Mode::Shared, "late reader");
    let mut woken = Vec::new();
    table.release(reader, |w| woken.push(w));
    assert_eq!(woken, ["writer"]);
    table.release(writer, |w| woken.push(w));
    assert_eq!(woken, ["writer", "late reader"]);
}

#[test]
#[should_panic(expected = "a held range is in its lock")]
fn releasing_twice_is_a_bug() {
    let mut table: Table<()> = Table::new();
    let id = table.try_acquire(span(0, 1), Mode::Shared).expect("free");
    table.release(id, drop);
    table.release(id, drop);
}

#[test]
#[should_panic(expected = "only a held range can be released")]
fn releasing_a_waiting_request_is_a_bug() {
    let mut table: Table<()> = Table::new();
    let _held = table.try_acquire(span(0, 1), Mode::Shared).expect("free");
    let waiting = table.enqueue(span(0, 1), Mode::Exclusive, ());
    table.release(waiting, drop);
}
