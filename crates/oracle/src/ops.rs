//! Operations as data, and random ones.

use quayfs_fs::{Caller, FallocMode, RenameFlags, SetQuota, SetXattr, Subject};
use quayfs_layout::inode::{
    FLAG_APPEND, FLAG_DIRSYNC, FLAG_IMMUTABLE, FLAG_NOATIME, FLAG_NODUMP, FLAG_SYNC, S_IFDIR,
    S_IFLNK, S_IFREG,
};
use quayfs_layout::{BLOCK, Ino};

use crate::model::lists::{ACCESS, DEFAULT, Entry};
use crate::model::{Model, SIZE_MAX};
use crate::rng::Rng;

const B: u64 = BLOCK as u64;
/// What forbids something.
const PROTECTED: u32 = FLAG_IMMUTABLE | FLAG_APPEND;

/// Bytes to be written: where they come from and how many.
#[derive(Clone, Copy, Debug)]
pub struct Data {
    pub seed: u64,
    pub len: usize,
}

impl Data {
    pub fn bytes(self) -> Vec<u8> {
        crate::rng::bytes(self.seed, self.len)
    }
}

/// One call of the operation layer.
#[derive(Clone, Debug)]
pub enum Op {
    /// mknod, mkdir and symlink, by the type in the mode.
    Create {
        dir: Ino,
        name: Name,
        mode: u32,
        rdev: u32,
        by: (u32, u32),
        umask: u32,
        target: usize,
    },
    /// A file without a name.
    Tmpfile {
        dir: Ino,
        mode: u32,
        umask: u32,
        by: (u32, u32),
    },
    Link {
        ino: Ino,
        dir: Ino,
        name: Name,
    },
    Lookup {
        dir: Ino,
        name: Name,
    },
    Remove {
        dir: Ino,
        name: Name,
        want_dir: bool,
    },
    Rename {
        old: (Ino, Name),
        new: (Ino, Name),
        flags: RenameFlags,
    },
    Write {
        ino: Ino,
        offset: u64,
        data: Data,
        kill: bool,
    },
    /// Several writes as one.
    Together {
        ino: Ino,
        pieces: Vec<(u64, Data)>,
        kill: bool,
    },
    Read {
        ino: Ino,
        offset: u64,
        len: usize,
    },
    Truncate {
        ino: Ino,
        size: u64,
        kill: bool,
    },
    Fallocate {
        ino: Ino,
        mode: FallocMode,
        offset: u64,
        len: u64,
    },
    Copy {
        from: (Ino, u64),
        to: (Ino, u64),
        len: u64,
    },
    /// The contents of two ranges change places. `written`: only blocks that were written, seen from `one`.
    Exchange {
        one: (Ino, u64),
        other: (Ino, u64),
        len: u64,
        to_eof: bool,
        written: bool,
    },
    SetAttr {
        ino: Ino,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
    },
    /// `chattr` by root.
    SetFlags {
        ino: Ino,
        flags: u32,
    },
    /// `chattr -p`, and `+P` or `-P`, by root.
    SetProject {
        ino: Ino,
        project: u32,
        inherit: bool,
    },
    /// Limits, set by root.
    SetQuota(SetQuota),
    SetXattr {
        ino: Ino,
        name: Name,
        value: Data,
        how: SetXattr,
    },
    /// An access list, or the one for new inodes.
    SetAcl {
        ino: Ino,
        default: bool,
        entries: Vec<Entry>,
        stranger: bool,
    },
    RemoveXattr {
        ino: Ino,
        name: Name,
    },
    Seek {
        ino: Ino,
        data: bool,
        offset: u64,
    },
    Forget {
        ino: Ino,
    },
    Release {
        ino: Ino,
    },
    Fsync {
        ino: Ino,
    },
    Digest,
    Round,
    /// Two rounds of the older half without a pause.
    Room,
    Zero,
    /// Discards what is free.
    Trim,
    /// Puts free blocks in order, whatever that gains.
    Gather,
    /// Drops from DRAM all that can be read again.
    Evict,
}

/// A name, shown by what it begins with.
#[derive(Clone, PartialEq, Eq)]
pub struct Name(pub Vec<u8>);

impl std::fmt::Debug for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let n = self.0.len();
        let shown = String::from_utf8_lossy(&self.0[..n.min(12)]);
        if n > 12 {
            write!(f, "{shown}..({n})")
        } else {
            write!(f, "{shown}")
        }
    }
}

impl From<&str> for Name {
    fn from(s: &str) -> Self {
        Self(s.as_bytes().to_vec())
    }
}

/// The target of a symbolic link of `len` bytes.
pub fn target(len: usize) -> Vec<u8> {
    (0..len).map(|i| b'a' + (i % 26) as u8).collect()
}

/// What random operations may do.
#[derive(Clone, Copy, Debug)]
pub struct Taste {
    /// Different short names.
    pub names: u64,
    /// Most blocks that files may have together.
    pub blocks: u64,
    /// Longest write in blocks.
    pub write: u64,
    /// Longest attribute value.
    pub xattr: usize,
    /// Most inodes.
    pub inodes: usize,
    /// Offsets far out, and operations of more than one record.
    pub wild: bool,
    /// Digest, round and zeroing pass are called as operations.
    pub quiet: bool,
    /// Projects, users and groups get limits, which hold for the whole volume.
    pub limits: bool,
}

/// Chooses an operation that the state of `m` makes interesting.
pub fn random(rng: &mut Rng, m: &Model, t: &Taste) -> Op {
    let all: Vec<Ino> = m.nodes.keys().copied().collect();
    let of = |kind: u32| -> Vec<Ino> {
        m.nodes
            .iter()
            .filter(|(_, n)| n.kind() == kind)
            .map(|(i, _)| *i)
            .collect()
    };
    let (dirs, files) = (of(S_IFDIR), of(S_IFREG));
    let any = *rng.pick(&all);
    let dir = *rng.pick(&dirs);
    // Mostly a file, sometimes what is none.
    let file = if files.is_empty() || rng.one_in(60) {
        any
    } else {
        *rng.pick(&files)
    };
    let crowded = m.nodes.len() > t.inodes || m.allocated() > t.blocks;
    // Where little may be done, nothing happens.
    if let Some((ino, _)) = m.nodes.iter().find(|(_, n)| n.flags & PROTECTED != 0)
        && rng.one_in(8)
    {
        let ino = *ino;
        return Op::SetFlags { ino, flags: 0 };
    }
    let offset = |rng: &mut Rng| offset(rng, m, file, t);
    if t.limits && rng.one_in(16) {
        return match rng.one_in(2) {
            true => limit(rng, t),
            false => join(rng, (any, dir)),
        };
    }
    match rng.below(100) {
        _ if crowded && !rng.one_in(3) => shrink(rng, m, (file, dir)),
        0..14 => Op::Create {
            dir,
            name: name(rng, t),
            mode: mode(rng),
            rdev: rng.below(1 << 20) as u32,
            by: (rng.below(3) as u32, rng.below(3) as u32),
            umask: *rng.pick(&[0, 0o22, 0o77]),
            target: target_len(rng),
        },
        14..17 => Op::Link {
            ino: any,
            dir,
            name: name(rng, t),
        },
        17..20 => Op::Lookup {
            dir,
            name: known_name(rng, m, dir, t),
        },
        20..27 => {
            let name = known_name(rng, m, dir, t);
            let is_dir = m.child(dir, &name.0).is_some_and(|c| m.nodes[&c].is_dir());
            Op::Remove {
                dir,
                name,
                want_dir: is_dir != rng.one_in(12),
            }
        }
        27..36 => {
            let to = *rng.pick(&dirs);
            let new = if rng.one_in(2) {
                known_name(rng, m, to, t)
            } else {
                name(rng, t)
            };
            let k = rng.below(8);
            Op::Rename {
                old: (dir, known_name(rng, m, dir, t)),
                new: (to, new),
                flags: RenameFlags {
                    no_replace: k == 0 || k == 3,
                    exchange: (1..4).contains(&k),
                    whiteout: (k == 4 || k == 3).then_some(Caller {
                        uid: 1,
                        gid: 2,
                        umask: 0,
                    }),
                },
            }
        }
        36..57 => Op::Write {
            ino: file,
            offset: offset(rng),
            data: Data {
                seed: rng.number(),
                len: write_len(rng, t),
            },
            kill: rng.one_in(2),
        },
        57..63 => Op::Read {
            ino: file,
            offset: offset(rng),
            len: rng.below(t.write * B) as usize,
        },
        63..68 => Op::Truncate {
            ino: file,
            size: offset(rng),
            kill: rng.one_in(2),
        },
        68..74 => Op::Fallocate {
            ino: file,
            mode: falloc(rng, t),
            offset: offset(rng),
            len: if rng.one_in(30) {
                0
            } else {
                write_len(rng, t) as u64
            },
        },
        74 => exchange(rng, m, (file, &files), t),
        75 => Op::Together {
            ino: file,
            pieces: (0..rng.below(4))
                .map(|_| {
                    let len = write_len(rng, t).min(2 * BLOCK);
                    let seed = rng.number();
                    (offset(rng), Data { seed, len })
                })
                .collect(),
            kill: rng.one_in(2),
        },
        76 => Op::Copy {
            from: (
                if files.is_empty() {
                    any
                } else {
                    *rng.pick(&files)
                },
                offset(rng),
            ),
            to: (file, offset(rng)),
            len: rng.below(t.write * B),
        },
        77..80 => Op::SetAttr {
            ino: any,
            mode: rng.one_in(2).then(|| rng.below(0o10000) as u32),
            uid: rng.one_in(2).then(|| rng.below(3) as u32),
            gid: rng.one_in(2).then(|| rng.below(3) as u32),
        },
        80..82 => {
            let default = rng.one_in(2);
            Op::SetAcl {
                // Something that can have it, mostly.
                ino: if default && !rng.one_in(8) { dir } else { any },
                default,
                entries: entries(rng),
                stranger: rng.one_in(2),
            }
        }
        82..85 => Op::SetXattr {
            ino: any,
            name: attr_name(rng),
            value: Data {
                seed: rng.number(),
                len: value_len(rng, t),
            },
            how: *rng.pick(&[
                SetXattr::Any,
                SetXattr::Any,
                SetXattr::Create,
                SetXattr::Replace,
            ]),
        },
        86 if rng.one_in(2) => Op::Tmpfile {
            dir,
            mode: mode(rng) & 0o7777,
            umask: *rng.pick(&[0, 0o22, 0o77]),
            by: (rng.below(3) as u32, rng.below(3) as u32),
        },
        86 if rng.one_in(2) => join(rng, (any, dir)),
        86 => chattr(rng, m, any),
        85 => Op::RemoveXattr {
            ino: any,
            name: attr_name(rng),
        },
        87..89 => Op::Seek {
            ino: file,
            data: rng.one_in(2),
            offset: offset(rng),
        },
        89..93 => Op::Forget { ino: any },
        93 => Op::Release { ino: file },
        94 if rng.one_in(2) => Op::Evict,
        94 => Op::Fsync { ino: any },
        // A trim waits for no other operation, and all others may go on beside it.
        95 if rng.one_in(3) => Op::Trim,
        96 if rng.one_in(3) => Op::Gather,
        95..97 if t.quiet => Op::Digest,
        97 if t.quiet => Op::Round,
        98 if t.quiet => Op::Room,
        99 if t.quiet => Op::Zero,
        _ => Op::Lookup {
            dir,
            name: known_name(rng, m, dir, t),
        },
    }
}

/// Ranges that mostly can be exchanged.
fn exchange(rng: &mut Rng, m: &Model, (file, files): (Ino, &[Ino]), t: &Taste) -> Op {
    let other = if files.is_empty() {
        file
    } else {
        *rng.pick(files)
    };
    let size = |ino| m.nodes.get(&ino).map_or(0, |n| n.content.size);
    let start = |rng: &mut Rng, ino| {
        let at = offset(rng, m, ino, t).min(size(ino));
        if rng.one_in(10) { at } else { at / B * B }
    };
    let (from, to) = (start(rng, file), start(rng, other));
    let room = (size(file).saturating_sub(from)).min(size(other).saturating_sub(to));
    let len = match rng.below(4) {
        0 => room,
        1 => rng.below(room.min(t.write * B) + 1),
        _ => rng.below(room.min(t.blocks * B) / B + 1) * B,
    };
    Op::Exchange {
        one: (file, from),
        other: (other, to),
        len,
        to_eof: rng.one_in(3),
        written: rng.one_in(4),
    }
}

/// Puts something into a project: mostly a tree, sometimes what was in one.
fn join(rng: &mut Rng, (any, dir): (Ino, Ino)) -> Op {
    Op::SetProject {
        ino: if rng.one_in(3) { any } else { dir },
        project: rng.below(3) as u32,
        inherit: !rng.one_in(3),
    }
}

/// Mostly a project, of which there may be one that none is.
fn subject(rng: &mut Rng) -> Subject {
    let id = rng.below(3) as u32;
    match rng.below(6) {
        0 => Subject::User(id),
        1 => Subject::Group(id),
        _ => Subject::Project(id),
    }
}

/// Limits that are soon reached, or none.
fn limit(rng: &mut Rng, t: &Taste) -> Op {
    let limit = |rng: &mut Rng, most: u64| match rng.below(4) {
        0 => None,
        1 => Some(0),
        _ => Some(1 + rng.below(most)),
    };
    let mut bytes = || limit(rng, t.blocks / 6).map(|n| n * B - n % 3);
    let (bytes_soft, bytes_hard) = (bytes(), bytes());
    Op::SetQuota(SetQuota {
        subject: subject(rng),
        bytes_soft,
        bytes_hard,
        inodes_soft: limit(rng, 5),
        inodes_hard: limit(rng, t.inodes as u64 / 4),
        ..SetQuota::default()
    })
}

/// Flags of anything but the root, which others need.
fn chattr(rng: &mut Rng, m: &Model, ino: Ino) -> Op {
    let flags = *rng.pick(&[
        0,
        FLAG_NODUMP,
        FLAG_NOATIME | FLAG_SYNC,
        FLAG_DIRSYNC,
        FLAG_IMMUTABLE,
        FLAG_APPEND | FLAG_NODUMP,
        FLAG_APPEND | FLAG_IMMUTABLE,
        1 << 8,
    ]);
    let flags = if ino == m.root {
        flags & !PROTECTED
    } else {
        flags
    };
    Op::SetFlags { ino, flags }
}

/// Something that makes the tree smaller.
fn shrink(rng: &mut Rng, m: &Model, (file, dir): (Ino, Ino)) -> Op {
    match rng.below(4) {
        0 => Op::Truncate {
            ino: file,
            size: rng.below(3 * B),
            kill: false,
        },
        1 => Op::Forget { ino: file },
        _ => {
            let d = &m.nodes[&dir];
            let names: Vec<&Vec<u8>> = d.entries.keys().collect();
            if names.is_empty() {
                return Op::Forget { ino: dir };
            }
            let name = names[rng.below(names.len() as u64) as usize].clone();
            let want_dir = m.child(dir, &name).is_some_and(|c| m.nodes[&c].is_dir());
            Op::Remove {
                dir,
                name: Name(name),
                want_dir,
            }
        }
    }
}

fn name(rng: &mut Rng, t: &Taste) -> Name {
    let k = rng.below(t.names);
    match rng.below(80) {
        0 => Name(Vec::new()),
        1 => Name(b"..".to_vec()),
        2 => Name(b"a/b".to_vec()),
        3 => Name(vec![b'x'; 256]),
        // Long names split leaves.
        4..16 => Name(format!("{k:0>255}").into_bytes()),
        _ => Name(format!("n{k}").into_bytes()),
    }
}

/// Mostly a name that exists.
fn known_name(rng: &mut Rng, m: &Model, dir: Ino, t: &Taste) -> Name {
    match m.nodes.get(&dir) {
        Some(d) if !d.entries.is_empty() && !rng.one_in(8) => {
            let i = rng.below(d.entries.len() as u64) as usize;
            Name(d.entries.keys().nth(i).cloned().unwrap_or_default())
        }
        _ => name(rng, t),
    }
}

fn mode(rng: &mut Rng) -> u32 {
    const S_IFIFO: u32 = 0o010_000;
    const S_IFCHR: u32 = 0o020_000;
    let bits = *rng.pick(&[0o644, 0o755, 0o6755, 0o2755, 0o4711, 0o600]);
    bits | match rng.below(20) {
        0..5 => S_IFDIR,
        5..8 => S_IFLNK,
        8 => S_IFIFO,
        9 => S_IFCHR,
        _ => S_IFREG,
    }
}

fn target_len(rng: &mut Rng) -> usize {
    *rng.pick(&[1, 20, 119, 120, 121, 500, 4031, 4032, 4033, 4095, 0, 4096])
}

fn offset(rng: &mut Rng, m: &Model, file: Ino, t: &Taste) -> u64 {
    let size = m.nodes.get(&file).map_or(0, |n| n.content.size);
    let near = rng.below(3 * t.write * B);
    match rng.below(24) {
        0..8 => near,
        8..14 => near / B * B,
        14..18 => size,
        18..20 => size.saturating_sub(rng.below(2 * B)),
        20 => size.saturating_add(rng.below(2 * B)).min(SIZE_MAX),
        21 => 0,
        22 if t.wild => (1 << 30) + near,
        23 if t.wild && rng.one_in(4) => SIZE_MAX - rng.below(3 * B),
        _ => size / 2,
    }
}

fn write_len(rng: &mut Rng, t: &Taste) -> usize {
    let blocks = 1 + rng.below(t.write);
    let len = match rng.below(8) {
        0 => 1,
        1 => 1 + rng.below(100),
        2 | 3 => 1 + rng.below(B),
        4 => 1 + rng.below(blocks * B),
        _ => blocks * B,
    };
    len as usize
}

fn falloc(rng: &mut Rng, t: &Taste) -> FallocMode {
    let keep_size = rng.one_in(2);
    match rng.below(if t.wild { 4 } else { 3 }) {
        0 => FallocMode::Allocate { keep_size },
        1 | 2 => FallocMode::Punch,
        _ => FallocMode::Zero { keep_size },
    }
}

fn attr_name(rng: &mut Rng) -> Name {
    match rng.below(24) {
        0 => Name(Vec::new()),
        1 => Name(vec![b'u'; 256]),
        2 => ["system.x", "user.", "other.x", "x"][rng.below(4) as usize].into(),
        6 => ["trusted.x", "security.x"][rng.below(2) as usize].into(),
        4 => Name(ACCESS.to_vec()),
        5 => Name(DEFAULT.to_vec()),
        3 => Name([b"user.".to_vec(), vec![b'l'; 250]].concat()),
        k => Name(format!("user.{}", k % 6).into_bytes()),
    }
}

/// An access control list: mostly one that is valid.
fn entries(rng: &mut Rng) -> Vec<Entry> {
    let none = u32::MAX;
    let mut may = || rng.below(8) as u16;
    let (owner, group, mask, other) = (may(), may(), may(), may());
    let named = |tag, rng: &mut Rng| -> Vec<Entry> {
        let n = if rng.one_in(12) { 300 } else { 3 };
        (0..rng.below(n))
            .map(|_| (tag, rng.below(8) as u16, rng.below(5) as u32))
            .collect()
    };
    let (users, groups) = (named(2, rng), named(8, rng));
    let masked = users.len() + groups.len() > 0 || rng.one_in(3);
    let mut out = vec![(1, owner, none)];
    out.extend(users);
    out.push((4, group, none));
    out.extend(groups);
    if masked != rng.one_in(16) {
        out.push((0x10, mask, none));
    }
    out.push((0x20, other, none));
    if rng.one_in(16) {
        let (a, b) = (rng.below(out.len() as u64), rng.below(out.len() as u64));
        out.swap(a as usize, b as usize);
    }
    out
}

fn value_len(rng: &mut Rng, t: &Taste) -> usize {
    let len = match rng.below(16) {
        0 => 0,
        1 => 65_536,
        2 => 65_537,
        3..6 => rng.below(t.xattr as u64) as usize,
        6 => 4032 - 11,
        7 => 4032 - 10,
        _ => rng.below(200) as usize,
    };
    if len > t.xattr {
        len % (t.xattr + 1)
    } else {
        len
    }
}
