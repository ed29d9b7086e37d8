//! Copies of the configuration table and of the journal superblock on the data device ([`quayfs_layout::backup`]).
//!
//! The copy of the table never says anything else than the table: before that is changed the copy goes, and it comes back
//! when the change is durable. The copy of the superblock is that of the last clean unmount. It is not taken back by the next
//! mount; what uses it sees by the records in the lanes whether there has been one ([`superblock`]).

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use quayfs_blockdev::{BlockDevice, FileDevice, Options, probe_other};
use quayfs_journal::Journal;
use quayfs_layout::BLOCK;
use quayfs_layout::backup::{
    BACKUP_BLOCK, BACKUP_BLOCKS, decode_superblock, encode_superblock, has_backup,
};
use quayfs_layout::config::{COPIES, ConfigTable, DataHeader};
use quayfs_layout::geometry::PMEM_MIN;
use quayfs_layout::jsb::{Closed, JSB_BYTES};
use quayfs_pmem::{LockKind, MapOptions, PmemError, Region};
use quayfs_shown::progress::{Meter, Unit};

use super::evidence::Media;
use super::pair::is_named;
use super::parts::opened;
use super::{Place, Volume, VolumeError, below, locate};
use crate::recovery::journal_geometry;
use crate::uuid_text;

const B: u64 = BLOCK as u64;
/// What the length of a region is a multiple of where the data follow it, unless another one was asked for.
const STEP: u64 = 1 << 20;

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
/// [`VolumeError::Unclear`]: something else is there, there are several copies, or one that is not believed;
/// [`VolumeError::Busy`]; something cannot be read.
pub fn beheaded(path: &Path, meter: &Meter) -> Result<Option<Beheaded>, VolumeError> {
    let Ok(path) = path.canonicalize() else {
        return Ok(None);
    };
    let found = match path.is_dir() {
        true => in_directory(&path),
        false => in_one(&path, meter),
    };
    let found = found.map_err(|e| VolumeError::Device(e.to_string()))?;
    let Some(one) = chosen(found, &path)? else {
        return Ok(None);
    };
    one.lock(LockKind::Shared)?;
    Ok(Some(one))
}

/// Of the copies that were found the one that is to be put back.
fn chosen(found: Vec<Found>, path: &Path) -> Result<Option<Beheaded>, VolumeError> {
    let path = path.to_path_buf();
    if found.is_empty() {
        return Ok(None);
    }
    let mut believed = found.iter().filter(|f| f.judged.is_ok());
    if let (Some(one), Some(more)) = (believed.next(), believed.next()) {
        let at = [one, more].map(|found| found.volume.config.geometry.pmem_len);
        let why = format!(
            "copies of the tables of several volumes are left, of regions of {} and {} bytes: which one is meant cannot be told",
            at[0], at[1]
        );
        return Err(VolumeError::Unclear { path, why });
    }
    // Of the last one on this disk less may be left than of an earlier one.
    let last = found.iter().map(|f| f.volume.config.created).max();
    let mut refused = Vec::new();
    for mut f in found {
        if Some(f.volume.config.created) < last {
            f.judged = f.judged.and(Err("a later volume was made here"));
        }
        match f.judged {
            Ok(()) => {
                refuse_what_is_there(&f.volume.place.pmem)?;
                return Ok(Some(f.volume));
            }
            Err(why) => refused.push(f.volume.refused(why)),
        }
    }
    let why = format!("not a QuayFS pmem region: {}", refused.join("; "));
    Err(VolumeError::Unclear { path, why })
}

/// Why the volume at a path is not opened for writing, though its names are there: its region is no medium, or what has hit one
/// of its tables may be there on purpose. `None` also if it cannot be read.
pub fn refusal(path: &Path) -> Option<VolumeError> {
    let place = locate(path).ok()?;
    let options = MapOptions {
        read_only: true,
        len: place.region_len,
        ..MapOptions::default()
    };
    match Region::open(&place.pmem, options) {
        Ok(region) => refuse_others(&region, &place.pmem).err(),
        Err(e @ PmemError::Kind { .. }) => Some(e.into()),
        // Of what this user may not read, or what does not answer, others tell.
        Err(_) => None,
    }
}

/// Fails if there is something else, that may be there on purpose, where a copy of the table of an opened region was.
///
/// # Errors
/// [`VolumeError::Unclear`].
pub(super) fn refuse_others(region: &Region, pmem: &Path) -> Result<(), VolumeError> {
    let is_table = |off| {
        let block = (off + B <= region.len()).then(|| region.peek(off, B));
        block.is_some_and(|b| b.is_ok_and(|b| ConfigTable::decode(&b).is_ok()))
    };
    match COPIES.into_iter().all(is_table) {
        true => Ok(()),
        false => refuse_what_is_there(pmem),
    }
}

/// What is where the region of a volume begins, if something is that is none of it: `ext4`. It is not overwritten by a repair.
pub fn occupant(pmem: &Path) -> Option<&'static str> {
    probe_other(pmem).ok().flatten()
}

fn refuse_what_is_there(pmem: &Path) -> Result<(), VolumeError> {
    let Ok(Some(what)) = probe_other(pmem) else {
        return Ok(());
    };
    let why = match what.starts_with("quayfs") {
        true => {
            "is the data device of another volume by now: what is left of this one is not put back"
                .into()
        }
        false => format!(
            "holds {what} data, and what is left of a volume: if the volume is to be put back, and what is there now may be \
             lost, take away its signature first (`wipefs --all --force {}`)",
            quayfs_shown::argument(pmem)
        ),
    };
    let path = pmem.into();
    Err(VolumeError::Unclear { path, why })
}

/// A copy of a table, and why it is none of what is there, if so.
struct Found {
    volume: Beheaded,
    judged: Result<(), &'static str>,
}

fn in_directory(path: &Path) -> io::Result<Vec<Found>> {
    let Ok(place) = locate(path) else {
        return Ok(Vec::new());
    };
    let (region, data) = (opened(&place.pmem)?, opened(&place.data)?);
    if has_table(&region)? {
        return Ok(Vec::new());
    }
    let len = length(&region)?;
    let found = copy_in(&data, 0)?.map(|config| {
        let media = Media {
            region: &region,
            data: &data,
            start: 0,
        };
        let judged = match config.geometry.pmem_len <= len {
            true => media.judge(&config),
            false => Err("the region is shorter than it says"),
        };
        let volume = Beheaded { place, config };
        Found { volume, judged }
    });
    Ok(found.into_iter().collect())
}

fn in_one(path: &Path, meter: &Meter) -> io::Result<Vec<Found>> {
    let file = opened(path)?;
    if has_table(&file)? {
        return Ok(Vec::new());
    }
    let len = length(&file)?;
    let what = "looking for the copy of the configuration table";
    meter.begin(what, len, Unit::Bytes);
    let mut found = Vec::new();
    for at in (PMEM_MIN.next_multiple_of(STEP)..len).step_by(STEP as usize) {
        meter.set(at, len);
        let Some(config) = copy_in(&file, at)?.filter(|c| c.geometry.pmem_len == at) else {
            continue;
        };
        let media = Media {
            region: &file,
            data: &file,
            start: at,
        };
        let judged = media.judge(&config);
        let place = Place::together(path.into(), at);
        let volume = Beheaded { place, config };
        found.push(Found { volume, judged });
    }
    Ok(found)
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

/// What keeps others from the media while this exists.
struct Locked {
    region: Region,
    _data: FileDevice,
    _below: Vec<File>,
}

impl Beheaded {
    /// Says that the copy is not believed, and why.
    fn refused(&self, why: &str) -> String {
        let Place {
            data, region_len, ..
        } = &self.place;
        let label = match self.config.label() {
            label if label.is_empty() => label,
            label => format!(" ({label:?})"),
        };
        format!(
            "the copy of a configuration table, at byte {} of {}, of volume {}{label}, is not put back, since {why}",
            region_len.unwrap_or_default() + BACKUP_BLOCK * B,
            data.display(),
            uuid_text(self.config.uuid)
        )
    }

    /// Writes both copies of the configuration table into the region again, as the one on the data device is. Durable when it
    /// returns.
    ///
    /// # Errors
    /// [`VolumeError::Busy`]; the region cannot be written.
    pub fn restore(&self) -> Result<(), VolumeError> {
        let locked = self.lock(LockKind::Exclusive)?;
        let bytes = self.config.encode();
        for off in COPIES.into_iter().rev() {
            locked.region.write_nt(off, &bytes);
            locked.region.drain()?;
        }
        Ok(())
    }

    /// Nothing else has the media: as if it were a volume that is opened.
    fn lock(&self, kind: LockKind) -> Result<Locked, VolumeError> {
        let Place {
            path, pmem, data, ..
        } = &self.place;
        let read_only = kind == LockKind::Shared;
        let busy = || VolumeError::Busy(path.clone());
        let region = MapOptions {
            len: self.place.region_len,
            read_only,
            ..MapOptions::default()
        };
        let region = Region::open(pmem, region)?;
        if !region.lock_within(kind, Duration::ZERO)? {
            return Err(busy());
        }
        let below = below::lock(([pmem, data], path), kind, Duration::ZERO)?;
        // A block device that is mounted, as something else too, is not opened for writing; to look whether it is takes
        // that as well.
        let claimed = |path: &Path| {
            let exclusive = OpenOptions::new()
                .read(true)
                .custom_flags(libc::O_EXCL)
                .open(path);
            exclusive.is_err_and(|e| e.raw_os_error() == Some(libc::EBUSY))
        };
        let is_device = |path: &Path| {
            path.metadata()
                .is_ok_and(|m| m.file_type().is_block_device())
        };
        if [pmem, data]
            .into_iter()
            .any(|path| is_device(path) && claimed(path))
        {
            return Err(busy());
        }
        let options = Options {
            read_only,
            start: self.place.region_len.unwrap_or_default() / B,
            ..Options::default()
        };
        Ok(Locked {
            region,
            _data: FileDevice::open(data, options)?,
            _below: below,
        })
    }
}

const _: () = assert!(BACKUP_BLOCKS == 2 && JSB_BYTES == BLOCK);
