//! What an operation leaves in DRAM when its record is appended, and nowhere before: images, new inodes, intents,
//! limits.

use std::sync::Arc;

use quayfs_layout::Ino;
use quayfs_layout::inode::Inode;
use quayfs_layout::quota::Limits;
use quayfs_sync::MutexGuard;
use smallvec::{SmallVec, smallvec};

use crate::engine::Engine;
use crate::error::Result;
use crate::ns::intent::{Fulfilled, Promise};
use crate::ns::quota::Project;
use crate::txn::{Edit, Txn};

/// Whether the kernel hears of a new inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// The answer tells it, and it will forget the inode once.
    Yes,
    /// It has to look the inode up first.
    No,
}

struct New {
    ino: Ino,
    image: Inode,
    told: Told,
}

/// See the module documentation. Its parts are made under the locks of the operation.
#[must_use]
#[derive(Default)]
pub struct Outcome<'c> {
    edits: SmallVec<[Edit<'c>; 2]>,
    new: Option<New>,
    promise: Option<Promise<'c>>,
    fulfilled: SmallVec<[Fulfilled; 2]>,
    limits: Option<(Arc<Project>, Limits)>,
}

impl<'c> From<Edit<'c>> for Outcome<'c> {
    fn from(edit: Edit<'c>) -> Self {
        Self {
            edits: smallvec![edit],
            ..Self::default()
        }
    }
}

impl<'c, const N: usize> From<[Edit<'c>; N]> for Outcome<'c> {
    fn from(edits: [Edit<'c>; N]) -> Self {
        edits.into_iter().collect()
    }
}

/// They are shown in this order.
impl<'c> FromIterator<Edit<'c>> for Outcome<'c> {
    fn from_iter<I: IntoIterator<Item = Edit<'c>>>(edits: I) -> Self {
        Self {
            edits: edits.into_iter().collect(),
            ..Self::default()
        }
    }
}

impl<'c> Outcome<'c> {
    /// There is a new inode, under a number that the transaction has taken.
    pub fn creates(mut self, ino: Ino, image: Inode, told: Told) -> Self {
        self.new = Some(New { ino, image, told });
        self
    }

    /// The promise is made.
    pub fn promises(mut self, promise: Option<Promise<'c>>) -> Self {
        self.promise = promise;
        self
    }

    /// These promises are kept.
    pub fn fulfils(mut self, fulfilled: impl IntoIterator<Item = Fulfilled>) -> Self {
        self.fulfilled.extend(fulfilled);
        self
    }

    /// The project has these limits.
    pub fn limits(mut self, project: Arc<Project>, limits: Limits) -> Self {
        self.limits = Some((project, limits));
        self
    }

    /// Logs the images.
    pub(super) fn log(&self, txn: &mut Txn<'_>) -> Result<()> {
        if let Some(new) = &self.new {
            txn.put_inode(new.ino, &new.image);
        }
        self.edits.iter().try_for_each(|edit| edit.log(txn))
    }

    /// Record `seq` was appended. The order: a file is known before it is an orphan, so that a search for orphans which
    /// the kernel does not know passes it by; an inode that is freed is gone before its promises are.
    pub(super) fn install(self, e: &Engine, seq: u64) -> Committed<'c> {
        let commits = self.edits.into_iter().filter_map(|edit| edit.install(seq));
        let committed = Committed {
            _commits: commits.collect(),
        };
        if let Some(New { ino, image, told }) = self.new {
            let cell = e.inodes.add(ino, image, seq);
            if told == Told::Yes {
                cell.looked_up();
            }
        }
        if let Some(promise) = self.promise {
            promise.made();
        }
        for fulfilled in self.fulfilled {
            e.intents.kept(fulfilled);
        }
        if let Some((project, limits)) = self.limits {
            e.quotas.limited(&project, limits);
        }
        committed
    }
}

/// The operation has happened, and everybody can see it. Keeps the commit mutexes of its inodes, for what else has to
/// be done before the next operation on them.
pub struct Committed<'c> {
    _commits: SmallVec<[MutexGuard<'c, ()>; 2]>,
}
