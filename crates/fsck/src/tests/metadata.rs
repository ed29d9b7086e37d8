//! Damage to NAT, node pages, bitmaps and inode images.

use quayfs_fs::{FallocMode, Fs, SetAttr, SetXattr};
use quayfs_layout::bytes::{put_u32, put_u64};
use quayfs_layout::extent::{self, Extent};
use quayfs_layout::inode::{self, Inline, ROOT};
use quayfs_layout::node::{self, NodeKind, OFF_BITS_SET, OFF_NEXT, OFF_OWNER, OFF_SEQ};
use quayfs_layout::xattr;
use quayfs_options::MountOptions;

use super::support::Disk;

#[test]
fn a_damaged_nat_entry() {
    let (disk, s) = Disk::sample();
    let id = disk.inode(s.long).root;
    disk.nat(id, 12345);
    disk.finds(&[&format!("error: nat: the entry of node {id} is damaged")]);
    let pages = disk.geo().node_pages;
    disk.nat(id, node::nat_encode(id, pages + 5, disk.salt()));
    disk.finds(&[&format!(
        "error: nat: the entry of node {id} names page {}, there are {pages}",
        pages + 5
    )]);
}

#[test]
fn a_page_with_two_owners() {
    let (disk, s) = Disk::sample();
    let (a, b) = (disk.inode(s.long).root, disk.inode(s.attr).xattr);
    let page = disk.home(a.min(b)).unwrap();
    disk.nat(a.max(b), node::nat_encode(a.max(b), page, disk.salt()));
    disk.finds(&[&format!(
        "error: nat: page {page} belongs to node {} and to node {}",
        a.min(b),
        a.max(b)
    )]);
}

#[test]
fn node_zero() {
    let (disk, _) = Disk::sample();
    disk.nat(0, node::nat_encode(0, disk.free_page(), disk.salt()));
    disk.finds(&["error: nat: node 0 exists, which is never used"]);
}

#[test]
fn a_node_page_that_is_not_what_it_should_be() {
    let (disk, s) = Disk::sample();
    let id = disk.inode(s.big).root;
    let page = disk.home(id).unwrap();
    let at = format!("error: node: node {id} in page {page}: ");
    disk.edit(id, |p| put_u64(p, OFF_SEQ, 1 << 40));
    disk.finds(&[&format!(
        "{at}holds record 1099511627776, but the last one is ..."
    )]);
    disk.edit(id, |p| {
        put_u64(p, OFF_SEQ, 1);
        put_u64(p, OFF_OWNER, 0);
    });
    disk.finds(&[&format!("{at}inode 0, which does not exist, owns it")]);
    disk.edit(id, |p| p[2] = NodeKind::Bitmap as u8);
    disk.finds(&[&format!("{at}Bitmap page, which has a fixed node id")]);
    disk.region
        .write(disk.geo().node_page(page) + 2000, &[0x55]);
    disk.finds(&[&format!("{at}checksum mismatch")]);
    let report = disk.check();
    assert_eq!(report.skipped.len(), 2, "{report}");
}

#[test]
fn a_static_page_that_is_not_what_it_should_be() {
    let (disk, s) = Disk::sample();
    let (id, _) = disk.geo().inode_place(s.fifo);
    let page = disk.home(id).unwrap();
    let at = format!("error: node: node {id} in page {page}: ");
    disk.edit(id, |p| put_u64(p, OFF_OWNER, 5));
    disk.finds(&[&format!("{at}shared page, but inode 5 owns it")]);
    disk.edit(id, |p| {
        put_u64(p, OFF_OWNER, 0);
        p[2] = NodeKind::Intents as u8;
    });
    disk.finds(&[&format!("{at}Intents page, expected Inodes")]);
    let report = disk.check();
    assert_eq!(report.skipped.len(), 4, "{report}");
}

#[test]
fn a_wrong_counter() {
    let (disk, _) = Disk::sample();
    for (base, of) in [
        (disk.geo().lbn_bitmap_base, "LBNs"),
        (disk.geo().ino_bitmap_base, "inodes"),
        (disk.geo().dyn_bitmap_base, "dynamic nodes"),
    ] {
        let (disk, _) = Disk::sample();
        let set = node::bits_set(&disk.page(base as u32)[..]);
        disk.edit(base as u32, |p| put_u32(p, OFF_BITS_SET, set + 1));
        disk.finds(&[&format!(
            "error: bitmap: node {base}, {of} 0 and up: {set} bits are set, its counter says {}",
            set + 1
        )]);
    }
}

#[test]
fn bits_of_numbers_that_do_not_exist() {
    let (disk, _) = Disk::sample();
    let (base, visible) = (disk.geo().lbn_bitmap_base, disk.geo().visible_blocks());
    disk.bit(base, visible, true);
    disk.bit(base, visible + 3, true);
    disk.finds(&[&format!(
        "error: bitmap: node {base}, LBNs 0 and up: 2 bits are set of numbers from {visible} on, which do not exist"
    )]);
}

#[test]
fn lbn_bits() {
    let (disk, s) = Disk::sample();
    let lbn = disk.inode(s.small).inline_extent(0).unwrap().lbn;
    let base = disk.geo().lbn_bitmap_base;
    disk.bit(base, lbn, false);
    disk.finds(&[&format!(
        "error: bitmap: LBN {lbn}: in a file, but marked free"
    )]);
    disk.bit(base, lbn, true);
    for n in 5000..5003 {
        disk.bit(base, n, true);
    }
    disk.finds(&["error: bitmap: LBNs 5000 to 5002: marked used, but in no file"]);
}

#[test]
fn inode_bits() {
    let (disk, s) = Disk::sample();
    let base = disk.geo().ino_bitmap_base;
    disk.bit(base, s.fifo, false);
    disk.finds(&[&format!(
        "error: bitmap: inode {} is marked free, but it exists",
        s.fifo
    )]);
    disk.bit(base, s.fifo, true);
    disk.bit(base, 0, false);
    disk.finds(&["error: bitmap: inode 0 is marked free, but must never be used"]);
    disk.bit(base, 0, true);
    disk.bit(base, 900, true);
    disk.finds(&["error: bitmap: inode 900 is marked used, but it does not exist"]);
}

#[test]
fn node_bits() {
    let (disk, s) = Disk::sample();
    let (base, first) = (disk.geo().dyn_bitmap_base, disk.geo().dyn_base);
    let id = u64::from(disk.inode(s.long).root);
    disk.bit(base, id - first, false);
    disk.finds(&[&format!(
        "error: bitmap: node {id} is marked free, but it exists"
    )]);
    disk.bit(base, id - first, true);
    let free = disk.free_node();
    disk.bit(base, u64::from(free) - first, true);
    disk.finds(&[&format!(
        "error: bitmap: node {free} is marked used, but it does not exist"
    )]);
    disk.create(free, NodeKind::Blob, s.long, |_| {});
    disk.finds(&[&format!(
        "error: node: node {free}: Blob page of inode {}, which has no use for it",
        s.long
    )]);
}

#[test]
fn a_free_image_that_is_not_empty() {
    let (disk, _) = Disk::sample();
    let ino = disk.free_ino();
    disk.edit_inode(ino, |i| i.uid = 7);
    disk.finds(&[&format!(
        "error: inode: inode {ino} is free, but its image is not empty"
    )]);
}

#[test]
fn inode_zero() {
    let (disk, s) = Disk::sample();
    let fifo = disk.inode(s.fifo);
    disk.edit_inode(0, |i| *i = fifo);
    disk.finds(&["error: inode: inode 0 exists, which is never used"]);
}

#[test]
fn impossible_images() {
    let (disk, s) = Disk::sample();
    let with = |ino, f: &dyn Fn(&mut inode::Inode), expected: &[&str]| {
        let before = disk.inode(ino);
        disk.edit_inode(ino, f);
        disk.finds(expected);
        disk.edit_inode(ino, |i| *i = before);
    };
    let one = |ino, f: &dyn Fn(&mut inode::Inode), what: &str| {
        with(ino, f, &[&format!("error: inode: inode {ino}: {what}")]);
    };
    let n = s.fifo;
    one(
        n,
        &|i| i.btime.nsec = 1_000_000_000,
        "btime has 1000000000 nanoseconds",
    );
    one(
        n,
        &|i| i.flags = 0x10,
        "has flags that it cannot have, 0x10",
    );
    one(
        s.small,
        &|i| i.flags = 0x1_0130,
        "has flags that it cannot have, 0x10100",
    );
    one(
        n,
        &|i| i.parent = 1,
        "not a directory, but has fields of one",
    );
    one(n, &|i| i.mode |= 1 << 20, "there is no mode 4010644");
    with(
        n,
        &|i| i.mode = 0o030_644,
        &[
            &format!("error: inode: inode {n}: there is no file type 30000"),
            &format!(
                "error: directory: inode 1, entry \"fifo\": says type 1 of inode {n}, which has type 3"
            ),
        ],
    );
    one(n, &|i| i.size = 1, "a special file with content");
    one(
        n,
        &|i| i.inline.0[0] = 1,
        "neither file nor link, but has inline content",
    );
    one(n, &|i| i.blocks = 1, "owns 0 blocks, its image says 1");
    one(
        s.hard,
        &|i| i.size = 1 << 63,
        "size 9223372036854775808 is impossible",
    );
    // Leaves, of which there are more or fewer as the names of this volume hash, below one page of index.
    let leaves = u64::from(node::used(&disk.page(disk.inode(s.dir).root)[..]));
    for (n, owned) in [
        (s.dir, leaves + 1),
        (s.small, 2),
        (s.big, 47),
        (s.long, 1),
        (s.attr, 2),
    ] {
        assert_eq!(disk.inode(n).blocks, owned);
        let owns = quayfs_shown::count(owned, "block");
        let what = format!("owns {owns}, its image says {}", owned - 1);
        one(n, &|i| i.blocks -= 1, &what);
    }
}

/// A volume may be mounted before it is checked: files with such extents cannot be used then, and
/// nothing else happens.
#[test]
fn extents_beyond_the_volume_are_errors_when_mounted() {
    let visible = Disk::sample().0.geo().visible_blocks();
    for lbn in [visible - 1, visible, (1 << 40) - 1] {
        let (disk, s) = Disk::sample();
        let good = disk.inode(s.small).inline_extent(0).unwrap();
        disk.edit_inode(s.small, |i| {
            i.set_inline_extent(0, Some(Extent { lbn, ..good }));
        });
        let options = MountOptions::parse(&["errors=continue"]).unwrap();
        let fs = Fs::mount_quiet(disk.volume(), &options).unwrap();
        let set = SetAttr {
            size: Some(0),
            ..SetAttr::default()
        };
        let ino = s.small;
        let results = [
            fs.read(ino, 0, 100).map(drop),
            fs.write(ino, 0, b"x", false).map(drop),
            fs.setattr(ino, &set, false).map(drop),
            fs.fallocate(ino, FallocMode::Punch, 0, 8192),
        ];
        for result in results {
            assert!(
                matches!(result, Err(ref e) if e.is_io()),
                "{lbn}: {result:?}"
            );
        }
        fs.unlink(ROOT, b"small").unwrap();
        fs.forget(ino, 1);
        fs.abandon();
    }
}

/// So with attributes that claim to be longer than any can be.
#[test]
fn attributes_longer_than_any_are_errors_when_mounted() {
    for claims in [xattr::SET_MAX as u32 + 1, u32::MAX - 1, u32::MAX] {
        let (disk, s) = Disk::sample();
        disk.edit_inode(s.attr, |i| {
            assert_ne!(i.xattr, 0);
            (i.xattr_len, i.blocks) = (claims, u64::MAX);
        });
        let options = MountOptions::parse(&["errors=continue"]).unwrap();
        let fs = Fs::mount_quiet(disk.volume(), &options).unwrap();
        let results = [
            fs.getxattr(s.attr, b"user.x").map(drop),
            fs.setxattr(s.attr, b"user.y", b"y", SetXattr::Any),
            fs.removexattr(s.attr, b"user.x"),
        ];
        for result in results {
            assert!(
                matches!(result, Err(ref e) if e.is_io()),
                "{claims}: {result:?}"
            );
        }
        fs.write(s.attr, 1 << 20, b"x", false).unwrap();
        fs.abandon();
    }
}

#[test]
fn extents_that_cannot_be() {
    let (disk, s) = Disk::sample();
    let good = disk.inode(s.small).inline_extent(0).unwrap();
    assert_eq!((good.file_block, good.len), (0, 2));
    let one = |e: Extent, expected: &[&str]| {
        disk.edit_inode(s.small, |i| i.set_inline_extent(0, Some(e)));
        disk.finds(expected);
        disk.edit_inode(s.small, |i| i.set_inline_extent(0, Some(good)));
    };
    let (ino, visible) = (s.small, disk.geo().visible_blocks());
    let file_block = extent::FILE_BLOCKS - 1;
    one(
        Extent { file_block, ..good },
        &[&format!(
            "error: extents: inode {ino}: the extent at file block {file_block} of 2 blocks is beyond what a file can have"
        )],
    );
    one(
        Extent {
            lbn: visible - 1,
            ..good
        },
        &[&format!(
            "error: extents: inode {ino}: file block 0 is mapped to LBNs {} to {visible}, but files can own only {visible}",
            visible - 1
        )],
    );
    let other = disk.inode(s.big).inline_extent(0).unwrap().lbn;
    one(
        Extent {
            lbn: other,
            len: 1,
            ..good
        },
        &[
            &format!("error: inode: inode {ino}: owns 1 block, its image says 2"),
            &format!(
                "error: bitmap: LBNs {} to {}: marked used, but in no file",
                good.lbn,
                good.lbn + 1
            ),
            &format!(
                "error: extents: LBN {other}: mapped more than once, by inode {ino} and inode {}",
                s.big
            ),
        ],
    );
}

#[test]
fn extents_that_contradict_each_other() {
    let (disk, s) = Disk::sample();
    disk.edit_inode(s.big, |i| {
        let (a, mut b) = (i.inline_extent(0).unwrap(), i.inline_extent(1).unwrap());
        b.file_block = a.file_block;
        i.set_inline_extent(1, Some(b));
    });
    let at = disk.inode(s.big).inline_extent(0).unwrap().file_block;
    let ino = s.big;
    disk.finds(&[&format!(
        "error: extents: inode {ino}: two extents map file block {at}"
    )]);
}

#[test]
fn a_place_that_is_neither_free_nor_used() {
    let (disk, s) = Disk::sample();
    disk.edit_inode(s.small, |i| i.inline.0[6 * extent::SIZE] = 9);
    let ino = s.small;
    disk.finds(&[&format!(
        "error: extents: inode {ino}: place 6 in its inode is neither free nor used"
    )]);
}

#[test]
fn a_chain_that_goes_astray() {
    let (disk, s) = Disk::sample();
    let (ino, id) = (s.big, disk.inode(s.big).root);
    let start = format!("error: extents: inode {ino}: extent page is node ");
    disk.edit(id, |p| put_u32(p, OFF_NEXT, id));
    disk.finds(&[&format!("{start}{id}, which has an owner already")]);
    let free = disk.free_node();
    disk.edit(id, |p| put_u32(p, OFF_NEXT, free));
    disk.finds(&[&format!("{start}{free}, which does not exist")]);
    disk.edit(id, |p| put_u32(p, OFF_NEXT, 3));
    disk.finds(&[&format!("{start}3, which cannot be one")]);
    disk.edit(id, |p| put_u32(p, OFF_NEXT, 0));
    disk.edit(id, |p| put_u64(p, OFF_OWNER, s.small));
    disk.finds(&[&format!(
        "{start}{id}, which says it belongs to inode {}",
        s.small
    )]);
    disk.edit(id, |p| {
        put_u64(p, OFF_OWNER, ino);
        p[2] = NodeKind::Blob as u8;
    });
    disk.finds(&[&format!("{start}{id}, which is a Blob page")]);
}

#[test]
fn inline_content_of_a_directory() {
    let (disk, s) = Disk::sample();
    let mut inline = Inline::default();
    inline.0[100] = 1;
    disk.edit_inode(s.sub, |i| i.inline = inline);
    let ino = s.sub;
    disk.finds(&[&format!(
        "error: inode: inode {ino}: neither file nor link, but has inline content"
    )]);
}
