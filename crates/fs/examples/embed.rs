//! A file system inside a program, without a kernel: made, mounted, used, left behind as by a crash, recovered, ended.
//!
//! The volume is one file in a temporary directory; `quayfs mount` would show the same tree.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use quayfs_fs::volume::{Access, Volume};
use quayfs_fs::{Caller, Fs, FsError, Ino, MountOptions, RenameFlags, S_IFREG};
use quayfs_fsck::{FsckOptions, check_volume};
use quayfs_mkfs::{MkfsOptions, mkfs};

/// Owner of what is made. The library checks no permission bits, its caller does.
const ME: Caller = Caller {
    uid: 1000,
    gid: 1000,
    umask: 0o022,
};

fn open(path: &Path) -> Result<Volume, Box<dyn Error>> {
    // A volume that another process has mounted is waited for, for so long.
    Ok(Volume::open(path, Access::ReadWrite, Duration::ZERO)?)
}

fn mount(path: &Path) -> Result<Arc<Fs>, Box<dyn Error>> {
    let options = MountOptions::parse(&["noatime,commit=300"])?;
    Ok(Fs::mount(open(path)?, &options)?)
}

/// The inode at the end of a path.
fn walk(fs: &Fs, path: &str) -> Result<Ino, FsError> {
    let mut at = fs.root();
    for name in path.split('/') {
        let found = fs.lookup(at, name.as_bytes())?;
        // Each lookup counts: what has no name any more stays until it is forgotten as often.
        fs.forget(found.ino, 1);
        at = found.ino;
    }
    Ok(at)
}

fn names(fs: &Fs, dir: Ino) -> Result<Vec<String>, FsError> {
    let mut names = Vec::new();
    fs.readdir(dir, 0, |entry| {
        names.push(String::from_utf8_lossy(&entry.name).into_owned());
        true
    })?;
    names.sort();
    Ok(names)
}

/// Makes a directory with two files, of which one is synced before the program "dies".
fn first_life(path: &Path) -> Result<(), Box<dyn Error>> {
    let fs = mount(path)?;
    let dir = fs.mkdir(ME, fs.root(), b"letters", 0o755)?.ino;
    let file = fs.mknod(ME, dir, b"draft", S_IFREG | 0o644, 0)?;
    assert_eq!((file.inode.uid, file.inode.nlink), (ME.uid, 1));
    fs.write(file.ino, 0, b"Dear all,\n", false)?;
    fs.fsync(file.ino)?;
    assert_eq!(fs.read(file.ino, 0, 4096)?, b"Dear all,\n");
    // Durable when it returns if the volume is in memory or on persistent memory, on a disk with the next fsync.
    fs.mknod(ME, dir, b"unsent", S_IFREG | 0o600, 0)?;
    let synced = fs.sync_is_free();
    println!(
        "first life: {:?}, no sync needed: {synced}",
        names(&fs, dir)?
    );
    fs.abandon();
    Ok(())
}

/// Finds what was synced, and goes on.
fn second_life(path: &Path) -> Result<(), Box<dyn Error>> {
    let fs = mount(path)?;
    let (dir, file) = (walk(&fs, "letters")?, walk(&fs, "letters/draft")?);
    println!("after death: {:?}", names(&fs, dir)?);
    let end = fs.getattr(file)?.inode.size;
    fs.write(file, end, b"we have moved.\n", false)?;
    let (from, to) = ((dir, &b"draft"[..]), (fs.root(), &b"letter"[..]));
    fs.rename(from, to, RenameFlags::default())?;
    assert_eq!(walk(&fs, "letters/draft"), Err(FsError::NoEntry));
    // Everything goes to its place, and the volume is marked clean.
    fs.shutdown()?;
    Ok(())
}

fn third_life(path: &Path) -> Result<(), Box<dyn Error>> {
    let report = check_volume(open(path)?, &FsckOptions { check_data: true })?;
    assert!(report.is_clean(), "{report}");
    let fs = mount(path)?;
    let letter = fs.read(walk(&fs, "letter")?, 0, 4096)?;
    assert_eq!(letter, b"Dear all,\nwe have moved.\n");
    println!("checked, and mounted again: {:?}", str::from_utf8(&letter)?);
    fs.shutdown()?;
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("volume");
    let options = MkfsOptions {
        size: Some(48 << 20),
        ..MkfsOptions::default()
    };
    let made = mkfs(&path, &options)?;
    println!("volume {} on backend `{}`", made.uuid, made.backend);
    first_life(&path)?;
    second_life(&path)?;
    third_life(&path)
}

#[test]
fn it_runs() -> Result<(), Box<dyn Error>> {
    main()
}
