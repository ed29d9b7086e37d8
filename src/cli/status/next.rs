//! What another daemon would meet that had to open the volume of a mount now.

use super::full::{Obstacle, in_the_way};
use crate::cli::media::LONG;
use crate::cli::unopened::has_lost_its_beginning;
use crate::mount::probe::{Question, look};
use quayfs_fs::volume::{
    self, VolumeError, config_of, has_lost_its_log, locate, openness, refusal,
};
use quayfs_shown::progress::Meter;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};
use rustix::io::Errno;
use rustix::process::geteuid;

/// How that begins.
const DENIED: &str = "permission denied";
/// What has become of a volume whose beginning something has overwritten.
const TABLES_LOST: &str = "both configuration tables at its beginning are overwritten";

/// What has become of one without which no batch of the log counts.
const LOG_LOST: &str = "both heads of its batch log are damaged";
/// Goes before what is there instead.
const THERE_IS: &str = ", and what is there now is ";

/// Why it could not open it, as far as the names and owners of the media tell, and what has hit their beginning.
///
/// It may wait for ever, and is for a process that can be left waiting: [`crate::cli::media::hindrance`].
pub fn hindrance(volume: &Path) -> Option<String> {
    match fs::metadata(volume) {
        Ok(meta) if !meta.is_dir() => {
            let shown = quayfs_shown::path(volume);
            let open = openness(volume, &meta).map(|why| format!("{shown}: {why}"));
            open.or_else(|| refusal(volume).map(|why| why.to_string()))
                .or_else(|| lost_tables(volume))
                .or_else(|| lost_log(volume))
                .or_else(|| unreadable(volume))
        }
        Ok(_) => match locate(volume) {
            Ok(place) => in_the_way(volume)
                .or_else(|| lost_tables(volume))
                .or_else(|| lost_log(volume))
                .or_else(|| {
                    [place.pmem, place.data]
                        .iter()
                        .find_map(|part| unreadable(part))
                }),
            Err(why) => absence(&why).or_else(|| forbidden(&why)),
        },
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            absence(&VolumeError::Missing(volume.into()))
        }
        Err(_) => forbidden(&locate(volume).err()?),
    }
}

/// That this user may not read a medium any more: the daemons of its mounts are its own.
fn unreadable(medium: &Path) -> Option<String> {
    match access(medium, Access::READ_OK) {
        Err(Errno::ACCESS) => {
            let (shown, me) = (quayfs_shown::argument(medium), geteuid().as_raw());
            let owner = fs::metadata(medium).map_or(me, |meta| meta.uid());
            Some(match owner == me {
                true => format!("{shown}: permission denied: `chmod 600 {shown}`"),
                false => format!(
                    "{shown}: permission denied: it belongs to user {owner}; `chown {me} {shown}` if it should be user {me}'s"
                ),
            })
        }
        _ => None,
    }
}

/// The part of a volume that nobody can write to: its device, or the file system that it lies on.
pub fn write_protected(volume: &Path) -> Option<PathBuf> {
    let place = locate(volume).ok()?;
    [place.pmem, place.data].into_iter().find(|part| {
        let is_block = |meta: &fs::Metadata| meta.file_type().is_block_device();
        match fs::metadata(part).ok().filter(is_block) {
            Some(meta) => {
                let (major, minor) = (libc::major(meta.rdev()), libc::minor(meta.rdev()));
                let says = fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/ro"));
                says.is_ok_and(|says| says.trim() == "1")
            }
            None => access(part, Access::WRITE_OK) == Err(Errno::ROFS),
        }
    })
}

/// That this user does not get to the volume any more. Root gets everywhere, or is not told by this.
fn forbidden(why: &VolumeError) -> Option<String> {
    let is_it = matches!(why, VolumeError::Unreachable { why, .. } if why.starts_with(DENIED));
    (is_it && !geteuid().is_root()).then(|| why.to_string())
}

/// Whether what is said to be in the way is that a volume has lost its tables: a repair puts them back.
pub fn is_beheaded(why: &str) -> bool {
    why.contains(TABLES_LOST)
}

/// Whether there is something where they were that a repair does not overwrite.
pub fn is_taken(why: &str) -> bool {
    is_beheaded(why) && why.contains(THERE_IS)
}

/// What to say where a volume that was there has no configuration table any more.
fn lost_tables(volume: &Path) -> Option<String> {
    let why = config_of(volume).err()?;
    if !has_lost_its_beginning(&why) {
        return None;
    }
    let region = locate(volume).map_or(volume.to_path_buf(), |place| place.pmem);
    let what = without_tables(volume);
    Some(match volume::occupant(&region) {
        Some(other) => format!("{what}{THERE_IS}{other} data"),
        None => what,
    })
}

/// Whether what is said to be in the way is that a volume has lost its log: a mounted one writes it again.
pub fn is_without_log(why: &str) -> bool {
    why.ends_with(LOG_LOST)
}

/// What to say where nothing says which batches of the log count.
fn lost_log(volume: &Path) -> Option<String> {
    let is_lost = has_lost_its_log(volume).is_ok_and(|lost| lost);
    is_lost.then(|| format!("{}: {LOG_LOST}", quayfs_shown::path(volume)))
}

/// Goes before what is wrong where a repair puts the tables back.
const WHOLE: &str = "whole ";

/// What a volume without tables cannot be mounted for, if a copy of them is left, or something that is none to be believed.
/// `None` also if looking for it takes long, as in a large device.
pub fn known_by_copy(volume: &Path) -> Option<Obstacle> {
    let said = look(volume, Question::Tables, LONG).ok()??;
    let said = said.trim_end();
    match said.strip_prefix(WHOLE) {
        Some(why) => Some(Obstacle::Damage(why.into())),
        None => (!said.is_empty()).then(|| Obstacle::Other(said.into())),
    }
}

/// The answer to [`Question::Tables`].
pub fn beheaded(volume: &Path) -> String {
    match volume::beheaded(volume, &Meter::default()) {
        Ok(Some(_)) => format!(
            "{WHOLE}{}, and a copy of them is left",
            without_tables(volume)
        ),
        Err(VolumeError::Unclear { path, why }) => {
            let elsewhere = match why.contains('`') {
                true => "",
                false => "; restore the volume from a backup",
            };
            format!("{}: {why}{elsewhere}", path.display())
        }
        Ok(None) | Err(_) => String::new(),
    }
}

/// That a volume has lost its tables.
pub fn without_tables(volume: &Path) -> String {
    format!("{}: {TABLES_LOST}", quayfs_shown::path(volume))
}

/// What to say of a volume that was there and cannot be found; `None` if this user cannot tell.
pub fn absence(why: &VolumeError) -> Option<String> {
    match why {
        VolumeError::Missing(path) => {
            let path = quayfs_shown::path(path);
            Some(format!(
                "there is nothing at {path} any more: it was moved or removed, or a file system is not mounted"
            ))
        }
        VolumeError::Incomplete { .. } | VolumeError::Pairing { .. } => Some(why.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn names_and_modes_are_looked_at() {
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path().join("vol");
        let is_hindered_at = |path: &Path, about: &str| {
            let why = hindrance(path).unwrap_or_default();
            assert!(why.contains(about) && !why.contains("mkfs"), "{why}");
        };
        let is_hindered = |about: &str| is_hindered_at(&volume, about);
        is_hindered("moved or removed");
        fs::create_dir(&volume).unwrap();
        fs::write(volume.join("data"), "").unwrap();
        is_hindered("`pmem` is missing");
        fs::write(volume.join("pmem"), "").unwrap();
        let set = |mode| {
            for part in ["pmem", "data"] {
                let mode = fs::Permissions::from_mode(mode);
                fs::set_permissions(volume.join(part), mode).unwrap();
            }
        };
        set(0o644);
        is_hindered("chmod 600");
        set(0o600);
        assert_eq!(hindrance(&volume), None);
        let part = volume.join("data");
        is_hindered_at(&part, TABLES_LOST);
        set(0o640);
        assert!(hindrance(&part).unwrap().contains("chmod 600"));
    }
}
