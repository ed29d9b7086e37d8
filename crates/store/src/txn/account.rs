//! What a transaction adds to projects, users and groups, or takes from them.
//!
//! Each image that is logged is held against the one before; the difference is what these are charged, in
//! the same record.

use std::sync::Arc;

use quayfs_layout::inode::Inode;
use quayfs_layout::item::{CHARGE_BYTES, DELTA_HEADER, Item};
use quayfs_layout::quota::{GRACE_BYTES, Subject};
use quayfs_layout::{BLOCK, Ino};
use smallvec::SmallVec;

use crate::error::{FsError, Result};
use crate::ns::inode::InodeHandle;
use crate::ns::quota::{Logging, Tally};
use crate::txn::Txn;

/// Subjects that one record can be about: of three kinds, those of five inodes, of which one may leave its own.
const SUBJECTS_MAX: usize = 3 * 6;
/// Blocks and pages that an inode can have at most, and far more.
const BLOCKS_MAX: u64 = 1 << 52;
/// Grace times in one record: what has no room is in the next one that charges the subject.
const GRACES_MAX: usize = 6;
/// Bytes of items that charges take at most.
pub(super) const CHARGES_BYTES: u32 = (SUBJECTS_MAX * CHARGE_BYTES
    + GRACES_MAX * (DELTA_HEADER + GRACE_BYTES).next_multiple_of(8))
    as u32;

const _: () = assert!(CHARGES_BYTES < BLOCK as u32);

/// What of an inode is counted, and for which subjects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    project: u32,
    uid: u32,
    gid: u32,
    blocks: u64,
}

impl Part {
    /// A free inode has none.
    pub(super) fn of(image: &Inode) -> Option<Self> {
        (image.mode != 0).then_some(Self {
            project: image.project,
            uid: image.uid,
            gid: image.gid,
            // A file cannot have more; one that has been forged may say so.
            blocks: image.blocks.min(BLOCKS_MAX),
        })
    }

    fn subjects(&self) -> [Subject; 3] {
        [
            Subject::Project(self.project),
            Subject::User(self.uid),
            Subject::Group(self.gid),
        ]
    }
}

/// What becomes of a subject.
struct Share {
    tally: Arc<Tally>,
    blocks: i64,
    inodes: i64,
    /// What has been added to its counters already.
    held: (i64, i64),
    /// The grace times that the record has.
    graced: Option<Logging>,
}

/// What becomes of all of them. Dropped before it is settled, it leaves their counters as they were.
#[derive(Default)]
pub(super) struct Account {
    shares: SmallVec<[Share; 2]>,
    /// An inode of which the next image is counted already.
    admitted: Option<(Ino, Part)>,
}

impl Account {
    /// The record was appended.
    fn appended(&mut self) {
        for s in self.shares.drain(..) {
            s.tally.add(s.blocks - s.held.0, s.inodes - s.held.1);
            if let Some(graced) = s.graced {
                graced.appended();
            }
        }
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        for s in &self.shares {
            s.tally.add(-s.held.0, -s.held.1);
        }
    }
}

impl Txn<'_> {
    /// An inode of which `before` is counted becomes one of which `after` is.
    #[inline]
    pub(super) fn account_for(
        &mut self,
        ino: Ino,
        before: Option<Part>,
        after: Option<Part>,
    ) -> Result<()> {
        let before = match self.account.admitted {
            Some((admitted, part)) if admitted == ino => Some(part),
            _ => before,
        };
        // Neither has changed where a file is written over, nor for a directory by most changes of its names.
        if before == after {
            return Ok(());
        }
        self.count(before, after)
    }

    #[inline(never)]
    fn count(&mut self, before: Option<Part>, after: Option<Part>) -> Result<()> {
        let (had, has) = (before.map(|p| p.subjects()), after.map(|p| p.subjects()));
        let blocks = |part: Option<Part>| part.map_or(0, |p| p.blocks.cast_signed());
        let (less, more) = (blocks(before), blocks(after));
        for kind in 0..3 {
            match (had.map(|all| all[kind]), has.map(|all| all[kind])) {
                (Some(subject), Some(same)) if subject == same => {
                    self.add(subject, more - less, 0)?;
                }
                (old, new) => {
                    old.map_or(Ok(()), |old| self.add(old, -less, -1))?;
                    new.map_or(Ok(()), |new| self.add(new, more, 1))?;
                }
            }
        }
        Ok(())
    }

    fn add(&mut self, subject: Subject, blocks: i64, inodes: i64) -> Result<()> {
        let quotas = &self.engine.quotas;
        if (blocks, inodes) == (0, 0) || subject == Subject::default() || !quotas.counts(subject) {
            return Ok(());
        }
        let shares = &mut self.account.shares;
        let i = match shares.iter().position(|s| s.tally.subject == subject) {
            Some(i) => i,
            None => {
                shares.push(Share {
                    tally: quotas.claim(subject)?,
                    blocks: 0,
                    inodes: 0,
                    held: (0, 0),
                    graced: None,
                });
                shares.len() - 1
            }
        };
        shares[i].blocks += blocks;
        shares[i].inodes += inodes;
        Ok(())
    }

    /// What the record so far, and an image of the inode with so many blocks more, adds is theirs from here on,
    /// so that [`Txn::commit`] finds the limits kept. No other operation changes the inode meanwhile.
    ///
    /// # Errors
    /// [`FsError::Quota`] if a limit is in the way of an operation that does not give space back,
    /// [`FsError::NoSpace`] if the quota table is full.
    pub fn admit(&mut self, handle: &InodeHandle, after: &Inode) -> Result<()> {
        let after = Part::of(after);
        self.account_for(handle.ino, handle.with(Part::of), after)?;
        self.account.admitted = after.map(|part| (handle.ino, part));
        self.reserve_shares()
    }

    /// Adds to the counters what the record adds, unless a limit forbids it.
    pub(super) fn reserve_shares(&mut self) -> Result<()> {
        let quotas = &self.engine.quotas;
        for s in &mut self.account.shares {
            let more = |want: i64, held: i64| (want - held).max(0);
            let (blocks, inodes) = (more(s.blocks, s.held.0), more(s.inodes, s.held.1));
            let enforced = !self.privileged && quotas.enforces(s.tally.subject);
            let period = || quotas.period(s.tally.subject);
            if !s.tally.reserve(blocks, inodes, enforced, period) {
                return Err(FsError::Quota);
            }
            s.held.0 += blocks;
            s.held.1 += inodes;
        }
        Ok(())
    }

    /// Logs what they are charged.
    pub(super) fn log_charges(&mut self) {
        let mut shares = std::mem::take(&mut self.account.shares);
        let mut graces = 0;
        for s in shares.iter_mut().filter(|s| (s.blocks, s.inodes) != (0, 0)) {
            self.charge(&s.tally, s.blocks, s.inodes as i32);
            if graces < GRACES_MAX
                && let Some(logging) = Logging::begin(&s.tally)
            {
                self.engine
                    .quotas
                    .write_grace(self, &s.tally, &logging.grace);
                s.graced = Some(logging);
                graces += 1;
            }
        }
        self.account.shares = shares;
    }

    /// Logs that a subject is charged so much, which the caller sees to in DRAM. Its place is its own
    /// afterwards, if nothing is charged as well.
    pub fn charge(&mut self, tally: &Tally, blocks: i64, inodes: i32) {
        let (id, slot) = self.engine.quotas.place(tally);
        self.cover_static(id);
        self.item(&Item::Charge {
            id,
            slot,
            subject: tally.subject,
            blocks,
            inodes,
        });
    }

    pub(super) fn settle_account(&mut self) {
        self.account.appended();
    }
}
