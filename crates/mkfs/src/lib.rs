//! Making a volume: first a plan, which looks and changes nothing, then what it says.

mod cache;
mod format;
mod medium;
mod undo;

use std::fmt;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use quayfs_blockdev::{FileDevice, OpenError, Options};
use quayfs_journal::JournalError;
use quayfs_layout::BLOCK;
use quayfs_layout::config::LABEL_MAX;
use quayfs_layout::geometry::{Geometry, GeometryError, Wishes};
use quayfs_pmem::{Backend, MapOptions, PmemError, Region};
use quayfs_ppt::PptError;

use medium::Medium;
use quayfs_fs::volume::{DATA, PMEM, VolumeError, check_exposure, in_the_way, is_device_path};

pub use cache::WriteCache;
pub use format::{Identity, Root, format, format_as};
pub use undo::Undo;

/// Size of a pmem region made without a wish.
pub const PMEM_DEFAULT: u64 = 256 << 20;
/// Least and most bytes of a region that shares a device with the data, made without a wish; the most where it is a
/// sixteenth of the device, and not less than a 64th.
const REGION_MIN: u64 = 64 << 20;
const REGION_MAX: u64 = 4 << 30;
/// Most bytes for staging in a region that shares a device with the data: what more would gain by absorbing writes, a commit
/// that writes it there first loses, and a mount looks at all slots.
const STAGING_MAX: u64 = 1 << 30;
/// Which part of a region on a disk is its batch log, how long that is at most, and at least: in shorter regions there is
/// none.
const BATCH_LOG_SHARE: u64 = 16;
const BATCH_LOG_MAX: u64 = 32 << 20;
const BATCH_LOG_LEAST: u64 = 1 << 20;
/// Least bytes of a device that holds both.
const TOGETHER_MIN: u64 = 32 << 20;
/// Most bytes of a data file made without a wish.
pub const DATA_DEFAULT: u64 = 8 << 30;
/// Most staging buffers made without a wish.
const BUFFERS_DEFAULT: u32 = 4;
/// Slots that a staging buffer should have before there is another one.
const SLOTS_WANTED: u64 = 2048;

/// What to make.
#[derive(Clone, Debug, Default)]
pub struct MkfsOptions {
    /// An existing file or device, or the path of a file to be made, for the pmem region.
    pub pmem: Option<PathBuf>,
    /// Bytes of the pmem region.
    pub pmem_size: Option<u64>,
    /// An existing file or device, or the path of a file to be made, for the data.
    pub data: Option<PathBuf>,
    /// Bytes of the data device.
    pub data_size: Option<u64>,
    /// Bytes of a file that is to hold both.
    pub size: Option<u64>,
    /// Do not allocate files in full.
    pub sparse: bool,
    /// Volume label.
    pub label: Option<String>,
    /// Overwrite what is there.
    pub force: bool,
    /// User, and perhaps group, of the root directory: otherwise those of the process, and with root's rights root's.
    pub owner: Option<(u32, Option<u32>)>,
    /// Permission bits of the root directory: otherwise 0755.
    pub mode: Option<u32>,
    /// Number of staging buffers.
    pub buffers: Option<u32>,
    /// Bytes of the data device that are reserved for a copy of the metadata: otherwise a 128th of it.
    pub mirror_size: Option<u64>,
}

/// What was made.
#[derive(Clone, Debug)]
pub struct MkfsReport {
    /// Volume UUID.
    pub uuid: String,
    /// Backend of the pmem region.
    pub backend: Backend,
    /// Areas.
    pub geometry: Geometry,
    /// Label.
    pub label: String,
    /// The write cache of the disk that the region is on, if it is on one that says so.
    pub cache: Option<WriteCache>,
}

/// Something that is lost by making a volume. Prints as its place and what it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overwritten {
    /// Where it is.
    pub path: PathBuf,
    /// What it is.
    pub what: String,
}

impl fmt::Display for Overwritten {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.what)
    }
}

fn listed(all: &[Overwritten]) -> String {
    let all: Vec<_> = all.iter().map(ToString::to_string).collect();
    all.join("; ")
}

/// Why nothing was made. Prints as one line.
#[derive(Debug, thiserror::Error)]
pub enum MkfsError {
    /// A system call failed.
    #[error("{}: {source}", path.display())]
    Io {
        /// What it was about.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// There is something that would be lost.
    #[error("{}; --force overwrites it", listed(.0))]
    Occupied(Vec<Overwritten>),
    /// A link leads nowhere.
    #[error("{}: {}", .0.display(), .1)]
    Unreachable(PathBuf, String),
    /// Others have access to a medium.
    #[error("{}: {why}; --force takes it over", path.display())]
    Exposed {
        /// The medium.
        path: PathBuf,
        /// Who has access, and what to do.
        why: String,
    },
    /// Others have access to a medium still.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// Both media are the same.
    #[error("{}: cannot be the pmem region and the data device at once", .0.display())]
    Same(PathBuf),
    /// In use.
    #[error("{}: in use by another process", .0.display())]
    Busy(PathBuf),
    /// The label is too long.
    #[error("a label has at most {LABEL_MAX} bytes, this one has {0}")]
    Label(usize),
    /// The sizes do not work.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// This cannot be a volume on one device or file, or not with these options.
    #[error("{}: {}", .0.display(), .1)]
    Together(PathBuf, &'static str),
    /// The size of an existing medium cannot be chosen.
    #[error("{}: has {have} bytes, {want} were asked for", path.display())]
    Size {
        /// The medium.
        path: PathBuf,
        /// Its size.
        have: u64,
        /// The wish.
        want: u64,
    },
    /// The pmem region cannot be used.
    #[error(transparent)]
    Pmem(#[from] PmemError),
    /// The data device cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The data device cannot be used.
    #[error("data device: {0}")]
    Device(String),
    /// The journal cannot be written.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The page table cannot be written.
    #[error(transparent)]
    Ppt(#[from] PptError),
}

fn io_at(path: &Path) -> impl FnOnce(io::Error) -> MkfsError + '_ {
    move |source| MkfsError::Io {
        path: path.into(),
        source,
    }
}

/// Makes a volume in directory `volume`. Nothing that was made is left behind on failure.
pub fn mkfs(volume: &Path, o: &MkfsOptions) -> Result<MkfsReport, MkfsError> {
    Plan::new(volume, o)?.carry_out(&Undo::default())
}

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
        let (pmem, data) = match together {
            true => (medium_of_both(&volume, o)?, None),
            false => {
                let pmem = Medium::find(volume.join(PMEM), o.pmem.as_deref(), o.pmem_size)?;
                let data = Medium::find(volume.join(DATA), o.data.as_deref(), o.data_size)?;
                (pmem, Some(data))
            }
        };
        if data.as_ref().is_some_and(|data| data.path == pmem.path) {
            return Err(MkfsError::Same(pmem.path));
        }
        let media: Vec<_> = [&pmem].into_iter().chain(&data).collect();
        let lost = media.iter().flat_map(|m| m.lost.iter().cloned());
        let taken = media.iter().filter_map(|m| m.taken());
        let overwritten: Vec<_> = lost.clone().chain(taken).collect();
        let lost: Vec<_> = lost.collect();
        if !o.force {
            if !lost.is_empty() {
                return Err(MkfsError::Occupied(lost));
            }
            media.iter().try_for_each(|m| m.check_exposure())?;
        }
        let (pmem_len, data_len) = match &data {
            Some(data) => {
                let data_len = match data.len {
                    Some(n) => n,
                    None => default_data_len(&volume).map_err(io_at(&volume))?,
                };
                (whole_blocks(pmem.len.unwrap_or(PMEM_DEFAULT)), data_len)
            }
            None => {
                let all = whole_blocks(pmem.len.unwrap_or_default());
                let fail = |why| Err(MkfsError::Together(volume.clone(), why));
                if all < TOGETHER_MIN {
                    return fail("too small for a volume: one device or file has at least 32 MiB");
                }
                let pmem_len = o.pmem_size.unwrap_or_else(|| default_region_len(all));
                if pmem_len >= all {
                    return fail(
                        "the region would leave nothing for data: choose a smaller --pmem-size",
                    );
                }
                let pmem_len = whole_blocks(pmem_len);
                (pmem_len, all - pmem_len)
            }
        };
        let wishes = Wishes {
            mirror: o.mirror_size,
            staging: data.is_none().then_some(STAGING_MAX),
            batch_log: 0,
        };
        let geometry = layout(pmem_len, data_len, o.buffers, wishes)?;
        pmem.check_idle()?;
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
        self.make(undo).inspect_err(|_| undo.roll_back())
    }

    fn make(&self, undo: &Undo) -> Result<MkfsReport, MkfsError> {
        let (region, device) = match &self.data {
            Some(data) => self.make_two(undo, data)?,
            None => self.make_one(undo)?,
        };
        let data = self.data.as_ref().unwrap_or(&self.pmem);
        check_exposure((&region, &self.pmem.path), (&device, &data.path))?;
        if self.pmem.is_new() && !self.sparse {
            region.write_zeros()?;
        }
        let on_disk = region.backend() == Backend::File;
        let geometry = match on_disk {
            true => self.on_disk,
            false => self.geometry,
        };
        for range in format::stored(&geometry) {
            region.allocate(range.start, range.end - range.start)?;
        }
        let region = Arc::new(region);
        let identity = Identity::random();
        let config = format::prepare(&region, geometry, &self.label, &identity, self.root)?;
        undo.settle(|| format::complete(&region, &device, &config))?;
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

fn whole_blocks(len: u64) -> u64 {
    len / BLOCK as u64 * BLOCK as u64
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

/// Bytes of the region of a volume on a device of so many bytes: it holds metadata, and what has been written lately. Each
/// block has 12 bytes of map and checksums in it; a 64th leaves room for a file for each 20 to 50 KiB of a large device.
fn default_region_len(all: u64) -> u64 {
    const SHARE: u64 = 16;
    const SHARE_OF_LARGE: u64 = 64;
    let wanted = (all / SHARE).clamp(REGION_MIN, REGION_MAX);
    let wanted = wanted.max(all / SHARE_OF_LARGE).min(all / 2);
    wanted.next_multiple_of(1 << 20)
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
            None if e.kind() == io::ErrorKind::NotFound => Ok((path, sized)),
            None => Err(io_at(&path)(e)),
        },
    }
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

/// As many staging buffers as stay useful.
fn layout(
    pmem_len: u64,
    data_len: u64,
    buffers: Option<u32>,
    wishes: Wishes,
) -> Result<Geometry, GeometryError> {
    let compute = |n| Geometry::compute_with(pmem_len, data_len, n, wishes);
    if let Some(n) = buffers {
        return compute(n);
    }
    let mut n = BUFFERS_DEFAULT;
    loop {
        let g = compute(n);
        match g {
            Ok(g) if g.slots_per_buffer < SLOTS_WANTED && n > 1 => n /= 2,
            Err(GeometryError::PmemTooSmall { .. }) if n > 1 => n /= 2,
            other => return other,
        }
    }
}

/// The same on a disk: with a batch log, if there is room for one.
fn layout_on_disk(memory: &Geometry, data_len: u64, wishes: Wishes) -> Geometry {
    let batch_log = (memory.pmem_len / BATCH_LOG_SHARE).min(BATCH_LOG_MAX);
    if batch_log < BATCH_LOG_LEAST {
        return *memory;
    }
    let wishes = Wishes {
        batch_log,
        ..wishes
    };
    let buffers = Some(memory.buffers as u32);
    layout(memory.pmem_len, data_len, buffers, wishes).unwrap_or(*memory)
}

/// A quarter of the free space of the file system that holds `dir`, or will, at most [`DATA_DEFAULT`].
fn default_data_len(dir: &Path) -> io::Result<u64> {
    let there = dir.ancestors().find(|dir| dir.exists()).unwrap_or(dir);
    let s = rustix::fs::statvfs(there)?;
    let free = s.f_bavail.saturating_mul(s.f_frsize);
    Ok((free / 4).min(DATA_DEFAULT) / BLOCK as u64 * BLOCK as u64)
}
