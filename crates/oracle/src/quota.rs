//! Quotas: what is counted is what is there, what is refused would not have fitted, and what is not
//! refused fits.

use std::collections::BTreeMap;
use std::sync::Arc;

use quayfs_fs::{FallocMode, Fs, SetQuota, Subject};
use quayfs_layout::quota::{Limits, Usage};
use quayfs_layout::{BLOCK, Ino};
use quayfs_store::ns::quota::{Quotas, Tally};

use crate::apply::on_model;
use crate::dump::Tree;
use crate::model::Model;
use crate::ops::Op;

/// What projects, users and groups have; those that have nothing are left out.
pub type Usages = BTreeMap<Subject, Usage>;

/// What they may have; those that may have anything are left out.
pub type AllLimits = BTreeMap<Subject, Limits>;

type Result<T> = std::result::Result<T, String>;

/// All that a table has of any kind.
pub fn all(quotas: &Quotas) -> Vec<Arc<Tally>> {
    [Subject::Project, Subject::User, Subject::Group]
        .into_iter()
        .flat_map(|kind| quotas.list(kind(0), usize::MAX))
        .collect()
}

/// The limits of the file system.
pub fn limits(fs: &Fs) -> AllLimits {
    let all = all(&fs.e.quotas).into_iter();
    all.map(|t| (t.subject, t.limits()))
        .filter(|(_, limits)| *limits != Limits::default())
        .collect()
}

/// The call that gives these limits and no others.
pub fn all_of(subject: Subject, limits: &Limits) -> SetQuota {
    let bytes = |blocks: u64| Some(blocks * BLOCK as u64);
    SetQuota {
        subject,
        bytes_soft: bytes(limits.blocks_soft),
        bytes_hard: bytes(limits.blocks),
        inodes_soft: Some(limits.inodes_soft),
        inodes_hard: Some(limits.inodes),
        ..SetQuota::default()
    }
}

/// What its counters say.
fn counted(fs: &Fs) -> Usages {
    let all = all(&fs.e.quotas).into_iter();
    all.map(|t| (t.subject, t.usage()))
        .filter(|(_, usage)| *usage != Usage::default())
        .collect()
}

/// What counts an inode of this project, user and group; project 0 does not.
fn subjects((project, uid, gid): (u32, u32, u32)) -> impl Iterator<Item = Subject> {
    let project = (project != 0).then_some(Subject::Project(project));
    let owners = [Subject::User(uid), Subject::Group(gid)];
    owners.into_iter().chain(project)
}

/// What the inodes themselves say; every one is among `inos`, with its project, user and group.
fn summed(fs: &Fs, inos: impl Iterator<Item = (Ino, (u32, u32, u32))>) -> Result<Usages> {
    let mut all = Usages::new();
    for (ino, ids) in inos {
        let attr = fs.getattr(ino).map_err(|e| format!("inode {ino}: {e}"))?;
        for subject in subjects(ids).filter(|s| fs.e.quotas.counts(*s)) {
            let usage = all.entry(subject).or_default();
            usage.blocks += attr.inode.blocks;
            usage.inodes += 1;
        }
    }
    Ok(all)
}

/// Whether they have what is in `tree`, which is everything: no inode is open without a name.
pub fn check(fs: &Fs, tree: &Tree) -> Result<()> {
    let inos: BTreeMap<Ino, _> = (tree.values())
        .filter_map(|i| Some((i.identity?.0, (i.project, i.uid, i.gid))))
        .collect();
    same(counted(fs), summed(fs, inos.into_iter())?)
}

fn same(counted: Usages, there: Usages) -> Result<()> {
    match counted == there {
        true => Ok(()),
        false => Err(format!("quotas: {counted:?} counted, {there:?} are there")),
    }
}

/// What projects, users and groups have, and the blocks of the inodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Books {
    usage: Usages,
    blocks: BTreeMap<Ino, u64>,
}

impl Books {
    /// What there is; nothing where there is no limit. No other thread is at work.
    pub fn open(fs: &Fs, m: &Model) -> Result<Option<Self>> {
        if m.limits.is_empty() {
            return Ok(None);
        }
        same(
            counted(fs),
            summed(fs, m.nodes.iter().map(|(ino, n)| (*ino, n.ids())))?,
        )?;
        let mut blocks = BTreeMap::new();
        for ino in m.nodes.keys() {
            let attr = fs.getattr(*ino).map_err(|e| format!("inode {ino}: {e}"))?;
            blocks.insert(*ino, attr.inode.blocks);
        }
        Ok(Some(Self {
            usage: counted(fs),
            blocks,
        }))
    }

    fn of(&self, subject: Subject) -> Usage {
        self.usage.get(&subject).copied().unwrap_or_default()
    }

    /// `op` was not refused: nothing has grown beyond a limit.
    pub fn kept(&self, fs: &Fs, m: &Model, op: &Op) -> Result<()> {
        let Some(now) = Self::open(fs, m)? else {
            return Ok(());
        };
        for (subject, limits) in &m.limits {
            let (had, has) = (self.of(*subject), now.of(*subject));
            // What gives space back may take a page to split an extent.
            let page = matches!(
                op,
                Op::Fallocate {
                    mode: FallocMode::Punch | FallocMode::Zero { .. },
                    ..
                }
            );
            let had_blocks = had.blocks + u64::from(page);
            let over = |limit, had, has| limit != 0 && has > had && has > limit;
            if over(limits.blocks, had_blocks, has.blocks)
                || over(limits.inodes, had.inodes, has.inodes)
            {
                return Err(format!(
                    "{op:?}: {subject} grew from {had:?} to {has:?}, it may have {limits:?}"
                ));
            }
        }
        Ok(())
    }
}

/// `op` was refused: some limit is in its way, and nothing has changed. `before` is what there was.
pub fn refused(fs: &Fs, m: &mut Model, op: &Op, before: Option<Books>) -> Result<()> {
    if let Op::Fallocate {
        ino,
        mode: FallocMode::Zero { keep_size },
        offset,
        len,
    } = *op
    {
        // The hole has been made, in a record of its own.
        let punched = m.fallocate(ino, FallocMode::Punch, offset, len);
        punched.map_err(|e| format!("{op:?} is refused, should be {e}"))?;
        let mode = FallocMode::Allocate { keep_size };
        let rest = Op::Fallocate {
            ino,
            mode,
            offset,
            len,
        };
        return due(fs, m, &rest);
    }
    if Books::open(fs, m)? != before {
        return Err(format!("{op:?} is refused, and something has changed"));
    }
    due(fs, m, op)
}

/// Whether some limit is in the way of `op`, which has not happened.
pub fn due(fs: &Fs, m: &Model, op: &Op) -> Result<()> {
    let Some(now) = Books::open(fs, m)? else {
        return Err(format!("{op:?} is refused, and there is no limit"));
    };
    let mut after = m.clone();
    on_model(&mut after, op, Some(Ino::MAX), fs.request_max() as u64)
        .map_err(|e| format!("{op:?} is refused, should be {e}"))?;
    let in_the_way = m.limits.iter().any(|(subject, limits)| {
        let blocks = |ino: Ino| now.blocks.get(&ino).copied().unwrap_or_default();
        let (more_blocks, more_inodes) = m.growth(&after, (op, *subject), blocks);
        let has = now.of(*subject);
        let over = |limit: u64, has: u64, more: i64| {
            limit != 0 && more > 0 && has.saturating_add_signed(more) > limit
        };
        over(limits.blocks, has.blocks, more_blocks) || over(limits.inodes, has.inodes, more_inodes)
    });
    match in_the_way {
        true => Ok(()),
        false => Err(format!(
            "{op:?} is refused, but no limit is in its way: {:?} of {:?}",
            now.usage, m.limits
        )),
    }
}
