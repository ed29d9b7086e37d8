//! rename.

use std::sync::Arc;

use quayfs_layout::Ino;
use quayfs_layout::inode::{Inode, ROOT, S_IFCHR};
use quayfs_store::error::{FsError, Result};
use quayfs_store::ns::dir::{self, Found};
use quayfs_store::ns::inode::Cell;
use quayfs_store::txn::{Edit, Needs, Outcome, PageSource, Told, Txn};

use crate::attr::{dirent_kind, now};
use crate::locks::lock_all;
use crate::ops::create::{LINK_MAX, New, entry_needs};
use crate::ops::link::may_join;
use crate::ops::unlink::drop_link;
use crate::{Caller, Fs, check_name, live_dir, protect};

/// How to rename.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RenameFlags {
    /// Fail if the new name exists.
    pub no_replace: bool,
    /// Exchange the two names.
    pub exchange: bool,
    /// The old name stays, as that of a whiteout: a character device 0/0, which belongs to this caller.
    /// File systems that are laid over others take it for the absence of a name.
    pub whiteout: Option<Caller>,
}

/// One of the two names.
struct Side {
    cell: Arc<Cell>,
    name: Vec<u8>,
}

impl Side {
    fn find(&self, src: &dyn PageSource, fs: &Fs, dir: &Inode) -> Result<Option<Found>> {
        dir::lookup(src, fs.e.hash, dir, &self.name)
    }
}

/// Images of the two directories; one if they are the same.
struct Dirs {
    old: Inode,
    new: Option<Inode>,
}

impl Dirs {
    fn target(&mut self) -> &mut Inode {
        self.new.as_mut().unwrap_or(&mut self.old)
    }
}

enum Renamed {
    Done { replaced: Option<Ino> },
    LookAgain,
}

impl Fs {
    /// Moves a name, atomically: at any time, and after any crash, the inode has the old name or
    /// the new one, and a name that is replaced never misses.
    pub fn rename(
        &self,
        (parent, name): (Ino, &[u8]),
        (new_parent, new_name): (Ino, &[u8]),
        flags: RenameFlags,
    ) -> Result<()> {
        check_name(name)?;
        check_name(new_name)?;
        if flags.exchange && (flags.no_replace || flags.whiteout.is_some()) {
            return Err(FsError::Invalid);
        }
        let old = Side {
            cell: self.cell(parent)?,
            name: name.to_vec(),
        };
        let new = Side {
            cell: self.cell(new_parent)?,
            name: new_name.to_vec(),
        };
        loop {
            // A directory that changes its parent could become its own ancestor.
            let _tree = (parent != new_parent).then(|| self.rename.lock());
            match self.e.retrying(|| self.try_rename(&old, &new, flags))? {
                Renamed::LookAgain => {}
                Renamed::Done { replaced } => {
                    drop(_tree);
                    self.settle_names(&old.cell)?;
                    self.settle_names(&new.cell)?;
                    if let Some(ino) = replaced
                        && !self.e.inodes.is_known(ino)
                    {
                        self.reap_if_orphan(ino);
                    }
                    return Ok(());
                }
            }
        }
    }

    fn try_rename(&self, old: &Side, new: &Side, flags: RenameFlags) -> Result<Renamed> {
        let across = old.cell.ino != new.cell.ino;
        let (a, b) = (
            entry_needs(old.cell.with(|i| i.depth)),
            entry_needs(new.cell.with(|i| i.depth)),
        );
        let needs = Needs {
            record: a.record + b.record,
            nodes: a.nodes + b.nodes,
            inodes: u64::from(flags.whiteout.is_some()),
            prefer: old.cell.ino as usize,
            ..Needs::default()
        };
        let mut txn = Txn::begin(&self.e, needs)?;

        // Look up, lock in order, look again.
        let look = |side: &Side| -> Result<Option<Found>> {
            let _op = side.cell.lock.read();
            side.find(&*self.e.nodes, self, &live_dir(&side.cell)?)
        };
        let source = look(old)?.ok_or(FsError::NoEntry)?;
        let target = look(new)?;
        let scell = self.cell(source.ino)?;
        let tcell = target.as_ref().map(|t| self.cell(t.ino)).transpose()?;
        if across && scell.with(Inode::is_dir) && self.is_below(new.cell.ino, source.ino)? {
            return Err(FsError::Invalid);
        }
        if let Some(t) = &tcell
            && across
            && flags.exchange
            && t.with(Inode::is_dir)
            && self.is_below(old.cell.ino, t.ino)?
        {
            return Err(FsError::Invalid);
        }
        let mut cells = vec![&old.cell, &new.cell, &scell];
        cells.extend(tcell.as_ref());
        let _op = lock_all(&cells);

        let mut dirs = Dirs {
            old: live_dir(&old.cell)?,
            new: if across {
                Some(live_dir(&new.cell)?)
            } else {
                None
            },
        };
        let now_source = old.find(&txn, self, &dirs.old)?;
        let now_target = new.find(&txn, self, dirs.target())?;
        if now_source.as_ref().map(|f| f.ino) != Some(source.ino)
            || now_target.as_ref().map(|f| f.ino) != target.as_ref().map(|f| f.ino)
        {
            return Ok(Renamed::LookAgain);
        }
        let source = now_source.ok_or(FsError::NoEntry)?;
        if flags.no_replace && now_target.is_some() {
            return Err(FsError::Exists);
        }
        if now_target.as_ref().is_some_and(|t| t.ino == source.ino) {
            // Two names of one inode: nothing to do (rename(2)).
            return Ok(Renamed::Done { replaced: None });
        }
        if flags.exchange && now_target.is_none() {
            return Err(FsError::NoEntry);
        }
        let (old_ino, new_ino) = (old.cell.ino, new.cell.ino);
        let mut moved = scell.image();
        protect::unname(&dirs.old, &moved)?;
        match &tcell {
            Some(t) => protect::unname(dirs.target(), &t.image())?,
            None => protect::grow(dirs.target())?,
        }
        may_join(dirs.target(), &moved)?;
        let time = now();
        if flags.exchange {
            let (Some(target), Some(tcell)) = (now_target, &tcell) else {
                return Err(FsError::NoEntry);
            };
            let mut other = tcell.image();
            may_join(&dirs.old, &other)?;
            let kinds = (dirent_kind(moved.mode), dirent_kind(other.mode));
            dir::replace(&mut txn, dirs.target(), &target, (source.ino, kinds.0))?;
            dir::replace(&mut txn, &dirs.old, &source, (target.ino, kinds.1))?;
            if across {
                rehome(&mut moved, (&mut dirs, false), new_ino);
                rehome(&mut other, (&mut dirs, true), old_ino);
            }
            moved.ctime = time;
            other.ctime = time;
            let other = Edit::exclusive(tcell, other);
            txn.commit(finish((old, new), dirs, (&scell, moved), Some(other)))?;
            return Ok(Renamed::Done { replaced: None });
        }
        let mut orphan = None;
        let mut loser = None;
        let kind = dirent_kind(moved.mode);
        match (now_target, &tcell) {
            (Some(target), Some(tcell)) => {
                let mut gone = tcell.image();
                match (moved.is_dir(), gone.is_dir()) {
                    (true, false) => return Err(FsError::NotDir),
                    (false, true) => return Err(FsError::IsDir),
                    (true, true) if gone.entries > 0 => return Err(FsError::NotEmpty),
                    _ => {}
                }
                dir::replace(&mut txn, dirs.target(), &target, (source.ino, kind))?;
                if gone.is_dir() {
                    dirs.target().nlink -= 1;
                }
                orphan = drop_link(self, &mut txn, target.ino, &mut gone)?;
                loser = Some(Edit::exclusive(tcell, gone));
            }
            _ => {
                if moved.is_dir() && across && dirs.target().nlink >= LINK_MAX {
                    return Err(FsError::TooManyLinks);
                }
                let new_dir = dirs.target();
                let vacancy = dir::vacancy(&txn, self.e.hash, new_dir, &new.name)?;
                let child = (source.ino, kind);
                dir::insert(&mut txn, (new_ino, new_dir), vacancy, &new.name, child)?;
            }
        }
        let whiteout = match flags.whiteout {
            None => {
                dir::remove(&mut txn, (old_ino, &mut dirs.old), &source)?;
                None
            }
            Some(by) => {
                let ino = txn.take_ino()?;
                let new = New {
                    mode: S_IFCHR,
                    ..New::default()
                };
                let image = self.fresh(&mut txn, by, (old_ino, &dirs.old), ino, &new)?;
                let child = (ino, dirent_kind(image.mode));
                dir::replace(&mut txn, &dirs.old, &source, child)?;
                Some((ino, image))
            }
        };
        if across {
            rehome(&mut moved, (&mut dirs, false), new_ino);
        }
        moved.ctime = time;
        let replaced = loser.as_ref().and(tcell.as_ref()).map(|cell| cell.ino);
        let mut outcome = finish((old, new), dirs, (&scell, moved), loser).promises(orphan);
        if let Some((ino, image)) = whiteout {
            outcome = outcome.creates(ino, image, Told::No);
        }
        txn.commit(outcome)?;
        Ok(Renamed::Done { replaced })
    }

    /// Whether `ino` is `top` or lies below it. The caller holds the rename lock, so the chain of
    /// parents stands still.
    fn is_below(&self, ino: Ino, top: Ino) -> Result<bool> {
        let mut at = ino;
        loop {
            if at == top {
                return Ok(true);
            }
            if at == ROOT {
                return Ok(false);
            }
            at = self.cell(at)?.with(|i| i.parent);
        }
    }
}

/// What becomes of the directories, of the moved inode, and of the one that had the new name.
fn finish<'c>(
    (old, new): (&'c Side, &'c Side),
    mut dirs: Dirs,
    (scell, moved): (&'c Arc<Cell>, Inode),
    other: Option<Edit<'c>>,
) -> Outcome<'c> {
    for d in [Some(&mut dirs.old), dirs.new.as_mut()]
        .into_iter()
        .flatten()
    {
        d.mtime = moved.ctime;
        d.ctime = moved.ctime;
    }
    let to = dirs.new.map(|d| Edit::exclusive(&new.cell, d));
    let all = [
        Some(Edit::exclusive(&old.cell, dirs.old)),
        to,
        Some(Edit::exclusive(scell, moved)),
        other,
    ];
    all.into_iter().flatten().collect()
}

/// A directory moves from one parent to the other: `back` from new to old.
fn rehome(moved: &mut Inode, (dirs, back): (&mut Dirs, bool), parent: Ino) {
    if !moved.is_dir() {
        return;
    }
    moved.parent = parent;
    if let Some(new) = dirs.new.as_mut() {
        let (from, to) = if back {
            (new, &mut dirs.old)
        } else {
            (&mut dirs.old, new)
        };
        from.nlink -= 1;
        to.nlink += 1;
    }
}
