//! What a transaction adds to projects, or takes from them.
//!
//! Each image that is logged is held against the one that was logged before it; the difference is what
//! the project is charged, in the same record.

use std::sync::Arc;

use quayfs_layout::inode::Inode;
use quayfs_layout::item::{CHARGE_BYTES, Item};
use quayfs_layout::{BLOCK, Ino};

use crate::error::{FsError, Result};
use crate::ns::alloc::Kind;
use crate::ns::quota::Project;
use crate::txn::Txn;

/// Projects that one record can be about: those of five inodes, of which one may leave its own.
const PROJECTS_MAX: usize = 6;
/// Blocks and pages that an inode can have at most, and far more.
const BLOCKS_MAX: u64 = 1 << 52;
/// Bytes of items that charges take at most.
pub(super) const CHARGES_BYTES: u32 = (PROJECTS_MAX * CHARGE_BYTES) as u32;

const _: () = assert!(CHARGES_BYTES < BLOCK as u32);

/// An inode's part in a project.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    project: u32,
    blocks: u64,
}

impl Part {
    /// A free inode has none, nor has one in no project.
    fn of(image: &Inode) -> Option<Self> {
        (image.mode != 0 && image.project != 0).then_some(Self {
            project: image.project,
            // A file cannot have more; one that has been forged may say so.
            blocks: image.blocks.min(BLOCKS_MAX),
        })
    }
}

/// What becomes of an inode.
#[derive(Debug)]
struct Change {
    ino: Ino,
    before: Option<Part>,
    after: Option<Part>,
}

/// What becomes of a project.
struct Share {
    project: Arc<Project>,
    blocks: i64,
    inodes: i64,
    /// What has been added to its counters already.
    held: (i64, i64),
}

/// What becomes of all of them. Dropped before it is settled, it leaves their counters as they were.
#[derive(Default)]
pub(super) struct Account {
    changes: Vec<Change>,
    shares: Vec<Share>,
}

impl Account {
    /// The record was appended.
    fn appended(&mut self) {
        for s in self.shares.drain(..) {
            s.project.add(s.blocks - s.held.0, s.inodes - s.held.1);
        }
        self.changes.clear();
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        for s in &self.shares {
            s.project.add(-s.held.0, -s.held.1);
        }
    }
}

impl Txn<'_> {
    /// An inode that is in a project, or is about to be, becomes `after`. The operation that changes it keeps others
    /// from it, so what is published is what was logged last.
    fn account_for(&mut self, ino: Ino, after: Option<Part>) {
        if !self.engine.quotas.is_kept() {
            return;
        }
        if let Some(c) = self.account.changes.iter_mut().find(|c| c.ino == ino) {
            c.after = after;
            return;
        }
        // Under a new number, the inode that had it before may still be published: the operation that freed that
        // inode has logged that, and takes the image away in a moment.
        let before = match self.has_taken(Kind::Inode, ino) {
            true => None,
            false => self.engine.inodes.published(ino, Part::of).flatten(),
        };
        if before != after {
            self.account.changes.push(Change { ino, before, after });
        }
    }

    /// The image of an inode is logged.
    pub(super) fn account_image(&mut self, ino: Ino, image: &Inode) {
        // Nearly all are in no project, and cost nothing.
        if image.project != 0 || !self.account.changes.is_empty() {
            self.account_for(ino, Part::of(image));
        }
    }

    /// An inode that is in this project goes to another one, or to none.
    pub fn leaves_project(&mut self, ino: Ino, project: u32) {
        if project != 0 {
            self.account_for(ino, None);
        }
    }

    /// What the images so far, and `image`, which will be logged, add to projects is theirs from here on,
    /// so that [`Txn::commit`] finds the limits kept.
    ///
    /// # Errors
    /// [`FsError::Quota`] if a limit is in the way of an operation that does not give space back,
    /// [`FsError::NoSpace`] if there is no room for another project.
    pub fn admit(&mut self, ino: Ino, image: &Inode) -> Result<()> {
        self.account_image(ino, image);
        self.reserve_shares()
    }

    /// Adds to the counters of projects what the changes add, unless a limit forbids it.
    pub(super) fn reserve_shares(&mut self) -> Result<()> {
        if self.account.changes.is_empty() {
            return Ok(());
        }
        let engine = self.engine;
        let (quotas, enforced) = (&engine.quotas, !self.privileged);
        let Account { changes, shares } = &mut self.account;
        shares
            .iter_mut()
            .for_each(|s| (s.blocks, s.inodes) = (0, 0));
        for c in changes.iter() {
            for (part, sign) in [(c.before, -1), (c.after, 1)] {
                let Some(part) = part else { continue };
                let i = match shares.iter().position(|s| s.project.id == part.project) {
                    Some(i) => i,
                    None => {
                        shares.push(Share {
                            project: quotas.claim(part.project)?,
                            blocks: 0,
                            inodes: 0,
                            held: (0, 0),
                        });
                        shares.len() - 1
                    }
                };
                shares[i].blocks += sign * part.blocks.cast_signed();
                shares[i].inodes += sign;
            }
        }
        for s in shares {
            let more = |want: i64, held: i64| (want - held).max(0);
            let (blocks, inodes) = (more(s.blocks, s.held.0), more(s.inodes, s.held.1));
            if !s.project.reserve(blocks, inodes, enforced) {
                return Err(FsError::Quota);
            }
            s.held.0 += blocks;
            s.held.1 += inodes;
        }
        Ok(())
    }

    /// Logs what projects are charged.
    pub(super) fn log_charges(&mut self) {
        let charges: Vec<_> = (self.account.shares.iter())
            .filter(|s| (s.blocks, s.inodes) != (0, 0))
            .map(|s| (s.project.clone(), s.blocks, s.inodes))
            .collect();
        for (project, blocks, inodes) in charges {
            self.charge(&project, blocks, inodes as i32);
        }
    }

    /// Logs that a project is charged so much, which the caller sees to in DRAM. Its place is its own
    /// afterwards, if nothing is charged as well.
    pub fn charge(&mut self, project: &Project, blocks: i64, inodes: i32) {
        let (id, slot) = self.engine.quotas.place(project);
        self.cover_static(id);
        self.item(&Item::Charge {
            id,
            slot,
            project: project.id,
            blocks,
            inodes,
        });
    }

    pub(super) fn settle_account(&mut self) {
        self.account.appended();
    }
}
