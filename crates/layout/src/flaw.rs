//! What passes its checksum and still cannot be true. Code that loads a structure asks here, in the mount and in the
//! checker alike: what is built on it afterwards need not ask again.

use std::fmt;
use std::ops::Range;

use crate::acl::{self, Acl};
use crate::bytes::get_u32;
use crate::dirent::{self, CLASH_BITS, DEPTH_MAX, INDEX_MAX};
use crate::extent::{self, Extent, FILE_BLOCKS};
use crate::geometry::Geometry;
use crate::inode::{
    self, Inline, Inode, S_IFBLK, S_IFCHR, S_IFDIR, S_IFIFO, S_IFLNK, S_IFMT, S_IFREG, S_IFSOCK,
    flags_of,
};
use crate::intent::{self, Intent};
use crate::node::{self, BITS_PER_PAGE, HEADER, NodeKind, PAYLOAD};
use crate::{quota, xattr};

/// Why something cannot be what it says it is. Prints as part of a line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Flaw {
    /// A page of another kind than its node has.
    #[error("{found:?} page, expected {expected:?}")]
    Kind {
        /// The kind in its header.
        found: NodeKind,
        /// That of the node.
        expected: NodeKind,
    },
    /// A dynamic node with a page of a kind that has fixed ids.
    #[error("{0:?} page, which has a fixed node id")]
    Fixed(NodeKind),
    /// The owner of a page that belongs to no inode.
    #[error("shared page, but inode {0} owns it")]
    Shared(u64),
    /// An owner that cannot be one.
    #[error("inode {0}, which does not exist, owns it")]
    Owner(u64),
    /// Entries of a leaf.
    #[error("its entries do not fill it")]
    Entries,
    /// An entry of a leaf.
    #[error("the entry at byte {at}: {why}")]
    Entry {
        /// Offset in the page.
        at: usize,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Number of children of an index page.
    #[error("it holds {0} children")]
    Children(usize),
    /// A key of an index page.
    #[error("key {0} is out of order")]
    Key(usize),
    /// A node id that cannot be what it is used as.
    #[error("it refers to node {0}, which cannot be one")]
    Reference(u32),
    /// Bytes of a blob.
    #[error("it holds {0} bytes")]
    Blob(usize),
    /// A place that is neither free nor used.
    #[error("place {0} is neither free nor used")]
    Place(usize),
    /// An extent beyond what a file or the volume can have.
    #[error("place {place}: file blocks {blocks:?} at LBN {lbn} are beyond what there is")]
    Extent {
        /// Place in the page or the inode.
        place: usize,
        /// File blocks.
        blocks: Range<u64>,
        /// First LBN.
        lbn: u64,
    },
    /// The counter of a bitmap.
    #[error("{set} bits are set, its counter says {counter}")]
    Counter {
        /// Bits that are set.
        set: u64,
        /// What the page says.
        counter: u64,
    },
    /// Bits of numbers that do not exist.
    #[error("{0} bits are set of numbers that do not exist")]
    Beyond(u64),
    /// An intent.
    #[error("intent {0} is none")]
    Intent(usize),
    /// An entry of the quota table.
    #[error("place {0} belongs to no project")]
    Project(usize),
    /// An inode, and what is wrong with it.
    #[error("{0}")]
    Inode(String),
    /// Extended attributes that cannot be.
    #[error("{0}")]
    Attributes(String),
}

/// Checks that a page whose header and checksum hold is one that its node can have.
///
/// # Errors
/// [`Flaw`].
pub fn place(g: &Geometry, id: u32, page: &[u8], kind: NodeKind) -> Result<(), Flaw> {
    use NodeKind::*;
    let owner = node::owner(page);
    match g.static_kind(id) {
        Some(expected) if kind != expected => Err(Flaw::Kind {
            found: kind,
            expected,
        }),
        Some(_) if owner != 0 => Err(Flaw::Shared(owner)),
        Some(_) => Ok(()),
        None if !matches!(kind, DirLeaf | DirIndex | Extents | Blob) => Err(Flaw::Fixed(kind)),
        None if owner == 0 || owner >= g.inodes() => Err(Flaw::Owner(owner)),
        None => Ok(()),
    }
}

/// Checks the content of a page that [`place`] has nothing against. Inodes are checked one by one ([`inode()`]):
/// one that is wrong is none of the others' business.
///
/// # Errors
/// [`Flaw`].
pub fn content(g: &Geometry, id: u32, page: &[u8], kind: NodeKind) -> Result<(), Flaw> {
    match kind {
        NodeKind::DirLeaf => leaf(g, page),
        NodeKind::DirIndex => index(g, page),
        NodeKind::Extents => {
            let places = &page[HEADER..HEADER + extent::PER_PAGE * extent::SIZE];
            next(g, page).and_then(|()| extents(g, places))
        }
        NodeKind::Blob => match node::used(page) as usize {
            n if n == 0 || n > PAYLOAD => Err(Flaw::Blob(n)),
            _ => next(g, page),
        },
        NodeKind::Bitmap => bitmap(g, id, page),
        NodeKind::Intents => intents(g, page),
        NodeKind::Quota => quotas(page),
        NodeKind::Inodes => Ok(()),
    }
}

fn dynamic(g: &Geometry, id: u32) -> Result<(), Flaw> {
    match (g.dyn_base..g.nat_entries).contains(&u64::from(id)) {
        true => Ok(()),
        false => Err(Flaw::Reference(id)),
    }
}

/// The next page of a chain, if there is one.
fn next(g: &Geometry, page: &[u8]) -> Result<(), Flaw> {
    match node::next(page) {
        0 => Ok(()),
        id => dynamic(g, id),
    }
}

/// Whether bytes can be the name of a directory entry.
pub fn is_name(name: &[u8]) -> bool {
    name.len() <= dirent::NAME_MAX
        && !matches!(name, b"" | b"." | b"..")
        && !name.contains(&b'/')
        && !name.contains(&0)
}

/// Whether this is the type of a directory entry.
fn is_kind(kind: u8) -> bool {
    matches!(kind, 1 | 2 | 4 | 6 | 8 | 10 | 12)
}

fn leaf(g: &Geometry, page: &[u8]) -> Result<(), Flaw> {
    if !dirent::leaf_is_sound(page) {
        return Err(Flaw::Entries);
    }
    let mut cookies = [0; PAYLOAD / dirent::ENTRY_HEADER];
    let mut n = 0;
    for e in dirent::entries(page).filter(|e| e.ino != 0) {
        let wrong = |why| Err(Flaw::Entry { at: e.at, why });
        if !is_name(e.name) {
            return wrong("not a name");
        }
        if e.ino >= g.inodes() {
            return wrong("names an inode that cannot be one");
        }
        if !is_kind(e.kind) {
            return wrong("says a type that there is not");
        }
        if e.cookie >> CLASH_BITS == 0 || e.cookie == u64::MAX {
            return wrong("has a cookie that no name has");
        }
        cookies[n] = e.cookie;
        n += 1;
    }
    let cookies = &mut cookies[..n];
    cookies.sort_unstable();
    match cookies.windows(2).any(|w| w[0] == w[1]) {
        true => Err(Flaw::Entries),
        false => Ok(()),
    }
}

fn index(g: &Geometry, page: &[u8]) -> Result<(), Flaw> {
    let n = node::used(page) as usize;
    if n == 0 || n > INDEX_MAX {
        return Err(Flaw::Children(n));
    }
    // The first child covers everything below the second key, whatever its own key says.
    let mut low = 0;
    for i in 0..n {
        let (key, child) = dirent::index_entry(page, i);
        if i > 0 && key <= low {
            return Err(Flaw::Key(i));
        }
        low = if i > 0 { key } else { 0 };
        dynamic(g, child)?;
    }
    Ok(())
}

/// Checks places of extents, those of a page or those of an inode.
///
/// # Errors
/// [`Flaw::Place`], [`Flaw::Extent`].
pub fn extents(g: &Geometry, places: &[u8]) -> Result<(), Flaw> {
    for (place, bytes) in places.chunks_exact(extent::SIZE).enumerate() {
        let Some(e) = Extent::decode(bytes) else {
            if bytes.iter().any(|b| *b != 0) {
                return Err(Flaw::Place(place));
            }
            continue;
        };
        let blocks = e.file_block..e.file_block + e.len;
        if blocks.end > FILE_BLOCKS || e.lbn + e.len > g.visible_blocks() {
            return Err(Flaw::Extent {
                place,
                blocks,
                lbn: e.lbn,
            });
        }
    }
    Ok(())
}

/// The first number that a bitmap page describes, and how many there are of its kind from there on.
fn described(g: &Geometry, id: u32) -> u64 {
    let id = u64::from(id);
    let (base, total) = if id >= g.dyn_bitmap_base {
        (g.dyn_bitmap_base, g.dyn_nodes())
    } else if id >= g.ino_bitmap_base {
        (g.ino_bitmap_base, g.inodes())
    } else {
        (g.lbn_bitmap_base, g.visible_blocks())
    };
    let first = id.saturating_sub(base).saturating_mul(BITS_PER_PAGE);
    total.saturating_sub(first).min(BITS_PER_PAGE)
}

fn bitmap(g: &Geometry, id: u32, page: &[u8]) -> Result<(), Flaw> {
    let numbers = described(g, id);
    let (mut set, mut beyond) = (0, 0);
    for (word, first) in page[HEADER..].chunks_exact(8).zip((0..).step_by(64)) {
        let word = crate::bytes::get_u64(word, 0);
        set += u64::from(word.count_ones());
        let there = numbers.saturating_sub(first);
        if there < 64 {
            beyond += u64::from((word >> there).count_ones());
        }
    }
    let counter = u64::from(node::bits_set(page));
    match (set == counter, beyond) {
        (false, _) => Err(Flaw::Counter { set, counter }),
        (true, 0) => Ok(()),
        (true, n) => Err(Flaw::Beyond(n)),
    }
}

fn intents(g: &Geometry, page: &[u8]) -> Result<(), Flaw> {
    for (i, bytes) in page[HEADER..].chunks_exact(intent::SIZE).enumerate() {
        match Intent::decode(bytes) {
            Ok(None) => {}
            Ok(Some(e)) if e.ino != 0 && e.ino < g.inodes() => {}
            _ => return Err(Flaw::Intent(i)),
        }
    }
    Ok(())
}

fn quotas(page: &[u8]) -> Result<(), Flaw> {
    for place in 0..quota::PER_PAGE {
        let e = quota::Entry::decode(&page[quota::offset(place)..][..quota::SIZE]);
        let counts = [e.usage.blocks, e.usage.inodes];
        if !e.is_free() && (e.project == 0 || counts.iter().any(|n| *n > i64::MAX as u64)) {
            return Err(Flaw::Project(place));
        }
    }
    Ok(())
}

/// What a flaw of an inode is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The inode itself.
    Inode,
    /// Its directory.
    Directory,
    /// Its target.
    Symlink,
}

/// Checks the image of an inode that is in use, or free.
///
/// # Errors
/// The first [`Flaw`].
pub fn image(ino: u64, bytes: &[u8]) -> Result<(), Flaw> {
    if get_u32(bytes, 0) == 0 {
        return match bytes.iter().all(|b| *b == 0) {
            true => Ok(()),
            false => Err(Flaw::Inode(format!(
                "inode {ino} is free, but its image is not empty"
            ))),
        };
    }
    let mut first = None;
    inode(&Inode::decode(bytes), &mut |_, why| {
        first.get_or_insert_with(|| Flaw::Inode(format!("inode {ino}: {why}")));
    });
    first.map_or(Ok(()), Err)
}

/// Calls `each` with everything that cannot be of an inode in use, as far as that can be said without looking at
/// anything else.
pub fn inode(i: &Inode, each: &mut dyn FnMut(Part, fmt::Arguments<'_>)) {
    let times = [
        ("a", i.atime),
        ("m", i.mtime),
        ("c", i.ctime),
        ("b", i.btime),
    ];
    for (name, t) in times.iter().filter(|(_, t)| t.nsec >= 1_000_000_000) {
        let nsec = t.nsec;
        each(
            Part::Inode,
            format_args!("{name}time has {nsec} nanoseconds"),
        );
    }
    if !i.is_dir() && (i.depth != 0 || i.entries != 0 || i.parent != 0) {
        let what = format_args!("not a directory, but has fields of one");
        each(Part::Inode, what);
    }
    if !is_kind((i.kind() >> 12) as u8) {
        let what = i.mode & S_IFMT;
        each(Part::Inode, format_args!("there is no file type {what:o}"));
    }
    if i.mode & !(S_IFMT | 0o7777) != 0 {
        each(Part::Inode, format_args!("there is no mode {:o}", i.mode));
    }
    let flags = i.flags & !flags_of(i.mode);
    if flags != 0 {
        let what = format_args!("has flags that it cannot have, {flags:#x}");
        each(Part::Inode, what);
    }
    content_of(i, each);
}

/// What an inode of its type holds.
fn content_of(i: &Inode, each: &mut dyn FnMut(Part, fmt::Arguments<'_>)) {
    let (kind, size) = (i.kind(), i.size);
    if !matches!(kind, S_IFREG | S_IFLNK)
        && is_kind((kind >> 12) as u8)
        && i.inline != Inline::default()
    {
        let what = format_args!("neither file nor link, but has inline content");
        each(Part::Inode, what);
    }
    match kind {
        S_IFREG if size > inode::SIZE_MAX => {
            each(Part::Inode, format_args!("size {size} is impossible"));
        }
        S_IFDIR if i.depth > DEPTH_MAX || (i.root == 0 && i.depth > 0) => {
            let what = format_args!("{} index levels are impossible", i.depth);
            each(Part::Directory, what);
        }
        S_IFLNK => {
            if size == 0 || size > inode::TARGET_MAX as u64 {
                let what = format_args!("a target of {size} bytes is impossible");
                each(Part::Symlink, what);
            }
            let has = match (size <= inode::INLINE_MAX as u64, i.root == 0) {
                (true, false) => "pages",
                (false, true) => "no pages",
                _ => return,
            };
            let what = format_args!("a target of {size} bytes has {has}");
            each(Part::Symlink, what);
        }
        S_IFCHR | S_IFBLK | S_IFIFO | S_IFSOCK if i.root != 0 || size != 0 => {
            each(Part::Inode, format_args!("a special file with content"));
        }
        _ => {}
    }
}

/// Checks a set of extended attributes of an inode of this mode. Whether lists agree with its permissions is not
/// checked: code that changes one changes the other next.
///
/// # Errors
/// [`Flaw::Attributes`].
pub fn attributes(mode: u32, set: &xattr::Set) -> Result<(), Flaw> {
    let mut names: Vec<&[u8]> = set.iter().map(|(name, _)| &name[..]).collect();
    names.sort_unstable();
    let wrong = |name: &[u8], why: &str| {
        let shown = String::from_utf8_lossy(name);
        Err(Flaw::Attributes(format!("{shown:?} {why}")))
    };
    if let Some(twice) = names.windows(2).find(|w| w[0] == w[1]) {
        return wrong(twice[0], "twice");
    }
    let kind = mode & S_IFMT;
    for (name, value) in set {
        let is_access = name == acl::ACCESS;
        if !is_access && name != acl::DEFAULT {
            continue;
        }
        if Acl::decode(value).is_err() {
            return wrong(name, "that is no list");
        }
        if kind == S_IFLNK || !is_access && kind != S_IFDIR {
            return wrong(name, "where there can be none");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BLOCK;
    use crate::bytes::{put_u32, put_u64};
    use crate::dirent::encode_entry;
    use crate::node::{OFF_NEXT, OFF_USED};
    use proptest::prelude::*;

    fn geometry() -> Geometry {
        Geometry::compute(64 << 20, 256 << 20, 2).unwrap()
    }

    fn page(kind: NodeKind, used: usize, bytes: &[u8]) -> Vec<u8> {
        let mut page = vec![0; BLOCK];
        node::init(&mut page, 0, kind, 5);
        put_u32(&mut page, OFF_USED, used as u32);
        page[HEADER..HEADER + bytes.len()].copy_from_slice(bytes);
        page
    }

    fn leaf_of(entries: &[(u64, u64, u8, &[u8])]) -> Result<(), Flaw> {
        let mut bytes = Vec::new();
        for (cookie, ino, kind, name) in entries {
            encode_entry(*cookie, *ino, *kind, name, &mut bytes);
        }
        let page = page(NodeKind::DirLeaf, bytes.len(), &bytes);
        content(&geometry(), 0, &page, NodeKind::DirLeaf)
    }

    #[test]
    fn leaves() {
        let good: (u64, u64, u8, &[u8]) = (0x4200, 7, 8, b"name");
        assert_eq!(leaf_of(&[good, (0x4201, 8, 4, b"other")]), Ok(()));
        // A removed entry says nothing.
        assert_eq!(leaf_of(&[good, (0x4200, 0, 99, b"a/b")]), Ok(()));
        for bad in [
            (0x4300, 7, 8, &b"a/b"[..]),
            (0x4300, 7, 8, b".."),
            (0x4300, u64::MAX, 8, b"x"),
            (0x4300, 7, 3, b"x"),
            (3, 7, 8, b"x"),
        ] {
            let found = leaf_of(&[good, bad]);
            assert!(matches!(found, Err(Flaw::Entry { .. })), "{found:?}");
        }
        assert_eq!(leaf_of(&[good, good]), Err(Flaw::Entries));
        let short = page(NodeKind::DirLeaf, 24, &[0; 24]);
        let found = content(&geometry(), 0, &short, NodeKind::DirLeaf);
        assert_eq!(found, Err(Flaw::Entries));
    }

    #[test]
    fn index_pages() {
        let g = geometry();
        let child = g.dyn_base as u32 + 3;
        let of = |list: &[(u64, u32)]| {
            let bytes: Vec<u8> = (list.iter())
                .flat_map(|(key, child)| dirent::encode_index(*key, *child))
                .collect();
            let page = page(NodeKind::DirIndex, list.len(), &bytes);
            content(&g, 0, &page, NodeKind::DirIndex)
        };
        assert_eq!(of(&[(99, child), (256, child), (512, child)]), Ok(()));
        assert_eq!(of(&[]), Err(Flaw::Children(0)));
        assert_eq!(
            of(&[(0, child), (512, child), (512, child)]),
            Err(Flaw::Key(2))
        );
        assert_eq!(of(&[(0, 1)]), Err(Flaw::Reference(1)));
    }

    #[test]
    fn chains_and_places() {
        let g = geometry();
        let good = Extent {
            file_block: 1,
            lbn: 2,
            len: 3,
        };
        let of = |bytes: &[u8]| {
            let page = page(NodeKind::Extents, 0, bytes);
            content(&g, 0, &page, NodeKind::Extents)
        };
        assert_eq!(of(&good.encode()), Ok(()));
        assert_eq!(of(&[0; 15]), Ok(()));
        assert_eq!(of(&[1; 1]), Err(Flaw::Place(0)));
        let far = Extent {
            lbn: g.visible_blocks() - 2,
            ..good
        };
        assert!(matches!(of(&far.encode()), Err(Flaw::Extent { .. })));
        let blob = |n: usize, next: u32| {
            let mut page = page(NodeKind::Blob, n, &[]);
            put_u32(&mut page, OFF_NEXT, next);
            content(&g, 0, &page, NodeKind::Blob)
        };
        assert_eq!(blob(1, 0), Ok(()));
        assert_eq!(blob(0, 0), Err(Flaw::Blob(0)));
        assert_eq!(blob(PAYLOAD + 1, 0), Err(Flaw::Blob(PAYLOAD + 1)));
        assert_eq!(blob(1, 7), Err(Flaw::Reference(7)));
    }

    #[test]
    fn shared_pages() {
        let g = geometry();
        let id = g.ino_bitmap_base as u32;
        let mut bits = page(NodeKind::Bitmap, 0, &[]);
        node::change_bits(&mut bits, 3, 9, true);
        assert_eq!(content(&g, id, &bits, NodeKind::Bitmap), Ok(()));
        bits[HEADER + 100] = 1;
        let (set, counter) = (10, 9);
        let found = content(&g, id, &bits, NodeKind::Bitmap);
        assert_eq!(found, Err(Flaw::Counter { set, counter }));
        let last = (g.dyn_bitmap_base + g.dyn_nodes() / BITS_PER_PAGE) as u32;
        let mut bits = page(NodeKind::Bitmap, 0, &[]);
        node::change_bits(&mut bits, BITS_PER_PAGE - 1, 1, true);
        let found = content(&g, last, &bits, NodeKind::Bitmap);
        assert_eq!(found, Err(Flaw::Beyond(1)));
        let mut intents = [0; 32];
        put_u64(&mut intents, 16, 5);
        put_u64(&mut intents, 24, 1);
        let of =
            |bytes: &[u8]| content(&g, 0, &page(NodeKind::Intents, 0, bytes), NodeKind::Intents);
        assert_eq!(of(&intents), Ok(()));
        put_u64(&mut intents, 24, 9);
        assert_eq!(of(&intents), Err(Flaw::Intent(1)));
        let mut quota = [0; quota::SIZE];
        put_u64(&mut quota, 8, 1);
        let of = |bytes: &[u8]| content(&g, 0, &page(NodeKind::Quota, 0, bytes), NodeKind::Quota);
        assert_eq!(of(&quota), Err(Flaw::Project(0)));
        put_u32(&mut quota, 0, 3);
        assert_eq!(of(&quota), Ok(()));
    }

    #[test]
    fn inodes() {
        let good = Inode {
            mode: S_IFREG | 0o644,
            nlink: 1,
            ..Inode::default()
        };
        assert_eq!(image(9, &good.encode()), Ok(()));
        assert_eq!(image(9, &[0; inode::SIZE]), Ok(()));
        let mut ghost = [0; inode::SIZE];
        ghost[40] = 1;
        assert!(image(9, &ghost).is_err());
        let changes: [fn(&mut Inode); 8] = [
            |i| i.mtime.nsec = 1_000_000_000,
            |i| i.parent = 1,
            |i| i.mode = 0o030_644,
            |i| i.mode |= 1 << 20,
            |i| i.flags = 1 << 9,
            |i| i.size = u64::MAX,
            |i| (i.mode, i.size) = (S_IFIFO, 1),
            |i| (i.mode, i.size) = (S_IFLNK, 0),
        ];
        for (n, change) in changes.iter().enumerate() {
            let mut bad = good.clone();
            change(&mut bad);
            assert!(
                matches!(image(9, &bad.encode()), Err(Flaw::Inode(_))),
                "{n}"
            );
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_judged_without_panic(
            bytes in prop::collection::vec(any::<u8>(), BLOCK), id in any::<u32>(),
        ) {
            let g = geometry();
            for n in 1..=8 {
                let kind = NodeKind::from_u8(n).unwrap();
                let _ = content(&g, id, &bytes, kind);
                let _ = place(&g, id, &bytes, kind);
            }
            let _ = image(u64::from(id), &bytes);
        }
    }
}
