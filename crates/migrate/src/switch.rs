//! The moment at which the volume goes on with the copy: a link in its directory leads there from then on.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use quayfs_fs::volume::Place;

use crate::{MigrateError, Part};

/// Has the volume's directory lead to the new place. Durable when it returns; a crash before that leaves the old or the
/// new. What was there is gone from the directory, be it a link or the old file itself.
///
/// # Errors
/// [`MigrateError::Io`]: it still leads to the old place. [`MigrateError::Uncertain`]: it leads to the new one, and after a
/// crash perhaps not.
pub(super) fn link(place: &Place, part: Part, new: &Path) -> Result<(), MigrateError> {
    let entry = place.path.join(part.name());
    let beside = place.path.join(format!(".{}.new", part.name()));
    let target: PathBuf = match (new.parent(), new.file_name()) {
        // A volume that is moved as a whole stays one.
        (Some(dir), Some(name)) if dir == place.path => name.into(),
        _ => new.into(),
    };
    let replace = || -> io::Result<()> {
        match fs::remove_file(&beside) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        symlink(&target, &beside)?;
        fs::rename(&beside, &entry)
    };
    let failed = |source| MigrateError::Io {
        path: entry.clone(),
        source,
    };
    replace().map_err(failed)?;
    File::open(&place.path)
        .and_then(|dir| dir.sync_all())
        .map_err(|source| MigrateError::Uncertain {
            path: entry.clone(),
            source,
        })
}
