//! Projects: what each has, and what it may have (see `layout::quota`).
//!
//! The counters in DRAM are those that limits are held against. What grows is added before the record is
//! appended, so that no two operations share the last block of a limit; what shrinks is taken away
//! afterwards. So a project that has nothing here has nothing in any record to come, and its place in the
//! table can be another's.

use std::collections::BTreeMap;
use std::sync::Arc;

use quayfs_layout::geometry::Geometry;
use quayfs_layout::quota::{Entry, Limits, OFF_LIMITS, PER_PAGE, SIZE, Usage, offset};
use quayfs_sync::atomic::{AtomicI64, Ordering};
use quayfs_sync::{Mutex, RwLock};

use crate::error::{FsError, Result};
use crate::ns::node::NodeStore;
use crate::txn::Txn;

/// One project.
pub struct Project {
    /// Its number.
    pub id: u32,
    /// Its place, over all pages of the table.
    slot: u32,
    blocks: AtomicI64,
    inodes: AtomicI64,
    limits: RwLock<Limits>,
}

impl Project {
    fn new(slot: u32, e: &Entry) -> Self {
        Self {
            id: e.project,
            slot,
            blocks: AtomicI64::new(e.usage.blocks.cast_signed()),
            inodes: AtomicI64::new(e.usage.inodes.cast_signed()),
            limits: RwLock::new(e.limits),
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

    /// What it may have.
    pub fn limits(&self) -> Limits {
        *self.limits.read()
    }

    /// Adds what an operation needs, all or nothing; whether the limits allow it, where they are to be
    /// `enforced`.
    pub fn reserve(&self, blocks: i64, inodes: i64, enforced: bool) -> bool {
        let limits = self.limits();
        let of = |limit: u64| match limit {
            0 => i64::MAX,
            _ if !enforced => i64::MAX,
            n => i64::try_from(n).unwrap_or(i64::MAX),
        };
        if !grow(&self.blocks, blocks, of(limits.blocks)) {
            return false;
        }
        if !grow(&self.inodes, inodes, of(limits.inodes)) {
            self.blocks.fetch_sub(blocks, Ordering::AcqRel);
            return false;
        }
        true
    }

    /// Adds what needs no permission, or takes it away.
    pub fn add(&self, blocks: i64, inodes: i64) {
        self.blocks.fetch_add(blocks, Ordering::AcqRel);
        self.inodes.fetch_add(inodes, Ordering::AcqRel);
    }

    fn is_idle(self: &Arc<Self>) -> bool {
        // An operation that is about to charge it holds it.
        Arc::strong_count(self) == 1
            && self.usage() == Usage::default()
            && self.limits() == Limits::default()
    }
}

/// Adds to a counter that is not to exceed `limit`. What does not grow is never refused.
fn grow(counter: &AtomicI64, by: i64, limit: i64) -> bool {
    by <= 0 && {
        counter.fetch_add(by, Ordering::AcqRel);
        true
    } || counter
        .fetch_update(Ordering::AcqRel, Ordering::Relaxed, |n| {
            n.checked_add(by).filter(|sum| *sum <= limit)
        })
        .is_ok()
}

#[derive(Default)]
struct State {
    projects: BTreeMap<u32, Arc<Project>>,
    /// Places that no project has, the first one last.
    free: Vec<u32>,
}

/// All projects of a volume.
pub struct Quotas {
    base: u32,
    total: u32,
    state: RwLock<State>,
    /// One change of limits at a time.
    pub setting: Mutex<()>,
}

impl Quotas {
    /// Reads the table.
    pub fn open(store: &NodeStore) -> Result<Self> {
        let g = store.geometry();
        let mut quotas = Self::empty(g);
        let state = quotas.state.get_mut();
        for page in 0..g.quota_pages as u32 {
            let Some(bytes) = store.home(quotas.base + page)? else {
                continue;
            };
            for i in 0..PER_PAGE {
                let at = offset(i);
                let e = Entry::decode(&bytes[at..at + SIZE]);
                let slot = page * PER_PAGE as u32 + i as u32;
                if e.is_free() {
                    continue;
                }
                let project = Arc::new(Project::new(slot, &e));
                if e.project == 0 || state.projects.insert(e.project, project).is_some() {
                    let what = format_args!(
                        "quota table: place {slot} is one of project {} that it cannot have",
                        e.project
                    );
                    return Err(store.watch().damaged(what));
                }
            }
        }
        let taken: Vec<u32> = state.projects.values().map(|p| p.slot).collect();
        state.free.retain(|slot| !taken.contains(slot));
        Ok(quotas)
    }

    /// A table in which nothing is, for a volume without one or a read-only mount with a damaged one.
    pub fn empty(g: &Geometry) -> Self {
        let total = g.quota_pages as u32 * PER_PAGE as u32;
        Self {
            base: g.quota_base as u32,
            total,
            state: RwLock::new(State {
                projects: BTreeMap::new(),
                free: (0..total).rev().collect(),
            }),
            setting: Mutex::new(()),
        }
    }

    /// Whether the volume has a table.
    pub fn is_kept(&self) -> bool {
        self.total > 0
    }

    /// A project that has something, or may have only so much.
    pub fn get(&self, id: u32) -> Option<Arc<Project>> {
        self.state.read().projects.get(&id).cloned()
    }

    /// Projects from number `from` on.
    pub fn list(&self, from: u32) -> Vec<Arc<Project>> {
        let state = self.state.read();
        state
            .projects
            .range(from..)
            .map(|(_, p)| p.clone())
            .collect()
    }

    /// A project, which gets a place in the table if it has none.
    pub fn claim(&self, id: u32) -> Result<Arc<Project>> {
        if let Some(p) = self.get(id) {
            return Ok(p);
        }
        let mut state = self.state.write();
        if let Some(p) = state.projects.get(&id) {
            return Ok(p.clone());
        }
        let slot = match state.free.pop() {
            Some(slot) => slot,
            None => {
                let idle = state.projects.values().find(|p| p.is_idle());
                let (id, slot) = idle.map(|p| (p.id, p.slot)).ok_or(FsError::NoSpace)?;
                state.projects.remove(&id);
                slot
            }
        };
        let entry = Entry {
            project: id,
            ..Entry::default()
        };
        let project = Arc::new(Project::new(slot, &entry));
        state.projects.insert(id, project.clone());
        Ok(project)
    }

    /// Where the entry of a project is: node id and place in that page.
    pub fn place(&self, project: &Project) -> (u32, u16) {
        let per_page = PER_PAGE as u32;
        (
            self.base + project.slot / per_page,
            (project.slot % per_page) as u16,
        )
    }

    /// Logs limits; [`Outcome::limits`](crate::txn::Outcome::limits) shows them when that is appended.
    pub fn write_limits(&self, txn: &mut Txn<'_>, project: &Project, limits: &Limits) {
        let (id, slot) = self.place(project);
        // The place may still say another project, whose limits these must not become.
        txn.charge(project, 0, 0);
        txn.write_static(id, offset(usize::from(slot)) + OFF_LIMITS, &limits.encode());
    }

    /// The record with new limits was appended.
    pub(crate) fn limited(&self, project: &Project, limits: Limits) {
        *project.limits.write() = limits;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quotas() -> Quotas {
        Quotas::empty(&Geometry {
            quota_base: 9,
            quota_pages: 1,
            ..Geometry::default()
        })
    }

    #[test]
    fn limits_hold_for_what_grows() {
        let q = quotas();
        let p = q.claim(7).unwrap();
        q.limited(
            &p,
            Limits {
                blocks: 10,
                inodes: 2,
                ..Limits::default()
            },
        );
        assert!(p.reserve(10, 1, true));
        assert!(!p.reserve(1, 0, true) && !p.reserve(0, 2, true));
        assert!(p.reserve(0, 0, true) && p.reserve(1, 1, false));
        // One that does not fit takes nothing of the other.
        assert!(!p.reserve(-5, 1, true));
        let usage = Usage {
            blocks: 11,
            inodes: 2,
        };
        assert_eq!(p.usage(), usage);
        p.add(-11, -2);
        assert_eq!(p.usage(), Usage::default());
    }

    #[test]
    fn places_are_used_again_when_nothing_is_left() {
        let q = quotas();
        for id in 1..=PER_PAGE as u32 {
            let p = q.claim(id).unwrap();
            assert!(p.reserve(1, 1, true));
        }
        assert_eq!(q.claim(1000).err(), Some(FsError::NoSpace));
        let three = q.claim(3).unwrap();
        let place = q.place(&three);
        three.add(-1, -1);
        // Project 3 is about to be used again.
        assert_eq!(q.claim(1000).err(), Some(FsError::NoSpace));
        drop(three);
        let other = q.claim(1000).unwrap();
        assert_eq!(q.place(&other), place);
        assert_eq!(q.get(3).map(|p| p.id), None);
    }
}
