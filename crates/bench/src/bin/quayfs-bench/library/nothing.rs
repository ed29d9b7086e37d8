//! A file system that does nothing, below the workloads: names and sizes in memory, and no content.
//!
//! What a workload does to it in a second is what no file system can exceed on this machine: what the workload
//! itself takes, names to be found among others, and calls.

use std::ffi::CStr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use quayfs_bench::library::{Library, Node};
use quayfs_sync::DashMap;
use quayfs_sync::map::Entry;
use rustc_hash::FxBuildHasher;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// The root directory.
const ROOT: Node = 1;

/// All of it.
pub struct Nothing {
    names: DashMap<(Node, Box<[u8]>), Node, FxBuildHasher>,
    sizes: DashMap<Node, u64, FxBuildHasher>,
    made: AtomicU64,
}

impl Default for Nothing {
    fn default() -> Self {
        Self {
            names: DashMap::with_capacity_and_hasher(0, FxBuildHasher),
            sizes: DashMap::with_capacity_and_hasher(0, FxBuildHasher),
            made: AtomicU64::new(0),
        }
    }
}

impl Nothing {
    fn find(&self, dir: Node, path: &CStr) -> Result<Node, Errno> {
        let (parent, name) = self.parent(dir, path)?;
        self.child(parent, name)
    }

    fn child(&self, dir: Node, name: &[u8]) -> Result<Node, Errno> {
        if name == b"." {
            return Ok(dir);
        }
        let found = self.names.get(&(dir, name.into()));
        found.map(|node| *node).ok_or(Errno::NOENT)
    }

    /// The directory that has the last name of a path.
    fn parent<'p>(&self, dir: Node, path: &'p CStr) -> Result<(Node, &'p [u8]), Errno> {
        let (mut at, mut rest) = (dir, path.to_bytes());
        while let Some(slash) = rest.iter().position(|b| *b == b'/') {
            at = self.child(at, &rest[..slash])?;
            rest = &rest[slash + 1..];
        }
        Ok((at, rest))
    }

    /// Makes a node of this name, unless there is one already.
    fn make(&self, dir: Node, name: &[u8]) -> Result<Node, Node> {
        match self.names.entry((dir, name.into())) {
            Entry::Occupied(there) => Err(*there.get()),
            Entry::Vacant(place) => {
                let node = ROOT + 1 + self.made.fetch_add(1, Ordering::Relaxed);
                self.sizes.insert(node, 0);
                place.insert(node);
                Ok(node)
            }
        }
    }

    fn remove(&self, dir: Node, path: &CStr) -> Result<(), Errno> {
        let (parent, name) = self.parent(dir, path)?;
        let gone = self.names.remove(&(parent, name.into()));
        let (_, node) = gone.ok_or(Errno::NOENT)?;
        self.sizes.remove(&node);
        Ok(())
    }
}

impl Library for Nothing {
    fn root(&self) -> Result<Node, Errno> {
        Ok(ROOT)
    }

    fn open(&self, dir: Node, path: &CStr, flags: OFlags, _: Mode) -> Result<Node, Errno> {
        let (parent, name) = self.parent(dir, path)?;
        let found = match self.child(parent, name) {
            Err(_) if flags.contains(OFlags::CREATE) => match self.make(parent, name) {
                Ok(made) => return Ok(made),
                Err(there) => there,
            },
            found => found?,
        };
        if flags.contains(OFlags::EXCL) {
            return Err(Errno::EXIST);
        }
        if flags.contains(OFlags::TRUNC) {
            self.sizes.insert(found, 0);
        }
        Ok(found)
    }

    fn close(&self, _: Node) {}

    fn read(&self, node: Node, buffer: &mut [u8], offset: u64) -> Result<usize, Errno> {
        let left = self.size(node)?.saturating_sub(offset);
        Ok(buffer
            .len()
            .min(usize::try_from(left).unwrap_or(usize::MAX)))
    }

    fn write(&self, node: Node, data: &[u8], offset: u64, _: OFlags) -> Result<usize, Errno> {
        let end = offset + data.len() as u64;
        if let Entry::Occupied(mut size) = self.sizes.entry(node)
            && *size.get() < end
        {
            size.insert(end);
        }
        Ok(data.len())
    }

    fn size(&self, node: Node) -> Result<u64, Errno> {
        Ok(self.sizes.get(&node).map_or(0, |size| *size))
    }

    fn fsync(&self, _: Node) -> Result<(), Errno> {
        Ok(())
    }

    fn syncfs(&self) -> Result<(), Errno> {
        Ok(())
    }

    fn stat(&self, dir: Node, path: &CStr) -> Result<(), Errno> {
        self.find(dir, path).map(drop)
    }

    fn unlink(&self, dir: Node, path: &CStr) -> Result<(), Errno> {
        self.remove(dir, path)
    }

    fn rename(&self, dir: Node, from: &CStr, to: &CStr) -> Result<(), Errno> {
        let ((old, name), (new, new_name)) = (self.parent(dir, from)?, self.parent(dir, to)?);
        let moved = self.names.remove(&(old, name.into()));
        let (_, node) = moved.ok_or(Errno::NOENT)?;
        self.names.insert((new, new_name.into()), node);
        Ok(())
    }

    fn mkdir(&self, dir: Node, path: &CStr, _: Mode) -> Result<(), Errno> {
        let (parent, name) = self.parent(dir, path)?;
        self.make(parent, name).map(drop).map_err(|_| Errno::EXIST)
    }

    fn rmdir(&self, dir: Node, path: &CStr) -> Result<(), Errno> {
        self.remove(dir, path)
    }

    /// There are no lists of names: no workload that runs on this wants one.
    fn list(&self, _: Node, _: &mut u64, _: &mut Vec<u8>) -> Result<(), Errno> {
        Err(Errno::NOSYS)
    }

    fn chmod(&self, _: Node, _: Mode) -> Result<(), Errno> {
        Ok(())
    }

    fn set_mtime(&self, _: Node, _: i64) -> Result<(), Errno> {
        Ok(())
    }

    fn describe(&self, node: Node) -> PathBuf {
        format!("(nothing: node {node})").into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_sizes_are_kept_and_nothing_else() {
        let n = Nothing::default();
        n.mkdir(ROOT, c"d", Mode::empty()).unwrap();
        assert_eq!(n.mkdir(ROOT, c"d", Mode::empty()), Err(Errno::EXIST));
        let made = |flags| n.open(ROOT, c"d/f", flags, Mode::empty());
        assert_eq!(made(OFlags::empty()), Err(Errno::NOENT));
        let f = made(OFlags::CREATE).unwrap();
        assert_eq!(made(OFlags::CREATE | OFlags::EXCL), Err(Errno::EXIST));
        assert_eq!(n.write(f, b"four", 6, OFlags::empty()), Ok(4));
        assert_eq!((n.size(f), n.read(f, &mut [0; 8], 4)), (Ok(10), Ok(6)));
        n.rename(ROOT, c"d/f", c"g").unwrap();
        assert_eq!(n.stat(ROOT, c"d/f"), Err(Errno::NOENT));
        assert_eq!(n.open(ROOT, c"g", OFlags::TRUNC, Mode::empty()), Ok(f));
        assert_eq!(n.size(f), Ok(0));
        n.unlink(ROOT, c"g").unwrap();
        assert_eq!(n.unlink(ROOT, c"g"), Err(Errno::NOENT));
    }
}
