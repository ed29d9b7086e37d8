//! A volume with one of everything on it, and a map that says of every byte of it what it is.

pub mod harm;
pub mod map;
pub mod shown;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use quayfs_background::checkpoint;
use quayfs_background::digest;
use quayfs_blockdev::BlockDevice;
use quayfs_crashsim::SimDevice;
use quayfs_fs::volume::{Access, Volume};
use quayfs_fs::{Caller, Fs, SetXattr, extents};
use quayfs_layout::inode::{ROOT, S_IFREG};
use quayfs_layout::l2p::{COMMIT_AT, SPARE_AT, decode_commit, encode_commit};
use quayfs_layout::node::INODES_PER_PAGE;
use quayfs_layout::{BLOCK, Ino, Lbn};
use quayfs_mkfs::Identity;
use quayfs_options::MountOptions;
use quayfs_pmem::{Backend, Region};
use quayfs_ppt::BlockState;

use crate::{Media, Shape, options};

/// Smaller than what the other tests use: every byte costs a check.
pub const SHAPE: Shape = Shape {
    blocks: 384,
    spare: 16,
    buffers: 2,
    slots: 32,
    lane: 320 << 10,
    l2p_entries: 64,
    nodes: 112,
    mirror: 255,
};

/// In which state the volume was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// By a dead daemon, `durability=op`.
    Op,
    /// By a dead daemon, `durability=commit`, everything committed.
    Commit,
    /// In the middle of the transaction of a round.
    Round,
    /// Unmounted.
    Clean,
}

impl Left {
    /// All of them and how they are written.
    pub const ALL: [(&str, Self); 4] = [
        ("op", Self::Op),
        ("commit", Self::Commit),
        ("round", Self::Round),
        ("clean", Self::Clean),
    ];

    /// The one of this name.
    pub fn named(name: &str) -> Option<Self> {
        let found = Self::ALL.iter().find(|(n, _)| *n == name);
        found.map(|(_, left)| *left)
    }

    /// How it is written.
    pub fn name(self) -> &'static str {
        let found = Self::ALL.iter().find(|(_, left)| *left == self);
        found.map_or("", |(name, _)| name)
    }
}

/// Both media as bytes. Copies are cheap enough to damage one by one.
#[derive(Clone)]
pub struct Image {
    pub pmem: Vec<u8>,
    pub blocks: BTreeMap<u64, Vec<u8>>,
    pub device_blocks: u64,
    pub options: MountOptions,
}

impl Image {
    /// What is on these media now.
    pub fn of(media: &Media, options: &MountOptions) -> Self {
        let mut blocks = BTreeMap::new();
        for block in 0..media.device.blocks() {
            let mut buf = vec![0; BLOCK];
            media.device.read(block, &mut buf).expect("read");
            if buf.iter().any(|b| *b != 0) {
                blocks.insert(block, buf);
            }
        }
        Self {
            pmem: media.region.read_vec(0, media.region.len()),
            blocks,
            device_blocks: media.device.blocks(),
            options: options.clone(),
        }
    }

    /// A volume of its own with this content.
    pub fn media(&self) -> Media {
        let device = SimDevice::unrecorded(self.device_blocks);
        for (block, bytes) in &self.blocks {
            device.write(*block, bytes).expect("write");
        }
        Media {
            region: Arc::new(Region::from_image(&self.pmem, None, Backend::Volatile)),
            device: Arc::new(device),
        }
    }

    /// A volume with one of everything on it.
    pub fn sample(left: Left) -> Self {
        Self::sample_as(left, &Identity::random())
    }

    /// The same with a given identity, so that it comes out the same each time but for the clock.
    pub fn sample_as(left: Left, identity: &Identity) -> Self {
        let text = match left {
            Left::Commit => "noatime,durability=commit",
            _ => "noatime",
        };
        let options = options(text);
        let media = Media::new_as(&SHAPE, Backend::Volatile, identity);
        let fs = media.mount_quiet(&options);
        let orphan = before(&fs);
        finish_background(&fs);
        match left {
            Left::Clean => {
                fs.forget(orphan, 1);
                fs.shutdown().expect("shutdown");
            }
            Left::Op | Left::Commit => {
                after(&fs);
                fs.sync_all().expect("sync");
                fs.abandon();
            }
            Left::Round => {
                after(&fs);
                fs.sync_all().expect("sync");
                digest::digest_all(&fs.e).expect("digest");
                checkpoint::round(&fs.e).expect("round");
                fs.abandon();
                reopen_transaction(&media, &fs);
            }
        }
        drop(fs);
        Self::of(&media, &options)
    }
}

/// The state between edges B and C of the last transaction: everything but its commit word.
fn reopen_transaction(media: &Media, fs: &Fs) {
    let g = fs.e.config.geometry;
    let salt = fs.e.config.salt();
    let word = media.region.load_u64(g.l2p_log_off + COMMIT_AT);
    let last = decode_commit(word, salt).expect("commit word");
    let word = encode_commit(last - 1, salt);
    for at in [COMMIT_AT, SPARE_AT] {
        media.region.store_u64(g.l2p_log_off + at, word);
    }
}

const ME: Caller = Caller {
    uid: 0,
    gid: 0,
    umask: 0,
};

fn finish_background(fs: &Arc<Fs>) {
    fs.sync_all().expect("sync");
    digest::digest_all(&fs.e).expect("digest");
    while checkpoint::round(&fs.e).expect("round").slots > 0 {}
}

fn file(fs: &Fs, dir: Ino, name: &str) -> Ino {
    let attr = fs.mknod(ME, dir, name.as_bytes(), S_IFREG | 0o644, 0);
    attr.unwrap_or_else(|e| panic!("{name}: {e}")).ino
}

/// Content that tells file and block.
pub fn content(seed: u8, len: usize) -> Vec<u8> {
    (0..len)
        .map(|i| (i / 7) as u8 ^ (i >> 9) as u8 ^ seed)
        .collect()
}

/// What is digested and on the data device. Returns an orphan that is still open.
fn before(fs: &Fs) -> Ino {
    let dir = fs.mkdir(ME, ROOT, b"dir", 0o755).expect("mkdir").ino;
    let sub = fs.mkdir(ME, dir, b"sub", 0o750).expect("mkdir").ino;
    let leaf = file(fs, sub, "leaf");
    fs.write(leaf, 0, &content(1, 3 * BLOCK), false)
        .expect("write");
    let small = file(fs, ROOT, "small");
    fs.write(small, 0, &content(2, 5000), false).expect("write");
    let big = file(fs, ROOT, "big");
    for i in 0..10 {
        fs.write(big, i * 8192, &content(10 + i as u8, BLOCK), false)
            .expect("write");
    }
    let linked = file(fs, dir, "linked");
    fs.write(linked, 0, &content(3, 300), false).expect("write");
    // More than two leaves of names.
    for i in 0..40 {
        let name = format!("{i:02}-{}", "n".repeat(190));
        fs.link(linked, dir, name.as_bytes()).expect("link");
    }
    fs.symlink(ME, ROOT, b"short", b"dir/linked")
        .expect("symlink");
    fs.symlink(ME, ROOT, b"long", &[b'x'; 200])
        .expect("symlink");
    let attr = file(fs, ROOT, "attr");
    for (name, len) in [("user.a", 3000), ("user.b", 2000)] {
        fs.setxattr(attr, name.as_bytes(), &content(4, len), SetXattr::Any)
            .expect("setxattr");
    }
    fs.mknod(ME, dir, b"fifo", 0o010_644, 0).expect("mknod");
    let orphan = file(fs, ROOT, "orphan");
    fs.write(orphan, 0, &content(5, 2 * BLOCK), false)
        .expect("write");
    fs.unlink(ROOT, b"orphan").expect("unlink");
    orphan
}

/// What is staged and digested, then what is only in records.
fn after(fs: &Arc<Fs>) {
    let at = |dir, name: &[u8]| fs.lookup(dir, name).expect("lookup").ino;
    let (small, big) = (at(ROOT, b"small"), at(ROOT, b"big"));
    fs.write(small, 4096, &content(6, 4096), false)
        .expect("write");
    fs.write(big, 8192, &content(7, BLOCK), false)
        .expect("write");
    fs.sync_all().expect("sync");
    digest::digest_all(&fs.e).expect("digest");
    for (i, name) in ["new-1", "new-2", "new-3"].iter().enumerate() {
        let ino = file(fs, ROOT, name);
        fs.write(ino, 0, &content(20 + i as u8, BLOCK + 100), false)
            .expect("write");
    }
    fs.write(big, 0, &content(8, BLOCK), false).expect("write");
    fs.rename(
        (ROOT, b"new-3"),
        (at(ROOT, b"dir"), b"moved"),
        Default::default(),
    )
    .expect("rename");
    fs.setxattr(small, b"user.c", b"value", SetXattr::Any)
        .expect("setxattr");
}

/// Opens a volume for writing.
pub fn volume(media: &Media) -> Volume {
    let (region, device) = (Arc::clone(&media.region), Arc::clone(&media.device));
    Volume::from_parts(region, device, Access::ReadWrite).expect("volume")
}

/// Where the newest version of a block lies.
#[derive(Clone, Copy, Debug)]
pub enum Place {
    /// At this offset of the region.
    Slot(u64),
    /// At this block of the data device.
    Device(u64),
}

/// A block of a file.
#[derive(Clone, Copy, Debug)]
pub struct FileBlock {
    pub ino: Ino,
    pub block: u64,
    pub place: Place,
}

/// What is mapped: the inode, file blocks of it, and the LBN of the first of them.
fn runs(fs: &Fs) -> Vec<(Ino, Range<u64>, Lbn)> {
    let mut out = Vec::new();
    for ino in 1..fs.e.config.geometry.inodes().min(20 * INODES_PER_PAGE) {
        let Ok(handle) = fs.e.inodes.get(&fs.e.nodes, ino) else {
            continue;
        };
        if handle.image().is_file() {
            extents::ensure(&fs.e, &handle).expect("extents");
            let of = extents::with(&handle, |x| {
                out.extend(x.iter().map(|(r, lbn)| (ino, r, lbn)));
            });
            of.expect("extents");
        }
    }
    out
}

/// All blocks of all files that have content.
pub fn blocks(fs: &Fs) -> Vec<FileBlock> {
    let g = fs.e.config.geometry;
    let mut out = Vec::new();
    for (ino, r, first) in runs(fs) {
        for (block, lbn) in r.clone().zip(first..first + r.end - r.start) {
            let m = fs.e.ppt.lookup(lbn).expect("entry");
            let place = match fs.e.staged.get(lbn) {
                Some(slot) => {
                    let index = slot.pos % g.slots_per_buffer;
                    let n = u64::from(slot.buffer) * g.slots_per_buffer + index;
                    Place::Slot(g.slot_data_off + n * BLOCK as u64)
                }
                None if m.state == BlockState::Written => Place::Device(g.data_start + m.pbn),
                None => continue,
            };
            out.push(FileBlock { ino, block, place });
        }
    }
    out
}
