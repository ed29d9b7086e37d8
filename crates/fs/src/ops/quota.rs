//! Quotas of projects: shown, and limits set.

use quayfs_layout::inode::{FLAG_PROJECT, Inode};
use quayfs_layout::quota::{LIMITS_BYTES, Limits};
use quayfs_layout::{BLOCK, Ino};
use quayfs_store::error::{FsError, Result};
use quayfs_store::ns::quota::Project;
use quayfs_store::txn::{Outcome, Reservation, Txn};
use serde::{Deserialize, Serialize};

use crate::status::may_manage;
use crate::{Asker, Fs, StatFs};

const B: u64 = BLOCK as u64;
/// Projects in one answer, which has to fit an extended attribute.
pub const QUOTAS_MAX: usize = 256;

/// What a project has, and what it may have; a limit of 0 is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quota {
    /// Project id.
    pub project: u32,
    /// Bytes of its blocks and pages of metadata.
    pub bytes: u64,
    /// Those that are worth a warning.
    pub bytes_soft: u64,
    /// Those that are never exceeded.
    pub bytes_hard: u64,
    /// Inodes.
    pub inodes: u64,
    /// Those that are worth a warning.
    pub inodes_soft: u64,
    /// Those that are never exceeded.
    pub inodes_hard: u64,
}

impl Quota {
    fn of(project: &Project) -> Self {
        let (usage, limits) = (project.usage(), project.limits());
        Self {
            project: project.id,
            bytes: usage.blocks.saturating_mul(B),
            bytes_soft: limits.blocks_soft.saturating_mul(B),
            bytes_hard: limits.blocks.saturating_mul(B),
            inodes: usage.inodes,
            inodes_soft: limits.inodes_soft,
            inodes_hard: limits.inodes,
        }
    }
}

/// New limits of a project: what is not given stays, 0 is none. Bytes are rounded up to blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetQuota {
    /// Project id, not 0.
    pub project: u32,
    /// Bytes that are worth a warning.
    pub bytes_soft: Option<u64>,
    /// Bytes that are never exceeded.
    pub bytes_hard: Option<u64>,
    /// Inodes that are worth a warning.
    pub inodes_soft: Option<u64>,
    /// Inodes that are never exceeded.
    pub inodes_hard: Option<u64>,
}

impl SetQuota {
    fn apply(&self, old: Limits) -> Limits {
        let blocks = |new: Option<u64>, old| new.map_or(old, |bytes| bytes.div_ceil(B));
        Limits {
            blocks_soft: blocks(self.bytes_soft, old.blocks_soft),
            blocks: blocks(self.bytes_hard, old.blocks),
            inodes_soft: self.inodes_soft.unwrap_or(old.inodes_soft),
            inodes: self.inodes_hard.unwrap_or(old.inodes),
        }
    }
}

impl Fs {
    /// Projects from number `from` on, at most [`QUOTAS_MAX`], that have something or may have only so
    /// much.
    ///
    /// # Errors
    /// [`FsError::Perm`] unless the caller has `CAP_SYS_ADMIN` or runs the daemon.
    pub fn quotas(&self, by: impl Asker, from: u32) -> Result<Vec<Quota>> {
        may_manage(&by)?;
        self.e.await_orphans();
        let all = self.e.quotas.list(from).into_iter();
        let all = all.map(|p| Quota::of(&p)).filter(|q| {
            *q != Quota {
                project: q.project,
                ..Quota::default()
            }
        });
        Ok(all.take(QUOTAS_MAX).collect())
    }

    /// Sets limits of a project in one record. What it has may be above them: then it cannot grow.
    ///
    /// # Errors
    /// [`FsError::Perm`] unless the caller has `CAP_SYS_ADMIN` or runs the daemon, [`FsError::Invalid`] for project 0,
    /// [`FsError::NotSupported`] where the volume has no quota table, [`FsError::NoSpace`] if that is full.
    pub fn set_quota(&self, by: impl Asker, set: SetQuota) -> Result<()> {
        may_manage(&by)?;
        if set.project == 0 {
            return Err(FsError::Invalid);
        }
        let quotas = &self.e.quotas;
        if !quotas.is_kept() {
            return Err(FsError::NotSupported);
        }
        let _one = quotas.setting.lock();
        self.e.retrying(|| {
            let reservation = Reservation {
                record: 64 + LIMITS_BYTES as u32,
                ..Reservation::default()
            };
            let mut txn = Txn::begin(&self.e, reservation)?;
            let project = quotas.claim(set.project)?;
            let limits = set.apply(project.limits());
            quotas.write_limits(&mut txn, &project, &limits);
            txn.commit(Outcome::default().limits(project, limits))?;
            Ok(())
        })?;
        self.sync_all()
    }

    /// As [`Fs::statfs`], as an inode sees it: below a directory that passes its project on, what the
    /// project may have is all that there is.
    pub fn statfs_of(&self, ino: Ino) -> StatFs {
        let mut s = self.statfs();
        let project = |i: &Inode| (i.flags & FLAG_PROJECT != 0).then_some(i.project);
        let project = self
            .handle(ino)
            .ok()
            .and_then(|handle| handle.with(project));
        if let Some(p) = project.and_then(|id| self.e.quotas.get(id)) {
            let (usage, limits) = (p.usage(), p.limits());
            let limit = |soft, hard| if soft != 0 { soft } else { hard };
            let show = |all: &mut u64, free: &mut u64, limit: u64, used: u64| {
                if limit != 0 {
                    *all = (*all).min(limit);
                    *free = (*free).min(limit.saturating_sub(used));
                }
            };
            let blocks = limit(limits.blocks_soft, limits.blocks);
            show(&mut s.blocks, &mut s.free, blocks, usage.blocks);
            let inodes = limit(limits.inodes_soft, limits.inodes);
            show(&mut s.files, &mut s.files_free, inodes, usage.inodes);
        }
        s
    }
}
