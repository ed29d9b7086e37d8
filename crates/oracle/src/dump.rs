//! A whole tree, as the file system shows it and as the model has it, and their first difference.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use quayfs_fs::{Attr, Fs, Whence, extents};
use quayfs_layout::inode::Time;
use quayfs_layout::{BLOCK, Ino};
use quayfs_store::error::{FsError, Result};
use quayfs_store::ns::blob;
use rangemap::RangeSet;

use crate::content::Block;
use crate::model::Model;

const B: u64 = BLOCK as u64;
/// Files up to this size are read as a whole, holes included.
const DENSE: u64 = 1 << 20;

/// What a path shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Item {
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u32,
    pub flags: u32,
    pub project: u32,
    pub size: u64,
    /// Allocated blocks of a file.
    pub mapped: RangeSet<u64>,
    /// First path of the same inode.
    pub first: Vec<u8>,
    pub target: Vec<u8>,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Blocks that are not all zeros.
    pub blocks: BTreeMap<u64, Block>,
    /// Blocks that cannot be read ([`dump_readable`]).
    pub lost: BTreeSet<u64>,
    /// Number, generation and times; a model has none.
    pub identity: Option<(Ino, u32, [Time; 4])>,
}

/// A tree by path; the root is the empty one.
pub type Tree = BTreeMap<Vec<u8>, Item>;

/// Reads everything below `root`.
pub fn dump(fs: &Fs, root: Ino) -> Result<Tree> {
    walk(fs, root, false)
}

/// As [`dump`], but a block whose checksum fails is noted as lost.
pub fn dump_readable(fs: &Fs, root: Ino) -> Result<Tree> {
    walk(fs, root, true)
}

fn walk(fs: &Fs, root: Ino, lossy: bool) -> Result<Tree> {
    let mut walk = Walk {
        fs,
        lossy,
        tree: Tree::new(),
        first: BTreeMap::new(),
    };
    let attr = fs.getattr(root)?;
    walk.visit(Vec::new(), &attr)?;
    Ok(walk.tree)
}

/// A number that trees of equal content have in common, and others hardly ever.
pub fn hash(tree: &Tree) -> u64 {
    let mut hasher = DefaultHasher::new();
    for (path, item) in tree {
        item.blocks.hash(&mut hasher);
        // The times differ from run to run.
        let rest = Item {
            blocks: BTreeMap::new(),
            identity: None,
            ..item.clone()
        };
        (path, format!("{rest:?}")).hash(&mut hasher);
    }
    hasher.finish()
}

struct Walk<'a> {
    fs: &'a Fs,
    /// Whether a block that cannot be read is no reason to give up.
    lossy: bool,
    tree: Tree,
    first: BTreeMap<Ino, Vec<u8>>,
}

impl Walk<'_> {
    fn visit(&mut self, path: Vec<u8>, attr: &Attr) -> Result<()> {
        let (fs, ino, i) = (self.fs, attr.ino, &attr.inode);
        let first = self
            .first
            .entry(ino)
            .or_insert_with(|| path.clone())
            .clone();
        let mut item = Item {
            mode: i.mode,
            nlink: i.nlink,
            uid: i.uid,
            gid: i.gid,
            rdev: i.rdev,
            flags: i.flags,
            project: i.project,
            first,
            xattrs: xattrs(fs, ino)?,
            identity: Some((ino, i.generation, [i.atime, i.mtime, i.ctime, i.btime])),
            ..Item::default()
        };
        if i.is_file() {
            item.size = i.size;
            match blocks(fs, ino, i.size) {
                Err(e) if e.is_io() && self.lossy => {
                    (item.blocks, item.lost) = readable(fs, ino, i.size)?;
                }
                read => item.blocks = read?,
            }
            let handle = fs.e.inodes.get(&fs.e.nodes, ino)?;
            extents::ensure(&fs.e, &handle)?;
            let (pages, mapped) = extents::with(&handle, |x| {
                (
                    x.pages().len() as u64,
                    x.iter().map(|(r, _)| r).collect::<RangeSet<u64>>(),
                )
            })?;
            let allocated: u64 = mapped.iter().map(|r| r.end - r.start).sum();
            let sum = allocated + pages + blob::pages_for(i.xattr_len as usize);
            if i.blocks != sum {
                let says = i.blocks;
                return Err(FsError::internal(format_args!(
                    "inode {ino}: {says} blocks, counted {sum}"
                )));
            }
            item.mapped = mapped;
        }
        if i.is_symlink() {
            item.target = fs.readlink(ino)?;
            item.size = i.size;
        }
        let is_dir = i.is_dir();
        let (parent, count) = (i.parent, i.entries);
        self.tree.insert(path.clone(), item);
        if !is_dir {
            return Ok(());
        }
        let names = list(fs, ino, parent)?;
        if names.len() as u64 != count {
            return Err(FsError::internal(format_args!(
                "{} names, entries {count}",
                names.len()
            )));
        }
        for (name, (child, kind)) in names {
            let attr = fs.lookup(ino, &name)?;
            fs.forget(attr.ino, 1);
            if attr.ino != child || attr.inode.mode >> 12 != u32::from(kind) {
                let shown = String::from_utf8_lossy(&name).into_owned();
                return Err(FsError::internal(format_args!(
                    "{shown}: readdir and lookup disagree"
                )));
            }
            if attr.inode.is_dir() && attr.inode.parent != ino {
                return Err(FsError::internal("a directory does not know its parent"));
            }
            let path = [&path[..], b"/", &name[..]].concat();
            self.visit(path, &attr)?;
        }
        Ok(())
    }
}

type Names = BTreeMap<Vec<u8>, (Ino, u8)>;

/// Lists a directory in small portions, as the kernel does.
fn list(fs: &Fs, ino: Ino, parent: Ino) -> Result<Names> {
    let mut names = Names::new();
    let mut at = 0;
    let mut seen = 0;
    loop {
        let mut n = 0;
        let mut bad = None;
        fs.readdir(ino, at, |e| {
            if n == 7 {
                return false;
            }
            n += 1;
            if e.cookie <= at {
                bad = Some("cookies do not grow");
            }
            at = e.cookie;
            seen += 1;
            let dots = (seen == 1 && e.name == b"." && e.ino == ino)
                || (seen == 2 && e.name == b".." && e.ino == parent);
            if seen <= 2 && !dots {
                bad = Some("dots");
            }
            if seen > 2 && names.insert(e.name, (e.ino, e.kind)).is_some() {
                bad = Some("a name twice");
            }
            true
        })?;
        if let Some(bad) = bad {
            return Err(FsError::internal(bad));
        }
        if n == 0 {
            return Ok(names);
        }
    }
}

fn xattrs(fs: &Fs, ino: Ino) -> Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    let mut out = BTreeMap::new();
    let names = fs.listxattr(ino)?;
    for name in names.split(|b| *b == 0).filter(|n| !n.is_empty()) {
        out.insert(name.to_vec(), fs.getxattr(ino, name)?);
    }
    Ok(out)
}

/// Blocks that are not all zeros. Large files are read where `lseek` says that there is data.
fn blocks(fs: &Fs, ino: Ino, size: u64) -> Result<BTreeMap<u64, Block>> {
    let mut out = BTreeMap::new();
    let mut keep = |at: u64, bytes: &[u8]| {
        for (k, piece) in bytes.chunks(BLOCK).enumerate() {
            if piece.iter().any(|b| *b != 0) {
                let mut block = [0; BLOCK];
                block[..piece.len()].copy_from_slice(piece);
                out.insert(at / B + k as u64, Block::new(block));
            }
        }
    };
    if size <= DENSE {
        keep(0, &fs.read(ino, 0, size as usize)?);
        return Ok(out);
    }
    let mut at = 0;
    while at < size {
        let data = match fs.seek(ino, Whence::Data, at) {
            Err(FsError::NoData) => break,
            other => other?,
        };
        let hole = fs.seek(ino, Whence::Hole, data)?;
        if data / B * B < at || hole <= data {
            return Err(FsError::internal("lseek does not get on"));
        }
        keep(data, &fs.read(ino, data, (hole - data) as usize)?);
        at = hole.next_multiple_of(B);
    }
    Ok(out)
}

/// The blocks of a file one by one: those that can be read and are not all zeros, and those that
/// cannot.
fn readable(fs: &Fs, ino: Ino, size: u64) -> Result<(BTreeMap<u64, Block>, BTreeSet<u64>)> {
    let (mut out, mut lost) = (BTreeMap::new(), BTreeSet::new());
    for at in (0..size).step_by(BLOCK) {
        match fs.read(ino, at, BLOCK.min((size - at) as usize)) {
            Ok(bytes) if bytes.iter().all(|b| *b == 0) => {}
            Ok(bytes) => {
                let mut block = [0; BLOCK];
                block[..bytes.len()].copy_from_slice(&bytes);
                out.insert(at / B, Block::new(block));
            }
            Err(e) if e.is_io() => {
                lost.insert(at / B);
            }
            Err(e) => return Err(e),
        }
    }
    Ok((out, lost))
}

/// What is lost although it had been there in `durable`, if anything is: no path that has lost a block
/// had the same content there then.
pub fn lost_for_good(got: &Tree, want: &Tree, durable: &Tree) -> Option<String> {
    got.iter().find_map(|(path, item)| {
        let (want, had) = (&want.get(path)?.blocks, &durable.get(path)?.blocks);
        let same = |b: &&u64| had.contains_key(b) && had.get(b) == want.get(b);
        let block = item.lost.iter().find(same)?;
        let path = String::from_utf8_lossy(path);
        Some(format!("{path}: block {block} was durable and is lost"))
    })
}

/// The tree that a model has.
pub fn expected(model: &Model) -> Tree {
    fn visit(m: &Model, path: Vec<u8>, ino: Ino, first: &mut BTreeMap<Ino, Vec<u8>>, t: &mut Tree) {
        let n = &m.nodes[&ino];
        let item = Item {
            mode: n.mode,
            nlink: n.nlink,
            uid: n.uid,
            gid: n.gid,
            rdev: n.rdev,
            flags: n.flags,
            project: n.project,
            size: n.content.size + n.target.len() as u64,
            mapped: n.content.mapped.clone(),
            first: first.entry(ino).or_insert_with(|| path.clone()).clone(),
            target: n.target.clone(),
            xattrs: n.xattrs.clone(),
            blocks: n.content.blocks.clone(),
            lost: BTreeSet::new(),
            identity: None,
        };
        t.insert(path.clone(), item);
        for (name, child) in &n.entries {
            visit(m, [&path[..], b"/", &name[..]].concat(), *child, first, t);
        }
    }
    let mut tree = Tree::new();
    visit(
        model,
        Vec::new(),
        model.root,
        &mut BTreeMap::new(),
        &mut tree,
    );
    tree
}

/// The first difference between two trees, in words. A tree without identities agrees with any.
pub fn difference(got: &Tree, want: &Tree) -> Option<String> {
    let show = |p: &[u8]| {
        String::from_utf8_lossy(p)
            .chars()
            .take(120)
            .collect::<String>()
    };
    for (path, w) in want {
        let Some(g) = got.get(path) else {
            return Some(format!("{:?} is missing", show(path)));
        };
        if let Some(d) = item_difference(g, w) {
            return Some(format!("{:?}: {d}", show(path)));
        }
    }
    let extra = got.keys().find(|p| !want.contains_key(*p))?;
    Some(format!("{:?} should not exist", show(extra)))
}

fn item_difference(g: &Item, w: &Item) -> Option<String> {
    let of = |i: &Item| {
        let ids = (i.uid, i.gid, i.project);
        (i.mode, i.nlink, ids, i.rdev, i.size, i.flags)
    };
    if of(g) != of(w) {
        return Some(format!(
            "(mode, nlink, (uid, gid, project), rdev, size, flags) is {:?}, should be {:?}",
            of(g),
            of(w)
        ));
    }
    if g.mapped != w.mapped {
        return Some(format!(
            "allocated are {:?}, should be {:?}",
            g.mapped, w.mapped
        ));
    }
    if g.first != w.first || g.target != w.target {
        return Some("another inode or target".into());
    }
    if g.xattrs != w.xattrs {
        let of = |i: &Item| {
            i.xattrs
                .iter()
                .map(|(n, v)| (n.len(), v.len()))
                .collect::<Vec<_>>()
        };
        return Some(format!("xattrs {:?}, should be {:?}", of(g), of(w)));
    }
    if let (Some(a), Some(b)) = (&g.identity, &w.identity)
        && a != b
    {
        return Some(format!("identity {a:?}, should be {b:?}"));
    }
    let here = |b: &&u64| !g.lost.contains(b) && !w.lost.contains(b);
    for b in g.blocks.keys().chain(w.blocks.keys()).filter(here) {
        let (x, y) = (g.blocks.get(b), w.blocks.get(b));
        if x != y {
            let zero = Block::new([0; BLOCK]);
            let (x, y) = (x.unwrap_or(&zero), y.unwrap_or(&zero));
            let at = x
                .iter()
                .zip(y.iter())
                .position(|(a, b)| a != b)
                .unwrap_or(0);
            return Some(format!("block {b} differs from byte {at} on"));
        }
    }
    None
}
