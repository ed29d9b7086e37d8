use super::*;
use crate::BLOCK;
use crate::bytes::{put_u32, put_u64};
use crate::dirent::{self, encode_entry};
use crate::extent::Extent;
use crate::inode::{self, Inode, S_IFIFO, S_IFLNK, S_IFREG};
use crate::node::{BITS_PER_PAGE, OFF_NEXT, OFF_USED};
use crate::quota;
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
    let of = |bytes: &[u8]| content(&g, 0, &page(NodeKind::Intents, 0, bytes), NodeKind::Intents);
    assert_eq!(of(&intents), Ok(()));
    put_u64(&mut intents, 24, 9);
    assert_eq!(of(&intents), Err(Flaw::Intent(1)));
    let mut quota = [0; quota::SIZE];
    put_u64(&mut quota, 8, 1);
    let of = |bytes: &[u8]| content(&g, 0, &page(NodeKind::Quota, 0, bytes), NodeKind::Quota);
    assert_eq!(of(&quota), Err(Flaw::Quota(0)));
    put_u32(&mut quota, 0, 3);
    assert_eq!(of(&quota), Ok(()));
    // User 0 is one, a fourth kind is none.
    (quota[0], quota[4]) = (0, 1);
    assert_eq!(of(&quota), Ok(()));
    (quota[0], quota[4]) = (3, 3);
    assert_eq!(of(&quota), Err(Flaw::Quota(0)));
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
