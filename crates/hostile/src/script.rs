//! Calls of the operation layer, taken from an input.

use std::collections::BTreeMap;

use quayfs_background::checkpoint::{self, Reach};
use quayfs_background::digest;
use quayfs_fs::{
    Caller, Cause, FallocMode, Fs, RenameFlags, SetAttr, SetFlags, SetTime, SetXattr, Whence,
};
use quayfs_layout::inode::{ROOT, Time};
use quayfs_layout::{Ino, acl};
use quayfs_store::error::Result;

use crate::input::Input;

/// Most bytes that one call reads or writes.
const BYTES: usize = 40_000;

/// What the caller of an operation layer has in its hands: inodes that it has looked up, and
/// names.
#[derive(Debug, Default)]
pub struct Script {
    /// Lookups by inode; each has to be forgotten again.
    lookups: BTreeMap<Ino, u64>,
    /// Inodes it talks about, more of them than it has looked up.
    known: Vec<Ino>,
}

impl Script {
    /// Knows only the root directory and the inodes in `seen`.
    pub fn new(seen: Vec<Ino>) -> Self {
        let mut known = vec![ROOT];
        known.extend(seen);
        Self {
            lookups: BTreeMap::new(),
            known,
        }
    }

    /// After a mount: nothing is looked up.
    pub fn forget_everything(&mut self) {
        self.lookups.clear();
    }

    fn ino(&self, input: &mut Input<'_>) -> Ino {
        match input.u8() {
            255 => input.number(),
            n => self.known[usize::from(n) % self.known.len()],
        }
    }

    fn found(&mut self, ino: Ino) {
        *self.lookups.entry(ino).or_default() += 1;
        if !self.known.contains(&ino) {
            self.known.push(ino);
        }
    }

    fn make(&mut self, fs: &Fs, dir: Ino, input: &mut Input<'_>) -> Result<()> {
        let (uid, gid) = (u32::from(input.u8()), u32::from(input.u8()));
        let umask = uid ^ gid;
        let by = Caller { uid, gid, umask };
        let name = name(input);
        let attr = match input.u8() % 5 {
            0 => fs.mkdir(by, dir, &name, input.u32())?,
            1 => {
                let n = usize::from(input.u16()) % 5000;
                fs.symlink(by, dir, &name, &vec![input.u8(); n])?
            }
            2 => fs.mknod(by, dir, &name, input.u32(), input.u32())?,
            _ => fs.mknod(by, dir, &name, 0o100_644, 0)?,
        };
        self.found(attr.ino);
        Ok(())
    }

    /// One call. Whether it succeeds is the caller's business.
    pub fn step(&mut self, fs: &Fs, input: &mut Input<'_>) -> Result<()> {
        let op = input.u8() % 32;
        let ino = self.ino(input);
        match op {
            0..=3 => self.make(fs, ino, input)?,
            4 => {
                let to = self.ino(input);
                let attr = fs.link(ino, to, &name(input))?;
                self.found(attr.ino);
            }
            5 => fs.unlink(ino, &name(input))?,
            6 => fs.rmdir(ino, &name(input))?,
            7 | 8 => {
                let to = self.ino(input);
                let how = input.u8();
                let flags = RenameFlags {
                    no_replace: how & 1 != 0,
                    exchange: how & 2 != 0,
                    whiteout: (how & 4 != 0).then(Caller::default),
                };
                fs.rename((ino, &name(input)), (to, &name(input)), flags)?;
            }
            9..=12 => {
                let offset = input.number();
                let n = usize::from(input.u16()) % BYTES;
                fs.write(ino, offset, &vec![input.u8(); n], input.flag())?;
            }
            13 => drop(fs.read(ino, input.number(), usize::from(input.u16()))?),
            14 | 15 => {
                let set = SetAttr {
                    size: Some(input.number()),
                    ..SetAttr::default()
                };
                fs.setattr(ino, &set, input.flag())?;
            }
            16 => fs
                .setattr(ino, &attributes(input), input.flag())
                .map(|_| ())?,
            17 | 18 => {
                let keep_size = input.flag();
                let mode = match input.u8() % 3 {
                    0 => FallocMode::Punch,
                    1 => FallocMode::Zero { keep_size },
                    _ => FallocMode::Allocate { keep_size },
                };
                fs.fallocate(ino, mode, input.number(), input.number())?;
            }
            19 => {
                let whence = if input.flag() {
                    Whence::Data
                } else {
                    Whence::Hole
                };
                fs.seek(ino, whence, input.number())?;
            }
            20 | 21 => {
                let how = match input.u8() % 3 {
                    0 => SetXattr::Create,
                    1 => SetXattr::Replace,
                    _ => SetXattr::Any,
                };
                let n = input.number().min(70_000) as usize;
                let name = attribute(input);
                let value = match name.starts_with(b"system.") {
                    true => list(input),
                    false => vec![input.u8(); n],
                };
                fs.setxattr_by(ino, &name, &value, how, n % 2 == 1)?;
            }
            22 => {
                let names = fs.listxattr(ino)?;
                for name in names.split(|b| *b == 0).filter(|n| !n.is_empty()) {
                    fs.getxattr(ino, name)?;
                }
            }
            23 => fs.removexattr(ino, &attribute(input))?,
            24 => {
                let to = self.ino(input);
                let (from, to) = ((ino, input.number()), (to, input.number()));
                fs.copy_range(from, to, input.number())?;
            }
            25 => {
                let mut left = input.u8();
                fs.readdir(ino, input.number(), |_| {
                    left = left.saturating_sub(1);
                    left > 0
                })?;
            }
            26 => {
                let attr = fs.lookup(ino, &name(input))?;
                self.found(attr.ino);
            }
            27 => {
                let n = self.lookups.remove(&ino).unwrap_or(0);
                if n > 0 {
                    fs.forget(ino, n);
                }
            }
            28 => self.flush(fs, ino, input)?,
            29 => match input.u8() % 4 {
                0 => {
                    let attr = fs.tmpfile(Caller::default(), ino, input.u32())?;
                    self.found(attr.ino);
                }
                // Mostly none, or nothing goes any more.
                n => {
                    let flags = if n == 1 { input.u32() } else { 0 };
                    fs.set_flags(Caller::default(), ino, SetFlags::all(flags))?;
                }
            },
            _ => background(fs, input)?,
        }
        Ok(())
    }

    fn flush(&self, fs: &Fs, ino: Ino, input: &mut Input<'_>) -> Result<()> {
        match input.u8() % 4 {
            0 => fs.fsync(ino)?,
            1 => fs.sync_all()?,
            2 => fs.release(ino),
            _ => {
                let cause = Cause::Write {
                    offset: 0,
                    append: false,
                };
                fs.drop_capabilities(ino, cause)?;
                fs.readlink(ino)?;
            }
        }
        let _ = fs.statfs();
        Ok(())
    }
}

/// What the background threads would do, now.
fn background(fs: &Fs, input: &mut Input<'_>) -> Result<()> {
    match input.u8() % 5 {
        0 => digest::digest_all(&fs.e)?,
        1 => drop(checkpoint::round(&fs.e)?),
        3 => drop(checkpoint::round_of(&fs.e, Reach::Older)?),
        2 => drop(checkpoint::zero_freed(&fs.e)?),
        _ => {
            let digested = fs.e.journal.digested();
            for window in fs.e.inodes.evict(digested, 0) {
                fs.e.return_window(window);
            }
            fs.e.nodes.evict(digested, 0);
        }
    }
    Ok(())
}

/// A name: mostly one of a few, so that calls meet.
fn name(input: &mut Input<'_>) -> Vec<u8> {
    match input.u8() {
        n @ 0..=199 => format!("{}", n % 20).into_bytes(),
        n @ 200..=223 => vec![n; usize::from(input.u8()) + usize::from(input.u8() % 8)],
        224..=231 => b"..".to_vec(),
        232..=233 => b"security.capability".to_vec(),
        234 => acl::ACCESS.to_vec(),
        235 => acl::DEFAULT.to_vec(),
        n => input.bytes(usize::from(n - 235)).to_vec(),
    }
}

/// The name of an attribute: mostly one that there can be.
fn attribute(input: &mut Input<'_>) -> Vec<u8> {
    let name = name(input);
    match name.first() {
        Some(b'0'..=b'9') => [b"user.", &name[..]].concat(),
        _ => name,
    }
}

/// An access control list, valid unless a permission is out of range.
fn list(input: &mut Input<'_>) -> Vec<u8> {
    let named = usize::from(input.u8()) % 64;
    let tags = [&[1][..], &vec![2; named], &[4, 0x10, 0x20]].concat();
    let mut out = vec![2, 0, 0, 0];
    for tag in tags {
        out.extend([tag, 0, input.u8() % 9, 0, input.u8(), 0, 0, 0]);
    }
    out
}

fn attributes(input: &mut Input<'_>) -> SetAttr {
    let time = |input: &mut Input<'_>| Time {
        sec: input.u64().cast_signed(),
        nsec: input.u32(),
    };
    let which = input.u8();
    SetAttr {
        mode: (which & 1 != 0).then(|| input.u32()),
        uid: (which & 2 != 0).then(|| input.u32()),
        gid: (which & 4 != 0).then(|| input.u32()),
        size: (which & 8 != 0).then(|| input.number()),
        atime: (which & 16 != 0).then(|| SetTime::At(time(input))),
        mtime: (which & 32 != 0).then_some(SetTime::Now),
        ctime: (which & 64 != 0).then(|| time(input)),
    }
}
