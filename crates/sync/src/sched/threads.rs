//! Threads and clocks.

use std::any::Any;
use std::io;
use std::num::NonZero;
use std::ops::{Add, Sub};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::core::{Member, current, point};

/// Processors, as far as a run is concerned.
const PROCESSORS: NonZero<usize> = NonZero::new(4).expect("not zero");

/// The time of day when a run begins.
const DAYBREAK: Duration = Duration::from_secs(1_000_000_000);

/// Processors that can be used.
///
/// # Errors
/// As the standard library's.
pub fn available_parallelism() -> io::Result<NonZero<usize>> {
    match current() {
        Some(_) => Ok(PROCESSORS),
        None => std::thread::available_parallelism(),
    }
}

/// Lets others go on.
pub fn yield_now() {
    match current() {
        Some(m) => m.yields(),
        None => std::thread::yield_now(),
    }
}

/// Waits for so long.
pub fn sleep(time: Duration) {
    match current() {
        Some(m) => {
            let _ = m.wait(super::Why::Time, Some(time));
        }
        None => std::thread::sleep(time),
    }
}

/// A thread that can be told to go on.
#[derive(Clone)]
pub struct Thread {
    real: std::thread::Thread,
    member: Option<Member>,
}

/// This thread.
pub fn this() -> Thread {
    Thread {
        real: std::thread::current(),
        member: current(),
    }
}

impl Thread {
    /// Ends its [`park`], this one or the next.
    pub fn unpark(&self) {
        self.real.unpark();
        if let Some(m) = &self.member {
            m.unpark();
            point();
        }
    }
}

/// Waits for [`Thread::unpark`], or for nothing at all.
pub fn park() {
    let parked = current().is_some_and(|m| m.park());
    if !parked {
        std::thread::park();
    }
}

/// A child of this thread, if a scheduler runs it.
fn child(name: &str) -> Option<Member> {
    current().map(|m| Member {
        me: m.all.add(name),
        all: m.all,
    })
}

fn live<T>(member: Option<Member>, work: impl FnOnce() -> T) -> T {
    let present = member.map(Member::begin);
    let out = work();
    drop(present);
    out
}

fn await_end(of: Option<&Member>) {
    if let (Some(m), Some(of)) = (current(), of) {
        m.await_end(of.me);
    }
}

/// As the standard library's.
#[derive(Debug, Default)]
pub struct Builder(Option<String>);

impl Builder {
    /// A thread without a name.
    pub fn new() -> Self {
        Self(None)
    }

    /// Gives it one.
    #[must_use]
    pub fn name(self, name: String) -> Self {
        Self(Some(name))
    }

    /// Starts it.
    ///
    /// # Errors
    /// As the standard library's.
    pub fn spawn<T: Send + 'static>(
        self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<JoinHandle<T>> {
        let member = child(self.0.as_deref().unwrap_or("a thread"));
        let mut real = std::thread::Builder::new();
        if let Some(name) = self.0 {
            real = real.name(name);
        }
        let theirs = member.clone();
        let handle = real.spawn(move || live(theirs, work))?;
        point();
        Ok(JoinHandle { handle, member })
    }
}

/// Starts a thread.
///
/// # Panics
/// As the standard library's.
pub fn spawn<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    Builder::new().spawn(work).expect("a thread can be started")
}

/// As the standard library's.
pub struct JoinHandle<T> {
    handle: std::thread::JoinHandle<T>,
    member: Option<Member>,
}

impl<T> JoinHandle<T> {
    /// The thread.
    pub fn thread(&self) -> Thread {
        Thread {
            real: self.handle.thread().clone(),
            member: self.member.clone(),
        }
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// What it panicked with.
    pub fn join(self) -> Result<T, Box<dyn Any + Send>> {
        await_end(self.member.as_ref());
        self.handle.join()
    }
}

/// As the standard library's.
#[derive(Clone)]
pub struct Scope<'scope, 'env: 'scope> {
    inner: &'scope std::thread::Scope<'scope, 'env>,
    children: Arc<Mutex<Vec<Member>>>,
}

/// As the standard library's.
pub struct ScopedJoinHandle<'scope, T> {
    handle: std::thread::ScopedJoinHandle<'scope, T>,
    member: Option<Member>,
}

/// As the standard library's.
pub fn scope<'env, T>(work: impl for<'scope> FnOnce(Scope<'scope, 'env>) -> T) -> T {
    std::thread::scope(|inner| {
        let children = Arc::default();
        let ends = Ends(Arc::clone(&children));
        let out = work(Scope { inner, children });
        drop(ends);
        out
    })
}

/// Waits for the ends of threads before the system does, which the scheduler would not see.
struct Ends(Arc<Mutex<Vec<Member>>>);

impl Drop for Ends {
    fn drop(&mut self) {
        let children = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        children.iter().for_each(|c| await_end(Some(c)));
    }
}

impl<'scope> Scope<'scope, '_> {
    /// Starts a thread.
    pub fn spawn<T: Send + 'scope>(
        &self,
        work: impl FnOnce() -> T + Send + 'scope,
    ) -> ScopedJoinHandle<'scope, T> {
        let member = child("a scoped thread");
        let mut children = self.children.lock().unwrap_or_else(PoisonError::into_inner);
        children.extend(member.clone());
        drop(children);
        let theirs = member.clone();
        let handle = self.inner.spawn(move || live(theirs, work));
        point();
        ScopedJoinHandle { handle, member }
    }
}

impl<T> ScopedJoinHandle<'_, T> {
    /// Waits for its end.
    ///
    /// # Errors
    /// What it panicked with.
    pub fn join(self) -> Result<T, Box<dyn Any + Send>> {
        await_end(self.member.as_ref());
        self.handle.join()
    }
}

/// A moment: on the clock of a run, or on the real one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant(Duration);

impl Instant {
    /// This moment.
    pub fn now() -> Self {
        static START: LazyLock<std::time::Instant> = LazyLock::new(std::time::Instant::now);
        Self(match current() {
            Some(m) => m.clock(),
            None => START.elapsed(),
        })
    }

    /// How long ago it was.
    pub fn elapsed(&self) -> Duration {
        Self::now().saturating_duration_since(*self)
    }

    /// How much later it is, if it is.
    pub fn saturating_duration_since(&self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// As [`Instant::saturating_duration_since`].
    pub fn duration_since(&self, earlier: Self) -> Duration {
        self.saturating_duration_since(earlier)
    }
}

impl Add<Duration> for Instant {
    type Output = Self;
    fn add(self, by: Duration) -> Self {
        Self(self.0.saturating_add(by))
    }
}

impl Sub<Instant> for Instant {
    type Output = Duration;
    fn sub(self, earlier: Self) -> Duration {
        self.saturating_duration_since(earlier)
    }
}

/// The time of day; in a run it depends on nothing but the run.
pub fn now() -> SystemTime {
    match current() {
        Some(m) => UNIX_EPOCH + DAYBREAK + m.clock(),
        None => SystemTime::now(),
    }
}
