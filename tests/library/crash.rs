//! Every crash of small runs: what was acknowledged is there, what was not is there entirely or
//! not at all, and the volume works.

use quayfs_fs::{FallocMode, RenameFlags, SetXattr};
use quayfs_layout::inode::{ROOT, S_IFDIR, S_IFLNK};
use quayfs_layout::{BLOCK, Ino};
use quayfs_oracle::crash::{Depth, Script};
use quayfs_oracle::ops::{Data, Op};
use quayfs_oracle::pairs::Pair;
use quayfs_oracle::{Shape, options, seeds};
use quayfs_pmem::Backend;

const B: u64 = BLOCK as u64;
const PUNCH: FallocMode = FallocMode::Punch;
const ZERO: FallocMode = FallocMode::Zero { keep_size: false };
const ALLOCATE: FallocMode = FallocMode::Allocate { keep_size: true };

/// Mount options with the backend that goes with them.
type Mode = (&'static str, Backend);

const OP: Mode = ("noatime", Backend::Dax);
const COMMIT: Mode = ("noatime,durability=commit", Backend::File);
const COMMIT_MEMORY: Mode = (
    "noatime,durability=commit,checkpoint=swap",
    Backend::Volatile,
);
const ORDERED: Mode = ("noatime,data=ordered", Backend::File);

fn script(name: &str, mode: Mode) -> Script {
    Script::new(name, &Shape::TINY, mode.1, &options(mode.0))
}

fn names(s: &mut Script) {
    let dir = s.create(ROOT, "dir", S_IFDIR | 0o755, 0);
    let a = s.file(ROOT, "a");
    s.create(dir, "short", S_IFLNK, 20);
    s.create(dir, "long", S_IFLNK, 4095);
    s.op(Op::Link {
        ino: a,
        dir,
        name: "b".into(),
    });
    let plain = RenameFlags::default();
    s.op(Op::Rename {
        old: (ROOT, "a".into()),
        new: (dir, "long".into()),
        flags: plain,
    });
    let sub = s.create(ROOT, "sub", S_IFDIR | 0o700, 0);
    s.op(Op::Rename {
        old: (ROOT, "sub".into()),
        new: (dir, "sub".into()),
        flags: plain,
    });
    let exchange = RenameFlags {
        exchange: true,
        ..plain
    };
    s.op(Op::Rename {
        old: (dir, "short".into()),
        new: (dir, "sub".into()),
        flags: exchange,
    });
    s.sync();
    s.remove(dir, "sub");
    s.remove(dir, "short");
    s.forget(sub);
    s.op(Op::SetAttr {
        ino: a,
        mode: Some(0o4711),
        uid: Some(3),
        gid: None,
    });
    s.sync();
}

fn data(s: &mut Script) {
    let a = s.file(ROOT, "a");
    s.write(a, 0, BLOCK);
    s.write(a, 100, 50);
    s.write(a, B - 10, 2 * BLOCK);
    s.sync();
    s.write(a, 9 * B, 700);
    s.truncate(a, B + 5);
    s.truncate(a, 3 * B);
    s.fallocate(a, PUNCH, 50, B + 100);
    s.sync();
    s.fallocate(a, ALLOCATE, 4 * B, 2 * B);
    s.write(a, 4 * B + 7, BLOCK);
    s.remove(ROOT, "a");
    s.forget(a);
}

fn attributes(s: &mut Script) {
    let a = s.file(ROOT, "a");
    let set = |name: &str, len, how| Op::SetXattr {
        ino: a,
        name: name.into(),
        value: Data {
            seed: len as u64,
            len,
        },
        how,
    };
    s.op(set("user.a", 100, SetXattr::Create));
    s.op(set("user.b", 5000, SetXattr::Any));
    s.sync();
    s.op(set("user.b", 20, SetXattr::Replace));
    s.op(Op::RemoveXattr {
        ino: a,
        name: "user.a".into(),
    });
    s.op(Op::RemoveXattr {
        ino: a,
        name: "user.b".into(),
    });
    s.sync();
}

/// Digest between operations, so that every crash of a digest is seen with records above it.
fn digests(s: &mut Script) {
    let dir = s.create(ROOT, "dir", S_IFDIR | 0o755, 0);
    let a = s.file(dir, "a");
    s.write(a, 0, 6000);
    s.sync();
    s.digest();
    s.write(a, 5000, 100);
    s.file(ROOT, "b");
    s.remove(dir, "a");
    s.sync();
    s.digest();
    s.forget(a);
    s.create(dir, "link", S_IFLNK, 300);
    s.sync();
    s.digest();
}

/// Rounds between operations; blocks are freed and given to another file, which must not see them.
fn rounds(s: &mut Script) {
    let a = s.file(ROOT, "a");
    s.write(a, 0, 3 * BLOCK);
    s.write(a, B, BLOCK);
    s.background();
    s.write(a, 0, BLOCK);
    s.write(a, B + 1, 10);
    s.background();
    s.truncate(a, 10);
    s.fallocate(a, ALLOCATE, 0, 3 * B);
    s.truncate(a, 3 * B);
    s.remove(ROOT, "a");
    s.forget(a);
    s.background();
    s.zero();
    let b = s.file(ROOT, "b");
    s.fallocate(b, ZERO, 0, 4 * B);
    s.write(b, B + 5, 100);
    s.background();
}

/// Two files on the device, and new versions of blocks of both of them in the buffers, none beside
/// another on the device.
fn scattered(s: &mut Script) -> (Ino, Ino) {
    let (a, b) = (s.file(ROOT, "a"), s.file(ROOT, "b"));
    for i in 0..3 {
        s.write(a, 4 * i * B, 4 * BLOCK);
        s.write(b, 4 * i * B, 4 * BLOCK);
    }
    s.background();
    s.start_here();
    for i in 0..6 {
        s.write(a, 2 * i * B, BLOCK);
        s.write(b, (2 * i + 1) * B, 100);
    }
    (a, b)
}

/// A round with more blocks than are worth writing one by one: adaptive ones swap.
fn swaps(s: &mut Script) {
    let (a, _) = scattered(s);
    s.sync();
    s.digest();
    s.round();
    s.write(a, 0, 2 * BLOCK);
    s.background();
}

/// What is free is discarded between operations: nothing that a recovery comes to is among it.
fn trims(s: &mut Script) {
    let (a, b) = scattered(s);
    // Swapped: where they were becomes free.
    s.background();
    s.trim();
    s.truncate(b, B + 7);
    s.trim();
    s.write(b, B + 100, 3 * BLOCK);
    s.remove(ROOT, "a");
    s.forget(a);
    s.trim();
    s.background();
}

/// Free blocks are put in order between operations, and what is written next goes to them.
fn gathers(s: &mut Script) {
    let (a, b) = scattered(s);
    // Swapped: the spare pool, or free LBNs, own what lay here and there.
    s.background();
    s.truncate(b, B + 7);
    s.background();
    assert!(s.gather() > 0);
    s.write(b, B + 100, 3 * BLOCK);
    s.background();
    s.remove(ROOT, "a");
    s.forget(a);
    s.background();
    s.gather();
    let c = s.file(ROOT, "c");
    s.write(c, 0, 5 * BLOCK);
    s.background();
    s.gather();
}

/// What projects have is added up, so each record has to be counted, and once, whatever the digest in
/// which it stands came to.
fn projects(s: &mut Script) {
    let join = |ino, project, inherit| Op::SetProject {
        ino,
        project,
        inherit,
    };
    let dir = s.create(ROOT, "dir", S_IFDIR | 0o755, 0);
    let b = s.file(ROOT, "b");
    s.write(b, 0, 100);
    s.op(join(dir, 7, true));
    let a = s.file(dir, "a");
    s.write(a, 0, 2 * BLOCK);
    s.sync();
    s.digest();
    s.write(a, 5 * B, 100);
    s.op(join(b, 7, false));
    s.truncate(a, B);
    s.sync();
    s.digest();
    s.op(join(b, 8, false));
    s.write(b, B, 3 * BLOCK);
    s.remove(dir, "a");
    s.forget(a);
    s.sync();
    s.digest();
    s.op(join(b, 0, false));
    s.sync();
    s.background();
}

/// The same of users and groups: what changes hands, with what it gets and loses meanwhile.
fn owners(s: &mut Script) {
    let give = |ino, uid, gid| Op::SetAttr {
        ino,
        mode: None,
        uid,
        gid,
    };
    let dir = s.create(ROOT, "dir", S_IFDIR | 0o755, 0);
    let a = s.file(dir, "a");
    s.write(a, 0, 2 * BLOCK);
    s.sync();
    s.digest();
    s.op(give(a, Some(7), Some(8)));
    s.write(a, 5 * B, 100);
    s.op(give(dir, Some(7), None));
    s.sync();
    s.digest();
    s.truncate(a, B);
    s.op(give(a, Some(9), None));
    s.write(a, B, 3 * BLOCK);
    s.sync();
    s.digest();
    s.remove(dir, "a");
    s.op(give(dir, Some(0), Some(8)));
    s.forget(a);
    s.sync();
    s.background();
}

/// Slot rings and record lanes go around.
fn wraps(s: &mut Script) {
    let a = s.file(ROOT, "a");
    let lane = Shape::TINY.lane * Shape::TINY.buffers;
    while s.fs.e.journal.stats().append_bytes < lane - 3000 {
        s.write(a, 0, 2 * BLOCK);
        s.create(ROOT, "l", S_IFLNK, 3000);
        s.remove(ROOT, "l");
        if s.fs.e.journal.stats().slots_used > 30 {
            s.background();
        }
    }
    s.start_here();
    for i in 0..7 {
        s.write(a, i % 3 * B, 4 * BLOCK);
        s.create(ROOT, &format!("l{i}"), S_IFLNK, 2000);
        if i % 3 == 1 {
            s.background();
        }
    }
    s.sync();
}

/// A file in more pieces than one record can free.
fn pieces(s: &mut Script, n: u64) -> u64 {
    let a = s.file(ROOT, "a");
    for i in 0..n {
        s.fallocate(a, ALLOCATE, 2 * i * B, B);
    }
    s.write(a, 2 * n * B, 10);
    s.start_here();
    a
}

fn long_truncate(s: &mut Script) {
    let a = pieces(s, 270);
    s.truncate(a, B + 1);
    s.write(a, 5 * B, 10);
    s.background();
    s.truncate(a, 0);
}

fn long_reap(s: &mut Script) {
    let a = pieces(s, 270);
    s.remove(ROOT, "a");
    // It has no name any more, but it is there and can be cut.
    s.truncate(a, 7);
    s.forget(a);
    s.sync();
    s.background();
    s.file(ROOT, "b");
}

/// Nothing that is not committed leaves the rings: blocks freed by it keep their content, blocks
/// taken by it are still free after a crash.
fn uncommitted(s: &mut Script) {
    let (a, b) = (s.file(ROOT, "a"), s.file(ROOT, "b"));
    s.write(a, 0, 3 * BLOCK);
    s.background();
    s.start_here();
    let idle = |s: &mut Script| {
        s.digest();
        s.round();
        s.zero();
    };
    s.write(a, 0, BLOCK);
    idle(s);
    s.truncate(a, 100);
    idle(s);
    s.write(b, 0, 2 * BLOCK);
    s.remove(ROOT, "a");
    s.forget(a);
    idle(s);
    s.fallocate(b, ALLOCATE, 2 * B, 3 * B);
    s.sync();
    idle(s);
    s.write(b, 2 * B + 1, 5);
    idle(s);
}

/// Mounts and unmounts are runs like any other, also from one mode to the other.
fn mounts(s: &mut Script, other: &str) {
    let a = s.file(ROOT, "a");
    s.write(a, 0, 5000);
    s.remount(true, &options(other));
    s.write(a, 10, 5000);
    s.remount(false, &options("noatime"));
    s.write(a, 20, 50);
    s.remount(false, &options(other));
    s.write(a, 30, 5000);
    s.remount(true, &options("noatime"));
}

fn all(name: &str, mode: Mode, depth: &Depth, program: impl Fn(&mut Script)) {
    let mut s = script(name, mode);
    program(&mut s);
    s.explore(depth);
}

#[test]
fn names_op() {
    all("names", OP, &Depth::USUAL, names);
}

#[test]
fn names_commit() {
    all("names", COMMIT, &Depth::USUAL, names);
    all("names", COMMIT_MEMORY, &Depth::USUAL, names);
}

#[test]
fn data_op() {
    all("data", OP, &Depth::USUAL, data);
}

#[test]
fn data_commit() {
    for mode in [COMMIT, COMMIT_MEMORY, ORDERED] {
        all("data", mode, &Depth::USUAL, data);
    }
}

#[test]
fn attributes_any() {
    for mode in [OP, COMMIT] {
        all("attributes", mode, &Depth::USUAL, attributes);
    }
}

#[test]
fn digests_any() {
    for mode in [OP, COMMIT, ORDERED] {
        all("digests", mode, &Depth::USUAL, digests);
    }
}

#[test]
fn rounds_op() {
    for mode in [OP, ("noatime,checkpoint=swap", Backend::Dax)] {
        all("rounds", mode, &Depth::USUAL, rounds);
    }
}

#[test]
fn rounds_commit() {
    for mode in [COMMIT, COMMIT_MEMORY, ORDERED] {
        all("rounds", mode, &Depth::USUAL, rounds);
    }
}

#[test]
fn uncommitted_stays_in_the_rings() {
    for mode in [COMMIT, COMMIT_MEMORY, ORDERED] {
        all("uncommitted", mode, &Depth::USUAL, uncommitted);
    }
}

#[test]
fn swaps_any() {
    for mode in [OP, COMMIT, COMMIT_MEMORY] {
        all("swaps", mode, &Depth::USUAL, swaps);
    }
}

#[test]
fn trims_any() {
    for mode in [OP, COMMIT, COMMIT_MEMORY, ORDERED] {
        all("trims", mode, &Depth::USUAL, trims);
    }
}

#[test]
fn gathers_any() {
    // With `data=ordered` nothing of this is staged, so nothing is swapped.
    for mode in [OP, COMMIT, COMMIT_MEMORY] {
        all("gathers", mode, &Depth::USUAL, gathers);
    }
}

#[test]
fn owners_any() {
    for mode in [OP, COMMIT, ORDERED] {
        all("owners", mode, &Depth::USUAL, owners);
    }
}

#[test]
fn projects_any() {
    for mode in [OP, COMMIT, ORDERED] {
        all("projects", mode, &Depth::USUAL, projects);
    }
}

#[test]
fn wraps_any() {
    for mode in [OP, COMMIT_MEMORY] {
        all("wraps", mode, &Depth::USUAL, wraps);
    }
}

#[test]
fn long_truncates() {
    for mode in [OP, COMMIT] {
        all("long truncate", mode, &Depth::RECOVERY, long_truncate);
        all("long reap", mode, &Depth::RECOVERY, long_reap);
    }
}

#[test]
fn mounts_any() {
    all("mounts", OP, &Depth::USUAL, |s| {
        mounts(s, "noatime,durability=commit")
    });
    all("mounts", COMMIT, &Depth::USUAL, |s| {
        mounts(s, "noatime,data=ordered")
    });
}

#[test]
fn threads_op() {
    for seed in seeds(0, 2) {
        let mode = options("noatime");
        Pair::run((&Shape::TINY, Backend::Dax), &mode, 2, 25, seed).explore(&Depth::USUAL);
    }
}

#[test]
fn threads_commit() {
    for seed in seeds(0, 2) {
        for mode in [COMMIT, COMMIT_MEMORY, ORDERED] {
            let pair = Pair::run((&Shape::TINY, mode.1), &options(mode.0), 2, 25, seed);
            pair.explore(&Depth::USUAL);
        }
    }
}
