//! Quotas of projects: what is counted is what is there, what is refused would not have fitted, and what
//! is not refused fits.

use std::collections::BTreeMap;

use quayfs_fs::{FallocMode, Fs, SetQuota};
use quayfs_layout::quota::{Limits, Usage};
use quayfs_layout::{BLOCK, Ino};

use crate::apply::on_model;
use crate::dump::Tree;
use crate::model::Model;
use crate::ops::Op;

/// What projects have; those that have nothing are left out.
pub type Usages = BTreeMap<u32, Usage>;

/// What projects may have; those that may have anything are left out.
pub type AllLimits = BTreeMap<u32, Limits>;

type Result<T> = std::result::Result<T, String>;

/// The limits of the file system.
pub fn limits(fs: &Fs) -> AllLimits {
    let all = fs.e.quotas.list(0).into_iter();
    all.map(|p| (p.id, p.limits()))
        .filter(|(_, limits)| *limits != Limits::default())
        .collect()
}

/// The call that gives a project these limits and no others.
pub fn all_of(project: u32, limits: &Limits) -> SetQuota {
    let bytes = |blocks: u64| Some(blocks * BLOCK as u64);
    SetQuota {
        project,
        bytes_soft: bytes(limits.blocks_soft),
        bytes_hard: bytes(limits.blocks),
        inodes_soft: Some(limits.inodes_soft),
        inodes_hard: Some(limits.inodes),
    }
}

/// What its counters say.
fn counted(fs: &Fs) -> Usages {
    let all = fs.e.quotas.list(0).into_iter();
    all.map(|p| (p.id, p.usage()))
        .filter(|(_, usage)| *usage != Usage::default())
        .collect()
}

/// What the inodes themselves say; every one of a project is among `inos`.
fn summed(fs: &Fs, inos: impl Iterator<Item = (Ino, u32)>) -> Result<Usages> {
    let mut all = Usages::new();
    for (ino, project) in inos.filter(|(_, project)| *project != 0) {
        let attr = fs.getattr(ino).map_err(|e| format!("inode {ino}: {e}"))?;
        let usage = all.entry(project).or_default();
        usage.blocks += attr.inode.blocks;
        usage.inodes += 1;
    }
    Ok(all)
}

/// Whether projects have what is in `tree`, which is everything: no inode is open without a name.
pub fn check(fs: &Fs, tree: &Tree) -> Result<()> {
    let inos: BTreeMap<Ino, u32> = (tree.values())
        .filter_map(|i| Some((i.identity?.0, i.project)))
        .collect();
    same(counted(fs), summed(fs, inos.into_iter())?)
}

fn same(counted: Usages, there: Usages) -> Result<()> {
    match counted == there {
        true => Ok(()),
        false => Err(format!(
            "projects: {counted:?} counted, {there:?} are there"
        )),
    }
}

/// What projects have, and the blocks of their inodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Books {
    usage: Usages,
    blocks: BTreeMap<Ino, u64>,
}

impl Books {
    /// What there is before or after `op`; nothing where no project has a limit. No other thread is at work.
    pub fn open(fs: &Fs, m: &Model, op: &Op) -> Result<Option<Self>> {
        if m.limits.is_empty() {
            return Ok(None);
        }
        same(
            counted(fs),
            summed(fs, m.nodes.iter().map(|(ino, n)| (*ino, n.project)))?,
        )?;
        let joins = match op {
            Op::SetProject { ino, .. } => *ino,
            _ => 0,
        };
        let ours = (m.nodes.iter()).filter(|(ino, n)| n.project != 0 || **ino == joins);
        let mut blocks = BTreeMap::new();
        for (ino, _) in ours {
            let attr = fs.getattr(*ino).map_err(|e| format!("inode {ino}: {e}"))?;
            blocks.insert(*ino, attr.inode.blocks);
        }
        Ok(Some(Self {
            usage: counted(fs),
            blocks,
        }))
    }

    fn of(&self, project: u32) -> Usage {
        self.usage.get(&project).copied().unwrap_or_default()
    }

    /// `op` was not refused: no project has grown beyond a limit.
    pub fn kept(&self, fs: &Fs, m: &Model, op: &Op) -> Result<()> {
        let Some(now) = Self::open(fs, m, op)? else {
            return Ok(());
        };
        for (id, limits) in &m.limits {
            let (had, has) = (self.of(*id), now.of(*id));
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
                    "{op:?}: project {id} grew from {had:?} to {has:?}, it may have {limits:?}"
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
    if Books::open(fs, m, op)? != before {
        return Err(format!("{op:?} is refused, and something has changed"));
    }
    due(fs, m, op)
}

/// Whether some limit is in the way of `op`, which has not happened.
pub fn due(fs: &Fs, m: &Model, op: &Op) -> Result<()> {
    let Some(now) = Books::open(fs, m, op)? else {
        return Err(format!("{op:?} is refused, and no project has a limit"));
    };
    let mut after = m.clone();
    on_model(&mut after, op, Some(Ino::MAX), fs.request_max() as u64)
        .map_err(|e| format!("{op:?} is refused, should be {e}"))?;
    let in_the_way = m.limits.iter().any(|(id, limits)| {
        let blocks = |ino: Ino| now.blocks.get(&ino).copied().unwrap_or_default();
        let (more_blocks, more_inodes) = m.growth(&after, (op, *id), blocks);
        let has = now.of(*id);
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
