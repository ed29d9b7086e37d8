//! Making a volume.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use quayfs_blockdev::{BlockDevice, FileDevice, Options, create_file, probe_signature};
use quayfs_journal::{Durability, Journal, JournalError};
use quayfs_layout::config::{COPIES, ConfigTable, DataHeader, FEATURE_QUOTA, LABEL_MAX};
use quayfs_layout::geometry::{Geometry, GeometryError};
use quayfs_layout::inode::{self, Inode, ROOT, S_IFDIR};
use quayfs_layout::node::{self, NodeKind};
use quayfs_layout::{BLOCK, bytes};
use quayfs_pmem::{Backend, MapOptions, PmemError, Region};
use quayfs_ppt::{Ppt, PptError};

use crate::fs::attr::now;
use crate::recovery::{journal_geometry, ppt_geometry};
use crate::volume::{DATA, PMEM};

/// Size of a pmem region made without a wish.
pub const PMEM_DEFAULT: u64 = 256 << 20;
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
    /// Do not allocate files in full.
    pub sparse: bool,
    /// Volume label.
    pub label: Option<String>,
    /// Overwrite what is there.
    pub force: bool,
    /// Number of staging buffers.
    pub buffers: Option<u32>,
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
    #[error("{}: holds {what}; --force overwrites it", path.display())]
    Occupied {
        /// Where.
        path: PathBuf,
        /// What.
        what: String,
    },
    /// In use.
    #[error("{}: in use by another process", .0.display())]
    Busy(PathBuf),
    /// The label is too long.
    #[error("a label has at most {LABEL_MAX} bytes, this one has {0}")]
    Label(usize),
    /// The sizes do not work.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
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

/// Makes a volume in directory `volume`. The configuration table is written last, so a mkfs that
/// was interrupted leaves no volume or, between the two copies of the table, a whole one that lacks
/// the spare copy.
pub fn mkfs(volume: &Path, o: &MkfsOptions) -> Result<MkfsReport, MkfsError> {
    let label = o.label.clone().unwrap_or_default();
    if label.len() > LABEL_MAX {
        return Err(MkfsError::Label(label.len()));
    }
    fs::create_dir_all(volume).map_err(io_at(volume))?;
    let volume = volume.canonicalize().map_err(io_at(volume))?;
    let pmem = Medium::find(&volume, PMEM, o.pmem.as_deref(), o.pmem_size)?;
    let data = Medium::find(&volume, DATA, o.data.as_deref(), o.data_size)?;
    for m in [&pmem, &data] {
        m.check_free(o.force)?;
    }
    let pmem_len = pmem.len.unwrap_or(PMEM_DEFAULT) / BLOCK as u64 * BLOCK as u64;
    let data_len = match data.len {
        Some(n) => n,
        None => default_data_len(&volume).map_err(io_at(&volume))?,
    };
    let geometry = layout(pmem_len, data_len, o.buffers)?;
    pmem.make(o, |p| Ok(Region::create(p, pmem_len, o.sparse)?))?;
    data.make(o, |p| create_file(p, data_len, o.sparse).map_err(io_at(p)))?;
    pmem.link(&volume, PMEM)?;
    data.link(&volume, DATA)?;

    let region = Region::open(&pmem.path, MapOptions::default())?;
    if !region.try_lock_exclusive()? {
        return Err(MkfsError::Busy(pmem.path));
    }
    let device = FileDevice::open(&data.path, Options::default())
        .map_err(|e| MkfsError::Device(e.to_string()))?;
    let region = Arc::new(region);
    let config = format(&region, &device, geometry, &label)?;
    Ok(MkfsReport {
        uuid: crate::fs::uuid_text(config.uuid),
        backend: region.backend(),
        geometry,
        label,
    })
}

/// As many staging buffers as stay useful.
fn layout(pmem_len: u64, data_len: u64, buffers: Option<u32>) -> Result<Geometry, GeometryError> {
    if let Some(n) = buffers {
        return Geometry::compute(pmem_len, data_len, n);
    }
    let mut n = BUFFERS_DEFAULT;
    loop {
        let g = Geometry::compute(pmem_len, data_len, n);
        match g {
            Ok(g) if g.slots_per_buffer < SLOTS_WANTED && n > 1 => n /= 2,
            Err(GeometryError::PmemTooSmall { .. }) if n > 1 => n /= 2,
            other => return other,
        }
    }
}

/// A quarter of the free space of the file system that holds `dir`, at most [`DATA_DEFAULT`].
fn default_data_len(dir: &Path) -> io::Result<u64> {
    let s = rustix::fs::statvfs(dir)?;
    let free = s.f_bavail.saturating_mul(s.f_frsize);
    Ok((free / 4).min(DATA_DEFAULT) / BLOCK as u64 * BLOCK as u64)
}

/// A file or device that will be one half of the volume.
struct Medium {
    path: PathBuf,
    exists: bool,
    inside: bool,
    len: Option<u64>,
}

impl Medium {
    fn find(
        volume: &Path,
        name: &str,
        given: Option<&Path>,
        size: Option<u64>,
    ) -> Result<Self, MkfsError> {
        let inside = given.is_none();
        let path = given.map_or_else(|| volume.join(name), Path::to_path_buf);
        let path = std::path::absolute(&path).map_err(io_at(&path))?;
        let path = path.canonicalize().unwrap_or(path);
        let meta = match fs::metadata(&path) {
            Ok(m) => Some(m),
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            Err(e) => return Err(io_at(&path)(e)),
        };
        let Some(meta) = meta else {
            return Ok(Self {
                path,
                exists: false,
                inside,
                len: size,
            });
        };
        use std::os::unix::fs::FileTypeExt;
        if meta.file_type().is_dir() {
            let source = io::Error::from(io::ErrorKind::IsADirectory);
            return Err(MkfsError::Io { path, source });
        }
        let fixed = !meta.file_type().is_file();
        let have = if meta.file_type().is_block_device() {
            use std::io::Seek;
            let mut f = fs::File::open(&path).map_err(io_at(&path))?;
            f.seek(io::SeekFrom::End(0)).map_err(io_at(&path))?
        } else {
            meta.len()
        };
        if (fixed || !inside) && meta.file_type().is_file() | meta.file_type().is_block_device() {
            if let Some(want) = size
                && want != have
            {
                return Err(MkfsError::Size { path, have, want });
            }
            return Ok(Self {
                path,
                exists: true,
                inside,
                len: Some(have),
            });
        }
        if meta.file_type().is_char_device() {
            // devdax: the region reports its length when it is opened.
            let len = Region::open(&path, MapOptions::default())?.len();
            return Ok(Self {
                path,
                exists: true,
                inside,
                len: Some(len),
            });
        }
        Ok(Self {
            path,
            exists: true,
            inside,
            len: size.or(Some(have)),
        })
    }

    fn check_free(&self, force: bool) -> Result<(), MkfsError> {
        if !self.exists || force {
            return Ok(());
        }
        let found = probe_signature(&self.path).map_err(io_at(&self.path))?;
        match found {
            Some(what) => Err(MkfsError::Occupied {
                path: self.path.clone(),
                what: format!("{what} data"),
            }),
            None if self.inside => Err(MkfsError::Occupied {
                path: self.path.clone(),
                what: "a file".into(),
            }),
            None => Ok(()),
        }
    }

    /// Creates the file unless there is one that is to be used.
    fn make(
        &self,
        o: &MkfsOptions,
        create: impl FnOnce(&Path) -> Result<(), MkfsError>,
    ) -> Result<(), MkfsError> {
        if self.exists {
            let is_file = fs::metadata(&self.path)
                .map_err(io_at(&self.path))?
                .is_file();
            if !(self.inside && is_file) {
                return Ok(());
            }
            // Whoever holds the old file keeps it; the new one has the size asked for.
            debug_assert!(o.force);
            let region = Region::open(
                &self.path,
                MapOptions {
                    read_only: true,
                    require: None,
                },
            );
            if let Ok(r) = region
                && !r.try_lock_exclusive()?
            {
                return Err(MkfsError::Busy(self.path.clone()));
            }
            fs::remove_file(&self.path).map_err(io_at(&self.path))?;
        }
        create(&self.path)
    }

    /// Puts a link to a medium outside into the volume's directory.
    fn link(&self, volume: &Path, name: &str) -> Result<(), MkfsError> {
        if self.inside {
            return Ok(());
        }
        let link = volume.join(name);
        match fs::symlink_metadata(&link) {
            Ok(m) if m.is_symlink() => fs::remove_file(&link).map_err(io_at(&link))?,
            Ok(_) => {
                return Err(MkfsError::Occupied {
                    path: link,
                    what: "a file".into(),
                });
            }
            Err(_) => {}
        }
        symlink(&self.path, &link).map_err(io_at(&link))
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
    /// One that nobody else has.
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
    let dev = |e: io::Error| MkfsError::Device(e.to_string());
    for off in COPIES {
        region.write_nt(off, &[0; BLOCK]);
    }
    region.drain()?;

    let mut name = [0; LABEL_MAX];
    name[..label.len()].copy_from_slice(label.as_bytes());
    let incompat = if geometry.quota_pages > 0 {
        FEATURE_QUOTA
    } else {
        0
    };
    let config = ConfigTable {
        uuid: identity.uuid,
        data_uuid: identity.data_uuid,
        compat: [0, 0, incompat],
        created: quayfs_sync::time::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |d| d.as_secs()),
        label: name,
        hash_key: identity.hash_key,
        geometry,
    };
    let (g, salt) = (geometry, config.salt());
    // None of these drains: until the configuration table says so there is no volume.
    Ppt::format(region, &ppt_geometry(&g, salt))?;
    Journal::format(region, &journal_geometry(&g, salt), Durability::Op)?;
    write_root(region, &g, salt);
    region.drain()?;
    let header = DataHeader {
        data_uuid: config.data_uuid,
        uuid: config.uuid,
        blocks: g.data_blocks,
    };
    device.write(0, &header.encode()).map_err(dev)?;
    device.flush().map_err(dev)?;
    let table = config.encode();
    for off in COPIES.into_iter().rev() {
        region.write_nt(off, &table);
        region.drain()?;
    }
    Ok(config)
}

/// NAT and the two pages that hold the root directory.
fn write_root(region: &Region, g: &Geometry, salt: u64) {
    let time = now();
    let root = Inode {
        mode: S_IFDIR | 0o755,
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
    for (page, bytes) in [(0, &mut table), (1, &mut bitmap)] {
        node::seal(bytes, salt);
        region.write_nt(g.node_page(page), bytes);
    }
    const CHUNK: u64 = 8192;
    let mut id = 0;
    while id < g.nat_entries {
        let n = CHUNK.min(g.nat_entries - id);
        let mut out = Vec::with_capacity(n as usize * 8);
        for i in id..id + n {
            let i = i as u32;
            let word = if i == inode_node {
                node::nat_encode(i, 0, salt)
            } else if i == bitmap_node {
                node::nat_encode(i, 1, salt)
            } else {
                node::nat_absent(i, salt)
            };
            out.extend_from_slice(&word.to_le_bytes());
        }
        region.write_nt(g.nat_off + id * 8, &out);
        id += n;
    }
}
