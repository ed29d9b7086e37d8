//! Which operation changes which time stamps, and that they survive.

use std::sync::Arc;

use quayfs_fs::{Caller, FallocMode, Fs, RenameFlags, SetAttr, SetTime, SetXattr};
use quayfs_layout::inode::{ROOT, S_IFREG, Time};
use quayfs_layout::{BLOCK, Ino};
use quayfs_oracle::{Media, Shape, options};
use quayfs_pmem::Backend;

const ME: Caller = Caller {
    uid: 0,
    gid: 0,
    umask: 0,
};
/// A time that no operation of this test happens at.
const LONG_AGO: Time = Time {
    sec: 1_000_000_000,
    nsec: 7,
};

/// Which of a file's times an operation sets to the present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Touched {
    access: bool,
    content: bool,
    change: bool,
}

const NONE: Touched = Touched {
    access: false,
    content: false,
    change: false,
};
const CHANGE: Touched = Touched {
    change: true,
    ..NONE
};
const CONTENT: Touched = Touched {
    content: true,
    ..CHANGE
};
const ACCESS: Touched = Touched {
    access: true,
    ..NONE
};

/// Makes all times old, except for the change time, which follows the caller's.
fn age(fs: &Fs, ino: Ino) {
    let old = SetAttr {
        atime: Some(SetTime::At(Time {
            sec: LONG_AGO.sec + 1,
            nsec: 0,
        })),
        mtime: Some(SetTime::At(LONG_AGO)),
        ctime: Some(LONG_AGO),
        ..SetAttr::default()
    };
    fs.setattr(ino, &old, false).expect("setattr");
}

fn touched(fs: &Fs, ino: Ino) -> Touched {
    let i = fs.getattr(ino).expect("getattr").inode;
    let new = |t: Time| t.sec > LONG_AGO.sec + 1;
    Touched {
        access: new(i.atime),
        content: new(i.mtime),
        change: new(i.ctime),
    }
}

struct Tree {
    fs: Arc<Fs>,
    file: Ino,
    dir: Ino,
    other: Ino,
}

fn tree(text: &str) -> Tree {
    let media = Media::new(&Shape::SMALL, Backend::Volatile);
    let fs = media.mount_quiet(&options(text));
    let dir = fs.mkdir(ME, ROOT, b"dir", 0o755).expect("mkdir").ino;
    let other = fs.mkdir(ME, ROOT, b"other", 0o755).expect("mkdir").ino;
    let file = fs
        .mknod(ME, dir, b"file", S_IFREG | 0o644, 0)
        .expect("mknod")
        .ino;
    fs.write(file, 0, &[1; 3 * BLOCK], false).expect("write");
    Tree {
        fs,
        file,
        dir,
        other,
    }
}

type Operation = fn(&Tree);

/// An operation and what it touches: of the file, its directory, the other directory.
type Row = (&'static str, Operation, [Touched; 3]);

const PLAIN: RenameFlags = RenameFlags {
    no_replace: false,
    exchange: false,
    whiteout: None,
};

const TABLE: [Row; 14] = [
    (
        "write",
        |t| t.fs.write(t.file, 5, b"x", false).expect("write"),
        [CONTENT, NONE, NONE],
    ),
    ("truncate", |t| resize(t, 10), [CONTENT, NONE, NONE]),
    (
        "truncate to the same",
        |t| resize(t, 3 * BLOCK as u64),
        [CONTENT, NONE, NONE],
    ),
    (
        "punch",
        |t| allocate(t, FallocMode::Punch),
        [CONTENT, NONE, NONE],
    ),
    (
        "allocate",
        |t| allocate(t, FallocMode::Allocate { keep_size: true }),
        [CHANGE, NONE, NONE],
    ),
    (
        "chmod",
        |t| {
            let set = SetAttr {
                mode: Some(0o600),
                ..SetAttr::default()
            };
            t.fs.setattr(t.file, &set, false)
                .map(drop)
                .expect("setattr");
        },
        [CHANGE, NONE, NONE],
    ),
    (
        "setxattr",
        |t| {
            t.fs.setxattr(t.file, b"user.a", b"1", SetXattr::Any)
                .expect("setxattr")
        },
        [CHANGE, NONE, NONE],
    ),
    (
        "link",
        |t| t.fs.link(t.file, t.other, b"l").map(drop).expect("link"),
        [CHANGE, NONE, CONTENT],
    ),
    (
        "unlink",
        |t| t.fs.unlink(t.dir, b"file").expect("unlink"),
        [CHANGE, CONTENT, NONE],
    ),
    (
        "rename",
        |t| {
            t.fs.rename((t.dir, b"file"), (t.other, b"f"), PLAIN)
                .expect("rename")
        },
        [CHANGE, CONTENT, CONTENT],
    ),
    (
        "create",
        |t| t.fs.mkdir(ME, t.dir, b"d", 0o755).map(drop).expect("mkdir"),
        [NONE, CONTENT, NONE],
    ),
    (
        "read",
        |t| t.fs.read(t.file, 0, 10).map(drop).expect("read"),
        [NONE, NONE, NONE],
    ),
    (
        "list",
        |t| t.fs.readdir(t.dir, 0, |_| true).expect("readdir"),
        [NONE, NONE, NONE],
    ),
    (
        "lookup",
        |t| t.fs.lookup(t.dir, b"file").map(drop).expect("lookup"),
        [NONE, NONE, NONE],
    ),
];

fn resize(t: &Tree, size: u64) {
    let set = SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    t.fs.setattr(t.file, &set, false)
        .map(drop)
        .expect("truncate");
}

fn allocate(t: &Tree, mode: FallocMode) {
    t.fs.fallocate(t.file, mode, 0, BLOCK as u64)
        .expect("fallocate");
}

#[test]
fn operations_touch_what_they_should() {
    for (name, operation, want) in TABLE {
        let t = tree("noatime");
        let all = [t.file, t.dir, t.other];
        all.iter().for_each(|ino| age(&t.fs, *ino));
        assert_eq!(
            all.map(|ino| touched(&t.fs, ino)),
            [NONE; 3],
            "{name}, before"
        );
        operation(&t);
        assert_eq!(all.map(|ino| touched(&t.fs, ino)), want, "{name}");
    }
}

/// With `relatime` a read counts if the last one is not newer than the last change, with `strictatime`
/// always.
#[test]
fn reads_are_noted_now_and_then() {
    let t = tree("relatime");
    age(&t.fs, t.file);
    t.fs.read(t.file, 0, 1).expect("read");
    // A day has passed since then.
    assert_eq!(touched(&t.fs, t.file), ACCESS);
    let noted = t.fs.getattr(t.file).expect("getattr").inode.atime;
    t.fs.read(t.file, 0, 1).expect("read");
    assert_eq!(t.fs.getattr(t.file).expect("getattr").inode.atime, noted);
    let t = tree("strictatime");
    t.fs.read(t.file, 0, 1).expect("read");
    let noted = t.fs.getattr(t.file).expect("getattr").inode.atime;
    t.fs.read(t.file, 0, 1).expect("read");
    assert!(t.fs.getattr(t.file).expect("getattr").inode.atime > noted);
    let t = tree("relatime,nodiratime");
    age(&t.fs, t.dir);
    t.fs.readdir(t.dir, 0, |_| true).expect("readdir");
    assert_eq!(touched(&t.fs, t.dir), NONE);
}
