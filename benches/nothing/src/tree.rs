//! A tree in memory, with as little behind each operation as one that answers correctly can have.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use dashmap::DashMap;
use parking_lot::{Mutex, RwLock};
use quayfs_fuse::wire::{AttrOf, ROOT};
use rustc_hash::{FxBuildHasher, FxHashMap};

use crate::pool::{PAGE, Page, Pool};

/// Names of a directory. Cookies only grow, so that a listing survives changes.
#[derive(Debug, Default)]
pub struct Names {
    /// Inode and cookie of each name.
    pub by_name: FxHashMap<Box<[u8]>, (u64, u64)>,
    /// Name and inode at each cookie.
    pub by_cookie: BTreeMap<u64, (Box<[u8]>, u64)>,
    next: u64,
}

impl Names {
    /// First cookie of a name; smaller ones are `.` and `..`.
    const FIRST: u64 = 3;

    /// The inode that has this name.
    pub fn get(&self, name: &[u8]) -> Option<u64> {
        self.by_name.get(name).map(|(ino, _)| *ino)
    }

    /// Gives an inode a name.
    pub fn insert(&mut self, name: &[u8], ino: u64) {
        let cookie = self.next.max(Self::FIRST);
        self.next = cookie + 1;
        self.by_name.insert(name.into(), (ino, cookie));
        self.by_cookie.insert(cookie, (name.into(), ino));
    }

    /// Takes a name away, and says which inode had it.
    pub fn remove(&mut self, name: &[u8]) -> Option<u64> {
        let (ino, cookie) = self.by_name.remove(name)?;
        self.by_cookie.remove(&cookie);
        Some(ino)
    }
}

/// An inode.
#[derive(Debug)]
pub struct Node {
    /// As the kernel gets them.
    pub attr: Mutex<AttrOf>,
    /// Of a directory.
    pub names: RwLock<Names>,
    /// Content; what is not there is zeros.
    pub pages: RwLock<Vec<Option<Page>>>,
    /// Of a symbolic link.
    pub target: Box<[u8]>,
    /// Extended attributes.
    pub xattrs: Mutex<BTreeMap<Vec<u8>, Vec<u8>>>,
    lookups: AtomicU64,
}

/// Seconds and nanoseconds since 1970.
pub fn now() -> (u64, u32) {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    (since.as_secs(), since.subsec_nanos())
}

/// Notes a change of content and, with it, of the inode.
pub fn touch(attr: &mut AttrOf) {
    let (sec, nsec) = now();
    (attr.mtime, attr.mtimensec) = (sec, nsec);
    (attr.ctime, attr.ctimensec) = (sec, nsec);
}

impl Node {
    fn new(ino: u64, mode: u32, uid: u32, gid: u32, rdev: u32, target: &[u8]) -> Self {
        let mut attr = AttrOf {
            ino,
            mode,
            uid,
            gid,
            rdev,
            nlink: 1 + u32::from(mode & libc::S_IFMT == libc::S_IFDIR),
            size: target.len() as u64,
            blksize: PAGE as u32,
            ..AttrOf::default()
        };
        touch(&mut attr);
        (attr.atime, attr.atimensec) = (attr.mtime, attr.mtimensec);
        Self {
            attr: Mutex::new(attr),
            names: RwLock::default(),
            pages: RwLock::default(),
            target: target.into(),
            xattrs: Mutex::default(),
            lookups: AtomicU64::new(0),
        }
    }

    /// Attributes now.
    pub fn attr(&self) -> AttrOf {
        *self.attr.lock()
    }

    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.attr.lock().mode & libc::S_IFMT == libc::S_IFDIR
    }
}

/// All of it.
#[derive(Debug)]
pub struct Tree {
    nodes: DashMap<u64, Arc<Node>, FxBuildHasher>,
    next: AtomicU64,
    /// Memory for content.
    pub pool: Pool,
}

impl Tree {
    /// A root directory and memory for files.
    pub fn new(bytes: usize) -> Self {
        let tree = Self {
            nodes: DashMap::default(),
            next: AtomicU64::new(ROOT + 1),
            pool: Pool::with(bytes),
        };
        let root = Node::new(ROOT, libc::S_IFDIR | 0o755, 0, 0, 0, b"");
        tree.nodes.insert(ROOT, Arc::new(root));
        tree
    }

    /// An inode.
    pub fn node(&self, ino: u64) -> Option<Arc<Node>> {
        self.nodes.get(&ino).map(|n| Arc::clone(&n))
    }

    /// A new inode, which the caller has looked up.
    pub fn make(&self, mode: u32, (uid, gid): (u32, u32), rdev: u32, target: &[u8]) -> Arc<Node> {
        let ino = self.next.fetch_add(1, Ordering::Relaxed);
        let node = Arc::new(Node::new(ino, mode, uid, gid, rdev, target));
        node.lookups.store(1, Ordering::Relaxed);
        self.nodes.insert(ino, Arc::clone(&node));
        node
    }

    fn known(&self, ino: u64) -> Result<Arc<Node>, i32> {
        self.node(ino).ok_or(libc::ESTALE)
    }

    /// What has this name in a directory, which the kernel knows from now on.
    ///
    /// # Errors
    /// `ESTALE`.
    pub fn lookup(&self, parent: u64, name: &[u8]) -> Result<Option<AttrOf>, i32> {
        let found = self.known(parent)?.names.read().get(name);
        Ok(found.and_then(|ino| self.node(ino)).map(|node| {
            self.looked_up(&node);
            node.attr()
        }))
    }

    /// Makes an inode with a name, which the kernel knows from now on.
    ///
    /// # Errors
    /// `EEXIST`, `ESTALE`.
    pub fn create(
        &self,
        parent: u64,
        name: &[u8],
        mode: u32,
        ids: (u32, u32),
        rdev: u32,
        target: &[u8],
    ) -> Result<AttrOf, i32> {
        let parent = self.known(parent)?;
        let mut names = parent.names.write();
        if names.get(name).is_some() {
            return Err(libc::EEXIST);
        }
        let attr = self.make(mode, ids, rdev, target).attr();
        names.insert(name, attr.ino);
        let mut above = parent.attr.lock();
        above.nlink += u32::from(mode & libc::S_IFMT == libc::S_IFDIR);
        touch(&mut above);
        Ok(attr)
    }

    /// Takes a name away, of a file or a directory.
    ///
    /// # Errors
    /// `ENOENT`, `ESTALE`.
    pub fn remove(&self, parent: u64, name: &[u8]) -> Result<(), i32> {
        let parent = self.known(parent)?;
        let ino = parent.names.write().remove(name).ok_or(libc::ENOENT)?;
        let node = self.known(ino)?;
        {
            let mut above = parent.attr.lock();
            above.nlink -= u32::from(node.is_dir());
            touch(&mut above);
        }
        self.unlinked(&node);
        Ok(())
    }

    /// Gives something another name, which it takes away from whatever has it.
    ///
    /// Two locks one after the other: a lookup in between misses the name, but no measurement does such a lookup.
    ///
    /// # Errors
    /// `ENOENT`, `ESTALE`.
    pub fn rename(&self, parent: u64, name: &[u8], to: u64, new: &[u8]) -> Result<(), i32> {
        let (from, into) = (self.known(parent)?, self.known(to)?);
        let ino = from.names.write().remove(name).ok_or(libc::ENOENT)?;
        let replaced = {
            let mut names = into.names.write();
            let replaced = names.remove(new);
            names.insert(new, ino);
            replaced
        };
        touch(&mut from.attr.lock());
        touch(&mut into.attr.lock());
        if let Some(node) = replaced.and_then(|ino| self.node(ino)) {
            self.unlinked(&node);
        }
        Ok(())
    }

    /// Gives a file one more name.
    ///
    /// # Errors
    /// `ESTALE`.
    pub fn link(&self, ino: u64, parent: u64, name: &[u8]) -> Result<AttrOf, i32> {
        let (node, parent) = (self.known(ino)?, self.known(parent)?);
        parent.names.write().insert(name, ino);
        node.attr.lock().nlink += 1;
        self.looked_up(&node);
        Ok(node.attr())
    }

    /// The kernel has learnt about an inode once more.
    pub fn looked_up(&self, node: &Node) {
        node.lookups.fetch_add(1, Ordering::Relaxed);
    }

    /// The kernel has forgotten `n` lookups.
    pub fn forget(&self, ino: u64, n: u64) {
        let Some(node) = self.node(ino) else { return };
        if node.lookups.fetch_sub(n, Ordering::AcqRel) == n {
            self.drop_if_unused(ino, &node);
        }
    }

    /// Takes a link away; what has none and is not known to the kernel goes.
    pub fn unlinked(&self, node: &Node) {
        let (ino, left) = {
            let mut attr = node.attr.lock();
            let down = if attr.mode & libc::S_IFMT == libc::S_IFDIR {
                2
            } else {
                1
            };
            attr.nlink = attr.nlink.saturating_sub(down);
            let (sec, nsec) = now();
            (attr.ctime, attr.ctimensec) = (sec, nsec);
            (attr.ino, attr.nlink)
        };
        if left == 0 {
            self.drop_if_unused(ino, node);
        }
    }

    fn drop_if_unused(&self, ino: u64, node: &Node) {
        let unused = node.attr.lock().nlink == 0 && node.lookups.load(Ordering::Acquire) == 0;
        if unused && self.nodes.remove(&ino).is_some() {
            self.resize(node, 0);
        }
    }

    /// Copies content out; what is not there is zeros.
    pub fn read(&self, node: &Node, offset: u64, out: &mut [u8]) -> usize {
        let size = node.attr.lock().size;
        let end = size.min(offset.saturating_add(out.len() as u64));
        let len = end.saturating_sub(offset) as usize;
        let pages = node.pages.read();
        let mut at = 0;
        while at < len {
            let pos = offset as usize + at;
            let (page, within) = (pos / PAGE, pos % PAGE);
            let n = (PAGE - within).min(len - at);
            match pages.get(page) {
                Some(Some(page)) => out[at..at + n].copy_from_slice(&page[within..within + n]),
                _ => out[at..at + n].fill(0),
            }
            at += n;
        }
        len
    }

    /// Copies content in.
    pub fn write(&self, node: &Node, offset: u64, data: &[u8]) {
        let end = offset as usize + data.len();
        let mut fresh = 0;
        {
            let mut pages = node.pages.write();
            if pages.len() < end.div_ceil(PAGE) {
                pages.resize_with(end.div_ceil(PAGE), || None);
            }
            let mut at = 0;
            while at < data.len() {
                let pos = offset as usize + at;
                let within = pos % PAGE;
                let n = (PAGE - within).min(data.len() - at);
                let page = pages[pos / PAGE].get_or_insert_with(|| {
                    fresh += 1;
                    if n == PAGE {
                        self.pool.any()
                    } else {
                        self.pool.zeroed()
                    }
                });
                page[within..within + n].copy_from_slice(&data[at..at + n]);
                at += n;
            }
        }
        let mut attr = node.attr.lock();
        attr.size = attr.size.max(end as u64);
        attr.blocks += fresh * 8;
        touch(&mut attr);
    }

    /// Cuts content off, or lets zeros follow it.
    pub fn resize(&self, node: &Node, size: u64) {
        let mut pages = node.pages.write();
        let keep = (size as usize).div_ceil(PAGE);
        let mut gone = 0;
        while pages.len() > keep {
            if let Some(Some(page)) = pages.pop() {
                gone += 1;
                self.pool.put(page);
            }
        }
        if let Some(Some(last)) = pages.get_mut(size as usize / PAGE) {
            last[size as usize % PAGE..].fill(0);
        }
        let mut attr = node.attr.lock();
        attr.size = size;
        attr.blocks -= gone * 8;
    }
}
