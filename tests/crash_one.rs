//! One step at a time, and as good as every crash of it.

use quayfs::fs::{FallocMode, RenameFlags, SetXattr};
use quayfs_crashsim::Budget;
use quayfs_layout::inode::{ROOT, S_IFDIR, S_IFLNK};
use quayfs_layout::{BLOCK, Ino};
use quayfs_oracle::crash::{Depth, Script};
use quayfs_oracle::ops::{Data, Op};
use quayfs_oracle::{Shape, options};
use quayfs_pmem::Backend;

const B: u64 = BLOCK as u64;

const DEPTH: Depth = Depth {
    budget: Budget {
        exhaustive: 600,
        picks: 24,
        random: 24,
        seed: 3,
    },
    fsck: 17,
    used: 29,
    again: 251,
    most: 1500,
};

const MODES: [(&str, Backend); 4] = [
    ("noatime", Backend::Dax),
    ("noatime,durability=commit", Backend::File),
    (
        "noatime,durability=commit,checkpoint=swap",
        Backend::Volatile,
    ),
    ("noatime,data=ordered", Backend::File),
];

/// What there is before the step: a directory, a file of some blocks with a second name, an empty
/// one, one that is open and has no name, a link. Half of it is checkpointed.
struct Before {
    dir: Ino,
    a: Ino,
    empty: Ino,
    orphan: Ino,
}

fn prepare(s: &mut Script) -> Before {
    let dir = s.create(ROOT, "dir", S_IFDIR | 0o755, 0);
    let a = s.file(ROOT, "a");
    s.write(a, 0, 4 * BLOCK + 100);
    let empty = s.file(dir, "empty");
    let orphan = s.file(ROOT, "orphan");
    s.write(orphan, 0, 2 * BLOCK);
    s.background();
    s.op(Op::Link {
        ino: a,
        dir,
        name: "b".into(),
    });
    s.create(dir, "link", S_IFLNK, 500);
    s.write(a, B + 50, 100);
    s.remove(ROOT, "orphan");
    let value = Data { seed: 1, len: 300 };
    s.op(Op::SetXattr {
        ino: a,
        name: "user.a".into(),
        value,
        how: SetXattr::Any,
    });
    s.settle();
    Before {
        dir,
        a,
        empty,
        orphan,
    }
}

type Step = fn(&mut Script, &Before);

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

const NAMES: [(&str, Step); 9] = [
    ("create", |s, x| {
        s.file(x.dir, "new");
    }),
    ("mkdir", |s, _| {
        s.create(ROOT, "new", S_IFDIR | 0o700, 0);
    }),
    ("symlink", |s, x| {
        s.create(x.dir, "new", S_IFLNK, 4095);
    }),
    ("link", |s, x| {
        s.op(Op::Link {
            ino: x.empty,
            dir: ROOT,
            name: "new".into(),
        })
    }),
    ("unlink", |s, _| s.remove(ROOT, "a")),
    ("unlink the last", |s, x| s.remove(x.dir, "empty")),
    ("rename", |s, x| {
        rename(s, (ROOT, "dir"), (ROOT, "dir2"), x.a == 0)
    }),
    ("replace", |s, x| {
        rename(s, (x.dir, "empty"), (ROOT, "a"), false)
    }),
    ("exchange", |s, x| {
        rename(s, (ROOT, "a"), (x.dir, "link"), true)
    }),
];

const DATA: [(&str, Step); 12] = [
    ("write a block", |s, x| s.write(x.a, 2 * B, BLOCK)),
    ("write bytes", |s, x| s.write(x.a, 10, 20)),
    ("append", |s, x| s.write(x.a, 4 * B + 100, 5000)),
    ("write behind a hole", |s, x| s.write(x.a, 9 * B + 1, 100)),
    ("write the first block", |s, x| s.write(x.empty, 0, 100)),
    ("shrink", |s, x| s.truncate(x.a, B + 7)),
    ("grow", |s, x| s.truncate(x.a, 9 * B + 7)),
    ("punch", |s, x| {
        s.fallocate(x.a, FallocMode::Punch, 100, 3 * B)
    }),
    ("zero", |s, x| {
        s.fallocate(x.a, FallocMode::Zero { keep_size: false }, B, 5 * B)
    }),
    ("allocate", |s, x| {
        s.fallocate(x.a, FallocMode::Allocate { keep_size: true }, 0, 8 * B)
    }),
    ("copy", |s, x| {
        s.op(Op::Copy {
            from: (x.a, 5),
            to: (x.empty, 77),
            len: 2 * B,
        })
    }),
    ("write to an orphan", |s, x| s.write(x.orphan, B, 100)),
];

const OTHERS: [(&str, Step); 8] = [
    ("reap", |s, x| s.forget(x.orphan)),
    ("chmod", |s, x| {
        s.op(Op::SetAttr {
            ino: x.dir,
            mode: Some(0o700),
            uid: None,
            gid: Some(7),
        });
    }),
    ("set an attribute", |s, x| {
        let value = Data { seed: 2, len: 6000 };
        s.op(Op::SetXattr {
            ino: x.a,
            name: "user.b".into(),
            value,
            how: SetXattr::Any,
        });
    }),
    ("remove an attribute", |s, x| {
        s.op(Op::RemoveXattr {
            ino: x.a,
            name: "user.a".into(),
        });
    }),
    ("digest", |s, _| s.digest()),
    ("round", |s, _| {
        s.digest();
        s.settle();
        // With data=ordered nothing was staged.
        assert!(s.round() > 0 || s.fs.e.metrics.snapshot().blocks_direct > 0);
    }),
    ("zero batch", |s, x| {
        s.forget(x.orphan);
        s.background();
        s.truncate(x.a, B);
        s.sync();
        s.digest();
        s.round();
        s.settle();
        s.zero();
    }),
    ("shutdown", |s, _| s.remount(true, &options("noatime"))),
];

fn each(steps: &[(&str, Step)]) {
    for mode in MODES {
        for (name, step) in steps {
            let mut s = Script::new(name, &Shape::TINY, mode.1, &options(mode.0));
            let before = prepare(&mut s);
            step(&mut s, &before);
            s.sync();
            s.explore(&DEPTH);
        }
    }
}

#[test]
fn names() {
    each(&NAMES);
}

#[test]
fn data() {
    each(&DATA);
}

#[test]
fn others() {
    each(&OTHERS);
}
