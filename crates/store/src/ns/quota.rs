//! Quotas: what projects, users and groups have, and what they may have (see `layout::quota`).
//!
//! The counters in DRAM are those that limits are held against. What grows is added before the record is
//! appended, so that no two operations share the last block of a limit; what shrinks is taken away
//! afterwards. So a subject that has nothing here has nothing in any record to come, and its place in the
//! table can be another's.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;

use quayfs_layout::config::ConfigTable;
use quayfs_layout::geometry::Geometry;
use quayfs_layout::quota::{Entry, Limits, OFF_LIMITS, PER_PAGE, SIZE, Subject, Usage, offset};
use quayfs_sync::atomic::{AtomicI64, AtomicU64, Ordering};
use quayfs_sync::{Mutex, RwLock};

use crate::error::{FsError, Result};
use crate::ns::node::NodeStore;
use crate::txn::Txn;

/// Of one subject: what it has, and what it may have.
pub struct Tally {
    /// Whose it is.
    pub subject: Subject,
    /// Its place, over all pages of the table.
    slot: u32,
    blocks: AtomicI64,
    inodes: AtomicI64,
    /// Hard limits, which every operation that adds something looks at; 0 is none.
    blocks_max: AtomicU64,
    inodes_max: AtomicU64,
    /// Soft ones.
    soft: RwLock<(u64, u64)>,
}

impl Tally {
    fn new(slot: u32, e: &Entry) -> Self {
        Self {
            subject: e.subject,
            slot,
            blocks: AtomicI64::new(e.usage.blocks.cast_signed()),
            inodes: AtomicI64::new(e.usage.inodes.cast_signed()),
            blocks_max: AtomicU64::new(e.limits.blocks),
            inodes_max: AtomicU64::new(e.limits.inodes),
            soft: RwLock::new((e.limits.blocks_soft, e.limits.inodes_soft)),
        }
    }

    /// What it has, with what operations under way may add.
    pub fn usage(&self) -> Usage {
        let get = |n: &AtomicI64| n.load(Ordering::Acquire).max(0).cast_unsigned();
        Usage {
            blocks: get(&self.blocks),
            inodes: get(&self.inodes),
        }
    }

    /// What it may have. While limits are being set, some may be seen before others.
    pub fn limits(&self) -> Limits {
        let (blocks_soft, inodes_soft) = *self.soft.read();
        Limits {
            blocks_soft,
            blocks: self.blocks_max.load(Ordering::Acquire),
            inodes_soft,
            inodes: self.inodes_max.load(Ordering::Acquire),
        }
    }

    fn limit(&self, limits: Limits) {
        *self.soft.write() = (limits.blocks_soft, limits.inodes_soft);
        self.blocks_max.store(limits.blocks, Ordering::Release);
        self.inodes_max.store(limits.inodes, Ordering::Release);
    }

    /// Adds what an operation needs, all or nothing; whether the limits allow it, where they are to be
    /// `enforced`.
    pub fn reserve(&self, blocks: i64, inodes: i64, enforced: bool) -> bool {
        if !grow(&self.blocks, blocks, &self.blocks_max, enforced) {
            return false;
        }
        if !grow(&self.inodes, inodes, &self.inodes_max, enforced) {
            self.blocks.fetch_sub(blocks, Ordering::AcqRel);
            return false;
        }
        true
    }

    /// Adds what needs no permission, or takes it away.
    pub fn add(&self, blocks: i64, inodes: i64) {
        for (counter, by) in [(&self.blocks, blocks), (&self.inodes, inodes)] {
            if by != 0 {
                counter.fetch_add(by, Ordering::AcqRel);
            }
        }
    }

    fn is_idle(self: &Arc<Self>) -> bool {
        // An operation that is about to charge it holds it.
        Arc::strong_count(self) == 1 && self.is_blank()
    }

    /// Whether it has nothing and may have anything.
    fn is_blank(&self) -> bool {
        self.usage() == Usage::default() && self.limits() == Limits::default()
    }
}

/// Adds to a counter that is not to exceed `limit`. What does not grow is never refused.
fn grow(counter: &AtomicI64, by: i64, limit: &AtomicU64, enforced: bool) -> bool {
    if by == 0 {
        return true;
    }
    let limit = match limit.load(Ordering::Acquire) {
        0 => i64::MAX,
        _ if by < 0 || !enforced => i64::MAX,
        n => i64::try_from(n).unwrap_or(i64::MAX),
    };
    if limit == i64::MAX {
        counter.fetch_add(by, Ordering::AcqRel);
        return true;
    }
    counter
        .fetch_update(Ordering::AcqRel, Ordering::Relaxed, |n| {
            n.checked_add(by).filter(|sum| *sum <= limit)
        })
        .is_ok()
}

thread_local! {
    /// Whether limits of users and groups hold for what this thread does.
    static EXEMPT: Cell<bool> = const { Cell::new(false) };
}

/// Calls `f` for a caller for which limits of users and groups do not hold.
pub fn exempt<T>(f: impl FnOnce() -> T) -> T {
    struct Before(bool);
    impl Drop for Before {
        fn drop(&mut self) {
            EXEMPT.set(self.0);
        }
    }
    let _before = Before(EXEMPT.replace(true));
    f()
}

/// Whether this is called by what [`exempt`] calls.
pub fn is_exempt() -> bool {
    EXEMPT.get()
}

#[derive(Default)]
struct State {
    tallies: BTreeMap<Subject, Arc<Tally>>,
    /// Places that no subject has among those that had been used, the first one last.
    free: Vec<u32>,
    /// From here on none has been.
    fresh: u32,
}

/// Quotas of a volume.
pub struct Quotas {
    base: u32,
    total: u32,
    /// Whether users and groups are counted too.
    owners: bool,
    /// Whether limits hold.
    enforced: bool,
    state: RwLock<State>,
    /// One change of limits at a time.
    pub setting: Mutex<()>,
}

impl Quotas {
    /// Reads the table.
    pub fn open(store: &NodeStore, config: &ConfigTable) -> Result<Self> {
        let mut quotas = Self::empty(config);
        let state = quotas.state.get_mut();
        let mut free = Vec::new();
        for page in 0..store.geometry().quota_pages as u32 {
            let Some(bytes) = store.home(quotas.base + page)? else {
                continue;
            };
            let first = page * PER_PAGE as u32;
            free.extend(state.fresh..first);
            state.fresh = first + PER_PAGE as u32;
            for i in 0..PER_PAGE {
                let at = offset(i);
                let e = Entry::decode(&bytes[at..at + SIZE]);
                let slot = first + i as u32;
                if e.is_free() {
                    free.push(slot);
                    continue;
                }
                let tally = Arc::new(Tally::new(slot, &e));
                let taken = state.tallies.insert(e.subject, tally).is_some();
                if e.subject == Subject::default() || taken {
                    let what = format_args!(
                        "quota table: place {slot} is one of {} that it cannot have",
                        e.subject
                    );
                    return Err(store.watch().damaged(what));
                }
            }
        }
        free.reverse();
        state.free = free;
        Ok(quotas)
    }

    /// A table in which nothing is, for a volume without one or a read-only mount with a damaged one.
    pub fn empty(config: &ConfigTable) -> Self {
        let g: &Geometry = &config.geometry;
        Self {
            base: g.quota_base as u32,
            total: g.quota_pages as u32 * PER_PAGE as u32,
            owners: config.counts_owners(),
            enforced: true,
            state: RwLock::new(State::default()),
            setting: Mutex::new(()),
        }
    }

    /// The same, with limits that hold or do not.
    pub fn enforcing(self, enforced: bool) -> Self {
        Self { enforced, ..self }
    }

    /// Whether such subjects are counted.
    pub fn counts(&self, subject: Subject) -> bool {
        let kept = self.total > 0;
        match subject {
            Subject::Project(_) => kept,
            Subject::User(_) | Subject::Group(_) => kept && self.owners,
        }
    }

    /// Whether limits of such a subject hold for what this thread does.
    pub(crate) fn enforces(&self, subject: Subject) -> bool {
        self.enforced && (matches!(subject, Subject::Project(_)) || !is_exempt())
    }

    /// What is kept of a subject that has something, or may have only so much.
    pub fn get(&self, subject: Subject) -> Option<Arc<Tally>> {
        self.state.read().tallies.get(&subject).cloned()
    }

    /// Subjects of one kind, from this one on, at most `most`, which have something or may have only so much.
    pub fn list(&self, from: Subject, most: usize) -> Vec<Arc<Tally>> {
        let state = self.state.read();
        let of_kind = state.tallies.range(from..=from.with_id(u32::MAX));
        let all = of_kind.map(|(_, tally)| tally);
        all.filter(|t| !t.is_blank()).take(most).cloned().collect()
    }

    /// What is kept of a subject, which gets a place in the table if it has none.
    pub fn claim(&self, subject: Subject) -> Result<Arc<Tally>> {
        if let Some(tally) = self.get(subject) {
            return Ok(tally);
        }
        let mut state = self.state.write();
        if let Some(tally) = state.tallies.get(&subject) {
            return Ok(tally.clone());
        }
        let slot = match state.free.pop() {
            Some(slot) => slot,
            None if state.fresh < self.total => {
                state.fresh += 1;
                state.fresh - 1
            }
            None => {
                let idle = state.tallies.values().find(|t| t.is_idle());
                let (other, slot) = idle.map(|t| (t.subject, t.slot)).ok_or(FsError::NoSpace)?;
                state.tallies.remove(&other);
                slot
            }
        };
        let entry = Entry {
            subject,
            ..Entry::default()
        };
        let tally = Arc::new(Tally::new(slot, &entry));
        state.tallies.insert(subject, tally.clone());
        Ok(tally)
    }

    /// Where the entry of a subject is: node id and place in that page.
    pub fn place(&self, tally: &Tally) -> (u32, u16) {
        let per_page = PER_PAGE as u32;
        (
            self.base + tally.slot / per_page,
            (tally.slot % per_page) as u16,
        )
    }

    /// Logs limits; [`Outcome::limits`](crate::txn::Outcome::limits) shows them when that is appended.
    pub fn write_limits(&self, txn: &mut Txn<'_>, tally: &Tally, limits: &Limits) {
        let (id, slot) = self.place(tally);
        // The place may still say another subject, whose limits these must not become.
        txn.charge(tally, 0, 0);
        txn.write_static(id, offset(usize::from(slot)) + OFF_LIMITS, &limits.encode());
    }

    /// The record with new limits was appended.
    pub(crate) fn limited(&self, tally: &Tally, limits: Limits) {
        tally.limit(limits);
    }
}

#[cfg(test)]
mod tests;
