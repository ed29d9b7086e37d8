//! A volume in memory, and the means to damage it in ways that no checksum shows.

use std::sync::{Arc, OnceLock};

use quayfs_blockdev::BlockDevice;
use quayfs_crashsim::SimDevice;
use quayfs_fs::volume::{Access, Volume};
use quayfs_fs::{Caller, FallocMode, Fs, SetXattr};
use quayfs_layout::config::ConfigTable;
use quayfs_layout::geometry::Geometry;
use quayfs_layout::inode::{self, Inode, ROOT, S_IFREG};
use quayfs_layout::node::{self, BITS_PER_PAGE, NodeKind};
use quayfs_layout::{BLOCK, Ino};
use quayfs_options::MountOptions;
use quayfs_pmem::{Backend, Region};
use quayfs_store::ns::node::{PageBytes, zero_page};

use crate::repair::{Outcome, repair_volume};
use crate::{FsckOptions, FsckReport, check_volume};

/// Bytes of the region and of the device.
const PMEM: u64 = 20 << 20;
const DATA: u64 = 24 << 20;

pub const BY: Caller = Caller {
    uid: 0,
    gid: 0,
    umask: 0,
};

/// Both media of a volume.
pub struct Disk {
    pub region: Arc<Region>,
    pub device: Arc<dyn BlockDevice>,
    pub config: ConfigTable,
}

/// Inodes of the sample volume.
#[derive(Clone, Copy, Default)]
pub struct Sample {
    /// `/dir`: two index pages' worth of entries, among them `sub`.
    pub dir: Ino,
    /// `/dir/sub`: empty.
    pub sub: Ino,
    /// `/small`: 5000 bytes.
    pub small: Ino,
    /// `/big`: more extents than an inode holds.
    pub big: Ino,
    /// `/link`: a target of 10 bytes.
    pub link: Ino,
    /// `/long`: a target of 200 bytes.
    pub long: Ino,
    /// `/attr`: extended attributes of two pages.
    pub attr: Ino,
    /// `/hard` and `/soft`: two names.
    pub hard: Ino,
    /// `/fifo`.
    pub fifo: Ino,
}

struct Master {
    pmem: Vec<u8>,
    blocks: Vec<(u64, Vec<u8>)>,
    sample: Sample,
}

impl Disk {
    /// A new volume.
    pub fn new() -> Self {
        let geometry = Geometry::compute(PMEM, DATA, 2).unwrap();
        let region = Arc::new(Region::from_extents(PMEM, [], None, Backend::Volatile));
        let device: Arc<dyn BlockDevice> = Arc::new(SimDevice::unrecorded(DATA / BLOCK as u64));
        let config = quayfs_mkfs::format(&region, &*device, geometry, "test").unwrap();
        Self {
            region,
            device,
            config,
        }
    }

    /// A volume with something of everything, unmounted.
    pub fn sample() -> (Self, Sample) {
        static MASTER: OnceLock<Master> = OnceLock::new();
        let m = MASTER.get_or_init(Master::make);
        let region = Arc::new(Region::from_image(&m.pmem, None, Backend::Volatile));
        let device = SimDevice::unrecorded(DATA / BLOCK as u64);
        for (block, bytes) in &m.blocks {
            device.write(*block, bytes).unwrap();
        }
        let config = ConfigTable::decode(&m.pmem).unwrap();
        (
            Self {
                region,
                device: Arc::new(device),
                config,
            },
            m.sample,
        )
    }

    pub fn volume(&self) -> Volume {
        let (region, device) = (Arc::clone(&self.region), Arc::clone(&self.device));
        Volume::from_parts(region, device, Access::ReadWrite).unwrap()
    }

    /// Checks everything.
    pub fn check(&self) -> FsckReport {
        check_volume(self.volume(), &FsckOptions { check_data: true }).unwrap()
    }

    /// Checks that exactly this is found, in any order. A finding that ends in `...` may go on. That an owner has
    /// something else than the table says follows from any damage to what an inode has: that is told only where nothing
    /// else is.
    #[track_caller]
    pub fn finds(&self, expected: &[&str]) {
        let report = self.check();
        let found = report.findings.iter().map(ToString::to_string);
        let mut found: Vec<String> = found.collect();
        let follows = |f: &String| {
            let owners = ["error: quota: user ", "error: quota: group "];
            owners.iter().any(|owner| f.starts_with(owner))
        };
        if !found.iter().all(follows) {
            found.retain(|f| !follows(f));
        }
        let same = |f: &String, e: &str| match e.strip_suffix("...") {
            Some(start) => f.starts_with(start),
            None => f == e,
        };
        let all = found.len() == expected.len()
            && expected
                .iter()
                .all(|e| found.iter().filter(|f| same(f, e)).count() == 1);
        assert!(all, "expected {expected:#?}, found {found:#?}");
    }

    /// Repairs it; nothing is wrong afterwards.
    #[track_caller]
    pub fn repaired(&self) {
        let options = FsckOptions { check_data: true };
        let report = repair_volume(&mut self.volume(), &options, &Default::default()).unwrap();
        assert_eq!(report.outcome, Outcome::Repaired, "{report}");
        self.finds(&[]);
    }

    /// Mounts it without background threads.
    pub fn mount(&self) -> Arc<Fs> {
        Fs::mount_quiet(self.volume(), &MountOptions::default()).unwrap()
    }

    pub fn geo(&self) -> &Geometry {
        &self.config.geometry
    }

    pub fn salt(&self) -> u64 {
        self.config.salt()
    }

    /// The page of a node.
    pub fn home(&self, id: u32) -> Option<u64> {
        let word = self.region.load_u64(self.geo().nat_entry(id));
        node::nat_decode(id, word, self.salt()).unwrap()
    }

    pub fn page(&self, id: u32) -> PageBytes {
        let mut page = zero_page();
        self.region
            .read(self.geo().node_page(self.home(id).unwrap()), &mut page[..]);
        page
    }

    /// Changes a node and seals it again.
    pub fn edit(&self, id: u32, f: impl FnOnce(&mut [u8])) {
        let mut page = self.page(id);
        f(&mut page[..]);
        node::seal(&mut page[..], self.salt());
        self.region
            .write(self.geo().node_page(self.home(id).unwrap()), &page[..]);
    }

    /// A page that no node has.
    pub fn free_page(&self) -> u64 {
        let used: Vec<u64> = (0..self.geo().nat_entries as u32)
            .filter_map(|id| self.home(id))
            .collect();
        (0..self.geo().node_pages)
            .find(|p| !used.contains(p))
            .unwrap()
    }

    /// Makes a node that does not exist. Its bit is not set.
    pub fn create(&self, id: u32, kind: NodeKind, owner: Ino, f: impl FnOnce(&mut [u8])) {
        assert_eq!(self.home(id), None);
        let page = self.free_page();
        let mut bytes = zero_page();
        node::init(&mut bytes[..], id, kind, owner);
        f(&mut bytes[..]);
        node::seal(&mut bytes[..], self.salt());
        self.region.write(self.geo().node_page(page), &bytes[..]);
        self.nat(id, node::nat_encode(id, page, self.salt()));
    }

    /// Stores a NAT entry.
    pub fn nat(&self, id: u32, word: u64) {
        self.region.store_u64(self.geo().nat_entry(id), word);
    }

    /// The first dynamic node that does not exist.
    pub fn free_node(&self) -> u32 {
        (self.geo().dyn_base as u32..)
            .find(|id| self.home(*id).is_none())
            .unwrap()
    }

    /// Changes one bit of the bitmap whose pages start at node `base`.
    pub fn bit(&self, base: u64, n: u64, set: bool) {
        self.edit((base + n / BITS_PER_PAGE) as u32, |page| {
            assert_eq!(node::change_bits(page, n % BITS_PER_PAGE, 1, set), 1);
        });
    }

    pub fn inode(&self, ino: Ino) -> Inode {
        let (id, slot) = self.geo().inode_place(ino);
        let at = inode::offset(slot);
        Inode::decode(&self.page(id)[at..at + inode::SIZE])
    }

    pub fn edit_inode(&self, ino: Ino, f: impl FnOnce(&mut Inode)) {
        let (id, slot) = self.geo().inode_place(ino);
        let mut inode = self.inode(ino);
        f(&mut inode);
        self.edit(id, |page| {
            let at = inode::offset(slot);
            page[at..at + inode::SIZE].copy_from_slice(&inode.encode());
        });
    }

    /// The number of an inode that does not exist, in a page that does.
    pub fn free_ino(&self) -> Ino {
        (2..).find(|ino| self.inode(*ino).mode == 0).unwrap()
    }
}

/// Files in a directory of the sample: more than three leaves hold, however they hash.
pub const NAMES: u64 = 200;

impl Master {
    fn make() -> Self {
        let disk = Disk::new();
        let fs = disk.mount();
        let mut s = Sample::default();
        let file = |dir, name: &[u8]| fs.mknod(BY, dir, name, S_IFREG | 0o644, 0).unwrap().ino;
        s.dir = fs.mkdir(BY, ROOT, b"dir", 0o755).unwrap().ino;
        s.sub = fs.mkdir(BY, s.dir, b"sub", 0o755).unwrap().ino;
        for i in 0..NAMES {
            fs.forget(
                file(s.dir, format!("a name of some length {i:030}").as_bytes()),
                1,
            );
        }
        s.small = file(ROOT, b"small");
        fs.write(s.small, 0, &[7; 5000], false).unwrap();
        s.big = file(ROOT, b"big");
        for i in 0..20 {
            fs.write(s.big, i * 8192, &[i as u8 + 1; BLOCK], false)
                .unwrap();
        }
        let ahead = FallocMode::Allocate { keep_size: true };
        fs.fallocate(s.big, ahead, 400_000, 100_000).unwrap();
        s.link = fs.symlink(BY, ROOT, b"link", &[b'x'; 10]).unwrap().ino;
        s.long = fs.symlink(BY, ROOT, b"long", &[b'x'; 200]).unwrap().ino;
        s.attr = file(ROOT, b"attr");
        for (name, len) in [("user.a", 3000), ("user.b", 2000)] {
            fs.setxattr(s.attr, name.as_bytes(), &vec![1; len], SetXattr::Any)
                .unwrap();
        }
        s.hard = file(ROOT, b"hard");
        fs.link(s.hard, ROOT, b"soft").unwrap();
        s.fifo = fs.mknod(BY, ROOT, b"fifo", 0o010_644, 0).unwrap().ino;
        fs.shutdown().unwrap();
        let mut blocks = Vec::new();
        for block in 0..disk.device.blocks() {
            let mut buf = vec![0; BLOCK];
            disk.device.read(block, &mut buf).unwrap();
            if buf.iter().any(|b| *b != 0) {
                blocks.push((block, buf));
            }
        }
        Self {
            pmem: disk.region.read_vec(0, PMEM),
            blocks,
            sample: s,
        }
    }
}
