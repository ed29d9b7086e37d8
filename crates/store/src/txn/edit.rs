//! An inode that a transaction changes.
//!
//! The operation works on a copy of the image, and on the extent map such that it can be taken back. [`Txn::commit`]
//! logs the copy, appends the record, and only then shows the copy to others: nothing else can do any of the three.

use quayfs_layout::Ino;
use quayfs_layout::inode::Inode;
use quayfs_sync::{MutexGuard, lock_noting};

use crate::error::{FsError, Result};
use crate::ns::extent::ExtentMap;
use crate::ns::inode::InodeHandle;
use crate::txn::Txn;
use crate::txn::account::Part;

/// See the module documentation. Dropped before it is committed, it leaves the inode as it was. Until it is dropped no
/// other operation changes the inode; after a commit that gives the time to do what belongs to it.
#[must_use]
pub struct Edit<'c> {
    /// The image as the record will say it.
    pub image: Inode,
    map: Option<MapChange<'c>>,
    handle: &'c InodeHandle,
    fate: Fate,
    /// What was counted of it before.
    before: Option<Part>,
    // Last, so that it is let go of last.
    commit: Option<MutexGuard<'c, ()>>,
}

/// What becomes of the inode besides.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// It stays.
    Stays,
    /// It stays, and the answer tells the kernel about it once more.
    Told,
    /// It is freed.
    Freed,
}

impl<'c> Edit<'c> {
    /// An inode whose operation lock the caller holds exclusively, which keeps every other operation from it, and
    /// `image`, read under that lock.
    #[inline]
    pub fn exclusive(handle: &'c InodeHandle, image: Inode) -> Self {
        Self {
            before: Part::of(&image),
            image,
            map: None,
            handle,
            fate: Fate::Stays,
            commit: None,
        }
    }

    /// An inode that data operations may be changing as well: takes its commit mutex, and then the image (ordering 5).
    /// The mutex is held until the edit is dropped.
    ///
    /// # Errors
    /// [`FsError::Stale`] if the inode has been freed.
    #[inline]
    pub fn shared(handle: &'c InodeHandle) -> Result<Self> {
        Self::under(handle, handle.commit.lock())
    }

    /// [`Edit::shared`], which calls `waited` if another thread had the mutex.
    ///
    /// # Errors
    /// The same.
    #[inline]
    pub fn shared_noting(handle: &'c InodeHandle, waited: impl FnOnce()) -> Result<Self> {
        Self::under(handle, lock_noting(&handle.commit, waited))
    }

    /// [`Edit::shared`] for two inodes, in the order of their numbers, or for one that is given twice.
    ///
    /// # Errors
    /// The same.
    pub fn shared_pair(
        one: &'c InodeHandle,
        other: &'c InodeHandle,
    ) -> Result<(Self, Option<Self>)> {
        if one.ino == other.ino {
            return Ok((Self::shared(one)?, None));
        }
        if one.ino < other.ino {
            let first = Self::shared(one)?;
            Ok((first, Some(Self::shared(other)?)))
        } else {
            let first = Self::shared(other)?;
            Ok((Self::shared(one)?, Some(first)))
        }
    }

    #[inline]
    fn under(handle: &'c InodeHandle, commit: MutexGuard<'c, ()>) -> Result<Self> {
        let image = handle.image();
        let edit = Self {
            before: Part::of(&image),
            image,
            map: None,
            handle,
            fate: Fate::Stays,
            commit: Some(commit),
        };
        match edit.image.mode {
            0 => Err(FsError::Stale),
            _ => Ok(edit),
        }
    }

    /// Its number.
    #[inline]
    pub fn ino(&self) -> Ino {
        self.handle.ino
    }

    /// Changes the extent map, which is loaded: reserves `places` first, then lets `f` change it and the image. If that
    /// fails, or nothing is committed, the map is as it was before.
    ///
    /// # Errors
    /// [`FsError::OutOf`] without room for the places, and those of `f`.
    pub fn extents(
        &mut self,
        txn: &mut Txn<'_>,
        places: usize,
        f: impl FnOnce(&mut ExtentMap, &mut Txn<'_>, &mut Inode) -> Result<()>,
    ) -> Result<()> {
        debug_assert!(self.commit.is_some(), "ordering 5");
        let mut slot = self.handle.extents.write();
        let Some(x) = slot.as_mut() else {
            return Err(FsError::internal("the extent map is not loaded"));
        };
        let image = &mut self.image;
        let result = x
            .reserve(txn, self.handle.ino, image, places)
            .and_then(|()| f(x, txn, image));
        if let Err(err) = result {
            x.undo();
            return Err(err);
        }
        self.map.get_or_insert(MapChange {
            handle: self.handle,
            kept: false,
        });
        Ok(())
    }

    /// The answer to the operation tells the kernel about the inode, which it will forget once more.
    #[inline]
    pub fn told(&mut self) -> &mut Self {
        self.fate = Fate::Told;
        self
    }

    /// The record frees the inode.
    #[inline]
    pub fn freed(&mut self) -> &mut Self {
        self.fate = Fate::Freed;
        self
    }

    /// Logs the image.
    pub(super) fn log(&self, txn: &mut Txn<'_>) -> Result<()> {
        match self.fate {
            Fate::Freed => txn.free_ino(self.handle.ino, self.before),
            Fate::Stays | Fate::Told => txn.put_inode(self.handle.ino, self.before, &self.image),
        }
    }

    /// Record `seq` was appended: shows the map, then the image. The commit mutex stays with the edit.
    pub(super) fn install(&mut self, seq: u64) {
        if let Some(map) = self.map.take() {
            map.appended();
        }
        if self.fate == Fate::Freed {
            self.image = Inode::default();
        }
        self.handle.install(&self.image, seq);
        if self.fate == Fate::Told {
            self.handle.looked_up();
        }
    }
}

/// Changes of an extent map whose record is not appended yet. Dropped without [`MapChange::appended`] they are taken back:
/// a mount that becomes read-only because the record could not be appended still shows the file as it was.
struct MapChange<'c> {
    handle: &'c InodeHandle,
    kept: bool,
}

impl MapChange<'_> {
    fn appended(mut self) {
        self.kept = true;
    }
}

impl Drop for MapChange<'_> {
    fn drop(&mut self) {
        if let Some(x) = self.handle.extents.write().as_mut() {
            if self.kept {
                x.appended();
            } else {
                x.undo();
            }
        }
    }
}
