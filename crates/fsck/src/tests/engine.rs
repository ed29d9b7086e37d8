//! What the engine makes of what the checker finds.

use quayfs_fs::{Fs, SetAttr};
use quayfs_layout::bytes::put_u64;
use quayfs_layout::inode::ROOT;
use quayfs_layout::intent::{Intent, IntentKind, SIZE};
use quayfs_layout::node::{HEADER, NodeKind};
use quayfs_options::MountOptions;
use quayfs_store::txn::{Edit, Outcome, Reservation, Txn};

use super::support::Disk;

fn read_only(disk: &Disk) -> std::sync::Arc<Fs> {
    let options = MountOptions {
        read_only: true,
        ..MountOptions::default()
    };
    Fs::mount_quiet(disk.volume(), &options).unwrap()
}

fn refuses_to_write(disk: &Disk) {
    assert!(Fs::mount_quiet(disk.volume(), &MountOptions::default()).is_err());
}

#[test]
fn damage_to_one_node_leaves_the_rest_readable() {
    let (disk, s) = Disk::sample();
    disk.nat(disk.inode(s.long).root, 12345);
    refuses_to_write(&disk);
    let fs = read_only(&disk);
    assert_eq!(fs.read(s.small, 0, 10).unwrap(), [7; 10]);
    assert!(fs.readlink(s.long).is_err());
}

#[test]
fn damage_to_what_only_writers_need_does_not_matter_to_readers() {
    let (disk, s) = Disk::sample();
    let bitmap = disk.home(disk.geo().lbn_bitmap_base as u32).unwrap();
    disk.region.write(disk.geo().node_page(bitmap) + 500, &[1]);
    refuses_to_write(&disk);
    assert_eq!(read_only(&disk).read(s.small, 0, 10).unwrap(), [7; 10]);

    let (disk, s) = Disk::sample();
    disk.create(
        disk.geo().intent_base as u32,
        NodeKind::Intents,
        0,
        |page| {
            put_u64(page, HEADER + 8, 77);
        },
    );
    refuses_to_write(&disk);
    assert_eq!(read_only(&disk).read(s.small, 0, 10).unwrap(), [7; 10]);
}

fn begin_truncate(disk: &Disk, ino: u64) {
    disk.create(
        disk.geo().intent_base as u32,
        NodeKind::Intents,
        0,
        |page| {
            let intent = Intent {
                ino,
                kind: IntentKind::Truncate,
            };
            page[HEADER..HEADER + SIZE].copy_from_slice(&intent.encode());
        },
    );
}

#[test]
fn a_truncate_is_finished_at_the_next_mount() {
    let (disk, s) = Disk::sample();
    disk.edit_inode(s.big, |i| i.size = 2 * 8192);
    begin_truncate(&disk, s.big);
    let fs = disk.mount();
    assert_eq!(fs.getattr(s.big).unwrap().inode.blocks, 2 + 1);
    fs.abandon();
    disk.finds(&[]);
}

#[test]
fn an_unfinished_truncate_ends_with_its_file() {
    let (disk, s) = Disk::sample();
    let fs = disk.mount();
    // As if it had run out of space.
    let mut txn = Txn::begin(&fs.e, Reservation::default()).unwrap();
    let intent = fs.e.intents.begin(&mut txn, s.big, IntentKind::Truncate);
    txn.commit(Outcome::default().begins(Some(intent.unwrap())))
        .unwrap();
    fs.unlink(ROOT, b"big").unwrap();
    fs.abandon();
    disk.finds(&[]);
    assert_eq!(disk.check().statistics.orphans, 0);
}

#[test]
fn an_unfinished_truncate_is_finished_by_the_next_one() {
    let (disk, s) = Disk::sample();
    let fs = disk.mount();
    let handle = fs.e.inodes.get(&fs.e.nodes, s.big).unwrap();
    let mut txn = Txn::begin(&fs.e, Reservation::default()).unwrap();
    let mut edit = Edit::shared(&handle).unwrap();
    edit.image.size = 3 * 8192;
    let intent = fs.e.intents.begin(&mut txn, s.big, IntentKind::Truncate);
    txn.commit(Outcome::from(&mut edit).begins(Some(intent.unwrap())))
        .unwrap();
    drop(edit);
    let set = SetAttr {
        size: Some(1 << 20),
        ..SetAttr::default()
    };
    let inode = fs.setattr(s.big, &set, false).unwrap().inode;
    assert_eq!(inode.blocks, 3 + 1);
    assert!(!fs.e.intents.has(s.big, IntentKind::Truncate));
    let rest = fs.read(s.big, 3 * 8192, 1 << 20).unwrap();
    assert!(rest.len() == (1 << 20) - 3 * 8192 && rest.iter().all(|b| *b == 0));
    fs.abandon();
    disk.finds(&[]);
}
