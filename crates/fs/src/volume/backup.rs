//! Copies of the configuration table and of the journal superblock on the data device ([`quayfs_layout::backup`]).
//!
//! The copy of the table never says anything else than the table: before that is changed the copy goes, and it comes back
//! when the change is durable. The copy of the superblock is that of the last clean unmount. It is not taken back by the next
//! mount; what uses it sees by the records in the lanes whether there has been one ([`superblock`]).

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use quayfs_blockdev::BlockDevice;
use quayfs_journal::Journal;
use quayfs_layout::BLOCK;
use quayfs_layout::backup::{
    BACKUP_BLOCK, BACKUP_BLOCKS, decode_superblock, encode_superblock, has_backup,
};
use quayfs_layout::config::{COPIES, ConfigTable, DataHeader};
use quayfs_layout::geometry::PMEM_MIN;
use quayfs_layout::jsb::{Closed, JSB_BYTES};
use quayfs_layout::l2p::{ENTRY_BYTES, Entry};
use quayfs_pmem::{MapOptions, Region};
use quayfs_shown::progress::{Meter, Unit};

use super::pair::is_named;
use super::{Place, Volume, VolumeError, locate};
use crate::recovery::journal_geometry;

const B: u64 = BLOCK as u64;
/// What the length of a region is a multiple of where the data follow it, unless another one was asked for.
const STEP: u64 = 1 << 20;
/// Entries of the page table by which it is known.
const SAMPLE: u64 = 64;

/// Writes both copies; that of the superblock only if it says that the volume is closed, with nothing left staged: another one
/// would be of no use. Durable when it returns. A volume without copies is left alone.
///
/// # Errors
/// Those of the device.
pub fn store(region: &Region, device: &dyn BlockDevice, config: &ConfigTable) -> io::Result<()> {
    if !has_backup(config) {
        return Ok(());
    }
    let (g, salt) = (&config.geometry, config.salt());
    let mut blocks = config.encode();
    if let Ok(Closed::Empty) = Journal::closed(region, &journal_geometry(g, salt)) {
        let page = region.read_vec(g.jsb_off, JSB_BYTES as u64);
        blocks.extend(encode_superblock(&page, salt));
    }
    device.write(BACKUP_BLOCK, &blocks)?;
    device.flush()
}

/// Before the table is changed there is no copy of it. Durable when it returns.
///
/// # Errors
/// Those of the device.
pub(super) fn take_back(device: &dyn BlockDevice, config: &ConfigTable) -> io::Result<()> {
    if !has_backup(config) {
        return Ok(());
    }
    device.write(BACKUP_BLOCK, &[0; BLOCK])?;
    device.flush()
}

/// Writes copies that are missing or damaged again, after a crash or in a part that is new.
///
/// # Errors
/// Those of the device.
pub(super) fn settle(
    region: &Region,
    device: &dyn BlockDevice,
    config: &ConfigTable,
) -> io::Result<()> {
    let mut copy = vec![0; BLOCK];
    if !has_backup(config)
        || device.read(BACKUP_BLOCK, &mut copy).is_ok() && copy == config.encode()
    {
        return Ok(());
    }
    store(region, device, config)
}

impl Volume {
    /// Before a region takes the place of this one whose table says something else, the data device has no copy of the table.
    /// The next mount writes one. Durable when it returns.
    ///
    /// # Errors
    /// Those of the device.
    pub fn take_backup_back(&self) -> io::Result<()> {
        take_back(&*self.device, &self.config)
    }

    /// Has the data device keep what configuration table and journal superblock say, where the volume has room for that. To be
    /// called of a volume that is closed. Durable when it returns.
    ///
    /// # Errors
    /// Those of the device.
    pub fn store_backup(&self) -> io::Result<()> {
        store(&self.region, &*self.device, &self.config)
    }
}

/// The journal superblock of a volume that has lost it: the page in the region. `None` if there is no copy, or the volume has
/// been mounted since and was not unmounted cleanly.
pub fn superblock(volume: &Volume) -> Option<Vec<u8>> {
    let config = volume.config();
    let (g, salt) = (&config.geometry, config.salt());
    let mut block = vec![0; BLOCK];
    if !has_backup(config) {
        return None;
    }
    volume.device().read(BACKUP_BLOCK + 1, &mut block).ok()?;
    let page = decode_superblock(&block, salt)?;
    let copy = std::sync::Arc::new(volume.region().load().ok()?);
    copy.write(g.jsb_off, &page);
    let scan = Journal::scan(copy, &journal_geometry(g, salt)).ok()?;
    // All was digested and nothing staged. Each later mount that has changed anything has left records of a later epoch.
    let same = scan.closed == Closed::Empty
        && scan.stray_epoch.is_none()
        && scan.records.is_empty()
        && scan.live.is_empty();
    same.then_some(page)
}

/// A volume whose configuration table is lost, and known by the copy.
#[derive(Debug)]
pub struct Beheaded {
    /// Where it is.
    pub place: Place,
    /// The copy.
    pub config: ConfigTable,
}

/// Looks for the copy of the configuration table of a volume that has lost both of its own. `None`: it has not, or no copy is
/// found. In one file or device that takes a look at each MiB; the meter is told.
///
/// # Errors
/// Something cannot be read.
pub fn beheaded(path: &Path, meter: &Meter) -> io::Result<Option<Beheaded>> {
    let Ok(path) = path.canonicalize() else {
        return Ok(None);
    };
    if path.is_dir() {
        let Ok(place) = locate(&path) else {
            return Ok(None);
        };
        let (region, data) = (File::open(&place.pmem)?, File::open(&place.data)?);
        let len = length(&region)?;
        let config = match has_table(&region)? {
            true => None,
            false => copy_in(&data, 0)?.filter(|c| c.geometry.pmem_len <= len),
        };
        let config = config.filter(|config| is_region_of(&region, config));
        return Ok(config.map(|config| Beheaded { place, config }));
    }
    let file = File::open(&path)?;
    if has_table(&file)? {
        return Ok(None);
    }
    let len = length(&file)?;
    meter.begin(
        "looking for the copy of the configuration table",
        len,
        Unit::Bytes,
    );
    for at in (PMEM_MIN.next_multiple_of(STEP)..len).step_by(STEP as usize) {
        meter.set(at, len);
        let config = copy_in(&file, at)?.filter(|c| c.geometry.pmem_len == at);
        if let Some(config) = config.filter(|config| is_region_of(&file, config)) {
            let place = Place::together(path, at);
            return Ok(Some(Beheaded { place, config }));
        }
    }
    Ok(None)
}

/// The length of a file or device in bytes.
fn length(mut file: &File) -> io::Result<u64> {
    io::Seek::seek(&mut file, io::SeekFrom::End(0))
}

/// A block, if all of it is there.
fn block_at(file: &File, at: u64) -> io::Result<Option<Vec<u8>>> {
    let mut block = vec![0; BLOCK];
    match file.read_exact_at(&mut block, at) {
        Ok(()) => Ok(Some(block)),
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        Err(e) => Err(e),
    }
}

fn has_table(file: &File) -> io::Result<bool> {
    for off in COPIES {
        if block_at(file, off)?.is_some_and(|b| ConfigTable::decode(&b).is_ok()) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The copy of the table on a data device that begins at this byte.
fn copy_in(file: &File, start: u64) -> io::Result<Option<ConfigTable>> {
    let decode = |b: Vec<u8>| DataHeader::decode(&b).ok();
    let Some(header) = block_at(file, start)?.and_then(decode) else {
        return Ok(None);
    };
    let block = block_at(file, start + BACKUP_BLOCK * B)?;
    let config = block.and_then(|b| ConfigTable::decode(&b).ok());
    Ok(config.filter(|c| has_backup(c) && c.uuid == header.uuid && is_named(c, header.data_uuid)))
}

/// Whether the page table of a region is that of this volume, and where the table says that it is.
fn is_region_of(file: &File, config: &ConfigTable) -> bool {
    let (g, salt) = (&config.geometry, config.salt());
    let n = SAMPLE.min(g.blocks);
    // From the end: what has overwritten the beginning of the region may have reached its first entries.
    let first = g.blocks - n;
    let mut entries = vec![0; (n * ENTRY_BYTES) as usize];
    let at = g.l2p_map_off + first * ENTRY_BYTES;
    if file.read_exact_at(&mut entries, at).is_err() {
        return false;
    }
    let words = entries.chunks_exact(ENTRY_BYTES as usize);
    let right = words
        .zip(first..)
        .filter(|(word, lbn)| {
            let word = quayfs_layout::bytes::get_u64(word, 0);
            Entry::decode(word, *lbn, salt).is_some()
        })
        .count() as u64;
    right > n / 2
}

impl Beheaded {
    /// Writes both copies of the configuration table into the region again, as the one on the data device is. Durable when it
    /// returns.
    ///
    /// # Errors
    /// [`VolumeError::Busy`]; the region cannot be written.
    pub fn restore(&self) -> Result<(), VolumeError> {
        let options = MapOptions {
            len: self.place.region_len,
            ..MapOptions::default()
        };
        let region = Region::open(&self.place.pmem, options)?;
        if !region.try_lock_exclusive()? {
            return Err(VolumeError::Busy(self.place.path.clone()));
        }
        let bytes = self.config.encode();
        for off in COPIES.into_iter().rev() {
            region.write_nt(off, &bytes);
            region.drain()?;
        }
        Ok(())
    }
}

const _: () = assert!(BACKUP_BLOCKS == 2 && JSB_BYTES == BLOCK);
