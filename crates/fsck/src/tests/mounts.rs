//! What the checker finds a mount does not believe either: whatever page is damaged, with or without a checksum that
//! says so, an operation that meets it fails, `errors=` decides about the mount, and nothing is made final.

use std::sync::Arc;

use quayfs_fs::Fs;
use quayfs_fs::recovery::MountError;
use quayfs_layout::BLOCK;
use quayfs_layout::bytes::{get_u32, put_u32};
use quayfs_layout::inode::ROOT;
use quayfs_layout::node::{HEADER, OFF_BITS_SET, OFF_NEXT, OFF_USED};
use quayfs_options::MountOptions;
use quayfs_store::error::{FsError, Result};

use super::support::{BY, Disk, NAMES, Sample};

type Do = fn(&Disk, &Sample);
type Meet = fn(&Fs, &Sample) -> Result<()>;

/// A kind of damage, and an operation that meets it.
const CASES: &[(&str, Do, Meet)] = &[
    ("a leaf whose entries end early", short_leaf, look_up),
    (
        "a leaf whose entries end early, when a name is added",
        short_leaf,
        add,
    ),
    (
        "a leaf whose entries end early, when it is listed",
        short_leaf,
        list,
    ),
    (
        "a name that is none",
        |d, _| leaf(d, |e| e[20] = b'/'),
        list,
    ),
    (
        "a type that there is not",
        |d, _| leaf(d, |e| e[18] = 3),
        list,
    ),
    (
        "a cookie that no name has",
        |d, _| leaf(d, |e| e[..8].fill(0)),
        look_up,
    ),
    (
        "an inode that cannot be one",
        |d, _| leaf(d, |e| e[8..16].fill(0xff)),
        look_up,
    ),
    (
        "an index page without children",
        |d, s| index(d, s, |p| put_u32(p, OFF_USED, 0)),
        look_in,
    ),
    (
        "keys that are out of order",
        |d, s| index(d, s, |p| p[HEADER + 16..HEADER + 24].fill(0)),
        look_in,
    ),
    (
        "a child that cannot be one",
        |d, s| index(d, s, |p| put_u32(p, HEADER + 8, 1)),
        list_in,
    ),
    (
        "a place of an extent",
        |d, s| extents(d, s, |p| p[HEADER + 16 * 250] = 1),
        read_big,
    ),
    (
        "extents beyond the volume",
        |d, s| extents(d, s, |p| p[HEADER + 8..HEADER + 13].fill(0xff)),
        read_big,
    ),
    (
        "a next page that cannot be one",
        |d, s| extents(d, s, |p| put_u32(p, OFF_NEXT, 2)),
        read_big,
    ),
    (
        "a blob of no bytes",
        |d, s| target(d, s, |p| put_u32(p, OFF_USED, 0)),
        read_link,
    ),
    (
        "a set of attributes",
        |d, s| attributes(d, s, |p| p[HEADER] = 0),
        get_attribute,
    ),
    (
        "an attribute that is there twice",
        |d, s| {
            attributes(d, s, |p| {
                p[HEADER + 5..HEADER + 11].copy_from_slice(b"user.b")
            })
        },
        list_attributes,
    ),
    (
        "a time",
        |d, s| d.edit_inode(s.small, |i| i.mtime.nsec = u32::MAX),
        stat_small,
    ),
    (
        "a file type",
        |d, s| d.edit_inode(s.small, |i| i.mode = 0o030_644),
        stat_small,
    ),
    (
        "an extent in an inode",
        |d, s| d.edit_inode(s.small, |i| i.inline.0[40] = 1),
        read_small,
    ),
    (
        "a page that fails its checksum",
        |d, s| flip(d, d.inode(s.big).root),
        read_big,
    ),
    (
        "a page of inodes that fails its checksum",
        |d, s| flip(d, d.geo().inode_place(s.small).0),
        stat_small,
    ),
    (
        "a NAT entry",
        |d, s| d.nat(d.inode(s.big).root, 0x1234),
        read_big,
    ),
    ("an entry of the page table", lose_entry, read_small),
    (
        "a bitmap of blocks",
        |d, _| counter(d, d.geo().lbn_bitmap_base),
        write,
    ),
    (
        "a bitmap of inodes",
        |d, _| counter(d, d.geo().ino_bitmap_base),
        add,
    ),
];

fn short_leaf(d: &Disk, _: &Sample) {
    leaf(d, |e| e[19] = 0);
}

/// Changes the first entry of the root directory's leaf.
fn leaf(d: &Disk, f: impl FnOnce(&mut [u8])) {
    d.edit(d.inode(ROOT).root, |p| f(&mut p[HEADER..]));
}

fn index(d: &Disk, s: &Sample, f: impl FnOnce(&mut [u8])) {
    assert!(d.inode(s.dir).depth > 0);
    d.edit(d.inode(s.dir).root, f);
}

fn extents(d: &Disk, s: &Sample, f: impl FnOnce(&mut [u8])) {
    d.edit(d.inode(s.big).root, f);
}

fn target(d: &Disk, s: &Sample, f: impl FnOnce(&mut [u8])) {
    d.edit(d.inode(s.long).root, f);
}

fn attributes(d: &Disk, s: &Sample, f: impl FnOnce(&mut [u8])) {
    d.edit(d.inode(s.attr).xattr, f);
}

fn counter(d: &Disk, id: u64) {
    d.edit(id as u32, |p| {
        let n = get_u32(p, OFF_BITS_SET);
        put_u32(p, OFF_BITS_SET, n + 1);
    });
}

fn flip(d: &Disk, id: u32) {
    let off = d.geo().node_page(d.home(id).unwrap()) + 2000;
    d.region.store_u64(off, !d.region.load_u64(off));
}

fn lose_entry(d: &Disk, s: &Sample) {
    let lbn = d.inode(s.small).inline_extent(0).unwrap().lbn;
    d.region.store_u64(d.geo().l2p_map_off + lbn * 8, 7);
}

fn look_up(fs: &Fs, _: &Sample) -> Result<()> {
    fs.lookup(ROOT, b"fifo").map(drop)
}

fn add(fs: &Fs, _: &Sample) -> Result<()> {
    fs.mknod(BY, ROOT, b"more", 0o100_644, 0).map(drop)
}

fn list(fs: &Fs, _: &Sample) -> Result<()> {
    fs.readdir(ROOT, 0, |_| true)
}

fn look_in(fs: &Fs, s: &Sample) -> Result<()> {
    fs.lookup(s.dir, b"sub").map(drop)
}

fn list_in(fs: &Fs, s: &Sample) -> Result<()> {
    fs.readdir(s.dir, 0, |_| true)
}

fn read_big(fs: &Fs, s: &Sample) -> Result<()> {
    fs.read(s.big, 0, 4096).map(drop)
}

fn read_small(fs: &Fs, s: &Sample) -> Result<()> {
    fs.read(s.small, 0, 4096).map(drop)
}

fn read_link(fs: &Fs, s: &Sample) -> Result<()> {
    fs.readlink(s.long).map(drop)
}

fn get_attribute(fs: &Fs, s: &Sample) -> Result<()> {
    fs.getxattr(s.attr, b"user.a").map(drop)
}

fn list_attributes(fs: &Fs, s: &Sample) -> Result<()> {
    fs.listxattr(s.attr).map(drop)
}

fn stat_small(fs: &Fs, s: &Sample) -> Result<()> {
    fs.getattr(s.small).map(drop)
}

fn write(fs: &Fs, s: &Sample) -> Result<()> {
    fs.write(s.small, 1 << 30, &[1; BLOCK], false).map(drop)
}

fn mount(disk: &Disk, options: &str) -> std::result::Result<Arc<Fs>, MountError> {
    Fs::mount_quiet(disk.volume(), &MountOptions::parse(&[options]).unwrap())
}

#[test]
fn damage_fails_who_meets_it_and_errors_decides_about_the_mount() {
    for (what, damage, meet) in CASES {
        for (options, read_only) in [("errors=remount-ro", true), ("errors=continue", false)] {
            let (disk, s) = Disk::sample();
            let fs = mount(&disk, options).unwrap();
            damage(&disk, &s);
            assert!(!disk.check().is_clean(), "{what}: fsck sees nothing");
            let met = meet(&fs, &s);
            assert!(matches!(met, Err(FsError::Damaged(_))), "{what}: {met:?}");
            assert!(fs.e.watch().found() > 0, "{what}");
            assert_eq!(fs.status().damage_met, fs.e.watch().found());
            assert_eq!(fs.e.is_read_only(), read_only, "{what}, {options}");
            assert_eq!(fs.has_failed(), read_only, "{what}, {options}");
            let other = fs.mknod(BY, s.sub, b"another", 0o100_644, 0);
            let refused = matches!(other, Err(FsError::ReadOnly));
            assert_eq!(refused, read_only, "{what}, {options}: {other:?}");
            fs.abandon();
        }
    }
}

#[test]
fn a_damaged_block_of_a_file_is_not_metadata() {
    for options in ["errors=remount-ro", "errors=continue"] {
        let (disk, s) = Disk::sample();
        let fs = mount(&disk, options).unwrap();
        let lbn = disk.inode(s.small).inline_extent(0).unwrap().lbn;
        let block = disk.geo().data_start + disk.entry(lbn).pbn;
        disk.device.write(block, &[9; BLOCK]).unwrap();
        let met = fs.read(s.small, 0, 10);
        assert!(matches!(met, Err(FsError::Content(_))), "{met:?}");
        assert!(!fs.e.is_read_only() && fs.e.watch().found() == 0);
        fs.shutdown().unwrap();
    }
}

#[test]
fn names_behind_a_malformed_entry_are_not_lost() {
    for options in ["errors=remount-ro", "errors=continue"] {
        let (disk, s) = Disk::sample();
        // One of many leaves, in the middle of it.
        let root = disk.page(disk.inode(s.dir).root);
        let leaf = quayfs_layout::dirent::index_entry(&root[..], 0).1;
        let before = disk.page(leaf);
        let at = quayfs_layout::dirent::entries(&before[..])
            .nth(5)
            .unwrap()
            .at;
        let len = before[at + 19];
        disk.edit(leaf, |p| p[at + 19] = 0);
        let malformed = disk.page(leaf);
        let fs = mount(&disk, options).unwrap();
        // Enough for each leaf to be written anew.
        let added = (0..200).filter(|n| {
            let name = format!("another name of some length {n:030}");
            fs.mknod(BY, s.dir, name.as_bytes(), 0o100_644, 0).is_ok()
        });
        let added = added.count() as u64;
        assert!(added < 200, "{options}: nobody has met it");
        let _ = fs.shutdown();
        assert_eq!(disk.page(leaf)[HEADER..], malformed[HEADER..], "{options}");
        // Once the byte is put right, all names are there again.
        disk.edit(leaf, |p| p[at + 19] = len);
        disk.finds(&[]);
        let fs = disk.mount();
        let mut names = 0;
        fs.readdir(s.dir, 0, |_| {
            names += 1;
            true
        })
        .unwrap();
        assert_eq!(names, 2 + 1 + NAMES + added, "{options}");
        fs.shutdown().unwrap();
    }
}

#[test]
fn tables_that_every_operation_needs_are_checked_before_the_first() {
    let cases: [(&str, Do); 5] = [
        ("intent", |d, _| {
            let id = d.geo().intent_base as u32;
            d.create(id, quayfs_layout::node::NodeKind::Intents, 0, |p| {
                p[HEADER] = 9
            });
        }),
        ("bits are set", |d, _| counter(d, d.geo().dyn_bitmap_base)),
        ("bits are set", |d, _| counter(d, d.geo().ino_bitmap_base)),
        ("bits are set", |d, _| counter(d, d.geo().lbn_bitmap_base)),
        ("place", |d, _| {
            let id = d.geo().quota_base as u32;
            // Project 0, which is not counted, has something.
            d.edit(id, |p| {
                p[HEADER..HEADER + 8].fill(0);
                p[HEADER + 8] = 9;
            });
        }),
    ];
    for (what, damage) in cases {
        let (disk, s) = Disk::sample();
        damage(&disk, &s);
        let refused = mount(&disk, "errors=continue").err().unwrap().to_string();
        assert!(refused.contains(what), "{what}: {refused}");
        let volume = quayfs_fs::volume::Volume::from_parts(
            Arc::new(disk.region.load().unwrap()),
            Arc::clone(&disk.device),
            quayfs_fs::volume::Access::ReadOnly,
        );
        let options = MountOptions::parse(&["ro"]).unwrap();
        let fs = Fs::mount_quiet(volume.unwrap(), &options).unwrap();
        assert_eq!(fs.read(s.small, 0, 1).unwrap(), [7]);
        fs.abandon();
        disk.repaired();
        disk.mount().shutdown().unwrap();
    }
}

#[test]
fn a_scrub_finds_malformed_pages_and_changes_nothing() {
    let (disk, s) = Disk::sample();
    let fs = mount(&disk, "errors=remount-ro").unwrap();
    short_leaf(&disk, &s);
    disk.edit_inode(s.fifo, |i| i.mtime.nsec = u32::MAX);
    lose_entry(&disk, &s);
    let pass = quayfs_fs::scrub::Pass::new(Default::default());
    pass.run(&fs.e);
    let found = pass.report(0, usize::MAX).list;
    let metadata = found
        .iter()
        .filter(|f| f.area == quayfs_fs::scrub::Area::Metadata);
    assert_eq!(metadata.count(), 2, "{found:?}");
    assert!(!fs.e.is_read_only(), "a scrub has no consequence");
    assert_eq!(fs.e.watch().found(), 0);
    fs.abandon();
}
