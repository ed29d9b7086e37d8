//! rename.

use std::sync::Arc;

use quayfs_layout::Ino;
use quayfs_layout::inode::{Inode, ROOT, S_IFCHR};
use quayfs_store::error::{FsError, Result};
use quayfs_store::ns::dir::{self, Found};
use quayfs_store::ns::inode::InodeHandle;
use quayfs_store::ns::intent::BegunIntent;
use quayfs_store::txn::{Edit, Outcome, PageSource, Reservation, Told, Txn};

use crate::attr::{dirent_kind, now};
use crate::locks::lock_all;
use crate::ops::create::{LINK_MAX, New, entry_reservation};
use crate::ops::link::may_join;
use crate::ops::unlink::drop_link;
use crate::{Caller, Fs, check_name, edit_dir, live_dir, protect};

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
    handle: Arc<InodeHandle>,
    name: Vec<u8>,
}

impl Side {
    fn find(&self, src: &dyn PageSource, fs: &Fs, dir: &Inode) -> Result<Option<Found>> {
        dir::lookup(src, fs.e.hash, dir, &self.name)
    }
}

/// The two directories; one if they are the same.
struct Dirs<'c> {
    old: Edit<'c>,
    new: Option<Edit<'c>>,
}

/// Which way a directory moves.
#[derive(Clone, Copy)]
enum Way {
    /// From the old parent to the new one.
    There,
    /// The other way.
    Back,
}

impl<'c> Dirs<'c> {
    fn edit(old: &'c Side, new: &'c Side) -> Result<Self> {
        let across = old.handle.ino != new.handle.ino;
        Ok(Self {
            old: edit_dir(&old.handle)?,
            new: across.then(|| edit_dir(&new.handle)).transpose()?,
        })
    }

    fn target(&mut self) -> &mut Edit<'c> {
        self.new.as_mut().unwrap_or(&mut self.old)
    }

    /// If an inode is a directory, it moves from one parent to the other.
    fn rehome(&mut self, moved: &mut Inode, way: Way) {
        let (old, Some(new)) = (&mut self.old, &mut self.new) else {
            return;
        };
        if !moved.is_dir() {
            return;
        }
        let (from, to) = match way {
            Way::There => (old, new),
            Way::Back => (new, old),
        };
        moved.parent = to.ino();
        from.image.nlink -= 1;
        to.image.nlink += 1;
    }

    /// What becomes of them, of the moved inode, and of the one that had the new name.
    fn outcome<'o>(
        &'o mut self,
        moved: &'o mut Edit<'c>,
        other: Option<&'o mut Edit<'c>>,
    ) -> Outcome<'o, 'c> {
        let time = moved.image.ctime;
        let (old, mut new) = (&mut self.old, self.new.as_mut());
        for dir in [Some(&mut *old), new.as_deref_mut()].into_iter().flatten() {
            dir.image.mtime = time;
            dir.image.ctime = time;
        }
        [Some(old), new, Some(moved), other].into()
    }
}

/// The inodes that have the two names, as they were found without locks.
struct Seen {
    source: Arc<InodeHandle>,
    target: Option<Arc<InodeHandle>>,
}

enum Renamed {
    Done { replaced: Option<Ino> },
    LookAgain,
}

impl Fs {
    /// Moves a name, atomically: at any time, and after any crash, the inode has the old name or
    /// the new one, and a name that is replaced never misses.
    ///
    /// # Errors
    /// As rename(2); nothing is changed then. [`FsError::NoEntry`]: no old name, or with `exchange` no new one;
    /// [`FsError::Exists`]: with `no_replace`, a new one. [`FsError::NotEmpty`]: the new name is that of a directory with
    /// entries, and a directory would take its place; [`FsError::NotDir`], [`FsError::IsDir`]: only one of the two is a
    /// directory. [`FsError::Invalid`]: a directory would get below itself, or flags that exclude each other. What must
    /// agree with these: `crates/fs/tests/operations/renames.rs`, the model of `crates/oracle`, docs/semantics.md.
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
            handle: self.handle(parent)?,
            name: name.to_vec(),
        };
        let new = Side {
            handle: self.handle(new_parent)?,
            name: new_name.to_vec(),
        };
        loop {
            // A directory that changes its parent could become its own ancestor.
            let _tree = (parent != new_parent).then(|| self.rename.lock());
            match self.e.retrying(|| self.try_rename(&old, &new, flags))? {
                Renamed::LookAgain => {}
                Renamed::Done { replaced } => {
                    drop(_tree);
                    self.settle_names(&old.handle)?;
                    self.settle_names(&new.handle)?;
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
        let txn = Txn::begin(&self.e, reservation(old, new, flags))?;
        // Look up, lock in order, look again.
        let seen = self.find_both((old, new), flags.exchange)?;
        let mut handles = vec![&old.handle, &new.handle, &seen.source];
        handles.extend(seen.target.as_ref());
        let _op = lock_all(&handles);
        let mut dirs = Dirs::edit(old, new)?;
        let source = old.find(&txn, self, &dirs.old.image)?;
        let target = new.find(&txn, self, &dirs.target().image)?;
        let ino = |found: &Option<Found>| found.as_ref().map(|f| f.ino);
        if ino(&source) != Some(seen.source.ino)
            || ino(&target) != seen.target.as_ref().map(|t| t.ino)
        {
            return Ok(Renamed::LookAgain);
        }
        let source = source.ok_or(FsError::NoEntry)?;
        match &target {
            Some(_) if flags.no_replace => return Err(FsError::Exists),
            // Two names of one inode: nothing to do (rename(2)).
            Some(t) if t.ino == source.ino => return Ok(Renamed::Done { replaced: None }),
            None if flags.exchange => return Err(FsError::NoEntry),
            _ => {}
        }
        let target = (target.zip(seen.target.as_ref()))
            .map(|(found, handle)| (found, Edit::exclusive(handle, handle.image())));
        let mut moving = Moving {
            fs: self,
            txn,
            name: &new.name,
            dirs,
            source,
            moved: Edit::exclusive(&seen.source, seen.source.image()),
        };
        moving.check(target.as_ref().map(|(_, other)| other))?;
        match target {
            Some(target) if flags.exchange => moving.exchange(target),
            target => moving.replace(target, flags.whiteout),
        }
    }

    /// The inodes of both names. The caller holds the rename lock if there are two directories.
    fn find_both(&self, (old, new): (&Side, &Side), exchange: bool) -> Result<Seen> {
        let look = |side: &Side| -> Result<Option<Found>> {
            let _op = side.handle.lock.read();
            side.find(&*self.e.nodes, self, &live_dir(&side.handle)?)
        };
        let source = look(old)?.ok_or(FsError::NoEntry)?;
        let target = look(new)?;
        let source = self.handle(source.ino)?;
        let target = target.map(|t| self.handle(t.ino)).transpose()?;
        if old.handle.ino == new.handle.ino {
            return Ok(Seen { source, target });
        }
        let is_above = |handle: &InodeHandle, side: &Side| -> Result<bool> {
            Ok(handle.with(Inode::is_dir) && self.is_below(side.handle.ino, handle.ino)?)
        };
        if is_above(&source, new)? {
            return Err(FsError::Invalid);
        }
        if let Some(target) = &target
            && exchange
            && is_above(target, old)?
        {
            return Err(FsError::Invalid);
        }
        Ok(Seen { source, target })
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
            at = self.handle(at)?.with(|i| i.parent);
        }
    }
}

fn reservation(old: &Side, new: &Side, flags: RenameFlags) -> Reservation {
    let [a, b] = [old, new].map(|side| entry_reservation(side.handle.with(|i| i.depth)));
    Reservation {
        record: a.record + b.record,
        nodes: a.nodes + b.nodes,
        inodes: u64::from(flags.whiteout.is_some()),
        prefer: old.handle.ino as usize,
        ..Reservation::default()
    }
}

/// An inode that has lost its name, and the intent to free it if that was its last.
type Lost<'c> = (Option<Edit<'c>>, Option<BegunIntent<'c>>);

/// A rename, with the locks of all inodes that it changes held.
struct Moving<'e, 'c> {
    fs: &'c Fs,
    txn: Txn<'e>,
    /// The new name.
    name: &'c [u8],
    dirs: Dirs<'c>,
    /// The entry of the old name.
    source: Found,
    moved: Edit<'c>,
}

impl<'c> Moving<'_, 'c> {
    /// Whether the names may come and go; `other` has the new one.
    fn check(&mut self, other: Option<&Edit<'_>>) -> Result<()> {
        let (moved, old) = (&self.moved.image, &self.dirs.old.image);
        protect::unname(old, moved)?;
        let new = &self.dirs.target().image;
        match other {
            Some(other) => protect::unname(new, &other.image)?,
            None => protect::grow(new)?,
        }
        may_join(new, moved)
    }

    /// Both names stay, each with the other inode.
    fn exchange(mut self, (target, mut other): (Found, Edit<'c>)) -> Result<Renamed> {
        let (txn, dirs) = (&mut self.txn, &mut self.dirs);
        let (moved, back) = (&mut self.moved.image, &mut other.image);
        may_join(&dirs.old.image, back)?;
        let time = now();
        let kinds = (dirent_kind(moved.mode), dirent_kind(back.mode));
        let new_dir = &dirs.target().image;
        dir::replace(txn, new_dir, &target, (self.source.ino, kinds.0))?;
        let old_dir = &dirs.old.image;
        dir::replace(txn, old_dir, &self.source, (target.ino, kinds.1))?;
        dirs.rehome(moved, Way::There);
        dirs.rehome(back, Way::Back);
        moved.ctime = time;
        back.ctime = time;
        let outcome = self.dirs.outcome(&mut self.moved, Some(&mut other));
        self.txn.commit(outcome)?;
        Ok(Renamed::Done { replaced: None })
    }

    /// The inode gets the new name, which another one may lose, and loses the old one.
    fn replace(
        mut self,
        target: Option<(Found, Edit<'c>)>,
        whiteout: Option<Caller>,
    ) -> Result<Renamed> {
        let time = now();
        let replaced = target.as_ref().map(|(found, _)| found.ino);
        let (mut loser, orphan) = match target {
            Some((found, gone)) => self.take_name(&found, gone)?,
            None => self.add_name()?,
        };
        let left = whiteout.map(|by| self.leave_whiteout(by)).transpose()?;
        if left.is_none() {
            let old = &mut self.dirs.old;
            dir::remove(&mut self.txn, (old.ino(), &mut old.image), &self.source)?;
        }
        self.dirs.rehome(&mut self.moved.image, Way::There);
        self.moved.image.ctime = time;
        let outcome = self.dirs.outcome(&mut self.moved, loser.as_mut());
        let mut outcome = outcome.begins(orphan);
        if let Some((ino, image)) = &left {
            outcome = outcome.creates(*ino, image, Told::No);
        }
        self.txn.commit(outcome)?;
        Ok(Renamed::Done { replaced })
    }

    /// The new name is that of another inode, which loses it.
    fn take_name(&mut self, found: &Found, mut gone: Edit<'c>) -> Result<Lost<'c>> {
        let (moved, image) = (&self.moved.image, &mut gone.image);
        match (moved.is_dir(), image.is_dir()) {
            (true, false) => return Err(FsError::NotDir),
            (false, true) => return Err(FsError::IsDir),
            (true, true) if image.entries > 0 => return Err(FsError::NotEmpty),
            _ => {}
        }
        let child = (self.source.ino, dirent_kind(moved.mode));
        let dir = &mut self.dirs.target().image;
        dir::replace(&mut self.txn, dir, found, child)?;
        if image.is_dir() {
            dir.nlink -= 1;
        }
        let orphan = drop_link(self.fs, &mut self.txn, found.ino, image)?;
        Ok((Some(gone), orphan))
    }

    /// There is no such name yet: nothing is lost.
    fn add_name(&mut self) -> Result<Lost<'c>> {
        let moved = &self.moved.image;
        let across = self.dirs.new.is_some();
        let to = self.dirs.target();
        let (ino, dir) = (to.ino(), &mut to.image);
        if moved.is_dir() && across && dir.nlink >= LINK_MAX {
            return Err(FsError::TooManyLinks);
        }
        let vacancy = dir::vacancy(&self.txn, self.fs.e.hash, dir, self.name)?;
        let child = (self.source.ino, dirent_kind(moved.mode));
        dir::insert(&mut self.txn, (ino, dir), vacancy, self.name, child)?;
        Ok((None, None))
    }

    /// The old name stays, as that of a new whiteout.
    fn leave_whiteout(&mut self, by: Caller) -> Result<(Ino, Inode)> {
        let ino = self.txn.take_ino()?;
        let new = New::of(S_IFCHR);
        let dir = &self.dirs.old;
        let from = (dir.ino(), &dir.image);
        let image = self.fs.fresh(&mut self.txn, by, from, ino, &new)?;
        let child = (ino, dirent_kind(image.mode));
        dir::replace(&mut self.txn, &dir.image, &self.source, child)?;
        Ok((ino, image))
    }
}
