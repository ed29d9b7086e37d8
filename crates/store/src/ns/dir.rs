//! Directories: a tree of node pages over hash cookies (see `layout::dirent`).
//!
//! Readers hold the directory's inode lock shared, writers exclusively, so the tree below one
//! inode has a single writer. Writers change pages through a [`Txn`].

use quayfs_layout::dirent::{
    self, CLASH_BITS, DEPTH_MAX, ENTRY_HEADER, INDEX_MAX, INDEX_SIZE, OFF_INO, entries,
    entries_from,
};
use quayfs_layout::inode::Inode;
use quayfs_layout::node::{HEADER, NodeKind, OFF_USED, PAYLOAD, kind, used};
use quayfs_layout::{BLOCK, Ino};
use siphasher::sip::SipHasher24;
use smallvec::SmallVec;
use std::hash::Hasher;

use crate::error::{FsError, Result};
use crate::txn::{PageRef, PageSource, Txn};

/// Cookies below this are not used by entries: `readdir` needs them for `.` and `..`.
pub const FIRST_COOKIE: u64 = 1 << CLASH_BITS;

/// What a directory says about a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Inode number.
    pub ino: Ino,
    /// `DT_*` type.
    pub kind: u8,
    /// Cookie of the entry.
    pub cookie: u64,
}

/// One entry as `readdir` sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Inode number.
    pub ino: Ino,
    /// `DT_*` type.
    pub kind: u8,
    /// Cookie of the entry: where reading goes on behind it.
    pub cookie: u64,
    /// Name.
    pub name: Vec<u8>,
}

/// The bits of a cookie that tell names of equal hash apart.
const CLASHES: u64 = (1 << CLASH_BITS) - 1;

/// Hashes names with the key of the volume, so that no user can choose names that clash.
#[derive(Clone, Copy, Debug)]
pub struct NameHash(pub [u64; 2]);

impl NameHash {
    /// First cookie of the names that hash like `name`.
    pub fn cookie(&self, name: &[u8]) -> u64 {
        let mut h = SipHasher24::new_with_keys(self.0[0], self.0[1]);
        h.write(name);
        dirent::cookie_of_hash(h.finish())
    }
}

/// Index pages from the root down to a leaf, with the position taken in each.
struct Path {
    index: SmallVec<[(u32, usize); 3]>,
    leaf: u32,
}

fn expect(src: &dyn PageSource, page: &[u8; BLOCK], id: u32, want: NodeKind) -> Result<()> {
    if kind(page) == Some(want) {
        return Ok(());
    }
    Err(src.damaged(&format_args!("node {id} is not a {want:?} page")))
}

fn descend(src: &dyn PageSource, dir: &Inode, cookie: u64) -> Result<Path> {
    if dir.depth > DEPTH_MAX {
        return Err(src.damaged(&"directory index is too deep"));
    }
    let mut id = dir.root;
    let mut index = SmallVec::new();
    for _ in 0..dir.depth {
        let page = src.read(id)?;
        expect(src, &page, id, NodeKind::DirIndex)?;
        let n = used(&page[..]) as usize;
        if n == 0 || n > INDEX_MAX {
            let what = format_args!("directory index page {id} holds {n} entries");
            return Err(src.damaged(&what));
        }
        let i = dirent::index_search(&page[..], cookie);
        index.push((id, i));
        id = dirent::index_entry(&page[..], i).1;
    }
    Ok(Path { index, leaf: id })
}

/// Looks a name up.
pub fn lookup(
    src: &dyn PageSource,
    hash: NameHash,
    dir: &Inode,
    name: &[u8],
) -> Result<Option<Found>> {
    Ok(find(src, hash, dir, name)?.map(|(found, _)| found))
}

/// Where an entry is, as long as nothing changes in its directory.
pub struct Spot {
    path: Path,
    /// Offset within the leaf.
    at: usize,
}

/// Looks a name up, and says where its entry is.
pub fn find(
    src: &dyn PageSource,
    hash: NameHash,
    dir: &Inode,
    name: &[u8],
) -> Result<Option<(Found, Spot)>> {
    if dir.root == 0 {
        return Ok(None);
    }
    let first = hash.cookie(name);
    let path = descend(src, dir, first)?;
    let page = src.read(path.leaf)?;
    expect(src, &page, path.leaf, NodeKind::DirLeaf)?;
    let tags = page.tags();
    let mut entries = tags.candidates(&page[..], first);
    let entry = entries.find(|e| e.cookie & !CLASHES == first && e.name == name);
    Ok(entry.map(|e| {
        let found = Found {
            ino: e.ino,
            kind: e.kind,
            cookie: e.cookie,
        };
        (found, Spot { path, at: e.at })
    }))
}

/// Where a name that a directory does not have would go.
pub struct Vacancy {
    /// First cookie of the names of equal hash.
    first: u64,
    /// The leaf, and the way to it; none in a directory without pages.
    leaf: Option<Leaf>,
}

/// What one look at a leaf says.
struct Leaf {
    path: Path,
    /// Which names of equal hash are there.
    taken: [bool; 1 << CLASH_BITS],
    /// Bytes of all entries, removed ones included.
    end: usize,
}

impl Leaf {
    fn find(src: &dyn PageSource, dir: &Inode, first: u64, name: &[u8]) -> Result<Self> {
        let path = descend(src, dir, first)?;
        let page = src.read(path.leaf)?;
        expect(src, &page, path.leaf, NodeKind::DirLeaf)?;
        let mut taken = [false; 1 << CLASH_BITS];
        let tags = page.tags();
        let entries = tags.candidates(&page[..], first);
        for e in entries.filter(|e| e.cookie & !CLASHES == first) {
            if e.name == name {
                return Err(FsError::Exists);
            }
            taken[(e.cookie & CLASHES) as usize] = true;
        }
        let end = used(&page[..]) as usize;
        Ok(Self { path, taken, end })
    }
}

/// Finds the place of a name that is to be added.
///
/// # Errors
/// [`FsError::Exists`].
pub fn vacancy(src: &dyn PageSource, hash: NameHash, dir: &Inode, name: &[u8]) -> Result<Vacancy> {
    let first = hash.cookie(name);
    let leaf = match dir.root {
        0 => None,
        _ => Some(Leaf::find(src, dir, first, name)?),
    };
    Ok(Vacancy { first, leaf })
}

/// Adds an entry where [`vacancy`] has found the place for its name, since when nothing has changed in
/// the directory.
pub fn insert(
    txn: &mut Txn<'_>,
    (dir_ino, dir): (Ino, &mut Inode),
    vacancy: Vacancy,
    name: &[u8],
    (ino, kind): (Ino, u8),
) -> Result<()> {
    let Vacancy { first, mut leaf } = vacancy;
    if dir.root == 0 {
        dir.root = txn.new_node(NodeKind::DirLeaf, dir_ino)?;
        dir.depth = 0;
        dir.blocks = dir.blocks.saturating_add(1);
    }
    let need = dirent::entry_len(name.len());
    // A split may leave the half that the name belongs to still too full for a very long name.
    for _ in 0..8 {
        let Leaf { path, taken, end } = match leaf.take() {
            Some(leaf) => leaf,
            None => Leaf::find(txn, dir, first, name)?,
        };
        let Some(end) = room(txn, path.leaf, end, need)? else {
            split(txn, (dir_ino, dir), &path)?;
            continue;
        };
        let Some(clash) = taken.iter().position(|t| !t) else {
            return Err(FsError::NoSpace);
        };
        let mut bytes = SmallVec::<[u8; 64]>::from_elem(0, need);
        dirent::put_entry(first | clash as u64, ino, kind, name, &mut bytes);
        txn.write(path.leaf, HEADER + end, &bytes);
        txn.write(path.leaf, OFF_USED, &((end + need) as u32).to_le_bytes());
        dir.entries += 1;
        return Ok(());
    }
    Err(FsError::NoSpace)
}

/// Where `need` bytes can be added to a leaf whose entries take `end` bytes; `None` if it is full.
fn room(txn: &mut Txn<'_>, leaf: u32, end: usize, need: usize) -> Result<Option<usize>> {
    if end + need <= PAYLOAD {
        return Ok(Some(end));
    }
    let page = txn.read(leaf)?;
    let packed = pack(entries(&page[..]).filter(|e| e.ino != 0));
    drop(page);
    if packed.len() + need > PAYLOAD {
        return Ok(None);
    }
    // Removed entries have eaten the space: rewrite the leaf without them.
    txn.write(leaf, HEADER, &packed);
    Ok(Some(packed.len()))
}

fn pack<'a>(list: impl Iterator<Item = dirent::Entry<'a>>) -> Vec<u8> {
    let mut out = Vec::with_capacity(PAYLOAD);
    for e in list {
        dirent::encode_entry(e.cookie, e.ino, e.kind, e.name, &mut out);
    }
    out
}

/// Splits a leaf in two at a hash boundary near its middle.
fn split(txn: &mut Txn<'_>, (dir_ino, dir): (Ino, &mut Inode), path: &Path) -> Result<()> {
    let page = txn.read(path.leaf)?;
    let mut list: Vec<_> = entries(&page[..]).filter(|e| e.ino != 0).collect();
    list.sort_by_key(|e| e.cookie);
    let half = list.len() / 2;
    let group = |i: usize| list[i].cookie >> CLASH_BITS;
    // Names of equal hash stay in one leaf: lookup reads only one.
    let Some(cut) = (half..list.len())
        .chain((1..half).rev())
        .find(|&i| i > 0 && group(i) != group(i - 1))
    else {
        return Err(FsError::NoSpace);
    };
    let key = group(cut) << CLASH_BITS;
    let low = pack(list[..cut].iter().copied());
    let high = pack(list[cut..].iter().copied());
    drop(page);
    let right = txn.new_node(NodeKind::DirLeaf, dir_ino)?;
    dir.blocks = dir.blocks.saturating_add(1);
    for (id, bytes) in [(path.leaf, &low), (right, &high)] {
        txn.write(id, HEADER, bytes);
        txn.write(id, OFF_USED, &(bytes.len() as u32).to_le_bytes());
    }
    add_child(txn, (dir_ino, dir), &path.index, key, right)
}

/// Adds `child` with smallest cookie `key` to the index above a page that was split.
fn add_child(
    txn: &mut Txn<'_>,
    (dir_ino, dir): (Ino, &mut Inode),
    index: &[(u32, usize)],
    key: u64,
    child: u32,
) -> Result<()> {
    let Some((&(id, pos), above)) = index.split_last() else {
        // The root was split: a new root with two children.
        if dir.depth == DEPTH_MAX {
            return Err(FsError::NoSpace);
        }
        let root = txn.new_node(NodeKind::DirIndex, dir_ino)?;
        let mut bytes = dirent::encode_index(0, dir.root).to_vec();
        bytes.extend_from_slice(&dirent::encode_index(key, child));
        txn.write(root, HEADER, &bytes);
        txn.write(root, OFF_USED, &2u32.to_le_bytes());
        dir.root = root;
        dir.depth += 1;
        dir.blocks = dir.blocks.saturating_add(1);
        return Ok(());
    };
    let page = txn.read(id)?;
    let n = used(&page[..]) as usize;
    let mut list: Vec<(u64, u32)> = (0..n).map(|i| dirent::index_entry(&page[..], i)).collect();
    drop(page);
    list.insert(pos + 1, (key, child));
    if list.len() <= INDEX_MAX {
        put_index(txn, id, pos + 1, &list);
        return Ok(());
    }
    let cut = list.len() / 2;
    let right = txn.new_node(NodeKind::DirIndex, dir_ino)?;
    dir.blocks = dir.blocks.saturating_add(1);
    let up = list[cut].0;
    put_index(txn, right, 0, &list[cut..]);
    put_index(txn, id, 0, &list[..cut]);
    add_child(txn, (dir_ino, dir), above, up, right)
}

/// Writes an index page from position `from` on.
fn put_index(txn: &mut Txn<'_>, id: u32, from: usize, list: &[(u64, u32)]) {
    let bytes: Vec<u8> = list[from..]
        .iter()
        .flat_map(|&(key, child)| dirent::encode_index(key, child))
        .collect();
    if !bytes.is_empty() {
        txn.write(id, HEADER + from * INDEX_SIZE, &bytes);
    }
    txn.write(id, OFF_USED, &(list.len() as u32).to_le_bytes());
}

/// Offset of an entry in its leaf as that is now: another change of the transaction may have moved it.
fn place(leaf: &PageRef<'_>, found: &Found) -> Option<usize> {
    let tags = leaf.tags();
    let mut entries = tags.candidates(&leaf[..], found.cookie);
    entries.find(|e| e.cookie == found.cookie).map(|e| e.at)
}

/// Removes the entry `found` that [`lookup`] returned under the same lock.
pub fn remove(txn: &mut Txn<'_>, (dir_ino, dir): (Ino, &mut Inode), found: &Found) -> Result<()> {
    let path = descend(txn, dir, found.cookie)?;
    let page = txn.read(path.leaf)?;
    let Some(at) = place(&page, found) else {
        drop(page);
        return Err(txn.damaged(&format_args!(
            "directory {dir_ino}: entry {:#x} vanished under its lock",
            found.cookie
        )));
    };
    drop(page);
    remove_at(txn, dir, Spot { path, at })
}

/// Removes the entry that [`find`] has found, since when nothing has changed in the directory.
pub fn remove_at(txn: &mut Txn<'_>, dir: &mut Inode, spot: Spot) -> Result<()> {
    let Spot { path, at } = spot;
    let page = txn.read(path.leaf)?;
    // Entries go in the order in which they came, or the other way round: one look at its neighbour, or at
    // the first one, says that this is not the last.
    let mut others = entries_from(&page[..], at).chain(entries(&page[..]));
    let empty = others.all(|e| e.ino == 0 || e.at == at);
    drop(page);
    dir.entries = dir.entries.saturating_sub(1);
    if !empty {
        txn.write(path.leaf, at + OFF_INO, &0u64.to_le_bytes());
        return Ok(());
    }
    drop_child(txn, dir, &path.index, path.leaf)
}

/// Frees an empty page and takes it out of the index above.
fn drop_child(
    txn: &mut Txn<'_>,
    dir: &mut Inode,
    index: &[(u32, usize)],
    child: u32,
) -> Result<()> {
    txn.free_node(child)?;
    dir.blocks = dir.blocks.saturating_sub(1);
    let Some((&(id, pos), above)) = index.split_last() else {
        dir.root = 0;
        dir.depth = 0;
        return Ok(());
    };
    let page = txn.read(id)?;
    let n = used(&page[..]) as usize;
    let mut list: Vec<(u64, u32)> = (0..n).map(|i| dirent::index_entry(&page[..], i)).collect();
    drop(page);
    let gone = list.remove(pos);
    match list.len() {
        0 => return drop_child(txn, dir, above, id),
        1 if above.is_empty() => {
            // The root has one child left: it becomes the root.
            dir.root = list[0].1;
            dir.depth -= 1;
            dir.blocks = dir.blocks.saturating_sub(1);
            return txn.free_node(id);
        }
        _ => {}
    }
    // The first key bounds the page from below; its successor takes it over.
    if pos == 0 {
        list[0].0 = gone.0;
    }
    put_index(txn, id, pos, &list);
    Ok(())
}

/// Points an existing entry to another inode.
pub fn replace(
    txn: &mut Txn<'_>,
    dir: &Inode,
    found: &Found,
    (ino, kind): (Ino, u8),
) -> Result<()> {
    let path = descend(txn, dir, found.cookie)?;
    let page = txn.read(path.leaf)?;
    let Some(at) = place(&page, found) else {
        drop(page);
        return Err(txn.damaged(&format_args!("entry {:#x} vanished", found.cookie)));
    };
    drop(page);
    txn.write(path.leaf, at + OFF_INO, &ino.to_le_bytes());
    txn.write(path.leaf, at + ENTRY_HEADER - 2, &[kind]);
    Ok(())
}

/// Calls `each` for the entries whose cookie is greater than `after`, in cookie order, until it
/// returns false.
pub fn list(
    src: &dyn PageSource,
    dir: &Inode,
    after: u64,
    mut each: impl FnMut(Listed) -> bool,
) -> Result<()> {
    if dir.root == 0 {
        return Ok(());
    }
    let mut at = after.saturating_add(1);
    loop {
        let path = descend(src, dir, at)?;
        let page = src.read(path.leaf)?;
        expect(src, &page, path.leaf, NodeKind::DirLeaf)?;
        let mut found: Vec<_> = entries(&page[..])
            .filter(|e| e.ino != 0 && e.cookie >= at)
            .collect();
        found.sort_by_key(|e| e.cookie);
        for e in found {
            let l = Listed {
                ino: e.ino,
                kind: e.kind,
                cookie: e.cookie,
                name: e.name.to_vec(),
            };
            if !each(l) {
                return Ok(());
            }
        }
        match next_key(src, &path.index)? {
            Some(key) => at = key.max(at),
            None => return Ok(()),
        }
    }
}

/// Smallest cookie right of the leaf that `index` leads to.
fn next_key(src: &dyn PageSource, index: &[(u32, usize)]) -> Result<Option<u64>> {
    for &(id, pos) in index.iter().rev() {
        let page = src.read(id)?;
        if pos + 1 < used(&page[..]) as usize {
            return Ok(Some(dirent::index_entry(&page[..], pos + 1).0));
        }
    }
    Ok(None)
}

/// Calls `each` for every page of the directory tree, leaves last.
pub fn pages(src: &dyn PageSource, dir: &Inode, each: &mut dyn FnMut(u32)) -> Result<()> {
    fn walk(src: &dyn PageSource, id: u32, depth: u16, each: &mut dyn FnMut(u32)) -> Result<()> {
        each(id);
        if depth > 0 {
            let page = src.read(id)?;
            for i in 0..(used(&page[..]) as usize).min(INDEX_MAX) {
                walk(src, dirent::index_entry(&page[..], i).1, depth - 1, each)?;
            }
        }
        Ok(())
    }
    if dir.root == 0 {
        return Ok(());
    }
    walk(src, dir.root, dir.depth.min(DEPTH_MAX), each)
}
