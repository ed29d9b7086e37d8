//! The new place: what is there already, and whether it will do.

use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, chown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use quayfs_blockdev::{BlockDevice, FileDevice, OpenError, Options, create_file, probe_signature};
use quayfs_fs::volume::{Place, below, exposure, in_the_way, is_device_path, lasting_name};
use quayfs_layout::BLOCK;
use quayfs_options::format_size;
use quayfs_pmem::{LockKind, lock_within};
use rustix::io::Errno;

use crate::{MigrateError, Part};

/// How long a device may be in use by a process that is ending, as udev's are that look at what was closed.
const WAIT: Duration = Duration::from_secs(5);

/// What is wanted of a new place.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// The device or file; a file that does not exist is made.
    pub path: &'a Path,
    /// Overwrite what is there.
    pub force: bool,
    /// Blocks that it has to have room for.
    pub blocks: u64,
    /// Whether a file that is made has holes.
    pub sparse: bool,
}

/// A new place, open to be written and locked. A file that was made for it is removed again unless [`Target::keep`] has
/// been called.
pub struct Target {
    path: PathBuf,
    device: FileDevice,
    made: bool,
    kept: bool,
    number: Number,
}

/// Which file or device it is, whatever its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Number(u64, u64);

impl Number {
    pub(crate) fn of(meta: &Metadata) -> Self {
        let kind = meta.file_type();
        match kind.is_block_device() || kind.is_char_device() {
            true => Self(u64::MAX, meta.rdev()),
            false => Self(meta.dev(), meta.ino()),
        }
    }

    /// Of what a path leads to.
    ///
    /// # Errors
    /// Those of stat(2).
    pub fn at(path: &Path) -> io::Result<Self> {
        Ok(Self::of(&fs::metadata(path)?))
    }

    /// As two words.
    pub fn words(self) -> [u64; 2] {
        [self.0, self.1]
    }
}

impl Target {
    /// Finds the new place, or makes it, and refuses what will not do. Nothing of a volume is there when this returns: what
    /// is copied to it later is none before it has been completed.
    ///
    /// # Errors
    /// [`MigrateError`]; nothing has been changed, and nothing is left of what was made.
    pub fn prepare(place: &Place, part: Part, wanted: &Wanted<'_>) -> Result<Self, MigrateError> {
        let named = std::path::absolute(wanted.path).map_err(io_at(wanted.path))?;
        if let Some(why) = in_the_way(&named) {
            return Err(MigrateError::Unfit(named, why));
        }
        let made = match fs::metadata(&named) {
            Ok(meta) => {
                check(&named, &meta, place, wanted)?;
                false
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound && !is_device_path(&named) => {
                let bytes = wanted.blocks * BLOCK as u64;
                create_file(&named, bytes, wanted.sparse).map_err(io_at(&named))?;
                true
            }
            Err(e) => return Err(io_at(&named)(e)),
        };
        let opened = match made {
            true => give(&named, part.of(place)),
            false => Ok(()),
        };
        let opened = opened.and_then(|()| Self::open_made(&named, made, wanted.blocks));
        let target = opened.inspect_err(|_| {
            if made {
                // The first error is the one to report.
                let _ = fs::remove_file(&named);
            }
        })?;
        target.wipe(part)?;
        Ok(target)
    }

    /// Opens a place again that [`Target::prepare`] had found, and which has had this number.
    ///
    /// # Errors
    /// [`MigrateError`].
    pub fn reopen(path: &Path, number: [u64; 2], blocks: u64) -> Result<Self, MigrateError> {
        let target = Self::open_made(path, false, blocks)?;
        match target.number.words() == number {
            true => Ok(target),
            false => Err(MigrateError::Unfit(
                path.into(),
                "is another one now".into(),
            )),
        }
    }

    fn open_made(named: &Path, made: bool, blocks: u64) -> Result<Self, MigrateError> {
        let path = lasting_name(named).map_err(io_at(named))?;
        let device = open(&path)?;
        let meta = device.metadata().map_err(io_at(&path))?;
        if let Some(why) = exposure(&path, &meta).filter(|_| !made) {
            return Err(MigrateError::Unfit(path, why));
        }
        if device.blocks() < blocks {
            let (have, need) = (device.blocks() * BLOCK as u64, blocks * BLOCK as u64);
            return Err(MigrateError::Small { path, have, need });
        }
        let number = Number::of(&meta);
        Ok(Self {
            path,
            device,
            made,
            kept: false,
            number,
        })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What is to be written.
    pub fn device(&self) -> &dyn BlockDevice {
        &self.device
    }

    /// Whether all of it was zeros when it was prepared.
    pub fn is_blank(&self) -> bool {
        self.made
    }

    /// Which one it is, to be found again by [`Target::reopen`].
    pub fn number(&self) -> [u64; 2] {
        self.number.words()
    }

    /// It belongs to the volume, or to a process that will go on with it.
    pub fn keep(mut self) {
        self.kept = true;
    }

    /// Takes away what would make a half-written copy a part of a volume. Durable when it returns.
    fn wipe(&self, part: Part) -> Result<(), MigrateError> {
        let zeros = vec![0; part.heads() as usize * BLOCK];
        let wiped = self.device.write(0, &zeros);
        wiped
            .and_then(|()| self.device.flush())
            .map_err(io_at(&self.path))
    }

    /// The copy is not to be used.
    pub(crate) fn spoil(&self, part: Part) {
        // There was an error before, which is the one to report. Whatever is left is part of no volume any more.
        let _ = self.wipe(part);
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if self.made && !self.kept {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// A file that was made belongs to the owner of the old place, as whom the daemon may run.
fn give(path: &Path, old: &Path) -> Result<(), MigrateError> {
    let old = fs::metadata(old).map_err(io_at(old))?;
    let new = fs::metadata(path).map_err(io_at(path))?;
    if (old.uid(), old.gid()) == (new.uid(), new.gid()) || !old.is_file() {
        return Ok(());
    }
    let given = chown(path, Some(old.uid()), Some(old.gid()));
    match given {
        // An ordinary user keeps what is theirs, and can open it.
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        other => other.map_err(io_at(path)),
    }
}

/// Refuses what is there and is not to be overwritten, or cannot be the new place.
fn check(
    path: &Path,
    meta: &Metadata,
    place: &Place,
    wanted: &Wanted<'_>,
) -> Result<(), MigrateError> {
    let unfit = |why: String| Err(MigrateError::Unfit(path.into(), why));
    let kind = meta.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return unfit("is no regular file and no block device".into());
    }
    for (old, what) in [(&place.pmem, "region"), (&place.data, "data")] {
        if Number::at(old).is_ok_and(|number| number == Number::of(meta)) {
            return unfit(format!("is where the {what} of the volume lies already"));
        }
    }
    if wanted.force {
        return Ok(());
    }
    let what = match probe_signature(path).map_err(io_at(path))? {
        Some(what) => format!("holds a {what}"),
        None if kind.is_file() && meta.len() > 0 => {
            format!("is a file of {}", format_size(meta.len()))
        }
        None => return Ok(()),
    };
    unfit(format!("{what}; --force overwrites it"))
}

fn open(path: &Path) -> Result<FileDevice, MigrateError> {
    let device = FileDevice::open(path, Options::default()).map_err(|e| match e {
        OpenError::Io { path, source } if Errno::from_io_error(&source) == Some(Errno::BUSY) => {
            MigrateError::Busy(path)
        }
        e => MigrateError::Open(e),
    })?;
    if !is_idle_below(path) {
        return Err(MigrateError::Busy(path.into()));
    }
    let locked = device.is_block_device() || device.lock_exclusive(WAIT).map_err(io_at(path))?;
    match locked {
        true => Ok(device),
        false => Err(MigrateError::Busy(path.into())),
    }
}

/// Whether no volume is in use that has a file below this loop device, or would be by another device.
fn is_idle_below(path: &Path) -> bool {
    below(path).into_iter().all(|file| {
        let Ok(file) = File::open(file) else {
            return true;
        };
        lock_within(&file, LockKind::Exclusive, WAIT).unwrap_or(true)
    })
}

fn io_at(path: &Path) -> impl FnOnce(io::Error) -> MigrateError + '_ {
    move |source| MigrateError::Io {
        path: path.into(),
        source,
    }
}
