//! Access control lists: what the operation layer makes of them, and what users of a mount see.
//!
//! The mounts need `/dev/fuse` (QUAYFS_SKIP_FUSE=1 does without) and root, to become other users.

use crate::program;

use std::fs;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use program::{Mounted, Scene, Start as _, as_nobody, can_be_root, can_mount};
use quayfs_fs::{Caller, Fs, SetAttr, SetXattr};
use quayfs_layout::Ino;
use quayfs_layout::inode::{ROOT, S_IFDIR, S_IFLNK, S_IFREG};
use quayfs_oracle::{Media, Shape, options};
use quayfs_pmem::Backend;
use quayfs_store::error::FsError;
use rustix::fs::XattrFlags;
use rustix::io::Errno;

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";
const ME: Caller = Caller {
    uid: 0,
    gid: 0,
    umask: 0o27,
};

/// A list: owner, users, group, mask, all others.
fn list(owner: u16, users: &[(u32, u16)], group: u16, mask: Option<u16>, other: u16) -> Vec<u8> {
    let mut out = vec![2, 0, 0, 0];
    let mut put = |tag: u16, may: u16, id: u32| {
        out.extend(tag.to_le_bytes());
        out.extend(may.to_le_bytes());
        out.extend(id.to_le_bytes());
    };
    put(0x01, owner, u32::MAX);
    users.iter().for_each(|(id, may)| put(0x02, *may, *id));
    put(0x04, group, u32::MAX);
    mask.into_iter().for_each(|may| put(0x10, may, u32::MAX));
    put(0x20, other, u32::MAX);
    out
}

fn volume() -> Media {
    Media::new(&Shape::TINY, Backend::Dax)
}

fn mode(fs: &Fs, ino: Ino) -> u32 {
    fs.getattr(ino).expect("getattr").inode.mode
}

fn chmod(fs: &Fs, ino: Ino, mode: u32) {
    let set = SetAttr {
        mode: Some(mode),
        ..SetAttr::default()
    };
    fs.setattr(ino, &set, false).expect("chmod");
}

fn set(fs: &Fs, ino: Ino, name: &str, value: &[u8]) -> Result<(), FsError> {
    fs.setxattr(ino, name.as_bytes(), value, SetXattr::Any)
}

fn get(fs: &Fs, ino: Ino, name: &str) -> Result<Vec<u8>, FsError> {
    fs.getxattr(ino, name.as_bytes())
}

fn make(fs: &Fs, dir: Ino, name: &str, mode: u32) -> Ino {
    let name = name.as_bytes();
    match mode & 0o170_000 {
        S_IFDIR => fs.mkdir(ME, dir, name, mode),
        S_IFLNK => fs.symlink(ME, dir, name, b"target"),
        _ => fs.mknod(ME, dir, name, mode, 0),
    }
    .expect("created")
    .ino
}

#[test]
fn list_and_permission_bits_change_together() {
    let media = volume();
    let fs = media.mount_quiet(&options("noatime"));
    let f = make(&fs, ROOT, "f", S_IFREG | 0o6777);
    assert_eq!(mode(&fs, f), S_IFREG | 0o6750, "the umask");
    let some = list(6, &[(7, 7), (8, 1)], 4, Some(3), 1);
    set(&fs, f, ACCESS, &some).unwrap();
    assert_eq!(mode(&fs, f), S_IFREG | 0o6631);
    assert_eq!(get(&fs, f, ACCESS), Ok(some.clone()));
    chmod(&fs, f, 0o2750);
    let changed = list(7, &[(7, 7), (8, 1)], 4, Some(5), 0);
    assert_eq!(get(&fs, f, ACCESS), Ok(changed.clone()));
    // What the caller's group has to do with it, the kernel says.
    let name = ACCESS.as_bytes();
    fs.setxattr_by(f, name, &some, SetXattr::Replace, true)
        .unwrap();
    assert_eq!(mode(&fs, f), S_IFREG | 0o631);
    assert_eq!(
        fs.setxattr(f, name, &some, SetXattr::Create),
        Err(FsError::Exists)
    );
    // Bits that say it all: nothing is stored, and what was is gone.
    set(&fs, f, ACCESS, &list(6, &[], 2, None, 4)).unwrap();
    assert_eq!(mode(&fs, f), S_IFREG | 0o624);
    assert_eq!(get(&fs, f, ACCESS), Err(FsError::NoAttr));
    assert_eq!(fs.removexattr(f, name), Ok(()));
    set(&fs, f, ACCESS, &changed).unwrap();
    fs.removexattr(f, name).unwrap();
    assert_eq!(mode(&fs, f), S_IFREG | 0o750, "the mask stays");
}

#[test]
fn files_without_a_name_inherit_as_others_do() {
    let media = volume();
    let fs = media.mount_quiet(&options("noatime"));
    let dir = make(&fs, ROOT, "d", S_IFDIR | 0o755);
    let plain = fs.tmpfile(ME, dir, 0o666).expect("tmpfile").ino;
    assert_eq!(mode(&fs, plain), S_IFREG | 0o640, "the umask");
    set(&fs, dir, DEFAULT, &list(7, &[(7, 6)], 5, Some(7), 4)).unwrap();
    let listed = fs.tmpfile(ME, dir, 0o666).expect("tmpfile").ino;
    let inherited = list(6, &[(7, 6)], 5, Some(6), 4);
    assert_eq!(mode(&fs, listed), S_IFREG | 0o664);
    assert_eq!(get(&fs, listed, ACCESS), Ok(inherited.clone()));
    fs.link(listed, dir, b"named").expect("link");
    fs.forget(plain, 1);
    fs.shutdown().expect("unmount");
    media.fsck().expect("fsck");
    let fs = media.mount_quiet(&options("noatime"));
    let named = fs.lookup(dir, b"named").expect("kept").ino;
    assert_eq!(get(&fs, named, ACCESS), Ok(inherited));
}

#[test]
fn what_is_refused_changes_nothing() {
    let media = volume();
    let fs = media.mount_quiet(&options("noatime"));
    let f = make(&fs, ROOT, "f", S_IFREG | 0o644);
    let l = make(&fs, ROOT, "l", S_IFLNK);
    let some = list(7, &[(7, 7)], 7, Some(7), 7);
    let long: Vec<_> = (0..600).map(|id| (id, 7)).collect();
    let mut old = some.clone();
    old[0] = 1;
    for (ino, name, value, error) in [
        (f, DEFAULT, &some, FsError::Access),
        (l, ACCESS, &some, FsError::NotSupported),
        (l, DEFAULT, &some, FsError::NotSupported),
        (f, ACCESS, &old, FsError::NotSupported),
        (f, ACCESS, &list(7, &[(7, 7)], 7, None, 7), FsError::Invalid),
        (f, ACCESS, &list(7, &[], 8, None, 7), FsError::Invalid),
        (f, ACCESS, &Vec::new(), FsError::Invalid),
        (f, ACCESS, &list(7, &long, 7, Some(7), 7), FsError::TooLarge),
        (f, "system.other", &some, FsError::NotSupported),
    ] {
        assert_eq!(set(&fs, ino, name, value), Err(error), "{name}");
    }
    assert_eq!(mode(&fs, f), S_IFREG | 0o640);
    assert_eq!(fs.listxattr(f), Ok(Vec::new()));
    let other = b"system.other";
    assert_eq!(fs.removexattr(f, other), Err(FsError::NotSupported));
    assert_eq!(fs.getxattr(f, other), Err(FsError::NotSupported));
}

/// A user who may write to a directory may give it attributes, but not so many that its owner could set no list any
/// more, or that a program that labels files could not label it.
#[test]
fn others_leave_room_for_lists() {
    let shape = Shape {
        lane: 1 << 20,
        ..Shape::SMALL
    };
    let media = Media::new(&shape, Backend::Dax);
    let fs = media.mount_quiet(&options("noatime"));
    let dir = make(&fs, ROOT, "d", S_IFDIR | 0o777);
    let fill = |prefix: &str| {
        let (mut n, mut len) = (0, 40_000);
        while len > 0 {
            match set(&fs, dir, &format!("{prefix}{n}"), &vec![1; len]) {
                Ok(()) => n += 1,
                Err(FsError::NoSpace) => len /= 2,
                Err(e) => panic!("{e}"),
            }
        }
        assert!(n > 0, "{prefix}");
    };
    fill("user.");
    set(&fs, dir, "security.label", &[2; 2000]).unwrap();
    fill("trusted.");
    let users: Vec<_> = (0..507).map(|id| (id, 6)).collect();
    let long = list(7, &users, 5, Some(7), 4);
    for name in [ACCESS, DEFAULT] {
        set(&fs, dir, name, &long).unwrap();
        assert_eq!(get(&fs, dir, name), Ok(long.clone()));
    }
    // What is there can be replaced, and what is taken away can be set again.
    set(&fs, dir, "user.0", &[3; 40_000]).unwrap();
    assert_eq!(set(&fs, dir, "user.0", &[3; 40_100]), Err(FsError::NoSpace));
    fs.shutdown().expect("unmount");
    media.fsck().expect("fsck");
}

/// A list of three pages behind other attributes follows `chmod` where it is, also when there is no
/// page left to write anything anew.
#[test]
fn a_long_list_follows_in_place() {
    let media = volume();
    let fs = media.mount_quiet(&options("noatime"));
    let f = make(&fs, ROOT, "f", S_IFREG | 0o644);
    let users: Vec<_> = (0..507).map(|id| (id, 6)).collect();
    set(&fs, f, "user.first", &[1; 2000]).unwrap();
    set(&fs, f, ACCESS, &list(7, &users, 5, Some(7), 4)).unwrap();
    set(&fs, f, "user.last", &[2; 2000]).unwrap();
    let before = fs.getattr(f).unwrap().inode;
    let mut taken = 0;
    let full = loop {
        let name = format!("{taken}");
        let made = fs.mknod(ME, ROOT, name.as_bytes(), S_IFREG, 0);
        if let Err(e) = made.and_then(|a| set(&fs, a.ino, "user.x", &[3; 12_000])) {
            break e;
        }
        taken += 1;
    };
    assert_eq!(full, FsError::NoSpace);
    chmod(&fs, f, 0o612);
    let after = fs.getattr(f).unwrap().inode;
    assert_eq!((after.xattr, after.blocks), (before.xattr, before.blocks));
    assert!(taken > 0);
    fs.abandon();
    drop(fs);
    let fs = media.mount_quiet(&options("noatime"));
    assert_eq!(mode(&fs, f), S_IFREG | 0o612);
    assert_eq!(get(&fs, f, ACCESS), Ok(list(6, &users, 5, Some(1), 2)));
    assert_eq!(get(&fs, f, "user.first"), Ok(vec![1; 2000]));
    assert_eq!(get(&fs, f, "user.last"), Ok(vec![2; 2000]));
}

#[test]
fn new_inodes_get_the_lists_of_their_directory() {
    let media = volume();
    let fs = media.mount_quiet(&options("noatime"));
    let d = make(&fs, ROOT, "d", S_IFDIR | 0o2777);
    let default = list(7, &[(7, 7)], 5, Some(7), 5);
    set(&fs, d, DEFAULT, &default).unwrap();
    assert_eq!(mode(&fs, d), S_IFDIR | 0o2750, "its own bits stay");
    let f = make(&fs, d, "f", S_IFREG | 0o666);
    assert_eq!(mode(&fs, f), S_IFREG | 0o664, "no umask");
    assert_eq!(get(&fs, f, ACCESS), Ok(list(6, &[(7, 7)], 5, Some(6), 4)));
    assert_eq!(get(&fs, f, DEFAULT), Err(FsError::NoAttr));
    let fifo = make(&fs, d, "fifo", 0o010_600);
    assert_eq!(
        get(&fs, fifo, ACCESS),
        Ok(list(6, &[(7, 7)], 5, Some(0), 0))
    );
    let below = make(&fs, d, "below", S_IFDIR | 0o750);
    assert_eq!(mode(&fs, below), S_IFDIR | 0o2750);
    assert_eq!(
        get(&fs, below, ACCESS),
        Ok(list(7, &[(7, 7)], 5, Some(5), 0))
    );
    assert_eq!(get(&fs, below, DEFAULT), Ok(default));
    let l = make(&fs, below, "l", S_IFLNK);
    assert_eq!(mode(&fs, l), S_IFLNK | 0o777);
    assert_eq!(fs.listxattr(l), Ok(Vec::new()));
    // Three entries bound what is created, and leave no list behind.
    set(&fs, below, DEFAULT, &list(6, &[], 0, None, 4)).unwrap();
    let g = make(&fs, below, "g", S_IFREG | 0o775);
    assert_eq!(mode(&fs, g), S_IFREG | 0o604);
    assert_eq!(fs.listxattr(g), Ok(Vec::new()));
    fs.removexattr(below, DEFAULT.as_bytes()).unwrap();
    let h = make(&fs, below, "h", S_IFREG | 0o666);
    assert_eq!(mode(&fs, h), S_IFREG | 0o640);
}

#[test]
fn a_mount_without_lists_keeps_them_true() {
    let media = volume();
    let fs = media.mount_quiet(&options("noatime"));
    let d = make(&fs, ROOT, "d", S_IFDIR | 0o700);
    set(&fs, d, ACCESS, &list(7, &[(7, 7)], 5, Some(5), 0)).unwrap();
    set(&fs, d, DEFAULT, &list(7, &[(7, 7)], 5, Some(5), 0)).unwrap();
    set(&fs, d, "user.x", b"x").unwrap();
    fs.abandon();
    drop(fs);
    let fs = media.mount_quiet(&options("noatime,noacl"));
    assert_eq!(get(&fs, d, ACCESS), Err(FsError::NotSupported));
    assert_eq!(set(&fs, d, ACCESS, b""), Err(FsError::NotSupported));
    let name = DEFAULT.as_bytes();
    assert_eq!(fs.removexattr(d, name), Err(FsError::NotSupported));
    assert_eq!(fs.listxattr(d), Ok(b"user.x\0".to_vec()));
    let f = make(&fs, d, "f", S_IFREG | 0o666);
    chmod(&fs, d, 0o711);
    fs.abandon();
    drop(fs);
    let fs = media.mount_quiet(&options("noatime"));
    assert_eq!(mode(&fs, f), S_IFREG | 0o640);
    assert_eq!(fs.listxattr(f), Ok(Vec::new()));
    assert_eq!(get(&fs, d, ACCESS), Ok(list(7, &[(7, 7)], 5, Some(1), 1)));
}

/// Runs a command as a user without privileges; whether it succeeds.
fn stranger(script: &str, at: &Path) -> bool {
    let status = Command::new("sh")
        .args(["-c", script])
        .current_dir(at)
        .uid(65534)
        .gid(65534)
        .capture()
        .unwrap()
        .status;
    status.success()
}

fn xattr(path: &Path, name: &str) -> Result<Vec<u8>, Errno> {
    let mut value = vec![0; 8192];
    let n = rustix::fs::lgetxattr(path, name, &mut value[..])?;
    value.truncate(n);
    Ok(value)
}

fn set_xattr(path: &Path, name: &str, value: &[u8]) -> Result<(), Errno> {
    rustix::fs::lsetxattr(path, name, value, XattrFlags::empty())
}

#[test]
fn the_kernel_checks_lists() {
    if !can_be_root() {
        return;
    }
    let m = Mounted::on(Scene::open_to_all(), "allow_other,durability=op");
    let mnt = m.mnt();
    let f = mnt.join("f");
    fs::write(&f, "secret").unwrap();
    fs::set_permissions(&f, fs::Permissions::from_mode(0o640)).unwrap();
    assert!(!stranger("cat f", &mnt));
    let readers = list(6, &[(65534, 6)], 0, Some(4), 0);
    set_xattr(&f, ACCESS, &readers).unwrap();
    assert_eq!(f.metadata().unwrap().mode() & 0o7777, 0o640);
    assert!(stranger("cat f", &mnt));
    assert!(!stranger("echo >> f", &mnt), "beyond the mask");
    fs::set_permissions(&f, fs::Permissions::from_mode(0o660)).unwrap();
    assert!(stranger("echo >> f", &mnt), "chmod has changed the mask");
    assert_eq!(xattr(&f, ACCESS), Ok(list(6, &[(65534, 6)], 0, Some(6), 0)));
    rustix::fs::lremovexattr(&f, ACCESS).unwrap();
    assert!(!stranger("cat f", &mnt));
    assert_eq!(xattr(&f, ACCESS), Err(Errno::NODATA));
    rustix::fs::lremovexattr(&f, ACCESS).unwrap();
    assert_eq!(set_xattr(&f, DEFAULT, &readers), Err(Errno::ACCESS));
    assert_eq!(set_xattr(&f, ACCESS, &readers[..30]), Err(Errno::INVAL));

    // Below a default list no umask counts; elsewhere it does, for everything.
    let d = mnt.join("d");
    fs::DirBuilder::new().mode(0o777).create(&d).unwrap();
    fs::set_permissions(&d, fs::Permissions::from_mode(0o777)).unwrap();
    let bits = |name: &str| d.join(name).symlink_metadata().unwrap().mode() & 0o7777;
    let script = |n: u8| format!("umask 027; : > f{n}; mkdir d{n}; mkfifo p{n}; ln -s x l{n}");
    assert!(stranger(&script(1), &d));
    assert_eq!(
        ["f1", "d1", "p1", "l1"].map(bits),
        [0o640, 0o750, 0o640, 0o777]
    );
    let default = list(7, &[(0, 7)], 5, Some(7), 5);
    set_xattr(&d, DEFAULT, &default).unwrap();
    assert!(stranger(&script(2), &d));
    assert_eq!(
        ["f2", "d2", "p2", "l2"].map(bits),
        [0o664, 0o775, 0o664, 0o777]
    );
    assert_eq!(xattr(&d.join("d2"), DEFAULT), Ok(default.clone()));
    let made = list(6, &[(0, 7)], 5, Some(6), 4);
    assert_eq!(xattr(&d.join("f2"), ACCESS), Ok(made.clone()));

    // The owner is not in the group of this file: a list that the owner sets takes the bit away.
    let g = d.join("f1");
    std::os::unix::fs::chown(&g, None, Some(0)).unwrap();
    fs::set_permissions(&g, fs::Permissions::from_mode(0o2750)).unwrap();
    set_xattr(&g, ACCESS, &readers).unwrap();
    assert_eq!(bits("f1"), 0o2640);
    as_nobody(|| set_xattr(&g, ACCESS, &readers)).unwrap();
    assert_eq!(bits("f1"), 0o640);

    m.umount();
    m.fsck();
    m.mount("allow_other,durability=op");
    assert_eq!(xattr(&d.join("f2"), ACCESS), Ok(made));
    m.umount();
    // Without lists: nothing to set, nothing to see, and the umask is back.
    m.mount("allow_other,durability=op,noacl");
    assert_eq!(xattr(&d, DEFAULT), Err(Errno::OPNOTSUPP));
    assert_eq!(set_xattr(&d, DEFAULT, &default), Err(Errno::OPNOTSUPP));
    assert!(stranger(&script(3), &d));
    assert_eq!(
        ["f3", "d3", "p3", "l3"].map(bits),
        [0o640, 0o750, 0o640, 0o777]
    );
    m.umount();
    m.fsck();
}

/// Where the kernel checks no permissions, lists would mean nothing.
#[test]
fn the_owner_of_a_mount_has_no_lists() {
    if !can_mount() {
        return;
    }
    let m = Mounted::on(Scene::open_to_all(), "permissions=owner,durability=op");
    let f = m.mnt().join("f");
    fs::write(&f, "").unwrap();
    let some = list(6, &[(1, 6)], 0, Some(4), 0);
    assert_eq!(set_xattr(&f, ACCESS, &some), Err(Errno::OPNOTSUPP));
    m.umount();
    m.fsck();
}
