//! What is to be made, and making it.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use quayfs_blockdev::{FileDevice, Options};
use quayfs_fs::volume::{DATA, LOGS, PMEM, check_exposure, in_the_way, is_device_path};
use quayfs_layout::BLOCK;
use quayfs_layout::backup::BACKUP_BLOCK;
use quayfs_layout::config::{COPIES, ConfigTable, LABEL_MAX};
use quayfs_layout::geometry::{Geometry, Wishes};
use quayfs_pmem::{Backend, MapOptions, Region};
use quayfs_shown::progress::{Meter, Unit};

use super::medium::Medium;
use super::sizes::{STAGING_MAX, layout, layout_on_disk, lengths_of_one, lengths_of_two};
use super::{
    Identity, MkfsError, MkfsOptions, MkfsReport, Overwritten, Root, Undo, cache, format, io_at,
};

/// What a directory may have that becomes a volume, beside the logs of one: its parts, and what a new file system has.
const OURS: [&str; 3] = [PMEM, DATA, "lost+found"];

/// What is to be made, and of what.
pub struct Plan {
    volume: PathBuf,
    pmem: Medium,
    /// Without one the data follow the region in its medium.
    data: Option<Medium>,
    pmem_len: u64,
    data_len: u64,
    geometry: Geometry,
    /// The one for a region on a disk.
    on_disk: Geometry,
    label: String,
    root: Root,
    sparse: bool,
    overwritten: Vec<Overwritten>,
}

impl Plan {
    /// Looks at everything that can be wrong, and changes nothing.
    ///
    /// # Errors
    /// What is wrong, be it that something would be lost or others have access to a medium, unless `o.force`.
    pub fn new(volume: &Path, o: &MkfsOptions) -> Result<Self, MkfsError> {
        let label = o.label.clone().unwrap_or_default();
        if label.len() > LABEL_MAX {
            return Err(MkfsError::Label(label.len()));
        }
        let (volume, together) = place(volume, o.size.is_some())?;
        let (pmem, data) = find_media(&volume, together, o)?;
        if let (Some(data), false) = (&data, o.force) {
            check_room(&volume, [&pmem.path, &data.path])?;
        }
        let media: Vec<_> = [&pmem].into_iter().chain(&data).collect();
        // Before it is said that --force helps.
        media.iter().try_for_each(|m| m.check_idle())?;
        let overwritten = overwritten(&media, o.force)?;
        let (pmem_len, data_len) = match &data {
            Some(data) => lengths_of_two(&volume, &pmem, data)?,
            None => lengths_of_one(&volume, &pmem, o.pmem_size)?,
        };
        let wishes = Wishes {
            mirror: o.mirror_size,
            staging: data.is_none().then_some(STAGING_MAX),
            batch_log: 0,
        };
        let geometry = layout(pmem_len, data_len, o.buffers, wishes)?;
        pmem.check_region(data.is_none().then_some(pmem_len))?;
        data.iter().try_for_each(Medium::check_device)?;
        Ok(Self {
            volume,
            pmem,
            data,
            pmem_len,
            data_len,
            geometry,
            on_disk: layout_on_disk(&geometry, data_len, wishes),
            label,
            root: root(o),
            sparse: o.sparse,
            overwritten,
        })
    }

    /// What is lost by it.
    pub fn overwritten(&self) -> &[Overwritten] {
        &self.overwritten
    }

    /// Files that others could read, and which become private. A process that has one open can still read it.
    pub fn made_private(&self) -> impl Iterator<Item = &Path> {
        [&self.pmem]
            .into_iter()
            .chain(&self.data)
            .filter_map(Medium::made_private)
    }

    /// Makes the volume. The configuration table is written last, so a mkfs that was interrupted leaves no volume or,
    /// between the two copies of the table, a whole one that lacks the spare copy.
    ///
    /// # Errors
    /// What went wrong. All that was made is removed again, as it is when another thread calls [`Undo::interrupt`]
    /// meanwhile; what was overwritten is lost.
    pub fn carry_out(&self, undo: &Undo) -> Result<MkfsReport, MkfsError> {
        self.carry_out_measured(undo, &Meter::default())
    }

    /// As [`Plan::carry_out`], and the meter says how far that is.
    ///
    /// # Errors
    /// As there.
    pub fn carry_out_measured(&self, undo: &Undo, meter: &Meter) -> Result<MkfsReport, MkfsError> {
        self.make(undo, meter).inspect_err(|_| undo.roll_back())
    }

    fn make(&self, undo: &Undo, meter: &Meter) -> Result<MkfsReport, MkfsError> {
        meter.begin("making the media", 0, Unit::Bytes);
        let (region, device) = match &self.data {
            Some(data) => self.make_two(undo, data)?,
            None => self.make_one(undo)?,
        };
        let data = self.data.as_ref().unwrap_or(&self.pmem);
        check_exposure((&region, &self.pmem.path), (&device, &data.path))?;
        if self.pmem.is_new() && !self.sparse {
            meter.begin("zeroing the region", region.len(), Unit::Bytes);
            region.write_zeros(&mut |bytes| meter.add(bytes))?;
        }
        let on_disk = region.backend() == Backend::File;
        let geometry = match on_disk {
            true => self.on_disk,
            false => self.geometry,
        };
        meter.begin("formatting", 0, Unit::Bytes);
        for range in format::stored(&geometry) {
            region.allocate(range.start, range.end - range.start)?;
        }
        let region = Arc::new(region);
        let identity = Identity::random();
        for medium in [&self.pmem].into_iter().chain(&self.data) {
            forget_earlier(&medium.path).map_err(io_at(&medium.path))?;
        }
        let config = format::prepare(&region, geometry, &self.label, &identity, self.root)?;
        undo.conclude(|| format::complete(&region, &device, &config))?;
        Ok(MkfsReport {
            uuid: quayfs_fs::uuid_text(config.uuid),
            backend: region.backend(),
            geometry,
            label: self.label.clone(),
            cache: on_disk
                .then(|| region.metadata())
                .transpose()?
                .flatten()
                .as_ref()
                .and_then(cache::write_cache),
        })
    }
}

impl Plan {
    /// The media of a volume that is a directory.
    fn make_two(&self, undo: &Undo, data: &Medium) -> Result<(Region, FileDevice), MkfsError> {
        undo.directory(&self.volume).map_err(io_at(&self.volume))?;
        self.pmem.make(undo, self.pmem_len, self.sparse)?;
        data.make(undo, self.data_len, self.sparse)?;
        let region = self.region(None)?;
        let device = FileDevice::open(&data.path, Options::default())?;
        let locked =
            device.is_block_device() || device.try_lock_exclusive().map_err(io_at(&data.path))?;
        match locked {
            true => Ok((region, device)),
            false => Err(MkfsError::Busy(data.path.clone())),
        }
    }

    /// Both media, one behind the other in one file or device, under one lock.
    fn make_one(&self, undo: &Undo) -> Result<(Region, FileDevice), MkfsError> {
        let len = self.pmem_len + self.data_len;
        self.pmem.make(undo, len, self.sparse)?;
        let region = self.region(Some(self.pmem_len))?;
        let options = Options {
            start: self.pmem_len / BLOCK as u64,
            ..Options::default()
        };
        Ok((region, FileDevice::open(&self.pmem.path, options)?))
    }

    fn region(&self, len: Option<u64>) -> Result<Region, MkfsError> {
        let options = MapOptions {
            len,
            ..MapOptions::default()
        };
        let region = Region::open(&self.pmem.path, options)?;
        match region.try_lock_exclusive()? {
            true => Ok(region),
            false => Err(MkfsError::Busy(self.pmem.path.clone())),
        }
    }
}

/// Removes that by which an earlier volume in this file or device could be known again: its tables, and the header and the
/// copies behind its region.
fn forget_earlier(path: &Path) -> io::Result<()> {
    let kind = std::fs::metadata(path)?.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        // A devdax device is mapped only, and has nothing behind its region.
        return Ok(());
    }
    let mut file = File::options().read(true).write(true).open(path)?;
    let len = file.seek(SeekFrom::End(0))?;
    let mut block = [0; BLOCK];
    let mut tables = COPIES.into_iter().filter_map(|off| {
        file.read_exact_at(&mut block, off).ok()?;
        ConfigTable::decode(&block).ok()
    });
    let Some(earlier) = tables.next() else {
        return Ok(());
    };
    let start = earlier.geometry.pmem_len;
    let behind = [0, BACKUP_BLOCK].map(|n| start + n * BLOCK as u64);
    for at in COPIES.into_iter().chain(behind) {
        if at.checked_add(BLOCK as u64).is_some_and(|end| end <= len) {
            file.write_all_at(&[0; BLOCK], at)?;
        }
    }
    file.sync_data()
}

/// The absolute path of the volume that is to be made, and whether it is one file or device: one that is there, or a
/// new file whose size is known.
fn place(volume: &Path, sized: bool) -> Result<(PathBuf, bool), MkfsError> {
    let path = std::path::absolute(volume).map_err(io_at(volume))?;
    match path.canonicalize() {
        Ok(path) => {
            let meta = std::fs::metadata(&path).map_err(io_at(&path))?;
            let kind = meta.file_type();
            match kind.is_file() || kind.is_block_device() {
                true => Ok((path, true)),
                false if kind.is_dir() && sized => Err(MkfsError::Together(
                    path,
                    "--size is for a volume in one file, and this is a directory",
                )),
                false if kind.is_dir() => Ok((path, false)),
                false => Err(MkfsError::Together(
                    path,
                    "neither a device nor a file that could hold a volume, nor a directory",
                )),
            }
        }
        Err(e) => match in_the_way(&path) {
            Some(why) => Err(MkfsError::Unreachable(path, why)),
            // A device that is not there: nothing is made in its place.
            None if e.kind() == io::ErrorKind::NotFound && is_device_path(&path) => {
                Err(io_at(&path)(e))
            }
            None if e.kind() == io::ErrorKind::NotFound => {
                let parent = path.parent().unwrap_or(&path);
                match parent.is_dir() {
                    true => Ok((path, sized)),
                    false => {
                        let why = format!("there is no directory {}", parent.display());
                        Err(MkfsError::Unreachable(path, why))
                    }
                }
            }
            None => Err(io_at(&path)(e)),
        },
    }
}

/// The medium of the region, and that of the data if they have one of their own.
fn find_media(
    volume: &Path,
    together: bool,
    o: &MkfsOptions,
) -> Result<(Medium, Option<Medium>), MkfsError> {
    if together {
        return Ok((medium_of_both(volume, o)?, None));
    }
    let pmem = Medium::find(volume.join(PMEM), o.pmem.as_deref(), o.pmem_size)?;
    let data = Medium::find(volume.join(DATA), o.data.as_deref(), o.data_size)?;
    let [one, other] = [&data, &pmem].map(|medium| medium.path.canonicalize().ok());
    let same = data.path == pmem.path || one.is_some() && one == other;
    match same {
        true => Err(MkfsError::Same(pmem.path)),
        false => Ok((pmem, Some(data))),
    }
}

/// A directory with other things in it is hardly meant to become a volume. `media`: what may be there.
fn check_room(volume: &Path, media: [&PathBuf; 2]) -> Result<(), MkfsError> {
    let Ok(entries) = std::fs::read_dir(volume) else {
        return Ok(());
    };
    let mut found = entries.filter_map(Result::ok);
    let other = found.find(|entry| {
        let name = entry.file_name();
        let is_ours = OURS.iter().chain(&LOGS).any(|ours| name == *ours);
        !is_ours && !media.contains(&&entry.path())
    });
    match other {
        Some(entry) => Err(MkfsError::Crowded(volume.into(), entry.file_name())),
        None => Ok(()),
    }
}

/// What is to hold a region and the data behind it.
fn medium_of_both(path: &Path, o: &MkfsOptions) -> Result<Medium, MkfsError> {
    let fail = |why| Err(MkfsError::Together(path.into(), why));
    if o.pmem.is_some() || o.data.is_some() {
        return fail(
            "holds both parts of the volume: --pmem and --data are for one in a directory",
        );
    }
    if o.data_size.is_some() {
        return fail(
            "the data get what the region leaves: choose --pmem-size, or --size for all of a file",
        );
    }
    let medium = Medium::find(path.into(), None, o.size)?;
    match medium.len {
        Some(_) => Ok(medium),
        None => fail("how large? --size says so"),
    }
}

/// What is lost. That something is, or that others have access to a medium, is an error unless `force` is said.
fn overwritten(media: &[&Medium], force: bool) -> Result<Vec<Overwritten>, MkfsError> {
    let lost: Vec<_> = media.iter().flat_map(|m| m.lost.iter().cloned()).collect();
    if !force {
        if !lost.is_empty() {
            return Err(MkfsError::Occupied(lost));
        }
        media.iter().try_for_each(|m| m.check_exposure())?;
    }
    let taken = media.iter().filter_map(|m| m.taken());
    Ok(lost.into_iter().chain(taken).collect())
}

/// The root directory belongs to the user who makes the volume.
fn root(o: &MkfsOptions) -> Root {
    let mut root = Root::default();
    let me = rustix::process::geteuid();
    if !me.is_root() {
        root.uid = me.as_raw();
        root.gid = rustix::process::getegid().as_raw();
    }
    if let Some((uid, gid)) = o.owner {
        root.uid = uid;
        root.gid = gid.unwrap_or(root.gid);
    }
    root.mode = o.mode.unwrap_or(root.mode);
    root
}
