//! What tests see of the requests to a disk, and the faults that they plant. The product has nothing of it.

/// A fault that the tests have to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// What is away is written home by all who settle it.
    AwayIsWrittenHome,
    /// A half is retired before what it has is durable where it belongs.
    RetiredBeforeHome,
    /// What a full half has is not brought home.
    NotBroughtHome,
    /// Sectors stop being away though no head says that their half does not count.
    HeadLeftOut,
    /// The other half is written to while it counts.
    HalfReused,
    /// Batches go on while older content is on its way home.
    FlightIgnored,
    /// What is on its way, or in a batch only, is taken for written.
    TakenForWritten,
}

#[cfg(not(test))]
#[derive(Default)]
pub(super) struct Tap(());

#[cfg(not(test))]
impl Tap {
    pub(super) fn writing(&self, _off: u64, _bytes: &[u8]) -> usize {
        0
    }
    pub(super) fn written(&self, _id: usize) {}
    pub(super) fn flushing(&self) -> usize {
        0
    }
    pub(super) fn flushed(&self, _at: usize) {}
    pub(super) fn planted(&self, _fault: Fault) -> bool {
        false
    }
}

#[cfg(test)]
pub(super) use tests::{Event, Tap};

#[cfg(test)]
mod tests {
    use super::Fault;
    use parking_lot::Mutex;

    /// In the order in which it happened.
    #[derive(Clone, Debug)]
    pub(in crate::disk) enum Event {
        /// A write has been submitted.
        Writing { off: u64, bytes: Vec<u8> },
        /// The write that is the event of this number has returned.
        Written(usize),
        /// A flush has begun.
        Flushing,
        /// The flush that is the event of this number has returned.
        Flushed(usize),
        /// A word is about to be stored.
        Storing { off: u64, value: u64 },
        /// It has been.
        Stored { off: u64, value: u64 },
        /// What was stored before the event of this number in the range is durable.
        Durable {
            since: usize,
            range: std::ops::Range<u64>,
        },
    }

    #[derive(Default)]
    pub(in crate::disk) struct Tap {
        events: Mutex<Vec<Event>>,
        fault: Option<Fault>,
    }

    impl Tap {
        pub(in crate::disk) fn planting(fault: Option<Fault>) -> Self {
            Self {
                fault,
                ..Self::default()
            }
        }

        pub(in crate::disk) fn note(&self, event: Event) -> usize {
            let mut events = self.events.lock();
            events.push(event);
            events.len() - 1
        }

        pub(in crate::disk) fn writing(&self, off: u64, bytes: &[u8]) -> usize {
            let bytes = bytes.into();
            self.note(Event::Writing { off, bytes })
        }

        pub(in crate::disk) fn written(&self, id: usize) {
            self.note(Event::Written(id));
        }

        pub(in crate::disk) fn flushing(&self) -> usize {
            self.note(Event::Flushing)
        }

        pub(in crate::disk) fn flushed(&self, at: usize) {
            self.note(Event::Flushed(at));
        }

        pub(in crate::disk) fn planted(&self, fault: Fault) -> bool {
            self.fault == Some(fault)
        }

        pub(in crate::disk) fn now(&self) -> usize {
            self.events.lock().len()
        }

        pub(in crate::disk) fn take(&self) -> Vec<Event> {
            std::mem::take(&mut self.events.lock())
        }
    }
}
