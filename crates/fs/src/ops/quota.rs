//! Quotas of projects, users and groups: shown, and limits set.

use quayfs_layout::inode::{FLAG_PROJECT, Inode};
use quayfs_layout::quota::{GRACE_BYTES, LIMITS_BYTES, Limits, Subject};
use quayfs_layout::{BLOCK, Ino};
use quayfs_store::error::{FsError, Result};
use quayfs_store::ns::quota::{self, Logging, Quotas, Tally};
use quayfs_store::txn::{Outcome, Reservation, Txn};
use rustix::thread::CapabilitySet;
use serde::{Deserialize, Serialize};

use crate::status::may_manage;
use crate::{Asker, Fs, StatFs};

const B: u64 = BLOCK as u64;
/// Subjects in one answer, which has to fit an extended attribute.
pub const QUOTAS_MAX: usize = 192;

/// The spelling of a subject, as a field of its own: `"project": 7`, `"user": 1000`, `"group": 100`.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Subject", rename_all = "lowercase")]
enum Spelled {
    Project(u32),
    User(u32),
    Group(u32),
}

/// What a project, user or group has, and what it may have; a limit of 0 is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quota {
    /// Which of them.
    #[serde(flatten, with = "Spelled")]
    pub subject: Subject,
    /// Bytes of its blocks and pages of metadata.
    pub bytes: u64,
    /// Those that are exceeded for a while at most.
    pub bytes_soft: u64,
    /// Those that are never exceeded.
    pub bytes_hard: u64,
    /// Inodes.
    pub inodes: u64,
    /// Those that are exceeded for a while at most.
    pub inodes_soft: u64,
    /// Those that are never exceeded.
    pub inodes_hard: u64,
    /// When the grace time is over in which `bytes_soft` may be exceeded, in seconds since 1970; 0 while it is not
    /// exceeded. From then on nothing grows. Of number 0, whose soft limits are only shown: how long the grace time of
    /// each of its kind is, in seconds.
    #[serde(default)]
    pub bytes_grace: u64,
    /// The same of `inodes_soft`.
    #[serde(default)]
    pub inodes_grace: u64,
}

impl Quota {
    fn of(tally: &Tally, quotas: &Quotas) -> Self {
        let (usage, limits) = (tally.usage(), tally.limits());
        let grace = match tally.subject.id() {
            0 => quotas.period(tally.subject),
            _ => tally.grace(),
        };
        Self {
            subject: tally.subject,
            bytes: usage.blocks.saturating_mul(B),
            bytes_soft: limits.blocks_soft.saturating_mul(B),
            bytes_hard: limits.blocks.saturating_mul(B),
            inodes: usage.inodes,
            inodes_soft: limits.inodes_soft,
            inodes_hard: limits.inodes,
            bytes_grace: grace.blocks.into(),
            inodes_grace: grace.inodes.into(),
        }
    }
}

/// New limits: what is not given stays, 0 is none. Bytes are rounded up to blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetQuota {
    /// Whose. Project 0 has no limits, but grace times.
    #[serde(flatten, with = "Spelled")]
    pub subject: Subject,
    /// Bytes that are exceeded for a while at most.
    pub bytes_soft: Option<u64>,
    /// Bytes that are never exceeded.
    pub bytes_hard: Option<u64>,
    /// Inodes that are exceeded for a while at most.
    pub inodes_soft: Option<u64>,
    /// Inodes that are never exceeded.
    pub inodes_hard: Option<u64>,
    /// For how many seconds from now on `bytes_soft` may be exceeded, if it is just now. Of number 0: how long the grace
    /// time of each of its kind is, 0 for seven days.
    pub bytes_grace: Option<u32>,
    /// The same of `inodes_soft`.
    pub inodes_grace: Option<u32>,
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

    /// Project 0 has grace times alone.
    fn is_possible(&self) -> bool {
        let limits = [
            self.bytes_soft,
            self.bytes_hard,
            self.inodes_soft,
            self.inodes_hard,
        ];
        let grace = [self.bytes_grace, self.inodes_grace];
        let only_grace = limits == [None; 4] && grace != [None; 2];
        self.subject != Subject::default() || only_grace
    }
}

impl Fs {
    /// Subjects of the kind of `from`, from that one on, at most [`QUOTAS_MAX`], that have something or may have
    /// only so much. A caller that does not manage the mount may ask for its own user and its own group, and gets
    /// nothing else.
    ///
    /// # Errors
    /// [`FsError::Perm`] for all else, unless the caller has `CAP_SYS_ADMIN` or runs the daemon.
    pub fn quotas(&self, by: impl Asker, from: Subject) -> Result<Vec<Quota>> {
        let is_own = match from {
            Subject::Project(_) => false,
            Subject::User(id) => by.ids().uid == id,
            Subject::Group(id) => by.ids().gid == id,
        };
        let manages = match may_manage(&by) {
            Ok(()) => true,
            Err(_) if is_own => false,
            Err(e) => return Err(e),
        };
        self.e.await_orphans();
        let all = self.e.quotas.list(from, QUOTAS_MAX);
        let shown = all.iter().filter(|t| manages || t.subject == from);
        Ok(shown
            .map(|tally| Quota::of(tally, &self.e.quotas))
            .collect())
    }

    /// Carries out an operation of a caller for which limits of users and groups do not hold, as it has
    /// `CAP_SYS_RESOURCE`; `None`, and nothing is done, for any other. Limits of projects hold for all callers. That is
    /// to be asked after an operation was refused, and right after that, by the same thread: it may cost a few system calls,
    /// and what an append has appended until then is not appended again.
    pub fn beyond_limits<T>(&self, by: impl Asker, operation: impl FnOnce() -> T) -> Option<T> {
        by.has(CapabilitySet::SYS_RESOURCE)
            .then(|| quota::exempt(operation))
    }

    /// Sets limits of a project, user or group in one record. What it has may be above them: then it cannot grow.
    ///
    /// # Errors
    /// [`FsError::Perm`] unless the caller has `CAP_SYS_ADMIN` or runs the daemon, [`FsError::Invalid`] for limits of
    /// project 0,
    /// [`FsError::NotSupported`] where the volume does not count such subjects, [`FsError::NoSpace`] if its quota table
    /// is full.
    pub fn set_quota(&self, by: impl Asker, set: SetQuota) -> Result<()> {
        may_manage(&by)?;
        if !set.is_possible() {
            return Err(FsError::Invalid);
        }
        let quotas = &self.e.quotas;
        if !quotas.counts(set.subject) {
            return Err(FsError::NotSupported);
        }
        let _one = quotas.setting.lock();
        self.e.retrying(|| {
            let reservation = Reservation {
                record: 64 + (LIMITS_BYTES + GRACE_BYTES) as u32,
                ..Reservation::default()
            };
            let mut txn = Txn::begin(&self.e, reservation)?;
            let tally = quotas.claim(set.subject)?;
            let _alone = Logging::wait(&tally);
            let limits = set.apply(tally.limits());
            let wish = [set.bytes_grace, set.inodes_grace];
            let grace = tally.grace_under(&limits, wish, quotas.period(set.subject));
            quotas.write_limits(&mut txn, &tally, &limits, &grace);
            txn.commit(Outcome::default().limits(tally, limits, grace))?;
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
        if let Some(p) = project.and_then(|id| self.e.quotas.get(Subject::Project(id))) {
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
            s.available = s.available.min(s.free);
            let inodes = limit(limits.inodes_soft, limits.inodes);
            show(&mut s.files, &mut s.files_free, inodes, usage.inodes);
        }
        s
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kind_of_a_subject_is_the_name_of_a_field() {
        let quota = Quota {
            subject: Subject::User(1000),
            bytes: B,
            ..Quota::default()
        };
        let json = serde_json::to_value(quota).unwrap();
        assert_eq!((&json["user"], &json["bytes"]), (&1000.into(), &B.into()));
        assert_eq!(json.as_object().map(|o| o.len()), Some(9));
        assert_eq!(serde_json::from_value::<Quota>(json).unwrap(), quota);
        let set = |text| serde_json::from_str::<SetQuota>(text);
        let group = SetQuota {
            subject: Subject::Group(5),
            bytes_hard: Some(1),
            ..SetQuota::default()
        };
        assert_eq!(set(r#"{"bytes_hard":1,"group":5}"#).unwrap(), group);
        let project = set(r#"{"project":7}"#).unwrap();
        assert_eq!(project.subject, Subject::Project(7));
        for wrong in [r#"{"bytes_hard":1}"#, r#"{"tree":7}"#, r#"{"user":-1}"#] {
            assert!(set(wrong).is_err(), "{wrong}");
        }
    }
}
