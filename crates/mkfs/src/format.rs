//! The bytes of an empty file system.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use quayfs_blockdev::BlockDevice;
use quayfs_fs::attr::now;
use quayfs_fs::recovery::{batch_log, journal_geometry, ppt_geometry};
use quayfs_fs::volume::store_backup;
use quayfs_journal::{Durability, Journal};
use quayfs_layout::config::{
    COPIES, ConfigTable, DataHeader, FEATURE_BACKUP, FEATURE_BATCHES, FEATURE_OWNERS,
    FEATURE_PIPELINE, FEATURE_PROPOSALS, FEATURE_QUOTA, FEATURE_ZERO_CRC, LABEL_MAX, OPTIONS_MAX,
};
use quayfs_layout::geometry::Geometry;
use quayfs_layout::inode::{self, Inode, ROOT, S_IFDIR};
use quayfs_layout::node::{self, NodeKind};
use quayfs_layout::quota::{self, Subject};
use quayfs_layout::{BLOCK, bytes};
use quayfs_pmem::Region;
use quayfs_ppt::Ppt;

use super::MkfsError;

/// Whose the root directory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Root {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Permission bits.
    pub mode: u32,
}

impl Default for Root {
    /// Owned by root, and every user may look.
    fn default() -> Self {
        Self {
            uid: 0,
            gid: 0,
            mode: 0o755,
        }
    }
}

fn random<const N: usize>() -> [u8; N] {
    let mut b = [0; N];
    for chunk in b.chunks_mut(16) {
        let r = uuid::Uuid::new_v4();
        chunk.copy_from_slice(&r.as_bytes()[..chunk.len()]);
    }
    b
}

/// What makes a volume this one and no other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// UUID of the volume.
    pub uuid: [u8; 16],
    /// UUID of its data device.
    pub data_uuid: [u8; 16],
    /// Key of the hash that orders directories.
    pub hash_key: [u64; 2],
}

impl Identity {
    /// One that no other volume has.
    pub fn random() -> Self {
        let key: [u8; 16] = random();
        Self {
            uuid: *uuid::Uuid::new_v4().as_bytes(),
            data_uuid: *uuid::Uuid::new_v4().as_bytes(),
            hash_key: [bytes::get_u64(&key, 0), bytes::get_u64(&key, 8)],
        }
    }
}

/// Writes an empty file system over a region and a device. Durable when it returns; until the
/// last step there is no volume.
pub fn format(
    region: &Arc<Region>,
    device: &dyn BlockDevice,
    geometry: Geometry,
    label: &str,
) -> Result<ConfigTable, MkfsError> {
    format_as(region, device, geometry, label, &Identity::random())
}

/// [`format()`] with a given identity, for volumes that have to come out the same each time.
pub fn format_as(
    region: &Arc<Region>,
    device: &dyn BlockDevice,
    geometry: Geometry,
    label: &str,
    identity: &Identity,
) -> Result<ConfigTable, MkfsError> {
    let config = prepare(region, geometry, label, identity, Root::default())?;
    complete(region, device, &config)?;
    Ok(config)
}

/// Ranges of a region that [`prepare`] and [`complete`] store to.
pub(super) fn stored(g: &Geometry) -> [Range<u64>; 4] {
    [
        0..g.lane_off,
        g.slot_hdr_off..g.slot_data_off,
        g.nat_off..g.node_off + ROOT_PAGES * BLOCK as u64,
        g.batch_log_off..g.batch_log_off + g.batch_log_bytes,
    ]
}

/// Writes all of the region but the configuration table, without which there is no volume. Durable when it returns.
pub(super) fn prepare(
    region: &Arc<Region>,
    geometry: Geometry,
    label: &str,
    identity: &Identity,
    root: Root,
) -> Result<ConfigTable, MkfsError> {
    for off in COPIES {
        region.write_nt(off, &[0; BLOCK]);
    }
    region.drain()?;

    let mut name = [0; LABEL_MAX];
    name[..label.len()].copy_from_slice(label.as_bytes());
    let quota = match geometry.quota_pages > 0 {
        true => FEATURE_QUOTA | FEATURE_OWNERS,
        false => 0,
    };
    let batches = match geometry.batch_log_bytes > 0 {
        true => FEATURE_BATCHES,
        false => 0,
    };
    let incompat = quota | batches | FEATURE_PROPOSALS | FEATURE_PIPELINE;
    let mut config = ConfigTable {
        uuid: identity.uuid,
        data_uuid: identity.data_uuid,
        next_data_uuid: [0; 16],
        compat: [FEATURE_ZERO_CRC, FEATURE_BACKUP, incompat],
        created: quayfs_sync::time::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |d| d.as_secs()),
        label: name,
        hash_key: identity.hash_key,
        changes: 0,
        fencing_token: 0,
        options: [0; OPTIONS_MAX],
        geometry,
    };
    // A daemon that is left of the volume that was here finds another one than its own.
    config.fencing_token = config.token(bytes::get_u64(&identity.data_uuid, 0));
    let (g, salt) = (geometry, config.salt());
    // None of these has to be durable before another: until the configuration table says so there is no volume.
    Ppt::format(region, &ppt_geometry(&g, salt))?;
    Journal::format(region, &journal_geometry(&g, salt), Durability::Op)?;
    if let Some(log) = batch_log(&g, salt) {
        region.format_batches(&log)?;
    }
    write_root(region, &g, salt, root);
    region.drain()?;
    Ok(config)
}

/// Makes a volume of a device and what [`prepare`] has written. A failure leaves neither of them looking like one.
pub(super) fn complete(
    region: &Region,
    device: &dyn BlockDevice,
    config: &ConfigTable,
) -> Result<(), MkfsError> {
    let written = write_headers(region, device, config);
    if written.is_err() {
        // The first error is the one to report. With a header that no region knows, the next mkfs would ask for
        // --force.
        let _ = device.write(0, &[0; BLOCK]);
        COPIES
            .into_iter()
            .for_each(|off| region.write_nt(off, &[0; BLOCK]));
        let _ = region.drain();
    }
    written
}

fn write_headers(
    region: &Region,
    device: &dyn BlockDevice,
    config: &ConfigTable,
) -> Result<(), MkfsError> {
    let dev = |e: io::Error| MkfsError::Device(e.to_string());
    let header = DataHeader {
        data_uuid: config.data_uuid,
        uuid: config.uuid,
        blocks: config.geometry.data_blocks,
    };
    device.write(0, &header.encode()).map_err(dev)?;
    device.flush().map_err(dev)?;
    store_backup(region, device, config).map_err(dev)?;
    let table = config.encode();
    for off in COPIES.into_iter().rev() {
        region.write_nt(off, &table);
        region.drain()?;
    }
    Ok(())
}

/// Pages that a new volume has.
const ROOT_PAGES: u64 = 3;

/// NAT and the pages that hold the root directory, and say whose it is.
fn write_root(region: &Region, g: &Geometry, salt: u64, owner: Root) {
    let time = now();
    let root = Inode {
        mode: S_IFDIR | owner.mode & 0o7777,
        uid: owner.uid,
        gid: owner.gid,
        nlink: 2,
        generation: 1,
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
        parent: ROOT,
        ..Inode::default()
    };
    let (inode_node, slot) = g.inode_place(ROOT);
    let bitmap_node = g.ino_bitmap_base as u32;
    let mut table = vec![0; BLOCK];
    node::init(&mut table, inode_node, NodeKind::Inodes, 0);
    let at = inode::offset(slot);
    table[at..at + inode::SIZE].copy_from_slice(&root.encode());
    let mut bitmap = vec![0; BLOCK];
    node::init(&mut bitmap, bitmap_node, NodeKind::Bitmap, 0);
    // Number 0 is never used.
    node::change_bits(&mut bitmap, 0, ROOT + 1, true);
    let quota_node = g.quota_base as u32;
    let mut quotas = vec![0; BLOCK];
    node::init(&mut quotas, quota_node, NodeKind::Quota, 0);
    for (slot, subject) in [Subject::User(root.uid), Subject::Group(root.gid)]
        .into_iter()
        .enumerate()
    {
        quota::charge(&mut quotas, slot, subject, 0, 1);
    }
    let mut pages = vec![(inode_node, table), (bitmap_node, bitmap)];
    if g.quota_pages > 0 {
        pages.push((quota_node, quotas));
    }
    for (page, (_, bytes)) in (0..ROOT_PAGES).zip(&mut pages) {
        node::seal(bytes, salt);
        region.write_nt(g.node_page(page), bytes);
    }
    let nodes: Vec<u32> = pages.iter().map(|(id, _)| *id).collect();
    const CHUNK: u64 = 8192;
    let mut id = 0;
    while id < g.nat_entries {
        let n = CHUNK.min(g.nat_entries - id);
        let mut out = Vec::with_capacity(n as usize * 8);
        for i in id..id + n {
            let i = i as u32;
            let word = match nodes.iter().position(|node| *node == i) {
                Some(page) => node::nat_encode(i, page as u64, salt),
                None => node::nat_absent(i, salt),
            };
            out.extend_from_slice(&word.to_le_bytes());
        }
        region.write_nt(g.nat_off + id * 8, &out);
        id += n;
    }
}
