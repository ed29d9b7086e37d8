//! What an operation leaves in DRAM when its record is appended, and nowhere before: images, new inodes, intents,
//! limits.

use std::sync::Arc;

use quayfs_layout::Ino;
use quayfs_layout::inode::Inode;
use quayfs_layout::quota::{Grace, Limits};

use crate::engine::Engine;
use crate::error::Result;
use crate::ns::intent::{BegunIntent, FinishedIntent};
use crate::ns::quota::Tally;
use crate::txn::{Edit, Txn};

/// Whether the kernel hears of a new inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// The answer tells it, and it will forget the inode once.
    Yes,
    /// It has to look the inode up first.
    No,
}

struct New<'o> {
    ino: Ino,
    image: &'o Inode,
    told: Told,
}

/// Inodes that one record changes, besides one that it creates: those of a rename.
const EDITS_MAX: usize = 4;

/// See the module documentation. Its parts are made under the locks of the operation.
#[must_use]
#[derive(Default)]
pub struct Outcome<'o, 'c> {
    edits: [Option<&'o mut Edit<'c>>; EDITS_MAX],
    new: Option<New<'o>>,
    begun: Option<BegunIntent<'c>>,
    /// Of each kind of intent.
    finished: [Option<FinishedIntent>; 2],
    limits: Option<(Arc<Tally>, Limits, Grace)>,
}

impl<'o, 'c> From<&'o mut Edit<'c>> for Outcome<'o, 'c> {
    #[inline]
    fn from(edit: &'o mut Edit<'c>) -> Self {
        [edit].into()
    }
}

/// They are shown in this order.
impl<'o, 'c, const N: usize> From<[&'o mut Edit<'c>; N]> for Outcome<'o, 'c> {
    #[inline]
    fn from(edits: [&'o mut Edit<'c>; N]) -> Self {
        edits.map(Some).into()
    }
}

/// Those that there are.
impl<'o, 'c, const N: usize> From<[Option<&'o mut Edit<'c>>; N]> for Outcome<'o, 'c> {
    #[inline]
    fn from(edits: [Option<&'o mut Edit<'c>>; N]) -> Self {
        const { assert!(N <= EDITS_MAX) };
        let mut outcome = Self::default();
        for (place, edit) in outcome.edits.iter_mut().zip(edits) {
            *place = edit;
        }
        outcome
    }
}

impl<'o, 'c> Outcome<'o, 'c> {
    /// There is a new inode, under a number that the transaction has taken.
    #[inline]
    pub fn creates(mut self, ino: Ino, image: &'o Inode, told: Told) -> Self {
        self.new = Some(New { ino, image, told });
        self
    }

    /// This intent is begun.
    #[inline]
    pub fn begins(mut self, begun: Option<BegunIntent<'c>>) -> Self {
        self.begun = begun;
        self
    }

    /// These intents of an inode are finished.
    pub fn finishes(mut self, finished: [Option<FinishedIntent>; 2]) -> Self {
        self.finished = finished;
        self
    }

    /// A project, user or group has these limits, and grace times.
    pub fn limits(mut self, tally: Arc<Tally>, limits: Limits, grace: Grace) -> Self {
        self.limits = Some((tally, limits, grace));
        self
    }

    /// Logs the images.
    pub(super) fn log(&self, txn: &mut Txn<'_>) -> Result<()> {
        if let Some(new) = &self.new {
            txn.put_inode(new.ino, None, new.image)?;
        }
        (self.edits.iter().flatten()).try_for_each(|edit| edit.log(txn))
    }

    /// Record `seq` was appended. The order: a file is known before it is an orphan, so that a search for orphans which
    /// the kernel does not know passes it by; an inode that is freed is gone before its intents are.
    pub(super) fn install(&mut self, e: &Engine, seq: u64) {
        for edit in self.edits.iter_mut().flatten() {
            edit.install(seq);
        }
        if let Some(New { ino, image, told }) = self.new.take() {
            let handle = e.inodes.add(ino, image.clone(), seq);
            if told == Told::Yes {
                handle.looked_up();
            }
        }
        if let Some(begun) = self.begun.take() {
            begun.made();
        }
        for finished in self.finished.iter_mut().filter_map(Option::take) {
            e.intents.kept(finished);
        }
        if let Some((tally, limits, grace)) = self.limits.take() {
            e.quotas.limited(&tally, limits, grace);
        }
    }
}
