//! A file system in plain data structures: what the real one has to look like.
//!
//! Errors come in the order in which the operation layer finds them, so that results can be
//! compared as they are.

mod data;
pub mod lists;
mod quota;

use std::collections::BTreeMap;

use quayfs_fs::{Caller, RenameFlags};
use quayfs_layout::Ino;
use quayfs_layout::inode::{
    FLAG_APPEND, FLAG_IMMUTABLE, FLAG_PROJECT, FLAGS_INHERITED, ROOT, S_IFCHR, S_IFDIR, S_IFLNK,
    S_IFMT, S_IFREG, S_ISGID, S_ISUID, flags_of,
};
use quayfs_store::error::FsError;

use crate::content::Content;
use crate::quota::AllLimits;

type Result<T> = std::result::Result<T, FsError>;

/// Largest file offset plus one.
pub const SIZE_MAX: u64 = i64::MAX as u64;

/// An inode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// Type and permissions; 0 once it is gone.
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u32,
    /// Of a directory.
    pub parent: Ino,
    pub entries: BTreeMap<Vec<u8>, Ino>,
    /// Of a file.
    pub content: Content,
    /// Of a symbolic link.
    pub target: Vec<u8>,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Of `chattr`.
    pub flags: u32,
    pub project: u32,
    /// Lookups that the kernel has not forgotten.
    pub known: u64,
}

impl Node {
    pub fn kind(&self) -> u32 {
        self.mode & S_IFMT
    }

    pub fn is_dir(&self) -> bool {
        self.kind() == S_IFDIR
    }

    /// The project of what is made in a directory.
    fn passes_on(&self) -> u32 {
        if self.flags & FLAG_PROJECT != 0 {
            self.project
        } else {
            0
        }
    }

    /// A directory that passes its project on takes nothing of another.
    fn may_take(&self, other: &Self) -> Result<()> {
        if self.flags & FLAG_PROJECT != 0 && self.project != other.project {
            return Err(FsError::OtherProject);
        }
        Ok(())
    }

    pub fn is_file(&self) -> bool {
        self.kind() == S_IFREG
    }

    /// Nothing may be changed, nor anything added.
    fn may_grow(&self) -> Result<()> {
        self.without(FLAG_IMMUTABLE)
    }

    /// Nothing that is there may be changed.
    fn may_change(&self) -> Result<()> {
        self.without(FLAG_IMMUTABLE | FLAG_APPEND)
    }

    fn without(&self, flags: u32) -> Result<()> {
        if self.flags & flags == 0 {
            Ok(())
        } else {
            Err(FsError::Perm)
        }
    }

    pub fn is_symlink(&self) -> bool {
        self.kind() == S_IFLNK
    }

    fn drop_privileges(&mut self) {
        if self.kind() != S_IFDIR {
            self.mode &= !S_ISUID;
            if self.mode & 0o010 != 0 {
                self.mode &= !S_ISGID;
            }
        }
    }

    /// By root's own group, but not by root.
    fn drop_privileges_of_stranger(&mut self) {
        self.drop_privileges();
        if self.gid != 0 {
            self.mode &= !S_ISGID;
        }
    }

    fn xattr_bytes(&self) -> usize {
        self.xattrs.iter().map(|(n, v)| 5 + n.len() + v.len()).sum()
    }
}

/// A tree below one directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    pub root: Ino,
    pub nodes: BTreeMap<Ino, Node>,
    /// What projects, users and groups may have.
    pub limits: AllLimits,
}

impl Default for Model {
    fn default() -> Self {
        Self::new()
    }
}

impl Model {
    /// An empty volume.
    pub fn new() -> Self {
        Self::below(ROOT, 0o755)
    }

    /// An empty directory of a volume.
    pub fn below(root: Ino, mode: u32) -> Self {
        let node = Node {
            mode: S_IFDIR | mode,
            nlink: 2,
            parent: root,
            ..Node::default()
        };
        Self {
            root,
            nodes: BTreeMap::from([(root, node)]),
            limits: AllLimits::new(),
        }
    }

    /// A live inode.
    pub fn node(&self, ino: Ino) -> Result<&Node> {
        self.nodes.get(&ino).ok_or(FsError::Stale)
    }

    pub fn node_mut(&mut self, ino: Ino) -> Result<&mut Node> {
        self.nodes.get_mut(&ino).ok_or(FsError::Stale)
    }

    fn dir(&self, ino: Ino) -> Result<&Node> {
        let n = self.node(ino)?;
        match n {
            _ if !n.is_dir() => Err(FsError::NotDir),
            _ if n.nlink == 0 => Err(FsError::NoEntry),
            n => Ok(n),
        }
    }

    /// What a name refers to.
    pub fn child(&self, dir: Ino, name: &[u8]) -> Option<Ino> {
        self.nodes.get(&dir)?.entries.get(name).copied()
    }

    pub fn lookup(&mut self, dir: Ino, name: &[u8]) -> Result<Ino> {
        if name.len() > 255 {
            return Err(FsError::NameTooLong);
        }
        let d = self.node(dir)?;
        if !d.is_dir() {
            return Err(FsError::NotDir);
        }
        let ino = match name {
            b"." => dir,
            b".." => d.parent,
            _ => *d.entries.get(name).ok_or(FsError::NoEntry)?,
        };
        self.node_mut(ino)?.known += 1;
        Ok(ino)
    }

    /// Whether `node` could be created; the caller then says which number it got.
    pub fn may_create(&self, dir: Ino, name: &[u8], mode: u32, target: &[u8]) -> Result<()> {
        if mode & S_IFMT == S_IFLNK {
            match target.len() {
                0 => return Err(FsError::NoEntry),
                1..=4095 => {}
                _ => return Err(FsError::NameTooLong),
            }
        }
        check_name(name)?;
        let d = self.dir(dir)?;
        if d.entries.contains_key(name) {
            return Err(FsError::Exists);
        }
        d.may_grow()
    }

    /// Creates an inode of any type.
    pub fn create(
        &mut self,
        (dir, name): (Ino, &[u8]),
        ino: Ino,
        new: Node,
        umask: u32,
    ) -> Result<()> {
        self.may_create(dir, name, new.mode, &new.target)?;
        let d = self.node_mut(dir)?;
        let inherits = d.mode & S_ISGID != 0;
        let mut node = new;
        node.flags = d.flags & FLAGS_INHERITED & flags_of(node.mode);
        node.project = d.passes_on();
        node.inherit(d.xattrs.get(lists::DEFAULT), umask);
        if inherits {
            node.gid = d.gid;
        }
        if node.is_dir() {
            d.nlink += 1;
            node.nlink = 2;
            node.parent = dir;
            node.mode |= if inherits { S_ISGID } else { 0 };
        } else {
            node.nlink = 1;
        }
        d.entries.insert(name.to_vec(), ino);
        node.known = 1;
        self.nodes.insert(ino, node);
        Ok(())
    }

    /// Creates a regular file without a name.
    pub fn tmpfile(&mut self, dir: Ino, ino: Option<Ino>, new: Node, umask: u32) -> Result<()> {
        self.node(dir)?;
        let d = match self.dir(dir) {
            Err(FsError::NoEntry) => return Err(FsError::Perm),
            other => other?,
        };
        d.may_grow()?;
        let gid = if d.mode & S_ISGID != 0 {
            d.gid
        } else {
            new.gid
        };
        let mut node = Node {
            gid,
            flags: d.flags & FLAGS_INHERITED & flags_of(new.mode),
            project: d.passes_on(),
            known: 1,
            ..new
        };
        node.inherit(d.xattrs.get(lists::DEFAULT), umask);
        let ino = ino.ok_or_else(|| FsError::internal("the model would create this"))?;
        self.nodes.insert(ino, node);
        Ok(())
    }

    /// `chattr` by root.
    pub fn set_flags(&mut self, ino: Ino, flags: u32) -> Result<()> {
        let project = self.node(ino)?.project;
        self.set_all(ino, flags, project)
    }

    /// `chattr -p`, and `+P` or `-P`.
    pub fn set_project(&mut self, ino: Ino, project: u32, inherit: bool) -> Result<()> {
        let flags = self.node(ino)?.flags & !FLAG_PROJECT;
        let flags = flags | if inherit { FLAG_PROJECT } else { 0 };
        self.set_all(ino, flags, project)
    }

    fn set_all(&mut self, ino: Ino, flags: u32, project: u32) -> Result<()> {
        let n = self.node_mut(ino)?;
        if !n.is_dir() && !n.is_file() || flags & !flags_of(n.mode) != 0 {
            return Err(FsError::NotSupported);
        }
        if n.flags & flags & FLAG_IMMUTABLE != 0 && (n.flags, n.project) != (flags, project) {
            return Err(FsError::Perm);
        }
        n.flags = flags;
        n.project = project;
        Ok(())
    }

    pub fn link(&mut self, ino: Ino, dir: Ino, name: &[u8]) -> Result<()> {
        check_name(name)?;
        self.node(dir)?;
        self.node(ino)?;
        let d = self.dir(dir)?;
        let n = self.node(ino)?;
        if n.is_dir() {
            return Err(FsError::Perm);
        }
        n.may_change()?;
        if d.entries.contains_key(name) {
            return Err(FsError::Exists);
        }
        d.may_grow()?;
        d.may_take(n)?;
        let n = self.node_mut(ino)?;
        n.nlink += 1;
        n.known += 1;
        self.node_mut(dir)?.entries.insert(name.to_vec(), ino);
        Ok(())
    }

    /// unlink and rmdir.
    pub fn remove(&mut self, dir: Ino, name: &[u8], want_dir: bool) -> Result<()> {
        check_name(name)?;
        let ino = *self.dir(dir)?.entries.get(name).ok_or(FsError::NoEntry)?;
        let n = self.node(ino)?;
        self.dir(dir)?.may_change()?;
        n.may_change()?;
        match (want_dir, n.is_dir()) {
            (true, false) => return Err(FsError::NotDir),
            (false, true) => return Err(FsError::IsDir),
            (true, true) if !n.entries.is_empty() => return Err(FsError::NotEmpty),
            _ => {}
        }
        let d = self.node_mut(dir)?;
        d.entries.remove(name);
        d.nlink -= u32::from(want_dir);
        self.drop_link(ino);
        Ok(())
    }

    fn drop_link(&mut self, ino: Ino) {
        if let Some(n) = self.nodes.get_mut(&ino) {
            n.nlink = if n.is_dir() { 0 } else { n.nlink - 1 };
        }
        self.reap(ino);
    }

    /// An inode that has no name and that the kernel does not know is gone.
    fn reap(&mut self, ino: Ino) {
        if self
            .nodes
            .get(&ino)
            .is_some_and(|n| n.nlink == 0 && n.known == 0)
        {
            self.nodes.remove(&ino);
        }
    }

    /// The kernel forgets all it knows about an inode. Returns how often it had looked it up.
    pub fn forget(&mut self, ino: Ino) -> u64 {
        let Some(n) = self.nodes.get_mut(&ino) else {
            return 0;
        };
        let known = std::mem::take(&mut n.known);
        self.reap(ino);
        known
    }

    /// A mount ends: the kernel no longer knows any inode.
    pub fn forget_all(&mut self) {
        let all: Vec<Ino> = self.nodes.keys().copied().collect();
        for ino in all {
            self.forget(ino);
        }
    }

    fn is_below(&self, ino: Ino, top: Ino) -> bool {
        let mut at = ino;
        loop {
            if at == top {
                return true;
            }
            match self.nodes.get(&at) {
                Some(n) if at != self.root => at = n.parent,
                _ => return false,
            }
        }
    }

    /// `whiteout`: the number of the one that takes the place of the old name, if one does.
    pub fn rename(
        &mut self,
        (old, name): (Ino, &[u8]),
        (new, new_name): (Ino, &[u8]),
        flags: RenameFlags,
        whiteout: Option<Ino>,
    ) -> Result<()> {
        check_name(name)?;
        check_name(new_name)?;
        if flags.exchange && (flags.no_replace || flags.whiteout.is_some()) {
            return Err(FsError::Invalid);
        }
        self.node(old)?;
        self.node(new)?;
        let source = *self.dir(old)?.entries.get(name).ok_or(FsError::NoEntry)?;
        let target = self.dir(new)?.entries.get(new_name).copied();
        let across = old != new;
        let is_dir = |ino: Ino| self.nodes.get(&ino).is_some_and(Node::is_dir);
        if across && is_dir(source) && self.is_below(new, source) {
            return Err(FsError::Invalid);
        }
        if let Some(t) = target
            && across
            && flags.exchange
            && is_dir(t)
            && self.is_below(old, t)
        {
            return Err(FsError::Invalid);
        }
        if flags.no_replace && target.is_some() {
            return Err(FsError::Exists);
        }
        if target == Some(source) {
            return Ok(());
        }
        if flags.exchange && target.is_none() {
            return Err(FsError::NoEntry);
        }
        self.node(old)?.may_change()?;
        self.node(source)?.may_change()?;
        match target {
            Some(t) => {
                self.node(new)?.may_change()?;
                self.node(t)?.may_change()?;
            }
            None => self.node(new)?.may_grow()?,
        }
        self.node(new)?.may_take(self.node(source)?)?;
        if flags.exchange {
            let target = target.ok_or(FsError::NoEntry)?;
            self.node(old)?.may_take(self.node(target)?)?;
            self.node_mut(new)?
                .entries
                .insert(new_name.to_vec(), source);
            self.node_mut(old)?.entries.insert(name.to_vec(), target);
            if across {
                self.rehome(source, old, new)?;
                self.rehome(target, new, old)?;
            }
            return Ok(());
        }
        if let Some(t) = target {
            match (is_dir(source), is_dir(t)) {
                (true, false) => return Err(FsError::NotDir),
                (false, true) => return Err(FsError::IsDir),
                (true, true) if !self.node(t)?.entries.is_empty() => {
                    return Err(FsError::NotEmpty);
                }
                _ => {}
            }
            if is_dir(t) {
                self.node_mut(new)?.nlink -= 1;
            }
            self.drop_link(t);
        }
        self.node_mut(new)?
            .entries
            .insert(new_name.to_vec(), source);
        self.node_mut(old)?.entries.remove(name);
        if let Some(by) = flags.whiteout {
            let ino =
                whiteout.ok_or_else(|| FsError::internal("the model would leave a whiteout"))?;
            self.whiteout((old, name), ino, by)?;
        }
        if across {
            self.rehome(source, old, new)?;
        }
        Ok(())
    }

    fn whiteout(&mut self, (dir, name): (Ino, &[u8]), ino: Ino, by: Caller) -> Result<()> {
        let d = self.node_mut(dir)?;
        let inherits = d.mode & S_ISGID != 0;
        let node = Node {
            mode: S_IFCHR,
            nlink: 1,
            uid: by.uid,
            gid: if inherits { d.gid } else { by.gid },
            flags: d.flags & FLAGS_INHERITED & flags_of(S_IFCHR),
            project: d.passes_on(),
            ..Node::default()
        };
        d.entries.insert(name.to_vec(), ino);
        self.nodes.insert(ino, node);
        Ok(())
    }

    fn rehome(&mut self, ino: Ino, from: Ino, to: Ino) -> Result<()> {
        if self.node(ino)?.is_dir() {
            self.node_mut(ino)?.parent = to;
            self.node_mut(from)?.nlink -= 1;
            self.node_mut(to)?.nlink += 1;
        }
        Ok(())
    }

    /// Blocks allocated by all files.
    pub fn allocated(&self) -> u64 {
        self.nodes.values().map(|n| n.content.allocated()).sum()
    }
}

fn check_name(name: &[u8]) -> Result<()> {
    if name.is_empty() || name == b"." || name == b".." || name.contains(&b'/') || name.contains(&0)
    {
        return Err(FsError::Invalid);
    }
    if name.len() > 255 {
        Err(FsError::NameTooLong)
    } else {
        Ok(())
    }
}
