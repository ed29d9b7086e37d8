//! Volumes in ruins, their repair, and what must hold whatever was damaged.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use quayfs::fs::Fs;
use quayfs::fsck::repair::{Outcome, RepairReport, belongs, repair_volume};
use quayfs::fsck::{self, FsckOptions};
use quayfs::volume::{Access, Volume};
use quayfs_layout::inode::ROOT;
use quayfs_layout::jsb::WordKind;
use quayfs_layout::{BLOCK, Ino};
use quayfs_oracle::Media;

use crate::damage::map::{Map, Use};
use crate::damage::{self, Image};

pub const B: u64 = BLOCK as u64;

pub fn open(media: &Media) -> Volume {
    let (region, device) = (Arc::clone(&media.region), Arc::clone(&media.device));
    Volume::from_parts_vouched(region, device, Access::ReadWrite, belongs).expect("open")
}

pub fn repair(media: &Media, check_data: bool) -> RepairReport {
    let options = FsckOptions { check_data };
    repair_volume(&open(media), &options, &mut |_| {}).expect("repair")
}

pub fn check(media: &Media, check_data: bool) -> fsck::FsckReport {
    fsck::check_volume(open(media), &FsckOptions { check_data }).expect("check")
}

/// What a path shows. A file that cannot be read has no content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    pub ino: Ino,
    pub mode: u32,
    pub nlink: u32,
    pub owner: (u32, u32),
    pub size: u64,
    pub content: Option<Vec<u8>>,
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

pub type Tree = BTreeMap<String, Item>;

/// Mounts a volume and reads all of it.
pub fn tree(media: &Media) -> Tree {
    let options = quayfs_oracle::options("noatime,errors=continue");
    let fs = Fs::mount_quiet(damage::volume(media), &options).expect("mount");
    let tree = read(&fs);
    fs.abandon();
    tree
}

pub fn read(fs: &Fs) -> Tree {
    let mut tree = Tree::new();
    let mut todo = vec![(String::new(), ROOT)];
    while let Some((path, ino)) = todo.pop() {
        let i = fs
            .getattr(ino)
            .unwrap_or_else(|e| panic!("{path}: {e}"))
            .inode;
        let content = match i.mode & 0o170_000 {
            0o100_000 => fs.read(ino, 0, i.size as usize).ok(),
            0o120_000 => Some(fs.readlink(ino).expect("readlink")),
            _ => Some(Vec::new()),
        };
        if i.is_dir() {
            fs.readdir(ino, 0, |e| {
                if e.name != b"." && e.name != b".." {
                    let name = String::from_utf8_lossy(&e.name).into_owned();
                    todo.push((format!("{path}/{name}"), e.ino));
                }
                true
            })
            .unwrap_or_else(|e| panic!("{path}: {e}"));
        }
        let names = fs.listxattr(ino).expect("listxattr");
        let names = names.split(|b| *b == 0).filter(|n| !n.is_empty());
        let item = Item {
            ino,
            mode: i.mode,
            nlink: i.nlink,
            owner: (i.uid, i.gid),
            size: if i.is_dir() { 0 } else { i.size },
            content,
            xattrs: names
                .map(|n| (n.to_vec(), fs.getxattr(ino, n).expect("getxattr")))
                .collect(),
        };
        tree.insert(if path.is_empty() { "/".into() } else { path }, item);
    }
    tree
}

/// A piece of a volume and what becomes of it.
#[derive(Clone, Debug)]
pub struct Harm {
    pub what: Use,
    pub bytes: Range<u64>,
    pub how: How,
}

#[derive(Clone, Copy, Debug)]
pub enum How {
    Bit(u8),
    Zeros,
    Noise,
}

impl Harm {
    /// A copy of the image with this damage.
    pub fn done_to(&self, image: &Image) -> Image {
        let mut image = image.clone();
        let device = matches!(self.what, Use::DataHeader | Use::Data);
        for off in self.bytes.clone() {
            let byte = match device {
                true => {
                    let block = image.blocks.entry(off / B);
                    &mut block.or_insert_with(|| vec![0; BLOCK])[(off % B) as usize]
                }
                false => &mut image.pmem[off as usize],
            };
            match self.how {
                How::Bit(bit) => *byte ^= 1 << bit,
                How::Zeros => *byte = 0,
                How::Noise => *byte = (off.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 50) as u8,
            }
        }
        image
    }
}

/// Repairs a damaged volume and checks what must hold whatever was damaged. Returns what was done.
pub fn mended(image: &Image, harms: &[Harm], check_data: bool) -> (RepairReport, Media) {
    let mut damaged = image.clone();
    for h in harms {
        damaged = h.done_to(&damaged);
    }
    let media = damaged.media();
    let report = repair(&media, check_data);
    assert_ne!(report.outcome, Outcome::Left, "{harms:?}: {report}");
    let after = check(&media, check_data);
    assert!(
        after.is_clean() && after.skipped.is_empty(),
        "{harms:?}: {report}\n{after}"
    );
    // Once is enough.
    let before = Image::of(&media, &image.options);
    let again = repair(&media, check_data);
    assert_eq!(again.outcome, Outcome::Clean, "{harms:?}: {again}");
    assert!(again.done.is_empty());
    let now = Image::of(&media, &image.options);
    assert!(
        now.pmem == before.pmem && now.blocks == before.blocks,
        "{harms:?}: changed again"
    );
    (report, media)
}

/// What the operations of the sample touch whose records wait to be replayed. Of a record that cannot
/// be read any more, and of a slot without a header, nobody can say whose they were.
pub const IN_RECORDS: [&str; 8] = [
    "/",
    "/small",
    "/big",
    "/new-1",
    "/new-2",
    "/new-3",
    "/dir",
    "/dir/moved",
];

/// Structures of which nothing is left. Superblock words that nothing else tells are not among them.
pub fn ruins(image: &Image) -> Vec<Harm> {
    let map = Map::of(image);
    let g = map.config.geometry;
    let hopeless = |off: u64| {
        let words = [WordKind::Epoch, WordKind::Digested, WordKind::Retired];
        words.iter().any(|w| g.jsb_off + w.offset() == off)
    };
    let mut out = Vec::new();
    for a in map.pmem.iter().chain(&map.device) {
        let size = match a.what {
            Use::Config | Use::NodePage | Use::SlotData | Use::DataHeader => B,
            Use::Superblock | Use::L2pEntry | Use::Nat | Use::Committed => 8,
            Use::L2pLog => (a.bytes.end - a.bytes.start).min(64),
            Use::SlotHeader | Use::Record => a.bytes.end - a.bytes.start,
            Use::LastRecord | Use::L2pChecksum | Use::Data | Use::Dead(_) => continue,
        };
        for start in a.bytes.clone().step_by(size as usize) {
            if a.what == Use::Superblock && hopeless(start) {
                continue;
            }
            for how in [How::Zeros, How::Noise] {
                out.push(Harm {
                    what: a.what,
                    bytes: start..(start + size).min(a.bytes.end),
                    how,
                });
            }
        }
    }
    out
}

pub fn unchanged(media: &Media, before: &Image) -> bool {
    let now = Image::of(media, &before.options);
    now.pmem == before.pmem && now.blocks == before.blocks
}
