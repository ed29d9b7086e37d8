//! How many messages of which kind, counted without a shared cache line.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crossbeam_utils::CachePadded;

use crate::cpu_latency::CpuLatency;
use crate::latency::{Began, Counted, Latencies, Tasks};
use crate::wire::{InHeader, Opcode};

const KINDS: usize = crate::wire::OPCODES_END;

/// The messages that one thread read.
#[derive(Debug)]
pub(crate) struct Tally {
    kinds: CachePadded<[AtomicU64; KINDS]>,
    latencies: CachePadded<[Counted; KINDS]>,
    tasks: Tasks,
    awake: Arc<CpuLatency>,
}

impl Tally {
    /// Counts a message. Only the owner calls it, so that no read-modify-write is needed.
    pub(crate) fn count(&self, opcode: u32) {
        if let Some(n) = self.kinds.get(opcode as usize) {
            n.store(n.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
        self.awake.notice();
    }

    /// Counts a message, and begins to time it. Only the owner calls it.
    pub(crate) fn begin(&self, header: &InHeader) -> Began {
        self.count(header.opcode);
        self.tasks.count(header.pid);
        Began {
            opcode: header.opcode,
            at: Instant::now(),
        }
    }

    /// A message has been answered.
    pub(crate) fn took(&self, began: Began) {
        if let Some(counted) = self.latencies.get(began.opcode as usize) {
            counted.took(began.at.elapsed());
        }
    }
}

/// The messages of a connection.
#[derive(Debug, Default)]
pub struct Stats {
    tallies: Mutex<Vec<Arc<Tally>>>,
    transport: Mutex<Option<&'static str>>,
    /// What is told when requests come.
    pub(crate) awake: Arc<CpuLatency>,
}

impl Stats {
    pub(crate) fn tally(&self) -> Arc<Tally> {
        let tally = Arc::new(Tally {
            kinds: CachePadded::new(std::array::from_fn(|_| AtomicU64::new(0))),
            latencies: CachePadded::new(std::array::from_fn(|_| Counted::new())),
            tasks: Tasks::new(),
            awake: Arc::clone(&self.awake),
        });
        self.lock().push(Arc::clone(&tally));
        tally
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Arc<Tally>>> {
        // No code panics while it holds this lock.
        self.tallies
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    pub(crate) fn set_transport(&self, name: &'static str) {
        *self
            .transport
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner) = Some(name);
    }

    /// `dev` or `uring`, once that is known.
    pub fn transport(&self) -> Option<&'static str> {
        *self
            .transport
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Messages of each kind that came at all, since the start.
    pub fn messages(&self) -> Vec<(Opcode, u64)> {
        let tallies = self.lock();
        Opcode::ALL
            .iter()
            .map(|op| {
                let sum = tallies
                    .iter()
                    .map(|t| t.kinds[*op as usize].load(Ordering::Relaxed))
                    .sum();
                (*op, sum)
            })
            .filter(|(_, n)| *n > 0)
            .collect()
    }

    /// How long requests of each kind took that were answered, from being read to the answer.
    pub fn latencies(&self) -> Vec<(Opcode, Latencies)> {
        let tallies = self.lock();
        let of = |op: &Opcode| {
            let mut sum = Latencies::default();
            tallies
                .iter()
                .for_each(|t| sum.add(&t.latencies[*op as usize]));
            (*op, sum)
        };
        let all = Opcode::ALL.iter().map(of);
        all.filter(|(_, sum)| sum.classes.iter().any(|n| *n > 0))
            .collect()
    }

    /// The tasks that make the most requests, by their numbers where the mount was made, and about how many.
    pub fn tasks(&self) -> BTreeMap<u32, u64> {
        let mut sum = BTreeMap::new();
        for (task, n) in self.lock().iter().flat_map(|t| t.tasks.all()) {
            *sum.entry(task).or_default() += n;
        }
        sum
    }

    /// Messages of all kinds.
    pub fn total(&self) -> u64 {
        self.messages().iter().map(|(_, n)| n).sum()
    }
}
