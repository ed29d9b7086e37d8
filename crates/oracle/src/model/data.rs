//! Content and attributes in the model.

use std::collections::BTreeSet;

use quayfs_fs::{FallocMode, SetXattr};
use quayfs_layout::inode::S_IFMT;
use quayfs_layout::xattr::{NAME_MAX, SET_MAX, VALUE_MAX};
use quayfs_layout::{BLOCK, Ino};
use quayfs_store::error::FsError;

use super::lists::{ACCESS, DEFAULT};
use super::{Model, Node, Result, SIZE_MAX};
use crate::ops::Data;

const B: u64 = BLOCK as u64;

impl Model {
    fn file(&mut self, ino: Ino) -> Result<&mut Node> {
        let n = self.node_mut(ino)?;
        if n.is_file() {
            Ok(n)
        } else {
            Err(FsError::Invalid)
        }
    }

    pub fn write(&mut self, ino: Ino, offset: u64, data: &[u8], kill: bool) -> Result<()> {
        let n = self.file_bounded(ino, offset, data.len() as u64)?;
        if !data.is_empty() {
            n.may_change()?;
        }
        n.content.write(offset, data);
        if kill {
            n.drop_privileges();
        }
        Ok(())
    }

    pub fn write_together(
        &mut self,
        ino: Ino,
        pieces: &[(u64, Data)],
        (kill, max): (bool, u64),
    ) -> Result<()> {
        self.node(ino)?;
        if pieces
            .iter()
            .any(|(at, d)| *at > SIZE_MAX || d.len as u64 > SIZE_MAX - at)
        {
            return Err(FsError::FileTooBig);
        }
        if pieces.iter().all(|(_, d)| d.len == 0) {
            return Ok(());
        }
        let touched: BTreeSet<u64> = (pieces.iter())
            .filter(|(_, d)| d.len > 0)
            .flat_map(|(at, d)| at / B..(at + d.len as u64).div_ceil(B))
            .collect();
        if touched.len() as u64 > max / B {
            return Err(FsError::TooManyExtents);
        }
        let n = self.file(ino)?;
        n.may_change()?;
        for (at, d) in pieces.iter().filter(|(_, d)| d.len > 0) {
            n.content.write(*at, &d.bytes());
        }
        if kill {
            n.drop_privileges();
        }
        Ok(())
    }

    fn file_bounded(&mut self, ino: Ino, offset: u64, len: u64) -> Result<&mut Node> {
        self.node(ino)?;
        if offset > SIZE_MAX || len > SIZE_MAX - offset {
            return Err(FsError::FileTooBig);
        }
        self.file(ino)
    }

    pub fn read(&mut self, ino: Ino, offset: u64, len: u64) -> Result<Vec<u8>> {
        Ok(self.file(ino)?.content.read(offset, len))
    }

    pub fn truncate(&mut self, ino: Ino, size: u64, kill: bool) -> Result<()> {
        if size > SIZE_MAX {
            return Err(FsError::FileTooBig);
        }
        let n = self.node_mut(ino)?;
        if !n.is_file() {
            return Err(if n.is_dir() {
                FsError::IsDir
            } else {
                FsError::Invalid
            });
        }
        n.may_change()?;
        n.content.truncate(size);
        if kill {
            n.drop_privileges();
        }
        Ok(())
    }

    pub fn fallocate(&mut self, ino: Ino, mode: FallocMode, offset: u64, len: u64) -> Result<()> {
        let end = offset
            .checked_add(len)
            .filter(|e| *e <= SIZE_MAX)
            .ok_or(FsError::FileTooBig)?;
        if len == 0 {
            return Err(FsError::Invalid);
        }
        let n = self.file(ino)?;
        match mode {
            FallocMode::Allocate { .. } => n.may_grow()?,
            _ => n.may_change()?,
        }
        match mode {
            FallocMode::Punch => n.content.punch(offset..end),
            FallocMode::Allocate { keep_size } => n.content.allocate(offset..end, keep_size),
            FallocMode::Zero { keep_size } => {
                n.content.punch(offset..end);
                n.content.allocate(offset..end, keep_size);
            }
        }
        n.drop_privileges();
        Ok(())
    }

    /// Copies at most `max` bytes.
    pub fn copy(&mut self, from: (Ino, u64), to: (Ino, u64), len: u64, max: u64) -> Result<u64> {
        if to.1 > SIZE_MAX || len > SIZE_MAX - to.1 {
            return Err(FsError::FileTooBig);
        }
        if from.0 == to.0 && from.1 < to.1 + len && to.1 < from.1 + len {
            return Err(FsError::Invalid);
        }
        let data = self.read(from.0, from.1, len.min(max))?;
        self.node(to.0)?;
        if !data.is_empty() {
            self.write(to.0, to.1, &data, true)?;
        }
        Ok(data.len() as u64)
    }

    /// Exchanges two ranges. `how`: to the ends of both files, and only what was written in the first.
    pub fn exchange(
        &mut self,
        one: (Ino, u64),
        other: (Ino, u64),
        len: u64,
        how: (bool, bool),
    ) -> Result<()> {
        let (to_eof, written) = how;
        self.node(one.0)?;
        self.node(other.0)?;
        for ino in [one.0, other.0] {
            if self.node(ino)?.is_dir() {
                return Err(FsError::IsDir);
            }
            self.file(ino)?;
        }
        self.node(one.0)?.may_change()?;
        self.node(other.0)?.may_change()?;
        let mut a = self.node(one.0)?.content.clone();
        let mut b = self.node(other.0)?.content.clone();
        let (tail, other_tail) = (
            a.size.checked_sub(one.1).ok_or(FsError::Invalid)?,
            b.size.checked_sub(other.1).ok_or(FsError::Invalid)?,
        );
        let same = one.0 == other.0;
        let len = if to_eof { tail.max(other_tail) } else { len };
        // Whole blocks, or to the very end of both.
        let fits = len <= tail && len <= other_tail;
        let sound = len.is_multiple_of(B) || len == tail && len == other_tail;
        let blocks = len.div_ceil(B);
        let near = one.1.abs_diff(other.1) < blocks * B;
        let aligned = one.1.is_multiple_of(B) && other.1.is_multiple_of(B);
        let meets = same && blocks > 0 && (to_eof || near);
        let possible = to_eof || fits && sound;
        if !aligned || meets || !possible {
            return Err(FsError::Invalid);
        }
        let grows = |at: u64, tail: u64| to_eof && at.saturating_add(tail) > SIZE_MAX;
        if grows(one.1, other_tail) || grows(other.1, tail) {
            return Err(FsError::FileTooBig);
        }
        if to_eof && written && tail != other_tail {
            return Err(FsError::Invalid);
        }
        let (from, to) = (one.1 / B, other.1 / B);
        let mut touched = a.mapped_in(from..from + blocks);
        touched.extend(b.mapped_in(to..to + blocks));
        for k in touched {
            if written && !a.written.contains(&(from + k)) {
                continue;
            }
            if same {
                a.exchange_blocks(from + k, to + k);
            } else {
                a.exchange_block_with(from + k, &mut b, to + k);
            }
        }
        if to_eof && !same {
            (a.size, b.size) = (one.1 + other_tail, other.1 + tail);
        }
        if !same {
            let n = self.file(other.0)?;
            n.content = b;
            n.drop_privileges_of_stranger();
        }
        let n = self.file(one.0)?;
        n.content = a;
        n.drop_privileges_of_stranger();
        Ok(())
    }

    pub fn setattr(
        &mut self,
        ino: Ino,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
    ) -> Result<()> {
        let n = self.node_mut(ino)?;
        n.may_change()?;
        if let Some(mode) = mode {
            n.mode = n.kind() | mode & !S_IFMT;
            n.follow_mode();
        }
        n.uid = uid.unwrap_or(n.uid);
        n.gid = gid.unwrap_or(n.gid);
        if (uid.is_some() || gid.is_some()) && mode.is_none() {
            n.drop_privileges();
        }
        Ok(())
    }

    pub fn setxattr(
        &mut self,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        (how, stranger): (SetXattr, bool),
    ) -> Result<()> {
        if name.is_empty() || name.len() > NAME_MAX {
            return Err(FsError::Range);
        }
        if value.len() > VALUE_MAX {
            return Err(FsError::TooLarge);
        }
        possible(name)?;
        let n = self.node_mut(ino)?;
        n.may_change()?;
        match (n.xattrs.contains_key(name), how) {
            (true, SetXattr::Create) => return Err(FsError::Exists),
            (false, SetXattr::Replace) => return Err(FsError::NoAttr),
            _ => {}
        }
        let mode = n.mode;
        let before = n.xattrs.remove(name);
        match n.accept(name, value, stranger) {
            Ok(Some(value)) => drop(n.xattrs.insert(name.to_vec(), value)),
            Ok(None) => {}
            Err(e) => {
                n.xattrs.extend(before.map(|v| (name.to_vec(), v)));
                return Err(e);
            }
        }
        if n.xattr_bytes() > SET_MAX || !leaves_room(n, name) {
            n.mode = mode;
            n.xattrs.remove(name);
            n.xattrs.extend(before.map(|v| (name.to_vec(), v)));
            return Err(FsError::NoSpace);
        }
        Ok(())
    }

    pub fn removexattr(&mut self, ino: Ino, name: &[u8]) -> Result<()> {
        possible(name)?;
        let n = self.node_mut(ino)?;
        n.may_change()?;
        if n.xattrs.remove(name).is_none() && name != ACCESS && name != DEFAULT {
            return Err(FsError::NoAttr);
        }
        Ok(())
    }
}

/// Names are those of Linux. Of `system.` there are access control lists.
fn possible(name: &[u8]) -> Result<()> {
    if name == ACCESS || name == DEFAULT {
        return Ok(());
    }
    let at = name.iter().position(|b| *b == b'.');
    match at.map(|at| (&name[..at], &name[at + 1..])) {
        Some((b"user" | b"trusted" | b"security", b"")) => Err(FsError::Invalid),
        Some((b"user" | b"trusted" | b"security", _)) => Ok(()),
        _ => Err(FsError::NotSupported),
    }
}

/// Whether this attribute leaves room for users with more rights than the one who has set it: 4 KiB of 116 for the
/// privileged, 12 KiB of 128 for the owner's lists.
fn leaves_room(n: &Node, name: &[u8]) -> bool {
    let taken = |counts: &dyn Fn(&[u8]) -> bool| -> usize {
        let those = n.xattrs.iter().filter(|(name, _)| counts(name));
        those
            .map(|(name, value)| 5 + name.len() + value.len())
            .sum()
    };
    let is_list = |name: &[u8]| name == ACCESS || name == DEFAULT;
    let is_user = |name: &[u8]| name.starts_with(b"user.");
    let others = taken(&|name| !is_list(name)) <= 116 << 10;
    match name {
        name if is_list(name) => true,
        name if is_user(name) => others && taken(&is_user) <= 112 << 10,
        _ => others,
    }
}
