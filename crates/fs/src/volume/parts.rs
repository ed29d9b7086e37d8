//! Finding the two media of a volume; what is in the way, where one is not to be found.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Component, Path, PathBuf};

use quayfs_blockdev::{open_medium, probe_signature};
use quayfs_layout::BLOCK;
use quayfs_layout::config::{COPIES, ConfigTable, DataHeader};

use super::{DATA, PMEM, VolumeError};

/// More links than this lead in a circle, as for the kernel.
const LINKS: usize = 40;
/// What a mount leaves in a volume beside its parts.
pub const LOGS: [&str; 2] = ["quayfs.log", "quayfs.log.old"];

/// Where a volume is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The volume itself: a directory, or what holds both media. Canonical.
    pub path: PathBuf,
    /// The pmem region.
    pub pmem: PathBuf,
    /// The data device.
    pub data: PathBuf,
    /// The length of the region in bytes, if the data follow it in the same file or device.
    pub region_len: Option<u64>,
}

impl Place {
    fn directory(path: PathBuf) -> Self {
        Self {
            pmem: path.join(PMEM),
            data: path.join(DATA),
            path,
            region_len: None,
        }
    }

    pub(super) fn together(path: PathBuf, region_len: u64) -> Self {
        Self {
            pmem: path.clone(),
            data: path.clone(),
            path,
            region_len: Some(region_len),
        }
    }
}

/// The length of the region of a volume whose media are both in this file or device. `None`: it is something else, or
/// only a region. Where the device is too short, or the header of the data damaged, one of the two still tells.
///
/// # Errors
/// It cannot be opened, or not be read where there is something.
fn holds_both(path: &Path) -> io::Result<Option<u64>> {
    let mut file = opened(path)?;
    let len = file.seek(SeekFrom::End(0))?;
    let Some(table) = config_of(&file)? else {
        return Ok(None);
    };
    let mut block = vec![0; BLOCK];
    file.read_exact_at(&mut block, 0)?;
    if DataHeader::decode(&block).is_ok() {
        // The data of another volume, which has left this one's second table.
        return Ok(None);
    }
    let (region, blocks) = (table.geometry.pmem_len, table.geometry.data_blocks);
    let is_long = blocks <= len.saturating_sub(region) / BLOCK as u64;
    let header = file.read_exact_at(&mut block, region).ok();
    let header = header.and_then(|()| DataHeader::decode(&block).ok());
    let has_header = header.is_some_and(|header| header.data_uuid == table.data_uuid);
    Ok((is_long || has_header).then_some(region))
}

/// For reading, unless it cannot be a medium.
pub(super) fn opened(path: &Path) -> io::Result<fs::File> {
    let opened = open_medium(path, fs::OpenOptions::new().read(true))?;
    opened.ok_or_else(|| io::Error::other("neither a file nor a device of blocks or memory"))
}

/// How long the region is that begins in this file.
fn needed_for_region(path: &Path) -> Option<u64> {
    let table = config_of(&opened(path).ok()?).ok()??;
    Some(table.geometry.pmem_len)
}

/// The first copy of a configuration table that is whole, of a region that begins where the file does.
///
/// # Errors
/// There is none, and one of the places cannot be read.
fn config_of(file: &fs::File) -> io::Result<Option<ConfigTable>> {
    let mut block = vec![0; BLOCK];
    let (mut found, mut failed) = (None, None);
    for off in COPIES {
        match file.read_exact_at(&mut block, off) {
            Ok(()) => found = found.or_else(|| ConfigTable::decode(&block).ok()),
            // Too short for a region.
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => {}
            Err(e) => failed = Some(e),
        }
    }
    match (found, failed) {
        (None, Some(e)) => Err(e),
        (found, _) => Ok(found),
    }
}

/// The name under which a volume finds one of its parts from now on, without links that may lead elsewhere some day. A name
/// below `/dev` of a block device stays as it is: `/dev/sdb` may be another disk after the next start of the machine, and
/// `/dev/disk/by-id/...` is not.
///
/// # Errors
/// Those of looking it up.
pub fn lasting_name(named: &Path) -> io::Result<PathBuf> {
    let path = named.canonicalize()?;
    let named = std::path::absolute(named)?;
    let is_device = || fs::metadata(&path).is_ok_and(|m| m.file_type().is_block_device());
    Ok(match stays_below_dev(&named) && is_device() {
        true => named,
        false => path,
    })
}

/// Whether a name and what it is a link to lie below `/dev`, and not in memory: `/dev/fd/3` leads to something else in each
/// process.
fn stays_below_dev(named: &Path) -> bool {
    let is_there = |path: &Path| {
        let dir = path.parent().and_then(|dir| dir.canonicalize().ok());
        dir.is_some_and(|dir| is_device_path(&dir))
    };
    let next = match fs::read_link(named) {
        Ok(to) => named.parent().map_or(to.clone(), |dir| dir.join(to)),
        Err(_) => named.into(),
    };
    is_there(named) && is_there(&next)
}

/// Finds the volume at a path: a directory whose parts are both there, or a file or device that holds both.
///
/// # Errors
/// [`VolumeError::Missing`] only if nothing of a volume is there; otherwise [`VolumeError::Incomplete`], which says what is
/// missing, or [`VolumeError::Unreachable`], which says what is in the way.
pub fn locate(dir: &Path) -> Result<Place, VolumeError> {
    let place = locate_unfollowed(dir)?;
    is_there(&place.pmem)?;
    is_there(&place.data)?;
    Ok(place)
}

/// Fails if the name of a part leads nowhere. That looks at the part, which may lie on a file system that does not answer.
pub(super) fn is_there(part: &Path) -> Result<(), VolumeError> {
    match fs::metadata(part) {
        Ok(_) => Ok(()),
        Err(_) => {
            let found = obstacle(part);
            Err(match found.error.kind() {
                io::ErrorKind::PermissionDenied => unreachable(part, found.to_string()),
                _ => incomplete(part, found.to_string()),
            })
        }
    }
}

/// [`locate`] without looking where the names of the parts lead.
pub(super) fn locate_unfollowed(dir: &Path) -> Result<Place, VolumeError> {
    let path = match dir.canonicalize() {
        Ok(path) => path,
        Err(e) => {
            let found = obstacle(dir);
            return Err(match found {
                Obstacle { via: None, .. } if e.kind() == io::ErrorKind::NotFound => {
                    match is_device_path(dir) {
                        true => unreachable(dir, "there is no such device".into()),
                        false => VolumeError::Missing(dir.into()),
                    }
                }
                found => unreachable(dir, found.to_string()),
            });
        }
    };
    match fs::metadata(&path) {
        Ok(meta) if meta.is_dir() => {}
        Ok(meta) => {
            let kind = meta.file_type();
            let may_be = kind.is_file() || kind.is_block_device();
            let found = match may_be {
                true => holds_both(&path),
                false => Ok(None),
            };
            return match found {
                Ok(Some(region_len)) => Ok(Place::together(path, region_len)),
                Ok(None) => Err(match cut_short(&path, &meta) {
                    Some(why) => incomplete(dir, why),
                    None => unreachable(dir, not_a_directory(&path, &meta)),
                }),
                Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                    Err(VolumeError::denied(path))
                }
                Err(e) => Err(unreachable(dir, format!("cannot be read: {e}"))),
            };
        }
        Err(_) => return Err(unreachable(dir, obstacle(&path).to_string())),
    }
    let names = [PMEM, DATA];
    let absent = names.map(|name| is_absent(&path.join(name)));
    match (absent, names) {
        ([true, true], _) => {
            let left = LOGS.iter().find(|log| !is_absent(&path.join(log)));
            return Err(match left {
                Some(log) => incomplete(
                    dir,
                    format!(
                        "`{PMEM}` and `{DATA}` are gone, only `{log}` is left of a volume; put them back"
                    ),
                ),
                None => VolumeError::Missing(dir.into()),
            });
        }
        ([true, false], [gone, left]) | ([false, true], [left, gone]) => {
            let why = format!(
                "one half of a volume: `{left}` is there and `{gone}` is missing; put it, or a link to it, back"
            );
            return Err(incomplete(dir, why));
        }
        ([false, false], _) => {}
    }
    Ok(Place::directory(path))
}

/// What makes a path lead nowhere though its name is there: a link to what is not.
pub fn in_the_way(path: &Path) -> Option<String> {
    if fs::metadata(path).is_ok() {
        return None;
    }
    let found = obstacle(path);
    found.via.is_some().then(|| found.to_string())
}

fn unreachable(path: &Path, why: String) -> VolumeError {
    VolumeError::Unreachable {
        path: path.into(),
        why,
    }
}

fn incomplete(path: &Path, why: String) -> VolumeError {
    VolumeError::Incomplete {
        path: path.into(),
        why,
    }
}

/// Whether there is no such name, not even of a link that leads nowhere.
fn is_absent(path: &Path) -> bool {
    fs::symlink_metadata(path).is_err_and(|e| e.kind() == io::ErrorKind::NotFound)
}

/// What to say of a file or device that ends within the region of a volume.
fn cut_short(path: &Path, meta: &fs::Metadata) -> Option<String> {
    let len = match meta.is_file() {
        true => meta.len(),
        false => opened(path).ok()?.seek(SeekFrom::End(0)).ok()?,
    };
    let needs = needed_for_region(path).filter(|needs| *needs > len)?;
    Some(format!(
        "cut short: it has {len} bytes, and the region of the volume alone takes {needs}; restore it from a backup"
    ))
}

/// Whether a device is there by its name only, as a loop device without a file.
fn has_nothing(device: &Path) -> bool {
    let end = opened(device).and_then(|mut file| file.seek(SeekFrom::End(0)));
    end.is_ok_and(|end| end == 0)
}

fn not_a_directory(path: &Path, meta: &fs::Metadata) -> String {
    let kind = meta.file_type();
    if kind.is_block_device() && has_nothing(path) {
        return "the device has no size: nothing is attached to it".into();
    }
    if kind.is_file() || kind.is_block_device() {
        // A caller that may not read it is not told what it holds.
        let half = match probe_signature(path) {
            Ok(Some("quayfs volume")) if needed_for_region(path).is_none() => {
                let shown = quayfs_shown::argument(path);
                return format!(
                    "its configuration tables are damaged: `quayfs fsck {shown}` says what can be put back"
                );
            }
            Ok(Some("quayfs volume")) => Some("a region"),
            Ok(Some("quayfs data device")) => Some("a data device"),
            _ => None,
        };
        if let Some(half) = half {
            return format!(
                "{half}, one half of a volume: name the directory that holds it or a link to it"
            );
        }
    }
    "no volume; one is a device or a file that mkfs has made one, or a directory with its two parts or links to them"
        .into()
}

/// Where the way to a path ends.
struct Obstacle {
    /// The first name that cannot be had.
    at: PathBuf,
    error: io::Error,
    /// The link that led there, and what it says.
    via: Option<(PathBuf, PathBuf)>,
}

/// Goes to `path` a name at a time, through links, as far as that is possible.
fn obstacle(path: &Path) -> Obstacle {
    let mut via = None;
    let mut links = 0;
    let mut at = PathBuf::new();
    let start = std::path::absolute(path).unwrap_or_else(|_| path.into());
    let mut rest: VecDeque<OsString> = names(&start);
    while let Some(name) = rest.pop_front() {
        if name == ".." {
            at.pop();
            continue;
        }
        let next = at.join(&name);
        let kind = fs::symlink_metadata(&next).map(|m| m.file_type());
        let target = match kind {
            Ok(kind) if kind.is_symlink() => fs::read_link(&next),
            Ok(_) => {
                at = next;
                continue;
            }
            Err(e) => Err(e),
        };
        let error = match target {
            Ok(target) if links < LINKS => {
                links += 1;
                for part in names(&target).into_iter().rev() {
                    rest.push_front(part);
                }
                via = Some((next, target));
                continue;
            }
            Ok(_) => rustix::io::Errno::LOOP.into(),
            Err(e) => e,
        };
        return Obstacle {
            at: next,
            error,
            via,
        };
    }
    // It was there this time; or what fails is not the way.
    let error = match fs::metadata(&at) {
        Err(e) => e,
        Ok(_) => io::Error::from(io::ErrorKind::Interrupted),
    };
    Obstacle { at, error, via }
}

/// The names of a path; an absolute one begins anew.
fn names(path: &Path) -> VecDeque<OsString> {
    path.components()
        .filter(|c| *c != Component::CurDir)
        .map(|c| c.as_os_str().to_owned())
        .collect()
}

impl std::fmt::Display for Obstacle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let at = quayfs_shown::argument(&self.at);
        if let Some((link, target)) = &self.via {
            let (link, target) = (quayfs_shown::argument(link), quayfs_shown::argument(target));
            write!(f, "the link {link} points to {target}: ")?;
        }
        match self.error.raw_os_error() {
            Some(libc::ENOENT) if is_device_path(&self.at) => {
                write!(
                    f,
                    "there is no {at}; attach the device, or correct the link"
                )
            }
            Some(libc::ENOENT) => write!(
                f,
                "there is no {at}; mount the file system that holds it, or put it back"
            ),
            Some(libc::EACCES) => write!(f, "permission denied at {}", self.guarded()),
            Some(libc::ENOTCONN) => {
                write!(f, "a dead mount is on the way, at {at}: `umount {at}`")
            }
            _ => write!(f, "{at}: {}", self.error),
        }
    }
}

/// Whether a device would be there, not a file.
pub fn is_device_path(path: &Path) -> bool {
    path.starts_with("/dev") && !path.starts_with("/dev/shm")
}

impl Obstacle {
    /// The directory that may not be passed, and by whom it may.
    fn guarded(&self) -> String {
        let dir = self.at.parent().unwrap_or(&self.at);
        passable_by(dir)
    }
}

/// A path with its owner and mode.
pub(super) fn passable_by(path: &Path) -> String {
    match fs::metadata(path) {
        Ok(meta) => format!(
            "{}, which belongs to user {} and has mode {:04o}; only that user and root may",
            path.display(),
            meta.uid(),
            meta.mode() & 0o7777
        ),
        Err(_) => path.display().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn said(dir: &Path) -> String {
        locate(dir).unwrap_err().to_string()
    }

    #[test]
    fn only_names_of_devices_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("file"), dir.path().join("link"));
        fs::write(&file, "").unwrap();
        symlink(&file, &link).unwrap();
        assert_eq!(lasting_name(&link).unwrap(), file.canonicalize().unwrap());
        let fds = Path::new("/dev/fd");
        assert_eq!(lasting_name(fds).unwrap(), fds.canonicalize().unwrap());
        assert!(lasting_name(&dir.path().join("none")).is_err());
        assert!(stays_below_dev(Path::new("/dev/null")));
        for name in ["/dev/fd/0", "/dev/stdin", "/dev/shm/x", "/dev/../etc/x"] {
            assert!(!stays_below_dev(Path::new(name)), "{name}");
        }
    }

    #[test]
    fn what_is_not_there_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let vol = at("vol");
        let missing = format!("there is no volume at {}", vol.display());
        assert!(said(&vol).starts_with(&missing), "{}", said(&vol));
        fs::create_dir(&vol).unwrap();
        assert!(said(&vol).starts_with(&missing), "{}", said(&vol));
        // To make a volume is no advice where one may have been.
        let quiet = |about: &[&str]| {
            let said = said(&vol);
            assert!(!said.contains("mkfs"), "{said}");
            for word in about {
                assert!(said.contains(word), "{word}: {said}");
            }
        };
        fs::write(vol.join("quayfs.log"), "").unwrap();
        quiet(&["quayfs.log", "put them back"]);
        fs::write(vol.join("data"), "").unwrap();
        quiet(&["`data` is there", "`pmem` is missing"]);
        // Through two links to a file system that is not mounted.
        fs::create_dir(at("pm")).unwrap();
        symlink(at("pm/region"), at("second")).unwrap();
        symlink(at("second"), vol.join("pmem")).unwrap();
        let (second, region) = (at("second"), at("pm/region"));
        quiet(&[
            &format!("{} points to {}", second.display(), region.display()),
            &format!("there is no {}", region.display()),
            "mount the file system",
        ]);
        fs::remove_dir(at("pm")).unwrap();
        quiet(&[&format!("there is no {}", at("pm").display())]);
        fs::remove_file(vol.join("pmem")).unwrap();
        symlink("/dev/no-such-device", vol.join("pmem")).unwrap();
        quiet(&["/dev/no-such-device", "attach the device"]);
        fs::remove_file(vol.join("pmem")).unwrap();
        symlink("pmem", vol.join("pmem")).unwrap();
        quiet(&["symbolic link"]);
        fs::remove_file(vol.join("pmem")).unwrap();
        fs::write(vol.join("pmem"), "").unwrap();
        assert_eq!(locate(&vol).unwrap().path, vol.canonicalize().unwrap());
        // A link to a volume that is not there.
        symlink(at("gone/vol"), at("link")).unwrap();
        let said = said(&at("link"));
        assert!(
            said.contains("points to") && !said.contains("mkfs"),
            "{said}"
        );
    }

    #[test]
    fn files_are_no_volumes() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        for (content, about) in [
            (&b"x"[..], "no volume"),
            (b"QUAYFSPM", "tables are damaged"),
            (b"QUAYFSDD", "one half of a volume"),
        ] {
            fs::write(&file, content).unwrap();
            let said = said(&file);
            assert!(
                said.contains(about) && !said.contains("`quayfs mkfs"),
                "{said}"
            );
        }
        let said = said(&file.join("below"));
        assert!(
            said.contains("ot a directory") && !said.contains("mkfs"),
            "{said}"
        );
    }
}
