//! Moving the region or the data of a volume to another device or file.
//!
//! The copy is no part of a volume before it is whole: what would make it one is written last. Then the volume's directory
//! leads there, which is the one moment at which it changes places; a crash leaves it with the old place or with the new
//! one. Whichever is opened to write first makes the other one part of no volume ([`quayfs_fs::volume`]).
//! docs/internals/crash-consistency.md has the order.
//!
//! | module | does |
//! |---|---|
//! | `target` | the new place: what is there, and whether it will do |
//! | `copy` | blocks of one device to another, compared afterwards |
//! | `region` | a region as blocks |
//! | `live`, `watched` | the same of a volume that is mounted |
//! | `switch` | the link in the volume's directory |

mod copy;
mod live;
mod region;
mod switch;
mod target;
mod watched;

use std::fmt;
use std::io;
use std::iter::once;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use quayfs_blockdev::{BlockDevice, OpenError};
use quayfs_fs::closing::{CloseError, close, opened_closed};
use quayfs_fs::volume::{Access, DATA, PMEM, Place, Volume, VolumeError, locate, moved_region};
use quayfs_layout::BLOCK;
use quayfs_layout::config::COPIES;
use quayfs_options::format_size;
use quayfs_pmem::PmemError;
use quayfs_shown::progress::{Meter, Unit};

use copy::Copier;
pub use copy::CopyError;
pub use live::{LeftBehind, Live, backend_of, finish};
use region::RegionBlocks;
pub use target::{Number, Target, Wanted};
pub use watched::Watched;

const B: u64 = BLOCK as u64;

/// What of a volume is moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The region.
    Pmem,
    /// The data.
    Data,
}

impl Part {
    /// Its name in the volume's directory.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pmem => PMEM,
            Self::Data => DATA,
        }
    }

    /// As a number that other processes understand.
    pub fn word(self) -> u64 {
        match self {
            Self::Pmem => 0,
            Self::Data => 1,
        }
    }

    fn from_word(word: u64) -> Self {
        match word {
            0 => Self::Pmem,
            _ => Self::Data,
        }
    }

    /// Blocks at the start without which it is part of no volume: the copies of the configuration table, or the header.
    fn heads(self) -> u64 {
        match self {
            Self::Pmem => COPIES.len() as u64,
            Self::Data => 1,
        }
    }

    /// Where it lies.
    pub fn of(self, place: &Place) -> &Path {
        match self {
            Self::Pmem => &place.pmem,
            Self::Data => &place.data,
        }
    }

    /// How many blocks of a volume are this part.
    pub fn blocks(self, volume: &quayfs_layout::geometry::Geometry) -> u64 {
        match self {
            Self::Pmem => volume.pmem_len.div_ceil(B),
            Self::Data => volume.data_blocks,
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pmem => "region",
            Self::Data => "data",
        })
    }
}

/// Why a part of a volume is not moved. Prints as one line that says what to do.
#[derive(Debug, thiserror::Error)]
pub enum MigrateError {
    /// The volume cannot be opened.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// It cannot be closed.
    #[error(transparent)]
    Close(#[from] CloseError),
    /// The region fails.
    #[error(transparent)]
    Pmem(#[from] PmemError),
    /// Both parts are in one.
    #[error(
        "{}: holds both parts of the volume, which are moved together: unmount it and copy all of it, as with dd", .0.display()
    )]
    Together(PathBuf),
    /// A system call failed.
    #[error("{}: {source}", path.display())]
    Io {
        /// What it was about.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// It cannot be the new place.
    #[error("{}: {}", .0.display(), .1)]
    Unfit(PathBuf, String),
    /// The same: it cannot be opened.
    #[error(transparent)]
    Open(OpenError),
    /// The same: another process uses it.
    #[error("{}: in use by another process, or mounted", .0.display())]
    Busy(PathBuf),
    /// The same: it is too small.
    #[error(
        "{}: too small: it has {}, {} are needed", path.display(), format_size(*have), format_size(*need)
    )]
    Small {
        /// The new place.
        path: PathBuf,
        /// Its bytes.
        have: u64,
        /// Those that are needed.
        need: u64,
    },
    /// The same: it is no such medium as the old one, and the volume is mounted.
    #[error(
        "{}: another kind of medium than that of the region, which has told programs when calls are durable: unmount the volume first", .0.display()
    )]
    Unlike(PathBuf),
    /// The new place cannot be written, or the old one not be read.
    #[error(transparent)]
    Copy(#[from] CopyError),
    /// Daemons have died while they did it.
    #[error("daemons have died while they copied the rest")]
    Died,
    /// Another process has used the volume.
    #[error("another process has used the volume meanwhile: try again")]
    Changed,
    /// The volume leads to the new place, as long as there is no crash.
    #[error("{}: it leads to the new place now, but that may not be durable: {source}; keep both places until the volume has been mounted", path.display())]
    Uncertain {
        /// What leads there.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
}

/// What has become of a volume.
#[derive(Clone, Debug)]
pub struct Moved {
    /// Where the part was.
    pub old: PathBuf,
    /// Whether the old file is gone: it lay in the volume's directory.
    pub is_gone: bool,
    /// Where it is.
    pub new: PathBuf,
    /// How many bytes.
    pub bytes: u64,
}

/// Moves a part of the volume at a path, which is not mounted. The meter is told how far it is. Durable when it returns.
///
/// # Errors
/// [`MigrateError`]; but for [`MigrateError::Uncertain`] the volume is where it was.
pub fn migrate(
    path: &Path,
    part: Part,
    (new, force): (&Path, bool),
    meter: &Meter,
) -> Result<Moved, MigrateError> {
    let place = in_parts(path)?;
    let mut volume = match part {
        Part::Data => open(path)?,
        // A region on another kind of medium is recovered in another way: there is nothing to recover.
        Part::Pmem => {
            close(path, meter)?;
            opened_closed(path)?
        }
    };
    let blocks = part.blocks(&volume.config().geometry);
    let wanted = Wanted {
        path: new,
        force,
        blocks,
        sparse: is_sparse(part.of(&place)),
    };
    let target = Target::prepare(&place, part, &wanted)?;
    let old = source(&volume, part);
    meter.begin("copying", (blocks - part.heads()) * B, Unit::Bytes);
    // The file system below would have to note of each page of a region when it is written first.
    let is_blank = target.is_blank() && part == Part::Data;
    Copier::new(&*old, target.device()).copy(once(part.heads()..blocks), is_blank, meter)?;
    let moved = Moved::of(&place, part, &target, blocks)?;
    complete(&mut volume, &place, part, &target)?;
    target.keep();
    drop((volume, old));
    // From here on the old place is part of no volume.
    drop(open(path)?);
    Ok(moved)
}

/// Where a volume is that has its parts in two places.
///
/// # Errors
/// [`MigrateError::Volume`], [`MigrateError::Together`].
pub fn in_parts(path: &Path) -> Result<Place, MigrateError> {
    let place = locate(path)?;
    match place.region_len {
        None => Ok(place),
        Some(_) => Err(MigrateError::Together(place.path)),
    }
}

impl Moved {
    /// What will have become of a volume.
    ///
    /// # Errors
    /// The old place cannot be looked at.
    pub fn of(
        place: &Place,
        part: Part,
        target: &Target,
        blocks: u64,
    ) -> Result<Self, MigrateError> {
        let entry = part.of(place);
        let failed = |source| MigrateError::Io {
            path: entry.into(),
            source,
        };
        let is_gone = !std::fs::symlink_metadata(entry)
            .map_err(failed)?
            .is_symlink();
        Ok(Self {
            old: entry.canonicalize().map_err(failed)?,
            is_gone,
            new: target.path().into(),
            bytes: blocks * B,
        })
    }
}

/// Makes a copy that lacks nothing but its heads the part of the volume. Durable when it returns, and the next time that the
/// volume is opened to write it goes on with the copy.
///
/// # Errors
/// [`MigrateError`]; but for [`MigrateError::Uncertain`] the volume is where it was, and the copy is of no use.
pub fn complete(
    volume: &mut Volume,
    place: &Place,
    part: Part,
    target: &Target,
) -> Result<(), MigrateError> {
    let switched =
        write_heads(volume, part, target).and_then(|()| switch::link(place, part, target.path()));
    if let Err(e) = &switched
        && !matches!(e, MigrateError::Uncertain { .. })
    {
        // Only then may anything else be done with the volume.
        volume.settle_move()?;
        target.spoil(part);
    }
    switched
}

/// Makes the copy a whole one, after it has been decided what becomes of two of them.
fn write_heads(volume: &mut Volume, part: Part, target: &Target) -> Result<(), MigrateError> {
    volume.begin_move(new_uuid())?;
    let device = target.device();
    match part {
        Part::Data => {
            let old = Arc::clone(volume.device());
            Copier::new(&*old, device).copy(once(0..1), false, &Meter::default())?;
        }
        Part::Pmem => {
            let table = moved_region(volume.config(), new_uuid()).encode();
            for off in COPIES.into_iter().rev() {
                let written = device.write(off / B, &table).and_then(|()| device.flush());
                written.map_err(CopyError::Write)?;
            }
        }
    }
    Ok(())
}

fn new_uuid() -> [u8; 16] {
    *uuid::Uuid::new_v4().as_bytes()
}

/// The blocks of a part as they are now.
fn source(volume: &Volume, part: Part) -> Arc<dyn BlockDevice> {
    match part {
        Part::Data => Arc::clone(volume.device()),
        Part::Pmem => {
            let blocks = part.blocks(&volume.config().geometry);
            Arc::new(RegionBlocks::new(volume.region(), blocks))
        }
    }
}

/// Whether this is a file with holes.
pub fn is_sparse(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.blocks() * 512 < meta.len())
}

fn open(path: &Path) -> Result<Volume, VolumeError> {
    Volume::open(path, Access::ReadWrite, Duration::ZERO)
}
