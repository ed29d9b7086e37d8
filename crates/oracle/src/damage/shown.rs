//! What a volume shows: opened whatever is damaged, and read as far as it can be.

use std::collections::BTreeMap;
use std::sync::Arc;

use quayfs_fs::Fs;
use quayfs_fs::volume::{Access, Volume};
use quayfs_fsck::FsckOptions;
use quayfs_fsck::repair::{RepairReport, belongs, repair_volume};
use quayfs_layout::Ino;
use quayfs_layout::inode::ROOT;

use crate::Media;

/// Opens a volume as `fsck` does.
pub fn open(media: &Media) -> Volume {
    let (region, device) = (Arc::clone(&media.region), Arc::clone(&media.device));
    Volume::from_parts_vouched(region, device, Access::ReadWrite, belongs).expect("open")
}

/// Repairs a volume.
pub fn repair(media: &Media, check_data: bool) -> RepairReport {
    let options = FsckOptions { check_data };
    repair_volume(&mut open(media), &options, &Default::default()).expect("repair")
}

/// Checks a volume.
pub fn check(media: &Media, check_data: bool) -> quayfs_fsck::FsckReport {
    quayfs_fsck::check_volume(open(media), &FsckOptions { check_data }).expect("check")
}

/// What a path shows. A file that cannot be read has no content.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Item {
    pub ino: Ino,
    pub mode: u32,
    pub nlink: u32,
    pub owner: (u32, u32),
    pub size: u64,
    pub content: Option<Vec<u8>>,
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// What all paths show.
pub type Tree = BTreeMap<String, Item>;

/// Mounts a volume and reads all of it.
pub fn tree(media: &Media) -> Tree {
    let options = crate::options("noatime,errors=continue");
    let fs = Fs::mount_quiet(super::volume(media), &options).expect("mount");
    let tree = read(&fs).unwrap_or_else(|e| panic!("{e}"));
    fs.abandon();
    tree
}

/// Reads all of a volume; the first thing that cannot be read, other than a file's content, is the
/// error.
///
/// # Errors
/// The path, and why.
pub fn read(fs: &Fs) -> Result<Tree, String> {
    let mut tree = Tree::new();
    let mut todo = vec![(String::new(), ROOT)];
    while let Some((path, ino)) = todo.pop() {
        let item = item(fs, ino, |name, child| {
            todo.push((format!("{path}/{name}"), child));
        });
        let item = item.map_err(|e| format!("{path}: {e}"))?;
        tree.insert(if path.is_empty() { "/".into() } else { path }, item);
    }
    Ok(tree)
}

pub(crate) fn item(
    fs: &Fs,
    ino: Ino,
    mut child: impl FnMut(String, Ino),
) -> Result<Item, quayfs_store::error::FsError> {
    let i = fs.getattr(ino)?.inode;
    let content = match i.mode & 0o170_000 {
        0o100_000 => fs.read(ino, 0, i.size as usize).ok(),
        0o120_000 => Some(fs.readlink(ino)?),
        _ => Some(Vec::new()),
    };
    if i.is_dir() {
        fs.readdir(ino, 0, |e| {
            if e.name != b"." && e.name != b".." {
                child(String::from_utf8_lossy(&e.name).into_owned(), e.ino);
            }
            true
        })?;
    }
    let names = fs.listxattr(ino)?;
    let names = names.split(|b| *b == 0).filter(|n| !n.is_empty());
    let xattrs = names.map(|n| Ok((n.to_vec(), fs.getxattr(ino, n)?)));
    Ok(Item {
        ino,
        mode: i.mode,
        nlink: i.nlink,
        owner: (i.uid, i.gid),
        size: if i.is_dir() { 0 } else { i.size },
        content,
        xattrs: xattrs.collect::<Result<_, quayfs_store::error::FsError>>()?,
    })
}
