//! The intent table in DRAM: which entries are free, which inode has which.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use quayfs_layout::Ino;
use quayfs_layout::geometry::Geometry;
use quayfs_layout::intent::{Intent, IntentKind, PER_PAGE, SIZE};
use quayfs_layout::node::HEADER;
use quayfs_sync::Mutex;

use crate::error::{FsError, Result};
use crate::ns::node::NodeStore;
use crate::txn::Txn;

/// An entry's index over all pages of the table.
type Slot = u32;

#[derive(Default)]
struct State {
    /// Lowest entry that was never used.
    fresh: Slot,
    free: Vec<Slot>,
    by_inode: BTreeMap<(Ino, u64), Slot>,
}

/// See the module documentation.
pub struct Intents {
    base: u32,
    total: Slot,
    state: Mutex<State>,
    truncates: AtomicUsize,
}

impl Intents {
    /// Reads the table. Pages are used from the first one on, so reading stops at the first that
    /// does not exist.
    pub fn open(store: &NodeStore) -> Result<Self> {
        let g = store.geometry();
        let total = g.intent_pages as u32 * PER_PAGE as u32;
        let mut state = State::default();
        for page in 0..g.intent_pages as u32 {
            let Some(bytes) = store.home(g.intent_base as u32 + page)? else {
                break;
            };
            for i in 0..PER_PAGE {
                let slot = page * PER_PAGE as u32 + i as u32;
                let at = HEADER + i * SIZE;
                match Intent::decode(&bytes[at..at + SIZE]) {
                    Ok(Some(e)) => {
                        state.by_inode.insert((e.ino, e.kind as u64), slot);
                    }
                    Ok(None) => state.free.push(slot),
                    Err(e) => {
                        let what = format_args!("intent {slot}: {e}");
                        return Err(store.watch().damaged(what));
                    }
                }
            }
            state.fresh = (page + 1) * PER_PAGE as u32;
        }
        state.free.reverse();
        Ok(Self {
            base: g.intent_base as u32,
            total,
            truncates: AtomicUsize::new(count_truncates(&state)),
            state: Mutex::new(state),
        })
    }

    /// An empty table, for a read-only mount with a damaged one.
    pub fn empty(g: &Geometry) -> Self {
        Self {
            base: g.intent_base as u32,
            total: 0,
            state: Mutex::default(),
            truncates: AtomicUsize::new(0),
        }
    }

    /// What is left to be done, by inode.
    pub fn all(&self) -> Vec<(Ino, IntentKind)> {
        let kind = |k| {
            if k == IntentKind::Orphan as u64 {
                IntentKind::Orphan
            } else {
                IntentKind::Truncate
            }
        };
        self.state
            .lock()
            .by_inode
            .keys()
            .map(|&(ino, k)| (ino, kind(k)))
            .collect()
    }

    /// Whether `ino` has an intent of this kind.
    pub fn has(&self, ino: Ino, kind: IntentKind) -> bool {
        self.state.lock().by_inode.contains_key(&(ino, kind as u64))
    }

    /// Number of unfinished truncates.
    pub fn truncates(&self) -> usize {
        self.truncates.load(Ordering::Acquire)
    }

    /// Begins an intent within a transaction.
    ///
    /// # Errors
    /// [`FsError::NoSpace`] if the table is full.
    pub fn begin(&self, txn: &mut Txn<'_>, ino: Ino, kind: IntentKind) -> Result<BegunIntent<'_>> {
        let intent = Intent { ino, kind };
        let slot = self.take()?;
        self.write(txn, slot, Some(intent));
        Ok(BegunIntent {
            intents: self,
            intent,
            slot: Some(slot),
        })
    }

    /// Finishes an intent within a transaction, if there is one.
    pub fn finish(&self, txn: &mut Txn<'_>, ino: Ino, kind: IntentKind) -> Option<FinishedIntent> {
        let slot = self.find(ino, kind)?;
        self.write(txn, slot, None);
        Some(FinishedIntent { ino, kind })
    }

    /// As [`Intents::finish`], for all intents of an inode.
    pub fn finish_all(&self, txn: &mut Txn<'_>, ino: Ino) -> [Option<FinishedIntent>; 2] {
        let kinds = [IntentKind::Orphan, IntentKind::Truncate];
        kinds.map(|kind| self.finish(txn, ino, kind))
    }

    /// Takes an entry for a transaction that is about to begin an intent.
    fn take(&self) -> Result<Slot> {
        let mut s = self.state.lock();
        if let Some(slot) = s.free.pop() {
            return Ok(slot);
        }
        if s.fresh == self.total {
            return Err(FsError::NoSpace);
        }
        s.fresh += 1;
        Ok(s.fresh - 1)
    }

    /// Puts back an entry that no record has named.
    fn put_back(&self, slot: Slot) {
        self.state.lock().free.push(slot);
    }

    /// Writes an entry (or clears it) within a transaction.
    fn write(&self, txn: &mut Txn<'_>, slot: Slot, intent: Option<Intent>) {
        let id = self.base + slot / PER_PAGE as u32;
        let at = HEADER + (slot as usize % PER_PAGE) * SIZE;
        let bytes = intent.map_or([0; SIZE], |i| i.encode());
        txn.write_static(id, at, &bytes);
    }

    /// The entry of an inode's intent.
    fn find(&self, ino: Ino, kind: IntentKind) -> Option<Slot> {
        if kind == IntentKind::Truncate && self.truncates() == 0 {
            return None;
        }
        self.state.lock().by_inode.get(&(ino, kind as u64)).copied()
    }

    /// The record that begins the intent was appended.
    fn made(&self, slot: Slot, intent: Intent) {
        let mut s = self.state.lock();
        s.by_inode.insert((intent.ino, intent.kind as u64), slot);
        self.truncates.store(
            count_if(&s, intent.kind, self.truncates()),
            Ordering::Release,
        );
    }

    /// The record that finishes the intent was appended: the entry can be used again, because the next record that
    /// logs it comes after that one.
    pub(crate) fn kept(&self, FinishedIntent { ino, kind }: FinishedIntent) {
        let mut s = self.state.lock();
        if let Some(slot) = s.by_inode.remove(&(ino, kind as u64)) {
            s.free.push(slot);
            self.truncates
                .store(count_if(&s, kind, self.truncates()), Ordering::Release);
        }
    }
}

/// An intent that a record begins, with an entry that returns to the table unless that record is appended.
#[must_use]
pub struct BegunIntent<'i> {
    intents: &'i Intents,
    intent: Intent,
    slot: Option<Slot>,
}

impl BegunIntent<'_> {
    /// The record was appended.
    pub(crate) fn made(mut self) {
        if let Some(slot) = self.slot.take() {
            self.intents.made(slot, self.intent);
        }
    }
}

impl Drop for BegunIntent<'_> {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            self.intents.put_back(slot);
        }
    }
}

/// An intent that a record finishes.
#[must_use]
#[derive(Debug)]
pub struct FinishedIntent {
    ino: Ino,
    kind: IntentKind,
}

/// Number of truncates after a change of an entry of this kind.
fn count_if(s: &State, kind: IntentKind, before: usize) -> usize {
    if kind == IntentKind::Truncate {
        count_truncates(s)
    } else {
        before
    }
}

fn count_truncates(s: &State) -> usize {
    let truncate = IntentKind::Truncate as u64;
    s.by_inode
        .keys()
        .filter(|(_, kind)| *kind == truncate)
        .count()
}

/// First node id behind the intent table.
pub fn end(g: &Geometry) -> u64 {
    g.intent_base + g.intent_pages
}
