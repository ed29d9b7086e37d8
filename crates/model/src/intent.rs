//! The intent model: a truncate that is finished in bounded steps (ordering 9), and the zero tail
//! of a shrink into a block.
//!
//! Records are atomic and durable here, so a crash only forgets locks. The file has two blocks;
//! block 0 has two halves, so that a size can end inside it. Every content has a version.

use crate::checker::{Model, Property};
use crate::ordering::{Kept, Ordering};

const BLKS: usize = 2;
/// Sizes count half blocks.
const FULL: u8 = 2 * BLKS as u8;

/// Bounds and switches.
#[derive(Clone, Debug)]
pub struct Config {
    pub name: &'static str,
    /// Sizes that a truncate may choose.
    pub shrink_to: &'static [u8],
    pub truncates: u8,
    pub writes: u8,
    pub extends: u8,
    pub crashes: u8,
    pub kept: Kept,
}

/// What is durable: size, per block its two halves or nothing, and the intent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Disk {
    size: u8,
    block: [Option<[u8; 2]>; BLKS],
    intent: Option<u8>,
}

/// A state of the intent model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State {
    disk: Disk,
    /// The volume was just mounted; intents are found and locked before the first answer.
    up: bool,
    /// `[from, inf)` is locked by the truncate.
    locked: Option<u8>,
    /// The second record of a truncate that needs two: its size, and what is still missing.
    rest: Option<u8>,
    /// Ghost: what the file reads as, by half block; `None` past its end.
    want: [Option<u8>; FULL as usize],
    /// Ghost: the same, if the truncate in progress is not acknowledged yet.
    before: Option<[Option<u8>; FULL as usize]>,
    version: u8,
    left: [u8; 4],
}

/// A transition of the intent model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Truncate(u8),
    SecondRecord,
    Free(usize),
    Done,
    Write(usize),
    Extend,
    Crash,
    Mount,
}

/// The intent model under one configuration.
pub struct Intents(pub Config);

impl Intents {
    fn keeps(&self, ordering: Ordering) -> bool {
        self.0.kept.has(ordering)
    }

    /// The truncate's record: new size, zero-tailed block, intent; or as much as is left of it.
    fn truncate(&self, s: &State, to: u8) -> Option<State> {
        if s.left[0] == 0 || s.locked.is_some() || s.rest.is_some() || to >= s.disk.size {
            return None;
        }
        if s.disk.intent.is_some() {
            return None;
        }
        let mut s = *s;
        s.left[0] -= 1;
        s.before = Some(s.want);
        for half in usize::from(to)..FULL.into() {
            s.want[half] = None;
        }
        s.disk.size = to;
        s.locked = Some(to);
        let split =
            !self.keeps(Ordering::IntentWithEffect) || !self.keeps(Ordering::ZeroTailInRecord);
        if self.keeps(Ordering::ZeroTailInRecord) {
            zero_tail(&mut s.disk, to);
        }
        if self.keeps(Ordering::IntentWithEffect) {
            s.disk.intent = Some(to);
        }
        if split {
            s.rest = Some(to);
        } else {
            s.before = None;
            if !self.keeps(Ordering::TailLockedUntilDone) {
                s.locked = None;
            }
        }
        Some(s)
    }

    fn second_record(&self, s: &State) -> Option<State> {
        let to = s.rest?;
        let mut s = *s;
        zero_tail(&mut s.disk, to);
        s.disk.intent = Some(to);
        s.rest = None;
        s.before = None;
        Some(s)
    }

    fn free(&self, s: &State) -> Option<(Step, State)> {
        let to = s.disk.intent?;
        if s.rest.is_some() {
            return None;
        }
        let mut s = *s;
        let beyond = |b: usize| 2 * b as u8 >= to && s.disk.block[b].is_some();
        let last = (0..BLKS).rev().find(|&b| beyond(b));
        let early = !self.keeps(Ordering::IntentClearedLast)
            && (0..BLKS).filter(|&b| beyond(b)).count() == 1;
        if let Some(b) = last
            && !early
        {
            s.disk.block[b] = None;
            return Some((Step::Free(b), s));
        }
        s.disk.intent = None;
        s.locked = None;
        Some((Step::Done, s))
    }

    fn write(&self, s: &State, b: usize) -> Option<State> {
        let end = 2 * b as u8 + 2;
        let size_changes = end > s.disk.size;
        // A size change locks [min(old, new), inf).
        let from = if size_changes {
            s.disk.size.min(2 * b as u8)
        } else {
            2 * b as u8
        };
        if s.left[1] == 0
            || s.locked
                .is_some_and(|l| end > l || size_changes && from >= l)
        {
            return None;
        }
        let mut s = *s;
        s.left[1] -= 1;
        s.version += 1;
        s.disk.block[b] = Some([s.version; 2]);
        self.grow(&mut s, end);
        s.want[2 * b] = Some(s.version);
        s.want[2 * b + 1] = Some(s.version);
        Some(s)
    }

    /// `truncate` upwards: everything new reads as zeros.
    fn extend(&self, s: &State) -> Option<State> {
        if s.left[2] == 0 || s.disk.size == FULL || s.locked.is_some() {
            return None;
        }
        let mut s = *s;
        s.left[2] -= 1;
        self.grow(&mut s, FULL);
        Some(s)
    }

    fn grow(&self, s: &mut State, end: u8) {
        s.disk.size = s.disk.size.max(end);
        for half in 0..usize::from(s.disk.size) {
            s.want[half].get_or_insert(0);
        }
    }
}

fn zero_tail(disk: &mut Disk, to: u8) {
    if to % 2 == 1
        && let Some(halves) = &mut disk.block[usize::from(to / 2)]
    {
        halves[1] = 0;
    }
}

fn reads(disk: &Disk) -> [Option<u8>; FULL as usize] {
    std::array::from_fn(|half| {
        let block = disk.block[half / 2];
        (half < usize::from(disk.size)).then(|| block.map_or(0, |halves| halves[half % 2]))
    })
}

impl Model for Intents {
    type State = State;
    type Step = Step;

    fn initial(&self) -> State {
        State {
            disk: Disk {
                size: FULL,
                block: [Some([1; 2]), Some([2; 2])],
                intent: None,
            },
            up: true,
            locked: None,
            rest: None,
            want: [Some(1), Some(1), Some(2), Some(2)],
            before: None,
            version: 2,
            left: [
                self.0.truncates,
                self.0.writes,
                self.0.extends,
                self.0.crashes,
            ],
        }
    }

    fn successors(&self, s: &State, out: &mut Vec<(Step, State)>) {
        let mut push = |step, next: Option<State>| out.extend(next.map(|next| (step, next)));
        if !s.up {
            let locked = if self.keeps(Ordering::TailLockedAfterCrash) {
                s.disk.intent
            } else {
                None
            };
            push(
                Step::Mount,
                Some(State {
                    up: true,
                    locked,
                    ..*s
                }),
            );
            return;
        }
        for &to in self.0.shrink_to {
            push(Step::Truncate(to), self.truncate(s, to));
        }
        push(Step::SecondRecord, self.second_record(s));
        out.extend(self.free(s));
        let mut push = |step, next: Option<State>| out.extend(next.map(|next| (step, next)));
        for b in 0..BLKS {
            push(Step::Write(b), self.write(s, b));
        }
        push(Step::Extend, self.extend(s));
        if s.left[3] > 0 {
            let mut next = State {
                up: false,
                locked: None,
                rest: None,
                ..*s
            };
            next.left[3] -= 1;
            // An unacknowledged truncate may have happened or not, but nothing between.
            if let Some(before) = s.before
                && reads(&s.disk) == before
            {
                next.want = before;
            }
            next.before = None;
            push(Step::Crash, Some(next));
        }
    }

    fn check(&self, s: &State) -> Result<(), Property> {
        let got = reads(&s.disk);
        if s.before.is_none() && got != s.want {
            let lost = got
                .iter()
                .zip(s.want)
                .any(|(got, want)| want > Some(0) && *got != want);
            return Err(if lost {
                Property::AckedLost
            } else {
                Property::ForeignContent
            });
        }
        let used = |b: &usize| 2 * *b as u8 >= s.disk.size && s.disk.block[*b].is_some();
        if s.disk.intent.is_none() && s.rest.is_none() && (0..BLKS).any(|b| used(&b)) {
            return Err(Property::Leaked);
        }
        Ok(())
    }

    fn explain(&self, _before: &State, step: Step, after: &State) -> String {
        match step {
            Step::Truncate(to) => format!("truncate to {to} half blocks: first record"),
            Step::SecondRecord => "truncate: the rest of it, in another record".into(),
            Step::Free(b) => format!("the intent frees block {b}"),
            Step::Done => "the intent is cleared, the range unlocked".into(),
            Step::Write(b) => format!("write of block {b}, size now {}", after.disk.size),
            Step::Extend => "truncate upwards to the full size".into(),
            Step::Crash => "CRASH".into(),
            Step::Mount => "mounted; locks of intents taken, if they are".into(),
        }
    }
}
