//! What each life does.

use quayfs_fs::{FallocMode, RenameFlags, SetXattr};
use quayfs_layout::inode::{ROOT, S_IFDIR, S_IFREG};
use quayfs_layout::{BLOCK, Ino};
use quayfs_oracle::model::Model;
use quayfs_oracle::ops::{Data, Name, Op};

const B: u64 = BLOCK as u64;

/// An operation on what the model has by now; none if what it needs was never made.
type Make = Box<dyn Fn(&Model) -> Option<Op> + Send + Sync>;

pub enum Act {
    Op(Make),
    Sync,
    /// Everything is read.
    ReadAll,
    Unmount,
    /// The daemon dies.
    Kill,
    Mount,
}

pub struct Step {
    pub label: &'static str,
    pub act: Act,
}

fn find(m: &Model, path: &str) -> Option<Ino> {
    let mut names = path.split('/').filter(|n| !n.is_empty());
    names.try_fold(ROOT, |dir, name| m.child(dir, name.as_bytes()))
}

fn place(m: &Model, path: &'static str) -> Option<(Ino, Name)> {
    let (dir, name) = path.rsplit_once('/')?;
    Some((find(m, dir)?, name.into()))
}

fn step(label: &'static str, make: impl Fn(&Model) -> Option<Op> + Send + Sync + 'static) -> Step {
    Step {
        label,
        act: Act::Op(Box::new(make)),
    }
}

fn plain(label: &'static str, op: Op) -> Step {
    step(label, move |_| Some(op.clone()))
}

fn create(path: &'static str, mode: u32) -> Step {
    step("create", move |m| {
        let (dir, name) = place(m, path)?;
        Some(Op::Create {
            dir,
            name,
            mode,
            rdev: 0,
            by: (0, 0),
            umask: 0,
            target: 0,
        })
    })
}

fn write(label: &'static str, path: &'static str, offset: u64, len: usize) -> Step {
    let seed = offset ^ (len as u64) << 32;
    step(label, move |m| {
        Some(Op::Write {
            ino: find(m, path)?,
            offset,
            data: Data { seed, len },
            kill: false,
        })
    })
}

fn checkpoint(steps: &mut Vec<Step>) {
    steps.push(Step {
        label: "fsync",
        act: Act::Sync,
    });
    steps.push(plain("digest", Op::Digest));
    steps.push(plain("round", Op::Round));
    // Reads go to the device from here on, and pages to their homes.
    steps.push(plain("evict", Op::Evict));
}

/// Creates, writes of all kinds, rounds in place and with swap, renames, truncates, holes,
/// deletes, a zeroing pass, an unmount, a death, and recoveries.
pub fn program() -> Vec<Step> {
    let mut p = vec![
        create("/d", S_IFDIR | 0o755),
        create("/d/b", S_IFREG | 0o644),
        create("/s", S_IFREG | 0o644),
        create("/x", S_IFREG | 0o600),
        write("write", "/d/b", 0, 100),
        write("write", "/x", 0, BLOCK),
    ];
    for i in 0..3 {
        p.push(write("write", "/s", 7 * i * B, 7 * BLOCK));
    }
    checkpoint(&mut p);
    p.push(Step {
        label: "read",
        act: Act::ReadAll,
    });
    p.push(plain("evict", Op::Evict));
    p.push(write("write in part", "/s", 19 * B + 10, 100));
    p.push(write("write in part", "/d/b", 50, 5000));
    for i in 0..9 {
        p.push(write("write", "/s", 2 * i * B, BLOCK));
    }
    p.push(step("copy", |m| {
        Some(Op::Copy {
            from: (find(m, "/s")?, 5 * B + 100),
            to: (find(m, "/x")?, 10),
            len: 2 * B,
        })
    }));
    checkpoint(&mut p);
    p.push(step("rename", |m| {
        Some(Op::Rename {
            old: place(m, "/d/b")?,
            new: place(m, "/x")?,
            flags: RenameFlags::default(),
        })
    }));
    let forget = || {
        step("last forget", |m: &Model| {
            let ino = *m.nodes.iter().find(|(_, n)| n.nlink == 0)?.0;
            Some(Op::Forget { ino })
        })
    };
    p.push(forget());
    p.push(step("truncate", |m| {
        Some(Op::Truncate {
            ino: find(m, "/s")?,
            size: 15 * B + 7,
            kill: false,
        })
    }));
    p.push(step("punch", |m| {
        Some(Op::Fallocate {
            ino: find(m, "/s")?,
            mode: FallocMode::Punch,
            offset: 3 * B + 9,
            len: 3 * B,
        })
    }));
    p.push(step("setxattr", |m| {
        Some(Op::SetXattr {
            ino: find(m, "/s")?,
            name: "user.a".into(),
            value: Data { seed: 1, len: 300 },
            how: SetXattr::Any,
        })
    }));
    p.push(create("/gone", S_IFREG));
    p.push(write("write", "/gone", 0, 3 * BLOCK));
    p.push(step("delete", |m| {
        find(m, "/gone")?;
        let (dir, name) = place(m, "/gone")?;
        Some(Op::Remove {
            dir,
            name,
            want_dir: false,
        })
    }));
    p.push(forget());
    checkpoint(&mut p);
    p.push(plain("zeroing pass", Op::Zero));
    p.push(plain("trim", Op::Trim));
    p.push(plain("gather", Op::Gather));
    p.push(write("write", "/x", 9 * B, 2 * BLOCK));
    p.push(Step {
        label: "unmount",
        act: Act::Unmount,
    });
    p.push(Step {
        label: "mount",
        act: Act::Mount,
    });
    p.push(Step {
        label: "read",
        act: Act::ReadAll,
    });
    p.push(write("write in part", "/x", 9 * B + 1, 10));
    p.push(create("/late", S_IFREG | 0o644));
    p.push(write("write", "/late", 5, 9000));
    p.push(Step {
        label: "fsync",
        act: Act::Sync,
    });
    p.push(Step {
        label: "",
        act: Act::Kill,
    });
    p.push(Step {
        label: "recovery",
        act: Act::Mount,
    });
    p.push(Step {
        label: "read",
        act: Act::ReadAll,
    });
    p.push(write("write in part", "/late", 4000, 10));
    p.push(Step {
        label: "unmount",
        act: Act::Unmount,
    });
    p
}
