//! Going through a run again, keeping account of what is settled.

use crate::event::{Event, Kind};
use crate::medium::{Content, Rules};
use crate::recorder::Base;
use quayfs_pmem::{Backend, LINE, lines};
use rustc_hash::FxHashMap;
use std::ops::Range;
use std::sync::Arc;
use std::thread::ThreadId;

/// The state of both media after some number of events.
pub(crate) struct Cursor {
    backend: Backend,
    /// Events gone through.
    pub(crate) at: usize,
    pub(crate) pmem: Content,
    pub(crate) device: Content,
    threads: FxHashMap<ThreadId, Thread>,
    /// The number of the last death: what was stored before it has left the write buffers of processors.
    death: usize,
    pub(crate) acked: Arc<Vec<u64>>,
}

/// What the next fence, or drain of what is settled, of a thread settles.
#[derive(Default)]
struct Thread {
    /// Lines with the number of the event that flushed them: everything before is covered.
    flushed: Vec<(u64, usize)>,
    /// Lines with the number of the event that stored to them non-temporally.
    stored: Vec<(u64, usize)>,
    /// On a disk: what it has written, and the number of the event that says so.
    written: Option<(Arc<[Range<u64>]>, usize)>,
}

impl Cursor {
    pub(crate) fn new(base: &Base, backend: Backend) -> Self {
        let rules = if backend.needs_drain() {
            Rules::FILE
        } else {
            Rules::MEMORY
        };
        Self {
            backend,
            at: 0,
            pmem: Content::new(base.pmem.clone(), rules),
            device: Content::new(base.device.clone(), Rules::DEVICE),
            threads: FxHashMap::default(),
            death: 0,
            acked: Arc::default(),
        }
    }

    /// Goes through the next event.
    pub(crate) fn advance(&mut self, event: &Event) {
        let number = self.at;
        self.at += 1;
        let memory = !self.backend.needs_drain();
        match &event.kind {
            Kind::Store { off, bytes, nt } => {
                let touched = self.pmem.store(number, *off, bytes, *nt);
                if *nt && memory {
                    let thread = self.threads.entry(event.thread).or_default();
                    thread
                        .stored
                        .extend(touched.into_iter().map(|line| (line, number)));
                }
            }
            Kind::Flush { off, len } if memory => {
                let thread = self.threads.entry(event.thread).or_default();
                let dirty = lines(*off, *len)
                    .map(|line| line / LINE)
                    .filter(|line| self.pmem.pending.contains_key(line));
                thread.flushed.extend(dirty.map(|line| (line, number)));
            }
            Kind::Fence | Kind::Drain if memory => self.fence(event.thread),
            Kind::Drain => self.pmem.settle_all(),
            Kind::Settle(ranges) => {
                let thread = self.threads.entry(event.thread).or_default();
                thread.written = Some((Arc::clone(ranges), number));
            }
            Kind::DrainSettled => {
                let thread = self.threads.entry(event.thread).or_default();
                let Some((ranges, before)) = thread.written.take() else {
                    return;
                };
                for range in ranges.iter() {
                    self.pmem.settle_range(range.clone(), before);
                }
            }
            Kind::Flush { .. } | Kind::Fence => {}
            Kind::DeviceWrite { off, bytes, .. } => {
                self.device.store(number, *off, bytes, false);
            }
            Kind::DeviceFlush => self.device.settle_all(),
            Kind::Mark(value) => Arc::make_mut(&mut self.acked).push(*value),
            Kind::Death => {
                self.death = number;
                self.threads.clear();
            }
        }
    }

    /// Pieces in flight on both media.
    pub(crate) fn in_flight(&self) -> usize {
        let of = |content: &Content| -> usize {
            let pieces = content.pending.values().flatten();
            pieces.filter(|piece| !piece.settled).count()
        };
        of(&self.pmem) + of(&self.device)
    }

    fn fence(&mut self, thread: ThreadId) {
        let Some(thread) = self.threads.get_mut(&thread) else {
            return;
        };
        let death = self.death;
        for (line, flush) in thread.flushed.drain(..) {
            // Non-temporal stores of other threads are not in the cache, and those of this one follow. Those of the
            // dead have arrived where a flush covers them.
            self.pmem.make_durable(line, |piece| {
                piece.event < flush && (!piece.loose || piece.event < death)
            });
        }
        for (line, store) in thread.stored.drain(..) {
            self.pmem.make_durable(line, |piece| piece.event == store);
        }
    }
}
