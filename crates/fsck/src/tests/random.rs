//! Whatever operations have done, and whenever the daemon dies: nothing is found.

use std::sync::Arc;

use proptest::prelude::*;
use quayfs_background::checkpoint::{self, Reach};
use quayfs_background::digest::digest_all;
use quayfs_fs::{Attr, FallocMode, Fs, RenameFlags, SetAttr, SetXattr};
use quayfs_layout::Ino;
use quayfs_layout::inode::{ROOT, S_IFREG};
use quayfs_options::{DataMode, Durability, MountOptions};
use quayfs_store::error::FsError;

use super::support::{BY, Disk};

/// Directories that operations work in: the root and those that exist of these names in it.
const DIRS: [&[u8]; 4] = [b"", b"d0", b"d1", b"d2"];

#[derive(Clone, Debug)]
enum Op {
    Create(u8, u8),
    Mkdir(u8, u8),
    Symlink(u8, u8, u16),
    Mknod(u8, u8),
    Unlink(u8, u8),
    Rmdir(u8, u8),
    Link(u8, u8, u8, u8),
    Rename(u8, u8, u8, u8, bool),
    Write(u8, u8, u32, u16),
    Truncate(u8, u8, u32),
    Punch(u8, u8, u32, u32),
    Allocate(u8, u8, u32, u32, bool),
    Zero(u8, u8, u32, u32),
    Copy(u8, u8, u8, u8, u32),
    SetXattr(u8, u8, u8, u16),
    RemoveXattr(u8, u8, u8),
    Chmod(u8, u8, u16),
    Fill(u8, u8),
    Clear(u8),
    /// The kernel forgets everything: orphans are freed.
    Forget,
    Digest,
    Round(Reach),
    Zeroes,
    Commit,
    /// The daemon dies and a new one starts.
    Kill,
    /// Unmount and mount.
    Remount,
}

fn op() -> impl Strategy<Value = Op> {
    let at = || (0u8..4, 0u8..6);
    let offset = || {
        prop_oneof![
            0u32..20_000,
            (0u32..40).prop_map(|n| n * 4096),
            0u32..300_000
        ]
    };
    prop_oneof![
        4 => at().prop_map(|(d, n)| Op::Create(d, n)),
        2 => at().prop_map(|(d, n)| Op::Mkdir(d, n)),
        1 => (at(), prop_oneof![1u16..130, 1u16..4096]).prop_map(|((d, n), l)| Op::Symlink(d, n, l)),
        1 => at().prop_map(|(d, n)| Op::Mknod(d, n)),
        3 => at().prop_map(|(d, n)| Op::Unlink(d, n)),
        1 => at().prop_map(|(d, n)| Op::Rmdir(d, n)),
        1 => (at(), at()).prop_map(|((d, n), (e, m))| Op::Link(d, n, e, m)),
        3 => (at(), at(), any::<bool>()).prop_map(|((d, n), (e, m), x)| Op::Rename(d, n, e, m, x)),
        8 => (at(), offset(), 1u16..30_000).prop_map(|((d, n), o, l)| Op::Write(d, n, o, l)),
        3 => (at(), offset()).prop_map(|((d, n), s)| Op::Truncate(d, n, s)),
        2 => (at(), offset(), 1u32..60_000).prop_map(|((d, n), o, l)| Op::Punch(d, n, o, l)),
        2 => (at(), offset(), 1u32..200_000, any::<bool>())
            .prop_map(|((d, n), o, l, k)| Op::Allocate(d, n, o, l, k)),
        1 => (at(), offset(), 1u32..60_000).prop_map(|((d, n), o, l)| Op::Zero(d, n, o, l)),
        1 => (at(), at(), 0u32..50_000).prop_map(|((d, n), (e, m), l)| Op::Copy(d, n, e, m, l)),
        2 => (at(), 0u8..4, prop_oneof![0u16..100, 0u16..20_000])
            .prop_map(|((d, n), x, l)| Op::SetXattr(d, n, x, l)),
        1 => (at(), 0u8..4).prop_map(|((d, n), x)| Op::RemoveXattr(d, n, x)),
        1 => (at(), 0u16..0o10000).prop_map(|((d, n), m)| Op::Chmod(d, n, m)),
        1 => (0u8..4, 1u8..120).prop_map(|(d, n)| Op::Fill(d, n)),
        1 => (0u8..4).prop_map(Op::Clear),
        2 => Just(Op::Forget),
        3 => Just(Op::Digest),
        3 => prop_oneof![Just(Reach::All), Just(Reach::Older)].prop_map(Op::Round),
        2 => Just(Op::Zeroes),
        1 => Just(Op::Commit),
        2 => Just(Op::Kill),
        1 => Just(Op::Remount),
    ]
}

struct Run {
    disk: Disk,
    options: MountOptions,
    fs: Arc<Fs>,
    known: Vec<Ino>,
}

impl Run {
    fn new(options: MountOptions) -> Self {
        let disk = Disk::new();
        let fs = Fs::mount_quiet(disk.volume(), &options).unwrap();
        for dir in &DIRS[1..] {
            fs.mkdir(BY, ROOT, dir, 0o755).unwrap();
        }
        Self {
            disk,
            options,
            fs,
            known: Vec::new(),
        }
    }

    fn look(&mut self, parent: Ino, name: &[u8]) -> Result<Ino, FsError> {
        let attr = self.fs.lookup(parent, name)?;
        self.known.push(attr.ino);
        Ok(attr.ino)
    }

    fn dir(&mut self, d: u8) -> Result<Ino, FsError> {
        if d == 0 {
            Ok(ROOT)
        } else {
            self.look(ROOT, DIRS[usize::from(d)])
        }
    }

    /// A name that exists in a directory and is of this type, or of any.
    fn existing(&mut self, d: u8, n: u8, kind: Option<u8>) -> Result<(Ino, Vec<u8>), FsError> {
        let dir = self.dir(d)?;
        let mut names = Vec::new();
        self.fs.readdir(dir, 2, |e| {
            // The first directories stay, so that there is somewhere to work.
            if !DIRS.contains(&&e.name[..]) && kind.is_none_or(|k| k == e.kind) {
                names.push(e.name);
            }
            true
        })?;
        match names.len() {
            0 => Err(FsError::NoEntry),
            len => Ok((dir, names.swap_remove(usize::from(n) % len))),
        }
    }

    /// A regular file; created if there is none.
    fn file(&mut self, d: u8, n: u8) -> Result<Ino, FsError> {
        match self.existing(d, n, Some(8)) {
            Ok((dir, name)) => self.look(dir, &name),
            Err(_) => {
                let dir = self.dir(d)?;
                let ino = self.fs.mknod(BY, dir, &name(n), S_IFREG | 0o644, 0)?.ino;
                self.known.push(ino);
                Ok(ino)
            }
        }
    }

    /// An inode of any type.
    fn any(&mut self, d: u8, n: u8) -> Result<Ino, FsError> {
        let (dir, name) = self.existing(d, n, None)?;
        self.look(dir, &name)
    }

    fn apply(&mut self, op: &Op) -> Result<(), FsError> {
        match *op {
            Op::Create(d, n) => {
                self.make(d, |fs, dir| fs.mknod(BY, dir, &name(n), S_IFREG | 0o644, 0))?
            }
            Op::Mkdir(d, n) => self.make(d, |fs, dir| fs.mkdir(BY, dir, &name(n), 0o755))?,
            Op::Symlink(d, n, len) => {
                let target = vec![b'x'; len.into()];
                self.make(d, |fs, dir| fs.symlink(BY, dir, &name(n), &target))?;
            }
            Op::Mknod(d, n) => self.make(d, |fs, dir| fs.mknod(BY, dir, &name(n), 0o010_644, 0))?,
            Op::Unlink(d, n) => {
                let (dir, name) = self.existing(d, n, None)?;
                self.fs.unlink(dir, &name)?;
            }
            Op::Rmdir(d, n) => {
                let (dir, name) = self.existing(d, n, Some(4))?;
                self.fs.rmdir(dir, &name)?;
            }
            Op::Link(d, n, e, m) => {
                let (ino, dir) = (self.any(d, n)?, self.dir(e)?);
                self.fs.link(ino, dir, &name(m))?;
                self.known.push(ino);
            }
            Op::Rename(d, n, e, m, exchange) => self.rename((d, n), (e, m), exchange)?,
            Op::Write(d, n, at, len) => {
                let ino = self.file(d, n)?;
                self.fs
                    .write(ino, at.into(), &vec![n + 1; len.into()], false)?;
            }
            Op::Truncate(d, n, size) => {
                let ino = self.file(d, n)?;
                let set = SetAttr {
                    size: Some(size.into()),
                    ..SetAttr::default()
                };
                self.fs.setattr(ino, &set, true)?;
            }
            Op::Punch(d, n, at, len) => self.fallocate(d, n, FallocMode::Punch, (at, len))?,
            Op::Allocate(d, n, at, len, keep_size) => {
                self.fallocate(d, n, FallocMode::Allocate { keep_size }, (at, len))?;
            }
            Op::Zero(d, n, at, len) => {
                let keep_size = len % 2 == 0;
                self.fallocate(d, n, FallocMode::Zero { keep_size }, (at, len))?;
            }
            Op::Copy(d, n, e, m, len) => {
                let (from, to) = (self.file(d, n)?, self.file(e, m)?);
                self.fs.copy_range((from, 0), (to, 70_000), len.into())?;
            }
            Op::SetXattr(d, n, x, len) => {
                let ino = self.any(d, n)?;
                let value = vec![x; len.into()];
                self.fs
                    .setxattr(ino, format!("user.{x}").as_bytes(), &value, SetXattr::Any)?;
            }
            Op::RemoveXattr(d, n, x) => {
                let ino = self.any(d, n)?;
                self.fs.removexattr(ino, format!("user.{x}").as_bytes())?;
            }
            Op::Chmod(d, n, mode) => {
                let ino = self.any(d, n)?;
                let set = SetAttr {
                    mode: Some(mode.into()),
                    ..SetAttr::default()
                };
                self.fs.setattr(ino, &set, false)?;
            }
            Op::Fill(d, n) => self.fill(d, n)?,
            Op::Clear(d) => self.clear(d)?,
            Op::Forget => {
                for ino in std::mem::take(&mut self.known) {
                    self.fs.forget(ino, 1);
                }
            }
            Op::Digest => digest_all(&self.fs.e)?,
            Op::Round(reach) => drop(checkpoint::round_of(&self.fs.e, reach)?),
            Op::Zeroes => drop(checkpoint::zero_freed(&self.fs.e)?),
            Op::Commit => self.fs.sync_all()?,
            Op::Kill => {
                self.fs.abandon();
                self.mount();
            }
            Op::Remount => self.remount()?,
        }
        Ok(())
    }

    fn make(
        &mut self,
        d: u8,
        new: impl FnOnce(&Fs, Ino) -> Result<Attr, FsError>,
    ) -> Result<(), FsError> {
        let dir = self.dir(d)?;
        self.known.push(new(&self.fs, dir)?.ino);
        Ok(())
    }

    fn rename(
        &mut self,
        (d, n): (u8, u8),
        (e, m): (u8, u8),
        exchange: bool,
    ) -> Result<(), FsError> {
        let (from, old) = self.existing(d, n, None)?;
        // Onto another name, or onto a new one.
        let (to, new) = match self.existing(e, m, None) {
            Ok(found) if exchange || m % 2 == 0 => found,
            _ => (self.dir(e)?, name(m)),
        };
        let flags = RenameFlags {
            exchange,
            ..RenameFlags::default()
        };
        self.fs.rename((from, &old), (to, &new), flags)
    }

    fn fallocate(
        &mut self,
        d: u8,
        n: u8,
        mode: FallocMode,
        (at, len): (u32, u32),
    ) -> Result<(), FsError> {
        let ino = self.file(d, n)?;
        self.fs.fallocate(ino, mode, at.into(), len.into())
    }

    fn fill(&mut self, d: u8, n: u8) -> Result<(), FsError> {
        let dir = self.dir(d)?;
        for i in 0..n {
            let name = format!("{i}{}", "-".repeat(usize::from(i % 100) * 2));
            match self.fs.mknod(BY, dir, name.as_bytes(), S_IFREG, 0) {
                Ok(attr) => self.fs.forget(attr.ino, 1),
                Err(FsError::Exists) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    fn clear(&mut self, d: u8) -> Result<(), FsError> {
        let dir = self.dir(d)?;
        let mut names = Vec::new();
        self.fs.readdir(dir, 2, |e| {
            names.push(e.name);
            true
        })?;
        for name in names {
            match self.fs.unlink(dir, &name) {
                Ok(()) | Err(FsError::IsDir) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    fn remount(&mut self) -> Result<(), FsError> {
        self.fs.shutdown()?;
        let report = self.disk.check();
        assert!(report.is_clean(), "after an unmount:\n{report}");
        let s = &report.statistics;
        assert!(s.clean && s.live_slots == 0 && s.live_records == 0 && s.orphans == 0);
        self.mount();
        Ok(())
    }

    fn mount(&mut self) {
        self.known.clear();
        self.fs = Fs::mount_quiet(self.disk.volume(), &self.options).unwrap();
    }
}

fn name(n: u8) -> Vec<u8> {
    format!("name{n}").into_bytes()
}

fn run(ops: &[Op], options: MountOptions) {
    let mut run = Run::new(options);
    for (i, op) in ops.iter().enumerate() {
        if let Err(e) = run.apply(op)
            && (e.is_io() || matches!(e, FsError::ReadOnly | FsError::OutOf(_)))
        {
            panic!("operation {i}, {op:?}: {e}");
        }
        if i % 16 == 15 || i + 1 == ops.len() {
            let report = run.disk.check();
            assert!(report.is_clean(), "after operation {i}, {op:?}:\n{report}");
        }
    }
    run.apply(&Op::Remount).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, max_shrink_iters: 400, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_found_in_mode_op(ops in prop::collection::vec(op(), 1..160)) {
        run(&ops, MountOptions::default());
    }

    #[test]
    fn nothing_is_found_in_mode_commit(
        ops in prop::collection::vec(op(), 1..160),
        data in prop_oneof![Just(DataMode::Journal), Just(DataMode::Ordered), Just(DataMode::Writeback)],
    ) {
        let options =
            MountOptions { durability: Some(Durability::Commit), data, ..MountOptions::default() };
        run(&ops, options);
    }
}
