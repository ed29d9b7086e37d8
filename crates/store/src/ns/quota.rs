//! Quotas: what projects, users and groups have, and what they may have (see `layout::quota`).
//!
//! The counters in DRAM are those that limits are held against. What grows is added before the record is
//! appended, so that no two operations share the last block of a limit; what shrinks is taken away
//! afterwards. So a subject that has nothing here has nothing in any record to come, and its place in the
//! table can be another's.

mod count;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;

use quayfs_layout::config::ConfigTable;
use quayfs_layout::geometry::Geometry;
use quayfs_layout::quota::{
    Entry, GRACE, GRACE_BYTES, Grace, LIMITS_BYTES, Limits, OFF_GRACE, OFF_LIMITS, PER_PAGE, SIZE,
    Subject, Usage, offset,
};
use quayfs_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use quayfs_sync::thread::yield_now;
use quayfs_sync::{Mutex, RwLock};

use crate::error::{FsError, Result};
use crate::ns::node::NodeStore;
use crate::txn::Txn;
use count::Count;

/// Of one subject: what it has, and what it may have.
pub struct Tally {
    /// Whose it is.
    pub subject: Subject,
    /// Its place, over all pages of the table.
    slot: u32,
    blocks: Count,
    inodes: Count,
    /// The grace times that the table has, or will have by what is logged.
    logged: AtomicU64,
    /// There is a [`Logging`] of it.
    is_logging: AtomicBool,
}

impl Tally {
    fn new(slot: u32, e: &Entry) -> Self {
        let (has, limits, grace) = (&e.usage, &e.limits, &e.grace);
        let tally = Self {
            subject: e.subject,
            slot,
            blocks: Count::new(has.blocks, limits.blocks, limits.blocks_soft, grace.blocks),
            inodes: Count::new(has.inodes, limits.inodes, limits.inodes_soft, grace.inodes),
            logged: AtomicU64::new(packed(*grace)),
            is_logging: AtomicBool::new(false),
        };
        if !tally.is_first() {
            // They are logged when they begin, and when they end with the next record only.
            tally.blocks.relax();
            tally.inodes.relax();
        }
        tally
    }

    /// Number 0 of a kind: its soft limits are only shown, and its grace times are those of the kind.
    fn is_first(&self) -> bool {
        self.subject.id() == 0
    }

    /// What it has, with what operations under way may add.
    pub fn usage(&self) -> Usage {
        Usage {
            blocks: self.blocks.used(),
            inodes: self.inodes.used(),
        }
    }

    /// What it may have. While limits are being set, some may be seen before others.
    pub fn limits(&self) -> Limits {
        let ((blocks, blocks_soft), (inodes, inodes_soft)) =
            (self.blocks.limits(), self.inodes.limits());
        Limits {
            blocks_soft,
            blocks,
            inodes_soft,
            inodes,
        }
    }

    /// Until when it may exceed its soft limits, or those of its kind may theirs.
    pub fn grace(&self) -> Grace {
        Grace {
            blocks: self.blocks.until(),
            inodes: self.inodes.until(),
        }
    }

    /// The grace times that come with new limits. `wish`: in so many seconds they are over. `period`: so they are where
    /// it is not wished otherwise.
    pub fn grace_under(&self, limits: &Limits, wish: [Option<u32>; 2], period: Grace) -> Grace {
        let [blocks, inodes] = wish;
        if self.is_first() {
            return Grace {
                blocks: blocks.unwrap_or(self.blocks.until()),
                inodes: inodes.unwrap_or(self.inodes.until()),
            };
        }
        Grace {
            blocks: self
                .blocks
                .until_under(limits.blocks_soft, blocks, period.blocks),
            inodes: self
                .inodes
                .until_under(limits.inodes_soft, inodes, period.inodes),
        }
    }

    fn limit(&self, limits: Limits, grace: Grace) {
        self.blocks
            .limit(limits.blocks, limits.blocks_soft, grace.blocks);
        self.inodes
            .limit(limits.inodes, limits.inodes_soft, grace.inodes);
        self.logged.store(packed(grace), Ordering::Release);
        if !self.is_first() {
            // Something may have been taken away since the times were found out.
            self.blocks.relax();
            self.inodes.relax();
        }
    }

    /// Adds what an operation needs, all or nothing; whether the limits allow it, where they are to be
    /// `enforced`. `period`: for how long soft limits may be exceeded from now on.
    pub fn reserve(
        &self,
        blocks: i64,
        inodes: i64,
        enforced: bool,
        period: impl Fn() -> Grace,
    ) -> bool {
        let soft = !self.is_first();
        if !self
            .blocks
            .grow(blocks, enforced, soft.then_some(|| period().blocks))
        {
            return false;
        }
        if !self
            .inodes
            .grow(inodes, enforced, soft.then_some(|| period().inodes))
        {
            self.add(-blocks, 0);
            return false;
        }
        true
    }

    /// Adds what needs no permission, or takes it away.
    pub fn add(&self, blocks: i64, inodes: i64) {
        for (count, by) in [(&self.blocks, blocks), (&self.inodes, inodes)] {
            count.add(by);
            if by < 0 && !self.is_first() {
                count.relax();
            }
        }
    }

    /// The grace times that the table has when everything is digested.
    pub fn logged_grace(&self) -> Grace {
        let both = self.logged.load(Ordering::Acquire);
        Grace {
            blocks: (both >> 32) as u32,
            inodes: both as u32,
        }
    }

    fn is_idle(self: &Arc<Self>) -> bool {
        // An operation that is about to charge it holds it.
        Arc::strong_count(self) == 1 && self.is_blank()
    }

    /// Whether it has nothing and may have anything.
    fn is_blank(&self) -> bool {
        let nothing = self.usage() == Usage::default() && self.limits() == Limits::default();
        nothing && !(self.is_first() && self.grace() != Grace::default())
    }
}

fn packed(grace: Grace) -> u64 {
    u64::from(grace.blocks) << 32 | u64::from(grace.inodes)
}

/// The right to log grace times of a subject. There is one, so what the table gets last is what was logged last.
pub struct Logging {
    tally: Arc<Tally>,
    /// What is logged.
    pub(crate) grace: Grace,
}

impl Logging {
    /// The grace times, if no record has them yet, and no other operation is about to log some: then the next one that
    /// charges the subject does.
    pub(crate) fn begin(tally: &Arc<Tally>) -> Option<Self> {
        if tally.grace() == tally.logged_grace() {
            return None;
        }
        Self::claim(tally).filter(|logging| logging.grace != tally.logged_grace())
    }

    /// Waits for another operation that is about to log some.
    pub fn wait(tally: &Arc<Tally>) -> Self {
        loop {
            match Self::claim(tally) {
                Some(logging) => return logging,
                None => yield_now(),
            }
        }
    }

    fn claim(tally: &Arc<Tally>) -> Option<Self> {
        if tally.is_logging.swap(true, Ordering::AcqRel) {
            return None;
        }
        Some(Self {
            grace: tally.grace(),
            tally: Arc::clone(tally),
        })
    }

    /// The record was appended.
    pub(crate) fn appended(self) {
        self.tally
            .logged
            .store(packed(self.grace), Ordering::Release);
    }
}

impl Drop for Logging {
    fn drop(&mut self) {
        self.tally.is_logging.store(false, Ordering::Release);
    }
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
                if !e.is_possible() || taken {
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

    /// For how long soft limits of such a subject may be exceeded, in seconds.
    pub fn period(&self, subject: Subject) -> Grace {
        let first = self.get(subject.with_id(0));
        let set = first.map_or_else(Grace::default, |tally| tally.grace());
        let or_usual = |seconds| if seconds == 0 { GRACE } else { seconds };
        Grace {
            blocks: or_usual(set.blocks),
            inodes: or_usual(set.inodes),
        }
    }

    /// Logs limits; [`Outcome::limits`](crate::txn::Outcome::limits) shows them when that is appended.
    pub fn write_limits(&self, txn: &mut Txn<'_>, tally: &Tally, limits: &Limits, grace: &Grace) {
        let (id, slot) = self.place(tally);
        // The place may still say another subject, whose limits these must not become.
        txn.charge(tally, 0, 0);
        let mut bytes = [0; LIMITS_BYTES + GRACE_BYTES];
        bytes[..LIMITS_BYTES].copy_from_slice(&limits.encode());
        bytes[LIMITS_BYTES..].copy_from_slice(&grace.encode());
        txn.write_static(id, offset(usize::from(slot)) + OFF_LIMITS, &bytes);
    }

    /// Logs grace times alone, of a subject that has the place.
    pub(crate) fn write_grace(&self, txn: &mut Txn<'_>, tally: &Tally, grace: &Grace) {
        let (id, slot) = self.place(tally);
        let at = offset(usize::from(slot)) + OFF_GRACE;
        txn.write_static(id, at, &grace.encode());
    }

    /// The record with new limits was appended.
    pub(crate) fn limited(&self, tally: &Tally, limits: Limits, grace: Grace) {
        tally.limit(limits, grace);
    }
}

#[cfg(test)]
mod tests;
