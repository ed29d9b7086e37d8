//! How many messages of which kind, counted without a shared cache line.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;

use crate::cpu_latency::CpuLatency;
use crate::wire::Opcode;

const KINDS: usize = crate::wire::OPCODES_END;

/// The messages that one thread read.
#[derive(Debug)]
pub(crate) struct Tally {
    kinds: CachePadded<[AtomicU64; KINDS]>,
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

    /// Messages of all kinds.
    pub fn total(&self) -> u64 {
        self.messages().iter().map(|(_, n)| n).sum()
    }
}
