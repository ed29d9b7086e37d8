//! The end of serving that is not the end of the connection: another process goes on with it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_utils::CachePadded;

/// How often to look whether requests are answered.
const LOOK: Duration = Duration::from_millis(1);

/// What each request passes that is read from a connection which outlives the process ([`Keeper`](crate::Keeper)), until
/// it is closed.
#[derive(Clone, Debug, Default)]
pub struct Gate(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    is_closed: AtomicBool,
    /// One for each thread that serves: whether it is at a request.
    threads: Mutex<Vec<Arc<Busy>>>,
    /// Answers that are put off.
    put_off: AtomicUsize,
}

type Busy = CachePadded<AtomicBool>;

impl Gate {
    /// From now on no request is begun: the kernel sends those that are read all the same to the next process, as it does
    /// with all that are not answered. Waits until those that had begun are answered, for at most `patience`, and says
    /// whether they are. For good.
    pub fn close(&self, patience: Duration) -> bool {
        self.0.is_closed.store(true, Ordering::SeqCst);
        let deadline = Instant::now() + patience;
        while !self.is_quiet() {
            if Instant::now() >= deadline {
                return false;
            }
            thread::sleep(LOOK);
        }
        true
    }

    /// Once it is closed and this holds it holds for ever. A thread that puts an answer off counts that before it is free
    /// again, so threads are looked at first.
    fn is_quiet(&self) -> bool {
        let threads = self
            .0
            .threads
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let is_busy = |thread: &Arc<Busy>| thread.load(Ordering::SeqCst);
        !threads.iter().any(is_busy) && self.0.put_off.load(Ordering::SeqCst) == 0
    }

    /// The way through for a thread that serves.
    pub(crate) fn pass(&self) -> Pass {
        let busy = Arc::<Busy>::default();
        let mut threads = self
            .0
            .threads
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        threads.push(Arc::clone(&busy));
        Pass {
            gate: self.clone(),
            busy,
        }
    }
}

/// See [`Gate::pass`].
#[derive(Debug)]
pub(crate) struct Pass {
    gate: Gate,
    busy: Arc<Busy>,
}

impl Pass {
    /// A request begins, and ends when the result is dropped. `None`: it must not, and nor must any other.
    pub(crate) fn begin(&self) -> Option<Begun<'_>> {
        // Either this thread sees that the gate is closed, or the one that closes it sees this.
        self.busy.store(true, Ordering::SeqCst);
        let begun = Begun(&self.busy);
        (!self.gate.0.is_closed.load(Ordering::SeqCst)).then_some(begun)
    }

    /// The answer to the request of this thread is put off until the result is dropped.
    pub(crate) fn put_off(&self) -> PutOff {
        self.gate.0.put_off.fetch_add(1, Ordering::SeqCst);
        PutOff(self.gate.clone())
    }
}

/// A request is under way.
pub(crate) struct Begun<'a>(&'a Busy);

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

/// An answer is still to be given.
#[derive(Debug)]
pub(crate) struct PutOff(Gate);

impl Drop for PutOff {
    fn drop(&mut self) {
        self.0.0.put_off.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_begun_is_waited_for_and_nothing_begins_afterwards() {
        let gate = Gate::default();
        let (one, other) = (gate.pass(), gate.pass());
        let begun = one.begin().unwrap();
        let put_off = other.begin().map(|_| other.put_off()).unwrap();
        assert!(!gate.close(Duration::ZERO));
        assert!(other.begin().is_none());
        drop(begun);
        assert!(!gate.close(Duration::ZERO));
        assert!(gate.pass().begin().is_none());
        drop(put_off);
        assert!(gate.close(Duration::ZERO));
        assert!(one.begin().is_none());
    }

    #[test]
    fn a_gate_closes_between_requests_of_many_threads() {
        let gate = Gate::default();
        let under_way = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let pass = gate.pass();
                    while let Some(_begun) = pass.begin() {
                        under_way.fetch_add(1, Ordering::SeqCst);
                        thread::yield_now();
                        under_way.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
            assert!(gate.close(Duration::from_secs(3600)));
            for _ in 0..1000 {
                assert_eq!(under_way.load(Ordering::SeqCst), 0);
            }
        });
    }
}
