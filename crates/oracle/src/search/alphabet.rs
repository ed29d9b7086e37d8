//! The steps that programs are made of, in the manner of ACE (CrashMonkey, OSDI 2018): every kind of
//! operation on a few objects that the others use as well.
//!
//! A step finds its objects by name at the time it runs. If an earlier step took one away, the call
//! fails as it must, or the step is left out where there is nothing to call it on.

use quayfs_fs::{Caller, FallocMode, RenameFlags, SetQuota, SetXattr, Subject};
use quayfs_layout::inode::{
    FLAG_APPEND, FLAG_IMMUTABLE, FLAG_NOATIME, FLAG_NODUMP, ROOT, S_IFDIR, S_IFLNK,
};
use quayfs_layout::{BLOCK, Ino};

use crate::crash::Script;
use crate::ops::{Data, Op};

const B: u64 = BLOCK as u64;
/// Projects of steps and scenarios.
pub const SEVEN: Subject = Subject::Project(7);
pub const EIGHT: Subject = Subject::Project(8);

/// A step of a program.
pub struct Step {
    /// How it is written.
    pub name: &'static str,
    run: fn(&mut Script) -> Option<()>,
}

impl Step {
    /// Carries it out. Nothing happens if the object it is about does not exist any more.
    pub fn run(&self, s: &mut Script) {
        let _ = (self.run)(s);
    }
}

/// The step of this name.
pub fn find(name: &str) -> Option<&'static Step> {
    ALPHABET.iter().find(|step| step.name == name)
}

/// What there is before a program: a directory with an empty directory, a link and an empty file in
/// it, a file of some blocks with two names and an extended attribute, a file that is open and has no
/// name. Half of it is checkpointed.
pub fn prepare(s: &mut Script) {
    let dir = s.create(ROOT, "dir", S_IFDIR | 0o755, 0);
    let a = s.file(ROOT, "a");
    s.write(a, 0, 4 * BLOCK + 100);
    s.file(dir, "empty");
    let orphan = s.file(ROOT, "orphan");
    s.write(orphan, 0, 2 * BLOCK);
    s.background();
    s.op(Op::Link {
        ino: a,
        dir,
        name: "b".into(),
    });
    s.create(dir, "link", S_IFLNK, 500);
    s.create(dir, "sub", S_IFDIR | 0o700, 0);
    s.write(a, B + 50, 100);
    s.remove(ROOT, "orphan");
    s.set_xattr(a, "user.a", 300, SetXattr::Any);
    s.start_here();
    s.orphan = orphan;
}

fn rename(s: &mut Script, old: (Ino, &str), new: (Ino, &str), exchange: bool) {
    let flags = RenameFlags {
        exchange,
        ..RenameFlags::default()
    };
    s.op(Op::Rename {
        old: (old.0, old.1.into()),
        new: (new.0, new.1.into()),
        flags,
    });
}

fn whiteout(s: &mut Script, old: (Ino, &str), new: (Ino, &str)) {
    let flags = RenameFlags {
        whiteout: Some(Caller {
            uid: 1,
            gid: 2,
            umask: 0,
        }),
        ..RenameFlags::default()
    };
    s.op(Op::Rename {
        old: (old.0, old.1.into()),
        new: (new.0, new.1.into()),
        flags,
    });
}

/// Writes the table below without the signature of each step.
macro_rules! steps {
    ($($name:literal: |$s:ident| $body:expr;)*) => {
        /// All steps.
        pub const ALPHABET: &[Step] = &[$(Step {
            name: $name,
            run: |$s| {
                $body;
                Some(())
            },
        }),*];
    };
}

steps! {
    "create": |s| { let dir = s.at("dir")?; s.file(dir, "new") };
    "mkdir": |s| s.create(ROOT, "new", S_IFDIR | 0o2750, 0);
    "mkfifo": |s| s.create(ROOT, "fifo", 0o010_600, 0);
    "symlink": |s| { let dir = s.at("dir")?; s.create(dir, "new", S_IFLNK, 4095) };
    "link": |s| {
        let ino = s.at("dir/empty")?;
        s.op(Op::Link { ino, dir: ROOT, name: "new".into() })
    };
    "unlink": |s| s.remove(ROOT, "a");
    "unlink-last": |s| {
        let (dir, ino) = (s.at("dir")?, s.at("dir/empty")?);
        s.remove(dir, "empty");
        s.forget(ino)
    };
    "unlink-other": |s| { let dir = s.at("dir")?; s.remove(dir, "b") };
    "rmdir": |s| { let dir = s.at("dir")?; s.remove(dir, "sub") };
    "rename": |s| rename(s, (ROOT, "a"), (ROOT, "a2"), false);
    "rename-back": |s| rename(s, (ROOT, "a2"), (ROOT, "a"), false);
    "rename-dir": |s| rename(s, (ROOT, "dir"), (ROOT, "dir2"), false);
    "rename-in": |s| { let dir = s.at("dir")?; rename(s, (ROOT, "a"), (dir, "new"), false) };
    "rename-out": |s| { let dir = s.at("dir")?; rename(s, (dir, "sub"), (ROOT, "new"), false) };
    "replace": |s| { let dir = s.at("dir")?; rename(s, (dir, "empty"), (ROOT, "a"), false) };
    "replace-dir": |s| {
        let dir = s.at("dir")?;
        s.create(ROOT, "over", S_IFDIR | 0o755, 0);
        rename(s, (ROOT, "over"), (dir, "sub"), false)
    };
    "exchange": |s| { let dir = s.at("dir")?; rename(s, (ROOT, "a"), (dir, "link"), true) };
    "write-block": |s| { let a = s.at("a")?; s.write(a, 2 * B, BLOCK) };
    "write-bytes": |s| { let a = s.at("a")?; s.write(a, 10, 20) };
    "write-across": |s| { let a = s.at("a")?; s.write(a, B - 10, 2 * BLOCK) };
    "append": |s| { let a = s.at("a")?; let end = s.size(a); s.write(a, end, 5000) };
    "write-past-hole": |s| { let a = s.at("a")?; s.write(a, 9 * B + 1, 100) };
    "write-first": |s| { let e = s.at("dir/empty")?; s.write(e, 0, 100) };
    "write-orphan": |s| s.write(s.orphan, B, 100);
    "truncate-down": |s| { let a = s.at("a")?; s.truncate(a, B + 7) };
    "truncate-up": |s| { let a = s.at("a")?; s.truncate(a, 9 * B + 7) };
    "truncate-0": |s| { let a = s.at("a")?; s.truncate(a, 0) };
    "allocate": |s| {
        let a = s.at("a")?;
        s.fallocate(a, FallocMode::Allocate { keep_size: true }, 0, 8 * B)
    };
    "allocate-grow": |s| {
        let e = s.at("dir/empty")?;
        s.fallocate(e, FallocMode::Allocate { keep_size: false }, 5, 3 * B)
    };
    "punch": |s| { let a = s.at("a")?; s.fallocate(a, FallocMode::Punch, 100, 3 * B) };
    "zero-range": |s| {
        let a = s.at("a")?;
        s.fallocate(a, FallocMode::Zero { keep_size: false }, B, 5 * B)
    };
    "copy": |s| {
        let (a, e) = (s.at("a")?, s.at("dir/empty")?);
        s.op(Op::Copy { from: (a, 5), to: (e, 77), len: 2 * B })
    };
    "write-together": |s| {
        let a = s.at("a")?;
        let piece = |at, len| (at, Data { seed: at, len });
        let pieces = vec![piece(4 * B, 5000), piece(0, 100), piece(9 * B, BLOCK), piece(50, 7)];
        s.op(Op::Together { ino: a, pieces, kill: true })
    };
    "exchange-range": |s| { let (a, e) = (s.grown()?, s.at("a")?); s.exchange((e, B), (a, 2 * B), 2 * B) };
    "exchange-files": |s| { let (a, e) = (s.at("a")?, s.at("dir/empty")?); s.exchange_files(a, e) };
    "exchange-within": |s| { let a = s.at("a")?; s.exchange((a, 0), (a, 3 * B), B) };
    "chmod": |s| {
        let ino = s.at("dir")?;
        s.op(Op::SetAttr { ino, mode: Some(0o700), uid: None, gid: Some(7) })
    };
    "setxattr": |s| { let a = s.at("a")?; s.set_xattr(a, "user.b", 6000, SetXattr::Any) };
    "replace-xattr": |s| { let a = s.at("a")?; s.set_xattr(a, "user.a", 20, SetXattr::Replace) };
    "removexattr": |s| {
        let ino = s.at("a")?;
        s.op(Op::RemoveXattr { ino, name: "user.a".into() })
    };
    "set-acl": |s| { let a = s.at("a")?; s.set_acl(a, false, 1) };
    "replace-acl": |s| {
        let a = s.at("a")?;
        // Three pages of attributes, then bits that say it all.
        s.set_acl(a, false, 500);
        s.set_acl(a, false, 0)
    };
    "chmod-acl": |s| {
        let ino = s.at("dir/empty")?;
        s.set_acl(ino, false, 500);
        s.op(Op::SetAttr { ino, mode: Some(0o2615), uid: None, gid: None })
    };
    "create-acl": |s| {
        let dir = s.at("dir")?;
        s.set_acl(dir, true, 400);
        s.create(dir, "new", 0o100_640, 0);
        s.create(dir, "below", S_IFDIR | 0o750, 0)
    };
    "remove-acl": |s| {
        let dir = s.at("dir")?;
        s.set_acl(dir, true, 2);
        s.op(Op::RemoveXattr { ino: dir, name: "system.posix_acl_default".into() })
    };
    "forget-orphan": |s| { let ino = s.orphan; s.forget(ino) };
    "fsync": |s| s.sync();
    "digest": |s| s.digest();
    "round": |s| s.round();
    "zeroing": |s| s.zero();
    "trim": |s| s.trim();
    "unmount": |s| { let o = s.options(); s.remount(true, &o) };
    "die": |s| { let o = s.options(); s.remount(false, &o) };
    "evict": |s| crate::evict::evict(&s.fs);
    "tmpfile": |s| { let t = s.tmpfile(ROOT); s.write(t, 0, BLOCK + 1) };
    "tmpfile-link": |s| {
        let dir = s.at("dir")?;
        let ino = s.tmpfile(dir);
        s.write(ino, 0, BLOCK + 1);
        s.op(Op::Link { ino, dir, name: "new".into() });
        s.forget(ino)
    };
    "tmpfile-gone": |s| { let t = s.tmpfile(ROOT); s.write(t, 0, BLOCK + 1); s.forget(t) };
    "link-orphan": |s| {
        let ino = s.orphan;
        s.op(Op::Link { ino, dir: ROOT, name: "again".into() })
    };
    "whiteout": |s| whiteout(s, (ROOT, "a"), (ROOT, "a2"));
    "whiteout-replace": |s| {
        let dir = s.at("dir")?;
        whiteout(s, (ROOT, "a"), (dir, "empty"))
    };
    "whiteout-dir": |s| { let dir = s.at("dir")?; whiteout(s, (dir, "sub"), (ROOT, "new")) };
    "immutable": |s| {
        let ino = s.at("a")?;
        s.op(Op::SetFlags { ino, flags: FLAG_IMMUTABLE | FLAG_NODUMP })
    };
    "project": |s| {
        // What is made, written and removed below is charged from here on.
        let dir = s.at("dir")?;
        s.set_project(dir, 7, true);
        let file = s.file(dir, "counted");
        s.write(file, 0, 3 * BLOCK);
        s.truncate(file, B)
    };
    "project-file": |s| { let a = s.at("a")?; s.set_project(a, 7, false) };
    "project-other": |s| { let dir = s.at("dir")?; s.set_project(dir, 8, true) };
    "project-none": |s| { let a = s.at("a")?; s.set_project(a, 0, false) };
    "limit": |s| {
        // Up to the last block, one beyond it, and a write of which half would fit.
        let (dir, e) = (s.at("dir")?, s.at("dir/empty")?);
        s.set_project(e, 7, false);
        s.set_project(dir, 7, true);
        let (blocks, _) = s.has(SEVEN);
        s.limit(SEVEN, Some(blocks + 2), None);
        s.write(e, 0, 2 * BLOCK);
        s.write(e, 2 * B, 1);
        s.truncate(e, B);
        s.write(e, 3 * B, 2 * BLOCK);
        s.write(e, 3 * B, 100)
    };
    "limit-inodes": |s| {
        let dir = s.at("dir")?;
        s.set_project(dir, 8, true);
        let (_, inodes) = s.has(EIGHT);
        s.limit(EIGHT, None, Some(inodes + 1));
        let one = s.file(dir, "one");
        s.file(dir, "two");
        s.remove(dir, "one");
        s.file(dir, "two");
        s.forget(one);
        s.create(dir, "three", S_IFDIR | 0o755, 0)
    };
    "limit-below": |s| {
        // What is above its limit already keeps what it has, and does not grow.
        let a = s.at("a")?;
        s.limit(SEVEN, Some(1), Some(1));
        s.set_project(a, 7, false);
        s.limit(SEVEN, Some(0), None);
        s.set_project(a, 7, false);
        s.limit(SEVEN, Some(2), None);
        s.write(a, 0, 10);
        s.write(a, 20 * B, 10)
    };
    "chown": |s| {
        // What a file and a directory have moves from one user and group to others, with what they get and lose.
        let (a, dir) = (s.at("a")?, s.at("dir")?);
        s.chown(a, Some(7), Some(7));
        s.write(a, 6 * B, 2 * BLOCK);
        s.chown(dir, Some(7), None);
        s.truncate(a, B);
        s.chown(a, Some(8), None)
    };
    "limit-user": |s| {
        // One user is at the limit of inodes, the other one's group at that of blocks.
        let (a, e) = (s.at("a")?, s.at("dir/empty")?);
        let (user, group) = (Subject::User(7), Subject::Group(8));
        s.chown(a, Some(7), Some(8));
        let (blocks, _) = s.has(group);
        s.limit(user, None, Some(1));
        s.limit(group, Some(blocks + 1), None);
        s.chown(e, Some(7), None);
        s.chown(e, None, Some(8));
        s.write(e, 0, 2 * BLOCK);
        s.write(e, 0, 100);
        s.write(a, 20 * B, 100)
    };
    "append-only": |s| {
        let ino = s.at("dir")?;
        s.op(Op::SetFlags { ino, flags: FLAG_APPEND | FLAG_NOATIME })
    };
}

impl Script {
    /// The inode of a path.
    pub fn at(&self, path: &str) -> Option<Ino> {
        path.split('/')
            .try_fold(ROOT, |dir, name| self.child(dir, name))
    }

    /// The file that was empty, with a hole, and blocks that were only allocated.
    fn grown(&mut self) -> Option<Ino> {
        let e = self.at("dir/empty")?;
        let grow = FallocMode::Allocate { keep_size: false };
        self.fallocate(e, grow, 3 * B, 2 * B);
        self.write(e, 2 * B, BLOCK);
        Some(e)
    }

    fn exchange(&mut self, one: (Ino, u64), other: (Ino, u64), len: u64) {
        let (to_eof, written) = (false, false);
        self.op(Op::Exchange {
            one,
            other,
            len,
            to_eof,
            written,
        });
    }

    fn exchange_files(&mut self, one: Ino, other: Ino) {
        let (to_eof, written) = (true, false);
        let (one, other) = ((one, 0), (other, 0));
        self.op(Op::Exchange {
            one,
            other,
            len: 0,
            to_eof,
            written,
        });
    }

    /// Sets an access control list that names `users`.
    fn set_acl(&mut self, ino: Ino, default: bool, users: u32) {
        let none = u32::MAX;
        let mut entries = vec![(0x01, 7, none)];
        entries.extend((0..users).map(|id| (0x02, 6, id)));
        entries.push((0x04, 4, none));
        entries.extend((users > 0).then_some((0x10, 5, none)));
        entries.push((0x20, 1, none));
        self.op(Op::SetAcl {
            ino,
            default,
            entries,
            stranger: true,
        });
    }

    /// Gives an inode away.
    pub fn chown(&mut self, ino: Ino, uid: Option<u32>, gid: Option<u32>) {
        self.op(Op::SetAttr {
            ino,
            mode: None,
            uid,
            gid,
        });
    }

    /// Puts an inode into a project.
    pub fn set_project(&mut self, ino: Ino, project: u32, inherit: bool) {
        self.op(Op::SetProject {
            ino,
            project,
            inherit,
        });
    }

    /// Sets limits of so many blocks and inodes; what is not given stays.
    pub fn limit(&mut self, subject: Subject, blocks: Option<u64>, inodes: Option<u64>) {
        self.op(Op::SetQuota(SetQuota {
            subject,
            bytes_hard: blocks.map(|n| n * B),
            inodes_hard: inodes,
            ..SetQuota::default()
        }));
    }

    /// Blocks and inodes of a project, user or group.
    pub fn has(&self, subject: Subject) -> (u64, u64) {
        let usage = self.fs.e.quotas.get(subject).map(|t| t.usage());
        usage.map_or((0, 0), |u| (u.blocks, u.inodes))
    }

    /// Sets an extended attribute to `len` bytes.
    pub fn set_xattr(&mut self, ino: Ino, name: &str, len: usize, how: SetXattr) {
        let value = Data {
            seed: len as u64,
            len,
        };
        self.op(Op::SetXattr {
            ino,
            name: name.into(),
            value,
            how,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::program::{MODES, Mode};
    use crate::{Shape, options};

    /// What of a step is refused, and what the project has afterwards.
    #[test]
    fn limits_are_met_and_reached() {
        let after = |mode: &Mode, names: &[&str]| {
            let (shape, options) = (&Shape::TINY, options(mode.options));
            let mut s = Script::new(mode.name, shape, mode.backend, &options);
            prepare(&mut s);
            for name in names {
                find(name).expect("a step").run(&mut s);
            }
            s
        };
        for mode in MODES {
            let s = after(mode, &["limit"]);
            let limit = s.fs.e.quotas.get(SEVEN).expect("a project").limits().blocks;
            assert_eq!((s.refusals, s.has(SEVEN).0), (2, limit), "{}", mode.name);
            let s = after(mode, &["limit-inodes"]);
            assert_eq!((s.refusals, s.has(EIGHT).1), (2, 2), "{}", mode.name);
            let s = after(mode, &["limit-below"]);
            let (blocks, inodes) = s.has(SEVEN);
            assert!(
                blocks > 2 && inodes == 1,
                "{blocks} blocks, {inodes} inodes"
            );
            assert_eq!(s.refusals, 2, "{}", mode.name);
        }
        for mode in MODES {
            let s = after(mode, &["limit-user"]);
            let (blocks, inodes) = s.has(Subject::Group(8));
            let limit = s.fs.e.quotas.get(Subject::Group(8)).expect("a group");
            assert_eq!(
                (blocks, inodes),
                (limit.limits().blocks, 2),
                "{}",
                mode.name
            );
            assert_eq!(
                (s.refusals, s.has(Subject::User(7)).1),
                (3, 1),
                "{}",
                mode.name
            );
        }
        // Other steps run into a limit that an earlier one has set.
        for other in [
            "symlink",
            "copy",
            "allocate-grow",
            "create-acl",
            "tmpfile-link",
        ] {
            let s = after(&MODES[0], &["limit", other]);
            assert!(s.refusals > 2, "{other}");
        }
        for other in ["create", "symlink", "create-acl", "whiteout-dir"] {
            let s = after(&MODES[0], &["limit-inodes", other]);
            assert!(s.refusals > 2, "{other}");
        }
    }
}
