//! The most links that an inode can have, which no test lives to make.

use quayfs_fs::LINK_MAX;
use quayfs_store::txn::{Edit, Reservation, Txn};

use super::*;

/// Says that an inode has so many links.
fn links(fs: &Fs, ino: Ino, n: u32) {
    let handle = fs.e.inodes.get(&fs.e.nodes, ino).unwrap();
    let txn = Txn::begin(&fs.e, Reservation::default()).unwrap();
    let mut edit = Edit::shared(&handle).unwrap();
    edit.image.nlink = n;
    txn.commit(&mut edit).unwrap();
}

fn nlink(fs: &Fs, ino: Ino) -> u32 {
    fs.getattr(ino).unwrap().inode.nlink
}

#[test]
fn links_are_counted_up_to_the_limit() {
    let disk = Disk::new();
    let fs = disk.mount("noatime");
    let f = file(&fs, ROOT, "f");
    let full = fs.mkdir(USER, ROOT, b"full", 0o755).unwrap().ino;
    let sub = fs.mkdir(USER, ROOT, b"sub", 0o755).unwrap().ino;
    links(&fs, f, LINK_MAX - 1);
    links(&fs, full, LINK_MAX);
    assert_eq!(fs.link(f, ROOT, b"last").unwrap().inode.nlink, LINK_MAX);

    assert_eq!(fs.link(f, ROOT, b"more"), Err(FsError::TooManyLinks));
    let made = fs.mkdir(USER, full, b"more", 0o755);
    assert_eq!(made.map(drop), Err(FsError::TooManyLinks));
    let moved = fs.rename((ROOT, b"sub"), (full, b"more"), PLAIN);
    assert_eq!(moved.map(drop), Err(FsError::TooManyLinks));
    assert_eq!((nlink(&fs, f), nlink(&fs, full)), (LINK_MAX, LINK_MAX));
    assert_eq!(fs.lookup(ROOT, b"sub").unwrap().ino, sub);

    // What counts in no directory still goes in, and what gives a link back makes room for one.
    file(&fs, full, "file");
    fs.unlink(ROOT, b"last").unwrap();
    fs.link(f, full, b"again").unwrap();
    links(&fs, full, 2);
    fs.rename((ROOT, b"sub"), (full, b"sub"), PLAIN).unwrap();
    assert_eq!(nlink(&fs, full), 3);

    fs.abandon();
}
