//! Recording a run.

use crate::device::SimDevice;
use crate::event::{Event, Kind};
use crate::pages::{PAGE, Pages};
use crate::trace::Trace;
use parking_lot::Mutex;
use quayfs_pmem::{Backend, Observer, Region};
use std::io;
use std::ops::Range;
use std::panic::Location;
use std::sync::Arc;

/// Hands out a region and a device and records everything that is done to them.
pub struct Recorder {
    backend: Backend,
    log: Arc<Log>,
    region: Arc<Region>,
    device: Arc<SimDevice>,
}

/// The events of both media in one order.
#[derive(Default)]
pub(crate) struct Log {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Shared with traces; copied when it grows while one is alive.
    events: Arc<Vec<Event>>,
    base: Option<Base>,
    drain_fault: Option<i32>,
    /// After this many events no thread makes another one.
    dies_after: Option<usize>,
    /// A thread wanted to make one more.
    died: bool,
    /// How many of the events only lead to where crashes are of interest.
    from: usize,
}

/// What threads panic with that outlive the death of their daemon ([`Recorder::die_after`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Died;

/// What was on the media, settled, before the first event.
#[derive(Clone)]
pub(crate) struct Base {
    pub(crate) pmem: Pages,
    pub(crate) device: Pages,
}

impl Log {
    /// Records what the calling thread is about to do; others may come first, but for a mark, which
    /// belongs to what was done before.
    pub(crate) fn push(&self, kind: Kind, site: &'static Location<'static>) {
        if !matches!(kind, Kind::Mark(_)) {
            quayfs_sync::point();
        }
        self.push_now(kind, site);
    }

    /// [`Log::push`] for a thread that holds a lock: no other thread comes first.
    pub(crate) fn push_now(&self, kind: Kind, site: &'static Location<'static>) {
        let event = Event {
            thread: std::thread::current().id(),
            site,
            kind,
        };
        let mut state = self.state.lock();
        let dead = state.dies_after.is_some_and(|n| state.events.len() >= n);
        if dead && !matches!(event.kind, Kind::Mark(_)) {
            state.died = true;
            drop(state);
            // A thread that is already dying runs destructors, which may fence what they give back. That has no effect
            // any more, and a second panic would end the process. Not so for a store, which the next daemon would see.
            if std::thread::panicking() && event.kind.only_orders() {
                return;
            }
            std::panic::panic_any(Died);
        }
        Arc::make_mut(&mut state.events).push(event);
    }
}

impl Observer for Log {
    fn store(&self, off: u64, bytes: &[u8], nt: bool, site: &'static Location<'static>) {
        self.push(
            Kind::Store {
                off,
                bytes: bytes.into(),
                nt,
            },
            site,
        );
    }

    fn flush(&self, off: u64, len: u64, site: &'static Location<'static>) {
        self.push(Kind::Flush { off, len }, site);
    }

    fn fence(&self, site: &'static Location<'static>) {
        self.push(Kind::Fence, site);
    }

    fn drain(&self, site: &'static Location<'static>) {
        self.push(Kind::Drain, site);
    }

    fn settle_ranges(&self, ranges: &[Range<u64>], site: &'static Location<'static>) {
        self.push(Kind::Settle(ranges.into()), site);
    }

    fn drain_settled(&self, site: &'static Location<'static>) {
        self.push(Kind::DrainSettled, site);
    }

    fn drain_fault(&self) -> Option<io::Error> {
        self.state
            .lock()
            .drain_fault
            .map(io::Error::from_raw_os_error)
    }
}

impl Recorder {
    /// Starts with a region of `pmem_len` bytes that behaves as `backend` and a device of
    /// `device_blocks` blocks, both all zero.
    pub fn new(pmem_len: u64, device_blocks: u64, backend: Backend) -> Self {
        let device = Pages::new(device_blocks * PAGE as u64);
        Self::with_base(
            Base {
                pmem: Pages::new(pmem_len),
                device,
            },
            backend,
        )
    }

    pub(crate) fn with_base(base: Base, backend: Backend) -> Self {
        let log = Arc::new(Log::default());
        let extents = base.pmem.extents();
        let observer: Arc<dyn Observer> = log.clone();
        let region = Region::from_extents(base.pmem.len(), extents, Some(observer), backend);
        let device = SimDevice::new(base.device.clone(), Some(log.clone()));
        log.state.lock().base = Some(base);
        Self {
            backend,
            log,
            region: Arc::new(region),
            device: Arc::new(device),
        }
    }

    /// The recorded region.
    pub fn region(&self) -> Arc<Region> {
        self.region.clone()
    }

    /// The recorded device.
    pub fn device(&self) -> Arc<SimDevice> {
        self.device.clone()
    }

    /// What the region behaves as.
    pub fn backend(&self) -> Backend {
        self.backend
    }

    /// Records that the outside world has been told something: an operation numbered by the caller
    /// was acknowledged, or begun. It costs nothing and settles nothing.
    #[track_caller]
    pub fn mark(&self, value: u64) {
        self.log.push(Kind::Mark(value), Location::caller());
    }

    /// Takes all that has been stored so far for settled and forgets how it came about, marks
    /// included. For a preparation whose crashes are not of interest, such as making a file system.
    pub fn start_here(&self) {
        let mut state = self.log.state.lock();
        let mut pmem = Pages::new(self.region.len());
        pmem.write(0, &self.region.read_vec(0, self.region.len()));
        state.base = Some(Base {
            pmem,
            device: self.device.content(),
        });
        state.events = Arc::default();
        state.from = 0;
    }

    /// What has been recorded stays, with all that is in flight, but only crashes from here on are of
    /// interest.
    pub fn crash_from_here(&self) {
        let mut state = self.log.state.lock();
        state.from = state.events.len();
    }

    /// The daemon dies when there have been so many events: from then until [`Recorder::revive`], a
    /// thread that is about to do anything to either medium panics with [`Died`] instead. What is in
    /// flight stays in flight: the machine goes on. Destructors that run because of the panic may
    /// flush, fence and drain, without effect; they must not store.
    pub fn die_after(&self, events: usize) {
        let mut state = self.log.state.lock();
        state.dies_after = Some(events);
        state.died = false;
    }

    /// Whether a thread has met its death since [`Recorder::die_after`].
    pub fn has_died(&self) -> bool {
        self.log.state.lock().died
    }

    /// The next daemon may begin. From here on a flush and a fence settle also what the last one had
    /// written non-temporally; fences that its threads still owed settle nothing.
    #[track_caller]
    pub fn revive(&self) {
        self.log.state.lock().dies_after = None;
        self.log.push_now(Kind::Death, Location::caller());
    }

    /// Lets the next drain, and so all later ones, fail with this error number.
    pub fn fail_drains(&self, errno: i32) {
        self.log.state.lock().drain_fault = Some(errno);
    }

    /// How many events there are so far.
    pub fn len(&self) -> usize {
        self.log.state.lock().events.len()
    }

    /// Whether nothing has been done yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Everything up to now.
    pub fn trace(&self) -> Trace {
        let state = self.log.state.lock();
        let base = state.base.clone().expect("set when the recorder was made");
        Trace::new(base, state.events.clone(), state.from, self.backend)
    }
}
