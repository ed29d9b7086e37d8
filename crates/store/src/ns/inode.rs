//! Inodes in DRAM.
//!
//! A handle holds the locks of one inode, its newest published image, and how often the kernel has looked it
//! up. Cells whose last record is digested may be dropped at any time; what they counted is kept apart then,
//! so a million known files do not need a million handles.

use std::sync::Arc;

use quayfs_layout::Ino;
use quayfs_layout::flaw;
use quayfs_layout::inode::{self, Inode};
use quayfs_rangelock::{FileLock, Policy};
use quayfs_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use quayfs_sync::map::Entry;
use quayfs_sync::{DashMap, Mutex, RwLock};
use rustc_hash::FxBuildHasher;
use std::ops::Range;

use crate::error::{FsError, Result};
use crate::ns::extent::ExtentMap;
use crate::txn::PageSource;

/// About what a handle takes, with its place in the cache.
pub const HANDLE_BYTES: usize = size_of::<InodeHandle>() + 64;

/// One inode in DRAM. Locks are taken in the order of the fields; `fs::locks` is the only place
/// where two inodes are locked.
pub struct InodeHandle {
    /// Inode number.
    pub ino: Ino,
    /// Operation lock: exclusive for what changes names, links or attributes; shared for data.
    pub lock: RwLock<()>,
    /// Which bytes of the file are being read or written.
    pub range: FileLock,
    /// Commit mutex (ordering 5): extent changes, image, append. Only [`Edit`](crate::txn::Edit) takes it.
    pub(crate) commit: Mutex<()>,
    image: RwLock<Inode>,
    /// Extent map, loaded on first use.
    pub extents: RwLock<Option<ExtentMap>>,
    /// LBNs taken ahead for the next append.
    pub window: Mutex<Option<Range<u64>>>,
    seq: AtomicU64,
    /// Lookups that the kernel has not forgotten.
    lookups: AtomicU64,
    /// The kernel may know it from the last daemon.
    presumed: AtomicBool,
}

impl InodeHandle {
    fn new(ino: Ino, image: Inode, seq: u64, policy: Policy, lookups: u64) -> Self {
        Self {
            ino,
            lock: RwLock::new(()),
            range: FileLock::new(policy),
            commit: Mutex::new(()),
            image: RwLock::new(image),
            extents: RwLock::new(None),
            window: Mutex::new(None),
            seq: AtomicU64::new(seq),
            lookups: AtomicU64::new(lookups),
            presumed: AtomicBool::new(false),
        }
    }

    /// A copy of the newest published image.
    pub fn image(&self) -> Inode {
        self.image.read().clone()
    }

    /// Looks at the newest published image.
    pub fn with<T>(&self, f: impl FnOnce(&Inode) -> T) -> T {
        f(&self.image.read())
    }

    /// Publishes a new image after its record `seq` was appended.
    pub(crate) fn install(&self, image: &Inode, seq: u64) {
        self.image.write().clone_from(image);
        self.seq.fetch_max(seq, Ordering::AcqRel);
    }

    /// Sequence number of the last record about this inode.
    pub fn seq(&self) -> u64 {
        self.seq.load(Ordering::Acquire)
    }

    /// Raises the number of the last record about this inode.
    pub fn touch(&self, seq: u64) {
        self.seq.fetch_max(seq, Ordering::AcqRel);
    }

    /// The kernel has learnt about the inode once more. The caller keeps it from being freed until then: it has a
    /// name, or its operation lock is held.
    pub fn looked_up(&self) {
        self.lookups.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether the kernel knows the inode, or may know it.
    pub fn is_known(&self) -> bool {
        self.is_looked_up() || self.presumed.load(Ordering::Acquire)
    }

    /// Whether the kernel has learnt of the inode from this daemon, and has not forgotten it.
    fn is_looked_up(&self) -> bool {
        self.lookups.load(Ordering::Acquire) > 0
    }

    /// The kernel has forgotten `n` lookups; whether none is left.
    fn forget(&self, n: u64) -> bool {
        let less = |have: u64| Some(have.saturating_sub(n));
        let (set, fetch) = (Ordering::AcqRel, Ordering::Acquire);
        let had = self.lookups.fetch_update(set, fetch, less);
        had.is_ok_and(|had| had <= n)
    }
}

/// All inodes known in DRAM.
pub struct InodeCache {
    handles: DashMap<Ino, Arc<InodeHandle>, FxBuildHasher>,
    /// Lookups of inodes that are known and have no handle. Looked at and changed only by a thread that has exclusive
    /// access to the shard of `handles` that the inode belongs to.
    parked: DashMap<Ino, u64, FxBuildHasher>,
    /// The kernel knows inodes that it has learnt of from another daemon.
    presumes: bool,
    policy: Policy,
}

impl InodeCache {
    /// An empty cache of files that are locked as `policy` says.
    pub fn new(policy: Policy) -> Self {
        Self {
            handles: DashMap::with_hasher(FxBuildHasher),
            parked: DashMap::with_hasher(FxBuildHasher),
            presumes: false,
            policy,
        }
    }

    /// From now on every inode that is on the media counts as known to the kernel until the kernel denies it
    /// ([`InodeCache::denied`]): the last daemon of this mount had counted the lookups.
    pub fn presume(&mut self) {
        self.presumes = true;
    }

    /// Whether the kernel may know inodes from another daemon ([`InodeCache::presume`]).
    pub fn presumes(&self) -> bool {
        self.presumes
    }

    /// Whether the kernel may know the inode, but not from this daemon: then only the kernel can say.
    pub fn is_presumed(&self, ino: Ino) -> bool {
        self.is_known(ino) && !self.handles.get(&ino).is_some_and(|c| c.is_looked_up())
    }

    /// The kernel does not know this inode, which has no name any more. Its handle, which remembers that.
    pub fn denied(&self, src: &dyn PageSource, ino: Ino) -> Result<Arc<InodeHandle>> {
        let handle = self.get(src, ino)?;
        handle.presumed.store(false, Ordering::Release);
        Ok(handle)
    }

    /// The handle of a live inode; reads its image from the inode table if need be.
    pub fn get(&self, src: &dyn PageSource, ino: Ino) -> Result<Arc<InodeHandle>> {
        self.get_and(src, ino, |_| ()).map(|(handle, ())| handle)
    }

    /// [`InodeCache::get`], and what `f` finds in the newest published image.
    pub fn get_and<T>(
        &self,
        src: &dyn PageSource,
        ino: Ino,
        f: impl FnOnce(&Inode) -> T,
    ) -> Result<(Arc<InodeHandle>, T)> {
        let handle = match self.handles.get(&ino) {
            Some(c) => c.clone(),
            None => self.load(src, ino)?,
        };
        let found = handle.with(|i| (i.mode != 0).then(|| f(i)));
        found.map(|t| (handle, t)).ok_or(FsError::Stale)
    }

    fn load(&self, src: &dyn PageSource, ino: Ino) -> Result<Arc<InodeHandle>> {
        match self.handles.entry(ino) {
            Entry::Occupied(e) => Ok(e.get().clone()),
            Entry::Vacant(e) => {
                let image = read_image(src, ino)?.ok_or(FsError::Stale)?;
                let handle = Arc::new(InodeHandle::new(
                    ino,
                    image,
                    0,
                    self.policy,
                    self.unpark(ino),
                ));
                handle.presumed.store(self.presumes, Ordering::Relaxed);
                e.insert(handle.clone());
                Ok(handle)
            }
        }
    }

    /// Looks at the newest published image of an inode, if it is in DRAM. Those of inodes that are being changed are.
    pub fn published<T>(&self, ino: Ino, f: impl FnOnce(&Inode) -> T) -> Option<T> {
        self.handles.get(&ino).map(|c| c.with(f))
    }

    /// The lookups that are counted apart, for a handle that is about to be made.
    fn unpark(&self, ino: Ino) -> u64 {
        self.parked.remove(&ino).map_or(0, |(_, lookups)| lookups)
    }

    /// Adds the handle of a new inode whose record `seq` was appended.
    pub(crate) fn add(&self, ino: Ino, image: Inode, seq: u64) -> Arc<InodeHandle> {
        // The kernel may still have to say that it has forgotten an inode that had the number before.
        let new = |lookups| {
            let handle = InodeHandle::new(ino, image, seq, self.policy, lookups);
            handle.presumed.store(self.presumes, Ordering::Relaxed);
            Arc::new(handle)
        };
        match self.handles.entry(ino) {
            Entry::Occupied(mut e) => {
                let handle = new(e.get().lookups.load(Ordering::Acquire));
                e.insert(handle.clone());
                handle
            }
            Entry::Vacant(e) => {
                let handle = new(self.unpark(ino));
                e.insert(handle.clone());
                handle
            }
        }
    }

    /// The kernel has forgotten `n` lookups; whether none is left.
    pub fn forget(&self, ino: Ino, n: u64) -> bool {
        if let Some(handle) = self.handles.get(&ino) {
            return handle.forget(n);
        }
        match self.handles.entry(ino) {
            Entry::Occupied(e) => e.get().forget(n),
            Entry::Vacant(_) => {
                let left = self.unpark(ino).saturating_sub(n);
                if left > 0 {
                    self.parked.insert(ino, left);
                }
                left == 0
            }
        }
    }

    /// Whether the kernel knows the inode.
    pub fn is_known(&self, ino: Ino) -> bool {
        if let Some(handle) = self.handles.get(&ino) {
            return handle.is_known();
        }
        match self.handles.entry(ino) {
            Entry::Occupied(e) => e.get().is_known(),
            Entry::Vacant(_) => self.presumes || self.parked.contains_key(&ino),
        }
    }

    /// Number of handles.
    pub fn len(&self) -> usize {
        self.handles.len()
    }

    /// Whether no handle is in DRAM.
    pub fn is_empty(&self) -> bool {
        self.handles.is_empty()
    }

    /// Calls `f` for every handle.
    pub fn for_each(&self, mut f: impl FnMut(&Arc<InodeHandle>)) {
        for c in self.handles.iter() {
            f(c.value());
        }
    }

    /// Drops handles that are not in use and whose records are digested until about `keep` are left; returns the append
    /// windows they held.
    pub fn evict(&self, digested: u64, keep: usize) -> Vec<Range<u64>> {
        let mut surplus = self.handles.len().saturating_sub(keep);
        let mut windows = Vec::new();
        if surplus > 0 {
            self.handles.retain(|ino, c| {
                // Alone with the handle first, then its number: a thread that still held it could raise the number
                // between the two looks.
                let unused = surplus > 0 && Arc::get_mut(c).is_some();
                let drop = unused && c.seq() <= digested;
                if drop {
                    surplus -= 1;
                    windows.extend(c.window.lock().take());
                    let lookups = c.lookups.load(Ordering::Acquire);
                    if lookups > 0 {
                        self.parked.insert(*ino, lookups);
                    }
                }
                !drop
            });
        }
        windows
    }
}

/// Reads an inode's image from its home; `None` if the inode is free.
pub fn read_image(src: &dyn PageSource, ino: Ino) -> Result<Option<Inode>> {
    let g = src.store().geometry();
    if ino == 0 || ino >= g.inodes() {
        return Ok(None);
    }
    let (id, slot) = g.inode_place(ino);
    let Some(page) = src.home(id)? else {
        return Ok(None);
    };
    let at = inode::offset(slot);
    let bytes = &page[at..at + inode::SIZE];
    flaw::image(ino, bytes).map_err(|flaw| src.damaged(&flaw))?;
    let image = Inode::decode(bytes);
    Ok((image.mode != 0).then_some(image))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_is_used_again_keeps_what_the_kernel_will_forget() {
        let inodes = InodeCache::new(Policy::default());
        inodes.add(77, Inode::default(), 1).looked_up();
        assert!(inodes.add(77, Inode::default(), 2).is_known());
        inodes.evict(2, 0);
        assert!(inodes.add(77, Inode::default(), 3).is_known());
        assert!(inodes.forget(77, 1));
    }
}
