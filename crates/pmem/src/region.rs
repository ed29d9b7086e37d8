//! The region: everything that is done to persistent memory. Here is what one is made of and what is known of it; each
//! file below has one kind of thing that is done to it.

mod access;
mod allocate;
mod durable;
mod load;
mod locked;
mod on_disk;
mod open;
mod prefault;

use crate::disk::Disk;
use crate::drain::DrainGate;
use crate::fault::Guard;
use crate::held::{Extent, Touched};
use crate::memory::Memory;
use crate::{Backend, Observer, PmemError};
use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

pub use allocate::{fill_new, take_space};
pub use locked::inherit_reservation;
pub use open::MapOptions;

/// A mapped or simulated region of persistent memory. Share it as `Arc<Region>`.
///
/// Offsets and lengths are in bytes from the start of the region. An access outside of the region, a
/// misaligned 4- or 8-byte access and a store to a read-only region are bugs and panic. When stores
/// become durable is said in the [persistence model](crate).
pub struct Region {
    /// Goes before the memory, whose addresses may then be another one's.
    _guard: Option<Guard>,
    pub(crate) memory: Memory,
    pub(crate) backend: Backend,
    gate: DrainGate,
    pub(crate) source: Source,
    /// What is stored here is written by us.
    disk: Option<Disk>,
    /// Nearly all of it lies in huge pages.
    huge: AtomicBool,
    /// The longest that is known to have data.
    pub(crate) longest: Extent,
}

pub(crate) enum Source {
    File {
        file: Arc<File>,
        path: PathBuf,
    },
    Simulated(Option<Arc<dyn Observer>>),
    /// A private copy.
    Copy(Touched),
}

impl Region {
    pub(crate) fn assemble(memory: Memory, backend: Backend, source: Source) -> Self {
        let guard = match &source {
            Source::File { file, path } => {
                let start = memory.address(0, 0).addr();
                Some(Guard::new(start, memory.len(), Arc::clone(file), path))
            }
            Source::Simulated(_) | Source::Copy(_) => None,
        };
        let disk = match &source {
            Source::File { file, .. } if memory.is_private() && memory.is_writable() => {
                Some(Disk::new(Arc::clone(file), memory.len() as u64))
            }
            _ => None,
        };
        Self {
            _guard: guard,
            memory,
            backend,
            gate: DrainGate::default(),
            source,
            disk,
            huge: AtomicBool::new(false),
            longest: Extent::default(),
        }
    }

    /// Heap memory of `len` bytes, all zero, that behaves as [`Backend::Dax`]. Everything done to it
    /// is reported to `observer`.
    pub fn simulated(len: u64, observer: Arc<dyn Observer>) -> Self {
        Self::simulated_as(Backend::Dax, len, observer)
    }

    /// [`Region::simulated`] with a choice of backend.
    pub fn simulated_as(backend: Backend, len: u64, observer: Arc<dyn Observer>) -> Self {
        let memory = Memory::heap(usize::try_from(len).unwrap_or(usize::MAX));
        Self::assemble(memory, backend, Source::Simulated(Some(observer)))
    }

    /// Heap memory with a copy of `image`, for restarting from what a crash left behind. The copy
    /// itself is not reported.
    pub fn from_image(
        image: impl AsRef<[u8]>,
        observer: Option<Arc<dyn Observer>>,
        backend: Backend,
    ) -> Self {
        let image = image.as_ref();
        Self::from_extents(image.len() as u64, [(0, image)], observer, backend)
    }

    /// [`Region::from_image`] for an image of `len` bytes that is zero but for some extents, given as
    /// offset and content.
    pub fn from_extents<'a>(
        len: u64,
        extents: impl IntoIterator<Item = (u64, &'a [u8])>,
        observer: Option<Arc<dyn Observer>>,
        backend: Backend,
    ) -> Self {
        let mut memory = Memory::heap(usize::try_from(len).unwrap_or(usize::MAX));
        for (off, bytes) in extents {
            memory.init(off, bytes);
        }
        Self::assemble(memory, backend, Source::Simulated(observer))
    }

    /// Length in bytes, never 0.
    #[expect(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub fn len(&self) -> u64 {
        self.memory.len() as u64
    }

    /// What kind of medium this is.
    pub fn backend(&self) -> Backend {
        self.backend
    }

    /// Whether stores are impossible.
    pub fn is_read_only(&self) -> bool {
        !self.memory.is_writable()
    }

    /// Whether it is a regular file whose last name was removed: its content ends with this process. Does not wait for the file
    /// system.
    pub fn is_unlinked(&self) -> bool {
        match &self.source {
            Source::File { file, .. } => quayfs_transfer::is_unlinked(file),
            Source::Simulated(_) | Source::Copy(_) => false,
        }
    }

    /// How many bytes at its end are not there any more, of a regular file that was cut short. Does not wait for the file system.
    pub fn missing(&self) -> u64 {
        let len = match &self.source {
            Source::File { file, .. } => quayfs_transfer::known_len(file),
            Source::Simulated(_) | Source::Copy(_) => None,
        };
        len.map_or(0, |len| self.len().saturating_sub(len))
    }

    /// The backing file, unless this is simulated.
    pub fn path(&self) -> Option<&Path> {
        match &self.source {
            Source::File { path, .. } => Some(path),
            Source::Simulated(_) | Source::Copy(_) => None,
        }
    }

    /// What the system says of the backing file, which may have another name by now; `None` if this is simulated.
    ///
    /// # Errors
    /// [`PmemError::Io`].
    pub fn metadata(&self) -> Result<Option<std::fs::Metadata>, PmemError> {
        match &self.source {
            Source::File { file, path } => {
                let meta = file.metadata().map_err(open::io_error("stat", path))?;
                Ok(Some(meta))
            }
            Source::Simulated(_) | Source::Copy(_) => Ok(None),
        }
    }

    /// The observer, if there is one; `None` as well for real memory.
    fn observer(&self) -> Option<&Arc<dyn Observer>> {
        match &self.source {
            Source::Simulated(observer) => observer.as_ref(),
            Source::File { .. } | Source::Copy(_) => None,
        }
    }

    /// Whether flush and fence instructions mean anything here.
    fn is_real_memory(&self) -> bool {
        matches!(self.source, Source::File { .. }) && !self.backend.needs_drain()
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region")
            .field("path", &self.path())
            .field("backend", &self.backend)
            .field("len", &self.len())
            .field("read_only", &self.is_read_only())
            .finish_non_exhaustive()
    }
}
