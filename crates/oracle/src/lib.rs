//! What the tests of the operation layer share: volumes in memory, a model of a file system, random
//! operations, comparisons, and runs whose every crash is looked at.
#![allow(
    missing_docs,
    clippy::missing_panics_doc,
    reason = "for tests: names say it, and a surprise ends the run"
)]

pub mod account;
pub mod apply;
pub mod content;
pub mod crash;
pub mod damage;
pub mod dump;
pub mod evict;
pub mod mkfs;
pub mod model;
pub mod ops;
pub mod pairs;
pub mod quota;
pub mod repair;
pub mod rng;
pub mod script;
pub mod search;

use std::sync::{Arc, OnceLock};

use quayfs_blockdev::BlockDevice;
use quayfs_crashsim::SimDevice;
use quayfs_fs::Fs;
use quayfs_fs::predecessor::Predecessor;
use quayfs_fs::volume::{Access, Volume};
use quayfs_fsck::FsckOptions;
use quayfs_layout::geometry::{Geometry, Sizes};
use quayfs_mkfs::{Identity, format, format_as};
use quayfs_options::MountOptions;
use quayfs_pmem::{Backend, Region};
use quayfs_restart::{Postings, Requests};

/// Sizes of a volume. `Geometry::compute` refuses anything as small as what tests want, because
/// no user would be happy with it; the format does not mind.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// LBNs, spare pool included.
    pub blocks: u64,
    /// Hidden spare pool.
    pub spare: u64,
    /// Staging buffers.
    pub buffers: u64,
    /// Slots of one buffer.
    pub slots: u64,
    /// Bytes of one record lane. A record takes a quarter at most.
    pub lane: u64,
    /// Entries that one page-table transaction holds, about.
    pub l2p_entries: u64,
    /// Node pages.
    pub nodes: u64,
    /// Blocks of the mirror area. Copies of the first structures need 130.
    pub mirror: u64,
}

impl Shape {
    /// Room for random operations, with rings that wrap often.
    pub const SMALL: Self = Self {
        blocks: 8192,
        spare: 64,
        buffers: 2,
        slots: 96,
        lane: 256 << 10,
        l2p_entries: 400,
        nodes: 1024,
        mirror: 7,
    };
    /// The smallest that works, for crash images.
    pub const TINY: Self = Self {
        blocks: 512,
        spare: 16,
        buffers: 2,
        slots: 32,
        lane: 160 << 10,
        l2p_entries: 128,
        nodes: 144,
        mirror: 7,
    };

    /// Where everything is soon used again: few slots, few blocks.
    pub const TIGHT: Self = Self {
        blocks: 88,
        spare: 8,
        buffers: 2,
        slots: 24,
        lane: 160 << 10,
        l2p_entries: 128,
        nodes: 96,
        mirror: 7,
    };

    /// Lays the volume out as `Geometry::compute` does.
    pub fn geometry(&self) -> Geometry {
        self.geometry_with(1)
    }

    /// The same, with so many pages of the quota table.
    pub fn geometry_with(&self, quota_pages: u64) -> Geometry {
        let geometry = Geometry::lay_out(&Sizes {
            data_blocks: self.mirror + 1 + self.blocks,
            data_start: self.mirror + 1,
            mirror_blocks: self.mirror,
            blocks: self.blocks,
            spare: self.spare,
            buffers: self.buffers,
            lane_bytes: self.lane,
            slots_per_buffer: self.slots,
            l2p_entries: self.l2p_entries,
            node_pages: self.nodes,
            intent_pages: 2,
            quota_pages,
        });
        assert!(geometry.is_sound(), "{geometry:?}");
        geometry
    }
}

/// Mount options to be tried, with the backend that goes with them.
pub const MODES: [(&str, Backend); 5] = [
    ("noatime", Backend::Volatile),
    (
        "relatime,ablation=staging:central,checkpoint=swap",
        Backend::Dax,
    ),
    ("noatime,durability=commit", Backend::File),
    ("noatime,data=ordered", Backend::Volatile),
    ("noatime,data=writeback,checkpoint=inplace", Backend::File),
];

/// Both halves of a volume, in memory. They stay when a mount ends, however it ends.
pub struct Media {
    pub region: Arc<Region>,
    pub device: Arc<dyn BlockDevice>,
}

impl Media {
    /// A formatted volume on a region that behaves as `backend`.
    pub fn new(shape: &Shape, backend: Backend) -> Self {
        Self::new_as(shape, backend, &Identity::random())
    }

    /// The same with a given identity.
    pub fn new_as(shape: &Shape, backend: Backend, identity: &Identity) -> Self {
        let geometry = shape.geometry();
        let zeros = vec![0; geometry.pmem_len as usize];
        let region = Arc::new(Region::from_image(zeros, None, backend));
        let device = Arc::new(SimDevice::unrecorded(geometry.data_blocks));
        format_as(&region, &*device, geometry, "test", identity).expect("mkfs");
        Self { region, device }
    }

    /// Formats given media.
    pub fn format(region: Arc<Region>, device: Arc<dyn BlockDevice>, geometry: Geometry) -> Self {
        format(&region, &*device, geometry, "test").expect("mkfs");
        Self { region, device }
    }

    /// The volume, opened.
    pub fn volume(&self) -> Volume {
        let (region, device) = (Arc::clone(&self.region), Arc::clone(&self.device));
        Volume::from_parts(region, device, Access::ReadWrite).expect("volume")
    }

    /// What the checker finds, data included; nothing is mounted.
    pub fn fsck(&self) -> Result<(), String> {
        self.fsck_with(true)
    }

    /// What the checker finds, without data if that may have been lost.
    pub fn fsck_with(&self, check_data: bool) -> Result<(), String> {
        let report = quayfs_fsck::check_volume(self.volume(), &FsckOptions { check_data })
            .map_err(|e| e.to_string())?;
        let whole = report.skipped.is_empty();
        if report.is_clean() && whole {
            Ok(())
        } else {
            Err(format!("fsck: {report}"))
        }
    }

    /// A mount as the daemon does it.
    pub fn mount(&self, options: &MountOptions) -> Arc<Fs> {
        Fs::mount(self.volume(), options).expect("mount")
    }

    /// As [`Media::mount_quiet`], of a mount that goes on after the death of its daemon. The kernel has forgotten all
    /// inodes meanwhile. Large writes are on their way for as long as they can be.
    pub fn mount_after(
        &self,
        (requests, postings): (&Arc<Requests>, &Arc<Postings>),
        options: &MountOptions,
    ) -> Arc<Fs> {
        let mut volume = self.volume();
        volume.post_from(Arc::clone(postings));
        volume.follow(Predecessor {
            requests: Arc::clone(requests),
            knows: Box::new(|_| false),
            deaths: 1,
            replaced: 0,
            is_replaced: false,
            ended: None,
            cause: "killed".into(),
            pause: OnceLock::new(),
        });
        let fs = Fs::mount_quiet(volume, options).expect("mount");
        fs.e.behind.postpone();
        fs
    }

    /// A mount without background threads.
    pub fn mount_quiet(&self, options: &MountOptions) -> Arc<Fs> {
        Fs::mount_quiet(self.volume(), options).expect("mount")
    }
}

/// Options as they are given after `-o`.
pub fn options(text: &str) -> MountOptions {
    MountOptions::parse(&[text]).unwrap_or_else(|e| panic!("{text}: {e}"))
}

/// The seeds that a random test runs: `usual` ones from `first` on unless the environment says
/// otherwise.
pub fn seeds(first: u64, usual: u64) -> Vec<u64> {
    let var = |name| std::env::var(name).ok().and_then(|s| s.parse().ok());
    if let Some(seed) = var("QUAYFS_SEED") {
        return vec![seed];
    }
    (0..var("QUAYFS_RUNS").unwrap_or(usual))
        .map(|i| first + i)
        .collect()
}
