//! Making a volume: first a plan, which looks and changes nothing, then what it says.

mod cache;
mod format;
mod medium;
mod plan;
mod sizes;
mod undo;

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use quayfs_blockdev::OpenError;
pub use quayfs_blockdev::probe_signature;
use quayfs_fs::volume::VolumeError;
use quayfs_journal::JournalError;
use quayfs_layout::config::LABEL_MAX;
use quayfs_layout::geometry::{Geometry, GeometryError};
use quayfs_layout::size::exact_size;
use quayfs_pmem::{Backend, PmemError};
use quayfs_ppt::PptError;

pub use cache::WriteCache;
pub use format::{Identity, Root, format, format_as};
pub use plan::Plan;
pub use sizes::region_len;
pub use undo::Undo;

/// Size of a pmem region made without a wish.
pub const PMEM_DEFAULT: u64 = 256 << 20;
/// Most bytes of a data file made without a wish.
pub const DATA_DEFAULT: u64 = 8 << 30;

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
    /// The directory has something else in it.
    #[error(
        "{}: a directory with other things in it ({}): name a new or empty one; --force puts `pmem` and `data` beside them",
        .0.display(), .1.display()
    )]
    Crowded(PathBuf, OsString),
    /// A link leads nowhere.
    #[error("{}: {}", .0.display(), .1)]
    Unreachable(PathBuf, String),
    /// Others have access to a medium.
    #[error("{}: {why}; --force takes it over", path.display())]
    Exposed {
        /// The medium.
        path: PathBuf,
        /// The access that others have, and what to do.
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
    #[error("{}: has {}, {} were asked for", path.display(), exact_size(*have), exact_size(*want))]
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
