//! Page table and its log, node pages, and what is in them.

use std::sync::LazyLock;

use quayfs_layout::acl::{self, Acl};
use quayfs_layout::bytes::{get_u32, put_u16, put_u32};
use quayfs_layout::checksum::{WORD_MAX, seal_word};
use quayfs_layout::dirent::{self, INDEX_MAX, INDEX_SIZE};
use quayfs_layout::extent::{self, Extent};
use quayfs_layout::geometry::Geometry;
use quayfs_layout::inode::{self, Inode};
use quayfs_layout::intent::{self, Intent};
use quayfs_layout::l2p::{self, BLOCKS_MAX, Entry, START_BYTES, Start, UNDO_BYTES, Undo};
use quayfs_layout::node::{self, HEADER, NodeKind, OFF_USED, PAYLOAD};
use quayfs_layout::{BLOCK, flaw, xattr};

use super::Seen;
use crate::fixup;
use crate::input::{Input, overlay};

/// Map entries, commit words, start and undo records.
pub fn l2p(data: &[u8], seen: &mut Seen) {
    let mut input = Input::new(data);
    let salt = input.u64();
    let fix = input.flag();

    let (lbn, mut word) = (input.number(), input.u64());
    if fix {
        word = seal_word(word & WORD_MAX, fixup::l2p_entry_salt(salt, lbn));
    }
    if let Some(e) = Entry::decode(word, lbn, salt) {
        seen.add("entry");
        assert!(e.pbn < BLOCKS_MAX);
        assert_eq!(e.encode(lbn, salt), word);
    }

    if fix {
        word = l2p::encode_commit(word & WORD_MAX, salt);
    }
    if let Some(generation) = l2p::decode_commit(word, salt) {
        seen.add("commit word");
        assert_eq!(l2p::encode_commit(generation, salt), word);
    }

    let (lane, index) = (input.u32(), input.number());
    let mut b = [0; UNDO_BYTES];
    overlay(&mut input, &mut b, 4);
    if fix {
        fixup::undo(&mut b, salt, lane, index);
    }
    if let Some(u) = Undo::decode(&b, lane, index, salt) {
        seen.add("undo");
        assert_eq!(u.encode(lane, index, salt), b);
    }

    let mut b = [0; START_BYTES];
    overlay(&mut input, &mut b, 6);
    if fix {
        fixup::start(&mut b, salt);
    }
    if let Some(s) = Start::decode(&b, salt) {
        seen.add("start");
        assert_eq!(Start::decode(&s.encode(salt), salt), Some(s));
    }
}

/// Node pages and the entries of the node address table.
pub fn node(data: &[u8], seen: &mut Seen) {
    let mut input = Input::new(data);
    let (salt, id, fix) = (input.u64(), input.u32(), input.flag());

    let mut word = input.u64();
    if fix {
        word = seal_word(word & WORD_MAX, fixup::nat_salt(salt, id));
    }
    match node::nat_decode(id, word, salt) {
        Some(Some(page)) => {
            seen.add("address");
            assert_eq!(node::nat_encode(id, page, salt), word);
        }
        Some(None) => {
            seen.add("no address");
            assert_eq!(node::nat_absent(id, salt), word);
        }
        None => assert!(!fix),
    }

    let mut page = vec![0; BLOCK];
    node::init(&mut page, id, NodeKind::Bitmap, 0);
    overlay(&mut input, &mut page, 8);
    if fix {
        node::seal(&mut page, salt);
    }
    if let Ok(kind) = node::check(&page, id, salt) {
        seen.add("page");
        assert_eq!(node::kind(&page), Some(kind));
        let (owner, next, used) = (node::owner(&page), node::next(&page), node::used(&page));
        let mut fresh = page.clone();
        node::init(&mut fresh, id, kind, owner);
        assert_eq!((node::next(&fresh), node::used(&fresh)), (0, 0));
        put_u32(&mut fresh, node::OFF_NEXT, next);
        put_u32(&mut fresh, OFF_USED, used);
        node::seal(&mut fresh, salt);
        assert_eq!(node::check(&fresh, id, salt), Ok(kind));
        assert_eq!(node::owner(&fresh), owner);
        if flaw::place(&GEOMETRY, id, &page, kind).is_ok() {
            let sound = flaw::content(&GEOMETRY, id, &page, kind).is_ok();
            assert!(!sound || kind != NodeKind::DirLeaf || dirent::leaf_is_sound(&page));
        }
    }
}

/// That of some volume.
static GEOMETRY: LazyLock<Geometry> =
    LazyLock::new(|| Geometry::compute(64 << 20, 256 << 20, 2).expect("sizes that work"));

/// An inode image.
pub fn inode(data: &[u8], seen: &mut Seen) {
    let mut b = [0; inode::SIZE];
    overlay(&mut Input::new(data), &mut b, 16);
    let i = Inode::decode(&b);
    assert_eq!(Inode::decode(&i.encode()), i);
    // A free image is empty, one in use of a type that there is.
    let sound = flaw::image(7, &b).is_ok();
    assert!(!sound || i.mode != 0 || b == [0; inode::SIZE]);
    assert!(u8::from(i.is_dir()) + u8::from(i.is_file()) + u8::from(i.is_symlink()) <= 1);
    let mut copy = i.clone();
    for place in 0..extent::INLINE {
        let e = i.inline_extent(place);
        seen.add(if e.is_some() { "extent" } else { "no extent" });
        copy.set_inline_extent(place, e);
        assert_eq!(copy.inline_extent(place), e);
    }
}

/// A directory page, read as a leaf and as an index.
pub fn dirent(data: &[u8], seen: &mut Seen) {
    let mut input = Input::new(data);
    let mut page = vec![0; BLOCK];
    node::init(&mut page, 9, NodeKind::DirLeaf, 1);
    let (cookie, used, how) = (input.u64(), input.u32(), input.u8());
    put_u32(&mut page, OFF_USED, used);
    let body = input.rest();
    let n = body.len().min(PAYLOAD);
    page[HEADER..HEADER + n].copy_from_slice(&body[..n]);
    if how & 1 != 0 {
        right_lengths(&mut page);
    }
    if how & 2 != 0 {
        put_u32(&mut page, OFF_USED, PAYLOAD as u32);
        let end = dirent::entries(&page)
            .last()
            .map_or(HEADER, |e| e.at + dirent::entry_len(e.name.len()));
        put_u32(&mut page, OFF_USED, (end - HEADER) as u32);
    }

    let entries: Vec<_> = dirent::entries(&page).collect();
    let mut out = Vec::new();
    for e in &entries {
        seen.add("entry");
        assert!(!e.name.is_empty() && e.name.len() <= dirent::NAME_MAX);
        assert_eq!(e.at - HEADER, out.len());
        dirent::encode_entry(e.cookie, e.ino, e.kind, e.name, &mut out);
    }
    assert!(out.len() <= PAYLOAD);
    if dirent::leaf_is_sound(&page) {
        if !entries.is_empty() {
            seen.add("sound leaf");
        }
        assert_eq!(out.len(), node::used(&page) as usize);
    }
    let mut fresh = vec![0; BLOCK];
    fresh[HEADER..HEADER + out.len()].copy_from_slice(&out);
    put_u32(&mut fresh, OFF_USED, out.len() as u32);
    assert!(dirent::leaf_is_sound(&fresh));
    assert!(dirent::entries(&fresh).eq(entries.iter().copied()));

    let n = (node::used(&page) as usize).min(INDEX_MAX);
    let found = dirent::index_search(&page, cookie);
    assert!(found < n.max(1));
    let keys: Vec<_> = (0..n).map(|i| dirent::index_entry(&page, i)).collect();
    if keys.is_sorted() {
        if keys.len() > 1 {
            seen.add("index");
        }
        let before = keys.iter().filter(|k| k.0 <= cookie).count();
        assert_eq!(found, before.saturating_sub(1));
    }
    for (i, (key, child)) in keys.iter().enumerate() {
        let at = HEADER + i * INDEX_SIZE;
        assert_eq!(dirent::encode_index(*key, *child)[..12], page[at..at + 12]);
    }
}

/// Makes each entry's length that of its name, which a fuzzer hardly guesses; nor does it guess where
/// the last entry ends.
fn right_lengths(page: &mut [u8]) {
    let mut at = HEADER;
    while let Some(e) = page
        .get_mut(at..)
        .filter(|e| e.len() >= dirent::ENTRY_HEADER)
    {
        let len = dirent::entry_len(usize::from(e[19]));
        put_u16(e, 16, len as u16);
        at += len;
    }
}

/// An extent page.
pub fn extents(data: &[u8], seen: &mut Seen) {
    for b in data.chunks_exact(extent::SIZE).take(extent::PER_PAGE) {
        if let Some(e) = Extent::decode(b) {
            seen.add("extent");
            assert!((1..=extent::LEN_MAX).contains(&e.len));
            assert_eq!(e.file_block >> 52, 0);
            assert!(e.lbn < BLOCKS_MAX);
            assert_eq!(Extent::decode(&e.encode()), Some(e));
        }
    }
}

/// An intent page.
pub fn intents(data: &[u8], seen: &mut Seen) {
    for b in data.chunks_exact(intent::SIZE).take(intent::PER_PAGE) {
        match Intent::decode(b) {
            Ok(Some(i)) => {
                seen.add("intent");
                assert_eq!(i.encode(), b);
            }
            Ok(None) => {
                seen.add("none");
                assert!(b.iter().all(|b| *b == 0));
            }
            Err(_) => assert!(get_u32(b, 8) > 2 || b[0..8] != [0; 8] || get_u32(b, 12) > 0),
        }
    }
}

/// A set of extended attributes, and access control lists: each value, and all of it.
pub fn xattrs(data: &[u8], seen: &mut Seen) {
    list(data);
    if let Some(set) = xattr::decode(data) {
        if !set.is_empty() {
            seen.add("set");
        }
        assert_eq!(xattr::encode(&set), data);
        let lengths = |(n, v): &(Vec<u8>, Vec<u8>)| {
            (1..=xattr::NAME_MAX).contains(&n.len()) && v.len() <= xattr::VALUE_MAX
        };
        assert!(set.iter().all(lengths));
        set.iter().for_each(|(_, value)| list(value));
    }
}

fn list(value: &[u8]) {
    if let Ok(mut list) = Acl::decode(value) {
        assert!(value.len() <= acl::VALUE_MAX && list.mode() <= 0o777);
        let bytes = list.encode();
        assert_eq!(bytes.len(), value.len());
        assert_eq!(Acl::decode(&bytes).as_ref(), Ok(&list));
        list.set_mode(0o750);
        assert_eq!(list.mode(), 0o750);
    }
}
