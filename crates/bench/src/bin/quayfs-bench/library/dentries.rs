//! The kernel's dentry cache, as far as directories on the way to a name go.
//!
//! A mount says that names stay valid, so the kernel asks for a directory once and then walks through it on its own,
//! however often paths lead there. Without this the larger part of what a call does to a deep tree would be lookups
//! that no kernel sends. The last name of a path is asked for in every call, also where the kernel would know it: the
//! cost of that is what some workloads are about.
//!
//! No thread may remove or rename a directory while another thread is on the way through it: a kernel keeps the
//! directory for that thread, and this does not.

use quayfs_bench::library::Node;
use quayfs_store::error::{FsError, Result};
use quayfs_sync::DashMap;
use quayfs_sync::map::Entry;
use rustc_hash::FxBuildHasher;
use smallvec::SmallVec;

use quayfs_fs::Fs;

/// A directory and a name there.
type Place = (Node, SmallVec<[u8; 24]>);

/// Directories by their places, each with a lookup that is counted until it is forgotten.
#[derive(Default)]
pub struct Dentries(DashMap<Place, Node, FxBuildHasher>);

impl Dentries {
    /// The directory of a name in another.
    ///
    /// # Errors
    /// Those of a lookup; [`FsError::NotDir`] if it is none.
    pub fn directory(&self, fs: &Fs, dir: Node, name: &[u8]) -> Result<Node> {
        let place = (dir, SmallVec::from_slice(name));
        if let Some(there) = self.0.get(&place) {
            return Ok(*there);
        }
        // Asked for with the entry locked: a thread that removes it meanwhile forgets it after this.
        match self.0.entry(place) {
            Entry::Occupied(there) => Ok(*there.get()),
            Entry::Vacant(place) => {
                let found = fs.lookup(dir, name)?;
                if !found.inode.is_dir() {
                    fs.forget(found.ino, 1);
                    return Err(FsError::NotDir);
                }
                place.insert(found.ino);
                Ok(found.ino)
            }
        }
    }

    /// Forgets what has a name, after the name may have gone or belong to something else.
    pub fn forget(&self, fs: &Fs, dir: Node, name: &[u8]) {
        if let Some((_, node)) = self.0.remove(&(dir, SmallVec::from_slice(name))) {
            fs.forget(node, 1);
        }
    }

    /// Forgets everything.
    pub fn forget_all(&self, fs: &Fs) {
        self.0.retain(|_, node| {
            fs.forget(*node, 1);
            false
        });
    }
}
