//! Turns: which thread has one, which threads wait, and for what.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any, resume_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::choice::{Choice, mix};
use super::quiesce::Graves;

/// What a point costs on the clock.
const TICK: Duration = Duration::from_micros(1);
/// Points after which a run is taken for one that does not end.
const ENDLESS: u64 = 20_000_000;

/// What a thread waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// A lock, by address, alone or together with others.
    Lock { at: usize, alone: bool },
    /// A condition variable, by address.
    Signal(usize),
    /// To be unparked.
    Unpark,
    /// The end of a thread.
    End(usize),
    /// Time.
    Time,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    Ready,
    Waits(Why),
    Over,
}

struct Task {
    name: String,
    turn: Arc<Condvar>,
    status: Status,
    deadline: Option<Duration>,
    late: bool,
    /// It has been unparked.
    unparked: bool,
}

struct State {
    tasks: Vec<Task>,
    now: usize,
    choice: Choice,
    clock: Duration,
    points: u64,
    switches: u64,
    hash: u64,
    stuck: Option<Stuck>,
    /// The run is over: the threads that are left go on as they like.
    free: bool,
}

/// All threads of one run.
pub(crate) struct Scheduler {
    state: Mutex<State>,
    pub(crate) graves: Graves,
    planted: Option<&'static str>,
}

/// What became of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Moments at which another thread could have gone on.
    pub points: u64,
    /// How often another one did.
    pub switches: u64,
    /// The same for the same interleaving.
    pub hash: u64,
}

/// What tests do to the runs of a thread ([`with_plan`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Another interleaving for the same seed.
    pub order: u64,
    /// What the code that asks for it by this name ([`planted`]) does wrong.
    pub bug: Option<&'static str>,
}

/// The runs that `body` begins on this thread go according to a plan.
pub fn with_plan<T>(plan: Plan, body: impl FnOnce() -> T) -> T {
    let outer = PLAN.replace(plan);
    let result = catch_unwind(AssertUnwindSafe(body));
    PLAN.set(outer);
    result.unwrap_or_else(|panic| resume_unwind(panic))
}

/// What threads of a run panic with that cannot go on.
#[derive(Clone, Debug)]
pub struct Stuck(String);

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A thread of a run.
#[derive(Clone)]
pub(crate) struct Member {
    pub(crate) all: Arc<Scheduler>,
    pub(crate) me: usize,
}

thread_local! {
    static MEMBER: RefCell<Option<Member>> = const { RefCell::new(None) };
    static PLAN: Cell<Plan> = const { Cell::new(Plan { order: 0, bug: None }) };
}

/// This thread, if a scheduler runs it.
pub(crate) fn current() -> Option<Member> {
    MEMBER
        .try_with(|m| m.try_borrow().ok().and_then(|m| m.clone()))
        .ok()
        .flatten()
}

fn set_current(member: Option<Member>) {
    let _ = MEMBER.try_with(|m| *m.borrow_mut() = member);
}

/// A moment at which the scheduler may let another thread go on.
#[inline]
pub fn point() {
    if let Some(m) = current() {
        m.point();
    }
}

/// Whether a test has planted this bug in the run of this thread.
pub fn planted(bug: &str) -> bool {
    current().is_some_and(|m| m.all.planted == Some(bug))
}

/// Runs `body` and the threads that it starts, which end before it does, in the interleaving that
/// belongs to `seed`.
///
/// # Panics
/// As `body`; with [`Stuck`] if every thread waits for another.
pub fn run<T>(seed: u64, body: impl FnOnce() -> T) -> (T, Outcome) {
    let plan = PLAN.get();
    let all = Arc::new(Scheduler {
        state: Mutex::new(State {
            tasks: Vec::new(),
            now: 0,
            choice: Choice::new(mix(seed) ^ plan.order),
            clock: Duration::ZERO,
            points: 0,
            switches: 0,
            hash: 0,
            stuck: None,
            free: false,
        }),
        graves: Graves::default(),
        planted: plan.bug,
    });
    let me = all.add("main");
    let outer = current();
    set_current(Some(Member {
        all: Arc::clone(&all),
        me,
    }));
    let result = catch_unwind(AssertUnwindSafe(body));
    set_current(outer);
    let outcome = all.finish();
    match result {
        Ok(value) => (value, outcome),
        Err(panic) => resume_unwind(said(panic)),
    }
}

/// What a thread panicked with, as text if it was stuck.
fn said(panic: Box<dyn Any + Send>) -> Box<dyn Any + Send> {
    match panic.downcast::<Stuck>() {
        Ok(stuck) => Box::new(stuck.to_string()),
        Err(other) => other,
    }
}

impl Scheduler {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more thread, ready to go on.
    pub(crate) fn add(&self, name: &str) -> usize {
        let mut st = self.lock();
        st.choice.add();
        st.tasks.push(Task {
            name: name.into(),
            turn: Arc::default(),
            status: Status::Ready,
            deadline: None,
            late: false,
            unparked: false,
        });
        st.tasks.len() - 1
    }

    fn finish(&self) -> Outcome {
        let mut st = self.lock();
        st.free = true;
        st.tasks.iter().for_each(|t| t.turn.notify_all());
        Outcome {
            points: st.points,
            switches: st.switches,
            hash: st.hash,
        }
    }

    /// Those that wait for `why` can go on, or see that they cannot.
    fn wake(st: &mut State, why: impl Fn(Why) -> bool) {
        for t in &mut st.tasks {
            if let Status::Waits(w) = t.status
                && why(w)
            {
                t.status = Status::Ready;
                t.deadline = None;
            }
        }
    }

    /// Gives the turn to the next thread; it may be `me` again, unless `me` is over.
    fn pass_on(st: &mut State, me: usize) {
        st.clock += TICK;
        st.points += 1;
        if st.points > ENDLESS {
            return st.give_up("no end in sight");
        }
        let others = st.tasks.iter().filter(|t| t.status != Status::Over).count();
        if others > 1
            && st.tasks[me].status == Status::Ready
            && let Some(points) = st.choice.delay()
        {
            let t = &mut st.tasks[me];
            t.status = Status::Waits(Why::Time);
            t.deadline = Some(st.clock + TICK * points as u32);
        }
        st.expire();
        let mut ready = st.ready();
        if ready.is_empty() {
            // All threads wait: time passes.
            let next = st.tasks.iter().filter_map(|t| t.deadline).min();
            let Some(next) = next else {
                return st.give_up("nobody can go on");
            };
            st.clock = next;
            st.expire();
            ready = st.ready();
        }
        let now = (st.tasks[me].status == Status::Ready).then_some(me);
        let next = st.choice.next(&ready, now);
        if next != me {
            st.switches += 1;
            st.tasks[next].turn.notify_all();
        }
        st.hash = mix(st.hash ^ (next as u64 + 1));
        st.now = next;
    }

    fn await_turn(&self, mut st: MutexGuard<'_, State>, me: usize) {
        let turn = Arc::clone(&st.tasks[me].turn);
        while st.now != me && !st.free && st.stuck.is_none() {
            st = turn.wait(st).unwrap_or_else(PoisonError::into_inner);
        }
        if let Some(stuck) = &st.stuck
            && !std::thread::panicking()
        {
            let stuck = stuck.clone();
            drop(st);
            panic_any(stuck);
        }
    }
}

impl State {
    fn expire(&mut self) {
        for t in &mut self.tasks {
            if t.deadline.is_some_and(|d| d <= self.clock) {
                t.deadline = None;
                t.late = true;
                t.status = Status::Ready;
            }
        }
    }

    fn ready(&self) -> Vec<usize> {
        let is_ready = |i: &usize| self.tasks[*i].status == Status::Ready;
        (0..self.tasks.len()).filter(is_ready).collect()
    }

    /// The turns end here: each thread fails where it is.
    fn give_up(&mut self, what: &str) {
        if self.tasks.iter().all(|t| t.status == Status::Over) {
            return;
        }
        let mut text = format!("{what} after {} points", self.points);
        for t in self.tasks.iter().filter(|t| t.status != Status::Over) {
            match t.status {
                // Addresses differ from run to run.
                Status::Waits(Why::Lock { alone, .. }) => {
                    let how = if alone { "alone" } else { "shared" };
                    text += &format!("; {} waits for a lock, {how}", t.name);
                }
                Status::Waits(Why::Signal(_)) => text += &format!("; {} for a signal", t.name),
                Status::Waits(why) => text += &format!("; {} waits: {why:?}", t.name),
                _ => text += &format!("; {} runs", t.name),
            }
        }
        self.stuck = Some(Stuck(text));
        self.tasks.iter().for_each(|t| t.turn.notify_all());
    }

    fn is_off(&self) -> bool {
        self.free || self.stuck.is_some() && std::thread::panicking()
    }
}

impl Member {
    /// Another thread may go on.
    pub(crate) fn point(&self) {
        let mut st = self.all.lock();
        // A thread that unwinds lets go of what it holds, at once.
        if st.is_off() || std::thread::panicking() {
            return;
        }
        Scheduler::pass_on(&mut st, self.me);
        self.all.await_turn(st, self.me);
    }

    /// Others go on first.
    pub(crate) fn yields(&self) {
        self.all.lock().choice.yields(self.me);
        self.point();
    }

    /// Waits until [`Member::wake`] names this reason, or for so long. `None`: no scheduler decides
    /// any more. Else whether it took too long.
    pub(crate) fn wait(&self, why: Why, limit: Option<Duration>) -> Option<bool> {
        let mut st = self.all.lock();
        if st.is_off() {
            return None;
        }
        let deadline = limit.map(|l| st.clock.saturating_add(l));
        let t = &mut st.tasks[self.me];
        t.status = Status::Waits(why);
        t.deadline = deadline;
        t.late = false;
        Scheduler::pass_on(&mut st, self.me);
        self.all.await_turn(st, self.me);
        let st = self.all.lock();
        Some(st.tasks[self.me].late)
    }

    /// What those that wait for `why` wait for has come.
    pub(crate) fn wake(&self, why: impl Fn(Why) -> bool) {
        Scheduler::wake(&mut self.all.lock(), why);
    }

    /// One of those that wait for `why` goes on.
    pub(crate) fn wake_one(&self, why: Why) {
        let mut st = self.all.lock();
        let is_one = |i: &usize| st.tasks[*i].status == Status::Waits(why);
        let waiting: Vec<usize> = (0..st.tasks.len()).filter(is_one).collect();
        if !waiting.is_empty() {
            let one = st.choice.one_of(&waiting);
            st.tasks[one].status = Status::Ready;
            st.tasks[one].deadline = None;
        }
    }

    /// Whether a thread waits to hold this lock alone: then no other thread joins those that share it.
    pub(crate) fn is_wanted(&self, at: usize) -> bool {
        let wanted = Status::Waits(Why::Lock { at, alone: true });
        self.all.lock().tasks.iter().any(|t| t.status == wanted)
    }

    /// Waits for [`Member::unpark`]; each counts once.
    pub(crate) fn park(&self) -> bool {
        loop {
            let mut st = self.all.lock();
            if std::mem::take(&mut st.tasks[self.me].unparked) {
                return true;
            }
            drop(st);
            if self.wait(Why::Unpark, None).is_none() {
                return false;
            }
        }
    }

    /// Lets a thread's [`Member::park`] end, this one or the next.
    pub(crate) fn unpark(&self) {
        let mut st = self.all.lock();
        let t = &mut st.tasks[self.me];
        t.unparked = true;
        if t.status == Status::Waits(Why::Unpark) {
            t.status = Status::Ready;
        }
    }

    /// Waits for the end of a thread.
    pub(crate) fn await_end(&self, of: usize) {
        loop {
            let over = self.all.lock().tasks[of].status == Status::Over;
            if over || self.wait(Why::End(of), None).is_none() {
                return;
            }
        }
    }

    /// Time on this run's clock.
    pub(crate) fn clock(&self) -> Duration {
        self.all.lock().clock
    }

    /// This thread begins: it is `self` from here on, when it is its turn.
    pub(crate) fn begin(self) -> Present {
        set_current(Some(self.clone()));
        let present = Present(self);
        let Member { all, me } = &present.0;
        all.await_turn(all.lock(), *me);
        present
    }
}

/// Ends a thread's membership when it is over, however it ends.
pub(crate) struct Present(Member);

impl Drop for Present {
    fn drop(&mut self) {
        let Member { all, me } = &self.0;
        set_current(None);
        let mut st = all.lock();
        st.tasks[*me].status = Status::Over;
        Scheduler::wake(&mut st, |w| w == Why::End(*me));
        if !st.free && st.stuck.is_none() && st.now == *me {
            Scheduler::pass_on(&mut st, *me);
        }
    }
}
