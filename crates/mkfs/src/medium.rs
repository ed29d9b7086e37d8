//! The two halves of a volume before there is one: what is there, and what has to be made.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use quayfs_blockdev::{FileDevice, OpenError, Options, probe_signature};
use quayfs_fs::volume::{below, exposure, in_the_way, is_only_readable, lasting_name};
use quayfs_layout::size::format_size;
use quayfs_pmem::{MapOptions, Region, fill_new};
use quayfs_transfer::{LockKind, lock_within};

use super::undo::Undo;
use super::{MkfsError, Overwritten, io_at};

/// A file or device that will be one half of the volume.
pub(super) struct Medium {
    /// Where it is, or will be.
    pub path: PathBuf,
    /// Its name in the volume.
    entry: PathBuf,
    /// What is there is used.
    kept: bool,
    /// What is there goes, and another file comes in its place.
    replaced: bool,
    /// It lies in the volume, where otherwise a link points to it.
    inside: bool,
    /// Something else has its name in the volume.
    displaced: bool,
    /// A link to it is in the volume already.
    linked: bool,
    /// Bytes, if they are known.
    pub len: Option<u64>,
    /// What is lost.
    pub lost: Vec<Overwritten>,
    /// Others have access to it.
    exposed: Option<String>,
    /// Others can read it, and no more.
    readable: bool,
}

impl Medium {
    /// Looks for a medium and changes nothing. `entry` is its name in the volume.
    pub fn find(
        entry: PathBuf,
        given: Option<&Path>,
        size: Option<u64>,
    ) -> Result<Self, MkfsError> {
        let named = given.map_or_else(|| entry.clone(), Path::to_path_buf);
        let named = std::path::absolute(&named).map_err(io_at(&named))?;
        let inside = given.is_none() || named == entry;
        let dangling = in_the_way(&named);
        if let (Some(why), false) = (&dangling, inside) {
            return Err(MkfsError::Unreachable(named, why.clone()));
        }
        let path = match &dangling {
            Some(_) => named,
            None => lasting_name(&named).unwrap_or(named),
        };
        let mut medium = Self {
            path,
            entry,
            kept: false,
            replaced: false,
            inside,
            displaced: false,
            linked: false,
            len: size,
            lost: Vec::new(),
            exposed: None,
            readable: false,
        };
        match fs::metadata(&medium.path) {
            Ok(meta) => medium.meet(&meta, size)?,
            // A link that leads nowhere is replaced itself.
            Err(e) if e.kind() == io::ErrorKind::NotFound || dangling.is_some() => {}
            Err(e) => return Err(io_at(&medium.path)(e)),
        }
        medium.look_at_entry()?;
        Ok(medium)
    }

    /// Decides what to do with what is there.
    fn meet(&mut self, meta: &Metadata, size: Option<u64>) -> Result<(), MkfsError> {
        let kind = meta.file_type();
        if kind.is_dir() {
            return Err(io_at(&self.path)(io::ErrorKind::IsADirectory.into()));
        }
        let have = if kind.is_char_device() {
            // devdax: the region reports its length when it is opened.
            Region::open(&self.path, MapOptions::default())?.len()
        } else if kind.is_block_device() {
            use std::io::Seek;
            let mut f = File::open(&self.path).map_err(io_at(&self.path))?;
            f.seek(io::SeekFrom::End(0)).map_err(io_at(&self.path))?
        } else {
            meta.len()
        };
        let what = if kind.is_char_device() {
            None
        } else {
            probe_signature(&self.path).map_err(io_at(&self.path))?
        };
        if let Some(what) = what {
            let what = match what.strip_prefix("quayfs ") {
                Some(what) => format!("a QuayFS {what}"),
                None => format!("{what} data"),
            };
            self.lose(&self.path.clone(), what);
        } else if self.inside && kind.is_file() {
            self.lose(
                &self.path.clone(),
                format!("a file of {}", format_size(have)),
            );
        }
        if self.inside && kind.is_file() {
            self.replaced = true;
            self.len = size.or(Some(have));
            return Ok(());
        }
        if let Some(want) = size.filter(|want| *want != have && !kind.is_char_device()) {
            return Err(MkfsError::Size {
                path: self.path.clone(),
                have,
                want,
            });
        }
        self.kept = true;
        self.len = Some(have);
        self.exposed = exposure(&self.path, meta);
        self.readable = self.exposed.is_some() && is_only_readable(meta);
        Ok(())
    }

    /// A link or file that has the medium's name in the volume, and is something else.
    fn look_at_entry(&mut self) -> Result<(), MkfsError> {
        let entry = self.entry.clone();
        let Ok(meta) = fs::symlink_metadata(&entry) else {
            return Ok(());
        };
        if meta.is_dir() {
            return Err(io_at(&entry)(io::ErrorKind::IsADirectory.into()));
        }
        let leads = fs::canonicalize(&entry);
        let path = fs::canonicalize(&self.path);
        let ours = leads
            .as_ref()
            .ok()
            .is_some_and(|to| path.is_ok_and(|path| *to == path));
        if ours || self.inside && !meta.is_symlink() {
            self.linked = ours && (self.inside || leads_as_named(&entry, &self.path));
            // A link by another name of the same device is replaced.
            self.displaced = ours && !self.linked && meta.is_symlink();
            return Ok(());
        }
        self.displaced = true;
        let what = match fs::read_link(&entry) {
            Ok(to) if leads.is_err() => format!(
                "a link to {}, which is not there (is its file system mounted?)",
                to.display()
            ),
            Ok(to) => format!("a link to {}", to.display()),
            Err(_) => format!("a file of {}", format_size(meta.len())),
        };
        self.lose(&entry, what);
        Ok(())
    }

    fn lose(&mut self, path: &Path, what: String) {
        self.lost.push(Overwritten {
            path: path.into(),
            what,
        });
    }

    /// Refuses what others have access to, unless all that they can do is to read a file of the caller's: it is made
    /// private.
    pub fn check_exposure(&self) -> Result<(), MkfsError> {
        match self.exposed.clone() {
            Some(why) if !self.readable => Err(MkfsError::Exposed {
                path: self.path.clone(),
                why,
            }),
            _ => Ok(()),
        }
    }

    /// Who had access and what becomes of it, for a user who insists.
    pub fn taken(&self) -> Option<Overwritten> {
        let open = self.exposed.is_some() && !self.readable;
        open.then(|| Overwritten {
            path: self.path.clone(),
            what: "open to others until now, and still to those who have it open".into(),
        })
    }

    /// The file that others could read until now.
    pub fn made_private(&self) -> Option<&Path> {
        self.readable.then_some(&*self.path)
    }

    /// Refuses what is in use: what has its name in the volume now, and what will have.
    pub fn check_idle(&self) -> Result<(), MkfsError> {
        let below = below(&self.path);
        for path in [&self.path, &self.entry].into_iter().chain(&below) {
            let is_device = fs::metadata(path).is_ok_and(|m| m.file_type().is_block_device());
            // Only a claim tells whether a device is mounted.
            let claim = match is_device && !below.contains(path) {
                true => libc::O_EXCL,
                false => 0,
            };
            // Whatever its length: a region that is not whole can be mounted all the same.
            let opened = OpenOptions::new()
                .read(true)
                .custom_flags(libc::O_NONBLOCK | claim)
                .open(path);
            let file = match opened {
                Ok(file) => file,
                Err(e) if e.kind() == io::ErrorKind::ResourceBusy => {
                    return Err(MkfsError::Busy(path.clone()));
                }
                Err(_) => continue,
            };
            if lock_within(&file, LockKind::Exclusive, Duration::ZERO).is_ok_and(|locked| !locked) {
                return Err(MkfsError::Busy(path.clone()));
            }
        }
        Ok(())
    }

    /// Fails if a device that is to be kept does not take writes, or is in use, before anything is changed.
    pub fn check_device(&self) -> Result<(), MkfsError> {
        if !self.kept && !self.replaced {
            return Ok(());
        }
        let options = Options {
            read_only: self.replaced,
            ..Options::default()
        };
        match FileDevice::open(&self.path, options) {
            Ok(device) if device.is_block_device() => Ok(()),
            Ok(device) => match device.try_lock_exclusive() {
                Ok(true) => Ok(()),
                Ok(false) => Err(MkfsError::Busy(self.path.clone())),
                Err(e) => Err(io_at(&self.path)(e)),
            },
            // Too short for anything, and about to go.
            Err(_) if self.replaced => Ok(()),
            Err(e) => Err(not_opened(e)),
        }
    }

    /// As [`Medium::check_device`], of a region. It is as long as that, if it shares the medium with the data.
    pub fn check_region(&self, len: Option<u64>) -> Result<(), MkfsError> {
        if !self.kept {
            return Ok(());
        }
        let meta = fs::metadata(&self.path).map_err(io_at(&self.path))?;
        if meta.file_type().is_block_device() {
            FileDevice::open(&self.path, Options::default()).map_err(not_opened)?;
        }
        let options = MapOptions {
            len,
            ..MapOptions::default()
        };
        Region::open(&self.path, options)?;
        Ok(())
    }

    /// Whether [`Medium::make`] makes it.
    pub fn is_new(&self) -> bool {
        !self.kept
    }

    /// Makes the file of this length unless there is one that is to be used, and the link to it.
    pub fn make(&self, undo: &Undo, len: u64, sparse: bool) -> Result<(), MkfsError> {
        if self.displaced {
            fs::remove_file(&self.entry).map_err(io_at(&self.entry))?;
        }
        if self.replaced {
            // A process that has the old file open keeps it; the new file has the requested size.
            fs::remove_file(&self.path).map_err(io_at(&self.path))?;
        }
        if self.kept {
            self.take_over()?;
        } else {
            let file = undo.file(&self.path).map_err(io_at(&self.path))?;
            fill_new(&file, &self.path, len, sparse).map_err(io_at(&self.path))?;
        }
        if !self.inside && !self.linked {
            undo.link(&self.path, &self.entry)
                .map_err(io_at(&self.entry))?;
        }
        Ok(())
    }

    /// Ends the access of others to a file that is used all the same.
    fn take_over(&self) -> Result<(), MkfsError> {
        if self.exposed.is_none() {
            return Ok(());
        }
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(&self.path)
            .map_err(io_at(&self.path))?;
        let me = rustix::process::geteuid().as_raw();
        let owner = file.metadata().map_err(io_at(&self.path))?.uid();
        if owner != me && owner != 0 {
            fchown(&file, Some(me), None).map_err(io_at(&self.path))?;
        }
        file.set_permissions(fs::Permissions::from_mode(0o600))
            .map_err(io_at(&self.path))
    }
}

/// Whether the link says this path.
fn leads_as_named(link: &Path, path: &Path) -> bool {
    fs::read_link(link).is_ok_and(|to| to == path)
}

/// A device that cannot be claimed is mounted, or in use by something else.
fn not_opened(e: OpenError) -> MkfsError {
    match e {
        OpenError::Io { path, source } if source.raw_os_error() == Some(libc::EBUSY) => {
            MkfsError::Busy(path)
        }
        e => e.into(),
    }
}
